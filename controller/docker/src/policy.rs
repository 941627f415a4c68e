//! The options of a driver, resolved: what tasks may do, and times.
//!
//! In: the options in the agent's config. Out: a [`Policy`], or why an option can't be honoured.

use std::{path::PathBuf, time::Duration};

use herdlet_api_types::{
    driver::{Dangling, DockerOptions, EngineChoice},
    manifest::{Span, driver::Pairs},
};
use herdlet_images::{
    credentials::Sources,
    registries::{Registries, RegistrySettings},
    registry::Transport,
};

/// Capabilities of a container without options, and those that tasks may add by default (Nomad's
/// `drivers/shared/capabilities/defaults.go`).
pub(crate) const DEFAULT_CAPABILITIES: [&str; 13] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];

/// Whether this agent is a node of a cluster; it decides defaults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// It is not: jobs come from the machine's own users.
    Standalone,
    /// It is: jobs come from servers.
    Node,
}

/// What to do when a pull fails and an older image is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PullFallback {
    /// The start fails, as in Nomad.
    Fail,
    /// The task starts with that image, with a message.
    UseLocal,
}

/// The resolved options.
#[derive(Debug, Clone)]
pub(crate) struct Policy {
    pub(crate) engine: EngineChoice,
    /// The socket's path, if the config names one.
    pub(crate) socket: Option<PathBuf>,
    /// Sockets of engines that are gone with their containers.
    pub(crate) forgotten: Vec<PathBuf>,
    pub(crate) allow_privileged: bool,
    /// Upper-case names without `CAP_`; `ALL` allows every one.
    pub(crate) allow_caps: Vec<String>,
    pub(crate) allow_runtimes: Vec<String>,
    pub(crate) host_paths: bool,
    pub(crate) selinux_label: Option<String>,
    pub(crate) allowed_pid: Vec<String>,
    pub(crate) allowed_ipc: Vec<String>,
    pub(crate) allowed_userns: Vec<String>,
    pub(crate) allowed_uts: Vec<String>,
    /// Containers of others whose network tasks may join: `container:NAME`, or `container` for all.
    pub(crate) allowed_network: Vec<String>,
    pub(crate) auth_config: Option<PathBuf>,
    pub(crate) auth_helper: Option<String>,
    pub(crate) pull_timeout: Duration,
    pub(crate) pull_activity_timeout: Duration,
    pub(crate) pull_fallback: PullFallback,
    pub(crate) pids_limit: Option<i64>,
    pub(crate) oom_score_adj: Option<u16>,
    pub(crate) logs_disabled: bool,
    pub(crate) extra_labels: Vec<String>,
    /// The log driver of tasks that name none, with its options.
    pub(crate) logging: Option<(String, Pairs)>,
    pub(crate) remove_containers: bool,
    pub(crate) dangling: Dangling,
    pub(crate) image_delay: Option<Duration>,
    /// The part of the engine's disk that unused images leave free; 0 for any.
    pub(crate) image_free_percent: u8,
    pub(crate) call_timeout: Duration,
    /// For the engine in the agent.
    pub(crate) registries: Registries,
}

impl Policy {
    /// Resolves the options.
    ///
    /// # Errors
    /// An option that can't be honoured.
    pub(crate) fn of(options: &DockerOptions, mode: Mode) -> Result<Self, String> {
        let named = |(key, why)| format!("{key}: {why}");
        let socket = options.socket().map_err(named)?.map(PathBuf::from);
        let volumes = options.volumes.clone().unwrap_or_default().0;
        let modes = options.allowed_modes.clone().unwrap_or_default().0;
        let auth = options.auth.clone().unwrap_or_default().0;
        let gc = options.gc.clone().unwrap_or_default().0;
        let fallback = options.pull_fallback.unwrap_or(mode == Mode::Standalone);
        let default_caps = || DEFAULT_CAPABILITIES.map(str::to_owned).to_vec();
        let caps = |names: &Vec<String>| names.iter().map(|name| capability(name)).collect();
        let length = |span: Option<Span>, default: u64| {
            span.map(|span| span.0.to_std()).unwrap_or(Duration::from_secs(default))
        };
        Ok(Self {
            engine: options.engine,
            socket,
            forgotten: options.forgotten().map_err(named)?.into_iter().map(PathBuf::from).collect(),
            allow_privileged: options.allow_privileged,
            allow_caps: options.allow_caps.as_ref().map_or_else(default_caps, caps),
            allow_runtimes: options
                .allow_runtimes
                .clone()
                .unwrap_or_else(|| ["runc", "nvidia"].map(str::to_owned).to_vec()),
            host_paths: volumes.enabled,
            selinux_label: volumes.selinuxlabel.filter(|label| !label.is_empty()),
            allowed_pid: modes.pid,
            allowed_ipc: modes.ipc,
            allowed_userns: modes.userns,
            allowed_uts: modes.uts,
            allowed_network: modes.network,
            auth_config: auth.config.filter(|path| !path.is_empty()).map(PathBuf::from),
            auth_helper: auth.helper.filter(|name| !name.is_empty()),
            pull_timeout: length(options.image_pull_timeout, 300),
            pull_activity_timeout: length(options.pull_activity_timeout, 120),
            pull_fallback: if fallback { PullFallback::UseLocal } else { PullFallback::Fail },
            pids_limit: options.pids_limit.filter(|limit| *limit > 0),
            oom_score_adj: options.oom_score_adj,
            logs_disabled: options.disable_log_collection,
            extra_labels: options.extra_labels.clone(),
            logging: options.logging(),
            remove_containers: gc.container,
            dangling: gc.dangling_containers.unwrap_or_default().0,
            image_free_percent: free_percent(gc.image_free_percent)?,
            image_delay: gc.image.then(|| length(gc.image_delay, 180)),
            call_timeout: length(options.client_http_timeout, 60),
            registries: registries(options)?,
        })
    }
}

impl Policy {
    /// Where credentials of registries are, besides those in a task's `auth`.
    pub(crate) fn credential_sources(&self) -> Sources<'_> {
        Sources { file: self.auth_config.as_deref(), helper: self.auth_helper.as_deref() }
    }

    /// Whether tasks may join the network of a container that is not of their allocation.
    pub(crate) fn may_join_network(&self, name: &str) -> bool {
        let is_it = |mode: &String| mode == "container" || mode.strip_prefix("container:") == Some(name);
        self.allow_privileged || self.allowed_network.iter().any(is_it)
    }
}

/// Other engines have their own settings.
fn registries(options: &DockerOptions) -> Result<Registries, String> {
    let is_other = matches!(options.engine, EngineChoice::Docker | EngineChoice::Podman);
    if is_other && !options.registries.is_empty() {
        return Err(format!(
            "registries: it is for `engine: builtin`; {} has settings of registries of its own, remove it",
            if options.engine == EngineChoice::Docker { "Docker" } else { "Podman" }
        ));
    }
    let known = options.registries.iter().map(|(name, registry)| {
        let settings = RegistrySettings {
            mirrors: registry.mirrors.clone(),
            ca: registry.ca.as_ref().filter(|path| !path.is_empty()).map(PathBuf::from),
            transport: if registry.insecure { Transport::Any } else { Transport::Secure },
        };
        (name.clone(), settings)
    });
    Registries::new(known.collect())
}

/// The default is 10 %. The agent collects allocations at 5 %, so images are removed first.
fn free_percent(option: Option<u8>) -> Result<u8, String> {
    match option {
        None => Ok(10),
        Some(percent @ 0..=100) => Ok(percent),
        Some(more) => Err(format!("gc.image_free_percent: expected 0 to 100, found {more}")),
    }
}

/// The name of a capability in one notation: upper case, without `CAP_`.
pub(crate) fn capability(name: &str) -> String {
    let upper = name.trim().to_ascii_uppercase();
    upper.strip_prefix("CAP_").map(str::to_owned).unwrap_or(upper)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(options: serde_json::Value, mode: Mode) -> Result<Policy, String> {
        Policy::of(&serde_json::from_value(options).unwrap(), mode)
    }

    #[test]
    fn defaults_are_nomads() {
        let none = policy(serde_json::json!({}), Mode::Node).unwrap();
        assert!(!none.allow_privileged && !none.host_paths && none.remove_containers);
        assert_eq!(none.pull_fallback, PullFallback::Fail);
        assert_eq!(none.pull_timeout.as_secs(), 300);
        assert_eq!(none.image_delay.unwrap().as_secs(), 180);
        assert_eq!(none.image_free_percent, 10);
        let own = policy(serde_json::json!({}), Mode::Standalone).unwrap();
        assert_eq!(own.pull_fallback, PullFallback::UseLocal);
    }

    /// As `plugin "docker" { config { … } }` arrives: blocks are lists.
    #[test]
    fn options_of_an_agent_file() {
        let options = serde_json::json!({"endpoint": "unix:///run/x.sock", "volumes": [{"enabled": true}],
            "gc": [{"image_delay": "1h", "dangling_containers": [{"enabled": false}]}], "allow_caps": ["cap_sys_time"]});
        let policy = policy(options, Mode::Node).unwrap();
        assert_eq!(policy.socket.unwrap().to_str(), Some("/run/x.sock"));
        assert!(policy.host_paths && !policy.dangling.enabled);
        assert_eq!(policy.allow_caps, ["SYS_TIME"]);
        assert_eq!(policy.image_delay.unwrap().as_secs(), 3_600);
    }

    #[test]
    fn a_part_of_the_disk_is_a_percentage() {
        let of = |percent: u8| {
            policy(serde_json::json!({"gc": {"image_free_percent": percent}}), Mode::Standalone)
                .map(|policy| policy.image_free_percent)
        };
        assert_eq!((of(0), of(100)), (Ok(0), Ok(100)));
        assert!(of(101).unwrap_err().starts_with("gc.image_free_percent: "));
    }

    #[test]
    fn settings_of_registries_are_for_the_engine_in_the_agent() {
        let of = |engine: &str, mirror: &str| {
            let registries =
                serde_json::json!({"docker.io": {"mirrors": [mirror]}, "a.test": {"insecure": true}});
            policy(serde_json::json!({"engine": engine, "registries": registries}), Mode::Standalone)
                .map(drop)
        };
        assert_eq!((of("builtin", "https://a.test"), of("auto", "https://a.test")), (Ok(()), Ok(())));
        assert!(of("docker", "https://a.test").unwrap_err().starts_with("registries: "));
        assert!(of("builtin", "a.test").unwrap_err().starts_with("registries.docker.io.mirrors[0]: "));
    }

    #[test]
    fn remote_engines_are_refused_by_name() {
        let refused = policy(serde_json::json!({"endpoint": "tcp://10.0.0.1:2375"}), Mode::Node).unwrap_err();
        assert!(refused.starts_with("endpoint: "), "{refused}");
        let relative = policy(serde_json::json!({"socket_path": "unix://run/podman/io.podman"}), Mode::Node);
        assert_eq!(relative.unwrap().socket.unwrap().to_str(), Some("/run/podman/io.podman"));
        assert!(
            policy(serde_json::json!({"tls": {"cert": "x"}}), Mode::Node).unwrap_err().starts_with("tls: ")
        );
    }
}
