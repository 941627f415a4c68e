//! `env_file`: files of variables beside a manifest.
//!
//! In: the tasks of a manifest, and access to the files. Out: their variables in the environment of the tasks, problems, and which
//! files were read. A file is read once, however many tasks name it, and the values of a set are bounded: a short manifest
//! could otherwise name megabytes again and again.

use std::{
    collections::BTreeMap,
    io::{self, Read as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use herdlet_api_types::manifest::{EnvFile, JobManifest, Text};
use herdlet_base::regular::open_regular;

use super::{
    findings::Findings,
    nearby::{Nearby, for_each_task},
};
use crate::{
    dotenv,
    yaml::{self, Node, Value},
};

/// The most bytes of the files of variables of a set and of their values. Both count for each task that names the file.
const BYTES_MAX: usize = 16 << 20;

/// The files of variables of a set.
#[derive(Debug, Default)]
pub(super) struct EnvFiles {
    /// The files of this machine; `None` for one that does not exist.
    read: BTreeMap<PathBuf, Option<Arc<[u8]>>>,
    bytes: usize,
}

impl EnvFiles {
    /// The contents, sorted by path.
    pub(super) fn contents(&self) -> impl Iterator<Item = &[u8]> {
        self.read.values().filter_map(Option::as_deref)
    }

    /// The paths of the files that were looked up on this machine.
    pub(super) fn places(&self) -> impl Iterator<Item = &Path> {
        self.read.keys().map(PathBuf::as_path)
    }

    fn of_task(
        &mut self,
        file: &EnvFile,
        manifest: (&Nearby, &str),
        variables: &mut BTreeMap<String, String>,
    ) -> Result<(), String> {
        let path = file.path.as_deref().unwrap_or_default();
        self.count(0)?;
        match self.content(path, manifest).map_err(|why| format!("{path:?} {why}"))? {
            Some(bytes) => {
                self.count(bytes.len())?;
                let parsed = dotenv::read(&bytes, variables);
                self.count(parsed.map_err(|error| format!("{path}:{}: {}", error.line, error.message))?)
            }
            None if file.required == Some(false) => Ok(()),
            None => Err(format!(
                "{path:?} does not exist in the directory of the manifest; if it may be missing: {{path: {path:?}, required: false}}"
            )),
        }
    }

    fn count(&mut self, more: usize) -> Result<(), String> {
        self.bytes = self.bytes.saturating_add(more);
        if self.bytes > BYTES_MAX {
            let mib = BYTES_MAX >> 20;
            return Err(format!(
                "the files of variables of all tasks, and their values, have more than {mib} MiB"
            ));
        }
        Ok(())
    }

    /// The content of a file; `None` if it does not exist.
    fn content(
        &mut self,
        path: &str,
        (nearby, source): (&Nearby, &str),
    ) -> Result<Option<Arc<[u8]>>, String> {
        match nearby {
            Nearby::Disk => {
                let place = place(source, path);
                if let Some(known) = self.read.get(&place) {
                    return Ok(known.clone());
                }
                let bytes: Option<Arc<[u8]>> = read_env_file(source, path)?.map(Arc::from);
                self.read.insert(place, bytes.clone());
                Ok(bytes)
            }
            Nearby::NamesOnly => Ok(Some(Arc::default())),
            Nearby::Sent { env_files, .. } => match env_files.get(&(source.to_owned(), path.to_owned())) {
                Some(text) => Ok(text.as_ref().map(|text| text.as_bytes().into())),
                None => {
                    Err("was not sent with the manifest: apply it from a file with this version of herdlet"
                        .to_owned())
                }
            },
        }
    }
}

fn place(source: &str, path: &str) -> PathBuf {
    Path::new(source).parent().unwrap_or(Path::new("")).join(path)
}

/// Reads a file of variables beside a manifest on this machine; `None` if it does not exist.
///
/// # Errors
/// Why it cannot be read.
pub fn read_env_file(source: &str, path: &str) -> Result<Option<Vec<u8>>, String> {
    let failed = |error: io::Error| format!("cannot be read: {error}");
    let file = match open_regular(&place(source, path)) {
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

/// Reads the files of variables of all tasks into `env`, whose own values have priority.
pub(super) fn read_env_files(
    manifest: &mut JobManifest,
    nearby: &Nearby,
    files: &mut EnvFiles,
    findings: &mut Findings<'_>,
) {
    for_each_task(manifest, |task, trail| {
        let Some(named) = task.env_file.take() else { return };
        let mut variables = BTreeMap::new();
        let trail = trail.field("env_file");
        for (index, file) in named.0.iter().enumerate() {
            let one = trail.item(index);
            let at = if findings.document.at(&one.to_string()).is_some() { &one } else { &trail };
            if let Err(message) = files.of_task(file, (nearby, &findings.document.source), &mut variables) {
                findings.problem(at, message);
            }
        }
        let own = task.env.get_or_insert_default();
        for (name, value) in variables {
            own.entry(name).or_insert(Text(value));
        }
    });
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

    /// A manifest of 5 kB made the agent allocate gigabytes.
    #[test]
    fn files_of_all_tasks_have_a_bounded_size() {
        let text = job("[FILES]").replace("FILES", &vec!["a.env"; 20].join(", "));
        let path = "a.env".to_owned();
        let files = |content: String| Nearby::Sent {
            dirs: [("w.yaml".to_owned(), "/srv".to_owned())].into(),
            env_files: [(("w.yaml".to_owned(), path.clone()), Some(content))].into(),
        };
        let parsed = |content: String| {
            let texts = [("w.yaml", text.as_bytes())];
            manifests::parse_sent(texts, files(content), &Drivers::built_in(), &Variables::default())
        };
        assert!(parsed(format!("A={}", "x".repeat(1000))).is_ok());
        let large: String = (0..9).map(|index| format!("A{index}={}\n", "x".repeat(100_000))).collect();
        let multiplied = format!("A={}\n{}", "x".repeat(5_000), "B=$A$A$A$A$A$A$A$A$A$A\n".repeat(20));
        let comment = "#".repeat(1_000_000);
        for content in [large, multiplied, comment] {
            let problems = parsed(content).unwrap_err();
            let message = problems.to_string();
            assert!(problems.iter().count() == 1 && message.contains("have more than 16 MiB"), "{message}");
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
        let named =
            text.replace("OWN: mine", "env_file: secret").replace("config: {", "config: {env_file: /tmp, ");
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
