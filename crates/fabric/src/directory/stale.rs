//! What servers have told that are cut off, which is stale: it is kept until they have been silent for as long as one may be,
//! so that nobody is told that it was gone when one is started again. One that was not, and tells all that there is, is
//! believed at once (pure).

use super::records::all_of;
use crate::id::{ContextId, ResourceId};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Stale contexts and resources, and who has told each and until when it is kept.
#[derive(Debug, Default)]
pub struct StaleRecords {
    contexts: BTreeMap<ContextId, Staleness>,
    resources: BTreeMap<ResourceId, Staleness>,
}

/// The last that a server has told before it was cut off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Staleness {
    /// In which of its runs.
    pub incarnation: u64,
    /// The number of the last change that it had told.
    pub change: u64,
    /// Until when that is kept.
    pub until: Duration,
}

impl StaleRecords {
    /// Keeps what a server has told that is cut off. What the one before it had told, and it has not told again, is not
    /// among that, and is kept no longer than before.
    pub fn keep(
        &mut self,
        contexts: BTreeSet<ContextId>,
        resources: BTreeSet<ResourceId>,
        staleness: Staleness,
    ) {
        self.contexts.extend(contexts.into_iter().map(|id| (id, staleness)));
        self.resources.extend(resources.into_iter().map(|id| (id, staleness)));
    }

    /// Whether that context is stale.
    pub fn has(&self, context: ContextId) -> bool {
        self.contexts.contains_key(&context)
    }

    /// That context is told of again. Whether it was stale.
    pub fn reopen(&mut self, context: ContextId) -> bool {
        self.contexts.remove(&context).is_some()
    }

    /// That resource is told of again. Whether it was stale.
    pub fn reclaim(&mut self, resource: ResourceId) -> bool {
        self.resources.remove(&resource).is_some()
    }

    /// All resources of that context, which are kept no longer.
    pub fn take(&mut self, context: ContextId) -> Vec<ResourceId> {
        let its = self.resources.extract_if(all_of(context), |_, _| true);
        its.map(|(id, _)| id).collect()
    }

    /// What has been stale for long enough, and is kept no longer.
    pub fn over(&mut self, now: Duration) -> (Vec<ResourceId>, Vec<ContextId>) {
        let resources = taken(&mut self.resources, |_, staleness| staleness.until <= now);
        (resources, taken(&mut self.contexts, |_, staleness| staleness.until <= now))
    }

    /// What that run had told up to that change, and all resources of the contexts among that, which are kept no longer.
    pub fn told_by(&mut self, incarnation: u64, change: u64) -> (Vec<ResourceId>, Vec<ContextId>) {
        let is_its = |of: Staleness| of.incarnation == incarnation && of.change <= change;
        let contexts = taken(&mut self.contexts, |_, of| is_its(of));
        let is_within = |id: &ResourceId| contexts.binary_search(&id.context).is_ok();
        let resources = taken(&mut self.resources, |id, of| is_its(of) || is_within(id));
        (resources, contexts)
    }
}

/// Those that are taken, in order.
fn taken<K: Ord + Copy>(
    stale: &mut BTreeMap<K, Staleness>,
    is_taken: impl Fn(&K, Staleness) -> bool,
) -> Vec<K> {
    let taken = stale.extract_if(.., |key, staleness| is_taken(key, *staleness));
    taken.map(|(key, _)| key).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::Place;

    fn second(second: u64) -> Duration {
        Duration::from_secs(second)
    }

    fn resource(context: u64, slot: u32) -> ResourceId {
        ResourceId { context: ContextId::new(context), place: Place { slot, generation: 0 } }
    }

    /// Stale until then as told in the first run, with the change of that number.
    fn keep(stale: &mut StaleRecords, contexts: &[u64], resources: &[ResourceId], until: u64) {
        keep_as(
            stale,
            contexts,
            resources,
            Staleness { incarnation: 1, change: until, until: second(until) },
        );
    }

    fn keep_as(
        stale: &mut StaleRecords,
        contexts: &[u64],
        resources: &[ResourceId],
        staleness: Staleness,
    ) {
        let contexts = contexts.iter().map(|number| ContextId::new(*number)).collect();
        stale.keep(contexts, resources.iter().copied().collect(), staleness);
    }

    /// A server that comes and goes all the time would have what it once had held for ever.
    #[test]
    fn what_is_not_told_again_is_kept_no_longer_than_at_first() {
        let (mut stale, [one, other]) = (StaleRecords::default(), [resource(1, 0), resource(1, 1)]);
        keep(&mut stale, &[1], &[one, other], 3);
        assert!(stale.reopen(ContextId::new(1)) && stale.reclaim(one));
        assert!(!stale.reopen(ContextId::new(1)) && !stale.reclaim(one), "it is there");
        keep(&mut stale, &[1], &[one], 5);
        assert_eq!(stale.over(second(2)), (vec![], vec![]));
        assert_eq!(stale.over(second(3)), (vec![other], vec![]));
        assert_eq!(stale.over(second(5)), (vec![one], vec![ContextId::new(1)]));
        assert!(stale.contexts.is_empty() && stale.resources.is_empty());
    }

    #[test]
    fn the_resources_of_one_context_are_taken_and_no_others() {
        let mut stale = StaleRecords::default();
        let all = [resource(1, 0), resource(1, u32::MAX), resource(2, 0)];
        keep(&mut stale, &[1, 2], &all, 3);
        assert_eq!(stale.take(ContextId::new(1)), all[..2]);
        assert_eq!(stale.take(ContextId::new(1)), []);
        assert_eq!(stale.over(second(3)).0, all[2..]);
    }

    /// A run that goes on has told what it still has: nothing else of it stands, but for what it had told later than that,
    /// and what the run before had told of other contexts.
    #[test]
    fn what_one_run_had_told_by_then_is_taken() {
        let mut stale = StaleRecords::default();
        let [before, within, its, later] =
            [(1, 0), (2, 0), (3, 0), (4, 0)].map(|(c, s)| resource(c, s));
        let told = |incarnation, change| Staleness { incarnation, change, until: second(3) };
        keep_as(&mut stale, &[1], &[before, within], told(1, 9));
        keep_as(&mut stale, &[2], &[its], told(2, 5));
        keep_as(&mut stale, &[4], &[later], told(2, 6));
        let (resources, contexts) = stale.told_by(2, 5);
        assert_eq!((resources, contexts), (vec![within, its], vec![ContextId::new(2)]));
        assert_eq!(stale.told_by(2, 5), (vec![], vec![]));
        assert_eq!(stale.over(second(3)).0, [before, later]);
    }
}
