//! Converts a request of the HTTP API into a call.
//!
//! In: the row's call, the query, the path and the body. Out: a [`Question`] whose fields come from all of them.

use herdlet_api::http::routes::{
    Call, CallBody, FieldSource, JobUse, PathParam, PathParams, RequestRule, Verb,
};
use herdlet_rpc::codec::Value;
use serde_json::{Map, Value as Json};

use super::{
    RoutedCall,
    fields::{CallFields, text},
    job::{self, Submitted},
    json, path_param,
    request::RequestParams,
};
use crate::cluster_client::Question;

/// The sources of a call's fields, besides the query.
pub(super) struct CallInputs<'s> {
    pub(super) path: PathParams,
    /// The body if it is JSON; null if there is none.
    pub(super) body: &'s Json,
    /// The body if it is not JSON.
    pub(super) raw: Vec<u8>,
    /// The node's region.
    pub(super) region: &'s str,
}

impl RequestParams {
    /// The question of a call.
    pub(super) fn request_of(
        &self,
        routed: RoutedCall<'_>,
        inputs: CallInputs<'_>,
    ) -> Result<Question, String> {
        let call = routed.call;
        let is_write = routed.verb != Verb::Get;
        let mut question = self.plain(call.method, is_write)?;
        let mut fields = self.query_fields(call)?;
        let CallInputs { path, body, raw, region } = inputs;
        let mut is_named = true;
        match call.body {
            CallBody::Ignored => {}
            CallBody::Fields(wanted) => {
                for name in wanted {
                    let Some(value) = body.get(*name) else { continue };
                    fields.put(name, json::read(value, name)?);
                }
            }
            CallBody::Renamed(wanted) => {
                for (name, field) in wanted {
                    let Some(value) = body.get(*name) else { continue };
                    fields.put(field, json::read(value, name)?);
                }
            }
            CallBody::All => fields.extend(json::read(body, "")?),
            CallBody::In(field) => {
                let given = Json::Object(object(body)?);
                fields.under(field, json::read(&given, "")?);
            }
            CallBody::OneOf(field) => {
                let given = Json::Object(object(body)?);
                fields.put(field, Value::List(vec![json::read(&given, "")?]));
                is_named = false;
            }
            CallBody::OneNamed(field, name, what) => {
                let given = object(body)?;
                if let Some((_, PathParam::One(id))) = path.first()
                    && given.get(name).and_then(Json::as_str) != Some(id)
                {
                    return Err(format!("{what} does not match request path"));
                }
                fields.put(field, Value::List(vec![json::read(&Json::Object(given), "")?]));
                is_named = false;
            }
            CallBody::Job(job_use, wanted) => {
                let given = object(body)?;
                let submitted = self.of_job(job_use, &given, path_param(&path, "JobID"), region)?;
                question.region = submitted.region;
                question.namespace = submitted.namespace;
                if question.token.is_empty() {
                    question.token = in_body(&given, "SecretID").unwrap_or_default().into();
                }
                fields.put("Job", json::read_job(&submitted.job)?);
                for name in wanted {
                    let Some(value) = given.get(*name).filter(|value| !value.is_null()) else { continue };
                    let value = if *name == "Submission" { escaped(value.clone()) } else { value.clone() };
                    fields.put(name, json::read(&value, name)?);
                }
                is_named = false;
            }
            CallBody::Raw(field) => fields.put(field, Value::Bytes(raw)),
        }
        match call.request {
            RequestRule::Plain | RequestRule::Secrets => {}
            RequestRule::Variable => {
                self.of_variable(&mut question, &mut fields, path_param(&path, "Path"), routed.verb)?;
                is_named = false;
            }
            RequestRule::VersionTag => {
                fields.put("Tag.Name", text(path_param(&path, "Name").unwrap_or_default()));
            }
            RequestRule::Claim if self.non_empty("node").is_none() => {
                return Err("detach requires node ID".to_owned());
            }
            RequestRule::Claim => {}
        }
        if is_named {
            for (name, value) in &path {
                let value = match value {
                    PathParam::One(value) => text(value),
                    PathParam::Listed(value) => Value::List(vec![text(value)]),
                };
                fields.put(name, value);
            }
        }
        if let Some(node) = self.node().filter(|_| !fields.has("NodeID")) {
            fields.put("NodeID", text(node));
        }
        let needs_secrets = matches!(call.request, RequestRule::Secrets | RequestRule::Claim);
        if let Some(secrets) = self.secrets.as_ref().filter(|_| needs_secrets) {
            let pairs = secrets.reveal().split(',').filter_map(|pair| pair.split_once('='));
            fields.put("Secrets", Value::Map(pairs.map(|(name, value)| (text(name), text(value))).collect()));
        }
        if is_write {
            if let Some(token) = self.non_empty("idempotency_token") {
                fields.put("IdempotencyToken", text(token));
            }
        } else {
            self.of_list(&mut fields)?;
        }
        question.fields = fields.into();
        Ok(question)
    }

    /// The fields that come from the query.
    fn query_fields(&self, call: &Call) -> Result<CallFields, String> {
        let mut fields = CallFields::default();
        for (name, source) in call.query {
            let value = match source {
                FieldSource::Text(parameter) => self.parameter(parameter).map(text),
                FieldSource::Flag(parameter) => self.flag(parameter)?.map(Value::Bool),
                FieldSource::Presence(parameter) => self.parameter(parameter).map(|_| Value::Bool(true)),
                FieldSource::Number(parameter) => self.number(parameter)?.map(Value::Int),
                FieldSource::Constant(value) => Some(Value::Int(*value)),
            };
            if let Some(value) = value {
                fields.put(name, value);
            }
        }
        Ok(fields)
    }

    /// A job to register, plan or validate, and the region and namespace for it.
    fn of_job(
        &self,
        job_use: JobUse,
        body: &Map<String, Json>,
        path: Option<&str>,
        region: &str,
    ) -> Result<Submitted, String> {
        let Some(Json::Object(job)) = body.get("Job") else { return Err("Job must be specified".to_owned()) };
        let id = job.get("ID").and_then(Json::as_str);
        match (id, path, job_use) {
            (None, _, JobUse::Plan) => return Err("Job must have a valid ID".to_owned()),
            (None, _, JobUse::Register) => return Err("Job ID hasn't been provided".to_owned()),
            (Some(id), Some(path), JobUse::Plan) if id != path => {
                return Err("Job ID does not match".to_owned());
            }
            (Some(id), Some(path), JobUse::Register | JobUse::Validate) if id != path => {
                return Err("Job ID does not match name".to_owned());
            }
            (None, _, JobUse::Validate) | (Some(_), _, _) => {}
        }
        let scales = |group: &Json| group.get("Scaling").is_some_and(|scaling| !scaling.is_null());
        let mut groups = job.get("TaskGroups").and_then(Json::as_array).into_iter().flatten();
        if job.get("Type").and_then(Json::as_str) == Some("system") && groups.any(scales) {
            return Err("Task groups with job type system do not support scaling blocks".to_owned());
        }
        let priority = body.get("EvalPriority").and_then(Json::as_i64).unwrap_or_default();
        if priority != 0 && !(1..=100).contains(&priority) {
            return Err("Eval priority must be between 1 and 100 inclusively".to_owned());
        }
        let own_region = in_body(body, "Region").or_else(|| self.non_empty("region"));
        let namespace = self.non_empty("namespace").or_else(|| in_body(body, "Namespace"));
        Ok(job::submitted(job.clone(), own_region, namespace, region))
    }

    /// Writes, removes or locks a variable.
    fn of_variable(
        &self,
        question: &mut Question,
        fields: &mut CallFields,
        path: Option<&str>,
        verb: Verb,
    ) -> Result<(), String> {
        let locks: Vec<&str> = ["lock-renew", "lock-acquire", "lock-release"]
            .into_iter()
            .filter(|lock| self.parameter(lock).is_some())
            .collect();
        let index = self.non_empty("cas").map(|cas| {
            cas.parse::<u64>().map_err(|error| format!("can not parse cas: {error}")).map(Value::Uint)
        });
        let index = index.transpose()?;
        let path = text(path.unwrap_or_default());
        let op = match (verb, locks.as_slice(), &index) {
            (Verb::Delete, _, None) => "delete",
            (Verb::Delete, _, Some(_)) => "delete-cas",
            (_, [], index) => {
                let items = fields.get("Var").and_then(|variable| variable.get("Items"));
                if !matches!(items, Some(Value::Map(items)) if !items.is_empty()) {
                    return Err("variable missing required Items object".to_owned());
                }
                if index.is_some() { "cas" } else { "set" }
            }
            (_, [_], Some(_)) => return Err("CAS can't be used with lock operations".to_owned()),
            (_, ["lock-renew"], None) => {
                "Variables.RenewLock".clone_into(&mut question.method);
                let lock = fields.get("Var").and_then(|variable| variable.get("Lock")?.get("ID")).cloned();
                *fields = CallFields::default();
                fields.put("LockID", lock.unwrap_or_default());
                fields.put("Path", path);
                return Ok(());
            }
            (_, [lock], None) => lock,
            (_, [_, _, ..], _) => return Err("multiple lock operations".to_owned()),
        };
        fields.put("Op", text(op));
        fields.put("Var.Path", path);
        fields.put("Var.Namespace", text(&question.namespace));
        if let Some(index) = index {
            fields.put("Var.ModifyIndex", index);
        }
        Ok(())
    }

    /// Filtering and pagination of a list.
    fn of_list(&self, fields: &mut CallFields) -> Result<(), String> {
        for (field, parameter) in [("Prefix", "prefix"), ("Filter", "filter"), ("NextToken", "next_token")] {
            if let Some(value) = self.non_empty(parameter) {
                fields.put(field, text(value));
            }
        }
        let number = self.number("per_page");
        let number =
            number.map_err(|_| "Expect a number for `per_page` query string parameter".to_owned())?;
        if let Some(number) = number {
            fields.put("PerPage", Value::Int(number));
        }
        if self.parameter("reverse") == Some("true") {
            fields.put("Reverse", Value::Bool(true));
        }
        Ok(())
    }
}

/// A body that must be an object.
fn object(body: &Json) -> Result<Map<String, Json>, String> {
    match body {
        Json::Object(given) => Ok(given.clone()),
        Json::Null => Err("Request body is empty".to_owned()),
        Json::Bool(_) | Json::Number(_) | Json::String(_) | Json::Array(_) => {
            Err("the body is not a JSON object".to_owned())
        }
    }
}

/// A non-empty text field of a body.
fn in_body<'b>(body: &'b Map<String, Json>, name: &str) -> Option<&'b str> {
    body.get(name).and_then(Json::as_str).filter(|value| !value.is_empty())
}

/// A job's source, with the values of variables URL-encoded, as servers store them.
fn escaped(mut submission: Json) -> Json {
    if let Some(Json::Object(flags)) = submission.get_mut("VariableFlags") {
        for value in flags.values_mut() {
            if let Json::String(text) = value {
                *text = text.bytes().fold(String::new(), |mut all, byte| {
                    match byte {
                        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                            all.push(char::from(byte));
                        }
                        b' ' => all.push('+'),
                        byte => all.push_str(&format!("%{byte:02X}")),
                    }
                    all
                });
            }
        }
    }
    submission
}
