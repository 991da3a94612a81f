//! Web sites: added, shown and removed.

use super::answers::Answers;
use super::reservations::{answer, check_address, unexpected};
use super::{Rejection, Shared, body};
use crate::wire::Problem;
use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, PathRejection};
use axum::extract::{Extension, Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use keeptime_engine::{Answer, Call, CallError, Caller, Engine};
use keeptime_locks::lock;
use keeptime_model::site::SiteSpec;
use keeptime_model::topology::Node;
use keeptime_sites::fronts;

pub async fn list(State(shared): State<Shared>, answers: Answers) -> Response {
    // Written as a whole.
    let overview = lock(&shared.overview).clone();
    answers.json(StatusCode::OK, overview).await
}

/// Its balancers are asked before anything is recorded.
pub async fn add(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    name: Result<Path<String>, PathRejection>,
    bytes: Result<Bytes, BytesRejection>,
) -> Result<Response, Rejection> {
    let Path(name) = name?;
    let site: SiteSpec = body(bytes)?;
    check_address("name", &site.name, &name)?;
    site.check()?;
    // Only operators have the broker open sockets and read files.
    if !caller.operator {
        return Err(CallError::OperatorsOnly { what: "add web sites" }.into());
    }
    let (nodes, others) = shared.core.read(known).await?;
    let asked = site.clone();
    let check = move || {
        fronts::check_beside(&asked, &others)?;
        fronts::check(&asked, &nodes)
    };
    let checked = tokio::task::spawn_blocking(check).await;
    checked.map_err(|error| Problem::new(500, "not asked", error.to_string()))??;
    recorded(&shared, caller, Call::AddSite { site: Box::new(site) }).await
}

pub async fn remove(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    name: Result<Path<String>, PathRejection>,
) -> Result<Response, Rejection> {
    let Path(name) = name?;
    recorded(&shared, caller, Call::RemoveSite { site: name.parse()? }).await
}

/// Has something recorded of which nothing is told.
pub(super) async fn recorded(
    shared: &Shared,
    caller: Caller,
    call: Call,
) -> Result<Response, Rejection> {
    match answer(shared, caller, call).await? {
        Answer::Recorded => Ok(StatusCode::NO_CONTENT.into_response()),
        other => Err(unexpected(&other).into()),
    }
}

/// All nodes, and the sites that are recorded.
fn known(engine: &Engine) -> (Vec<Node>, Vec<SiteSpec>) {
    let sites = engine.book().sites().values().map(|hosted| hosted.spec.clone());
    (engine.cluster().topology().nodes().to_vec(), sites.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::testing::Still;
    use crate::http::router;
    use crate::rates::Rates;
    use axum::body::Body;
    use axum::http::Request;
    use std::io;
    use std::os::unix::net::UnixListener;
    use std::sync::Arc;
    use tower::ServiceExt;

    // Goal: nobody but an operator has the broker open a socket. Method: a balancer that notices who comes, and one that is
    // gone, of which an operator is told.
    #[tokio::test]
    async fn only_operators_have_balancers_asked() {
        let Still { core, writer, hub, handle, feed, counters, .. } = Still::new();
        let engine = std::thread::spawn(move || core.run());
        let (rates, overview) = (Rates::new(1_000), Arc::default());
        let shared = Shared::new(handle.clone(), writer, hub, feed, counters, rates, overview);
        let router = router(shared);
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("haproxy.sock");
        let place = format!("haproxy:{}/shop", socket.display());
        let guarantee = serde_json::json!({ "hard": 1, "soft": 1, "max": 1 });
        let site = serde_json::json!({
            "name": "shop", "guarantee": guarantee, "priority": 1, "cpu_ppm": 500_000,
            "balancers": [place],
        });
        let asked = |operator| {
            let caller = Caller { user: "ada".parse().unwrap(), operator };
            let request = Request::put("/v1/sites/shop").extension(caller);
            router.clone().oneshot(request.body(Body::from(site.to_string())).unwrap())
        };
        let balancer = UnixListener::bind(&socket).unwrap();
        balancer.set_nonblocking(true).unwrap();
        assert_eq!(asked(false).await.unwrap().status(), StatusCode::FORBIDDEN);
        assert_eq!(balancer.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(balancer);
        let told = asked(true).await.unwrap().status();
        assert!(told.is_client_error() && told != StatusCode::FORBIDDEN, "{told}");
        handle.stop();
        engine.join().unwrap().unwrap();
    }
}
