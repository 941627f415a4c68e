//! Files about the network of an allocation, for its tasks that see no files of the machine: `hosts` and `resolv.conf`.
//!
//! In: the allocation's directory, its address, how it resolves names, the machine's own files. Out: files in `.network`, which nobody
//! but the agent writes. They are written in place, so that mounts of them show the new content. All calls block.

use std::{
    fs::{self, DirBuilder, Permissions},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use herdlet_api_types::job::{Dns, Group};
use herdlet_base::{
    durable,
    network_texts::{Connection, hosts, resolv_conf},
};

/// Their directory. No task has such a name.
const DIR: &str = ".network";

const HOSTS: &str = "hosts";
const RESOLVER: &str = "resolv.conf";

/// A file can't be read or written. The text continues "failed to".
#[derive(Debug, thiserror::Error)]
#[error("{what} {}", path.display())]
pub struct NetworkFilesError {
    what: &'static str,
    path: PathBuf,
    source: io::Error,
}

/// The contents of the files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkFiles {
    /// `hosts`, unless the tasks use the machine's.
    pub hosts: Option<String>,
    /// `resolv.conf`.
    pub resolv_conf: String,
}

impl NetworkFiles {
    /// Those for a network on this machine whose tasks resolve names in this way.
    pub fn for_connection(connection: Connection<'_>, dns: &Dns) -> Self {
        Self { hosts: hosts(connection), resolv_conf: resolv_conf(connection, dns) }
    }

    /// Writes those that differ into the directory of an allocation.
    ///
    /// # Errors
    /// If a file can't be written.
    pub fn up(&self, alloc_dir: &Path) -> Result<(), NetworkFilesError> {
        let dir = alloc_dir.join(DIR);
        match DirBuilder::new().mode(0o755).create(&dir) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => made.map_err(failed("create", &dir))?,
        }
        // Whatever the agent's file mode creation mask.
        fs::set_permissions(&dir, Permissions::from_mode(0o755)).map_err(failed("open", &dir))?;
        for (name, text) in self.files() {
            let path = dir.join(name);
            if !is_right(&path, text) {
                write(&path, text).map_err(failed("write", &path))?;
            }
        }
        Ok(())
    }

    /// Whether one of them is in the directory of an allocation.
    pub fn any_exists(&self, alloc_dir: &Path) -> bool {
        self.files().any(|(name, _)| fs::symlink_metadata(alloc_dir.join(DIR).join(name)).is_ok())
    }

    /// The first file in the directory of an allocation that differs.
    pub fn difference(&self, alloc_dir: &Path) -> Option<&'static str> {
        let differs = |(name, text): &(&'static str, &str)| !is_right(&alloc_dir.join(DIR).join(name), text);
        self.files().find(differs).map(|(name, _)| name)
    }

    fn files(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let hosts = self.hosts.as_deref().map(|text| (HOSTS, text));
        hosts.into_iter().chain([(RESOLVER, self.resolv_conf.as_str())])
    }
}

/// Removes the files from the directory of an allocation.
///
/// # Errors
/// If one can't be removed.
pub fn remove(alloc_dir: &Path) -> Result<(), NetworkFilesError> {
    let dir = alloc_dir.join(DIR);
    let files = [HOSTS, RESOLVER].map(|name| dir.join(name));
    for (path, removed) in files.iter().map(|path| (path, fs::remove_file(path))) {
        ignore_missing(removed).map_err(failed("remove", path))?;
    }
    ignore_missing(fs::remove_dir(&dir)).map_err(failed("remove", &dir))
}

/// The files of an allocation of this group, and where tasks with a root of their own expect them.
pub fn places(alloc_dir: &Path, group: &Group) -> impl Iterator<Item = (PathBuf, PathBuf)> {
    let hosts = group.has_own_network().then_some(HOSTS);
    let resolver = (group.has_own_network() || group.has_own_dns()).then_some(RESOLVER);
    let place = |name| (alloc_dir.join(DIR).join(name), Path::new("/etc").join(name));
    hosts.into_iter().chain(resolver).map(place)
}

fn ignore_missing(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

fn is_right(path: &Path, text: &str) -> bool {
    fs::symlink_metadata(path).is_ok_and(|about| about.is_file())
        && fs::read(path).is_ok_and(|bytes| bytes == text.as_bytes())
}

/// A crash leaves a part, which differs.
fn write(path: &Path, text: &str) -> io::Result<()> {
    let mut file = durable::open_in_place(path)?;
    if durable::has_other_names(&file)? {
        file = durable::make_file(path)?;
    }
    file.set_permissions(Permissions::from_mode(0o644))?;
    file.set_len(0)?;
    file.write_all(text.as_bytes())
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> NetworkFilesError {
    let path = path.to_owned();
    move |source| NetworkFilesError { what, path, source }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use herdlet_api_types::job::{Network, NetworkMode};

    use super::*;

    fn files(hosts: &str) -> NetworkFiles {
        NetworkFiles { hosts: Some(hosts.to_owned()), resolv_conf: "nameserver 192.0.2.1\n".to_owned() }
    }

    #[test]
    fn files_are_written_in_place_and_only_if_they_differ() {
        let alloc = tempfile::tempdir().unwrap();
        let hosts = alloc.path().join(".network/hosts");
        assert_eq!(files("one\n").difference(alloc.path()), Some("hosts"));
        files("one\n").up(alloc.path()).unwrap();
        assert_eq!(files("one\n").difference(alloc.path()), None);
        let first = fs::metadata(&hosts).unwrap();
        assert_eq!(first.mode() & 0o7777, 0o644);
        files("other\n").up(alloc.path()).unwrap();
        assert_eq!(fs::read_to_string(&hosts).unwrap(), "other\n");
        assert_eq!(fs::metadata(&hosts).unwrap().ino(), first.ino(), "mounts show it");
        fs::write(alloc.path().join(".network/resolv.conf"), "").unwrap();
        assert_eq!(files("other\n").difference(alloc.path()), Some("resolv.conf"));
    }

    #[test]
    fn files_elsewhere_are_never_written() {
        let alloc = tempfile::tempdir().unwrap();
        let elsewhere = alloc.path().join("elsewhere");
        fs::write(&elsewhere, "kept").unwrap();
        files("one\n").up(alloc.path()).unwrap();
        let [hosts, resolv] = ["hosts", "resolv.conf"].map(|name| alloc.path().join(".network").join(name));
        fs::remove_file(&hosts).unwrap();
        fs::hard_link(&elsewhere, &hosts).unwrap();
        fs::remove_file(&resolv).unwrap();
        std::os::unix::fs::symlink(&elsewhere, &resolv).unwrap();
        let refused = files("one\n").up(alloc.path()).unwrap_err().to_string();
        assert_eq!(refused, format!("write {}", resolv.display()));
        assert_eq!(fs::read_to_string(&elsewhere).unwrap(), "kept");
        assert_eq!(fs::read_to_string(&hosts).unwrap(), "one\n");
    }

    #[test]
    fn groups_without_a_network_of_their_own_have_only_a_resolver() {
        let group = |mode: NetworkMode, servers: &[&str]| {
            let servers = servers.iter().map(|server| (*server).to_owned()).collect();
            let dns = Dns { servers, ..Dns::default() };
            let network = Network { mode, dns, ..Network::default() };
            Group { network: Some(network), ..herdlet_api_types::fixture::group("g", 1, Vec::new()) }
        };
        for (group, expected) in [
            (group(NetworkMode::Host, &[]), vec![]),
            (group(NetworkMode::Host, &["192.0.2.1"]), vec!["resolv.conf"]),
            (group(NetworkMode::Bridge, &[]), vec!["hosts", "resolv.conf"]),
        ] {
            let places = places(Path::new("/a"), &group);
            let expected = expected
                .into_iter()
                .map(|name| (Path::new("/a/.network").join(name), Path::new("/etc").join(name)));
            assert!(places.eq(expected), "{group:?}");
        }
        let alloc = tempfile::tempdir().unwrap();
        let files = NetworkFiles { hosts: None, resolv_conf: "search a\n".to_owned() };
        files.up(alloc.path()).unwrap();
        assert_eq!(files.difference(alloc.path()), None);
        assert!(!alloc.path().join(".network/hosts").exists());
        for _ in 0..2 {
            remove(alloc.path()).unwrap();
            assert!(!alloc.path().join(".network").exists() && !files.any_exists(alloc.path()));
        }
    }
}
