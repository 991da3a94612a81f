//! The application of one run, where that is not what a file says: a program's words, or a longer time limit.

use crate::arguments::{ProgramArguments, RunArguments};
use anyhow::{Context, Result};
use keeptime_engine::Refusal;
use keeptime_engine::refusal::{Beyond, NodeShare, Reason};
use keeptime_model::Invalid;
use keeptime_model::application::{Application, ApplicationFile, Printed, Progress, TimeSource};
use keeptime_model::loss::OnLoss;
use keeptime_model::name::{NAME_LENGTH_MAX, Name};
use keeptime_model::pattern::{Pattern, RANKS_MAX};
use keeptime_model::units::{CpuPpm, Nanos, Share};
use std::collections::{BTreeMap, BTreeSet};
use std::iter;

/// What `arguments` say of a program, as an application file would.
///
/// # Errors
/// What of it is wrong, or missing.
pub(super) fn application(arguments: &RunArguments) -> Result<Application> {
    check_wanted(arguments)?;
    let ProgramArguments { command, cpu, pattern, limit, progress, progress_command } =
        &arguments.program;
    let told = progress.clone().map(Progress::Told);
    let printed = || Some(Progress::Printed(Printed { command: progress_command.clone()? }));
    let (program, words) = without_launcher(command)?;
    let pattern = pattern.clone().unwrap_or(Pattern::AllToAll);
    let nodes = BTreeSet::from([node_count(arguments, &pattern)?]);
    let brace: Name = BRACE.parse()?;
    let words = iter::once(as_nodes_see(program)?).chain(words.iter().cloned());
    let file = ApplicationFile {
        name: name_of(program)?,
        // Braces are the program's own. One that closes means nothing alone.
        command: words.map(|word| word.replace('{', &format!("{{{brace}}}"))).collect(),
        pattern,
        nodes,
        cpu: cpu.unwrap_or(CPU),
        timeout: limit.unwrap_or(LIMIT),
        time: TimeSource::Wall,
        ends_within: None,
        progress: told.or_else(printed),
        work: None,
        on_loss: OnLoss::default(),
        parameters: Vec::new(),
        constants: BTreeMap::from([(brace, "{".to_owned())]),
    };
    Ok(Application::try_from(file)?)
}

/// An application with the time limit of a run at `rate`: what an application says is for one at full speed.
///
/// # Errors
/// None that the application did not have before.
pub(super) fn slowed(application: Application, rate: Share) -> Result<Application, Invalid> {
    let at_full_speed = u128::from(application.timeout().get()) * u128::from(Share::ONE.ppm());
    // A rate of nothing is refused later.
    let longer = at_full_speed.div_ceil(u128::from(rate.ppm().max(1)));
    application.with_timeout(Nanos::new(u64::try_from(longer).unwrap_or(u64::MAX)))
}

/// What to type instead where nodes have less CPU at all than a program is to have, whose words were typed.
pub fn less_cpu(program: &ProgramArguments, refusal: &Refusal) -> Option<String> {
    let Reason::Never(Beyond { share: NodeShare::Cpu, most: Some(most), .. }) = &refusal.reason
    else {
        return None;
    };
    let said = match program.cpu {
        _ if !program.is_given() => return None,
        None => format!("--cpu was not given, which is {CPU} then"),
        Some(cpu) => format!("asked for by --cpu \"{cpu}\""),
    };
    Some(format!("{said}; at the most: --cpu \"{most}\""))
}

/// Without a profile, full speed can be measured and a deadline be planned for by what the user says. No time can be
/// promised.
fn check_wanted(arguments: &RunArguments) -> Result<(), Invalid> {
    match (arguments.rate, &arguments.by, arguments.takes) {
        (None, None, _) => {
            Err(Invalid::new("command", arguments.program.command.join(" "), WITHOUT_PROFILE))
        }
        (None, Some(_), None) => Err(Invalid::missing("takes", TAKES)),
        (None, Some(_), Some(takes)) if takes == Nanos::default() => {
            Err(Invalid::new("takes", takes, TAKES))
        }
        _ => Ok(()),
    }
}

/// The program and its arguments: a launcher of MPI before it is left out, since Keeptime does its work.
fn without_launcher(words: &[String]) -> Result<(&String, &[String]), Invalid> {
    let invalid = |expected: &str| Invalid::new("command", words.join(" "), expected);
    let (first, rest) = words.split_first().ok_or_else(|| invalid("a program"))?;
    let called = file_name(first).split('.').next().unwrap_or_default();
    // Which of its words would be left out is Flux's own business.
    if called == "flux" && rest.first().is_some_and(|word| word == "run") {
        return Err(invalid(WITHOUT_FLUX));
    }
    if !LAUNCHERS.contains(&called) {
        return Ok((first, rest));
    }
    if rest.iter().any(|word| word == ":") {
        return Err(invalid("one program for all ranks"));
    }
    match rest.split_first() {
        Some((program, arguments)) if !program.starts_with('-') => Ok((program, arguments)),
        _ => Err(invalid(WITHOUT_OPTIONS)),
    }
}

/// Of several numbers of nodes the fewest on which the pattern exists: nobody knows how much faster more would make it.
fn node_count(arguments: &RunArguments, pattern: &Pattern) -> Result<u32, Invalid> {
    let counts = arguments.goal.nodes.as_ref();
    let counts = counts.ok_or_else(|| Invalid::missing("nodes", "how many, as in --nodes 4"))?;
    let only = counts.only();
    // Where there is one that the pattern does not have, the application says why.
    if arguments.by.is_none() || only.is_ok() {
        return only;
    }
    let exists = |nodes: &u32| pattern.ranks_at_most(*nodes) == Some(*nodes);
    let mut fitting = (1..=RANKS_MAX).filter(|nodes| counts.contains(*nodes)).filter(exists);
    let expected = || format!("a number of nodes that the pattern {pattern} has");
    fitting.next().ok_or_else(|| Invalid::new("nodes", counts, expected()))
}

/// A program that is not looked for in `PATH` is at the same place on all nodes.
fn as_nodes_see(program: &str) -> Result<String> {
    if !program.contains('/') {
        return Ok(program.into());
    }
    let path = std::path::absolute(program).context("the current directory is gone")?;
    Ok(path.display().to_string())
}

/// The name of the program's file, as far as it is a name.
fn name_of(program: &str) -> Result<Name, Invalid> {
    let legal = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let letters = file_name(program).chars().map(legal);
    let named = letters.skip_while(|c| !c.is_ascii_lowercase()).take(NAME_LENGTH_MAX);
    let name: String = named.collect();
    match name.as_str() {
        "" => NAMELESS.parse(),
        name => name.parse(),
    }
}

fn file_name(program: &str) -> &str {
    program.rsplit('/').next().unwrap_or_default()
}

/// By which ranks are started elsewhere; systems add what tells several apart, as in `mpirun.openmpi`.
const LAUNCHERS: [&str; 7] =
    ["mpiexec", "mpirun", "orterun", "prterun", "mpirun_rsh", "srun", "aprun"];
/// The constant that stands for a brace in what would be a template.
const BRACE: &str = "brace";
const NAMELESS: &str = "program";
const CPU: CpuPpm = CpuPpm::from_percent(100);
/// Long enough for what is left alone, and an end to what hangs.
const LIMIT: Nanos = Nanos::from_secs(24 * 3_600);
const WITHOUT_PROFILE: &str = "--nodes with either --rate, or --by and --takes: a time is promised by a profile. Write \
     apps/NAME.toml (docs/formats/application.md), measure it with `keeptime profile NAME`, and run NAME";
const WITHOUT_OPTIONS: &str = "the program right after the launcher, without options of that: Keeptime starts one \
     rank on each of --nodes (-n) itself";

const WITHOUT_FLUX: &str = "the program alone, without `flux run` and its options: Keeptime starts one rank on each \
     of --nodes (-n) itself";

const TAKES: &str =
    "how long the whole run takes at full speed, beside --nodes: no profile tells it";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::{Arguments, Command};
    use clap::Parser;
    use keeptime_model::application::Parameters;

    fn parsed(words: &[&str]) -> RunArguments {
        let words = ["keeptime", "run"].into_iter().chain(words.iter().copied());
        let parsed = Arguments::try_parse_from(words).unwrap();
        let Command::Run(run) = parsed.command else { panic!("it is another command") };
        *run
    }

    /// At a rate, on four nodes.
    fn made(words: &[&str]) -> Result<Application> {
        application(&parsed(&[&["--rate", "30 %", "-n", "4", "--"][..], words].concat()))
    }

    // Goal: what is typed after -- is what runs, at the same place on all nodes. Method: with a launcher before it and
    // without, with what looks like its options, and with braces, which mean something in application files.
    #[test]
    fn words_become_an_application() {
        let solver = std::env::current_dir().unwrap().join("solver").display().to_string();
        for launcher in [&["mpiexec"][..], &["/usr/bin/mpirun.openmpi"], &[]] {
            let words = [launcher, &["./solver", "-n", "{9} {", "--", "}"]].concat();
            let made = made(&words).unwrap();
            let command = made.command(&Parameters::new()).unwrap();
            assert_eq!(command, [solver.as_str(), "-n", "{9} {", "--", "}"]);
            assert_eq!(made.name().as_str(), "solver");
            assert_eq!(*made.nodes(), BTreeSet::from([4]));
            assert_eq!((made.cpu(), made.timeout()), (CPU, LIMIT));
            assert_eq!(*made.time(), TimeSource::Wall);
        }
        assert_eq!(made(&["solver"]).unwrap().command_template(), ["solver"], "found in PATH");
    }

    // Goal: whoever is used to a launcher may leave it where it is, and none of them is started on each node in the place of
    // the program. Method: each that there is, with what does not go, and programs that are only called nearly so.
    #[test]
    fn every_launcher_is_left_out_or_refused() {
        for launcher in LAUNCHERS {
            assert_eq!(
                made(&[launcher, "solver", "-n"]).unwrap().command_template(),
                ["solver", "-n"]
            );
            let error = made(&[launcher, "-n", "4", "solver"]).unwrap_err().to_string();
            assert!(error.contains(&format!("command: \"{launcher} -n 4 solver\"")), "{error}");
            assert!(error.contains("the program right after the launcher"), "{error}");
        }
        let flux = made(&["/usr/bin/flux", "run", "solver"]).unwrap_err().to_string();
        assert!(flux.contains("expected the program alone, without `flux run`"), "{flux}");
        for program in [&["flux", "solver"][..], &["srun-tests", "x"], &["run"]] {
            assert_eq!(made(program).unwrap().command_template(), program);
        }
    }

    // Goal: whoever types a program alone is told all that it needs, and not one thing after the other.
    #[test]
    fn a_program_alone_is_told_all_that_it_needs() {
        let told = |words: &[&str]| {
            let error = application(&parsed(&[words, &["--", "./x"]].concat())).unwrap_err();
            error.to_string()
        };
        let all = "command: \"./x\" is not accepted; expected --nodes with either --rate, or --by and --takes: ";
        assert!(told(&[]).starts_with(all), "{}", told(&[]));
        let takes = told(&["--by", "+1h"]);
        assert!(takes.starts_with("takes is missing") && takes.contains("--nodes"), "{takes}");
        let none = told(&["--by", "+1h", "--takes", "0s"]);
        assert!(none.starts_with("takes: \"0 ns\" is not accepted"), "{none}");
        for enough in [&["--rate", "30 %"][..], &["--by", "+1h", "--takes", "1min"]] {
            let nodes = told(enough);
            let expected = "nodes is missing; expected how many, as in --nodes 4";
            assert_eq!(nodes, expected);
        }
    }

    // Goal: full speed that was measured is never taken for that of another command: conditions tell templates apart.
    #[test]
    fn other_words_are_another_template() {
        let template = |word| made(&["./solver", word]).unwrap().command_template().to_vec();
        let words = ["9", "{", "{brace}", "}"];
        let templates: BTreeSet<_> = words.into_iter().map(template).collect();
        assert_eq!(templates.len(), words.len());
    }

    #[test]
    fn any_file_has_a_name() {
        let long = "x".repeat(99);
        for (program, expected) in [
            ("./My_Solver.x", "my-solver-x"),
            ("7zip", "zip"),
            ("/opt/\u{e9}", "program"),
            (long.as_str(), &long[..NAME_LENGTH_MAX]),
        ] {
            assert_eq!(name_of(program).unwrap().as_str(), expected);
        }
    }

    // Goal: who states several numbers of nodes gets the fewest that will do: nothing tells what more would bring.
    #[test]
    fn of_several_numbers_of_nodes_it_is_the_fewest_that_the_pattern_has() {
        let nodes = |counts: &str, pattern: &str| {
            let words = ["--by", "+1h", "--takes", "1s", "-n", counts, "--pattern", pattern];
            let made = application(&parsed(&[&words[..], &["--", "./solver"]].concat()));
            made.map(|made| made.nodes().iter().copied().collect::<Vec<_>>())
        };
        assert_eq!(nodes("3..8", "all-to-all").unwrap(), [3]);
        assert_eq!(nodes("3..8", "hypercube").unwrap(), [4]);
        for counts in ["5..7", "3"] {
            let error = nodes(counts, "hypercube").unwrap_err().to_string();
            assert!(error.contains("nodes") && error.contains("hypercube"), "{error}");
        }
    }

    // Goal: a run at a tenth of full speed has ten times the time, and no limit is beyond the longest that there is.
    #[test]
    fn a_slower_run_has_as_much_more_time() {
        let of = |timeout| {
            let file = ApplicationFile::from(made(&["./solver"]).unwrap());
            Application::try_from(ApplicationFile { timeout, ..file }).unwrap()
        };
        let limit = |timeout, ppm: u32| {
            let rate = Share::try_from(ppm).unwrap();
            slowed(of(timeout), rate).unwrap().timeout()
        };
        let minute = Nanos::from_secs(60);
        assert_eq!(limit(minute, 1_000_000), minute);
        assert_eq!(limit(minute, 100_000), Nanos::from_secs(600));
        assert_eq!(limit(minute, 300_000), Nanos::from_secs(200));
        let most = Nanos::new(u64::MAX);
        assert_eq!(limit(most, 500_000), most);
        assert_eq!(limit(minute, 0), Nanos::from_secs(60_000_000), "it is refused elsewhere");
    }

    // Goal: who has typed no share of the CPU learns that it is all of one, and what to type where nodes have less. Method:
    // what a broker refuses so, with and without a share, of a file, and for another reason.
    #[test]
    fn less_cpu_is_offered_where_nodes_have_less() {
        let never = |share| {
            let (asked, most) = ("100 %".to_owned(), Some("30 %".to_owned()));
            Reason::Never(Beyond { share, asked, most, needs: 2, nodes: Vec::new() }).into()
        };
        let told = |words: &[&str], refusal: &Refusal| {
            less_cpu(
                &parsed(&[&["--rate", "30 %", "-n", "2"][..], words].concat()).program,
                refusal,
            )
        };
        let cpu: Refusal = never(NodeShare::Cpu);
        let expected = "--cpu was not given, which is 100 % then; at the most: --cpu \"30 %\"";
        assert_eq!(told(&["--", "./solver"], &cpu).as_deref(), Some(expected));
        let expected = "asked for by --cpu \"40 %\"; at the most: --cpu \"30 %\"";
        assert_eq!(told(&["--cpu", "40%", "--", "./solver"], &cpu).as_deref(), Some(expected));
        assert_eq!(told(&["solver"], &cpu), None, "its file says how much");
        assert_eq!(told(&["--", "./solver"], &never(NodeShare::Read)), None);
    }
}
