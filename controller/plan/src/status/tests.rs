//! Tests of Nomad's client status over all task states, of convergence, and of the messages while an allocation has not
//! converged.

use std_alloc::{string::ToString, sync::Arc, vec};

use herdlet_api_types::{
    Duration, Moment,
    job::{Lifecycle, Service, Update},
    service::{CheckResult, CheckStatus},
    task::ExitResult,
};

use super::*;
use crate::{
    fixture::{alloc, at, backing_off, dead, exit, failed, pending, running, task},
    op::Part,
    state::{AfterStop, Durable, Health, Run, StopStep, Tracked},
    time::BootId,
};

#[test]
fn the_first_rule_that_matches_decides() {
    let until = Deadline::after(at(0), Duration::from_secs(1));
    let stopping = |step| TaskState {
        run: Run::Stopping { attempt: 1, boot: BootId(1), ran: true, step, then: AfterStop::Dead },
        ..running()
    };
    let delayed = stopping(StopStep::Delay { until });
    let killed = stopping(StopStep::Kill { until });
    let table: [(&str, &[TaskState], ClientStatus); 11] = [
        ("running, running", &[running(), running()], ClientStatus::Running),
        ("running, dead ok", &[running(), dead()], ClientStatus::Running),
        ("dead failed, running", &[failed(), running()], ClientStatus::Failed),
        ("pending, pending", &[pending(), pending()], ClientStatus::Pending),
        ("pending (shutdown_delay), dead ok", &[delayed, dead()], ClientStatus::Pending),
        ("dead ok, dead ok", &[dead(), dead()], ClientStatus::Complete),
        ("main dead ok, poststop pending", &[dead(), pending()], ClientStatus::Pending),
        ("main dead ok, poststop failed", &[dead(), failed()], ClientStatus::Failed),
        ("being killed", &[killed], ClientStatus::Running),
        ("between two starts", &[backing_off(), dead()], ClientStatus::Pending),
        ("no tasks known yet", &[], ClientStatus::Pending),
    ];
    for (name, tasks, expected) in table {
        assert_eq!(client_status(tasks).0, expected, "{name}");
    }
}

/// The verdict on a running allocation with these waits.
fn verdict(health: Option<bool>, waits: Vec<Waiting>) -> (ConvergenceState, Option<Reason>, String) {
    let spec = alloc(vec![task("main", Lifecycle::Main)]);
    let durable = Durable {
        adopted: true,
        tasks: vec![running()],
        health: health.map(|healthy| Health { healthy, at: at(0).wall }),
        ..Durable::default()
    };
    let state = AllocState { durable: Tracked::stored(durable), ..AllocState::default() };
    let plan = Plan { waits, ..Plan::default() };
    let Convergence { state, reason, message, .. } =
        convergence(at(1), &spec, &state, &plan, Moment::default());
    (state, reason, message)
}

#[test]
fn a_plan_that_waits_for_nothing_has_arrived() {
    let gate = || vec![Waiting::Gate(0)];
    let waits = "task main: waits for its turn in the lifecycle";
    let unhealthy = "judged as unhealthy; task main: waits for its turn in the lifecycle";
    for (health, waiting, expected, reason, message) in [
        (None, vec![], ConvergenceState::Converged, None, ""),
        (None, gate(), ConvergenceState::Waiting, Some(Reason::Dependency), waits),
        (
            None,
            vec![Waiting::Task(0, TaskStatus::Running)],
            ConvergenceState::Progressing,
            Some(Reason::Operation),
            "task main: is running",
        ),
        (Some(true), vec![], ConvergenceState::Converged, None, ""),
        (Some(false), vec![], ConvergenceState::Failed, Some(Reason::Health), "judged as unhealthy"),
        // Regardless of what it still waits for: its time is over.
        (Some(false), gate(), ConvergenceState::Failed, Some(Reason::Dependency), unhealthy),
    ] {
        assert_eq!(verdict(health, waiting), (expected, reason, message.to_string()), "{health:?}");
    }
}

#[test]
fn a_task_that_waits_before_it_starts_again_says_how_it_ended() {
    let until = Deadline::after(at(0), Duration::from_secs(10));
    let mut limited = task("main", Lifecycle::Main);
    limited.resources.memory_mib = Some(64);
    let spec = alloc(vec![limited]);
    let broken = ExitResult { error: "failed to execute the program".to_string(), ..exit(0) };
    let hungry = ExitResult { oom_killed: true, ..exit(137) };
    for (exit, expected) in [
        (None, "restarts after a delay"),
        (Some(exit(3)), "restarts after a delay; last exit code 3"),
        (Some(hungry), "restarts after a delay; last: out of memory (limit 64 MiB)"),
        (Some(broken), "restarts after a delay; last: failed to execute the program"),
    ] {
        let tasks = vec![TaskState { exit, ..backing_off() }];
        let durable = Durable { tasks, ..Durable::default() };
        let state = AllocState { durable: Tracked::stored(durable), ..AllocState::default() };
        let wait = describe(at(1), &spec, &state, &Waiting::Backoff(0, until));
        assert_eq!((&*wait.part, &*wait.message), ("task main", expected));
        assert_eq!(wait.until, Some(at(10).wall));
    }
}

/// Only what is missing now is named, not what exists already.
#[test]
fn health_wait_names_only_what_is_missing() {
    let check = herdlet_api_types::fixture::check("alive");
    for (checked, healthy, min_healthy_time, expected) in [
        (true, false, 10, "waits for passing checks, then for min_healthy_time of 10s"),
        (false, false, 10, "waits for running tasks, then for min_healthy_time of 10s"),
        (true, true, 10, "waits for min_healthy_time of 10s"),
        (true, false, 0, "waits for passing checks"),
        (false, false, 0, "waits for running tasks"),
    ] {
        let mut spec = alloc(vec![task("main", Lifecycle::Main)]);
        let group = &mut Arc::make_mut(&mut Arc::make_mut(&mut spec).job).groups[0];
        let checks = checked.then(|| check.clone()).into_iter().collect();
        group.services.push(Service { checks, ..crate::fixture::service("web") });
        let min_healthy_time = Duration::from_secs(min_healthy_time);
        group.update = Some(Update { min_healthy_time, ..herdlet_api_types::fixture::update() });
        let healthy_since_ns = healthy.then_some(at(0).boot_ns);
        let state = AllocState { healthy_since_ns, ..AllocState::default() };
        let wait = describe(at(1), &spec, &state, &Waiting::Health(None));
        assert_eq!((&*wait.part, &*wait.message), ("health", expected));
    }
    let (spec, state) = (alloc(vec![task("main", Lifecycle::Main)]), AllocState::default());
    assert_eq!(describe(at(1), &spec, &state, &Waiting::Checks(None)).message, "waits for passing checks");
}

#[test]
fn failing_check_is_named_with_its_first_output_line() {
    let result = |id: &str, status, output: &str| CheckResult {
        output: output.to_string(),
        ..herdlet_api_types::fixture::check_result(id, status)
    };
    let results = [
        result("alive", CheckStatus::Success, "fine"),
        result("ready", CheckStatus::Failure, "refused\nand more"),
    ];
    let results = results.map(|result| (result.id.clone(), result)).into();
    let checks = crate::state::ChecksMemory { results, ..Default::default() };
    let state = AllocState { checks, ..AllocState::default() };
    let spec = alloc(vec![task("main", Lifecycle::Main)]);
    assert_eq!(
        describe(at(1), &spec, &state, &Waiting::Checks(None)).message,
        "waits for passing checks (ready of service web fails: refused)"
    );
}

/// A task that listened on 127.0.0.1 in mode `bridge` was explained by `Connection refused` alone.
#[test]
fn refused_connections_into_a_network_of_an_allocation_have_a_hint() {
    let refused = CheckResult {
        output: "dial: Connection refused (os error 111)".to_string(),
        ..herdlet_api_types::fixture::check_result("alive", CheckStatus::Failure)
    };
    let checks =
        crate::state::ChecksMemory { results: [(refused.id.clone(), refused)].into(), ..Default::default() };
    let state = AllocState { checks, ..AllocState::default() };
    let mut spec = alloc(vec![task("main", Lifecycle::Main)]);
    let message = |spec: &Allocation| describe(at(1), spec, &state, &Waiting::Checks(None)).message;
    assert!(message(&spec).ends_with("(os error 111))"), "{}", message(&spec));
    let group = &mut Arc::make_mut(&mut Arc::make_mut(&mut spec).job).groups[0];
    let mode = herdlet_api_types::job::NetworkMode::Bridge;
    group.network = Some(herdlet_api_types::job::Network { mode, ..Default::default() });
    let hint = "; in a network of its own, a task must listen on 0.0.0.0 and on the port's `to`)";
    assert!(message(&spec).ends_with(hint), "{}", message(&spec));
}

#[test]
fn a_part_is_named_with_its_task() {
    let (spec, state) = (alloc(vec![task("main", Lifecycle::Main)]), AllocState::default());
    for (part, name) in
        [(Part::Dir, "directory"), (Part::Task(0, crate::op::TaskPart::Process), "task main: process")]
    {
        let wait = describe(at(1), &spec, &state, &Waiting::Part(part));
        assert_eq!((&*wait.part, &*wait.message), (name, "not inspected yet"));
    }
}

#[test]
fn root_wait_precedes_its_consequences() {
    let volume = || Waiting::Volume(Some(0), "data".to_string(), None);
    for waits in [vec![volume(), Waiting::Gate(0)], vec![Waiting::Gate(0), volume()]] {
        assert_eq!(verdict(None, waits).2, "task main: waits for volume \"data\"");
    }
    let failed =
        Waiting::Volume(None, "data".to_string(), Some("failed to use /srv: it is gone".to_string()));
    let expected = "group: waits for volume \"data\": failed to use /srv: it is gone";
    assert_eq!(verdict(None, vec![failed]).2, expected);
}
