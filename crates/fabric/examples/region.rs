//! Publishes how far a computation is, which another process reads without asking it.
//!
//! ```text
//! keeptime-fabricd --node here &
//! cargo run --release --example region -- publish &
//! cargo run --release --example region
//! ```

use keeptime_fabric::region::{CELL, Layout};
use keeptime_fabric::{Config, Context, attrs};
use std::error::Error;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

fn main() -> ExitCode {
    let Err(error) = run() else { return ExitCode::SUCCESS };
    eprintln!("region: {error}");
    ExitCode::FAILURE
}

fn run() -> Result<(), Box<dyn Error>> {
    let context = Context::open(Config::from_environment()?)?;
    let what = attrs! { "example" => "region" };
    if std::env::args().nth(1).as_deref() == Some("publish") {
        let region = context.publish(what, Layout::cells(1)?.with_adds())?;
        // Until the reader has added to the counter.
        for step in 1_u64.. {
            let mut cell = [0; CELL];
            cell[..8].copy_from_slice(&step.to_le_bytes());
            region.write(0, &cell)?;
            if region.counter(0)? > 0 {
                break;
            }
            // It computes.
            thread::sleep(Duration::from_millis(10));
        }
        return Ok(());
    }
    context.find(what.clone()).one_of_any_within(Duration::from_secs(10))?;
    let found = context.find(what).all()?;
    let reader = context.open_region(found.first().ok_or("it has gone again")?)?;
    for _ in 0..5 {
        let mut cell = [0; CELL];
        let reading = reader.read(0, &mut cell)?;
        let step = u64::from_le_bytes(cell[..8].try_into()?);
        println!("step {step}, read by {:?}", reading.by);
        thread::sleep(Duration::from_millis(20));
    }
    let (before, _) = reader.fetch_add(0, 1)?;
    println!("{before} have read it before");
    Ok(())
}
