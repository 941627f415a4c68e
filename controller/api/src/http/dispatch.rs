//! Dispatches parameterized jobs, forces launches of periodic ones, and counts their children.
//!
//! In: payload and meta in Nomad's JSON. Out: the child's id, once it is durable.

use std::{collections::BTreeMap, sync::Arc};

use axum::{
    Json,
    extract::{Path, State},
};
use base64::{Engine, engine::general_purpose::STANDARD};
use herdlet_api_types::{nomad::Children, view::JobView};
use herdlet_plan::{
    event::{Command, Reply},
    job::children::Dispatch,
};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    Shared, body,
    error::{ApiError, ApiResult, unexpected},
    query::{Params, Read},
    trigger::Trigger,
};

/// The largest payload, as in Nomad.
const PAYLOAD_BYTES_MAX: usize = 16 * 1024;

/// The longest idempotency token, and the longest value of meta.
const TEXT_BYTES_MAX: usize = 16 * 1024;

/// The longest prefix of an id. The child's id is also a file name, whose length file systems limit.
const PREFIX_BYTES_MAX: usize = 64;

/// The body of a dispatch, as Nomad names its fields.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct Request {
    payload: Option<String>,
    meta: Option<BTreeMap<String, String>>,
    id_prefix_template: String,
}

/// Parameters in addition to those of every read.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Token {
    idempotency_token: String,
}

pub(super) async fn dispatch(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    Params(read): Params<Read>,
    Params(Token { idempotency_token }): Params<Token>,
    body::Json(request): body::Json<Request>,
) -> ApiResult<Json<Value>> {
    let dispatch = Box::new(checked(request, idempotency_token)?);
    let reply = shared.request(Command::Dispatch { job: read.job(id), dispatch }).await?;
    let Reply::Dispatched { index, job } = reply else { return Err(unexpected(reply)) };
    let eval = shared.evaluations.note(&job, Trigger::JobRegister, (index, Some(0)));
    let created = shared.model.job(&job).map_or(index, |view| view.create_index);
    Ok(Json(json!({
        "DispatchedJobID": job.id, "EvalID": eval, "EvalCreateIndex": index, "JobCreateIndex": created,
        "Index": index, "LastContact": 0, "KnownLeader": true,
    })))
}

/// `POST /v1/job/ID/periodic/force`: launches at once. The answer has the child's id in addition to Nomad's
/// fields.
pub(super) async fn force(
    State(shared): State<Arc<Shared>>,
    Path(id): Path<String>,
    Params(read): Params<Read>,
) -> ApiResult<Json<Value>> {
    let reply = shared.request(Command::ForceLaunch { job: read.job(id) }).await?;
    let Reply::Dispatched { index, job } = reply else { return Err(unexpected(reply)) };
    let eval = shared.evaluations.note(&job, Trigger::PeriodicJob, (index, Some(0)));
    Ok(Json(json!({
        "LaunchedJobID": job.id, "EvalID": eval, "EvalCreateIndex": index, "Index": index, "LastContact": 0,
        "KnownLeader": true,
    })))
}

fn checked(request: Request, idempotency_token: String) -> ApiResult<Dispatch> {
    let Request { payload, meta, id_prefix_template: id_prefix } = request;
    let payload = payload.unwrap_or_default();
    let bytes = STANDARD.decode(&payload);
    let bytes = bytes.map_err(|error| ApiError::bad(format!("Payload is not base64: {error}")))?;
    if bytes.len() > PAYLOAD_BYTES_MAX {
        let found = bytes.len();
        return Err(ApiError::bad(format!(
            "the payload has {found} bytes, more than {PAYLOAD_BYTES_MAX}; pass the location of the data instead"
        )));
    }
    let meta = meta.unwrap_or_default();
    if let Some((key, _)) =
        meta.iter().find(|(_, value)| value.len() > TEXT_BYTES_MAX || value.contains('\0'))
    {
        return Err(ApiError::bad(format!(
            "meta {key} must have at most {TEXT_BYTES_MAX} bytes, and no NUL"
        )));
    }
    if idempotency_token.len() > TEXT_BYTES_MAX {
        return Err(ApiError::bad(format!("idempotency_token must have at most {TEXT_BYTES_MAX} bytes")));
    }
    // The parser replaces what is not UTF-8 with this character, so two different tokens could become equal.
    if idempotency_token.contains(char::REPLACEMENT_CHARACTER) {
        return Err(ApiError::bad("idempotency_token must be UTF-8"));
    }
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if id_prefix.len() > PREFIX_BYTES_MAX || !id_prefix.bytes().all(fits) {
        return Err(ApiError::bad(format!(
            "IdPrefixTemplate must be at most {PREFIX_BYTES_MAX} letters, digits, `.`, `_` or `-`"
        )));
    }
    Ok(Dispatch { payload, meta, idempotency_token, id_prefix })
}

impl Shared {
    /// Counts the children of a job by state.
    pub(super) fn children(&self, parent: &JobView) -> Children {
        let children = self.model.children(&parent.key);
        Children::of(children.iter().map(|child| &**child))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(request: Request) -> String {
        checked(request, String::new()).unwrap_err().to_string()
    }

    #[test]
    fn invalid_dispatch_is_refused_before_the_planner() {
        let good = Request { payload: Some("aGVsbG8=".to_owned()), ..Request::default() };
        assert_eq!(checked(good, "t".to_owned()).unwrap().payload, "aGVsbG8=");
        let payload = |payload: String| Request { payload: Some(payload), ..Request::default() };
        assert!(refused(payload("###".to_owned())).starts_with("Payload is not base64"));
        assert!(checked(payload(STANDARD.encode([0; PAYLOAD_BYTES_MAX])), String::new()).is_ok());
        let large = refused(payload(STANDARD.encode([0; PAYLOAD_BYTES_MAX + 1])));
        assert!(large.starts_with("the payload has 16385 bytes, more than 16384"), "{large}");
        let prefix = Request { id_prefix_template: "a/b".to_owned(), ..Request::default() };
        assert!(refused(prefix).starts_with("IdPrefixTemplate must be"));
    }
}
