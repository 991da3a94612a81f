//! What users asked and agents did, as they know it themselves.

use keeptime_engine::agents::Act;
use keeptime_engine::book::Reservation;
use keeptime_engine::{Call, Caller};
use keeptime_model::assignment::Assignment;
use keeptime_model::extension::Extension;
use keeptime_model::reservation::{Handle, Request, RequestKey, UserName};
use keeptime_model::run_end::RunEnd;
use keeptime_model::topology::NodeIndex;
use keeptime_model::units::WallTime;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// What users asked and agents did, as they themselves know it.
#[derive(Debug, Default)]
pub struct Truth {
    pub(super) asked: BTreeMap<(UserName, RequestKey), Vec<Request>>,
    /// What was asked last. What had such a key before may be forgotten in the same step, and that it was becomes
    /// durable after more has been asked.
    last_asked: VecDeque<(UserName, RequestKey)>,
    pub(super) changes: BTreeMap<Handle, Vec<Request>>,
    pub(super) extensions: BTreeMap<Handle, Vec<Extension>>,
    pub(super) cancelled: BTreeSet<Handle>,
    pub(super) finished: BTreeMap<Handle, Vec<RunEnd>>,
    pub(super) moves: BTreeSet<Handle>,
    pub(super) accepted: BTreeMap<(Handle, NodeIndex), Assignment>,
    /// And whether it was over by then: every agent may refuse that.
    pub(super) refused: BTreeMap<(Handle, NodeIndex), bool>,
}

/// More than are asked while the disk is busy.
const LAST_ASKED: usize = 64;

impl Truth {
    /// A user asks.
    pub fn asks(&mut self, caller: &Caller, call: &Call) {
        match call {
            Call::Reserve { key, request } => {
                let of = (caller.user.clone(), key.clone());
                self.last_asked.push_back(of.clone());
                if self.last_asked.len() > LAST_ASKED {
                    self.last_asked.pop_front();
                }
                let asked = self.asked.entry(of).or_default();
                if !asked.contains(request) {
                    asked.push(request.clone());
                }
            }
            Call::Modify { handle, request } | Call::Correct { handle, request } => {
                self.changes.entry(*handle).or_default().push(request.clone());
            }
            Call::Extend { handle, extension } => {
                self.extensions.entry(*handle).or_default().push(extension.clone());
            }
            Call::Cancel { handle } | Call::Spare { handle } => {
                self.cancelled.insert(*handle);
            }
            Call::Finish { handle, run } => self.finished.entry(*handle).or_default().push(*run),
            Call::Move { handle } => drop(self.moves.insert(*handle)),
            Call::Register { .. }
            | Call::Consider { .. }
            | Call::Keep { .. }
            | Call::Report { .. }
            | Call::Explain { .. }
            | Call::AddSite { .. }
            | Call::RemoveSite { .. }
            | Call::Drain { .. }
            | Call::Resume { .. } => {}
        }
    }

    /// An agent says what it holds: as good as saying yes to it.
    pub fn holds(&mut self, node: NodeIndex, holding: &[Assignment]) {
        for assignment in holding {
            if let Ok(handle) = assignment.job.as_str().parse() {
                self.accepted.insert((handle, node), assignment.clone());
            }
        }
    }

    /// An agent did as it was told, or not, when its clock said `at`.
    pub fn obeyed(&mut self, node: NodeIndex, act: &Act, is_done: bool, at: WallTime) {
        let Act::Enforce(assignment) = act else { return };
        let Ok(handle) = assignment.job.as_str().parse() else { return };
        if is_done {
            self.accepted.insert((handle, node), Assignment::clone(assignment));
        } else {
            self.refused.insert((handle, node), assignment.until_unix_nanos <= at);
        }
    }

    /// Whether somebody asked for a change, which may be offered at any time since.
    pub(super) fn may_change(&self, handle: Handle) -> bool {
        self.changes.contains_key(&handle) || self.extensions.contains_key(&handle)
    }

    pub(super) fn forget(&mut self, over: &Reservation) {
        let handle = over.handle;
        let of = (over.owner.clone(), over.key.clone());
        if !self.last_asked.contains(&of) {
            self.asked.remove(&of);
        }
        self.changes.remove(&handle);
        self.extensions.remove(&handle);
        self.cancelled.remove(&handle);
        self.moves.remove(&handle);
        self.accepted.retain(|(of, _), _| *of != handle);
        self.refused.retain(|(of, _), _| *of != handle);
    }
}
