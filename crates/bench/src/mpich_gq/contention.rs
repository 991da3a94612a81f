//! Figures 8 and 9 of MPICH-GQ: a stream that runs on nobody's account, contention for the network and
//! for the CPU of its sender, and reservations that are made for it from outside while it runs.

use super::{RANKS, arrived_by_second, load};
use crate::lab::BenchLab;
use crate::mpi::ranks::{Told, program};
use crate::quick;
use anyhow::{Context, Result, ensure};
use keeptime::cluster::Cluster;
use keeptime::hold::Hold;
use keeptime::interrupt;
use keeptime::load::Busy;
use keeptime::reach::exec_line;
use keeptime_launch::mpi::{Flavour, Mpi};
use keeptime_launch::process::{LINGER, Progress, run};
use keeptime_model::connection::{ConnectionPattern, Endpoint};
use keeptime_model::name::Name;
use keeptime_model::pattern::Pattern;
use keeptime_model::reservation::{Ask, NodeChoice, Request, Resources};
use keeptime_model::topology::NodeIndex;
use keeptime_model::units::{BitsPerSecond, Bytes, CpuPpm, Nanos};
use keeptime_mpiqos::overhead;
use std::any::Any;
use std::fmt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

/// Frames a second.
const FRAMES: u32 = 20;
/// Milliseconds of CPU time that a frame is computed for: 16 % of a CPU, of the 40 % that the node has.
const WORK: &str = "8";
/// Programs that compute beside the sender: what is nobody's is shared among them and it.
const OTHERS: usize = 6;
/// For each of both: nine tenths of what the node has, as in the paper.
const CPU: CpuPpm = CpuPpm::from_percent(36);
/// A reservation of a rate alone has to have some.
const CPU_LEAST: CpuPpm = CpuPpm::from_percent(1);
/// Nothing here takes longer, however late its frames are.
const LIMIT: Nanos = Nanos::from_secs(180);

/// What happens to a stream while it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// Datagrams fill the path between the sites.
    NetworkContention,
    /// Its connections are given a rate.
    NetworkReservation,
    /// Others compute on the sender's node.
    CpuContention,
    /// Both processes are given a share of the CPU of their nodes.
    CpuReservation,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::NetworkContention => "datagrams fill the path",
            Self::NetworkReservation => "a rate is reserved",
            Self::CpuContention => "others compute",
            Self::CpuReservation => "CPU is reserved",
        })
    }
}

/// What ends when it is dropped.
type Lasting = Box<dyn Any>;

/// What is reserved for the stream, on both of its nodes: one job, which has its processes and its connections.
struct Reserved<'a> {
    cluster: &'a Cluster,
    /// The stream's, by rank.
    processes: [Vec<u32>; 2],
    hold: Option<Hold>,
    resources: Resources,
}

/// Seconds between two events.
pub fn stage() -> usize {
    if quick() { 2 } else { 8 }
}

/// Mbit/s that arrive of a stream of `mbit`, second by second, while one event after the other happens.
pub fn series(lab: &BenchLab, mbit: u32, events: &[Event]) -> Result<Vec<f64>> {
    let seconds = stage() * (events.len() + 1);
    let frame = mbit * 125_000 / FRAMES;
    let numbers = [frame, FRAMES, seconds as u32].map(|number| number.to_string());
    let [bytes, frames, length] = numbers.each_ref().map(String::as_str);
    let words = ["stream", "--bytes", bytes, "--fps", frames, "--seconds", length, "--work", WORK];
    let mpi = Mpi::find(Flavour::OpenMpi)?;
    let (line, _remote) = lab.cluster().mpi_line(&mpi, &RANKS, None, &program(&words)?)?;
    let has_failed = &AtomicBool::new(false);
    let told = thread::scope(|scope| {
        let (begin, begun) = channel();
        let director = scope.spawn(move || {
            let directed = direct(lab.cluster(), mbit, events, &begun);
            has_failed.store(directed.is_err(), Ordering::Relaxed);
            directed
        });
        let stopped = || has_failed.load(Ordering::Relaxed) || interrupt::stopped();
        let mut watch = |line: &str| match line.split(' ').next() {
            Some("frame") => {
                // Who does not listen any more has failed, and says so.
                let _ = begin.send(());
                Progress::Running
            }
            Some("late_frames") => Progress::EndsWithin(LINGER),
            _ => Progress::Running,
        };
        let ran = run(&line, LIMIT, &stopped, &mut watch);
        drop(begin);
        match director.join() {
            Ok(directed) => directed?,
            Err(panic) => std::panic::resume_unwind(panic),
        }
        Ok::<_, anyhow::Error>(ran?.stdout)
    });
    arrived_by_second(&Told::of(told?), frame, seconds)
}

/// The mean of each stage but for its first second, in which things settle.
pub fn stages(series: &[f64]) -> Vec<f64> {
    let mean = |stage: &[f64]| stage[1..].iter().sum::<f64>() / (stage.len() - 1) as f64;
    series.chunks_exact(stage()).map(mean).collect()
}

/// One event a stage, counted from the first frame; all last until no frame comes any more.
fn direct(cluster: &Cluster, mbit: u32, events: &[Event], begun: &Receiver<()>) -> Result<()> {
    begun.recv().context("no frame came")?;
    let mut due = Instant::now();
    let mut lasting: Vec<Lasting> = Vec::new();
    // Found before anybody competes: who looks for them has no CPU reserved, and would wait for seconds.
    let [sender, receiver] = RANKS.map(|node| processes(cluster, node, "stream"));
    let mut reserved = Reserved::nothing(cluster, [sender?, receiver?]);
    for event in events {
        due += Duration::from_secs(stage() as u64);
        thread::sleep(due.saturating_duration_since(Instant::now()));
        eprintln!("  {event}");
        let happened = happen(&mut reserved, mbit, *event).with_context(|| event.to_string())?;
        lasting.extend(happened);
    }
    while begun.recv().is_ok() {}
    Ok(())
}

fn happen(reserved: &mut Reserved<'_>, mbit: u32, event: Event) -> Result<Option<Lasting>> {
    let (cluster, [sender, receiver]) = (reserved.cluster, RANKS);
    match event {
        Event::NetworkContention => return Ok(Some(Box::new(load(cluster)?))),
        Event::CpuContention => return Ok(Some(Box::new(Busy::on(cluster, sender, OTHERS)?))),
        Event::NetworkReservation => {
            let payload = BitsPerSecond::from_mbit(mbit.into());
            let message = Bytes::new(u64::from(mbit * 125_000 / FRAMES));
            let rate = overhead::wire_rate(payload, message).context("a rate beyond all")?;
            let job = reserved.change(|resources| {
                resources.pattern = Some(Pattern::AllToAll);
                resources.bits_per_second = rate;
            })?;
            for (node, peer) in [(sender, receiver), (receiver, sender)] {
                let remote = Endpoint { address: cluster.address(peer)?, port: None };
                let connections = ConnectionPattern { local: None, remote };
                cluster.client(node)?.bind_flow(&job, connections)?;
            }
        }
        Event::CpuReservation => {
            let job = reserved.change(|resources| resources.cpu_ppm = CPU)?;
            // The receiver as well: what is reserved on its node is no longer there for others.
            for (node, processes) in RANKS.into_iter().zip(&reserved.processes) {
                cluster.client(node)?.bind(&job, processes.clone())?;
            }
        }
    }
    Ok(None)
}

impl<'a> Reserved<'a> {
    fn nothing(cluster: &'a Cluster, processes: [Vec<u32>; 2]) -> Self {
        let nodes = NodeChoice::Named(cluster.topology().names(&RANKS));
        let resources = Resources { nodes, cpu_ppm: CPU_LEAST, ..Resources::nothing() };
        Self { cluster, processes, hold: None, resources }
    }

    /// Reserves it, or has the reservation changed that there is.
    fn change(&mut self, change: impl FnOnce(&mut Resources)) -> Result<Name> {
        change(&mut self.resources);
        let ask = Ask::Resources(self.resources.clone());
        match &self.hold {
            None => Ok(self.hold.insert(Hold::take(self.cluster, ask, LIMIT)?).job()),
            Some(hold) => {
                let broker = self.cluster.broker()?;
                let old = broker.reservation(hold.handle())?.request;
                broker.modify(hold.handle(), &Request { ask, ..old })?;
                Ok(hold.job())
            }
        }
    }
}

/// The processes of a program on a node, by the numbers that they have there.
fn processes(cluster: &Cluster, node: NodeIndex, program: &str) -> Result<Vec<u32>> {
    let command = ["pgrep", "-x", program].map(String::from);
    let name = cluster.topology().node(node).name.as_str();
    let line = exec_line(cluster.lab("this benchmark")?, name, None, &command)?;
    let output = Command::new(&line[0]).args(&line[1..]).output()?;
    ensure!(output.status.success(), "no {program} runs there");
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().map(|line| Ok(line.trim().parse()?)).collect()
}
