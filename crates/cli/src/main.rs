//! `keeptime`: parses, sets up logging and interrupts, runs one command, maps its end to a code.

use keeptime::arguments::{Arguments, BrokerCommand, Command};
use keeptime::commands::{self, Ending};
use keeptime::{brokers, demo, detach, interrupt, report, terminal};
use keeptime_lab::LabError;
use keeptime_model::Invalid;
use std::any::Any;
use std::io::Write;
use std::ops::ControlFlow;
use std::panic::{self, AssertUnwindSafe};
use std::process::ExitCode;

const REFUSED: u8 = 1;
const ERROR: u8 = 2;
const USAGE: u8 = 64;
/// What a shell tells of a program that SIGPIPE has ended.
const UNREAD: u8 = 141;
/// What a program ends with that panics.
const PANICKED: u8 = 101;

fn main() -> ExitCode {
    let arguments = match Arguments::of_words(std::env::args_os().collect()) {
        Ok(arguments) => arguments,
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { USAGE } else { 0 });
        }
    };
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        // Where that cannot be written to, nor can this.
        .log_internal_errors(false)
        .with_ansi(!is_detached(&arguments.command) && terminal::has_colours(&std::io::stderr()))
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_env("KEEPTIME_LOG")
                .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info")),
        )
        .init();
    tell_no_panic_of_printing();
    // Unwinding, it gives back what it holds.
    let code = match panic::catch_unwind(AssertUnwindSafe(|| run(arguments.command))) {
        Ok(ended) => exit_code(ended),
        Err(panicked) => match unprinted(&*panicked) {
            Some((to, why)) => unread(to, why),
            None => {
                detach::tell_end(PANICKED);
                panic::resume_unwind(panicked)
            }
        },
    };
    detach::tell_end(code);
    ExitCode::from(code)
}

/// Whether its output is in a file sooner or later, where colours are bytes that nobody can read.
fn is_detached(command: &Command) -> bool {
    matches!(command, Command::Run(arguments) if arguments.detached)
}

fn exit_code(ended: anyhow::Result<Ending>) -> u8 {
    match ended {
        Ok(Ending::Done) => 0,
        Ok(Ending::Refused) => REFUSED,
        Ok(Ending::Exit(code)) => code,
        Err(error) => {
            complain(&format!("{error:#}"));
            brokers::advice(&error).iter().for_each(|advice| complain(advice));
            let usage = error.chain().any(is_bad_input);
            if usage { USAGE } else { ERROR }
        }
    }
}

/// A lab's error shows bad input as its own: the chain goes on behind it.
fn is_bad_input(cause: &(dyn std::error::Error + 'static)) -> bool {
    let in_lab = cause.downcast_ref().is_some_and(LabError::is_bad_input);
    in_lab || cause.is::<Invalid>()
}

/// What cannot be printed ends the command, and is no fault of it: it is told otherwise, if at all.
fn tell_no_panic_of_printing() {
    let tell = panic::take_hook();
    panic::set_hook(Box::new(move |panicked| {
        if unprinted(panicked.payload()).is_none() {
            tell(panicked);
        }
    }));
}

/// To what, and why not, `println!` or `eprintln!` could not print, if that is what a panic is about; it says so in words
/// alone.
fn unprinted(panicked: &(dyn Any + Send)) -> Option<(&'static str, &str)> {
    let (to, why) = panicked.downcast_ref::<String>()?.split_once(": ")?;
    match to {
        "failed printing to stdout" => Some(("standard output", why)),
        "failed printing to stderr" => Some(("standard error", why)),
        _ => None,
    }
}

/// Whoever reads what is printed may have seen enough, as `head` has. Anything else, as a full disk, is told.
fn unread(to: &str, why: &str) -> u8 {
    if why.ends_with(&format!("(os error {})", nix::errno::Errno::EPIPE as i32)) {
        return UNREAD;
    }
    complain(&format!("cannot write to {to}: {why}"));
    ERROR
}

/// Where nobody can read that either, the exit code has to do.
fn complain(what: &str) {
    let _ = writeln!(std::io::stderr(), "keeptime: {what}");
}

fn run(command: Command) -> anyhow::Result<Ending> {
    let command = match commands::ask_broker(command) {
        ControlFlow::Break(ended) => return ended,
        ControlFlow::Continue(other) => other,
    };
    match &command {
        // SIGHUP has another meaning for it.
        Command::Broker(BrokerCommand::Run { .. }) => interrupt::listen()?,
        Command::Run(_) | Command::Demo(_) | Command::Profile(_) => {
            interrupt::listen_for_a_program()?;
        }
        // It has something to tell then.
        Command::Load(_) => interrupt::listen_at_terminal()?,
        // All others end at once, and what they start has no signals blocked.
        _ => {}
    }
    match command {
        Command::Sim(command) => commands::sim::run(&command),
        // Single-threaded until it knows which namespaces it enters; so is the process that holds a lab.
        Command::Lab(command) => commands::lab::run(command),
        Command::LabHolder { words } => {
            let code = keeptime_lab::holder_main(&words);
            Ok(Ending::Exit(u8::try_from(code).unwrap_or(u8::MAX)))
        }
        Command::Launch(command) => commands::launch::run(command),
        Command::Agent(command) => commands::agent::run(command),
        Command::Bind(arguments) => commands::bind::run(arguments),
        Command::Broker(command) => commands::broker::run(command),
        Command::Profile(arguments) => commands::profile::run(&arguments),
        Command::Plan(arguments) => commands::plan::run(&arguments),
        Command::Run(arguments) => commands::run::run(&arguments),
        Command::Load(arguments) => commands::load::run(&arguments),
        Command::Report(arguments) => {
            println!("written: {}", report::write(&arguments.directory)?.display());
            Ok(Ending::Done)
        }
        Command::Demo(arguments) => demo::run(&arguments),
        Command::Completions { shell } => commands::manual::completions(shell),
        Command::Manual { out } => commands::manual::write(&out),
        Command::Traffic(command) => commands::traffic::run(command),
        // Carried out above.
        _ => Ok(Ending::Done),
    }
}
