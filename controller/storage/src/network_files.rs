//! Files about the network of an allocation, for its tasks that see no files of the machine: `hosts` and `resolv.conf`.
//!
//! In: the allocation's directory, its address, how it resolves names, the machine's own files. Out: files in `.network`, which nobody
//! but the agent writes. They are written in place, so that mounts of them show the new content. All calls block.

use std::{
    fmt::Write as _,
    fs::{self, DirBuilder, Permissions},
    io::{self, Write as _},
    net::IpAddr,
    os::unix::fs::{DirBuilderExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use herdlet_api_types::job::{Dns, Group};
use herdlet_base::{
    durable,
    resolver::{self, BYTES_MAX},
};

/// Their directory. No task has such a name.
const DIR: &str = ".network";

const HOSTS: &str = "hosts";
const RESOLVER: &str = "resolv.conf";

/// The machine's name servers: its own file, and where that names only a resolver on the machine, the file with those to which
/// that resolver forwards.
const RESOLV_CONF: [&str; 2] = [resolver::CONFIG, "/run/systemd/resolve/resolv.conf"];

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

/// How the network is connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Connection<'c> {
    /// It is the machine's.
    Machine,
    /// It has only a loopback interface.
    None {
        /// The name of the machine that tasks see, if it is not the machine's own.
        name: Option<&'c str>,
    },
    /// It has addresses, under this name.
    Addresses {
        /// The addresses.
        ips: &'c [IpAddr],
        /// The name of the machine that tasks see.
        name: &'c str,
        /// The agent's name server, which is asked before those of the machine.
        name_server: Option<IpAddr>,
    },
}

impl NetworkFiles {
    /// Those for a network on this machine whose tasks resolve names in this way.
    pub fn for_connection(connection: Connection<'_>, dns: &Dns) -> Self {
        let of_machine = of_machine(connection, |path| resolver::read(Path::new(path)));
        Self { hosts: hosts(connection), resolv_conf: with_dns(&of_machine, dns) }
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

fn hosts(connection: Connection<'_>) -> Option<String> {
    let text = "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n";
    match connection {
        Connection::Machine => None,
        Connection::None { name: None } => Some(text.to_owned()),
        Connection::None { name: Some(name) } => Some(format!("{text}127.0.0.1 {name}\n")),
        Connection::Addresses { ips, name, .. } => {
            Some(ips.iter().fold(text.to_owned(), |text, ip| format!("{text}{ip} {name}\n")))
        }
    }
}

/// What the machine says about a network with this connection.
fn of_machine(connection: Connection<'_>, read: impl Fn(&str) -> Option<String>) -> String {
    match connection {
        Connection::Machine => lines_of(&read(RESOLV_CONF[0]).unwrap_or_default(), |_| true),
        Connection::None { .. } => String::new(),
        Connection::Addresses { name_server, .. } => {
            let own = name_server.map(|ip| format!("nameserver {ip}\n")).unwrap_or_default();
            own + &resolv_conf(read)
        }
    }
}

/// Each list replaces the machine's lines of its kind.
fn with_dns(of_machine: &str, Dns { servers, searches, options }: &Dns) -> String {
    let is_kept = |line: &str| match line.split_ascii_whitespace().next() {
        Some("nameserver") => servers.is_empty(),
        Some("search" | "domain") => searches.is_empty(),
        Some("options") => options.is_empty(),
        Some(_) | None => true,
    };
    let mut text = lines_of(of_machine, is_kept);
    for server in servers {
        let _ = writeln!(text, "nameserver {server}");
    }
    for (word, list) in [("search", searches), ("options", options)] {
        if !list.is_empty() {
            let _ = writeln!(text, "{word} {}", list.join(" "));
        }
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
    let is_usable = |line: &str| match server(line) {
        Some(ip) => !ip.is_loopback() && !ip.is_unspecified(),
        None => !line.trim_start().starts_with(['#', ';']),
    };
    lines_of(text, is_usable)
}

/// The first of the lines that are kept.
fn lines_of(text: &str, is_kept: impl Fn(&str) -> bool) -> String {
    let lines = text.lines().filter(|line| is_kept(line)).scan(0, |length, line| {
        *length += line.len() + 1;
        (*length <= BYTES_MAX).then(|| format!("{line}\n"))
    });
    lines.collect()
}

fn has_server(text: &str) -> bool {
    text.lines().any(|line| server(line).is_some())
}

/// The address of a line that names a name server, without the interface that an IPv6 address may name.
fn server(line: &str) -> Option<IpAddr> {
    resolver::server(line)?.split('%').next()?.parse().ok()
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
    fn hosts_name_the_allocation() {
        assert_eq!(hosts(Connection::Machine), None);
        assert!(!hosts(Connection::None { name: None }).unwrap().contains("node1"));
        let alone = hosts(Connection::None { name: Some("web-1") }).unwrap();
        assert_eq!(alone.lines().last(), Some("127.0.0.1 web-1"));
        let ips = ["172.26.80.2", "fd00:37::2"].map(|ip| ip.parse().unwrap());
        let of =
            |ips: &[IpAddr]| hosts(Connection::Addresses { ips, name: "node1", name_server: None }).unwrap();
        assert!(of(&ips).ends_with("\n172.26.80.2 node1\nfd00:37::2 node1\n"));
        let text = of(&ips[..1]);
        assert_eq!(text.lines().last(), Some("172.26.80.2 node1"));
        assert_eq!(text.lines().next(), Some("127.0.0.1 localhost"));
    }

    #[test]
    fn each_list_of_a_group_replaces_the_machines() {
        let machine = "# generated\nnameserver 127.0.0.53\nsearch example.org\ndomain example.net\noptions edns0\nsortlist 192.0.2.0\n";
        let list = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let dns = |servers: &[&str], searches: &[&str], options: &[&str]| Dns {
            servers: list(servers),
            searches: list(searches),
            options: list(options),
        };
        let ips = ["172.26.80.2".parse().unwrap()];
        let own = Connection::Addresses { ips: &ips, name: "node1", name_server: None };
        let alone = Connection::None { name: None };
        for (connection, dns, expected) in [
            (Connection::Machine, dns(&[], &[], &[]), machine.to_owned()),
            (
                Connection::Machine,
                dns(&["192.0.2.1", "2001:db8::1"], &[], &[]),
                "# generated\nsearch example.org\ndomain example.net\noptions edns0\nsortlist 192.0.2.0\nnameserver 192.0.2.1\n\
                 nameserver 2001:db8::1\n"
                    .to_owned(),
            ),
            (
                own,
                dns(&[], &["a.example", "b.example"], &["ndots:2", "rotate"]),
                "sortlist 192.0.2.0\nsearch a.example b.example\noptions ndots:2 rotate\n".to_owned(),
            ),
            // Of the allocation itself: another task may listen there.
            (own, dns(&["127.0.0.1"], &["."], &["edns0"]), "sortlist 192.0.2.0\nnameserver 127.0.0.1\nsearch .\noptions edns0\n".to_owned()),
            (alone, dns(&["127.0.0.1"], &[], &[]), "nameserver 127.0.0.1\n".to_owned()),
        ] {
            let of_machine = of_machine(connection, |path| path.starts_with("/etc").then(|| machine.to_owned()));
            assert_eq!(with_dns(&of_machine, &dns), expected, "{connection:?} {dns:?}");
        }
    }

    /// The machine's own follow: names can be resolved while no agent runs.
    #[test]
    fn name_server_of_the_agent_comes_first_unless_the_group_names_others() {
        let of = |servers: &[&str]| {
            let connection = Connection::Addresses {
                ips: &["172.26.80.2".parse().unwrap()],
                name: "node1",
                name_server: "172.26.80.1".parse().ok(),
            };
            let of_machine =
                of_machine(connection, |_| Some("nameserver 192.0.2.53\nsearch example.org\n".to_owned()));
            let servers = servers.iter().map(|server| (*server).to_owned()).collect();
            with_dns(&of_machine, &Dns { servers, ..Dns::default() })
        };
        assert_eq!(of(&[]), "nameserver 172.26.80.1\nnameserver 192.0.2.53\nsearch example.org\n");
        assert_eq!(of(&["192.0.2.1"]), "search example.org\nnameserver 192.0.2.1\n");
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
