//! Where desired state comes from: manifests laid down by people.
//!
//! In: texts. Out: what should run. It must not know what does run.

pub mod hcl;
pub(crate) mod hcl1;
pub mod manifests;
pub mod owners;
pub mod sets;
pub mod yaml;
