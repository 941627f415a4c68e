//! Canonical objects → the manifests a person would have written.

use herdlet_api_types::job::Job;
use herdlet_api_types::manifest::{JobManifest, VolumeManifest};
use herdlet_api_types::volume::Volume;

use crate::yaml::{self, WriteError};

/// The manifest that describes a job; read again it gives an equal one.
///
/// # Errors
/// A `config` that YAML has no form for.
pub fn job_to_yaml(job: &Job) -> Result<String, WriteError> {
    yaml::to_yaml(&JobManifest::from_job(job))
}

/// The manifest that describes a volume; read again it gives an equal one.
///
/// # Errors
/// None that are known.
pub fn volume_to_yaml(volume: &Volume) -> Result<String, WriteError> {
    yaml::to_yaml(&VolumeManifest::from_volume(volume))
}
