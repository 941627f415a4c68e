//! The flags of `herdlet agent`, and their environment variables.
//!
//! Precedence: flag, variable, config file, default.

use std::path::PathBuf;

use clap::Args;

use super::{ConfigError, log_filter};

/// The flags of `herdlet agent`. Every flag has a variable: `--state-dir` is `HERDLET_STATE_DIR`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
pub struct Flags {
    /// Config file of herdlet (YAML) or of Nomad (.hcl, .json), or a directory of Nomad's; may be given more than once
    #[arg(long, value_name = "FILE")]
    pub config: Vec<PathBuf>,
    /// Name of this node [default: the host name]
    #[arg(long)]
    pub name: Option<String>,
    /// Join the Nomad cluster with these servers as a node: HOST, HOST:PORT or the name of an SRV record; may be given more than once
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',')]
    pub servers: Vec<String>,
    /// Region of this node [default: global]
    #[arg(long)]
    pub region: Option<String>,
    /// Datacenter of this node [default: dc1]
    #[arg(long)]
    pub datacenter: Option<String>,
    /// Class of this node
    #[arg(long, value_name = "CLASS")]
    pub node_class: Option<String>,
    /// Pool of this node [default: default]
    #[arg(long, value_name = "POOL")]
    pub node_pool: Option<String>,
    /// Metadata of this node, KEY=VALUE; may be given more than once
    #[arg(long, value_name = "KEY=VALUE")]
    pub meta: Vec<String>,
    /// Enable the driver raw_exec [default: true, but false on a node of a cluster]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    pub raw_exec: Option<String>,
    /// State directory [default: /var/lib/herdlet as root, otherwise the XDG state directory]
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// Parent of the directories, one for each instance, of files that don't outlive the boot
    #[arg(long, value_name = "DIR")]
    pub runtime_dir: Option<PathBuf>,
    /// Socket of the API
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Serve the API on TCP too; requires --token-file, even on loopback
    #[arg(long, value_name = "HOST:PORT")]
    pub listen: Option<String>,
    /// File with the token that TCP clients must send
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Serve only /metrics, /healthz and /readyz here, without a token
    #[arg(long, value_name = "HOST:PORT")]
    pub metrics_listen: Option<String>,
    /// Serve DNS for services, NAME.service.herdlet, on UDP and TCP, without a token
    #[arg(long, value_name = "HOST:PORT")]
    pub dns_listen: Option<String>,
    /// Folder of manifests to reconcile; may be given more than once
    #[arg(long, value_name = "DIR")]
    pub manifests: Vec<PathBuf>,
    /// Parent cgroup of all tasks
    #[arg(long, value_name = "NAME")]
    pub cgroup_parent: Option<String>,
    /// Address of the host ports that tasks get
    #[arg(long, value_name = "IP")]
    pub host_ip: Option<String>,
    /// Log filter: error, warn, info, debug, trace, or directives such as info,herdlet=debug
    #[arg(long, value_name = "FILTER")]
    pub log_level: Option<String>,
    /// Log format: text or json
    #[arg(long, value_name = "FORMAT")]
    pub log_format: Option<String>,
}

impl Flags {
    /// Fills in missing flags from the environment.
    pub(super) fn or_variables(self, variable: &dyn Fn(&str) -> Option<String>) -> Self {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        let path = |name: &str| set(name).map(PathBuf::from);
        let list = |given: Vec<String>, name: &str| {
            let split = |value: String| value.split(',').map(|part| part.trim().to_owned()).collect();
            if given.is_empty() { set(name).map(split).unwrap_or_default() } else { given }
        };
        let config = if self.config.is_empty() {
            set("HERDLET_CONFIG")
                .map(|value| value.split(':').map(PathBuf::from).collect())
                .unwrap_or_default()
        } else {
            self.config
        };
        let manifests = if self.manifests.is_empty() {
            set("HERDLET_MANIFESTS")
                .map(|value| value.split(':').map(PathBuf::from).collect())
                .unwrap_or_default()
        } else {
            self.manifests
        };
        Self {
            config,
            name: self.name.or_else(|| set("HERDLET_NAME")),
            servers: list(self.servers, "HERDLET_SERVERS"),
            region: self.region.or_else(|| set("HERDLET_REGION")),
            datacenter: self.datacenter.or_else(|| set("HERDLET_DATACENTER")),
            node_class: self.node_class.or_else(|| set("HERDLET_NODE_CLASS")),
            node_pool: self.node_pool.or_else(|| set("HERDLET_NODE_POOL")),
            meta: list(self.meta, "HERDLET_META"),
            raw_exec: self.raw_exec.or_else(|| set("HERDLET_RAW_EXEC")),
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
            log_level: self.log_level.or_else(|| log_filter::directives_from_env(variable)),
            log_format: self.log_format.or_else(|| set("HERDLET_LOG_FORMAT")),
        }
    }

    /// Parses the node's metadata.
    pub(super) fn meta(&self) -> Result<Vec<(String, String)>, ConfigError> {
        let pair = |text: &String| {
            let pair = text.split_once('=').filter(|(key, _)| !key.is_empty());
            let message = || format!("expected KEY=VALUE, found \"{text}\"");
            let (key, value) = pair.ok_or_else(|| ConfigError::Flag { flag: "meta", why: message() })?;
            Ok((key.to_owned(), value.to_owned()))
        };
        self.meta.iter().map(pair).collect()
    }

    /// Parses `--raw-exec`.
    pub(super) fn raw_exec(&self) -> Result<Option<bool>, ConfigError> {
        let parse = |text: &String| {
            let message = || format!("expected true or false, found \"{text}\"");
            text.parse().map_err(|_| ConfigError::Flag { flag: "raw-exec", why: message() })
        };
        self.raw_exec.as_ref().map(parse).transpose()
    }

    /// Makes paths absolute, relative to the working directory.
    pub(super) fn with_absolute_paths(mut self) -> Result<Self, ConfigError> {
        let own = [&mut self.state_dir, &mut self.runtime_dir, &mut self.socket, &mut self.token_file];
        for path in own.into_iter().flatten().chain(&mut self.manifests).chain(&mut self.config) {
            *path = std::path::absolute(&*path)
                .map_err(|source| ConfigError::Path { path: path.clone(), source })?;
        }
        Ok(self)
    }
}
