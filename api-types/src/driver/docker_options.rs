//! Options of the drivers `docker` and `podman` in the agent's config. Names and defaults are those of Nomad's plugin options
//! (`drivers/docker/config.go`); `engine` and `pull_fallback` are herdlet's.

use std_alloc::{borrow::ToOwned, collections::BTreeMap, format, string::String, vec::Vec};

use serde::Deserialize;

use crate::manifest::Span;
use crate::manifest::driver::{Block, DockerLogging, Pairs};

/// The options of `docker` and `podman`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct DockerOptions {
    /// Whether the driver is enabled.
    pub enabled: Option<bool>,
    /// The engine: `auto` (the default) uses Docker if it is installed, otherwise Podman, and without both the one in the agent
    /// (`builtin`).
    pub engine: EngineChoice,
    /// The engine's socket, `unix:///PATH`.
    pub endpoint: Option<String>,
    /// The former name of `endpoint` in Podman's driver.
    pub socket_path: Option<String>,
    /// Engines that are gone for good: tasks that ran there are lost, and their containers are not removed.
    pub forget_engines: Vec<String>,
    /// Where credentials of registries are found.
    pub auth: Option<Block<AuthSources>>,
    /// Certificates for a remote engine; not supported.
    pub tls: Option<Block<EngineTls>>,
    /// What is removed, and when.
    pub gc: Option<Block<Collection>>,
    /// Mounts of paths outside of the allocation.
    pub volumes: Option<Block<HostPaths>>,
    /// Whether tasks may be privileged.
    pub allow_privileged: bool,
    /// Capabilities that tasks may add; default those of a container without options. `all` allows every one.
    pub allow_caps: Option<Vec<String>>,
    /// Runtimes that tasks may choose; default `runc` and `nvidia`.
    pub allow_runtimes: Option<Vec<String>>,
    /// Modes in which tasks may share the machine's namespaces.
    pub allowed_modes: Option<Block<AllowedModes>>,
    /// Without effect: a task names its `runtime`.
    pub nvidia_runtime: Option<String>,
    /// Without effect: nothing is pulled for a pause container.
    pub infra_image: Option<String>,
    /// Without effect, as `infra_image`.
    pub infra_image_pull_timeout: Option<Span>,
    /// How long a pull may take; default 5m. A task's `image_pull_timeout` overrides it.
    pub image_pull_timeout: Option<Span>,
    /// How long a pull may make no progress; default 2m.
    pub pull_activity_timeout: Option<Span>,
    /// Whether a task starts with the image that is there if the pull fails; default true, in a cluster false.
    pub pull_fallback: Option<bool>,
    /// The maximum number of processes of a task.
    pub pids_limit: Option<i64>,
    /// How likely the kernel kills tasks when memory runs out.
    pub oom_score_adj: Option<u16>,
    /// Whether tasks have no logs.
    pub disable_log_collection: bool,
    /// Labels with names of the task's job; `*` is a wildcard.
    pub extra_labels: Vec<String>,
    /// The engine's log driver, if a task names none; default `json-file`.
    pub logging: Option<Block<DockerLogging>>,
    /// Without effect: a container with the task's name is either the task's own or refused.
    pub container_exists_attempts: Option<u32>,
    /// For Windows only.
    pub windows_allow_insecure_container_admin: bool,
    /// Nomad's Podman driver: whether stopped containers are adopted. Without effect: they are.
    pub recover_stopped: Option<bool>,
    /// How long a call of the engine may take; default 60s.
    pub client_http_timeout: Option<Span>,
    /// Registries by their names, for the engine in the agent: mirrors and certificate authorities. Docker and Podman have settings of
    /// their own. Not an option of Nomad.
    pub registries: BTreeMap<String, RegistryOptions>,
}

/// A registry in the options.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct RegistryOptions {
    /// Addresses that are asked first, in this order: `https://HOST[:PORT]`.
    pub mirrors: Vec<String>,
    /// A file of certificate authorities that are trusted besides the system's.
    pub ca: Option<String>,
    /// Whether it may be reached without TLS.
    pub insecure: bool,
}

/// Which engine to use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum EngineChoice {
    /// Docker if it is installed, otherwise Podman, otherwise the one in the agent.
    #[default]
    Auto,
    /// Docker.
    Docker,
    /// Podman.
    Podman,
    /// The one in the agent.
    Builtin,
}

/// `auth` of the options.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct AuthSources {
    /// A file in the format of Docker's `config.json`.
    pub config: Option<String>,
    /// The name of a credential helper: `docker-credential-NAME`.
    pub helper: Option<String>,
}

/// `tls` of the options.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct EngineTls {
    /// Certificate of the client.
    pub cert: Option<String>,
    /// Its key.
    pub key: Option<String>,
    /// Certificates of authorities.
    pub ca: Option<String>,
}

/// `gc` of the options.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Collection {
    /// Whether unused images are removed.
    pub image: bool,
    /// How long after their last use.
    pub image_delay: Option<Span>,
    /// Unused images are removed earlier, oldest first, if less than this percentage of the engine's disk is free; default 10.
    pub image_free_percent: Option<u8>,
    /// Whether containers of ended tasks are removed.
    pub container: bool,
    /// Containers of this agent that belong to no task.
    pub dangling_containers: Option<Block<Dangling>>,
}

impl Default for Collection {
    fn default() -> Self {
        Self {
            image: true,
            image_delay: None,
            image_free_percent: None,
            container: true,
            dangling_containers: None,
        }
    }
}

/// `dangling_containers` of `gc`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Dangling {
    /// Whether they are removed.
    pub enabled: bool,
    /// Whether they are only logged.
    pub dry_run: bool,
    /// How often they are listed; default 5m.
    pub period: Option<Span>,
    /// How long after their creation they are left alone; default 5m.
    pub creation_grace: Option<Span>,
}

impl Default for Dangling {
    fn default() -> Self {
        Self { enabled: true, dry_run: false, period: None, creation_grace: None }
    }
}

/// `volumes` of the options.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct HostPaths {
    /// Whether tasks may mount paths of the machine and volumes of the engine.
    pub enabled: bool,
    /// The SELinux label of mounts: `z` or `Z`.
    pub selinuxlabel: Option<String>,
}

/// `allowed_modes` of the options. Names are Nomad's, from 2.0.4 on. `container` allows each `container:NAME`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct AllowedModes {
    /// Values of `pid_mode`.
    pub pid: Vec<String>,
    /// Values of `ipc_mode`.
    pub ipc: Vec<String>,
    /// Values of `userns_mode`.
    pub userns: Vec<String>,
    /// Values of `uts_mode`.
    pub uts: Vec<String>,
    /// Containers of other allocations and strangers whose network tasks may join. Not an option of Nomad, which allows all.
    pub network: Vec<String>,
}

impl DockerOptions {
    /// The path of the socket that is named, if any.
    ///
    /// # Errors
    /// The key that can't be honoured, and why.
    pub fn socket(&self) -> Result<Option<String>, (&'static str, String)> {
        if self.tls.is_some() {
            return Err((
                "tls",
                "is for remote engines; herdlet uses engines of this machine only, through their Unix socket"
                    .into(),
            ));
        }
        for (key, value) in [("endpoint", &self.endpoint), ("socket_path", &self.socket_path)] {
            let Some(value) = value.as_deref().filter(|value| !value.is_empty()) else { continue };
            return socket_path(value).map(Some).map_err(|why| (key, why));
        }
        Ok(None)
    }

    /// The paths of the sockets in `forget_engines`.
    ///
    /// # Errors
    /// The key, and why it can't be honoured.
    pub fn forgotten(&self) -> Result<Vec<String>, (&'static str, String)> {
        let paths = self.forget_engines.iter().map(|value| socket_path(value));
        paths.collect::<Result<_, _>>().map_err(|why| ("forget_engines", why))
    }

    /// The pairs of `logging`, with the driver's name.
    pub fn logging(&self) -> Option<(String, Pairs)> {
        let logging = &self.logging.as_ref()?.0;
        Some((logging.name().unwrap_or("json-file").to_owned(), logging.all_options()))
    }
}

/// The path in `unix:///PATH` or `unix://PATH`.
fn socket_path(value: &str) -> Result<String, String> {
    match value.strip_prefix("unix://") {
        // Nomad's Podman driver documents `unix://run/podman/io.podman`.
        Some(path) if !path.is_empty() => return Ok(format!("/{}", path.trim_start_matches('/'))),
        _ if value.starts_with('/') => return Ok(value.to_owned()),
        _ => {}
    }
    Err("must be the path of a Unix socket: herdlet uses engines of this machine only; write for instance unix:///var/run/docker.sock"
        .into())
}
