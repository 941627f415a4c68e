//! Messages as bytes: msgpack as Go's `net/rpc` peers of Nomad write and read it.
//!
//! In: anything of serde, with Go's field names. Out: the bytes that a stock peer of any version accepts, and back. What differs
//! from msgpack libraries, and why this is not one of them:
//!
//! - Strings and bytes are one type on the wire ("raw", the specification of before 2013): stock peers write neither `str8` nor
//!   `bin`, and a time is 15 bytes in a *string*, which need not be UTF-8. All forms are read.
//! - `nil` stands for the zero value of whatever is expected: of a struct, list, map, text, number. So a field needs no helper for
//!   it, and a missing one none beside `#[serde(default)]` at its struct. Only what stands in a `#[serde(flatten)]` needs [`nil`].
//! - Unknown fields are skipped. Integers may have any width; a float for an integer is an error, an integer for a float is not;
//!   0 and 1 are read as booleans.
//! - A text that is not UTF-8 is read as Go shows it: with U+FFFD in place of what is wrong.
//!
//! Nothing grows with what a peer merely claims: a message has bounds ([`Limits`]) for bytes, depth and values, which are looked at
//! before anything is allocated. Errors name the field's path, and never its value, which may be a secret.
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

/// What a message may have at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes.
    pub bytes: usize,
    /// Lists and maps within each other.
    pub depth: usize,
    /// Values, keys of maps counted as well.
    pub values: usize,
}

impl Limits {
    /// For bodies. A thousand large allocations in one answer have about 50 MB and 3 million values; a job is about 25 deep, and
    /// what drivers are told may be deeper.
    pub const BODY: Self = Self { bytes: 64 << 20, depth: 96, values: 4 << 20 };

    /// For arguments of calls to whoever isn't a server: an id or two, options, a command. 256 calls at a time may bring as many.
    pub const ARGUMENTS: Self = Self { bytes: 1 << 20, depth: 96, values: 64 << 10 };

    /// For headers of RPCs, and for answers to those of streams. The text of an error is the longest that they have.
    pub const HEADER: Self = Self { bytes: 256 << 10, depth: 4, values: 64 };

    /// For frames of streams: 64 KiB of a file as base64 with its name, or whatever somebody pastes into a terminal.
    pub const FRAME: Self = Self { bytes: 4 << 20, depth: 8, values: 64 };
}

#[cfg(test)]
mod tests;
