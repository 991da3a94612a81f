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

/// Ends that are tried: each costs what placing nodes costs, a fifth of a millisecond among a thousand.
const ROUNDS_MAX: usize = 16;
/// The end of what has none.
const NEVER: WallTime = WallTime::from_unix_nanos(u64::MAX);

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
            match self.first_in_the_way(&need, tried)? {
                Some(at) => tried = tried.before(at),
                None => return tried.to().filter(|_| tried != span),
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

    /// When something is in the way of `need` first during `span`; nothing if nothing is. Nothing at all where it is not
    /// time that is in the way.
    fn first_in_the_way(&self, need: &Need<'_>, span: Span) -> Option<Option<WallTime>> {
        let nodes = match &need.resources.nodes {
            NodeChoice::Named(names) => {
                self.check_usable(names, &self.guarantees(&need.resources), span.from()).ok()?;
                names.clone()
            }
            NodeChoice::Any(count) => match self.choose(need, *count, span) {
                Ok(placed) => self.names(&placed.nodes),
                Err(Unplaced::Slow(placed)) => {
                    let narrow = placed.bottleneck?;
                    let amount = need.resources.bits_per_second.checked_mul(narrow.flows)?.get();
                    let link = self.cluster.table(Resource::Link(narrow.direction));
                    return self.first_lack([(link, amount)], span).map(Some);
                }
                Err(Unplaced::TooFew(_) | Unplaced::Invalid(_)) => return None,
            },
        };
        self.first_lack_of(&need.on(nodes), span)
    }

    /// When a slot table lacks something of `grant` first; nothing if none does.
    fn first_lack_of(&self, grant: &Grant, span: Span) -> Option<Option<WallTime>> {
        let demands = self.demands(grant).ok()?;
        match self.calendar.fits(span, &demands) {
            Ok(()) => Some(None),
            Err(keeptime_calendar::Refusal::Lacks(lacks)) => {
                lacks.iter().map(|lacks| lacks.lack.first).min().map(Some)
            }
            Err(_) => None,
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
