//! `ktf_watch_*`.

use crate::arguments::{Time, attributes, borrowed, output};
use crate::outcome::{Failure, Outcome, drop_handle, outcome_of, timed_out};
use crate::records::Records;
use crate::types::{Attribute, EventFields, Id};
use fabric::{Context, Event, Record, Watcher};
use keeptime_locks::lock;
use std::collections::VecDeque;
use std::ptr::null_mut;
use std::sync::Mutex;

/// `ktf_watch`.
pub struct Watch {
    /// Those that were there at first, and were not told yet.
    first: Mutex<VecDeque<Record>>,
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
        let first = Mutex::new(records.into());
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
        let next = watch.next(Time::new(timeout))?;
        event.write((&next).into());
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ktf_watch_next_record(
    watch: *mut Watch,
    timeout: i64,
    event: *mut EventFields,
    records: *mut *mut Records,
) -> Outcome {
    outcome_of(|| {
        // SAFETY: as the header says.
        let (watch, event, records) = unsafe {
            (borrowed(watch, "watch")?, output(event, "event")?, output(records, "records")?)
        };
        let next = watch.next(Time::new(timeout))?;
        event.write((&next).into());
        records.write(match next {
            Event::Appeared(record) => Records::new(vec![record]).into_handle(),
            _ => null_mut(),
        });
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ktf_watch_wake(watch: *mut Watch) -> Outcome {
    outcome_of(|| {
        // SAFETY: as the header says.
        unsafe { borrowed(watch, "watch")? }.watcher.wake();
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ktf_watch_close(watch: *mut Watch) {
    // SAFETY: as the header says.
    unsafe { drop_handle(watch) };
}

impl Watch {
    fn next(&self, time: Time) -> Result<Event, Failure> {
        let first = lock(&self.first).pop_front();
        if let Some(record) = first {
            return Ok(Event::Appeared(record));
        }
        self.watcher.next_within(time.span()).ok_or_else(timed_out)
    }
}

impl From<&Event> for EventFields {
    fn from(event: &Event) -> Self {
        let (kind, id) = match event {
            Event::Appeared(record) => (1, record.id.into()),
            Event::Disappeared(id) => (2, (*id).into()),
            Event::Woken => (4, Id::NOBODY),
            _ => (3, Id::NOBODY),
        };
        Self { kind, reserved: 0, id }
    }
}
