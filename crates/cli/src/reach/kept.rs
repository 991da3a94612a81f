//! The agents of a job, asked now and then: connections are kept, and all agents are asked at once, so that none waits for
//! another, and nobody for one that hangs.

use super::AgentPlace;
use keeptime_agent::client::{Client, ClientError};
use keeptime_linux::descriptors;
use keeptime_locks::lock;
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// Agents that are asked together.
#[derive(Debug)]
pub struct KeptAgents {
    /// What each is called, in their order.
    places: Vec<String>,
    /// The agents, in their order; nothing while one is asked.
    idle: Vec<Option<KeptAgent>>,
    /// Where they come back from who has asked them, with their number.
    back: Receiver<(usize, KeptAgent)>,
    way_back: Sender<(usize, KeptAgent)>,
}

/// One of them: the connection is kept, and made anew when it broke.
#[derive(Debug)]
struct KeptAgent {
    place: AgentPlace,
    client: Option<Client>,
}

impl KeptAgents {
    /// The agents there; connects when they are asked first. Each takes a descriptor then, and a process where it is
    /// reached by a relay: this process may have as many descriptors from now on.
    pub fn new(places: impl IntoIterator<Item = AgentPlace>) -> Self {
        let places: Vec<_> = places.into_iter().collect();
        make_room(places.len());
        let (way_back, back) = channel();
        Self {
            idle: places.iter().cloned().map(|place| Some(KeptAgent::new(place))).collect(),
            places: places.iter().map(AgentPlace::called).collect(),
            back,
            way_back,
        }
    }

    /// How many.
    pub fn count(&self) -> usize {
        self.places.len()
    }

    /// Asks all of them at once, each once more on a new connection if the former one broke. What each says, in their order.
    /// `within` is how long is waited for all together; nothing = as long as each may take. One that owes an answer to an
    /// earlier question is not asked, nor waited for.
    pub fn ask<T: Send + 'static>(
        &mut self,
        within: Option<Duration>,
        question: impl Fn(&mut Client) -> Result<T, ClientError> + Send + Sync + 'static,
    ) -> Vec<Result<T, ClientError>> {
        let deadline = within.map(|within| Instant::now() + within);
        self.take_back();
        let idle = self.idle.iter_mut().enumerate();
        let idle: Vec<_> = idle.filter_map(|(at, agent)| Some((at, agent.take()?))).collect();
        let (way_back, (answer, answers)) = (self.way_back.clone(), channel());
        start_each(idle, move |(at, mut agent)| {
            let said = agent.ask(&question);
            // It is back before anybody can ask again. Who does not wait any more hears neither.
            let _ = way_back.send((at, agent));
            let _ = answer.send((at, said));
        });
        let mut heard: Vec<_> = self.places.iter().map(|place| Err(late(place))).collect();
        while let Some((at, said)) = next(&answers, deadline) {
            heard[at] = said;
        }
        heard
    }

    /// Those that have answered meanwhile.
    fn take_back(&mut self) {
        for (at, agent) in self.back.try_iter() {
            self.idle[at] = Some(agent);
        }
    }
}

impl Drop for KeptAgents {
    /// Each relay takes a moment to end. One that owes an answer is left to who waits for that.
    fn drop(&mut self) {
        self.take_back();
        let (ended, all_ended) = channel();
        start_each(self.idle.drain(..).flatten().collect(), move |agent| {
            drop(agent);
            let _ = ended.send(());
        });
        all_ended.iter().for_each(drop);
    }
}

impl KeptAgent {
    fn new(place: AgentPlace) -> Self {
        Self { place, client: None }
    }

    fn ask<T>(
        &mut self,
        ask: impl Fn(&mut Client) -> Result<T, ClientError>,
    ) -> Result<T, ClientError> {
        if let Some(client) = &mut self.client {
            match ask(client) {
                Err(error) if error.is_retryable() => self.client = None,
                answer => return answer,
            }
        }
        let mut client = self.place.connect()?;
        let answer = ask(&mut client);
        if !answer.as_ref().is_err_and(ClientError::is_retryable) {
            self.client = Some(client);
        }
        answer
    }
}

/// Has `work` done with each of `items`, by [`THREADS_MAX`] threads at the most, which this does not wait for.
fn start_each<I: Send + 'static>(items: Vec<I>, work: impl Fn(I) + Send + Sync + 'static) {
    let threads = items.len().min(THREADS_MAX);
    let items = Mutex::new(items.into_iter());
    let next = move || lock(&items).next();
    let go = Arc::new(move || {
        while let Some(item) = next() {
            work(item);
        }
    });
    let start = |_| {
        let go = Arc::clone(&go);
        thread::Builder::new().spawn(move || go())
    };
    // What there can be no thread for is done by those that there are.
    if (0..threads).map(start).take_while(Result::is_ok).count() == 0 {
        go();
    }
}

/// Nothing once there will be no more, or it is too late.
fn next<T>(heard: &Receiver<T>, deadline: Option<Instant>) -> Option<T> {
    match deadline {
        None => heard.recv().ok(),
        Some(deadline) => heard.recv_timeout(deadline.duration_since(Instant::now())).ok(),
    }
}

fn late(place: &str) -> ClientError {
    let source = io::Error::new(io::ErrorKind::TimedOut, "it has not answered in time");
    ClientError::Unreachable { place: place.into(), source }
}

/// Sees to it that so many agents can be asked, twice at once: before a run and while it begins.
fn make_room(agents: usize) {
    let wanted = 2 * agents + CONNECTING * agents.min(THREADS_MAX) + OTHERS;
    match descriptors::raise(wanted as u64) {
        Ok(most) if most < wanted as u64 => tracing::warn!(
            "{agents} agents are to be asked, which takes {wanted} descriptors, and there are {most}: some may seem to be \
             silent (`ulimit -Hn` is the most that there can be)"
        ),
        Ok(_) => {}
        Err(error) => tracing::warn!(%error, "no more descriptors than it was started with"),
    }
}

/// So many threads ask at once, so that a thousand agents take no more than sixteen times as long as one; and no more, as each
/// may start a relay, which computes for a while before it is connected.
const THREADS_MAX: usize = 64;
/// The descriptors that a connection takes while it is made, beside its own.
const CONNECTING: usize = 5;
/// Those of everything else that this process does.
const OTHERS: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;
    use keeptime_agent::wire::Response;
    use keeptime_model::name::Name;
    use keeptime_model::units::Nanos;
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::path::PathBuf;

    /// No machine is so busy that it takes longer.
    const PATIENCE: Duration = Duration::from_secs(60);

    fn used() -> impl Fn(&mut Client) -> Result<Nanos, ClientError> {
        let job: Name = "r7".parse().unwrap();
        move |client| client.used(&job)
    }

    /// Where agents listen, each of whose connections is `serve`d, with its number.
    fn agents(
        serve: impl Fn(usize, UnixStream) + Send + Sync + 'static,
    ) -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("agent.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let serve = Arc::new(serve);
        thread::spawn(move || {
            for (number, stream) in listener.incoming().map_while(Result::ok).enumerate() {
                let serve = Arc::clone(&serve);
                thread::spawn(move || serve(number, stream));
            }
        });
        (directory, path)
    }

    /// Reads a question; whether there was one.
    fn is_asked(from: &mut impl BufRead) -> bool {
        from.read_line(&mut String::new()).is_ok_and(|read| read > 0)
    }

    fn answer(mut to: &UnixStream, nanos: u64) {
        let answer = serde_json::to_string(&Response::Used(Nanos::new(nanos))).unwrap();
        let _ = writeln!(to, "{answer}");
    }

    /// Fewer than are asked at once.
    const SOME: usize = 60;

    // Goal: none waits for another. Method: none answers before all have been asked.
    #[test]
    fn all_are_asked_at_once() {
        let asked = std::sync::Barrier::new(SOME);
        let (_directory, path) = agents(move |_, stream| {
            let mut from = BufReader::new(&stream);
            while is_asked(&mut from) {
                asked.wait();
                answer(&stream, 1);
            }
        });
        let mut kept = KeptAgents::new(vec![AgentPlace::Socket(path); SOME]);
        for _ in 0..2 {
            let heard = kept.ask(Some(PATIENCE / 12), used());
            assert!(heard.iter().all(Result::is_ok), "{heard:?}");
        }
    }

    // Goal: one that hangs delays a round once, by no more than was said, and no round after that; what it says at last is
    // no answer to a later question. Method: four hundred agents that say how often they were asked, one of which stops for a
    // while, but for less than ten seconds, after which it would be asked on a new connection.
    #[test]
    fn one_that_hangs_delays_one_round_and_its_late_answer_is_for_no_other() {
        const COUNT: usize = 400;
        const HANGS: usize = COUNT / 2;
        let (stop, stopped) = channel::<()>();
        let stopped = Mutex::new(stopped);
        let (_others_directory, others) = agents(|_, stream| {
            let mut from = BufReader::new(&stream);
            (1..).take_while(|_| is_asked(&mut from)).for_each(|times| answer(&stream, times));
        });
        let (_directory, one) = agents(move |_, stream| {
            let mut from = BufReader::new(&stream);
            for times in (1..).take_while(|_| is_asked(&mut from)) {
                if times == 2 {
                    let _ = stopped.lock().unwrap().recv();
                }
                answer(&stream, times);
            }
        });
        let mut places = vec![AgentPlace::Socket(others); COUNT];
        places[HANGS] = AgentPlace::Socket(one);
        let mut kept = KeptAgents::new(places);
        let mut round = |within| {
            let begun = Instant::now();
            let mut heard: Vec<_> = kept.ask(within, used()).into_iter().map(Result::ok).collect();
            let hangs = heard.remove(HANGS).map(Nanos::get);
            assert_eq!(heard, vec![heard[0]; COUNT - 1]);
            (heard[0].map(Nanos::get), hangs, begun.elapsed())
        };
        let (others, hangs, _) = round(Some(PATIENCE));
        assert_eq!((others, hangs), (Some(1), Some(1)));
        let limit = Duration::from_secs(2);
        let (others, hangs, took) = round(Some(limit));
        assert_eq!((others, hangs), (Some(2), None));
        assert!(took >= limit && took < 2 * limit, "{took:?}");
        let (others, hangs, took) = round(Some(PATIENCE));
        assert_eq!((others, hangs), (Some(3), None));
        assert!(took < 2 * limit, "{took:?}");
        drop(stop);
        let begun = Instant::now();
        let next = loop {
            if let (_, Some(times), _) = round(Some(PATIENCE)) {
                break times;
            }
            assert!(begun.elapsed() < PATIENCE);
        };
        assert_ne!(next, 2, "that was the answer to an earlier question");
    }

    // Goal: a run is over when it has ended, however many relays it had. Method: some that take a while to end, all of them
    // together half a minute.
    #[test]
    fn relays_end_at_once() {
        let script = r#"while read -r asked; do echo '{"used":7}'; done; sleep 0.5"#;
        let line = ["/bin/sh", "-c", script].map(String::from).to_vec();
        let place = AgentPlace::Relay { node: "n1".parse().unwrap(), line };
        let mut kept = KeptAgents::new(vec![place; SOME]);
        let heard = kept.ask(Some(PATIENCE), used());
        assert!(heard.iter().all(|said| matches!(said, Ok(used) if used.get() == 7)), "{heard:?}");
        let begun = Instant::now();
        drop(kept);
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    }

    // Whoever is not there is named, and the others answer.
    #[test]
    fn one_that_is_not_there_is_named() {
        let (directory, path) = agents(|_, stream| {
            assert!(is_asked(&mut BufReader::new(&stream)));
            answer(&stream, 1);
        });
        let gone = directory.path().join("gone.sock");
        let mut kept = KeptAgents::new([path, gone].map(AgentPlace::Socket));
        let heard = kept.ask(None, used());
        assert!(heard[0].is_ok(), "{heard:?}");
        assert!(heard[1].as_ref().unwrap_err().to_string().contains("gone.sock"), "{heard:?}");
    }
}
