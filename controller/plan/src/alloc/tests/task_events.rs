//! Tests of a task's history: the events about its end and its restarts, as stock clients record them.

use super::*;
use crate::time::Deadline;

/// The same allocation, placed by a server.
fn placed(spec: &Arc<Allocation>) -> Arc<Allocation> {
    let server = Some(Arc::new(herdlet_api_types::fixture::server_side(&spec.job)));
    Arc::new(Allocation { server, ..Allocation::clone(spec) })
}

fn events(life: &Bench<'_>, at: usize) -> Vec<(&'static str, String)> {
    let events = life.state.durable.tasks[at].events.iter();
    events.map(|event| (event.kind.as_str(), event.message.clone())).collect()
}

/// As with stock clients, a task that waits for its start gets the event as well, but not one that runs after the
/// others. Regression: the event claimed that an interrupt was sent, although there was no process. That text is for
/// servers only.
#[test]
fn killing_is_recorded_before_the_start_too() {
    let mut spec = alloc(vec![
        task("main", Lifecycle::Main),
        task("pre", Lifecycle::Prestart),
        task("post", Lifecycle::Poststop),
    ]);
    std_alloc::sync::Arc::make_mut(&mut spec).desired = Desired::Stop;
    let backing_off = TaskState {
        attempt: 1,
        run: Run::BackingOff { until: Deadline::after(at(100), Duration::from_secs(9)) },
        ..running()
    };
    let sent = || String::from("Sent interrupt. Waiting 5s before force killing");
    let stops = "its allocation is being stopped";
    for (spec, first, second) in [
        (placed(&spec), sent(), sent()),
        (spec, format!("Not started: {stops}"), format!("Not started again: {stops}")),
    ] {
        let tasks = vec![pending(), backing_off.clone(), pending()];
        let mut life = Bench::new(&spec, known(tasks, Stage::Prestart, Parts::absent()));
        life.settle();
        assert_eq!(events(&life, 0), [("Killing", first)]);
        assert_eq!(events(&life, 1), [("Killing", second)]);
        assert_eq!(events(&life, 2), []);
    }
}

/// Regression: tasks that waited for a failed one were shown as complete, with an event that an interrupt had been
/// sent.
#[test]
fn a_task_that_never_ran_says_why() {
    let wait_for = |name: &str, other: &str| {
        let mut waiting = task(name, Lifecycle::Main);
        let condition = DependencyCondition::Completed;
        waiting.depends_on.push(Dependency { task: other.to_string(), condition });
        waiting
    };
    let spec =
        alloc(vec![task("build", Lifecycle::Main), wait_for("test", "build"), wait_for("publish", "test")]);
    let mut state =
        known(vec![running(), pending(), pending()], Stage::Main, up(&[Part::Dir, TASK_DIR, PROCESS]));
    for (known, name) in state.durable.tasks.iter_mut().zip(["build", "test", "publish"]) {
        known.name = name.into();
    }
    state.durable.tasks[0].counted = 9;
    state.durable.tasks[0].window = Some(Deadline::after(at(100), Duration::from_secs(60)));
    let mut life = Bench::new(&spec, state);
    life.write(|writer| writer.exited("build", 1, exit(3)));
    life.settle();
    for index in [1, 2] {
        let recorded = events(&life, index);
        assert_eq!(
            recorded.last(),
            Some(&("Killing", String::from("Not started: task build failed"))),
            "{recorded:?}"
        );
        let known = &life.state.durable.tasks[index];
        let view = crate::alloc::show::task_view(known);
        assert!(known.run == Run::Dead && !known.failed && view.never_ran());
    }
    assert!(!crate::alloc::show::task_view(&life.state.durable.tasks[0]).never_ran());
}

/// Regression: "Sent interrupt" was recorded before the `shutdown_delay` and the `prestop` command, long before the
/// signal was sent. Servers still get it then, as from stock clients.
#[test]
fn interrupt_is_recorded_when_it_is_sent() {
    let mut slow = task("main", Lifecycle::Main);
    slow.shutdown_delay = Duration::from_secs(5);
    slow.prestop =
        Some(Prestop { command: "drain".to_string(), args: Vec::new(), timeout: Duration::from_secs(3) });
    let mut spec = alloc(vec![slow]);
    Arc::make_mut(&mut spec).desired = Desired::Stop;
    let (killing, delay, prestop) = ("Killing", "Waiting for shutdown delay", "Task hook message");
    for (spec, expected) in [(placed(&spec), [killing, delay, prestop]), (spec, [delay, prestop, killing])] {
        let parts = up(&[Part::Dir, TASK_DIR, PROCESS]);
        let mut life = Bench::new(&spec, known(vec![running()], Stage::WaitAlloc, parts));
        for second in [100, 105] {
            life.now = at(second);
            life.settle();
        }
        life.outcome(Part::Task(0, TaskPart::Prestop), Outcome::Done(None));
        let recorded: Vec<&str> = events(&life, 0).iter().map(|(kind, _)| *kind).collect();
        assert_eq!(recorded, expected);
    }
}

/// A group-wide stop finds a task that is being stopped for a restart: the task does not start again.
#[test]
fn restart_that_becomes_a_stop_records_killing() {
    let spec = alloc(vec![task("main", Lifecycle::Main)]);
    let mut life =
        Bench::new(&spec, known(vec![running()], Stage::WaitAlloc, up(&[Part::Dir, TASK_DIR, PROCESS])));
    life.write(|writer| writer.restart(&RestartScope::Running).expect("a running task"));
    life.settle();
    assert!(matches!(life.state.durable.tasks[0].run, Run::Stopping { then: AfterStop::Restart, .. }));
    let mut stopped = spec.clone();
    std_alloc::sync::Arc::make_mut(&mut stopped).desired = Desired::Stop;
    let mut life = Bench::new(&stopped, life.state);
    life.settle();
    let recorded = life.state.durable.tasks[0].events.iter().map(|event| event.kind.as_str());
    assert_eq!(recorded.collect::<Vec<_>>(), ["Restart Signaled", "Killing"]);
}

/// Tasks that had ended are started again with all others, and record the same event.
#[test]
fn group_restart_is_recorded_by_ended_tasks_too() {
    let spec = alloc(vec![task("main", Lifecycle::Main), task("pre", Lifecycle::Prestart)]);
    let parts = up(&[Part::Dir, TASK_DIR, PROCESS]);
    for (scope, expected) in [
        (RestartScope::Running, vec![]),
        (RestartScope::All, vec!["User requested all tasks to restart", "Task restarting in 0s"]),
    ] {
        let mut life = Bench::new(&spec, known(vec![running(), dead()], Stage::WaitAlloc, parts.clone()));
        life.write(|writer| writer.restart(&scope).expect("a running task"));
        life.settle();
        let pre = &life.state.durable.tasks[1];
        let recorded: Vec<&str> = pre.events.iter().map(|event| event.message.as_str()).collect();
        assert_eq!(
            (recorded, pre.restarts),
            (expected.clone(), u32::from(!expected.is_empty())),
            "{scope:?}"
        );
    }
}

#[test]
fn signal_to_server_tasks_has_nomad_message() {
    for (is_of_servers, message) in
        [(true, "Task being sent a signal"), (false, "Task being sent signal SIGHUP")]
    {
        let mut spec = alloc(vec![task("main", Lifecycle::Main)]);
        let server = herdlet_api_types::fixture::server_side(&spec.job);
        std_alloc::sync::Arc::make_mut(&mut spec).server = is_of_servers.then(|| server.into());
        let parts = up(&[Part::Dir, TASK_DIR, PROCESS]);
        let mut life = Bench::new(&spec, known(vec![running()], Stage::WaitAlloc, parts));
        life.write(|writer| writer.signal(None, "SIGHUP").expect("a running task"));
        let recorded: Vec<_> = life.state.durable.tasks[0].events.iter().collect();
        assert_eq!(
            (recorded[0].message.as_str(), recorded[0].details["signal"].as_str()),
            (message, "SIGHUP")
        );
    }
}
