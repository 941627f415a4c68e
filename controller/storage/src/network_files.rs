//! Files about the network of an allocation, for its tasks that see no files of the machine: `hosts` and `resolv.conf`.
//!
//! In: the allocation's directory, its address, the machine's own files. Out: two files in `.network`, which nobody but the agent
//! writes. They are written in place, so that mounts of them show the new content. All calls block.

use std::{
    fmt::Write as _,
    fs::{self, DirBuilder, Permissions},
    io::{self, Write as _},
    net::IpAddr,
    os::unix::fs::{DirBuilderExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use herdlet_base::durable;

/// Their directory. No task has such a name.
const DIR: &str = ".network";

const HOSTS: &str = "hosts";
const RESOLVER: &str = "resolv.conf";

/// The longest file of the machine that is read.
const BYTES_MAX: usize = 64 * 1024;

/// The machine's name servers: its own file, and where that names only a resolver on the machine, the file with those which that
/// resolver asks.
const RESOLV_CONF: [&str; 2] = ["/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"];

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
    /// `hosts`.
    pub hosts: String,
    /// `resolv.conf`.
    pub resolv_conf: String,
}

/// How the network is connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Connection<'c> {
    /// It has only a loopback interface.
    None,
    /// It has an address, under this name.
    Address {
        /// The address.
        ip: IpAddr,
        /// The name of the machine that tasks see.
        name: &'c str,
    },
}

impl NetworkFiles {
    /// Those for a network on this machine.
    pub fn for_connection(connection: Connection<'_>) -> Self {
        Self {
            hosts: hosts(connection),
            resolv_conf: match connection {
                Connection::None => String::new(),
                Connection::Address { .. } => resolv_conf(|path| fs::read_to_string(path).ok()),
            },
        }
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

    /// The first file in the directory of an allocation that differs.
    pub fn difference(&self, alloc_dir: &Path) -> Option<&'static str> {
        let differs = |(name, text): &(&'static str, &str)| !is_right(&alloc_dir.join(DIR).join(name), text);
        self.files().into_iter().find(differs).map(|(name, _)| name)
    }

    fn files(&self) -> [(&'static str, &str); 2] {
        [(HOSTS, &self.hosts), (RESOLVER, &self.resolv_conf)]
    }
}

/// The files of an allocation, and where tasks with a root of their own expect them.
pub fn places(alloc_dir: &Path) -> [(PathBuf, PathBuf); 2] {
    [HOSTS, RESOLVER].map(|name| (alloc_dir.join(DIR).join(name), Path::new("/etc").join(name)))
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

fn hosts(connection: Connection<'_>) -> String {
    let mut text = "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n".to_owned();
    if let Connection::Address { ip, name } = connection {
        let _ = writeln!(text, "{ip} {name}");
    }
    text
}

/// The machine's file without name servers on its loopback interface, which is another one than the allocation's.
fn resolv_conf(read: impl Fn(&str) -> Option<String>) -> String {
    let mut usable = RESOLV_CONF.iter().filter_map(|path| read(path)).map(|text| without_loopback(&text));
    let first = usable.next().unwrap_or_default();
    if has_server(&first) { first } else { usable.find(|text| has_server(text)).unwrap_or(first) }
}

fn without_loopback(text: &str) -> String {
    let is_usable = |line: &&str| match server(line) {
        Some(ip) => !ip.is_loopback() && !ip.is_unspecified(),
        None => !line.trim_start().starts_with(['#', ';']),
    };
    let lines = text.lines().filter(is_usable).scan(0, |length, line| {
        *length += line.len() + 1;
        (*length <= BYTES_MAX).then(|| format!("{line}\n"))
    });
    lines.collect()
}

fn has_server(text: &str) -> bool {
    text.lines().any(|line| server(line).is_some())
}

/// The address of a line that names a name server.
fn server(line: &str) -> Option<IpAddr> {
    let mut words = line.split_ascii_whitespace();
    let address = words.next().filter(|word| *word == "nameserver").and(words.next())?;
    // An IPv6 address may name an interface.
    address.split('%').next()?.parse().ok()
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> NetworkFilesError {
    let path = path.to_owned();
    move |source| NetworkFilesError { what, path, source }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    fn files(hosts: &str) -> NetworkFiles {
        NetworkFiles { hosts: hosts.to_owned(), resolv_conf: "nameserver 192.0.2.1\n".to_owned() }
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
    fn hosts_name_the_allocation() {
        assert!(!hosts(Connection::None).contains("node1"));
        let ip = "172.26.80.2".parse().unwrap();
        let text = hosts(Connection::Address { ip, name: "node1" });
        assert_eq!(text.lines().last(), Some("172.26.80.2 node1"));
        assert_eq!(text.lines().next(), Some("127.0.0.1 localhost"));
    }

    #[test]
    fn name_servers_are_those_that_the_allocation_reaches() {
        let stub = "# comment\nnameserver 127.0.0.53\noptions edns0\nsearch example.org\n";
        let real = "nameserver 192.0.2.1\nnameserver fe80::1%eth0\nnameserver ::1\nsearch example.org\n";
        let of = |own: Option<&str>, other: Option<&str>| {
            let read = |path: &str| if path.starts_with("/etc") { own } else { other };
            resolv_conf(|path| read(path).map(str::to_owned))
        };
        let usable = "nameserver 192.0.2.1\nnameserver fe80::1%eth0\nsearch example.org\n";
        assert_eq!(of(Some(real), Some(stub)), usable);
        assert_eq!(of(Some(stub), Some(real)), usable);
        assert_eq!(of(None, Some(real)), usable);
        assert_eq!(of(Some(stub), None), "options edns0\nsearch example.org\n");
        assert_eq!(of(None, None), "");
        assert!(of(Some(&"search a\n".repeat(100_000)), None).len() <= BYTES_MAX);
    }
}
