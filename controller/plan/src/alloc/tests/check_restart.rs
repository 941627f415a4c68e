//! Tests of `check_restart`: which failures restart which tasks, and when.

use super::*;
use crate::{
    plan::Plan,
    status::{convergence, describe},
};

/// Fails for 20 s (three failures in a row, ten seconds apart), beginning five seconds after a start.
const WHEN: RestartsWhen = RestartsWhen {
    failing_for: Duration::from_secs(20),
    grace: Duration::from_secs(5),
    ignore_warnings: false,
    task: None,
};

fn check_result(task: Option<&str>, status: CheckStatus) -> CheckResult {
    let base = herdlet_api_types::fixture::check_result("alive", status);
    let output = "http 503\nand its page".to_string();
    CheckResult { task: task.map(ToString::to_string), restarts: Some(WHEN), output, ..base }
}

/// Two tasks that started at 95 s, and one poststop task.
fn life(spec: &std_alloc::sync::Arc<Allocation>) -> Bench<'_> {
    let started = || TaskState { started_ns: at(95).boot_ns, ..running() };
    let parts = up(&[Part::Dir, TASK_DIR, PROCESS]);
    let mut state = known(vec![started(), started(), pending()], Stage::WaitAlloc, parts);
    for (known, name) in state.durable.tasks.iter_mut().zip(["main", "other", "stop"]) {
        known.name = name.into();
    }
    Bench::new(spec, state)
}

fn spec() -> std_alloc::sync::Arc<Allocation> {
    alloc(vec![
        task("main", Lifecycle::Main),
        task("other", Lifecycle::PoststartSidecar),
        task("stop", Lifecycle::Poststop),
    ])
}

/// The tasks that are being stopped, and what follows.
fn stopping(life: &Bench<'_>) -> Vec<(usize, AfterStop)> {
    let tasks = life.state.durable.tasks.iter().enumerate();
    tasks
        .filter_map(|(index, known)| match known.run {
            Run::Stopping { then, .. } => Some((index, then)),
            Run::Waiting
            | Run::BackingOff { .. }
            | Run::Starting { .. }
            | Run::Running { .. }
            | Run::Dead => None,
        })
        .collect()
}

/// Applies the results, each at its time. Returns when the first task was stopped.
fn first_stop(life: &mut Bench<'_>, results: &[(u64, CheckResult)]) -> Option<u64> {
    (100..200).find(|second| {
        life.now = at(*second);
        for (_, result) in results.iter().filter(|(at, _)| at == second) {
            life.write(|writer| writer.checked(result.clone()));
        }
        life.settle();
        !stopping(life).is_empty()
    })
}

#[test]
fn consecutive_failures_restart_at_the_limit() {
    use CheckStatus::{Failure, Pending, Success, Warning};
    let lenient = |status| {
        let restarts = Some(RestartsWhen { ignore_warnings: true, ..WHEN });
        CheckResult { restarts, ..check_result(Some("main"), status) }
    };
    let main = |status| check_result(Some("main"), status);
    for (name, results, stops_at) in [
        ("it passes", vec![(100, main(Success))], None),
        ("it has not run yet", vec![(100, main(Pending))], None),
        ("it fails", vec![(101, main(Failure))], Some(121)),
        ("its output changes meanwhile", vec![(101, main(Failure)), (110, main(Failure))], Some(121)),
        ("it passed once", vec![(101, main(Failure)), (110, main(Success)), (112, main(Failure))], Some(132)),
        ("a warning is a failure", vec![(101, main(Warning)), (110, main(Failure))], Some(121)),
        ("unless it is ignored", vec![(101, lenient(Warning))], None),
        (
            "then failures count from the first",
            vec![(101, lenient(Warning)), (110, lenient(Failure))],
            Some(130),
        ),
        (
            "results from a previous agent are stale",
            vec![(101, CheckResult { stale: true, ..main(Failure) })],
            None,
        ),
        ("without check_restart", vec![(101, CheckResult { restarts: None, ..main(Failure) })], None),
    ] {
        let spec = spec();
        assert_eq!(first_stop(&mut life(&spec), &results), stops_at, "{name}");
    }
}

#[test]
fn failures_within_grace_count_after_it() {
    let spec = spec();
    let mut life = life(&spec);
    life.state.durable.tasks[0].started_ns = at(110).boot_ns;
    let results = [(101, check_result(Some("main"), CheckStatus::Failure))];
    assert_eq!(first_stop(&mut life, &results), Some(110 + 5 + 20));
}

#[test]
fn task_check_restarts_one_task_group_check_all() {
    let then = AfterStop::RestartUnhealthy;
    for (task, then_other) in [(Some("other"), vec![]), (None, vec![(1, then)])] {
        let spec = spec();
        let mut life = life(&spec);
        first_stop(&mut life, &[(100, check_result(task, CheckStatus::Failure))]);
        assert_eq!(stopping(&life), [(usize::from(task.is_some()), then)], "{task:?}");
        if task.is_none() {
            // A sidecar is stopped after the others.
            life.write(|writer| writer.exited("main", 1, exit(0)));
            life.settle();
            assert_eq!(stopping(&life), then_other);
        }
        let reason =
            life.state.durable.tasks[1].events.iter().find(|event| event.kind.as_str() == "Restart Signaled");
        assert_eq!(
            reason.map(|event| &*event.message),
            Some("healthcheck: check \"alive\" unhealthy: http 503")
        );
    }
}

/// A migration took longer than the grace of the service that waits for it, and was killed again and again.
#[test]
fn group_check_counts_after_its_tasks_have_started() {
    let three_tasks = || {
        vec![task("pre", Lifecycle::Prestart), task("main", Lifecycle::Main), task("web", Lifecycle::Main)]
    };
    let named = |task: &str| {
        let restarts = Some(RestartsWhen { task: Some(task.to_string()), ..WHEN });
        CheckResult { restarts, ..check_result(None, CheckStatus::Failure) }
    };
    let unnamed = || check_result(None, CheckStatus::Failure);
    let ran = || TaskState { started_ns: at(95).boot_ns, ..running() };
    let backs_off = || TaskState { started_ns: at(95).boot_ns, ..crate::fixture::backing_off() };
    for (name, tasks, result, stops_at) in [
        ("the migration runs", [ran(), pending(), pending()], unnamed(), None),
        ("and the named task waits for it", [ran(), pending(), pending()], named("web"), None),
        ("a main task waits for another", [dead(), ran(), pending()], unnamed(), None),
        ("the named one waits for another", [dead(), ran(), pending()], named("web"), None),
        ("the named one runs", [dead(), ran(), pending()], named("main"), Some(120)),
        ("one waits for its next start", [dead(), ran(), backs_off()], unnamed(), None),
        ("all run", [dead(), ran(), ran()], unnamed(), Some(120)),
        ("one has done its work", [dead(), ran(), dead()], unnamed(), Some(120)),
        ("the named one has", [dead(), ran(), dead()], named("web"), None),
    ] {
        let spec = alloc(three_tasks());
        let parts = up(&[Part::Dir, TASK_DIR, PROCESS]);
        let mut state = known(tasks.into(), Stage::Main, parts);
        for (known, name) in state.durable.tasks.iter_mut().zip(["pre", "main", "web"]) {
            known.name = name.into();
        }
        let mut life = Bench::new(&spec, state);
        assert_eq!(first_stop(&mut life, &[(100, result)]), stops_at, "{name}");
    }
}

/// A second main task is being started when a check's restart is due.
#[test]
fn a_check_kills_no_start() {
    let spec = spec();
    let mut life = life(&spec);
    life.state.durable.tasks[1].run = Run::Starting { attempt: 1, boot: at(0).boot };
    assert_eq!(first_stop(&mut life, &[(100, check_result(None, CheckStatus::Failure))]), Some(120));
    assert_eq!(stopping(&life), [(0, AfterStop::RestartUnhealthy)]);
    assert!(!life.state.durable.tasks[1].restart_requested);
}

/// A load balancer learns of it before any task ends.
#[test]
fn group_restart_waits_for_its_shutdown_delay() {
    let mut spec = spec();
    let job = std_alloc::sync::Arc::make_mut(&mut std_alloc::sync::Arc::make_mut(&mut spec).job);
    job.groups[0].shutdown_delay = Duration::from_secs(7);
    let mut life = life(&spec);
    assert_eq!(first_stop(&mut life, &[(100, check_result(None, CheckStatus::Failure))]), Some(127));
}

/// Regardless of how the task ended when it was asked to: it did not fulfil its purpose.
#[test]
fn check_restart_counts_for_the_restart_policy() {
    let spec = spec();
    let mut life = life(&spec);
    let mut second = 100;
    for attempt in 1..=3 {
        life.now = at(second);
        life.write(|writer| writer.checked(check_result(Some("main"), CheckStatus::Failure)));
        life.now = at(second + 19);
        life.settle();
        assert_eq!(stopping(&life), [], "attempt {attempt}");
        life.now = at(second + 20);
        life.settle();
        assert_eq!(stopping(&life), [(0, AfterStop::RestartUnhealthy)]);
        life.write(|writer| writer.exited("main", attempt, exit(0)));
        let main = &life.state.durable.tasks[0];
        if attempt == 3 {
            assert_eq!((&main.run, main.failed), (&Run::Dead, true), "two attempts a minute are allowed");
            let why = convergence(life.now, &spec, &life.state, &Plan::default(), at(0).moment()).message;
            assert!(
                why.starts_with(
                    "task main failed: healthcheck: check \"alive\" unhealthy: http 503; Exceeded allowed attempts"
                ),
                "{why}"
            );
            return;
        }
        let Run::BackingOff { until } = &main.run else { panic!("{:?}", main.run) };
        let message = describe(life.now, &spec, &life.state, &Waiting::Backoff(0, *until)).message;
        assert_eq!(message, "restarts after a delay; healthcheck: check \"alive\" unhealthy: http 503");
        assert!(!main.restart_requested && !main.unhealthy);
        second += 20;
        // The next attempt runs, and started before its checks fail.
        let main = &mut life.state.durable.tasks[0];
        (main.attempt, main.started_ns) = (attempt + 1, at(second - 10).boot_ns);
        main.run = Run::Running { attempt: attempt + 1, boot: at(0).boot };
        life.write(|writer| writer.checked(check_result(Some("main"), CheckStatus::Success)));
    }
}

/// A second check of the same task changes nothing while the task is being restarted.
#[test]
fn one_restart_at_a_time() {
    let spec = spec();
    let mut life = life(&spec);
    let second = CheckResult { id: "second".to_string(), ..check_result(Some("main"), CheckStatus::Failure) };
    first_stop(&mut life, &[(100, check_result(Some("main"), CheckStatus::Failure)), (100, second)]);
    let main = &life.state.durable.tasks[0];
    let signalled = main.events.iter().filter(|event| event.kind.as_str() == "Restart Signaled").count();
    assert_eq!(signalled, 1);
}

#[test]
fn failing_check_is_shown_with_its_deadline() {
    let spec = spec();
    let mut life = life(&spec);
    life.write(|writer| writer.checked(check_result(Some("main"), CheckStatus::Failure)));
    let plan = plan(life.now, &life.ctx, &spec, &life.state);
    let explained = crate::alloc::show::explain(life.now, &spec, &life.state, &plan);
    let wait = explained
        .waits
        .iter()
        .find(|wait| wait.message.contains("alive"))
        .expect("the explanation of the check");
    assert_eq!(
        (&*wait.part, &*wait.message, wait.until),
        ("task main", "restarts unless check alive of service web passes", Some(at(120).wall))
    );
}

/// A Consul that is down must not cause restarts because of results from before.
#[test]
fn check_results_end_with_their_process() {
    let spec = spec();
    let mut life = life(&spec);
    let other = CheckResult { id: "other".to_string(), ..check_result(Some("other"), CheckStatus::Failure) };
    life.write(|writer| {
        writer.checked(check_result(Some("main"), CheckStatus::Failure));
        writer.checked(other);
        writer.exited("main", 1, exit(1));
    });
    assert_eq!(life.state.checks.results.keys().collect::<Vec<_>>(), ["other"]);
    assert_eq!(life.state.durable.checks.len(), 1);
    assert_eq!(life.state.checks.failing_since_ns.keys().collect::<Vec<_>>(), ["other"]);
}

/// Neither a check that can't be reached any more nor a new agent's stored results change what is known.
#[test]
fn stale_result_does_not_replace_a_fresh_one() {
    let spec = spec();
    let mut life = life(&spec);
    let stale = |status| CheckResult { stale: true, ..check_result(Some("main"), status) };
    life.write(|writer| writer.checked(stale(CheckStatus::Failure)));
    assert!(life.state.checks.results["alive"].stale && life.state.checks.failing_since_ns.is_empty());
    life.write(|writer| writer.checked(check_result(Some("main"), CheckStatus::Failure)));
    assert_eq!(life.state.checks.failing_since_ns.len(), 1);
    life.write(|writer| writer.checked(stale(CheckStatus::Success)));
    let known = &life.state.checks.results["alive"];
    assert_eq!((known.status, known.stale), (CheckStatus::Failure, true));
    assert!(life.state.checks.failing_since_ns.is_empty(), "the check restarts nothing");
}
