//! The keys of Nomad's agent files, and how each is translated.

mod special;

use super::{Reading, kinds::ValueKind};

/// How to translate a key.
#[derive(Clone, Copy)]
pub(super) enum Key {
    /// Becomes a field of our config.
    Field(ValueKind, &'static str),
    Block(Keys),
    /// Has no effect in herdlet; the author gets a warning.
    Unused,
    /// Needs no translation, and nothing is lost.
    Satisfied,
    /// Needs a function.
    Special(fn(&mut Reading<'_>, &Entry, &str)),
}

pub(super) type Keys = &'static [(&'static str, Key)];

use Key::{Block, Field, Satisfied, Special, Unused};
use ValueKind::{Address, Flag, Percent, SockAddress, Span, Text, Texts, Whole};
use herdlet_manifest::yaml::Entry;

/// The keys at the top of a file.
pub(super) const TOP: Keys = &[
    ("acl", Block(ACL)),
    ("addresses", Block(ADDRESSES)),
    ("advertise", Block(ADVERTISE)),
    ("audit", Unused),
    ("autopilot", Satisfied),
    ("bind_addr", Field(Address, "cluster.bind_addr")),
    ("client", Block(CLIENT)),
    ("consul", Special(special::consul)),
    ("data_dir", Special(special::data_dir)),
    ("datacenter", Field(Text, "datacenter")),
    ("disable_anonymous_signature", Satisfied),
    ("disable_update_check", Satisfied),
    ("enable_debug", Field(Flag, "cluster.enable_debug")),
    ("enable_syslog", Unused),
    ("eventlog", Unused),
    ("http_api_response_headers", Unused),
    ("keyring", Satisfied),
    ("leave_on_interrupt", Field(Flag, "cluster.leave_on_interrupt")),
    ("leave_on_terminate", Field(Flag, "cluster.leave_on_terminate")),
    ("limits", Block(LIMITS)),
    ("log_file", Unused),
    ("log_include_location", Satisfied),
    ("log_json", Special(special::log_json)),
    ("log_level", Special(special::log_level)),
    ("log_rotate_bytes", Unused),
    ("log_rotate_duration", Unused),
    ("log_rotate_max_files", Unused),
    ("name", Field(Text, "name")),
    ("plugin", Special(special::plugin)),
    ("plugin_dir", Unused),
    ("ports", Block(PORTS)),
    ("region", Field(Text, "region")),
    ("reporting", Satisfied),
    ("rpc", Unused),
    ("sentinel", Satisfied),
    ("server", Special(special::server)),
    ("syslog_facility", Unused),
    ("telemetry", Block(TELEMETRY)),
    ("tls", Block(TLS)),
    ("ui", Unused),
    ("vault", Special(special::vault)),
];

const ACL: Keys = &[
    ("enabled", Field(Flag, "cluster.acl.enabled")),
    ("policy_ttl", Field(Span, "cluster.acl.policy_ttl")),
    ("replication_token", Satisfied),
    ("role_ttl", Field(Span, "cluster.acl.role_ttl")),
    ("token_max_expiration_ttl", Satisfied),
    ("token_min_expiration_ttl", Satisfied),
    ("token_ttl", Field(Span, "cluster.acl.token_ttl")),
];

// A client listens only for HTTP.
const ADDRESSES: Keys =
    &[("http", Field(Address, "cluster.http_addr")), ("rpc", Satisfied), ("serf", Satisfied)];
const ADVERTISE: Keys =
    &[("http", Field(Address, "cluster.advertise_http")), ("rpc", Satisfied), ("serf", Satisfied)];
const PORTS: Keys = &[("http", Field(Whole, "cluster.http_port")), ("rpc", Satisfied), ("serf", Satisfied)];

const LIMITS: Keys = &[
    ("http_max_conns_per_client", Field(Whole, "http.max_conns_per_client")),
    // A TLS handshake has the same timeout as a request's header.
    ("https_handshake_timeout", Unused),
    // Only for servers.
    ("rpc_handshake_timeout", Satisfied),
    ("rpc_max_conns_per_client", Satisfied),
];

const CLIENT: Keys = &[
    ("alloc_dir", Unused),
    ("alloc_mounts_dir", Unused),
    ("artifact", Block(ARTIFACT)),
    ("bind_wildcard_default_host_network", Unused),
    ("bridge_network_hairpin_mode", Field(Flag, "network.hairpin")),
    ("bridge_network_name", Field(Text, "network.bridge")),
    ("bridge_network_subnet", Field(Text, "network.subnet")),
    ("bridge_network_subnet_ipv6", Field(Text, "network.subnet6")),
    ("cgroup_parent", Field(Text, "cgroup_parent")),
    ("chroot_env", Special(special::chroot_env)),
    ("cni_config_dir", Field(Text, "network.cni_config_dir")),
    ("cni_path", Field(Text, "network.cni_path")),
    ("common_plugin_dir", Field(Text, "common_plugin_dir")),
    ("cpu_disable_dmidecode", Satisfied),
    ("cpu_total_compute", Field(Whole, "cpu_total_compute")),
    ("disable_remote_exec", Field(Flag, "cluster.disable_remote_exec")),
    // In Nomad, `disk_total_mb` is the reported size and `disk_free_mb` the size for allocations. Our setting
    // is the latter.
    ("disk_free_mb", Field(Whole, "disk_total_mb")),
    ("disk_total_mb", Special(special::disk_total)),
    ("drain_on_shutdown", Block(DRAIN)),
    ("enabled", Field(Flag, "cluster.enabled")),
    ("fingerprint", Unused),
    ("gc_disk_usage_threshold", Field(Percent, "gc_disk_usage_threshold")),
    ("gc_inode_usage_threshold", Field(Percent, "gc_inode_usage_threshold")),
    ("gc_interval", Field(Span, "gc_interval")),
    ("gc_max_allocs", Field(Whole, "gc_max_allocs")),
    ("gc_parallel_destroys", Satisfied),
    ("gc_volumes_on_node_gc", Unused),
    ("host_network", Special(special::host_network)),
    ("host_volume", Special(special::host_volume)),
    ("host_volume_plugin_dir", Unused),
    ("host_volumes_dir", Unused),
    ("max_dynamic_port", Field(Whole, "dynamic_ports.max")),
    ("max_kill_timeout", Field(Span, "max_kill_timeout")),
    ("memory_total_mb", Field(Whole, "memory_total_mb")),
    ("meta", Special(special::meta)),
    ("min_dynamic_port", Field(Whole, "dynamic_ports.min")),
    ("network_interface", Special(special::network_interface)),
    ("network_speed", Field(Whole, "cluster.network_speed")),
    ("no_host_uuid", Special(special::no_host_uuid)),
    ("node_class", Field(Text, "node_class")),
    ("node_max_allocs", Field(Whole, "cluster.node_max_allocs")),
    ("node_pool", Field(Text, "node_pool")),
    ("nomad_service_discovery", Unused),
    ("options", Special(special::options)),
    ("preferred_address_family", Field(Text, "cluster.preferred_address_family")),
    ("publish_allocation_metrics", Field(Flag, "telemetry.publish_allocation_metrics")),
    ("reservable_cores", Field(Text, "reservable_cores")),
    ("reserved", Block(RESERVED)),
    ("server_join", Block(SERVER_JOIN)),
    ("servers", Field(Texts, "servers")),
    ("state_dir", Special(special::state_dir)),
    ("template", Block(TEMPLATE)),
    ("users", Unused),
];

const ARTIFACT: Keys = &[
    ("decompression_file_count_limit", Field(Whole, "artifact.decompression_file_count_limit")),
    ("decompression_size_limit", Field(Text, "artifact.decompression_size_limit")),
    // Unpacking is always sandboxed.
    ("disable_artifact_inspection", Unused),
    ("disable_filesystem_isolation", Unused),
    ("filesystem_isolation_extra_paths", Unused),
    ("gcs_timeout", Satisfied),
    ("git_timeout", Satisfied),
    ("hg_timeout", Satisfied),
    ("http_max_size", Field(Text, "artifact.http_max_size")),
    ("http_read_timeout", Field(Span, "artifact.http_read_timeout")),
    ("s3_timeout", Satisfied),
    ("set_environment_variables", Unused),
];

const TEMPLATE: Keys = &[
    ("block_query_wait", Field(Span, "template.block_query_wait")),
    ("consul_retry", Block(TEMPLATE_CONSUL_RETRY)),
    // Templates never read files outside of their task's directory.
    ("disable_file_sandbox", Unused),
    ("function_denylist", Field(Texts, "template.function_denylist")),
    ("max_stale", Field(Span, "template.max_stale")),
    ("nomad_retry", Block(TEMPLATE_RETRY)),
    ("vault_default_lease_duration", Unused),
    ("vault_retry", Unused),
    ("wait", Block(TEMPLATE_WAIT)),
    ("wait_bounds", Block(TEMPLATE_WAIT_BOUNDS)),
];

const TEMPLATE_CONSUL_RETRY: Keys = &[
    // As for servers.
    ("attempts", Unused),
    ("backoff", Field(Span, "template.consul_retry.backoff")),
    ("max_backoff", Field(Span, "template.consul_retry.max_backoff")),
];

const TEMPLATE_RETRY: Keys = &[
    // Servers that are away stop no task, so data is followed without a limit of attempts.
    ("attempts", Unused),
    ("backoff", Field(Span, "template.nomad_retry.backoff")),
    ("max_backoff", Field(Span, "template.nomad_retry.max_backoff")),
];
const TEMPLATE_WAIT: Keys =
    &[("max", Field(Span, "template.wait.max")), ("min", Field(Span, "template.wait.min"))];
const TEMPLATE_WAIT_BOUNDS: Keys =
    &[("max", Field(Span, "template.wait_bounds.max")), ("min", Field(Span, "template.wait_bounds.min"))];

const DRAIN: Keys = &[
    ("deadline", Field(Span, "cluster.drain_on_shutdown.deadline")),
    ("force", Field(Flag, "cluster.drain_on_shutdown.force")),
    ("ignore_system_jobs", Field(Flag, "cluster.drain_on_shutdown.ignore_system_jobs")),
];

const RESERVED: Keys = &[
    ("cores", Field(Text, "reserved.cores")),
    ("cpu", Field(Whole, "reserved.cpu")),
    ("disk", Field(Whole, "reserved.disk")),
    ("memory", Field(Whole, "reserved.memory")),
    ("reserved_ports", Field(Text, "reserved.reserved_ports")),
];

const SERVER_JOIN: Keys = &[
    ("retry_interval", Field(Span, "cluster.retry_interval")),
    ("retry_join", Special(special::servers)),
    ("retry_max", Field(Whole, "cluster.retry_max")),
    ("start_join", Special(special::servers)),
];

const TELEMETRY: Keys = &[
    ("circonus_api_app", Unused),
    ("circonus_api_token", Unused),
    ("collection_interval", Satisfied),
    ("datadog_address", Unused),
    ("datadog_tags", Unused),
    ("disable_dispatched_job_summary_metrics", Satisfied),
    ("disable_hostname", Satisfied),
    ("filter_default", Unused),
    ("in_memory_collection_interval", Satisfied),
    ("in_memory_retention_period", Satisfied),
    ("include_alloc_metadata_in_metrics", Unused),
    ("allowed_metadata_keys_in_metrics", Unused),
    ("prefix_filter", Unused),
    ("prometheus_metrics", Satisfied),
    ("publish_allocation_metrics", Field(Flag, "telemetry.publish_allocation_metrics")),
    ("publish_node_metrics", Satisfied),
    ("statsd_address", Unused),
    ("statsite_address", Unused),
    ("use_node_name", Satisfied),
];

const TLS: Keys = &[
    ("ca_file", Field(Text, "cluster.tls.ca_file")),
    ("cert_file", Field(Text, "cluster.tls.cert_file")),
    ("http", Field(Flag, "cluster.tls.http")),
    ("key_file", Field(Text, "cluster.tls.key_file")),
    ("rpc", Field(Flag, "cluster.tls.rpc")),
    // For servers and their clients during an upgrade; a client uses TLS either way.
    ("rpc_upgrade_mode", Satisfied),
    ("tls_cipher_suites", Unused),
    ("tls_min_version", Unused),
    ("tls_prefer_server_cipher_suites", Satisfied),
    ("verify_https_client", Field(Flag, "cluster.tls.verify_https_client")),
    ("verify_server_hostname", Field(Flag, "cluster.tls.verify_server_hostname")),
];

/// Fields are below `consul`, or `consul.clusters.NAME`.
pub(super) const CONSUL: Keys = &[
    ("address", Field(SockAddress, "address")),
    ("allow_unauthenticated", Satisfied),
    ("auth", Unused),
    ("auto_advertise", Unused),
    ("ca_file", Field(Text, "ca_file")),
    ("cert_file", Field(Text, "cert_file")),
    ("checks_use_advertise", Unused),
    ("client_auto_join", Field(Flag, "client_auto_join")),
    ("client_failures_before_critical", Unused),
    ("client_failures_before_warning", Unused),
    ("client_http_check_name", Unused),
    ("client_service_name", Unused),
    ("grpc_address", Unused),
    ("grpc_ca_file", Unused),
    ("key_file", Field(Text, "key_file")),
    ("name", Satisfied),
    ("namespace", Field(Text, "namespace")),
    ("server_auto_join", Satisfied),
    ("server_http_check_name", Satisfied),
    ("server_rpc_check_name", Satisfied),
    ("server_serf_check_name", Satisfied),
    ("server_service_name", Unused),
    ("service_auth_method", Field(Text, "service_auth_method")),
    ("service_identity", Block(LOGIN_IDENTITY)),
    ("share_ssl", Satisfied),
    ("ssl", Field(Flag, "ssl")),
    ("tags", Unused),
    ("task_auth_method", Field(Text, "task_auth_method")),
    ("task_identity", Block(LOGIN_IDENTITY)),
    ("timeout", Unused),
    ("token", Field(Text, "token")),
    ("verify_ssl", Field(Flag, "verify_ssl")),
];

/// Fields are below `vault.NAME`.
pub(super) const VAULT: Keys = &[
    ("address", Field(Text, "address")),
    // Servers need it; tasks use the token that they get.
    ("allow_unauthenticated", Satisfied),
    ("ca_file", Field(Text, "ca_file")),
    ("ca_path", Field(Text, "ca_path")),
    ("cert_file", Field(Text, "cert_file")),
    ("create_from_role", Field(Text, "create_from_role")),
    ("default_identity", Block(LOGIN_IDENTITY)),
    ("enabled", Field(Flag, "enabled")),
    ("jwt_auth_backend_path", Field(Text, "jwt_auth_backend_path")),
    ("key_file", Field(Text, "key_file")),
    ("name", Satisfied),
    ("namespace", Field(Text, "namespace")),
    ("task_token_ttl", Satisfied),
    ("tls_server_name", Field(Text, "tls_server_name")),
    ("tls_skip_verify", Field(Flag, "tls_skip_verify")),
    ("token", Satisfied),
];

const LOGIN_IDENTITY: Keys = &[
    ("aud", Field(Texts, "aud")),
    ("env", Unused),
    ("extra_claims", Unused),
    ("file", Unused),
    ("ttl", Field(Span, "ttl")),
];

pub(super) const HOST_VOLUME: Keys = &[("path", Satisfied), ("read_only", Satisfied)];
pub(super) const HOST_NETWORK: Keys =
    &[("cidr", Satisfied), ("interface", Satisfied), ("reserved_ports", Satisfied)];
