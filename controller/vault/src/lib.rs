//! Tokens and secrets of Vault and OpenBao: a client, and the life of tokens and leases.
//!
//! In: the address of a server, identities (JWTs), paths. Out: tokens and secrets with the terms of their leases, and what to
//! do next with a lease. This crate knows no job, no task and no planner, and stores nothing.
//!
//! | module | contents |
//! | --- | --- |
//! | [`secret`] | texts and values that can't be printed |
//! | [`config`] | the address of a server, TLS, namespace |
//! | [`client`] | requests, and which redirects are followed |
//! | [`error`] | failures, and whether a retry can help |
//! | [`path`] | paths of secrets |
//! | [`kv`] | where versions of the key-value engine keep data |
//! | [`answer`] | tokens and secrets in answers, with their terms |
//! | [`spread`] | random parts of waits |
//! | [`lease`] | when to renew or replace a token or secret; no IO |
//! | [`login_queue`] | log-ins that run at once |

pub mod answer;
pub mod client;
pub mod config;
pub mod error;
pub mod kv;
pub mod lease;
pub mod login_queue;
pub mod path;
pub mod secret;
pub mod spread;
