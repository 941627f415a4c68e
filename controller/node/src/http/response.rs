//! The answer of a call as the response of the HTTP API.
//!
//! In: what a server, or the node itself, has answered, and the row of the call. Out: a status code, Nomad's headers, JSON.

use axum::{
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use herdlet_rpc::codec::Value;
use serde_json::Value as Json;

use super::{
    Refused, json, keys,
    request::RequestParams,
    routes::{self, Part, Route, Verb},
};
use crate::placed;

/// An answer as the API gives it.
pub(super) fn render_response(
    route: &Route,
    mut answer: Value,
    params: &RequestParams,
) -> Result<Response, Refused> {
    let number = |name: &str| answer.get(name).and_then(Value::as_u64);
    let mut headers = Vec::new();
    match (route.verb, answer.get("KnownLeader"), number("Index")) {
        (Verb::Get, Some(Value::Bool(leader)), Some(index)) => {
            // Nomad's clients would not wait for what is newer than 0.
            headers.push(("x-nomad-index", index.max(1).to_string()));
            headers.push(("x-nomad-knownleader", leader.to_string()));
            let contact = number("LastContact").unwrap_or_default() / 1_000_000;
            headers.push(("x-nomad-lastcontact", contact.to_string()));
            let next = answer.get("NextToken").and_then(Value::as_text).filter(|next| !next.is_empty());
            headers.extend(next.map(|next| ("x-nomad-nexttoken", next.to_owned())));
        }
        (Verb::Put | Verb::Delete, _, Some(index)) if route.own.is_none() => {
            headers.push(("x-nomad-index", index.to_string()));
        }
        _ => {}
    }
    let mut code = StatusCode::OK;
    let mut part = route.answer;
    if route.call == "Variables.Apply" {
        match answer.get("Conflict") {
            Some(Value::Map(_)) => (code, part) = (StatusCode::CONFLICT, Part::Field("Conflict")),
            _ if route.verb == Verb::Delete => code = StatusCode::NO_CONTENT,
            // A lock is renewed by another call.
            _ if answer.get("VarMeta").is_some() => part = Part::Field("VarMeta"),
            _ => {}
        }
    }
    if route.call == "Keyring.ListPublic"
        && let Some(kept) = keys::holds_for(&answer, herdlet_base::clock::wall_now())
    {
        headers.push(("cache-control", format!("max-age={}", kept.as_secs())));
    }
    decompress(&mut answer)?;
    let field = |path: &str| path.split('.').try_fold(&answer, |value, name| value.get(name));
    let mut shown = match part {
        Part::Whole => json::shown(&answer, ""),
        Part::Nothing => Json::Null,
        Part::Field(path) => field(path).map_or(Json::Null, |value| json::shown(value, path)),
        Part::List(path) => match field(path) {
            Some(Value::Nil) | None => Json::Array(Vec::new()),
            Some(list) => json::shown(list, path),
        },
        Part::First(path) => match field(path) {
            Some(Value::List(list)) => list.first().map_or(Json::Null, |first| json::shown(first, path)),
            _ => Json::Null,
        },
        Part::Found(path, missing) => match field(path) {
            Some(Value::Nil) | None => return Err(Refused(404, missing.to_owned())),
            Some(value) => json::shown(value, path),
        },
    };
    json::leave_out(route.call, &mut shown);
    match (route.call, &mut shown) {
        ("Keyring.ListPublic", shown) => *shown = keys::set(&answer),
        ("Keyring.GetConfig", shown) => {
            let missing = || Refused(404, "OIDC Discovery endpoint disabled".to_owned());
            *shown = keys::discovery(&answer).ok_or_else(missing)?;
        }
        ("Node.GetNode", Json::Object(node)) => json::of_node(node),
        ("Operator.ServerHealth", Json::Object(health)) => {
            if health.get("Healthy") == Some(&Json::Bool(false)) {
                code = StatusCode::TOO_MANY_REQUESTS;
            }
            json::of_health(health);
        }
        ("Job.GetJobVersions", Json::Object(versions))
            if versions.get("Versions").and_then(Json::as_array).is_none_or(Vec::is_empty) =>
        {
            return Err(Refused(404, "job versions not found".to_owned()));
        }
        ("Job.GetJobSubmission", Json::Object(submission)) => {
            if let Some(Json::Object(flags)) = submission.get_mut("VariableFlags") {
                for value in flags.values_mut() {
                    let plain =
                        value.as_str().and_then(|value| routes::percent_decoded(&value.replace('+', " ")));
                    if let Some(plain) = plain {
                        *value = plain.into();
                    }
                }
            }
        }
        _ => {}
    }
    let mut response = if shown.is_null() {
        code.into_response()
    } else {
        let text = if params.is_pretty() {
            serde_json::to_string_pretty(&shown).map(|text| text + "\n")
        } else {
            serde_json::to_string(&shown)
        };
        let text = text.map_err(|error| Refused(500, format!("failed to write the answer: {error}")))?;
        (code, [(header::CONTENT_TYPE, "application/json")], text).into_response()
    };
    for (name, value) in headers {
        if let Ok(value) = value.parse() {
            response.headers_mut().insert(name, value);
        }
    }
    Ok(response)
}

/// Payloads of jobs are compressed where they are kept.
fn decompress(answer: &mut Value) -> Result<(), Refused> {
    let job = match field_mut(answer, "Job") {
        Some(job) => Some(job),
        None => field_mut(answer, "Alloc").and_then(|alloc| field_mut(alloc, "Job")),
    };
    let Some(payload) = job.and_then(|job| field_mut(job, "Payload")) else { return Ok(()) };
    let kept = match (&*payload, payload.as_text()) {
        (Value::Bytes(kept), _) => kept.as_slice(),
        (_, text) => text.unwrap_or_default().as_bytes(),
    };
    if !kept.is_empty() {
        *payload = Value::Bytes(placed::decompressed(kept).map_err(|why| Refused(500, why))?);
    }
    Ok(())
}

fn field_mut<'v>(value: &'v mut Value, name: &str) -> Option<&'v mut Value> {
    let Value::Map(fields) = value else { return None };
    fields.iter_mut().find(|(key, _)| key.as_text() == Some(name)).map(|(_, value)| value)
}
