//! Web sites: added, shown and removed.

use super::reservations::{answer, check_address, unexpected};
use super::{Rejection, Shared, body, json};
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
use std::sync::PoisonError;

pub async fn list(State(shared): State<Shared>) -> Response {
    // Written as a whole.
    let overview = shared.overview.lock().unwrap_or_else(PoisonError::into_inner).clone();
    json(StatusCode::OK, &overview)
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
    let nodes = shared.core.read(nodes).await?;
    let asked = site.clone();
    let checked = tokio::task::spawn_blocking(move || fronts::check(&asked, &nodes)).await;
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

async fn recorded(shared: &Shared, caller: Caller, call: Call) -> Result<Response, Rejection> {
    match answer(shared, caller, call).await? {
        Answer::Recorded => Ok(StatusCode::NO_CONTENT.into_response()),
        other => Err(unexpected(&other).into()),
    }
}

fn nodes(engine: &Engine) -> Vec<Node> {
    engine.cluster().topology().nodes().to_vec()
}
