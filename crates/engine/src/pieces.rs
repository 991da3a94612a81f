//! What a reservation takes over time, and what it takes more than in another form (pure).

use keeptime_calendar::calendar::Held;
use keeptime_calendar::{Demand, ResourceId, Span};
use keeptime_model::units::{CpuPpm, Nanos, WallTime};
use std::sync::Arc;

/// The same demands during a span.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Piece {
    pub span: Span,
    pub demands: Vec<Demand>,
}

impl From<Piece> for Held {
    fn from(Piece { span, demands }: Piece) -> Self {
        Self { span, demands: demands.into() }
    }
}

/// What a malleable reservation takes, whatever share of its nodes' CPU it has.
#[derive(Debug, Clone)]
pub(crate) struct Elastic {
    /// With `share`: each resource once, in ascending order.
    demands: Arc<[Demand]>,
    /// Of each of its nodes.
    share: u64,
    /// It takes no less than this, whatever it has: its program asked for it.
    least: u64,
}

impl Elastic {
    /// Of what is held with `share`; no less is held of a node than `least`.
    pub fn new(held: &Held, share: CpuPpm, least: CpuPpm) -> Self {
        let (share, least) = (share.max(least).get().into(), least.get().into());
        Self { demands: Arc::clone(&held.demands), share, least }
    }

    /// With `share` of each node, where `is_cpu` tells tables of CPU.
    pub fn with(&self, share: CpuPpm, is_cpu: impl Fn(ResourceId) -> bool) -> Vec<Demand> {
        let share = u64::from(share.get()).max(self.least);
        let with = |demand: &Demand| match is_cpu(demand.resource) {
            true => Demand::new(demand.resource, self.times(demand) * share),
            false => *demand,
        };
        self.demands.iter().map(with).collect()
    }

    /// All of which it has its share, and how many times: of a node's CPU once, of its user's once for each node.
    pub fn shares(
        &self,
        is_cpu: impl Fn(ResourceId) -> bool,
    ) -> impl Iterator<Item = (ResourceId, u64)> {
        let of_cpu = self.demands.iter().filter(move |demand| is_cpu(demand.resource));
        of_cpu.map(|demand| (demand.resource, self.times(demand)))
    }

    fn times(&self, demand: &Demand) -> u64 {
        demand.amount / self.share.max(1)
    }
}

/// The parts of a span before and from `turn` on; all of it where that is not within.
pub(crate) fn parted(span: Span, turn: Option<WallTime>) -> Vec<Span> {
    match turn.filter(|turn| span.contains(Span::lasting(*turn, Nanos::new(0)))) {
        Some(turn) => {
            let parts = [span.before(turn), span.after(turn)];
            parts.into_iter().filter(|part| !part.is_empty()).collect()
        }
        None => vec![span],
    }
}

/// What `new` takes more than `old` at every instant. The pieces of each follow one another and do not overlap.
pub(crate) fn more_than(old: &[Held], new: Vec<Piece>) -> Vec<Piece> {
    let mut more = Vec::new();
    let mut take = |span: Span, demands: Vec<Demand>| {
        if !span.is_empty() && !demands.is_empty() {
            more.push(Piece { span, demands });
        }
    };
    for Piece { span, demands } in new {
        // What comes to more than a number can say is refused as it is, when it is to be held.
        let demands = Demand::merged(&demands).unwrap_or(demands);
        let mut rest = Some(span);
        for held in old {
            let Some(left) = rest.filter(|left| left.overlaps(held.span)) else { continue };
            take(left.before(held.span.from()), demands.clone());
            let both = left.after(held.span.from());
            let both = held.span.to().map_or(both, |to| both.before(to));
            take(both, difference(&demands, &held.demands));
            rest = held.span.to().map(|to| left.after(to));
        }
        if let Some(left) = rest {
            take(left, demands);
        }
    }
    more
}

/// What `one` demands more than `other`, both of each resource once, in ascending order.
fn difference(one: &[Demand], other: &[Demand]) -> Vec<Demand> {
    let mut beside = other.iter().peekable();
    let more = |demand: &Demand| {
        while beside.next_if(|other| other.resource < demand.resource).is_some() {}
        let other = beside.next_if(|other| other.resource == demand.resource);
        let more = demand.amount.saturating_sub(other.map_or(0, |other| other.amount));
        (more > 0).then(|| Demand::new(demand.resource, more))
    };
    one.iter().filter_map(more).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(nanos: u64) -> WallTime {
        WallTime::from_unix_nanos(nanos)
    }

    /// One after the other, of two resources; where nothing is taken there is none.
    fn any_pieces() -> impl Strategy<Value = Vec<Piece>> {
        let piece = (0u64..5, 1u64..10, 0u64..4, 0u64..4);
        let pieces = prop::collection::vec(piece, 0..4);
        (pieces, any::<bool>()).prop_map(|(pieces, is_endless)| {
            let mut from = 0;
            let mut all: Vec<_> = pieces
                .into_iter()
                .map(|(gap, lasts, one, other)| {
                    let start = from + gap;
                    from = start + lasts;
                    let amounts = [(0, one), (1, other)].into_iter().filter(|(_, n)| *n > 0);
                    let demands = amounts.map(|(id, n)| Demand::new(ResourceId(id), n)).collect();
                    Piece { span: Span::new(at(start), at(from)).unwrap(), demands }
                })
                .collect();
            if let Some(last) = all.last_mut().filter(|_| is_endless) {
                last.span = Span::since(last.span.from());
            }
            all
        })
    }

    fn taken(pieces: &[Piece], resource: u32, instant: u64) -> u64 {
        let moment = Span::new(at(instant), at(instant + 1)).unwrap();
        let there = pieces.iter().filter(|piece| piece.span.contains(moment));
        let demands = there.flat_map(|piece| &piece.demands);
        demands.filter(|demand| demand.resource.0 == resource).map(|demand| demand.amount).sum()
    }

    // 30 % of two nodes, of which its user has 60 % so; resource 9 is a link, and 20 % are asked for by the program.
    #[test]
    fn only_cpu_follows_the_share() {
        let demands = [(3, 300_000), (6, 300_000), (9, 77), (12, 600_000)];
        let demands = demands.map(|(id, amount)| Demand::new(ResourceId(id), amount));
        let held = Held { span: Span::since(at(0)), demands: demands.into() };
        let elastic = Elastic::new(&held, CpuPpm::from_percent(30), CpuPpm::from_percent(20));
        let is_cpu = |id: ResourceId| id.0 != 9;
        let amounts = |percent| {
            let demands = elastic.with(CpuPpm::from_percent(percent), is_cpu);
            demands.iter().map(|demand| demand.amount).collect::<Vec<_>>()
        };
        assert_eq!(amounts(30), demands.map(|demand| demand.amount));
        assert_eq!(amounts(40), [400_000, 400_000, 77, 800_000]);
        assert_eq!(amounts(10), [200_000, 200_000, 77, 400_000]);
        let shares: Vec<_> = elastic.shares(is_cpu).map(|(id, times)| (id.0, times)).collect();
        assert_eq!(shares, [(3, 1), (6, 1), (12, 2)]);
    }

    proptest! {
        // Goal: what is held beside is just what is missing of the greater of two forms, and nothing where there is
        // enough. Method: instant by instant.
        #[test]
        fn both_together_are_the_greater_at_every_instant(old in any_pieces(), new in any_pieces()) {
            let held = |piece: &Piece| Held { span: piece.span, demands: piece.demands.clone().into() };
            let held: Vec<_> = old.iter().map(held).collect();
            let more = more_than(&held, new.clone());
            prop_assert!(more.iter().all(|piece| !piece.span.is_empty() && !piece.demands.is_empty()));
            for (instant, resource) in (0..60).flat_map(|instant| [(instant, 0), (instant, 1)]) {
                let [old, new, more] = [&old, &new, &more].map(|all| taken(all, resource, instant));
                prop_assert_eq!(old + more, old.max(new), "at {}", instant);
            }
        }
    }
}
