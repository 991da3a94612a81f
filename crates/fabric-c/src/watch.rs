//! `ktf_watch_*`.

use crate::arguments::{Time, attributes, borrowed, output};
use crate::outcome::{Outcome, drop_handle, outcome_of, timed_out};
use crate::types::{Attribute, EventFields, Id};
use fabric::{Context, Event, ResourceId, Watcher};
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

/// `ktf_watch`.
pub struct Watch {
    /// Those that were there at first, and were not told yet.
    first: Mutex<VecDeque<ResourceId>>,
    watcher: Watcher,
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ktf_watch_open(
    context: *const Context,
    list: *const Attribute,
    count: usize,
    watch: *mut *mut Watch,
) -> Outcome {
    outcome_of(|| {
        // SAFETY: as the header says.
        let (context, list, watch) = unsafe {
            (borrowed(context, "context")?, attributes(list, count)?, output(watch, "watch")?)
        };
        let (records, watcher) = context.find(list).watch()?;
        let first = Mutex::new(records.iter().map(|record| record.id).collect());
        watch.write(Box::into_raw(Box::new(Watch { first, watcher })));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ktf_watch_next(
    watch: *mut Watch,
    timeout: i64,
    event: *mut EventFields,
) -> Outcome {
    outcome_of(|| {
        // SAFETY: as the header says.
        let (watch, event) = unsafe { (borrowed(watch, "watch")?, output(event, "event")?) };
        let first = watch.first.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        let next = match first {
            Some(id) => EventFields::new(1, id.into()),
            None => {
                let next = watch.watcher.next_within(Time::new(timeout).span());
                match next.ok_or_else(timed_out)? {
                    Event::Appeared(record) => EventFields::new(1, record.id.into()),
                    Event::Gone(id) => EventFields::new(2, id.into()),
                    _ => EventFields::new(3, Id::NOBODY),
                }
            }
        };
        event.write(next);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ktf_watch_close(watch: *mut Watch) {
    // SAFETY: as the header says.
    unsafe { drop_handle(watch) };
}

impl EventFields {
    fn new(kind: u32, id: Id) -> Self {
        Self { kind, reserved: 0, id }
    }
}
