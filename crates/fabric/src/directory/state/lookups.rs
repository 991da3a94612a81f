//! Where a context is. A server that has just begun has not heard yet what others have to tell, and nobody would ask again for
//! what is said to be nowhere: that answer is held back until somebody tells of it, or would have.

use super::{ConnectionId, Directory, Output, SILENCE_MOST};
use crate::directory::protocol::{Answer, ContextInfo, Introduction};
use crate::directory::users::LOOKUP;
use crate::id::ContextId;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How long a server that has just begun says of no context that it is nowhere, while others are telling it what there is:
/// some gigabytes by a slow network. Who is told by ever new ones is not to hold up its programs for ever.
const TOLD_MOST: Duration = Duration::from_secs(60);
/// Contexts that one program asks for and are not known yet, while that may change by itself.
const PENDING_MOST: usize = 65_536;

/// Who has asked for contexts of which nobody has told yet, and with which question.
#[derive(Debug, Default)]
pub(super) struct Lookups {
    by_context: BTreeMap<ContextId, BTreeSet<(ConnectionId, u32)>>,
    by_program: BTreeMap<ConnectionId, BTreeSet<(u32, ContextId)>>,
}

impl Lookups {
    /// How many of that program there are.
    fn count(&self, program: ConnectionId) -> usize {
        self.by_program.get(&program).map_or(0, BTreeSet::len)
    }

    /// One more. Whether it is another than those that there are.
    fn insert(&mut self, context: ContextId, program: ConnectionId, number: u32) -> bool {
        self.by_context.entry(context).or_default().insert((program, number));
        self.by_program.entry(program).or_default().insert((number, context))
    }

    /// Those for that context, which are no more.
    fn take(&mut self, context: ContextId) -> BTreeSet<(ConnectionId, u32)> {
        let taken = self.by_context.remove(&context).unwrap_or_default();
        for (program, number) in &taken {
            remove(&mut self.by_program, *program, (*number, context));
        }
        taken
    }

    /// A program has ended: its own are no more.
    pub(super) fn forget(&mut self, program: ConnectionId) {
        for (number, context) in self.by_program.remove(&program).unwrap_or_default() {
            remove(&mut self.by_context, context, (program, number));
        }
    }
}

/// Removes `value` from those under `key`, and `key` with the last of them.
fn remove<K: Ord, V: Ord>(index: &mut BTreeMap<K, BTreeSet<V>>, key: K, value: V) {
    if let Some(values) = index.get_mut(&key) {
        values.remove(&value);
        if values.is_empty() {
            index.remove(&key);
        }
    }
}

impl Directory {
    /// Says where a context is, now or when that is known.
    ///
    /// # Errors
    /// If the program, or its user, asks for too many at once.
    pub(super) fn resolve(
        &mut self,
        from: ConnectionId,
        number: u32,
        context: ContextId,
        outputs: &mut Vec<Output>,
    ) -> Result<(), String> {
        let found = self.introduce(from, context);
        if found.is_some() || !self.is_new() {
            outputs.push(Output::Answer(from, Answer::Resolved { number, found }));
            return Ok(());
        }
        let Some(program) = self.programs.get_mut(&from) else { return Ok(()) };
        if self.lookups.count(from) >= PENDING_MOST {
            return Err(format!("{PENDING_MOST} contexts are waited for, which is the most"));
        }
        program.keep(LOOKUP, &mut self.users)?;
        if !self.lookups.insert(context, from, number) {
            program.give_back(LOOKUP, &mut self.users);
        }
        Ok(())
    }

    /// Whether servers may be there that this one has not heard in this run, or not to the end of what they have to tell. Those
    /// that it knows, and those that know it, call each other within two seconds.
    pub(super) fn is_new(&self) -> bool {
        let since_begun = self.begun.map_or(Duration::ZERO, |begun| self.now.saturating_sub(begun));
        let is_told = self.origins.are_arriving(self.now);
        since_begun < if is_told { TOLD_MOST } else { SILENCE_MOST }
    }

    /// Whoever has asked for that context is told where it is, or that it is nowhere.
    pub(super) fn answer_lookups(&mut self, context: ContextId, outputs: &mut Vec<Output>) {
        for (from, number) in self.lookups.take(context) {
            if let Some(program) = self.programs.get_mut(&from) {
                program.give_back(LOOKUP, &mut self.users);
            }
            let found = self.introduce(from, context);
            outputs.push(Output::Answer(from, Answer::Resolved { number, found }));
        }
    }

    /// What nobody has told of until now is nowhere.
    pub(super) fn answer_all_lookups(&mut self, outputs: &mut Vec<Output>) {
        while let Some(context) = self.lookups.by_context.keys().next().copied() {
            self.answer_lookups(context, outputs);
        }
    }

    /// What the program at `from` has to know to call `context`.
    fn introduce(&self, from: ConnectionId, context: ContextId) -> Option<Introduction> {
        let info = &self.contexts.get(context)?.info;
        let caller = &self.contexts.get(self.programs.get(&from)?.context)?.info;
        let key = self.key.as_ref().map(|key| key.of_context(context, info.owner));
        let pass = key.map(|key| key.pass(caller.id, caller.owner));
        Some(Introduction { context: ContextInfo::clone(info), pass })
    }
}

#[cfg(test)]
mod tests;
