//! What a reservation takes over time, and what it takes more than in another form (pure).

use keeptime_calendar::calendar::Held;
use keeptime_calendar::{Demand, ResourceId, Span};
use std::collections::BTreeMap;

/// The same demands during a span.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Piece {
    pub span: Span,
    pub demands: Vec<Demand>,
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

/// What `one` demands more than `other`, resource by resource.
fn difference(one: &[Demand], other: &[Demand]) -> Vec<Demand> {
    let other = sums(other);
    let more = |(resource, amount): (ResourceId, u64)| {
        let beside = other.get(&resource).copied().unwrap_or(0);
        let more = amount.saturating_sub(beside);
        (more > 0).then(|| Demand::new(resource, more))
    };
    sums(one).into_iter().filter_map(more).collect()
}

fn sums(demands: &[Demand]) -> BTreeMap<ResourceId, u64> {
    let mut sums = BTreeMap::<ResourceId, u64>::new();
    for demand in demands {
        let sum = sums.entry(demand.resource).or_default();
        *sum = sum.saturating_add(demand.amount);
    }
    sums
}
