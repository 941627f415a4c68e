//! The effective config, with the source of each value.
//!
//! In: flags, the environment, the files. Out: settings under the file's own names, which can be written as a
//! config file.

use herdlet_api_types::{Duration, driver::RAW_EXEC};
use herdlet_driver::Availability;
use herdlet_manifest::yaml;
use herdlet_network::link::Hairpin;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::{
    Config, ConfigError, Flags, LogFormat, Surroundings,
    consul::{ConsulCluster, IdentityRules, LoginRules},
    load::check_trust,
    network::NameServing,
    sources::{Opening, Sources},
    vault::VaultServer,
};

mod cluster;

/// The source of a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    Flag,
    Environment,
    File,
    /// The setting has its default.
    Default,
}

/// A key of the config file with its effective value.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Setting {
    pub key: &'static str,
    /// Null if the setting has no value.
    pub value: Value,
    pub source: Source,
}

/// The alias of `drivers.raw_exec.enabled`.
const RAW_EXEC_ENABLED: &str = "raw_exec.enabled";

/// The networks of the machine, with those of the section `cluster`.
const HOST_NETWORKS: &str = "network.host_networks";

/// Loads the config, and returns it with all settings in the order of the documentation.
///
/// # Errors
/// As [`Config::load`].
pub fn settings(
    flags: Flags,
    surroundings: &Surroundings<'_>,
) -> Result<(Config, Vec<Setting>), ConfigError> {
    read_settings(flags, surroundings, Opening::MayWait)
}

/// Like [`settings`], for an agent that reads its config again: a config that may wait, such as a pipe, is refused.
///
/// # Errors
/// As [`Config::load_trusted`].
pub fn settings_again(
    flags: Flags,
    surroundings: &Surroundings<'_>,
) -> Result<(Config, Vec<Setting>), ConfigError> {
    let flags = flags.or_variables(surroundings.variable).with_absolute_paths()?;
    check_trust(&flags)?;
    read_settings(flags, surroundings, Opening::NeverWaits)
}

fn read_settings(
    flags: Flags,
    surroundings: &Surroundings<'_>,
    opening: Opening,
) -> Result<(Config, Vec<Setting>), ConfigError> {
    let given = flag_values(&flags);
    let flags = flags.or_variables(surroundings.variable).with_absolute_paths()?;
    let with_variables = flag_values(&flags);
    let loaded = Sources::read(&flags.config, opening)?.file().map_err(ConfigError::Problems)?;
    let written = loaded.tree.as_deref().and_then(as_written);
    let is_written = |pointer: &str| {
        written.as_ref().and_then(|file| file.pointer(pointer)).is_some_and(|value| !value.is_null())
    };
    let source = |key: &str| {
        let key_read = if key == RAW_EXEC_ENABLED { "drivers.raw_exec.enabled" } else { key };
        let pointer = format!("/{}", key_read.replace('.', "/"));
        match key {
            _ if given.contains_key(key) => Source::Flag,
            _ if with_variables.contains_key(key) => Source::Environment,
            _ if is_written(&pointer) => Source::File,
            // Networks of the machine may be in either section.
            HOST_NETWORKS if is_written("/cluster/host_networks") => Source::File,
            _ => Source::Default,
        }
    };
    // Without an address the token file is unused, but it is shown because it is configured.
    let token_file = flags.token_file.clone().or_else(|| loaded.file.token_file.clone());
    let listen = flags.listen.clone().or_else(|| loaded.file.listen.clone());
    let reserved_ports = Some(loaded.file.reserved.reserved_ports.clone()).filter(|ports| !ports.is_empty());
    let config = Config::merge(flags, loaded, surroundings)?;
    let setting = |(key, value): (&'static str, Value)| Setting { key, value, source: source(key) };
    let mut settings: Vec<Setting> = values(&config).into_iter().map(setting).collect();
    for (key, value) in
        [("token_file", json!(token_file)), ("reserved.reserved_ports", json!(reserved_ports))]
    {
        if let Some(entry) = settings.iter_mut().find(|setting| setting.key == key) {
            entry.value = value;
        }
    }
    if let Some(listen) = listen.filter(|_| config.cluster.is_some()) {
        of_node_that_listens(&mut settings, &listen);
    }
    Ok((config, settings))
}

/// On a node, `listen` is the address of its HTTP API and sets `cluster.http_addr` and `cluster.http_port`.
fn of_node_that_listens(settings: &mut [Setting], listen: &str) {
    let Some(of_listen) = settings.iter_mut().find(|setting| setting.key == "listen") else { return };
    of_listen.value = json!(listen);
    let source = of_listen.source;
    let of_cluster =
        |setting: &&mut Setting| matches!(setting.key, "cluster.http_addr" | "cluster.http_port");
    settings.iter_mut().filter(of_cluster).for_each(|setting| setting.source = source);
}

/// Returns the flags that are set, by the names of the file.
fn flag_values(flags: &Flags) -> Map<String, Value> {
    let Flags {
        config: _,
        name,
        servers,
        region,
        datacenter,
        node_class,
        node_pool,
        meta,
        raw_exec,
        state_dir,
        runtime_dir,
        socket,
        listen,
        token_file,
        metrics_listen,
        dns_listen,
        manifests,
        cgroup_parent,
        host_ip,
        log_level,
        log_format,
    } = flags;
    let all = json!({
        "name": name, "servers": (!servers.is_empty()).then_some(servers), "region": region, "datacenter": datacenter,
        "node_class": node_class, "node_pool": node_pool, "meta": (!meta.is_empty()).then_some(meta),
        "drivers": raw_exec, RAW_EXEC_ENABLED: raw_exec, "state_dir": state_dir, "runtime_dir": runtime_dir, "socket": socket, "listen": listen,
        "token_file": token_file, "metrics_listen": metrics_listen, "dns_listen": dns_listen,
        "cgroup_parent": cgroup_parent, "host_ip": host_ip,
        "manifests": (!manifests.is_empty()).then_some(manifests),
        "log_level": log_level, "log_format": log_format,
    });
    let Value::Object(all) = all else { return Map::new() };
    all.into_iter().filter(|(_, value)| !value.is_null()).collect()
}

/// Converts the merged files, which have no problems, to JSON.
fn as_written(tree: &yaml::Node) -> Option<Value> {
    yaml::from_node(&yaml::Located { source: "", path: String::new(), node: tree }).ok()
}

/// A duration without units that are zero: `4h`, not `4h0m0s`.
fn short(duration: Duration) -> String {
    let text = duration.to_string();
    let text = text.strip_suffix("m0s").map_or(text.clone(), |text| format!("{text}m"));
    text.strip_suffix("h0m").map_or(text.clone(), |text| format!("{text}h"))
}

fn of_std(duration: std::time::Duration) -> Duration {
    Duration::from_secs(i64::try_from(duration.as_secs()).unwrap_or(i64::MAX))
}

/// A number of bytes in the largest unit that divides it: `100GB`; `0` means unlimited.
fn size(bytes: u64) -> String {
    if bytes == u64::MAX {
        return "0".to_owned();
    }
    let units = [("TB", 1_000_000_000_000), ("GB", 1_000_000_000), ("MB", 1_000_000), ("KB", 1_000)];
    let fits = |(_, unit): &&(&str, u64)| bytes >= *unit && bytes.is_multiple_of(*unit);
    units.iter().find(fits).map_or(bytes.to_string(), |(name, unit)| format!("{}{name}", bytes / unit))
}

/// Returns the effective settings, by the names of the file.
fn values(config: &Config) -> Vec<(&'static str, Value)> {
    let volume = |volume: &super::HostVolume| json!({ "name": volume.name.0, "path": volume.path, "read_only": volume.read_only });
    let (listen, token_file) = config.listen.clone().unzip();
    let address = |address: &super::HostPort| address.to_string();
    let total = config.total();
    // `u64::MAX` means that the machine does not report the amount.
    let reported = |amount: u64| (amount != u64::MAX).then_some(amount);
    let mut all = Vec::from([
        ("name", json!(config.name)),
        ("datacenter", json!(config.datacenter)),
        ("region", json!(config.region)),
        ("node_class", json!((!config.node_class.is_empty()).then_some(&config.node_class))),
        ("node_pool", json!(config.node_pool)),
        ("meta", json!(config.meta)),
        ("servers", json!(config.cluster.as_ref().map(|cluster| &cluster.servers))),
        ("state_dir", json!(config.state_dir)),
        ("runtime_dir", json!(config.runtime_parent)),
        ("socket", json!(config.socket)),
        ("listen", json!(listen.as_ref().map(address))),
        ("token_file", json!(token_file)),
        ("tls.cert_file", json!(config.tls.as_ref().map(|tls| &tls.certificate))),
        ("tls.key_file", json!(config.tls.as_ref().map(|tls| &tls.key))),
        ("tls.ca_file", json!(config.tls.as_ref().map(|tls| &tls.clients))),
        ("tls.verify_https_client", json!(config.tls.as_ref().map(|tls| tls.clients.is_some()))),
        ("metrics_listen", json!(config.metrics_listen.as_ref().map(address))),
        ("http.allowed_hosts", json!(config.http.allowed_hosts)),
        ("http.max_conns_per_client", json!(config.http.max_conns_per_client)),
        ("dns_listen", json!(config.dns_listen.as_ref().map(address))),
        ("manifests", json!(config.manifests)),
        ("cgroup_parent", json!(config.cgroup_parent)),
        ("host_ip", json!(config.host_ip.to_string())),
        ("dynamic_ports", json!({ "min": config.dynamic_ports.start(), "max": config.dynamic_ports.end() })),
        ("reserved.cpu", json!(config.reserved.cpu_mhz)),
        ("reserved.memory", json!(config.reserved.memory_mib)),
        ("reserved.disk", json!(config.reserved.disk_mib)),
        ("reserved.cores", json!(config.reserved_cores.to_string())),
        ("reserved.reserved_ports", json!(config.reserved_ports)),
        ("reservable_cores", json!(config.reservable_cores.as_ref().map(ToString::to_string))),
        ("cpu_total_compute", json!(reported(total.cpu_mhz))),
        ("memory_total_mb", json!(reported(total.memory_mib))),
        ("disk_total_mb", json!(reported(total.disk_mib))),
        ("job_gc_threshold", json!(short(config.gc.job_gc_threshold))),
        ("gc_max_allocs", json!(config.gc.gc_max_allocs)),
        ("gc_disk_usage_threshold", json!(config.gc.gc_disk_usage_threshold)),
        ("gc_inode_usage_threshold", json!(config.gc.gc_inode_usage_threshold)),
        ("gc_interval", json!(short(config.gc.gc_interval))),
        ("max_kill_timeout", json!(short(config.max_kill_timeout))),
        ("start_pressure_limit", json!(config.start_pressure_limit)),
        ("task_dir_users", json!(config.task_dir_users)),
        ("artifact.http_max_size", json!(size(config.artifact.http_bytes_max))),
        ("artifact.http_read_timeout", json!(short(of_std(config.artifact.http_time_max)))),
        ("artifact.decompression_size_limit", json!(size(config.artifact.unpacked_bytes_max))),
        ("artifact.decompression_file_count_limit", json!(config.artifact.entries_max)),
        ("common_plugin_dir", json!(config.common_plugin_dir)),
        ("template.function_denylist", json!(config.template.function_denylist)),
        ("template.wait.min", json!(short(config.template.wait.min))),
        ("template.wait.max", json!(short(config.template.wait.max))),
        ("template.wait_bounds.min", json!(short(config.template.wait_min))),
        ("template.wait_bounds.max", json!(config.template.wait_max.map(short))),
        ("template.block_query_wait", json!(config.template.block_query_wait.map(short))),
        ("template.max_stale", json!(config.template.max_stale.map(short))),
        ("template.consul_retry.backoff", json!(config.template.consul_retry_backoff.map(short))),
        ("template.consul_retry.max_backoff", json!(config.template.consul_retry_backoff_max.map(short))),
        ("template.nomad_retry.backoff", json!(config.template.retry_backoff.map(short))),
        ("template.nomad_retry.max_backoff", json!(config.template.retry_backoff_max.map(short))),
        ("network.bridge", json!(config.network.bridge.as_ref().map(ToString::to_string))),
        ("network.subnet", json!(config.network.subnet.as_ref().map(ToString::to_string))),
        ("network.subnet6", json!(config.network.subnet6.as_ref().map(ToString::to_string))),
        ("network.mtu", json!(config.network.mtu)),
        ("network.hairpin", json!(config.network.hairpin == Hairpin::On)),
        ("network.dns", json!(config.network.dns == NameServing::On)),
        (HOST_NETWORKS, config.network.host_networks.iter().map(cluster::host_network).collect()),
        ("drivers", config.drivers.to_json()),
        (RAW_EXEC_ENABLED, json!(config.drivers.availability(RAW_EXEC) == Availability::Enabled)),
        ("host_volumes", config.host_volumes.iter().map(volume).collect()),
        ("consul.client_auto_join", json!(config.consul.client_auto_join.unwrap_or(true))),
        ("consul.clusters", clusters(config)),
        ("variables.key_file", json!(config.variables_key_file)),
        ("identities.oidc_issuer", json!(config.issuer.url)),
        ("identities.extra_claims", json!(config.issuer.extra_claims)),
        ("identities.optional_extra_claims", json!(config.issuer.optional_extra_claims)),
        ("vault", vault(config)),
        ("telemetry.publish_allocation_metrics", json!(config.publish_allocation_metrics)),
        ("log_level", json!(config.log_level)),
        (
            "log_format",
            json!(match config.log_format {
                LogFormat::Text => "text",
                LogFormat::Json => "json",
            }),
        ),
    ]);
    let at = all.iter().position(|(key, _)| key.starts_with("consul.")).unwrap_or(all.len());
    all.splice(at..at, consul(&config.consul.default_cluster()));
    all.extend(cluster::values(config.cluster.as_ref()));
    all
}

/// The settings of the Consul `default`.
fn consul(consul: &ConsulCluster) -> [(&'static str, Value); 14] {
    let logins = consul.logins();
    [
        ("consul.address", json!(consul.address)),
        ("consul.token_file", json!(consul.token_file)),
        ("consul.token", json!(consul.token.as_ref().map(|_| "(not shown)"))),
        ("consul.ssl", json!(consul.ssl)),
        ("consul.verify_ssl", json!(consul.verify_ssl.unwrap_or(true))),
        ("consul.ca_file", json!(consul.ca_file)),
        ("consul.cert_file", json!(consul.cert_file)),
        ("consul.key_file", json!(consul.key_file)),
        ("consul.namespace", json!(consul.namespace)),
        ("consul.task_auth_method", json!(logins.tasks.method)),
        ("consul.task_identity", identity(&logins.tasks)),
        ("consul.service_auth_method", json!(logins.services.method)),
        ("consul.service_identity", identity(&logins.services)),
        ("consul.service_tokens_dir", json!(consul.service_tokens_dir)),
    ]
}

/// The other Consuls, under the names of the file.
fn clusters(config: &Config) -> Value {
    let fields = |one: &ConsulCluster| {
        let fields = consul(one).into_iter();
        fields.map(|(key, value)| (key.trim_start_matches("consul.").to_owned(), value)).collect()
    };
    let clusters = config.consul.clusters.iter();
    Value::Object(clusters.map(|(name, one)| (name.clone(), Value::Object(fields(one)))).collect())
}

/// The identity that tasks or services of Consul log in with.
fn identity(rules: &LoginRules) -> Value {
    let fields = |identity: &IdentityRules| json!({ "aud": identity.audiences, "ttl": short(identity.ttl) });
    rules.identity.as_ref().map_or(Value::Null, fields)
}

/// The servers of Vault, under the names of the file.
fn vault(config: &Config) -> Value {
    let server = |(name, server): (&String, &VaultServer)| {
        let (certificate, key) = server.certificate.clone().unzip();
        let fields = json!({
            "address": server.address, "namespace": server.namespace, "create_from_role": server.role,
            "jwt_auth_backend_path": server.auth_path, "ca_file": server.ca_file, "ca_path": server.ca_path,
            "cert_file": certificate, "key_file": key, "tls_server_name": server.server_name,
            "tls_skip_verify": server.skip_verify,
            "default_identity": { "aud": server.audiences, "ttl": short(server.identity_ttl) },
        });
        (name.clone(), fields)
    };
    Value::Object(config.vault.iter().map(server).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_and_sizes_are_as_short_as_people_write_them() {
        for (seconds, text) in
            [(14_400, "4h"), (60, "1m"), (90, "1m30s"), (5_400, "1h30m"), (30, "30s"), (0, "0s")]
        {
            assert_eq!(short(Duration::from_secs(seconds)), text);
        }
        for (bytes, text) in
            [(100_000_000_000, "100GB"), (1_500, "1500"), (0, "0"), (u64::MAX, "0"), (2_000, "2KB")]
        {
            assert_eq!(size(bytes), text);
        }
    }
}
