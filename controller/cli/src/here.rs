//! Finds the manifests of the current folder for `herdlet up` and `herdlet down`, as Compose finds its file.
//!
//! In: the folder. Out: `herdlet.yaml` (or a variant), else every file that is a manifest by its name or content; or an error
//! that lists the names that were tried. Files are read only as far as that needs. An unreadable file is an error: `up --prune`
//! deletes jobs that no file defines, so no file may be missed.

use std::{
    fs,
    io::Read as _,
    path::{Path, PathBuf},
};

use super::failure::{Failure, USAGE};

/// A file for the whole folder; the first that exists is used.
const NAMES: [&str; 4] = ["herdlet.yaml", "herdlet.yml", "herdlet.json", "herdlet.hcl"];
/// Names of Compose files.
const COMPOSE: [&str; 4] = ["compose.yaml", "compose.yml", "docker-compose.yaml", "docker-compose.yml"];
/// The version that a manifest names near its beginning.
const MARK: &str = "herdlet/v1";
/// Bytes that are searched for it.
const HEAD_BYTES: u64 = 16 * 1024;
/// A folder with more entries is not a folder of manifests.
const FILES_MAX: usize = 1_000;
/// The hint that always applies.
const BY_NAME: &str = "name the manifests: -f FILE";

/// Whether a command without arguments refers to this folder.
///
/// # Errors
/// What to pass instead.
pub fn is_meant(verb: &str) -> Result<(), Failure> {
    let by_hand = match verb {
        "up" | "down" => return Ok(()),
        "delete" => "name jobs, or files with -f FILE; for the manifests of this folder: herdlet down",
        _ => "name files with -f FILE; for the manifests of this folder: herdlet up",
    };
    Err(Failure::new(format!("herdlet {verb} what?")).code(USAGE).hint(by_hand))
}

/// The manifests of this folder. Prints their names.
pub(super) fn manifests() -> Result<Vec<PathBuf>, Failure> {
    let found = find(Path::new("."))?;
    let names: Vec<String> = found.iter().map(|path| path.display().to_string()).collect();
    herdlet_base::stderr_line!("using {}", names.join(", "));
    Ok(found)
}

fn find(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let own = |path: PathBuf| path.strip_prefix(".").map(Path::to_path_buf).unwrap_or(path);
    if let Some(name) = NAMES.iter().find(|name| folder.join(name).is_file()) {
        return Ok(vec![own(folder.join(name))]);
    }
    let failed =
        |error: std::io::Error| Failure::new(format!("failed to list this folder: {error}")).code(USAGE);
    let mut found = Vec::new();
    for (number, entry) in fs::read_dir(folder).map_err(failed)?.enumerate() {
        if number == FILES_MAX {
            let folder = std::path::absolute(folder).unwrap_or_else(|_| folder.to_path_buf());
            let message = format!("{} has more than {FILES_MAX} files", folder.display());
            return Err(Failure::new(message).code(USAGE).hint(BY_NAME));
        }
        let path = entry.map_err(failed)?.path();
        if is_manifest(&path).map_err(|error| unread(&path, &error))? {
            found.push(own(path));
        }
    }
    found.sort();
    if found.is_empty() {
        if let Some(compose) = COMPOSE.iter().find(|name| folder.join(name).is_file()) {
            let message = format!(
                "there is no manifest in this folder, and {compose} is a Compose file, which herdlet does not read"
            );
            let hint = "write a job with a task or a group for each of its services, as docs/guide/from-compose.md shows; \
                        for the fields of a task: herdlet schema spec.groups.tasks";
            return Err(Failure::new(message).hint(hint).code(USAGE));
        }
        let message = "there is no herdlet.yaml in this folder, no .yaml, .yml or .json file with \
                       apiVersion: herdlet/v1, and no .nomad or .nomad.hcl file; name files with -f FILE";
        return Err(Failure::new(message).code(USAGE));
    }
    Ok(found)
}

fn unread(path: &Path, error: &std::io::Error) -> Failure {
    let message = format!("failed to check whether {} is a manifest: {error}", path.display());
    Failure::new(message).code(USAGE).hint(BY_NAME)
}

fn is_manifest(path: &Path) -> std::io::Result<bool> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let ends = |ends: &[&str]| ends.iter().any(|end| name.ends_with(end));
    let (is_nomads, may_be_ours) = (ends(&[".nomad", ".nomad.hcl"]), ends(&[".yaml", ".yml", ".json"]));
    // Skips hidden files, which editors leave behind, and does not block on pipes.
    if name.starts_with('.') || !(is_nomads || may_be_ours) || !fs::metadata(path)?.is_file() {
        return Ok(false);
    }
    Ok(is_nomads || has_version_line(path)?)
}

/// Whether the beginning of a file names our version of the format.
fn has_version_line(path: &Path) -> std::io::Result<bool> {
    let mut head = Vec::new();
    fs::File::open(path)?.take(HEAD_BYTES).read_to_end(&mut head)?;
    let text = String::from_utf8_lossy(&head);
    Ok(text.lines().any(|line| line.contains("apiVersion") && line.contains(MARK)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let found = find(folder).unwrap();
        found.iter().map(|path| path.file_name().unwrap().to_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn folder_uses_herdlet_yaml_or_all_manifests() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
        write("compose.yaml", "services: {}\n");
        write("package.json", "{}");
        write(".hidden.yaml", "apiVersion: herdlet/v1\n");
        let error = || find(dir.path()).unwrap_err().to_string();
        assert!(error().contains("compose.yaml is a Compose file"), "{}", error());
        fs::remove_file(dir.path().join("compose.yaml")).unwrap();
        assert!(error().starts_with("there is no herdlet.yaml in this folder"), "{}", error());
        write("web.yaml", "# the web\napiVersion: herdlet/v1\nkind: Job\n");
        write("api.json", "{\"apiVersion\": \"herdlet/v1\"}");
        write("batch.nomad.hcl", "job \"b\" {}\n");
        assert_eq!(names(dir.path()), ["api.json", "batch.nomad.hcl", "web.yaml"]);
        write("herdlet.yml", "apiVersion: herdlet/v1\n");
        assert_eq!(names(dir.path()), ["herdlet.yml"]);
    }

    #[test]
    fn unreadable_folder_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("web.yaml"), "apiVersion: herdlet/v1\n").unwrap();
        std::os::unix::fs::symlink("nowhere", dir.path().join("notes.txt")).unwrap();
        assert_eq!(names(dir.path()), ["web.yaml"]);
        std::os::unix::fs::symlink("nowhere", dir.path().join("api.yaml")).unwrap();
        let error = find(dir.path()).unwrap_err().to_string();
        assert!(
            error.starts_with("failed to check whether ") && error.contains("api.yaml is a manifest"),
            "{error}"
        );
        fs::remove_file(dir.path().join("api.yaml")).unwrap();
        for number in 2..=FILES_MAX {
            fs::write(dir.path().join(number.to_string()), "").unwrap();
        }
        let error = find(dir.path()).unwrap_err().to_string();
        assert_eq!(error, format!("{} has more than {FILES_MAX} files", dir.path().display()));
    }

    #[test]
    fn only_up_and_down_mean_the_folder() {
        for (verb, says) in [("apply", "herdlet apply what?"), ("delete", "herdlet delete what?")] {
            assert_eq!(is_meant(verb).unwrap_err().to_string(), says);
        }
        assert!(is_meant("up").is_ok() && is_meant("down").is_ok());
    }
}
