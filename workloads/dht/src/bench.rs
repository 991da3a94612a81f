//! How many queries a second many clients have answered.

use anyhow::{Context as _, Result, bail};
use keeptime_dht::client::{Client, Found};
use keeptime_dht::message::VALUE_MOST;
use serde::Serialize;
use std::io::BufRead;
use std::thread;
use std::time::{Duration, Instant};

/// What is stored and asked.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Store the values, and query nothing
    #[arg(long, conflicts_with_all = ["clients", "seconds", "wait"])]
    fill: bool,
    /// Clients that ask at the same time, each its own context
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    clients: u16,
    /// For how long
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Different keys
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..))]
    keys: u32,
    /// Bytes of each value
    #[arg(long, default_value_t = 8192, value_parser = clap::value_parser!(u32).range(..=VALUE_MOST as i64))]
    value_bytes: u32,
    /// Print `ready` when all clients are, and begin at the next line of standard input
    #[arg(long)]
    wait: bool,
}

/// What came of it.
#[derive(Debug, Serialize)]
struct Report {
    queries: u64,
    seconds: f64,
    /// Partitions that a query passed, on average.
    hops: f64,
}

/// Runs it. `open` makes a client.
///
/// # Errors
/// If a client has no answer, or another one than what was stored.
pub fn run(arguments: &Arguments, open: &(dyn Fn() -> Result<Client> + Sync)) -> Result<()> {
    if arguments.fill {
        let mut client = open()?;
        return (0..arguments.keys).try_for_each(|number| {
            Ok(client.store(&key(number), &value(number, arguments.value_bytes))?)
        });
    }
    let mut clients = (0..arguments.clients).map(|_| open()).collect::<Result<Vec<_>>>()?;
    if arguments.wait {
        println!("ready");
        std::io::stdin().lock().read_line(&mut String::new()).context("standard input")?;
    }
    let time = Duration::try_from_secs_f64(arguments.seconds).context("--seconds")?;
    let start = Instant::now();
    let end = start.checked_add(time).context("--seconds: no clock goes on for so long")?;
    let counts = thread::scope(|scope| {
        let ask = |client| scope.spawn(move || ask(client, arguments, end));
        let threads: Vec<_> = clients.iter_mut().map(ask).collect();
        let joined = threads.into_iter().map(|thread| match thread.join() {
            Ok(count) => count,
            Err(_) => bail!("a client's thread has panicked"),
        });
        joined.collect::<Result<Vec<_>>>()
    })?;
    let queries: u64 = counts.iter().sum();
    let hops = clients.iter().map(Client::hops).sum::<u64>() as f64 / queries.max(1) as f64;
    let report = Report { queries, seconds: start.elapsed().as_secs_f64(), hops };
    println!("{}", serde_json::to_string(&report)?);
    Ok(())
}

fn ask(client: &mut Client, arguments: &Arguments, end: Instant) -> Result<u64> {
    let mut count = 0;
    while Instant::now() < end {
        let number = fastrand::u32(..arguments.keys);
        match client.query(&key(number))? {
            Found::Value(found) if found == value(number, arguments.value_bytes) => count += 1,
            Found::Value(_) => bail!("key {number} has another value"),
            other => bail!("key {number}: {other:?}; --fill stores the values"),
        }
    }
    Ok(count)
}

fn key(number: u32) -> [u8; 4] {
    number.to_le_bytes()
}

fn value(number: u32, bytes: u32) -> Vec<u8> {
    vec![number as u8; bytes as usize]
}
