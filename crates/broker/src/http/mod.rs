//! The interface: HTTP and JSON. Every answer leaves when what it tells is durable; everything that
//! comes in is bounded. The document is `openapi.json`, served at `/v1/openapi.json`.

mod answers;
mod cluster;
mod events;
mod reads;
mod reservations;
mod sites;
mod watchers;

use self::answers::LongAnswers;
use self::reads::Reads;
use self::watchers::Watchers;
use crate::agents::Hub;
use crate::core::{Counters, Handle, Unavailable};
use crate::feed::Feed;
use crate::metrics;
use crate::rates::Rates;
use crate::tcp::keys::OwnCertificate;
use crate::wire::{Problem, WhoAmI};
use axum::body::{Bytes, HttpBody};
use axum::extract::rejection::{BytesRejection, PathRejection, QueryRejection};
use axum::extract::{DefaultBodyLimit, Extension, Request, State};
use axum::http::{HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post, put};
use axum::{Json, Router};
use keeptime_engine::Caller;
use keeptime_ledger::Writer;
use keeptime_locks::lock;
use keeptime_model::reservation::UserName;
use keeptime_model::units::Nanos;
use keeptime_sites::overview::Overview;
use serde::de::DeserializeOwned;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

/// Bytes of a request: 4,096 named nodes or an explicit pattern, and so little that what comes of it
/// fits into one record of the ledger (12 MiB), with what the application adds.
pub const BODY_BYTES_MAX: usize = 256 << 10;
/// Bytes of an application with its profile, which are one record.
pub const APPLICATION_BYTES_MAX: usize = 512 << 10;
/// Longer than agents may take to accept.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// So many bytes of a body count as one request more: they are read, understood and often recorded.
const BYTES_OF_TOKEN: u64 = 4 << 10;
/// Whatever a call is about, so much of the engine's time counts as one request more: by as many requests as one user may
/// send where nothing else is configured, others are kept waiting for two fifths of the time at the most.
const TIME_OF_TOKEN: Nanos = Nanos::from_millis(2);
/// So many bytes of a long answer, or of the ledger that are read for a watcher, count as one request more: they take about
/// [`TIME_OF_TOKEN`] as well.
const BYTES_TOLD_OF_TOKEN: usize = 256 << 10;

/// The interface's document, checked in.
const OPENAPI: &str = include_str!("../../openapi.json");

/// What all requests share.
#[derive(Clone)]
pub struct Shared {
    /// The engine's thread.
    pub core: Handle,
    /// The ledger, for histories.
    pub writer: Writer,
    /// The agents.
    pub hub: Arc<Hub>,
    /// What is durable.
    pub feed: Feed,
    /// Figures of the engine's thread.
    pub counters: Arc<Counters>,
    /// How often each user asks.
    pub rates: Arc<Mutex<Rates>>,
    /// Who watches events.
    pub watchers: Arc<Watchers>,
    /// Who reads the ledger.
    pub reads: Arc<Reads>,
    /// Long answers on their way.
    pub long_answers: Arc<LongAnswers>,
    /// What the loop that steers web sites saw last.
    pub overview: Arc<Mutex<Overview>>,
    /// The broker's own certificate, where it has a door over TCP.
    pub certificate: Option<OwnCertificate>,
}

/// How much longer than others a request may take to be answered: told by whoever has read it.
#[derive(Debug, Clone, Default)]
pub struct Patience(Arc<OnceLock<Duration>>);

impl Patience {
    fn extend(&self, more: Duration) {
        // It is read once.
        let _ = self.0.set(more);
    }
}

impl Shared {
    /// With nobody watching yet.
    pub fn new(
        core: Handle,
        writer: Writer,
        hub: Arc<Hub>,
        feed: Feed,
        counters: Arc<Counters>,
        rates: Rates,
        overview: Arc<Mutex<Overview>>,
    ) -> Self {
        let (watchers, reads, long_answers) = (Arc::default(), Arc::default(), Arc::default());
        let rates = Arc::new(Mutex::new(rates));
        Self {
            core,
            writer,
            hub,
            feed,
            counters,
            rates,
            watchers,
            reads,
            long_answers,
            overview,
            certificate: None,
        }
    }

    /// The same, for a broker with this certificate.
    #[must_use]
    pub fn with_certificate(self, certificate: Option<OwnCertificate>) -> Self {
        Self { certificate, ..self }
    }

    /// Counters of tokens are whole whenever this is unlocked.
    fn rates(&self) -> MutexGuard<'_, Rates> {
        lock(&self.rates)
    }

    /// `user` was answered so many bytes.
    fn owe(&self, user: &UserName, bytes: usize) {
        self.rates().owe(user, tokens_of(bytes), Instant::now());
    }
}

/// The interface for callers whom the door has put into the extensions as [`Caller`].
pub fn router(shared: Shared) -> Router {
    let answering = Router::new()
        .route("/v1/reservations", get(reservations::list).post(reservations::reserve))
        .route(
            "/v1/reservations/{handle}",
            get(reservations::show).put(reservations::modify).delete(reservations::cancel),
        )
        .route("/v1/reservations/{handle}/history", get(reservations::history))
        .route("/v1/reservations/{handle}/decision", get(reservations::decision))
        .route("/v1/reservations/{handle}/keep", post(reservations::keep))
        .route("/v1/reservations/{handle}/move", post(reservations::move_lost))
        .route("/v1/reservations/{handle}/runs", post(reservations::report))
        .route("/v1/reservations/{handle}/finish", post(reservations::finish))
        .route("/v1/consider", post(reservations::consider))
        .route("/v1/explain", post(reservations::explain))
        .route(
            "/v1/applications/{name}",
            get(reservations::application)
                .put(reservations::register)
                .layer(DefaultBodyLimit::max(APPLICATION_BYTES_MAX)),
        )
        .route("/v1/applications/{name}/runs", get(reservations::runs))
        .route("/v1/sites", get(sites::list))
        .route("/v1/sites/{name}", put(sites::add).delete(sites::remove))
        .route("/v1/nodes", get(cluster::nodes))
        .route("/v1/nodes/drain", post(cluster::drain))
        .route("/v1/nodes/resume", post(cluster::resume))
        .route("/v1/links", get(cluster::links))
        .route("/v1/timeline", get(cluster::timeline))
        .route("/v1/whoami", get(who_am_i))
        .route("/v1/openapi.json", get(openapi))
        .route("/metrics", get(exposition))
        .route("/healthz", get(health))
        .layer(middleware::from_fn(answer_in_time));
    Router::new()
        .merge(answering)
        .route("/v1/events", get(events::watch))
        .fallback(nowhere)
        .method_not_allowed_fallback(not_so)
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .layer(middleware::from_fn_with_state(shared.clone(), not_too_often))
        .with_state(shared)
}

async fn answer_in_time(mut request: Request, next: Next) -> Response {
    let patience = Patience::default();
    request.extensions_mut().insert(patience.clone());
    let mut answer = pin!(next.run(request));
    let mut answered = tokio::time::timeout(ANSWER_WITHIN, &mut answer).await;
    let more = patience.0.get().copied().filter(|_| answered.is_err());
    if let Some(more) = more {
        answered = tokio::time::timeout(more, answer).await;
    }
    answered.unwrap_or_else(|_| {
        let detail =
            format!("not answered within {ANSWER_WITHIN:?}; the same key can be sent again");
        Problem::new(503, "too slow", detail).into_response()
    })
}

async fn not_too_often(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    request: Request,
    next: Next,
) -> Response {
    let bytes = request.body().size_hint().exact();
    let tokens = cost(request.method(), request.uri().path(), bytes);
    let spent = shared.counters.take_spent(&caller.user);
    let taken = {
        let (mut rates, now) = (shared.rates(), Instant::now());
        rates.owe(&caller.user, cost_of(spent), now);
        rates.take(&caller.user, tokens, now)
    };
    let Err(wait) = taken else { return next.run(request).await };
    let detail = format!("{} asks too often; try again in {wait:?}", caller.user);
    let mut response = Problem::new(429, "too often", detail).into_response();
    let seconds = HeaderValue::from(wait.as_secs() + 1);
    response.headers_mut().insert(header::RETRY_AFTER, seconds);
    response
}

/// What a request counts: one, more where everybody waits longer for it, and more for a long body. One whose
/// length is not told may be the longest.
fn cost(method: &Method, path: &str, body_bytes: Option<u64>) -> u32 {
    let longest = APPLICATION_BYTES_MAX as u64;
    let bytes = body_bytes.map_or(longest, |bytes| bytes.min(longest));
    let of_path = match path {
        "/v1/timeline" => 20,
        "/v1/events" => 10,
        "/metrics" => 5,
        // What is answered with its head alone is made all the same.
        "/v1/reservations" if [Method::GET, Method::HEAD].contains(method) => 5,
        _ if path.ends_with("/history") => 10,
        _ => 1,
    };
    of_path + (bytes / BYTES_OF_TOKEN) as u32
}

/// What calls count that have taken so much of the engine's time, beside one each.
fn cost_of(spent: Nanos) -> u32 {
    u32::try_from(spent.get() / TIME_OF_TOKEN.get()).unwrap_or(u32::MAX)
}

/// What so many bytes count that are answered or read.
fn tokens_of(bytes: usize) -> u32 {
    u32::try_from(bytes / BYTES_TOLD_OF_TOKEN).unwrap_or(u32::MAX)
}

async fn who_am_i(Extension(caller): Extension<Caller>) -> Json<WhoAmI> {
    let Caller { user, operator } = caller;
    Json(WhoAmI { user, operator })
}

async fn openapi() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], OPENAPI).into_response()
}

async fn exposition(State(shared): State<Shared>) -> Result<Response, Rejection> {
    let text = metrics::exposition(&shared).await?;
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response())
}

/// That the engine's thread answers.
async fn health(State(shared): State<Shared>) -> Result<&'static str, Rejection> {
    shared.core.read(|_| ()).await?;
    Ok("ok\n")
}

async fn nowhere(uri: Uri) -> Problem {
    let detail = format!("there is nothing at {}; see /v1/openapi.json", uri.path());
    Problem::new(404, "not found", detail)
}

async fn not_so(method: Method, uri: Uri) -> Problem {
    let detail = format!("{} does not do {method}; see /v1/openapi.json", uri.path());
    Problem::new(405, "not so", detail)
}

/// The body of a request.
fn body<T: DeserializeOwned>(bytes: Result<Bytes, BytesRejection>) -> Result<T, Rejection> {
    let bytes = bytes.map_err(|error| {
        let status = error.status().as_u16();
        Problem::new(status, "body not taken", error.body_text())
    })?;
    serde_json::from_slice(&bytes).map_err(|error| {
        let detail = format!("the body is not what is expected: {error}");
        Problem::new(400, "not accepted", detail).into()
    })
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status);
        let status = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        // Strings and numbers.
        let text = serde_json::to_vec(&self).unwrap_or_default();
        (status, [(header::CONTENT_TYPE, "application/problem+json")], text).into_response()
    }
}

/// Why a request is not carried out, small enough to be handed on.
pub struct Rejection(Box<Problem>);

impl<P: Into<Problem>> From<P> for Rejection {
    fn from(problem: P) -> Self {
        Self(Box::new(problem.into()))
    }
}

impl IntoResponse for Rejection {
    fn into_response(self) -> Response {
        self.0.into_response()
    }
}

impl From<Unavailable> for Problem {
    fn from(unavailable: Unavailable) -> Self {
        Self::new(503, "not now", unavailable.to_string())
    }
}

impl From<QueryRejection> for Problem {
    fn from(rejection: QueryRejection) -> Self {
        Self::new(400, "not accepted", rejection.body_text())
    }
}

impl From<PathRejection> for Problem {
    fn from(rejection: PathRejection) -> Self {
        Self::new(400, "not accepted", rejection.body_text())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::testing::Still;
    use axum::body::Body;
    use tower::ServiceExt;

    /// What comes of a request of `user`.
    async fn status(router: &Router, user: &str) -> StatusCode {
        let caller = Caller { user: user.parse().unwrap(), operator: false };
        let mut request = Request::new(Body::empty());
        *request.uri_mut() = Uri::from_static("/v1/openapi.json");
        request.extensions_mut().insert(caller);
        router.clone().oneshot(request).await.unwrap().status()
    }

    // Goal: who has kept everybody waiting waits, and nobody else. Method: it is noted how long that was.
    #[tokio::test]
    async fn a_call_counts_by_the_time_that_the_engine_took_for_it() {
        let Still { writer, hub, handle, feed, counters, .. } = Still::new();
        let (rates, noted) = (Rates::new(1), Arc::clone(&counters));
        let router =
            router(Shared::new(handle, writer, hub, feed, counters, rates, Arc::default()));
        assert_eq!(status(&router, "eve").await, StatusCode::OK);
        noted.spend(&"eve".parse().unwrap(), Nanos::from_secs(60));
        assert_eq!(status(&router, "eve").await, StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(status(&router, "ada").await, StatusCode::OK);
        assert_eq!(noted.take_spent(&"eve".parse().unwrap()), Nanos::default(), "it counts once");
        assert_eq!(cost_of(Nanos::new(1_999_999)), 0);
        assert_eq!(cost_of(Nanos::new(u64::MAX)), u32::MAX);
    }

    #[test]
    fn a_request_counts_by_what_it_costs_the_broker() {
        // Its body is read before anybody knows whether it is any good; a history is read from the disk.
        let post = |bytes| cost(&Method::POST, "/v1/reservations", bytes);
        assert_eq!((post(Some(0)), post(Some(4_095)), post(Some(4_096))), (1, 1, 2));
        assert_eq!(post(Some(BODY_BYTES_MAX as u64)), 65);
        assert_eq!((post(None), post(Some(u64::MAX))), (129, 129), "it may be the longest");
        let get = |path| cost(&Method::GET, path, Some(0));
        assert_eq!((get("/v1/reservations/r1"), get("/v1/reservations/r1/history")), (1, 10));
        // Only what is sent is less.
        for path in ["/v1/reservations", "/v1/reservations/r1/history", "/v1/events", "/metrics"] {
            assert_eq!(cost(&Method::HEAD, path, Some(0)), get(path), "{path}");
        }
        assert_eq!(get("/v1/reservations"), 5);
    }
}
