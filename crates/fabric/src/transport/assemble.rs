//! Frames out of a stream of bytes that arrives in pieces of any length.

use super::{Broken, Sink, buffer};
use crate::frame::{HEAD, Head};

/// What has arrived of a frame that is not whole.
#[derive(Debug, Default)]
pub struct Assembler {
    /// Of its head, less than all.
    partial: Vec<u8>,
    begun: Option<Begun>,
}

/// A frame whose payload is not complete.
#[derive(Debug)]
struct Begun {
    head: Head,
    buffer: Vec<u8>,
    missing: usize,
}

impl Assembler {
    /// The next bytes of the stream. Gives frames that are whole by that to `sink`, and returns how
    /// many.
    ///
    /// # Errors
    /// If they are none.
    pub fn feed(&mut self, mut bytes: &[u8], sink: &mut dyn Sink) -> Result<usize, Broken> {
        let mut frames = 0;
        loop {
            if let Some(begun) = &mut self.begun {
                let (here, rest) = bytes.split_at(bytes.len().min(begun.missing));
                begun.buffer.extend_from_slice(here);
                begun.missing -= here.len();
                bytes = rest;
            }
            if let Some(begun) = self.begun.take_if(|begun| begun.missing == 0) {
                sink.frame(&begun.head, begun.buffer.into())?;
                frames += 1;
            }
            if self.begun.is_some() {
                return Ok(frames);
            }
            let Some(head) = self.head(&mut bytes)? else { return Ok(frames) };
            let mut buffer = buffer(sink, &head)?;
            let length = head.length as usize;
            let Some((payload, rest)) = bytes.split_at_checked(length) else {
                self.begun = Some(Begun { head, buffer, missing: length });
                continue;
            };
            // Most are whole.
            buffer.extend_from_slice(payload);
            sink.frame(&head, buffer.into())?;
            frames += 1;
            bytes = rest;
        }
    }

    /// Where the rest of a payload that has begun to arrive can be written without
    /// [`Self::feed`]: as much spare capacity as it has bytes.
    pub fn missing(&mut self) -> Option<&mut [std::mem::MaybeUninit<u8>]> {
        let begun = self.begun.as_mut()?;
        begun.buffer.reserve(begun.missing);
        Some(&mut begun.buffer.spare_capacity_mut()[..begun.missing])
    }

    /// So many bytes were written there, from its beginning on.
    ///
    /// # Safety
    /// They were.
    pub unsafe fn filled(&mut self, bytes: usize) {
        if let Some(begun) = &mut self.begun {
            debug_assert!(bytes <= begun.missing, "no more than was asked for");
            // SAFETY: `missing` has reserved them, and the caller has written them.
            unsafe { begun.buffer.set_len(begun.buffer.len() + bytes) };
            begun.missing -= bytes;
        }
    }

    /// Bytes between the payload that has begun to arrive, if one has, and the next one, if that comes with the next head.
    pub fn before_next(&self) -> usize {
        HEAD - self.partial.len()
    }

    /// The first `bytes` of a payload of which nothing else has arrived were written to `ahead`. Takes that in place of its
    /// own buffer, and leaves that one there. Returns whether it does: not if the payload is not as long as `ahead`, or has
    /// begun before.
    ///
    /// # Safety
    /// They were written, from the beginning of the spare capacity on.
    pub unsafe fn adopt(&mut self, ahead: &mut Vec<u8>, bytes: usize) -> bool {
        let Some(begun) = &mut self.begun else { return false };
        let Begun { buffer, missing, .. } = begun;
        let is_alike = buffer.is_empty()
            && ahead.is_empty()
            && buffer.capacity() == ahead.capacity()
            && *missing == ahead.capacity();
        if is_alike {
            std::mem::swap(buffer, ahead);
            // SAFETY: the caller has written them.
            unsafe { self.filled(bytes) };
        }
        is_alike
    }

    /// How long the payload is that has begun to arrive, if one has.
    pub fn begun(&self) -> Option<usize> {
        self.begun.as_ref().map(|begun| begun.head.length as usize)
    }

    /// The next head, if all of it is there; it is taken off `bytes`.
    #[inline(always)]
    fn head(&mut self, bytes: &mut &[u8]) -> Result<Option<Head>, Broken> {
        if self.partial.is_empty()
            && let Some((head, rest)) = bytes.split_first_chunk()
        {
            *bytes = rest;
            return Ok(Some(Head::decode(head)?));
        }
        let (here, rest) = bytes.split_at(bytes.len().min(HEAD - self.partial.len()));
        self.partial.extend_from_slice(here);
        *bytes = rest;
        let Some(head) = self.partial.first_chunk() else { return Ok(None) };
        let head = Head::decode(head)?;
        self.partial.clear();
        Ok(Some(head))
    }
}
