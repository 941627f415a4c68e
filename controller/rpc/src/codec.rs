//! Encodes and decodes messages: msgpack in the dialect of Nomad's Go `net/rpc` peers.
//!
//! In: any serde type, with Go's field names. Out: bytes that stock peers of any version accept, and back. Differences from msgpack
//! libraries, which is why this module exists:
//!
//! - Strings and bytes are one wire type ("raw", from the specification before 2013): stock peers write neither `str8` nor `bin`, and they
//!   write a time as 15 bytes in a *string*, which need not be UTF-8. All forms are read.
//! - `nil` decodes as the zero value of the expected type: of a struct, list, map, text, number. So fields need no attribute for it, and a
//!   struct needs only `#[serde(default)]` for missing fields. Fields inside a `#[serde(flatten)]` need [`nil`].
//! - Unknown fields are skipped. Integers may have any width; a float in place of an integer is an error, an integer in place of a float is
//!   not; 0 and 1 decode as booleans.
//! - Text that is not UTF-8 decodes as Go prints it: U+FFFD replaces the invalid bytes.
//!
//! The decoder never allocates by a peer's claim alone: [`Limits`] on bytes, depth and values are checked before anything is allocated.
//! Errors name the field's path, never its value, which may be a secret.
//!
//! Facts: `hashicorp/nomad:nomad/structs/structs.go` (`MsgpackHandle`), `hashicorp/go-msgpack:codec/msgpack.go`, and recordings.

pub mod bytes;
mod decode;
pub mod duration;
mod encode;
mod extent;
pub mod nil;
mod time;
mod value;

pub use decode::{DecodeError, decode, decode_within};
pub use encode::{EncodeError, encode, encode_onto};
pub use extent::{Extent, LimitError};
pub use time::Time;
pub use value::Value;

/// Upper bounds for a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Total size in bytes.
    pub bytes: usize,
    /// Nesting depth of lists and maps.
    pub depth: usize,
    /// Number of values, including the keys of maps.
    pub values: usize,
}

impl Limits {
    /// For bodies. A thousand large allocations in one reply have about 50 MB and 3 million values. A job is about 25 levels deep; a
    /// driver's configuration may be deeper.
    pub const BODY: Self = Self { bytes: 64 << 20, depth: 96, values: 4 << 20 };

    /// For arguments of calls from peers that are not servers: an id or two, options, a command. Up to 256 calls at a time may send as
    /// much.
    pub const ARGUMENTS: Self = Self { bytes: 1 << 20, depth: 96, values: 64 << 10 };

    /// For RPC headers, and for replies to stream headers. An error text is the longest part.
    pub const HEADER: Self = Self { bytes: 256 << 10, depth: 4, values: 64 };

    /// For frames of streams: 64 KiB of a file as base64 with its name, or text pasted into a terminal.
    pub const FRAME: Self = Self { bytes: 4 << 20, depth: 8, values: 64 };
}

#[cfg(test)]
mod tests;
