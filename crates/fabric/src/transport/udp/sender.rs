//! The half that sends.

use super::ASKED;
use super::shared::Shared;
use crate::frame::{HEAD, PIECE_MOST};
use crate::payload::Buffer;
use crate::transport::reliable::KEPT_MOST;
use crate::transport::{Broken, Sender, Sent};
use keeptime_locks::lock;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

/// Writes to the stream.
pub(super) struct UdpSender(Arc<Shared>);

impl UdpSender {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self(shared)
    }
}

impl Sender for UdpSender {
    fn send(&mut self, head: &[u8; HEAD], payload: &[u8]) -> Result<Sent, Broken> {
        let sent = self.send_with_others(head, payload)?;
        if sent == Sent::Kept {
            self.0.transmit(&mut lock(&self.0.state), 0)?;
        }
        Ok(sent)
    }

    fn send_with_others(&mut self, head: &[u8; HEAD], payload: &[u8]) -> Result<Sent, Broken> {
        let mut state = lock(&self.0.state);
        if state.sending.room() < HEAD + payload.len() {
            return Ok(Sent::Full);
        }
        state.sending.write(head);
        state.sending.write(payload);
        self.0.transmit_gathered(&mut state)?;
        // Until the other side has said that it is there.
        Ok(Sent::Kept)
    }

    fn give_with_others(
        &mut self,
        head: &[u8; HEAD],
        payload: &mut Buffer,
    ) -> Result<Sent, Broken> {
        let mut state = lock(&self.0.state);
        if state.sending.room() < HEAD + payload.len() {
            return Ok(Sent::Full);
        }
        state.sending.write(head);
        state.sending.give(mem::take(payload));
        // It is taken, so it counts as sent: whoever flushes is told of what does not pass.
        let _ = self.0.transmit_gathered(&mut state);
        Ok(Sent::Kept)
    }

    fn give(&mut self, head: &[u8; HEAD], payload: &mut Buffer) -> Result<Sent, Broken> {
        let sent = self.give_with_others(head, payload)?;
        if sent == Sent::Kept {
            // As above.
            let _ = self.0.transmit(&mut lock(&self.0.state), 0);
        }
        Ok(sent)
    }

    fn flush(&mut self) -> Result<bool, Broken> {
        let mut state = lock(&self.0.state);
        if self.0.connected.load(Acquire) {
            state.sending.expire(self.0.now());
            self.0.transmit_rest(&mut state)?;
            self.0.confirm_late(&mut state)?;
        }
        Ok(state.sending.unsent() == 0 || state.sending.room() >= KEPT_MOST / 2)
    }

    fn falls_asleep(&mut self) -> bool {
        // What makes room arrives on the socket.
        lock(&self.0.state).sending.room() < PIECE_MOST + HEAD
    }

    fn piece(&self) -> usize {
        PIECE_MOST
    }

    /// Whoever reads what arrives hears the answer.
    fn look_after(&mut self) -> Result<(), Broken> {
        let is_doubtful = lock(&self.0.state).sending.is_doubtful();
        // Before it is said: the answer may be heard at once.
        if is_doubtful && !self.0.asked.swap(true, Relaxed) && !self.0.say(ASKED) {
            self.0.asked.store(false, Relaxed);
        }
        Ok(())
    }

    fn is_drained(&mut self) -> bool {
        self.is_settled()
    }

    fn is_settled(&mut self) -> bool {
        let state = lock(&self.0.state);
        state.sending.is_settled() && state.unsaid == 0
    }
}
