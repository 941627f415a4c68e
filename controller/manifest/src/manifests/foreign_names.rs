//! Names of settings in Compose files, units of systemd, programs of supervisord and pods of Kubernetes.
//!
//! In: the schema of a job. Out: the same schema with a message for each of these names where it is an unknown field.

use schemars::Schema;
use serde_json::{Map, Value as Json};

/// Names with the message that follows "unknown field `NAME`; ".
const NAMES: [(&[&str], &str); 45] = [
    (
        &[
            "working_dir",
            "workingDir",
            "work_dir",
            "workdir",
            "WorkingDirectory",
            "directory",
            "cwd",
            "chdir",
        ],
        "the working directory is `work_dir` in `config` of a task",
    ),
    (&["stop_signal", "stopsignal", "StopSignal", "KillSignal"], "did you mean `kill_signal` of a task?"),
    (
        &["stop_grace_period", "stopwaitsecs", "TimeoutStopSec", "terminationGracePeriodSeconds"],
        "did you mean `kill_timeout` of a task?",
    ),
    (
        &["healthcheck", "HEALTHCHECK", "livenessProbe", "readinessProbe", "startupProbe"],
        "checks belong to a service: services: [{name: web, port: http, checks: [{type: http, path: /, interval: 10s, \
         timeout: 2s}]}]",
    ),
    (
        &["ulimits", "ulimit", "LimitNOFILE", "LimitNPROC", "LimitCORE", "LimitMEMLOCK", "rlimits"],
        "a task has the limits of the agent: set them in the agent's unit (LimitNOFILE=); `pids_limit` in `config` limits \
         processes",
    ),
    (&["nice", "Nice"], "run the program with nice: config: {command: nice, args: [\"-n\", \"5\", PROGRAM]}"),
    (
        &["umask", "UMask"],
        "set it in a shell: config: {command: sh, args: [-c, \"umask 027; exec PROGRAM\"]}",
    ),
    (&["EnvironmentFile", "envFrom"], "did you mean `env_file` of a task?"),
    (&["Environment"], "did you mean `env` of a task?"),
    (&["entrypoint", "ExecStart", "script"], "the program is `command`, with `args`, in `config` of a task"),
    (
        &["ExecStartPre", "initContainers", "pre_start"],
        "write another task with lifecycle: {hook: prestart}, or artifacts for downloads",
    ),
    (&["ExecStartPost", "postStart", "post_start"], "write another task with lifecycle: {hook: poststart}"),
    (&["ExecStop", "preStop", "pre_stop"], "did you mean `prestop` of a task?"),
    (&["ExecStopPost"], "write another task with lifecycle: {hook: poststop}"),
    (&["ExecReload"], "reload a task with herdlet signal JOB HUP"),
    (&["User", "runAsUser"], "did you mean `user` of a task?"),
    (&["Group", "SupplementaryGroups"], "a task has the groups of its `user`"),
    (
        &["Restart", "autorestart", "restartPolicy", "restart_policy"],
        "did you mean `restart`? `always` restarts without end",
    ),
    (&["RestartSec", "min_uptime"], "did you mean `delay` of `restart`?"),
    (
        &["StartLimitBurst", "startretries", "max_restarts", "max_attempts"],
        "did you mean `attempts` of `restart`?",
    ),
    (&["StartLimitIntervalSec", "StartLimitInterval"], "did you mean `interval` of `restart`?"),
    (&["startsecs"], "did you mean `min_healthy_time` of `update`?"),
    (
        &["autostart", "WantedBy", "enabled"],
        "the agent starts all jobs that are not stopped; herdlet stop JOB stops one",
    ),
    (&["numprocs", "instances", "scale", "replicas"], "did you mean `count` of a group?"),
    (&["deploy"], "its settings are `count`, `update` and `restart` of a group, and `resources` of a task"),
    (&["containers"], "did you mean `tasks`?"),
    (
        &["mem_limit", "mem_reservation", "MemoryMax", "MemoryHigh", "memory_limit", "max_memory_restart"],
        "did you mean `memory` of `resources`, in MiB?",
    ),
    (
        &["cpus", "cpu_shares", "cpu_quota", "CPUQuota", "CPUWeight"],
        "did you mean `cpu` of `resources`, in MHz?",
    ),
    (&["TasksMax"], "did you mean `pids_limit` in `config` of a task?"),
    (&["OOMScoreAdjust"], "did you mean `oom_score_adj` in `config` of a task?"),
    (
        &[
            "logging",
            "stdout_logfile",
            "stderr_logfile",
            "StandardOutput",
            "StandardError",
            "log_file",
            "out_file",
        ],
        "the agent keeps the output of every task: herdlet logs JOB; `logs` of a task limits the files",
    ),
    (
        &["stdout_logfile_maxbytes", "stderr_logfile_maxbytes"],
        "did you mean `max_file_size` of `logs`, in MB?",
    ),
    (&["stdout_logfile_backups", "stderr_logfile_backups"], "did you mean `max_files` of `logs`?"),
    (&["links", "After", "Requires", "Wants", "BindsTo"], "did you mean `depends_on` of a task?"),
    (&["container_name", "process_name"], "the name of a task is its `name`"),
    (
        &["networks", "network_mode", "expose", "hostNetwork"],
        "networks and ports belong to the group: network: {mode: bridge, ports: {http: {static: 8080}}}",
    ),
    (&["labels"], "labels belong to `metadata` of the document; tags for Traefik belong to `services`"),
    (
        &["hostname", "domainname", "extra_hosts"],
        "raw_exec tasks have the machine's name; the docker driver has `hostname` and `extra_hosts` in `config`",
    ),
    (
        &["privileged"],
        "`privileged` belongs to `config` of the docker driver; the agent's config must allow it",
    ),
    (
        &["cap_add", "cap_drop", "capabilities", "AmbientCapabilities", "CapabilityBoundingSet"],
        "the drivers docker, exec, java and podman have `cap_add` and `cap_drop` in `config`",
    ),
    (&["init", "tty", "stdin_open"], "it belongs to `config` of the docker driver"),
    (&["profiles"], "write each profile as a job in a file of its own, and apply the files that you need"),
    (&["extends", "x-templates"], "repeat the settings, or use anchors of YAML: `<<: *common`"),
    (&["configs"], "write a template of the task: templates: [{data: \"…\", destination: local/app.conf}]"),
    (&["build"], "a job runs what exists: build it before, or fetch it with `artifacts` of a task"),
];

/// Adds the messages, for all maps of the schema.
pub(super) fn explained(mut schema: Schema) -> Schema {
    let names = NAMES.iter().flat_map(|(names, message)| names.iter().map(|name| (*name, *message)));
    let mut table: Map<String, Json> =
        names.map(|(name, message)| (name.to_owned(), message.into())).collect();
    if let Some(root) = schema.as_object_mut() {
        // What the schema says itself is more precise.
        if let Some(Json::Object(own)) = root.remove("x-misplaced") {
            table.extend(own);
        }
        root.insert("x-misplaced".to_owned(), Json::Object(table));
    }
    schema
}
