//! Streams over several rails need somebody who looks after them whether or not a thread of the
//! program waits: who says what has arrived, asks whether rails still carry, and makes new ones. Links
//! over the kernel need somebody who notices that the other node is gone.

use crate::core::Core;
use crate::progress::lock;
use crate::streams::Stream;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How often streams are looked at. What has arrived is said with what goes the other way, or when so much has
/// come; this is for the rest.
const EVERY: Duration = Duration::from_millis(10);
/// How often links are looked at: a part of the time after which a node that does not answer is gone.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Threads that make rails at a time. They mostly wait: so many are through a thousand streams in a minute even where nobody
/// answers.
const MAKING_MOST: usize = 32;

/// What that thread waits on.
#[derive(Debug, Default)]
pub struct Keeper {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    stopped: bool,
    /// A stream, or a link, has begun since it was last looked.
    begun: bool,
}

impl Keeper {
    /// A stream, or a link, has begun.
    pub fn notice(&self) {
        lock(&self.state).begun = true;
        self.changed.notify_one();
    }

    /// The thread is to end.
    pub fn stop(&self) {
        lock(&self.state).stopped = true;
        self.changed.notify_one();
    }

    /// What the thread does. Calls may take seconds, so those of each stream are made by a thread of their own, as far as
    /// there are threads for them: others have their turn later.
    pub fn run(&self, core: &Core) {
        let making = AtomicUsize::new(0);
        thread::scope(|scope| {
            let (mut looked, mut last) = (Instant::now(), 0);
            while self.wait(rest(core)) {
                if looked.elapsed() >= LOOK_EVERY {
                    looked = Instant::now();
                    core.look_after_links();
                }
                for stream in in_turn(core.streams().all(), last) {
                    core.tend(&stream);
                    if making.load(SeqCst) >= MAKING_MOST || !stream.is_due(Instant::now()) {
                        continue;
                    }
                    last = stream.link.id;
                    let (thread, makes, count) =
                        (thread::Builder::new().name("rails".into()), stream.clone(), &making);
                    let work = move || {
                        core.make_rails(&makes);
                        makes.looked();
                        count.fetch_sub(1, SeqCst);
                    };
                    making.fetch_add(1, SeqCst);
                    if let Err(error) = thread.spawn_scoped(scope, work) {
                        tracing::warn!(%error, "no thread that makes connections");
                        stream.looked();
                        making.fetch_sub(1, SeqCst);
                    }
                }
            }
        });
    }

    /// Waits for so long, or for ever, unless something begins. Returns whether to go on.
    fn wait(&self, rest: Option<Duration>) -> bool {
        let state = lock(&self.state);
        let is_idle = |state: &mut State| !state.begun && !state.stopped;
        let mut state = match rest {
            Some(time) => {
                let waited = self.changed.wait_timeout_while(state, time, is_idle);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
            None => {
                let waited = self.changed.wait_while(state, is_idle);
                waited.unwrap_or_else(PoisonError::into_inner)
            }
        };
        state.begun = false;
        !state.stopped
    }
}

/// Streams in the order of their links from the one after `last` on: who had no thread is before those that had one.
fn in_turn(mut all: Vec<Arc<Stream>>, last: u32) -> Vec<Arc<Stream>> {
    let next = all.partition_point(|stream| stream.link.id <= last);
    all.rotate_left(next);
    all
}

/// How long nothing has to be looked at; none: as long as nothing begins.
fn rest(core: &Core) -> Option<Duration> {
    if !core.streams().all().is_empty() {
        return Some(EVERY);
    }
    core.has_links_to_look_after().then_some(LOOK_EVERY)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::context::Context;
    use crate::directory::{Server, ServerConfig};
    use crate::id::ContextId;
    use crate::link::Link;
    use crate::streams::Streams;
    use crate::transport::rails;

    /// For anything, on a busy machine.
    const LONG: Duration = Duration::from_secs(60);

    /// A stream of another context's, without a rail.
    fn begin(streams: &Streams, number: u32) -> Arc<Stream> {
        let (ends, rails) = rails::ends().unwrap();
        let link = Arc::new(Link::new(number, ContextId::new(2), ends));
        streams.insert(link, rails, u64::from(number), None)
    }

    /// Whoever has no rail is asked for in the directory, which is gone: each of these threads waits for its answer, and
    /// whoever closes waits for none.
    #[test]
    fn so_many_threads_make_rails_and_nobody_waits_for_them() {
        let name = format!("keeper-{}", std::process::id());
        let address = ([127, 0, 0, 1], 0).into();
        let (node, members, key) = ("n1".into(), Vec::new(), None);
        let server = ServerConfig { name: name.clone(), node, address, members, key };
        let server = Server::start(server).unwrap();
        let context = Context::open(Config { directory: name, ..Config::default() }).unwrap();
        drop(server);
        let streams = context.core().streams();
        // Numbers that links of the context do not have.
        for number in 1..=2 * MAKING_MOST as u32 {
            begin(streams, u32::MAX - number);
        }
        context.core().keeper().notice();
        let busy = || streams.all().iter().filter(|stream| stream.is_looked_at()).count();
        let start = Instant::now();
        while busy() < MAKING_MOST {
            assert!(start.elapsed() < LONG, "nobody makes rails");
            thread::park_timeout(EVERY);
        }
        // As often as it looks meanwhile.
        for _ in 0..20 {
            thread::park_timeout(EVERY);
            assert!(busy() <= MAKING_MOST, "{} threads", busy());
        }
        let start = Instant::now();
        drop(context);
        assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    }

    #[test]
    fn who_had_no_thread_is_first_next_time() {
        let streams = Streams::default();
        let _all = [3, 5, 9].map(|number| begin(&streams, number));
        let order = |last| in_turn(streams.all(), last).iter().map(|s| s.link.id).collect();
        let orders: [Vec<u32>; 5] = [0, 3, 4, 5, 9].map(order);
        assert_eq!(orders, [[3, 5, 9], [5, 9, 3], [5, 9, 3], [9, 3, 5], [3, 5, 9]]);
    }
}
