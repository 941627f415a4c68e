//! Nomad's RPC protocol, both sides of it: the client of real servers, and a server for tests.
//!
//! In: addresses, certificates, calls with any arguments. Out: replies, and the peer's calls to a [`Service`]. This crate must not know
//! what the calls mean: no allocation, no node, nothing of the agent.
//!
//! ```text
//!   pool ──► call, framed ──►┐                 ┌──► serve ──► Service
//!                            ├─ mux ── connect ┤                          each on streams that one side opens
//!   Service ◄── serve ◄──────┘  (frame,  (tls) └──◄ call, framed
//!                                stream)
//! ```
//!
//! - [`codec`]: encodes and decodes messages the way Go peers do.
//! - [`message`]: reads and writes consecutive messages on a stream; call headers.
//! - [`mux`], [`stream`]: many streams over one yamux connection.
//! - [`call`] and [`serve`]: unary calls, outgoing and incoming. [`framed`]: streaming calls.
//! - [`connect`], [`tls`], [`address`]: outgoing and incoming connections.
//! - [`pool`]: the servers of a region, and failover between them.
//! - [`error`]: error types, and the meaning of a server's error texts.
//!
//! Nomad 1.1 to 2.0 use the same protocol.
#![warn(missing_docs)]

pub mod address;
pub mod call;
pub mod codec;
pub mod connect;
pub mod error;
mod frame;
pub mod framed;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod message;
pub mod mux;
pub mod pool;
#[cfg(test)]
mod recordings;
pub mod serve;
pub mod stream;
#[cfg(test)]
mod testing;
pub mod tls;

pub use serve::Service;
