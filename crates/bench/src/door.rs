//! What the door over TCP costs: a client's first request, for which it connects, and the next one on the
//! same connection, by certificate and by token, against the same over the Unix socket; and looking a
//! token up in a file that is full.

use crate::figures::{Figures, quantile};
use crate::quick;
use crate::scratch::{Scratch, timed};
use anyhow::{Context, Result, anyhow, ensure};
use keeptime::certificates::{Site, authority_files, broker_files};
use keeptime::machine::Machine;
use keeptime_broker::client::Client;
use keeptime_broker::config::Config;
use keeptime_broker::remote::{ClientFiles, Remote};
use keeptime_broker::server;
use keeptime_broker::tcp::config::{Listen, Tcp};
use keeptime_credentials::dates;
use keeptime_credentials::files::{self, Secrecy};
use keeptime_credentials::identity::Identity;
use keeptime_credentials::token_file;
use keeptime_credentials::tokens::{RANDOM_BYTES, Secret, TOKENS_MAX, Tokens};
use keeptime_model::units::Nanos;
use serde::Serialize;
use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const HOST: &str = "127.0.0.1";
const DAY: Nanos = Nanos::from_secs(24 * 3_600);
const TOPOLOGY: &str = "name = \"pair\"\nlinks = [{ between = [\"n1\", \"n2\"], rate = \"1 Gbit/s\" }]\n\
    [[nodes]]\nname = \"n1\"\ncpu = \"100 %\"\naddress = \"10.0.0.1\"\n\
    [[nodes]]\nname = \"n2\"\ncpu = \"100 %\"\naddress = \"10.0.0.2\"\n";

/// Everything that was measured.
#[derive(Debug, Serialize)]
struct Raw {
    machine: Machine,
    ways: Vec<Way>,
    /// Microseconds, with a file that is full.
    lookups: Vec<f64>,
    /// Milliseconds, of a file that is full.
    readings: Vec<f64>,
}

/// One way in: milliseconds from a call to its answer.
#[derive(Debug, Serialize)]
struct Way {
    name: &'static str,
    /// Of a client that connects for it.
    first: Vec<f64>,
    /// Of the same client, afterwards.
    next: Vec<f64>,
}

/// Measures and writes the figures.
pub fn run(out: &Path) -> Result<()> {
    let (requests, repeats) = if quick() { (20, 2) } else { (2_000, 20) };
    let scratch = Scratch::new(out, "door")?;
    let ways = measure_ways(scratch.directory(), requests)?;
    let (lookups, readings) = measure_tokens(scratch.directory(), repeats)?;
    let raw = Raw { machine: Machine::here(), ways, lookups, readings };
    figures(&raw).finish(out, &raw)
}

fn figures(raw: &Raw) -> Figures {
    let mut figures = Figures::new("door");
    type Waits = fn(&Way) -> &[f64];
    let first: (_, Waits) = ("a connection and a request", |way| &way.first);
    let next: (_, Waits) = ("a request more", |way| &way.next);
    for (call, waits_of) in [first, next] {
        let near = raw.ways.first().map(waits_of).unwrap_or_default();
        for (at, way) in raw.ways.iter().enumerate() {
            let waits = waits_of(way);
            for (name, q) in [("median", 0.5), ("99th percentile", 0.99)] {
                let name = format!("{call}, {}: {name}", way.name);
                let baseline = (at > 0).then(|| quantile(near, q));
                let figure = figures.value(name, "ms", quantile(waits, q), waits, baseline, None);
                if at > 0 {
                    figure.against(raw.ways[0].name);
                }
            }
        }
    }
    let name = format!("looking up one token of {TOKENS_MAX}");
    figures.median(name, "us", &raw.lookups, None, None);
    let name = format!("reading a file of {TOKENS_MAX} tokens");
    figures.median(name, "ms", &raw.readings, None, None);
    figures
}

/// Makes a client.
type NewClient<'a> = &'a dyn Fn() -> Result<Client>;

/// The ways in turn, so that all meet the same machine.
fn measure_ways(scratch: &Path, requests: usize) -> Result<Vec<Way>> {
    let (config, certified, token) = prepare(scratch)?;
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let broker = scope.spawn(|| server::run(&config, &|| stop.load(Ordering::SeqCst)));
        let measured = (|| {
            let endpoint = || {
                format!("{HOST}:{}", address(&config)?.port()).parse().map_err(anyhow::Error::from)
            };
            let near = || Ok(Client::new(&config.socket)?);
            let far = |files| Ok(Client::remote(Remote::new(endpoint()?, files)?)?);
            let (by_certificate, by_token) = (|| far(&certified), || far(&token));
            let new: [(&str, NewClient); 3] = [
                ("Unix socket", &near),
                ("TLS and certificate", &by_certificate),
                ("TLS and token", &by_token),
            ];
            for (_, client) in new {
                while client()?.nodes(None).is_err() {
                    ensure!(!broker.is_finished(), "the broker has ended");
                    thread::sleep(Duration::from_millis(5));
                }
            }
            let mut ways = new.map(|(name, _)| Way { name, first: Vec::new(), next: Vec::new() });
            for _ in 0..requests {
                for ((_, client), Way { first, next, .. }) in new.iter().zip(&mut ways) {
                    let client = client()?;
                    first.push(timed(|| Ok(client.nodes(None)?))?.0);
                    next.push(timed(|| Ok(client.nodes(None)?))?.0);
                }
            }
            Ok(Vec::from(ways))
        })();
        stop.store(true, Ordering::SeqCst);
        broker.join().map_err(|_| anyhow!("the broker panicked"))??;
        measured
    })
}

/// A broker's configuration, and the files of two users.
fn prepare(scratch: &Path) -> Result<(Config, ClientFiles, ClientFiles)> {
    let at = |name: &str| scratch.join(name);
    let pki = at("pki");
    let site = Site::open(&pki)?;
    let own = site.issue_to_broker(&[HOST.to_owned()], DAY)?;
    let ada = site.issue_to(&Identity::User("ada".parse()?), DAY)?;
    let secret = token_file::change(&at("tokens.toml"), |all| {
        all.add("eve".parse()?, None, &[7; RANDOM_BYTES])
    })?;
    files::replace(&at("eve.token"), secret.expose(), Secrecy::Secret)?;
    fs::write(at("topology.toml"), TOPOLOGY)?;
    let ca = authority_files(&pki).certificate;
    // Nobody else listens there, most likely.
    let address = TcpListener::bind((HOST, 0))?.local_addr()?;
    let tcp = Tcp {
        address: Listen(address),
        agents: None,
        certificate: own.certificate,
        key: broker_files(&pki).key,
        client_ca: Some(ca.clone()),
        revoked: None,
        tokens: Some(at("tokens.toml")),
    };
    let config =
        Config { requests_per_second: 1_000_000, tcp: Some(tcp), ..Config::in_directory(scratch) };
    let trusting = ClientFiles { ca: Some(ca), ..ClientFiles::default() };
    let (certificate, key) = (Some(ada.certificate), Some(ada.key));
    let certified = ClientFiles { certificate, key, ..trusting.clone() };
    let token: Option<PathBuf> = Some(at("eve.token"));
    Ok((config, certified, ClientFiles { token, ..trusting }))
}

fn address(config: &Config) -> Result<SocketAddr> {
    config.tcp.as_ref().map(|tcp| tcp.address.0).context("no door")
}

fn measure_tokens(scratch: &Path, repeats: usize) -> Result<(Vec<f64>, Vec<f64>)> {
    const LOOKUPS: u32 = 1_000;
    let mut tokens = Tokens::default();
    let mut secrets: Vec<Secret> = Vec::new();
    for number in 0..TOKENS_MAX as u32 {
        let mut random = [0; RANDOM_BYTES];
        random[..4].copy_from_slice(&number.to_be_bytes());
        secrets.push(tokens.add("ada".parse()?, None, &random)?);
    }
    let path = scratch.join("full.toml");
    files::replace(&path, &tokens.to_toml(), Secrecy::Secret)?;
    let (mut lookups, mut readings) = (Vec::new(), Vec::new());
    let now = dates::now();
    for repeat in 0..repeats {
        let start = Instant::now();
        ensure!(token_file::load(&path)?.all().len() == TOKENS_MAX, "not all were read");
        readings.push(start.elapsed().as_secs_f64() * 1e3);
        let start = Instant::now();
        let found = secrets.iter().cycle().skip(repeat * 37).take(LOOKUPS as usize);
        ensure!(
            found.filter(|s| tokens.check(s.expose(), now).is_ok()).count() > 0,
            "none is good"
        );
        lookups.push(start.elapsed().as_secs_f64() * 1e6 / f64::from(LOOKUPS));
    }
    Ok((lookups, readings))
}
