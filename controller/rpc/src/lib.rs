//! Nomad's RPC, as both its sides speak it: the clients of real servers, and the servers' side for tests.
//!
//! In: addresses, certificates, calls with whatever arguments. Out: answers, and the calls of the peer to a [`Service`]. Must not know
//! what the calls are about: no allocation, no node, nothing of the agent.
//!
//! ```text
//!   pool ──► call, framed ──►┐                 ┌──► serve ──► Service
//!                            ├─ mux ── connect ┤                          each on streams that one side opens
//!   Service ◄── serve ◄──────┘  (frame,  (tls) └──◄ call, framed
//!                                stream)
//! ```
//!
//! - [`codec`]: messages as bytes, as Go's peers write and read them.
//! - [`message`]: messages on a stream, one after another; headers of calls.
//! - [`mux`], [`stream`]: many streams over one connection, by yamux.
//! - [`call`] and [`serve`]: plain calls, one way and the other. [`framed`]: streaming calls.
//! - [`connect`], [`tls`], [`address`]: connections, dialled and accepted.
//! - [`pool`]: the servers of a region, and what follows when one fails.
//! - [`error`]: what can go wrong, and what a server means by its errors.
//!
//! Versions 1.1 to 2.0 of Nomad speak alike here.
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
