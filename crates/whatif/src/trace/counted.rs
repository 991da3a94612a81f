//! What is counted while a log is read: which jobs do not count, and of which policies know more than users said.

use serde::Serialize;
use std::fmt;

/// What a log has beside the jobs that are taken from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Counted {
    /// Jobs that were passed over.
    pub left_out: LeftOut,
    /// Jobs that count, but as if their users had known how long they would take.
    pub foreknown: Foreknown,
    /// There is more in the log than was asked for.
    pub is_cut: bool,
}

/// Jobs that were passed over, by why.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct LeftOut {
    /// They never ran.
    pub never_ran: usize,
    /// They had more processors than the log says there were, or asked for more and nobody knows what they had.
    pub too_large: usize,
    /// They are parts of jobs that were checkpointed: the line of the whole job is another one.
    pub parts: usize,
    /// They ran, and nobody knows when they were submitted.
    pub submitted_unknown: usize,
}

/// Jobs for which just the time that they took counts as requested, by why.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Foreknown {
    /// What was requested is not known.
    pub request_unknown: usize,
    /// They took longer than was requested.
    pub request_exceeded: usize,
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { never_ran, too_large, parts, submitted_unknown } = self;
        write!(
            f,
            "{never_ran} never ran, {too_large} had more processors than the log says it has, {parts} are parts of \
             jobs that were checkpointed, {submitted_unknown} were submitted at a time that is not known"
        )
    }
}

impl fmt::Display for Foreknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { request_unknown, request_exceeded } = self;
        write!(
            f,
            "{request_unknown} without a requested time, {request_exceeded} that took longer than was requested"
        )
    }
}
