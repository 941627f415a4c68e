//! Messages recorded between stock nodes and servers (`tests/nomad/recordings`), in our types: nothing is lost or added.
//!
//! Each message is decoded, encoded again, and compared as values. Intended differences:
//!
//! - zero values, empty lists and empty maps count as missing, on either side;
//! - times are encoded as UTC;
//! - fields that a node does not use are not decoded: see [`UNREAD`].

#![expect(clippy::unwrap_used, reason = "tests may panic")]

use std::path::PathBuf;

use herdlet_nomad::wire::{queries, registration};
use herdlet_rpc::codec::{self, Extent, Limits, Value};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// Fields of responses that are skipped: formats from before 0.9, and data that only servers read.
const UNREAD: [&str; 6] =
    ["Resources", "SharedResources", "TaskResources", "Metrics", "AllocStates", "NextToken"];

#[derive(Deserialize)]
struct Message {
    kind: String,
    #[serde(default)]
    method: String,
    hex: String,
}

fn messages() -> Vec<(String, Message)> {
    let folder = std::env::var_os("HERDLET_TEST_RECORDINGS").map_or_else(
        || [env!("CARGO_MANIFEST_DIR"), "../../tests/nomad/recordings"].iter().collect(),
        PathBuf::from,
    );
    let mut found = Vec::new();
    for version in ["1.1.2", "1.6.5"] {
        for entry in std::fs::read_dir(folder.join(version)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_none_or(|ending| ending != "jsonl") {
                continue;
            }
            for (at, line) in std::fs::read_to_string(&path).unwrap().lines().enumerate() {
                if line.contains("\"kind\"") {
                    let name = format!("{}:{}", path.display(), at + 1);
                    found.push((name, serde_json::from_str(line).unwrap()));
                }
            }
        }
    }
    found
}

fn from_hex(text: &str) -> Vec<u8> {
    let pairs = text.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
    pairs.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
}

/// The body after the header of a unary call; `None` if the response is an error.
fn body(bytes: &[u8]) -> Option<&[u8]> {
    let length = Extent::new(Limits::HEADER).of(bytes).unwrap().unwrap();
    let header: Value = codec::decode(&bytes[..length]).unwrap();
    let failed = header.get("Error").and_then(Value::as_text).is_some_and(|error| !error.is_empty());
    (!failed).then_some(&bytes[length..])
}

/// Removes zero values; `None` if nothing is left.
fn plain(value: &Value, unread: &[&str]) -> Option<Value> {
    match value {
        Value::Nil | Value::Bool(false) | Value::Int(0) | Value::Uint(0) => None,
        Value::Float(number) if *number == 0.0 => None,
        Value::Text(text) if text.is_empty() => None,
        Value::Uint(number) => Some(i64::try_from(*number).map_or(Value::Uint(*number), Value::Int)),
        Value::Text(text) => time(text.as_bytes()).unwrap_or_else(|| Some(value.clone())),
        Value::Bytes(bytes) => time(bytes).unwrap_or_else(|| Some(value.clone())),
        Value::List(list) => {
            let list: Vec<_> = list.iter().map(|item| plain(item, unread).unwrap_or_default()).collect();
            (!list.is_empty()).then_some(Value::List(list))
        }
        Value::Map(map) => {
            let mut entries: Vec<_> = map
                .iter()
                .filter(|(key, _)| !unread.contains(&key.as_text().unwrap()))
                .filter_map(|(key, value)| Some((key.clone(), plain(value, unread)?)))
                .collect();
            entries.sort_by(|(a, _), (b, _)| a.as_text().cmp(&b.as_text()));
            (!entries.is_empty()).then_some(Value::Map(entries))
        }
        Value::Bool(_) | Value::Int(_) | Value::Float(_) => Some(value.clone()),
    }
}

/// Converts a time to UTC; `None` if it is zero.
fn time(bytes: &[u8]) -> Option<Option<Value>> {
    let ([1, moment @ .., _, _], 15) = (bytes, bytes.len()) else { return None };
    Some(moment.iter().any(|&byte| byte != 0).then(|| Value::Bytes(moment.to_owned())))
}

fn same<T: Serialize + DeserializeOwned>(name: &str, body: &[u8], unread: &[&str]) {
    let ours: T = codec::decode(body).unwrap_or_else(|error| panic!("{name}: failed to {error}"));
    let theirs: Value = codec::decode(body).unwrap();
    let ours: Value = codec::decode(&codec::encode(&ours).unwrap()).unwrap();
    let (ours, theirs) = (plain(&ours, unread), plain(&theirs, unread));
    assert!(ours == theirs, "{name}: {}", difference(&ours.unwrap(), &theirs.unwrap()));
}

/// Describes the first difference between two values.
fn difference(ours: &Value, theirs: &Value) -> String {
    let (Value::Map(a), Value::Map(b)) = (ours, theirs) else {
        if let (Value::List(a), Value::List(b)) = (ours, theirs)
            && let Some((at, (a, b))) = a.iter().zip(b).enumerate().find(|(_, (a, b))| a != b)
        {
            return format!("[{at}]{}", difference(a, b));
        }
        return format!(": {ours:?} for {theirs:?}");
    };
    for (key, value) in a.iter().chain(b) {
        let name = key.as_text().unwrap();
        match (ours.get(name), theirs.get(name)) {
            (Some(a), Some(b)) if a == b => {}
            (Some(a), Some(b)) => return format!(".{name}{}", difference(a, b)),
            _ => return format!(".{name}: only on one side: {value:?}"),
        }
    }
    "nowhere".to_owned()
}

type Check = fn(&str, &[u8], &[&str]);

/// The types of a method's request and response.
fn checks(method: &str) -> Option<(Check, Check)> {
    use queries::*;
    use registration::*;
    Some(match method {
        "Node.Register" => (same::<NodeRegisterRequest>, same::<NodeUpdateResponse>),
        "Node.UpdateStatus" => (same::<NodeUpdateStatusRequest>, same::<NodeUpdateResponse>),
        "Node.EmitEvents" => (same::<EmitEventsRequest>, same::<GenericResponse>),
        "Node.GetClientAllocs" => (same::<ClientAllocsRequest>, same::<ClientAllocsResponse>),
        "Node.UpdateAlloc" => (same::<AllocUpdateRequest>, same::<GenericResponse>),
        "Node.GetNode" => (same::<NodeRequest>, same::<NodeResponse>),
        "Alloc.GetAllocs" => (same::<AllocsRequest>, same::<AllocsResponse>),
        "Alloc.GetAlloc" => (same::<AllocRequest>, same::<AllocResponse>),
        "Alloc.SignIdentities" => (same::<SignRequest>, same::<SignResponse>),
        _ => return None,
    })
}

#[test]
fn recorded_messages_round_trip() {
    let (mut requests, mut answers) = (0, 0);
    for (name, message) in messages() {
        let Some((request, answer)) = checks(&message.method) else { continue };
        let bytes = from_hex(&message.hex);
        match &message.kind[..] {
            "request" => {
                request(&name, body(&bytes).unwrap(), &[]);
                requests += 1;
            }
            "response" => {
                if let Some(body) = body(&bytes) {
                    answer(&name, body, &UNREAD);
                    answers += 1;
                }
            }
            _ => {}
        }
    }
    println!("{requests} requests, {answers} answers");
    assert!(requests >= 100 && answers >= 90, "{requests} requests, {answers} answers");
}
