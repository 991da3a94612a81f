//! Everything that becomes durable, as server-sent events. A watcher that comes back says with
//! `Last-Event-ID` where it was, and misses nothing.

use super::watchers::Place;
use super::{Rejection, Shared};
use crate::feed::FeedError;
use crate::wire::{Happened, Position, Problem};
use axum::body::{Body, Bytes};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Extension, Query, State};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use keeptime_engine::Caller;
use keeptime_ledger::Revision;
use keeptime_model::Invalid;
use keeptime_model::reservation::Handle;
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
    let (handle, patience) = (wanted.handle, TAKEN_WITHIN);
    let mut watcher = Watcher { shared, heads, handle, after, patience, _place: place };
    // The first read tells whether that far back can be gone at all.
    let first = watcher.read().await.map_err(gone)?;
    // Who is cut off before the first event comes back to here.
    let opening = format!("id: {after}\n: watching\n\n");
    let (pieces, received) = mpsc::channel(PIECES_MAX);
    tokio::spawn(async move { watcher.run(opening, first, pieces).await });
    let headers =
        [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-store")];
    Ok((headers, Body::new(Pieces(received))).into_response())
}

struct Watcher {
    shared: Shared,
    heads: watch::Receiver<Revision>,
    handle: Option<Handle>,
    after: Position,
    /// A piece is taken within this time.
    patience: Duration,
    _place: Place,
}

impl Watcher {
    /// Until either end goes, or the other takes nothing any more.
    async fn run(mut self, opening: String, first: Vec<Happened>, pieces: mpsc::Sender<Bytes>) {
        let (mut text, mut next, mut said_at) = (opening, first, Instant::now());
        loop {
            for happened in &next {
                text.push_str(&piece(happened));
            }
            if !text.is_empty() {
                if pieces.send_timeout(text.into(), self.patience).await.is_err() {
                    return;
                }
                said_at = Instant::now();
            }
            text = String::new();
            next = match self.read().await {
                Ok(more) if !more.is_empty() => more,
                Ok(_) => match self.wait(&pieces, said_at).await {
                    Some(is_alive) => {
                        text.push_str(if is_alive { "" } else { ": here\n\n" });
                        Vec::new()
                    }
                    None => return,
                },
                // The watcher comes back, and is told.
                Err(error) => return tracing::warn!("a watcher is cut off: {error}"),
            };
        }
    }

    /// Until there is more (true), or it is time for a sign of life; nothing if either end is gone.
    async fn wait(&mut self, pieces: &mpsc::Sender<Bytes>, said_at: Instant) -> Option<bool> {
        tokio::select! {
            changed = self.heads.changed() => changed.ok().map(|()| true),
            () = pieces.closed() => None,
            // Also when all that happens is about others.
            () = tokio::time::sleep_until(said_at + SIGN_OF_LIFE) => Some(false),
        }
    }

    /// What is wanted of what comes next; moves on behind it. Empty only if there is no more now.
    async fn read(&mut self) -> Result<Vec<Happened>, FeedError> {
        loop {
            // In the middle of a batch: all of it again, without what was seen.
            let whole = self.after.index == u32::MAX;
            let revision = self.after.revision.get();
            let from = Revision::new(if whole { revision } else { revision.saturating_sub(1) });
            let (feed, writer) = (self.shared.feed.clone(), self.shared.writer.clone());
            let read = tokio::task::spawn_blocking(move || feed.read(&writer, from)).await;
            // A read that panicked is the end of this watcher, and of nobody else.
            let read = read.unwrap_or_else(|_| Ok(Vec::new()))?;
            let after = self.after;
            let Some(last) = read.last() else { return Ok(Vec::new()) };
            self.after = Position::behind(Revision::new(last.revision));
            let handle = self.handle;
            let is_wanted = |happened: &Happened| {
                happened.position() > after
                    && (handle.is_none() || happened.event.handle() == handle)
            };
            let wanted: Vec<_> = read.into_iter().filter(is_wanted).collect();
            if !wanted.is_empty() {
                return Ok(wanted);
            }
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
    use crate::rates::Rates;
    use keeptime_engine::Event;
    use std::sync::Arc;

    #[tokio::test]
    async fn a_watcher_that_takes_nothing_is_cut_off_and_gives_its_place_back() {
        // Its connection is there, and there is room for one piece.
        let Still { writer, hub, handle, feed, counters, .. } = Still::new();
        let rates = Rates::new(1);
        let shared =
            Shared::new(handle, writer, hub, feed.clone(), counters, rates, Arc::default());
        let watchers = Arc::clone(&shared.watchers);
        let place = watchers.enter(&"ada".parse().unwrap()).ok().unwrap();
        let watcher = Watcher {
            heads: feed.heads(),
            handle: None,
            after: Position::behind(Revision::ZERO),
            patience: Duration::from_millis(10),
            shared,
            _place: place,
        };
        let (pieces, _received) = mpsc::channel(1);
        let event = Event::Ended { handle: Handle::new(1) };
        let happened = [Happened::new(Revision::new(1), Some(0), now(), event)];
        feed.publish(Revision::new(1), happened.into(), 1);
        let run = watcher.run("opening".into(), Vec::new(), pieces);
        tokio::time::timeout(Duration::from_secs(60), run).await.unwrap();
        assert_eq!(Arc::strong_count(&watchers), 1, "nobody watches any more");
    }
}
