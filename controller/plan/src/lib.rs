//! The planner: desired state and stored state in, actions out.
//!
//! Decisions are pure. [`alloc::plan`] reads no clock, draws no randomness, does no IO, does not log and cannot fail:
//! whatever the state, there is a plan. State is changed by [`alloc::apply`] and by nothing else.
//!
//! Read [`parts`] first.
#![no_std]
#![warn(missing_docs)]

extern crate alloc as std_alloc;

pub mod action;
pub mod alloc;
pub mod backoff;
pub mod context;
pub mod env;
pub mod event;
pub mod explain;
pub mod facts;
#[cfg(test)]
mod fixture;
mod goal;
mod hash;
pub mod identity_claims;
pub mod interpolate;
pub mod job;
pub mod launch;
pub mod limits;
pub mod network;
pub mod node;
pub mod op;
pub mod parts;
pub mod pass;
pub mod plan;
mod policy;
pub mod record;
pub mod refusal;
pub mod registration;
pub mod shared;
pub mod spec;
pub mod state;
pub mod status;
pub mod time;
pub mod turn;
pub mod world;
