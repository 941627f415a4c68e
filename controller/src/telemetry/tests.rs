//! The page of metrics: complete, readable by who scrapes it, and true of what is shown.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::{AtomicI64, Ordering},
    time::Duration,
};

use herdlet_api_types::{
    AllocId, JobKey, UnixNanos,
    alloc::{Allocation, ClientStatus, Desired},
    job::{Job, JobType},
    service::{CheckResult, CheckStatus},
    task::{ExitResult, TaskStatus},
    view::{AllocView, Convergence, ConvergenceState, JobView, Reason, TaskView},
};
use herdlet_plan::{event::Noticed, turn::View};
use herdlet_runtime::{CommitIndex, Publisher};

use super::{names::Kind, *};

const SECOND: i64 = 1_000_000_000;

struct Node {
    telemetry: Telemetry,
    model: Arc<ReadModel>,
    runtime: Arc<Metrics>,
    health: watch::Sender<StoreHealth>,
    now: Arc<AtomicI64>,
}

fn node() -> Node {
    let (telemetry, model, runtime) =
        (Telemetry::new(), Arc::new(ReadModel::default()), Arc::new(Metrics::default()));
    let health = watch::Sender::new(StoreHealth::Ok);
    let now = Arc::new(AtomicI64::new(1_000 * SECOND));
    let clock = Arc::clone(&now);
    telemetry.attach(Sources {
        model: Arc::clone(&model),
        runtime: Arc::clone(&runtime),
        store_health: health.subscribe(),
        operations: Box::new(|| {
            vec![(
                "start",
                KindFigures { done_total: 3, oldest: Duration::from_millis(1500), ..KindFigures::default() },
            )]
        }),
        state_bytes: Box::new(|| 4096),
        manifest_errors: Box::new(|| 2),
        wall_ns: Box::new(move || clock.load(Ordering::Relaxed)),
    });
    Node { telemetry, model, runtime, health, now }
}

fn key() -> JobKey {
    JobKey { namespace: "default".to_owned(), id: "we\"b\\\n".to_owned() }
}

fn convergence(
    state: ConvergenceState,
    reason: Option<Reason>,
    since: i64,
    overdue_at: Option<i64>,
) -> Convergence {
    Convergence {
        state,
        reason,
        message: String::new(),
        since: UnixNanos(since * SECOND),
        overdue_at: overdue_at.map(|at| UnixNanos(at * SECOND)),
    }
}

fn plain_job() -> Arc<Job> {
    Arc::new(Job {
        namespace: key().namespace,
        id: key().id,
        name: "web".to_owned(),
        labels: BTreeMap::new(),
        kind: JobType::Service,
        priority: 50,
        region: "global".to_owned(),
        datacenters: Vec::new(),
        meta: BTreeMap::new(),
        groups: Vec::new(),
    })
}

fn job(version: u64, convergence: Convergence) -> View {
    View::Job(
        JobView {
            key: key(),
            version,
            job: plain_job(),
            deleting: false,
            create_index: 1,
            modify_index: 1,
            submit_time: UnixNanos(0),
            allocs: Vec::new(),
            convergence,
        }
        .into(),
    )
}

fn alloc(phase: &str, attempt: u32, exit: Option<ExitResult>, check: CheckStatus) -> View {
    let spec = Allocation {
        id: AllocId::from_hash([3; 16]),
        job_key: key(),
        job_version: 0,
        job: plain_job(),
        group: "g".to_owned(),
        index: 0,
        ports: BTreeMap::new(),
        desired: Desired::Run,
        desired_description: String::new(),
        create_index: 1,
        create_time: UnixNanos(0),
        previous: None,
    };
    let task = TaskView {
        name: "main".to_owned(),
        state: TaskStatus::Running,
        phase: phase.to_owned(),
        attempt,
        failed: false,
        restarts: 0,
        last_restart: UnixNanos(0),
        started_at: UnixNanos(0),
        finished_at: UnixNanos(0),
        exit,
        events: Vec::new(),
    };
    let check = CheckResult {
        id: "c".to_owned(),
        service: "web".to_owned(),
        check: "alive".to_owned(),
        task: None,
        status: check,
        output: String::new(),
        at: UnixNanos(0),
    };
    View::Alloc(
        AllocView {
            spec: Arc::new(spec),
            status: ClientStatus::Running,
            description: String::new(),
            tasks: vec![task],
            checks: vec![check],
            healthy: None,
            modify_index: 1,
            modify_time: UnixNanos(0),
            convergence: convergence(ConvergenceState::Waiting, Some(Reason::Health), 940, Some(999)),
        }
        .into(),
    )
}

/// The value of one sample of the page.
fn sample(page: &str, start: &str) -> Option<f64> {
    page.lines().find_map(|line| line.strip_prefix(start)?.strip_prefix(' ')?.parse().ok())
}

/// What `promtool check metrics` looks at, for either format: each family once, with its help and type before its samples,
/// no sample twice, histograms whole.
fn check(page: &str, format: Format) {
    let mut families: BTreeMap<&str, &str> = BTreeMap::new();
    let mut helped = BTreeSet::new();
    let mut samples = BTreeSet::new();
    let mut current = "";
    for line in page.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').unwrap();
            assert!(helped.insert(name) && !help.is_empty(), "{name}: helped twice or not at all");
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert!(helped.contains(name), "{name}: type before help");
            assert!(families.insert(name, kind).is_none(), "{name}: two types");
            current = name;
        } else if line.starts_with('#') {
            assert_eq!(format, Format::OpenMetrics, "{line}");
        } else {
            let name = line.split(['{', ' ']).next().unwrap();
            let (identity, value) = line.rsplit_once(' ').unwrap();
            assert!(value.parse::<f64>().is_ok(), "{line}");
            assert!(samples.insert(identity), "{identity}: twice");
            let expected: Vec<String> = match (families[current], format) {
                ("counter", Format::OpenMetrics) => vec![format!("{current}_total")],
                ("counter" | "gauge", _) => vec![current.to_owned()],
                ("histogram", _) => {
                    ["sum", "count", "bucket"].map(|part| format!("{current}_{part}")).to_vec()
                }
                (kind, _) => panic!("{kind}"),
            };
            assert!(expected.iter().any(|expected| expected == name), "{name} in family {current}");
        }
    }
    assert_eq!(page.ends_with("# EOF\n"), format == Format::OpenMetrics);
}

#[test]
fn every_metric_has_a_name_that_is_listed_and_every_page_is_well_formed() {
    let node = node();
    node.model.publisher().offer(
        CommitIndex(1),
        vec![
            job(0, convergence(ConvergenceState::Converged, None, 1, None)),
            alloc("running", 1, None, CheckStatus::Success),
        ],
    );
    node.telemetry.orphans("cgroup", 1);
    node.telemetry.orphan_removed("cgroup");
    let sink = node.telemetry.sink();
    sink(&Note::Disruption { job: key(), cause: "update" });
    sink(&Note::TaskRestart { job: key(), task: "main".to_owned(), reason: "exit" });
    let text = node.telemetry.page(Format::Text);
    check(&text, Format::Text);
    check(&node.telemetry.page(Format::OpenMetrics), Format::OpenMetrics);
    let typed: BTreeMap<&str, &str> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' ')).collect();
    for (name, kind) in &typed {
        let metric = names::ALL
            .iter()
            .find(|metric| metric.name == *name)
            .unwrap_or_else(|| panic!("{name} is not listed"));
        let listed = match metric.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        assert_eq!(listed, *kind, "{name}");
    }
    let absent: Vec<&str> =
        names::ALL.iter().map(|metric| metric.name).filter(|name| !typed.contains_key(name)).collect();
    // These have no series before something happened.
    assert_eq!(
        absent,
        ["herdlet_job_converged_version", "herdlet_task_oom_total", "herdlet_task_start_seconds"]
    );
    // Names of people can't break out of their label.
    assert!(text.contains(r#"herdlet_job_version{namespace="default",job="we\"b\\\n"} 0"#), "{text}");
}

#[test]
fn gauges_tell_the_present_of_the_read_model_and_age_by_themselves() {
    let node = node();
    let mut publisher = node.model.publisher();
    publisher.offer(
        CommitIndex(1),
        vec![
            job(4, convergence(ConvergenceState::Progressing, Some(Reason::Operation), 990, None)),
            alloc("running", 1, None, CheckStatus::Failure),
        ],
    );
    let page = node.telemetry.page(Format::Text);
    for (start, expected) in [
        (r#"herdlet_objects{kind="job",state="progressing"}"#, 1.0),
        (r#"herdlet_objects{kind="job",state="converged"}"#, 0.0),
        (r#"herdlet_unconverged{kind="alloc",reason="health"}"#, 1.0),
        (r#"herdlet_overdue{kind="alloc"}"#, 1.0),
        (r#"herdlet_overdue{kind="job"}"#, 0.0),
        ("herdlet_convergence_lag_seconds", 60.0),
        (r#"herdlet_allocations{status="running"}"#, 1.0),
        (r#"herdlet_tasks{state="running"}"#, 1.0),
        (r#"herdlet_operation_oldest_seconds{operation="start"}"#, 1.5),
        (r#"herdlet_operations_total{operation="start",result="done"}"#, 3.0),
        ("herdlet_state_bytes", 4096.0),
        ("herdlet_state_degraded", 0.0),
        ("herdlet_manifest_errors", 2.0),
    ] {
        assert_eq!(sample(&page, start), Some(expected), "{start}\n{page}");
    }
    assert!(
        page.lines()
            .any(|line| line.starts_with("herdlet_check_state{") && line.contains(r#"state="failure"} 1"#))
    );
    // Nothing happens for a minute: a stuck node ages.
    node.now.fetch_add(60 * SECOND, Ordering::Relaxed);
    node.health.send_replace(StoreHealth::Degraded {
        since: herdlet_runtime::Now::default(),
        failures: 1,
        error: String::new(),
    });
    let page = node.telemetry.page(Format::Text);
    assert_eq!(sample(&page, "herdlet_convergence_lag_seconds"), Some(120.0));
    assert_eq!(sample(&page, "herdlet_state_degraded"), Some(1.0));
    publisher.offer(CommitIndex(2), vec![View::AllocGone(AllocId::from_hash([3; 16])), View::JobGone(key())]);
    let page = node.telemetry.page(Format::Text);
    assert_eq!(sample(&page, "herdlet_convergence_lag_seconds"), Some(0.0));
    assert!(!page.contains("herdlet_job_version"));
}

#[test]
fn notes_are_counted() {
    let node = node();
    let page = node.telemetry.page(Format::Text);
    assert_eq!(
        sample(&page, r#"herdlet_drift_detected_total{kind="mounts",by="look"}"#),
        Some(0.0),
        "zero from the start"
    );
    let sink = node.telemetry.sink();
    for _ in 0..2 {
        sink(&Note::DriftDetected { kind: "mounts", by: Noticed::Look });
        sink(&Note::Reconciled { kind: "alloc", result: "unchanged" });
    }
    sink(&Note::DriftRepaired { kind: "mounts" });
    sink(&Note::Converged { kind: "job", took_ns: 2 * SECOND as u64, cause: "apply" });
    node.runtime.turns.add(7);
    let page = node.telemetry.page(Format::Text);
    for (start, expected) in [
        (r#"herdlet_drift_detected_total{kind="mounts",by="look"}"#, 2.0),
        (r#"herdlet_drift_repaired_total{kind="mounts"}"#, 1.0),
        (r#"herdlet_reconcile_total{kind="alloc",result="unchanged"}"#, 2.0),
        (r#"herdlet_convergence_duration_seconds_sum{cause="apply"}"#, 2.0),
        (r#"herdlet_convergence_duration_seconds_bucket{le="1.0",cause="apply"}"#, 0.0),
        (r#"herdlet_convergence_duration_seconds_bucket{le="+Inf",cause="apply"}"#, 1.0),
        ("herdlet_turns_total", 7.0),
    ] {
        assert_eq!(sample(&page, start), Some(expected), "{start}\n{page}");
    }
}

#[tokio::test]
async fn what_is_published_is_followed_and_an_end_is_counted_once() {
    let node = node();
    let oom = Some(ExitResult { oom_killed: true, signal: 9, ..ExitResult::default() });
    let mut publisher = node.model.publisher();
    // Ended under an earlier agent.
    publisher.offer(CommitIndex(1), vec![alloc("dead", 1, oom.clone(), CheckStatus::Pending)]);
    let following = tokio::spawn(node.telemetry.clone().follow(Arc::downgrade(&node.model)));
    tokio::task::yield_now().await;
    for view in [
        alloc("dead", 1, oom.clone(), CheckStatus::Success),
        alloc("starting", 2, oom.clone(), CheckStatus::Success),
        alloc("running", 2, oom.clone(), CheckStatus::Success),
        alloc("backing-off", 2, oom.clone(), CheckStatus::Success),
        alloc("backing-off", 2, oom, CheckStatus::Failure),
    ] {
        publisher.offer(
            CommitIndex(2),
            vec![view, job(3, convergence(ConvergenceState::Converged, None, 1, None))],
        );
        tokio::task::yield_now().await;
    }
    let page = node.telemetry.page(Format::Text);
    let line = |start: &str| {
        page.lines().find(|line| line.starts_with(start)).map(|line| line.rsplit_once(' ').unwrap().1)
    };
    assert_eq!(line("herdlet_task_oom_total"), Some("1"), "{page}");
    assert_eq!(line("herdlet_job_converged_version"), Some("3.0"), "{page}");
    following.abort();
}

#[test]
fn who_asks_for_openmetrics_gets_it() {
    let accept = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.1";
    assert_eq!(Format::wanted(Some(accept)), Format::OpenMetrics);
    assert_eq!(Format::wanted(Some("*/*")), Format::Text);
    assert_eq!(Format::wanted(None), Format::Text);
    assert!(Format::Text.content_type().starts_with("text/plain; version=0.0.4"));
}
