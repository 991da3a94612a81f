//! What a command tells its user while its request waits for room.

use crate::times;
use jiff::tz::TimeZone;
use keeptime_engine::book::Reservation;
use keeptime_model::units::WallTime;

/// Tells on standard error that it waits, and for what: standard output is for what comes of it.
pub fn tell(waits: &Reservation) {
    let at = |time| times::show(time, &TimeZone::system());
    eprintln!("keeptime: {} waits for room, {}", waits.handle, words(waits, &at));
}

/// Its place, until when, and what is short; `show` writes a time.
pub fn words(waiting: &Reservation, show: &dyn Fn(WallTime) -> String) -> String {
    let place = waiting.waits.map(|waits| {
        let until = show(waits.until_unix_nanos.whole_second_ceil());
        format!("place {} in line, until {until} at the most", waits.place)
    });
    let short = waiting.refusal.as_ref().map(|refusal| refusal.words(show));
    place.into_iter().chain(short).collect::<Vec<_>>().join(": ")
}
