//! What is durable, added up once more without the engine's help; and whether each event of it may
//! have happened: whether somebody asked for it, every agent of it had accepted, nobody else has what
//! it takes.

mod outputs;
mod resources;
mod rules;
mod truth;

use crate::Violation;
use crate::broker::Happened;
use crate::clock::second;
use crate::slots::Slots;
use keeptime_broker::records;
use keeptime_engine::book::{Book, Reservation};
use keeptime_engine::event::{Granted, Modified, Refused};
use keeptime_engine::refusal::Reason;
use keeptime_engine::{Event, Policy};
use keeptime_ledger::{Ledger, MemoryLedger, Recorded, Revision};
use keeptime_model::loss::OnLoss;
use keeptime_model::name::Name;
use keeptime_model::reservation::{Ask, Handle, Request, RequestKey, State, UserName};
use keeptime_model::topology::{NodeIndex, Topology};
use keeptime_model::units::WallTime;
use resources::capacities;
use rules::{
    check_form, check_grant, check_kept, check_lasts, check_times, is_extended, is_in_time,
};
use std::collections::{BTreeMap, BTreeSet};
pub use truth::Truth;

/// What is durable.
#[derive(Debug)]
pub struct History {
    /// What users asked and agents did.
    pub truth: Truth,
    topology: Topology,
    policy: Policy,
    names: BTreeMap<Name, NodeIndex>,
    reservations: BTreeMap<Handle, Reservation>,
    /// What the applications say about lost nodes.
    on_loss: BTreeMap<Name, OnLoss>,
    /// What was asked at first, of what was changed since.
    originals: BTreeMap<Handle, Request>,
    keys: BTreeMap<(UserName, RequestKey), Handle>,
    /// Nodes to which nothing new comes.
    drained: BTreeSet<Name>,
    /// Every handle that was ever recorded.
    given: BTreeSet<Handle>,
    slots: Slots,
    /// The last batch that is known to be durable.
    settled: Revision,
    counts: BTreeMap<&'static str, u64>,
    /// Whether no agent has a reason to refuse anything or go away.
    agents_are_well: bool,
}

impl History {
    /// Nothing has happened yet.
    pub fn new(topology: Topology, policy: Policy, start: WallTime) -> Self {
        let name = |node| (topology.node(node).name.clone(), node);
        let names = topology.node_indices().map(name).collect();
        let slots = Slots::new(capacities(&topology, &policy), second(start));
        Self {
            truth: Truth::default(),
            topology,
            policy,
            names,
            reservations: BTreeMap::new(),
            on_loss: BTreeMap::new(),
            originals: BTreeMap::new(),
            keys: BTreeMap::new(),
            drained: BTreeSet::new(),
            given: BTreeSet::new(),
            slots,
            settled: Revision::ZERO,
            counts: BTreeMap::new(),
            agents_are_well: false,
        }
    }

    /// From now on no agent has a reason to refuse anything or go away; or they do.
    pub fn expect_agents_to_be_well(&mut self, are_well: bool) {
        self.agents_are_well = are_well;
    }

    /// How often each kind of event happened.
    pub fn counts(&self) -> &BTreeMap<&'static str, u64> {
        &self.counts
    }

    /// Everything that is not forgotten.
    pub fn reservations(&self) -> &BTreeMap<Handle, Reservation> {
        &self.reservations
    }

    /// A batch is durable.
    ///
    /// # Errors
    /// If one of its events may not have happened.
    pub fn settle(&mut self, events: &[Happened]) -> Result<(), Violation> {
        self.settled = self.settled.next();
        for together in events.chunk_by(is_one_change) {
            for (time, event) in together {
                self.slots.advance(second(*time)).map_err(|over| self.over(over))?;
                if let Event::Modified { handle, .. } = event {
                    self.slots.take(*handle);
                }
            }
            for (time, event) in together {
                self.apply(*time, event).map_err(|what| Violation(format!("{what}: {event:?}")))?;
                *self.counts.entry(event.kind()).or_default() += 1;
            }
        }
        Ok(())
    }

    /// A broker has begun on `ledger`: of what the one before handed over, the first batches are there,
    /// and nothing that was acknowledged is missing.
    ///
    /// # Errors
    /// If that is not so.
    pub fn catch_up(
        &mut self,
        ledger: &MemoryLedger,
        unsettled: Vec<Vec<Happened>>,
    ) -> Result<(), Violation> {
        let head = ledger.status().head;
        if head < self.settled {
            let what = format!("the ledger ends at {head}, {} was acknowledged", self.settled);
            return Err(Violation(what));
        }
        let entries = ledger.read(self.settled, usize::MAX).map_err(Violation::new)?;
        if entries.len() > unsettled.len() {
            return Err(Violation::new("the ledger holds what nobody decided"));
        }
        for (entry, expected) in entries.iter().zip(unsettled) {
            let events = entry.batch.records().iter().map(|record| {
                let revision = entry.revision;
                let recorded = Recorded { revision, record: record.clone() };
                records::event(&recorded).map(|event| (record.time, event))
            });
            let events: Vec<_> = events.collect::<Result<_, _>>().map_err(Violation::new)?;
            if events != expected {
                return Err(Violation::new("the ledger does not hold what was handed over"));
            }
            self.settle(&events)?;
        }
        Ok(())
    }

    /// What an engine has in its book is what is durable.
    ///
    /// # Errors
    /// The first difference.
    pub fn compare(&self, book: &Book) -> Result<(), Violation> {
        if !book.drained().keys().eq(&self.drained) {
            let (its, mine) = (book.drained().keys(), &self.drained);
            let what = format!("the engine has {its:?} drained where the record has {mine:?}");
            return Err(Violation(what));
        }
        let theirs = book.reservations();
        if theirs.values().map(AsRef::as_ref).eq(self.reservations.values()) {
            return Ok(());
        }
        let both = |handle: &Handle| {
            (self.reservations.get(handle), theirs.get(handle).map(AsRef::as_ref))
        };
        let differs = |handle: &&Handle| matches!(both(handle), (mine, its) if mine != its);
        let first = theirs.keys().chain(self.reservations.keys()).filter(differs).min();
        let (mine, its) = both(first.unwrap_or(&Handle::new(0)));
        Err(Violation(format!("the engine has {its:?} where the record has {mine:?}")))
    }

    fn apply(&mut self, time: WallTime, event: &Event) -> Result<(), String> {
        match event {
            Event::Registered { application, .. } => {
                self.on_loss.insert(application.name().clone(), application.on_loss());
                Ok(())
            }
            Event::Granted { handle, granted } => self.granted(time, *handle, granted),
            Event::Refused { handle, refused } => self.refused(time, *handle, refused),
            Event::Modified { handle, modified } => self.modified(time, *handle, modified),
            Event::Started { handle, .. } => self.started(time, *handle),
            Event::Ended { handle } => {
                let found = self.live(*handle)?;
                ensure(found.until_unix_nanos.is_some_and(|until| until <= time), "too early")?;
                self.end(time, *handle, State::Ended)
            }
            Event::Cancelled { handle, .. } => {
                ensure(self.truth.cancelled.contains(handle), "nobody asked for that")?;
                self.end(time, *handle, State::Cancelled)
            }
            Event::Finished { handle, run } => {
                let said = self.truth.finished.get(handle);
                ensure(said.is_some_and(|said| said.contains(run)), "nobody said that")?;
                self.end(time, *handle, run.state())?;
                if let Some(over) = self.reservations.get_mut(handle) {
                    over.run = Some(*run);
                }
                Ok(())
            }
            Event::Failed { handle, node, .. } => {
                self.check_refused(*handle, node)?;
                self.end(time, *handle, State::Failed)
            }
            Event::Lost { handle, .. } => self.end(time, *handle, State::Lost),
            Event::Forgotten { handle } => self.forgotten(time, *handle),
            Event::Drained { nodes, .. } => {
                self.drained.extend(nodes.iter().cloned());
                Ok(())
            }
            Event::Resumed { nodes, .. } => {
                self.drained.retain(|node| !nodes.contains(node));
                Ok(())
            }
            _ => Err("an event that is not known here".into()),
        }
    }

    fn granted(&mut self, time: WallTime, handle: Handle, granted: &Granted) -> Result<(), String> {
        let Granted { owner, key, request, grant, .. } = granted;
        let (from, until) = (granted.from_unix_nanos, granted.until_unix_nanos);
        match granted.replaces {
            Some(lost) => self.check_moved(lost, owner)?,
            None => self.check_asked(owner, key, request)?,
        }
        self.check_new(handle, owner, key)?;
        check_grant(request, grant)?;
        self.check_not_drained(&grant.nodes)?;
        check_times(time, request, from, until)?;
        self.insert(Reservation {
            handle,
            owner: owner.clone(),
            key: key.clone(),
            request: request.clone(),
            state: State::Granted,
            from_unix_nanos: from,
            until_unix_nanos: until,
            grant: Some(grant.clone()),
            refusal: None,
            replaces: granted.replaces,
            waits: None,
            unenforced: Vec::new(),
            run: None,
            since_unix_nanos: time,
        });
        self.hold(handle)
    }

    fn refused(&mut self, time: WallTime, handle: Handle, refused: &Refused) -> Result<(), String> {
        let Refused { owner, key, request, refusal, .. } = refused;
        let is_move = key.to_string().starts_with("moved:");
        if !is_move {
            self.check_asked(owner, key, request)?;
        }
        if let Reason::AgentRefused { node, .. } = &refusal.reason {
            self.check_refused(handle, node)?;
        }
        self.check_new(handle, owner, key)?;
        self.insert(Reservation {
            handle,
            owner: owner.clone(),
            key: key.clone(),
            request: request.clone(),
            state: State::Refused,
            from_unix_nanos: request.from_unix_nanos.unwrap_or(time),
            until_unix_nanos: None,
            grant: None,
            refusal: Some(refusal.clone()),
            replaces: None,
            waits: None,
            unenforced: Vec::new(),
            run: None,
            since_unix_nanos: time,
        });
        Ok(())
    }

    fn modified(
        &mut self,
        time: WallTime,
        handle: Handle,
        modified: &Modified,
    ) -> Result<(), String> {
        let Modified { request, grant, .. } = modified;
        let (from, until) = (modified.from_unix_nanos, modified.until_unix_nanos);
        let old = self.live(handle)?.clone();
        let before = old.grant.as_ref().ok_or("it holds nothing")?;
        if is_extended(before, grant) {
            let asked = self.truth.extensions.get(&handle);
            let is_asked = asked.is_some_and(|asked| asked.contains(&grant.extension));
            ensure(is_asked, "nobody asked for that")?;
            let same = (&old.request, old.from_unix_nanos, old.until_unix_nanos);
            ensure(same == (request, from, until), "more than its extension has changed")?;
        } else {
            let asked = self.truth.changes.get(&handle);
            if asked.is_none_or(|asked| !asked.contains(request)) {
                check_form(time, &old, modified)?;
            }
            check_grant(request, grant)?;
            check_lasts(request, from, until)?;
            check_kept(before, grant)?;
            let is_as_promised = is_in_time(&old, request, until);
            let is_new = |node: &&Name| !is_as_promised || !before.nodes.contains(node);
            self.check_not_drained(grant.nodes.iter().filter(is_new))?;
        }
        ensure(old.state != State::Active || from == old.from_unix_nanos, "it has started")?;
        self.originals.entry(handle).or_insert(old.request.clone());
        let changed = Reservation {
            request: request.clone(),
            from_unix_nanos: from,
            until_unix_nanos: until,
            grant: Some(grant.clone()),
            ..old
        };
        self.reservations.insert(handle, changed);
        self.hold(handle)
    }

    fn started(&mut self, time: WallTime, handle: Handle) -> Result<(), String> {
        let found = self.live(handle)?.clone();
        ensure(found.state == State::Granted && found.from_unix_nanos <= time, "too early")?;
        let grant = found.grant.as_ref().ok_or("it holds nothing")?;
        let (from, until) = (found.from_unix_nanos, found.until_unix_nanos);
        // While a change is offered, agents have accepted that in its place.
        if !self.truth.may_change(handle) && found.request.malleable.is_none() {
            self.check_accepted(time, handle, grant, from, until)?;
        }
        self.turn(time, handle, State::Active);
        Ok(())
    }

    fn end(&mut self, time: WallTime, handle: Handle, state: State) -> Result<(), String> {
        self.live(handle)?;
        self.turn(time, handle, state);
        self.slots.take(handle);
        Ok(())
    }

    fn forgotten(&mut self, time: WallTime, handle: Handle) -> Result<(), String> {
        let over = self.reservations.remove(&handle).ok_or("there is none")?;
        ensure(!over.state.is_live(), "it is not over")?;
        let since = time.saturating_since(over.since_unix_nanos);
        ensure(since >= self.policy.remember_nanos, "too early")?;
        self.keys.remove(&(over.owner.clone(), over.key.clone()));
        self.originals.remove(&handle);
        self.truth.forget(&over);
        Ok(())
    }

    fn turn(&mut self, time: WallTime, handle: Handle, state: State) {
        if let Some(found) = self.reservations.get_mut(&handle) {
            found.state = state;
            found.since_unix_nanos = time;
        }
    }

    fn live(&self, handle: Handle) -> Result<&Reservation, String> {
        let found = self.reservations.get(&handle).ok_or("there is no such reservation")?;
        ensure(found.state.is_live(), "it is over")?;
        Ok(found)
    }

    fn insert(&mut self, reservation: Reservation) {
        let handle = reservation.handle;
        self.keys.insert((reservation.owner.clone(), reservation.key.clone()), handle);
        self.reservations.insert(handle, reservation);
    }

    /// What was asked at first.
    fn original<'a>(&'a self, of: &'a Reservation) -> &'a Request {
        self.originals.get(&of.handle).unwrap_or(&of.request)
    }

    fn check_asked(
        &self,
        owner: &UserName,
        key: &RequestKey,
        request: &Request,
    ) -> Result<(), String> {
        let asked = self.truth.asked.get(&(owner.clone(), key.clone()));
        ensure(asked.is_some_and(|asked| asked.contains(request)), "nobody asked for that")
    }

    fn check_new(
        &mut self,
        handle: Handle,
        owner: &UserName,
        key: &RequestKey,
    ) -> Result<(), String> {
        ensure(self.given.insert(handle), "the handle was given before")?;
        let is_taken = self.keys.contains_key(&(owner.clone(), key.clone()));
        ensure(!is_taken, "the key was used before")
    }

    /// A lost reservation may be moved: its owner or the policy wants it, and it was not moved before.
    fn check_moved(&self, lost: Handle, owner: &UserName) -> Result<(), String> {
        let found = self.reservations.get(&lost).ok_or("what it replaces is not there")?;
        let of_application = match &found.request.ask {
            Ask::Goal { application, .. } => self.on_loss.get(application).copied(),
            _ => None,
        };
        let is_policy = found.request.on_loss.or(of_application) == Some(OnLoss::Move);
        let is_wanted = is_policy || self.truth.moves.contains(&lost);
        let may_be = found.state == State::Lost && found.owner == *owner && is_wanted;
        ensure(may_be, "what it replaces is not to be moved")?;
        let is_moved = self.reservations.values().any(|other| other.replaces == Some(lost));
        ensure(!is_moved, "what it replaces was moved before")
    }

    /// Nothing new comes to a node that is drained.
    fn check_not_drained<'a>(&self, new: impl IntoIterator<Item = &'a Name>) -> Result<(), String> {
        match new.into_iter().find(|node| self.drained.contains(*node)) {
            Some(node) => Err(format!("{node} is drained")),
            None => Ok(()),
        }
    }

    /// The agent of `node` has refused its part, and may have had a reason.
    fn check_refused(&self, handle: Handle, node: &Name) -> Result<(), String> {
        let node = self.names.get(node).copied().ok_or("an unknown node")?;
        let was_over = self.truth.refused.get(&(handle, node)).copied();
        let was_over = was_over.ok_or("its agent did not refuse")?;
        ensure(was_over || !self.agents_are_well, "no agent has a reason to refuse")
    }
}

fn ensure(holds: bool, otherwise: &str) -> Result<(), String> {
    if holds { Ok(()) } else { Err(otherwise.into()) }
}

/// Changes of one moment are one: what is deferred may take the places of others that are.
fn is_one_change((time, event): &Happened, (next, other): &Happened) -> bool {
    let are_changes = |event: &Event| matches!(event, Event::Modified { .. });
    time == next && are_changes(event) && are_changes(other)
}
