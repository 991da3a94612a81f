//! The other end of the interface, for programs: typed calls that block, and a watch with a callback.
//! The broker is on this machine, at its Unix socket, or elsewhere ([`crate::remote`]).

use crate::remote::{Place, Remote, Shown, Transport};
use crate::wire::{
    Drain, Filter, Finished, Happened, History, Known, Links, Listing, Nodes, Position, Possible,
    Problem, Ran, Reserve, Resume, Runs, Timeline, WhoAmI,
};
use axum::body::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::{Method, Request as HttpRequest, Response, StatusCode, header};
use hyper_util::rt::TokioIo;
use keeptime_credentials::dates;
use keeptime_credentials::untrusted::Untrusted;
use keeptime_engine::book::Reservation;
use keeptime_locks::lock;
use keeptime_model::drain::{DrainReason, NodeSet};
use keeptime_model::name::Name;
use keeptime_model::reservation::{Handle, Request, RequestKey, State};
use keeptime_model::run_end::RunEnd;
use keeptime_model::site::SiteSpec;
use keeptime_model::units::{Nanos, WallTime};
use keeptime_planner::translate::Decision;
use keeptime_sites::overview::Overview;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::cell::Cell;
use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::path::Path;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use thiserror::Error;
use tokio::runtime::Runtime;

/// Longer than the broker takes for any answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(15);
/// While a request waits for room, it is looked so often whether it still has to.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// After so long it is looked whether a request that is not answered waits for room, then after twice as long each time, up to
/// so long: nothing that can be watched tells of it, since who waits is not recorded.
const SEEN_AFTER: Duration = Duration::from_millis(250);
const SEEN_AFTER_MOST: Duration = Duration::from_secs(4);
/// Who has begun to wait for room asks a broker that went away again after so long, and who has had a page of a list and asked
/// too often for the next one.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// Where requests go.
const RESERVATIONS: &str = "/v1/reservations";
/// A stream of events without a sign of life for so long is broken.
const SILENT_MAX: Duration = Duration::from_secs(45);
/// Longest answer: a list of reservations on many nodes each.
const ANSWER_BYTES_MAX: usize = 256 << 20;

/// A broker that can be asked. Blocking; every call answers or fails within 15 s, a request that may wait for room within
/// so much more ([`Request::wait_nanos`]), and a watch begins or fails.
///
/// A connection is kept for the next call: connecting costs the broker more than an answer does. It is replaced when what
/// was shown on it has been renewed.
#[derive(Debug)]
pub struct Client {
    place: Place,
    runtime: Runtime,
    kept: Mutex<Option<Kept>>,
    /// [`ANSWER_WITHIN`].
    patience: Duration,
}

/// Over which one request after the other is sent.
type Connection = http1::SendRequest<Full<Bytes>>;

/// A connection for the next call, and what was shown on it.
#[derive(Debug)]
struct Kept {
    connection: Connection,
    shown: Shown,
}

/// Why there is no answer, or not the one that was hoped for.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The broker cannot be reached, or went away.
    #[error("the broker at {place} does not answer")]
    Unreachable {
        /// Where it should be.
        place: String,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// One of both does not trust the other.
    #[error("no connection to the broker at {place}")]
    Untrusted {
        /// Where it should be.
        place: String,
        /// Which of both, and why.
        #[source]
        source: Untrusted,
    },
    /// It answered with a problem: bad input, a refusal, or not now.
    #[error("{}", .0.detail)]
    Problem(Box<Problem>),
    /// It was told to wait no longer for room.
    #[error("interrupted while it waited for room")]
    Stopped,
    /// It said something else.
    #[error("the broker at {place} gave an answer that does not fit")]
    Unexpected {
        /// Where it is.
        place: String,
        /// What is wrong with it.
        #[source]
        source: serde_json::Error,
    },
}

impl ClientError {
    /// Whether the same call, with the same key, may succeed later.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Unreachable { .. } => true,
            Self::Problem(problem) => matches!(problem.status, 429 | 503),
            Self::Untrusted { .. } | Self::Stopped | Self::Unexpected { .. } => false,
        }
    }

    /// Whether it is about what is shown to the broker, or what it shows: either may be renewed soon.
    pub fn is_about_trust(&self) -> bool {
        match self {
            Self::Untrusted { .. } => true,
            Self::Problem(problem) => problem.status == StatusCode::UNAUTHORIZED.as_u16(),
            Self::Unreachable { .. } | Self::Stopped | Self::Unexpected { .. } => false,
        }
    }

    /// The problem that the broker told, if it did.
    pub fn problem(&self) -> Option<&Problem> {
        match self {
            Self::Problem(problem) => Some(problem),
            _ => None,
        }
    }
}

impl Client {
    /// For the broker at `socket`; connects with the first call.
    ///
    /// # Errors
    /// If the process may not have another epoll instance.
    pub fn new(socket: &Path) -> io::Result<Self> {
        Self::at(Place::Socket(socket.into()))
    }

    /// For a broker elsewhere; connects with the first call.
    ///
    /// # Errors
    /// If the process may not have another epoll instance.
    pub fn remote(remote: Remote) -> io::Result<Self> {
        Self::at(Place::Remote(Box::new(remote)))
    }

    fn at(place: Place) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(Self { place, runtime, kept: Mutex::default(), patience: ANSWER_WITHIN })
    }

    /// Reserves. With the same key it can be sent again.
    ///
    /// # Errors
    /// A problem, with [`Problem::refusal`] if it does not fit.
    pub fn reserve(&self, key: RequestKey, request: Request) -> Result<Reservation, ClientError> {
        self.reserve_unless(&|| false, &|_| {}, key, request)
    }

    /// The same, where a request that may wait for room does so until `stopped` at the most; `waits` is told once, when it
    /// does. A broker that goes away meanwhile is asked again, and the wait goes on.
    ///
    /// # Errors
    /// As [`Self::reserve`], and [`ClientError::Stopped`]: nothing is granted then, or is not known to be.
    pub fn reserve_unless(
        &self,
        stopped: &dyn Fn() -> bool,
        waits: &dyn Fn(&Reservation),
        key: RequestKey,
        request: Request,
    ) -> Result<Reservation, ClientError> {
        let mut body = Reserve { key: Some(key), request };
        let Some(wait) = body.request.wait_nanos else {
            return self.ask(Method::POST, RESERVATIONS, Some(&body));
        };
        let began = Instant::now();
        let (mut has_waited, is_told) = (false, Cell::new(false));
        let waits = |found: &Reservation| {
            if !is_told.replace(true) {
                waits(found);
            }
        };
        loop {
            let left = wait.saturating_sub(began.elapsed().into());
            let is_over = left == Nanos::new(0);
            body.request.wait_nanos = (!is_over).then_some(left);
            let sent = Instant::now();
            match self.ask_waiting(stopped, &waits, &body, left) {
                Err(error) if error.is_retryable() && !is_over => {
                    // One that was never there is not waited for.
                    has_waited |= sent.elapsed() >= AGAIN_AFTER;
                    if !has_waited {
                        return Err(error);
                    }
                }
                outcome => return outcome,
            }
            std::thread::sleep(AGAIN_AFTER);
            // A broker that is away answers at once: no exchange lasts long enough for it to be looked at.
            if stopped() {
                return Err(ClientError::Stopped);
            }
        }
    }

    fn ask_waiting(
        &self,
        stopped: &dyn Fn() -> bool,
        waits: &dyn Fn(&Reservation),
        body: &Reserve,
        wait: Nanos,
    ) -> Result<Reservation, ClientError> {
        let patience = self.patience.saturating_add(Duration::from_nanos(wait.get()));
        let exchange = unless(stopped, self.exchanged(Method::POST, RESERVATIONS, Some(body)));
        let told = async {
            waits(&self.seen_waiting(body).await);
            std::future::pending().await
        };
        let first = async {
            tokio::select! {
                answer = exchange => answer,
                answer = told => answer,
            }
        };
        let bytes = self.runtime.block_on(self.within(patience, first))?;
        self.parse(&bytes)
    }

    /// What was asked, once it is seen among those who wait for room. Where these are more than one page of a list has, each
    /// look is at the next one.
    async fn seen_waiting(&self, asked: &Reserve) -> Reservation {
        let is_it = |one: &Arc<Reservation>| {
            Some(&one.key) == asked.key.as_ref() && one.request.asks_the_same(&asked.request)
        };
        let mut filter = Filter { state: Some(State::Waiting), ..Filter::default() };
        let mut pause = SEEN_AFTER;
        loop {
            tokio::time::sleep(pause).await;
            pause = after(pause);
            let bytes = self.exchanged::<()>(Method::GET, &list(&filter), None).await;
            // That nobody can say whether it waits is no reason not to.
            let Ok(page) = bytes.and_then(|bytes| self.parse::<Listing>(&bytes)) else { continue };
            if let Some(found) = page.reservations.into_iter().find(is_it) {
                return Arc::unwrap_or_clone(found);
            }
            filter.after = page.next;
        }
    }

    /// Whether and how a request would be granted.
    ///
    /// # Errors
    /// As [`Self::reserve`].
    pub fn consider(&self, request: &Request) -> Result<Possible, ClientError> {
        self.ask(Method::POST, "/v1/consider", Some(request))
    }

    /// How a goal would be decided, step by step.
    ///
    /// # Errors
    /// As [`Self::reserve`]; a goal that cannot be kept is a decision, not an error.
    pub fn explain(&self, request: &Request) -> Result<Decision, ClientError> {
        self.ask(Method::POST, "/v1/explain", Some(request))
    }

    /// How the goal of a reservation was decided, granted or refused.
    ///
    /// # Errors
    /// If it is not remembered: it was no goal, or others followed.
    pub fn decision(&self, handle: Handle) -> Result<Decision, ClientError> {
        self.get(&format!("/v1/reservations/{handle}/decision"))
    }

    /// Says that the holder of a reservation with a lease lives.
    ///
    /// # Errors
    /// If it is over, or belongs to somebody else.
    pub fn keep(&self, handle: Handle) -> Result<Reservation, ClientError> {
        self.ask::<(), _>(Method::POST, &format!("/v1/reservations/{handle}/keep"), None)
    }

    /// Tells what a run with a reservation took.
    ///
    /// # Errors
    /// If it has not begun, is over, or belongs to somebody else.
    pub fn report(&self, handle: Handle, actual: Nanos) -> Result<Reservation, ClientError> {
        let ran = Ran { actual_nanos: actual };
        self.ask(Method::POST, &format!("/v1/reservations/{handle}/runs"), Some(&ran))
    }

    /// Puts another request in the place of a reservation's.
    ///
    /// # Errors
    /// As [`Self::reserve`].
    pub fn modify(&self, handle: Handle, request: &Request) -> Result<Reservation, ClientError> {
        self.ask(Method::PUT, &format!("/v1/reservations/{handle}"), Some(request))
    }

    /// As [`Self::modify`], in turn with other jobs of its nodes: what a controller asks for by itself.
    ///
    /// # Errors
    /// As [`Self::modify`], and [`Problem::is_for_later`] while it is another job's turn.
    pub fn correct(&self, handle: Handle, request: &Request) -> Result<Reservation, ClientError> {
        self.ask(Method::PUT, &format!("/v1/reservations/{handle}?in_turn=true"), Some(request))
    }

    /// Gives a reservation back.
    ///
    /// # Errors
    /// If there is none, it is over, or belongs to somebody else.
    pub fn cancel(&self, handle: Handle) -> Result<Reservation, ClientError> {
        self.ask::<(), _>(Method::DELETE, &format!("/v1/reservations/{handle}"), None)
    }

    /// Gives a reservation back since the run is over that it was for.
    ///
    /// # Errors
    /// As [`Self::cancel`].
    pub fn finish(&self, handle: Handle, run: RunEnd) -> Result<Reservation, ClientError> {
        let path = format!("/v1/reservations/{handle}/finish");
        self.ask(Method::POST, &path, Some(&Finished { run }))
    }

    /// Moves a reservation that was lost: the same on other nodes, for the time that is left. Where that
    /// was done, by its policy or before, it is what came of it.
    ///
    /// # Errors
    /// If it was not lost, is over, belongs to somebody else, or does not fit elsewhere.
    pub fn move_lost(&self, handle: Handle) -> Result<Reservation, ClientError> {
        self.ask::<(), _>(Method::POST, &format!("/v1/reservations/{handle}/move"), None)
    }

    /// A reservation as it is now.
    ///
    /// # Errors
    /// If there is none.
    pub fn reservation(&self, handle: Handle) -> Result<Reservation, ClientError> {
        self.get(&format!("/v1/reservations/{handle}"))
    }

    /// Some reservations.
    ///
    /// # Errors
    /// If the broker does not answer.
    pub fn reservations(&self, filter: &Filter) -> Result<Listing, ClientError> {
        self.get(&list(filter))
    }

    /// All reservations that `filter` lets through, however many calls that takes. Where these are more than the broker
    /// answers at once, it waits between them.
    ///
    /// # Errors
    /// If the broker does not answer.
    pub fn all_reservations(
        &self,
        mut filter: Filter,
    ) -> Result<Vec<Arc<Reservation>>, ClientError> {
        let Listing { reservations: mut all, next } = self.reservations(&filter)?;
        filter.after = next;
        while filter.after.is_some() {
            let Listing { reservations, next } = self.next_page(&filter)?;
            all.extend(reservations);
            filter.after = next;
        }
        Ok(all)
    }

    /// Pages count as many requests when they are long: who asked too often for one asks again.
    fn next_page(&self, filter: &Filter) -> Result<Listing, ClientError> {
        let began = Instant::now();
        loop {
            match self.reservations(filter) {
                Err(ClientError::Problem(problem))
                    if problem.status == StatusCode::TOO_MANY_REQUESTS.as_u16()
                        && began.elapsed() < self.patience => {}
                outcome => return outcome,
            }
            std::thread::sleep(AGAIN_AFTER);
        }
    }

    /// What happened to a reservation.
    ///
    /// # Errors
    /// If nothing is known of it.
    pub fn history(&self, handle: Handle) -> Result<History, ClientError> {
        self.get(&format!("/v1/reservations/{handle}/history"))
    }

    /// Makes an application and its profile known.
    ///
    /// # Errors
    /// If the caller is no operator, or the profile cannot be planned with.
    pub fn register(&self, known: &Known) -> Result<(), ClientError> {
        let path = format!("/v1/applications/{}", known.application.name());
        self.exchange(Method::PUT, &path, Some(known)).map(drop)
    }

    /// An application that is known.
    ///
    /// # Errors
    /// If it is not.
    pub fn application(&self, name: &Name) -> Result<Known, ClientError> {
        self.get(&format!("/v1/applications/{name}"))
    }

    /// What the last runs of an application took, as far as they were promised a time.
    ///
    /// # Errors
    /// If it is not known.
    pub fn runs(&self, name: &Name) -> Result<Runs, ClientError> {
        self.get(&format!("/v1/applications/{name}/runs"))
    }

    /// Adds a web site, or describes it anew.
    ///
    /// # Errors
    /// If the caller is no operator, a balancer does not know the site, or its hard guarantee cannot be
    /// kept beside the others'.
    pub fn add_site(&self, site: &SiteSpec) -> Result<(), ClientError> {
        self.exchange(Method::PUT, &format!("/v1/sites/{}", site.name), Some(site)).map(drop)
    }

    /// Removes a web site when its nodes are drained.
    ///
    /// # Errors
    /// If the caller is no operator, or there is no such site.
    pub fn remove_site(&self, name: &Name) -> Result<(), ClientError> {
        self.exchange::<()>(Method::DELETE, &format!("/v1/sites/{name}"), None).map(drop)
    }

    /// All web sites, their loads and the last moves.
    ///
    /// # Errors
    /// If the broker does not answer.
    pub fn sites(&self) -> Result<Overview, ClientError> {
        self.get("/v1/sites")
    }

    /// All nodes, and what of them is reserved at `at`, or now.
    ///
    /// # Errors
    /// If the broker does not answer.
    pub fn nodes(&self, at: Option<WallTime>) -> Result<Nodes, ClientError> {
        self.get(&with_query("/v1/nodes", &[("at", at.map(nanos))]))
    }

    /// As whom the broker knows who asks.
    ///
    /// # Errors
    /// If it does not answer, or knows nobody by what is shown.
    pub fn who_am_i(&self) -> Result<WhoAmI, ClientError> {
        self.get("/v1/whoami")
    }

    /// Takes nodes out of service: nothing new comes to them, and what they have stays. Said again, it gives another reason.
    ///
    /// # Errors
    /// If the caller is no operator, or a node is not there; nothing is done then.
    pub fn drain(&self, nodes: NodeSet, reason: DrainReason) -> Result<(), ClientError> {
        let drain = Drain { nodes, reason };
        self.exchange(Method::POST, "/v1/nodes/drain", Some(&drain)).map(drop)
    }

    /// Has nodes be had again that were drained.
    ///
    /// # Errors
    /// As [`Self::drain`].
    pub fn resume(&self, nodes: NodeSet) -> Result<(), ClientError> {
        self.exchange(Method::POST, "/v1/nodes/resume", Some(&Resume { nodes })).map(drop)
    }

    /// All links, and what of them is reserved at `at`, or now.
    ///
    /// # Errors
    /// If the broker does not answer.
    pub fn links(&self, at: Option<WallTime>) -> Result<Links, ClientError> {
        self.get(&with_query("/v1/links", &[("at", at.map(nanos))]))
    }

    /// What is reserved from `from`, or now, until `to`.
    ///
    /// # Errors
    /// If there is too much to tell.
    pub fn timeline(&self, from: Option<WallTime>, to: WallTime) -> Result<Timeline, ClientError> {
        let query = [("from", from.map(nanos)), ("to", Some(nanos(to)))];
        self.get(&with_query("/v1/timeline", &query))
    }

    /// Calls `on_event` with everything that becomes durable after `after` (nothing = from now on),
    /// about `handle` only if one is given, until it breaks. A connection that is lost is an
    /// error; [`Happened::position`] of the last event tells where to go on.
    ///
    /// # Errors
    /// If the broker goes away.
    pub fn watch<T>(
        &self,
        handle: Option<Handle>,
        after: Option<Position>,
        mut on_event: impl FnMut(Happened) -> ControlFlow<T>,
    ) -> Result<T, ClientError> {
        let query = [
            ("handle", handle.map(|handle| handle.to_string())),
            ("after", after.map(|after| after.to_string())),
        ];
        let path = with_query("/v1/events", &query);
        self.runtime.block_on(async {
            let (_connection, mut response) = self.in_time(self.open_stream(&path)).await?;
            let (mut text, mut cut) = (Vec::new(), None);
            loop {
                let frame = tokio::time::timeout(SILENT_MAX, response.body_mut().frame()).await;
                let frame = frame.map_err(|elapsed| self.unreachable(elapsed))?;
                let ended = || {
                    let why = cut.take().map(io::Error::other);
                    self.unreachable(why.unwrap_or(io::ErrorKind::UnexpectedEof.into()))
                };
                let frame = frame.ok_or_else(ended)?.map_err(|error| self.unreachable(error))?;
                let Ok(data) = frame.into_data() else { continue };
                text.extend_from_slice(&data);
                while let Some(end) = text.iter().position(|byte| *byte == b'\n') {
                    let line: Vec<u8> = text.drain(..=end).collect();
                    if let Some(why) = line.strip_prefix(b": cut: ") {
                        cut = Some(String::from_utf8_lossy(why.trim_ascii_end()).into_owned());
                    }
                    let Some(data) = line.strip_prefix(b"data: ") else { continue };
                    if let ControlFlow::Break(value) = on_event(self.parse(data)?) {
                        return Ok(value);
                    }
                }
            }
        })
    }

    /// A connection of its own, over which events come.
    async fn open_stream(
        &self,
        path: &str,
    ) -> Result<(Connection, Response<Incoming>), ClientError> {
        let shown = self.place.shown();
        let mut connection = self.connect().await?;
        let request = self.request(&Method::GET, path, &Bytes::new(), &shown)?;
        let sent = connection.send_request(request).await;
        let response = sent.map_err(|error| self.unreachable(error))?;
        if !response.status().is_success() {
            return Err(self.problem(&self.bytes(response).await?)?);
        }
        Ok((connection, response))
    }

    fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.ask::<(), T>(Method::GET, path, None)
    }

    fn ask<B: Serialize, T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&B>,
    ) -> Result<T, ClientError> {
        let bytes = self.exchange(method, path, body)?;
        self.parse(&bytes)
    }

    fn exchange<B: Serialize>(
        &self,
        method: Method,
        path: &str,
        body: Option<&B>,
    ) -> Result<Bytes, ClientError> {
        self.runtime.block_on(self.in_time(self.exchanged(method, path, body)))
    }

    async fn exchanged<B: Serialize>(
        &self,
        method: Method,
        path: &str,
        body: Option<&B>,
    ) -> Result<Bytes, ClientError> {
        let unexpected = |source| ClientError::Unexpected { place: self.place.to_string(), source };
        let body = body.map(serde_json::to_vec).transpose().map_err(unexpected)?;
        let body = Bytes::from(body.unwrap_or_default());
        let shown = self.place.shown();
        let mut answer =
            self.answer(self.request(&method, path, &body, &shown)?, shown.clone()).await?;
        // Who is turned away has had nothing done, and may ask again by what has taken the place of what was shown.
        if answer.0 == StatusCode::UNAUTHORIZED && self.place.has_renewed(&shown) {
            let shown = self.place.shown();
            answer = self.answer(self.request(&method, path, &body, &shown)?, shown).await?;
        }
        let (status, bytes) = answer;
        if status.is_success() { Ok(bytes) } else { Err(self.problem(&bytes)?) }
    }

    async fn answer(
        &self,
        request: HttpRequest<Full<Bytes>>,
        shown: Shown,
    ) -> Result<(StatusCode, Bytes), ClientError> {
        let (connection, response) = self.send(request, &shown).await?;
        let status = response.status();
        let bytes = self.bytes(response).await?;
        // Only now the next request can follow.
        *lock(&self.kept) = Some(Kept { connection, shown });
        Ok((status, bytes))
    }

    /// What comes of it, or that the broker did not answer in time.
    async fn in_time<T>(
        &self,
        answer: impl Future<Output = Result<T, ClientError>>,
    ) -> Result<T, ClientError> {
        self.within(self.patience, answer).await
    }

    async fn within<T>(
        &self,
        patience: Duration,
        answer: impl Future<Output = Result<T, ClientError>>,
    ) -> Result<T, ClientError> {
        let answered = tokio::time::timeout(patience, answer).await;
        answered.unwrap_or_else(|elapsed| Err(self.unreachable(elapsed)))
    }

    fn request(
        &self,
        method: &Method,
        path: &str,
        body: &Bytes,
        shown: &Shown,
    ) -> Result<HttpRequest<Full<Bytes>>, ClientError> {
        let mut request = HttpRequest::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, self.place.host())
            .header(header::CONTENT_TYPE, "application/json");
        if let Some(token) = shown.authorization() {
            request = request.header(header::AUTHORIZATION, token);
        }
        request.body(Full::new(body.clone())).map_err(|error| self.unreachable(error))
    }

    /// Sends a request over the kept connection, or a new one if the broker has closed that meanwhile, or something else was
    /// shown on it.
    async fn send(
        &self,
        mut request: HttpRequest<Full<Bytes>>,
        shown: &Shown,
    ) -> Result<(Connection, Response<Incoming>), ClientError> {
        // Between calls nobody looks after the connection: the runtime hears now whether it was closed,
        // and the connection's task ends then.
        tokio::task::yield_now().await;
        tokio::task::yield_now().await;
        let kept = lock(&self.kept).take();
        let usable = kept.filter(|kept| !kept.connection.is_closed() && kept.shown.is_same(shown));
        if let Some(Kept { mut connection, .. }) = usable {
            match connection.try_send_request(request).await {
                Ok(response) => return Ok((connection, response)),
                // What was not sent may be sent again; of anything else nobody knows what became.
                Err(mut error) => match error.take_message() {
                    Some(unsent) => request = unsent,
                    None => return Err(self.unreachable(error.into_error())),
                },
            }
        }
        let mut connection = self.connect().await?;
        let sent = connection.send_request(request).await;
        Ok((connection, sent.map_err(|error| self.unreachable(error))?))
    }

    async fn connect(&self) -> Result<Connection, ClientError> {
        let stream: Box<dyn Transport> =
            self.place.connect().await.map_err(|error| self.unreachable(error))?;
        let shaken = http1::handshake(TokioIo::new(stream)).await;
        let (sender, connection) = shaken.map_err(|error| self.unreachable(error))?;
        // It ends with the sender or the response, whose reader is told why.
        tokio::spawn(async move { drop(connection.await) });
        Ok(sender)
    }

    async fn bytes(&self, response: Response<Incoming>) -> Result<Bytes, ClientError> {
        let body = http_body_util::Limited::new(response.into_body(), ANSWER_BYTES_MAX);
        let body = body.collect().await.map_err(|error| self.unreachable(error))?;
        Ok(body.to_bytes())
    }

    fn problem(&self, text: &[u8]) -> Result<ClientError, ClientError> {
        Ok(ClientError::Problem(Box::new(self.parse(text)?)))
    }

    fn parse<T: DeserializeOwned>(&self, text: &[u8]) -> Result<T, ClientError> {
        serde_json::from_slice(text)
            .map_err(|source| ClientError::Unexpected { place: self.place.to_string(), source })
    }

    fn unreachable(
        &self,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> ClientError {
        let source: Box<dyn std::error::Error + Send + Sync> = source.into();
        let place = self.place.to_string();
        match self.place.explain(source.as_ref(), dates::now()) {
            Some(source) => ClientError::Untrusted { place, source },
            None => ClientError::Unreachable { place, source },
        }
    }
}

/// What comes of it, unless it is not waited for any more: then its connection is closed, and the broker learns of that.
async fn unless<T>(
    stopped: &dyn Fn() -> bool,
    answer: impl Future<Output = Result<T, ClientError>>,
) -> Result<T, ClientError> {
    let mut answer = pin!(answer);
    loop {
        match tokio::time::timeout(LOOK_EVERY, &mut answer).await {
            Ok(answered) => return answered,
            Err(_) if stopped() => return Err(ClientError::Stopped),
            Err(_) => {}
        }
    }
}

/// A key that no other request has: 128 random bits.
///
/// # Errors
/// If the kernel has none.
pub fn new_key() -> io::Result<RequestKey> {
    let mut bytes = [0; 16];
    io::Read::read_exact(&mut File::open("/dev/urandom")?, &mut bytes)?;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    hex.parse().map_err(io::Error::other)
}

/// The pause before the next look at who waits, after one of `pause`.
fn after(pause: Duration) -> Duration {
    (pause * 2).min(SEEN_AFTER_MOST)
}

/// Where the reservations are that `filter` lets through.
fn list(filter: &Filter) -> String {
    let text = |value: &dyn std::fmt::Display| value.to_string();
    let query = [
        ("owner", filter.owner.as_ref().map(|owner| text(owner))),
        ("state", filter.state.map(|state| text(&state))),
        ("live", filter.live.map(|live| text(&live))),
        ("node", filter.node.as_ref().map(|node| text(node))),
        ("after", filter.after.map(|after| text(&after))),
        ("limit", filter.limit.map(|limit| text(&limit))),
    ];
    with_query(RESERVATIONS, &query)
}

/// Names, numbers and handles only: nothing that needs escapes but the signs of user names.
fn with_query(path: &str, query: &[(&str, Option<String>)]) -> String {
    let given =
        query.iter().filter_map(|(name, value)| Some(format!("{name}={}", value.as_ref()?)));
    let given: Vec<_> = given.collect();
    if given.is_empty() { path.into() } else { format!("{path}?{}", given.join("&")) }
}

fn nanos(time: WallTime) -> String {
    time.unix_nanos().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use keeptime_model::reservation::{Ask, Resources};
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn a_broker_that_says_nothing_is_told_from_one_with_nothing_to_tell() {
        // It takes the connection, as the kernel does for a process that is stopped, and no more.
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("socket");
        let _listener = UnixListener::bind(&socket).unwrap();
        let patience = Duration::from_millis(50);
        let client = Client { patience, ..Client::new(&socket).unwrap() };
        let watched = client.watch(None, None, |_| ControlFlow::Break(()));
        assert!(watched.unwrap_err().is_retryable());
    }

    #[test]
    fn a_connection_serves_until_the_broker_closes_it() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("socket");
        let listener = UnixListener::bind(&socket).unwrap();
        let (tell, closed) = std::sync::mpsc::channel();
        // Two answers on each of two connections.
        let broker = std::thread::spawn(move || {
            for _ in 0..2 {
                let (stream, _) = listener.accept().unwrap();
                let (mut lines, mut writer) = (BufReader::new(&stream).lines(), &stream);
                for _ in 0..2 {
                    assert!(lines.by_ref().map_while(Result::ok).any(|line| line.is_empty()));
                    let body = "{\"at_unix_nanos\":0,\"nodes\":[]}";
                    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n", body.len());
                    writer.write_all(format!("{head}\r\n{body}").as_bytes()).unwrap();
                }
                drop(stream);
                tell.send(()).unwrap();
            }
        });
        let client = Client::new(&socket).unwrap();
        for _ in 0..2 {
            for _ in 0..2 {
                assert!(client.nodes(None).unwrap().nodes.is_empty());
            }
            closed.recv().unwrap();
        }
        broker.join().unwrap();
    }

    // Goal: who waits for room can be told to stop also while the broker is away. Method: one that goes away after it was waited
    // for as long as it takes to count as there.
    #[test]
    fn a_wait_for_room_can_be_ended_while_the_broker_is_away() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("socket");
        let listener = UnixListener::bind(&socket).unwrap();
        let is_stopped = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&is_stopped);
        let broker = std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            std::thread::sleep(AGAIN_AFTER);
            drop((listener, stream));
            stop.store(true, Ordering::SeqCst);
        });
        let client = Client::new(&socket).unwrap();
        let wait_nanos = Some(Nanos::from_secs(4));
        let nothing = Request::new(Ask::Resources(Resources::nothing()));
        let asked = Request { wait_nanos, ..nothing };
        let stopped = || is_stopped.load(Ordering::SeqCst);
        let answer = client.reserve_unless(&stopped, &|_| {}, "k".parse().unwrap(), asked);
        assert!(matches!(answer, Err(ClientError::Stopped)), "{answer:?}");
        broker.join().unwrap();
    }

    // Goal: who waits behind more than one page of others is found, and who asked the same by another key is not taken for it.
    // Method: a broker that answers what was asked when its client has been told that it waits.
    #[test]
    fn who_waits_is_found_on_a_later_page() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("socket");
        let listener = UnixListener::bind(&socket).unwrap();
        let wait_nanos = Some(Nanos::from_secs(20));
        let nothing = Request::new(Ask::Resources(Resources::nothing()));
        let asked = Request { wait_nanos, ..nothing };
        let (tell, told) = std::sync::mpsc::channel();
        let waiting = |handle: u64, key: &str| {
            serde_json::json!({
                "handle": Handle::new(handle), "owner": "ada", "key": key, "request": asked,
                "state": "waiting", "from_unix_nanos": 0, "since_unix_nanos": 0,
            })
        };
        let other = serde_json::json!({ "reservations": [waiting(7, "other")], "next": "r7" });
        let (own, found) =
            (waiting(8, "own"), serde_json::json!({ "reservations": [waiting(8, "own")] }));
        let broker = std::thread::spawn(move || {
            let answer = |mut stream: &UnixStream, body: &serde_json::Value| {
                let body = body.to_string();
                let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n", body.len());
                stream.write_all(format!("{head}\r\n{body}").as_bytes()).unwrap();
            };
            let (waits, _) = listener.accept().unwrap();
            let (looks, _) = listener.accept().unwrap();
            let mut lines = BufReader::new(&looks).lines();
            let mut paths = Vec::new();
            for page in [&other, &found] {
                paths.push(lines.next().unwrap().unwrap());
                assert!(lines.by_ref().map_while(Result::ok).any(|line| line.is_empty()));
                answer(&looks, page);
            }
            let told = told.recv().unwrap();
            answer(&waits, &own);
            (told, paths)
        });
        let client = Client::new(&socket).unwrap();
        let waits = |found: &Reservation| tell.send(found.handle).unwrap();
        let key = "own".parse().unwrap();
        let granted = client.reserve_unless(&|| false, &waits, key, asked.clone()).unwrap();
        let (told, paths) = broker.join().unwrap();
        assert_eq!([granted.handle, told], [Handle::new(8); 2]);
        let pages = paths.iter().map(|line| line.contains("after=r7"));
        assert_eq!(pages.collect::<Vec<_>>(), [false, true], "{paths:?}");
        assert!(paths.iter().all(|line| line.contains("state=waiting")), "{paths:?}");
    }

    #[test]
    fn who_is_not_seen_to_wait_is_looked_for_less_and_less_often() {
        let pauses = std::iter::successors(Some(SEEN_AFTER), |pause| Some(after(*pause)));
        let millis: Vec<_> = pauses.map(|pause| pause.as_millis()).take(6).collect();
        assert_eq!(millis, [250, 500, 1_000, 2_000, 4_000, 4_000]);
    }

    // Goal: a list that is longer than may be asked for at once comes all the same, and who may not ask at all is told so.
    // Method: a broker that answers too often in between, and then at the beginning.
    #[test]
    fn a_list_goes_on_when_it_was_asked_for_too_often() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("socket");
        let listener = UnixListener::bind(&socket).unwrap();
        let page = |next: &str| ("200 OK", format!("{{\"reservations\":[]{next}}}"));
        let problem = Problem::new(429, "too often", "ada asks too often");
        let busy = ("429 Too Many Requests", serde_json::to_string(&problem).unwrap());
        let (first, last) = (page(",\"next\":\"r7\""), page(""));
        let broker = std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let (mut lines, mut writer) = (BufReader::new(&stream).lines(), &stream);
            let mut asked = Vec::new();
            for (status, body) in [&first, &busy, &last, &busy] {
                asked.push(lines.next().unwrap().unwrap());
                assert!(lines.by_ref().map_while(Result::ok).any(|line| line.is_empty()));
                let head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n", body.len());
                writer.write_all(format!("{head}\r\n{body}").as_bytes()).unwrap();
            }
            asked
        });
        let client = Client::new(&socket).unwrap();
        assert!(client.all_reservations(Filter::default()).unwrap().is_empty());
        let error = client.all_reservations(Filter::default()).unwrap_err();
        assert_eq!(error.to_string(), "ada asks too often");
        let paths: Vec<_> = broker.join().unwrap();
        let pages = paths.iter().map(|line| line.contains("after=r7"));
        assert_eq!(pages.collect::<Vec<_>>(), [false, true, true, false], "{paths:?}");
    }
}
