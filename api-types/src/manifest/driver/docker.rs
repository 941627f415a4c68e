//! `config` of tasks of the driver `docker`. Names and defaults are Nomad's (`drivers/docker/config.go`, up to 2.0).

use core::fmt;
use std_alloc::{string::String, vec::Vec};

use serde::{Deserialize, Serialize};

use super::{
    super::{Span, Text},
    shapes::{Block, OneOrMany, Pairs},
};

/// `config` for `docker`: a container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(extend("required" = ["image"])))]
#[serde(deny_unknown_fields, default)]
pub struct DockerConfig {
    /// The image, such as `redis:7` or `registry.example/app@sha256:…`.
    #[cfg_attr(feature = "schema", schemars(length(min = 1)))]
    pub image: String,
    /// The command, instead of the image's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<Text>,
    /// Its arguments; without `command`, arguments of the image's entrypoint.
    pub args: Vec<Text>,
    /// The entrypoint, instead of the image's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entrypoint: Option<OneOrMany>,
    /// Labels of ports of the group or task to publish.
    pub ports: Vec<Text>,
    /// Ports inside the container by label, the form before `ports`.
    pub port_map: Pairs,
    /// `bridge`, `host`, `none`, `container:NAME`, or the name of a network of the engine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network_mode: Option<String>,
    /// Names of the container in its network.
    pub network_aliases: Vec<Text>,
    /// Its address in its network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipv4_address: Option<String>,
    /// Its IPv6 address in its network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipv6_address: Option<String>,
    /// Whether services are registered with its IPv6 address.
    pub advertise_ipv6_address: bool,
    /// Its hardware address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mac_address: Option<String>,
    /// Its host name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hostname: Option<Text>,
    /// Name servers.
    pub dns_servers: Vec<Text>,
    /// Search domains.
    pub dns_search_domains: Vec<Text>,
    /// Options of the resolver.
    pub dns_options: Vec<Text>,
    /// Entries `NAME:ADDRESS` of its `/etc/hosts`.
    pub extra_hosts: Vec<Text>,
    /// Mounts `SOURCE:TARGET[:OPTIONS]`. A relative source is in the task directory; other sources need `volumes.enabled`.
    pub volumes: Vec<Text>,
    /// The engine's volume driver for `volumes`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_driver: Option<String>,
    /// Mounts with options.
    pub mount: Vec<DockerMount>,
    /// The former name of `mount`.
    pub mounts: Vec<DockerMount>,
    /// Devices of the machine.
    pub devices: Vec<DockerDevice>,
    /// Capabilities to add; the agent's `allow_caps` lists those that are allowed.
    pub cap_add: Vec<Text>,
    /// Capabilities to drop.
    pub cap_drop: Vec<Text>,
    /// Whether it has all rights of the machine; needs `allow_privileged` in the agent's config.
    pub privileged: bool,
    /// Security options, such as `seccomp=FILE` or `no-new-privileges`.
    pub security_opt: Vec<Text>,
    /// Kernel parameters.
    pub sysctl: Pairs,
    /// Limits `SOFT[:HARD]` by name, such as `nofile`.
    pub ulimit: Pairs,
    /// Size of `/dev/shm` in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shm_size: Option<u64>,
    /// Options of the storage driver.
    pub storage_opt: Pairs,
    /// `host` to share the machine's process ids.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid_mode: Option<String>,
    /// `none`, `private`, `shareable`, `host` or `container:NAME`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ipc_mode: Option<String>,
    /// `host` to share the machine's host name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uts_mode: Option<String>,
    /// `host` to share the machine's user ids.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub userns_mode: Option<String>,
    /// `private` or `host`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cgroupns: Option<String>,
    /// The maximum number of its processes and threads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pids_limit: Option<i64>,
    /// Memory limit in MiB; `resources.memory` is then what it is guaranteed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_hard_limit: Option<u64>,
    /// Whether `resources.cpu` is a limit, not only a share.
    pub cpu_hard_limit: bool,
    /// Period of that limit in microseconds; default 100000.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(max = 1_000_000)))]
    pub cpu_cfs_period: Option<u32>,
    /// Without effect, as in Nomad.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpuset_cpus: Option<Text>,
    /// How likely the kernel kills it when memory runs out: 0 to 1000.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(max = 1000)))]
    pub oom_score_adj: Option<u16>,
    /// Whether an init process reaps its processes.
    pub init: bool,
    /// Whether its standard input is open.
    pub interactive: bool,
    /// Whether it has a terminal.
    pub tty: bool,
    /// Labels of the container.
    pub labels: Pairs,
    /// The engine's log driver.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logging: Option<Block<DockerLogging>>,
    /// Whether its root file system is read-only.
    pub readonly_rootfs: bool,
    /// The engine's runtime; the agent's `allow_runtimes` lists those that are allowed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runtime: Option<String>,
    /// Its working directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub work_dir: Option<String>,
    /// Further groups of its user.
    pub group_add: Vec<Text>,
    /// The image's health check.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub healthchecks: Option<Block<DockerHealthchecks>>,
    /// For Windows only.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(extend("enum" = ["", "default"])))]
    pub isolation: Option<String>,
    /// Whether the image is pulled even if it is there.
    pub force_pull: bool,
    /// How long the pull may take; default 5m.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_pull_timeout: Option<Span>,
    /// An archive with the image, in the task directory, instead of a pull.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load: Option<String>,
    /// Credentials for the registry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auth: Option<Block<DockerAuth>>,
    /// Whether to pull without credentials if none are found.
    pub auth_soft_fail: bool,
}

/// `auth`: credentials for a registry.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct DockerAuth {
    /// The user.
    pub username: Text,
    /// The password or token.
    pub password: Text,
    /// Without effect; registries no longer use it.
    pub email: Text,
    /// The registry; default the image's.
    pub server_address: Text,
    /// Must not be false: whether certificates are verified is in the engine's own config.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(extend("enum" = [true])))]
    pub tls_verify: Option<bool>,
}

/// Omits the password.
impl fmt::Debug for DockerAuth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DockerAuth").field("username", &self.username.0).finish_non_exhaustive()
    }
}

/// `mount`: a mount with options.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct DockerMount {
    /// `volume` (the default), `bind` or `tmpfs`.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(extend("enum" = ["volume", "bind", "tmpfs", ""])))]
    pub kind: Option<String>,
    /// The path in the container.
    pub target: Text,
    /// A path of the machine or in the task directory, or the name of a volume of the engine.
    pub source: Text,
    /// Whether it is read-only.
    pub readonly: bool,
    /// Options of `bind`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bind_options: Option<Block<BindOptions>>,
    /// Options of `volume`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_options: Option<Block<VolumeOptions>>,
    /// Options of `tmpfs`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tmpfs_options: Option<Block<TmpfsOptions>>,
}

/// `bind_options` of a mount.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct BindOptions {
    /// `private`, `rprivate`, `shared`, `rshared`, `slave` or `rslave`.
    pub propagation: Option<String>,
}

/// `volume_options` of a mount.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct VolumeOptions {
    /// Whether the image's files are not copied into a new volume.
    pub no_copy: bool,
    /// Labels of a new volume.
    pub labels: Pairs,
    /// The driver of a new volume.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver_config: Option<Block<VolumeDriver>>,
}

/// `driver_config` of a volume.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct VolumeDriver {
    /// Its name.
    pub name: Text,
    /// Its options.
    pub options: Pairs,
}

/// `tmpfs_options` of a mount.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct TmpfsOptions {
    /// Its size in bytes.
    pub size: Option<u64>,
    /// Its mode, as a number.
    pub mode: Option<u32>,
}

/// `devices`: a device of the machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct DockerDevice {
    /// Path on the machine.
    pub host_path: Text,
    /// Path in the container; default the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container_path: Option<Text>,
    /// A combination of `r`, `w` and `m`; default all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cgroup_permissions: Option<Text>,
}

/// `logging`: the engine's log driver.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct DockerLogging {
    /// The driver; herdlet has logs of `json-file` only.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// Its options.
    pub config: Pairs,
    /// The same (podman).
    pub options: Pairs,
}

/// `healthchecks`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct DockerHealthchecks {
    /// Whether the image's health check does not run.
    pub disable: bool,
}

impl DockerLogging {
    /// The driver's name.
    pub fn name(&self) -> Option<&str> {
        let named = [&self.kind, &self.driver].into_iter().flatten();
        named.map(String::as_str).find(|name| !name.is_empty())
    }

    /// Its options, under either name.
    pub fn all_options(&self) -> Pairs {
        Pairs(self.options.0.clone().into_iter().chain(self.config.0.clone()).collect())
    }
}
