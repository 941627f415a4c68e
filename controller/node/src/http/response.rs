//! Converts the answer of a call into a response of the HTTP API.
//!
//! In: the answer of a server or of this node, and the row of the call. Out: a status code, Nomad's headers, JSON.

use axum::{
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use herdlet_api::http::routes::{AnswerPart, ResponseRule, Verb, percent_decoded};
use herdlet_rpc::{
    codec::Value,
    error::{CallError, ErrorKind},
};
use serde_json::{Map, Value as Json};

use super::{HttpError, RoutedCall, json, keys, request::RequestParams};
use crate::server_alloc;

/// Fields of the servers' health that are left out if they are zero.
const OMITTED_OF_HEALTH: [&str; 4] =
    ["OptimisticFailureTolerance", "ReadReplicas", "RedundancyZones", "Upgrade"];

/// Converts a server's error; some calls have rules of their own.
pub(super) fn refusal(rule: ResponseRule, error: CallError) -> HttpError {
    if let CallError::Server(error) = &error {
        if rule == ResponseRule::Variable && error.text().contains("cas error:") {
            return HttpError(409, error.text().to_owned());
        }
        if rule == ResponseRule::KnownAlloc && error.kind() == ErrorKind::UnknownAllocation {
            return HttpError(404, "alloc not found".to_owned());
        }
    }
    error.into()
}

/// Renders an answer as the API's response.
pub(super) fn render_response(
    routed: RoutedCall<'_>,
    mut answer: Value,
    params: &RequestParams,
) -> Result<Response, HttpError> {
    let rule = routed.call.response;
    let headers = headers(routed, &answer);
    let (mut code, part) = match rule {
        ResponseRule::Variable => code_and_part_of_variable(routed, &answer),
        ResponseRule::Plain
        | ResponseRule::OmitEmpty(_)
        | ResponseRule::OmitIdentities
        | ResponseRule::KnownAlloc
        | ResponseRule::Node
        | ResponseRule::Versions
        | ResponseRule::Submission
        | ResponseRule::ServerHealth
        | ResponseRule::PublicKeys
        | ResponseRule::Discovery => (StatusCode::OK, routed.call.answer),
    };
    decompress(&mut answer)?;
    let mut shown = select(part, &answer)?;
    apply(rule, &answer, &mut shown)?;
    if rule == ResponseRule::ServerHealth && shown.get("Healthy") == Some(&Json::Bool(false)) {
        code = StatusCode::TOO_MANY_REQUESTS;
    }
    let mut response = if shown.is_null() {
        code.into_response()
    } else {
        let text = if params.is_pretty() {
            serde_json::to_string_pretty(&shown).map(|text| text + "\n")
        } else {
            serde_json::to_string(&shown)
        };
        let text = text.map_err(|error| HttpError(500, format!("failed to write the answer: {error}")))?;
        (code, [(header::CONTENT_TYPE, "application/json")], text).into_response()
    };
    for (name, value) in headers {
        if let Ok(value) = value.parse() {
            response.headers_mut().insert(name, value);
        }
    }
    Ok(response)
}

fn headers(routed: RoutedCall<'_>, answer: &Value) -> Vec<(&'static str, String)> {
    let number = |name: &str| answer.get(name).and_then(Value::as_u64);
    let mut headers = Vec::new();
    match (routed.verb, answer.get("KnownLeader"), number("Index")) {
        (Verb::Get, Some(Value::Bool(leader)), Some(index)) => {
            // Nomad's clients do not block for a change after index 0.
            headers.push(("x-nomad-index", index.max(1).to_string()));
            headers.push(("x-nomad-knownleader", leader.to_string()));
            let contact = number("LastContact").unwrap_or_default() / 1_000_000;
            headers.push(("x-nomad-lastcontact", contact.to_string()));
            let next = answer.get("NextToken").and_then(Value::as_text).filter(|next| !next.is_empty());
            headers.extend(next.map(|next| ("x-nomad-nexttoken", next.to_owned())));
        }
        (Verb::Put | Verb::Delete, _, Some(index)) if routed.own.is_none() => {
            headers.push(("x-nomad-index", index.to_string()));
        }
        _ => {}
    }
    if routed.call.response == ResponseRule::PublicKeys
        && let Some(kept) = keys::holds_for(answer, herdlet_base::clock::wall_now())
    {
        headers.push(("cache-control", format!("max-age={}", kept.as_secs())));
    }
    headers
}

fn code_and_part_of_variable(routed: RoutedCall<'_>, answer: &Value) -> (StatusCode, AnswerPart) {
    match answer.get("Conflict") {
        Some(Value::Map(_)) => (StatusCode::CONFLICT, AnswerPart::Field("Conflict")),
        _ if routed.verb == Verb::Delete => (StatusCode::NO_CONTENT, routed.call.answer),
        // Renewing a lock is another call.
        _ if answer.get("VarMeta").is_some() => (StatusCode::OK, AnswerPart::Field("VarMeta")),
        _ => (StatusCode::OK, routed.call.answer),
    }
}

/// Selects the part of an answer to return.
fn select(part: AnswerPart, answer: &Value) -> Result<Json, HttpError> {
    let field = |path: &str| path.split('.').try_fold(answer, |value, name| value.get(name));
    Ok(match part {
        AnswerPart::Whole => json::to_json(answer, ""),
        AnswerPart::Nothing => Json::Null,
        AnswerPart::Field(path) => field(path).map_or(Json::Null, |value| json::to_json(value, path)),
        AnswerPart::List(path) => match field(path) {
            Some(Value::Nil) | None => Json::Array(Vec::new()),
            Some(list) => json::to_json(list, path),
        },
        AnswerPart::First(path) => match field(path) {
            Some(Value::List(list)) => list.first().map_or(Json::Null, |first| json::to_json(first, path)),
            _ => Json::Null,
        },
        AnswerPart::Found(path, missing) => match field(path) {
            Some(Value::Nil) | None => return Err(HttpError(404, missing.to_owned())),
            Some(value) => json::to_json(value, path),
        },
    })
}

/// Changes the JSON by the rule of its call.
fn apply(rule: ResponseRule, answer: &Value, shown: &mut Json) -> Result<(), HttpError> {
    match (rule, shown) {
        (ResponseRule::OmitEmpty(names), shown) => json::omit_empty(names, shown),
        (ResponseRule::OmitIdentities, shown) => json::omit(&["SignedIdentities"], shown),
        (ResponseRule::PublicKeys, shown) => *shown = keys::set(answer),
        (ResponseRule::Discovery, shown) => {
            let missing = || HttpError(404, "OIDC Discovery endpoint disabled".to_owned());
            *shown = keys::discovery(answer).ok_or_else(missing)?;
        }
        (ResponseRule::Node, Json::Object(node)) => json::of_node(node),
        (ResponseRule::ServerHealth, shown) => {
            json::omit_empty(&OMITTED_OF_HEALTH, shown);
            if let Json::Object(health) = shown {
                json::of_health(health);
            }
        }
        (ResponseRule::Versions, Json::Object(versions))
            if versions.get("Versions").and_then(Json::as_array).is_none_or(Vec::is_empty) =>
        {
            return Err(HttpError(404, "job versions not found".to_owned()));
        }
        (ResponseRule::Submission, Json::Object(submission)) => unescape_variables(submission),
        (
            ResponseRule::Plain
            | ResponseRule::Variable
            | ResponseRule::KnownAlloc
            | ResponseRule::Node
            | ResponseRule::Versions
            | ResponseRule::Submission,
            _,
        ) => {}
    }
    Ok(())
}

fn unescape_variables(submission: &mut Map<String, Json>) {
    let Some(Json::Object(flags)) = submission.get_mut("VariableFlags") else { return };
    for value in flags.values_mut() {
        let plain = value.as_str().and_then(|value| percent_decoded(&value.replace('+', " ")));
        if let Some(plain) = plain {
            *value = plain.into();
        }
    }
}

/// Decompresses a job's payload, which servers store compressed.
fn decompress(answer: &mut Value) -> Result<(), HttpError> {
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
        *payload = Value::Bytes(server_alloc::decompressed(kept).map_err(|why| HttpError(500, why))?);
    }
    Ok(())
}

fn field_mut<'v>(value: &'v mut Value, name: &str) -> Option<&'v mut Value> {
    let Value::Map(fields) = value else { return None };
    fields.iter_mut().find(|(key, _)| key.as_text() == Some(name)).map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use herdlet_api::http::routes::{self, OnNode};
    use serde_json::json;

    use super::*;

    /// The rule of the row with this call.
    fn rule(method: &str) -> ResponseRule {
        let mut calls = routes::all().filter_map(|route| match &route.node {
            OnNode::Servers(call) | OnNode::Either(_, call) => Some(call),
            OnNode::Itself(_) | OnNode::Stream(_) | OnNode::ServersOnly | OnNode::Nobody => None,
        });
        let call = calls.find(|call| call.method == method);
        call.expect("a row").response
    }

    #[test]
    fn empty_fields_and_task_tokens_are_omitted() {
        for (call, answer, expected) in [
            (
                "Node.List",
                json!([{ "ID": "n", "Attributes": null, "NodeResources": {}, "HostVolumes": null }]),
                json!([{ "ID": "n", "NodeResources": {}, "HostVolumes": null }]),
            ),
            ("Job.List", json!([{ "Meta": null }, { "Meta": {} }]), json!([{}, { "Meta": {} }])),
            ("Job.GetJob", json!({ "Meta": null }), json!({ "Meta": null })),
            ("Alloc.List", json!([{ "AllocatedResources": null }]), json!([{}])),
            (
                "Operator.ServerHealth",
                json!({ "FailureTolerance": 0, "OptimisticFailureTolerance": 0, "Upgrade": null }),
                json!({ "FailureTolerance": 0 }),
            ),
            (
                "Node.GetAllocs",
                json!([{ "ID": "a", "SignedIdentities": { "t": "token" } }]),
                json!([{ "ID": "a" }]),
            ),
            ("Alloc.GetAlloc", json!({ "SignedIdentities": { "t": "token" } }), json!({})),
        ] {
            let mut shown = answer.clone();
            assert!(apply(rule(call), &Value::Nil, &mut shown).is_ok());
            assert_eq!(shown, expected, "{call} {answer}");
        }
    }
}
