//! Profiles that are measured in several goes: what an interrupted one recorded is kept, and nothing is measured
//! twice.

#![allow(clippy::unwrap_used, reason = "tests")]

mod world;

use keeptime::profiler::lock;
use keeptime_broker::wire::Filter;
use keeptime_model::application::Parameters;
use keeptime_model::profile::{Curve, Point, Profile};
use keeptime_model::reservation::Handle;
use keeptime_model::units::{BitsPerSecond, Nanos, Share};
use keeptime_planner::refine::{self, Grid, Wanted};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Duration;
use world::{BELOW_A_LEASE, PAIR, Program, World, assert_code, said, wait};

const LIMIT: Duration = Duration::from_secs(60);
/// Mbit/s for each flow: less than half of a link, since a run that was killed has its rate until its lease ends.
const GRID: [u64; 7] = [4, 6, 9, 13, 18, 25, 35];
const SAMPLES: u32 = 2;
/// However well the curve is known before.
const RUNS: usize = 10;

/// What the program below tells at a bandwidth: bound by the network up to 20 Mbit/s.
fn time(mbit: u64) -> Nanos {
    Nanos::from_millis(if mbit < 20 { 20_000 / mbit } else { 1_000 })
}

/// The program: its first rank notes whose run it is, and tells the time that goes with what its node reserved for it.
const SCRIPT: &str = r#"
rate=$(tr ',{}' '\n\n\n' < "$(dirname "$KEEPTIME_AGENT")/assignments.json" | awk -v job="\"$KEEPTIME_JOB\"" '
    /"job":/ { mine = index($0, job) }
    /"bits_per_second":/ && mine { gsub(/[^0-9]/, ""); print; exit }')
mbit=$((rate / 1000000))
echo "$KEEPTIME_JOB" >> RUNS
if [ "$mbit" -lt 20 ]; then
    awk -v mbit="$mbit" 'BEGIN { printf "time %.3f\n", int(20000 / mbit) / 1000 }'
else
    echo time 1.000
fi
"#;

/// What is to be measured: `keeptime profile` on a file that lies where runs are noted.
struct Measured<'a> {
    world: &'a World,
    program: Program,
    file: PathBuf,
    runs: PathBuf,
}

impl<'a> Measured<'a> {
    fn new(world: &'a World) -> Self {
        let at = |name: &str| world.directory.path().join(name);
        let runs = at("runs");
        fs::write(at("told.sh"), SCRIPT.replace("RUNS", runs.to_str().unwrap())).unwrap();
        fs::write(&runs, "").unwrap();
        // All ranks are started alike; one is enough.
        let rank = "[ \"$OMPI_COMM_WORLD_RANK\" = 0 ] && exec sh";
        let script = format!("{rank} {}; exit 0", at("told.sh").display());
        let program = world.program(&script, "30 s", &[]);
        program.remove_profile();
        Self { world, program, file: at("say.json"), runs }
    }

    fn command(&self) -> Command {
        let grid = GRID.map(|mbit| format!("{mbit} Mbit/s")).join(",");
        let samples = SAMPLES.to_string();
        let runs = RUNS.to_string();
        let words = ["--nodes", "2", "--bandwidths", &grid, "--samples", &samples, "--json"];
        let known = ["--precision", "0 %", "--runs", &runs];
        self.world.ask("profile", &self.program, &[&words[..], &known].concat())
    }

    /// Measures until so many runs are recorded, then ends it by `signal`. What it said.
    fn interrupt(&self, runs: usize, signal: Signal) -> Output {
        let mut command = self.command();
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let measuring = command.spawn().unwrap();
        wait("runs to be recorded", LIMIT, || self.recorded().len() >= runs);
        kill(Pid::from_raw(measuring.id() as i32), signal).unwrap();
        measuring.wait_with_output().unwrap()
    }

    /// The bandwidth and time of each run in the file.
    fn recorded(&self) -> Vec<(BitsPerSecond, Nanos)> {
        let Ok(text) = fs::read(&self.file) else { return Vec::new() };
        let profile: Profile =
            serde_json::from_slice(&text).expect("the file is whole at any time");
        samples(profile.curves.iter())
    }

    /// The runs of a profile that nobody interrupts.
    fn uninterrupted(&self) -> Vec<(BitsPerSecond, Nanos)> {
        let grid = Grid::new(GRID.map(BitsPerSecond::from_mbit).to_vec()).unwrap();
        let precision = Share::from_percent(0).unwrap();
        let wanted = Wanted { precision, samples: SAMPLES, runs: RUNS };
        let unknown = Curve { parameters: Parameters::new(), nodes: 2, points: Vec::new() };
        let mut profile = self.world.profile(&self.program, &[]);
        loop {
            let curve = profile.curve(&unknown.parameters, 2).unwrap_or(&unknown);
            let Some(next) = refine::next(&grid, curve, &wanted) else { break };
            profile.record(&unknown.parameters, 2, next, time(next.get() / 1_000_000));
        }
        samples(profile.curves.iter())
    }

    /// The reservations of all runs that were begun.
    fn begun(&self) -> Vec<Handle> {
        let text = fs::read_to_string(&self.runs).unwrap();
        text.lines().map(|line| line.parse().unwrap()).collect()
    }

    /// The reservation of the last of them.
    fn last_reserved(&self) -> Handle {
        let all = self.world.broker().reservations(&Filter::default()).unwrap();
        all.reservations.last().unwrap().handle
    }
}

fn samples<'a>(curves: impl Iterator<Item = &'a Curve>) -> Vec<(BitsPerSecond, Nanos)> {
    let points = curves.flat_map(|curve| &curve.points);
    let times = |point: &Point| {
        let bandwidth = point.bandwidth_bits_per_second;
        point.samples_nanos.iter().map(move |time| (bandwidth, *time)).collect::<Vec<_>>()
    };
    points.flat_map(times).collect()
}

#[test]
fn an_interrupted_profile_goes_on_where_it_was() {
    let Some(world) = World::new("goon", 40) else { return };
    let measured = Measured::new(&world);
    let all = measured.uninterrupted();
    assert_eq!(all.len(), RUNS, "{all:?}");

    let stopped = measured.interrupt(2, Signal::SIGINT);
    assert_code(&stopped, 2);
    let text = said(&stopped);
    assert!(text.contains("; the same command goes on from here"), "{text}");
    wait("what it held to be given back", BELOW_A_LEASE, || world.jobs().is_empty());
    let first = measured.recorded();
    assert!((2..all.len()).contains(&first.len()), "{first:?}");

    measured.interrupt(first.len() + 2, Signal::SIGKILL);
    let second = measured.recorded();
    assert!((first.len() + 2..all.len()).contains(&second.len()), "{second:?}");
    assert!(first.iter().all(|run| second.contains(run)), "{first:?} and {second:?}");

    let last = measured.last_reserved();
    let rest = measured.command().output().unwrap();
    assert_code(&rest, 0);
    assert_eq!(measured.recorded(), all, "as if nobody had interrupted it");
    let begun = measured.begun().into_iter().filter(|run| *run > last).count();
    assert_eq!(begun, all.len() - second.len(), "nothing is measured twice");
    let told: Value = serde_json::from_slice(&rest.stdout).unwrap();
    assert_eq!(told[1]["runs"], all.len());
    assert_eq!(told[1]["full_grid"], GRID.len() * SAMPLES as usize);
}

// Goal: a profile whose bandwidths nobody named has those that the links can promise, whatever is free at the moment; it
// goes on with them; and who names others, or cannot have them now, is told which they are. Method: a reservation has a
// part of the links, has it no more, and has it again.
#[test]
fn a_profile_goes_on_with_what_the_links_can_promise() {
    let Some(world) = World::with_job("grid") else { return };
    let program = world.program("echo time 1", "30 s", &[]);
    program.remove_profile();
    let measure = |words: &[&str], code: i32| {
        let words = [&["--nodes", "2", "--json"], words].concat();
        let output = world.ask("profile", &program, &words).output().unwrap();
        assert_code(&output, code);
        said(&output)
    };
    let file = world.directory.path().join("say.json");
    let read = || -> Profile { serde_json::from_slice(&fs::read(&file).unwrap()).unwrap() };
    let beside = measure(&[], 1);
    assert!(beside.contains("the grid is what idle links can promise, "), "{beside}");
    assert!(!file.exists());
    world.run(&["cancel", "r1"], 0);
    // Those that show its shape are made in any case.
    measure(&["--runs", "1"], 0);
    let began = read();
    // Read better, they are a little less.
    let top = began.bandwidth_grid_bits_per_second.last().unwrap().get();
    assert!((World::reservable() - 100_000..=World::reservable()).contains(&top), "{top}");
    let more = (began.run_count() + 1).to_string();
    measure(&["--runs", &more], 0);
    let went_on = read();
    let grid = |profile: &Profile| profile.bandwidth_grid_bits_per_second.clone();
    assert_eq!(grid(&went_on), grid(&began));
    assert_eq!(went_on.run_count(), began.run_count() + 1);

    let other = measure(&["--bandwidths", "10 Mbit/s,20 Mbit/s"], 2);
    assert!(other.contains("another grid of bandwidths"), "{other}");
    assert!(other.contains("and not 10 Mbit/s, 20 Mbit/s"), "{other}");
    world.run(&[&["reserve"], &PAIR[..], &["--for", "10min"]].concat(), 0);
    let beside = measure(&[], 1);
    assert!(beside.contains("its grid of bandwidths is "), "{beside}");
}

// Goal: of two commands on one file the second is refused, and changes nothing. Method: this test is the first.
#[test]
fn a_profile_that_another_command_measures_is_left_alone() {
    let Some(world) = World::new("twice", 30) else { return };
    let program = world.program("echo time 1", "30 s", &[(10, 1.0)]);
    let file = world.directory.path().join("say.json");
    let before = fs::read(&file).unwrap();
    let _held = lock(&file).unwrap();
    let second = world.ask("profile", &program, &["--nodes", "2", "--fresh"]).output().unwrap();
    assert_code(&second, 2);
    assert!(said(&second).contains("another command measures into"), "{}", said(&second));
    assert_eq!(fs::read(&file).unwrap(), before);
}
