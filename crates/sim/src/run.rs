//! A seed in, a report out; or the first thing that did not hold, what happened before it, and the
//! command that repeats it.

use crate::Violation;
use crate::fault::{Effects, Kinds};
use crate::seams::{Seams, Sound};
use crate::world::World;
use keeptime_model::units::Nanos;
use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Where every chance comes from.
    pub seed: u64,
    /// After so many things have happened, calm moments aside,
    pub events: u64,
    /// or so many calls of users, it ends.
    pub calls: u64,
    /// What goes wrong.
    pub faults: Kinds,
}

/// What a run did, and nothing was wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Things that happened while faults were on.
    pub events: u64,
    /// Calls of users.
    pub calls: u64,
    /// How many brokers it took.
    pub brokers: u64,
    /// What went wrong.
    pub effects: Effects,
    /// Virtual time.
    pub lasted: Nanos,
    /// Events in the record, by kind.
    pub recorded: BTreeMap<&'static str, u64>,
    /// The same for the same run.
    pub digest: u64,
}

/// Something did not hold.
#[derive(Debug, Clone)]
pub struct Failure {
    /// What did not hold.
    pub violation: Violation,
    /// The shortest run in which it does not, with the fewest kinds of faults.
    pub options: Options,
    /// The last things that happened in that.
    pub log: Vec<String>,
}

impl Options {
    /// Ten thousand events of `seed`, with every kind of fault.
    pub fn of_seed(seed: u64) -> Self {
        Self { seed, events: 10_000, calls: u64::MAX, faults: Kinds::all() }
    }

    /// What repeats it.
    pub fn command(&self) -> String {
        let Self { seed, events, calls, faults } = self;
        let mut words = format!("keeptime-soak --seed {seed}");
        if *events < u64::MAX {
            words += &format!(" --events {events}");
        }
        if *calls < u64::MAX {
            words += &format!(" --calls {calls}");
        }
        if *faults != Kinds::all() {
            words += &format!(
                " --faults {}",
                if faults.is_empty() { "none".into() } else { faults.to_string() }
            );
        }
        words
    }
}

/// Runs it with every part as it should be.
///
/// # Errors
/// What did not hold.
pub fn run(options: &Options) -> Result<Report, Box<Failure>> {
    run_with(options, &|| Box::new(Sound))
}

/// Runs it with parts that `seams` replaces.
///
/// # Errors
/// What did not hold.
pub fn run_with(
    options: &Options,
    seams: &dyn Fn() -> Box<dyn Seams>,
) -> Result<Report, Box<Failure>> {
    match attempt(options, seams, false) {
        Ok(report) => Ok(report),
        Err(failed) => {
            let options = shrink(options, seams, &failed);
            let failed = attempt(&options, seams, true).err().unwrap_or(failed);
            Err(Box::new(Failure { violation: failed.violation, options, log: failed.log }))
        }
    }
}

/// A run that failed.
struct Failed {
    violation: Violation,
    /// So many events had happened.
    events: u64,
    log: Vec<String>,
}

fn attempt(
    options: &Options,
    seams: &dyn Fn() -> Box<dyn Seams>,
    with_log: bool,
) -> Result<Report, Failed> {
    let fail = |violation, world: Option<&World>| {
        let (events, log) = world.map(|world| (world.happenings, world.log())).unwrap_or_default();
        Failed { violation, events, log }
    };
    let world = World::new(options.seed, options.faults.clone(), seams(), with_log);
    let mut world = world.map_err(|violation| fail(violation, None))?;
    // A world that panicked is looked at, and not used any more.
    let ran = catch_unwind(AssertUnwindSafe(|| world.run(options.events, options.calls)));
    match ran {
        Ok(Ok(())) => Ok(Report {
            events: world.happenings,
            calls: world.calls,
            brokers: world.brokers(),
            effects: world.effects(),
            lasted: world.now(),
            recorded: world.history.counts().clone(),
            digest: world.digest,
        }),
        Ok(Err(violation)) => Err(fail(violation, Some(&world))),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            let what = format!("panic: {}", text.unwrap_or("without words"));
            Err(fail(Violation(what), Some(&world)))
        }
    }
}

/// Ends the run where it fails, and leaves out every kind of fault that is not needed for that. What
/// fails then may be something else: it fails with less.
fn shrink(options: &Options, seams: &dyn Fn() -> Box<dyn Seams>, failed: &Failed) -> Options {
    let mut least = Options { events: failed.events, calls: u64::MAX, ..options.clone() };
    for kind in options.faults.iter() {
        let faults = least.faults.without(kind);
        let fewer = Options { faults, events: least.events.saturating_mul(2), ..least.clone() };
        if let Err(failed) = attempt(&fewer, seams, false) {
            least = Options { events: failed.events, ..fewer };
        }
    }
    least
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { events, calls, brokers, effects, lasted, recorded, .. } = self;
        let hours = lasted.as_secs_f64() / 3_600.0;
        write!(f, "{events} events, {calls} calls, {brokers} brokers, {hours:.1} hours:")?;
        recorded.iter().try_for_each(|(kind, count)| write!(f, " {count} {kind}"))?;
        write!(f, "; faults: {effects}")
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.log {
            writeln!(f, "{line}")?;
        }
        writeln!(f, "{}", self.violation)?;
        write!(
            f,
            "again: cargo run --release --bin {}",
            self.options.command().replacen(' ', " -- ", 1)
        )
    }
}

impl std::error::Error for Failure {}
