//! What goes on for long: logs, files, the agent's log, events. Each is a streaming call, to this node's own service or to a server, whose
//! payloads are the answer, at the pace of whoever reads it.
//!
//! The first message is waited for before anything is answered, since it may be an error, which has a code. Where the stream breaks
//! off later the answer is cut off, so that nobody takes it for a whole one.
//!
//! Facts: `hashicorp/nomad:command/agent/fs_endpoint.go`, `agent_endpoint.go`, `event_endpoint.go`.

use std::{collections::BTreeMap, io, sync::Arc, time::Duration};

use axum::{
    body::{Body, Bytes},
    extract::Request,
    http::{HeaderName, HeaderValue, header},
    response::{IntoResponse, Response},
};
use futures_util::stream;
use herdlet_rpc::{
    codec::{Limits, Value},
    error::{CallError, MessageError},
    framed::Framed,
    mux::Io,
};
use tokio_util::sync::CancellationToken;

use super::{
    NodeApi, Refused,
    exec::{self, Executed},
    piece::{Piece, piece},
    request::RequestParams,
};
use crate::asking::Question;

/// The words of one of Nomad's mistakes.
const NO_TASK: &str = "must provide task name";
const NO_PATH: &str = "must provide a file name";
const NO_TYPE: &str = "must provide log type (stdout/stderr)";
const NO_ORIGIN: &str = "origin must be start or end";

/// What is said beside the content of a file, as stock agents say it.
const OF_TASKS: [(HeaderName, &str); 4] = [
    (header::CONTENT_SECURITY_POLICY, "default-src 'none'; style-src 'unsafe-inline'; sandbox"),
    (header::CONTENT_TYPE, "text/plain; charset=utf-8"),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_XSS_PROTECTION, "1; mode=block"),
];

/// How much an event may take: it has all of a job, or of an allocation.
const EVENT: Limits = Limits { bytes: 16 << 20, depth: 8, values: 64 };

impl NodeApi {
    /// The answer to a path that is one of these; none where it is another one.
    pub(super) async fn streamed(
        self: &Arc<Self>,
        parts: &[&str],
        params: &RequestParams,
        request: &mut Request,
    ) -> Result<Option<Response>, Refused> {
        let text = |name: &str| Value::Text(params.parameter(name).unwrap_or_default().to_owned());
        let bad = |why: String| Refused(400, why);
        let flag = |name: &str, default| Ok::<_, Refused>(params.flag(name).map_err(bad)?.unwrap_or(default));
        let number = |name: &str| {
            let number = params.number(name).map_err(|_| bad(format!("error parsing {name}")))?;
            Ok::<_, Refused>(Value::Int(number.unwrap_or_default()))
        };
        let origin = || match params.given("origin").unwrap_or("start") {
            origin @ ("start" | "end") => Ok(Value::Text(origin.to_owned())),
            _ => Err(bad(NO_ORIGIN.to_owned())),
        };
        let (method, alloc, is_plain, fields) = match parts {
            ["client", "allocation", id, "exec"] => {
                let executed = Executed::Command((*id).to_owned());
                return exec::open(self, executed, params, request).await.map(Some);
            }
            ["job", id @ .., "action"] if !id.is_empty() => {
                let executed = Executed::Action(id.join("/"));
                return exec::open(self, executed, params, request).await.map(Some);
            }
            ["client", "fs", what @ ("logs" | "cat" | "readat" | "stream"), id] => {
                let is_plain = match *what {
                    "logs" => flag("plain", false)?,
                    "stream" => false,
                    _ => true,
                };
                let mut fields =
                    vec![("AllocID", Value::Text((*id).to_owned())), ("PlainText", Value::Bool(is_plain))];
                if *what == "logs" {
                    if params.given("task").is_none() {
                        return Err(bad(NO_TASK.to_owned()));
                    }
                    if !matches!(params.parameter("type"), Some("stdout" | "stderr")) {
                        return Err(bad(NO_TYPE.to_owned()));
                    }
                    fields.push(("Task", text("task")));
                    fields.push(("LogType", text("type")));
                } else {
                    if params.given("path").is_none() {
                        return Err(bad(NO_PATH.to_owned()));
                    }
                    fields.push(("Path", text("path")));
                }
                if matches!(*what, "logs" | "stream") {
                    fields.push(("Follow", Value::Bool(flag("follow", *what == "stream")?)));
                    fields.push(("Origin", origin()?));
                } else {
                    fields.push(("Origin", Value::Text("start".to_owned())));
                }
                if *what != "cat" {
                    fields.push(("Offset", number("offset")?));
                }
                if *what == "readat" {
                    fields.push(("Limit", number("limit")?));
                }
                let method = if *what == "logs" { "FileSystem.Logs" } else { "FileSystem.Stream" };
                (method, Some(*id), is_plain, fields)
            }
            ["agent", "monitor", "export"] => {
                let is_plain = flag("plain", false)?;
                let fields = vec![
                    ("LogsSince", text("logs_since")),
                    ("ServiceName", text("service_name")),
                    ("OnDisk", Value::Bool(flag("on_disk", false)?)),
                    ("Follow", Value::Bool(flag("follow", false)?)),
                    ("NodeID", text("node_id")),
                    ("ServerID", text("server_id")),
                    ("PlainText", Value::Bool(is_plain)),
                ];
                ("Agent.MonitorExport", None, is_plain, fields)
            }
            ["agent", "monitor"] => {
                if params.node().is_some() && params.given("server_id").is_some() {
                    return Err(bad("Cannot target node and server simultaneously".to_owned()));
                }
                let is_plain = flag("plain", false)?;
                let level = params.given("log_level").unwrap_or("INFO");
                let fields = vec![
                    ("LogLevel", Value::Text(level.to_owned())),
                    ("LogJSON", Value::Bool(flag("log_json", false)?)),
                    ("LogIncludeLocation", Value::Bool(flag("log_include_location", false)?)),
                    ("NodeID", text("node_id")),
                    ("ServerID", text("server_id")),
                    ("PlainText", Value::Bool(is_plain)),
                ];
                ("Agent.Monitor", None, is_plain, fields)
            }
            ["event", "stream"] => {
                let index = params.number("index").map_err(|_| bad("Unable to parse index".to_owned()))?;
                let fields =
                    vec![("Topics", topics(params)?), ("Index", Value::Int(index.unwrap_or_default()))];
                ("Event.Stream", None, false, fields)
            }
            _ => return Ok(None),
        };
        let stream = self.begin(method, alloc, params, fields).await?;
        let streamed = StreamedResponse {
            stream,
            closing: self.shared.closing.clone(),
            has_lines: method == "Event.Stream",
        };
        let response = streamed.answer(if is_plain { "text/plain" } else { "application/json" }).await?;
        let is_of_task = matches!(parts, ["client", "fs", "cat" | "readat", _]);
        Ok(Some(if is_of_task { untrusted(response) } else { response }))
    }

    /// Begins a streaming call at this node, or at a server.
    pub(super) async fn begin(
        &self,
        method: &str,
        alloc: Option<&str>,
        params: &RequestParams,
        fields: Vec<(&str, Value)>,
    ) -> Result<Framed<Box<dyn Io>>, Refused> {
        let fields = fields.into_iter().map(|(name, value)| (Value::Text(name.to_owned()), value));
        // Events wait by themselves; there is nothing to wait for otherwise.
        let question = params.plain(method, true).map_err(|why| Refused(400, why))?;
        let question = Question { fields: Value::Map(fields.collect()), ..question };
        if method != "Event.Stream" && self.is_here(alloc, params) {
            let arguments = question.body(&self.shared.facts.node.region, Duration::ZERO);
            let begun = self.service.clone().begin(method.to_owned(), &arguments).await;
            return begun.map_err(|error| Refused(500, format!("failed to {error}")));
        }
        self.servers.stream(question).await.map_err(Refused::from)
    }
}

/// What a task has written is nothing that a browser should take for a page of this origin.
fn untrusted(mut response: Response) -> Response {
    for (name, value) in OF_TASKS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

/// The messages of a streaming call as the body of a response.
struct StreamedResponse {
    stream: Framed<Box<dyn Io>>,
    closing: CancellationToken,
    /// Each message is a line.
    has_lines: bool,
}

impl StreamedResponse {
    async fn answer(mut self, content_type: &'static str) -> Result<Response, Refused> {
        let first = match self.next().await.map_err(|error| Refused::from(CallError::from(error)))? {
            Some(Piece::Failed(code, why)) => return Err(Refused(code, why)),
            Some(Piece::Payload(payload)) => Some(payload),
            None => return Ok(([(header::CONTENT_TYPE, content_type)], Body::empty()).into_response()),
        };
        let pieces = stream::unfold(Some((self, first)), |telling| async {
            let (mut told, first) = telling?;
            if let Some(first) = first {
                return Some((Ok(Bytes::from(first)), Some((told, None))));
            }
            match told.next().await {
                Ok(Some(Piece::Payload(payload))) => Some((Ok(Bytes::from(payload)), Some((told, None)))),
                Ok(Some(Piece::Failed(_, why))) => Some((Err(io::Error::other(why)), None)),
                Ok(None) => None,
                Err(error) => Some((Err(io::Error::other(error)), None)),
            }
        });
        Ok(([(header::CONTENT_TYPE, content_type)], Body::from_stream(pieces)).into_response())
    }

    /// The next message that says something; none at the end.
    async fn next(&mut self) -> Result<Option<Piece>, MessageError> {
        let limits = if self.has_lines { EVENT } else { Limits::FRAME };
        loop {
            let message = tokio::select! {
                message = self.stream.receive_within::<Value>(limits) => message?,
                () = self.closing.cancelled() => return Err(MessageError::Ended),
            };
            let Some(message) = message else { return Ok(None) };
            return Ok(Some(match piece(message) {
                Piece::Payload(payload) if payload.is_empty() => continue,
                Piece::Payload(mut payload) => {
                    if self.has_lines {
                        payload.push(b'\n');
                    }
                    Piece::Payload(payload)
                }
                failed @ Piece::Failed(..) => failed,
            }));
        }
    }
}

/// Which events are wanted, by topic.
fn topics(params: &RequestParams) -> Result<Value, Refused> {
    let mut topics: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
    for topic in params.all("topic") {
        let (name, key) = topic.split_once(':').unwrap_or((topic, "*"));
        if key.contains(':') {
            return Err(Refused(
                400,
                format!(
                    "Invalid topic query: error parsing topics: Invalid key value pair for topic, topic: {topic}"
                ),
            ));
        }
        topics.entry(name).or_default().push(Value::Text(key.to_owned()));
    }
    if topics.is_empty() {
        topics.insert("*", vec![Value::Text("*".to_owned())]);
    }
    let topics = topics.into_iter().map(|(name, keys)| (Value::Text(name.to_owned()), Value::List(keys)));
    Ok(Value::Map(topics.collect()))
}
