//! The languages that desired state is written in: YAML, HCL, Nomad's JSON.
//!
//! In: texts. Out: jobs and volumes, or everything that is wrong, with its place. It does not know what runs.

#[cfg(any(test, fuzzing, feature = "fixture"))]
pub mod fixture;
pub mod hcl;
pub mod hcl1;
pub mod manifests;
pub mod owners;
pub mod sets;
pub mod yaml;
