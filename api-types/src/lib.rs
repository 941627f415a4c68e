//! Data types shared across herdlet's boundaries: job specifications, allocations, task states, services, identities,
//! volumes.
//!
//! Data only: serde and nothing that could do IO, so that the planner (which is `no_std`) and all clients of our API
//! share the same names.
//!
//! # Glossary
//!
//! | word | meaning |
//! | --- | --- |
//! | *job* → *group* → *task* | specifications, written by people ([`job`]) |
//! | *allocation* | one placed instance of a group, `job.group[index]` ([`alloc::Allocation`]) |
//! | *attempt* | one start of a task, numbered from 1 within its allocation; every attempt has its own cgroup and record |
//! | *desired status* | the status that an allocation's source wants: run or stop |
//! | *client status* | the status that this node reports: pending, running, complete, failed |
//! | *part* | one thing that an allocation or a task needs: a directory, a mount, a registration, a process |
//! | *converged* | every part is up as wanted, no change is pending, checks pass; batch work has ended with code 0 |
//! | *deployment* | the roll-out of one version of a job: running, then successful, failed or cancelled |
//! | *canary* | an allocation of the new version beside the old one of its slot, until it is promoted |
//! | *instance* | one agent's state directory; its random id marks everything that the agent creates |
//! | *look* | an inspection: comparing what we own with what exists |
//! | *drift* | a difference found by an inspection |
#![no_std]
#![warn(missing_docs)]

extern crate alloc as std_alloc;

pub mod alloc;
pub mod api;
pub mod constraint;
pub mod csi;
pub mod deployment;
pub mod driver;
#[cfg(feature = "fixture")]
pub mod fixture;
pub mod gc;
pub mod ids;
pub mod images;
pub mod job;
pub mod manifest;
pub mod names;
pub mod network;
pub mod nomad;
pub mod overview;
pub mod rfc3339;
pub mod scaling;
pub mod service;
pub mod task;
pub mod variable;
pub mod vault;
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

/// A point in time on both clocks. Boundaries transfer the wall-clock time; ages are computed with the boot clock,
/// which nobody sets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(from = "UnixNanos", into = "UnixNanos")]
pub struct Moment {
    /// Wall clock.
    pub wall: UnixNanos,
    /// `CLOCK_BOOTTIME` in nanoseconds; 0 if the time comes from elsewhere.
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
