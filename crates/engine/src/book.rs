//! What the events add up to: every application, reservation and web site, and which nodes are drained. The same
//! events in the same order give the same book.

use crate::event::{Event, Granted, Modified, Refused};
use crate::index::{Index, as_site_node};
use crate::refusal::Refusal;
use keeptime_model::Invalid;
use keeptime_model::application::Application;
use keeptime_model::drain::{DrainReason, Drained};
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
    /// Of what was asked so, which stands there since then: it holds nothing yet.
    pub(crate) fn new(
        handle: Handle,
        (owner, key, request): (&UserName, &RequestKey, &Request),
        state: State,
        since: WallTime,
    ) -> Self {
        Self {
            handle,
            owner: owner.clone(),
            key: key.clone(),
            request: request.clone(),
            state,
            from_unix_nanos: since,
            until_unix_nanos: None,
            grant: None,
            refusal: None,
            replaces: None,
            waits: None,
            unenforced: Vec::new(),
            run: None,
            since_unix_nanos: since,
        }
    }

    fn granted(handle: Handle, granted: &Granted, time: WallTime) -> Self {
        let asked = (&granted.owner, &granted.key, &granted.request);
        Self {
            from_unix_nanos: granted.from_unix_nanos,
            until_unix_nanos: granted.until_unix_nanos,
            grant: Some(granted.grant.clone()),
            replaces: granted.replaces,
            ..Self::new(handle, asked, State::Granted, time)
        }
    }

    /// The lost one whose place it was to take is not replaced by it.
    fn refused(handle: Handle, refused: &Refused, time: WallTime) -> Self {
        let asked = (&refused.owner, &refused.key, &refused.request);
        Self {
            from_unix_nanos: refused.request.from_unix_nanos.unwrap_or(time),
            refusal: Some(refused.refusal.clone()),
            ..Self::new(handle, asked, State::Refused, time)
        }
    }

    fn turn(&mut self, state: State, time: WallTime) {
        self.state = state;
        self.since_unix_nanos = time;
    }

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
    originals: Originals,
    sites: BTreeMap<Name, HostedSite>,
    /// Nodes to which nothing new comes, those too that the cluster has not any more.
    drained: BTreeMap<Name, Drained>,
    /// Lost ones that are to be moved, of which nothing has come yet.
    unmoved: BTreeSet<Handle>,
    /// What reservations are found and counted by.
    index: Index,
    /// Greater than any handle that was given.
    next: u64,
}

/// What was asked at first, of reservations that were changed since.
type Originals = BTreeMap<Handle, Request>;

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
        self.index.live.iter().filter_map(|handle| self.reservations.get(handle))
    }

    /// How many reservations that are not forgotten stand where; of none nothing is said.
    pub fn states(&self) -> &BTreeMap<State, u64> {
        &self.index.states
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
        let handle = *self.index.site_nodes.get(node)?;
        as_site_node(self.reservations.get(&handle)?).map(|asked| (handle, asked))
    }

    /// The nodes that serve `site`.
    pub fn nodes_of_site(&self, site: &Name) -> impl Iterator<Item = &Name> {
        let of_it =
            move |node: &&Name| self.site_node(node).is_some_and(|(_, asked)| asked.site == *site);
        self.index.site_nodes.keys().filter(of_it)
    }

    /// Nodes to which nothing new comes, by whom and why; those too that the cluster has not any more.
    pub fn drained(&self) -> &BTreeMap<Name, Drained> {
        &self.drained
    }

    /// Under which handle a user's key was used.
    pub fn find(&self, owner: &UserName, key: &RequestKey) -> Option<Handle> {
        self.index.keys.get(&(owner.clone(), key.clone())).copied()
    }

    /// The reservation that took the place of a lost one.
    pub fn successor(&self, lost: Handle) -> Option<Handle> {
        self.index.successors.get(&lost).copied()
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
        let live = self.index.live_of.get(owner).copied().unwrap_or(0);
        u32::try_from(live).unwrap_or(u32::MAX)
    }

    /// What a user's reservations take of memory, about: those that are live, and those that are over and remembered.
    pub fn memory(&self, owner: &UserName) -> Bytes {
        Bytes::new(self.index.weights.get(owner).copied().unwrap_or(0))
    }

    /// Live reservations that may become slower or faster.
    pub(crate) fn malleable(&self) -> &BTreeSet<Handle> {
        &self.index.malleable
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
            Event::Granted { handle, granted } => {
                self.insert(Reservation::granted(*handle, granted, time));
            }
            Event::Refused { handle, refused } => {
                if let Some(lost) = &refused.replaces {
                    self.unmoved.remove(lost);
                }
                self.insert(Reservation::refused(*handle, refused, time));
            }
            Event::Modified { handle, modified } => self.modify(*handle, modified),
            Event::Started { handle, .. } => self.turn(*handle, State::Active, time),
            Event::Ended { handle } => self.turn(*handle, State::Ended, time),
            Event::Finished { handle, run } => self.change(*handle, |found, _| {
                found.turn(run.state(), time);
                found.run = Some(*run);
            }),
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
            Event::Forgotten { handle } => self.forget(*handle),
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
            Event::Drained { nodes, by, reason } => self.drain(nodes, by, reason, time),
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

    fn insert(&mut self, reservation: impl Into<Arc<Reservation>>) {
        let reservation = reservation.into();
        let handle = reservation.handle;
        self.next = self.next.max(handle.number() + 1);
        if let Some(lost) = reservation.replaces {
            self.unmoved.remove(&lost);
        }
        self.index.add(&reservation, self.originals.get(&handle));
        self.reservations.insert(handle, reservation);
    }

    /// Changes a reservation, if there is one, or what was asked for it at first, and what it is found by with it.
    fn change(&mut self, handle: Handle, change: impl FnOnce(&mut Reservation, &mut Originals)) {
        let Some(found) = self.reservations.get_mut(&handle) else { return };
        self.index.remove(found, self.originals.get(&handle));
        change(Arc::make_mut(found), &mut self.originals);
        self.index.add(found, self.originals.get(&handle));
    }

    fn turn(&mut self, handle: Handle, state: State, time: WallTime) {
        self.change(handle, |found, _| found.turn(state, time));
    }

    fn modify(&mut self, handle: Handle, modified: &Modified) {
        self.change(handle, |found, originals| {
            let former = std::mem::replace(&mut found.request, modified.request.clone());
            originals.entry(handle).or_insert(former);
            found.from_unix_nanos = modified.from_unix_nanos;
            found.until_unix_nanos = modified.until_unix_nanos;
            found.grant = Some(modified.grant.clone());
        });
    }

    fn forget(&mut self, handle: Handle) {
        self.unmoved.remove(&handle);
        let original = self.originals.remove(&handle);
        if let Some(old) = self.reservations.remove(&handle) {
            self.index.remove(&old, original.as_ref());
        }
    }

    /// Who is said to have drained a node, and why, is who said so last; since when, who said so first.
    fn drain(
        &mut self,
        nodes: &BTreeSet<Name>,
        by: &UserName,
        reason: &DrainReason,
        time: WallTime,
    ) {
        for node in nodes {
            let before = self.drained.get(node).map(|before| before.since_unix_nanos);
            let since_unix_nanos = before.unwrap_or(time);
            let drained = Drained { by: by.clone(), since_unix_nanos, reason: reason.clone() };
            self.drained.insert(node.clone(), drained);
        }
    }
}

impl PartialEq for Book {
    fn eq(&self, other: &Self) -> bool {
        self.snapshot() == other.snapshot()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::Need;
    use crate::refusal::Reason;
    use keeptime_model::reservation::{Malleable, Resources};
    use keeptime_model::units::CpuPpm;
    use proptest::collection::vec;
    use proptest::{prop_assert_eq, proptest};
    use std::borrow::Cow;

    fn owner(number: u64) -> UserName {
        ["ada", "bob"][number as usize % 2].parse().unwrap()
    }

    fn key(number: u64) -> RequestKey {
        format!("k{number}").parse().unwrap()
    }

    fn node(number: u8) -> Name {
        format!("n{}", number % 3).parse().unwrap()
    }

    /// Of each kind that something is found by.
    fn request(what: u8) -> Request {
        let (site, cpu_ppm) = ("shop".parse().unwrap(), CpuPpm::from_percent(10));
        let ask = match what {
            0..3 => Ask::SiteNode(SiteNode { site, node: node(what), cpu_ppm, services: vec![] }),
            _ => Ask::Resources(Resources { cpu_ppm, ..Resources::nothing() }),
        };
        let malleable = (what == 3).then(|| Malleable::new(WallTime::default(), cpu_ppm));
        let among = (0..what).map(node).collect();
        Request { malleable, among, ..Request::new(ask) }
    }

    fn grant(request: &Request) -> Grant {
        Need::of(request.ask.resources().unwrap_or(Cow::Owned(Resources::nothing()))).on(vec![])
    }

    /// An event of one of these kinds, of that one of the reservations, if it can be of it.
    fn event(book: &Book, kind: u8, of: usize, what: u8) -> Option<Event> {
        let (request, next) = (request(what), book.next());
        let of = book.reservations.values().nth(of);
        let serves = book.site_node(&node(what)).map(|(handle, _)| handle);
        // A node serves one site.
        let may_have = |handle| what >= 3 || serves.is_none_or(|other| other == handle);
        let granted = |replaces, grant| {
            let (owner, key) = (owner(next.number()), key(next.number()));
            let (from_unix_nanos, request) = (WallTime::default(), request.clone());
            let granted = Granted {
                owner,
                key,
                request,
                from_unix_nanos,
                until_unix_nanos: None,
                grant,
                replaces,
                decision: None,
            };
            Event::Granted { handle: next, granted: Box::new(granted) }
        };
        let lost = of.filter(|of| of.state == State::Lost).map(|of| of.handle);
        if kind == 0 {
            let replaces = lost.filter(|lost| book.successor(*lost).is_none());
            return may_have(next).then(|| granted(replaces, grant(&request)));
        }
        if kind == 1 {
            let (owner, key) = (owner(next.number()), key(next.number()));
            let refusal = Reason::Cancelled.into();
            let refused = Refused { owner, key, request, refusal, replaces: lost, decision: None };
            return Some(Event::Refused { handle: next, refused: Box::new(refused) });
        }
        let of = of?;
        let (handle, by) = (of.handle, of.owner.clone());
        match kind {
            2 if !of.state.is_live() => Some(Event::Forgotten { handle }),
            _ if !of.state.is_live() => None,
            3 if may_have(handle) => {
                let (from_unix_nanos, grant) = (WallTime::default(), grant(&request));
                let (until_unix_nanos, decision) = (None, None);
                let modified =
                    Modified { by, request, from_unix_nanos, until_unix_nanos, grant, decision };
                Some(Event::Modified { handle, modified: Box::new(modified) })
            }
            4 => Some(Event::Started { handle, unenforced: vec![] }),
            5 => Some(Event::Finished { handle, run: RunEnd::Done }),
            6 => Some(Event::Lost { handle, node: node(0), instead: None }),
            7 => Some(Event::Cancelled { handle, by }),
            _ => None,
        }
    }

    /// All that reservations are found and counted by.
    fn found_by(book: &Book) -> String {
        let found = (1..book.next).map(|number| {
            let (owner, handle) = (owner(number), Handle::new(number));
            (book.find(&owner, &key(number)), book.successor(handle))
        });
        let users = [0, 1].map(|number| {
            let owner = owner(number);
            (book.live(&owner), book.memory(&owner))
        });
        let nodes = [0, 1, 2].map(|number| book.site_node(&node(number)).map(|(handle, _)| handle));
        let live: Vec<_> = book.live_reservations().map(|live| live.handle).collect();
        let found: Vec<_> = found.collect();
        format!("{found:?} {users:?} {nodes:?} {live:?} {:?} {:?}", book.states(), book.malleable())
    }

    proptest! {
        // Goal: a broker that begins from a snapshot finds and counts reservations as the one that wrote it. Method: whatever
        // happened, a book that is read from its snapshot finds the same.
        #[test]
        fn a_book_that_is_read_finds_what_the_one_that_was_written_found(
            drawn in vec((0..8u8, 0..6usize, 0..5u8), 1..40),
        ) {
            let mut book = Book::default();
            for (kind, of, what) in drawn {
                let Some(event) = event(&book, kind, of, what) else { continue };
                book.apply(&event, WallTime::default()).unwrap();
                let read = Book::restore(book.snapshot()).unwrap();
                prop_assert_eq!(found_by(&read), found_by(&book), "after {:?}", event);
            }
        }
    }
}
