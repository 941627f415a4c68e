//! Errors of calls, and the meaning of a server's error texts.

use std::{borrow::Cow, fmt, io, sync::Arc, time::Duration};

use crate::{
    address::Address,
    codec::{DecodeError, EncodeError, LimitError},
};

/// Why a connection ended. Reads after "failed to".
#[derive(Debug, Clone, thiserror::Error)]
pub enum Lost {
    /// We closed it.
    #[error("use the connection: it was closed")]
    Closed,
    /// The peer closed it.
    #[error("use the connection: the peer closed it")]
    Ended,
    /// The peer sent GoAway: 0 for a normal end, 1 for a protocol violation, 2 for an internal error.
    #[error("use the connection: the peer sent GoAway (code {0})")]
    GoAway(u32),
    /// The peer violated the protocol, and we closed the connection.
    #[error("use the connection: the peer {0}")]
    Violation(String),
    /// One side refused the other's certificate. With TLS 1.3, a server reports that only after the handshake.
    #[error("use the connection: TLS: {0}")]
    Tls(String),
    /// Reading or writing failed, or the peer did not acknowledge sent data within TCP's time limit.
    #[error("use the connection: {0}")]
    Failed(Arc<io::Error>),
}

impl From<io::Error> for Lost {
    fn from(error: io::Error) -> Self {
        match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
            Some(error) => Self::Tls(error.to_string()),
            // TLS that ended without `close_notify`.
            None if error.kind() == io::ErrorKind::UnexpectedEof => Self::Ended,
            None => Self::Failed(Arc::new(error)),
        }
    }
}

/// Why a message could not be transferred. Reads after "failed to".
#[derive(Debug, Clone, thiserror::Error)]
pub enum MessageError {
    /// The stream ended within a message, or before a required one.
    #[error("read a message: the stream ended")]
    Ended,
    /// The stream was reset, or its connection was lost.
    #[error("transfer a message: {0}")]
    Io(Arc<io::Error>),
    /// The message exceeds a limit, or is not a valid message.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// A value in the message has the wrong type.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// The message cannot be encoded.
    #[error(transparent)]
    Encode(#[from] EncodeError),
}

impl From<io::Error> for MessageError {
    fn from(error: io::Error) -> Self {
        Self::Io(Arc::new(error))
    }
}

/// Why a call failed. Reads after "failed to".
#[derive(Debug, Clone, thiserror::Error)]
pub enum CallError {
    /// The server answered with an error.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// No servers are known.
    #[error("reach a server: no servers are known")]
    NoServers,
    /// No connection could be made; nothing was sent.
    #[error("reach a server: {0}")]
    Unreachable(#[source] Arc<DialError>),
    /// The connection was lost before anything was sent.
    #[error(transparent)]
    NotSent(Lost),
    /// Too many other calls stayed in progress for this long; nothing was sent.
    #[error("start a call: too many others are in progress, and none ended within {0:.1?}")]
    NoRoom(Duration),
    /// The connection was lost. The server may have done what was asked.
    #[error(transparent)]
    Lost(#[from] Lost),
    /// No answer arrived in time. The server may still do what was asked.
    #[error("get an answer within {0:.1?}")]
    Late(Duration),
    /// The answer cannot be decoded, or the request cannot be encoded.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// The answer belongs to another request.
    #[error("get the answer to request {expected}: the server answered request {found}")]
    Sequence {
        /// The request's number.
        expected: u64,
        /// The answer's number.
        found: u64,
    },
}

impl CallError {
    /// What it means: another kind than [`ErrorKind::Other`] comes only from a server.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Server(error) => error.kind(),
            Self::NoServers
            | Self::Unreachable(_)
            | Self::NotSent(_)
            | Self::NoRoom(_)
            | Self::Lost(_)
            | Self::Late(_)
            | Self::Message(_)
            | Self::Sequence { .. } => ErrorKind::Other,
        }
    }

    /// Whether the request can be repeated without being done twice: it was never sent, or the server refused it before doing anything.
    #[must_use]
    pub fn nothing_was_done(&self) -> bool {
        match self {
            Self::NoServers | Self::Unreachable(_) | Self::NotSent(_) | Self::NoRoom(_) => true,
            Self::Server(error) => error.kind() == ErrorKind::NoLeader,
            Self::Lost(_) | Self::Late(_) | Self::Message(_) | Self::Sequence { .. } => false,
        }
    }

    /// Whether the connection failed rather than the call.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        match self {
            Self::Lost(_) | Self::NotSent(_) | Self::NoServers | Self::Unreachable(_) => true,
            Self::Message(error) => matches!(error, MessageError::Ended | MessageError::Io(_)),
            Self::Server(error) => error.kind() == ErrorKind::Transport,
            Self::NoRoom(_) | Self::Late(_) | Self::Sequence { .. } => false,
        }
    }
}

/// An error text from a server. [`ServerError::kind`] searches the text, since each relaying server may add a prefix (`rpc error: `).
/// `Display` shortens long texts.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", escape(text))]
pub struct ServerError {
    text: String,
}

/// What an error text means, where callers need to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// There is no leader at the moment, and nothing was done: retry.
    NoLeader,
    /// The new leader is not ready yet: retry.
    NotReady,
    /// The region is unknown, or the request names none.
    Region,
    /// The token lacks the permission. Servers with ACLs also report this to a node whose registration is gone.
    PermissionDenied,
    /// The token is unknown, expired or malformed, or ACLs are disabled.
    Token,
    /// The node is not registered, or no longer.
    NodeNotFound,
    /// The node is registered with another secret.
    NodeSecret,
    /// The allocation is unknown.
    UnknownAllocation,
    /// No server has a usable connection to the node.
    NoPathToNode,
    /// The server does not know the method: it is too old or too new. It closes the stream.
    UnknownMethod,
    /// The server that relayed the call lost its own connection.
    Transport,
    /// Anything else.
    Other,
}

/// Error texts and their meaning; the first one contained in the error counts. From Nomad's `nomad/structs/errors.go`, `nomad/rpc.go`,
/// `nomad/node_endpoint.go`, and Go's `net/rpc/server.go`.
const TEXTS: [(&str, ErrorKind); 23] = [
    ("No cluster leader", ErrorKind::NoLeader),
    ("Not ready to serve consistent reads", ErrorKind::NotReady),
    ("No path to region", ErrorKind::Region),
    ("missing region for target RPC", ErrorKind::Region),
    ("Permission denied", ErrorKind::PermissionDenied),
    ("ACL token not found", ErrorKind::Token),
    ("ACL token expired", ErrorKind::Token),
    ("ACL token is invalid", ErrorKind::Token),
    ("ACL support disabled", ErrorKind::Token),
    ("node secret ID does not match", ErrorKind::NodeSecret),
    ("node not found", ErrorKind::NodeNotFound),
    ("Unknown node", ErrorKind::NodeNotFound),
    ("Unknown allocation", ErrorKind::UnknownAllocation),
    ("No path to node", ErrorKind::NoPathToNode),
    ("Unable to determine Nomad version", ErrorKind::NoPathToNode),
    ("Node does not support RPC", ErrorKind::NoPathToNode),
    ("Unknown rpc method", ErrorKind::UnknownMethod),
    ("rpc: can't find service", ErrorKind::UnknownMethod),
    ("rpc: can't find method", ErrorKind::UnknownMethod),
    ("session shutdown", ErrorKind::Transport),
    ("stream closed", ErrorKind::Transport),
    ("connection reset", ErrorKind::Transport),
    ("broken pipe", ErrorKind::Transport),
];

/// Longest error text that `Display` prints in full.
const SHOWN_BYTES_MAX: usize = 4 << 10;

fn escape(text: &str) -> Cow<'_, str> {
    let beginning = &text[..text.floor_char_boundary(SHOWN_BYTES_MAX)];
    if beginning.len() == text.len() {
        text.into()
    } else {
        format!("{beginning}… ({} bytes)", text.len()).into()
    }
}

/// Go's text for a connection that ended. Matched only at the end of a text: elsewhere, such as in an error about a file, it may mean
/// anything.
const EOF: &str = "EOF";

/// The prefix of errors with an HTTP status code.
const CODED: &str = "RPC Error:: ";

impl ServerError {
    /// An error with this text.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: text.into() }
    }

    /// The text as received.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// What the text means.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        let known = TEXTS.iter().find(|(text, _)| self.text.contains(text));
        let other = if self.text.ends_with(EOF) { ErrorKind::Transport } else { ErrorKind::Other };
        known.map_or(other, |&(_, kind)| kind)
    }

    /// The HTTP status code, if the error has one: 404 in `RPC Error:: 404,no such thing`.
    #[must_use]
    pub fn code(&self) -> Option<u16> {
        let (_, coded) = self.text.split_once(CODED)?;
        coded.split_once(',')?.0.parse().ok()
    }

    /// The text without the prefix that carries the status code.
    #[must_use]
    pub fn message(&self) -> &str {
        let coded = self.text.split_once(CODED).and_then(|(_, coded)| coded.split_once(','));
        coded.map_or(&self.text, |(_, message)| message)
    }
}

/// How we refuse a call. The peer receives the text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The call failed for this reason. The stream stays open.
    Error(String),
    /// The service does not exist: the part of the method before the dot.
    UnknownService,
    /// The service does not have this method.
    UnknownMethod,
}

impl Refusal {
    /// An error with an HTTP status code, which servers pass on to the client.
    #[must_use]
    pub fn coded(code: u16, message: impl fmt::Display) -> Self {
        Self::Error(format!("{CODED}{code},{message}"))
    }

    /// The error text for the peer, in the wording of Go's `net/rpc`.
    #[must_use]
    pub fn text(&self, method: &str) -> String {
        match self {
            Self::Error(text) => text.clone(),
            Self::UnknownService => format!("rpc: can't find service {method}"),
            Self::UnknownMethod => format!("rpc: can't find method {method}"),
        }
    }
}

impl From<DecodeError> for Refusal {
    fn from(error: DecodeError) -> Self {
        Self::Error(format!("failed to {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meanings_are_found_behind_what_others_put_before() {
        let kind = |text: &str| ServerError::new(text).kind();
        assert_eq!(kind("rpc error: No cluster leader"), ErrorKind::NoLeader);
        assert_eq!(kind("rpc error: Permission denied"), ErrorKind::PermissionDenied);
        assert_eq!(
            kind("rpc error: failed to get conn: rpc: can't find method Alloc.SignIdentities"),
            ErrorKind::UnknownMethod
        );
        assert_eq!(kind("Unknown allocation \"x\""), ErrorKind::UnknownAllocation);
        assert_eq!(kind("rpc error: EOF"), ErrorKind::Transport);
        assert_eq!(kind("rpc error: unexpected EOF"), ErrorKind::Transport);
        assert_eq!(kind("job specification: unexpected EOF at line 3"), ErrorKind::Other);
        assert_eq!(kind("must update at least one allocation"), ErrorKind::Other);
    }

    #[test]
    fn long_error_is_shortened() {
        let long = ServerError::new("ö".repeat(3_000));
        assert!(long.to_string().ends_with("ö… (6000 bytes)") && long.to_string().len() < 4_200);
        assert_eq!(long.text().len(), 6_000, "`text` is not shortened");
        assert_eq!(ServerError::new("short").to_string(), "short");
    }

    #[test]
    fn codes_are_found() {
        let error = ServerError::new("rpc error: RPC Error:: 403,Permission denied");
        assert_eq!(
            (error.code(), error.message(), error.kind()),
            (Some(403), "Permission denied", ErrorKind::PermissionDenied)
        );
        let plain = ServerError::new("node not found");
        assert_eq!((plain.code(), plain.message()), (None, "node not found"));
        assert_eq!(Refusal::coded(404, "gone").text("A.B"), "RPC Error:: 404,gone");
    }
}

/// Why a server cannot be reached. Reads after "failed to".
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// The name cannot be resolved.
    #[error("resolve {address}: {source}")]
    Resolve {
        /// The server's address.
        address: Address,
        /// The cause.
        source: io::Error,
    },
    /// The connection failed.
    #[error("connect to {address}: {source}")]
    Connect {
        /// The server's address.
        address: Address,
        /// The cause.
        source: io::Error,
    },
    /// The TLS handshake failed on either side.
    #[error("complete the TLS handshake with {address}: {source}")]
    Tls {
        /// The server's address.
        address: Address,
        /// The cause.
        source: io::Error,
    },
    /// Dialling took too long.
    #[error("connect to {address} within {within:.1?}")]
    Late {
        /// The server's address.
        address: Address,
        /// The time limit.
        within: Duration,
    },
}
