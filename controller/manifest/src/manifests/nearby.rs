//! What a manifest names relative to its own file: `${manifest.dir}`, relative host paths, and files of variables (`env_files`).
//!
//! In: a typed manifest, and access to the files beside it. Out: the manifest without such names, and problems. A manifest that
//! arrives in a request has access only to the files that were sent with it: an agent never reads a file for a client.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use herdlet_api_types::manifest::{JobManifest, TaskSpec, VolumeManifest};
use serde_json::Value as Json;

use super::findings::Findings;
use crate::yaml::Trail;

/// The reference to the directory of the manifest.
const MANIFEST_DIR: &str = "${manifest.dir}";

/// Access to the files beside manifests.
#[derive(Debug, Clone)]
pub enum Nearby {
    /// Manifests are files of this machine.
    Disk,
    /// Manifests were sent: with the directory of each, and with the files of variables by manifest and path.
    Sent { dirs: BTreeMap<String, String>, env_files: BTreeMap<(String, String), Option<String>> },
    /// Manifests are files of this machine, and only the names of their objects are needed: no other file is read.
    NamesOnly,
}

impl Nearby {
    /// Manifests without files beside them.
    pub fn nothing() -> Self {
        Self::Sent { dirs: BTreeMap::new(), env_files: BTreeMap::new() }
    }

    /// Whether only the names of objects are needed, and not their content.
    pub(super) fn is_names_only(&self) -> bool {
        match self {
            Self::NamesOnly => true,
            Self::Disk | Self::Sent { .. } => false,
        }
    }

    /// The absolute directory of a manifest.
    fn dir_of(&self, source: &str) -> Option<PathBuf> {
        match self {
            Self::Disk | Self::NamesOnly => dir_of(source),
            Self::Sent { dirs, .. } => dirs.get(source).map(PathBuf::from),
        }
    }
}

/// The absolute directory of a manifest on this machine: for standard input, the current one.
pub fn dir_of(source: &str) -> Option<PathBuf> {
    std::path::absolute(source).ok()?.parent().map(Path::to_owned)
}

/// Replaces `${manifest.dir}` in the environment and the config of all tasks.
pub(super) fn expand_dir(manifest: &mut JobManifest, nearby: &Nearby, findings: &mut Findings<'_>) {
    let dir = nearby.dir_of(&findings.document.source);
    for_each_task(manifest, |task, trail| {
        let mut places = 0;
        let mut texts: Vec<&mut String> =
            task.env.iter_mut().flatten().map(|(_, text)| &mut text.0).collect();
        let mut configs: Vec<&mut Json> = task.config.iter_mut().flatten().map(|(_, value)| value).collect();
        while let Some(value) = configs.pop() {
            match value {
                Json::String(text) => texts.push(text),
                Json::Array(items) => configs.extend(items),
                Json::Object(fields) => configs.extend(fields.iter_mut().map(|(_, value)| value)),
                Json::Null | Json::Bool(_) | Json::Number(_) => {}
            }
        }
        let shown = dir.as_ref().map(|dir| dir.display().to_string()).unwrap_or_default();
        for text in texts {
            if let Some(expanded) = with_dir(text, &shown) {
                places += 1;
                *text = expanded;
            }
        }
        if places > 0 && dir.is_none() {
            findings.problem(trail, format!("{MANIFEST_DIR} is known only of a manifest in a file"));
        }
    });
}

/// The text with the directory for each reference to it; `None` if it has none. `$${manifest.dir}` is literal, as the task's
/// interpolation reads it.
fn with_dir(text: &str, dir: &str) -> Option<String> {
    let mut expanded = String::new();
    let mut rest = text;
    let mut count = 0;
    while let Some(at) = rest.find(MANIFEST_DIR) {
        let (before, reference) = rest.split_at(at);
        let is_literal = before.ends_with('$');
        count += usize::from(!is_literal);
        expanded.push_str(before);
        expanded.push_str(if is_literal { MANIFEST_DIR } else { dir });
        rest = reference.get(MANIFEST_DIR.len()..).unwrap_or_default();
    }
    expanded.push_str(rest);
    (count > 0).then_some(expanded)
}

/// Makes a host path that begins with `./` or `../` absolute.
pub(super) fn place_volume(manifest: &mut VolumeManifest, nearby: &Nearby, source: &str) {
    let Some(path) =
        manifest.spec.host_path.as_mut().filter(|path| path.starts_with("./") || path.starts_with("../"))
    else {
        return;
    };
    if let Some(dir) = nearby.dir_of(source) {
        *path = normal(&dir.join(&*path)).display().to_string();
    }
}

/// A path without `.` and `..`, by its text.
fn normal(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            std::path::Component::CurDir => {}
            std::path::Component::ParentDir => {
                plain.pop();
            }
            part @ (std::path::Component::Prefix(_)
            | std::path::Component::RootDir
            | std::path::Component::Normal(_)) => plain.push(part),
        }
    }
    plain
}

/// Visits all tasks, each with its trail.
pub(super) fn for_each_task(manifest: &mut JobManifest, mut visit: impl FnMut(&mut TaskSpec, &Trail<'_>)) {
    let spec = Trail::begin("spec");
    let groups = spec.field("groups");
    for (index, group) in manifest.spec.groups.iter_mut().flatten().enumerate() {
        let group_trail = groups.item(index);
        let tasks = group_trail.field("tasks");
        for (index, task) in group.tasks.iter_mut().flatten().enumerate() {
            visit(task, &tasks.item(index));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escaped_reference_to_the_directory_is_literal() {
        for (text, expanded) in [
            ("${manifest.dir}/a:${manifest.dir}", Some("/d/a:/d")),
            ("$${manifest.dir} ${manifest.dir}", Some("$${manifest.dir} /d")),
            ("$${manifest.dir}", None),
            ("${NAME}", None),
        ] {
            assert_eq!(with_dir(text, "/d").as_deref(), expanded);
        }
    }
}
