//! Everything that becomes durable, as server-sent events. A watcher that comes back says with
//! `Last-Event-ID` where it was, and misses nothing.

use super::answers::{ALL_TAKEN_WITHIN, hang_up_unless_taken};
use super::reads::Turn;
use super::watchers::Place;
use super::{Rejection, Shared};
use crate::feed::{self, FeedError};
use crate::impatient::{HangUp, TAKEN_WITHIN};
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
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::error::{SendTimeoutError, TrySendError};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep, sleep_until};

/// So that both ends notice when the other is gone.
const SIGN_OF_LIFE: Duration = Duration::from_secs(15);
/// Pieces on their way to a watcher; then its reading waits. Each is all that was read at once.
const PIECES_MAX: usize = 2;
/// The last of a watcher that does not keep up. Without an id: its own last event is behind some that it did not get.
const CUT_SLOW: &str = ": cut: read slower than events come; ask again from your last event\n\n";
/// The last of one whose next events cannot be read, as when they were compacted meanwhile. Why, it is told when it comes back.
const CUT_UNREADABLE: &str =
    ": cut: the next events cannot be read; ask again from your last event\n\n";

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
    hang_up: Option<Extension<HangUp>>,
    headers: HeaderMap,
    query: Result<Query<Wanted>, QueryRejection>,
) -> Result<Response, Rejection> {
    let Query(wanted) = query?;
    let place = shared.watchers.enter(&caller.user)?;
    // Before anything is read: what comes after is noticed.
    let heads = shared.feed.heads();
    let (field, id) = seen_last(&headers, wanted.after.clone());
    let after = match id {
        Some(text) => text.parse().map_err(|wrong| Invalid { field: field.into(), ..wrong })?,
        None => Position::behind(shared.feed.head()),
    };
    // What is durable may not be in the feed yet, and be known from a history.
    let status = shared.writer.status();
    let kept_after = status.compacted_to.min(shared.feed.recent_after());
    check_is_there(field, after, kept_after, status.head)?;
    let (way, pieces) = way(place);
    let watcher = Watcher {
        shared,
        user: caller.user,
        heads,
        handle: wanted.handle,
        after,
        sign_of_life: SIGN_OF_LIFE,
        patience: TAKEN_WITHIN,
        rest_within: ALL_TAKEN_WITHIN,
        hang_up: hang_up.map(|Extension(hang_up)| hang_up).unwrap_or_default(),
    };
    // It begins at once, whoever else reads.
    tokio::spawn(watcher.run(way));
    let headers =
        [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-store")];
    Ok((headers, Body::new(pieces)).into_response())
}

/// The way to a watcher, and its other end: there is room for one piece more, which is kept for the last words to it.
fn way(place: Place) -> (Way, Pieces) {
    let (pieces, received) = mpsc::channel(PIECES_MAX + 1);
    let (there, taken) = oneshot::channel();
    (Way { pieces, taken }, Pieces { received, _place: place, _there: there })
}

struct Way {
    pieces: mpsc::Sender<Bytes>,
    /// Fails when the other end has gone.
    taken: oneshot::Receiver<()>,
}

struct Watcher {
    shared: Shared,
    user: UserName,
    heads: watch::Receiver<Revision>,
    handle: Option<Handle>,
    after: Position,
    /// Something is said so often at least.
    sign_of_life: Duration,
    /// A piece is taken within this time: one that lives and is cut off comes back, and misses nothing.
    patience: Duration,
    /// Who is cut off takes the rest within this time, however little at once, or the connection is ended.
    rest_within: Duration,
    hang_up: HangUp,
}

/// What is seen in one look at what comes next.
struct Seen {
    /// What of it is wanted, as it is sent.
    text: String,
    /// The last batch of it.
    end: Option<Revision>,
}

impl Watcher {
    /// Until the other end has gone. Who leaves what was sent last too long is hung up on.
    async fn run(self, Way { pieces, taken }: Way) {
        let (hang_up, rest_within) = (self.hang_up.clone(), self.rest_within);
        self.tell(pieces).await;
        hang_up_unless_taken(&hang_up, taken, rest_within).await;
    }

    /// Until either end goes, or the other takes nothing any more.
    async fn tell(mut self, pieces: mpsc::Sender<Bytes>) {
        // Who does not keep up has all other room taken when they are cut off.
        let Ok(last_words) = pieces.clone().try_reserve_owned() else { return };
        let cut = |why: &'static str| drop(last_words.send(Bytes::from_static(why.as_bytes())));
        // Who is cut off before the first event comes back to here.
        let (mut text, mut said_at) = (self.say("watching"), Instant::now());
        loop {
            if text.is_empty() && said_at.elapsed() >= self.sign_of_life {
                text = self.say("here");
            }
            if !text.is_empty() {
                match pieces.send_timeout(text.into(), self.patience).await {
                    Ok(()) => {}
                    Err(SendTimeoutError::Timeout(_)) => return cut(CUT_SLOW),
                    Err(SendTimeoutError::Closed(_)) => return,
                }
                said_at = Instant::now();
            }
            let Some(looked) = self.look_alive(&pieces, &mut said_at).await else { return };
            text = match looked {
                Ok(Some(more)) => more,
                Ok(None) => {
                    if !self.wait(&pieces, said_at).await {
                        return;
                    }
                    String::new()
                }
                // The watcher comes back, and is told.
                Err(error) => {
                    tracing::warn!("a watcher is cut off: {error}");
                    return cut(CUT_UNREADABLE);
                }
            };
        }
    }

    /// A remark. Who is cut off behind it comes back to here, however little of what was looked at is theirs.
    fn say(&self, remark: &str) -> String {
        format!("id: {}\n: {remark}\n\n", self.after)
    }

    /// Looks, with signs of life while it is the turn of others, or what was read before is not paid for yet; nothing if the
    /// other end is gone.
    async fn look_alive(
        &mut self,
        pieces: &mpsc::Sender<Bytes>,
        said_at: &mut Instant,
    ) -> Option<Result<Option<String>, FeedError>> {
        let (here, every) = (Bytes::from(self.say("here")), self.sign_of_life);
        let mut look = pin!(self.look());
        loop {
            tokio::select! {
                looked = &mut look => return Some(looked),
                // Nobody looks on for who has gone.
                () = pieces.closed() => return None,
                () = sleep_until(*said_at + every) => {
                    // Who has something to take yet is not waited for: it may be their turn, and others wait for that.
                    if let Err(TrySendError::Closed(_)) = pieces.try_send(here.clone()) {
                        return None;
                    }
                    *said_at = Instant::now();
                }
            }
        }
    }

    /// Until there is more, or it is time for a sign of life; false if either end is gone.
    async fn wait(&mut self, pieces: &mpsc::Sender<Bytes>, said_at: Instant) -> bool {
        tokio::select! {
            changed = self.heads.changed() => changed.is_ok(),
            () = pieces.closed() => false,
            // Also when all that happens is about others.
            () = sleep_until(said_at + self.sign_of_life) => true,
        }
    }

    /// Looks at some of what comes next, and moves on behind it. What of it is wanted, as it is sent: nothing if that is none,
    /// and none if there is no more now.
    async fn look(&mut self) -> Result<Option<String>, FeedError> {
        let from = read_from(self.after);
        let recent = self.shared.feed.recent(from);
        if recent.as_ref().is_some_and(Vec::is_empty) {
            return Ok(None);
        }
        let turn = match recent {
            Some(_) => None,
            None => Some(self.turn().await),
        };
        let (shared, user) = (self.shared.clone(), self.user.clone());
        let (after, handle) = (self.after, self.handle);
        let look = move || -> Result<Seen, FeedError> {
            let batches = match recent {
                Some(batches) => batches,
                None => {
                    let old = feed::of_ledger(&shared.writer, from)?;
                    // Also for who hangs up meanwhile.
                    shared.owe(&user, old.bytes);
                    old.batches
                }
            };
            drop(turn);
            Ok(Seen::of(&batches, after, handle))
        };
        // After a panic it is looked again when there is more.
        let Ok(seen) = tokio::task::spawn_blocking(look).await else { return Ok(None) };
        let Seen { text, end } = seen?;
        let Some(end) = end else { return Ok(None) };
        self.after = Position::behind(end);
        Ok(Some(text))
    }

    /// Waits until one more request may be made, as which each read of the ledger counts, and it is the user's turn. What is
    /// read besides is owed: so nothing is read before what was read last is paid for.
    async fn turn(&self) -> Turn {
        loop {
            let paid = self.shared.rates().take(&self.user, 1, std::time::Instant::now());
            let Err(wait) = paid else { break };
            sleep(wait).await;
        }
        self.shared.reads.turn(&self.user).await
    }
}

/// Behind which batch it is read what comes next: in the middle of one, all of it again, without what was seen.
fn read_from(after: Position) -> Revision {
    let whole = after.index == u32::MAX;
    let revision = after.revision.get();
    Revision::new(if whole { revision } else { revision.saturating_sub(1) })
}

impl Seen {
    /// What comes after `after` and is about `handle`, if there is one.
    fn of(batches: &[Arc<[Happened]>], after: Position, handle: Option<Handle>) -> Self {
        let all = batches.iter().flat_map(|batch| batch.iter());
        let is_wanted = |happened: &&Happened| {
            happened.position() > after && (handle.is_none() || happened.event.handle() == handle)
        };
        let end = batches.iter().rev().find_map(|batch| batch.last());
        Self {
            text: all.filter(is_wanted).map(piece).collect(),
            end: end.map(|last| Revision::new(last.revision)),
        }
    }
}

fn piece(happened: &Happened) -> String {
    // JSON has no line breaks.
    let data = serde_json::to_string(happened).unwrap_or_default();
    format!("id: {}\nevent: {}\ndata: {data}\n\n", happened.position(), happened.event.kind())
}

/// The event that was seen last, if one was, and what says so: who comes back tells in a header more than in the address, which
/// stays as it was.
fn seen_last(headers: &HeaderMap, after: Option<String>) -> (&'static str, Option<String>) {
    const HEADER: &str = "last-event-id";
    match headers.get(HEADER) {
        Some(id) => (HEADER, Some(String::from_utf8_lossy(id.as_bytes()).into_owned())),
        None => ("after", after),
    }
}

/// Whoever has seen what this ledger does not have would miss what takes its place; and what is not kept one by one any more
/// cannot be told. (It may be compacted a moment later: who is cut off then is told here.)
fn check_is_there(
    field: &str,
    after: Position,
    kept_after: Revision,
    head: Revision,
) -> Result<(), Rejection> {
    if after.revision > head {
        let expected = format!(
            "an id of this ledger, which ends at revision {head}: what came later was lost when it \
             was salvaged, or is in another ledger; or none, and the list first"
        );
        return Err(gone(field, after.to_string(), expected).into());
    }
    if read_from(after) < kept_after {
        let expected = format!("an id after {kept_after}-0; or none, and the list first");
        return Err(gone(field, after.to_string(), expected).into());
    }
    Ok(())
}

fn gone(field: &str, id: String, expected: String) -> Problem {
    Problem { status: 410, ..Invalid::new(field, id, expected).into() }
}

/// A body that ends when nobody sends any more. It has the place: what waits in it for a slow reader is what places bound.
struct Pieces {
    received: mpsc::Receiver<Bytes>,
    _place: Place,
    /// Tells when it has gone.
    _there: oneshot::Sender<()>,
}

impl hyper::body::Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<hyper::body::Frame<Bytes>, Infallible>>> {
        self.received
            .poll_recv(context)
            .map(|piece| piece.map(|bytes| Ok(hyper::body::Frame::data(bytes))))
    }
}

#[cfg(test)]
mod tests {
    use super::super::BYTES_TOLD_OF_TOKEN;
    use super::*;
    use crate::core::testing::Still;
    use crate::feed::Feed;
    use crate::rates::Rates;
    use crate::records::batches;
    use http_body_util::BodyExt;
    use keeptime_engine::{Event, Step};
    use keeptime_ledger::Snapshot;
    use keeptime_model::units::WallTime;
    use std::sync::mpsc::channel;
    use tokio::time::timeout;

    const SOON: Duration = Duration::from_secs(60);

    /// A broker whose ledger has these that are in no memory. It may be asked five times at once, and once a second.
    fn recorded(events: impl IntoIterator<Item = Event>) -> Shared {
        let Still { writer, hub, handle, counters, .. } = Still::new();
        for (number, event) in (1..).zip(events) {
            let (time, outputs) = (WallTime::from_unix_nanos(number), vec![]);
            let step = Step { time, events: vec![event], outputs };
            writer.append(batches(&step).unwrap().remove(0)).unwrap();
        }
        let feed = Feed::after(writer.status().head);
        Shared::new(handle, writer, hub, feed, counters, Rates::new(1), Arc::default())
    }

    /// The same of so many short ones.
    fn long(count: u64) -> Shared {
        recorded((1..=count).map(|number| Event::Ended { handle: Handle::new(number) }))
    }

    /// One from the beginning on.
    fn watcher(shared: &Shared, user: &str, handle: Option<u64>) -> Watcher {
        Watcher {
            user: user.parse().unwrap(),
            heads: shared.feed.heads(),
            handle: handle.map(Handle::new),
            after: Position::behind(Revision::ZERO),
            sign_of_life: SIGN_OF_LIFE,
            patience: Duration::from_millis(10),
            rest_within: Duration::from_millis(50),
            hang_up: HangUp::default(),
            shared: shared.clone(),
        }
    }

    /// The way to it.
    fn way_to(watcher: &Watcher) -> (Way, Pieces) {
        way(watcher.shared.watchers.enter(&watcher.user).ok().unwrap())
    }

    /// All that was sent to a watcher that was cut off.
    async fn sent(mut pieces: Pieces) -> Vec<String> {
        let mut all = Vec::new();
        while let Some(piece) = timeout(SOON, pieces.received.recv()).await.unwrap() {
            all.push(String::from_utf8(piece.to_vec()).unwrap());
        }
        all
    }

    // Method: its connection is there; the ledger has more than it can take.
    #[tokio::test]
    async fn a_watcher_that_takes_nothing_is_told_why_it_is_cut_off_and_gives_its_place_back() {
        let shared = long(600);
        let watcher = watcher(&shared, "ada", None);
        let (Way { pieces, taken }, received) = way_to(&watcher);
        timeout(SOON, watcher.tell(pieces)).await.unwrap();
        assert!(!shared.watchers.are_empty(), "pieces wait for it yet");
        let sent = sent(received).await;
        assert!(shared.watchers.are_empty(), "nobody watches any more");
        assert!(timeout(SOON, taken).await.unwrap().is_err(), "which is noticed");
        assert_eq!(sent.len(), PIECES_MAX + 1, "no piece is lost before the last words");
        assert!(sent[0].contains(": watching") && sent[1].contains("event: "), "{sent:?}");
        assert_eq!(sent[PIECES_MAX], CUT_SLOW);
    }

    // Goal: what waits for who reads too slowly is theirs, and there for a bounded time, also where a little is taken now and
    // then. Method: one keeps all of it, as its connection does; one lets it go.
    #[tokio::test]
    async fn who_is_cut_off_has_the_place_until_all_is_taken_or_the_connection_ends() {
        let shared = long(600);
        let [slow, fast] = ["eve", "ada"].map(|user| watcher(&shared, user, None));
        let [to_slow, to_fast] = [&slow, &fast].map(way_to);
        let [slow_ends, fast_ends] = [&slow, &fast].map(|watcher| watcher.hang_up.clone());
        let rest_within = fast.rest_within;
        let fast_run = tokio::spawn(fast.run(to_fast.0));
        drop(to_fast.1);
        timeout(SOON, fast_run).await.unwrap().unwrap();
        let slow_run = tokio::spawn(slow.run(to_slow.0));
        timeout(SOON, slow_ends.is_due()).await.unwrap();
        timeout(SOON, slow_run).await.unwrap().unwrap();
        assert!(!shared.watchers.are_empty(), "it is as if the connection were there yet");
        drop(to_slow.1);
        assert!(shared.watchers.are_empty());
        assert!(timeout(2 * rest_within, fast_ends.is_due()).await.is_err(), "all was taken");
    }

    // Method: what comes next is compacted before it is read.
    #[tokio::test]
    async fn a_watcher_whose_next_events_are_gone_is_told_that_it_is_cut_off() {
        let shared = long(3);
        let watcher = watcher(&shared, "ada", None);
        for revision in [2, 3].map(Revision::new) {
            let state = b"all until then".to_vec();
            shared.writer.save_snapshot(Snapshot { revision, state }).unwrap();
        }
        shared.writer.compact(vec![]).unwrap();
        let (way, received) = way_to(&watcher);
        timeout(SOON, watcher.tell(way.pieces)).await.unwrap();
        let sent = sent(received).await;
        assert!(sent[0].contains(": watching"), "{sent:?}");
        assert_eq!(sent[1..], [CUT_UNREADABLE]);
    }

    // Last words are a remark: they are no event, and move nobody who is told them.
    #[test]
    fn last_words_are_whole_and_neither_event_nor_id() {
        for words in [CUT_SLOW, CUT_UNREADABLE] {
            let said = words.strip_suffix("\n\n").unwrap();
            assert!(said.starts_with(": cut: ") && !said.contains('\n'), "{words}");
        }
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
    }

    // Method: as if much had been read before. What is in memory costs nothing.
    #[tokio::test]
    async fn who_has_read_much_of_the_ledger_pays_before_reading_more() {
        let shared = long(10);
        let mut eve = watcher(&shared, "eve", None);
        shared.rates().take(&eve.user, 5, std::time::Instant::now()).unwrap();
        shared.owe(&eve.user, 5 * BYTES_TOLD_OF_TOKEN);
        assert!(timeout(Duration::from_millis(50), eve.look()).await.is_err());
        assert_eq!(eve.after.revision, Revision::ZERO, "nothing was read");
        let mut ada = watcher(&shared, "ada", None);
        let seen = timeout(SOON, ada.look()).await.unwrap().unwrap().unwrap();
        assert_eq!(seen.matches("event: ended").count(), 10);
        eve.after = ada.after;
        assert!(timeout(SOON, eve.look()).await.unwrap().unwrap().is_none(), "there is no more");
    }

    // Goal: nobody reads for nothing by hanging up before the read is over. Method: the ledger is held up until the reader of
    // a long record has gone.
    #[tokio::test]
    async fn who_hangs_up_pays_for_what_is_read_all_the_same() {
        let (node, why) = ("n1".parse().unwrap(), "x".repeat(10 * BYTES_TOLD_OF_TOKEN));
        let shared = recorded([Event::Failed { handle: Handle::new(1), node, why }]);
        let (begun, has_begun) = channel();
        let (go_on, held) = channel::<()>();
        let writer = shared.writer.clone();
        let holding = std::thread::spawn(move || {
            writer.call(move |_| {
                begun.send(()).unwrap();
                // Until the other end is dropped.
                let _ = held.recv();
            })
        });
        has_begun.recv().unwrap();
        let mut eve = watcher(&shared, "eve", None);
        assert!(timeout(Duration::from_millis(50), eve.look()).await.is_err(), "it is held up");
        let owes = || shared.rates().take(&eve.user, 0, std::time::Instant::now()).is_err();
        assert!(!owes());
        drop(go_on);
        holding.join().unwrap().unwrap();
        let paid = async {
            while !owes() {
                sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(SOON, paid).await.unwrap();
    }

    // Goal: a watch begins at once, whoever reads the ledger, so that nobody is told that it is too slow. Method: it is
    // another's turn all the while.
    #[tokio::test]
    async fn a_watch_begins_while_others_read() {
        let shared = long(10);
        let turn = shared.reads.turn(&"ada".parse().unwrap()).await;
        let caller = Caller { user: "eve".parse().unwrap(), operator: false };
        let wanted = Wanted { handle: None, after: Some("0-0".into()) };
        let (state, caller) = (State(shared.clone()), Extension(caller));
        let asked = watch(state, caller, None, HeaderMap::new(), Ok(Query(wanted)));
        let answer = timeout(SOON, asked).await.unwrap().ok().unwrap();
        let mut body = answer.into_body();
        let first = timeout(SOON, body.frame()).await.unwrap().unwrap().unwrap();
        assert_eq!(first.into_data().unwrap(), "id: 0-0\n: watching\n\n");
        drop(turn);
        let next = timeout(SOON, body.frame()).await.unwrap().unwrap().unwrap();
        let text = String::from_utf8(next.into_data().unwrap().to_vec()).unwrap();
        assert_eq!(text.matches("event: ended").count(), 10, "{text}");
    }

    // Goal: who waits for a turn is not taken for gone. Method: another's, which lasts until several signs of life have come.
    #[tokio::test]
    async fn who_waits_for_a_turn_hears_that_the_broker_lives() {
        let shared = long(1);
        let turn = shared.reads.turn(&"ada".parse().unwrap()).await;
        let (sign_of_life, patience) = (Duration::from_millis(10), SOON);
        let eve = Watcher { sign_of_life, patience, ..watcher(&shared, "eve", None) };
        let (way, mut pieces) = way_to(&eve);
        let run = tokio::spawn(eve.run(way));
        for remark in ["watching", "here", "here"] {
            let piece = timeout(SOON, pieces.received.recv()).await.unwrap().unwrap();
            let text = String::from_utf8(piece.to_vec()).unwrap();
            assert!(text.contains(&format!("\n: {remark}\n")), "{text}");
        }
        drop((turn, pieces));
        timeout(SOON, run).await.unwrap().unwrap();
        assert!(shared.watchers.are_empty());
    }

    #[test]
    fn the_header_goes_before_the_address_and_each_is_told_by_its_name() {
        let (mut headers, after) = (HeaderMap::new(), Some("1-0".to_string()));
        assert_eq!(seen_last(&headers, after.clone()), ("after", after.clone()));
        headers.insert("last-event-id", "2-0".parse().unwrap());
        assert_eq!(seen_last(&headers, after), ("last-event-id", Some("2-0".into())));
    }

    #[test]
    fn who_has_seen_what_is_not_there_is_told_and_nobody_else() {
        let (kept, head) = (Revision::new(3), Revision::new(7));
        let check = |text: &str| check_is_there("after", text.parse().unwrap(), kept, head);
        for id in ["3-4294967295", "4-0", "7-0", "7-4294967295"] {
            assert!(check(id).is_ok(), "{id}");
        }
        let problem = check("8-0").err().unwrap().0;
        assert_eq!((problem.status, problem.field.as_deref()), (410, Some("after")));
        assert!(problem.detail.contains("which ends at revision 7"), "{}", problem.detail);
        for id in ["0-0", "3-0", "2-4294967295"] {
            let problem = check(id).err().unwrap().0;
            assert_eq!(problem.status, 410, "{id}");
            assert!(problem.detail.contains("an id after 3-0"), "{}", problem.detail);
        }
        let nothing = Revision::ZERO;
        assert!(check_is_there("after", "0-0".parse().unwrap(), nothing, nothing).is_ok());
    }
}
