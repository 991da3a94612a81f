//! What the events add up to: every application, reservation and web site, and which nodes are drained. The same
//! events in the same order give the same book.

use crate::event::{Event, Modified};
use crate::refusal::Refusal;
use crate::weight;
use keeptime_model::Invalid;
use keeptime_model::application::Application;
use keeptime_model::drain::Drained;
use keeptime_model::loss::OnLoss;
use keeptime_model::name::Name;
use keeptime_model::profile::Profile;
use keeptime_model::reservation::{Ask, Grant, Handle, Request, RequestKey, State, UserName};
use keeptime_model::run_end::RunEnd;
use keeptime_model::site::{HostedSite, SiteNode, SiteSpec};
use keeptime_model::units::{Bytes, WallTime};
use keeptime_planner::drift::{Observation, RUNS};
use keeptime_planner::fitted::FittedProfile;
use serde::{Deserialize, Serialize};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// All that is known of a reservation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reservation {
    /// Its handle.
    pub handle: Handle,
    /// Whose it is.
    pub owner: UserName,
    /// The key of its request.
    pub key: RequestKey,
    /// What was asked.
    pub request: Request,
    /// Where it stands.
    pub state: State,
    /// From when on.
    pub from_unix_nanos: WallTime,
    /// Until when; nothing = without an end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_unix_nanos: Option<WallTime>,
    /// What it holds, or held; nothing if it was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grant: Option<Grant>,
    /// Why it was refused, if it was; or why it waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<Refusal>,
    /// The lost reservation whose place it takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaces: Option<Handle>,
    /// Its place among those who wait for room; nothing once it is decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits: Option<Waits>,
    /// While it is live, nodes of it whose agents enforce none of it. That is not recorded of it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unenforced: Vec<Name>,
    /// How the run ended that gave it back; nothing if none did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<RunEnd>,
    /// When its state was last changed.
    pub since_unix_nanos: WallTime,
}

/// A place among those who wait for room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Waits {
    /// So many came first, with itself.
    pub place: u32,
    /// It waits until then at the most.
    pub until_unix_nanos: WallTime,
}

impl Reservation {
    /// The nodes that it holds, or held, in the order of its ranks; none if it was refused.
    pub fn nodes(&self) -> &[Name] {
        self.grant.as_ref().map(|grant| grant.nodes.as_slice()).unwrap_or_default()
    }
}

/// An application that requests can be about.
#[derive(Debug, Clone)]
pub struct Known {
    /// The application.
    pub application: Application,
    /// What was measured.
    pub profile: Profile,
    /// What the last runs took, oldest first.
    pub runs: Vec<Observation>,
    /// The profile, ready to be planned with, as the last runs say that things are now.
    pub fitted: Arc<FittedProfile>,
}

/// Every application, reservation and web site, and which nodes are drained.
#[derive(Debug, Clone, Default)]
pub struct Book {
    applications: BTreeMap<Name, Known>,
    /// Shared with snapshots that are being saved.
    reservations: BTreeMap<Handle, Arc<Reservation>>,
    keys: BTreeMap<(UserName, RequestKey), Handle>,
    /// What was asked at first, of reservations that were changed since.
    originals: BTreeMap<Handle, Request>,
    sites: BTreeMap<Name, HostedSite>,
    /// Which reservation a node serves a site by.
    site_nodes: BTreeMap<Name, Handle>,
    /// Nodes to which nothing new comes, those too that the cluster has not any more.
    drained: BTreeMap<Name, Drained>,
    /// By which reservation a lost one was replaced.
    successors: BTreeMap<Handle, Handle>,
    /// Lost ones that are to be moved, of which nothing has come yet.
    unmoved: BTreeSet<Handle>,
    /// How many reservations stand where.
    states: BTreeMap<State, u64>,
    /// Those that are live.
    live_handles: BTreeSet<Handle>,
    /// Live reservations of each user.
    live: BTreeMap<UserName, u32>,
    /// What all reservations of each user take of memory, about, in bytes; with what was asked at first.
    weights: BTreeMap<UserName, u64>,
    /// Live reservations that may become slower or faster.
    malleable: BTreeSet<Handle>,
    /// Greater than any handle that was given.
    next: u64,
}

/// A book as it is written down: what replaces all events before it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Snapshot {
    applications: Vec<(Application, Profile, Vec<Observation>)>,
    reservations: Vec<Arc<Reservation>>,
    #[serde(default)]
    originals: Vec<(Handle, Request)>,
    #[serde(default)]
    sites: Vec<HostedSite>,
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    unmoved: BTreeSet<Handle>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    drained: BTreeMap<Name, Drained>,
    next: u64,
}

impl Book {
    /// All applications, by name.
    pub fn applications(&self) -> &BTreeMap<Name, Known> {
        &self.applications
    }

    /// All reservations that are not forgotten.
    pub fn reservations(&self) -> &BTreeMap<Handle, Arc<Reservation>> {
        &self.reservations
    }

    /// Those of them that are live, by handle, without a look at what is over.
    pub fn live_reservations(&self) -> impl Iterator<Item = &Arc<Reservation>> {
        self.live_handles.iter().filter_map(|handle| self.reservations.get(handle))
    }

    /// How many reservations that are not forgotten stand where; of none nothing is said.
    pub fn states(&self) -> &BTreeMap<State, u64> {
        &self.states
    }

    /// All web sites, by name.
    pub fn sites(&self) -> &BTreeMap<Name, HostedSite> {
        &self.sites
    }

    /// A web site that is there and is not being removed.
    pub fn staying_site(&self, site: &Name) -> Option<&SiteSpec> {
        let hosted = self.sites.get(site).filter(|hosted| !hosted.is_leaving);
        hosted.map(|hosted| &hosted.spec)
    }

    /// By which reservation `node` serves a site, and which.
    pub fn site_node(&self, node: &Name) -> Option<(Handle, &SiteNode)> {
        let handle = *self.site_nodes.get(node)?;
        as_site_node(self.reservations.get(&handle)?).map(|asked| (handle, asked))
    }

    /// The nodes that serve `site`.
    pub fn nodes_of_site(&self, site: &Name) -> impl Iterator<Item = &Name> {
        let of_it =
            move |node: &&Name| self.site_node(node).is_some_and(|(_, asked)| asked.site == *site);
        self.site_nodes.keys().filter(of_it)
    }

    /// Nodes to which nothing new comes, by whom and why; those too that the cluster has not any more.
    pub fn drained(&self) -> &BTreeMap<Name, Drained> {
        &self.drained
    }

    /// Under which handle a user's key was used.
    pub fn find(&self, owner: &UserName, key: &RequestKey) -> Option<Handle> {
        self.keys.get(&(owner.clone(), key.clone())).copied()
    }

    /// The reservation that took the place of a lost one.
    pub fn successor(&self, lost: Handle) -> Option<Handle> {
        self.successors.get(&lost).copied()
    }

    /// Lost reservations that are to be moved, and neither were nor were refused that: a broker that is killed meanwhile
    /// leaves that to the next.
    pub(crate) fn unmoved(&self) -> &BTreeSet<Handle> {
        &self.unmoved
    }

    /// What was asked under the key of a reservation, whatever it was changed to since.
    pub fn original<'a>(&'a self, of: &'a Reservation) -> &'a Request {
        self.originals.get(&of.handle).unwrap_or(&of.request)
    }

    /// How many live reservations a user has.
    pub fn live(&self, owner: &UserName) -> u32 {
        self.live.get(owner).copied().unwrap_or(0)
    }

    /// What a user's reservations take of memory, about: those that are live, and those that are over and remembered.
    pub fn memory(&self, owner: &UserName) -> Bytes {
        Bytes::new(self.weights.get(owner).copied().unwrap_or(0))
    }

    /// Live reservations that may become slower or faster.
    pub(crate) fn malleable(&self) -> &BTreeSet<Handle> {
        &self.malleable
    }

    /// Greater than any handle that was given.
    pub(crate) fn next(&self) -> Handle {
        Handle::new(self.next.max(1))
    }

    /// Writes the book down. O(number of reservations), which are shared and not copied.
    pub fn snapshot(&self) -> Snapshot {
        let known =
            |known: &Known| (known.application.clone(), known.profile.clone(), known.runs.clone());
        let original = |(handle, request): (&Handle, &Request)| (*handle, request.clone());
        Snapshot {
            applications: self.applications.values().map(known).collect(),
            reservations: self.reservations.values().cloned().collect(),
            originals: self.originals.iter().map(original).collect(),
            sites: self.sites.values().cloned().collect(),
            unmoved: self.unmoved.clone(),
            drained: self.drained.clone(),
            next: self.next,
        }
    }

    /// Reads a book.
    ///
    /// # Errors
    /// If a profile cannot be planned with.
    pub fn restore(snapshot: Snapshot) -> Result<Self, Invalid> {
        let originals = snapshot.originals.into_iter().collect();
        let Snapshot { next, unmoved, drained, .. } = snapshot;
        let mut book = Self { next, originals, unmoved, drained, ..Self::default() };
        for (application, profile, runs) in snapshot.applications {
            book.register(application, profile, runs)?;
        }
        for reservation in snapshot.reservations {
            book.insert(reservation);
        }
        let original = |(handle, request): (&Handle, &Request)| {
            let owner = book.reservations.get(handle)?.owner.clone();
            Some((owner, weight::of_request(request)))
        };
        let originals: Vec<_> = book.originals.iter().filter_map(original).collect();
        for (owner, weight) in originals {
            book.weigh(&owner, weight, 0);
        }
        let named = |site: HostedSite| (site.spec.name.clone(), site);
        book.sites = snapshot.sites.into_iter().map(named).collect();
        Ok(book)
    }

    /// Writes down `event`, which happened at `time`.
    ///
    /// # Errors
    /// If a profile cannot be planned with. Nothing is changed then.
    pub(crate) fn apply(&mut self, event: &Event, time: WallTime) -> Result<(), Invalid> {
        match event {
            Event::Registered { application, profile } => {
                // Measured anew: how things are now is what the profile says.
                self.register((**application).clone(), (**profile).clone(), Vec::new())?;
            }
            Event::Granted { handle, granted } => self.insert(Reservation {
                handle: *handle,
                owner: granted.owner.clone(),
                key: granted.key.clone(),
                request: granted.request.clone(),
                state: State::Granted,
                from_unix_nanos: granted.from_unix_nanos,
                until_unix_nanos: granted.until_unix_nanos,
                grant: Some(granted.grant.clone()),
                refusal: None,
                replaces: granted.replaces,
                waits: None,
                unenforced: Vec::new(),
                run: None,
                since_unix_nanos: time,
            }),
            Event::Refused { handle, refused } => {
                if let Some(lost) = &refused.replaces {
                    self.unmoved.remove(lost);
                }
                self.insert(Reservation {
                    handle: *handle,
                    owner: refused.owner.clone(),
                    key: refused.key.clone(),
                    request: refused.request.clone(),
                    state: State::Refused,
                    from_unix_nanos: refused.request.from_unix_nanos.unwrap_or(time),
                    until_unix_nanos: None,
                    grant: None,
                    refusal: Some(refused.refusal.clone()),
                    // It did not take its place.
                    replaces: None,
                    waits: None,
                    unenforced: Vec::new(),
                    run: None,
                    since_unix_nanos: time,
                });
            }
            Event::Modified { handle, modified } => self.modify(*handle, modified),
            Event::Started { handle, .. } => self.turn(*handle, State::Active, time),
            Event::Ended { handle } => self.turn(*handle, State::Ended, time),
            Event::Finished { handle, run } => {
                self.turn(*handle, run.state(), time);
                if let Some(over) = self.reservations.get_mut(handle) {
                    Arc::make_mut(over).run = Some(*run);
                }
            }
            Event::Cancelled { handle, .. } | Event::Abandoned { handle } => {
                self.turn(*handle, State::Cancelled, time);
            }
            Event::Ran { handle, observation, .. } => {
                if let Some(observation) = observation {
                    self.learn(*handle, *observation);
                }
            }
            Event::Failed { handle, .. } => self.turn(*handle, State::Failed, time),
            Event::Lost { handle, instead, .. } => {
                if instead.is_some() && self.moves_on_loss(*handle) {
                    self.unmoved.insert(*handle);
                }
                self.turn(*handle, State::Lost, time);
            }
            Event::Forgotten { handle } => {
                self.unmoved.remove(handle);
                if let Some(old) = self.reservations.remove(handle) {
                    self.keys.remove(&(old.owner.clone(), old.key.clone()));
                    let original = self.originals.remove(handle);
                    let original = original.as_ref().map_or(0, weight::of_request);
                    self.weigh(&old.owner, 0, weight::of_reservation(&old) + original);
                    self.stands(*handle, Some(old.state), None);
                    if let Some(lost) = old.replaces {
                        self.successors.remove(&lost);
                    }
                }
            }
            Event::SiteAdded { site } => {
                let hosted = HostedSite { spec: (**site).clone(), is_leaving: false };
                self.sites.insert(site.name.clone(), hosted);
            }
            Event::SiteLeaving { site } => {
                if let Some(hosted) = self.sites.get_mut(site) {
                    hosted.is_leaving = true;
                }
            }
            Event::SiteRemoved { site } => drop(self.sites.remove(site)),
            Event::Drained { nodes, by, reason } => {
                for node in nodes {
                    let before = self.drained.get(node).map(|before| before.since_unix_nanos);
                    let since_unix_nanos = before.unwrap_or(time);
                    let drained =
                        Drained { by: by.clone(), since_unix_nanos, reason: reason.clone() };
                    self.drained.insert(node.clone(), drained);
                }
            }
            Event::Resumed { nodes, .. } => {
                self.drained.retain(|node, _| !nodes.contains(node));
            }
            Event::ClockAccepted { .. } => self.go_on_from(time),
        }
        Ok(())
    }

    /// Time goes on from here, before what was recorded by a clock that was ahead: what has begun, or was changed, did so by
    /// now, so that what runs is held from now on and not from then. O(reservations).
    fn go_on_from(&mut self, time: WallTime) {
        for reservation in self.reservations.values_mut() {
            let is_active = reservation.state == State::Active;
            let is_ahead = is_active && reservation.from_unix_nanos > time;
            // Others stay shared with snapshots that are being saved.
            if is_ahead || reservation.since_unix_nanos > time {
                let reservation = Arc::make_mut(reservation);
                reservation.since_unix_nanos = reservation.since_unix_nanos.min(time);
                if is_active {
                    reservation.from_unix_nanos = reservation.from_unix_nanos.min(time);
                }
            }
        }
        for drained in self.drained.values_mut() {
            drained.since_unix_nanos = drained.since_unix_nanos.min(time);
        }
    }

    /// Whether a reservation is moved when it is lost: as its request says, or else its application.
    fn moves_on_loss(&self, handle: Handle) -> bool {
        let Some(found) = self.reservations.get(&handle) else { return false };
        let of_application = || match &found.request.ask {
            Ask::Goal { application, .. } => {
                let known = self.applications.get(application)?;
                Some(known.application.on_loss())
            }
            Ask::Resources(_) | Ask::SiteNode(_) => None,
        };
        found.request.on_loss.or_else(of_application).unwrap_or_default() == OnLoss::Move
    }

    fn register(
        &mut self,
        application: Application,
        profile: Profile,
        runs: Vec<Observation>,
    ) -> Result<(), Invalid> {
        let fitted = FittedProfile::new(application.clone(), &profile)?;
        let fitted = Arc::new(fitted.following(&runs));
        let name = application.name().clone();
        self.applications.insert(name, Known { application, profile, runs, fitted });
        Ok(())
    }

    /// Promises of the application that a reservation was granted for follow one more run.
    fn learn(&mut self, handle: Handle, run: Observation) {
        let grant = self.reservations.get(&handle).and_then(|found| found.grant.as_ref());
        let Some(promise) = grant.and_then(|grant| grant.promise.as_ref()) else { return };
        let Some(known) = self.applications.get_mut(&promise.application) else { return };
        known.runs.push(run);
        let forgotten = known.runs.len().saturating_sub(RUNS);
        known.runs.drain(..forgotten);
        let fitted = FittedProfile::clone(&known.fitted);
        known.fitted = Arc::new(fitted.following(&known.runs));
    }

    fn modify(&mut self, handle: Handle, modified: &Modified) {
        let Some(reservation) = self.reservations.get_mut(&handle).map(Arc::make_mut) else {
            return;
        };
        let before = weight::of_reservation(reservation);
        let former = std::mem::replace(&mut reservation.request, modified.request.clone());
        reservation.from_unix_nanos = modified.from_unix_nanos;
        reservation.until_unix_nanos = modified.until_unix_nanos;
        reservation.grant = Some(modified.grant.clone());
        let (owner, after) = (reservation.owner.clone(), weight::of_reservation(reservation));
        match modified.request.malleable {
            Some(_) => self.malleable.insert(handle),
            None => self.malleable.remove(&handle),
        };
        let kept = match self.originals.entry(handle) {
            Entry::Vacant(place) => weight::of_request(place.insert(former)),
            Entry::Occupied(_) => 0,
        };
        self.weigh(&owner, after + kept, before);
    }

    /// A user's reservations take so much more, and so much less.
    fn weigh(&mut self, owner: &UserName, more: u64, less: u64) {
        let weight = self.weights.entry(owner.clone()).or_default();
        *weight = (*weight + more).saturating_sub(less);
        if *weight == 0 {
            self.weights.remove(owner);
        }
    }

    fn insert(&mut self, reservation: impl Into<Arc<Reservation>>) {
        let reservation = reservation.into();
        let handle = reservation.handle;
        self.weigh(&reservation.owner, weight::of_reservation(&reservation), 0);
        self.next = self.next.max(handle.number() + 1);
        self.keys.insert((reservation.owner.clone(), reservation.key.clone()), handle);
        if let Some(lost) = reservation.replaces {
            self.successors.insert(lost, handle);
            self.unmoved.remove(&lost);
        }
        if reservation.state.is_live() {
            if let Some(asked) = as_site_node(&reservation) {
                self.site_nodes.insert(asked.node.clone(), handle);
            }
            if reservation.request.malleable.is_some() {
                self.malleable.insert(handle);
            }
            *self.live.entry(reservation.owner.clone()).or_default() += 1;
        }
        let state = reservation.state;
        let former = self.reservations.insert(handle, reservation);
        self.stands(handle, former.map(|former| former.state), Some(state));
    }

    /// What is counted follows a reservation from one state to another; nothing = it is not there.
    fn stands(&mut self, handle: Handle, before: Option<State>, after: Option<State>) {
        if let Some(before) = before
            && let Some(count) = self.states.get_mut(&before)
        {
            *count -= 1;
            if *count == 0 {
                self.states.remove(&before);
            }
        }
        if let Some(after) = after {
            *self.states.entry(after).or_default() += 1;
        }
        match after.is_some_and(State::is_live) {
            true => self.live_handles.insert(handle),
            false => self.live_handles.remove(&handle),
        };
    }

    fn turn(&mut self, handle: Handle, state: State, time: WallTime) {
        let Some(reservation) = self.reservations.get_mut(&handle).map(Arc::make_mut) else {
            return;
        };
        let before = std::mem::replace(&mut reservation.state, state);
        let was_live = before.is_live();
        reservation.since_unix_nanos = time;
        if let Some(asked) = as_site_node(reservation).filter(|_| was_live && !state.is_live()) {
            self.site_nodes.remove(&asked.node);
        }
        if !state.is_live() {
            self.malleable.remove(&handle);
        }
        if was_live
            && !state.is_live()
            && let Some(live) = self.live.get_mut(&reservation.owner)
        {
            *live -= 1;
            if *live == 0 {
                self.live.remove(&reservation.owner);
            }
        }
        self.stands(handle, Some(before), Some(state));
    }
}

/// What is asked, if it is a node for a web site.
fn as_site_node(reservation: &Reservation) -> Option<&SiteNode> {
    match &reservation.request.ask {
        Ask::SiteNode(asked) => Some(asked),
        Ask::Goal { .. } | Ask::Resources(_) => None,
    }
}

impl PartialEq for Book {
    fn eq(&self, other: &Self) -> bool {
        self.snapshot() == other.snapshot()
    }
}
