//! Streams over several rails need somebody who looks after them whether or not a thread of the
//! program waits: who says what has arrived, asks whether rails still carry, and makes new ones. Links
//! over the kernel need somebody who notices that the other node is gone. Who has not the time to wait
//! for a connection needs somebody who makes it, and who waits for messages somebody who asks whether their sender is
//! there.

use crate::core::Core;
use crate::id::ContextId;
use crate::streams::Stream;
use crate::threads;
use crate::transport::LOOK_EVERY;
use keeptime_locks::{lock, unpoisoned};
use std::collections::VecDeque;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, Scope};
use std::time::{Duration, Instant};

/// How often streams are looked at. What has arrived is said with what goes the other way, or when so much has
/// come; this is for the rest.
const EVERY: Duration = Duration::from_millis(10);
/// Threads that make rails at a time. They mostly wait: so many are through a thousand streams in a minute even where nobody
/// answers.
const MAKING_MOST: usize = 32;
/// Threads that call other contexts at a time. Nobody else is to be held up by those that do not answer: so many are more
/// than programs mostly have on a few nodes that are gone at once. Who is called beyond these is when one has ended.
const CALLING_MOST: usize = 256;
/// How often it is looked whether there is a thread for who had none.
const AGAIN_EVERY: Duration = Duration::from_millis(100);

/// What that thread waits on.
#[derive(Debug, Default)]
pub struct Keeper {
    state: Mutex<State>,
    changed: Condvar,
    making: Makers,
    calling: Makers,
    seeking: Makers,
}

#[derive(Debug, Default)]
struct State {
    stopped: bool,
    /// Something has begun, or is wanted, since it was last looked.
    begun: bool,
    /// Contexts that are to be called and have no thread yet, each once.
    wanted: VecDeque<ContextId>,
    /// Contexts for which the directory is to be asked, each once.
    sought: VecDeque<ContextId>,
}

/// Threads that make connections: how many there are.
#[derive(Debug, Default)]
struct Makers(AtomicUsize);

/// One of them, as long as this is there, whatever it comes to.
struct Maker<'a>(&'a Makers);

impl Keeper {
    /// A stream, or a link, has begun.
    pub fn notice(&self) {
        lock(&self.state).begun = true;
        self.changed.notify_one();
    }

    /// `peer` is to be called. Nobody else wants that as long as this call has not ended.
    pub fn call(&self, peer: ContextId) {
        lock(&self.state).wanted.push_back(peer);
        self.notice();
    }

    /// The directory is to be asked for `peer`. Nobody else wants that before it has answered.
    pub fn seek(&self, peer: ContextId) {
        lock(&self.state).sought.push_back(peer);
        self.notice();
    }

    /// Leaves the call of `peer` to whoever asks, if it waits for a thread. Whether it does.
    pub fn take(&self, peer: ContextId) -> bool {
        let mut state = lock(&self.state);
        let at = state.wanted.iter().position(|wanted| *wanted == peer);
        at.and_then(|at| state.wanted.remove(at)).is_some()
    }

    /// The thread is to end.
    pub fn stop(&self) {
        lock(&self.state).stopped = true;
        self.changed.notify_one();
    }

    /// What the thread does. Calls may take seconds, so those of each stream are made by a thread of their own, as far as
    /// there are threads for them: others have their turn later. So is each that somebody wants.
    pub fn run(&self, core: &Core) {
        thread::scope(|scope| {
            let (mut looked, mut last) = (Instant::now(), 0);
            while self.wait(self.rest(core)) {
                self.make_calls(core, scope);
                self.ask(core, scope);
                if looked.elapsed() >= LOOK_EVERY {
                    looked = Instant::now();
                    core.junction().look_after_links(core);
                }
                for stream in in_turn(core.junction().streams.all(), last) {
                    core.tend(&stream);
                    if self.making.count() >= MAKING_MOST || !stream.is_due(Instant::now()) {
                        continue;
                    }
                    last = stream.link.id;
                    let makes = stream.clone();
                    let work = move || {
                        core.make_rails(&makes);
                        makes.looked();
                    };
                    if !self.making.start(scope, "rails", work) {
                        stream.looked();
                    }
                }
            }
        });
    }

    /// Calls those that are wanted, as far as there may be threads for it: the others wait until some have ended. A call for
    /// which no thread can be had ends, since that may last.
    fn make_calls<'scope>(&'scope self, core: &'scope Core, scope: &'scope Scope<'scope, '_>) {
        while self.calling.count() < CALLING_MOST
            && let Some(peer) = self.next_wanted()
        {
            // Whoever waits is told what comes of it.
            let work = move || drop(core.make_call(peer));
            if !self.calling.start(scope, "call", work) {
                core.end_call(peer);
            }
        }
    }

    /// Asks for those that are sought, one after the other: where one is not answered no other is. Without a thread they are
    /// asked for later.
    fn ask<'scope>(&'scope self, core: &'scope Core, scope: &'scope Scope<'scope, '_>) {
        if self.seeking.count() == 0 && !lock(&self.state).sought.is_empty() {
            let work = move || {
                while let Some(peer) = self.next_sought() {
                    core.ask_for(peer);
                }
            };
            self.seeking.start(scope, "seek", work);
        }
    }

    fn next_sought(&self) -> Option<ContextId> {
        lock(&self.state).sought.pop_front()
    }

    fn next_wanted(&self) -> Option<ContextId> {
        lock(&self.state).wanted.pop_front()
    }

    /// How long nothing has to be looked at; none: as long as nothing begins.
    fn rest(&self, core: &Core) -> Option<Duration> {
        if !core.junction().streams.all().is_empty() {
            return Some(EVERY);
        }
        let state = lock(&self.state);
        if !state.wanted.is_empty() || !state.sought.is_empty() {
            return Some(AGAIN_EVERY);
        }
        drop(state);
        core.junction().has_links_to_look_after().then_some(LOOK_EVERY)
    }

    /// Waits for so long, or for ever, unless something begins. Returns whether to go on.
    fn wait(&self, rest: Option<Duration>) -> bool {
        let state = lock(&self.state);
        let is_idle = |state: &mut State| !state.begun && !state.stopped;
        let mut state = match rest {
            Some(time) => {
                let waited = self.changed.wait_timeout_while(state, time, is_idle);
                unpoisoned(waited).0
            }
            None => {
                let waited = self.changed.wait_while(state, is_idle);
                unpoisoned(waited)
            }
        };
        state.begun = false;
        !state.stopped
    }
}

impl Makers {
    fn count(&self) -> usize {
        self.0.load(SeqCst)
    }

    /// Has one more do `work`. Returns whether there is one for it.
    fn start<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        name: &str,
        work: impl FnOnce() + Send + 'scope,
    ) -> bool {
        self.0.fetch_add(1, SeqCst);
        let maker = Maker(self);
        // Without a thread it is dropped at once.
        let counted = move || {
            let _maker = maker;
            work();
        };
        let started = threads::spawn_scoped(scope, name, counted);
        if let Err(error) = &started {
            tracing::warn!(%error, "no thread that makes connections");
        }
        started.is_ok()
    }
}

impl Drop for Maker<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, SeqCst);
    }
}

/// Streams in the order of their links from the one after `last` on: who had no thread is before those that had one.
fn in_turn(mut all: Vec<Arc<Stream>>, last: u32) -> Vec<Arc<Stream>> {
    let next = all.partition_point(|stream| stream.link.id <= last);
    all.rotate_left(next);
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::context::{Context, Resource};
    use crate::directory::{Server, ServerConfig};
    use crate::error::SendError;
    use crate::id::{Place, ResourceId};
    use crate::link::Link;
    use crate::matching::Tag;
    use crate::streams::Streams;
    use crate::transport::rails;
    use std::panic::catch_unwind;

    /// For anything, on a busy machine.
    const LONG: Duration = Duration::from_secs(60);

    /// A stream of another context's, without a rail.
    fn begin(streams: &Streams, number: u32) -> Arc<Stream> {
        let (ends, rails) = rails::ends().unwrap();
        let link = Arc::new(Link::new(number, ContextId::new(2), ends));
        streams.insert(link, rails, u64::from(number), None)
    }

    /// A context whose directory is gone: each of its threads that asks waits for the answer.
    fn forlorn(test: &str) -> (Context, Resource) {
        let name = format!("keeper-{test}-{}", std::process::id());
        let address = ([127, 0, 0, 1], 0).into();
        let (node, members, key) = ("n1".into(), Vec::new(), None);
        let server = ServerConfig { name: name.clone(), node, address, members, key };
        let _server = Server::start(server).unwrap();
        let context = Context::open(Config { directory: name, ..Config::default() }).unwrap();
        let resource = context.register(crate::attrs! {}).unwrap();
        (context, resource)
    }

    /// There are so many of these threads soon, and no more as often as it is looked meanwhile.
    fn expect(most: usize, busy: impl Fn() -> usize) {
        let start = Instant::now();
        while busy() < most {
            assert!(start.elapsed() < LONG, "{} threads", busy());
            thread::park_timeout(EVERY);
        }
        for _ in 0..20 {
            thread::park_timeout(EVERY);
            assert!(busy() <= most, "{} threads", busy());
        }
    }

    /// Nobody who closes waits for what threads wait for.
    fn close(context: Context, resource: Resource) {
        let start = Instant::now();
        drop(resource);
        drop(context);
        assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    }

    /// Whoever has no rail is asked for in the directory.
    #[test]
    fn so_many_threads_make_rails_and_nobody_waits_for_them() {
        let (context, resource) = forlorn("rails");
        let streams = &context.core().junction().streams;
        // Numbers that links of the context do not have.
        for number in 1..=2 * MAKING_MOST as u32 {
            begin(streams, u32::MAX - number);
        }
        context.core().keeper().notice();
        expect(MAKING_MOST, || streams.all().iter().filter(|s| s.is_looked_at()).count());
        close(context, resource);
    }

    /// Whoever has no time leaves a call behind, for which the directory is asked.
    #[test]
    fn so_many_threads_call_and_nobody_waits_for_them() {
        let (context, resource) = forlorn("calls");
        for number in 1..=2 * CALLING_MOST as u64 {
            let (context, place) = (ContextId::new(number), Place { slot: 0, generation: 0 });
            let to = ResourceId { context, place };
            let sent = resource.send_within(to, Tag(1), b"nobody", Duration::ZERO);
            assert_eq!(sent, Err(SendError::TimedOut));
        }
        expect(CALLING_MOST, || context.core().keeper().calling.count());
        close(context, resource);
    }

    /// Others would have one less for ever.
    #[test]
    fn a_thread_that_panics_leaves_its_place_to_others() {
        let makers = Makers::default();
        let panicked = catch_unwind(|| {
            thread::scope(|scope| makers.start(scope, "panics", || panic!("planned")))
        });
        assert!(panicked.is_err());
        assert_eq!(makers.count(), 0);
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
