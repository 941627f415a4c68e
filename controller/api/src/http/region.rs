//! Requests for another region. Nomad's agents forward them; an agent of its own knows no other one.
//!
//! In: a request. Out: the same request, or an error with Nomad's text if it names another region. `global` counts as the agent's
//! own: clients send it for a job that names none.

use std::sync::Arc;

use axum::{
    extract::{Query, Request, State},
    http::StatusCode,
    middleware::Next,
    response::{IntoResponse, Response},
};
use herdlet_api_types::manifest::defaults::REGION;
use serde::Deserialize;

use super::Shared;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RegionQuery {
    region: String,
}

pub(super) async fn check(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    let query = Query::<RegionQuery>::try_from_uri(request.uri());
    let own = &shared.facts.node.region;
    match query {
        Ok(Query(RegionQuery { region })) if !region.is_empty() && region != REGION && region != *own => {
            let why = format!("No path to region: this agent is in region {own:?} and knows no other");
            (StatusCode::INTERNAL_SERVER_ERROR, why).into_response()
        }
        // Handlers report a query that cannot be read.
        Ok(_) | Err(_) => next.run(request).await,
    }
}
