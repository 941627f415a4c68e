//! Files about the network of a container: `/etc/hosts`, `/etc/resolv.conf` and `/etc/hostname`.
//!
//! In: the request, the task's host name. Out: files in the container's directory, with their places. In the network of a group the
//! agent mounts its own; without one they begin as the machine's.

use std::{fs::File, io::Read as _, path::PathBuf};

use bollard::models::HostConfig;
use herdlet_driver::{AttemptId, DriverError, DriverResult};

use super::dirs::ContainerDirs;
use crate::config::FieldError;

const HOSTS: &str = "/etc/hosts";
const RESOLV_CONF: &str = "/etc/resolv.conf";
const HOSTNAME: &str = "/etc/hostname";
/// More of a file of the machine is left out.
const LEN_MAX: u64 = 1024 * 1024;

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
pub(super) fn write(names: &Names<'_>, host: &mut HostConfig) -> DriverResult<Vec<(PathBuf, &'static str)>> {
    let mut written = Vec::new();
    let store = |name: &str, text: &str| {
        let stored = names.dirs.write_file(names.id, name, text);
        stored.map_err(|error| DriverError::retry(format!("write the file {name} of {}: {error}", names.id)))
    };
    let own: Vec<String> = extra_hosts(host)?;
    let has_hosts = has(host, HOSTS);
    match host.mounts.iter_mut().flatten().find(|mount| mount.target.as_deref() == Some(HOSTS)) {
        // The agent's file is for all tasks of the group.
        Some(mount) if !names.more_hosts.is_empty() => {
            let shared = read(mount.source.as_deref().unwrap_or_default());
            let path = store("hosts", &format!("{shared}{}\n", names.more_hosts.join("\n")))?;
            mount.source = Some(path.display().to_string());
        }
        Some(_) => {}
        None if has_hosts => {}
        None => {
            let mut text = read(HOSTS);
            for line in own.iter().chain(names.more_hosts) {
                text.push_str(line);
                text.push('\n');
            }
            written.push((store("hosts", &text)?, HOSTS));
        }
    }
    if !has(host, RESOLV_CONF) {
        written.push((store("resolv.conf", &resolv_conf(host))?, RESOLV_CONF));
    }
    if !has(host, HOSTNAME) {
        written.push((store("hostname", &format!("{}\n", names.hostname))?, HOSTNAME));
    }
    Ok(written)
}

/// Whether the task brings something for this place along.
fn has(host: &HostConfig, target: &str) -> bool {
    let mut mounts = host.mounts.iter().flatten().filter_map(|mount| mount.target.as_deref());
    let mut binds = host.binds.iter().flatten().filter_map(|bind| bind.split(':').nth(1));
    mounts.any(|known| known == target) || binds.any(|known| known == target)
}

/// Lines of names with addresses.
fn extra_hosts(host: &HostConfig) -> DriverResult<Vec<String>> {
    let entries = host.extra_hosts.iter().flatten().enumerate();
    let line = |(index, entry): (usize, &String)| {
        let line = entry.split_once(':').and_then(|(name, address)| {
            let address = address.trim_start_matches('[').trim_end_matches(']');
            let address = address.parse::<std::net::IpAddr>().ok()?;
            let is_name = !name.is_empty() && !name.contains(|c: char| c.is_whitespace() || c.is_control());
            is_name.then(|| format!("{address} {name}"))
        });
        let why = || format!("the built-in engine expects NAME:ADDRESS with an IP address, found {entry:?}");
        line.ok_or_else(|| FieldError::new(format!("extra_hosts[{index}]"), why()).into())
    };
    entries.map(line).collect()
}

/// The machine's, in which the task's own settings replace those of the same kind.
fn resolv_conf(host: &HostConfig) -> String {
    let of_machine = read(RESOLV_CONF);
    let kinds = [("nameserver", &host.dns), ("search", &host.dns_search), ("options", &host.dns_options)];
    let mut lines = Vec::new();
    for (key, own) in kinds {
        match own {
            Some(own) if key == "nameserver" => {
                lines.extend(own.iter().map(|server| format!("{key} {server}")))
            }
            Some(own) => lines.push(format!("{key} {}", own.join(" "))),
            None => {
                let known = of_machine.lines().filter(|line| line.split_whitespace().next() == Some(key));
                lines.extend(known.map(str::to_owned));
            }
        }
    }
    // A text of the task's must not add lines of another kind.
    let mut text = String::new();
    for line in lines {
        text.push_str(&line.replace(['\n', '\r'], " "));
        text.push('\n');
    }
    text
}

/// The begin of a file of the machine; empty if it can't be read.
fn read(path: &str) -> String {
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
        let written = write(&names(&[]), &mut host).unwrap();
        let places: Vec<&str> = written.iter().map(|(_, place)| *place).collect();
        assert_eq!(places, [HOSTS, RESOLV_CONF]);
        let hosts = std::fs::read_to_string(&written[0].0).unwrap();
        assert!(hosts.ends_with("10.0.0.7 db\nfd00::1 six\n"), "{hosts}");
        let resolv = std::fs::read_to_string(&written[1].0).unwrap();
        assert!(resolv.starts_with("nameserver 9.9.9.9\nnameserver 8.8.8.8 options x\n"), "{resolv}");
        assert!(resolv.ends_with("options ndots:1\n"), "{resolv}");
        let mut with_own = HostConfig { binds: Some(vec!["/x:/etc/hosts".into()]), ..HostConfig::default() };
        let written = write(&names(&[]), &mut with_own).unwrap();
        let places: Vec<&str> = written.iter().map(|(_, place)| *place).collect();
        assert_eq!(places, [RESOLV_CONF, HOSTNAME], "the task's own file is not covered");
        let refused =
            HostConfig { extra_hosts: Some(vec!["a:host-gateway".into()]), ..HostConfig::default() };
        let refused = write(&names(&[]), &mut refused.clone()).unwrap_err().why();
        assert!(refused.starts_with("use config.extra_hosts[0]: "), "{refused}");

        let mount = Mount {
            target: Some(HOSTS.into()),
            source: Some(shared.display().to_string()),
            ..Mount::default()
        };
        let mut in_group = HostConfig { mounts: Some(vec![mount]), ..HostConfig::default() };
        let more: &'static [String] = Box::leak(Box::new(["10.0.0.2 db".to_owned()]));
        write(&names(more), &mut in_group).unwrap();
        let source = in_group.mounts.unwrap()[0].source.clone().unwrap();
        assert_eq!(std::fs::read_to_string(source).unwrap(), "10.0.0.1 web\n10.0.0.2 db\n");
    }
}
