//! `config` of tasks of the driver `podman`. Names are those of Nomad's Podman driver (`hashicorp/nomad-driver-podman:config.go`).

use std_alloc::{string::String, vec::Vec};

use serde::{Deserialize, Serialize};

use super::{
    super::{Span, Text},
    docker::{DockerAuth, DockerLogging},
    shapes::{Block, OneOrMany, Pairs},
};

/// `config` for `podman`: a container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(extend("required" = ["image"])))]
#[serde(deny_unknown_fields, default)]
pub struct PodmanConfig {
    /// The image, such as `docker.io/library/redis:7`.
    #[cfg_attr(feature = "schema", schemars(length(min = 1)))]
    pub image: String,
    /// The command, instead of the image's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<Text>,
    /// Its arguments.
    pub args: Vec<Text>,
    /// The entrypoint, instead of the image's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entrypoint: Option<OneOrMany>,
    /// Mounts `SOURCE:TARGET[:OPTIONS]`.
    pub volumes: Vec<Text>,
    /// Directories in memory.
    pub tmpfs: Vec<Text>,
    /// Labels of ports to publish.
    pub ports: Vec<Text>,
    /// Ports inside the container by label.
    pub port_map: Pairs,
    /// `bridge`, `host`, `none`, `slirp4netns`, `container:NAME`, `task:NAME`, or the name of a network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network_mode: Option<String>,
    /// Its host name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hostname: Option<Text>,
    /// Name servers.
    pub dns: Vec<Text>,
    /// Entries `NAME:ADDRESS` of its `/etc/hosts`.
    pub extra_hosts: Vec<Text>,
    /// Devices `HOST[:CONTAINER[:PERMISSIONS]]`.
    pub devices: Vec<Text>,
    /// Capabilities to add.
    pub cap_add: Vec<Text>,
    /// Capabilities to drop.
    pub cap_drop: Vec<Text>,
    /// Whether it has all rights of the machine.
    pub privileged: bool,
    /// SELinux options.
    pub selinux_opts: Vec<Text>,
    /// Security options.
    pub security_opt: Vec<Text>,
    /// The AppArmor profile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub apparmor_profile: Option<String>,
    /// Labels of the container.
    pub labels: Pairs,
    /// Kernel parameters.
    pub sysctl: Pairs,
    /// Limits `SOFT[:HARD]` by name.
    pub ulimit: Pairs,
    /// The log driver.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logging: Option<Block<DockerLogging>>,
    /// Memory that is reclaimed last, such as `100m`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_reservation: Option<Text>,
    /// Memory and swap, such as `1g`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_swap: Option<Text>,
    /// How readily memory is swapped out: 0 to 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_swappiness: Option<i64>,
    /// Whether `resources.cpu` is a limit.
    pub cpu_hard_limit: bool,
    /// Period of that limit in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_cfs_period: Option<u32>,
    /// The maximum number of its processes and threads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pids_limit: Option<i64>,
    /// Size of `/dev/shm`, such as `64m`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shm_size: Option<Text>,
    /// Whether its root file system is read-only.
    pub readonly_rootfs: bool,
    /// Whether an init process reaps its processes.
    pub init: bool,
    /// The init program; not supported.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub init_path: Option<String>,
    /// Whether it has a terminal.
    pub tty: bool,
    /// Its working directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub working_dir: Option<String>,
    /// The user namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub userns: Option<String>,
    /// The process namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid_mode: Option<String>,
    /// The namespace of shared memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipc_mode: Option<String>,
    /// Whether the image is pulled even if it is there.
    pub force_pull: bool,
    /// How long the pull may take; default 5m.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_pull_timeout: Option<Span>,
    /// Credentials for the registry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auth: Option<Block<DockerAuth>>,
    /// Whether to pull without credentials if none are found.
    pub auth_soft_fail: bool,
    /// The name of the engine's socket; not supported.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub socket: Option<String>,
}
