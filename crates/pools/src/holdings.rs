//! Who serves what, what is on its way, and what is reserved to which plan.

use crate::plan::{PlanId, Step};
use crate::pool::SiteIndex;
use keeptime_model::topology::NodeIndex;
use keeptime_model::units::Nanos;
use serde::{Deserialize, Serialize};

/// Where a node is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Place {
    /// It serves nobody.
    Spare,
    /// It serves this site.
    Serving(SiteIndex),
    /// It gets no new requests of this site and has not ended all old ones, or nobody counts on it any more.
    Leaving(SiteIndex),
    /// It does not answer.
    Down,
}

/// What a node is kept for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Reservation {
    /// By this plan.
    pub plan: PlanId,
    /// It goes to this site, or becomes a spare.
    pub to: Option<SiteIndex>,
    /// Whether it was told to go; else it waits for the plan's step before.
    pub started: bool,
}

/// The end of a node's last move.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LastMove {
    /// Where it came from.
    pub from: Option<SiteIndex>,
    /// When it arrived.
    pub at: Nanos,
}

/// All nodes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Holdings {
    places: Vec<Place>,
    reserved: Vec<Option<Reservation>>,
    /// Whether no plan may take it now, wherever it is.
    barred: Vec<bool>,
    last: Vec<Option<LastMove>>,
}

/// One site's nodes, counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Count {
    /// Serve it now.
    pub serving: u32,
    /// Serve it now and are not reserved for another.
    pub staying: u32,
    /// Are reserved for it and do not serve it yet.
    pub coming: u32,
}

impl Count {
    /// What the site will have when all plans have ended.
    pub fn expected(self) -> u32 {
        self.staying + self.coming
    }
}

impl Holdings {
    /// Every node at its place, none reserved.
    pub fn new(places: Vec<Place>) -> Self {
        let (reserved, last) = (vec![None; places.len()], vec![None; places.len()]);
        let barred = vec![false; places.len()];
        Self { places, reserved, barred, last }
    }

    /// Where `node` is.
    pub fn place(&self, node: NodeIndex) -> Place {
        self.places[node.0 as usize]
    }

    /// What `node` is kept for.
    pub fn reservation(&self, node: NodeIndex) -> Option<Reservation> {
        self.reserved[node.0 as usize]
    }

    /// Whether no plan may take `node` now.
    pub fn is_barred(&self, node: NodeIndex) -> bool {
        self.barred[node.0 as usize]
    }

    /// The last move of `node`.
    pub fn last_move(&self, node: NodeIndex) -> Option<LastMove> {
        self.last[node.0 as usize]
    }

    /// All nodes and where they are.
    pub fn nodes(&self) -> impl Iterator<Item = (NodeIndex, Place)> {
        (0..).map(NodeIndex).zip(self.places.iter().copied())
    }

    /// Nodes that a plan may take: they serve or are spare, are not barred, and no other plan has them. Where
    /// they are: a site, or nothing for spares.
    pub fn movable(&self) -> impl Iterator<Item = (NodeIndex, Option<SiteIndex>)> {
        let free = self.nodes().filter(|(node, _)| self.is_free(*node));
        free.filter_map(|(node, place)| match place {
            Place::Spare => Some((node, None)),
            Place::Serving(site) => Some((node, Some(site))),
            Place::Leaving(_) | Place::Down => None,
        })
    }

    fn is_free(&self, node: NodeIndex) -> bool {
        self.reservation(node).is_none() && !self.is_barred(node)
    }

    /// The nodes of each of `sites` sites, counted.
    pub fn counts(&self, sites: usize) -> Vec<Count> {
        let mut counts = vec![Count::default(); sites];
        for (place, reserved) in self.places.iter().zip(&self.reserved) {
            if let Place::Serving(site) = place {
                let count = &mut counts[site.0 as usize];
                count.serving += 1;
                count.staying += u32::from(reserved.is_none());
            }
            if let Some(Reservation { to: Some(site), .. }) = reserved {
                counts[site.0 as usize].coming += 1;
            }
        }
        counts
    }

    pub(crate) fn is_legal(&self, step: &Step) -> bool {
        let at = step.from.map_or(Place::Spare, Place::Serving);
        self.place(step.node) == at && self.reservation(step.node).is_none() && step.from != step.to
    }

    pub(crate) fn reserve(&mut self, step: &Step, plan: PlanId) {
        *self.reserved_mut(step.node) = Some(Reservation { plan, to: step.to, started: false });
    }

    /// The node leaves.
    pub(crate) fn start(&mut self, step: &Step) {
        if let Some(reservation) = self.reserved_mut(step.node) {
            reservation.started = true;
        }
        if let Some(site) = step.from {
            *self.place_mut(step.node) = Place::Leaving(site);
        }
    }

    /// The node has arrived.
    pub(crate) fn finish(&mut self, step: &Step, now: Nanos) {
        *self.reserved_mut(step.node) = None;
        *self.place_mut(step.node) = step.to.map_or(Place::Spare, Place::Serving);
        self.last[step.node.0 as usize] = Some(LastMove { from: step.from, at: now });
    }

    /// The node stays, or is again, where it was.
    pub(crate) fn undo(&mut self, step: &Step) {
        *self.reserved_mut(step.node) = None;
        *self.place_mut(step.node) = step.from.map_or(Place::Spare, Place::Serving);
    }

    pub(crate) fn set_down(&mut self, node: NodeIndex) {
        *self.reserved_mut(node) = None;
        *self.place_mut(node) = Place::Down;
    }

    pub(crate) fn set_barred(&mut self, node: NodeIndex, is_barred: bool) {
        self.barred[node.0 as usize] = is_barred;
    }

    pub(crate) fn set_place(&mut self, node: NodeIndex, place: Place) {
        *self.place_mut(node) = place;
    }

    fn place_mut(&mut self, node: NodeIndex) -> &mut Place {
        &mut self.places[node.0 as usize]
    }

    fn reserved_mut(&mut self, node: NodeIndex) -> &mut Option<Reservation> {
        &mut self.reserved[node.0 as usize]
    }
}
