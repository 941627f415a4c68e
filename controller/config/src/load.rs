//! Loads a config: flags over environment over files over defaults.
//!
//! In: flags, and what surrounds the process. Out: the whole [`Config`], or why there is none.

use std::{collections::BTreeMap, net::IpAddr};

use herdlet_api_types::{alloc::CoreSet, manifest::defaults::NODE_POOL};
use herdlet_base::ownership;
use herdlet_fingerprint::HostNetwork;
use herdlet_manifest::yaml::Problem;
use herdlet_plan::{job::capacity::Room, limits::DYNAMIC_PORTS};

use super::{
    CGROUP_PARENT, Config, ConfigError, DriverSettings, File, Flags, MAX_KILL_TIMEOUT, START_PRESSURE_LIMIT,
    Surroundings, Total,
    check::{cgroup_parent_problem, filter_problem},
    cluster::HostNetworkSection,
    default_socket, default_state_dir, drivers,
    gc::Rules,
    host_port::host_port,
    places,
    sources::{Loaded, Opening, Sources},
    vault,
};

impl Config {
    /// Loads the config from flags, environment and files.
    ///
    /// # Errors
    /// [`ConfigError`]; nothing was changed.
    pub fn load(flags: Flags, surroundings: &Surroundings<'_>) -> Result<Self, ConfigError> {
        let flags = flags.or_variables(surroundings.variable).with_absolute_paths()?;
        let loaded = Sources::read(&flags.config, Opening::MayWait)?.file().map_err(ConfigError::Problems)?;
        Self::merge(flags, loaded, surroundings)
    }

    /// Like [`Config::load`], for an agent, which must be able to trust its config.
    ///
    /// # Errors
    /// [`ConfigError`]; [`ConfigError::Exposed`] if another user could change one of the files.
    pub fn load_trusted(flags: Flags, surroundings: &Surroundings<'_>) -> Result<Self, ConfigError> {
        let flags = flags.or_variables(surroundings.variable).with_absolute_paths()?;
        check_trust(&flags)?;
        Self::load(flags, surroundings)
    }

    pub(super) fn merge(
        flags: Flags,
        loaded: Loaded,
        surroundings: &Surroundings<'_>,
    ) -> Result<Self, ConfigError> {
        let Loaded { mut file, mut warnings, has_nomads, .. } = loaded;
        overridden_lists(&flags, &file).into_iter().for_each(|problem| warnings.push(problem));
        if has_nomads && file.cluster.enabled.is_none() && flags.servers.is_empty() {
            return Err(ConfigError::NotEnabled);
        }
        let host_networks = host_networks(&mut file);
        let gc = gc_rules(&file);
        let mut meta: BTreeMap<String, String> =
            std::mem::take(&mut file.meta).into_iter().map(|(key, text)| (key, text.0)).collect();
        meta.extend(flags.meta()?);
        let given = flags.raw_exec()?;
        let servers =
            if flags.servers.is_empty() { std::mem::take(&mut file.servers) } else { flags.servers };
        if !servers.is_empty() && has_nomads && file.cluster.enabled.is_none() {
            file.cluster.enabled = Some(true);
        }
        let state_dir = match flags.state_dir.or(file.state_dir) {
            Some(path) => path,
            None => default_state_dir(surroundings).ok_or(ConfigError::NoHome)?,
        };
        let socket = flags.socket.or(file.socket).unwrap_or_else(|| default_socket(surroundings, &state_dir));
        let token_file = flags.token_file.or(file.token_file);
        let listen = host_port("listen", flags.listen.or(file.listen))?;
        let tls = file.tls.and_then(|tls| tls.files());
        let auto_join = file.consul.client_auto_join;
        let mut cluster = file.cluster.cluster(servers, auto_join, listen.clone(), tls.clone())?;
        if let Some(cluster) = &mut cluster {
            cluster.network.host_networks = host_networks;
        }
        let listen = match listen.filter(|_| cluster.is_none()) {
            None => None,
            Some(address) => match token_file {
                Some(token_file) => Some((address, token_file)),
                None => return Err(ConfigError::NoToken(address)),
            },
        };
        let given = drivers::Given { raw_exec: given, cluster: cluster.as_ref() };
        let drivers = DriverSettings::of(&file.drivers, &given);
        let host_ip = match flags.host_ip.or(file.host_ip) {
            None => IpAddr::from([127, 0, 0, 1]),
            Some(text) => {
                let why = format!("expected an IP address, found \"{text}\"");
                text.parse().map_err(|_| ConfigError::Flag { flag: "host-ip", why })?
            }
        };
        let cgroup_parent =
            flags.cgroup_parent.or(file.cgroup_parent).unwrap_or_else(|| CGROUP_PARENT.to_owned());
        if let Some(why) = cgroup_parent_problem(&cgroup_parent) {
            return Err(ConfigError::Flag { flag: "cgroup-parent", why });
        }
        let log_level = flags.log_level.or(file.log_level).unwrap_or_else(|| "info".to_owned());
        if let Some(why) = filter_problem(&log_level) {
            return Err(ConfigError::Flag { flag: "log-level", why });
        }
        let log_format = match flags.log_format {
            Some(text) => text.parse().map_err(|why| ConfigError::Flag { flag: "log-format", why })?,
            None => file.log_format.unwrap_or_default(),
        };
        let or = |text: Option<String>, default: &str| text.unwrap_or_else(|| default.to_owned());
        Ok(Self {
            name: or(flags.name.or(file.name.map(|text| text.0)), surroundings.host_name),
            datacenter: or(flags.datacenter.or(file.datacenter.map(|text| text.0)), "dc1"),
            region: or(flags.region.or(file.region.map(|text| text.0)), "global"),
            node_class: or(flags.node_class.or(file.node_class.map(|text| text.0)), ""),
            node_pool: or(flags.node_pool.or(file.node_pool.map(|text| text.0)), NODE_POOL),
            meta,
            cluster,
            warnings,
            files: flags.config,
            runtime_parent: flags
                .runtime_dir
                .or(file.runtime_dir)
                .or_else(|| places::default_runtime_parent(surroundings)),
            common_plugin_dir: file.common_plugin_dir.unwrap_or_else(|| state_dir.join("common_plugins")),
            network: file.network.settled(&state_dir),
            state_dir,
            socket,
            listen,
            tls,
            http: file.http.settled(),
            publish_allocation_metrics: file.telemetry.publish_allocation_metrics,
            metrics_listen: host_port("metrics-listen", flags.metrics_listen.or(file.metrics_listen))?,
            dns_listen: host_port("dns-listen", flags.dns_listen.or(file.dns_listen))?,
            manifests: if flags.manifests.is_empty() { file.manifests } else { flags.manifests },
            cgroup_parent,
            host_ip,
            host_volumes: file.host_volumes,
            max_kill_timeout: file.max_kill_timeout.map_or(MAX_KILL_TIMEOUT, |span| span.0),
            start_pressure_limit: file.start_pressure_limit.unwrap_or(START_PRESSURE_LIMIT),
            task_dir_users: file.task_dir_users.into_iter().map(|name| name.0).collect(),
            artifact: file.artifact.limits(),
            template: file.template.settled(),
            gc,
            drivers,
            consul: file.consul.settled(),
            variables_key_file: file.variables.key_file,
            issuer: file.identities.settled(),
            vault: vault::settled(file.vault),
            dynamic_ports: file.dynamic_ports.map_or(DYNAMIC_PORTS, |ports| ports.min..=ports.max),
            reserved: Room {
                cpu_mhz: file.reserved.cpu,
                cores: 0,
                memory_mib: file.reserved.memory,
                disk_mib: file.reserved.disk,
            },
            // Invalid ports are already reported as problems of the file.
            reserved_ports: file.reserved.ports().unwrap_or_default(),
            // The same holds for invalid cores.
            reserved_cores: CoreSet::parse(&file.reserved.cores).unwrap_or_default(),
            reservable_cores: file.reservable_cores.as_deref().and_then(CoreSet::parse),
            total: Total {
                cpu_mhz: file.cpu_total_compute,
                memory_mib: file.memory_total_mb,
                disk_mib: file.disk_total_mb,
            },
            log_level,
            log_format,
        })
    }
}

/// Returns the rules for garbage collection, with defaults.
fn gc_rules(file: &File) -> Rules {
    let default = Rules::default();
    Rules {
        job_gc_threshold: file.job_gc_threshold.map_or(default.job_gc_threshold, |span| span.0),
        gc_max_allocs: file.gc_max_allocs.unwrap_or(default.gc_max_allocs),
        gc_disk_usage_threshold: file.gc_disk_usage_threshold.unwrap_or(default.gc_disk_usage_threshold),
        gc_inode_usage_threshold: file.gc_inode_usage_threshold.unwrap_or(default.gc_inode_usage_threshold),
        gc_interval: file.gc_interval.map_or(default.gc_interval, |span| span.0),
    }
}

/// Checks that only trusted users can change the config files.
pub(super) fn check_trust(flags: &Flags) -> Result<(), ConfigError> {
    for path in &flags.config {
        ownership::check_if_there(path)?;
        if path.is_dir() {
            ownership::check_entries(path)?;
        }
    }
    Ok(())
}

/// Lists of the files that a flag or its variable replaces: readers expect lists to be joined.
fn overridden_lists(flags: &Flags, file: &File) -> Vec<Problem> {
    let manifests = !file.manifests.is_empty() && !flags.manifests.is_empty();
    let servers = !file.servers.is_empty() && !flags.servers.is_empty();
    let differs = [
        ("manifests", manifests && flags.manifests != file.manifests),
        ("servers", servers && flags.servers != file.servers),
    ];
    let files: Vec<String> = flags.config.iter().map(|path| path.display().to_string()).collect();
    let problem = |key: &str| Problem {
        source: files.join(", "),
        line: 0,
        column: 0,
        path: key.to_owned(),
        message: format!(
            "it has no effect, because --{key} or HERDLET_{} replaces it: set only one of them",
            key.to_uppercase()
        ),
    };
    differs.iter().filter(|(_, differs)| *differs).map(|(key, _)| problem(key)).collect()
}

/// Networks of the machine can be in two sections. Both have all of them then.
fn host_networks(file: &mut File) -> Vec<HostNetwork> {
    let named = &mut file.network.host_networks;
    for network in std::mem::take(&mut file.cluster.host_networks) {
        if !named.contains(&network) {
            named.push(network);
        }
    }
    named.iter().cloned().map(HostNetworkSection::settled).collect()
}
