//! Asks a resource that another process registers, and tells how long the answer takes.
//!
//! ```text
//! keeptime-fabricd --node here &
//! cargo run --release --example ping -- answer &
//! cargo run --release --example ping
//! ```

use keeptime_fabric::{Config, Context, Match, RecvError, Tag, attrs};
use std::error::Error;
use std::process::ExitCode;
use std::time::{Duration, Instant};

const ASK: Tag = Tag(1);
const ANSWER: u64 = 2;

fn main() -> ExitCode {
    let Err(error) = run() else { return ExitCode::SUCCESS };
    eprintln!("ping: {error}");
    ExitCode::FAILURE
}

fn run() -> Result<(), Box<dyn Error>> {
    let context = Context::open(Config::from_environment()?)?;
    if std::env::args().nth(1).as_deref() == Some("answer") {
        let resource = context.register(attrs! { "example" => "ping", "role" => "answers" })?;
        loop {
            match resource.recv(Match::tag(ASK.0)) {
                // Whoever does not take an answer at once is not waited for.
                Ok(question) => drop(resource.try_send(question.from, Tag(ANSWER), question.data)),
                // An answer that did not arrive: whoever asked has gone meanwhile.
                Err(RecvError::Undelivered(_)) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    let own = context.register(attrs! { "example" => "ping", "role" => "asks" })?;
    let wanted = attrs! { "example" => "ping", "role" => "answers" };
    let peer = context.find(wanted).one_of_any_within(Duration::from_secs(10))?;
    for round in 0..10_u64 {
        let start = Instant::now();
        own.send(peer, ASK, &round.to_le_bytes())?;
        own.recv(Match::tag(ANSWER).from(peer))?;
        println!("{peer}: {:?}", start.elapsed());
    }
    Ok(())
}
