//! Tests of health and checks: when an allocation is healthy, what waits for it, who runs the checks.

use super::*;

fn tcp_check() -> Check {
    herdlet_api_types::fixture::check("alive")
}

#[test]
fn live_tasks_record_alloc_unhealthy() {
    let spec = alloc(vec![task("main", Lifecycle::Main), task("pre", Lifecycle::Prestart)]);
    for (healthy, expected) in [(true, vec![]), (false, vec!["Alloc Unhealthy"])] {
        let mut life = Bench::new(&spec, known(vec![running(), dead()], Stage::WaitAlloc, Parts::absent()));
        let verdict = Health { healthy, at: at(100).wall };
        life.write(|writer| writer.change(Change::Verdict(verdict, "too late".to_string())));
        let kinds = |at: usize| -> Vec<&str> {
            life.state.durable.tasks[at].events.iter().map(|event| event.kind.as_str()).collect()
        };
        assert_eq!((kinds(0), kinds(1)), (expected, vec![]));
    }
}

/// The events of a server's allocation that is not healthy by its deadline, 100 s; `is_deployed`: it belongs to a
/// deployment.
fn reported_health(
    is_deployed: bool,
    tasks: Vec<(Lifecycle, TaskState)>,
    checks: Vec<CheckResult>,
) -> Vec<(usize, String)> {
    let (lifecycles, states): (Vec<_>, Vec<_>) = tasks.into_iter().unzip();
    let tasks = (0..).zip(lifecycles).map(|(at, lifecycle)| task(&format!("t{at}"), lifecycle)).collect();
    let mut spec = alloc(tasks);
    let spec_mut = std_alloc::sync::Arc::make_mut(&mut spec);
    let deployment = AllocDeployment { id: DeploymentId(uuid::Uuid::from_u128(7)), canary: false };
    spec_mut.deployment = is_deployed.then_some(deployment);
    spec_mut.server = Some(herdlet_api_types::fixture::server_side(&spec_mut.job.clone()).into());
    let job = std_alloc::sync::Arc::make_mut(&mut spec_mut.job);
    job.groups[0].update = Some(herdlet_api_types::fixture::update());
    let mut life = Bench::new(&spec, known(states, Stage::WaitAlloc, Parts::absent()));
    let deadline = crate::time::Deadline::after(at(80), Duration::from_secs(20));
    life.write(|writer| {
        writer.state.durable.healthy_by = Some(deadline);
        checks.into_iter().for_each(|check| writer.checked(check));
        let verdict = Health { healthy: false, at: at(100).wall };
        writer.change(Change::Verdict(verdict, "not healthy in time".to_string()));
    });
    let tasks = life.state.durable.tasks.iter().enumerate();
    tasks
        .flat_map(|(at, task)| task.events.iter().map(move |event| (at, event.message.to_string())))
        .collect()
}

/// Deployments of servers get the same reasons as from stock clients, one for each task.
#[test]
fn servers_get_one_unhealthy_reason_per_task() {
    for is_deployed in [true, false] {
        let since = |seconds| TaskState { started_at: at(seconds).wall, ..running() };
        let tasks = vec![
            // Has not run for 1 s by 100 s.
            (
                Lifecycle::Main,
                TaskState { started_at: herdlet_api_types::UnixNanos(at(99).wall.0 + 1), ..running() },
            ),
            (Lifecycle::Main, pending()),
            (Lifecycle::Main, failed()),
            (Lifecycle::Main, dead()),
            (Lifecycle::Prestart, dead()),
            (Lifecycle::Main, since(99)),
            (Lifecycle::Main, since(85)),
        ];
        let checks = vec![result(Some("t5"), CheckStatus::Success), result(Some("t6"), CheckStatus::Failure)];
        let checks =
            checks.into_iter().zip(["a", "b"]).map(|(check, id)| CheckResult { id: id.to_string(), ..check });
        let reported = reported_health(is_deployed, tasks, checks.collect());
        let expected = [
            "Task not running for min_healthy_time of 1s by healthy_deadline of 20s",
            "Task not running by healthy_deadline of 20s",
            "Unhealthy because of failed task",
            "Unhealthy because of dead task",
        ];
        let mut expected: Vec<_> = (0..).zip(expected.map(ToString::to_string)).collect();
        expected.push((6, "Services not healthy by deadline: web".to_string()));
        assert_eq!(reported, if is_deployed { expected } else { vec![] });
    }
}

/// A reason that belongs to no single task, such as a check of the group, is reported in general terms.
#[test]
fn group_failure_is_reported_in_general_terms() {
    let up = || TaskState { started_at: at(85).wall, ..running() };
    let reported = reported_health(
        true,
        vec![(Lifecycle::Main, up()), (Lifecycle::Prestart, dead())],
        vec![result(None, CheckStatus::Failure)],
    );
    assert_eq!(reported, [(0, "not healthy in time".to_string())]);
}

#[test]
fn allocation_is_healthy_when_every_task_is() {
    for (lifecycle, well) in [
        // Pending, running, ended, failed.
        (Lifecycle::Prestart, [false, false, true, false]),
        (Lifecycle::PrestartSidecar, [false, true, false, false]),
        (Lifecycle::Main, [false, true, false, false]),
        (Lifecycle::Poststart, [false, true, true, false]),
        (Lifecycle::PoststartSidecar, [false, true, false, false]),
        (Lifecycle::Poststop, [true, true, true, true]),
    ] {
        let spec = alloc(vec![task("main", Lifecycle::Main), task("other", lifecycle)]);
        let healthy = |other| {
            crate::alloc::health::is_healthy(
                &AllocSpec::read(spec.clone()),
                &known(vec![running(), other], Stage::Main, Parts::absent()),
            )
        };
        assert_eq!([pending(), running(), dead(), failed()].map(healthy), well, "{lifecycle:?}");
    }
}

#[test]
fn health_is_waited_for_where_there_is_a_check() {
    for checked in [false, true] {
        let mut spec = alloc(vec![task("main", Lifecycle::Main)]);
        let job = std_alloc::sync::Arc::make_mut(&mut std_alloc::sync::Arc::make_mut(&mut spec).job);
        let mut service = crate::fixture::service("web");
        service.checks.extend(checked.then(tcp_check));
        job.groups[0].services.push(service);
        let state = known(vec![pending()], Stage::Main, Parts::absent());
        let plan = super::plan(at(100), &context(), &spec, &state);
        assert_eq!(plan.waits.contains(&Waiting::Checks(None)), checked);
    }
}

/// An allocation whose task runs and whose check fails, with this `health_check`.
fn with_a_failing_check(health_check: HealthCheck) -> std_alloc::sync::Arc<Allocation> {
    let mut spec = alloc(vec![task("main", Lifecycle::Main)]);
    let spec_mut = std_alloc::sync::Arc::make_mut(&mut spec);
    let group = &mut std_alloc::sync::Arc::make_mut(&mut spec_mut.job).groups[0];
    group.services.push(Service { checks: vec![tcp_check()], ..crate::fixture::service("web") });
    group.update = Some(Update { health_check, ..herdlet_api_types::fixture::update() });
    spec
}

#[test]
fn checks_count_unless_task_states_are_enough() {
    for (health_check, healthy) in
        [(HealthCheck::Checks, false), (HealthCheck::Manual, false), (HealthCheck::TaskStates, true)]
    {
        let spec = with_a_failing_check(health_check);
        let state = known(vec![running()], Stage::Main, Parts::absent());
        assert_eq!(
            crate::alloc::health::is_healthy(&AllocSpec::read(spec.clone()), &state),
            healthy,
            "{health_check:?}"
        );
    }
}

/// The health shown is the present one: neither a verdict nor an open one changes it.
#[test]
fn health_is_shown_as_it_is_now() {
    let run = |status, word: Option<bool>, desired| {
        let mut spec = with_a_failing_check(HealthCheck::Checks);
        std_alloc::sync::Arc::make_mut(&mut spec).desired = desired;
        let mut state = known(vec![running()], Stage::Main, Parts::absent());
        let durable = &mut *state.durable;
        durable.health = word.map(|healthy| Health { healthy, at: at(100).wall });
        let mut life = Bench::new(&spec, state);
        life.write(|writer| writer.checked(result(None, status)));
        crate::alloc::health::now(&AllocSpec::read(spec.clone()), &life.state)
    };
    for word in [None, Some(true), Some(false)] {
        assert_eq!(run(CheckStatus::Success, word, Desired::Run), Some(true), "{word:?}");
        assert_eq!(run(CheckStatus::Failure, word, Desired::Run), Some(false), "{word:?}");
        assert_eq!(run(CheckStatus::Success, word, Desired::Stop), None, "{word:?}");
    }
    let spec = with_a_failing_check(HealthCheck::Checks);
    let mut done = known(vec![dead()], Stage::Main, Parts::absent());
    done.durable.status = ClientStatus::Complete;
    assert_eq!(crate::alloc::health::now(&AllocSpec::read(spec.clone()), &done), Some(true));
}

/// In a deployment, the allocation waits for an operator's decision, however long it takes. Outside one, nobody can
/// decide.
#[test]
fn manual_health_waits_for_a_request_in_a_deployment() {
    let mut spec = with_a_failing_check(HealthCheck::Manual);
    std_alloc::sync::Arc::make_mut(&mut std_alloc::sync::Arc::make_mut(&mut spec).job).groups[0]
        .services
        .clear();
    let id = DeploymentId::from_hash([1; 16]);
    for deployment in [Some(AllocDeployment { id, canary: false }), None] {
        std_alloc::sync::Arc::make_mut(&mut spec).deployment = deployment;
        let parts = up(&[Part::Dir, TASK_DIR, PROCESS]);
        let mut life = Bench::new(&spec, known(vec![running()], Stage::WaitAlloc, parts));
        life.state.durable.healthy_by = Some(Deadline::after(at(100), Duration::from_secs(60)));
        life.settle();
        life.now = at(1_000);
        life.settle();
        let plan = super::plan(life.now, &life.ctx, &spec, &life.state);
        assert_eq!(plan.waits.contains(&Waiting::Judgement(id)), deployment.is_some());
        assert_eq!(
            life.state.durable.health.map(|health| health.healthy),
            deployment.is_none().then_some(true)
        );
    }
}

/// Results of checks count for the task that owns them.
#[test]
fn a_task_may_wait_until_another_is_healthy() {
    let mut main = task("main", Lifecycle::Main);
    main.services.push(Service { checks: vec![tcp_check()], ..crate::fixture::service("web") });
    let mut second = task("second", Lifecycle::Main);
    let condition = DependencyCondition::Healthy;
    second.depends_on.push(Dependency { task: "main".to_string(), condition });
    let spec = alloc(vec![main, second]);
    for (by, status, starts) in [
        (None, CheckStatus::Success, false),
        (Some("main"), CheckStatus::Success, true),
        (Some("main"), CheckStatus::Failure, false),
        (Some("second"), CheckStatus::Success, false),
    ] {
        let parts = up(&[Part::Dir, TASK_DIR, PROCESS, Part::Task(1, TaskPart::Dir)]);
        let mut life = Bench::new(&spec, known(vec![running(), pending()], Stage::Main, parts));
        life.write(|writer| {
            writer.checked(result(by, status));
        });
        life.settle();
        assert_eq!(
            life.issued.iter().any(|verb| verb == "Start { attempt: 1 }"),
            starts,
            "{by:?} {status:?}"
        );
    }
}

#[test]
fn only_checks_of_the_built_in_catalogue_are_made_here() {
    let alive = tcp_check();
    for (provider, checks, expected) in [
        (Provider::Nomad, vec![alive.clone()], true),
        (Provider::Nomad, vec![], false),
        (Provider::Consul, vec![alive], false),
        (Provider::Consul, vec![], false),
    ] {
        let service = Service { provider, checks, ..crate::fixture::service("web") };
        assert_eq!(crate::parts::has_own_checks(&[service]), expected, "{provider:?}");
    }
}

fn result(task: Option<&str>, status: CheckStatus) -> CheckResult {
    let base = herdlet_api_types::fixture::check_result("alive", status);
    CheckResult { task: task.map(ToString::to_string), ..base }
}

/// A check's result about an ended process is not valid for the next process: it is dropped, and the checks begin
/// again.
#[test]
fn new_process_restarts_its_checks() {
    let spec = with_a_failing_check(HealthCheck::Checks);
    let parts = up(&[Part::Dir, Part::Services, Part::Checks, TASK_DIR, PROCESS]);
    let mut life = Bench::new(&spec, known(vec![running()], Stage::WaitAlloc, parts));
    let is_healthy =
        |life: &Bench| crate::alloc::health::is_healthy(&AllocSpec::read(spec.clone()), &life.state);
    life.write(|writer| writer.checked(result(None, CheckStatus::Success)));
    life.settle();
    assert!(is_healthy(&life));
    life.write(|writer| writer.exited("main", 1, exit(1)));
    assert!(life.state.checks.results.is_empty());
    life.settle();
    assert_eq!(life.issued.last().map(String::as_str), Some("Down"), "{:?}", life.issued);
}

/// An allocation that was judged healthy and no longer is gets a full deadline before it is overdue.
#[test]
fn lost_health_gets_a_full_deadline() {
    let spec = with_a_failing_check(HealthCheck::Checks);
    let deadline = herdlet_api_types::fixture::update().healthy_deadline;
    let parts = up(&[Part::Dir, Part::Services, Part::Checks, TASK_DIR, PROCESS]);
    let mut life = Bench::new(&spec, known(vec![running()], Stage::WaitAlloc, parts));
    life.state.durable.health = Some(Health { healthy: true, at: at(100).wall });
    life.state.durable.healthy_by = Some(Deadline::after(at(100), deadline));
    let waits = |life: &Bench| super::plan(life.now, &life.ctx, &spec, &life.state).waits;
    life.write(|writer| writer.checked(result(None, CheckStatus::Success)));
    life.settle();
    assert_eq!(waits(&life), []);
    life.now = at(1_000_000);
    life.write(|writer| writer.checked(result(None, CheckStatus::Failure)));
    assert_eq!(waits(&life), [Waiting::Checks(Some(Deadline::after(life.now, deadline)))]);
    // A short time in health proves nothing.
    let by = Deadline::after(life.now, deadline);
    for (later, status) in [(1_000_001, CheckStatus::Success), (1_000_001, CheckStatus::Failure)] {
        life.now = at(later);
        life.write(|writer| writer.checked(result(None, status)));
        life.settle();
    }
    assert_eq!(life.state.durable.healthy_by, Some(by));
    // The next agent gives it the full deadline too.
    let restored = AllocState::restored(&spec, (*life.state.durable).clone(), at(2_000_000));
    assert_eq!(restored.durable.healthy_by, Some(Deadline::after(at(2_000_000), deadline)));
}

#[test]
fn checks_without_results_continue_at_a_start() {
    let spec = with_a_failing_check(HealthCheck::Checks);
    let parts = up(&[Part::Dir, Part::Services, Part::Checks, TASK_DIR]);
    let mut life = Bench::new(&spec, known(vec![pending()], Stage::Main, parts));
    life.settle();
    life.outcome(PROCESS, Outcome::Started(Launch::of(1)));
    assert!(!life.state.checks.recheck);
    assert!(!life.issued.iter().any(|verb| verb == "Down"), "{:?}", life.issued);
}

/// A verdict that it is unhealthy is not outdated by a short time in health.
#[test]
fn unhealthy_verdict_gets_no_new_deadline() {
    let spec = with_a_failing_check(HealthCheck::Checks);
    let parts = up(&[Part::Dir, Part::Services, Part::Checks, TASK_DIR, PROCESS]);
    let mut life = Bench::new(&spec, known(vec![running()], Stage::WaitAlloc, parts));
    life.state.durable.health = Some(Health { healthy: false, at: at(100).wall });
    let by = Deadline::after(at(90), Duration::from_secs(10));
    life.state.durable.healthy_by = Some(by);
    life.now = at(200);
    for status in [CheckStatus::Success, CheckStatus::Failure] {
        life.write(|writer| writer.checked(result(None, status)));
        life.settle();
    }
    assert_eq!(life.state.durable.healthy_by, Some(by));
    assert!(life.state.durable.is_unhealthy());
}

/// `min_healthy_time` in health outdates the verdict of the health watch. Only operators revise what operators have decided:
/// by a restart.
#[test]
fn late_health_outdates_a_verdict() {
    for (health_check, recovers) in
        [(HealthCheck::Checks, true), (HealthCheck::TaskStates, true), (HealthCheck::Manual, false)]
    {
        let mut spec = with_a_failing_check(health_check);
        let id = DeploymentId::from_hash([1; 16]);
        std_alloc::sync::Arc::make_mut(&mut spec).deployment = Some(AllocDeployment { id, canary: false });
        let parts = up(&[Part::Dir, Part::Services, Part::Checks, TASK_DIR, PROCESS]);
        let mut life = Bench::new(&spec, known(vec![running()], Stage::WaitAlloc, parts));
        let verdict = Health { healthy: false, at: at(100).wall };
        life.state.durable.health = Some(verdict);
        life.write(|writer| writer.checked(result(None, CheckStatus::Success)));
        life.settle();
        life.now = at(102);
        life.settle();
        assert_eq!(life.state.durable.is_unhealthy(), !recovers, "{health_check:?}");
        assert_eq!(life.settle(), 0, "{health_check:?}");
        life.write(|writer| writer.restart(&RestartScope::Running)).unwrap();
        assert!(!life.state.durable.is_unhealthy(), "{health_check:?}");
        assert_eq!(life.state.durable.health, Some(verdict), "the verdict itself is final");
        life.write(|writer| writer.change(Change::Verdict(verdict, String::new())));
        assert!(life.state.durable.is_unhealthy(), "another verdict counts");
    }
}

/// Start-up, readiness and liveness: `on_update` determines whether health requires the check.
#[test]
fn on_update_decides_whether_a_check_counts() {
    use CheckStatus::{Failure, Pending, Success, Warning};
    for (on_update, good) in [
        (OnUpdate::RequireHealthy, vec![Success]),
        (OnUpdate::IgnoreWarnings, vec![Success, Warning]),
        (OnUpdate::Ignore, vec![Pending, Success, Warning, Failure]),
    ] {
        let mut spec = with_a_failing_check(HealthCheck::Checks);
        let job = std_alloc::sync::Arc::make_mut(&mut std_alloc::sync::Arc::make_mut(&mut spec).job);
        job.groups[0].services[0].checks[0].on_update = on_update;
        for status in [Pending, Success, Warning, Failure] {
            let mut life = Bench::new(&spec, known(vec![running()], Stage::Main, Parts::absent()));
            life.write(|writer| writer.checked(CheckResult { on_update, ..result(None, status) }));
            let healthy = crate::alloc::health::now(&AllocSpec::read(spec.clone()), &life.state);
            assert_eq!(healthy, Some(good.contains(&status)), "{on_update:?} {status:?}");
        }
    }
}

/// Results from a previous agent are shown and listed, but no verdict rests on them.
#[test]
fn results_outlive_the_agent_as_hearsay() {
    let spec = with_a_failing_check(HealthCheck::Checks);
    let mut life = Bench::new(&spec, known(vec![running()], Stage::WaitAlloc, Parts::absent()));
    life.write(|writer| writer.checked(result(None, CheckStatus::Success)));
    let stored = (*life.state.durable).clone();
    let mut next = Bench::new(&spec, AllocState::restored(&spec, stored, at(200)));
    assert!(next.state.checks.results["alive"].stale);
    assert_eq!(crate::alloc::health::now(&AllocSpec::read(spec.clone()), &next.state), Some(true));
    next.now = at(200);
    next.settle();
    next.now = at(202);
    next.settle();
    assert_eq!(next.state.durable.health, None, "the check has not run again");
    next.write(|writer| writer.checked(result(None, CheckStatus::Success)));
    next.settle();
    assert_eq!(next.state.durable.health.map(|verdict| verdict.healthy), Some(true));
    assert!(!next.state.checks.results["alive"].stale);
}

/// Services change in place. Lists of passing services must keep those that did not change, and those whose check
/// changed.
#[test]
fn check_results_stay_valid_until_checks_change() {
    let spec = with_a_failing_check(HealthCheck::Checks);
    let result_of = |id: &str, check: &str, status| CheckResult {
        id: id.to_string(),
        check: check.to_string(),
        at: at(90).wall,
        ..result(None, status)
    };
    let mut life = Bench::new(&spec, known(vec![running()], Stage::WaitAlloc, up(&[Part::Checks])));
    let of_task =
        CheckResult { task: Some("main".to_string()), ..result_of("5", "own", CheckStatus::Failure) };
    life.write(|writer| {
        writer.checked(result_of("1", "same", CheckStatus::Success));
        writer.checked(result_of("2", "edited", CheckStatus::Success));
        writer.checked(result_of("3", "removed", CheckStatus::Failure));
        writer.checked(of_task.clone());
    });
    let restarts = || {
        let (failing_for, grace) = (Duration::ZERO, Duration::ZERO);
        Some(RestartsWhen { failing_for, grace, ignore_warnings: true, task: None })
    };
    let wanted = |id: &str, check: &str| CheckResult {
        restarts: restarts(),
        ..result_of(id, check, CheckStatus::Pending)
    };
    let checking = vec![wanted("1", "same"), wanted("22", "edited"), wanted("4", "added")];
    life.state.expect_checks(None, &checking, at(100).boot_ns);
    let known: Vec<_> = life.state.checks.results.values().cloned().collect();
    let same = CheckResult { restarts: restarts(), ..result_of("1", "same", CheckStatus::Success) };
    let edited =
        CheckResult { restarts: restarts(), stale: true, ..result_of("22", "edited", CheckStatus::Success) };
    assert_eq!(known, [same, edited, of_task], "each keeps only what is valid now");
    assert_eq!(life.state.durable.checks.keys().collect::<Vec<_>>(), ["1", "22", "5"]);
}
