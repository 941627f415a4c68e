//! The process of a container: its environment, its rights, its limits and its namespaces.
//!
//! In: the request that another engine would get, the image's config. Out: parts of an [`Invocation`](herdlet_process::supervisor).

use std::collections::{BTreeMap, BTreeSet, btree_map::Entry};

use bollard::models::{ContainerCreateBody, HostConfig, HostConfigCgroupnsModeEnum};
use herdlet_driver::{DriverError, DriverResult};
use herdlet_process::{
    exec::capability_bit,
    supervisor::{Capabilities, Namespaces, NewPrivileges, ResourceLimit},
};

use super::{
    dirs::ContainerRecord,
    program::PATH,
    refuse::{LIMITS, path_of},
    users::ImageUser,
};
use crate::{config::FieldError, create::granted_capabilities};

const ALL: &str = "ALL";
const NO_NEW_PRIVILEGES: [&str; 3] =
    ["no-new-privileges", "no-new-privileges=true", "no-new-privileges:true"];

/// The environment: the image's, replaced by the task's.
pub(super) fn environment(
    body: &ContainerCreateBody,
    image: &ContainerRecord,
    (user, hostname): (&ImageUser, &str),
) -> Vec<(String, String)> {
    let mut all: Vec<(String, String)> = Vec::new();
    // An image may have any number of them.
    let mut places: BTreeMap<&str, usize> = BTreeMap::new();
    let terminal = (body.tty == Some(true)).then_some(("TERM", "xterm"));
    let usual = [("PATH", PATH), ("HOSTNAME", hostname)].into_iter().chain(terminal);
    let usual: Vec<String> = usual.map(|(name, value)| format!("{name}={value}")).collect();
    for text in usual.iter().chain(&image.env).chain(body.env.iter().flatten()) {
        // A name alone has no value, as with Docker.
        let Some((name, value)) = text.split_once('=').filter(|(name, _)| !name.is_empty()) else { continue };
        match places.entry(name) {
            Entry::Occupied(known) => value.clone_into(&mut all[*known.get()].1),
            Entry::Vacant(place) => {
                place.insert(all.len());
                all.push((name.to_owned(), value.to_owned()));
            }
        }
    }
    if !places.contains_key("HOME") {
        all.push(("HOME".to_owned(), user.home.clone()));
    }
    all
}

/// The capabilities of a container, as one bit each.
///
/// # Errors
/// A name that no kernel knows.
pub(super) fn capabilities(host: &HostConfig) -> Result<u64, FieldError> {
    let names = granted_capabilities(host);
    let has_all = is_privileged(host) || host.cap_add.iter().flatten().any(|name| name == ALL);
    let mut bits = 0;
    for name in &names {
        let unknown = || FieldError::new("cap_add", format!("there is no capability {name:?}"));
        bits |= capability_bit(name).ok_or_else(unknown)?;
    }
    if has_all {
        let dropped: BTreeSet<&String> = host.cap_drop.iter().flatten().collect();
        let dropped = dropped.into_iter().filter_map(|name| capability_bit(name));
        bits = !dropped.fold(0, |bits, bit| bits | bit);
    }
    let own = rustix::thread::capabilities(None).map_or(0, |own| own.permitted.bits());
    // The agent can't give what it lacks.
    Ok(bits & own)
}

/// As with Docker: root has all of them; other users can get them only by programs with rights of their own.
pub(super) fn sets(bits: u64, uid: u32) -> Capabilities {
    let active = if uid == 0 { bits } else { 0 };
    Capabilities { bounding: bits, effective: active, permitted: active, inheritable: 0, ambient: 0 }
}

pub(super) fn new_privileges(host: &HostConfig) -> NewPrivileges {
    let mut options = host.security_opt.iter().flatten();
    match options.any(|option| NO_NEW_PRIVILEGES.contains(&option.as_str())) {
        true => NewPrivileges::Refused,
        false => NewPrivileges::Allowed,
    }
}

pub(super) fn is_privileged(host: &HostConfig) -> bool {
    host.privileged == Some(true)
}

/// Whether the system calls of a container are restricted.
pub(super) fn is_confined(host: &HostConfig) -> bool {
    !is_privileged(host) && !host.security_opt.iter().flatten().any(|option| option == "seccomp=unconfined")
}

pub(super) fn limits(host: &HostConfig) -> Vec<ResourceLimit> {
    // -1 is without limit.
    let number = |limit: Option<i64>| limit.and_then(|limit| u64::try_from(limit).ok()).unwrap_or(u64::MAX);
    let limit = |limit: &bollard::models::ResourcesUlimits| {
        let name = limit.name.as_deref()?;
        let (_, resource) = LIMITS.iter().find(|(known, _)| *known == name)?;
        Some(ResourceLimit { resource: *resource, soft: number(limit.soft), hard: number(limit.hard) })
    };
    host.ulimits.iter().flatten().filter_map(limit).collect()
}

/// Settings of the kernel as `PATH=VALUE`, in order.
///
/// # Errors
/// A name that is no setting's.
pub(super) fn settings(host: &HostConfig) -> DriverResult<Vec<String>> {
    let mut settings = Vec::new();
    for (name, value) in host.sysctls.iter().flatten() {
        let path = path_of(name).ok_or_else(|| DriverError::fatal(format!("use config.sysctl.{name}")))?;
        settings.push(format!("{path}={value}"));
    }
    settings.sort();
    Ok(settings)
}

/// The namespaces of a container. Its network is the agent's matter, its mounts are made with its root.
pub(super) fn namespaces(host: &HostConfig, hostname: Option<&str>) -> Namespaces {
    let is_host = |mode: &Option<String>| mode.as_deref() == Some("host");
    let all = [
        (Namespaces::PID, !is_host(&host.pid_mode)),
        (Namespaces::IPC, !is_host(&host.ipc_mode)),
        (Namespaces::UTS, hostname.is_some()),
        (Namespaces::CGROUP, host.cgroupns_mode != Some(HostConfigCgroupnsModeEnum::HOST)),
    ];
    let own = all.into_iter().filter(|(_, is_own)| *is_own);
    own.fold(Namespaces::default(), |all, (kind, _)| all | kind)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use bollard::models::ResourcesUlimits;

    use super::*;

    fn list(words: &[&str]) -> Option<Vec<String>> {
        Some(words.iter().map(|word| (*word).to_owned()).collect())
    }

    #[test]
    fn the_tasks_environment_replaces_the_images() {
        let image = ContainerRecord { env: list(&["A=1", "PATH=/x", "B=2"]).unwrap(), ..Default::default() };
        let body = ContainerCreateBody { env: list(&["B=3", "C=", "D"]), ..Default::default() };
        let user = ImageUser { uid: 0, gid: 0, groups: Vec::new(), home: "/root".into() };
        let found = environment(&body, &image, (&user, "box"));
        let expected =
            [("PATH", "/x"), ("HOSTNAME", "box"), ("A", "1"), ("B", "3"), ("C", ""), ("HOME", "/root")];
        assert_eq!(found, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
    }

    #[test]
    fn capabilities_are_those_of_the_request() {
        let own = rustix::thread::capabilities(None).unwrap().permitted.bits();
        let of = |add: &[&str], drop: &[&str]| {
            capabilities(&HostConfig { cap_add: list(add), cap_drop: list(drop), ..HostConfig::default() })
        };
        // What `capsh --decode` shows of Docker's default.
        assert_eq!(of(&[], &[]).unwrap(), 0xa804_25fb & own);
        assert_eq!(of(&["NET_ADMIN"], &["ALL"]).unwrap(), 1 << 12 & own);
        assert_eq!(of(&["ALL"], &["KILL"]).unwrap(), !(1 << 5) & own);
        assert_eq!(of(&["CHOWN"], &["NET_RAW"]).unwrap(), 0xa804_25fb & !(1 << 13) & own);
        let privileged = HostConfig { privileged: Some(true), ..HostConfig::default() };
        assert_eq!(capabilities(&privileged).unwrap(), own);
        assert!(!is_confined(&privileged));
        assert!(of(&["FLY"], &[]).unwrap_err().to_string().contains("FLY"));
        let root = Capabilities { bounding: 3, effective: 3, permitted: 3, ..Capabilities::default() };
        assert_eq!((sets(3, 0), sets(3, 7)), (root, Capabilities { bounding: 3, ..Capabilities::default() }));
    }

    #[test]
    fn the_rest_of_a_request() {
        let limit = |name: &str, soft, hard| ResourcesUlimits { name: Some(name.into()), soft, hard };
        let host = HostConfig {
            ulimits: Some(vec![limit("nofile", Some(5), Some(6)), limit("memlock", Some(-1), Some(-1))]),
            sysctls: Some(HashMap::from([("net.ipv4.ip_forward".into(), "1".into())])),
            security_opt: list(&["no-new-privileges", "seccomp=unconfined"]),
            pid_mode: Some("host".into()),
            ..HostConfig::default()
        };
        assert_eq!(
            limits(&host),
            [
                ResourceLimit { resource: 7, soft: 5, hard: 6 },
                ResourceLimit { resource: 8, soft: u64::MAX, hard: u64::MAX }
            ]
        );
        assert_eq!(settings(&host).unwrap(), ["net/ipv4/ip_forward=1"]);
        assert_eq!(new_privileges(&host), NewPrivileges::Refused);
        assert!(!is_confined(&host) && is_confined(&HostConfig::default()));
        let kinds = namespaces(&host, None);
        assert!(!kinds.contains(Namespaces::PID) && kinds.contains(Namespaces::IPC));
        assert!(!kinds.contains(Namespaces::UTS) && namespaces(&host, Some("x")).contains(Namespaces::UTS));
    }
}
