//! Examples of resolving and writing manifests.

use serde_json::{from_value, json, to_value};

use super::{JobManifest, VolumeManifest};
use crate::{
    Duration,
    job::{
        CheckKind, DependencyCondition, Job, JobType, Lifecycle, PortRequest, Provider, RestartMode,
        Template, TemplateChange, TemplateSource, TemplateWait,
    },
    volume::VolumeKind,
};

fn job(spec: serde_json::Value) -> Job {
    let document =
        json!({"apiVersion": "herdlet/v1", "kind": "Job", "metadata": {"name": "web"}, "spec": spec});
    from_value::<JobManifest>(document).unwrap().to_job()
}

fn volume(spec: serde_json::Value) -> crate::volume::Volume {
    let document =
        json!({"apiVersion": "herdlet/v1", "kind": "Volume", "metadata": {"name": "site"}, "spec": spec});
    from_value::<VolumeManifest>(document).unwrap().to_volume()
}

#[track_caller]
fn comes_back(job: &Job) {
    let written = to_value(JobManifest::from_job(job)).unwrap();
    assert_eq!(&from_value::<JobManifest>(written.clone()).unwrap().to_job(), job, "written as {written:#}");
}

#[test]
fn fills_in_the_defaults() {
    let job = job(json!({"groups": [{"name": "g", "tasks": [{"name": "t", "driver": "mock"}]}]}));
    assert_eq!((job.kind, job.priority, job.region.as_str()), (JobType::Service, 50, "global"));
    assert_eq!(
        (job.namespace.as_str(), job.name.as_str(), job.datacenters.as_slice()),
        ("default", "web", &["*".into()][..])
    );
    let group = &job.groups[0];
    assert_eq!((group.count, group.disk_mib, group.update.is_some()), (1, 300, false));
    let task = &group.tasks[0];
    assert_eq!(
        (task.kill_timeout, task.logs.max_files, task.logs.max_file_size_mib),
        (Duration::from_secs(5), 10, 10)
    );
    assert_eq!((task.resources.cpu_mhz, task.resources.memory_mib), (None, None));
    assert_eq!((task.restart.attempts, task.restart.interval), (2, Duration::from_secs(1800)));
    assert_eq!((task.restart.delay, task.restart.mode), (Duration::from_secs(15), RestartMode::Fail));
    comes_back(&job);
}

#[test]
fn a_batch_job_has_its_own_restart_policy() {
    let job =
        job(json!({"type": "batch", "groups": [{"name": "g", "tasks": [{"name": "t", "driver": "mock"}]}]}));
    let restart = &job.groups[0].tasks[0].restart;
    assert_eq!((restart.attempts, restart.interval), (3, Duration::from_secs(24 * 3600)));
    comes_back(&job);
}

#[test]
fn a_task_overrides_single_fields_of_its_group() {
    let job = job(json!({"groups": [{
        "name": "g", "restart": {"attempts": 10, "interval": "10m", "delay": "1s", "mode": "delay"},
        "tasks": [{"name": "a", "driver": "mock", "restart": {"attempts": 0}}, {"name": "b", "driver": "mock"}],
    }]}));
    let [a, b] = job.groups[0].tasks.as_slice() else { panic!("expected two tasks") };
    assert_eq!(
        (a.restart.attempts, a.restart.delay, a.restart.mode),
        (0, Duration::from_secs(1), RestartMode::Delay)
    );
    assert_eq!((b.restart.attempts, b.restart.interval), (10, Duration::from_secs(600)));
    comes_back(&job);
}

#[test]
fn a_group_overrides_single_fields_of_the_jobs_update() {
    let job = job(json!({
        "update": {"max_parallel": 2, "min_healthy_time": "2s"},
        "groups": [
            {"name": "a", "update": {"max_parallel": 3}, "tasks": []}, {"name": "b", "tasks": []},
        ],
    }));
    let [a, b] = job.groups.as_slice() else { panic!("expected two groups") };
    let (a, b) = (a.update.as_ref().unwrap(), b.update.as_ref().unwrap());
    assert_eq!((a.max_parallel, a.min_healthy_time), (3, Duration::from_secs(2)));
    assert_eq!((b.max_parallel, b.healthy_deadline), (2, Duration::from_secs(300)));
    comes_back(&job);
}

#[test]
fn stages_dependencies_and_hooks() {
    let job = job(json!({"groups": [{"name": "g", "tasks": [
        {"name": "p", "driver": "mock", "lifecycle": {"hook": "prestart"}},
        {"name": "s", "driver": "mock", "lifecycle": {"hook": "prestart", "sidecar": true}},
        {"name": "m", "driver": "mock", "depends_on": ["s", {"task": "p", "condition": "completed"}],
         "prestop": {"command": "drain", "args": ["1.10"]}, "kill_signal": "SIGTERM", "user": "1000"},
        {"name": "x", "driver": "mock", "lifecycle": {"hook": "poststop"}},
    ]}]}));
    let tasks = &job.groups[0].tasks;
    assert_eq!(tasks[1].lifecycle, Lifecycle::PrestartSidecar);
    assert_eq!(tasks[3].lifecycle, Lifecycle::Poststop);
    assert_eq!(tasks[2].depends_on.len(), 2);
    assert_eq!(tasks[2].prestop.as_ref().unwrap().args, ["1.10"]);
    comes_back(&job);
}

#[test]
fn services_get_names_and_checks() {
    let job = job(json!({"groups": [{
        "name": "g", "network": {"ports": {"http": {"static": 8080, "to": 80}, "free": {}}},
        "services": [
            {"port": "http", "checks": [{"type": "tcp", "interval": "10s", "timeout": "2s"}]},
            {"name": "${JOB}-${TASKGROUP}-x", "provider": "consul", "tags": ["1.10"], "checks": [
                {"name": "up", "type": "http", "path": "/", "interval": "1s", "timeout": "1s",
                 "header": {"Host": ["a"]}, "protocol": "https", "tls_skip_verify": true},
            ]},
        ],
        "tasks": [{"name": "t", "driver": "mock", "services": [{"name": "${BASE}-${NOMAD_PORT_http}"}]}],
    }]}));
    let [first, second] = job.groups[0].services.as_slice() else { panic!("expected two services") };
    assert_eq!((first.name.as_str(), first.provider), ("web-g", Provider::Nomad));
    assert_eq!(first.checks[0].name, "service: \"web-g\" check");
    assert_eq!((second.name.as_str(), second.provider), ("web-g-x", Provider::Consul));
    let CheckKind::Http { method, protocol, .. } = &second.checks[0].kind else {
        panic!("expected an HTTP check")
    };
    assert_eq!((method.as_str(), protocol.as_str()), ("GET", "https"));
    assert_eq!(job.groups[0].tasks[0].services[0].name, "web-g-t-${NOMAD_PORT_http}");
    comes_back(&job);
}

#[test]
fn cni_networks_come_back() {
    let job = job(json!({"groups": [{
        "name": "g", "network": {"mode": "cni/net", "ports": {"http": {}}, "cni": {"args": {"a": "b"}}},
        "tasks": [{"name": "t", "driver": "mock"}],
    }]}));
    assert_eq!(job.groups[0].network.as_ref().unwrap().cni_args["a"], "b");
    comes_back(&job);
}

#[test]
fn ports_of_tasks_come_back() {
    let job = job(json!({"groups": [{"name": "g", "tasks": [
        {"name": "a", "driver": "mock", "resources": {"cpu": 5, "network": {"ports": {"db": {"static": 6379, "to": 9}, "http": {}}}}},
        {"name": "b", "driver": "mock", "resources": {"network": {}}},
    ]}]}));
    let group = &job.groups[0];
    let requests = group
        .port_requests()
        .map(|(task, label, port)| (task.map(|task| task.name.as_str()), label.as_str(), *port));
    // A task listens on the host port.
    let expected = [("db", Some(6379)), ("http", None)];
    let expected = expected.map(|(label, fixed)| (Some("a"), label, PortRequest { fixed, to: None }));
    assert_eq!(requests.collect::<std_alloc::vec::Vec<_>>(), expected);
    assert_eq!(group.fixed_ports().collect::<std_alloc::vec::Vec<_>>(), [6379]);
    comes_back(&job);
}

#[test]
fn volumes_come_back() {
    let made =
        volume(json!({"type": "host", "plugin_id": "mkdir", "parameters": {"mode": "0755", "uid": 33}}));
    assert_eq!(made.kind, VolumeKind::Mkdir { mode: 0o755, uid: Some(33), gid: None });
    let found = volume(json!({"type": "host", "host_path": "/srv", "read_only": true}));
    assert!(found.read_only);
    for volume in [made, found, volume(json!({"type": "host", "plugin_id": "mkdir"}))] {
        let written = to_value(VolumeManifest::from_volume(&volume)).unwrap();
        assert_eq!(from_value::<VolumeManifest>(written).unwrap().to_volume(), volume);
    }
}

#[test]
fn lengths_are_written_short() {
    for (written, short) in [
        ("1h0m0s", "1h"),
        ("90s", "1m30s"),
        ("90m", "1h30m"),
        ("250ms", "250ms"),
        ("0", "0s"),
        ("20m", "20m"),
    ] {
        let span: super::Span = from_value(json!(written)).unwrap();
        assert_eq!(to_value(span).unwrap(), json!(short));
    }
}

#[test]
fn restart_policies_of_compose_are_words() {
    let policy = |kind: &str, word: &str| {
        let job = job(
            json!({"type": kind, "groups": [{"name": "g", "restart": word, "tasks": [{"name": "t", "driver": "mock"}]}]}),
        );
        let policy = job.groups[0].tasks[0].restart.clone();
        comes_back(&job);
        (policy.attempts, policy.interval, policy.delay, policy.mode)
    };
    let (minute, second, day) =
        (Duration::from_secs(60), Duration::from_secs(1), Duration::from_secs(24 * 3600));
    for (kind, word, expected) in [
        ("service", "always", (10, minute, second, RestartMode::Delay)),
        ("service", "unless-stopped", (10, minute, second, RestartMode::Delay)),
        ("batch", "on-failure", (10, minute, second, RestartMode::Delay)),
        ("batch", "on-failure:3", (3, day, second, RestartMode::Fail)),
        ("service", "no", (0, minute, second, RestartMode::Fail)),
    ] {
        assert_eq!(policy(kind, word), expected, "{word}");
    }
    for text in ["allways", "on-failure:0", "on-failure:x", "always:3", ""] {
        assert_eq!(super::group::RestartWord::read(text), None);
    }
}

#[test]
fn groups_wait_for_groups_and_jobs() {
    let job = job(json!({"groups": [
        {"name": "cache", "tasks": [{"name": "t", "driver": "mock"}]},
        {"name": "web", "depends_on": ["cache", {"job": "db", "group": "main", "condition": "started"}, {"job": "init", "condition": "completed"}],
         "tasks": [{"name": "t", "driver": "mock"}]},
    ]}));
    let on = &job.groups[1].depends_on;
    assert_eq!(
        (on[0].job.as_deref(), on[0].group.as_deref(), on[0].condition),
        (None, Some("cache"), DependencyCondition::Healthy)
    );
    assert_eq!(
        (on[1].job.as_deref(), on[1].group.as_deref(), on[1].condition),
        (Some("db"), Some("main"), DependencyCondition::Started)
    );
    assert_eq!(
        (on[2].job.as_deref(), on[2].group.as_deref(), on[2].condition),
        (Some("init"), None, DependencyCondition::Completed)
    );
    comes_back(&job);
}

#[test]
fn a_template_has_nomads_defaults() {
    let written = json!({"groups": [{"name": "g", "tasks": [{"name": "t", "driver": "mock", "templates": [
        {"data": "x", "destination": "local/x"},
        {"source": "local/y.tmpl", "data": "", "destination": "local/y", "change_mode": "signal", "uid": -1, "gid": 100,
         "wait": {"min": "2s"}},
        {"data": "x", "destination": "local/z", "change_mode": "signal", "change_signal": "sigusr1", "perms": "0600",
         "wait": {"max": "1s"}},
        {"data": "x", "destination": "local/s", "change_mode": "script", "change_script": {"command": "c"}, "splay": "0s"},
    ]}]}]});
    let job = job(written);
    let [plain, reloaded, renamed, script] = job.groups[0].tasks[0].templates.as_slice() else {
        panic!("expected four templates")
    };
    assert_eq!(
        *plain,
        Template {
            source: TemplateSource::Inline("x".into()),
            destination: "local/x".into(),
            perms: 0o644,
            uid: None,
            gid: None,
            env: false,
            on_change: TemplateChange::Restart,
            splay: Duration::from_secs(5),
            wait: None,
            left_delimiter: "{{".into(),
            right_delimiter: "}}".into(),
            error_on_missing_key: false,
            once: false,
        }
    );
    let wait = |min: i64, max: i64| {
        Some(TemplateWait { min: Duration::from_secs(min), max: Duration::from_secs(max) })
    };
    assert_eq!(reloaded.source, TemplateSource::File("local/y.tmpl".into()));
    assert_eq!(reloaded.on_change, TemplateChange::Signal("SIGHUP".into()));
    assert_eq!((reloaded.uid, reloaded.gid, reloaded.wait), (None, Some(100), wait(2, 8)));
    assert_eq!(renamed.on_change, TemplateChange::Signal("SIGUSR1".into()));
    assert_eq!((renamed.perms, renamed.wait), (0o600, wait(0, 1)));
    let TemplateChange::Script(command) = &script.on_change else { panic!("{script:?}") };
    assert_eq!((command.timeout, command.fail_on_error), (Duration::from_secs(5), false));
    assert_eq!(script.splay, Duration::ZERO);
    comes_back(&job);
}

#[test]
fn a_written_template_leaves_defaults_out() {
    let task = json!({"name": "t", "driver": "mock", "templates": [
        {"data": "x", "destination": "local/x"},
        {"source": "a", "destination": "b", "change_mode": "signal", "perms": "0400", "wait": {"min": "1s", "max": "9s"}},
    ]});
    let restart = json!({"render_templates": true});
    let job = job(json!({"groups": [{"name": "g", "restart": restart, "tasks": [task]}]}));
    assert!(job.groups[0].tasks[0].restart.render_templates);
    let written = to_value(JobManifest::from_job(&job)).unwrap();
    let group = &written["spec"]["groups"][0];
    assert_eq!((&group["restart"], &group["tasks"][0]), (&restart, &task));
    let whole = to_value(JobManifest::whole(&job)).unwrap();
    let first = &whole["spec"]["groups"][0]["tasks"][0]["templates"][0];
    assert_eq!(
        *first,
        json!({"data": "x", "destination": "local/x", "perms": "0644", "env": false, "change_mode": "restart", "splay": "5s",
               "left_delimiter": "{{", "right_delimiter": "}}", "error_on_missing_key": false, "once": false})
    );
}
