//! Scalars of a manifest that are more than a plain string or number.
//!
//! Each defines its own schema; texts are checked against that schema, not here.

use core::fmt;
use std_alloc::{borrow::ToOwned, string::String};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::Duration;

/// A text in which numbers and booleans need no quotes: kept exactly as in the source (`8080`, `1.10`, `no`).
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Text(pub String);

impl From<&str> for Text {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

/// A duration in Go's notation, with a unit: `30s`, `1h30m`, `250ms`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(pub Duration);

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&short_text(self.0))
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Duration::deserialize(deserializer).map(Self)
    }
}

/// The name of a signal, `SIGTERM`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Signal(pub String);

/// The signals that a task may receive, by their Nomad names.
pub const SIGNALS: [&str; 29] = [
    "SIGABRT", "SIGALRM", "SIGBUS", "SIGCHLD", "SIGCONT", "SIGFPE", "SIGHUP", "SIGILL", "SIGINT", "SIGIO",
    "SIGIOT", "SIGKILL", "SIGPIPE", "SIGPROF", "SIGQUIT", "SIGSEGV", "SIGSTOP", "SIGSYS", "SIGTERM",
    "SIGTRAP", "SIGTSTP", "SIGTTIN", "SIGTTOU", "SIGURG", "SIGUSR1", "SIGUSR2", "SIGWINCH", "SIGXCPU",
    "SIGXFSZ",
];

/// The number of real-time signals: from `SIGRTMIN` to `SIGRTMAX`.
const REALTIME_COUNT: u8 = 31;

/// The position of a real-time signal among them: `SIGRTMIN`, `SIGRTMIN+3`, `SIGRTMAX-1`, `SIGRTMAX`, as systemd and kill(1) write
/// them. `None` if the name is not one.
pub fn realtime(name: &str) -> Option<u8> {
    let last = REALTIME_COUNT - 1;
    let offset = |text: &str, sign: char| match text {
        "" => Some(0),
        text => text.strip_prefix(sign)?.parse::<u8>().ok().filter(|offset| *offset <= last),
    };
    match name.strip_prefix("SIGRTMIN") {
        Some(rest) => offset(rest, '+'),
        None => offset(name.strip_prefix("SIGRTMAX")?, '-').map(|offset| last - offset),
    }
}

/// Whether a task may receive the signal with this name.
pub fn is_signal(name: &str) -> bool {
    SIGNALS.contains(&name) || realtime(name).is_some()
}

#[cfg(feature = "schema")]
mod schema {
    use std_alloc::borrow::Cow;

    use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

    use super::{Duration, Signal, Span, Text};

    impl JsonSchema for Text {
        fn schema_name() -> Cow<'static, str> {
            "Text".into()
        }

        fn json_schema(_: &mut SchemaGenerator) -> Schema {
            json_schema!({
                "description": "A text; numbers and booleans need no quotes and are kept as they are written.",
                "type": ["string", "number", "boolean"],
                "x-text": true,
            })
        }
    }

    impl JsonSchema for Span {
        fn schema_name() -> Cow<'static, str> {
            Duration::schema_name()
        }

        fn json_schema(generator: &mut SchemaGenerator) -> Schema {
            Duration::json_schema(generator)
        }
    }

    impl JsonSchema for Signal {
        fn schema_name() -> Cow<'static, str> {
            "Signal".into()
        }

        fn json_schema(_: &mut SchemaGenerator) -> Schema {
            // Without the names: validation describes a wrong name better than a list of all would.
            json_schema!({ "description": "A signal by its name.", "type": "string", "x-text": true })
        }
    }
}

/// Go's text without trailing zero parts: `1h` instead of `1h0m0s`.
fn short_text(length: Duration) -> String {
    let mut text = std_alloc::format!("{length}");
    for zero in ["m0s", "h0m"] {
        if text.ends_with(zero) {
            text.truncate(text.len() - 2);
        }
    }
    text
}
