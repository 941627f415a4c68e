//! The manifests of the folder in which somebody types `herdlet up` or `herdlet down`, as Compose finds its file there.
//!
//! In: the folder. Out: `herdlet.yaml` (or its like), else every file that is a manifest by what it says or how it is called; or a
//! sentence that says what was looked for. Files are read as far as it takes to know that, not more.

use std::{
    fs,
    io::Read as _,
    path::{Path, PathBuf},
};

use super::failure::{Failure, USAGE};

/// What stands for the whole folder, the first that is there.
const NAMES: [&str; 4] = ["herdlet.yaml", "herdlet.yml", "herdlet.json", "herdlet.hcl"];
/// What a manifest says near its beginning, in any of its spellings.
const MARK: &str = "herdlet/v1";
/// How far that is looked for.
const HEAD_BYTES: u64 = 16 * 1024;
/// A folder with more files than this is none that somebody keeps a few manifests in.
const FILES_MAX: usize = 1_000;

/// Whether a command that names nothing means this folder.
///
/// # Errors
/// What to name, where it doesn't.
pub(super) fn is_meant(verb: &str) -> Result<(), Failure> {
    let by_hand = match verb {
        "up" | "down" => return Ok(()),
        "delete" => "name jobs, or files by -f FILE; what the manifests of this folder define: herdlet down",
        _ => "name files by -f FILE; the manifests of this folder: herdlet up",
    };
    Err(Failure::new(format!("herdlet {verb} what?")).code(USAGE).hint(by_hand))
}

/// The manifests of this folder; which, is told.
pub(super) fn manifests() -> Result<Vec<PathBuf>, Failure> {
    let found = find(Path::new("."))?;
    let names: Vec<String> = found.iter().map(|path| path.display().to_string()).collect();
    anstream::eprintln!("with {}", names.join(", "));
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
    for entry in fs::read_dir(folder).map_err(failed)?.take(FILES_MAX) {
        let path = entry.map_err(failed)?.path();
        if is_manifest(&path) {
            found.push(own(path));
        }
    }
    found.sort();
    if found.is_empty() {
        let message = "there is no herdlet.yaml in this folder, nor a .yaml, .yml or .json file that says \
                       apiVersion: herdlet/v1, nor a .nomad or .nomad.hcl file; name files by -f FILE";
        return Err(Failure::new(message).code(USAGE));
    }
    Ok(found)
}

fn is_manifest(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    // What editors leave behind is hidden, and pipes are not waited for.
    if name.starts_with('.') || !path.is_file() {
        return false;
    }
    let ends = |ends: &[&str]| ends.iter().any(|end| name.ends_with(end));
    ends(&[".nomad", ".nomad.hcl"]) || ends(&[".yaml", ".yml", ".json"]) && says_so(path)
}

/// Whether its beginning names our version of the format; what can't be read is told when it is named.
fn says_so(path: &Path) -> bool {
    let mut head = Vec::new();
    let read = fs::File::open(path).and_then(|file| file.take(HEAD_BYTES).read_to_end(&mut head));
    let text = String::from_utf8_lossy(&head);
    read.is_ok() && text.lines().any(|line| line.contains("apiVersion") && line.contains(MARK))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let found = find(folder).unwrap();
        found.iter().map(|path| path.file_name().unwrap().to_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn a_folder_means_its_herdlet_yaml_else_all_its_manifests() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
        write("compose.yaml", "services: {}\n");
        write("package.json", "{}");
        write(".hidden.yaml", "apiVersion: herdlet/v1\n");
        let told = find(dir.path()).unwrap_err().to_string();
        assert!(told.starts_with("there is no herdlet.yaml in this folder"), "{told}");
        write("web.yaml", "# the web\napiVersion: herdlet/v1\nkind: Job\n");
        write("api.json", "{\"apiVersion\": \"herdlet/v1\"}");
        write("batch.nomad.hcl", "job \"b\" {}\n");
        assert_eq!(names(dir.path()), ["api.json", "batch.nomad.hcl", "web.yaml"]);
        write("herdlet.yml", "apiVersion: herdlet/v1\n");
        assert_eq!(names(dir.path()), ["herdlet.yml"]);
    }

    #[test]
    fn only_up_and_down_mean_the_folder() {
        for (verb, says) in [("apply", "herdlet apply what?"), ("delete", "herdlet delete what?")] {
            assert_eq!(is_meant(verb).unwrap_err().to_string(), says);
        }
        assert!(is_meant("up").is_ok() && is_meant("down").is_ok());
    }
}
