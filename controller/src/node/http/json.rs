//! Answers of servers as the JSON that Nomad's HTTP API gives, and bodies of requests as what servers take.
//!
//! In JSON a time is RFC 3339 (null where none is given), bytes are base64, durations stay nanoseconds. A message tells none of them from
//! other texts; a time is known by its first byte, which no text has, bytes by not being UTF-8, or by the names of their fields.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use herdlet_api_types::{UnixNanos, nomad::rfc3339};
use herdlet_rpc::codec::{self, Time, Value};
use serde_json::{Map, Number, Value as Json};

/// Fields that are bytes also where they happen to be a text.
const BYTES: [&str; 3] = ["Hash", "Payload", "PolicyHash"];

/// Fields that are addresses in bytes.
const ADDRESSES: [&str; 2] = ["Addr", "RemoteIP"];

/// A value as JSON. `name` is that of its field.
pub(super) fn shown(value: &Value, name: &str) -> Json {
    match value {
        Value::Nil => Json::Null,
        Value::Bool(value) => (*value).into(),
        Value::Int(value) => (*value).into(),
        Value::Uint(value) => (*value).into(),
        Value::Float(value) => Number::from_f64(*value).map_or(Json::Null, Json::Number),
        Value::Text(text) => bytes(text.as_bytes(), name, Some(text)),
        Value::Bytes(raw) => bytes(raw, name, None),
        Value::List(list) => list.iter().map(|one| shown(one, name)).collect(),
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
                let value = shown(value, &key);
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

/// JSON as a value. What stands in a field of bytes is base64.
///
/// # Errors
/// Which field is no base64.
pub(super) fn read(json: &Json, name: &str) -> Result<Value, String> {
    Ok(match json {
        Json::Null => Value::Nil,
        Json::Bool(value) => Value::Bool(*value),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(number), _) => Value::Int(number),
            (None, Some(number)) => Value::Uint(number),
            (None, None) => Value::Float(number.as_f64().unwrap_or_default()),
        },
        Json::String(text) if BYTES.contains(&name) => {
            Value::Bytes(STANDARD.decode(text).map_err(|error| format!("{name}: {error}"))?)
        }
        Json::String(text) => Value::Text(text.clone()),
        Json::Array(list) => Value::List(list.iter().map(|one| read(one, name)).collect::<Result<_, _>>()?),
        Json::Object(fields) => {
            let read = fields.iter().map(|(name, value)| Ok((Value::Text(name.clone()), read(value, name)?)));
            Value::Map(read.collect::<Result<_, String>>()?)
        }
    })
}

/// What the API says of nodes beside what servers do, and what it doesn't.
pub(super) fn of_node(node: &mut Map<String, Json>) {
    let drains = node.get("DrainStrategy").is_some_and(|strategy| !strategy.is_null());
    node.insert("Drain".to_owned(), drains.into());
    if let Some(secret) = node.get_mut("SecretID") {
        *secret = "".into();
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
        assert_eq!(shown(&value, ""), expected);
    }

    #[test]
    fn bodies_are_read() {
        let body = json!({ "Payload": "YWJj", "Meta": { "a": null }, "Count": 3, "List": [true, 0.5] });
        let Value::Map(fields) = read(&body, "").unwrap() else { panic!("no map") };
        let of = |name: &str| fields.iter().find(|(key, _)| *key == text(name)).unwrap().1.clone();
        assert_eq!(of("Payload"), Value::Bytes(b"abc".to_vec()));
        assert_eq!(of("Meta"), Value::Map(vec![(text("a"), Value::Nil)]));
        assert_eq!(
            (of("Count"), of("List")),
            (Value::Int(3), Value::List(vec![Value::Bool(true), Value::Float(0.5)]))
        );
        assert!(read(&json!({ "Payload": "%" }), "").unwrap_err().starts_with("Payload: "));
    }

    #[test]
    fn nodes_are_shown_without_secrets() {
        let Json::Object(mut node) = json!({ "SecretID": "s", "DrainStrategy": {} }) else { panic!() };
        of_node(&mut node);
        assert_eq!(Json::Object(node), json!({ "SecretID": "", "DrainStrategy": {}, "Drain": true }));
    }
}
