//! Seed after seed, on every processor, until something does not hold.
#![forbid(unsafe_code)]

use clap::Parser;
use keeptime_sim::fault::{Kind, Kinds};
use keeptime_sim::run::{Failure, Options, Report, run};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How often it is said how far it is.
const PROGRESS: Duration = Duration::from_secs(2);
/// How often it is looked whether all is done.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Simulates clusters in which everything goes wrong, and checks that what was promised is kept.
#[derive(Parser)]
#[command(name = "keeptime-soak", version)]
struct Arguments {
    /// The first seed; without one, a new one is taken and told.
    #[arg(long)]
    seed: Option<u64>,
    /// How many seeds, one after the other; one if a seed is given
    #[arg(long)]
    seeds: Option<u64>,
    /// Events of each seed.
    #[arg(long)]
    events: Option<u64>,
    /// Calls of users of each seed, however many events they take.
    #[arg(long)]
    calls: Option<u64>,
    /// For so many minutes, in the place of a number of seeds.
    #[arg(long, conflicts_with = "seeds")]
    minutes: Option<u64>,
    /// Kinds of faults, or none; all if it is not given.
    #[arg(long, value_delimiter = ',')]
    faults: Option<Vec<String>>,
    /// Seeds at the same time; as many as there are processors.
    #[arg(long)]
    threads: Option<usize>,
}

/// What all threads together have done.
#[derive(Default)]
struct Progress {
    next: AtomicU64,
    done: AtomicU64,
    events: AtomicU64,
    calls: AtomicU64,
    brokers: AtomicU64,
    is_over: AtomicBool,
    failure: Mutex<Option<Failure>>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let faults = match faults(arguments.faults.as_deref()) {
        Ok(faults) => faults,
        Err(what) => {
            eprintln!("--faults: {what}");
            return ExitCode::from(64);
        }
    };
    let first = arguments.seed.unwrap_or_else(new_seed);
    let only_calls = arguments.calls.is_some() && arguments.events.is_none();
    let events = arguments.events.unwrap_or(if only_calls { u64::MAX } else { 10_000 });
    let calls = arguments.calls.unwrap_or(u64::MAX);
    let count = match (arguments.seeds, arguments.minutes, arguments.seed) {
        (Some(count), ..) => count,
        (None, Some(_), _) => u64::MAX,
        (None, None, Some(_)) => 1,
        (None, None, None) => 100,
    };
    println!("seeds from {first} on, faults: {faults}");
    let began = Instant::now();
    let until = arguments.minutes.map(|minutes| began + Duration::from_secs(60 * minutes));
    let progress = Progress::default();
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let threads = arguments.threads.unwrap_or(threads).max(1);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|_| {
                scope.spawn(|| {
                    while until.is_none_or(|until| Instant::now() < until) {
                        let number = progress.next.fetch_add(1, Ordering::Relaxed);
                        if number >= count || progress.is_over.load(Ordering::Relaxed) {
                            return;
                        }
                        let (seed, faults) = (first.wrapping_add(number), faults.clone());
                        progress.count(run(&Options { seed, events, calls, faults }), count == 1);
                    }
                })
            })
            .collect();
        let mut said = began;
        while workers.iter().any(|worker| !worker.is_finished()) {
            thread::sleep(LOOK_EVERY);
            if said.elapsed() >= PROGRESS {
                said = Instant::now();
                eprint!("\r{}  ", progress.figures(began.elapsed()));
            }
        }
    });
    progress.finish(began)
}

impl Progress {
    fn count(&self, outcome: Result<Report, Box<Failure>>, alone: bool) {
        match outcome {
            Ok(report) => {
                self.done.fetch_add(1, Ordering::Relaxed);
                self.events.fetch_add(report.events, Ordering::Relaxed);
                self.calls.fetch_add(report.calls, Ordering::Relaxed);
                self.brokers.fetch_add(report.brokers, Ordering::Relaxed);
                if alone {
                    println!("{report}");
                }
            }
            Err(failure) => {
                self.is_over.store(true, Ordering::Relaxed);
                if let Ok(mut first) = self.failure.lock() {
                    first.get_or_insert(*failure);
                }
            }
        }
    }

    fn finish(&self, began: Instant) -> ExitCode {
        eprint!("\r");
        println!("{}", self.figures(began.elapsed()));
        let failure = self.failure.lock().ok().and_then(|mut failure| failure.take());
        match failure {
            None => ExitCode::SUCCESS,
            Some(failure) => {
                println!("{failure}");
                ExitCode::FAILURE
            }
        }
    }

    fn figures(&self, since: Duration) -> String {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        format!(
            "{} seeds, {} events, {} calls, {} brokers in {:.1} s",
            of(&self.done),
            of(&self.events),
            of(&self.calls),
            of(&self.brokers),
            since.as_secs_f64()
        )
    }
}

fn faults(names: Option<&[String]>) -> Result<Kinds, String> {
    match names {
        None => Ok(Kinds::all()),
        Some([none]) if none == "none" => Ok(Kinds::of(&[])),
        Some(names) => {
            let kinds: Result<Vec<Kind>, _> = names.iter().map(|name| name.parse()).collect();
            kinds.map(|kinds| Kinds::of(&kinds))
        }
    }
}

/// From the clock: other seeds every time.
fn new_seed() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_secs() * 1_000_000
}
