//! Reservations as a table, for `keeptime list`. Pure: the time and the zone are arguments.

use crate::columns::{Side, aligned};
use crate::{times, waiting};
use jiff::Zoned;
use keeptime_broker::words;
use keeptime_engine::book::Reservation;
use keeptime_model::name::Name;
use keeptime_model::reservation::{Request, State};
use keeptime_model::units::WallTime;

/// What of `all` is told one by one where nobody asked for a state: what was refused is only counted, since who asks until
/// something fits leaves many of these, and looks for none of them.
pub fn without_refused<R: AsRef<Reservation>>(all: Vec<R>) -> (Vec<R>, usize) {
    let count = all.len();
    let is_refused = |one: &R| one.as_ref().state == State::Refused;
    let told: Vec<_> = all.into_iter().filter(|one| !is_refused(one)).collect();
    let refused = count - told.len();
    (told, refused)
}

/// A line for each below what the columns are, in the order of their handles: the newest stand where one looks first. What
/// may be long stands last.
pub fn table<R: AsRef<Reservation>>(reservations: &[R], now: &Zoned) -> String {
    let mut rows = vec![HEADINGS.map(String::from)];
    rows.extend(reservations.iter().map(|reservation| row(reservation.as_ref(), now)));
    aligned(&rows, &[Side::Left; HEADINGS.len()])
}

fn row(reservation: &Reservation, now: &Zoned) -> [String; HEADINGS.len()] {
    let until = end(reservation);
    [
        reservation.handle.to_string(),
        reservation.state.to_string(),
        reservation.owner.to_string(),
        reservation.request.name.as_ref().map_or("-".into(), Name::to_string),
        nodes(reservation.nodes()),
        times::show_briefly(reservation.from_unix_nanos, now),
        until.map_or("-".into(), |until| times::show_briefly(until, now)),
        what(reservation, &|time| times::show_briefly(time, now)),
    ]
}

/// Until when it has what it holds, or had it: what is over was given back when it ended, whatever was planned. What was given
/// back before it began had nothing.
pub fn end(reservation: &Reservation) -> Option<WallTime> {
    let planned = reservation.until_unix_nanos;
    let is_had = reservation.grant.is_some() && reservation.state.is_over();
    let ended = reservation.since_unix_nanos.max(reservation.from_unix_nanos);
    if is_had { Some(planned.map_or(ended, |planned| planned.min(ended))) } else { planned }
}

fn nodes(nodes: &[Name]) -> String {
    match nodes {
        [] => "-".into(),
        [one] => one.to_string(),
        [first, second] => format!("{first} {second}"),
        [first, .., last] => format!("{first}..{last} ({})", nodes.len()),
    }
}

/// What is wrong with it, and what it holds; or for what it waits, or why it was refused. `show` writes a time.
fn what(reservation: &Reservation, show: &dyn Fn(WallTime) -> String) -> String {
    if reservation.waits.is_some() {
        return waiting::words(reservation, show);
    }
    let ended = reservation.run.filter(|run| run.state() == State::Failed);
    let wrong = ended.map(|run| run.to_string());
    let wrong = wrong.into_iter().chain(words::unenforced(reservation));
    wrong.chain([what_is_held(reservation, show)]).collect::<Vec<_>>().join("; ")
}

fn what_is_held(reservation: &Reservation, show: &dyn Fn(WallTime) -> String) -> String {
    match (&reservation.grant, &reservation.refusal) {
        (Some(grant), _) => words::held(grant, show) + &beside(&reservation.request, show),
        (None, Some(refusal)) => refusal.words(show),
        (None, None) => String::new(),
    }
}

/// What was asked for beside what is held for certain, to be told behind that.
pub fn beside(request: &Request, show: &dyn Fn(WallTime) -> String) -> String {
    let spare = if request.spare { ", and what is spare" } else { "" };
    let by = request.malleable.map(|malleable| show(malleable.by_unix_nanos));
    let by = by.map(|by| format!(", slower or faster by {by}")).unwrap_or_default();
    format!("{spare}{by}")
}

const HEADINGS: [&str; 8] = ["job", "state", "user", "name", "nodes", "begins", "ends", "what"];

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::tz::TimeZone;
    use serde_json::{Value, json};

    const HOUR: u64 = 3_600_000_000_000;

    /// r7 of ada's, from ten to eleven on the first day of all, with this beside.
    fn reservation(state: &str, more: Value) -> Box<Reservation> {
        let mut reservation = json!({
            "handle": "r7", "owner": "ada", "key": "k", "state": state,
            "request": { "ask": { "resources": { "nodes": { "any": 1 } } } },
            "from_unix_nanos": 10 * HOUR, "until_unix_nanos": 11 * HOUR, "since_unix_nanos": 0,
        });
        let Value::Object(more) = more else { panic!() };
        reservation.as_object_mut().unwrap().extend(more);
        serde_json::from_value(reservation).unwrap()
    }

    fn grant(nodes: &[&str]) -> Value {
        json!({ "nodes": nodes, "cpu_ppm": 200_000, "bits_per_second": 0 })
    }

    fn told(reservations: &[Box<Reservation>]) -> Vec<String> {
        let now = jiff::Timestamp::UNIX_EPOCH.to_zoned(TimeZone::UTC);
        table(reservations, &now).lines().map(str::to_owned).collect()
    }

    // Goal: what one looks for stands in columns below their headings. Method: one of each kind, with long and short cells.
    #[test]
    fn reservations_are_told_in_columns_below_headings() {
        let asked = json!({ "ask": { "resources": { "nodes": { "any": 4 } } }, "name": "solver",
            "spare": true });
        let all = [
            reservation("active", json!({ "grant": grant(&["n1", "n2"]), "unenforced": ["n2"] })),
            reservation(
                "granted",
                json!({ "grant": grant(&["n1", "n2", "n3", "n4"]), "request": asked,
                    "handle": "r1234", "until_unix_nanos": 35 * HOUR }),
            ),
            reservation(
                "waiting",
                json!({ "waits": { "place": 2, "until_unix_nanos": HOUR },
                    "refusal": { "reason": { "nodes-away": ["n1"] } }, "until_unix_nanos": null }),
            ),
            reservation(
                "failed",
                json!({ "grant": grant(&["n1"]), "run": { "exit-code": 3 },
                    "since_unix_nanos": 11 * HOUR }),
            ),
        ];
        let expected = [
            "job    state    user  name    nodes       begins  ends         what",
            "r7     active   ada   -       n1 n2       10:00   11:00        \
                not enforced on n2: CPU; 20 % of a CPU each",
            "r1234  granted  ada   solver  n1..n4 (4)  10:00   01-02 11:00  \
                20 % of a CPU each, and what is spare",
            "r7     waiting  ada   -       -           10:00   -            \
                place 2 in line, until 01:00 at the most: the agents of these nodes are not connected: n1",
            "r7     failed   ada   -       n1          10:00   11:00        \
                exit code 3; 20 % of a CPU each",
        ];
        assert_eq!(told(&all), expected);
    }

    // Goal: how long something was had is told as it was. Method: what ends before its time, on time (which a broker that was
    // away noticed late), without a time of its end, before it began, and not at all.
    #[test]
    fn what_is_over_is_told_until_it_ended() {
        let ends = |state: &str, since: u64, until: Option<u64>| {
            let until = until.map(|hours| hours * HOUR);
            let more = json!({ "grant": grant(&["n1"]), "since_unix_nanos": since * HOUR / 2,
                "until_unix_nanos": until });
            end(&reservation(state, more)).map(|end| end.unix_nanos() * 2 / HOUR)
        };
        for state in ["cancelled", "done", "failed", "lost"] {
            assert_eq!(ends(state, 21, Some(11)), Some(21), "{state}");
            assert_eq!(ends(state, 21, None), Some(21), "{state}");
            assert_eq!(ends(state, 1, Some(11)), Some(20), "{state}");
        }
        assert_eq!(ends("ended", 40, Some(11)), Some(22));
        assert_eq!(ends("active", 21, Some(11)), Some(22));
        assert_eq!(ends("active", 21, None), None);
        assert_eq!(
            end(&reservation("refused", json!({}))),
            Some(WallTime::from_unix_nanos(11 * HOUR))
        );
    }

    #[test]
    fn what_was_refused_is_counted_and_the_others_are_told() {
        let refused = || reservation("refused", json!({ "handle": "r8" }));
        let all = vec![refused(), reservation("done", json!({})), refused()];
        let (told, refused) = without_refused(all);
        let handles: Vec<_> = told.iter().map(|one| one.handle.to_string()).collect();
        assert_eq!((handles.join(" "), refused), ("r7".to_owned(), 2));
    }
}
