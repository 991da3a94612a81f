//! CPU schedules, disk rates, borrowed processes and commands of jobs in the kernel. Needs root; bounded to seconds.
// The helpers below are tests too.
#![allow(clippy::unwrap_used)]
use keeptime_linux::alignment::Aligned;
use keeptime_linux::cgroup::{Group, Hierarchies, MARK};
use keeptime_linux::deadline::{self, DeadlineSpec, Obstacle};
use keeptime_linux::disk::{DiskLimits, Version};
use keeptime_linux::process::Identity;
use keeptime_linux::testing::rig::cgroup_v2_root;
use keeptime_linux::testing::{can, skip};
use keeptime_locks::lock;
use keeptime_model::disk::{DiskDirection, DiskId, DiskRates};
use keeptime_model::units::{BytesPerSecond, CpuPpm, Nanos, WallTime};
use nix::fcntl::OFlag;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime};

const PERIOD: Nanos = Nanos::from_millis(20);
/// How often a busy machine may come between.
const TRIES: usize = 8;

/// What the kernel admits is counted, and one test moves this whole process: one at a time.
fn alone() -> MutexGuard<'static, ()> {
    static KERNEL: Mutex<()> = Mutex::new(());
    lock(&KERNEL)
}

/// A process of a test, killed with it.
struct Program(Child);

impl Program {
    fn shell(line: &str) -> Self {
        let mut command = Command::new("sh");
        command.args(["-c", line]).stdin(Stdio::null()).stdout(Stdio::null());
        Self(command.spawn().unwrap())
    }

    /// One that does nothing before [`Self::go`].
    fn waiting(line: &str) -> Self {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("read x; {line}")]).stdin(Stdio::piped());
        Self(command.stdout(Stdio::null()).spawn().unwrap())
    }

    fn go(&mut self) {
        self.0.stdin = None;
    }

    fn pid(&self) -> i32 {
        self.0.id() as i32
    }

    fn identity(&self) -> Identity {
        Identity::of(self.pid()).unwrap().unwrap()
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid()), signal).unwrap();
    }

    fn state(&self) -> char {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap();
        stat.rsplit_once(") ").unwrap().1.chars().next().unwrap()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(60), "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn children_of(pid: i32) -> Vec<i32> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    children.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

/// What the kernel still admits, or the reason why that cannot be tested.
fn admissible() -> Option<CpuPpm> {
    match deadline::admissible() {
        Ok(cpu) => Some(cpu),
        Err(error) => {
            skip(&["deadline".into()], &error.to_string());
            None
        }
    }
}

/// A group of this test, removed with it; nothing without privilege.
struct TestGroup(Group);

impl TestGroup {
    fn new(name: &str) -> Option<Self> {
        let made = Hierarchies::discover().and_then(|hierarchies| {
            let name = format!("_test-{name}-{}", std::process::id());
            let group = hierarchies.group(Path::new(MARK).join(name))?;
            group.create()?;
            Ok(group)
        });
        match made {
            Ok(group) => Some(Self(group)),
            Err(error) => {
                skip(&["cgroup".into()], &error.to_string());
                None
            }
        }
    }
}

impl Drop for TestGroup {
    fn drop(&mut self) {
        let _ = self.0.give_back();
        let _ = self.0.kill_all();
        let _ = self.0.remove();
    }
}

// A thread that leaves gives back what it had, whatever it does at that moment: without the detour
// by which `leave` goes, all but the first of these lose it until the machine restarts.
#[test]
fn whoever_leaves_gives_everything_back() {
    let _alone = alone();
    let Some(before) = admissible() else { return };
    // So much that a loss shows, and no more than the machine can bear to lose when the test fails.
    let spec = DeadlineSpec::of(CpuPpm::new(5_000), Nanos::from_millis(100)).unwrap();
    let cases = [
        ("busy", "while :; do :; done"),
        ("asleep", "exec sleep 60"),
        ("stopped", "kill -STOP $$; :"),
    ];
    for (name, line) in cases {
        let program = Program::shell(line);
        deadline::set(program.pid(), spec).unwrap();
        assert_eq!(deadline::read(program.pid()).unwrap(), Some(spec));
        if name == "stopped" {
            wait_until("the stop", || program.state() == 'T');
        }
        // Long enough for the kernel to take the thread for inactive.
        std::thread::sleep(Duration::from_millis(300));
        let during = admissible().unwrap();
        assert!(during.get() + 4_900 <= before.get(), "{name}: {before} before, {during} during");
        deadline::leave(program.pid()).unwrap();
        assert_eq!(deadline::read(program.pid()).unwrap(), None);
        let after = admissible().unwrap();
        assert!(after.get().abs_diff(before.get()) < 100, "{name}: {before} before, {after} after");
    }
    // Who is killed gives back when the time is over that it ran beyond its slice.
    let program = Program::shell("exec sleep 60");
    deadline::set(program.pid(), spec).unwrap();
    program.signal(Signal::SIGSTOP);
    drop(program);
    wait_until("what a killed one had", || {
        admissible().is_some_and(|after| after.get().abs_diff(before.get()) < 100)
    });
}

// A job of a shell that starts two loops: the loops get the share, each a half, beside other loops
// on all processors, and a loop that is pinned ends it for all.
#[test]
fn those_who_compute_have_the_share_and_what_they_start_is_found() {
    let _alone = alone();
    if admissible().is_none() {
        return;
    }
    let Some(group) = TestGroup::new("deadline") else { return };
    let busy = "while :; do :; done";
    let processors = std::thread::available_parallelism().unwrap().get();
    let _others: Vec<_> = (0..processors).map(|_| Program::shell(busy)).collect();
    let mut job = Program::waiting(&format!("({busy}) & ({busy}) & wait"));
    group.0.join(job.pid()).unwrap();
    job.go();
    let share = CpuPpm::from_percent(40);
    let enforce = || deadline::enforce(share, PERIOD, &group.0.pids().unwrap()).unwrap();
    wait_until("both loops", || group.0.pids().unwrap().len() == 3);
    let carriers = enforce().unwrap();
    assert_eq!(carriers.len(), 2);
    assert!(!carriers.contains(&job.pid()), "the shell waits");
    let part = DeadlineSpec::of(CpuPpm::from_percent(20), PERIOD).unwrap();
    for carrier in &carriers {
        assert_eq!(deadline::read(*carrier).unwrap(), Some(part));
    }
    // The machine itself may be held up, and then they have less.
    let have_their_share = (0..TRIES).any(|_| {
        let (start, before) = (Instant::now(), group.0.cpu_usage().unwrap());
        std::thread::sleep(Duration::from_secs(1));
        let used = group.0.cpu_usage().unwrap().as_secs_f64() - before.as_secs_f64();
        let got = used / start.elapsed().as_secs_f64();
        println!("two loops with 40 % together, beside {processors} others: {:.2} %", 100.0 * got);
        assert!(got <= 0.43, "{got}");
        got >= 0.37
    });
    assert!(have_their_share, "less, {TRIES} times");
    // One that the kernel refuses.
    let mut one = CpuSet::new();
    one.set(0).unwrap();
    deadline::release(&carriers).unwrap();
    sched_setaffinity(Pid::from_raw(carriers[0]), &one).unwrap();
    match processors {
        1 => skip(&["smp".into()], "one processor: nobody is pinned"),
        _ => assert_eq!(enforce(), Err(Obstacle::Pinned { pid: carriers[0] })),
    }
    assert!(carriers.iter().all(|pid| deadline::read(*pid).unwrap().is_none()));
    // More than there is.
    let over = CpuPpm::from_percent(100 * processors as u32 + 100);
    let loops: Vec<_> = (0..processors + 1).map(|_| Program::shell(busy)).collect();
    let pids: Vec<_> = loops.iter().map(Program::pid).collect();
    let full = deadline::enforce(over, PERIOD, &pids).unwrap().unwrap_err();
    assert!(matches!(full, Obstacle::Full { .. }), "{full}");
    assert!(pids.iter().all(|pid| deadline::read(*pid).unwrap().is_none()), "all or none");
}

// Who has used up a slice of a long period would die when the next begins: four seconds later.
#[test]
fn who_has_no_time_left_to_die_is_given_some() {
    let _alone = alone();
    if admissible().is_none() {
        return;
    }
    let Some(group) = TestGroup::new("throttled") else { return };
    let died_at_once = (0..TRIES).any(|_| {
        let mut program = Program::waiting("while :; do :; done");
        group.0.join(program.pid()).unwrap();
        let spec = DeadlineSpec::of(CpuPpm::new(2_500), Nanos::from_secs(4)).unwrap();
        deadline::set(program.pid(), spec).unwrap();
        program.go();
        std::thread::sleep(Duration::from_millis(200));
        let start = Instant::now();
        group.0.kill_all().unwrap();
        assert!(group.0.pids().unwrap().is_empty());
        start.elapsed() < Duration::from_secs(2)
    });
    assert!(died_at_once, "it took a period, {TRIES} times");
}

// The ordinary niceness of a process outlives its schedule.
#[test]
fn who_leaves_is_as_nice_as_before() {
    let _alone = alone();
    if admissible().is_none() {
        return;
    }
    // As nice as can be, whatever these tests run with.
    let program = Program::shell("exec nice -n 39 sleep 60");
    let nice = || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", program.pid())).unwrap();
        stat.rsplit_once(") ").unwrap().1.split(' ').nth(16).unwrap().to_owned()
    };
    wait_until("niceness", || nice() == "19");
    let spec = DeadlineSpec::of(CpuPpm::new(5_000), PERIOD).unwrap();
    deadline::set(program.pid(), spec).unwrap();
    deadline::leave(program.pid()).unwrap();
    assert_eq!(nice(), "19");
}

// A process from elsewhere joins, starts a child, and both go back where the first was; another agent that knows
// nothing but the groups does that. Who is not the process that was meant goes back at once.
#[test]
fn what_was_borrowed_goes_back_with_all_that_it_started() {
    let _alone = alone();
    let (Some(home), Some(job)) = (TestGroup::new("home"), TestGroup::new("job")) else { return };
    let mut program = Program::waiting("sleep 61 & sleep 60; :");
    let pid = program.pid();
    home.0.join(pid).unwrap();
    let groups = || {
        let text = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
        text.replace("/_borrowed.0", "")
    };
    let before = groups();
    let identity = program.identity();
    let other = Identity { start: identity.start + 1, ..identity };
    assert!(job.0.borrow(other).unwrap_err().is_away());
    assert!(job.0.take_in(other).unwrap_err().is_away());
    assert_eq!(groups(), before);
    job.0.borrow(identity).unwrap();
    job.0.borrow(identity).unwrap();
    assert_eq!(job.0.borrowed().unwrap(), [pid]);
    let of_job = job.0.path().to_str().unwrap();
    let count = groups().matches(of_job).count();
    assert_eq!(count, before.matches(home.0.path().to_str().unwrap()).count(), "{}", groups());
    program.go();
    wait_until("its children", || job.0.borrowed().unwrap().len() == 3);
    let children = job.0.borrowed().unwrap();
    // Told by the path alone, as after a restart.
    let adopted = Hierarchies::discover().unwrap().group(job.0.path()).unwrap();
    adopted.give_back().unwrap();
    assert_eq!(groups(), before);
    assert_eq!(job.0.pids().unwrap(), Vec::<i32>::new());
    let mut back = home.0.pids().unwrap();
    back.retain(|pid| children.contains(pid));
    assert_eq!(back.len(), 3, "what it started goes with it");
    adopted.give_back().unwrap();
    // Home is gone meanwhile: then to the root.
    job.0.borrow(Identity::of(children[1]).unwrap().unwrap()).unwrap();
    drop(home);
    job.0.give_back().unwrap();
    assert!(job.0.pids().unwrap().is_empty());
    kill(Pid::from_raw(children[1]), Signal::SIGKILL).unwrap();
    let error = job.0.borrow(Identity { pid: i32::MAX, start: 0 }).unwrap_err();
    assert!(error.is_away(), "{error}");
}

// Goal: who starts another and ends, again and again, keeps nobody busy with its going back, and goes on there. Method: chains
// of such shells, of which those at home are never the same, in a PID namespace: nobody has to wait for those that end.
#[test]
fn who_starts_others_without_end_goes_back() {
    let _alone = alone();
    let (Some(home), Some(job)) = (TestGroup::new("home"), TestGroup::new("chains")) else {
        return;
    };
    let link = r#"sh -c "$0" "$0" &"#;
    let chains = format!(
        "trap '' CHLD; read x; for i in 1 2 3 4 5 6 7 8; do sh -c '{link}' '{link}' & done; while :; do sleep 60; done"
    );
    let mut unshare = Command::new("unshare");
    unshare.args(["--pid", "--fork", "--kill-child", "sh", "-c", &chains]).stdin(Stdio::piped());
    let mut program = Program(unshare.spawn().unwrap());
    wait_until("the first of the namespace", || children_of(program.pid()).len() == 1);
    let first = children_of(program.pid())[0];
    home.0.join(first).unwrap();
    job.0.borrow(Identity::of(first).unwrap().unwrap()).unwrap();
    program.go();
    wait_until("chains", || job.0.borrowed().unwrap().len() > 8);
    let patience = Duration::from_millis(50);
    wait_until("their return", || job.0.give_back_until(Instant::now() + patience).is_ok());
    assert!(job.0.pids().unwrap().is_empty() && job.0.children().unwrap().is_empty());
    let at_home = home.0.pids().unwrap();
    let is_new = |pid: &i32| !at_home.contains(pid);
    wait_until("others at home", || home.0.pids().unwrap().iter().any(is_new));
}

// Goal: a job that is over ends, whoever of those it has borrowed has not gone back yet; these go on. Method: a command beside
// three processes that go back together, and time for two of them.
#[test]
fn who_has_not_gone_back_keeps_no_command_alive_and_is_not_killed() {
    let _alone = alone();
    let Some(job) = TestGroup::new("over") else { return };
    let mut command = Program::shell("exec sleep 60");
    job.0.take_in(command.identity()).unwrap();
    let mut borrowed = Program::waiting("sleep 61 & sleep 60; :");
    job.0.borrow(borrowed.identity()).unwrap();
    borrowed.go();
    wait_until("its children", || job.0.borrowed().unwrap().len() == 3);
    let error = job.0.give_back_until(Instant::now()).unwrap_err().to_string();
    assert!(error.contains("give back of"), "{error}");
    let ended = std::thread::spawn(move || command.0.wait().unwrap());
    job.0.kill_all().unwrap();
    assert!(!ended.join().unwrap().success());
    let left = job.0.borrowed().unwrap();
    assert_eq!(left.len(), 1);
    wait_until("its return", || job.0.give_back_until(Instant::now()).is_ok());
    assert!(Identity::of(left[0]).unwrap().is_some());
    kill(Pid::from_raw(left[0]), Signal::SIGKILL).unwrap();
}

// Goal: whoever parts their threads among groups of their own, as virtual machines' managers do, is found and ended as
// everybody is. Method: a threaded group inside of one of ours, of which the kernel names no processes.
#[test]
fn processes_with_threaded_groups_are_found_and_end() {
    let _alone = alone();
    let (Some(group), Some(root)) = (TestGroup::new("threads"), cgroup_v2_root()) else { return };
    let inner = root.join(group.0.path()).join("inner");
    std::fs::create_dir(&inner).unwrap();
    if let Err(error) = std::fs::write(inner.join("cgroup.type"), "threaded") {
        // Where the group above passes the controllers of disks on.
        return skip(&["threaded".into()], &error.to_string());
    }
    let mut program = Program::shell("exec sleep 60");
    group.0.join(program.pid()).unwrap();
    std::fs::write(inner.join("cgroup.procs"), program.pid().to_string()).unwrap();
    assert!(std::fs::read_to_string(inner.join("cgroup.procs")).is_err());
    assert_eq!(group.0.pids().unwrap(), [program.pid()]);
    let ended = std::thread::spawn(move || program.0.wait().unwrap());
    group.0.kill_all().unwrap();
    assert!(!ended.join().unwrap().success());
}

// Two commands of one job, whose first processes ended or leave children behind: each ends as a whole, alone.
#[test]
fn a_command_ends_with_all_that_it_started_and_no_other_does() {
    let _alone = alone();
    let groups = ["commands", "beside"].map(TestGroup::new);
    let [Some(job), Some(beside)] = groups else { return };
    let mut programs = [0, 1].map(|_| Program::waiting("setsid sleep 61 & sleep 60; :"));
    let started = [0, 1].map(|at: usize| job.0.take_in(programs[at].identity()).unwrap());
    assert_ne!(started[0], started[1]);
    // Told by the kernel alone, as after a restart of the agent.
    let adopted = Hierarchies::discover().unwrap().group(job.0.path()).unwrap();
    assert_eq!(adopted.take_in(programs[0].identity()).unwrap(), started[0]);
    programs.iter_mut().for_each(Program::go);
    wait_until("their children", || job.0.pids().unwrap().len() == 6);
    // In as many hierarchies as whoever joins a group is in it: with version 2 alone there is one.
    let joined = Program::shell("exec sleep 60");
    beside.0.join(joined.pid()).unwrap();
    let hierarchies = |program: &Program, of: &TestGroup| {
        let groups = std::fs::read_to_string(format!("/proc/{}/cgroup", program.pid())).unwrap();
        groups.matches(of.0.path().to_str().unwrap()).count()
    };
    assert_eq!(hierarchies(&programs[0], &job), hierarchies(&joined, &beside));
    programs[0].signal(Signal::SIGKILL);
    let ended = |at: usize| adopted.end(&started[at]).is_ok();
    wait_until("the end of the first", || ended(0));
    assert_eq!(job.0.pids().unwrap().len(), 3);
    assert!(ended(0));
    wait_until("the end of the second", || ended(1));
    assert!(job.0.pids().unwrap().is_empty() && job.0.exists());
    // One that has the name of the first is another one.
    let later = Program::shell("exec sleep 60");
    assert_ne!(job.0.take_in(later.identity()).unwrap(), started[0]);
    assert!(ended(0));
    assert_eq!(job.0.pids().unwrap(), [later.pid()]);
    assert!(job.0.take_in(Identity { pid: i32::MAX, start: 0 }).unwrap_err().is_away());
}

// Goal: a command that another one of the job has started is its own, also for an agent that has been started since, and the other
// goes on when it ends. Method: the second process of a command begins one.
#[test]
fn a_command_of_a_command_ends_and_the_other_goes_on() {
    let _alone = alone();
    let Some(job) = TestGroup::new("within") else { return };
    let mut program = Program::waiting("sh -c 'sleep 61 & sleep 60; :'; sleep 60; :");
    let outer = job.0.take_in(program.identity()).unwrap();
    program.go();
    wait_until("its children", || job.0.pids().unwrap().len() == 4);
    let second = Identity::of(children_of(program.pid())[0]).unwrap().unwrap();
    let inner = job.0.take_in(second).unwrap();
    assert_ne!(inner, outer);
    for (process, started) in [(second, &inner), (program.identity(), &outer)] {
        assert_eq!(&job.0.take_in(process).unwrap(), started);
    }
    wait_until("the end of the inner one", || job.0.end(&inner).is_ok());
    assert!(program.identity().is_alive());
    wait_until("the end of the outer one", || job.0.end(&outer).is_ok());
    assert!(job.0.pids().unwrap().is_empty() && job.0.exists());
}

// Goal: nobody is taken for a command that somebody else has started. Method: a process in a group whose path goes on, from
// somewhere on, as that of a command of this job.
#[test]
fn who_is_in_a_group_with_the_name_of_a_command_is_none_of_it() {
    let _alone = alone();
    let (Some(job), Some(root)) = (TestGroup::new("named"), cgroup_v2_root()) else { return };
    let Some(other) = TestGroup::new("others") else { return };
    let programs = [0, 1].map(|_| Program::shell("exec sleep 60"));
    let first = job.0.take_in(programs[0].identity()).unwrap();
    let path = Group::path_with(programs[0].pid()).unwrap().unwrap();
    let alike = root.join(other.0.path()).join(path.trim_start_matches('/'));
    std::fs::create_dir_all(&alike).unwrap();
    std::fs::write(alike.join("cgroup.procs"), programs[1].pid().to_string()).unwrap();
    let second = job.0.take_in(programs[1].identity()).unwrap();
    assert_ne!(first, second);
    assert_eq!(job.0.pids().unwrap().len(), 2);
}

// Goal: who makes groups of their own inside of the one that they have, as containers' managers do, ends and goes back as
// everybody does. Method: a command and a borrowed process, each moved into such a group.
#[test]
fn those_who_made_groups_end_and_go_back_with_them() {
    let _alone = alone();
    let (Some(job), Some(root)) = (TestGroup::new("made"), cgroup_v2_root()) else { return };
    let mut programs = [0, 1].map(|_| Program::shell("exec sleep 60"));
    let group_of = |pid: i32| Group::path_with(pid).unwrap().unwrap();
    let home = group_of(programs[1].pid());
    let command = job.0.take_in(programs[0].identity()).unwrap();
    job.0.borrow(programs[1].identity()).unwrap().unwrap();
    for program in &programs {
        let made = root.join(group_of(program.pid()).trim_start_matches('/')).join("made/deeper");
        std::fs::create_dir_all(&made).unwrap();
        std::fs::write(made.join("cgroup.procs"), program.pid().to_string()).unwrap();
    }
    let [first, second] = &mut programs;
    wait_until("the end of the command", || job.0.end(&command).is_ok());
    assert!(!first.0.wait().unwrap().success());
    assert_eq!(job.0.borrowed().unwrap(), [second.pid()]);
    job.0.give_back().unwrap();
    assert_eq!(group_of(second.pid()), home);
    assert!(job.0.children().unwrap().is_empty(), "{:?}", job.0.children());
}

/// The disk that a file's blocks are on, if it is a whole one.
fn disk_of(file: &File) -> Option<DiskId> {
    let device = file.metadata().ok()?.dev();
    let disk = DiskId {
        major: nix::sys::stat::major(device) as u32,
        minor: nix::sys::stat::minor(device) as u32,
    };
    Path::new(&format!("/sys/dev/block/{disk}/queue")).exists().then_some(disk)
}

/// Writes so many bytes, past the page cache, and says how many bytes a second that were.
fn write_directly(file: &mut File, bytes: usize) -> std::io::Result<f64> {
    const CHUNK: usize = 64 << 10;
    // Direct writing wants memory at a multiple of the block size.
    let memory = vec![0x5a_u8; CHUNK + 4096];
    let at = memory.as_ptr().align_offset(4096);
    let start = Instant::now();
    for _ in 0..bytes / CHUNK {
        file.write_all(&memory[at..at + CHUNK])?;
    }
    Ok(bytes as f64 / start.elapsed().as_secs_f64())
}

// This process writes 8 MB at a limit of 4 MB/s, of another disk's limit not impressed, and then at
// its own speed again.
#[test]
fn a_disk_is_written_at_the_rate_and_no_faster() {
    let _alone = alone();
    let Some(group) = TestGroup::new("disk") else { return };
    let throttle = Hierarchies::discover().unwrap().throttle().cloned();
    let Some(throttle) = throttle else {
        return skip(&["blkio".into()], "no blkio nor io controller is mounted");
    };
    let directory = tempfile::tempdir_in(std::env::var_os("TMPDIR").unwrap_or("/var/tmp".into()));
    let directory = directory.unwrap();
    let path = directory.path().join("written");
    let mut open = File::options();
    open.write(true).create(true).truncate(true).custom_flags(OFlag::O_DIRECT.bits());
    let opened = open.open(&path).and_then(|mut file| {
        write_directly(&mut file, 64 << 10)?;
        Ok(file)
    });
    let mut file = match opened {
        Ok(file) => file,
        Err(error) => return skip(&["o_direct".into()], &format!("{}: {error}", path.display())),
    };
    let Some(disk) = disk_of(&file) else {
        return skip(&["disk".into()], "the file system is not on a whole disk");
    };
    const RATE: u64 = 4_000_000;
    let rate = Some(BytesPerSecond::new(RATE));
    let limits =
        |rate| DiskLimits::from([(disk, DiskRates::default().with(DiskDirection::Write, rate))]);
    let before = group.0.disk_usage().unwrap().get(&disk).copied().unwrap_or_default();
    group.0.set_disks(&limits(rate)).unwrap();
    assert_eq!(throttle.observe(group.0.path()).unwrap(), limits(rate));
    // A thread of a process of its own would be simpler to move; this one comes back.
    group.0.borrow(Identity::own().unwrap()).unwrap();
    let limited = write_directly(&mut file, 8 << 20);
    group.0.set_disks(&DiskLimits::new()).unwrap();
    let free = write_directly(&mut file, 8 << 20);
    group.0.give_back().unwrap();
    let (limited, free) = (limited.unwrap(), free.unwrap());
    println!(
        "{disk}, {:?}: {limited:.0} B/s at a limit of {RATE}, {free:.0} without",
        throttle.version()
    );
    if free < 2.0 * RATE as f64 {
        return skip(&["disk".into()], "the disk is not faster than the limit");
    }
    // A disk that others use may be slower for a while, and is still much faster without the limit.
    assert!(limited < 1.1 * RATE as f64 && limited < 0.7 * free, "{limited:.0} of {free:.0} B/s");
    let after = group.0.disk_usage().unwrap()[&disk];
    let written = after.written.get() - before.written.get();
    // Version 1 stops counting with the last limit.
    assert!(written >= 8 << 20, "{written} bytes counted");
    assert!(throttle.observe(group.0.path()).unwrap().is_empty());
    if throttle.version() == Version::V1 {
        let nowhere = DiskLimits::from([("511:255".parse().unwrap(), limits(rate)[&disk])]);
        let error = group.0.set_disks(&nowhere).unwrap_err().to_string();
        assert!(error.contains("blkio.throttle.write_bps_device"), "{error}");
    }
}

/// How long after multiples of `period` the periods of a busy group begin, as the kernel counts them.
fn begins(group: &Group, period: Nanos) -> Nanos {
    let count = || group.cpu_periods().unwrap();
    let before = count();
    wait_until("a period", || {
        let soon = Instant::now() + Duration::from_nanos(2 * period.get());
        while count() == before && Instant::now() < soon {}
        count() != before
    });
    Nanos::new(WallTime::from(SystemTime::now()).unix_nanos() % period.get())
}

// Goal: the periods of groups on different nodes begin together, and so they do when they get longer or shorter.
// Method: two groups with a busy program each, whose periods the kernel has drawn beginnings for.
#[test]
fn periods_begin_when_they_are_asked_to() {
    if !can(&["speed"]) {
        return;
    }
    let _alone = alone();
    let groups = ["one", "other"].map(|name| TestGroup::new(&format!("aligned-{name}")));
    let [Some(one), Some(other)] = groups else { return };
    let cpu = CpuPpm::from_percent(10);
    let millis = Nanos::from_millis;
    let programs = [&one, &other].map(|group| {
        let program = Program::shell("while :; do :; done");
        group.0.join(program.pid()).unwrap();
        program
    });
    let [first, second] = [&one, &other]
        .map(|group| Aligned::begin(group.0.clone(), cpu, millis(200), millis(70)).unwrap());
    let are_near = |period: Nanos, offset: Nanos| {
        [&one, &other].into_iter().all(|group| {
            let late = begins(&group.0, period).get().abs_diff(offset.get());
            late.min(period.get() - late) < 5_000_000
        })
    };
    wait_until("periods of 200 ms", || are_near(millis(200), millis(70)));
    for kept in [&first, &second] {
        kept.set(cpu, millis(130), millis(0)).unwrap();
    }
    wait_until("periods of 130 ms", || are_near(millis(130), millis(0)));
    // Whoever lets go leaves the limit as it is: not in the one period of another length, here.
    wait_until("the limit", || one.0.cpu_limit().unwrap() == Some(cpu));
    drop((first, second));
    assert_eq!(one.0.cpu_limit().unwrap(), Some(cpu));
    drop(programs);
}
