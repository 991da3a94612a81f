//! Any transport's halves. Those in memory are told apart from all others: what a short message passes there is one piece of
//! code, without a call of what could be any of them.

use super::shared::{SharedReceiver, SharedSender};
use super::{Broken, Receiver, Sender, Sent, Sink};
use crate::frame::HEAD;
use crate::payload::Payload;
use std::ops::{Deref, DerefMut};

/// A half that sends.
pub enum Sending {
    /// In memory.
    Memory(SharedSender),
    /// Any other.
    Other(Box<dyn Sender>),
}

/// A half that receives.
pub enum Receiving {
    /// In memory.
    Memory(SharedReceiver),
    /// Any other.
    Other(Box<dyn Receiver>),
}

impl Sending {
    /// Any but that in memory.
    pub fn new(sender: impl Sender + 'static) -> Self {
        Self::Other(Box::new(sender))
    }

    /// [`Sender::send`], [`Sender::send_with_others`] if it is one of many, or the same of what is given.
    #[inline(always)]
    pub fn take(
        &mut self,
        head: &[u8; HEAD],
        payload: &mut Payload<'_>,
        with_others: bool,
    ) -> Result<Sent, Broken> {
        match (self, payload, with_others) {
            (Self::Memory(sender), payload, _) => sender.send(head, payload.as_bytes()),
            (Self::Other(sender), Payload::Given(buffer), true) => {
                sender.give_with_others(head, buffer)
            }
            (Self::Other(sender), payload, true) => {
                sender.send_with_others(head, payload.as_bytes())
            }
            (Self::Other(sender), payload, false) => sender.send(head, payload.as_bytes()),
        }
    }
}

impl Receiving {
    /// Any but that in memory.
    pub fn new(receiver: impl Receiver + 'static) -> Self {
        Self::Other(Box::new(receiver))
    }

    /// [`Receiver::poll`].
    #[inline(always)]
    pub fn poll_into(&mut self, sink: &mut impl Sink) -> Result<usize, Broken> {
        match self {
            Self::Memory(receiver) => receiver.pop(sink),
            Self::Other(receiver) => receiver.poll(sink),
        }
    }
}

impl Deref for Sending {
    type Target = dyn Sender;

    fn deref(&self) -> &Self::Target {
        match self {
            Self::Memory(sender) => sender,
            Self::Other(sender) => &**sender,
        }
    }
}

impl DerefMut for Sending {
    fn deref_mut(&mut self) -> &mut Self::Target {
        match self {
            Self::Memory(sender) => sender,
            Self::Other(sender) => &mut **sender,
        }
    }
}

impl Deref for Receiving {
    type Target = dyn Receiver;

    fn deref(&self) -> &Self::Target {
        match self {
            Self::Memory(receiver) => receiver,
            Self::Other(receiver) => &**receiver,
        }
    }
}

impl DerefMut for Receiving {
    fn deref_mut(&mut self) -> &mut Self::Target {
        match self {
            Self::Memory(receiver) => receiver,
            Self::Other(receiver) => &mut **receiver,
        }
    }
}
