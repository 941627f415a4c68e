//! The page of metrics is complete, well-formed and matches the published state.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use herdlet_api_types::{
    AllocId, JobKey, Moment, UnixNanos,
    alloc::{Allocation, ClientStatus, Desired},
    job::Job,
    service::CheckStatus,
    task::{ExitResult, TaskPhase, TaskStatus},
    view::{AllocView, Convergence, ConvergenceState, DrainView, JobView, Reason, TaskView},
};
use herdlet_manifest::manifests;
use herdlet_plan::{
    event::Noticed,
    job::capacity::Room,
    turn::{Drifted, View},
};
use herdlet_runtime::{CommitIndex, Publisher};
use herdlet_services::catalog::{BuiltIn, ConsulClusters};

use super::{names::Kind, *};

const SECOND: i64 = 1_000_000_000;

struct Node {
    telemetry: Telemetry,
    model: Arc<ReadModel>,
    runtime: Arc<Metrics>,
    health: watch::Sender<StoreHealth>,
    now: Arc<AtomicU64>,
}

fn node() -> Node {
    let seconds = std::time::Duration::from_secs;
    let (age, ttl) = (seconds(7), seconds(15));
    node_with(Some(NodeContact { is_registered: true, age, ttl, servers: 3, failures: 5, losses: 1 }))
}

fn node_with(contact: Option<NodeContact>) -> Node {
    let (telemetry, model, runtime) =
        (Telemetry::new(), Arc::new(ReadModel::default()), Arc::new(Metrics::default()));
    let health = watch::Sender::new(StoreHealth::Ok);
    let now = Arc::new(AtomicU64::new(1_000 * SECOND as u64));
    let clock = Arc::clone(&now);
    telemetry.attach(Sources {
        model: Arc::clone(&model),
        runtime: Arc::clone(&runtime),
        store_health: health.subscribe(),
        reserve_in_use: Box::new(|| true),
        operations: Box::new(|| {
            vec![(
                "start",
                KindFigures { done_total: 3, oldest: Duration::from_millis(1500), ..KindFigures::default() },
            )]
        }),
        isolation: "cgroup",
        state_bytes: Box::new(|| 4096),
        catalogs: Catalogs {
            built_in: Arc::new(BuiltIn::default()),
            consuls: Arc::new(ConsulClusters::absent()),
        },
        published: Box::new(|| PublishedCounts { open: 2, waiting: 1, targets: 5 }),
        templates: Box::new(|| Figures {
            queries: 4,
            done: 9,
            missing: 2,
            failed: 1,
            outdated: 3,
            outdated_for: Duration::from_secs(90),
        }),
        consul_logins: Box::new(|| {
            let figures = crate::consul::ConsulLoginFigures { logged_in: 5, failed: 6 };
            [("default".to_owned(), figures)].into()
        }),
        vault: Box::new(|| VaultFigures {
            logged_in: 5,
            failed: 2,
            outdated: 1,
            outdated_for: Duration::from_secs(30),
        }),
        manifest_errors: Box::new(|| 2),
        room: (
            Room { cpu_mhz: 4_000, cores: 0, memory_mib: 1_024, disk_mib: 2_048 },
            Room { memory_mib: 256, ..Room::default() },
        ),
        node: NodeFacts {
            id: "n1".to_owned(),
            datacenter: "dc1".to_owned(),
            pool: "default".to_owned(),
            ..NodeFacts::default()
        },
        host: Box::new(|| Host {
            uptime: 60,
            total: 4_096,
            available: 2_048,
            free: 1_024,
            processors: Vec::new(),
        }),
        certificate_until: Box::new(|| Some(1_800_000_000)),
        node_contact: Box::new(move || contact),
        boot_ns: Box::new(move || clock.load(Ordering::Relaxed)),
    });
    Node { telemetry, model, runtime, health, now }
}

fn key() -> JobKey {
    JobKey { namespace: "default".into(), id: "we\"b\\\n".into() }
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
        since: moment(since),
        overdue_at: overdue_at.map(moment),
    }
}

/// A time of the boot clock. The wall clock jumps back and forth, because no age may be derived from it.
fn moment(second: i64) -> Moment {
    Moment { wall: UnixNanos(second % 7 * 1_000_000 * SECOND), boot_ns: (second * SECOND) as u64 }
}

fn plain_job() -> Arc<Job> {
    let text = "apiVersion: herdlet/v1\nkind: Job\nmetadata: {name: web}\nspec:\n  type: service\n  groups:\n    \
                - {name: g, tasks: [{name: main, driver: mock, config: {run_for: 1s}}]}\n";
    let mut set = manifests::parse("web.yaml", text.as_bytes(), &manifests::Drivers::built_in()).unwrap();
    Arc::new(Job { id: key().id.to_string(), ..set.jobs.remove(0).object })
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
            quarantined: false,
            deployments: Vec::new(),
            scaled: Arc::default(),
            unplaced: Default::default(),
            next_launch: None,
            tag: None,
            past: Vec::new(),
            placed: false,
            held: None,
        }
        .into(),
    )
}

fn alloc(phase: TaskPhase, attempt: u32, exit: Option<ExitResult>, check: CheckStatus) -> View {
    let spec = Allocation {
        id: AllocId::from_hash([3; 16]),
        job_key: key(),
        job_version: 0,
        job: plain_job(),
        group: "g".to_owned(),
        index: 0,
        ports: BTreeMap::new(),
        task_ports: BTreeMap::new(),
        task_cores: BTreeMap::new(),
        desired: Desired::Run,
        desired_description: String::new(),
        create_index: 1,
        create_time: UnixNanos(0),
        previous: None,
        deployment: None,
        next: None,
        rescheduled: Vec::new(),
        server: None,
    };
    let task = TaskView {
        name: "main".into(),
        state: TaskStatus::Running,
        phase,
        attempt,
        failed: false,
        restarts: 0,
        last_restart: UnixNanos(0),
        started_at: UnixNanos(0),
        finished_at: UnixNanos(0),
        exit,
        events: Default::default(),
    };
    let check = herdlet_api_types::fixture::check_result("alive", check);
    View::Alloc(
        AllocView {
            spec: Arc::new(spec),
            status: ClientStatus::Running,
            description: "".into(),
            tasks: vec![task],
            checks: vec![check],
            healthy: None,
            verdict: None,
            verdict_at: UnixNanos::default(),
            reschedule_at: None,
            collected: false,
            no_shutdown_delay: false,
            network: None,
            quarantined: false,
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

/// The checks of `promtool check metrics`, for either format: each family once, with its help and type before its
/// samples, no duplicate samples, complete histograms.
fn check(page: &str, format: Format) {
    let mut families: BTreeMap<&str, &str> = BTreeMap::new();
    let mut helped = BTreeSet::new();
    let mut samples = BTreeSet::new();
    let mut current = "";
    for line in page.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').unwrap();
            assert!(helped.insert(name) && !help.is_empty(), "{name}: not exactly one HELP line");
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
            assert!(samples.insert(identity), "{identity}: duplicate");
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
fn metrics_are_listed_and_pages_well_formed() {
    let node = node();
    node.model.publisher().offer(
        CommitIndex(1),
        vec![
            job(0, convergence(ConvergenceState::Converged, None, 1, None)),
            alloc(TaskPhase::Running, 1, None, CheckStatus::Success),
        ],
    );
    node.telemetry.orphans(Orphans {
        attempts: Tally { left: 1, removed: 1 },
        alloc_dirs: Tally { left: 0, removed: 2 },
        networks: Tally::default(),
    });
    let sink = node.telemetry.sink();
    sink(&Note::Disruption { job: key(), cause: "update" });
    sink(&Note::TaskRestart { job: key(), task: "main".to_owned(), reason: "exit" });
    let text = node.telemetry.page(Format::Text, Vec::new());
    check(&text, Format::Text);
    check(&node.telemetry.page(Format::OpenMetrics, Vec::new()), Format::OpenMetrics);
    let typed: BTreeMap<&str, &str> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' ')).collect();
    for (name, kind) in &typed {
        let metric = names::ALL
            .iter()
            .chain(nomad::ALL)
            .find(|metric| metric.name == *name)
            .unwrap_or_else(|| panic!("{name} is not listed"));
        let listed = match metric.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        assert_eq!(listed, *kind, "{name}");
    }
    let all = names::ALL.iter().chain(nomad::ALL);
    let absent: Vec<&str> = all.map(|metric| metric.name).filter(|name| !typed.contains_key(name)).collect();
    // These have no series until the first event, while no job is held, or on a node of a cluster.
    assert_eq!(
        absent,
        [
            "herdlet_job_held",
            "herdlet_task_oom_total",
            "herdlet_task_start_seconds",
            "herdlet_node_eligible",
            "herdlet_node_draining"
        ]
    );
    // Names chosen by users cannot break out of their label.
    assert!(text.contains(r#"herdlet_job_version{namespace="default",job_name="we\"b\\\n"} 0"#), "{text}");
}

#[test]
fn gauges_show_the_current_model() {
    let node = node();
    let mut publisher = node.model.publisher();
    publisher.offer(
        CommitIndex(1),
        vec![
            job(4, convergence(ConvergenceState::Progressing, Some(Reason::Operation), 990, None)),
            alloc(TaskPhase::Running, 1, None, CheckStatus::Failure),
        ],
    );
    let page = node.telemetry.page(Format::Text, Vec::new());
    for (start, expected) in [
        (r#"herdlet_objects{kind="job",state="progressing"}"#, 1.0),
        (r#"herdlet_objects{kind="job",state="converged"}"#, 0.0),
        (r#"herdlet_unconverged{kind="alloc",reason="health"}"#, 1.0),
        (r#"herdlet_overdue{kind="job"}"#, 0.0),
        ("herdlet_convergence_lag_seconds", 60.0),
        (r#"herdlet_allocations{status="running"}"#, 1.0),
        (r#"herdlet_tasks{state="running"}"#, 1.0),
        (r#"herdlet_operation_oldest_seconds{kind="start"}"#, 1.5),
        (r#"herdlet_operations_total{operation="start",result="done"}"#, 3.0),
        ("herdlet_state_bytes", 4096.0),
        ("herdlet_state_degraded", 0.0),
        ("herdlet_state_reserve_in_use", 1.0),
        ("herdlet_manifest_errors", 2.0),
        ("herdlet_template_queries", 4.0),
        (r#"herdlet_template_renders_total{result="missing"}"#, 2.0),
        ("herdlet_templates_outdated", 3.0),
        ("herdlet_templates_outdated_seconds", 90.0),
        (r#"herdlet_vault_logins_total{result="done"}"#, 5.0),
        ("herdlet_vault_tokens_outdated", 1.0),
        ("herdlet_vault_tokens_outdated_seconds", 30.0),
        ("herdlet_node_registered", 1.0),
        ("herdlet_node_contact_age_seconds", 7.0),
        ("herdlet_node_heartbeat_ttl_seconds", 15.0),
        ("herdlet_node_servers", 3.0),
        ("herdlet_node_heartbeat_failures_total", 5.0),
        ("herdlet_node_ttl_missed_total", 1.0),
    ] {
        assert_eq!(sample(&page, start), Some(expected), "{start}\n{page}");
    }
    assert!(
        page.lines()
            .any(|line| line.starts_with("herdlet_check_state{") && line.contains(r#"state="failure"} 1"#))
    );
    // Nothing happens for a minute: a stuck node ages.
    node.now.fetch_add(60 * SECOND as u64, Ordering::Relaxed);
    node.health.send_replace(StoreHealth::Degraded {
        since: herdlet_runtime::Now::default(),
        failures: 1,
        error: String::new(),
    });
    let page = node.telemetry.page(Format::Text, Vec::new());
    assert_eq!(sample(&page, "herdlet_convergence_lag_seconds"), Some(120.0));
    assert_eq!(sample(&page, r#"herdlet_overdue{kind="alloc"}"#), Some(1.0));
    assert_eq!(sample(&page, "herdlet_state_degraded"), Some(1.0));
    publisher.offer(CommitIndex(2), vec![View::AllocGone(AllocId::from_hash([3; 16])), View::JobGone(key())]);
    let page = node.telemetry.page(Format::Text, Vec::new());
    assert_eq!(sample(&page, "herdlet_convergence_lag_seconds"), Some(0.0));
    assert!(!page.contains("herdlet_job_version"));
}

// A failed deployment kept its allocation overdue, so that HerdletOverdue fired besides HerdletFailed.
#[test]
fn failed_object_is_not_overdue() {
    let node = node_with(None);
    let failed = |overdue_at| convergence(ConvergenceState::Failed, Some(Reason::Health), 940, overdue_at);
    node.model.publisher().offer(CommitIndex(1), vec![job(1, failed(Some(950)))]);
    let page = node.telemetry.page(Format::Text, Vec::new());
    assert_eq!(sample(&page, r#"herdlet_overdue{kind="job"}"#), Some(0.0));
    assert_eq!(sample(&page, r#"herdlet_objects{kind="job",state="failed"}"#), Some(1.0));
}

#[test]
fn a_drain_has_a_metric_where_servers_do_not_decide() {
    let node = node_with(None);
    let read = |name: &str| sample(&node.telemetry.page(Format::Text, Vec::new()), name);
    assert_eq!((read("herdlet_node_eligible"), read("herdlet_node_draining")), (Some(1.0), Some(0.0)));
    let drain = DrainView {
        deadline: herdlet_api_types::Duration(0),
        force_at: None,
        ignore_system: false,
        started_at: UnixNanos(1),
    };
    let view = NodeView { eligible: false, drain: Some(drain), ..NodeView::default() };
    node.model.publisher().offer(CommitIndex(1), vec![View::Node(Arc::new(view))]);
    assert_eq!((read("herdlet_node_eligible"), read("herdlet_node_draining")), (Some(0.0), Some(1.0)));
}

#[test]
fn notes_are_counted() {
    let node = node();
    let page = node.telemetry.page(Format::Text, Vec::new());
    assert_eq!(
        sample(&page, r#"herdlet_drift_detected_total{kind="mount",by="look"}"#),
        Some(0.0),
        "zero from the start"
    );
    let sink = node.telemetry.sink();
    let alloc = AllocId::from_hash([3; 16]);
    let mount = || Drifted { alloc, job: key(), name: "web.g[0]".to_owned(), task: None, kind: "mount" };
    for _ in 0..2 {
        sink(&Note::DriftDetected { of: mount(), by: Noticed::Periodic, why: String::new() });
        sink(&Note::Reconciled { kind: "alloc", result: "unchanged" });
    }
    sink(&Note::DriftRepaired { of: mount(), took_ns: Some(SECOND as u64) });
    sink(&Note::DriftRepaired { of: mount(), took_ns: None });
    sink(&Note::OutOfMemory { job: key(), task: "main".to_owned() });
    sink(&Note::Converged { kind: "job", took_ns: 2 * SECOND as u64, cause: "apply" });
    node.runtime.turns.add(7);
    let page = node.telemetry.page(Format::Text, Vec::new());
    for (start, expected) in [
        (r#"herdlet_drift_detected_total{kind="mount",by="look"}"#, 2.0),
        (r#"herdlet_drift_repaired_total{kind="mount"}"#, 2.0),
        (r#"herdlet_drift_repair_duration_seconds_sum{kind="mount"}"#, 1.0),
        (r#"herdlet_drift_repair_duration_seconds_count{kind="mount"}"#, 1.0),
        (r#"herdlet_task_oom_total{namespace="default",job_name="we\"b\\\n",task="main"}"#, 1.0),
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
async fn version_and_start_metrics_follow_publications() {
    let node = node();
    let mut publisher = node.model.publisher();
    let following = tokio::spawn(node.telemetry.clone().follow(Arc::downgrade(&node.model)));
    tokio::task::yield_now().await;
    let converged = || {
        node.telemetry.page(Format::Text, Vec::new()).lines().find_map(|line| {
            Some(line.strip_prefix("herdlet_job_converged_version{")?.rsplit_once(' ')?.1.to_owned())
        })
    };
    let states = [
        (2, ConvergenceState::Progressing, TaskPhase::Starting, "-1.0"),
        (3, ConvergenceState::Converged, TaskPhase::Running, "3.0"),
        (4, ConvergenceState::Progressing, TaskPhase::Running, "3.0"),
    ];
    for (version, state, phase, expected) in states {
        let views = vec![
            alloc(phase, 1, None, CheckStatus::Success),
            job(version, convergence(state, None, 1, None)),
        ];
        publisher.offer(CommitIndex(version), views);
        tokio::task::yield_now().await;
        assert_eq!(converged().as_deref(), Some(expected));
    }
    let page = node.telemetry.page(Format::Text, Vec::new());
    assert_eq!(sample(&page, r#"herdlet_task_start_seconds_count{driver="mock"}"#), Some(1.0), "{page}");
    publisher.offer(CommitIndex(5), vec![View::JobGone(key())]);
    tokio::task::yield_now().await;
    assert_eq!(converged(), None);
    following.abort();
}

#[test]
fn final_failure_does_not_age() {
    let node = node();
    let failed = convergence(ConvergenceState::Failed, Some(Reason::Error), 1, None);
    let View::Alloc(stopped) = alloc(TaskPhase::Dead, 1, None, CheckStatus::Pending) else { panic!() };
    let mut stopped = Arc::unwrap_or_clone(stopped);
    let wanted = Allocation { desired: Desired::Stop, ..Allocation::clone(&stopped.spec) };
    stopped.spec = Arc::new(wanted);
    let mut publisher = node.model.publisher();
    publisher.offer(CommitIndex(1), vec![job(0, failed), View::Alloc(stopped.clone().into())]);
    // It still has to be removed.
    let page = node.telemetry.page(Format::Text, Vec::new());
    assert_eq!(sample(&page, r#"herdlet_objects{kind="alloc",state="waiting"}"#), Some(1.0));
    assert_eq!(sample(&page, "herdlet_convergence_lag_seconds"), Some(60.0));
    // Its deadline was a second ago, and the loop is about to handle it.
    assert_eq!(sample(&page, r#"herdlet_overdue{kind="alloc"}"#), Some(0.0));
    node.now.fetch_add(SECOND as u64, Ordering::Relaxed);
    let page = node.telemetry.page(Format::Text, Vec::new());
    assert_eq!(sample(&page, r#"herdlet_overdue{kind="alloc"}"#), Some(1.0));
    // It is gone.
    stopped.convergence = convergence(ConvergenceState::Converged, None, 1_000, None);
    publisher.offer(CommitIndex(2), vec![View::Alloc(stopped.into())]);
    let page = node.telemetry.page(Format::Text, Vec::new());
    for state in ["converged", "progressing", "waiting", "failed"] {
        assert_eq!(sample(&page, &format!(r#"herdlet_objects{{kind="alloc",state="{state}"}}"#)), Some(0.0));
    }
    assert_eq!(sample(&page, "herdlet_convergence_lag_seconds"), Some(0.0));
    assert_eq!(sample(&page, r#"herdlet_objects{kind="job",state="failed"}"#), Some(1.0));
    assert_eq!(sample(&page, r#"herdlet_unconverged{kind="job",reason="error"}"#), Some(1.0));
}

#[test]
fn drift_counters_exist_for_every_part() {
    use herdlet_plan::op::{Part, TaskPart};
    let task = [
        TaskPart::Dir,
        TaskPart::Identity,
        TaskPart::Vault,
        TaskPart::Consul,
        TaskPart::Mounts,
        TaskPart::Process,
        TaskPart::Services,
        TaskPart::Checks,
    ];
    let parts = [Part::Dir, Part::Services, Part::Checks].into_iter();
    for part in parts.chain(task.map(|part| Part::Task(0, part))) {
        assert!(counts::DRIFT_KINDS.contains(&part.row().name), "{}", part.row().name);
    }
}

/// A whole page as a file that a person can read. `HERDLET_BLESS=1` rewrites it.
#[test]
fn an_example_of_a_page() {
    let node = node();
    let View::Alloc(healthy) = alloc(TaskPhase::Running, 1, None, CheckStatus::Success) else { panic!() };
    let mut healthy = Arc::unwrap_or_clone(healthy);
    healthy.convergence = convergence(ConvergenceState::Converged, None, 900, None);
    let updating = convergence(ConvergenceState::Progressing, Some(Reason::Health), 980, Some(1_060));
    node.model.publisher().offer(CommitIndex(1), vec![job(1, updating), View::Alloc(healthy.into())]);
    let sink = node.telemetry.sink();
    sink(&Note::Converged { kind: "job", took_ns: 450_000_000, cause: "apply" });
    sink(&Note::TaskRestart { job: key(), task: "main".to_owned(), reason: "exit" });
    sink(&Note::OutOfMemory { job: key(), task: "main".to_owned() });
    sink(&Note::Disruption { job: key(), cause: "stop" });
    let page =
        node.telemetry.page(Format::OpenMetrics, Vec::new()).replace(env!("CARGO_PKG_VERSION"), "VERSION");
    // One bucket of each histogram shows the format.
    let shown: String = page
        .lines()
        .filter(|line| !line.contains("_bucket{") || line.contains("le=\"+Inf\""))
        .map(|line| format!("{line}\n"))
        .collect();
    let golden = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/telemetry/tests/page.txt");
    if std::env::var_os("HERDLET_BLESS").is_some() {
        std::fs::write(&golden, &shown).unwrap();
    }
    assert_eq!(shown, std::fs::read_to_string(&golden).unwrap());
}

#[test]
fn promtool_accepts_the_page() {
    use std::{
        io::Write as _,
        process::{Command, Stdio},
    };
    let mut command = Command::new("promtool");
    command.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // It is not installed everywhere; `check` above performs the same checks.
    let Ok(mut promtool) = command.spawn() else { return };
    let page = node().telemetry.page(Format::Text, Vec::new());
    promtool.stdin.take().unwrap().write_all(page.as_bytes()).unwrap();
    let output = promtool.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn openmetrics_is_served_on_request() {
    let accept = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.1";
    assert_eq!(Format::negotiate(Some(accept)), Format::OpenMetrics);
    assert_eq!(Format::negotiate(Some("*/*")), Format::Text);
    for refused in
        ["application/openmetrics-text;q=0", "application/openmetrics-text; version=1.0.0; q=0.000, */*"]
    {
        assert_eq!(Format::negotiate(Some(refused)), Format::Text, "{refused}");
    }
    assert_eq!(Format::negotiate(None), Format::Text);
    assert!(Format::Text.content_type().starts_with("text/plain; version=0.0.4"));
}
