//! What a request that waits for room has of having come first: others may pass it so often, and then the nodes that it
//! could use are kept for it, for a while. Pure, and nothing of it is recorded: after a restart whoever waits asks again,
//! and may be passed as often again.

use keeptime_model::topology::NodeIndex;
use keeptime_model::units::Nanos;

/// So often one that waits is passed before nodes are kept for it: small requests that come now and then find room beside
/// a large one, and a stream of them does not keep it from ever having any.
pub(crate) const PASSES_MAX: u32 = 16;

/// For so long they are kept at a time: many runs end within that. Where what is in the way does not, others are not kept
/// from what is free for the rest of an hour's wait, and the passes are counted anew.
pub(crate) const KEPT_FOR: Nanos = Nanos::from_secs(600);

/// Of one that waits. Instants are those of the steady clock.
#[derive(Debug, Clone)]
pub(crate) struct Claim {
    /// Whether it could be had beside what is drained or away, and within what its user's share leaves, were nothing else
    /// reserved: if not, nobody else is in its way.
    pub may_be_had: bool,
    /// That it could use, were nothing reserved or drained; ascending.
    nodes: Vec<NodeIndex>,
    /// How often it was passed since it came, or since they were kept for it last.
    passes: u32,
    kept_until: Nanos,
}

impl Claim {
    /// Of one that could use `nodes`, and was not passed yet.
    pub fn on(mut nodes: Vec<NodeIndex>) -> Self {
        nodes.sort_unstable();
        Self { may_be_had: true, nodes, passes: 0, kept_until: Nanos::new(0) }
    }

    /// The nodes that are kept for it at `now`.
    pub fn kept(&self, now: Nanos) -> &[NodeIndex] {
        if self.may_be_had && self.kept_until > now { &self.nodes } else { &[] }
    }

    /// Whether it could use any of `nodes`, which ascend. Costs a look for each of the shorter list.
    pub fn is_on_any_of(&self, nodes: &[NodeIndex]) -> bool {
        let is_shorter = self.nodes.len() <= nodes.len();
        let (few, many) =
            if is_shorter { (&self.nodes[..], nodes) } else { (nodes, &self.nodes[..]) };
        few.iter().any(|node| many.binary_search(node).is_ok())
    }

    /// It is passed once more. Until when its nodes are kept for it from now on, where that was once too often.
    pub fn pass(&mut self, now: Nanos) -> Option<Nanos> {
        if !self.may_be_had {
            return None;
        }
        self.passes += 1;
        if self.passes < PASSES_MAX {
            return None;
        }
        self.passes = 0;
        self.kept_until = now.saturating_add(KEPT_FOR);
        Some(self.kept_until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(numbers: &[u32]) -> Vec<NodeIndex> {
        numbers.iter().map(|number| NodeIndex(*number)).collect()
    }

    #[test]
    fn nodes_are_kept_after_so_many_passes_and_for_a_while() {
        let second = Nanos::from_secs(1);
        let mut claim = Claim::on(nodes(&[3, 1]));
        for round in [0, 1_000].map(Nanos::from_secs) {
            for _ in 1..PASSES_MAX {
                assert_eq!(claim.pass(round), None);
                assert!(claim.kept(round).is_empty());
            }
            let until = round.saturating_add(KEPT_FOR);
            assert_eq!(claim.pass(round), Some(until));
            assert_eq!(claim.kept(until.saturating_sub(second)), nodes(&[1, 3]));
            assert!(claim.kept(until).is_empty());
        }
    }

    #[test]
    fn what_cannot_be_had_is_not_passed_and_keeps_nothing() {
        let now = Nanos::from_secs(1);
        let mut claim = Claim::on(nodes(&[1]));
        claim.may_be_had = false;
        assert!((0..2 * PASSES_MAX).all(|_| claim.pass(now).is_none()));
        claim.may_be_had = true;
        assert_eq!((1..=PASSES_MAX).filter_map(|_| claim.pass(now)).count(), 1);
        claim.may_be_had = false;
        assert!(claim.kept(now).is_empty());
        claim.may_be_had = true;
        assert_eq!(claim.kept(now), nodes(&[1]));
    }

    #[test]
    fn what_is_shared_is_found_in_lists_of_any_length() {
        let claim = Claim::on(nodes(&[7, 2, 5]));
        for shared in [&[2][..], &[0, 7], &[1, 3, 4, 5, 6], &[2, 5, 7]] {
            assert!(claim.is_on_any_of(&nodes(shared)), "{shared:?}");
        }
        for apart in [&[3][..], &[], &[0, 1, 3, 4, 6, 8]] {
            assert!(!claim.is_on_any_of(&nodes(apart)), "{apart:?}");
        }
        assert!(!Claim::on(Vec::new()).is_on_any_of(&nodes(&[1])));
    }
}
