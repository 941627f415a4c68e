//! The flags of `herdlet agent`, and the variables that say the same.
//!
//! A flag comes before its variable, the variable before the config file, the file before the default.

use std::path::PathBuf;

use clap::Args;

use super::ConfigError;
use crate::telemetry::logs;

/// What the command line says. Every flag has a variable: `--state-dir` is `HERDLET_STATE_DIR`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub struct Flags {
    /// Config file (YAML)
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Name of this node [default: the host name]
    #[arg(long)]
    pub name: Option<String>,
    /// Where state is kept [default: /var/lib/herdlet as root, else the XDG state directory]
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// What lives as long as the boot is kept below here, by instance
    #[arg(long, value_name = "DIR")]
    pub runtime_dir: Option<PathBuf>,
    /// Socket of the API
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Serve the API on TCP too; needs --token-file, on loopback as well
    #[arg(long, value_name = "HOST:PORT")]
    pub listen: Option<String>,
    /// File with the token that TCP clients must send
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Serve /metrics, /healthz and /readyz, and nothing else, without a token
    #[arg(long, value_name = "HOST:PORT")]
    pub metrics_listen: Option<String>,
    /// Answer DNS for services, NAME.service.herdlet, on UDP and TCP, without a token
    #[arg(long, value_name = "HOST:PORT")]
    pub dns_listen: Option<String>,
    /// Folder of manifests to keep true; may be given more than once
    #[arg(long, value_name = "DIR")]
    pub manifests: Vec<PathBuf>,
    /// Topmost cgroup of all tasks
    #[arg(long, value_name = "NAME")]
    pub cgroup_parent: Option<String>,
    /// Address of the host ports that tasks get
    #[arg(long, value_name = "IP")]
    pub host_ip: Option<String>,
    /// What is logged: error, warn, info, debug, trace, or a filter such as info,herdlet=debug
    #[arg(long, value_name = "FILTER")]
    pub log_level: Option<String>,
    /// How it is logged: text or json
    #[arg(long, value_name = "FORMAT")]
    pub log_format: Option<String>,
}

impl Flags {
    /// What the command line leaves open is taken from the environment.
    pub(super) fn or_variables(self, variable: &dyn Fn(&str) -> Option<String>) -> Self {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        let path = |name: &str| set(name).map(PathBuf::from);
        let manifests = if self.manifests.is_empty() {
            set("HERDLET_MANIFESTS")
                .map(|value| value.split(':').map(PathBuf::from).collect())
                .unwrap_or_default()
        } else {
            self.manifests
        };
        Self {
            config: self.config.or_else(|| path("HERDLET_CONFIG")),
            name: self.name.or_else(|| set("HERDLET_NAME")),
            state_dir: self.state_dir.or_else(|| path("HERDLET_STATE_DIR")),
            runtime_dir: self.runtime_dir.or_else(|| path("HERDLET_RUNTIME_DIR")),
            socket: self.socket.or_else(|| path("HERDLET_SOCKET")),
            listen: self.listen.or_else(|| set("HERDLET_LISTEN")),
            token_file: self.token_file.or_else(|| path("HERDLET_TOKEN_FILE")),
            metrics_listen: self.metrics_listen.or_else(|| set("HERDLET_METRICS_LISTEN")),
            dns_listen: self.dns_listen.or_else(|| set("HERDLET_DNS_LISTEN")),
            manifests,
            cgroup_parent: self.cgroup_parent.or_else(|| set("HERDLET_CGROUP_PARENT")),
            host_ip: self.host_ip.or_else(|| set("HERDLET_HOST_IP")),
            log_level: self.log_level.or_else(|| logs::directives_from_env(variable)),
            log_format: self.log_format.or_else(|| set("HERDLET_LOG_FORMAT")),
        }
    }

    /// Paths that people type are meant from where they stand.
    pub(super) fn with_absolute_paths(mut self) -> Result<Self, ConfigError> {
        let own = [
            &mut self.state_dir,
            &mut self.runtime_dir,
            &mut self.socket,
            &mut self.token_file,
            &mut self.config,
        ];
        for path in own.into_iter().flatten().chain(&mut self.manifests) {
            *path = std::path::absolute(&*path)
                .map_err(|source| ConfigError::Path { path: path.clone(), source })?;
        }
        Ok(self)
    }
}
