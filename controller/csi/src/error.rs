//! Why a call of a CSI plugin failed, and what helps.
//!
//! In: a gRPC status, or the reason why there is none. Out: an error without secrets, and its class. The meanings of codes
//! are those of the specification ("Error Scheme", and the table of errors of each call).

use std::{fmt, path::PathBuf, time::Duration};

/// A failed call. The text continues "failed to".
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("call {call} of the CSI plugin `{plugin}`: {failure}")]
pub struct CallError {
    /// `Service/Method`.
    pub call: String,
    /// Its id, as in `csi_plugin` blocks.
    pub plugin: String,
    pub failure: CallFailure,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallFailure {
    /// Nothing was sent.
    #[error("cannot connect to {}: {why}", socket.display())]
    Unreachable { socket: PathBuf, why: String },
    /// The call may still have an effect.
    #[error("no response within {}", seconds(*.deadline))]
    Overdue { deadline: Duration },
    /// The call may have had an effect.
    #[error("the connection ended before the response: {why}")]
    Interrupted { why: String },
    /// The call may have had an effect.
    #[error("the response is invalid: {why}")]
    Invalid { why: String },
    /// The plugin reports an error.
    #[error("it reports {code}{}", after_colon(message))]
    Reported { code: Code, message: String },
}

/// How a caller can react to a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorClass {
    /// The same call, later.
    Retry,
    /// Another volume name, or other settings: one with this name exists, and differs.
    Exists,
    /// Nothing for a call that uses the volume; a call that removes it is complete.
    NotFound,
    /// Another call that changes the volume's state first: it is in use, or not attached.
    Precondition,
    /// Another request, another setting of the plugin, or a repair of the storage.
    Final,
}

impl CallError {
    pub fn class(&self) -> ErrorClass {
        match &self.failure {
            CallFailure::Unreachable { .. }
            | CallFailure::Overdue { .. }
            | CallFailure::Interrupted { .. }
            // A plugin that was replaced, or that ended while it wrote.
            | CallFailure::Invalid { .. } => ErrorClass::Retry,
            CallFailure::Reported { code, .. } => code.class(),
        }
    }
}

/// A gRPC status code. A plugin may send any number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Code(pub u32);

impl Code {
    pub const OK: Self = Self(0);
    pub const CANCELLED: Self = Self(1);
    pub const INVALID_ARGUMENT: Self = Self(3);
    pub const DEADLINE_EXCEEDED: Self = Self(4);
    pub const NOT_FOUND: Self = Self(5);
    pub const ALREADY_EXISTS: Self = Self(6);
    pub const RESOURCE_EXHAUSTED: Self = Self(8);
    pub const FAILED_PRECONDITION: Self = Self(9);
    pub const ABORTED: Self = Self(10);
    pub const UNIMPLEMENTED: Self = Self(12);
    pub const INTERNAL: Self = Self(13);
    pub const UNAVAILABLE: Self = Self(14);

    /// Names of the codes from 0 on.
    const NAMES: [&str; 17] = [
        "OK",
        "CANCELLED",
        "UNKNOWN",
        "INVALID_ARGUMENT",
        "DEADLINE_EXCEEDED",
        "NOT_FOUND",
        "ALREADY_EXISTS",
        "PERMISSION_DENIED",
        "RESOURCE_EXHAUSTED",
        "FAILED_PRECONDITION",
        "ABORTED",
        "OUT_OF_RANGE",
        "UNIMPLEMENTED",
        "INTERNAL",
        "UNAVAILABLE",
        "DATA_LOSS",
        "UNAUTHENTICATED",
    ];

    fn class(self) -> ErrorClass {
        match self {
            Self::CANCELLED
            | Self::DEADLINE_EXCEEDED
            | Self::RESOURCE_EXHAUSTED
            | Self::ABORTED
            | Self::UNAVAILABLE => ErrorClass::Retry,
            Self::ALREADY_EXISTS => ErrorClass::Exists,
            Self::NOT_FOUND => ErrorClass::NotFound,
            Self::FAILED_PRECONDITION => ErrorClass::Precondition,
            _ => ErrorClass::Final,
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = usize::try_from(self.0).ok().and_then(|code| Self::NAMES.get(code));
        match name {
            Some(name) => write!(f, "{name} ({})", self.0),
            None => write!(f, "the unknown code {}", self.0),
        }
    }
}

fn seconds(time: Duration) -> String {
    format!("{} s", time.as_secs_f64())
}

fn after_colon(message: &str) -> String {
    if message.is_empty() { String::new() } else { format!(": {message}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_have_names_and_classes() {
        for (code, text, class) in [
            (1, "CANCELLED (1)", ErrorClass::Retry),
            (2, "UNKNOWN (2)", ErrorClass::Final),
            (3, "INVALID_ARGUMENT (3)", ErrorClass::Final),
            (4, "DEADLINE_EXCEEDED (4)", ErrorClass::Retry),
            (5, "NOT_FOUND (5)", ErrorClass::NotFound),
            (6, "ALREADY_EXISTS (6)", ErrorClass::Exists),
            (7, "PERMISSION_DENIED (7)", ErrorClass::Final),
            (8, "RESOURCE_EXHAUSTED (8)", ErrorClass::Retry),
            (9, "FAILED_PRECONDITION (9)", ErrorClass::Precondition),
            (10, "ABORTED (10)", ErrorClass::Retry),
            (11, "OUT_OF_RANGE (11)", ErrorClass::Final),
            (12, "UNIMPLEMENTED (12)", ErrorClass::Final),
            (13, "INTERNAL (13)", ErrorClass::Final),
            (14, "UNAVAILABLE (14)", ErrorClass::Retry),
            (15, "DATA_LOSS (15)", ErrorClass::Final),
            (16, "UNAUTHENTICATED (16)", ErrorClass::Final),
            (99, "the unknown code 99", ErrorClass::Final),
        ] {
            assert_eq!((Code(code).to_string().as_str(), Code(code).class()), (text, class));
        }
    }

    #[test]
    fn errors_name_the_call_the_cause_and_the_message() {
        let error = |failure| {
            CallError { call: "Node/NodeGetInfo".to_owned(), plugin: "p".to_owned(), failure }.to_string()
        };
        let reported =
            |message: &str| CallFailure::Reported { code: Code::NOT_FOUND, message: message.into() };
        assert_eq!(
            error(reported("no volume v1")),
            "call Node/NodeGetInfo of the CSI plugin `p`: it reports NOT_FOUND (5): no volume v1"
        );
        assert_eq!(
            error(reported("")),
            "call Node/NodeGetInfo of the CSI plugin `p`: it reports NOT_FOUND (5)"
        );
        assert_eq!(
            error(CallFailure::Overdue { deadline: Duration::from_millis(1500) }),
            "call Node/NodeGetInfo of the CSI plugin `p`: no response within 1.5 s"
        );
    }
}
