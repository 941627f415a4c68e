//! Answers as servers of other versions would send them: with fewer fields, or with more.

use herdlet_rpc::codec::{self, Value};

/// Which fields answers have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fields {
    /// All that are known here.
    #[default]
    Known,
    /// Those that 1.1 has.
    Old,
    /// More than anybody knows, in every struct.
    New,
}

/// What later versions than 1.1 have added to what a node reads.
const LATER: [&str; 15] = [
    "AddressIPv6",
    "CNI",
    "HostNetworks",
    "IgnoreCollision",
    "LastReschedule",
    "MigrateDisablePlacement",
    "NextToken",
    "NoShutdownDelay",
    "NodePool",
    "Paused",
    "Processors",
    "SchedulingEligibility",
    "SignedIdentities",
    "SignedIdentity",
    "SigningKeyID",
];

impl Fields {
    /// An answer with these fields.
    #[must_use]
    pub fn of(self, answer: Vec<u8>) -> Vec<u8> {
        let change: fn(Value) -> Value = match self {
            Self::Known => return answer,
            Self::Old => without,
            Self::New => with_more,
        };
        let changed = codec::decode(&answer).map(change);
        changed.ok().and_then(|value| codec::encode(&value).ok()).unwrap_or(answer)
    }
}

fn without(value: Value) -> Value {
    match value {
        Value::Map(entries) => {
            let is_old = |key: &Value| key.as_text().is_none_or(|key| !LATER.contains(&key));
            let old = entries.into_iter().filter(|(key, _)| is_old(key));
            Value::Map(old.map(|(key, value)| (key, without(value))).collect())
        }
        Value::List(list) => Value::List(list.into_iter().map(without).collect()),
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
