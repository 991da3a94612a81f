//! What others carry messages with, measured in the same rounds: libraries in two programs of their own, one pinned to
//! each of two cores. Those that wait by themselves are compared with what spins, those that have threads for it with
//! what sleeps.

use super::peer::{Peer, spawn_on};
use super::{
    CORES, LONG, LONGEST, SHORT, STREAMED, Samples, THREADS, Variant, WARM_UP, kernel, of_threads,
    ratios,
};
use crate::figures::{Figures, Target};
use anyhow::{Context as _, Result, ensure};
use keeptime_linux::testing::rig::Space;
use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Until a program of others listens.
const STARTS_WITHIN: Duration = Duration::from_secs(30);
/// What takes so long hangs: a sample is a second or two.
const ENDS_WITHIN: Duration = Duration::from_secs(120);
/// A state of connections, as the kernel writes it: somebody listens.
const LISTENS: &str = "0A";
/// On nodes of their own, where nobody else listens.
const ZENOH_PORT: u16 = 7447;
const UCX_PORT: u16 = 13337;
/// Round trips of each of several pairs of threads, where all of them spin on two cores.
const TRIPS_OF_CROWDS: usize = 200;

/// UCX over TCP within a machine, set so that by its own account each of our messages goes at once and in one piece; MPICH
/// goes over it too.
///
/// As it comes, where there is a device beside the loopback, `UCX_TLS=tcp ucx_info -e -u t` (1.13) tells that it uses both
/// and asks the receiver before it sends (`rndv`) from 8,192 bytes on. By the loopback alone it does so from 20,553 bytes
/// on, and its segments of 8 KiB do not hold a message of 8 KiB with its header. With segments of twice our longest
/// message the command tells of `egr/short` up to 131,065 bytes. Before this was set, a round trip of 8 KiB took eight times
/// raw TCP's. That questions to the receiver were the reason fits what the command tells, but was not measured apart;
/// `UCX_TCP_NODELAY` is on by itself.
const UCX_OVER_TCP: [(&str, &str); 4] = [
    ("UCX_TLS", "tcp"),
    ("UCX_NET_DEVICES", "lo"),
    ("UCX_TCP_TX_SEG_SIZE", "128k"),
    ("UCX_TCP_RX_SEG_SIZE", "128k"),
];
/// UCX between processes that share memory.
const UCX_IN_MEMORY: [(&str, &str); 1] = [("UCX_TLS", "posix,sysv,self")];

/// Becomes the program that its arguments say, and sees the devices of its network.
const IN_OWN_SYS: &str = r#"mount -t sysfs sysfs /sys; exec "$@""#;

/// Libraries that have threads to wait with: their names, their programs, and how a place begins.
const SLEEPING: [(&str, &str, &str); 3] = [
    ("ZeroMQ", "zeromq", "tcp://"),
    ("NATS", "nats", "nats://"),
    ("zenoh", "release/zenoh", "tcp/"),
];

/// What is measured, as programs are told.
#[derive(Debug, Clone, Copy, PartialEq)]
enum What {
    RoundTrip,
    Stream,
}

/// All of them. `make bench-fabric` installs and builds them.
pub fn variants() -> Vec<Variant> {
    let mut all = Vec::new();
    let mut add = |name: String, count, mut run: Box<dyn FnMut(usize) -> Result<f64>>| {
        let of = name.clone();
        // Their programs are given a port that was free; if it is no more, all that was measured would be lost.
        let run = move |count| {
            run(count).or_else(|error| {
                eprintln!("{of}: {error:#}; once more");
                run(count)
            })
        };
        all.push(Variant { name, count, run: Box::new(run) });
    };
    for (name, program, scheme) in SLEEPING {
        for size in [SHORT, LONG] {
            let run = move |count| ours(program, scheme, What::RoundTrip, size, count);
            add(format!("round trip {size} B, {name}, sleeping"), 1000, Box::new(run));
        }
        for size in [LONG, LONGEST] {
            let run = move |count| ours(program, scheme, What::Stream, size, count);
            add(format!("stream {size} B, {name}"), STREAMED / size, Box::new(run));
        }
    }
    for size in [SHORT, LONG] {
        let name = |of: &str| format!("round trip {size} B, {of}, spinning");
        add(
            name("UCX's own test"),
            4000,
            Box::new(move |count| ucx(&UCX_OVER_TCP, "tag_lat", size, count)),
        );
        let run = move |count| ucx(&UCX_IN_MEMORY, "tag_lat", size, count);
        add(name("UCX's own test in memory"), 40_000, Box::new(run));
        add(name("libfabric's own test"), 4000, Box::new(move |count| libfabric(size, count)));
        add(name("MPICH in memory"), 40_000, Box::new(move |count| mpich(true, 1, size, count)));
    }
    for size in [LONG, LONGEST] {
        let run = move |count| ucx(&UCX_OVER_TCP, "tag_bw", size, count);
        add(format!("stream {size} B, UCX's own test"), STREAMED / size, Box::new(run));
    }
    for (threads, count) in [(1, 4000), (THREADS, TRIPS_OF_CROWDS)] {
        let run = move |count| mpich(false, threads, SHORT, count);
        add(of_mpich(threads), count, Box::new(run));
    }
    all
}

/// Each against what ours are compared with, and ours against MPICH's threads.
pub fn report(figures: &mut Figures, samples: &Samples) {
    let mut against = |name: String, of: &str, to: &str| {
        figures.median(name, "x", &ratios(samples, of, to), None, None);
    };
    for size in [SHORT, LONG] {
        let name = |of: &str, way| format!("round trip {size} B, {of}, {way}");
        let sleeping = SLEEPING.map(|(of, ..)| (of, "raw TCP", "sleeping"));
        let spinning =
            ["UCX's own test", "libfabric's own test"].map(|of| (of, "raw TCP", "spinning"));
        let in_memory =
            ["UCX's own test in memory", "MPICH in memory"].map(|of| (of, "bare ring", "spinning"));
        for (of, to, way) in sleeping.into_iter().chain(spinning).chain(in_memory) {
            let title = format!("round trip {size} B over {of} against {to}, {way}");
            against(title, &name(of, way), &name(to, way));
        }
    }
    for size in [LONG, LONGEST] {
        let name = |of: &str| format!("stream {size} B, {of}");
        for of in SLEEPING.map(|(of, ..)| of).into_iter().chain(["UCX's own test"]) {
            let title = format!("rate of a stream of {size} B over {of} against raw TCP");
            against(title, &name("raw TCP"), &name(of));
        }
    }
    let against_mpich =
        |waiting| ratios(samples, &of_mpich(THREADS), &of_threads(THREADS, waiting));
    let title = format!("rate of {THREADS} pairs of threads against MPICH's");
    let target = Some(Target::AtLeast(5.0));
    figures.median(title, "x", &against_mpich("sleeping"), None, target);
    let title = format!("rate of {THREADS} pairs of threads against MPICH's, both spinning");
    figures.median(title, "x", &against_mpich("spinning"), None, None);
}

fn of_mpich(threads: usize) -> String {
    format!("{threads} pairs of threads, {SHORT} B, MPICH over TCP, spinning")
}

/// Microseconds of a message between two of the programs that are linked with `peers/peer.c`, or speak as they do.
fn ours(program: &str, scheme: &str, what: What, size: usize, count: usize) -> Result<f64> {
    let port = free_port()?;
    let place = format!("{scheme}127.0.0.1:{port}");
    let server = || {
        let mut command = Command::new("nats-server");
        command.args(["-a", "127.0.0.1", "-p", &port.to_string()]);
        Listening::start(command, port)
    };
    let _server = (program == "nats").then(server).transpose()?;
    let path = peer_program(program)?;
    let mut answering = Command::new(&path);
    let answerer = Peer::start(answering.args(["answer", &place]))?;
    ensure!(answerer.said() == "ready", "{program} said {:?}", answerer.said());
    let what = if what == What::Stream { "stream" } else { "round-trip" };
    let (size, count) = (size.to_string(), count.to_string());
    let said = said(Command::new(path).args(["ask", &place, what, &size, &count]))?;
    said.trim().parse().with_context(|| format!("{program} said {said:?}"))
}

/// Microseconds of a round trip over zenoh: from the first node of a row to the next, or to the one behind that, through a
/// router of its own on the one between.
pub fn zenoh(row: &kernel::Row, is_routed: bool, count: usize) -> Result<f64> {
    let program = peer_program("release/zenoh")?;
    let start = |space: &Space, word: &'static str, address: Ipv4Addr| {
        let mut command = Command::new(&program);
        command.args([word, &format!("tcp/{address}:{ZENOH_PORT}")]);
        space.run(move || Peer::start(&mut command))
    };
    let [near, far] = row.addresses;
    let _between = match is_routed {
        true => start(&row.middle, "route", Ipv4Addr::UNSPECIFIED)?,
        false => start(&row.middle, "answer", near)?,
    };
    let _behind = is_routed.then(|| start(&row.far, "answer-behind", far)).transpose()?;
    let mut asking = Command::new(&program);
    let (place, size, count) =
        (format!("tcp/{near}:{ZENOH_PORT}"), SHORT.to_string(), count.to_string());
    asking.args(["ask", &place, "round-trip", &size, &count]);
    let said = row.near.run(move || said(&mut asking))?;
    said.trim().parse().with_context(|| format!("zenoh said {said:?}"))
}

/// Mbit/s of messages that UCX sends from one node to another over all of `devices`, which both have.
pub fn ucx_over(
    here: &Space,
    (there, address): (&Space, Ipv4Addr),
    devices: &str,
    (size, count): (usize, usize),
) -> Result<f64> {
    let devices = devices.to_owned();
    let program = move || {
        // It looks for devices in /sys, which shows those of whoever mounted it.
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-ec", IN_OWN_SYS, "sh", "ucx_perftest"]);
        command.env("UCX_TLS", "tcp").env("UCX_NET_DEVICES", &devices);
        command.env("UCX_MAX_EAGER_RAILS", "2").env("UCX_MAX_RNDV_RAILS", "2");
        command.args(["-p", &UCX_PORT.to_string()]);
        command
    };
    let answering = program();
    let _answerer = there.run(move || Listening::start(answering, UCX_PORT))?;
    let mut asking = program();
    let (address, bytes, count) = (address.to_string(), size.to_string(), count.to_string());
    let words = ["-t", "tag_bw", "-s", &bytes, "-n", &count, "-w", "2", "-v", "-f", &address];
    asking.args(words);
    let said = here.run(move || said(&mut asking))?;
    Ok(size as f64 * 8.0 / in_column(&said, ',', "overall_lat")?)
}

/// Microseconds of a round trip, or of a message of a stream: what it calls latency is one way, or the time of one message.
fn ucx(environment: &[(&str, &str)], test: &str, size: usize, count: usize) -> Result<f64> {
    let port = free_port()?;
    let program = || {
        let mut command = Command::new("ucx_perftest");
        command.envs(environment.iter().copied()).args(["-p", &port.to_string()]);
        command
    };
    let _answerer = Listening::start(program(), port)?;
    let (size, count, before) = (size.to_string(), count.to_string(), WARM_UP.to_string());
    let words = ["-t", test, "-s", &size, "-n", &count, "-w", &before, "-v", "-f", "127.0.0.1"];
    let said = said(program().args(words))?;
    let times = if test == "tag_lat" { 2.0 } else { 1.0 };
    Ok(times * in_column(&said, ',', "overall_lat")?)
}

/// Microseconds of a round trip.
fn libfabric(size: usize, count: usize) -> Result<f64> {
    let port = free_port()?.to_string();
    let (size, count) = (size.to_string(), count.to_string());
    let program = |side: &str| {
        let mut command = Command::new("fi_pingpong");
        command.args(["-p", "tcp", "-e", "msg", "-S", &size, "-I", &count, side, &port]);
        command
    };
    let _answerer = Listening::start(program("-B"), port.parse()?)?;
    Ok(2.0 * in_column(&said(program("-P").arg("127.0.0.1"))?, ' ', "usec/xfer")?)
}

/// Microseconds of one of all round trips of so many pairs of threads.
fn mpich(in_memory: bool, threads: usize, size: usize, count: usize) -> Result<f64> {
    let mut command = Command::new("mpiexec.mpich");
    if !in_memory {
        command.env("MPIR_CVAR_NOLOCAL", "1").envs(UCX_OVER_TCP);
    }
    let words = [threads, size, count].map(|word| word.to_string());
    let said = said(command.args(["-n", "2"]).arg(peer_program("mpich")?).args(words))?;
    said.trim().parse().with_context(|| format!("MPICH said {said:?}"))
}

/// A program of others that listens at a port; it is ended with this.
struct Listening(Child);

impl Listening {
    fn start(mut command: Command, port: u16) -> Result<Self> {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut listening = Self(spawn_on(CORES[1], &mut command)?);
        let start = Instant::now();
        while !is_listened_at(port)? {
            let ended = listening.0.try_wait()?;
            ensure!(ended.is_none(), "{command:?} has ended: {ended:?}");
            ensure!(start.elapsed() < STARTS_WITHIN, "{command:?} does not listen");
            thread::sleep(Duration::from_millis(5));
        }
        Ok(listening)
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A port that nobody listens at now.
fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

fn is_listened_at(port: u16) -> Result<bool> {
    // Of the network that this thread is in.
    let read = |name| fs::read_to_string(format!("/proc/thread-self/net/{name}"));
    let lines = read("tcp")? + &read("tcp6")?;
    Ok(lines.lines().any(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let (local, _, state) = (fields.next(), fields.next(), fields.next());
        state == Some(LISTENS)
            && local.is_some_and(|local| local.ends_with(&format!(":{port:04X}")))
    }))
}

/// Where `make -C crates/bench/peers` puts it: beside this program's own directory.
fn peer_program(name: &str) -> Result<PathBuf> {
    let own = std::env::current_exe()?;
    let path = own
        .parent()
        .and_then(|profile| profile.parent())
        .map(|target| target.join("peers").join(name));
    let path = path.filter(|path| path.exists());
    path.with_context(|| format!("{name} is not built: `make bench-fabric` builds it"))
}

/// What a program says, which runs on the first core, until it ends well. It is a few lines, which need nobody who reads
/// them meanwhile.
fn said(command: &mut Command) -> Result<String> {
    let mut child = spawn_on(CORES[0], command.stdin(Stdio::null()).stdout(Stdio::piped()))?;
    let start = Instant::now();
    while child.try_wait()?.is_none() {
        if start.elapsed() > ENDS_WITHIN {
            child.kill()?;
        }
        // Seldom: it is measured on one of two cores.
        thread::sleep(Duration::from_millis(20));
    }
    let output = child.wait_with_output()?;
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(output.status.success(), "{command:?}: {}, after it said: {told}", output.status);
    Ok(told)
}

/// What stands under `name` in the last line of a table.
fn in_column(table: &str, separator: char, name: &str) -> Result<f64> {
    let split = |line: &str| -> Vec<String> {
        let cells = line.split(separator).map(str::trim).filter(|cell| !cell.is_empty());
        cells.map(str::to_string).collect()
    };
    let mut lines = table.lines().filter(|line| !line.trim().is_empty());
    let head = lines.next().map(split).unwrap_or_default();
    let last = lines.next_back().map(split).unwrap_or_default();
    let at = head.iter().position(|cell| cell == name);
    let cell = at.and_then(|at| last.get(at)).with_context(|| format!("no {name} in {table:?}"))?;
    cell.parse().with_context(|| format!("{name} is {cell:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_of_others_are_read_by_their_heads() {
        let ucx = "iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw\n 300,4.716,5.325,5.5,11.46\n";
        assert_eq!(in_column(ucx, ',', "overall_lat").unwrap(), 5.5);
        let libfabric =
            "bytes   #sent   usec/xfer   Mxfers/sec\n64      300     24.08       0.04\n";
        assert_eq!(in_column(libfabric, ' ', "usec/xfer").unwrap(), 24.08);
        assert!(in_column(libfabric, ' ', "nothing").is_err());
    }

    #[test]
    fn who_listens_is_seen() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(is_listened_at(port).unwrap());
        drop(listener);
        assert!(!is_listened_at(port).unwrap());
    }
}
