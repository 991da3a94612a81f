//! Reservations and applications.

use super::answers::Answers;
use super::{Patience, Rejection, Shared, body, reads};
use crate::records;
use crate::wire::{
    Filter, Finished, Happened, History, KEY_HEADER, Known, LIST_BYTES, LIST_MAX, Listing,
    Possible, Problem, Ran, Reserve, Runs,
};
use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, PathRejection, QueryRejection};
use axum::extract::{Extension, FromRequestParts, Path, Query, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use keeptime_engine::book::{self, Reservation};
use keeptime_engine::{Answer, Call, CallError, Caller, Engine};
use keeptime_ledger::{Subject, Writer};
use keeptime_model::Invalid;
use keeptime_model::name::Name;
use keeptime_model::reservation::{self, Ask, Handle, Request, RequestKey, WAIT_MAX};
use serde::{Deserialize, Serialize};
use std::io;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;
use std::time::Duration;

/// Reservations that are looked at for one answer: everybody waits meanwhile, well under a
/// millisecond.
const LOOK_AT_MAX: usize = 10_000;

/// The query of `PUT /v1/reservations/{handle}`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Turn {
    /// Whether it waits for other jobs of its nodes.
    in_turn: bool,
}

pub async fn reserve(
    State(shared): State<Shared>,
    answers: Answers,
    Extension(patience): Extension<Patience>,
    headers: HeaderMap,
    bytes: Result<Bytes, BytesRejection>,
) -> Result<Response, Rejection> {
    let Reserve { key, request } = body(bytes)?;
    check_ask(&request)?;
    let key = request_key(key, &headers)?;
    if let Some(wait) = request.wait_nanos {
        // More than is accepted is told at once.
        patience.extend(Duration::from_nanos(wait.min(WAIT_MAX).get()));
    }
    let call = Call::Reserve { key, request };
    let reservation = reservation(&shared, answers.caller().clone(), call).await?;
    let location = format!("/v1/reservations/{}", reservation.handle);
    let mut response = answers.changed(StatusCode::CREATED, reservation).await;
    if let Ok(location) = location.parse() {
        response.headers_mut().insert(header::LOCATION, location);
    }
    Ok(response)
}

pub async fn list(
    State(shared): State<Shared>,
    answers: Answers,
    query: Result<Query<Filter>, QueryRejection>,
) -> Result<Response, Rejection> {
    let Query(filter) = query?;
    let limit = filter.limit.unwrap_or(LIST_MAX);
    if !(1..=LIST_MAX).contains(&limit) {
        return Err(Invalid::new("limit", limit, format!("1 to {LIST_MAX}")).into());
    }
    let listing = shared.core.read(move |engine| select(engine, &filter, limit)).await?;
    // How long they are is not known before they are written.
    let page = tokio::task::spawn_blocking(move || cut(listing, LIST_BYTES)).await;
    let page = page.map_err(|error| Problem::new(500, "no JSON", error.to_string()))?;
    Ok(answers.json(StatusCode::OK, page).await)
}

pub async fn show(
    State(shared): State<Shared>,
    answers: Answers,
    Of(handle): Of,
) -> Result<Response, Rejection> {
    let find = move |engine: &Engine| {
        let recorded = engine.book().reservations().get(&handle);
        let recorded = recorded.map(|recorded| engine.seen(recorded));
        recorded.or_else(|| engine.who_waits().find(|waits| waits.handle == handle).map(Arc::new))
    };
    match shared.core.read(find).await? {
        Some(reservation) => Ok(answers.json(StatusCode::OK, reservation).await),
        None => Err(CallError::NotFound { handle }.into()),
    }
}

pub async fn modify(
    State(shared): State<Shared>,
    answers: Answers,
    Of(handle): Of,
    query: Result<Query<Turn>, QueryRejection>,
    bytes: Result<Bytes, BytesRejection>,
) -> Result<Response, Rejection> {
    let Query(Turn { in_turn }) = query?;
    let request: Request = body(bytes)?;
    check_ask(&request)?;
    let call = match in_turn {
        true => Call::Correct { handle, request },
        false => Call::Modify { handle, request },
    };
    changed(&shared, &answers, call).await
}

pub async fn cancel(
    State(shared): State<Shared>,
    answers: Answers,
    Of(handle): Of,
) -> Result<Response, Rejection> {
    changed(&shared, &answers, Call::Cancel { handle }).await
}

/// Moves a reservation that was lost.
pub async fn move_lost(
    State(shared): State<Shared>,
    answers: Answers,
    Of(handle): Of,
) -> Result<Response, Rejection> {
    changed(&shared, &answers, Call::Move { handle }).await
}

/// The holder of a reservation with a lease lives.
pub async fn keep(
    State(shared): State<Shared>,
    answers: Answers,
    Of(handle): Of,
) -> Result<Response, Rejection> {
    changed(&shared, &answers, Call::Keep { handle }).await
}

/// A run with a reservation has ended.
pub async fn report(
    State(shared): State<Shared>,
    answers: Answers,
    Of(handle): Of,
    bytes: Result<Bytes, BytesRejection>,
) -> Result<Response, Rejection> {
    let Ran { actual_nanos: actual } = body(bytes)?;
    changed(&shared, &answers, Call::Report { handle, actual }).await
}

/// The run that a reservation was for is over.
pub async fn finish(
    State(shared): State<Shared>,
    answers: Answers,
    Of(handle): Of,
    bytes: Result<Bytes, BytesRejection>,
) -> Result<Response, Rejection> {
    let Finished { run } = body(bytes)?;
    changed(&shared, &answers, Call::Finish { handle, run }).await
}

/// How a goal was decided, step by step, while the broker remembers.
pub async fn decision(
    State(shared): State<Shared>,
    answers: Answers,
    Of(handle): Of,
) -> Result<Response, Rejection> {
    let find = move |engine: &Engine| engine.decision(handle).cloned();
    match shared.core.read(find).await? {
        Some(decision) => Ok(answers.json(StatusCode::OK, decision).await),
        None => {
            let detail = format!(
                "no decision about {handle} is remembered; the last are, of goals, and the \
                         history has the outline of all"
            );
            Err(Problem::new(404, "not found", detail).into())
        }
    }
}

/// What happened to a reservation, also to one that is over, until it is compacted; of a long history its first and its last
/// records.
pub async fn history(
    State(shared): State<Shared>,
    answers: Answers,
    Of(handle): Of,
) -> Result<Response, Rejection> {
    // Of who waits nothing is recorded.
    let waits = move |engine: &Engine| engine.who_waits().any(|waits| waits.handle == handle);
    if shared.core.read(waits).await? {
        let nothing = History { records: Vec::new(), left_out: None };
        return Ok(answers.json(StatusCode::OK, nothing).await);
    }
    let turn = shared.reads.turn(&answers.caller().user).await;
    let read = move || read_history(&shared.writer, handle, turn);
    let history = tokio::task::spawn_blocking(read).await;
    let history = history.map_err(|error| Problem::new(503, "not now", error.to_string()))??;
    Ok(answers.json(StatusCode::OK, history).await)
}

pub async fn consider(
    State(shared): State<Shared>,
    answers: Answers,
    bytes: Result<Bytes, BytesRejection>,
) -> Result<Response, Rejection> {
    let request: Request = body(bytes)?;
    check_ask(&request)?;
    match answer(&shared, answers.caller().clone(), Call::Consider { request }).await? {
        Answer::Possible { from, until, grant } => {
            let possible =
                Possible { from_unix_nanos: from, until_unix_nanos: until, grant: *grant };
            Ok(answers.json(StatusCode::OK, possible).await)
        }
        other => Err(unexpected(&other).into()),
    }
}

/// How a goal would be decided, step by step.
pub async fn explain(
    State(shared): State<Shared>,
    answers: Answers,
    bytes: Result<Bytes, BytesRejection>,
) -> Result<Response, Rejection> {
    let request: Request = body(bytes)?;
    match answer(&shared, answers.caller().clone(), Call::Explain { request }).await? {
        Answer::Decided(decision) => Ok(answers.json(StatusCode::OK, decision).await),
        other => Err(unexpected(&other).into()),
    }
}

pub async fn register(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    name: Result<Path<String>, PathRejection>,
    bytes: Result<Bytes, BytesRejection>,
) -> Result<Response, Rejection> {
    let Path(name) = name?;
    let Known { application, profile } = body(bytes)?;
    check_address("application.name", application.name(), &name)?;
    profile.check_new()?;
    let (application, profile) = (Box::new(application), Box::new(profile));
    match answer(&shared, caller, Call::Register { application, profile }).await? {
        Answer::Registered => Ok(StatusCode::NO_CONTENT.into_response()),
        other => Err(unexpected(&other).into()),
    }
}

pub async fn application(
    State(shared): State<Shared>,
    answers: Answers,
    name: Result<Path<String>, PathRejection>,
) -> Result<Response, Rejection> {
    let known = of_application(&shared, name?, |known| Known {
        application: known.application.clone(),
        profile: known.profile.clone(),
    });
    Ok(answers.json(StatusCode::OK, known.await?).await)
}

/// What the last runs of an application took.
pub async fn runs(
    State(shared): State<Shared>,
    answers: Answers,
    name: Result<Path<String>, PathRejection>,
) -> Result<Response, Rejection> {
    let runs = of_application(&shared, name?, |known| Runs { runs: known.runs.clone() });
    Ok(answers.json(StatusCode::OK, runs.await?).await)
}

/// Something of an application that is known.
async fn of_application<T: Send + 'static>(
    shared: &Shared,
    Path(text): Path<String>,
    of: impl FnOnce(&book::Known) -> T + Send + 'static,
) -> Result<T, Rejection> {
    let name: Name = text.parse()?;
    let find = move |engine: &Engine| engine.book().applications().get(&name).map(of);
    let unknown = || Problem::new(404, "not found", format!("no application {text} is known"));
    shared.core.read(find).await?.ok_or_else(|| unknown().into())
}

fn select(engine: &Engine, filter: &Filter, limit: usize) -> Listing {
    let after = filter.after.map_or(Bound::Unbounded, Bound::Excluded);
    let range = (after, Bound::Unbounded);
    // Who waits is not recorded, so that nobody looks at what is.
    let is_recorded = filter.state != Some(reservation::State::Waiting);
    let recorded = is_recorded.then(|| engine.book().reservations().range(range).map(|(_, r)| r));
    let waiting = engine.who_waits().filter(|waits| range.contains(&waits.handle)).map(Arc::new);
    let mut all = in_order(recorded.into_iter().flatten().cloned(), waiting);
    let (mut reservations, mut last) = (Vec::new(), None);
    for reservation in all.by_ref().take(LOOK_AT_MAX) {
        last = Some(reservation.handle);
        if is_wanted(filter, &reservation) {
            reservations.push(engine.seen(&reservation));
        }
        if reservations.len() == limit {
            break;
        }
    }
    let next = all.next().and(last);
    Listing { reservations, next }
}

/// All of both, each of which is in the order of handles, in that order.
fn in_order(
    one: impl Iterator<Item = Arc<Reservation>>,
    other: impl Iterator<Item = Arc<Reservation>>,
) -> impl Iterator<Item = Arc<Reservation>> {
    let (mut one, mut other) = (one.peekable(), other.peekable());
    std::iter::from_fn(move || match (one.peek(), other.peek()) {
        (Some(first), Some(second)) if second.handle < first.handle => other.next(),
        (None, _) => other.next(),
        _ => one.next(),
    })
}

/// One page: it ends with the reservation by which it has so many bytes, and the next begins behind that.
fn cut(mut listing: Listing, bytes_max: usize) -> Listing {
    let mut bytes = 0;
    let fits = |reservation: &&Arc<Reservation>| {
        let is_room = bytes < bytes_max;
        bytes += length(*reservation);
        is_room
    };
    let count = listing.reservations.iter().take_while(fits).count();
    if count < listing.reservations.len() {
        listing.reservations.truncate(count);
        listing.next = listing.reservations.last().map(|last| last.handle);
    }
    listing
}

/// Bytes of `value` in JSON.
fn length(value: &impl Serialize) -> usize {
    let mut length = Length(0);
    // What cannot be written is told by whoever writes it.
    let _ = serde_json::to_writer(&mut length, value);
    length.0
}

/// Counts what is written.
struct Length(usize);

impl io::Write for Length {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What happened to it; `turn` is that of the read.
fn read_history(writer: &Writer, handle: Handle, turn: reads::Turn) -> Result<History, Rejection> {
    let subject = Subject::new(handle.number());
    let unread = |why: String| Problem::new(503, "not now", why);
    let recorded = writer.call(move |ledger| records::history(ledger, subject));
    drop(turn);
    let recorded = recorded.map_err(|error| unread(error.to_string()))?;
    let (recorded, left_out) = recorded.map_err(|error| unread(error.to_string()))?;
    let happened = recorded.iter().map(|recorded| {
        let event = records::event(recorded)?;
        Ok(Happened::new(recorded.revision, None, recorded.record.time, event))
    });
    let records: Result<Vec<_>, records::RecordError> = happened.collect();
    let records = records.map_err(|error| Problem::new(500, "not readable", error.to_string()))?;
    if records.is_empty() {
        return Err(CallError::NotFound { handle }.into());
    }
    Ok(History { records, left_out })
}

fn is_wanted(filter: &Filter, reservation: &Reservation) -> bool {
    let is_on =
        |node: &Name| reservation.grant.as_ref().is_some_and(|grant| grant.nodes.contains(node));
    filter.owner.as_ref().is_none_or(|owner| reservation.owner == *owner)
        && filter.state.is_none_or(|state| reservation.state == state)
        && filter.live.is_none_or(|live| reservation.state.is_over() != live)
        && filter.node.as_ref().is_none_or(is_on)
}

/// What is sent to an address is what the address names.
pub(super) fn check_address(field: &str, name: &Name, address: &str) -> Result<(), Invalid> {
    match name.as_str() == address {
        true => Ok(()),
        false => Err(Invalid::new(field, name, format!("{address}, as in the address"))),
    }
}

/// Nodes of sites have one writer, the broker's own controller: two would undo each other's moves.
fn check_ask(request: &Request) -> Result<(), Invalid> {
    match &request.ask {
        Ask::SiteNode(asked) => {
            let expected = "resources or a goal: the broker gives sites their nodes itself";
            Err(Invalid::new("ask.site-node", &asked.node, expected))
        }
        Ask::Goal { .. } | Ask::Resources(_) => Ok(()),
    }
}

pub(super) async fn answer(
    shared: &Shared,
    caller: Caller,
    call: Call,
) -> Result<Answer, Rejection> {
    let answer = shared.core.call(caller, call).await?;
    answer.map_err(|error| (*error).into())
}

/// Carries out what is about a reservation that is there, and shows it.
async fn changed(shared: &Shared, answers: &Answers, call: Call) -> Result<Response, Rejection> {
    let changed = reservation(shared, answers.caller().clone(), call).await?;
    Ok(answers.changed(StatusCode::OK, changed).await)
}

async fn reservation(
    shared: &Shared,
    caller: Caller,
    call: Call,
) -> Result<Arc<Reservation>, Rejection> {
    match answer(shared, caller, call).await? {
        Answer::Reservation(reservation) => Ok(reservation),
        other => Err(unexpected(&other).into()),
    }
}

pub(super) fn unexpected(answer: &Answer) -> Problem {
    Problem::new(500, "not understood", format!("the engine answered {answer:?}"))
}

/// The reservation that the address names.
pub struct Of(Handle);

impl<S: Send + Sync> FromRequestParts<S> for Of {
    type Rejection = Rejection;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Rejection> {
        let Path(text) = Path::<String>::from_request_parts(parts, state).await?;
        Ok(Self(text.parse()?))
    }
}

/// In the body or in a header; the same if in both.
fn request_key(key: Option<RequestKey>, headers: &HeaderMap) -> Result<RequestKey, Invalid> {
    let given = headers.get(KEY_HEADER).map(|value| {
        let text = String::from_utf8_lossy(value.as_bytes()).into_owned();
        text.parse::<RequestKey>()
    });
    match (key, given.transpose()?) {
        (Some(key), Some(other)) if key != other => {
            let expected = format!("{other}, as in the header {KEY_HEADER}");
            Err(Invalid::new("key", key, expected))
        }
        (Some(key), _) | (None, Some(key)) => Ok(key),
        (None, None) => {
            let expected =
                format!("a key of the request's own, here or in the header {KEY_HEADER}");
            Err(Invalid::missing("key", expected))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use keeptime_model::pattern::{Pattern, RankFlow};
    use keeptime_model::reservation::{NodeChoice, Resources};
    use serde_json::json;

    /// A request that was refused, with so many flows.
    fn refused(number: u64, flows: u32) -> Arc<Reservation> {
        let all = (1..=flows).map(|to| RankFlow { from: 0, to }).collect();
        let pattern = (flows > 0).then_some(Pattern::Matrix(all));
        let nodes = NodeChoice::Any(4_096);
        let resources = Resources { nodes, pattern, ..Resources::nothing() };
        let reservation = json!({
            "handle": Handle::new(number), "owner": "eve", "key": "k", "state": "refused",
            "request": Request::new(Ask::Resources(resources)),
            "from_unix_nanos": 0, "since_unix_nanos": 0,
        });
        Arc::new(serde_json::from_value(reservation).unwrap())
    }

    // Goal: a page is about as long as it may be and no longer, and all of them together have everything. Method: long ones and
    // short ones, and one that is longer than a page.
    #[test]
    fn pages_end_by_their_length_and_nothing_is_between_them() {
        const PAGE: usize = 10_000;
        let flows = |number: u64| match number {
            7 => 4_000,
            even if even % 2 == 0 => 500,
            _ => 0,
        };
        let all: Vec<_> = (1..=40).map(|number| refused(number, flows(number))).collect();
        let (mut seen, mut pages) = (Vec::new(), 0);
        while seen.len() < all.len() {
            let rest = Listing { reservations: all[seen.len()..].to_vec(), next: None };
            let page = cut(rest, PAGE);
            let lengths: Vec<_> = page.reservations.iter().map(length).collect();
            let bytes: usize = lengths.iter().sum();
            assert!(bytes - lengths[lengths.len() - 1] < PAGE, "{lengths:?}");
            seen.extend(page.reservations);
            let is_last = seen.len() == all.len();
            assert!(is_last || bytes >= PAGE, "{lengths:?}");
            assert_eq!(page.next, (!is_last).then(|| seen[seen.len() - 1].handle));
            pages += 1;
        }
        assert!(seen == all && pages > 5, "{pages} pages");
    }
}
