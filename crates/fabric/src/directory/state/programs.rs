//! The programs of this node: what each has said of itself, and has registered and asks for, within what it and its user may.

use super::contexts::OpenContext;
use super::{ConnectionId, Directory, Output};
use crate::attributes::Attributes;
use crate::directory::protocol::{Answer, Change, ContextInfo, Record, Request, VERSION};
use crate::directory::users::{Users, counted, counted_context};
use crate::door::Claim;
use crate::id::{ContextId, Place, ResourceId};
use std::collections::BTreeSet;

/// Resources of one context, as many as a context can have.
const RESOURCES_MOST: usize = crate::inbox::RESOURCES_MOST as usize;
/// Subscriptions of one program.
const SUBSCRIPTIONS_MOST: usize = 65_536;
/// Addresses of one context: more than a node has networks. All nodes keep them, and say them with each of its resources.
pub(super) const ADDRESSES_MOST: usize = 256;

/// A program of this node.
#[derive(Debug)]
pub(super) struct Program {
    pub context: ContextId,
    places: BTreeSet<Place>,
    subscriptions: BTreeSet<u32>,
    user: u32,
    /// What it has of what may be kept for its user.
    bytes: usize,
}

impl Program {
    /// So many bytes are to be kept for it.
    ///
    /// # Errors
    /// If that is more than may be for its user.
    pub(super) fn keep(&mut self, bytes: usize, users: &mut Users) -> Result<(), String> {
        users.keep(self.user, bytes)?;
        self.bytes += bytes;
        Ok(())
    }

    /// They are kept no longer.
    pub(super) fn give_back(&mut self, bytes: usize, users: &mut Users) {
        users.give_back(self.user, bytes);
        self.bytes -= bytes;
    }
}

impl Directory {
    /// A program has connected, and is let in if its user has not too many.
    pub(super) fn connected(&mut self, from: ConnectionId, user: u32, outputs: &mut Vec<Output>) {
        if let Err(why) = self.users.connect(from, user) {
            self.refuse(from, None, why, outputs);
        }
    }

    /// A program says something.
    pub(super) fn request(
        &mut self,
        from: ConnectionId,
        user: u32,
        request: Request,
        outputs: &mut Vec<Output>,
    ) {
        let known = self.programs.contains_key(&from);
        let why = match request {
            Request::Hello { version, .. } if !known && version != VERSION => {
                Err((None, other_version(version)))
            }
            Request::Hello { context, claim, .. } if !known => self
                .hello(from, ContextInfo { owner: user, ..context }, claim, outputs)
                .map_err(|why| (None, why)),
            _ if !known => Err((None, "the first message has to be a hello".into())),
            Request::Hello { .. } => Err((None, "a second hello".into())),
            Request::Register { number, place, attributes } => self
                .register(from, number, place, attributes, outputs)
                .map_err(|why| (Some(number), why)),
            Request::Drop { number, place } => {
                self.drop_resource(from, number, place, outputs);
                Ok(())
            }
            Request::Subscribe { number, query } => {
                self.subscribe(from, number, query, outputs).map_err(|why| (Some(number), why))
            }
            Request::Unsubscribe { number } => {
                self.unsubscribe(from, number);
                Ok(())
            }
            Request::Resolve { number, context } => {
                self.resolve(from, number, context, outputs).map_err(|why| (Some(number), why))
            }
        };
        if let Err((number, why)) = why {
            self.refuse(from, number, why, outputs);
        }
    }

    /// Refuses a question of a program; without a number the program, which is closed.
    pub(super) fn refuse(
        &mut self,
        from: ConnectionId,
        number: Option<u32>,
        why: String,
        outputs: &mut Vec<Output>,
    ) {
        outputs.push(Output::Answer(from, Answer::Refused { number, why }));
        if number.is_none() {
            self.hang_up(from, outputs);
        }
    }

    fn hello(
        &mut self,
        from: ConnectionId,
        context: ContextInfo,
        claim: Option<Claim>,
        outputs: &mut Vec<Output>,
    ) -> Result<(), String> {
        let mut context = ContextInfo { node: self.node.clone(), ..context };
        let mut seen = BTreeSet::new();
        context.addresses.retain(|address| seen.insert(*address));
        context.addresses.truncate(ADDRESSES_MOST);
        let claim = claim.filter(|claim| self.upholds(claim, &context));
        let since = claim.map_or_else(|| self.clock.shows(self.now), |claim| claim.since);
        let opened = OpenContext { info: context.clone().into(), since };
        self.contexts.may_open(&opened, claim.is_some())?;
        let (id, user, bytes) = (context.id, context.owner, counted_context(&context));
        self.users.keep(user, bytes)?;
        if self.contexts.get(id).is_some() {
            self.displace(id, outputs);
        }
        let (places, subscriptions) = (BTreeSet::new(), BTreeSet::new());
        let program = Program { context: id, places, subscriptions, user, bytes };
        self.programs.insert(from, program);
        self.contexts.insert(opened);
        let welcome = Answer::Welcome {
            node: self.node.clone(),
            owner: user,
            key: self.key.as_ref().map(|key| key.of_context(id, user)),
            claim: self.key.as_ref().map(|key| key.claim(id, user, since)),
        };
        outputs.push(Output::Answer(from, welcome));
        self.answer_lookups(id, outputs);
        self.followers.publish(Change::Opened(context, since), outputs);
        Ok(())
    }

    /// Whether a server that has the cluster's key has written that claim for that context of a program.
    fn upholds(&self, claim: &Claim, context: &ContextInfo) -> bool {
        let key = self.key.as_ref();
        key.is_some_and(|key| key.upholds(claim, context.id, context.owner))
    }

    /// That context is no more: another had its name first. Its program, if that is of this node, is told so.
    pub(super) fn displace(&mut self, id: ContextId, outputs: &mut Vec<Output>) {
        if self.refuse_context(id, outputs) {
            return;
        }
        self.stale.reopen(id);
        let mut its = self.stale.take(id);
        its.extend(self.origins.forget(id));
        self.contexts.remove(id);
        self.catalog.remove(its, outputs);
    }

    /// Refuses the program of this node whose context that is, as another had its name first. Whether there is one.
    pub(super) fn refuse_context(&mut self, id: ContextId, outputs: &mut Vec<Output>) -> bool {
        let program = self.programs.iter().find(|(_, program)| program.context == id);
        let Some(program) = program.map(|(program, _)| *program) else { return false };
        self.refuse(program, None, format!("another had context {id} first"), outputs);
        true
    }

    fn register(
        &mut self,
        from: ConnectionId,
        number: u32,
        place: Place,
        attributes: Attributes,
        outputs: &mut Vec<Output>,
    ) -> Result<(), String> {
        attributes.check().map_err(|invalid| invalid.to_string())?;
        if let Some((_, why)) = &self.refused {
            return Err(format!("this node is refused by another: {why}"));
        }
        let Some(program) = self.programs.get_mut(&from) else { return Ok(()) };
        if program.places.len() >= RESOURCES_MOST {
            return Err(format!("{RESOURCES_MOST} resources are registered, which is the most"));
        }
        if program.places.contains(&place) {
            return Err(format!("{place} is registered already"));
        }
        program.keep(counted(&attributes), &mut self.users)?;
        program.places.insert(place);
        let id = ResourceId { context: program.context, place };
        let home = self.contexts.home(id.context);
        self.catalog.insert(Record { id, attributes: attributes.clone(), home }, outputs);
        self.followers.publish(Change::Registered(id, attributes), outputs);
        self.followers.answer_when_applied(from, number, outputs);
        Ok(())
    }

    fn drop_resource(
        &mut self,
        from: ConnectionId,
        number: u32,
        place: Place,
        outputs: &mut Vec<Output>,
    ) {
        let Some(program) = self.programs.get_mut(&from) else { return };
        let id = ResourceId { context: program.context, place };
        if program.places.remove(&place) {
            if let Some(attributes) = self.catalog.attributes(id) {
                program.give_back(counted(attributes), &mut self.users);
            }
            self.catalog.remove([id], outputs);
            self.followers.publish(Change::Dropped(id), outputs);
        }
        self.followers.answer_when_applied(from, number, outputs);
    }

    fn subscribe(
        &mut self,
        from: ConnectionId,
        number: u32,
        query: Attributes,
        outputs: &mut Vec<Output>,
    ) -> Result<(), String> {
        query.check().map_err(|invalid| invalid.to_string())?;
        let is_full = |program: &Program| program.subscriptions.len() >= SUBSCRIPTIONS_MOST;
        if self.programs.get(&from).is_some_and(is_full) {
            return Err(format!("{SUBSCRIPTIONS_MOST} questions are open, which is the most"));
        }
        // One of the same number is replaced.
        self.unsubscribe(from, number);
        let Some(program) = self.programs.get_mut(&from) else { return Ok(()) };
        program.keep(counted(&query), &mut self.users)?;
        program.subscriptions.insert(number);
        self.catalog.subscribe(from, number, query, outputs);
        Ok(())
    }

    fn unsubscribe(&mut self, from: ConnectionId, number: u32) {
        let query = self.catalog.unsubscribe(from, number);
        if let (Some(program), Some(query)) = (self.programs.get_mut(&from), query) {
            program.subscriptions.remove(&number);
            program.give_back(counted(&query), &mut self.users);
        }
    }

    /// A program is no more, and so is all that it had.
    pub(super) fn forget_program(
        &mut self,
        from: ConnectionId,
        program: Program,
        outputs: &mut Vec<Output>,
    ) {
        let Program { context, places, subscriptions, user, bytes } = program;
        self.users.give_back(user, bytes);
        for number in subscriptions {
            self.catalog.unsubscribe(from, number);
        }
        self.lookups.forget(from);
        self.contexts.end(context, self.now);
        let resources = places.into_iter().map(|place| ResourceId { context, place });
        self.catalog.remove(resources, outputs);
        self.followers.publish(Change::Closed(context), outputs);
        self.followers.forget_program(from);
    }
}

/// Why a program of another version is refused.
pub(super) fn other_version(version: u16) -> String {
    format!("version {version} of the protocol: this server speaks {VERSION}")
}

#[cfg(test)]
mod tests;
