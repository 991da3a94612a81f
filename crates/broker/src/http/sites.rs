//! Web sites: added, shown and removed.

use super::answers::Answers;
use super::reservations::{answer, check_address, unexpected};
use super::{Rejection, Shared, body};
use crate::locked::lock;
use crate::wire::Problem;
use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, PathRejection};
use axum::extract::{Extension, Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use keeptime_engine::{Answer, Call, CallError, Caller, Engine};
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
