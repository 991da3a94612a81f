//! One that asks or one that answers over zenoh, as `peer.c` does over other libraries.

use std::io::{self, Read, Write};
use std::time::{Duration, Instant};
use std::{env, error, process, thread};
use zenoh::handlers::FifoChannelHandler;
use zenoh::pubsub::{Publisher, Subscriber};
use zenoh::qos::CongestionControl;
use zenoh::sample::Sample;
use zenoh::{Config, Session, Wait};

type Result<T> = std::result::Result<T, Box<dyn error::Error + Send + Sync>>;

/// The first byte of a message: what becomes of it.
const HELLO: u8 = 0;
const QUESTION: u8 = 1;
const STREAM: u8 = 2;
const FINISH: u8 = 3;
const WARM_UP: usize = 50;

fn main() -> Result<()> {
    let words: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["answer", place] => answer("peer", "listen/endpoints", place),
        ["answer-behind", router] => answer("client", "connect/endpoints", router),
        ["route", place] => route(place),
        ["ask", place, what, bytes, count] => {
            let in_a_stream = what == "stream";
            println!("{:.4}", ask(place, in_a_stream, bytes.parse()?, count.parse()?)?);
            Ok(())
        }
        _ => Err("answer WHERE, answer-behind WHERE, route WHERE, or ask WHERE round-trip|stream BYTES COUNT".into()),
    }
}

/// Both directions.
struct Peer {
    publisher: Publisher<'static>,
    subscriber: Subscriber<FifoChannelHandler<Sample>>,
    _session: Session,
}

impl Peer {
    /// `at_once`: what is sent does not wait for more.
    fn open(
        mode: &str,
        key: &str,
        place: &str,
        from: &'static str,
        to: &'static str,
        at_once: bool,
    ) -> Result<Self> {
        let session = session(mode, key, place)?;
        let publisher = session.declare_publisher(to);
        let publisher =
            publisher.congestion_control(CongestionControl::Block).express(at_once).wait()?;
        let subscriber = session.declare_subscriber(from).wait()?;
        Ok(Self { publisher, subscriber, _session: session })
    }

    fn send(&self, data: &[u8]) -> Result<()> {
        self.publisher.put(data).wait()
    }

    fn receive(&self) -> Result<Vec<u8>> {
        loop {
            let data = self.subscriber.recv()?.payload().to_bytes().into_owned();
            // More than one, where the first had not been listened for.
            if data[0] != HELLO {
                return Ok(data);
            }
        }
    }
}

/// `mode`: what it is among others. `key`: whether it listens or connects at `place`.
fn session(mode: &str, key: &str, place: &str) -> Result<Session> {
    let mut config = Config::default();
    config.insert_json5("mode", &format!("\"{mode}\""))?;
    config.insert_json5("scouting/multicast/enabled", "false")?;
    config.insert_json5("listen/endpoints", "[]")?;
    config.insert_json5(key, &format!("[\"{place}\"]"))?;
    zenoh::open(config).wait()
}

fn say_ready() -> Result<()> {
    println!("ready");
    Ok(io::stdout().flush()?)
}

/// Passes on what others send each other, until standard input ends.
fn route(place: &str) -> Result<()> {
    let _session = session("router", "listen/endpoints", place)?;
    say_ready()?;
    io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// Behind a router they are clients: peers would look for each other as well, where there is no way.
fn answer(mode: &str, key: &str, place: &str) -> Result<()> {
    thread::spawn(|| {
        let _ = io::stdin().read_to_end(&mut Vec::new());
        process::exit(0)
    });
    let peer = Peer::open(mode, key, place, "questions", "answers", true)?;
    say_ready()?;
    loop {
        let sample = peer.subscriber.recv()?;
        let data = sample.payload().to_bytes();
        match data[0] {
            HELLO | QUESTION => peer.send(&data)?,
            FINISH => peer.send(&data[..1])?,
            _ => {}
        }
    }
}

/// Returns the microseconds of a message.
fn ask(place: &str, in_a_stream: bool, bytes: usize, count: usize) -> Result<f64> {
    let peer =
        Peer::open("client", "connect/endpoints", place, "answers", "questions", !in_a_stream)?;
    // Until both know who listens to what.
    loop {
        peer.send(&[HELLO])?;
        if peer.subscriber.recv_timeout(Duration::from_millis(20))?.is_some() {
            break;
        }
    }
    round_trips(&peer, 64, WARM_UP)?;
    let start = Instant::now();
    if in_a_stream {
        let mut data = vec![0; bytes];
        data[0] = STREAM;
        for _ in 0..count {
            peer.send(&data)?;
        }
        peer.send(&[FINISH])?;
        peer.receive()?;
    } else {
        round_trips(&peer, bytes, count)?;
    }
    Ok(start.elapsed().as_secs_f64() * 1e6 / count as f64)
}

fn round_trips(peer: &Peer, bytes: usize, count: usize) -> Result<()> {
    let mut data = vec![0; bytes];
    data[0] = QUESTION;
    for _ in 0..count {
        peer.send(&data)?;
        if peer.receive()?.len() != bytes {
            return Err("another answer".into());
        }
    }
    Ok(())
}
