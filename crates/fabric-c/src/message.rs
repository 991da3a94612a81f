//! `ktf_message_*`.

use crate::arguments::{Time, borrowed, bytes, id, known, output, write_if_wanted};
use crate::buffer::given;
use crate::outcome::{Failure, Outcome, drop_handle, outcome_of};
use crate::types::{BufferFields, Id, MatchFields, UndeliveredFields};
use fabric::{Match, Message, Payload, Reason, RecvError, Resource, ResourceId, Tag, Undelivered};
use std::ffi::c_void;
use std::ptr::addr_of;

const TAG: u64 = 1;
const FROM: u64 = 2;
const TAG_BITS: u64 = 4;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ktf_message_send(
    resource: *const Resource,
    to: *const Id,
    tag: u64,
    data: *const c_void,
    length: usize,
    timeout: i64,
) -> Outcome {
    outcome_of(|| {
        // SAFETY: as the header says.
        let (resource, to, data) =
            unsafe { (borrowed(resource, "resource")?, id(to, "to")?, bytes(data, length)?) };
        send(resource, to, Tag(tag), data.into(), Time::new(timeout))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ktf_message_give(
    resource: *const Resource,
    to: *const Id,
    tag: u64,
    buffer: *const BufferFields,
    timeout: i64,
) -> Outcome {
    outcome_of(|| {
        // First of all: it is released whatever is wrong with the rest.
        // SAFETY: as the header says.
        let buffer = unsafe { given(buffer)? };
        // SAFETY: as the header says.
        let (resource, to) = unsafe { (borrowed(resource, "resource")?, id(to, "to")?) };
        send(resource, to, Tag(tag), buffer.into(), Time::new(timeout))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ktf_message_receive(
    resource: *const Resource,
    wanted: *const MatchFields,
    timeout: i64,
    message: *mut *mut Message,
    undelivered: *mut UndeliveredFields,
) -> Outcome {
    outcome_of(|| {
        // SAFETY: as the header says.
        let (resource, wanted, message) = unsafe {
            (borrowed(resource, "resource")?, match_of(wanted)?, output(message, "message")?)
        };
        match received(resource, wanted, Time::new(timeout)) {
            Ok(received) => {
                message.write(Box::into_raw(Box::new(received)));
            }
            Err(error) => {
                let failure = Failure::from(error);
                if let Some(which) = &failure.undelivered {
                    // SAFETY: as the header says.
                    unsafe { write_if_wanted(undelivered, which.into()) };
                }
                return Err(failure);
            }
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ktf_message_data(
    message: *const Message,
    length: *mut usize,
) -> *const c_void {
    // SAFETY: as the header says.
    let Some(message) = (unsafe { message.as_ref() }) else { return std::ptr::null() };
    // SAFETY: as the header says.
    unsafe { write_if_wanted(length, message.data.len()) };
    message.data.as_ptr().cast()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ktf_message_envelope(
    message: *const Message,
    tag: *mut u64,
    from: *mut Id,
) -> Outcome {
    outcome_of(|| {
        // SAFETY: as the header says.
        unsafe {
            let message = borrowed(message, "message")?;
            write_if_wanted(tag, message.tag.0);
            write_if_wanted(from, message.from.into());
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ktf_message_drop(message: *mut Message) {
    // SAFETY: as the header says.
    unsafe { drop_handle(message) };
}

fn send(
    resource: &Resource,
    to: ResourceId,
    tag: Tag,
    payload: Payload<'_>,
    time: Time,
) -> Result<(), Failure> {
    match time {
        Time::Now => resource.try_send(to, tag, payload)?,
        Time::Within(time) => resource.send_within(to, tag, payload, time)?,
        Time::Forever => resource.send(to, tag, payload)?,
    }
    Ok(())
}

fn received(resource: &Resource, wanted: Match, time: Time) -> Result<Message, RecvError> {
    match time {
        Time::Now => resource.try_recv(wanted)?.ok_or(RecvError::TimedOut),
        Time::Within(time) => resource.recv_within(wanted, time),
        Time::Forever => resource.recv(wanted),
    }
}

/// A field is only looked at if the mask has it: a program that was compiled with an older header has none of those that
/// came later.
unsafe fn match_of(wanted: *const MatchFields) -> Result<Match, Failure> {
    let mut found = Match::any();
    if wanted.is_null() {
        return Ok(found);
    }
    // SAFETY: the caller says that the struct has every field up to the last that its mask names; the mask itself is always
    // there.
    unsafe {
        let mask = known(addr_of!((*wanted).field_mask).read(), TAG | FROM | TAG_BITS)?;
        if mask & TAG != 0 {
            found.tag = Some(Tag(addr_of!((*wanted).tag).read()));
        }
        if mask & FROM != 0 {
            found.from = Some(addr_of!((*wanted).from).read().into());
        }
        if mask & TAG_BITS != 0 {
            if found.tag.is_none() {
                return Err(Failure::invalid("tag_bits without a tag: nothing is wanted of them"));
            }
            found.tag_bits = Some(addr_of!((*wanted).tag_bits).read());
        }
    }
    Ok(found)
}

impl From<&Undelivered> for UndeliveredFields {
    fn from(undelivered: &Undelivered) -> Self {
        let reason = match undelivered.reason {
            Reason::Gone => 1,
            Reason::TooLong => 2,
            Reason::NoRoom { .. } => 4,
            _ => 3,
        };
        Self { to: undelivered.to.into(), tag: undelivered.tag.0, reason, reserved: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fabric::ContextId;
    use fabric::id::Place;

    /// What the header has for each.
    #[test]
    fn reasons_have_the_numbers_of_the_header() {
        let to = ResourceId { context: ContextId::new(1), place: Place { slot: 2, generation: 3 } };
        let header = include_str!("../include/keeptime_fabric.h");
        for (reason, name) in [
            (Reason::Gone, "GONE"),
            (Reason::TooLong, "TOO_LONG"),
            (Reason::Unconfirmed, "UNCONFIRMED"),
            (Reason::NoRoom { asked: 1064, left: 50 }, "NO_ROOM"),
        ] {
            let fields = UndeliveredFields::from(&Undelivered { to, tag: Tag(4), reason });
            assert_eq!((fields.tag, fields.reserved), (4, 0));
            let line = format!("KTF_REASON_{name} = {}", fields.reason);
            assert!(header.contains(&line), "{line}");
        }
    }
}
