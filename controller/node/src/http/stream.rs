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
use herdlet_api::http::routes::{PathParams, StreamKind};
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
    path_param,
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

/// What is streamed, with what of it stands in the path.
pub(super) enum Streamed<'p> {
    /// A command or an action, over a websocket.
    Exec(Executed),
    /// A file, or the output of a task, of an allocation.
    File(FileStream, &'p str),
    /// The agent's log from now on.
    Monitor,
    /// The agent's log of before.
    MonitorExport,
    /// What changes in the cluster.
    Events,
}

/// How a file is read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum FileStream {
    Logs,
    Cat,
    ReadAt,
    /// In frames.
    Frames,
}

/// A streaming call.
struct StreamCall<'c> {
    method: &'static str,
    /// The allocation that it is about.
    alloc: Option<&'c str>,
    /// The payloads are text, and not JSON.
    is_plain: bool,
    fields: Vec<(&'static str, Value)>,
}

impl<'p> Streamed<'p> {
    pub(super) fn of(kind: StreamKind, path: &'p PathParams) -> Self {
        let alloc = path_param(path, "AllocID").unwrap_or_default();
        match kind {
            StreamKind::Exec => Self::Exec(Executed::Command(alloc.to_owned())),
            StreamKind::Action => {
                Self::Exec(Executed::Action(path_param(path, "JobID").unwrap_or_default().to_owned()))
            }
            StreamKind::Logs => Self::File(FileStream::Logs, alloc),
            StreamKind::Cat => Self::File(FileStream::Cat, alloc),
            StreamKind::ReadAt => Self::File(FileStream::ReadAt, alloc),
            StreamKind::File => Self::File(FileStream::Frames, alloc),
            StreamKind::Monitor => Self::Monitor,
            StreamKind::MonitorExport => Self::MonitorExport,
            StreamKind::Events => Self::Events,
        }
    }
}

impl NodeApi {
    /// Answers with a stream.
    pub(super) async fn stream(
        self: &Arc<Self>,
        what: Streamed<'_>,
        params: &RequestParams,
        request: &mut Request,
    ) -> Result<Response, Refused> {
        let is_of_task = matches!(what, Streamed::File(FileStream::Cat | FileStream::ReadAt, _));
        let has_lines = matches!(what, Streamed::Events);
        let call = match what {
            Streamed::Exec(executed) => return exec::open(self, executed, params, request).await,
            Streamed::File(how, alloc) => file_call(how, alloc, params)?,
            Streamed::Monitor => monitor_call(params)?,
            Streamed::MonitorExport => export_call(params)?,
            Streamed::Events => events_call(params)?,
        };
        let stream = self.begin(call.method, call.alloc, params, call.fields).await?;
        let streamed = StreamedResponse { stream, closing: self.shared.closing.clone(), has_lines };
        let response = streamed.answer(if call.is_plain { "text/plain" } else { "application/json" }).await?;
        Ok(if is_of_task { untrusted(response) } else { response })
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

fn file_call<'c>(how: FileStream, alloc: &'c str, params: &RequestParams) -> Result<StreamCall<'c>, Refused> {
    let is_logs = how == FileStream::Logs;
    let is_plain = match how {
        FileStream::Logs => flag(params, "plain")?.unwrap_or_default(),
        FileStream::Frames => false,
        FileStream::Cat | FileStream::ReadAt => true,
    };
    let mut fields = vec![("AllocID", Value::Text(alloc.to_owned())), ("PlainText", Value::Bool(is_plain))];
    if is_logs {
        if params.given("task").is_none() {
            return Err(bad(NO_TASK));
        }
        if !matches!(params.parameter("type"), Some("stdout" | "stderr")) {
            return Err(bad(NO_TYPE));
        }
        fields.push(("Task", text(params, "task")));
        fields.push(("LogType", text(params, "type")));
    } else {
        if params.given("path").is_none() {
            return Err(bad(NO_PATH));
        }
        fields.push(("Path", text(params, "path")));
    }
    match how {
        FileStream::Logs | FileStream::Frames => {
            let follow = flag(params, "follow")?.unwrap_or(how == FileStream::Frames);
            fields.push(("Follow", Value::Bool(follow)));
            let origin = match params.given("origin").unwrap_or("start") {
                origin @ ("start" | "end") => origin,
                _ => return Err(bad(NO_ORIGIN)),
            };
            fields.push(("Origin", Value::Text(origin.to_owned())));
        }
        FileStream::Cat | FileStream::ReadAt => {
            fields.push(("Origin", Value::Text("start".to_owned())));
        }
    }
    if how != FileStream::Cat {
        fields.push(("Offset", number(params, "offset")?));
    }
    if how == FileStream::ReadAt {
        fields.push(("Limit", number(params, "limit")?));
    }
    let method = if is_logs { "FileSystem.Logs" } else { "FileSystem.Stream" };
    Ok(StreamCall { method, alloc: Some(alloc), is_plain, fields })
}

fn export_call(params: &RequestParams) -> Result<StreamCall<'static>, Refused> {
    let is_plain = flag(params, "plain")?.unwrap_or_default();
    let fields = vec![
        ("LogsSince", text(params, "logs_since")),
        ("ServiceName", text(params, "service_name")),
        ("OnDisk", Value::Bool(flag(params, "on_disk")?.unwrap_or_default())),
        ("Follow", Value::Bool(flag(params, "follow")?.unwrap_or_default())),
        ("NodeID", text(params, "node_id")),
        ("ServerID", text(params, "server_id")),
        ("PlainText", Value::Bool(is_plain)),
    ];
    Ok(StreamCall { method: "Agent.MonitorExport", alloc: None, is_plain, fields })
}

fn monitor_call(params: &RequestParams) -> Result<StreamCall<'static>, Refused> {
    if params.node().is_some() && params.given("server_id").is_some() {
        return Err(bad("Cannot target node and server simultaneously"));
    }
    let is_plain = flag(params, "plain")?.unwrap_or_default();
    let level = params.given("log_level").unwrap_or("INFO");
    let fields = vec![
        ("LogLevel", Value::Text(level.to_owned())),
        ("LogJSON", Value::Bool(flag(params, "log_json")?.unwrap_or_default())),
        ("LogIncludeLocation", Value::Bool(flag(params, "log_include_location")?.unwrap_or_default())),
        ("NodeID", text(params, "node_id")),
        ("ServerID", text(params, "server_id")),
        ("PlainText", Value::Bool(is_plain)),
    ];
    Ok(StreamCall { method: "Agent.Monitor", alloc: None, is_plain, fields })
}

fn events_call(params: &RequestParams) -> Result<StreamCall<'static>, Refused> {
    let index = params.number("index").map_err(|_| bad("Unable to parse index"))?;
    let fields = vec![("Topics", topics(params)?), ("Index", Value::Int(index.unwrap_or_default()))];
    Ok(StreamCall { method: "Event.Stream", alloc: None, is_plain: false, fields })
}

fn bad(why: &str) -> Refused {
    Refused(400, why.to_owned())
}

fn text(params: &RequestParams, name: &str) -> Value {
    Value::Text(params.parameter(name).unwrap_or_default().to_owned())
}

fn flag(params: &RequestParams, name: &str) -> Result<Option<bool>, Refused> {
    params.flag(name).map_err(|why| Refused(400, why))
}

fn number(params: &RequestParams, name: &str) -> Result<Value, Refused> {
    let number = params.number(name).map_err(|_| Refused(400, format!("error parsing {name}")))?;
    Ok(Value::Int(number.unwrap_or_default()))
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
