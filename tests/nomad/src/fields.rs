//! Answers as servers of other versions would send them: with fewer fields, or with more.

use herdlet_rpc::codec::{self, Value};

/// The fields of answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fields {
    /// All fields known here.
    #[default]
    Known,
    /// The fields of a release, given by its two numbers.
    Of(u8, u8),
    /// An unknown field in every struct.
    New,
}

/// Fields that a node reads and that were added after 1.1, with their release.
const LATER: [(&str, (u8, u8)); 15] = [
    ("AddressIPv6", (1, 9)),
    ("CNI", (1, 8)),
    ("HostNetworks", (1, 2)),
    ("IgnoreCollision", (1, 9)),
    ("LastReschedule", (1, 8)),
    ("MigrateDisablePlacement", (1, 11)),
    ("NextToken", (1, 2)),
    ("NoShutdownDelay", (1, 2)),
    ("NodePool", (1, 6)),
    ("Paused", (1, 8)),
    ("Processors", (1, 7)),
    ("SchedulingEligibility", (1, 2)),
    ("SignedIdentities", (1, 4)),
    ("SignedIdentity", (1, 11)),
    ("SigningKeyID", (1, 4)),
];

impl Fields {
    /// Encodes an answer again with these fields.
    #[must_use]
    pub fn apply_to(self, answer: Vec<u8>) -> Vec<u8> {
        if self == Self::Known {
            return answer;
        }
        let Ok(value) = codec::decode(&answer) else { return answer };
        let changed = match self {
            Self::Known => value,
            Self::Of(major, minor) => without(value, (major, minor)),
            Self::New => with_more(value),
        };
        codec::encode(&changed).unwrap_or(answer)
    }
}

/// Removes the fields that a release does not have yet.
fn without(value: Value, release: (u8, u8)) -> Value {
    match value {
        Value::Map(entries) => {
            let is_later = |key: &str| LATER.iter().any(|(name, since)| *name == key && *since > release);
            let has = |key: &Value| key.as_text().is_none_or(|key| !is_later(key));
            let known = entries.into_iter().filter(|(key, _)| has(key));
            Value::Map(known.map(|(key, value)| (key, without(value, release))).collect())
        }
        Value::List(list) => Value::List(list.into_iter().map(|value| without(value, release)).collect()),
        same @ (Value::Nil
        | Value::Bool(_)
        | Value::Int(_)
        | Value::Uint(_)
        | Value::Float(_)
        | Value::Text(_)
        | Value::Bytes(_)) => same,
    }
}

/// Adds an unknown field to each struct. Structs differ from maps by the names of their fields, which begin with a
/// capital letter.
fn with_more(value: Value) -> Value {
    let text = |text: &str| Value::Text(text.to_owned());
    match value {
        Value::Map(entries) => {
            let is_field = |key: &Value| {
                key.as_text().is_some_and(|key| key.starts_with(|first: char| first.is_uppercase()))
            };
            let is_struct = entries.iter().any(|(key, _)| is_field(key));
            let mut entries: Vec<_> =
                entries.into_iter().map(|(key, value)| (key, with_more(value))).collect();
            if is_struct {
                let nested =
                    Value::Map(vec![(text("Deep"), Value::List(vec![Value::Float(0.5), Value::Nil]))]);
                entries.insert(0, (text("FromTheFuture"), nested));
            }
            Value::Map(entries)
        }
        Value::List(list) => Value::List(list.into_iter().map(with_more).collect()),
        same @ (Value::Nil
        | Value::Bool(_)
        | Value::Int(_)
        | Value::Uint(_)
        | Value::Float(_)
        | Value::Text(_)
        | Value::Bytes(_)) => same,
    }
}
