//! `keeptime`: parses, sets up logging and interrupts, runs one command, maps its end to a code.

use clap::Parser;
use keeptime::arguments::{AgentCommand, Arguments, Command};
use keeptime::commands::{self, Ending};
use keeptime::{demo, interrupt, report};
use keeptime_lab::LabError;
use keeptime_model::Invalid;
use std::ops::ControlFlow;
use std::process::ExitCode;

const REFUSED: u8 = 1;
const ERROR: u8 = 2;
const USAGE: u8 = 64;

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { USAGE } else { 0 });
        }
    };
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_env("KEEPTIME_LOG")
                .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info")),
        )
        .init();
    match run(arguments.command) {
        Ok(Ending::Done) => ExitCode::SUCCESS,
        Ok(Ending::Refused) => ExitCode::from(REFUSED),
        Ok(Ending::Exit(code)) => ExitCode::from(code),
        Err(error) => {
            eprintln!("keeptime: {error:#}");
            let usage = error.chain().any(is_bad_input);
            ExitCode::from(if usage { USAGE } else { ERROR })
        }
    }
}

/// A lab's error shows bad input as its own: the chain goes on behind it.
fn is_bad_input(cause: &(dyn std::error::Error + 'static)) -> bool {
    let in_lab = matches!(cause.downcast_ref(), Some(LabError::Invalid(_)));
    in_lab || cause.is::<Invalid>()
}

fn run(command: Command) -> anyhow::Result<Ending> {
    let command = match commands::ask_broker(command) {
        ControlFlow::Break(ended) => return ended,
        ControlFlow::Continue(other) => other,
    };
    // Single-threaded until it knows which namespaces it enters; so is the process that holds a lab.
    match command {
        // It holds nothing, so that it may end at any moment.
        Command::Sim(command) => return commands::sim::run(&command),
        Command::Lab(command) => return commands::lab::run(command),
        // What they start is not to have signals blocked.
        Command::Launch(command) => return commands::launch::run(command),
        Command::Agent(AgentCommand::Exec(arguments)) => return commands::agent::exec(&arguments),
        Command::LabHolder { words } => {
            let code = keeptime_lab::holder_main(&words);
            return Ok(Ending::Exit(u8::try_from(code).unwrap_or(u8::MAX)));
        }
        _ => interrupt::listen()?,
    }
    match command {
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
        Command::Traffic(command) => commands::traffic::run(command),
        // Carried out above.
        _ => Ok(Ending::Done),
    }
}
