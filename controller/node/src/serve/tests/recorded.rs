//! Repeats recorded calls of stock servers and compares the answers with those of stock clients.
//!
//! The same are: the shape of each answer (its fields and their kinds), which errors occur, their codes, and the output of commands.
//! Numbers and file contents are of another machine.

use std::collections::{BTreeMap, BTreeSet};

use herdlet_api_types::{fixture::check_result, service::CheckStatus};
use herdlet_rpc::{
    codec::Value,
    framed::{self, StreamFrame},
};
use serde_json::Value as Json;

use super::test_env::{TestEnv, WAIT, all};
use crate::test_recordings::{Message, messages};

/// Fields whose map keys are names rather than fields.
const NAMES: [&str; 6] = ["Tasks", "Results", "Meta", "Dynamic", "Static", "Pids"];

/// Fields that only some versions have, and usage of single processes, which we do not measure.
const OF_SOME_VERSIONS: [&str; 6] =
    ["Total", "TotalPercent", "TotalTicks", "MappedFile", "NextToken", "Pids"];

/// The fields of a value, each with its path and kind. A list is represented by its first item.
fn shape(value: &Value, path: &str, into: &mut BTreeSet<(String, &'static str)>) {
    let kind = match value {
        // The zero value of any type.
        Value::Nil => return,
        Value::List(list) if list.is_empty() => return,
        Value::Map(map) if map.is_empty() => return,
        Value::Bool(_) => "boolean",
        Value::Int(_) | Value::Uint(_) | Value::Float(_) => "number",
        Value::Text(_) | Value::Bytes(_) => "text",
        Value::List(list) => {
            if let Some(first) = list.first() {
                shape(first, &format!("{path}[]"), into);
            }
            "list"
        }
        Value::Map(fields) => {
            let has_names = NAMES.iter().any(|name| path.ends_with(name));
            for (name, value) in fields {
                let name = if has_names { "*" } else { name.as_text().unwrap() };
                shape(value, &format!("{path}.{name}"), into);
            }
            "map"
        }
    };
    into.insert((path.to_owned(), kind));
}

fn differences(ours: &Value, theirs: &Value) -> Vec<String> {
    let (mut has, mut wants) = (BTreeSet::new(), BTreeSet::new());
    shape(ours, "", &mut has);
    shape(theirs, "", &mut wants);
    let of_some = |path: &str| OF_SOME_VERSIONS.iter().any(|name| path.ends_with(&format!(".{name}")));
    // One side omits an empty value.
    let below = |path: &str, others: &BTreeSet<(String, &str)>| {
        let parent = path.rsplit_once(['.', '[']).map_or("", |(parent, _)| parent);
        others.iter().any(|(other, _)| other == parent)
    };
    let missing = wants.difference(&has).filter(|(path, _)| !of_some(path) && below(path, &has));
    let added = has.difference(&wants).filter(|(path, _)| !of_some(path) && below(path, &wants));
    missing.map(|one| format!("−{one:?}")).chain(added.map(|one| format!("+{one:?}"))).collect()
}

/// Each recorded conversation that a server started: its messages, in order.
fn conversations() -> Vec<Vec<Message>> {
    let mut found: BTreeMap<(String, u64, u64), Vec<Message>> = BTreeMap::new();
    for message in messages().into_iter().filter(|message| message.opener == "server") {
        found.entry((message.file.clone(), message.conn, message.stream)).or_default().push(message);
    }
    found.into_values().collect()
}

fn named<'m>(messages: &'m [Message], kind: &str) -> Option<&'m Message> {
    messages.iter().find(|message| message.kind == kind)
}

/// A node in the state of the recorded client.
fn recorded_env(arguments: &Value) -> TestEnv {
    let ground = TestEnv::new();
    let Some(id) = arguments.get("AllocID").and_then(Value::as_text) else { return ground };
    let mut view = ground.alloc(id);
    // This allocation had services with checks.
    if id == "daec964b-b296-ed44-6111-b60a8772728e" {
        view.checks = vec![check_result("63d366ebe0177a7139f855f7f2c7c57b", CheckStatus::Success)];
    }
    ground.show(&view);
    for below in ["web/secrets", "web/tmp", "alloc/logs"] {
        std::fs::create_dir_all(ground.path(id).join(below)).unwrap();
    }
    std::fs::write(ground.path(id).join("web/secrets/key"), "secret").unwrap();
    for (file, text) in
        [("web.stdout.0", "line 0\nline 1\n"), ("web.stderr.0", "err\n"), ("two.stdout.0", "")]
    {
        std::fs::write(ground.logs(id).join(file), text).unwrap();
    }
    ground
}

#[tokio::test]
async fn plain_calls_are_answered_in_the_recorded_shape() {
    let mut seen = BTreeSet::new();
    for messages in conversations() {
        let (Some(request), Some(response)) = (named(&messages, "request"), named(&messages, "response"))
        else {
            continue;
        };
        let (_, arguments) = request.plain();
        let (header, theirs) = response.plain();
        let error = header.get("Error").and_then(Value::as_text).unwrap();
        // Stock clients accepted an unknown signal, and sent another one.
        let odd = arguments.get("Signal").and_then(Value::as_text) == Some("SIGNOPE");
        if odd {
            continue;
        }
        let ground = recorded_env(&arguments);
        if request.method == "Allocations.GarbageCollect"
            && error.is_empty()
            && let Some(id) = arguments.get("AllocID").and_then(Value::as_text)
        {
            ground.show(&herdlet_manifest::fixture::ended(ground.alloc(id)));
        }
        if matches!(theirs.get("Dynamic"), Some(Value::Map(dynamic)) if !dynamic.is_empty()) {
            // Metadata was changed before the recording.
            let changes = super::test_env::map(&[("zone", crate::test_recordings::text("z0"))]);
            ground.call("NodeMeta.Apply", &[("Meta", changes)]).await.unwrap();
        }
        let called = ground.server.call(&request.method, &arguments, WAIT).await;
        match called.and_then(|reply| reply.decode::<Value>()) {
            Ok(ours) => {
                assert_eq!(error, "", "{request}");
                let differ = differences(&ours, &theirs);
                assert!(differ.is_empty(), "{request}: {differ:?}");
            }
            Err(ours) => {
                let (ours, end) = (ours.to_string(), error.rsplit(": ").next().unwrap());
                // Our errors do not contain the path on the machine.
                assert!(
                    ours == error || error.starts_with("stat /") && ours.contains(end),
                    "{request}: {ours}"
                );
            }
        }
        seen.insert(request.method.clone());
    }
    let known = [
        "Agent.Profile",
        "Allocations.Checks",
        "Allocations.GarbageCollect",
        "Allocations.GarbageCollectAll",
        "Allocations.Restart",
        "Allocations.Signal",
        "Allocations.Stats",
        "ClientStats.Stats",
        "FileSystem.List",
        "FileSystem.Stat",
        "NodeMeta.Apply",
        "NodeMeta.Read",
    ];
    assert_eq!(seen.iter().map(String::as_str).collect::<Vec<_>>(), known);
}

/// The keys of the JSON in a frame; empty for other payloads.
fn keys(payload: &[u8]) -> BTreeSet<String> {
    let Ok(Json::Object(fields)) = serde_json::from_slice(payload) else { return BTreeSet::new() };
    fields.keys().cloned().collect()
}

#[tokio::test]
async fn files_and_logs_use_the_recorded_frames() {
    let mut seen = BTreeMap::<String, usize>::new();
    for messages in conversations() {
        let (Some(header), Some(args)) = (named(&messages, "header"), named(&messages, "args")) else {
            continue;
        };
        if !["FileSystem.Logs", "FileSystem.Stream", "Agent.Monitor"].contains(&&*header.method) {
            continue;
        }
        let arguments = args.value();
        let ground = recorded_env(&arguments);
        let frames = messages.iter().filter(|message| message.kind == "frame" && message.dir == "c2s");
        let theirs: Vec<StreamFrame> =
            frames.map(|message| herdlet_rpc::codec::decode(&message.bytes).unwrap()).collect();
        let error = theirs.iter().find_map(|frame| frame.error.clone());
        if let (Some(error), Some(id)) = (&error, arguments.get("AllocID").and_then(Value::as_text))
            && (error.message.starts_with("state for") || error.message.starts_with("failed to list"))
        {
            let mut view = ground.alloc(id);
            view.collected = true;
            ground.show(&view);
        }
        let mut stream = framed::stream(ground.server.mux(), &header.method, &arguments, WAIT).await.unwrap();
        *seen.entry(header.method.clone()).or_default() += 1;
        let follows = arguments.get("Follow") == Some(&Value::Bool(true)) || header.method == "Agent.Monitor";
        let first = stream.receive::<StreamFrame>().await.unwrap().unwrap();
        match error {
            Some(theirs) => {
                let ours = first.error.unwrap_or_else(|| panic!("{args}: expected an error"));
                if theirs.message.starts_with("failed to list") {
                    // 1.1 lists files that no longer exist.
                    assert_eq!(ours.code, Some(404), "{args}");
                    continue;
                }
                assert_eq!(ours.code, theirs.code, "{args}: {ours:?}");
                let end = theirs.message.rsplit(": ").next().unwrap();
                let is_path = theirs.message.starts_with("stat /");
                assert!(
                    ours.message == theirs.message || is_path && ours.message.contains(end),
                    "{args}: {ours:?}"
                );
            }
            None => {
                assert_eq!(first.error, None, "{args}");
                let shapes = theirs.iter().map(|frame| keys(&frame.payload)).collect::<Vec<_>>();
                assert!(shapes.contains(&keys(&first.payload)), "{args}: {:?}", keys(&first.payload));
                if !follows {
                    assert_eq!(all(&mut stream).await.1, None, "{args}");
                }
            }
        }
    }
    assert!(
        seen["FileSystem.Logs"] >= 14 && seen["FileSystem.Stream"] >= 12 && seen["Agent.Monitor"] == 2,
        "{seen:?}"
    );
}

/// The input, output and end of a command.
#[derive(Debug, Default, PartialEq)]
struct Ran {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    ends: BTreeSet<String>,
    result: Option<Json>,
    failed: bool,
}

fn ran(frames: impl IntoIterator<Item = StreamFrame>) -> Ran {
    use base64::{Engine as _, engine::general_purpose::STANDARD};
    let mut ran = Ran::default();
    for frame in frames {
        if frame.error.is_some() {
            ran.failed = true;
            continue;
        }
        let Json::Object(fields) = serde_json::from_slice(&frame.payload).unwrap() else {
            panic!("expected an object")
        };
        for (name, to) in [("stdout", &mut ran.stdout), ("stderr", &mut ran.stderr)] {
            let Some(of) = fields.get(name) else { continue };
            if let Some(data) = of.get("data") {
                to.extend(STANDARD.decode(data.as_str().unwrap()).unwrap());
            }
            if of.get("close") == Some(&Json::Bool(true)) {
                ran.ends.insert(name.to_owned());
            }
        }
        if fields.get("exited") == Some(&Json::Bool(true)) {
            assert!(ran.result.replace(fields["result"].clone()).is_none());
        }
    }
    ran
}

#[tokio::test]
async fn commands_run_as_recorded() {
    let mut ended = 0;
    for messages in conversations() {
        let (Some(header), Some(args)) = (named(&messages, "header"), named(&messages, "args")) else {
            continue;
        };
        let arguments = args.value();
        let words = format!("{:?}", strings(&arguments));
        // Skip commands that call Nomad itself, and one that was killed with its task.
        if header.method != "Allocations.Exec" || words.contains("SECRETS") || words.contains("sleep") {
            continue;
        }
        let frames = |way: &str| {
            messages
                .iter()
                .filter(|message| message.kind == "frame" && message.dir == way)
                .collect::<Vec<_>>()
        };
        let theirs: Vec<StreamFrame> =
            frames("c2s").iter().map(|message| herdlet_rpc::codec::decode(&message.bytes).unwrap()).collect();
        let ground = recorded_env(&arguments);
        let error = theirs.iter().find_map(|frame| frame.error.clone());
        if let (Some(error), Some(id)) = (&error, arguments.get("AllocID").and_then(Value::as_text))
            && error.message.contains("is not running")
        {
            ground.show(&herdlet_manifest::fixture::ended(ground.alloc(id)));
        }
        let mut stream = framed::stream(ground.server.mux(), &header.method, &arguments, WAIT).await.unwrap();
        for frame in frames("s2c") {
            // The node may have ended the stream by then.
            let _ = stream.send(&frame.value()).await;
        }
        let mut ours = Vec::new();
        while let Some(frame) = super::test_env::next(&mut stream).await {
            ours.push(frame);
        }
        if let (Some(theirs), Some(ours)) = (&error, ours.last().and_then(|frame| frame.error.clone())) {
            assert_eq!(ours.code, theirs.code, "{args}: {ours:?}");
            assert!(ours.message == theirs.message || ours.message.contains("/no/such"), "{args}: {ours:?}");
        }
        let (ours, theirs) = (ran(ours), ran(theirs));
        if arguments.get("Tty") == Some(&Value::Bool(true)) {
            // Our terminal has no shell that echoes its input.
            let (text, sizes) = (String::from_utf8_lossy(&ours.stdout).into_owned(), ["24 80", "40 120"]);
            assert!(sizes.iter().all(|size| text.contains(size)), "{args}: {text}");
            assert_eq!((ours.result, ours.failed), (theirs.result, theirs.failed), "{args}");
        } else {
            assert_eq!(ours, theirs, "{args}");
        }
        ended += 1;
    }
    assert!(ended >= 16, "{ended}");
}

fn strings(arguments: &Value) -> Vec<String> {
    let Some(Value::List(words)) = arguments.get("Cmd") else { return Vec::new() };
    words.iter().filter_map(|word| word.as_text().map(str::to_owned)).collect()
}
