//! What crosses a boundary of herdlet: job specifications, allocations, task states, services, identities, volumes.
//!
//! Data only: serde and nothing that could do IO, so that the planner (which is `no_std`) and every reader of our API
//! share one set of names.
//!
//! # Glossary
//!
//! | word | meaning |
//! | --- | --- |
//! | *job* → *group* → *task* | specifications, written by people ([`job`]) |
//! | *allocation* | one placed instance of a group, `job.group[index]` ([`alloc::Allocation`]) |
//! | *attempt* | one start of a task, numbered from 1 within its allocation; every attempt has its own cgroup and record |
//! | *desired status* | what the source of an allocation wants: run or stop |
//! | *client status* | what this node says of it: pending, running, complete, failed |
//! | *part* | one thing an allocation or a task needs to be in place: a directory, a mount, a registration, a process |
//! | *converged* | every part is up as wanted, nothing is owed, checks pass; batch work ended with code 0 |
//! | *deployment* | the roll-out of one version of a job: running, then successful, failed or cancelled |
//! | *canary* | an allocation of the new version beside the old one of its slot, until it is promoted |
//! | *instance* | one agent's state directory; its random id marks every real thing the agent makes |
//! | *look* | comparing what we own with what really exists |
//! | *drift* | a difference that a look found |
#![no_std]
#![warn(missing_docs)]

extern crate alloc as std_alloc;

pub mod alloc;
pub mod api;
pub mod constraint;
pub mod deployment;
#[cfg(feature = "fixture")]
pub mod fixture;
pub mod gc;
pub mod ids;
pub mod job;
pub mod manifest;
pub mod nomad;
pub mod overview;
pub mod rfc3339;
pub mod scaling;
pub mod service;
pub mod task;
pub mod view;
pub mod volume;

mod duration;
pub use duration::{Duration, ParseDurationError, format_duration, parse_duration};
pub use ids::{AllocId, DeploymentId, InstanceId, JobKey};

/// Wall-clock time in nanoseconds since 1970-01-01 UTC; 0 means "never".
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
#[serde(transparent)]
pub struct UnixNanos(pub i64);

/// A moment by both clocks. It crosses a boundary as wall-clock time; ages are told from the other one, which nobody sets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(from = "UnixNanos", into = "UnixNanos")]
pub struct Moment {
    /// Wall clock.
    pub wall: UnixNanos,
    /// `CLOCK_BOOTTIME` in nanoseconds; 0 where it was told by somebody else.
    pub boot_ns: u64,
}

impl From<UnixNanos> for Moment {
    fn from(wall: UnixNanos) -> Self {
        Self { wall, boot_ns: 0 }
    }
}

impl From<Moment> for UnixNanos {
    fn from(moment: Moment) -> Self {
        moment.wall
    }
}
