//! The decisions of a node, without their execution: when to retry, which token to present, what a response means, what to send.
//!
//! In: the time, randomness and events, as arguments. Out: waits, requests, batches. Must not do IO, read a clock or wait. The constants
//! come from `hashicorp/nomad:client/client.go`, where they are the same from 1.1 to 2.0.

pub mod acknowledged;
pub mod contact;
pub mod desired;
pub mod events;
pub mod status_tracker;
pub mod tokens;
pub mod updates;
pub mod watch;
