//! The config of tasks of Nomad's Podman driver, in terms of the driver `docker`.

use herdlet_api_types::manifest::{
    Text,
    driver::{DockerConfig, DockerDevice, PodmanConfig},
};

use super::{ContainerConfig, FieldError, Keys, PodmanExtras, bytes};

/// Where images of Podman may be besides registries.
const TRANSPORTS: [&str; 5] = ["docker-archive:", "oci-archive:", "oci:", "dir:", "containers-storage:"];

/// Translates a config.
///
/// # Errors
/// A field that can't be used.
pub(super) fn translate(config: PodmanConfig) -> Result<ContainerConfig, FieldError> {
    if config.init_path.is_some() {
        return Err(FieldError::new(
            "init_path",
            "the engine's own init program is used; remove it, and set `init = true`",
        ));
    }
    if config.socket.as_deref().is_some_and(|socket| !socket.is_empty() && socket != "default") {
        return Err(FieldError::new(
            "socket",
            "an agent uses one socket of Podman; set drivers.podman.endpoint in its config instead",
        ));
    }
    let size = |field: &str, text: &Option<Text>| match text {
        None => Ok(None),
        Some(text) => bytes(&text.0).map(Some).ok_or_else(|| {
            FieldError::new(field, format!("{:?} is not a size; write for instance 100m", text.0))
        }),
    };
    let swap = match config.memory_swap.as_ref().map(|text| text.0.trim()) {
        Some("-1") => Some(-1),
        _ => size("memory_swap", &config.memory_swap)?,
    };
    let extras = PodmanExtras {
        tmpfs: config.tmpfs.iter().map(|text| text.0.clone()).collect(),
        memory_reservation_bytes: size("memory_reservation", &config.memory_reservation)?,
        memory_swap_bytes: swap,
        memory_swappiness: config.memory_swappiness,
    };
    let shm_size = size("shm_size", &config.shm_size)?.and_then(|size| u64::try_from(size).ok());
    let label = |option: &Text| Text(format!("label={}", option.0));
    let profile = config.apparmor_profile.iter().map(|profile| Text(format!("apparmor={profile}")));
    let security_opt = config.security_opt.iter().cloned();
    let security_opt = security_opt.chain(config.selinux_opts.iter().map(label)).chain(profile).collect();
    let docker = DockerConfig {
        image: image(&config.image)?,
        command: config.command,
        args: config.args,
        entrypoint: config.entrypoint,
        volumes: config.volumes,
        ports: config.ports,
        port_map: config.port_map,
        network_mode: config.network_mode,
        hostname: config.hostname,
        dns_servers: config.dns,
        extra_hosts: config.extra_hosts,
        devices: config.devices.iter().map(device).collect(),
        cap_add: config.cap_add,
        cap_drop: config.cap_drop,
        privileged: config.privileged,
        security_opt,
        labels: config.labels,
        sysctl: config.sysctl,
        ulimit: config.ulimit,
        logging: config.logging,
        cpu_hard_limit: config.cpu_hard_limit,
        cpu_cfs_period: config.cpu_cfs_period,
        pids_limit: config.pids_limit,
        shm_size,
        readonly_rootfs: config.readonly_rootfs,
        init: config.init,
        tty: config.tty,
        work_dir: config.working_dir,
        userns_mode: config.userns,
        pid_mode: config.pid_mode,
        ipc_mode: config.ipc_mode,
        force_pull: config.force_pull,
        image_pull_timeout: config.image_pull_timeout,
        auth: config.auth,
        auth_soft_fail: config.auth_soft_fail,
        ..DockerConfig::default()
    };
    Ok(ContainerConfig { docker, podman: extras, keys: Keys::Podman })
}

/// An image of a registry, without its transport.
fn image(name: &str) -> Result<String, FieldError> {
    if let Some(other) = TRANSPORTS.iter().find(|transport| name.starts_with(*transport)) {
        let why =
            format!("{other} names no image of a registry; name the archive in `load` of the driver docker");
        return Err(FieldError::new("image", why));
    }
    Ok(name.strip_prefix("docker://").unwrap_or(name).to_owned())
}

/// `HOST[:CONTAINER[:PERMISSIONS]]`
fn device(text: &Text) -> DockerDevice {
    let mut parts = text.0.splitn(3, ':').map(|part| Text(part.to_owned()));
    DockerDevice {
        host_path: parts.next().unwrap_or_default(),
        container_path: parts.next(),
        cgroup_permissions: parts.next(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Documented values of Nomad's driver were refused.
    #[test]
    fn values_of_the_podman_driver() {
        let of = |image: &str, swap: &str| {
            translate(serde_json::from_value(json!({"image": image, "memory_swap": swap})).unwrap())
        };
        let read = of("docker://docker.io/library/redis", "-1").unwrap();
        assert_eq!(read.docker.image, "docker.io/library/redis");
        assert_eq!(read.podman.memory_swap_bytes, Some(-1));
        let refused = of("oci-archive:/x.tar", "1g").unwrap_err().to_string();
        assert!(refused.contains("config.image: oci-archive:"), "{refused}");
        assert!(of("x", "-2").is_err());
    }

    #[test]
    fn keys_of_the_podman_driver() {
        let config = json!({"image": "x", "dns": ["1.1.1.1"], "devices": ["/dev/a:/dev/b:r"], "memory_swap": "1g",
            "tmpfs": ["/run"], "selinux_opts": ["type:x"], "working_dir": "/w", "shm_size": "64m"});
        let read = translate(serde_json::from_value(config).unwrap()).unwrap();
        let device = &read.docker.devices[0];
        assert_eq!(
            (&*device.host_path.0, device.cgroup_permissions.as_ref().unwrap().0.as_str()),
            ("/dev/a", "r")
        );
        assert_eq!((read.podman.memory_swap_bytes, read.docker.shm_size), (Some(1 << 30), Some(64 << 20)));
        assert_eq!(read.docker.security_opt[0].0, "label=type:x");
        assert_eq!((read.docker.work_dir.as_deref(), read.podman.tmpfs.len()), (Some("/w"), 1));
        assert_eq!(read.docker.dns_servers[0].0, "1.1.1.1");
    }
}
