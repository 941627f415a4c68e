//! A volume document.

use herdlet_api_types::manifest::VolumeManifest;

use super::{Findings, labels};
use crate::yaml::Trail;

pub(in super::super) fn volume(manifest: &VolumeManifest, findings: &mut Findings<'_>) {
    let root = Trail::begin("");
    let (metadata, spec) = (root.field("metadata"), root.field("spec"));
    labels(manifest.metadata.labels.as_ref(), &metadata.field("labels"), findings);
    labels(manifest.metadata.annotations.as_ref(), &metadata.field("annotations"), findings);
    let VolumeManifest { spec: written, .. } = manifest;
    match (&written.host_path, written.plugin_id) {
        (Some(_), Some(_)) => {
            let message = "can't have both `plugin_id`, for a new directory, and `host_path`, for an existing one; remove one of them";
            findings.problem(&spec, message);
        }
        (None, None) => {
            findings.absent(
                &spec,
                &spec,
                "needs `plugin_id: mkdir` for a new directory, or `host_path` for an existing one",
            );
        }
        (Some(path), None) => {
            if let Some(complaint) = path_complaint(path) {
                findings.problem(&spec.field("host_path"), complaint);
            }
            if written.parameters.is_some() {
                findings.problem(&spec.field("parameters"), "are only allowed with `plugin_id`");
            }
        }
        (None, Some(_)) => {}
    }
    let parameters = spec.field("parameters");
    if let Some(mode) = written.parameters.as_ref().and_then(|parameters| parameters.mode.as_ref()) {
        let digits = mode.0.strip_prefix("0o").unwrap_or(&mode.0);
        let fits = (3..=5).contains(&digits.len())
            && u32::from_str_radix(digits, 8).is_ok_and(|mode| mode <= 0o7777);
        if !fits || digits.len() != mode.0.len() {
            findings.problem(&parameters.field("mode"), "must be octal permissions, for instance \"0755\"");
        }
    }
}

fn path_complaint(path: &str) -> Option<&'static str> {
    let bad = !path.starts_with('/')
        || path.split('/').any(|step| step == "..")
        || path.len() > 4_095
        || path.contains('\0');
    bad.then_some("must be an absolute path without `..`")
}
