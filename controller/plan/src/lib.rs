//! The planner: desired state and remembered state in, actions out.
//!
//! Decisions are pure. `plan` reads no clock, draws no randomness, does no IO, does not log and cannot fail: whatever the
//! state, there is a plan. State is changed by `apply` and by nothing else.
//!
//! Read [`parts`] first.
#![no_std]

extern crate alloc as std_alloc;

pub mod action;
pub mod event;
pub mod explain;
pub mod job;
pub mod op;
pub mod record;
pub mod shared;
pub mod state;
pub mod time;
pub mod turn;
