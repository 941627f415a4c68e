//! What a node decides, without doing it: when to try again, which token to show, what an answer means, what to send.
//!
//! In: the moment, chance, and what has happened, as arguments. Out: waits, questions, batches. Must not do IO, read a clock or wait.
//! Sources of the figures: `hashicorp/nomad:client/client.go`, where they are alike from 1.1 to 2.0.

pub mod acknowledged;
pub mod contact;
pub mod desired;
pub mod events;
pub mod standing;
pub mod tokens;
pub mod updates;
pub mod watch;
