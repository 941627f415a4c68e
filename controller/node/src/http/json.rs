//! Converts servers' answers into the JSON of Nomad's HTTP API, and request bodies into the values that servers expect.
//!
//! In JSON, a time is RFC 3339 (null if unset), bytes are base64, and durations stay nanoseconds with a few exceptions. Messages do not
//! distinguish these types from other texts. A time is recognized by its first byte, which no text has; bytes by not being UTF-8, or by the
//! names of their fields. Values in maps with user-defined keys are not converted.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use herdlet_api_types::{UnixNanos, parse_duration, rfc3339::rfc3339};
use herdlet_rpc::codec::{self, Time, Value};
use serde_json::{Map, Number, Value as Json};

/// Fields that hold bytes even if the value is valid UTF-8.
const BYTES: [&str; 3] = ["Hash", "Payload", "PolicyHash"];

/// Fields that hold durations and may be given as texts.
const DURATIONS: [&str; 32] = [
    "ClockSkewLeeway",
    "ConnectTimeout",
    "Deadline",
    "Delay",
    "ExpirationLeeway",
    "ExpirationTTL",
    "Grace",
    "HealthTimeout",
    "HealthyDeadline",
    "Interval",
    "KillTimeout",
    "LastContactThreshold",
    "LockDelay",
    "LostAfter",
    "Max",
    "MaxClientDisconnect",
    "MaxDelay",
    "MaxRunDuration",
    "MaxTokenTTL",
    "Min",
    "MinHealthyTime",
    "NotBeforeLeeway",
    "ProgressDeadline",
    "ServerStabilizationTime",
    "ShutdownDelay",
    "Splay",
    "Stagger",
    "StopAfterClientDisconnect",
    "StopOnClientAfter",
    "TTL",
    "Timeout",
    "VaultGrace",
];

/// Duration fields that are texts in answers, too.
const DURATION_TEXTS: [&str; 5] =
    ["ExpirationTTL", "LastContactThreshold", "LockDelay", "MaxTokenTTL", "ServerStabilizationTime"];

/// Fields that hold times.
const TIMES: [&str; 2] = ["ExpirationTime", "TaggedTime"];

/// Fields that are maps with user-defined keys.
const OWN_KEYS: [&str; 15] = [
    "Attributes",
    "CanaryMeta",
    "Context",
    "Env",
    "GetterHeaders",
    "GetterOptions",
    "Header",
    "Items",
    "Labels",
    "Meta",
    "Parameters",
    "Policy",
    "Secrets",
    "TaggedAddresses",
    "VariableFlags",
];

/// Likewise within a job only: the driver's configuration, in which all numbers are floats, since Go decodes JSON numbers so.
const CONFIG: &str = "Config";

/// Fields that hold addresses as bytes.
const ADDRESSES: [&str; 2] = ["Addr", "RemoteIP"];

/// Converts a value to JSON. `name` is the name of its field.
pub(super) fn to_json(value: &Value, name: &str) -> Json {
    let has_own_keys = OWN_KEYS.contains(&name);
    match value {
        Value::Nil => Json::Null,
        Value::Bool(value) => (*value).into(),
        Value::Int(value) if DURATION_TEXTS.contains(&name) => go_duration(*value).into(),
        Value::Int(value) => (*value).into(),
        Value::Uint(value) => (*value).into(),
        Value::Float(value) => Number::from_f64(*value).map_or(Json::Null, Json::Number),
        Value::Text(text) => bytes(text.as_bytes(), name, Some(text)),
        Value::Bytes(raw) => bytes(raw, name, None),
        Value::List(list) => list.iter().map(|one| to_json(one, name)).collect(),
        Value::Map(fields) => {
            let shown = |(key, value): &(Value, Value)| {
                let key = match key {
                    Value::Text(key) => key.clone(),
                    Value::Int(key) => key.to_string(),
                    Value::Uint(key) => key.to_string(),
                    Value::Nil
                    | Value::Bool(_)
                    | Value::Float(_)
                    | Value::Bytes(_)
                    | Value::List(_)
                    | Value::Map(_) => String::new(),
                };
                let value = if let (Value::Text(text), true) = (value, has_own_keys) {
                    text.as_str().into()
                } else if name == "Lock" && key == "TTL" {
                    to_json(value, "LockDelay")
                } else {
                    to_json(value, if has_own_keys { "" } else { &key })
                };
                (key, value)
            };
            Json::Object(fields.iter().map(shown).collect())
        }
    }
}

fn bytes(raw: &[u8], name: &str, text: Option<&str>) -> Json {
    if let ([1, ..], 15) | ([2, ..], 16) = (raw, raw.len())
        && let Ok(encoded) = codec::encode(&Value::Bytes(raw.to_owned()))
        && let Ok(time) = codec::decode::<Time>(&encoded)
    {
        return time.unix_nanos().and_then(|nanos| rfc3339(UnixNanos(nanos))).map_or(Json::Null, Json::from);
    }
    if ADDRESSES.contains(&name) {
        let four = <[u8; 4]>::try_from(raw).map(std::net::IpAddr::from);
        let address = four.or_else(|_| <[u8; 16]>::try_from(raw).map(std::net::IpAddr::from));
        if let Ok(address) = address {
            return address.to_canonical().to_string().into();
        }
    }
    match text {
        Some(text) if !BYTES.contains(&name) => text.into(),
        Some(_) | None => STANDARD.encode(raw).into(),
    }
}

/// Converts JSON to a value. Byte fields are decoded from base64.
///
/// # Errors
/// The field that is not valid base64, or not a time.
pub(super) fn read(json: &Json, name: &str) -> Result<Value, String> {
    read_as(json, name, "")
}

/// Converts a job likewise.
///
/// # Errors
/// See [`read`].
pub(super) fn read_job(job: &Json) -> Result<Value, String> {
    read_as(job, "Job", CONFIG)
}

/// `floats`: the name of maps with user-defined keys whose numbers are floats.
fn read_as(json: &Json, name: &str, floats: &str) -> Result<Value, String> {
    Ok(match json {
        Json::String(text) if BYTES.contains(&name) => {
            Value::Bytes(STANDARD.decode(text).map_err(|error| format!("{name}: {error}"))?)
        }
        Json::String(text) if TIMES.contains(&name) => {
            let at = text.parse::<jiff::Timestamp>().map_err(|error| format!("{name}: {error}"))?;
            let nanos = i64::try_from(at.as_nanosecond()).map_err(|_| format!("{name}: is out of range"))?;
            time(Time::from_unix_nanos(nanos))?
        }
        Json::String(text) if DURATIONS.contains(&name) => {
            parse_duration(text).map_or_else(|_| Value::Text(text.clone()), Value::Int)
        }
        Json::Array(list) => {
            Value::List(list.iter().map(|one| read_as(one, name, floats)).collect::<Result<_, _>>()?)
        }
        Json::Object(_) if !floats.is_empty() && (name == floats || name == "Policy") => plain(json, true),
        Json::Object(_) if OWN_KEYS.contains(&name) => plain(json, false),
        Json::Object(fields) => {
            let read = fields
                .iter()
                .map(|(name, value)| Ok((Value::Text(name.clone()), read_as(value, name, floats)?)));
            Value::Map(read.collect::<Result<_, String>>()?)
        }
        Json::Null | Json::Bool(_) | Json::Number(_) | Json::String(_) => plain(json, false),
    })
}

/// Converts JSON without interpreting field names.
fn plain(json: &Json, floats: bool) -> Value {
    match json {
        Json::Null => Value::Nil,
        Json::Bool(value) => Value::Bool(*value),
        Json::Number(number) if floats => Value::Float(number.as_f64().unwrap_or_default()),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(number), _) => Value::Int(number),
            (None, Some(number)) => Value::Uint(number),
            (None, None) => Value::Float(number.as_f64().unwrap_or_default()),
        },
        Json::String(text) => Value::Text(text.clone()),
        Json::Array(list) => Value::List(list.iter().map(|one| plain(one, floats)).collect()),
        Json::Object(fields) => Value::Map(
            fields.iter().map(|(name, value)| (Value::Text(name.clone()), plain(value, floats))).collect(),
        ),
    }
}

fn time(time: Time) -> Result<Value, String> {
    let bytes = codec::encode(&time).map_err(|error| format!("failed to {error}"))?;
    codec::decode(&bytes).map_err(|error| format!("failed to {error}"))
}

/// Formats a duration in nanoseconds like Go.
pub(super) fn go_duration(nanos: i64) -> String {
    let sign = if nanos < 0 { "-" } else { "" };
    let all = nanos.unsigned_abs();
    let (unit, name) = match all {
        0 => return "0s".to_owned(),
        1..1_000 => (1, "ns"),
        1_000..1_000_000 => (1_000, "µs"),
        1_000_000..1_000_000_000 => (1_000_000, "ms"),
        1_000_000_000.. => (1_000_000_000, "s"),
    };
    let (hours, minutes) = (all / 3_600_000_000_000, all / 60_000_000_000 % 60);
    let before = match (hours, minutes) {
        (0, 0) => String::new(),
        (0, minutes) => format!("{minutes}m"),
        (hours, minutes) => format!("{hours}h{minutes}m"),
    };
    let rest = all % 60_000_000_000;
    let digits = unit.to_string().len() - 1;
    let fraction = format!("{:0digits$}", rest % unit);
    let fraction = if digits == 0 { "" } else { fraction.trim_end_matches('0') };
    let point = if fraction.is_empty() { "" } else { "." };
    format!("{sign}{before}{}{point}{fraction}{name}", rest / unit)
}

/// Adapts a node to the API: adds `Drain` and hides the secret.
pub(super) fn of_node(node: &mut Map<String, Json>) {
    let drains = node.get("DrainStrategy").is_some_and(|strategy| !strategy.is_null());
    node.insert("Drain".to_owned(), drains.into());
    if let Some(secret) = node.get_mut("SecretID") {
        *secret = "".into();
    }
}

/// Removes fields that are null or 0 from an object, or from each object in a list.
pub(super) fn omit_empty(names: &[&str], shown: &mut Json) {
    for fields in objects(shown) {
        for name in names {
            if fields.get(*name).is_some_and(|value| value.is_null() || *value == 0) {
                fields.remove(*name);
            }
        }
    }
}

/// Removes fields from an object, or from each object in a list.
pub(super) fn omit(names: &[&str], shown: &mut Json) {
    for fields in objects(shown) {
        for name in names {
            fields.remove(*name);
        }
    }
}

/// The object, or the objects in the list.
fn objects(shown: &mut Json) -> impl Iterator<Item = &mut Map<String, Json>> {
    let one = std::slice::from_mut(shown);
    let all = match one {
        [Json::Array(all)] => all.as_mut_slice(),
        one => one,
    };
    all.iter_mut().filter_map(Json::as_object_mut)
}

/// Adapts the servers' health to the API's texts.
pub(super) fn of_health(health: &mut Map<String, Json>) {
    let servers = health.get_mut("Servers").and_then(Json::as_array_mut);
    for server in servers.into_iter().flatten().filter_map(Json::as_object_mut) {
        if let Some(contact) = server.get("LastContact").and_then(Json::as_i64) {
            server.insert("LastContact".to_owned(), go_duration(contact).into());
        }
        if let Some(status) = server.get("SerfStatus").and_then(Json::as_u64) {
            let words = ["none", "alive", "leaving", "left", "failed"];
            let word = usize::try_from(status).ok().and_then(|status| words.get(status));
            server.insert("SerfStatus".to_owned(), word.copied().unwrap_or("unknown").into());
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn text(text: &str) -> Value {
        Value::Text(text.to_owned())
    }

    fn time(time: Time) -> Value {
        codec::decode(&codec::encode(&time).unwrap()).unwrap()
    }

    #[test]
    fn values_are_shown_as_go_writes_them() {
        let value = Value::Map(vec![
            (text("At"), time(Time::from_unix_nanos(1_767_323_045_000_000_005))),
            (text("Never"), time(Time::ZERO)),
            (text("Hash"), text("abc")),
            (text("Raw"), Value::Bytes(vec![255])),
            (text("Addr"), Value::Bytes(vec![0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 10, 0, 0, 1])),
            (text("Name"), text("a text of 15 ch")),
            (text("None"), Value::Nil),
            (text("Timeout"), Value::Int(5_000_000_000)),
            (text("List"), Value::List(vec![Value::Uint(u64::MAX), Value::Float(0.5)])),
        ]);
        let expected = json!({
            "At": "2026-01-02T03:04:05.000000005Z", "Never": null, "Hash": "YWJj", "Raw": "/w==",
            "Addr": "10.0.0.1", "Name": "a text of 15 ch", "None": null, "Timeout": 5_000_000_000_u64,
            "List": [u64::MAX, 0.5],
        });
        assert_eq!(to_json(&value, ""), expected);
    }

    #[test]
    fn bodies_are_read() {
        let body = json!({ "Payload": "YWJj", "Meta": { "a": null }, "Count": 3, "List": [true, 0.5] });
        let Value::Map(fields) = read(&body, "").unwrap() else { panic!("expected a map") };
        let field = |name: &str| fields.iter().find(|(key, _)| *key == text(name)).unwrap().1.clone();
        assert_eq!(field("Payload"), Value::Bytes(b"abc".to_vec()));
        assert_eq!(field("Meta"), Value::Map(vec![(text("a"), Value::Nil)]));
        assert_eq!(
            (field("Count"), field("List")),
            (Value::Int(3), Value::List(vec![Value::Bool(true), Value::Float(0.5)]))
        );
        assert!(read(&json!({ "Payload": "%" }), "").unwrap_err().starts_with("Payload: "));
    }

    /// Whatever names users give to their keys.
    #[test]
    fn user_maps_keep_their_keys() {
        let meta = json!({ "Meta": { "Hash": "abc", "Timeout": "5s", "Addr": "four" } });
        let value = read(&meta, "").unwrap();
        assert_eq!(value.get("Meta").unwrap().get("Timeout"), Some(&text("5s")));
        assert_eq!(to_json(&value, ""), meta);
        let job =
            read_job(&json!({ "Config": { "port": 80, "Interval": "1m" }, "KillTimeout": "1m" })).unwrap();
        let config = job.get("Config").unwrap();
        assert_eq!(config.get("port"), Some(&Value::Float(80.0)));
        assert_eq!(config.get("Interval"), Some(&text("1m")));
        assert_eq!(job.get("KillTimeout"), Some(&Value::Int(60_000_000_000)));
    }

    #[test]
    fn times_and_durations_are_converted() {
        let token = json!({ "ExpirationTime": "2026-01-02T03:04:05Z", "ExpirationTTL": "8h30m0s" });
        let value = read(&token, "").unwrap();
        assert_eq!(value.get("ExpirationTTL"), Some(&Value::Int(30_600_000_000_000)));
        assert_eq!(to_json(&value, ""), token);
        assert!(read(&json!({ "ExpirationTime": "soon" }), "").unwrap_err().starts_with("ExpirationTime: "));
        for (nanos, expected) in [
            (0, "0s"),
            (15, "15ns"),
            (1_500, "1.5µs"),
            (200_000_000, "200ms"),
            (1_050_000_000, "1.05s"),
            (3_600_000_000_000, "1h0m0s"),
            (-90_000_000_000, "-1m30s"),
        ] {
            assert_eq!(go_duration(nanos), expected);
        }
    }

    #[test]
    fn nodes_are_shown_without_secrets() {
        let Json::Object(mut node) = json!({ "SecretID": "s", "DrainStrategy": {} }) else { panic!() };
        of_node(&mut node);
        assert_eq!(Json::Object(node), json!({ "SecretID": "", "DrainStrategy": {}, "Drain": true }));
    }
}
