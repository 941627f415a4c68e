//! Parses job and volume manifests, and the languages they are written in: YAML, HCL, Nomad's JSON.
//!
//! In: texts. Out: jobs and volumes, or all problems with their positions. This crate knows nothing about
//! running tasks.

pub mod dotenv;
#[cfg(any(test, fuzzing, feature = "fixture"))]
pub mod fixture;
pub mod hcl;
pub mod hcl1;
pub mod manifests;
pub mod one_machine;
pub mod owners;
pub mod region;
pub mod sets;
pub mod yaml;
