//! Files about the network of a container: `/etc/hosts`, `/etc/resolv.conf` and `/etc/hostname`.
//!
//! In: the request, the task's host name, its network. Out: files in the container's directory, with their places. In the network of a
//! group the agent mounts its own.

use std::{
    fs::File,
    io::Read as _,
    net::IpAddr,
    path::{Path, PathBuf},
};

use bollard::models::HostConfig;
use herdlet_api_types::job::Dns;
use herdlet_base::network_texts::{self, Connection};
use herdlet_driver::{AttemptId, DriverError, DriverResult};

use super::dirs::ContainerDirs;
use crate::{config::FieldError, create::host_lines};

const HOSTS: &str = "/etc/hosts";
const RESOLV_CONF: &str = "/etc/resolv.conf";
const HOSTNAME: &str = "/etc/hostname";
/// The end of an entry of `extra_hosts` that stands for the address of the machine, as with Docker.
const MACHINE: &str = ":host-gateway";
const HOSTS_NAME: &str = "hosts";
const RESOLV_CONF_NAME: &str = "resolv.conf";
/// More of a file of the machine is left out.
const LEN_MAX: u64 = 1024 * 1024;

/// What the files are made of.
#[derive(Clone, Copy)]
pub(super) enum FileSource<'s> {
    /// Of the container's connection.
    Made(Connection<'s>),
    /// Of the files of another container, by its attempt's name.
    Container(&'s str),
}

/// What the files are about.
pub(super) struct Names<'n> {
    pub(super) dirs: &'n ContainerDirs,
    pub(super) id: &'n AttemptId,
    pub(super) hostname: &'n str,
    /// Lines for the names of the group's network.
    pub(super) more_hosts: &'n [String],
}

/// Writes the files that no mount of the task replaces. Returns each with its place.
///
/// # Errors
/// A name that has no address; a full disk.
pub(super) fn write(
    names: &Names<'_>,
    source: FileSource<'_>,
    host: &mut HostConfig,
) -> DriverResult<Vec<(PathBuf, &'static str)>> {
    let mut written = Vec::new();
    let store = |name: &str, text: &str| {
        let stored = names.dirs.write_file(names.id, name, text);
        stored.map_err(|error| DriverError::retry(format!("write the file {name} of {}: {error}", names.id)))
    };
    let entries = host.extra_hosts.iter().flatten().map(String::as_str);
    let own: Vec<String> = host_lines(entries).collect::<Result<_, _>>()?;
    let has_hosts = has(host, HOSTS);
    match host.mounts.iter_mut().flatten().find(|mount| mount.target.as_deref() == Some(HOSTS)) {
        // The agent's file is for all tasks of the group.
        Some(mount) if !names.more_hosts.is_empty() => {
            let shared = read(Path::new(mount.source.as_deref().unwrap_or_default()));
            let path = store(HOSTS_NAME, &format!("{shared}{}\n", names.more_hosts.join("\n")))?;
            mount.source = Some(path.display().to_string());
        }
        Some(_) => {}
        None if has_hosts => {}
        None => {
            let mut text = hosts(source, names.dirs);
            for line in own.iter().chain(names.more_hosts) {
                text.push_str(line);
                text.push('\n');
            }
            written.push((store(HOSTS_NAME, &text)?, HOSTS));
        }
    }
    if !has(host, RESOLV_CONF) {
        written.push((store(RESOLV_CONF_NAME, &resolv_conf(source, names.dirs, host))?, RESOLV_CONF));
    }
    if !has(host, HOSTNAME) {
        written.push((store("hostname", &format!("{}\n", names.hostname))?, HOSTNAME));
    }
    Ok(written)
}

/// Replaces the word for the machine in `extra_hosts` by its address.
///
/// # Errors
/// If the container does not reach the machine.
pub(super) fn name_machine(host: &mut HostConfig, address: Option<IpAddr>) -> Result<(), FieldError> {
    for (index, entry) in host.extra_hosts.iter_mut().flatten().enumerate() {
        let Some(name) = entry.strip_suffix(MACHINE) else { continue };
        let Some(address) = address else {
            let why = "host-gateway needs a network of the container's own, or `network_mode: host`; write an address instead";
            return Err(FieldError::new(format!("extra_hosts[{index}]"), why));
        };
        *entry = format!("{name}:{address}");
    }
    Ok(())
}

/// Whether the task brings something for this place along.
fn has(host: &HostConfig, target: &str) -> bool {
    let mut mounts = host.mounts.iter().flatten().filter_map(|mount| mount.target.as_deref());
    let mut binds = host.binds.iter().flatten().filter_map(|bind| bind.split(':').nth(1));
    mounts.any(|known| known == target) || binds.any(|known| known == target)
}

/// `resolv.conf`, in which the task's own settings replace those of the same kind.
fn resolv_conf(source: FileSource<'_>, dirs: &ContainerDirs, host: &HostConfig) -> String {
    let connection = match source {
        FileSource::Made(connection) => connection,
        FileSource::Container(attempt) => {
            let path = dirs.file(attempt, RESOLV_CONF_NAME);
            return if path.exists() { read(&path) } else { read(Path::new(RESOLV_CONF)) };
        }
    };
    // A text of the task's must not add lines of another kind.
    let list = |texts: &Option<Vec<String>>| {
        texts.iter().flatten().map(|text| text.replace(['\n', '\r'], " ")).collect::<Vec<_>>()
    };
    let dns =
        Dns { servers: list(&host.dns), searches: list(&host.dns_search), options: list(&host.dns_options) };
    network_texts::resolv_conf(connection, &dns)
}

/// `hosts` without names of the task's own.
fn hosts(source: FileSource<'_>, dirs: &ContainerDirs) -> String {
    match source {
        FileSource::Made(connection) => {
            network_texts::hosts(connection).unwrap_or_else(|| read(Path::new(HOSTS)))
        }
        FileSource::Container(attempt) => {
            let path = dirs.file(attempt, HOSTS_NAME);
            read(if path.exists() { &path } else { Path::new(HOSTS) })
        }
    }
}

/// The begin of a file of the machine; empty if it can't be read.
fn read(path: &Path) -> String {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(LEN_MAX).read_to_end(&mut bytes));
    if read.is_err() {
        return String::new();
    }
    let mut text = String::from_utf8_lossy(&bytes).into_owned();
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use bollard::models::Mount;
    use herdlet_api_types::AllocId;

    use super::*;

    #[test]
    fn files_are_the_machines_with_what_the_task_adds() {
        let machine = FileSource::Made(Connection::Machine);
        let dir = tempfile::tempdir().unwrap();
        let dirs = ContainerDirs::open(dir.path()).unwrap();
        let id = AttemptId { alloc: AllocId::from_hash([1; 16]), task: "web".into(), attempt: 1 };
        dirs.write(&id, &Default::default()).unwrap();
        let shared = dir.path().join("shared");
        std::fs::write(&shared, "10.0.0.1 web").unwrap();
        let names =
            |more_hosts: &'static [String]| Names { dirs: &dirs, id: &id, hostname: "box", more_hosts };
        let mut host = HostConfig {
            extra_hosts: Some(vec!["db:10.0.0.7".into(), "six:[fd00::1]".into()]),
            dns: Some(vec!["9.9.9.9".into(), "8.8.8.8\noptions x".into()]),
            dns_options: Some(vec!["ndots:1".into()]),
            binds: Some(vec!["/x:/etc/hostname:ro".into()]),
            ..HostConfig::default()
        };
        let written = write(&names(&[]), machine, &mut host).unwrap();
        let places: Vec<&str> = written.iter().map(|(_, place)| *place).collect();
        assert_eq!(places, [HOSTS, RESOLV_CONF]);
        let hosts = std::fs::read_to_string(&written[0].0).unwrap();
        assert!(hosts.ends_with("10.0.0.7 db\nfd00::1 six\n"), "{hosts}");
        let resolv = std::fs::read_to_string(&written[1].0).unwrap();
        let expected = "nameserver 9.9.9.9\nnameserver 8.8.8.8 options x\noptions ndots:1\n";
        assert!(resolv.ends_with(expected), "{resolv}");
        let mut with_own = HostConfig { binds: Some(vec!["/x:/etc/hosts".into()]), ..HostConfig::default() };
        let written = write(&names(&[]), machine, &mut with_own).unwrap();
        let places: Vec<&str> = written.iter().map(|(_, place)| *place).collect();
        assert_eq!(places, [RESOLV_CONF, HOSTNAME], "the task's own file is not covered");
        let mut of_machine =
            HostConfig { extra_hosts: Some(vec!["a:host-gateway".into()]), ..HostConfig::default() };
        let refused = name_machine(&mut of_machine, None).unwrap_err().to_string();
        assert!(refused.starts_with("use config.extra_hosts[0]: "), "{refused}");
        name_machine(&mut of_machine, "10.0.0.1".parse().ok()).unwrap();
        assert_eq!(of_machine.extra_hosts, Some(vec!["a:10.0.0.1".to_owned()]));

        let mount = Mount {
            target: Some(HOSTS.into()),
            source: Some(shared.display().to_string()),
            ..Mount::default()
        };
        let mut in_group = HostConfig { mounts: Some(vec![mount]), ..HostConfig::default() };
        let more: &'static [String] = Box::leak(Box::new(["10.0.0.2 db".to_owned()]));
        write(&names(more), machine, &mut in_group).unwrap();
        let source = in_group.mounts.unwrap()[0].source.clone().unwrap();
        assert_eq!(std::fs::read_to_string(source).unwrap(), "10.0.0.1 web\n10.0.0.2 db\n");
    }

    #[test]
    fn files_of_another_container_are_those_of_who_joins_it() {
        let dir = tempfile::tempdir().unwrap();
        let dirs = ContainerDirs::open(dir.path()).unwrap();
        let id = |attempt| AttemptId { alloc: AllocId::from_hash([1; 16]), task: "web".into(), attempt };
        let ips = ["172.26.80.2".parse().unwrap()];
        let connection = Connection::Addresses { ips: &ips, name: "box", name_server: None };
        let (first, second) = (id(1), id(2));
        let of = |id, source, host: &mut HostConfig| {
            dirs.write(id, &Default::default()).unwrap();
            let names = Names { dirs: &dirs, id, hostname: "box", more_hosts: &[] };
            let written = write(&names, source, host).unwrap();
            written[..2].iter().map(|(path, _)| std::fs::read_to_string(path).unwrap()).collect::<Vec<_>>()
        };
        let mut own = HostConfig { dns: Some(vec!["9.9.9.9".into()]), ..HostConfig::default() };
        let made = of(&first, FileSource::Made(connection), &mut own);
        assert!(
            made[0].ends_with("\n172.26.80.2 box\n") && made[1].contains("nameserver 9.9.9.9\n"),
            "{made:?}"
        );
        assert_eq!(of(&second, FileSource::Container(&first.name()), &mut HostConfig::default()), made);
    }
}
