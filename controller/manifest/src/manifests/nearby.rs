//! What a manifest names relative to its own file: `env_file`, `${manifest.dir}`, relative host paths.
//!
//! In: a typed manifest, and access to the files beside it. Out: the manifest without such names, and problems. A manifest that
//! arrives in a request has access only to the files that were sent with it: an agent never reads a file for a client.

use std::{
    collections::BTreeMap,
    io::{self, Read as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use herdlet_api_types::manifest::{EnvFile, JobManifest, TaskSpec, Text, VolumeManifest};
use herdlet_base::regular::open_regular;
use serde_json::Value as Json;

use super::findings::Findings;
use crate::{
    dotenv,
    yaml::{self, Node, Trail, Value},
};

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

    /// The content of a file of variables; `None` if it does not exist.
    fn env_file(&self, source: &str, path: &str) -> Result<Option<Vec<u8>>, String> {
        match self {
            Self::Disk => read_env_file(source, path),
            Self::NamesOnly => Ok(Some(Vec::new())),
            Self::Sent { env_files, .. } => match env_files.get(&(source.to_owned(), path.to_owned())) {
                Some(text) => Ok(text.as_ref().map(|text| text.clone().into_bytes())),
                None => {
                    Err("was not sent with the manifest: apply it from a file with this version of herdlet"
                        .to_owned())
                }
            },
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

/// Reads a file of variables beside a manifest on this machine; `None` if it does not exist.
///
/// # Errors
/// Why it cannot be read.
pub fn read_env_file(source: &str, path: &str) -> Result<Option<Vec<u8>>, String> {
    let place = Path::new(source).parent().unwrap_or(Path::new("")).join(path);
    let failed = |error: io::Error| format!("cannot be read: {error}");
    let file = match open_regular(&place) {
        Ok(Some(file)) => file,
        Ok(None) => return Err("is no regular file".to_owned()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let mut bytes = Vec::new();
    file.take(dotenv::BYTES_MAX as u64 + 1).read_to_end(&mut bytes).map_err(failed)?;
    Ok(Some(bytes))
}

/// The paths of the `env_file`s of all tasks in a text of manifests, for sending the files along.
pub fn env_file_paths(source: &str, bytes: &[u8]) -> Vec<String> {
    let mut paths = Vec::new();
    if !crate::hcl::is_hcl(source, bytes) {
        for document in yaml::parse(source, bytes).documents {
            env_files(&document.root).for_each(|node| collect_paths(node, &mut paths));
        }
    }
    paths.sort();
    paths.dedup();
    paths
}

/// The `env_file`s of a document's tasks. Elsewhere it may be any key, as in the environment.
fn env_files(root: &Node) -> impl Iterator<Item = &Node> {
    let groups = root.get("spec").and_then(|spec| items(spec, "groups"));
    let tasks = groups.unwrap_or_default().iter().filter_map(|group| items(group, "tasks"));
    tasks.flatten().filter_map(|task| task.get("env_file"))
}

fn items<'n>(node: &'n Node, key: &str) -> Option<&'n [Arc<Node>]> {
    node.get(key)?.items()
}

fn collect_paths(node: &Node, paths: &mut Vec<String>) {
    match &node.value {
        Value::Str => paths.push(node.text.to_string()),
        Value::Seq(items) => items.iter().for_each(|item| collect_paths(item, paths)),
        Value::Map(entries) => {
            let path = entries.iter().find(|entry| &*entry.key == "path");
            path.into_iter().for_each(|path| collect_paths(&path.value, paths));
        }
        Value::Null | Value::Bool(_) | Value::Int(_) | Value::Float(_) | Value::Refused => {}
    }
}

/// Reads the files of variables of all tasks into `env`, whose own values have priority. Returns the bytes that were read.
pub(super) fn read_env_files(
    manifest: &mut JobManifest,
    nearby: &Nearby,
    findings: &mut Findings<'_>,
) -> Vec<u8> {
    let mut read = Vec::new();
    for_each_task(manifest, |task, trail| {
        let Some(files) = task.env_file.take() else { return };
        let mut variables = BTreeMap::new();
        let trail = trail.field("env_file");
        for (index, file) in files.0.iter().enumerate() {
            let one = trail.item(index);
            let at = if findings.document.at(&one.to_string()).is_some() { &one } else { &trail };
            match read_one(file, nearby, &findings.document.source, &mut variables) {
                Ok(bytes) => read.extend(bytes),
                Err(message) => findings.problem(at, message),
            }
        }
        let own = task.env.get_or_insert_default();
        for (name, value) in variables {
            own.entry(name).or_insert(Text(value));
        }
    });
    read
}

fn read_one(
    file: &EnvFile,
    nearby: &Nearby,
    source: &str,
    variables: &mut BTreeMap<String, String>,
) -> Result<Vec<u8>, String> {
    let path = file.path.as_deref().unwrap_or_default();
    match nearby.env_file(source, path).map_err(|why| format!("{path:?} {why}"))? {
        Some(bytes) => {
            let parsed = dotenv::read(&bytes, variables);
            parsed.map_err(|error| format!("{path}:{}: {}", error.line, error.message))?;
            Ok(bytes)
        }
        None if file.required == Some(false) => Ok(Vec::new()),
        None => Err(format!(
            "{path:?} does not exist in the directory of the manifest; if it may be missing: {{path: {path:?}, required: false}}"
        )),
    }
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
        for text in texts.into_iter().filter(|text| text.contains(MANIFEST_DIR)) {
            places += 1;
            if let Some(dir) = &dir {
                *text = text.replace(MANIFEST_DIR, &dir.display().to_string());
            }
        }
        if places > 0 && dir.is_none() {
            findings.problem(trail, format!("{MANIFEST_DIR} is known only of a manifest in a file"));
        }
    });
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

fn for_each_task(manifest: &mut JobManifest, mut visit: impl FnMut(&mut TaskSpec, &Trail<'_>)) {
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
    use crate::{
        hcl::Variables,
        manifests::{self, Drivers},
    };

    const JOB: &str = "apiVersion: herdlet/v1\nkind: Job\nmetadata: {name: web}\nspec:\n  groups:\n    - name: g\n      tasks:\n        - name: t\n          driver: raw_exec\n          config: {command: \"${manifest.dir}/run\"}\n          env: {OWN: mine, HERE: \"${manifest.dir}\"}\n          env_file: FILES\n";

    fn job(files: &str) -> String {
        JOB.replace("FILES", files)
    }

    #[test]
    fn files_beside_a_manifest_give_variables_that_env_overrides() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a.env"), "A=1\nOWN=file\n").unwrap();
        std::fs::write(dir.path().join("b.env"), "A=2\nB=${A}3\n").unwrap();
        let path = dir.path().join("web.yaml");
        for (files, a, b) in [
            ("a.env", "1", None),
            ("[a.env, b.env]", "2", Some("23")),
            ("[a.env, {path: none.env, required: false}]", "1", None),
        ] {
            std::fs::write(&path, job(files)).unwrap();
            let set =
                manifests::load(std::slice::from_ref(&path), &Drivers::built_in(), &Variables::default())
                    .unwrap();
            let task = &set.jobs[0].object.groups[0].tasks[0];
            let folder = dir.path().display().to_string();
            assert_eq!((task.env["A"].as_str(), task.env["OWN"].as_str()), (a, "mine"), "{files}");
            assert_eq!(task.env.get("B").map(String::as_str), b);
            assert_eq!(
                (&task.env["HERE"], &task.config["command"]),
                (&folder, &format!("{folder}/run").into())
            );
            assert!(set.jobs[0].document.pointer("/spec/groups/0/tasks/0/env_file").is_none());
        }
        for (files, part) in [
            ("none.env", "\"none.env\" does not exist in the directory of the manifest"),
            ("[a.env, c.env]", "c.env:1: the line has no `=`"),
            (".", "is no regular file"),
        ] {
            std::fs::write(dir.path().join("c.env"), "C\n").unwrap();
            std::fs::write(&path, job(files)).unwrap();
            let problems =
                manifests::load(std::slice::from_ref(&path), &Drivers::built_in(), &Variables::default());
            let message = problems.unwrap_err().to_string();
            assert!(message.contains(part) && message.contains("env_file"), "{message}");
        }
    }

    /// The same mistake was printed for each task.
    #[test]
    fn a_mistake_in_a_file_of_variables_is_reported_once() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a.env"), "BARE\n").unwrap();
        let path = dir.path().join("web.yaml");
        let text = job("a.env");
        let task = text.split_once("        - name: t\n").map(|(_, task)| task).unwrap();
        let two = format!("{text}        - name: u\n{task}---\n{}", text.replace("name: web", "name: db"));
        std::fs::write(&path, two).unwrap();
        let problems = manifests::load(&[path], &Drivers::built_in(), &Variables::default()).unwrap_err();
        let message = problems.to_string();
        assert!(
            problems.iter().count() == 1 && message.contains("a.env:1: the line has no `=`"),
            "{message}"
        );
    }

    /// `down` failed and left the project running when an env file was lost or broken.
    #[test]
    fn names_are_read_without_the_files_of_variables() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("broken.env"), "BARE\n").unwrap();
        let path = dir.path().join("web.yaml");
        std::fs::write(&path, job("[none.env, broken.env, .]").replace("${manifest.dir}/run", "${LOST}"))
            .unwrap();
        let (files, drivers) = ([path], Drivers::built_in());
        assert!(manifests::load(&files, &drivers, &Variables::default()).is_err());
        let set = manifests::load_names(&files, &drivers, &Variables::default()).unwrap();
        assert_eq!(set.jobs[0].object.id, "web");
    }

    #[test]
    fn a_request_has_only_the_files_that_were_sent() {
        let text = job("[a.env, /etc/passwd]");
        assert_eq!(env_file_paths("w.yaml", text.as_bytes()), ["/etc/passwd", "a.env"]);
        // A variable of this name made `apply` send a file, or refuse the job.
        let named = text.replace("OWN: mine", "env_file: secret").replace("config: {", "config: {env_file: /tmp, ");
        assert_eq!(env_file_paths("w.yaml", named.as_bytes()), ["/etc/passwd", "a.env"]);
        let message =
            manifests::parse("w.yaml", text.as_bytes(), &Drivers::built_in()).unwrap_err().to_string();
        assert!(
            message.contains("was not sent with the manifest")
                && message.contains("only of a manifest in a file"),
            "{message}"
        );
        let sent = |path: &str, text: Option<&str>| {
            (("w.yaml".to_owned(), path.to_owned()), text.map(str::to_owned))
        };
        let nearby = Nearby::Sent {
            dirs: [("w.yaml".to_owned(), "/srv/x".to_owned())].into(),
            env_files: [sent("a.env", Some("A=1")), sent("/etc/passwd", Some("P=2"))].into(),
        };
        let texts = [("w.yaml", text.as_bytes())];
        let set = manifests::parse_sent(texts, nearby, &Drivers::built_in(), &Variables::default()).unwrap();
        let env = &set.jobs[0].object.groups[0].tasks[0].env;
        assert_eq!((env["A"].as_str(), env["P"].as_str(), env["HERE"].as_str()), ("1", "2", "/srv/x"));
    }

    #[test]
    fn a_relative_host_path_is_beside_the_manifest() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("v.yaml");
        let text = "apiVersion: herdlet/v1\nkind: Volume\nmetadata: {name: v}\nspec: {type: host, host_path: ./data}\n";
        std::fs::write(&path, text).unwrap();
        let set = manifests::load(&[path], &Drivers::built_in(), &Variables::default()).unwrap();
        let kind = &set.volumes[0].object.kind;
        let expected = herdlet_api_types::volume::VolumeKind::HostPath {
            path: dir.path().join("data").display().to_string(),
        };
        assert_eq!(*kind, expected);
    }
}
