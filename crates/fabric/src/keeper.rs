//! Streams over several rails need somebody who looks after them whether or not a thread of the
//! program waits: who says what has arrived, asks whether rails still carry, and makes new ones.

use crate::core::Core;
use crate::progress::lock;
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How often. What has arrived is said with what goes the other way, or when so much has come; this
/// is for the rest.
const EVERY: Duration = Duration::from_millis(10);

/// What that thread waits on.
#[derive(Debug, Default)]
pub struct Keeper {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    stopped: bool,
    /// A stream has begun since it was last looked.
    begun: bool,
}

impl Keeper {
    /// A stream has begun.
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
            while self.wait(core.streams().all().is_empty()) {
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

    /// Waits for the next look, or for a stream if there is none. Returns whether to go on.
    fn wait(&self, is_idle: bool) -> bool {
        let mut state = lock(&self.state);
        if !is_idle && !state.begun && !state.stopped {
            let waited = self.changed.wait_timeout(state, EVERY);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        while is_idle && !state.begun && !state.stopped {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.begun = false;
        !state.stopped
    }
}
