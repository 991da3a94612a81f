//! Everything that becomes durable, as server-sent events. A watcher that comes back says with
//! `Last-Event-ID` where it was, and misses nothing.

use super::reads::Turn;
use super::watchers::Place;
use super::{BYTES_TOLD_OF_TOKEN, Rejection, Shared, tokens_of};
use crate::feed::{self, FeedError, Old};
use crate::wire::{Happened, Position, Problem};
use axum::body::{Body, Bytes};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Extension, Query, State};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use keeptime_engine::Caller;
use keeptime_ledger::Revision;
use keeptime_model::Invalid;
use keeptime_model::reservation::{Handle, UserName};
use serde::{Deserialize, Serialize};
use std::convert::Infallible;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

/// So that both ends notice when the other is gone.
const SIGN_OF_LIFE: Duration = Duration::from_secs(15);
/// Pieces on their way to a watcher; then its reading waits. Each is all that was read at once.
const PIECES_MAX: usize = 2;
/// A watcher that takes nothing for so long is cut off. One that lives comes back, and misses nothing.
const TAKEN_WITHIN: Duration = Duration::from_secs(30);

/// Which events.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wanted {
    /// About this reservation only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handle: Option<Handle>,
    /// After this one, as the header `Last-Event-ID`; nothing = from now on. `0-0` is the beginning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
}

pub async fn watch(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    query: Result<Query<Wanted>, QueryRejection>,
) -> Result<Response, Rejection> {
    let Query(wanted) = query?;
    let place = shared.watchers.enter(&caller.user)?;
    // Before anything is read: what comes after is noticed.
    let heads = shared.feed.heads();
    let after = match last_event_id(&headers).or(wanted.after.clone()) {
        Some(text) => text.parse()?,
        None => Position::behind(shared.feed.head()),
    };
    // What is durable may not be in the feed yet, and be known from a history.
    check_is_there(after, shared.writer.status().head)?;
    let (user, handle, patience, unpaid) = (caller.user, wanted.handle, TAKEN_WITHIN, 0);
    let mut watcher =
        Watcher { shared, user, heads, handle, after, unpaid, patience, _place: place };
    // The first look tells whether that far back can be gone at all.
    let first = watcher.look().await.map_err(gone)?.unwrap_or_default();
    // Who is cut off before the first event comes back to here.
    let opening = format!("id: {after}\n: watching\n\n{first}");
    let (pieces, received) = mpsc::channel(PIECES_MAX);
    tokio::spawn(async move { watcher.run(opening, pieces).await });
    let headers =
        [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-store")];
    Ok((headers, Body::new(Pieces(received))).into_response())
}

struct Watcher {
    shared: Shared,
    user: UserName,
    heads: watch::Receiver<Revision>,
    handle: Option<Handle>,
    after: Position,
    /// Bytes that were read of the ledger, and have to be paid before more are.
    unpaid: usize,
    /// A piece is taken within this time.
    patience: Duration,
    _place: Place,
}

/// What is seen in one look at what comes next.
struct Seen {
    /// What of it is wanted, as it is sent.
    text: String,
    /// The last batch of it.
    end: Option<Revision>,
    /// Bytes that were read of the ledger.
    bytes: usize,
}

impl Watcher {
    /// Until either end goes, or the other takes nothing any more.
    async fn run(mut self, opening: String, pieces: mpsc::Sender<Bytes>) {
        let (mut text, mut said_at) = (opening, Instant::now());
        loop {
            if text.is_empty() && said_at.elapsed() >= SIGN_OF_LIFE {
                // Who is cut off comes back to here, however little of what was looked at is theirs.
                text = format!("id: {}\n: here\n\n", self.after);
            }
            if !text.is_empty() {
                if pieces.send_timeout(text.into(), self.patience).await.is_err() {
                    return;
                }
                said_at = Instant::now();
            }
            let looked = tokio::select! {
                looked = self.look() => looked,
                // Nobody looks on for who has gone.
                () = pieces.closed() => return,
            };
            text = match looked {
                Ok(Some(more)) => more,
                Ok(None) => {
                    if !self.wait(&pieces, said_at).await {
                        return;
                    }
                    String::new()
                }
                // The watcher comes back, and is told.
                Err(error) => return tracing::warn!("a watcher is cut off: {error}"),
            };
        }
    }

    /// Until there is more, or it is time for a sign of life; false if either end is gone.
    async fn wait(&mut self, pieces: &mpsc::Sender<Bytes>, said_at: Instant) -> bool {
        tokio::select! {
            changed = self.heads.changed() => changed.is_ok(),
            () = pieces.closed() => false,
            // Also when all that happens is about others.
            () = tokio::time::sleep_until(said_at + SIGN_OF_LIFE) => true,
        }
    }

    /// Looks at some of what comes next, and moves on behind it. What of it is wanted, as it is sent: nothing if that is none,
    /// and none if there is no more now.
    async fn look(&mut self) -> Result<Option<String>, FeedError> {
        // In the middle of a batch: all of it again, without what was seen.
        let whole = self.after.index == u32::MAX;
        let revision = self.after.revision.get();
        let from = Revision::new(if whole { revision } else { revision.saturating_sub(1) });
        let recent = self.shared.feed.recent(from);
        if recent.as_ref().is_some_and(Vec::is_empty) {
            return Ok(None);
        }
        let turn = match recent {
            Some(_) => None,
            None => Some(self.turn().await),
        };
        let (writer, after, handle) = (self.shared.writer.clone(), self.after, self.handle);
        let look = move || -> Result<Seen, FeedError> {
            let old = match recent {
                Some(batches) => Old { batches, bytes: 0 },
                None => feed::of_ledger(&writer, from)?,
            };
            drop(turn);
            Ok(Seen::of(&old, after, handle))
        };
        // After a panic it is looked again when there is more.
        let Ok(seen) = tokio::task::spawn_blocking(look).await else { return Ok(None) };
        let Seen { text, end, bytes } = seen?;
        self.unpaid += bytes;
        let Some(end) = end else { return Ok(None) };
        self.after = Position::behind(end);
        Ok(Some(text))
    }

    /// Waits until what was read before is paid as requests are, and it is the user's turn.
    async fn turn(&mut self) -> Turn {
        loop {
            let (tokens, now) = (tokens_of(self.unpaid), std::time::Instant::now());
            let paid = self.shared.rates().take(&self.user, tokens, now);
            let Err(wait) = paid else { break };
            tokio::time::sleep(wait).await;
        }
        self.unpaid %= BYTES_TOLD_OF_TOKEN;
        self.shared.reads.turn(&self.user).await
    }
}

impl Seen {
    /// What comes after `after` and is about `handle`, if there is one.
    fn of(old: &Old, after: Position, handle: Option<Handle>) -> Self {
        let all = old.batches.iter().flat_map(|batch| batch.iter());
        let is_wanted = |happened: &&Happened| {
            happened.position() > after && (handle.is_none() || happened.event.handle() == handle)
        };
        let end = old.batches.iter().rev().find_map(|batch| batch.last());
        Self {
            text: all.filter(is_wanted).map(piece).collect(),
            end: end.map(|last| Revision::new(last.revision)),
            bytes: old.bytes,
        }
    }
}

fn piece(happened: &Happened) -> String {
    // JSON has no line breaks.
    let data = serde_json::to_string(happened).unwrap_or_default();
    format!("id: {}\nevent: {}\ndata: {data}\n\n", happened.position(), happened.event.kind())
}

fn last_event_id(headers: &HeaderMap) -> Option<String> {
    let value = headers.get("last-event-id")?;
    Some(String::from_utf8_lossy(value.as_bytes()).into_owned())
}

/// Whoever has seen what this ledger does not have would miss what takes its place.
fn check_is_there(after: Position, head: Revision) -> Result<(), Rejection> {
    if after.revision <= head {
        return Ok(());
    }
    let expected = format!(
        "an id of this ledger, which ends at revision {head}: what came later was lost when it was \
         salvaged, or is in another ledger; or none, and the list first"
    );
    let invalid = Invalid::new("last-event-id", after, expected);
    Err(Problem { status: 410, ..invalid.into() }.into())
}

fn gone(error: FeedError) -> Problem {
    match error {
        FeedError::Gone { compacted_to } => {
            let expected = format!("an id after {compacted_to}-0; or none, and the list first");
            let invalid = Invalid::new("last-event-id", "an older one", expected);
            Problem { status: 410, ..invalid.into() }
        }
        other => Problem::new(503, "not now", other.to_string()),
    }
}

/// A body that ends when nobody sends any more.
struct Pieces(mpsc::Receiver<Bytes>);

impl hyper::body::Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<hyper::body::Frame<Bytes>, Infallible>>> {
        self.0
            .poll_recv(context)
            .map(|piece| piece.map(|bytes| Ok(hyper::body::Frame::data(bytes))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::now;
    use crate::core::testing::Still;
    use crate::feed::Feed;
    use crate::rates::Rates;
    use crate::records::batches;
    use keeptime_engine::{Event, Step};
    use keeptime_model::units::WallTime;
    use std::sync::Arc;
    use tokio::time::timeout;

    /// A broker whose ledger has so many batches that are in no memory. It may be asked five times at once, and once a second.
    fn long(count: u64) -> Shared {
        let Still { writer, hub, handle, counters, .. } = Still::new();
        for number in 1..=count {
            let (time, outputs) = (WallTime::from_unix_nanos(number), vec![]);
            let events = vec![Event::Ended { handle: Handle::new(number) }];
            writer.append(batches(&Step { time, events, outputs }).unwrap().remove(0)).unwrap();
        }
        let feed = Feed::after(writer.status().head);
        Shared::new(handle, writer, hub, feed, counters, Rates::new(1), Arc::default())
    }

    /// One from the beginning on.
    fn watcher(shared: &Shared, user: &str, handle: Option<u64>) -> Watcher {
        let user = user.parse().unwrap();
        Watcher {
            _place: shared.watchers.enter(&user).ok().unwrap(),
            heads: shared.feed.heads(),
            handle: handle.map(Handle::new),
            after: Position::behind(Revision::ZERO),
            unpaid: 0,
            patience: Duration::from_millis(10),
            shared: shared.clone(),
            user,
        }
    }

    #[tokio::test]
    async fn a_watcher_that_takes_nothing_is_cut_off_and_gives_its_place_back() {
        // Its connection is there, and there is room for one piece.
        let shared = long(0);
        let watcher = watcher(&shared, "ada", None);
        assert!(!shared.watchers.are_empty());
        let (pieces, _received) = mpsc::channel(1);
        let event = Event::Ended { handle: Handle::new(1) };
        let happened = [Happened::new(Revision::new(1), Some(0), now(), event)];
        shared.feed.publish(Revision::new(1), happened.into(), 1);
        let run = watcher.run("opening".into(), pieces);
        timeout(Duration::from_secs(60), run).await.unwrap();
        assert!(shared.watchers.are_empty(), "nobody watches any more");
    }

    // Goal: who looks for what is not there holds up nobody for longer than others who read. Method: a ledger of several looks,
    // in each of which nothing is wanted.
    #[tokio::test]
    async fn what_is_sought_in_vain_is_sought_in_looks_of_bounded_length() {
        let shared = long(600);
        let mut watcher = watcher(&shared, "eve", Some(999));
        let mut revisions = Vec::new();
        while let Some(text) = watcher.look().await.unwrap() {
            assert!(text.is_empty(), "{text}");
            revisions.push(watcher.after.revision.get());
        }
        assert_eq!(revisions, [256, 512, 600]);
        assert!(watcher.unpaid > 0, "all of them were read");
    }

    // Method: as if much had been read before. What is in memory costs nothing.
    #[tokio::test]
    async fn who_has_read_much_of_the_ledger_pays_before_reading_more() {
        let shared = long(10);
        let mut eve = watcher(&shared, "eve", None);
        shared.rates().take(&eve.user, 5, std::time::Instant::now()).unwrap();
        eve.unpaid = 5 * BYTES_TOLD_OF_TOKEN;
        assert!(timeout(Duration::from_millis(50), eve.look()).await.is_err());
        assert_eq!(eve.after.revision, Revision::ZERO, "nothing was read");
        let mut ada = watcher(&shared, "ada", None);
        let seen = timeout(Duration::from_secs(60), ada.look()).await.unwrap().unwrap().unwrap();
        assert_eq!(seen.matches("event: ended").count(), 10);
        eve.after = ada.after;
        assert!(eve.look().await.unwrap().is_none(), "there is no more");
        eve.after = Position::behind(Revision::ZERO);
        eve.unpaid = 0;
        assert!(timeout(Duration::from_secs(60), eve.look()).await.unwrap().unwrap().is_some());
    }

    #[test]
    fn who_has_seen_what_is_not_there_is_told_and_nobody_else() {
        let check = |text: &str| check_is_there(text.parse().unwrap(), Revision::new(7));
        for id in ["0-0", "7-0", "7-4294967295"] {
            assert!(check(id).is_ok(), "{id}");
        }
        let problem = check("8-0").err().unwrap().0;
        assert_eq!(problem.status, 410);
        assert!(problem.detail.contains("which ends at revision 7"), "{}", problem.detail);
    }
}
