//! Files and folders of manifests.
//!
//! In: paths. Out: named texts, in order, bounded. Hidden files and editors' temporary files are not
//! manifests.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use herdlet_base::regular::open_regular;
use sha2::{Digest as _, Sha256};

use super::{Drivers, Nearby, Reading, Set};
use crate::hcl::Variables;
use crate::yaml::{Limits, Problem, Problems};

/// A folder of manifests, file by file: a broken file does not affect the others.
#[derive(Debug, Default)]
pub struct Folder {
    /// All manifest files: those that own jobs first, then by name.
    pub files: Vec<FolderFile>,
    /// Why the folder could not be listed. `files` is then empty although the folder may have some.
    pub problem: Option<Problem>,
}

/// A file of a folder.
#[derive(Debug)]
pub struct FolderFile {
    pub path: PathBuf,
    /// A hash of its bytes and of the files of variables that it names; empty if it could not be read.
    pub hash: String,
    /// The files of variables that it names, whether they exist or not.
    pub env_files: Vec<PathBuf>,
    /// Its objects, or all problems, including that an earlier file defines the same job or volume.
    pub content: Result<Set, Problems>,
}

/// The bytes of a [`hash_of`] a content.
const HASH_LEN: usize = 16;
/// Maximum number of manifests in a folder.
const FILES_MAX: usize = 10_000;
/// The extensions of manifests.
const EXTENSIONS: [&str; 5] = ["yaml", "yml", "json", "hcl", "nomad"];
/// The name of standard input in problems.
const STDIN: &str = "<stdin>";

/// Reads the manifests directly in a folder, file by file. Files in `own` come first, so that a copy beside
/// such a file does not take over its jobs. Variables of HCL files have their defaults.
pub fn read_folder(folder: &Path, drivers: &Drivers, own: &BTreeSet<String>) -> Folder {
    let mut paths = match list(folder) {
        Ok(paths) => paths,
        Err(problem) => return Folder { files: Vec::new(), problem: Some(problem) },
    };
    let owns =
        |path: &Path| path.file_name().and_then(|name| name.to_str()).is_some_and(|name| own.contains(name));
    paths.sort_by_key(|path| !owns(path));
    let (mut places, variables) = (BTreeMap::new(), Variables::default());
    let files = paths.into_iter().map(|path| {
        let mut reading = Reading { nearby: Nearby::Disk, ..Reading::new(drivers, &variables) };
        reading.places = std::mem::take(&mut places);
        let mut hash = String::new();
        match read_listed(&path) {
            Ok((source, bytes)) => {
                reading.text(&source, &bytes);
                let named = reading.env_files.contents();
                hash = hash_of(&std::iter::once(&*bytes).chain(named).collect::<Vec<_>>().concat());
            }
            Err(problem) => reading.problems.push(problem),
        }
        places = std::mem::take(&mut reading.places);
        let env_files = reading.env_files.places().map(Path::to_owned).collect();
        FolderFile { path, hash, env_files, content: reading.finish() }
    });
    Folder { files: files.collect(), problem: None }
}

/// A hash that tells contents apart.
pub fn hash_of(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().take(HASH_LEN).map(|byte| format!("{byte:02x}")).collect()
}

/// A text with its name.
type Text = (String, Vec<u8>);

/// Lazily reads the texts at these paths: files, folders, `-` for standard input.
pub fn texts(paths: &[PathBuf]) -> impl Iterator<Item = Result<(String, Vec<u8>), Problem>> + '_ {
    paths.iter().flat_map(|path| -> Box<dyn Iterator<Item = Result<Text, Problem>>> {
        if path.as_os_str() == "-" {
            return Box::new(std::iter::once_with(read_stdin));
        }
        if !path.is_dir() {
            return Box::new(std::iter::once_with(|| read_file(path)));
        }
        match list(path) {
            Ok(files) if files.is_empty() => {
                let message =
                    format!("contains no manifest: no file name ends in .{}", EXTENSIONS.join(", ."));
                Box::new(std::iter::once(Err(of_source(path, message))))
            }
            Ok(files) => Box::new(files.into_iter().map(|file| read_listed(&file))),
            Err(problem) => Box::new(std::iter::once(Err(problem))),
        }
    })
}

/// Lists the manifests of a folder, sorted.
fn list(folder: &Path) -> Result<Vec<PathBuf>, Problem> {
    let failed = |error: io::Error| of_source(folder, format!("cannot be listed: {error}"));
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if is_manifest_name(&path) && !path.is_dir() {
            paths.push(path);
        }
        if paths.len() > FILES_MAX {
            return Err(of_source(folder, format!("has more than {FILES_MAX} manifests")));
        }
    }
    paths.sort();
    Ok(paths)
}

fn is_manifest_name(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().as_encoded_bytes();
    // The JSON Schema of manifests may be stored beside them, for editors.
    let is_other = name.starts_with(b".") || name.ends_with(b"schema.json");
    let named = |extension: &std::ffi::OsStr| EXTENSIONS.iter().any(|known| extension == *known);
    !is_other && path.extension().is_some_and(named)
}

/// Reads a file of a folder. A pipe, socket or device is reported, because opening it could block. Symbolic
/// links are followed, since mounted configuration often contains them; a dangling one can't be read.
fn read_listed(path: &Path) -> Result<Text, Problem> {
    match open_regular(path) {
        Ok(Some(file)) => read_opened(path, &file),
        Ok(None) => Err(of_source(path, "is a pipe, socket or device, not a file, and was not read")),
        Err(error) => Err(unreadable(path, &error)),
    }
}

/// Reads a file that a user names, which may be a pipe.
fn read_file(path: &Path) -> Result<Text, Problem> {
    fs::File::open(path).map_err(|error| unreadable(path, &error)).and_then(|file| read_opened(path, &file))
}

fn unreadable(path: &Path, error: &io::Error) -> Problem {
    of_source(path, format!("cannot be read: {error}"))
}

fn read_opened(path: &Path, file: &fs::File) -> Result<Text, Problem> {
    let most = Limits::DEFAULT.bytes_max as u64;
    if let Some(length) = file.metadata().ok().map(|metadata| metadata.len()).filter(|length| *length > most)
    {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let message = format!("has {:.1} MiB; the limit is {:.1} MiB", mib(length), mib(most));
        return Err(of_source(path, message));
    }
    let bytes = read_bounded(file).map_err(|error| unreadable(path, &error))?;
    // A full disk, a power cut or a failed program leaves such a file.
    if bytes.trim_ascii().is_empty() {
        let message = "is empty; to delete what it defined, remove the file, or put only a comment in it";
        return Err(of_source(path, message));
    }
    Ok((path.display().to_string(), bytes))
}

fn read_stdin() -> Result<Text, Problem> {
    let bytes = read_bounded(io::stdin().lock());
    let bytes = bytes.map_err(|error| of_source(Path::new(STDIN), format!("cannot be read: {error}")))?;
    Ok((STDIN.to_owned(), bytes))
}

/// Reads at most one byte more than is allowed, so that the parser reports the excess.
fn read_bounded(source: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    source.take(Limits::DEFAULT.bytes_max as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn of_source(path: &Path, message: impl Into<String>) -> Problem {
    Problem {
        source: path.display().to_string(),
        line: 0,
        column: 0,
        path: String::new(),
        message: message.into(),
    }
}
