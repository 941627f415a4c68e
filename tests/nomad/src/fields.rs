//! Answers as servers of other versions would send them: with fewer fields, or with more.

use herdlet_rpc::codec::{self, Value};

/// Which fields answers have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fields {
    /// All that are known here.
    #[default]
    Known,
    /// Those that servers of a release have: its two numbers.
    Of(u8, u8),
    /// More than anybody knows, in every struct.
    New,
}

/// What later releases than 1.1 have added to what a node reads, and which.
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
    /// An answer with these fields.
    #[must_use]
    pub fn of(self, answer: Vec<u8>) -> Vec<u8> {
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

/// What a release does not have yet is left out.
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

/// A struct is told from a map by a field's name: such begin with a capital letter.
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
