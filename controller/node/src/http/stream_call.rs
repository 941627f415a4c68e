//! Converts requests for long-running data into streaming calls.
//!
//! In: the kind of stream from the row, path and query. Out: the method and its fields, or why the request is invalid.

use std::collections::BTreeMap;

use herdlet_api::http::routes::{PathParams, StreamKind};
use herdlet_rpc::codec::Value;

use super::{HttpError, exec::Executed, path_param, request::RequestParams};

/// Nomad's error texts.
const NO_TASK: &str = "must provide task name";
const NO_PATH: &str = "must provide a file name";
const NO_TYPE: &str = "must provide log type (stdout/stderr)";
const NO_ORIGIN: &str = "origin must be start or end";

/// The kind of stream, with its parameters from the path.
pub(super) enum Streamed<'p> {
    /// A command or an action, over a websocket.
    Exec(Executed),
    /// A file, or a task's output, of an allocation.
    File(FileStream, &'p str),
    /// The agent's log from now on.
    Monitor,
    /// Earlier entries of the agent's log.
    MonitorExport,
    /// Events of the cluster.
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
pub(super) struct StreamCall<'c> {
    pub(super) method: &'static str,
    /// The allocation that the call concerns.
    pub(super) alloc: Option<&'c str>,
    /// Whether payloads are plain text rather than JSON.
    pub(super) is_plain: bool,
    pub(super) fields: Vec<(&'static str, Value)>,
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

pub(super) fn file_call<'c>(
    how: FileStream,
    alloc: &'c str,
    params: &RequestParams,
) -> Result<StreamCall<'c>, HttpError> {
    let is_logs = how == FileStream::Logs;
    let is_plain = match how {
        FileStream::Logs => flag(params, "plain")?.unwrap_or_default(),
        FileStream::Frames => false,
        FileStream::Cat | FileStream::ReadAt => true,
    };
    let mut fields = vec![("AllocID", Value::Text(alloc.to_owned())), ("PlainText", Value::Bool(is_plain))];
    if is_logs {
        if params.non_empty("task").is_none() {
            return Err(bad(NO_TASK));
        }
        if !matches!(params.parameter("type"), Some("stdout" | "stderr")) {
            return Err(bad(NO_TYPE));
        }
        fields.push(("Task", text(params, "task")));
        fields.push(("LogType", text(params, "type")));
    } else {
        if params.non_empty("path").is_none() {
            return Err(bad(NO_PATH));
        }
        fields.push(("Path", text(params, "path")));
    }
    match how {
        FileStream::Logs | FileStream::Frames => {
            let follow = flag(params, "follow")?.unwrap_or(how == FileStream::Frames);
            fields.push(("Follow", Value::Bool(follow)));
            let origin = match params.non_empty("origin").unwrap_or("start") {
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

pub(super) fn export_call(params: &RequestParams) -> Result<StreamCall<'static>, HttpError> {
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

pub(super) fn monitor_call(params: &RequestParams) -> Result<StreamCall<'static>, HttpError> {
    if params.node().is_some() && params.non_empty("server_id").is_some() {
        return Err(bad("Cannot target node and server simultaneously"));
    }
    let is_plain = flag(params, "plain")?.unwrap_or_default();
    let level = params.non_empty("log_level").unwrap_or("INFO");
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

pub(super) fn events_call(params: &RequestParams) -> Result<StreamCall<'static>, HttpError> {
    let index = params.number("index").map_err(|_| bad("Unable to parse index"))?;
    let fields = vec![("Topics", topics(params)?), ("Index", Value::Int(index.unwrap_or_default()))];
    Ok(StreamCall { method: "Event.Stream", alloc: None, is_plain: false, fields })
}

fn bad(why: &str) -> HttpError {
    HttpError(400, why.to_owned())
}

fn text(params: &RequestParams, name: &str) -> Value {
    Value::Text(params.parameter(name).unwrap_or_default().to_owned())
}

fn flag(params: &RequestParams, name: &str) -> Result<Option<bool>, HttpError> {
    params.flag(name).map_err(|why| HttpError(400, why))
}

fn number(params: &RequestParams, name: &str) -> Result<Value, HttpError> {
    let number = params.number(name).map_err(|_| HttpError(400, format!("error parsing {name}")))?;
    Ok(Value::Int(number.unwrap_or_default()))
}

/// The requested events by topic.
fn topics(params: &RequestParams) -> Result<Value, HttpError> {
    let mut topics: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
    for topic in params.all("topic") {
        let (name, key) = topic.split_once(':').unwrap_or((topic, "*"));
        if key.contains(':') {
            return Err(HttpError(
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
