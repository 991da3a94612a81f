//! `ktf_log_set`: what the library says besides its results, which Rust programs have by `tracing`.

use crate::arguments::known;
use crate::outcome::{Failure, Outcome, outcome_of};
use crate::types::{LogFields, Tell};
use keeptime_locks::{read, write};
use std::ffi::{CString, c_void};
use std::fmt::{self, Write};
use std::ptr::addr_of;
use std::sync::{Once, RwLock};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::{Interest, set_global_default};
use tracing::{Event, Level, Metadata, Subscriber};

const TELL: u64 = 1;
const LEVEL: u64 = 2;

/// Who is told. Whoever is told just now is so with the lock: who sets another one waits for that.
static LISTENER: RwLock<Option<Listener>> = RwLock::new(None);

struct Listener {
    tell: Tell,
    closure: *mut c_void,
    level: u32,
}

// SAFETY: the header says that any thread may call it.
unsafe impl Send for Listener {}
// SAFETY: as above, several at once.
unsafe impl Sync for Listener {}

/// Tells them what happens. Spans are nothing to it.
struct Log;

/// The text of an event: what it says, then its values.
#[derive(Default)]
struct Text {
    message: String,
    values: String,
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ktf_log_set(fields: *const LogFields) -> Outcome {
    outcome_of(|| {
        // SAFETY: as the header says.
        let listener = unsafe { listener_of(fields)? };
        static ONCE: Once = Once::new();
        // It can only fail where something else in this library has set one, which nothing does.
        ONCE.call_once(|| _ = set_global_default(Log));
        *write(&LISTENER) = listener;
        Ok(())
    })
}

/// A field is only looked at if the mask has it.
unsafe fn listener_of(fields: *const LogFields) -> Result<Option<Listener>, Failure> {
    if fields.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller says that the struct has every field up to the last that its mask names; the mask itself is always
    // there.
    unsafe {
        let mask = known(addr_of!((*fields).field_mask).read(), TELL | LEVEL)?;
        if mask & TELL == 0 {
            return Ok(None);
        }
        let tell = addr_of!((*fields).tell).read();
        let tell = tell.ok_or_else(|| Failure::invalid("tell is null"))?;
        let closure = addr_of!((*fields).closure).read();
        let level = if mask & LEVEL == 0 { 2 } else { addr_of!((*fields).level).read() };
        if !(1..=4).contains(&level) {
            return Err(Failure::invalid(format!("level is {level}: 1 to 4 are accepted")));
        }
        Ok(Some(Listener { tell, closure, level }))
    }
}

/// `ktf_log_level`.
fn number(level: Level) -> u32 {
    match level {
        Level::ERROR => 1,
        Level::WARN => 2,
        Level::INFO => 3,
        _ => 4,
    }
}

impl Subscriber for Log {
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        // Who is told, and of what, changes.
        Interest::sometimes()
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let listener = read(&LISTENER);
        listener.as_ref().is_some_and(|listener| number(*metadata.level()) <= listener.level)
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text::default();
        event.record(&mut text);
        let text = (text.message + &text.values).replace('\0', " ");
        let Ok(text) = CString::new(text) else { return };
        let listener = read(&LISTENER);
        if let Some(Listener { tell, closure, .. }) = *listener {
            // SAFETY: the caller of `ktf_log_set` says that it may be called so.
            unsafe { tell(number(*event.metadata().level()), text.as_ptr(), closure) };
        }
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a string does not fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.values, " {name}={value:?}"),
        };
    }
}
