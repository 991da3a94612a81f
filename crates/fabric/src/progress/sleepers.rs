//! Which of several threads that sleep leads, and who wakes whom (the decisions; words, locks and the kernel are behind
//! [`Room`]).
//!
//! The leader sleeps in the kernel on everything that is watched. The others follow, each on its own, and are woken for what
//! is theirs. A leader that leaves wakes a follower to lead.
//!
//! Who sleeps says so in a word and looks then whether it was woken; who wakes it says that first and looks at the word then.
//! In the same way who follows is counted and looks then whether anybody leads, and who has led looks at the count then.
//! With a full fence between the two on both sides, one of them sees the other.

use super::Work;
use crate::ring::Word;
use std::ops::DerefMut;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::{Duration, Instant};

/// A thread that may sleep.
pub trait Sleeper {
    /// Its words.
    type Word: Word;
    /// 1 when it was woken.
    fn woken(&self) -> &Self::Word;
    /// Where it sleeps, if it does.
    fn place(&self) -> &Self::Word;
    /// It sleeps until [`Sleeper::unpark`], if that was not called since it slept last, or for `most`, or for no reason.
    fn park(&self, most: Option<Duration>);
    /// Another thread ends that.
    fn unpark(&self);
}

/// What threads share that sleep together.
pub trait Room {
    /// One of them.
    type Sleeper: Sleeper;
    /// What only the leader has: what was heard, above all.
    type Lead<'a>
    where
        Self: 'a;
    /// Those that follow.
    fn followers(&self) -> impl DerefMut<Target = Vec<Arc<Self::Sleeper>>>;
    /// How many these are, for threads that do not lock them.
    fn follower_count(&self) -> &<Self::Sleeper as Sleeper>::Word;
    /// Leads, unless another thread does.
    fn try_lead(&self) -> Option<Self::Lead<'_>>;
    /// Waits until something that is watched is ready or the bell was rung, for `most` at the longest.
    fn listen(&self, lead: &mut Self::Lead<'_>, most: Option<Duration>);
    /// Tells `work` what was heard.
    fn tell(&self, lead: &Self::Lead<'_>, work: &impl Work);
    /// Rings the bell: whoever listens, or does so next, hears it.
    fn ring(&self);
    /// A sequentially consistent fence.
    fn fence(&self);
}

/// All that sleep in one room.
#[derive(Debug)]
pub struct Sleepers<R>(pub R);

const AWAKE: u32 = 0;
const PARKED: u32 = 1;
const LEADING: u32 = 2;

impl<R: Room> Sleepers<R> {
    /// Sleeps as `own`, the calling thread, until `ready` gives something or `deadline` has passed. What `enlist` and `ready`
    /// are to do, [`Progress::wait`](super::Progress::wait) says.
    pub fn wait<W: Work, T>(
        &self,
        work: &W,
        view: &mut W::View,
        own: &Arc<R::Sleeper>,
        deadline: Option<Instant>,
        mut ready: impl FnMut() -> Option<T>,
        mut enlist: impl FnMut(&Arc<R::Sleeper>),
    ) -> Option<T> {
        let done = loop {
            own.woken().store(0, Relaxed);
            enlist(own);
            if let Some(done) = ready() {
                break Some(done);
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                break None;
            }
            self.sleep(work, own, deadline);
            // What it waits for is handled mostly: more would only be put aside.
            if let Some(done) = ready() {
                break Some(done);
            }
            work.poll(view, false);
            if let Some(done) = ready() {
                break Some(done);
            }
        };
        self.hand_over();
        done
    }

    /// Handles what is watched and ready, without sleeping.
    pub fn look(&self, work: &impl Work) {
        if let Some(mut lead) = self.0.try_lead() {
            self.0.listen(&mut lead, Some(Duration::ZERO));
            self.handle(work, &lead);
        }
        // Whoever came to sleep meanwhile took this thread for the leader.
        self.hand_over();
    }

    /// Wakes `sleeper`, if it sleeps.
    pub fn wake(&self, sleeper: &R::Sleeper) {
        sleeper.woken().store(1, Release);
        self.0.fence();
        match sleeper.place().load(Relaxed) {
            PARKED => sleeper.unpark(),
            LEADING => self.0.ring(),
            _ => {}
        }
    }

    /// Sleeps as the leader or as a follower, until woken or for no reason.
    fn sleep(&self, work: &impl Work, own: &Arc<R::Sleeper>, deadline: Option<Instant>) {
        // Without one no timer is set, which would cost more than all the rest of a short sleep.
        let most = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        match self.0.try_lead() {
            Some(lead) => self.lead(work, own, lead, most),
            None => self.follow(own, most),
        }
    }

    fn lead(
        &self,
        work: &impl Work,
        own: &R::Sleeper,
        mut lead: R::Lead<'_>,
        most: Option<Duration>,
    ) {
        let sleeps = work.falls_asleep() && self.may_sleep(own, LEADING);
        self.0.listen(&mut lead, if sleeps { most } else { Some(Duration::ZERO) });
        // Before anything is handled: it would ring the bell for itself for each message of its own.
        own.place().store(AWAKE, Relaxed);
        self.handle(work, &lead);
    }

    fn follow(&self, own: &Arc<R::Sleeper>, most: Option<Duration>) {
        self.change_followers(|followers| followers.push(own.clone()));
        let may_sleep = self.may_sleep(own, PARKED);
        // The leader may have left before it could see this follower.
        if may_sleep && self.0.try_lead().is_none() {
            own.park(most);
        }
        own.place().store(AWAKE, Relaxed);
        self.change_followers(|followers| {
            let at = followers.iter().position(|follower| Arc::ptr_eq(follower, own));
            at.map(|at| followers.swap_remove(at))
        });
    }

    /// Says that `own` sleeps there. Returns whether nobody has woken it.
    fn may_sleep(&self, own: &R::Sleeper, place: u32) -> bool {
        own.place().store(place, Relaxed);
        self.0.fence();
        own.woken().load(Acquire) == 0
    }

    fn handle(&self, work: &impl Work, lead: &R::Lead<'_>) {
        work.wakes_up();
        self.0.tell(lead, work);
    }

    /// Wakes a follower to lead, if nobody does.
    fn hand_over(&self) {
        self.0.fence();
        if self.0.follower_count().load(Relaxed) == 0 || self.0.try_lead().is_none() {
            return;
        }
        if let Some(follower) = self.change_followers(Vec::pop) {
            self.wake(&follower);
        }
    }

    fn change_followers<T>(&self, change: impl FnOnce(&mut Vec<Arc<R::Sleeper>>) -> T) -> T {
        let mut followers = self.0.followers();
        let changed = change(&mut followers);
        self.0.follower_count().store(followers.len() as u32, Relaxed);
        changed
    }
}

#[cfg(test)]
mod tests {
    //! Every interleaving of threads that wait and of those that wake them, as far as loom bounds it. One that is not woken
    //! is a deadlock, which loom finds.

    use super::*;
    use loom::sync::atomic::{AtomicU32, fence};
    use loom::sync::{Condvar, Mutex, MutexGuard, Notify};
    use loom::thread;
    use std::mem;
    use std::sync::atomic::Ordering::SeqCst;

    struct Thread {
        woken: AtomicU32,
        place: AtomicU32,
        token: Notify,
    }

    impl Thread {
        fn new() -> Arc<Self> {
            let [woken, place] = [(); 2].map(|()| AtomicU32::new(0));
            Arc::new(Self { woken, place, token: Notify::new() })
        }
    }

    impl Sleeper for Thread {
        type Word = AtomicU32;

        fn woken(&self) -> &AtomicU32 {
            &self.woken
        }

        fn place(&self) -> &AtomicU32 {
            &self.place
        }

        fn park(&self, _: Option<Duration>) {
            self.token.wait();
        }

        fn unpark(&self) {
            self.token.notify();
        }
    }

    /// What can be heard: letters for these receivers have come, or the bell was rung.
    #[derive(Default)]
    struct Heard {
        letters: Vec<usize>,
        is_rung: bool,
    }

    struct Model {
        lead: Mutex<()>,
        followers: Mutex<Vec<Arc<Thread>>>,
        follower_count: AtomicU32,
        heard: Mutex<Heard>,
        changed: Condvar,
    }

    impl Model {
        fn hears(&self, change: impl FnOnce(&mut Heard)) {
            change(&mut self.heard.lock().unwrap());
            self.changed.notify_one();
        }
    }

    impl Room for Model {
        type Sleeper = Thread;
        type Lead<'a> = MutexGuard<'a, ()>;

        fn followers(&self) -> impl DerefMut<Target = Vec<Arc<Thread>>> {
            self.followers.lock().unwrap()
        }

        fn follower_count(&self) -> &AtomicU32 {
            &self.follower_count
        }

        fn try_lead(&self) -> Option<MutexGuard<'_, ()>> {
            self.lead.try_lock().ok()
        }

        fn listen(&self, _: &mut MutexGuard<'_, ()>, most: Option<Duration>) {
            let mut heard = self.heard.lock().unwrap();
            while most.is_none() && !heard.is_rung && heard.letters.is_empty() {
                heard = self.changed.wait(heard).unwrap();
            }
        }

        fn tell(&self, _: &MutexGuard<'_, ()>, work: &impl Work) {
            let Heard { letters, .. } = mem::take(&mut *self.heard.lock().unwrap());
            letters.into_iter().for_each(|letter| work.signalled(letter as u64));
        }

        fn ring(&self) {
            self.hears(|heard| heard.is_rung = true);
        }

        fn fence(&self) {
            fence(SeqCst);
        }
    }

    /// What one receiver is to get.
    #[derive(Default)]
    struct Tray {
        has_letter: bool,
        waits: Option<Arc<Thread>>,
    }

    struct Office {
        sleepers: Sleepers<Model>,
        trays: [Mutex<Tray>; 2],
    }

    impl Office {
        fn deliver(&self, to: usize) {
            let waits = {
                let mut tray = self.trays[to].lock().unwrap();
                tray.has_letter = true;
                tray.waits.take()
            };
            waits.iter().for_each(|thread| self.sleepers.wake(thread));
        }

        /// A letter comes, of which whoever listens hears.
        fn post(&self, to: usize) {
            self.sleepers.0.hears(|heard| heard.letters.push(to));
        }

        fn receive(&self, at: usize) {
            let tray = || self.trays[at].lock().unwrap();
            let take = || mem::take(&mut tray().has_letter).then_some(());
            let enlist = |own: &Arc<Thread>| tray().waits = Some(own.clone());
            self.sleepers.wait(self, &mut (), &Thread::new(), None, take, enlist);
        }
    }

    impl Work for Office {
        type View = ();

        fn view(&self) {}

        fn poll(&self, _: &mut (), _: bool) -> usize {
            0
        }

        fn is_in_memory(&self, _: &()) -> bool {
            true
        }

        fn are_many(&self, _: &()) -> bool {
            false
        }

        fn falls_asleep(&self) -> bool {
            true
        }

        fn wakes_up(&self) {}

        fn signalled(&self, token: u64) {
            self.deliver(token as usize);
        }
    }

    /// Each of `all` receives, in a thread of its own, while `others` do what they do.
    fn receive<const OTHERS: usize>(all: &'static [usize], others: [fn(&Office); OTHERS]) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(2);
        model.check(move || {
            let room = Model {
                lead: Mutex::new(()),
                followers: Mutex::new(Vec::new()),
                follower_count: AtomicU32::new(0),
                heard: Mutex::new(Heard::default()),
                changed: Condvar::new(),
            };
            let trays = [(); 2].map(|()| Mutex::new(Tray::default()));
            let office = Arc::new(Office { sleepers: Sleepers(room), trays });
            let receivers = all.iter().map(|at| {
                let office = office.clone();
                thread::spawn(move || office.receive(*at))
            });
            let receivers: Vec<_> = receivers.collect();
            let others = others.map(|other| {
                let office = office.clone();
                thread::spawn(move || other(&office))
            });
            receivers.into_iter().chain(others).for_each(|thread| thread.join().unwrap());
        });
    }

    /// The leader is woken for its own, and so is who follows.
    #[test]
    fn whoever_is_delivered_to_wakes() {
        receive(
            &[0, 1],
            [|office| {
                office.deliver(0);
                office.deliver(1);
            }],
        );
    }

    /// What the leader hears is for itself or for the other. If it leaves the other has to lead, or hears of nothing.
    #[test]
    fn who_leaves_has_another_lead() {
        receive(
            &[0, 1],
            [|office| {
                office.post(0);
                office.post(1);
            }],
        );
    }

    /// Who comes to sleep while another looks takes that one for the leader.
    #[test]
    fn who_looks_has_another_lead() {
        receive(
            &[0],
            [|office: &Office| office.sleepers.look(office), |office: &Office| office.post(0)],
        );
    }
}
