//! What can go wrong with a call, and what a server means by its errors.

use std::{borrow::Cow, fmt, io, sync::Arc, time::Duration};

use crate::{
    address::Address,
    codec::{DecodeError, EncodeError, LimitError},
};

/// Why a connection is no more. Reads after "failed to".
#[derive(Debug, Clone, thiserror::Error)]
pub enum Lost {
    /// We have closed it.
    #[error("use a connection that was closed")]
    Closed,
    /// The peer has closed it.
    #[error("keep a connection: the peer closed it")]
    Ended,
    /// The peer has said that it goes: 0 for its own reasons, 1 for a violation of the protocol, 2 for an internal error.
    #[error("keep a connection: the peer goes away (code {0})")]
    GoAway(u32),
    /// The peer does not keep to the protocol, and we have closed it.
    #[error("keep a connection: the peer {0}")]
    Violation(String),
    /// The peer does not accept our certificate, or we not its. With TLS 1.3 a peer says so only after the handshake.
    #[error("keep a connection: TLS: {0}")]
    Tls(String),
    /// Reading or writing failed, or no answer came to what was sent within the time that TCP waits for one.
    #[error("keep a connection: {0}")]
    Failed(Arc<io::Error>),
}

impl From<io::Error> for Lost {
    fn from(error: io::Error) -> Self {
        match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
            Some(error) => Self::Tls(error.to_string()),
            // TLS that ends without its own farewell.
            None if error.kind() == io::ErrorKind::UnexpectedEof => Self::Ended,
            None => Self::Failed(Arc::new(error)),
        }
    }
}

/// Why a message did not come through. Reads after "failed to".
#[derive(Debug, Clone, thiserror::Error)]
pub enum MessageError {
    /// The stream ended within a message, or before one that had to come.
    #[error("read a message: the stream ended")]
    Ended,
    /// It was reset, or its connection was lost.
    #[error("read or write a message: {0}")]
    Io(Arc<io::Error>),
    /// It is larger than allowed, or none.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// It has other types than it should.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// What should be sent can't be.
    #[error(transparent)]
    Encode(#[from] EncodeError),
}

impl From<io::Error> for MessageError {
    fn from(error: io::Error) -> Self {
        Self::Io(Arc::new(error))
    }
}

/// Why a call has no answer. Reads after "failed to".
#[derive(Debug, Clone, thiserror::Error)]
pub enum CallError {
    /// The server answered with an error.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// There is nobody to ask.
    #[error("reach a server: no servers are known")]
    NoServers,
    /// No connection could be made: nothing was sent.
    #[error("reach a server: {0}")]
    Unreachable(#[source] Arc<DialError>),
    /// The connection was lost before anything was sent.
    #[error(transparent)]
    NotSent(Lost),
    /// So many calls are under way that none of them made room within this time: nothing was sent.
    #[error("find room for a call within {0:.1?}")]
    NoRoom(Duration),
    /// The connection was lost. Whether the server did what was asked isn't known.
    #[error(transparent)]
    Lost(#[from] Lost),
    /// There is no answer yet. Whether the server does what was asked isn't known.
    #[error("get an answer within {0:.1?}")]
    Late(Duration),
    /// The answer can't be understood, or the request not be written.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// The answer is one to another request.
    #[error("get the answer to request {expected}: it is one to {found}")]
    Sequence {
        /// The number of the request.
        expected: u64,
        /// That of the answer.
        found: u64,
    },
}

impl CallError {
    /// Whether the same request may be sent again without being done twice: it was not sent, or refused before anything was done.
    #[must_use]
    pub fn nothing_was_done(&self) -> bool {
        match self {
            Self::NoServers | Self::Unreachable(_) | Self::NotSent(_) | Self::NoRoom(_) => true,
            Self::Server(error) => error.kind() == ErrorKind::NoLeader,
            Self::Lost(_) | Self::Late(_) | Self::Message(_) | Self::Sequence { .. } => false,
        }
    }

    /// Whether the connection went, not the call.
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

/// An error as a server tells it: a text. What it means is found by what the text contains, since whoever relays one may put words before
/// it (`rpc error: `). Of a long one people are shown the beginning.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", shown(text))]
pub struct ServerError {
    text: String,
}

/// What is meant, where it is worth knowing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// There is no leader now, and nothing was done: ask again.
    NoLeader,
    /// The leader is too new: ask again.
    NotReady,
    /// The region is unknown, or none was named.
    Region,
    /// The token may not do this. To a node whose registration is gone, servers with ACLs say so too.
    PermissionDenied,
    /// The token is unknown, expired or damaged, or there are no ACLs.
    Token,
    /// The node isn't registered (any more).
    NodeNotFound,
    /// Another secret is registered for the node.
    NodeSecret,
    /// The allocation isn't known.
    UnknownAllocation,
    /// No server has a connection to the node, or none that could be used.
    NoPathToNode,
    /// The server doesn't know the method: it is too old, or too new. It closes the stream.
    UnknownMethod,
    /// Whoever relays the call has lost its own connection.
    Transport,
    /// Anything else.
    Other,
}

/// Texts and what they mean; the first that is contained counts. From Nomad's `nomad/structs/errors.go`, `nomad/rpc.go`,
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

/// More of an error than this is nobody's to read.
const SHOWN_BYTES_MAX: usize = 4 << 10;

fn shown(text: &str) -> Cow<'_, str> {
    let beginning = &text[..text.floor_char_boundary(SHOWN_BYTES_MAX)];
    if beginning.len() == text.len() {
        text.into()
    } else {
        format!("{beginning}… ({} bytes)", text.len()).into()
    }
}

/// What Go says of a connection that ended. Only at the end of a text: in others, such as one about a file, it may stand for anything.
const EOF: &str = "EOF";

/// What stands before errors with a code of HTTP.
const CODED: &str = "RPC Error:: ";

impl ServerError {
    /// An error with this text.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: text.into() }
    }

    /// The text as it came.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// What is meant.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        let known = TEXTS.iter().find(|(text, _)| self.text.contains(text));
        let other = if self.text.ends_with(EOF) { ErrorKind::Transport } else { ErrorKind::Other };
        known.map_or(other, |&(_, kind)| kind)
    }

    /// The code of HTTP that some errors have: `RPC Error:: 404,no such thing`.
    #[must_use]
    pub fn code(&self) -> Option<u16> {
        let (_, coded) = self.text.split_once(CODED)?;
        coded.split_once(',')?.0.parse().ok()
    }

    /// The text without what stands before it for machines.
    #[must_use]
    pub fn message(&self) -> &str {
        let coded = self.text.split_once(CODED).and_then(|(_, coded)| coded.split_once(','));
        coded.map_or(&self.text, |(_, message)| message)
    }
}

/// How we refuse a call. Its text goes to the peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The call can't be done, for this reason. The stream stays open.
    Error(String),
    /// There is no such service: the part of the method before the dot.
    UnknownService,
    /// The service has no such method.
    UnknownMethod,
}

impl Refusal {
    /// An error with a code of HTTP, which servers pass on to whoever asked.
    #[must_use]
    pub fn coded(code: u16, message: impl fmt::Display) -> Self {
        Self::Error(format!("{CODED}{code},{message}"))
    }

    /// What the peer is told, in the words of Go's `net/rpc`.
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
    fn of_a_long_error_the_beginning_is_shown() {
        let long = ServerError::new("ö".repeat(3_000));
        assert!(long.to_string().ends_with("ö… (6000 bytes)") && long.to_string().len() < 4_200);
        assert_eq!(long.text().len(), 6_000, "who has asked is told all of it");
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

/// Why a server can't be reached. Reads after "failed to".
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// Its name is unknown.
    #[error("find the address of {address}: {source}")]
    Resolve {
        /// The server's.
        address: Address,
        /// Why.
        source: io::Error,
    },
    /// Nobody answers there, or not what is expected.
    #[error("connect to {address}: {source}")]
    Connect {
        /// The server's.
        address: Address,
        /// Why.
        source: io::Error,
    },
    /// TLS was refused by one side or the other.
    #[error("speak TLS with {address}: {source}")]
    Tls {
        /// The server's.
        address: Address,
        /// Why.
        source: io::Error,
    },
    /// It takes too long.
    #[error("connect to {address} within {within:.1?}")]
    Late {
        /// The server's.
        address: Address,
        /// How long that may take.
        within: Duration,
    },
}
