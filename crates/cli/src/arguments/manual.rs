//! What long help texts say below their arguments, as manual pages do. The examples of configurations are
//! read by a test, so that they stay what is accepted.

/// Below `keeptime modify --help`.
pub const MODIFY: &str = r#"Whatever is not given stays as it is. What is said of a goal is for reservations
that were made for one. What runs stays on its nodes, unless others or another
number are named: its program is there, and is ended where it is not to be.

Example: keeptime modify r17 --cpu 40% --until 18:00
Exit code 1: refused, with the reason; the reservation is as it was."#;

/// Below `keeptime list --help`.
pub const LIST: &str = r#"The newest stand last. Times are to the minute: without a date today, without a
year this year. On a terminal lines are cut where it ends; `keeptime show r17`
tells all of one, and `keeptime why r17` how it came to that.

Examples:
  keeptime list                      # what is there, will be, or waits for room
  keeptime list --all                # what is over, too
  keeptime list --state refused      # what was not granted, and why"#;

/// Below `keeptime cancel --help`.
pub const CANCEL: &str = r#"Each is cancelled that can be. Of several, --json prints a list of those that
were.

Example: keeptime cancel r17 r18
Exit code 2: some were not; each of them is told with the reason."#;

/// Below `keeptime move --help`.
pub const MOVE: &str = r#"Example: keeptime move r17      # prints the handle of what takes its place
Exit code 1: there is no room; the reason, and what would be admitted."#;

/// Below `keeptime watch --help`.
pub const WATCH: &str = r#"Examples:
  keeptime watch                 # all that happens, until interrupted
  keeptime watch r17 --json      # one reservation, until it is over

The id of an event in JSON is what --after takes."#;

/// Below `keeptime why --help`.
pub const WHY: &str = r#"Of a long history the first 16 records and the last 1000 are told, and how
many are left out between them.

Example: keeptime why r17       # who asked, what was decided, on which grounds"#;

/// Below `keeptime timeline --help`.
pub const TIMELINE: &str = r#"Examples:
  keeptime timeline                                  # the next day
  keeptime timeline --from "tomorrow 8:00" --to "tomorrow 18:00" --svg day.svg"#;

/// Below `keeptime register --help`.
pub const REGISTER: &str = r#"For operators: the profile decides what everybody is promised.

Example: keeptime register sum.toml --profile sum.json"#;

/// Below `keeptime bind --help`.
pub const BIND: &str = r#"Examples:
  keeptime bind r17 --pid 4711 --flow 10.0.0.2       # on the node
  keeptime bind r17 --node n1 --pid 4711             # on a node of a lab"#;

/// Below `keeptime profile --help`.
pub const PROFILE: &str = r#"A curve is how the execution time of one set of parameters on so many nodes
falls with bandwidth; a point is one bandwidth of it, measured by several runs.

Examples:
  keeptime profile raycast --nodes 2,4 --set size=512,256 --set interleave=0
  keeptime profile sum.toml --profile sum.json

From the fourth number of nodes of a setting on, the others say what to
expect: a curve that confirms it takes fewer runs, four at least. Below the
table stands how times go with nodes, and what to expect between numbers that
were measured. Nothing is planned with that: plan and run go by what was
measured.

Interrupted, it goes on with the same command."#;

/// Below `keeptime plan --help`.
pub const PLAN: &str = r#"Example: keeptime plan raycast --within 1s --set interleave=0

Nothing is reserved. The broker plans with the application's file and profile,
which are registered for that, as keeptime register does: what everybody else
asks for by this name is planned with them from then on. Where another file or
profile was registered, this is said.

What the steps are, and words as knee and point: docs/GLOSSARY.md.
Exit code 1: the goal cannot be kept now; why, and what would be admitted."#;

/// Below `keeptime rate set --help`.
pub const RATE_SET: &str = r#"Example: keeptime rate set r17 "40 %"
It also says when the run is ended at the latest: a lower rate leaves as much
more time for what is left, unless others have reserved its nodes then.
Where the broker does not answer just now, or is changing the run, the rate
follows when it can, which is said (--json: `follows`, with the reason).
Exit code 1: there is not that much; the run goes on as it was."#;

/// Below `keeptime site add --help`.
pub const SITE_ADD: &str = r#"For operators. What balancers need in their configuration: docs/balancers.md.
A backend that serves already is switched off, and on again at the nodes that
the site is given: at once where nodes are free for it.

Example:
  keeptime site add shop --hard 2 --soft 6 --max 7 --priority 10 \
      --backend haproxy:/run/haproxy.sock/shop --app nginx@shop"#;

/// Below `keeptime node drain --help`.
pub const NODE_DRAIN: &str = r#"For operators. `keeptime nodes` shows which nodes are drained, by whom and why.

Examples:
  keeptime node drain n1,n2 --reason "new disk"
  keeptime node drain "n[1-16]" --reason "new switch"    # n1 to n16
  keeptime node drain n1 --reason "new disk" --wait && ssh n1 poweroff
  keeptime node drain --all --reason "upgrade" --wait --except-sites"#;

/// Below `keeptime node resume --help`.
pub const NODE_RESUME: &str = r#"For operators. Who waits for room (--wait) is tried first.

Examples:
  keeptime node resume n1,n2
  keeptime node resume --all"#;

/// Below `keeptime lab up --help`.
pub const LAB_UP: &str = r#"Examples, as root:
  keeptime lab up                                    # 4 nodes, 100 Mbit/s
  keeptime lab up big --nodes 8 --switches 2 --rate "1 Gbit/s" --cpu "20 %"
  keeptime lab up dc --nodes 8 --cpu "15 %" --web shop,blog"#;

/// Below `keeptime lab exec --help`.
pub const LAB_EXEC: &str = r#"Examples:
  keeptime lab exec lab n1 -- ip addr
  keeptime lab exec lab n1 --job r1 -- ./simulate    # with what r1 has there

Exit codes: that of the command, or 128 and the number of the signal that ended
it; 126 it cannot be run; 127 it was not found; 2 and 64 as everywhere."#;

/// Below `keeptime agent status --help`.
pub const AGENT_STATUS: &str = r#"Examples:
  keeptime agent status              # on the node
  ssh n1 keeptime agent status       # from elsewhere"#;

/// Below `keeptime broker salvage --help`.
pub const SALVAGE: &str = r#"Example, with the broker stopped:
  cd /var/lib/keeptime && keeptime broker salvage ledger.db --into new.db"#;

/// Below `keeptime broker accept-clock --help`.
pub const ACCEPT_CLOCK: &str = r#"Example, with the broker stopped, as its user:
  keeptime broker accept-clock --config /etc/keeptime/broker.toml"#;

/// Below `keeptime broker run --help`.
pub const BROKER_RUN: &str = r#"Configuration (TOML; --print-config shows every default):

  topology = "/etc/keeptime/topology.toml"
  ledger = "/var/lib/keeptime/ledger.db"    # on a local disk; made if missing
  socket = "/run/keeptime/broker.sock"      # for users of this machine
  agents = "/run/keeptime/agents.sock"      # for an agent on this machine
  operators = ["ada"]                       # beside root and the broker's user
  requests_per_second = 200                 # of one user, in the long run
  fabric = "keeptime-fabric"                # for web sites: how busy nodes are

  [policy]
  agent_lease = "10 s"       # a node that says nothing for so long is away
  answer_within = "2 s"      # agents accept by then, or nothing is granted
  tell_ahead = "600 s"       # agents are told so long before a reservation
  ahead_max = "8784 h"       # reservations start at most so far ahead
  search_ahead = "8784 h"    # the earliest start is sought so far ahead
  remember = "24 h"          # what is over is remembered for so long
  user_cpu = "50 %"          # of all CPU, one user's at any time (default: all)
  user_bandwidth = "50 %"    # of what all nodes can send (default: all)
  user_reservations = 1000   # of one user at a time (default: 100000)
  user_memory = "1 GB"       # of the broker's, by one user (default: 4 GB)
  waiting_requests = 256     # that wait for room, at the most
  user_waiting_requests = 64 # of one user

  [tcp]                                     # for others, by TLS
  address = "0.0.0.0:7411"                  # users
  agents = "0.0.0.0:7412"
  certificate = "/etc/keeptime/pki/broker.pem"
  key = "/etc/keeptime/pki/broker-key.pem"  # mode 0600
  client_ca = "/etc/keeptime/pki/ca.pem"
  revoked = "/etc/keeptime/pki/revoked.pem"
  tokens = "/etc/keeptime/tokens.toml"      # mode 0600; keeptime broker token

Signals:
  SIGTERM, SIGINT   end; what is granted stays, and agents keep it to its end
  SIGHUP            read certificates and tokens again (within a second of a
                    change that is done, too)

Exit codes: 0 ended as told, 2 error, 64 the configuration is wrong.

See also: keeptime broker certificates --help, keeptime broker token --help,
docs/formats/configuration.md (every key), docs/security.md,
contrib/systemd/keeptime-broker.service."#;

/// Below `keeptime agent run --help`.
pub const AGENT_RUN: &str = r#"Configuration (TOML):

  node = "n1"                           # as in the topology
  socket = "/run/keeptime/agent.sock"   # for programs on this node
  assignments = "/var/lib/keeptime-agent/assignments.json"
  device = "eth0"                       # of the cluster's network
  attach = "root"                       # or 1:1, say, under another's shaper
  rate = "10 Gbit/s"                    # of the device
  cpu = "1600 %"                        # for jobs; 100 % is one processor
  cgroup = "keeptime/node"              # below the root of each hierarchy

  # On the broker's machine: broker = "/run/keeptime/agents.sock". Elsewhere:
  [broker_tls]
  address = "broker.example:7412"
  certificate = "/etc/keeptime/n1.pem"  # names keeptime:node:n1
  key = "/etc/keeptime/n1-key.pem"      # mode 0600
  ca = "/etc/keeptime/ca.pem"           # who issued the broker's certificate

  [[disks]]                             # whose rates may be reserved; repeat
  device = "259:0"                      # as lsblk tells
  read = "2 GB/s"
  write = "1 GB/s"

Certificates are read for each connection: a renewed one is used when the
former expires. What the kernel enforces stays when the agent ends; the next
one takes it up. A device that is not there yet is waited for, for a minute.
A node has one agent: it holds a lock beside its socket as long as it lives.

Exit codes: 0 checked (--check), 2 error, or what --check found cannot work
(no such device or disk, too few processors, certificates), 64 the
configuration is wrong.

Every key, among them those that let processes leave groups with limits:
docs/formats/configuration.md.

See also: docs/formats/agent-link.md, docs/security.md,
contrib/systemd/keeptime-agent.service."#;

/// Below `keeptime agent clear --help`.
pub const AGENT_CLEAR: &str = r#"Example:

  systemctl disable --now keeptime-agent
  keeptime agent clear --config /etc/keeptime/agent.toml

Exit codes: 0 the node is as it was, 1 jobs are still enforced (cancel them, or
--end-jobs), 2 error, 64 the configuration is wrong.

See also: docs/operations.md."#;

/// Below `keeptime agent exec --help`.
pub const AGENT_EXEC: &str = r#"Examples:

  keeptime reserve --nodes n1,n2 --cpu 30% --for 1h    # r17
  ssh n1 keeptime agent exec --job r17 -- ./simulate   # with its CPU and flows

Exit codes: that of the command, or 128 and the number of the signal that ended
it; 125 it was not started: the job is not there, has not begun or is another
user's, or the agent does not answer; 126 it cannot be run; 127 it was not
found; 64 usage.

See also: docs/clusters.md."#;

/// Below `keeptime run --help`.
pub const RUN: &str = r#"Where:

  # in the lab called lab
  keeptime run raycast --within 1s
  # on the broker's cluster: by ssh, as who you are, or by what is called so
  keeptime run sum.toml --within 2s --broker https://head:7411
  keeptime run sum.toml --within 2s --launcher "ssh -F cluster.ssh"
  # on some nodes and no others
  keeptime run sum.toml --within 2s --among n1,n2,n5

In a job of Slurm's it uses the nodes of the job, and its processes are steps of
the job (srun), unless --among or a launcher says otherwise:

  salloc -N 4, or a script for sbatch, and then
  keeptime run --rate "30 %" -n 4 -- mpiexec ./solver

When there is no room now:

  keeptime run raycast --within 1s --wait 10min   # begin when there is

If the reservations of others end in time, the run is reserved in advance, for
when they do: that is a promise. If not, the command waits for what others give
back early, since most runs end before their time limits. Who came first is
tried first; what fits does not wait for what does not. But nobody is passed for
ever: after 16 times, the nodes that a request could use are kept for it, ten
minutes at a time, and others are told so. Ending the command ends the wait, and
`keeptime list` shows its place in line.
With --json, waited_nanos tells how long it was, also of what is refused.

Without a terminal, as with sbatch:

  keeptime run batch --by 18:00 --detach               # into keeptime-PID.out
  keeptime run raycast --within 1s --wait 1h --detach --output a.out

What is refused is told here, with the same exit code, and nothing is left; nor
is anything of a command that is interrupted before. What is granted, or waits
for its time or for room, goes on in a session of its own, in this directory,
with nothing to read on standard input. The command tells its job, its process,
its file, how to look and how to end it, and ends with 0. To close the terminal
or to log out does not end the run; `keeptime cancel` and `kill PID` do, in
order. The last line of the file tells when and how it ended, and with which
exit code; there is none after kill -9, or a second kill. With --json the
command prints one object (reservation, process, output); what --json would have
printed is in the file, with one more object at its end. Where nodes are reached
by ssh, that has to work without this terminal and without a forwarded agent.

Broker and launcher can stand in ~/.config/keeptime/client.toml instead. The
program, what it reads and writes, and the directory of this command have to be
at the same place on all nodes. An application that the broker does not know,
or knows otherwise, is made known to it, which is for operators.

At a rate:

  keeptime run bsp --rate "30 %" --nodes 2   # of full speed, and of its CPU
  keeptime rate set r17 "40 %"               # at any time
  keeptime top                               # target and actual, live

Full speed is what the program does with the CPU of its application file on
every node. The first run measures it: that much must be free at its start, and
the program runs with it for five reports of a second each. Later runs know it,
and reserve no more than their rate from the start (--measure: anew). From then
on it has, on every node, the part of what it used that was asked for, corrected
by the progress that it tells: lines on its standard output that begin with the
word `progress` of its application file. One that tells nothing for a minute has
its part of the CPU, whatever it makes of it; so has one whose nodes do not tell
the CPU time that it uses, as where nothing is enforced. One whose file names no
`progress` has that from the start, and no more is reserved. To have such an MPI
program steered, link or preload libkeeptime_mpi and say `MPI calls` in place of
the word: then it is corrected by what the program tells that library, or by the
iterations that it finds in the program's calls (docs/mpi.md).

The time limit of the application file is for full speed: at 30 % it has 10/3 of
that. At a lower rate that is set later, what is left of it is as much longer,
and so is the reservation, unless others have the nodes then: the run says so,
and asks again. A higher rate takes no time away. What chooses shares is a
process of its own, `launch controller`. One that is killed is followed by
another, which goes on from what the first one knew.

By a time:

  # when, on how many nodes and how fast is Keeptime's business
  keeptime run batch --by 18:00 --nodes 2..8
  # where the profile tells another time than that of a whole run
  keeptime run bsp --by +2h --takes 40min
  # with more of its nodes where it is slower than planned
  keeptime run bsp --by +2h --takes 40min --work 5000

Keeptime chooses nodes, start and rate beside what is reserved: the fewest nodes
that make it, and of all starts the one with the earliest end, at the rate that
is free from then on. That is reserved in advance, with a tenth more time than
the profile says, and the command waits until its time comes. What cannot be
done by then is refused, with the earliest time that can be kept. Ending the
command gives everything back. While it runs it goes slower for others that
would not fit, as far as its deadline allows, and faster when there is room; and
until ten minutes before, its start may move, in time. `keeptime why` tells when
and for whom. With --wait, what cannot be promised is run all the same: as soon
as there is room to begin in, promised nothing and as slowly as others need, or
when it has waited for six times what it takes, by a later time: within a
quarter of what it has waited, which it is promised. Until then it asks for its
deadline again and again, the more often the less time it has left.

A run that is slower than was planned goes on. If it tells its `progress`, and
`work` or --work says how much there is, it is given what it takes to be in
time, for which others make way, and otherwise as much as can be had; when it
will be done is told at once, and by `keeptime top`. If not, nobody knows what
is left: it is given more time bit by bit, and ended at its deadline.

A program without an application file, at a rate or by a time:

  keeptime run --rate "30 %" -n 4 -- mpiexec ./solver
  keeptime run --by 18:00 --takes 2h -n 4 -- mpiexec ./batch

What stands behind -- is the program with its arguments. Keeptime starts one
rank on each node itself: mpiexec, mpirun, srun and their like before it are
left out, and options of these are refused. A path with a slash is taken from
this directory, and has to be the same file on all nodes; anything else is
looked for there in PATH. --cpu, --pattern, --limit and --progress say what its
file would.

Full speed is kept under the name of the program's file, for the whole command:
what another one of that name was measured at is forgotten. By a time, nothing
tells how much faster more nodes make it or which bandwidth it needs. So it runs
on the fewest of --nodes, which --takes is for, and no bandwidth is reserved. A
time within which it is done (--within) takes an application file and a profile.

With what nobody has reserved:

  keeptime run raycast --within 1s --spare   # reserves that, and uses the rest

Its flows may then fill what is left of the links that they pass, as long as
nobody reserves it: whoever does is granted it when the nodes have taken it
back, a few milliseconds later. What is promised does not count on it.

By a mechanism of your choice:

  keeptime run bsp --rate "30 %" --nodes 2 --mechanism user-level

A node's agent chooses what keeps a share of the CPU: deadlines where a period
is asked for and processes can carry them, else bandwidth. With --mechanism the
run gets nodes on which that one works, or is refused and told which do.
deadline is for processes of one thread; bandwidth for any, as a limit;
user-level for any that need no more than one processor each, by deadlines that
the agent keeps as long as it runs.
Processes that cannot have it so have their share by another: `keeptime agent
status` says by which, and why.

When a node goes away, the reservation is lost. Where the application file says
on_loss = "move", the run begins anew on other nodes, within the same time
limit; otherwise, and with --rate or --by, it ends and says so.

Exit codes: 0 done, 1 refused, 2 error, 64 usage.

See also: docs/clusters.md, docs/rate-control.md."#;

/// Below `keeptime fabric --help`.
pub const FABRIC: &str = r#"The fabric is a library (Rust, and C: libkeeptime_fabric) with which the parts
of a program find each other by attributes and exchange messages. Every node
runs a daemon, which knows all resources of the cluster:

  keeptime-fabricd --make-key fabric.key    # once; copy it to every node
  keeptime-fabricd --key fabric.key --node n1 --address 10.0.0.1:7400
  keeptime-fabricd --key fabric.key --node n2 --address 10.0.0.2:7400 \
      --member 10.0.0.1:7400                # it learns of the rest from n1

Programs take messages of their own user's and root's, wherever these run,
unless they say otherwise. `ls` shows whose a resource is, and which are for
every user.

On a node with several networks, --address 0.0.0.0:7400 listens on all of them
([::]:7400: over IPv6 too), and the daemon passes on messages between nodes that
share no network (--no-bridge: it does not).

Then, on any of them:

  keeptime fabric ls                     # everything
  keeptime fabric ls service=echo        # the daemons: they answer pings
  keeptime fabric ls service=node-load   # nodes whose load brokers can read
  keeptime fabric find name=dhash type=server --within 10s
  keeptime fabric ping                   # every node
  keeptime fabric bench n2 --over udp

Exit codes: 0 done, 1 `find` found nothing, or a node did not answer `ping`, 2
error, 64 usage.

See also: docs/fabric.md, man 7 keeptime_fabric, docs/formats/fabric.md."#;

/// Below `keeptime fabric ls --help` and `keeptime fabric find --help`.
pub const FABRIC_FOUND: &str = "What the fabric is, and examples: keeptime fabric --help.";

/// Below `keeptime fabric ping --help` and `keeptime fabric bench --help`.
pub const FABRIC_TIMED: &str = r#"Shared memory is for processes of one user, and for what root asks: whoever else
asks root's daemon on this node is answered over TCP, with --over usual too.

What the fabric is, and examples: keeptime fabric --help."#;

/// Below `keeptime sim run --help`.
pub const SIM_RUN: &str = r#"What would a cluster do with a log of jobs? You need to have neither: both can
be made up.

  keeptime sim run --topology star:64 --generate model --jobs 2000 --load 0.8
  keeptime sim run --topology fat-tree:10000 --trace jobs.swf --jobs 100000
  keeptime sim run --topology fat-tree:512:4 --generate model \
      --communication "40 %" --json
  keeptime sim run --topology star:8 --generate chains --interval 10 \
      --policy keeptime,keeptime-queue
  keeptime sim run --topology /etc/keeptime/topology.toml --trace jobs.swf \
      --failures 30d --link-failures 365d --switch-failures 180d --repair 2h

Policies:
  keeptime          the broker's own engine: a job is promised its deadline
                    when it is submitted, and has its processors and rates
                    reserved, now or in advance, or is refused
  keeptime-greedy   the same, but only what can start at once is promised
  keeptime-queue    the same engine behind a queue of the simulator's (the
                    broker's has the order in which requests came): the most
                    urgent first, and others where they delay none of them; who
                    can wait leaves some nodes free for who comes next and
                    cannot; promised when it starts, or run without a promise
                    when it is too late for that, and before others when it has
                    been late for twenty times what was requested
  keeptime-classes  the same queue, in which urgent jobs come before all others
  keeptime-by       every job asks that engine as keeptime run --by --wait does:
                    to be done by its deadline, else to begin at once and go as
                    slowly as others need, else to be done later, and all of it
                    again and again. Jobs have parts of their nodes, nine tenths
                    of each together, and go slower for others as far as their
                    deadlines allow. Slow to simulate on many nodes, and where
                    many jobs wait: on more than 512 nodes, and of more than 500
                    jobs that ask for more than all nodes, only where --policy
                    names it
  fcfs-backfill     whole nodes in the order of submission; nobody is refused
                    and nothing promised
  none              everything starts at once, on the nodes with the fewest
                    jobs, and shares processors, as if that cost nothing and
                    all had room in memory; nothing is promised

The cluster: every node has one processor for jobs and 10 Gbit/s; racks of 40,
rows of 40 racks. Or it is the one of a topology file, as the broker reads it
(docs/clusters.md), with its nodes, switches and links; disks and addresses do
not count. A job uses whole nodes at full speed, and its log says how long it
took, but not on which of them: so all nodes must have the same CPU, and with
--communication links of the same rate, in the slower of their two directions.
Links between switches may differ. A job computes and exchanges with both
neighbours in a ring, and waits for the slowest. Flows share links by max-min
fairness; what is reserved is neither shared nor slowed down. 90 % of each link
can be reserved, where a real broker reserves up to 97 %. A job of more nodes
than the cluster has, or than 4096, is refused under every policy; so is one
under keeptime-queue, keeptime-classes and keeptime-by that does not fit on idle
nodes.

Failures: nodes, links and switches do not fail, unless --failures,
--link-failures and --switch-failures say how long one works in the mean until
it does (exponential, drawn by --seed, the same under every policy). It works
again after --repair. A cluster is a tree that hangs from its centre, and so do
the broker and the users: with a link or a switch all nodes behind it are away,
since their agents do not answer, and come back when their whole way works. The
switch at the centre, the only one of star:NODES, takes all nodes along.

Every job on a node that fails or is cut off ends there, and the broker knows at
once. The job's user submits it anew at once: from the start, with the same
deadline, until it has been hit ten times. What is reserved in advance stays; if
a node is still away when it should begin, it is lost and moved to others. New
requests that begin within ten minutes get nodes that are there, or are refused;
others may get any. A promise is broken when its job ends too late for that, or
is refused when it is submitted anew. Behind a queue, by keeptime-by, by
fcfs-backfill and by none a job that needs nodes that are away waits for them
while others run; when nothing else has happened for a month, it is given up.

The log: a processor is a node. All of it is replayed, unless --jobs says how
much. A log says nothing of deadlines: each job has its submission and 1.5 to 5
times what was requested, drawn by --seed; one job in five is urgent, drawn as
well. Policies know what was requested, and not how long a job really takes;
but where the log has no requested time, or the job took longer than that, what
it took counts as requested, so that of such jobs policies know just how long
they take. The same arguments give the same result. Jobs that never ran, or on
more processors than the log says there were, those whose submission is not
known, and the parts of checkpointed jobs, which the log has as a whole as well,
are left out and not counted by --jobs. Who asked for more processors than there
were and was given fewer has those. What is left out, of how many jobs policies
know how long they take, and the size of the log's machine with how many jobs
are larger than the cluster, where it has another size, are told on stderr.

The table, a column for each policy: which part was admitted, and in time, also
of the urgent jobs; promises broken; work done, of what the nodes could have
done; and of the jobs that were run the wait, the slowdown (from submission to
end over the time alone, of 10 s at the least) and the run time over the time
alone: median, 95th percentile, greatest. Below it stands what one may take for
a merit or a fault of a policy. With failures also: how often nodes,
links and switches failed, and nodes were cut off by others; promises broken for
that, which are counted among the broken ones as well; jobs that were hit, jobs
that were admitted and given up for it, and work that was thrown away, of what
the nodes could have done. A line on stderr tells the main figures of each
policy as soon as it has ended. --json prints "header", with the version and all
that the result comes of, "log", what is told of a log on stderr, and
"summaries", one for each policy.

Exit codes: 0 done, 2 error, 64 usage."#;

/// Below `keeptime sim goals --help`.
pub const SIM_GOALS: &str = r#"How many users could have what they want of a cluster, of applications that were
measured on another one? Users come at random, each wants one of the
applications within its time, and has --units of it done:

  keeptime profile raycast --lab demo
  keeptime sim goals raycast=500ms --topology star:64 --every 2s
  keeptime sim goals raycast=1s render=2s --topology fat-tree:160:4 \
      --every 500ms --requests 5000 --wait 30s --prefer cheapest --json

Policies:
  keeptime        the broker's own engine admits or refuses; who is admitted has
                  what it has reserved
  keeptime-spare  the same, and who runs has beside that what nobody has
                  reserved, as with keeptime run --spare
  none            all start when they are asked for, each on the nodes that have
                  the fewest, with the first setting of the profile that is fast
                  enough where nobody else is, and share processors and links

A unit takes what the profile says, on nodes like those on which that was
measured: a cluster with faster processors is not simulated by another topology.
What bandwidth brings that was not measured, nobody knows. The time that a
program needs to be started is left out.

The table: requests; those that ran (admitted); those whose units took no longer
than was wanted, of all; how long they waited until they ran; the time of a unit
over what was wanted. --json prints "header", with the version and all that the
result comes of but the profiles, and "summaries", one for each policy. The same
arguments and profiles give the same numbers.
"#;

/// Below `keeptime sim sites --help`.
pub const SIM_SITES: &str = r#"How many nodes do web sites need that share a cluster, and what does a failure
do to them? Neither the cluster nor the sites have to be there:

  keeptime sim sites --topology star:8 --sites sites.json
  keeptime sim sites --topology fat-tree:80 --sites sites.json --hours 168 \
      --failures 30d --switch-failures 180d --repair 2h --json

The file, sites.json, says who shares the nodes, what each site is promised and
how many requests arrive in a second, in the mean of a day:

  { "sites": [
    { "spec": { "name": "shop", "priority": 10,
                "guarantee": { "hard": 2, "soft": 6, "max": 7 } },
      "load": { "arrivals_per_second": 600 } },
    { "spec": { "name": "blog", "priority": 1,
                "guarantee": { "hard": 2, "soft": 6, "max": 7 } },
      "load": { "arrivals_per_second": 400 },
      "service": { "distribution": "lognormal", "mean": "8 ms",
                   "variation": 1.5 } } ] }

A broker that has sites writes such a file, with the load of the moment; what
else is in it does not count:

  keeptime site list --json > sites.json

"service" says how long a node works on a request of a site, from 1 ms to a
minute in the mean. "variation" is the standard deviation over the mean, from 0
(all take the same time) to 10. A site of which the file does not say it has the
mean of --service:

  "service": { "distribution": "exponential", "mean": "5 ms" }

Policies:
  keeptime    the broker's own decision, asked 20 times a second
  reconf      by load alone, one node at a time; reconf-p with priorities, and
              reconf-pq with priorities and guarantees
  rigid       nothing moves; a node that was away serves the same site again

Load: requests arrive at random. Their rate goes up and down by --swing once in
--period, as a sine, one site after the other; with --swing "0 %" it stays. The
same requests arrive under every policy.

Nodes: all are alike, and each works on one request at a time, for a random time
(see "service"). What more arrives waits in one queue for each site, as at
HAProxy; who has waited for five seconds goes away. At the beginning every site
has its hard guarantee, then its soft one, then as many nodes as it may have, as
far as there are nodes, the greatest priority first. A node that moves ends its
request, and serves the new site 100 ms later. Jobs do not share these nodes.

Failures are those of `keeptime sim run`: the same at the same times under every
policy. A node that fails, or is behind a link or switch that fails, loses its
request. The broker knows at once, and the node is a spare when it is back.

The table, for each policy and site: nodes that it is promised at any time
(hard), in which part of the time it had them, and how many seconds it had
fewer; nodes that served it; requests; those answered within --within; and those
not answered at all, since somebody waited too long or a node failed. Above it:
moves; how often a node was away; and the time that nodes worked, of all that
they could have worked. Without failures, keeptime and rigid always keep what is
promised. --json prints "header", with the version and all that the result comes
of, and "summaries", one for each policy. The same arguments and the same file
give the same result.

Exit codes: 0 done, 2 error, 64 usage."#;

/// Below `keeptime completions --help`.
pub const COMPLETIONS: &str =
    "`make install` and the Debian package put it where bash, zsh and fish look.
By hand:
  cd ~/.local/share/bash-completion/completions
  keeptime completions bash > keeptime";

/// Below `keeptime --help`.
pub const OVERVIEW: &str =
    "A first round, as root, in the project's directory (after `make workloads`):
  # a cluster of 4 nodes on this machine
  keeptime lab up
  # measure the volume renderer: once, for some minutes
  keeptime profile raycast --nodes 2,4 --set size=512,256 --set interleave=0
  # how a frame a second would be had; then have it
  keeptime plan raycast --within 1s --set interleave=0
  keeptime run raycast --within 1s --set interleave=0
  keeptime lab down

On a cluster: docs/clusters.md. Words: docs/GLOSSARY.md. `make install` puts
docs/ into PREFIX/share/doc/keeptime, and manual pages: man keeptime-run.

Exit codes: 0 done, 1 refused (the goal cannot be kept), 2 error, 64 usage.

Environment (arguments come first):
  KEEPTIME_BROKER           --broker: a socket, or https://HOST:PORT
  KEEPTIME_CA, KEEPTIME_CERTIFICATE, KEEPTIME_CERTIFICATE_KEY,
  KEEPTIME_TOKEN_FILE       what is shown and trusted there
  KEEPTIME_CLIENT_CONFIG    a file with the same
                            [default: ~/.config/keeptime/client.toml]
  KEEPTIME_LAB              --lab, where KEEPTIME_BROKER is not set
  KEEPTIME_AGENT            the agent's socket: agent exec, agent status, bind
  KEEPTIME_BROKER_CONFIG    the broker's configuration: broker token
  KEEPTIME_LOG              what is logged: debug, or keeptime_broker=debug";

pub const LAB_POLICE: &str = r#"Examples:
  # two sites and a narrow path
  keeptime lab up --nodes 4 --switches 2 --uplink 50Mbit
  # premium packets beyond that are dropped
  keeptime lab police --node n1 --rate 40Mbit --depth 100kB
  keeptime lab police --node n1              # what passed, what was dropped
  keeptime lab police --node n1 --off

Ports of a lab's switches send premium packets first, then low-latency ones,
then the rest. The policer counts packets as on a wire: connections that the
node makes from then on send no longer ones."#;

pub const LAB_LOAD: &str = r#"Examples:
  # four greedy connections from every node to every other
  keeptime lab load --for 30s
  # datagrams
  keeptime lab load --from n2 --to n4 --rate 120Mbit

They are best effort. They end after --for, or when this command ends, however
it does."#;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::{BROKER_VARIABLE, LAB_VARIABLE};

    /// The example in a text: the lines that are indented, up to what follows it.
    fn example(text: &str, end: &str) -> String {
        let body = text.split_once(":\n\n").unwrap().1;
        body.split(end).next().unwrap().lines().map(|line| format!("{}\n", line.trim())).collect()
    }

    #[test]
    fn examples_are_what_is_accepted() {
        let broker = example(BROKER_RUN, "Signals:");
        let broker = keeptime_broker::config::Config::from_toml(&broker).unwrap();
        assert!(broker.tcp.is_some());
        let agent = example(AGENT_RUN, "Certificates are read");
        let agent = keeptime_agent::config::Config::from_toml(&agent).unwrap();
        assert!(agent.place().is_some());
    }

    #[test]
    fn variables_that_are_told_are_those_that_count() {
        use clap::CommandFactory;
        let mut command = crate::arguments::Arguments::command();
        let list = command.find_subcommand_mut("list").unwrap();
        let help = list.render_long_help().to_string();
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
        let known = list.get_arguments().filter_map(|a| a.get_env()?.to_str());
        // The last two are not read by clap.
        for name in known.chain([BROKER_VARIABLE, LAB_VARIABLE]) {
            assert!(OVERVIEW.contains(name), "{name}");
            assert!(help.contains(&format!("[env: {name}")), "{name}: {help}");
        }
    }

    // Goal: a command's own arguments are not lost among those that every command has. Method: all commands.
    #[test]
    fn only_what_says_which_broker_stands_under_its_heading() {
        use clap::CommandFactory;
        let place = [
            "broker",
            "lab",
            "ca",
            "certificate",
            "certificate_key",
            "token_file",
            "client_config",
        ];
        let mut commands = vec![crate::arguments::Arguments::command()];
        let mut seen = 0_usize;
        while let Some(command) = commands.pop() {
            let headed = |argument: &&clap::Arg| argument.get_help_heading() == Some("Broker");
            for argument in command.get_arguments().filter(headed) {
                let name = argument.get_id().as_str();
                assert!(place.contains(&name), "{name} of keeptime {}", command.get_name());
                seen += 1;
            }
            commands.extend(command.get_subcommands().cloned());
        }
        assert!(seen > 0 && seen.is_multiple_of(place.len()), "{seen}");
    }

    /// What is wider is broken anywhere, examples too.
    #[test]
    fn texts_fit_in_a_terminal_of_80_columns() {
        use clap::CommandFactory;
        let mut commands = vec![crate::arguments::Arguments::command()];
        while let Some(command) = commands.pop() {
            let texts = [command.get_after_help(), command.get_after_long_help()];
            for text in texts.into_iter().flatten().map(ToString::to_string) {
                let wide = text.lines().find(|line| line.chars().count() > 80);
                assert_eq!(wide, None, "below keeptime {}", command.get_name());
            }
            commands.extend(command.get_subcommands().cloned());
        }
    }
}
