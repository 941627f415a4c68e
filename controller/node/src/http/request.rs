//! What a request of the HTTP API asks, as a question to servers.

use std::time::Duration;

use axum::http::{HeaderMap, header};
use herdlet_api::http::routes::{
    Call, CallBody, FieldSource, JobUse, PathParam, PathParams, RequestRule, Verb, percent_decoded,
};
use herdlet_api_types::parse_duration;
use herdlet_nomad::wire::Secret;
use herdlet_rpc::codec::Value;
use serde_json::{Map, Value as Json};

use super::{
    Refused, RoutedCall,
    job::{self, Submitted},
    json, path_param,
};
use crate::asking::Question;

/// The longest that a question may wait.
const WAIT_MAX: Duration = Duration::from_secs(300);

/// The token of a request and the parameters of its query.
#[derive(Clone)]
pub(super) struct RequestParams {
    pub(super) token: Secret,
    parameters: Vec<(String, String)>,
    /// Secrets for storage, as `key=value,…`.
    secrets: Option<Secret>,
}

/// What fills the fields of a call, beside the query.
pub(super) struct CallInputs<'s> {
    pub(super) path: PathParams,
    /// The body, if it is JSON; null where there is none.
    pub(super) body: &'s Json,
    /// The body where it is no JSON.
    pub(super) raw: Vec<u8>,
    /// The node's region.
    pub(super) region: &'s str,
}

impl RequestParams {
    /// Reads a query and who asks it.
    pub(super) fn read(query: &str, headers: &HeaderMap) -> Result<Self, Refused> {
        let decoded = |text: &str| {
            let read = percent_decoded(&text.replace('+', " "));
            read.ok_or_else(|| Refused(400, "query parameters: they are no text".to_owned()))
        };
        let pairs = query.split('&').filter(|pair| !pair.is_empty());
        let parameters = pairs.map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            Ok((decoded(name)?, decoded(value)?))
        });
        let parameters: Vec<(String, String)> = parameters.collect::<Result<_, Refused>>()?;
        let secrets = headers.get("x-nomad-csi-secrets").and_then(|secrets| secrets.to_str().ok());
        Ok(Self { token: token(headers), parameters, secrets: secrets.map(Secret::from) })
    }

    /// A parameter; the first of that name.
    pub(super) fn parameter(&self, name: &str) -> Option<&str> {
        self.parameters.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// All parameters of that name.
    pub(super) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.parameters.iter().filter(move |(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// A parameter that says something.
    pub(super) fn given(&self, name: &str) -> Option<&str> {
        self.parameter(name).filter(|value| !value.is_empty())
    }

    /// The node that is meant; none for this one.
    pub(super) fn node(&self) -> Option<&str> {
        self.given("node_id")
    }

    /// Whether the answer is for people to read.
    pub(super) fn is_pretty(&self) -> bool {
        self.parameter("pretty").is_some_and(|pretty| pretty != "0")
    }

    /// A parameter that is true or false; nothing where it says neither.
    pub(super) fn flag(&self, name: &str) -> Result<Option<bool>, String> {
        match self.given(name) {
            None => Ok(None),
            Some("1" | "t" | "T" | "true" | "True" | "TRUE") => Ok(Some(true)),
            Some("0" | "f" | "F" | "false" | "False" | "FALSE") => Ok(Some(false)),
            Some(other) => Err(format!("Failed to parse value of {name:?} ({other}) as a bool")),
        }
    }

    /// A parameter that is a number.
    pub(super) fn number(&self, name: &str) -> Result<Option<i64>, String> {
        let parsed = self.given(name).map(|text| {
            text.parse().map_err(|_| format!("Failed to parse value of {name:?} ({text}) as a int"))
        });
        parsed.transpose()
    }

    /// The question that a call asks.
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
            RequestRule::Claim if self.given("node").is_none() => {
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
            if let Some(token) = self.given("idempotency_token") {
                fields.put("IdempotencyToken", text(token));
            }
        } else {
            self.of_list(&mut fields)?;
        }
        question.fields = Value::Map(fields.0);
        Ok(question)
    }

    /// The fields of a call that come from the query.
    fn query_fields(&self, call: &Call) -> Result<Tree, String> {
        let mut fields = Tree::default();
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

    /// A question without fields: who asks, about what part of the cluster, and how long it may take.
    pub(super) fn plain(&self, call: &str, is_write: bool) -> Result<Question, String> {
        let wait = match self.given("wait") {
            Some(wait) => {
                let nanos = parse_duration(wait).map_err(|_| "Invalid wait time".to_owned())?;
                Duration::from_nanos(nanos.max(0).unsigned_abs()).min(WAIT_MAX)
            }
            None => Duration::ZERO,
        };
        let index = self.given("index").map_or(Ok(0), str::parse).map_err(|_| "Invalid index".to_owned())?;
        let stale = match (self.parameter("stale"), self.flag("stale")) {
            (Some(""), _) => true,
            (_, Ok(stale)) => stale.unwrap_or_default(),
            (_, Err(_)) => {
                return Err("Expect `true` or `false` for `stale` query string parameter".to_owned());
            }
        };
        Ok(Question {
            token: self.token.clone(),
            region: self.given("region").map(str::to_owned),
            namespace: self.given("namespace").unwrap_or("default").to_owned(),
            index: if is_write { 0 } else { index },
            wait,
            stale,
            is_write,
            ..Question::new(call)
        })
    }

    /// A job that is registered, planned or validated: with it comes where that is done.
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
        let own_region = in_body(body, "Region").or_else(|| self.given("region"));
        let namespace = self.given("namespace").or_else(|| in_body(body, "Namespace"));
        Ok(job::submitted(job.clone(), own_region, namespace, region))
    }

    /// A variable that is written, removed or locked.
    fn of_variable(
        &self,
        question: &mut Question,
        fields: &mut Tree,
        path: Option<&str>,
        verb: Verb,
    ) -> Result<(), String> {
        let locks: Vec<&str> = ["lock-renew", "lock-acquire", "lock-release"]
            .into_iter()
            .filter(|lock| self.parameter(lock).is_some())
            .collect();
        let index = self.given("cas").map(|cas| {
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
                *fields = Tree::default();
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

    /// Which part of a list is wanted.
    fn of_list(&self, fields: &mut Tree) -> Result<(), String> {
        for (field, parameter) in [("Prefix", "prefix"), ("Filter", "filter"), ("NextToken", "next_token")] {
            if let Some(value) = self.given(parameter) {
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

/// The fields of a call. A dot in a name leads into a field.
#[derive(Default)]
struct Tree(Vec<(Value, Value)>);

impl Tree {
    fn get(&self, name: &str) -> Option<&Value> {
        self.0.iter().find(|(key, _)| key.as_text() == Some(name)).map(|(_, value)| value)
    }

    fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    fn put(&mut self, name: &str, value: Value) {
        let mut fields = &mut self.0;
        let mut names = name.split('.').peekable();
        while let Some(name) = names.next() {
            let at = fields.iter().position(|(key, _)| key.as_text() == Some(name)).unwrap_or_else(|| {
                fields.push((text(name), Value::Nil));
                fields.len() - 1
            });
            let Some((_, field)) = fields.get_mut(at) else { return };
            if names.peek().is_none() {
                *field = value;
                return;
            }
            if !matches!(field, Value::Map(_)) {
                *field = Value::Map(Vec::new());
            }
            let Value::Map(inner) = field else { return };
            fields = inner;
        }
    }

    /// Puts in all fields of a map.
    fn extend(&mut self, of: Value) {
        if let Value::Map(of) = of {
            self.0.extend(of);
        }
    }

    /// Puts in a map as a field, beneath what is in it already.
    fn under(&mut self, name: &str, value: Value) {
        let over = self.get(name).cloned();
        self.put(name, value);
        if let Some(Value::Map(over)) = over {
            for (key, value) in over {
                self.put(&format!("{name}.{}", key.as_text().unwrap_or_default()), value);
            }
        }
    }
}

/// A body that must be an object.
fn object(body: &Json) -> Result<Map<String, Json>, String> {
    match body {
        Json::Object(given) => Ok(given.clone()),
        Json::Null => Err("Request body is empty".to_owned()),
        Json::Bool(_) | Json::Number(_) | Json::String(_) | Json::Array(_) => {
            Err("the body is no JSON object".to_owned())
        }
    }
}

/// A field of a body that is a text and not empty.
fn in_body<'b>(body: &'b Map<String, Json>, name: &str) -> Option<&'b str> {
    body.get(name).and_then(Json::as_str).filter(|value| !value.is_empty())
}

/// A job's source, with the values of variables as servers keep them: escaped, so that lines stay what they are.
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

/// The token of a request; empty where it has none.
pub(super) fn token(headers: &HeaderMap) -> Secret {
    let own = headers.get("x-nomad-token").and_then(|token| token.to_str().ok());
    let own = own.filter(|token| !token.is_empty());
    let bearer = headers.get(header::AUTHORIZATION).and_then(|value| {
        let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
        let token = token.trim().split(' ').next().unwrap_or_default();
        scheme.eq_ignore_ascii_case("bearer").then_some(token)
    });
    own.or(bearer).unwrap_or_default().trim().into()
}

fn text(text: &str) -> Value {
    Value::Text(text.to_owned())
}
