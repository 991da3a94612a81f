//! Less than what was refused, at the same time: what would be admitted of resources that are not to be
//! had.
//!
//! Every offer was tried on the slot tables, so that it is admitted unless somebody is quicker. The
//! bandwidth is the greatest that the links of the best nodes hold, in kbit/s. Numbers of nodes are tried by
//! halves, [`PROBES_MAX`] of them: where more nodes fit than fewer do, which other reservations can
//! bring about, a greater number may be missed.

use crate::admission::{Admission, Need, Unplaced};
use crate::cluster::Resource;
use crate::refusal::{Less, ResourceOffer};
use keeptime_calendar::{ResourceId, Span};
use keeptime_model::reservation::{Grant, NodeChoice, Resources};
use keeptime_model::units::BitsPerSecond;
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Numbers of nodes that are tried: each costs what placing them costs, a fifth of a millisecond among a
/// thousand nodes. Six find the greatest of 63.
const PROBES_MAX: usize = 6;

impl Admission<'_> {
    /// Less than `asked` that would be granted over `span`.
    pub fn less(&self, asked: &Resources, span: Span) -> Vec<ResourceOffer> {
        let offer = |change, found: Option<Resources>| {
            found.map(|resources| ResourceOffer { change, resources })
        };
        let fewer = offer(Less::FewerNodes, self.fewer_nodes(asked, span));
        let slower = offer(Less::LessBandwidth, self.less_bandwidth(asked, span));
        fewer.into_iter().chain(slower).collect()
    }

    fn fewer_nodes(&self, asked: &Resources, span: Span) -> Option<Resources> {
        let NodeChoice::Any(count) = asked.nodes else { return None };
        // Which ranks are left out, and what they leave to the others to do, nobody knows: each has what any had.
        let of = |number| Resources {
            nodes: NodeChoice::Any(number),
            rank_cpu_ppm: Vec::new(),
            ..asked.clone()
        };
        let fits = |number| {
            let need = Need::of(Cow::Owned(of(number)));
            let placed = self.choose(&need, number, span).ok()?;
            self.fits(&need.on(self.names(&placed.nodes)), span).ok()?;
            Some(need.resources.into_owned())
        };
        let as_asked = Need::of(Cow::Borrowed(asked));
        let most = match self.choose(&as_asked, count, span) {
            Err(Unplaced::TooFew(few)) => few.free,
            _ => u32::MAX,
        };
        let (mut low, mut high) = (1, most.min(count.checked_sub(1)?));
        // The greatest first: where nodes are what is short, it fits.
        let (mut next, mut found) = (high, None);
        for _ in 0..PROBES_MAX {
            if low > high {
                break;
            }
            let number = match &asked.pattern {
                Some(pattern) => pattern.ranks_at_most(next),
                None => Some(next),
            };
            match number.filter(|number| *number >= low) {
                None => low = next + 1,
                Some(number) => match fits(number) {
                    Some(resources) => (low, found) = (number + 1, Some(resources)),
                    None => high = number - 1,
                },
            }
            next = low + high.saturating_sub(low).div_ceil(2);
        }
        found
    }

    fn less_bandwidth(&self, asked: &Resources, span: Span) -> Option<Resources> {
        asked.pattern.as_ref()?;
        let at =
            |bits_per_second| Need::of(Cow::Owned(Resources { bits_per_second, ..asked.clone() }));
        let least = at(BitsPerSecond::new(1));
        let nodes = match &asked.nodes {
            NodeChoice::Named(names) => {
                self.check_usable(names, &self.guarantees(asked), span.from()).ok()?;
                names.clone()
            }
            NodeChoice::Any(count) => {
                let placed = self.best(&least, *count, span).ok()?;
                self.names(&placed.nodes)
            }
        };
        let rate = in_whole_kilobits(self.held_rate(&least.on(nodes.clone()), span)?)?;
        let offered = at(rate);
        let is_less = rate < asked.bits_per_second;
        let is_had = is_less && self.fits(&offered.on(nodes), span).is_ok();
        is_had.then(|| offered.resources.into_owned())
    }

    /// The greatest rate of each flow that the links and the user's share hold; nothing if none flows. `grant` has 1 bit/s
    /// for each: what they take of a link is how many cross it.
    pub fn held_rate(&self, grant: &Grant, span: Span) -> Option<BitsPerSecond> {
        let mut flows = BTreeMap::<ResourceId, u64>::new();
        for demand in self.demands(grant).ok()? {
            let of_link = matches!(self.cluster.resource(demand.resource), Some(Resource::Link(_)));
            let of_user = self.user.is_some_and(|[_, of_sent]| of_sent == demand.resource);
            if of_link || of_user {
                *flows.entry(demand.resource).or_default() += demand.amount;
            }
        }
        let holds = |(resource, flows): (ResourceId, u64)| {
            let free = self.calendar.table(resource)?.least_free(span);
            free.checked_div(flows)
        };
        flows.into_iter().filter_map(holds).min().map(BitsPerSecond::new)
    }
}

/// A rate as people would ask for it; nothing is none.
fn in_whole_kilobits(rate: BitsPerSecond) -> Option<BitsPerSecond> {
    let rate = rate.get();
    let rate = if rate < 1_000 { rate } else { rate - rate % 1_000 };
    (rate > 0).then(|| BitsPerSecond::new(rate))
}
