//! The sending half of a link: what is on the way, what waits, and the way to the other end.

use super::offers::Offers;
use crate::flow::Outbound;
use crate::frame::{EAGER_MOST, Frame};
use crate::transport::{Broken, Sending};
use std::collections::VecDeque;

/// Answers that wait for the other end to read: as many as messages of no length fit into the
/// windows of 42 receivers, or of 16 whose windows are those over a network.
pub const ANSWERS_MOST: usize = 1 << 18;

/// What whoever sends locks.
pub struct Out {
    /// What is on the way.
    pub flow: Outbound,
    /// The way to the other end; none when the link is over.
    pub sender: Option<Sending>,
    /// The other end has been told that messages and offers come by this link.
    pub has_begun: bool,
    /// Answers that wait, and how many messages had been seen when they were given.
    pub answers: VecDeque<(Frame, u32)>,
    /// How many messages the other end was last told to have been seen.
    pub said: u32,
    /// Long messages.
    pub offers: Offers,
}

impl Out {
    /// Nothing was sent. Each receiver lends `window`.
    pub fn new(window: u64, sender: Sending) -> Self {
        Self {
            flow: Outbound::new(window),
            sender: Some(sender),
            has_begun: false,
            answers: VecDeque::new(),
            said: 0,
            offers: Offers::default(),
        }
    }

    /// An error if more answers wait than for any end that reads, whatever it is that holds them up.
    pub fn expect_read(&self) -> Result<(), Broken> {
        let waiting = self.answers.len();
        if waiting <= ANSWERS_MOST { Ok(()) } else { Err(Broken::Unread { waiting }) }
    }

    /// The best length of a piece of a long message.
    pub fn piece(&self) -> usize {
        self.sender.as_ref().map_or(EAGER_MOST, |sender| sender.piece())
    }

    /// Carries on what was taken before. Returns whether nothing of it is left.
    pub fn flush(&mut self) -> Result<bool, Broken> {
        self.sender.as_mut().map_or(Ok(true), |sender| sender.flush())
    }
}
