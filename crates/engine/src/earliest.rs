//! When a request that does not fit now would be admitted first.
//!
//! For named nodes the slot tables answer exactly. For any nodes, the search goes from one instant to
//! the next at which something can have changed for the better: it asks each group of nodes that are
//! alike when they have the CPU, the disk rates and the rates of their own links next, goes to the
//! time at which enough nodes have them, and lets the allocator judge. Where links between switches
//! are in the way, it goes on to the time at which the one that limits has room. What it finds is
//! always admitted then, on nodes that are away too, for which offers have the rule of requests (`absences`); it may miss
//! an earlier start where uplinks are scarce, and gives up after [`ROUNDS_MAX`].

use crate::admission::{Admission, Need, of_any_rank};
use crate::cluster::Resource;
use keeptime_calendar::{Demand, Span, When};
use keeptime_model::goal::{Goal, Preference};
use keeptime_model::pattern::Pattern;
use keeptime_model::reservation::{Ask, Grant, NodeChoice};
use keeptime_model::topology::NodeIndex;
use keeptime_model::units::WallTime;
use keeptime_planner::translate::{Options, Verdict, schedule};

/// Instants that are looked at: each costs a look at every group of nodes (at most a fifth of a
/// millisecond for a thousand), so the answer comes within milliseconds.
const ROUNDS_MAX: usize = 64;

impl Admission<'_> {
    /// The earliest start in `when` at which `ask` would be granted, and what.
    pub fn earliest(&self, ask: &Ask, when: When) -> Option<(WallTime, Grant)> {
        let need = self.least_need(ask)?;
        match &need.resources.nodes {
            NodeChoice::Named(nodes) => {
                let nodes_at = self.cluster.all_of(nodes).ok()?.into_iter();
                let after =
                    nodes_at.map(|node| self.counts_from(node)).fold(when.after, WallTime::max);
                // What is drained, refuses it, or is kept for others may be so at any start.
                self.check_usable(nodes, &self.guarantees(&need.resources), after).ok()?;
                self.earliest_on(need.on(nodes.clone()), When { after, ..when })
            }
            NodeChoice::Any(count) => self.earliest_anywhere(&need, *count, when),
        }
    }

    /// The fewest resources that satisfy `ask`, were the cluster idle.
    pub fn least_need<'n>(&self, ask: &'n Ask) -> Option<Need<'n>> {
        let Ask::Goal { application, goal } = ask else { return ask.resources().map(Need::of) };
        let profile = self.profile(application).ok()?;
        let goal = Goal { prefer: Preference::Cheapest, ..goal.clone() };
        let now = Span::since(WallTime::default());
        let idle = self.free(now, &Need::least_of(profile)).emptied();
        let decision = schedule(&goal, profile, self.cluster.index(), &idle, &Options::default());
        match decision.verdict {
            Verdict::Planned(plan) => Some(Need::of_plan(profile, &plan)),
            Verdict::Refused(_) => None,
        }
    }

    fn earliest_on(&self, grant: Grant, when: When) -> Option<(WallTime, Grant)> {
        let demands = self.demands(&grant).ok()?;
        let start = self.calendar.earliest_fit(when, &demands).ok().flatten()?;
        Some((start, grant))
    }

    fn earliest_anywhere(
        &self,
        need: &Need<'_>,
        count: u32,
        when: When,
    ) -> Option<(WallTime, Grant)> {
        let degrees = least_degrees(need.resources.pattern.as_ref(), count);
        let mut when = when;
        for _ in 0..ROUNDS_MAX {
            let start = self.enough_nodes(need, degrees, count, when)?;
            let next = if start > when.after {
                start
            } else {
                match self.placed_at(need, count, when)? {
                    (next, Some(grant)) if next == when.after => return Some((next, grant)),
                    (next, _) => next,
                }
            };
            when.after = next;
        }
        None
    }

    /// A placement at `when.after`, and when it fits with all else; or when the link that is in the
    /// way has room.
    fn placed_at(
        &self,
        need: &Need<'_>,
        count: u32,
        when: When,
    ) -> Option<(WallTime, Option<Grant>)> {
        let span = Span::lasting(when.after, when.duration);
        let placed = self.best(need, count, span).ok()?;
        if placed.rate >= need.resources.bits_per_second {
            // The user's own tables may have room later.
            let (start, grant) = self.earliest_on(need.on(self.names(&placed.nodes)), when)?;
            return Some((start, Some(grant)));
        }
        let narrow = placed.bottleneck?;
        let amount = need.resources.bits_per_second.checked_mul(narrow.flows)?.get();
        let table = self.calendar.table(self.cluster.table(Resource::Link(narrow.direction)))?;
        Some((table.earliest_fit(when, amount)?, None))
    }

    /// The earliest time at which `count` nodes may have what each needs of its own: they have, if it is that of `when`.
    fn enough_nodes(
        &self,
        need: &Need<'_>,
        degrees: [u64; 2],
        count: u32,
        when: When,
    ) -> Option<WallTime> {
        let groups = self.cluster.groups(self.calendar);
        let mut starts: Vec<_> = groups
            .filter_map(|group| {
                let demands = self.of_node(need, degrees, group.any()?);
                Some((self.calendar.earliest_fit(when, &demands).ok()??, group))
            })
            .collect();
        starts.sort_unstable_by_key(|(start, _)| *start);
        let asked = self.guarantees(&need.resources);
        let nodes = starts.into_iter().flat_map(|(start, group)| {
            let usable = group.nodes().filter(|node| self.may_be_usable(*node, &asked));
            usable.map(move |node| (start, self.counts_from(node)))
        });
        nth_start(nodes, count)
    }

    /// What a node needs of its own CPU, disk and link, whichever rank it gets: at least so many flows
    /// out of it and into it.
    fn of_node(&self, need: &Need<'_>, [sent, received]: [u64; 2], node: NodeIndex) -> Vec<Demand> {
        let rate = need.resources.bits_per_second.get();
        let mut amounts = of_any_rank(&need.resources, node).to_vec();
        if let Some([out, back]) = self.cluster.access(node) {
            amounts.push((Resource::Link(out), rate.saturating_mul(sent)));
            amounts.push((Resource::Link(back), rate.saturating_mul(received)));
        }
        let taken = amounts.into_iter().filter(|(_, amount)| *amount > 0);
        taken.map(|(of, amount)| Demand::new(self.cluster.table(of), amount)).collect()
    }
}

/// When `count` of these nodes may be had, of each of which it is said when it has room, in that order, and from when on it
/// counts. One that counts later than it has room may have none any more then: that is seen when it is looked at from there.
fn nth_start(
    nodes: impl IntoIterator<Item = (WallTime, WallTime)>,
    count: u32,
) -> Option<WallTime> {
    let (mut starts, mut in_time) = (Vec::new(), 0);
    for (has_room, counts) in nodes {
        starts.push(has_room.max(counts));
        in_time += u32::from(counts <= has_room);
        // All others are later than that.
        if in_time == count {
            break;
        }
    }
    let last = (count as usize).checked_sub(1).filter(|last| *last < starts.len())?;
    Some(*starts.select_nth_unstable(last).1)
}

/// The least number of flows out of any rank, and into any.
fn least_degrees(pattern: Option<&Pattern>, ranks: u32) -> [u64; 2] {
    // Only this one grows so fast that it should not be listed to be counted.
    if pattern == Some(&Pattern::AllToAll) {
        return [u64::from(ranks.saturating_sub(1)); 2];
    }
    let flows = pattern.and_then(|pattern| pattern.flows(ranks).ok()).unwrap_or_default();
    let mut degrees = vec![[0u64; 2]; ranks as usize];
    for flow in flows {
        degrees[flow.from as usize][0] += 1;
        degrees[flow.to as usize][1] += 1;
    }
    [0, 1].map(|way| degrees.iter().map(|degree| degree[way]).min().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use keeptime_model::pattern::RANKS_MAX;

    #[test]
    fn what_every_rank_has_of_flows_is_counted_as_if_it_were_listed() {
        for ranks in 1..=9 {
            let listed = Pattern::AllToAll.flows(ranks).unwrap();
            let matrix = Pattern::Matrix(listed.into_iter().collect());
            let counted = least_degrees(Some(&Pattern::AllToAll), ranks);
            assert_eq!(counted, least_degrees(Some(&matrix), ranks), "{ranks} ranks");
        }
        let out_of_one: Pattern = "0>1 0>2 1>0".parse().unwrap();
        assert_eq!(least_degrees(Some(&out_of_one), 3), [0, 1]);
        assert_eq!(least_degrees(None, 3), [0, 0]);
        // Nobody waits for seventeen million flows.
        assert_eq!(least_degrees(Some(&Pattern::AllToAll), RANKS_MAX), [4_095; 2]);
    }
}
