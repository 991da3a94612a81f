//! What nobody has reserved, given to jobs that asked for it until somebody reserves it (pure).
//!
//! All flows of a job's pattern have the same reserved rate, and the same more. What jobs share of a link is
//! parted by the rates that they reserved (weighted max-min fairness). The first link of a flow parts
//! nothing: the sender's own card keeps every guarantee there, whatever others may borrow. On a link on which
//! nobody else has anything, a job can be in nobody's way but its own, and each of its flows may fill it.

use keeptime_model::reservation::Handle;
use keeptime_model::topology::LinkDirection;
use keeptime_model::units::BitsPerSecond;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

/// Jobs that use what is spare, and how much.
#[derive(Debug, Clone, Default)]
pub(crate) struct Spare {
    jobs: BTreeMap<Handle, Job>,
    on_link: BTreeMap<LinkDirection, BTreeSet<Handle>>,
}

/// One job, as far as it matters here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Job {
    /// Reserved for each flow.
    pub rate: BitsPerSecond,
    /// How many flows pass each link that is not the first of their way.
    pub links: BTreeMap<LinkDirection, u64>,
    /// More than this no flow can have in all.
    pub most: BitsPerSecond,
    /// What each flow may use beside what is reserved.
    pub spare: BitsPerSecond,
}

/// What there is of a link.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LinkState {
    /// What may be reserved.
    pub reservable: BitsPerSecond,
    /// What of that nobody has reserved.
    pub free: BitsPerSecond,
}

/// Who is to have less, and who may have more.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Changes {
    pub less: BTreeMap<Handle, BitsPerSecond>,
    pub more: BTreeMap<Handle, BitsPerSecond>,
}

/// Parts of reserved rates are compared with so many binary places.
const PLACES: u32 = 24;
/// Not worth telling agents: more by less than this part of what a flow may use.
const NOTABLE_PART: u64 = 20;

impl Spare {
    /// Whether nobody uses any.
    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// Takes a job up, in the place of what is known of it.
    pub fn insert(&mut self, handle: Handle, job: Job) {
        self.remove(handle);
        for link in job.links.keys() {
            self.on_link.entry(*link).or_default().insert(handle);
        }
        self.jobs.insert(handle, job);
    }

    /// Drops a job, if it is there.
    pub fn remove(&mut self, handle: Handle) {
        let Some(job) = self.jobs.remove(&handle) else { return };
        for link in job.links.keys() {
            if let Some(handles) = self.on_link.get_mut(link) {
                handles.remove(&handle);
                if handles.is_empty() {
                    self.on_link.remove(link);
                }
            }
        }
    }

    /// What each flow of a job may use beside what is reserved.
    pub fn of(&self, handle: Handle) -> BitsPerSecond {
        self.jobs.get(&handle).map_or(BitsPerSecond::ZERO, |job| job.spare)
    }

    /// It has that from now on.
    pub fn set(&mut self, handle: Handle, spare: BitsPerSecond) {
        if let Some(job) = self.jobs.get_mut(&handle) {
            job.spare = spare;
        }
    }

    /// It has no more than what is reserved for it, from now on.
    pub fn bar(&mut self, handle: Handle) {
        if let Some(job) = self.jobs.get_mut(&handle) {
            (job.most, job.spare) = (job.rate, BitsPerSecond::ZERO);
        }
    }

    /// The jobs that pass one of `links` behind the first of their way.
    pub fn beside(&self, links: impl IntoIterator<Item = LinkDirection>) -> BTreeSet<Handle> {
        links.into_iter().filter_map(|link| self.on_link.get(&link)).flatten().copied().collect()
    }

    /// The same for the links of a job, without itself.
    pub fn beside_job(&self, handle: Handle) -> BTreeSet<Handle> {
        let links = self.jobs.get(&handle).map(|job| job.links.keys().copied());
        let mut beside = self.beside(links.into_iter().flatten());
        beside.remove(&handle);
        beside
    }

    /// Who is to have how much less, so that no link of `links` has more than there is. O(jobs on them).
    pub fn to_fit(
        &self,
        links: impl IntoIterator<Item = LinkDirection>,
        state: impl Fn(LinkDirection) -> LinkState,
    ) -> BTreeMap<Handle, BitsPerSecond> {
        let mut less: BTreeMap<Handle, BitsPerSecond> = BTreeMap::new();
        for link in links {
            let Some(handles) = self.on_link.get(&link) else { continue };
            let state = state(link);
            let now = |handle: &Handle| less.get(handle).copied().unwrap_or(self.of(*handle));
            let fits: Vec<_> = match self.alone(link, state) {
                Some((handle, most)) => vec![(handle, now(&handle).min(most))],
                None => {
                    let taken = |handle: &Handle| {
                        now(handle).get().saturating_mul(self.flows(*handle, link))
                    };
                    let taken: u64 = handles.iter().map(taken).fold(0, u64::saturating_add);
                    let left = state.free.get().min(taken).into();
                    let filling = Filling { left, weight: taken.into() };
                    handles.iter().map(|handle| (*handle, filling.part(now(handle)))).collect()
                }
            };
            for (handle, spare) in fits {
                if spare < less.get(&handle).copied().unwrap_or(self.of(handle)) {
                    less.insert(handle, spare);
                }
            }
        }
        less
    }

    /// Who should have less, and who notably more. O(passed links x log links).
    pub fn changes(&self, state: impl Fn(LinkDirection) -> LinkState) -> Changes {
        let mut changes = Changes::default();
        for (handle, fair) in self.fair(state) {
            let Some(job) = self.jobs.get(&handle) else { continue };
            let all = job.rate.get().saturating_add(job.spare.get());
            if fair < job.spare {
                // Others' parts count on it, however little it is.
                changes.less.insert(handle, fair);
            } else if fair.get() - job.spare.get() > all / NOTABLE_PART {
                changes.more.insert(handle, fair);
            }
        }
        changes
    }

    /// Weighted max-min fair: all grow by the same part of what they reserved, and stop where a link is
    /// full or a flow has all that it can.
    fn fair(&self, state: impl Fn(LinkDirection) -> LinkState) -> BTreeMap<Handle, BitsPerSecond> {
        let mut limits: BinaryHeap<Reverse<(u128, Limit)>> = BinaryHeap::new();
        let mut filling: BTreeMap<LinkDirection, Filling> = BTreeMap::new();
        let mut most: BTreeMap<Handle, u64> =
            self.jobs.iter().map(|(handle, job)| (*handle, job.most.get())).collect();
        for (link, handles) in &self.on_link {
            let state = state(*link);
            if let Some((handle, limit)) = self.alone(*link, state) {
                let of_job = most.entry(handle).or_default();
                let limit = limit.get().saturating_add(self.jobs[&handle].rate.get());
                *of_job = limit.min(*of_job);
            } else {
                let weight = handles.iter().map(|handle| self.weight(*handle, *link)).sum();
                let link_filling = Filling { left: state.free.get().into(), weight };
                limits.push(Reverse((link_filling.share(), Limit::Link(*link))));
                filling.insert(*link, link_filling);
            }
        }
        for (handle, job) in &self.jobs {
            let more = most[handle].saturating_sub(job.rate.get());
            let own = Filling { left: more.into(), weight: job.rate.get().into() };
            limits.push(Reverse((own.share(), Limit::Job(*handle, own))));
        }
        let mut fair = BTreeMap::new();
        while let Some(Reverse((share, limit))) = limits.pop() {
            let (stopped, at): (Vec<Handle>, Filling) = match limit {
                Limit::Job(handle, own) => (vec![handle], own),
                Limit::Link(link) => {
                    let now = filling[&link];
                    if now.weight == 0 {
                        continue;
                    }
                    // Shares only grow: this one was put down before others stopped.
                    if now.share() > share {
                        limits.push(Reverse((now.share(), limit)));
                        continue;
                    }
                    (self.on_link[&link].iter().copied().collect(), now)
                }
            };
            for handle in stopped {
                if fair.contains_key(&handle) {
                    continue;
                }
                let job = &self.jobs[&handle];
                // Of two limits that are as good as the same the other one may be the less.
                let room = |link: &LinkDirection| {
                    let left =
                        filling.get(link)?.left / u128::from(self.flows(handle, *link)).max(1);
                    u64::try_from(left).ok()
                };
                let room = job.links.keys().filter_map(room).min().map(BitsPerSecond::new);
                let spare = room.map_or(at.part(job.rate), |room| at.part(job.rate).min(room));
                fair.insert(handle, spare);
                for link in job.links.keys() {
                    if let Some(filling) = filling.get_mut(link) {
                        let taken = u128::from(self.flows(handle, *link)) * u128::from(spare.get());
                        filling.weight -= self.weight(handle, *link);
                        filling.left = filling.left.saturating_sub(taken);
                    }
                }
            }
        }
        fair
    }

    /// Who is the only one that has something on a link, and how much more each of its flows may have there.
    fn alone(&self, link: LinkDirection, state: LinkState) -> Option<(Handle, BitsPerSecond)> {
        let handles = &self.on_link[&link];
        let handle = *handles.first().filter(|_| handles.len() == 1)?;
        let rate = self.jobs[&handle].rate.get();
        let own = rate.saturating_mul(self.flows(handle, link));
        let is_alone = state.free.get().saturating_add(own) >= state.reservable.get();
        is_alone.then(|| (handle, BitsPerSecond::new(state.reservable.get().saturating_sub(rate))))
    }

    fn flows(&self, handle: Handle, link: LinkDirection) -> u64 {
        self.jobs[&handle].links.get(&link).copied().unwrap_or(0)
    }

    fn weight(&self, handle: Handle, link: LinkDirection) -> u128 {
        u128::from(self.flows(handle, link)) * u128::from(self.jobs[&handle].rate.get())
    }
}

/// What stops jobs from having more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Limit {
    /// And what each of its flows can have.
    Job(Handle, Filling),
    Link(LinkDirection),
}

/// A link, or a flow, while shares grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Filling {
    left: u128,
    /// What those reserved on it whose share still grows.
    weight: u128,
}

impl Filling {
    /// By which part of what is reserved all can grow, with binary places.
    fn share(&self) -> u128 {
        (self.left << PLACES) / self.weight.max(1)
    }

    /// What one has who reserved `rate`, rounded down.
    fn part(&self, rate: BitsPerSecond) -> BitsPerSecond {
        let part = u128::from(rate.get()) * self.left / self.weight.max(1);
        BitsPerSecond::new(u64::try_from(part).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn job(rate: u64, links: &[(u32, u64)], most: u64, spare: u64) -> Job {
        let links = links.iter().map(|(link, flows)| (LinkDirection(*link), *flows)).collect();
        let [rate, most, spare] = [rate, most, spare].map(BitsPerSecond::new);
        Job { rate, links, most, spare }
    }

    fn spare(jobs: &[Job]) -> Spare {
        let mut spare = Spare::default();
        for (number, job) in (1..).zip(jobs) {
            spare.insert(Handle::new(number), job.clone());
        }
        spare
    }

    /// What each link has when everybody reserved what the jobs say, and others so much.
    fn state(
        spare: &Spare,
        reservable: u64,
        others: u64,
    ) -> impl Fn(LinkDirection) -> LinkState + use<> {
        let own = |link: &LinkDirection| -> u64 {
            spare.on_link[link].iter().map(|handle| spare.weight(*handle, *link) as u64).sum()
        };
        let own: BTreeMap<_, _> = spare.on_link.keys().map(|link| (*link, own(link))).collect();
        move |link| LinkState {
            reservable: BitsPerSecond::new(reservable),
            free: BitsPerSecond::new(reservable.saturating_sub(own[&link] + others)),
        }
    }

    fn fair(jobs: &[Job], reservable: u64, others: u64) -> Vec<u64> {
        let spare = spare(jobs);
        spare.fair(state(&spare, reservable, others)).values().map(|rate| rate.get()).collect()
    }

    #[test]
    fn who_is_alone_may_fill_a_link_and_others_part_it_by_what_they_reserved() {
        let [one, two] = [job(100, &[(1, 2)], 1_000, 0), job(200, &[(1, 2)], 1_000, 0)];
        assert_eq!(fair(std::slice::from_ref(&one), 900, 0), [800]);
        // Somebody else has something: both flows together have no more than is left.
        assert_eq!(fair(std::slice::from_ref(&one), 900, 100), [300]);
        // 300 are left of 900.
        assert_eq!(fair(&[one, two], 900, 0), [50, 100]);
    }

    // Goal: no link has more than there is, however near the limits are to each other. 7,000,000 and one less are the same part
    // of 80,000,000 with as many places as parts are compared with.
    #[test]
    fn of_limits_that_are_as_good_as_the_same_the_least_counts() {
        let job = job(80_000_000, &[(1, 1)], 87_000_000, 0);
        assert_eq!(fair(&[job], 100_000_000, 13_000_001), [6_999_999]);
    }

    #[test]
    fn what_one_cannot_use_the_others_have() {
        let jobs = [
            job(128, &[(1, 1)], 144, 0),
            job(128, &[(1, 1), (2, 1)], 900, 0),
            job(128, &[(2, 1)], 900, 0),
        ];
        assert_eq!(fair(&jobs, 640, 0), [16, 192, 192]);
        assert_eq!(fair(&jobs[..2], 640, 0), [16, 368]);
    }

    #[test]
    fn what_somebody_reserves_is_given_back_in_parts() {
        let jobs = [job(100, &[(1, 1)], 900, 300), job(100, &[(1, 1), (2, 1)], 900, 100)];
        let spare = spare(&jobs);
        let links = [1, 2].map(LinkDirection);
        assert_eq!(spare.to_fit(links, state(&spare, 600, 0)), BTreeMap::new());
        let less = spare.to_fit(links, state(&spare, 600, 200));
        let of = |handle| less.get(&Handle::new(handle)).map(|rate| rate.get());
        assert_eq!([1, 2].map(of), [Some(150), Some(50)]);
    }

    #[test]
    fn little_is_not_worth_a_word() {
        let jobs = [job(100, &[(1, 1)], 900, 480), job(100, &[(2, 1)], 900, 200)];
        let spare = spare(&jobs);
        let Changes { less, more } = spare.changes(state(&spare, 600, 0));
        assert_eq!(less, BTreeMap::new());
        assert_eq!(
            more.into_iter().collect::<Vec<_>>(),
            [(Handle::new(2), BitsPerSecond::new(500))]
        );
    }

    fn any_job() -> impl Strategy<Value = Job> {
        let links = prop::collection::btree_map(0..6u32, 1..4u64, 0..4);
        (1..50u64, links, 50..500u64, 0..300u64).prop_map(|(rate, links, most, spare)| {
            job(rate, &links.into_iter().collect::<Vec<_>>(), most, spare)
        })
    }

    proptest! {
        // Goal: no link has more than there is of it, but where its only user is in its own way; and nobody could
        // have more without somebody having less who has no greater part.
        #[test]
        fn all_that_is_free_is_given_and_nothing_twice(
            jobs in prop::collection::vec(any_job(), 1..8),
            others in prop_oneof![Just(0), 0..200u64],
        ) {
            let spare = spare(&jobs);
            let state = state(&spare, 1_000_000, others);
            let given = spare.fair(&state);
            prop_assert_eq!(given.len(), jobs.len());
            let taken = |link: LinkDirection, of: &dyn Fn(Handle) -> u64| -> u64 {
                spare.on_link[&link].iter().map(|h| of(*h) * spare.flows(*h, link)).sum()
            };
            for (handle, rate) in &given {
                let job = &spare.jobs[handle];
                prop_assert!(job.rate.get() + rate.get() <= job.most.get().max(job.rate.get()));
                let part = |h: &Handle| u128::from(given[h].get() << 20) / u128::from(spare.jobs[h].rate.get());
                // Rounded down, each flow by less than one.
                let is_full = job.links.keys().any(|link| {
                    let slack = taken(*link, &|_| 1);
                    let full = taken(*link, &|h| given[&h].get()) + slack >= state(*link).free.get();
                    let greatest = spare.on_link[link].iter().map(part).max().unwrap_or(0);
                    full && greatest <= part(handle) + (1 << 20)
                });
                let has_all = job.rate.get() + rate.get() + 1 >= job.most.get().min(1_000_000);
                prop_assert!(is_full || has_all, "{handle} has {rate:?} of {job:?}");
            }
            for link in spare.on_link.keys() {
                let sum = taken(*link, &|h| given[&h].get());
                prop_assert!(sum <= state(*link).free.get() || spare.alone(*link, state(*link)).is_some());
            }
        }

        // Goal: whatever jobs have, what `to_fit` leaves them fits.
        #[test]
        fn what_is_left_fits(
            jobs in prop::collection::vec(any_job(), 1..8),
            reservable in 500..1_500u64,
            others in 0..400u64,
        ) {
            let mut spare = spare(&jobs);
            let links: Vec<_> = spare.on_link.keys().copied().collect();
            let state = state(&spare, reservable, others);
            for (handle, rate) in spare.to_fit(links.iter().copied(), &state) {
                prop_assert!(rate < spare.of(handle));
                spare.set(handle, rate);
            }
            for link in links {
                let sum: u64 = spare.on_link[&link].iter().map(|h| spare.of(*h).get() * spare.flows(*h, link)).sum();
                let fits = sum <= state(link).free.get();
                let alone = spare.alone(link, state(link)).is_some_and(|(h, most)| spare.of(h) <= most);
                prop_assert!(fits || alone, "{link:?}: {sum}");
            }
            prop_assert!(spare.to_fit(spare.on_link.keys().copied(), &state).is_empty());
        }
    }
}
