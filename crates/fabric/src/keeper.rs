//! Streams over several rails need somebody who looks after them whether or not a thread of the
//! program waits: who says what has arrived, asks whether rails still carry, and makes new ones. Links
//! over the kernel need somebody who notices that the other node is gone.

use crate::core::Core;
use crate::progress::lock;
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How often streams are looked at. What has arrived is said with what goes the other way, or when so much has
/// come; this is for the rest.
const EVERY: Duration = Duration::from_millis(10);
/// How often links are looked at: a part of the time after which a node that does not answer is gone.
const LOOK_EVERY: Duration = Duration::from_secs(2);

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

    /// What the thread does. Calls may take seconds, so each is made by a thread of its own.
    pub fn run(&self, core: &Core) {
        thread::scope(|scope| {
            let mut looked = Instant::now();
            while self.wait(rest(core)) {
                if looked.elapsed() >= LOOK_EVERY {
                    looked = Instant::now();
                    core.look_after_links();
                }
                for stream in core.streams().all() {
                    core.tend(&stream);
                    if !stream.is_due(Instant::now()) {
                        continue;
                    }
                    let (thread, makes) =
                        (thread::Builder::new().name("rails".into()), stream.clone());
                    let work = move || {
                        core.make_rails(&makes);
                        makes.looked();
                    };
                    if let Err(error) = thread.spawn_scoped(scope, work) {
                        tracing::warn!(%error, "no thread that makes connections");
                        stream.looked();
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

/// How long nothing has to be looked at; none: as long as nothing begins.
fn rest(core: &Core) -> Option<Duration> {
    if !core.streams().all().is_empty() {
        return Some(EVERY);
    }
    core.has_links_to_look_after().then_some(LOOK_EVERY)
}
