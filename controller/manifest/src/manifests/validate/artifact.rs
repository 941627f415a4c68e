//! `artifacts` of a task. Values with variables are validated when the artifact is fetched.

use std::{collections::BTreeMap, path::Path};

use herdlet_api_types::{
    job::ArtifactMode,
    manifest::{Artifact, TaskSpec, Text},
};
use herdlet_base::artifact::{
    checksum::ChecksumSource,
    destination::{Destination, Dirs},
    source::{Source, check_scheme},
};

use super::Findings;
use crate::yaml::Trail;

/// Maximum length of a URL, header or option.
const TEXT_LEN_MAX: usize = 16 * 1024;

pub(super) fn of_task(spec: &TaskSpec, trail: &Trail<'_>, findings: &mut Findings<'_>) {
    let list = trail.field("artifacts");
    for (index, artifact) in spec.artifacts.iter().flatten().enumerate() {
        one(artifact, &list.item(index), findings);
    }
}

fn one(artifact: &Artifact, trail: &Trail<'_>, findings: &mut Findings<'_>) {
    let maps = [(&artifact.options, "options"), (&artifact.headers, "headers")];
    for (map, name) in maps {
        for (key, value) in map.iter().flat_map(|map| map.iter()) {
            let fits = !key.is_empty() && key.len() <= 256 && !key.contains(char::is_control);
            if !fits {
                findings.problem(&trail.field(name).field(key), "the name must be 1 to 256 characters");
            } else if value.0.len() > TEXT_LEN_MAX || value.0.contains(char::is_control) {
                let message = "must have at most 16384 bytes, and no control characters";
                findings.problem(&trail.field(name).field(key), message);
            }
        }
    }
    if let Some(source) = &artifact.source {
        self::source(&source.0, artifact.options.as_ref(), trail, findings);
    }
    if let Some(destination) = &artifact.destination {
        self::destination(&destination.0, artifact.mode, &trail.field("destination"), findings);
    }
}

fn source(
    source: &str,
    options: Option<&BTreeMap<String, Text>>,
    trail: &Trail<'_>,
    findings: &mut Findings<'_>,
) {
    let at = trail.field("source");
    if source.trim().is_empty() {
        return findings.problem(&at, "must not be empty");
    }
    if source.len() > TEXT_LEN_MAX || source.contains(char::is_control) {
        return findings.problem(&at, "must have at most 16384 bytes, and no control characters");
    }
    let scheme = source.split_once("://").map_or(source, |(scheme, _)| scheme);
    if scheme.contains("${") {
        return;
    }
    if let Err(error) = check_scheme(source) {
        return findings.problem(&at, error.to_string());
    }
    let options: BTreeMap<String, String> =
        options.into_iter().flatten().map(|(key, value)| (key.clone(), value.0.clone())).collect();
    let is_known = |text: &str| !text.contains("${");
    if !is_known(source) || !options.values().all(|value| is_known(value)) {
        return;
    }
    let parsed = match Source::parse(source, &options) {
        Ok(parsed) => parsed,
        Err(error) => return findings.problem(&at, error.to_string()),
    };
    if let Some(Err(error)) = parsed.checksum.as_deref().map(ChecksumSource::parse) {
        findings.problem(&at, format!("its checksum {error}"));
    }
}

fn destination(text: &str, mode: Option<ArtifactMode>, trail: &Trail<'_>, findings: &mut Findings<'_>) {
    if text.len() > 1_024 {
        return findings.problem(trail, "must have at most 1024 bytes");
    }
    if text.contains("${") {
        return;
    }
    let dirs = Dirs { task: "/alloc-dir/task".into(), shared: "/alloc-dir/alloc".into() };
    if Destination::of(text, &dirs).is_err() {
        let message = "must be a path in the task's directory or in `../alloc`, for instance local/";
        return findings.problem(trail, message);
    }
    let is_dir = text.ends_with('/') || Path::new(text).file_name().is_none();
    if mode == Some(ArtifactMode::File) && is_dir {
        findings.problem(trail, "with `mode: file` it must name a file, for instance local/tool");
    }
}
