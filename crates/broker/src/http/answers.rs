//! Answers in JSON. Short ones are made where they are asked for. Long ones are made on threads that may block, so that
//! what serves connections, those of agents as well, goes on meanwhile; they are charged for, and of each user there are a few
//! at a time, until they are read: nobody fills the broker's memory with them. What was changed is told whoever reads slowly.

use super::{Rejection, Shared};
use crate::impatient::HangUp;
use crate::wire::Problem;
use axum::body::Bytes;
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use keeptime_agent::seats::{Seat, Seats};
use keeptime_engine::Caller;
use keeptime_model::reservation::UserName;
use serde::Serialize;
use std::io;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// Answers up to this length are made at once, in some tenths of a millisecond.
const SHORT_BYTES_MAX: usize = 64 << 10;
/// Long answers at a time that are made or not read yet: some MB each, and half of the threads that may block.
const LONG_MAX: usize = 32;
/// Of one user, so that nobody takes all.
const LONG_OF_USER_MAX: usize = 4;
/// Who waits for room for one looks so often whether there is some, until it is too late for an answer.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// All of a long answer is read within this time, however little is taken at once: 4 MiB at 300 kbit/s.
pub(super) const ALL_TAKEN_WITHIN: Duration = Duration::from_secs(120);

/// Long answers that are made or not read yet.
#[derive(Debug)]
pub struct LongAnswers {
    seats: Seats<UserName>,
    /// Each is read within this time.
    taken_within: Duration,
}

/// What answers one caller.
pub struct Answers {
    shared: Shared,
    caller: Caller,
    /// Ends the connection.
    hang_up: HangUp,
}

/// The text of a long answer, and its place until nobody has the text any more.
struct Long {
    text: Vec<u8>,
    _seat: Option<Seat<UserName>>,
    /// Tells when that is.
    _there: oneshot::Sender<()>,
}

/// Takes a text as long as it is short.
struct Short(Vec<u8>);

impl Default for LongAnswers {
    fn default() -> Self {
        let seats = Seats::new(LONG_OF_USER_MAX).at_most(LONG_MAX);
        Self { seats, taken_within: ALL_TAKEN_WITHIN }
    }
}

impl Answers {
    /// Who is answered.
    pub fn caller(&self) -> &Caller {
        &self.caller
    }

    /// `value` in JSON. Waits while its user has many that are long.
    pub async fn json<T>(&self, status: StatusCode, value: T) -> Response
    where
        T: Serialize + Send + 'static,
    {
        if let Some(text) = short(&value) {
            return with_status(status, text.into());
        }
        let seat = self.seat().await;
        self.long(status, value, seat).await
    }

    /// The same for what was changed, which waits for nobody: it would be told that it was not carried out. There are no more
    /// of these than connections, and none is much longer than a request.
    pub async fn changed<T>(&self, status: StatusCode, value: T) -> Response
    where
        T: Serialize + Send + 'static,
    {
        if let Some(text) = short(&value) {
            return with_status(status, text.into());
        }
        self.long(status, value, None).await
    }

    /// What is long; of whom it waited for, with their seat.
    async fn long<T>(&self, status: StatusCode, value: T, seat: Option<Seat<UserName>>) -> Response
    where
        T: Serialize + Send + 'static,
    {
        let (there, taken) = oneshot::channel();
        let make = move || match serde_json::to_vec(&value) {
            Ok(text) => Ok(Long { text, _seat: seat, _there: there }),
            Err(error) => Err(error.to_string()),
        };
        let made = tokio::task::spawn_blocking(make).await;
        match made.unwrap_or_else(|panic| Err(panic.to_string())) {
            Ok(long) => {
                self.shared.owe(&self.caller.user, long.text.len());
                self.have_taken(taken);
                with_status(status, Bytes::from_owner(long))
            }
            Err(why) => Problem::new(500, "no JSON", why).into_response(),
        }
    }

    /// Has the connection ended that has not `taken` all of it in time.
    fn have_taken(&self, taken: oneshot::Receiver<()>) {
        let (hang_up, within) = (self.hang_up.clone(), self.shared.long_answers.taken_within);
        tokio::spawn(async move { hang_up_unless_taken(&hang_up, taken, within).await });
    }

    /// A place for a long answer. Operators see what goes on whoever has all of them.
    async fn seat(&self) -> Option<Seat<UserName>> {
        if self.caller.operator {
            return None;
        }
        loop {
            let seat = self.shared.long_answers.seats.take(self.caller.user.clone());
            if seat.is_some() {
                return seat;
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}

impl FromRequestParts<Shared> for Answers {
    type Rejection = Rejection;

    async fn from_request_parts(parts: &mut Parts, shared: &Shared) -> Result<Self, Rejection> {
        // Each door puts one into what it lets in.
        let caller = parts.extensions.get::<Caller>().cloned();
        let caller = caller.ok_or_else(|| Problem::new(500, "not understood", "nobody asks"))?;
        let hang_up = parts.extensions.get::<HangUp>().cloned().unwrap_or_default();
        Ok(Self { shared: shared.clone(), caller, hang_up })
    }
}

impl AsRef<[u8]> for Long {
    fn as_ref(&self) -> &[u8] {
        &self.text
    }
}

impl io::Write for Short {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > SHORT_BYTES_MAX {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Ends the connection that has not `taken` all of its answer in time.
pub(super) async fn hang_up_unless_taken(
    hang_up: &HangUp,
    taken: oneshot::Receiver<()>,
    within: Duration,
) {
    // The other end goes with the last of the answer, and says nothing.
    if timeout(within, taken).await.is_err() {
        hang_up.now();
    }
}

/// All of the text, if it is short.
fn short(value: &impl Serialize) -> Option<Vec<u8>> {
    let mut short = Short(Vec::new());
    serde_json::to_writer(&mut short, value).is_ok().then_some(short.0)
}

fn with_status(status: StatusCode, text: Bytes) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], text).into_response()
}

#[cfg(test)]
mod tests {
    use super::super::BYTES_TOLD_OF_TOKEN;
    use super::*;
    use crate::core::testing::Still;
    use crate::rates::Rates;
    use serde::Serializer;
    use std::sync::{Arc, Mutex};
    use std::thread::{self, ThreadId};
    use std::time::Instant;

    const SOON: Duration = Duration::from_secs(60);

    /// A broker that may be asked five times at once, and once a second.
    fn shared() -> Shared {
        let Still { writer, hub, handle, feed, counters, .. } = Still::new();
        Shared::new(handle, writer, hub, feed, counters, Rates::new(1), Arc::default())
    }

    fn answers(shared: &Shared, user: &str) -> Answers {
        let caller = Caller { user: user.parse().unwrap(), operator: user == "root" };
        Answers { shared: shared.clone(), caller, hang_up: HangUp::default() }
    }

    /// So many bytes of text, which notes on which threads it is written.
    struct Noted {
        bytes: usize,
        threads: Arc<Mutex<Vec<ThreadId>>>,
    }

    impl Serialize for Noted {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            self.threads.lock().unwrap().push(thread::current().id());
            serializer.serialize_str(&"x".repeat(self.bytes))
        }
    }

    // Goal: while a long answer is made, connections are served. Method: it is noted who makes it, the one thread that serves
    // them or another.
    #[tokio::test]
    async fn a_long_answer_is_made_beside_what_serves_connections() {
        let shared = shared();
        for (bytes, is_beside) in [(100, false), (SHORT_BYTES_MAX, true)] {
            let threads = Arc::new(Mutex::new(Vec::new()));
            let value = Noted { bytes, threads: Arc::clone(&threads) };
            let answer = answers(&shared, "ada").json(StatusCode::OK, value).await;
            let text = axum::body::to_bytes(answer.into_body(), usize::MAX).await.unwrap();
            assert_eq!(text.len(), bytes + 2, "in quotes");
            let last = *threads.lock().unwrap().last().unwrap();
            assert_eq!(last != thread::current().id(), is_beside, "{bytes} bytes");
        }
    }

    // Goal: what is not read takes a bounded part of the memory. Method: answers are kept, as by who does not read them.
    #[tokio::test]
    async fn a_user_has_few_long_answers_that_are_not_read_and_nobody_else_waits_for_that() {
        let shared = shared();
        let long = |user: &str| {
            let answers = answers(&shared, user);
            async move { answers.json(StatusCode::OK, "x".repeat(SHORT_BYTES_MAX)).await }
        };
        let mut unread = Vec::new();
        for _ in 0..LONG_OF_USER_MAX {
            unread.push(timeout(SOON, long("eve")).await.unwrap());
        }
        assert!(timeout(10 * LOOK_EVERY, long("eve")).await.is_err(), "it waits");
        let change = answers(&shared, "eve");
        let change = change.changed(StatusCode::CREATED, "x".repeat(SHORT_BYTES_MAX));
        unread.push(timeout(SOON, change).await.unwrap());
        let short = timeout(SOON, answers(&shared, "eve").json(StatusCode::OK, "x")).await;
        assert!(short.is_ok());
        unread.push(timeout(SOON, long("ada")).await.unwrap());
        drop(unread.swap_remove(0));
        unread.push(timeout(SOON, long("eve")).await.unwrap());
        for number in unread.len() - 1..LONG_MAX {
            let user = format!("u{number}");
            unread.push(timeout(SOON, long(&user)).await.unwrap());
        }
        assert!(timeout(10 * LOOK_EVERY, long("bob")).await.is_err(), "all wait");
        unread.push(timeout(SOON, long("root")).await.unwrap());
        drop(unread);
        assert!(shared.long_answers.seats.are_empty());
    }

    // Goal: a long answer is there for a bounded time, also where something of it is taken now and then. Method: one is kept,
    // and one is let go at once.
    #[tokio::test]
    async fn who_takes_too_long_for_a_long_answer_is_hung_up_on() {
        let taken_within = Duration::from_millis(50);
        let long_answers = Arc::new(LongAnswers { taken_within, ..LongAnswers::default() });
        let shared = Shared { long_answers, ..shared() };
        let [slow, fast] = ["eve", "ada"].map(|user| answers(&shared, user));
        let text = || "x".repeat(SHORT_BYTES_MAX);
        let unread = slow.json(StatusCode::OK, text()).await;
        drop(fast.json(StatusCode::OK, text()).await);
        assert!(timeout(SOON, slow.hang_up.is_due()).await.is_ok());
        assert!(timeout(2 * taken_within, fast.hang_up.is_due()).await.is_err(), "it was read");
        drop(unread);
    }

    #[tokio::test]
    async fn a_long_answer_counts_as_many_requests() {
        let shared = shared();
        let take = |user: &str| {
            let user = user.parse().unwrap();
            shared.rates().take(&user, 1, Instant::now()).is_ok()
        };
        assert!(take("eve") && take("ada"));
        let long = "x".repeat(20 * BYTES_TOLD_OF_TOKEN);
        answers(&shared, "eve").json(StatusCode::OK, long).await;
        assert!(!take("eve") && take("ada"));
    }
}
