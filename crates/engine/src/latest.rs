//! Until when a request that does not fit for as long as it is asked for would be admitted.
//!
//! For named nodes the slot tables answer exactly. For any nodes, the search begins where enough nodes have the CPU and
//! the disk rates up to, and comes nearer to the start by what is in the way first. Where links are scarce, it may miss a
//! later end on other nodes, and it gives up after [`ROUNDS_MAX`].

use crate::admission::{Admission, Need, Unplaced, of_any_rank};
use crate::cluster::Resource;
use keeptime_calendar::{ResourceId, Span};
use keeptime_model::reservation::{Ask, Grant, NodeChoice};
use keeptime_model::topology::NodeIndex;
use keeptime_model::units::WallTime;
use keeptime_planner::placement::Placed;

/// Ends that are tried: each costs what placing nodes costs, a fifth of a millisecond among a thousand.
const ROUNDS_MAX: usize = 16;
/// The end of what has none.
const NEVER: WallTime = WallTime::from_unix_nanos(u64::MAX);

/// What is in the way of a need during a span.
enum InTheWay {
    Nothing,
    /// Something, from then on.
    From(WallTime),
    /// What is no matter of time.
    Always,
}

impl Admission<'_> {
    /// The latest end, within `span` and after its start, until which `ask` would be granted from its start on. Nothing
    /// where all of `span` fits the fewest resources that will do, since time is not in the way then.
    pub fn latest(&self, ask: &Ask, span: Span) -> Option<WallTime> {
        let need = self.least_need(ask)?;
        let first = match &need.resources.nodes {
            NodeChoice::Named(_) => span,
            NodeChoice::Any(count) => span.before(self.enough_until(&need, *count, span)?),
        };
        let mut tried = first;
        for _ in 0..ROUNDS_MAX {
            if tried.is_empty() {
                return None;
            }
            match self.first_in_the_way(&need, tried) {
                InTheWay::From(at) => tried = tried.before(at),
                InTheWay::Nothing => return tried.to().filter(|_| tried != span),
                InTheWay::Always => return None,
            }
        }
        None
    }

    /// Until when `count` nodes have what each needs of its own CPU and disk.
    fn enough_until(&self, need: &Need<'_>, count: u32, span: Span) -> Option<WallTime> {
        let asked = self.guarantees(&need.resources);
        let is_usable = |node: &NodeIndex| self.is_usable(*node, &asked, span.from());
        let mut ends = Vec::new();
        for group in self.cluster.groups(self.calendar) {
            let own = group.any().map(|node| of_any_rank(&need.resources, node));
            let own = own.into_iter().flatten();
            let own = own.map(|(of, amount)| (self.cluster.table(of), amount));
            let end = self.first_lack(own, span).or(span.to()).unwrap_or(NEVER);
            ends.extend(group.nodes().filter(is_usable).map(|_| end));
        }
        ends.sort_unstable_by(|one, other| other.cmp(one));
        ends.get((count as usize).checked_sub(1)?).copied()
    }

    /// What is in the way of `need` first during `span`.
    fn first_in_the_way(&self, need: &Need<'_>, span: Span) -> InTheWay {
        let nodes = match &need.resources.nodes {
            NodeChoice::Named(names) => {
                let asked = self.guarantees(&need.resources);
                if self.check_usable(names, &asked, span.from()).is_err() {
                    return InTheWay::Always;
                }
                names.clone()
            }
            NodeChoice::Any(count) => match self.choose(need, *count, span) {
                Ok(placed) => self.names(&placed.nodes),
                Err(Unplaced::Slow(placed)) => {
                    return self.link_in_the_way(need, &placed, span).into();
                }
                Err(Unplaced::TooFew(_) | Unplaced::Invalid(_)) => return InTheWay::Always,
            },
        };
        self.table_in_the_way(&need.on(nodes), span)
    }

    /// When the link that makes `placed` too slow for `need` lacks something first.
    fn link_in_the_way(&self, need: &Need<'_>, placed: &Placed, span: Span) -> Option<WallTime> {
        let narrow = placed.bottleneck?;
        let amount = need.resources.bits_per_second.checked_mul(narrow.flows)?.get();
        let link = self.cluster.table(Resource::Link(narrow.direction));
        self.first_lack([(link, amount)], span)
    }

    /// What of its slot tables is in the way of `grant` first.
    fn table_in_the_way(&self, grant: &Grant, span: Span) -> InTheWay {
        let Ok(demands) = self.demands(grant) else { return InTheWay::Always };
        match self.calendar.fits(span, &demands) {
            Ok(()) => InTheWay::Nothing,
            Err(keeptime_calendar::Refusal::Lacks(lacks)) => {
                lacks.iter().map(|lacks| lacks.lack.first).min().into()
            }
            Err(_) => InTheWay::Always,
        }
    }

    /// When one of these slot tables has less than the amount first.
    fn first_lack(
        &self,
        amounts: impl IntoIterator<Item = (ResourceId, u64)>,
        span: Span,
    ) -> Option<WallTime> {
        let lack = |(table, amount)| self.calendar.table(table)?.lack(span, amount);
        amounts.into_iter().filter_map(lack).map(|lack| lack.first).min()
    }
}

impl From<Option<WallTime>> for InTheWay {
    fn from(first: Option<WallTime>) -> Self {
        first.map_or(Self::Always, Self::From)
    }
}
