//! Canonical objects → manifests as a person would write them.

use herdlet_api_types::job::Job;
use herdlet_api_types::manifest::{JobManifest, VolumeManifest};
use herdlet_api_types::volume::Volume;

use crate::yaml::{self, WriteError};

/// Writes the manifest of a job. Reading it gives an equal job.
///
/// # Errors
/// A `config` that YAML can't represent.
pub fn job_to_yaml(job: &Job) -> Result<String, WriteError> {
    yaml::to_yaml(&JobManifest::from_job(job))
}

/// Writes the manifest of a volume. Reading it gives an equal volume.
///
/// # Errors
/// None are known.
pub fn volume_to_yaml(volume: &Volume) -> Result<String, WriteError> {
    yaml::to_yaml(&VolumeManifest::from_volume(volume))
}
