//! What reservations are found and counted by. Nothing in it but what follows from them and from what was asked for them at
//! first: whatever changes one takes it out before and puts it in after that.

use crate::book::Reservation;
use crate::weight;
use keeptime_model::name::Name;
use keeptime_model::reservation::{Ask, Handle, Request, RequestKey, State, UserName};
use keeptime_model::site::SiteNode;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Index {
    /// Under which handle a user's key was used.
    pub keys: BTreeMap<(UserName, RequestKey), Handle>,
    /// By which reservation a lost one was replaced.
    pub successors: BTreeMap<Handle, Handle>,
    /// How many reservations stand where.
    pub states: BTreeMap<State, u64>,
    /// What all reservations of each user take of memory, about, in bytes; with what was asked at first.
    pub weights: BTreeMap<UserName, u64>,
    /// Those that are live.
    pub live: BTreeSet<Handle>,
    /// How many of them each user has.
    pub live_of: BTreeMap<UserName, u64>,
    /// Those of them that may become slower or faster.
    pub malleable: BTreeSet<Handle>,
    /// By which of them a node serves a site.
    pub site_nodes: BTreeMap<Name, Handle>,
}

impl Index {
    /// `original`: what was asked at first, if that was changed since. O(log n).
    pub fn add(&mut self, one: &Reservation, original: Option<&Request>) {
        let Reservation { handle, owner, key, state, .. } = one;
        self.keys.insert((owner.clone(), key.clone()), *handle);
        if let Some(lost) = one.replaces {
            self.successors.insert(lost, *handle);
        }
        add(&mut self.states, *state, 1);
        add(&mut self.weights, owner.clone(), weight(one, original));
        if !state.is_live() {
            return;
        }
        self.live.insert(*handle);
        add(&mut self.live_of, owner.clone(), 1);
        if one.request.malleable.is_some() {
            self.malleable.insert(*handle);
        }
        if let Some(asked) = as_site_node(one) {
            self.site_nodes.insert(asked.node.clone(), *handle);
        }
    }

    /// Undoes [`Index::add`], to which the same was given. O(log n).
    pub fn remove(&mut self, one: &Reservation, original: Option<&Request>) {
        let Reservation { handle, owner, key, state, .. } = one;
        self.keys.remove(&(owner.clone(), key.clone()));
        if let Some(lost) = one.replaces {
            self.successors.remove(&lost);
        }
        take(&mut self.states, state, 1);
        take(&mut self.weights, owner, weight(one, original));
        if !state.is_live() {
            return;
        }
        self.live.remove(handle);
        take(&mut self.live_of, owner, 1);
        self.malleable.remove(handle);
        if let Some(asked) = as_site_node(one) {
            self.site_nodes.remove(&asked.node);
        }
    }
}

/// What is asked, if it is a node for a web site.
pub(crate) fn as_site_node(reservation: &Reservation) -> Option<&SiteNode> {
    match &reservation.request.ask {
        Ask::SiteNode(asked) => Some(asked),
        Ask::Goal { .. } | Ask::Resources(_) => None,
    }
}

fn weight(one: &Reservation, original: Option<&Request>) -> u64 {
    weight::of_reservation(one) + original.map_or(0, weight::of_request)
}

fn add<K: Ord>(sums: &mut BTreeMap<K, u64>, of: K, amount: u64) {
    *sums.entry(of).or_default() += amount;
}

/// Of what nothing is left nothing is said.
fn take<K: Ord>(sums: &mut BTreeMap<K, u64>, of: &K, amount: u64) {
    if let Some(sum) = sums.get_mut(of) {
        *sum = sum.saturating_sub(amount);
        if *sum == 0 {
            sums.remove(of);
        }
    }
}
