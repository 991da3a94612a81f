//! Tells which resources come and go. It registers one itself, and ends when that has gone, so that there is something to see.
//!
//! ```text
//! keeptime-fabricd --node here &
//! cargo run --release --example watch
//! ```

use keeptime_fabric::{Config, Context, Event, attrs};
use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

fn main() -> ExitCode {
    let Err(error) = run() else { return ExitCode::SUCCESS };
    eprintln!("watch: {error}");
    ExitCode::FAILURE
}

fn run() -> Result<(), Box<dyn Error>> {
    let context = Context::open(Config::from_environment()?)?;
    let query = attrs! { "example" => "watch" };
    let (there, watcher) = context.find(query.clone()).watch()?;
    println!("{} are there", there.len());
    let own = context.register(query.clone())?;
    let id = own.id();
    let mut own = Some(own);
    loop {
        match watcher.next_within(Duration::from_secs(10)).ok_or("nothing happens")? {
            Event::Appeared(record) => {
                println!("{} has appeared on {}", record.id, record.home.node);
                if record.id == id {
                    own.take();
                }
            }
            Event::Disappeared(gone) => {
                println!("{gone} has disappeared");
                if gone == id {
                    return Ok(());
                }
            }
            // More happened than is kept for who does not look: what is there is found anew.
            Event::Missed => println!("{} are there", context.find(query.clone()).all()?.len()),
            _ => {}
        }
    }
}
