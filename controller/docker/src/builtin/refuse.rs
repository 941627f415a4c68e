//! What the built-in engine can't do, by the names of the keys.
//!
//! In: a task's config that the driver accepts on other engines. Out: refusals, each with a remedy.

use herdlet_api_types::manifest::{Text, driver::DockerConfig};
use herdlet_driver::Device;

use super::storage_options;
use crate::{
    config::{ContainerConfig, FieldError},
    create::{LogSource, joined},
};

const OTHER_ENGINE: &str = "the built-in engine has no such thing; remove it, or use Docker or Podman";

/// The limits of `ulimit`, with their numbers (getrlimit(2)).
pub(super) const LIMITS: [(&str, u32); 15] = [
    ("core", libc::RLIMIT_CORE),
    ("cpu", libc::RLIMIT_CPU),
    ("data", libc::RLIMIT_DATA),
    ("fsize", libc::RLIMIT_FSIZE),
    ("locks", libc::RLIMIT_LOCKS),
    ("memlock", libc::RLIMIT_MEMLOCK),
    ("msgqueue", libc::RLIMIT_MSGQUEUE),
    ("nice", libc::RLIMIT_NICE),
    ("nofile", libc::RLIMIT_NOFILE),
    ("nproc", libc::RLIMIT_NPROC),
    ("rss", libc::RLIMIT_RSS),
    ("rtprio", libc::RLIMIT_RTPRIO),
    ("rttime", libc::RLIMIT_RTTIME),
    ("sigpending", libc::RLIMIT_SIGPENDING),
    ("stack", libc::RLIMIT_STACK),
];

/// Everything in a config that is refused.
pub(super) fn refusals(config: &ContainerConfig) -> Vec<FieldError> {
    let docker = &config.docker;
    let refused = keys(docker).into_iter().filter(|(_, is_set)| *is_set);
    let mut found: Vec<FieldError> = refused.map(|(key, _)| FieldError::new(key, OTHER_ENGINE)).collect();
    found.extend(modes(docker));
    found.extend(mounts(docker));
    found.extend(devices(docker));
    found.extend(security_options(docker));
    found.extend(settings(docker));
    found.extend(storage_options::of_options(&docker.storage_opt.0).err());
    let has_limit = |name: &String| LIMITS.iter().any(|(known, _)| known == name);
    let unknown = docker.ulimit.0.keys().filter(|name| !has_limit(name));
    found.extend(unknown.map(|name| FieldError::new(format!("ulimit.{name}"), "there is no such limit")));
    found
}

/// A log driver of another engine.
pub(super) fn logging(logs: &LogSource) -> Result<(), FieldError> {
    match logs {
        LogSource::Files | LogSource::Disabled => Ok(()),
        LogSource::Elsewhere(name) => Err(FieldError::new(
            "logging",
            format!(
                "the built-in engine has no log driver {name:?}; remove it: the task's logs are kept by its `logs`"
            ),
        )),
    }
}

fn keys(docker: &DockerConfig) -> [(&'static str, bool); 7] {
    let text = |text: &Option<String>| text.as_deref().is_some_and(|text| !text.is_empty());
    let runtime = docker.runtime.as_deref().unwrap_or_default();
    [
        ("runtime", !matches!(runtime, "" | "runc")),
        ("volume_driver", text(&docker.volume_driver)),
        ("network_aliases", !docker.network_aliases.is_empty()),
        ("ipv4_address", text(&docker.ipv4_address)),
        ("ipv6_address", text(&docker.ipv6_address)),
        ("advertise_ipv6_address", docker.advertise_ipv6_address),
        ("mac_address", text(&docker.mac_address)),
    ]
}

fn modes(docker: &DockerConfig) -> Vec<FieldError> {
    let modes = [
        ("pid_mode", &docker.pid_mode, &["private", "host"][..]),
        ("ipc_mode", &docker.ipc_mode, &["private", "host"]),
        ("uts_mode", &docker.uts_mode, &["private", "host"]),
        ("userns_mode", &docker.userns_mode, &["host"]),
    ];
    let refused = modes.into_iter().filter_map(|(key, mode, known)| {
        let mode = mode.as_deref().filter(|mode| !mode.is_empty() && !known.contains(mode))?;
        let why = format!("the built-in engine has no mode {mode:?}; write one of {}", known.join(", "));
        Some(FieldError::new(key, why))
    });
    refused.chain(network_mode(docker)).collect()
}

fn network_mode(docker: &DockerConfig) -> Option<FieldError> {
    let mode = docker.network_mode.as_deref().unwrap_or_default();
    let is_known =
        matches!(mode, "" | "default" | "bridge" | "host" | "none") || joined(Some(mode)).is_some();
    let why = || {
        format!(
            "the built-in engine has no network {mode:?}; write bridge, host, none or container:NAME, or give the group a network"
        )
    };
    (!is_known).then(|| FieldError::new("network_mode", why()))
}

fn mounts(docker: &DockerConfig) -> Vec<FieldError> {
    let lists = [("mount", &docker.mount), ("mounts", &docker.mounts)];
    let all = lists.into_iter().flat_map(|(key, list)| list.iter().enumerate().map(move |at| (key, at)));
    let volumes = all.filter(|(_, (_, mount))| matches!(mount.kind.as_deref(), None | Some("" | "volume")));
    let of_mounts = volumes.map(|(key, (index, _))| {
        let why =
            "the built-in engine has no volumes; write `type = \"bind\"`, or use a `volume` of the group";
        FieldError::new(format!("{key}[{index}].type"), why)
    });
    let of_volumes = docker.volumes.iter().enumerate().filter_map(|(index, volume)| {
        let options = volume.0.splitn(3, ':').nth(2)?;
        let unknown =
            options.split(',').find(|option| matches!(*option, "noexec" | "nosuid" | "dev" | "U"))?;
        let why = format!("the built-in engine does not know the option {unknown:?} of a volume; remove it");
        Some(FieldError::new(format!("volumes[{index}]"), why))
    });
    of_mounts.chain(of_volumes).collect()
}

fn devices(docker: &DockerConfig) -> Vec<FieldError> {
    let limited = |permissions: &Option<Text>| {
        permissions.as_ref().is_some_and(|text| !text.0.is_empty() && !Device::allows_all(&text.0))
    };
    let devices = docker.devices.iter().enumerate();
    let limited = devices.filter(|(_, device)| limited(&device.cgroup_permissions));
    let why = "the built-in engine gives devices to tasks with all rights or not at all; write rwm";
    limited.map(|(index, _)| FieldError::new(format!("devices[{index}].cgroup_permissions"), why)).collect()
}

fn security_options(docker: &DockerConfig) -> Vec<FieldError> {
    let options = docker.security_opt.iter().enumerate();
    let refused = options.filter(|(_, option)| {
        let parts = option.0.split_once('=').or_else(|| option.0.split_once(':'));
        !matches!(
            parts.unwrap_or((&option.0, "")),
            ("no-new-privileges", "" | "true" | "false")
                | ("seccomp", "unconfined" | "builtin")
                | ("apparmor", "unconfined")
                | ("label", "disable")
        )
    });
    let why = "the built-in engine has the default seccomp profile or none (seccomp=unconfined), and applies neither AppArmor nor SELinux; remove it";
    refused.map(|(index, _)| FieldError::new(format!("security_opt[{index}]"), why)).collect()
}

/// Settings that are not of a namespace of the container's own would change the machine.
fn settings(docker: &DockerConfig) -> Vec<FieldError> {
    let has_ipc = docker.ipc_mode.as_deref() != Some("host");
    let has_network = match docker.network_mode.as_deref().unwrap_or_default() {
        "" => true,
        mode => mode != "host" && joined(Some(mode)).is_none(),
    };
    let is_own = |name: &str| {
        let is_ipc = ["kernel.msg", "kernel.sem", "kernel.shm", "fs.mqueue."];
        has_ipc && is_ipc.iter().any(|begin| name.starts_with(begin))
            || has_network && name.starts_with("net.")
    };
    let refused = docker.sysctl.0.keys().filter(|name| !is_own(name) || path_of(name).is_none());
    let why = "it is no setting of a namespace of the container's own, so that it would change the machine; remove it, or for `net.*` give the task a network of its own";
    refused.map(|name| FieldError::new(format!("sysctl.{name}"), why)).collect()
}

/// The path of a setting below /proc/sys.
pub(super) fn path_of(name: &str) -> Option<String> {
    // As sysctl(8): names of interfaces have dots where the path has slashes.
    let swapped = name.chars().map(|char| match char {
        '.' => '/',
        '/' => '.',
        other => other,
    });
    let path: String = swapped.collect();
    let is_valid = |part: &str| !matches!(part, "" | "." | "..") && !part.contains(['=', '\0']);
    let fits = path.len() <= herdlet_shim::spec::SETTING_PATH_LEN_MAX;
    (fits && path.split('/').all(is_valid)).then_some(path)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn messages(mut config: serde_json::Value) -> Vec<String> {
        config["image"] = "x".into();
        let read = crate::config::read("docker", &config).unwrap();
        refusals(&read).iter().map(|error| error.to_string()).collect()
    }

    #[test]
    fn what_it_cannot_do_is_refused_by_its_key() {
        for (config, field) in [
            (json!({"runtime": "nvidia"}), "runtime"),
            (json!({"storage_opt": {"size": "much"}}), "storage_opt.size"),
            (json!({"pid_mode": "container:x"}), "pid_mode"),
            (json!({"userns_mode": "private"}), "userns_mode"),
            (json!({"network_mode": "other"}), "network_mode"),
            (json!({"mount": [{"target": "/x", "source": "data"}]}), "mount[0].type"),
            (json!({"volumes": ["a:/b", "a:/c:ro,noexec"]}), "volumes[1]"),
            (
                json!({"devices": [{"host_path": "/dev/x", "cgroup_permissions": "r"}]}),
                "devices[0].cgroup_permissions",
            ),
            (json!({"security_opt": ["apparmor=x"]}), "security_opt[0]"),
            (json!({"security_opt": ["seccomp=profile.json"]}), "security_opt[0]"),
            (json!({"security_opt": ["systempaths=unconfined"]}), "security_opt[0]"),
            (json!({"sysctl": {"kernel.panic": "1"}}), "sysctl.kernel.panic"),
            (json!({"sysctl": {"kernel.shm/../panic": "1"}}), "sysctl.kernel.shm/../panic"),
            (json!({"ipc_mode": "host", "sysctl": {"kernel.shmmax": "1"}}), "sysctl.kernel.shmmax"),
            (
                json!({"network_mode": "host", "sysctl": {"net.core.somaxconn": "1"}}),
                "sysctl.net.core.somaxconn",
            ),
            (json!({"ulimit": {"fast": "1"}}), "ulimit.fast"),
        ] {
            let found = messages(config.clone());
            assert_eq!(found.len(), 1, "{config}: {found:?}");
            assert!(found[0].starts_with(&format!("use config.{field}: ")), "{found:?}");
        }
    }

    #[test]
    fn what_it_can_do_is_accepted() {
        let config = json!({"security_opt": ["no-new-privileges", "seccomp=unconfined", "label=disable"],
            "sysctl": {"net.core.somaxconn": "1", "kernel.shmmax": "1"}, "ulimit": {"nofile": "9:9"}, "runtime": "runc",
            "volumes": ["a:/b:ro,z"], "pid_mode": "host", "userns_mode": "host", "init": true, "readonly_rootfs": true,
            "mount": [{"type": "tmpfs", "target": "/x"}, {"type": "bind", "source": "a", "target": "/y"}],
            "devices": [{"host_path": "/dev/x", "cgroup_permissions": "rw"}], "shm_size": 1, "tty": true,
            "interactive": true, "privileged": true, "cpu_hard_limit": true, "storage_opt": {"size": "1g"}});
        assert_eq!(messages(config), [] as [String; 0]);
        for mode in ["", "default", "bridge", "host", "none", "container:x"] {
            assert_eq!(messages(json!({"network_mode": mode})), [] as [String; 0], "{mode}");
        }
        assert_eq!(
            path_of("net.ipv4.conf.eth0/1.forwarding").as_deref(),
            Some("net/ipv4/conf/eth0.1/forwarding")
        );
    }
}
