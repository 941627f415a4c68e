//! Every metric of the agent: its name, help text and labels. No other file contains a name.
//!
//! Rules (<https://prometheus.io/docs/practices/naming/>): a common prefix, base units, `_total` for counters, labels
//! over which a sum is meaningful, no labels with unbounded values (allocation ids). No label has a name that Prometheus
//! gives to each scraped sample itself (`job`, `instance`): it would rename ours to `exported_job`.

/// The type of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Only grows, and starts at 0 with the agent.
    Counter,
    Gauge,
    /// A distribution of durations or sizes.
    Histogram,
}

/// The unit of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Measure {
    Number,
    Seconds,
    Bytes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metric {
    /// The full name.
    pub name: &'static str,
    /// The help text, with a full stop.
    pub help: &'static str,
    pub kind: Kind,
    pub measure: Measure,
    /// Names of its labels, in order.
    pub labels: &'static [&'static str],
}

macro_rules! metrics {
    ($($constant:ident = $kind:ident $measure:ident $name:literal $labels:tt $help:literal;)*) => {
        $(
            #[doc = $help]
            pub const $constant: Metric = Metric {
                name: concat!("herdlet_", $name),
                help: $help,
                kind: Kind::$kind,
                measure: Measure::$measure,
                labels: &$labels,
            };
        )*

        /// All metrics, in the order of the page.
        pub const ALL: &[Metric] = &[$($constant),*];
    };
}

metrics! {
    // Convergence.
    OBJECTS = Gauge Number "objects" ["kind", "state"]
        "Desired objects and those still to be removed, by state of convergence (converged, progressing, waiting, failed).";
    UNCONVERGED = Gauge Number "unconverged" ["kind", "reason"]
        "Objects that have not converged, by reason.";
    OVERDUE = Gauge Number "overdue" ["kind"]
        "Objects that have not converged by the deadline of their own plan. Failed objects do not count; see herdlet_objects.";
    CONVERGENCE_LAG = Gauge Seconds "convergence_lag_seconds" []
        "Age of the oldest change that is not applied yet, or 0. Failed objects do not count; see herdlet_objects.";
    CONVERGENCE_DURATION = Histogram Seconds "convergence_duration_seconds" ["cause"]
        "Time that jobs took to converge, from durable acceptance, by cause.";
    JOB_VERSION = Gauge Number "job_version" ["namespace", "job_name"]
        "Desired version of the job.";
    JOB_CONVERGED_VERSION = Gauge Number "job_converged_version" ["namespace", "job_name"]
        "Version of the job that last converged while this agent ran; -1 for none.";
    JOB_HELD = Gauge Number "job_held" ["namespace", "job_name"]
        "1 for each job that was rolled back and whose file in a folder is not in force until it changes.";
    DISRUPTIONS = Counter Number "disruptions_total" ["namespace", "job_name", "cause"]
        "Allocations whose running tasks the agent stopped, by cause: stop (request, new version, drain), leader, sibling, main (such a task ended), outlived (max_run_duration).";
    QUARANTINED = Gauge Number "quarantined" []
        "Objects that are no longer planned because planning them panicked.";

    // Drift and leaks.
    DRIFT_DETECTED = Counter Number "drift_detected_total" ["kind", "by"]
        "Detected drifts: parts that differ from what the agent created, by part and by how they were noticed (event, or look: an inspection).";
    DRIFT_REPAIRED = Counter Number "drift_repaired_total" ["kind"]
        "Repaired drifts, by part.";
    DRIFT_REPAIR_DURATION = Histogram Seconds "drift_repair_duration_seconds" ["kind"]
        "Time from the detection of a drift until its repair, by part; without drifts that were repaired at once.";
    ORPHANS = Gauge Number "orphans" ["kind"]
        "Attempts, networks and allocation directories of this instance that belong to no known object and were left alone.";
    ORPHANS_REMOVED = Counter Number "orphans_removed_total" ["kind"]
        "Attempts, networks and allocation directories of this instance that belonged to no known object and were removed.";
    COLLECTED = Counter Number "collected_total" ["kind", "reason"]
        "Collected jobs and allocations, by reason (age, count, disk, inodes, request).";

    // Allocations and tasks.
    ALLOCATIONS = Gauge Number "allocations" ["status"]
        "Allocations by client status.";
    TASKS = Gauge Number "tasks" ["state"]
        "Tasks by state.";
    TASK_RESTARTS = Counter Number "task_restarts_total" ["namespace", "job_name", "task", "reason"]
        "Restarts of tasks, by reason.";
    TASK_OOM = Counter Number "task_oom_total" ["namespace", "job_name", "task"]
        "Tasks that the kernel killed because they were out of memory.";
    TASK_START = Histogram Seconds "task_start_seconds" ["driver"]
        "Time from the decision to start a task until its process runs.";
    CHECK_STATE = Gauge Number "check_state" ["namespace", "job_name", "service", "check", "state"]
        "Checks of the built-in catalogue by their last result (pending, success, warning, failure).";

    // The machine's resources.
    NODE_CPU = Gauge Number "node_cpu_hertz" ["state"]
        "Processor capacity of this machine: allocated to allocations, free for more, or reserved by the agent's config.";
    NODE_MEMORY = Gauge Bytes "node_memory_bytes" ["state"]
        "Memory of this machine: allocated to allocations, free for more, or reserved by the agent's config.";
    NODE_DISK = Gauge Bytes "node_disk_bytes" ["state"]
        "Disk that holds the state: allocated to allocations, free for more, or reserved by the agent's config.";

    NODE_ELIGIBLE = Gauge Number "node_eligible" []
        "1 while allocations may be created on this machine, else 0; absent on a node of a cluster, where servers decide.";
    NODE_DRAINING = Gauge Number "node_draining" []
        "1 while this machine is drained, else 0; absent on a node of a cluster, where servers drain.";

    // The loop.
    RECONCILE = Counter Number "reconcile_total" ["kind", "result"]
        "Objects planned, by result (unchanged, changed, waiting).";
    TURN_TIMESTAMP = Gauge Seconds "turn_timestamp_seconds" []
        "When the loop last took a turn, in seconds since the Unix epoch.";
    TURNS = Counter Number "turns_total" []
        "Turns of the loop.";
    TURN_DURATION = Histogram Seconds "turn_duration_seconds" []
        "Time that turns took: applying events and planning.";
    PANICS = Counter Number "panics_total" []
        "Panics that were caught while planning or releasing decisions.";
    QUEUE_DEPTH = Gauge Number "queue_depth" []
        "Events that wait for a turn of the loop.";
    QUEUE_WAIT = Histogram Seconds "queue_wait_seconds" []
        "Time that events waited for their turn.";
    QUEUE_WAKES = Gauge Number "queue_wakes" []
        "Objects that will be planned again at a set time.";
    RELEASE_WAIT = Histogram Seconds "release_wait_seconds" []
        "Time that turns waited until they were durable and released.";

    // Operations.
    OPERATIONS = Counter Number "operations_total" ["operation", "result"]
        "Operations that ended, by kind and result (done, panicked, cancelled, refused).";
    OPERATIONS_OVERDUE = Counter Number "operations_overdue_total" ["operation"]
        "Operations that exceeded their deadline; operations_total counts each again when it ends.";
    OPERATION_DURATION = Histogram Seconds "operation_duration_seconds" ["operation"]
        "Time that operations ran.";
    OPERATIONS_RUNNING = Gauge Number "operations_running" ["operation"]
        "Running operations, including those past their deadline.";
    OPERATIONS_WAITING = Gauge Number "operations_waiting" ["operation"]
        "Operations that wait for a permit, or because the machine is under pressure.";
    OPERATIONS_PACED = Counter Number "operations_paced_total" ["operation"]
        "Operations that waited because the machine was under pressure and others had a higher priority.";
    OPERATION_OLDEST = Gauge Seconds "operation_oldest_seconds" ["kind"]
        "Age of the oldest operation that has not ended; 0 when there is none.";

    // State.
    STATE_WRITE = Histogram Seconds "state_write_seconds" []
        "Time that commits to the state database took.";
    STATE_WRITE_FAILURES = Counter Number "state_write_failures_total" []
        "Commits to the state database that failed and were retried.";
    STATE_DEGRADED = Gauge Number "state_degraded" []
        "1 while the state database accepts no commits: nothing new is started.";
    STATE_RESERVE_IN_USE = Gauge Number "state_reserve_in_use" []
        "1 while the disk of the state is so full that the agent uses its reserve of disk space, else 0.";
    STATE_RECORDS = Counter Number "state_records_total" []
        "Records written to the state database.";
    STATE_BYTES = Gauge Bytes "state_bytes" []
        "Size of the state database file.";
    STOPS_AHEAD = Counter Number "stops_without_commit_total" []
        "Stops that did not wait for their commit, because the state database was too slow.";

    // Catalogues.
    SERVICES = Gauge Number "services" ["catalog", "state"]
        "Services by catalogue: registered; pending (registration not confirmed); leaving (removal not confirmed).";
    CATALOG_FAILURES = Counter Number "catalog_failures_total" ["catalog", "request"]
        "Requests that a catalogue refused or did not answer, by purpose (list, register, deregister, update, watch).";
    PUBLISHED_PORTS = Gauge Number "published_ports" ["state"]
        "Published ports of services: open (held, and leading to the healthy instances); waiting (explain shows the reason).";
    PUBLISHED_TARGETS = Gauge Number "published_targets" []
        "Instances to which published ports lead.";

    // Templates of tasks.
    TEMPLATE_QUERIES = Gauge Number "template_queries" []
        "Different queries of templates that are watched: variables, lists of variables, services.";
    TEMPLATE_RENDERS = Counter Number "template_renders_total" ["result"]
        "Renders of the templates of a task, by result (done, missing: data is not there, failed).";
    TEMPLATES_OUTDATED = Gauge Number "templates_outdated" []
        "Tasks whose last files are kept because data of their templates is gone, or Vault has not renewed it.";
    TEMPLATES_OUTDATED_AGE = Gauge Seconds "templates_outdated_seconds" []
        "Time since the first of these tasks lost its data, or since the agent found it missing; 0 if there are none.";
    VAULT_LOGINS = Counter Number "vault_logins_total" ["result"]
        "Log-ins of tasks at Vault, by result (done, failed).";
    CONSUL_LOGINS = Counter Number "consul_logins_total" ["cluster", "result"]
        "Log-ins of tasks and services at Consul, by its name in the config and by result (done, failed).";
    VAULT_OUTDATED = Gauge Number "vault_tokens_outdated" []
        "Tasks that keep a token of Vault which can't be renewed now.";
    VAULT_OUTDATED_AGE = Gauge Seconds "vault_tokens_outdated_seconds" []
        "Time since renewals of the first of these tokens have failed; 0 if there are none.";

    // A node's contact with its servers.
    NODE_REGISTERED = Gauge Number "node_registered" []
        "1 if servers have registered this node, by their last answer, else 0; absent if it is not part of a cluster.";
    NODE_CONTACT_AGE = Gauge Seconds "node_contact_age_seconds" []
        "Time since servers last answered a registration or heartbeat, or since the agent started if they never did.";
    NODE_HEARTBEAT_TTL = Gauge Seconds "node_heartbeat_ttl_seconds" []
        "Time from the last answer until the next heartbeat was due.";
    NODE_SERVERS = Gauge Number "node_servers" []
        "Known servers of the cluster.";
    NODE_HEARTBEAT_FAILURES = Counter Number "node_heartbeat_failures_total" []
        "Registrations and heartbeats that no server answered or that servers refused.";
    NODE_TTL_MISSED = Counter Number "node_ttl_missed_total" []
        "Times that servers may have considered this node down, because its heartbeat was late.";

    // APIs.
    AUTHENTICATION_FAILURES = Counter Number "authentication_failures_total" ["reason"]
        "Requests on TCP with a wrong token, or without a required one.";

    // Input.
    MANIFEST_ERRORS = Gauge Number "manifest_errors" []
        "Manifest files that are currently refused.";
    CERTIFICATE_EXPIRY = Gauge Seconds "tls_certificate_expiry_timestamp_seconds" []
        "Earliest expiry in the certificate chain of the API on TCP; absent without TLS.";
    BUILD_INFO = Gauge Number "build_info" ["version"]
        "Always 1; the label is the version of the running agent.";
    ISOLATION_INFO = Gauge Number "isolation_info" ["mode"]
        "Always 1; the mode is what holds the processes of a task together: a cgroup, or (none) only their process tree.";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_helps_keep_the_rules() {
        let mut seen = std::collections::BTreeSet::new();
        for Metric { name, help, kind, measure, labels } in ALL {
            assert!(seen.insert(name), "{name} is defined twice");
            let plain = |text: &str| text.chars().all(|char| char == '_' || char.is_ascii_lowercase());
            assert!(plain(name) && labels.iter().all(|label| plain(label)), "{name}");
            assert!(
                help.ends_with('.') && help.starts_with(|char: char| char.is_uppercase() || char == '1'),
                "{name}: {help}"
            );
            assert!(!help.contains('\n') && help.len() < 200, "{name}");
            assert_eq!(*kind == Kind::Counter, name.ends_with("_total"), "{name}");
            assert_eq!(
                *measure == Measure::Seconds,
                name.trim_end_matches("_total").ends_with("_seconds"),
                "{name}"
            );
            assert_eq!(
                *measure == Measure::Bytes,
                name.trim_end_matches("_total").ends_with("_bytes"),
                "{name}"
            );
            for reserved in
                ["_sum", "_count", "_bucket", "_created", "counter", "gauge", "histogram", "metric"]
            {
                assert!(
                    !name.ends_with(reserved) && !labels.contains(&"le") && !labels.contains(&"quantile"),
                    "{name}"
                );
            }
            for given_by_prometheus in ["job", "instance"] {
                assert!(!labels.contains(&given_by_prometheus), "{name}");
            }
            for abbreviation in ["_ms", "_milliseconds", "_mb", "_percent"] {
                assert!(!name.contains(abbreviation), "{name}");
            }
        }
    }
}
