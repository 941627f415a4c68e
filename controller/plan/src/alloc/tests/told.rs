//! What the history of a task tells of its end and of its restarts, as stock clients tell it.

use super::*;
use crate::time::Deadline;

/// As by stock clients a task that waits for its start is told to have been killed as well, but not one that runs after the others.
#[test]
fn that_a_task_is_killed_is_told_also_before_its_start() {
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
    let mut life =
        Bench::new(&spec, known(vec![pending(), backing_off, pending()], Stage::Prestart, Parts::absent()));
    life.settle();
    let tasks = &life.state.durable.tasks;
    let told = |at: usize| -> Vec<(&str, &str)> {
        tasks[at].events.iter().map(|event| (event.kind.as_str(), event.message.as_str())).collect()
    };
    let killing = [("Killing", "Sent interrupt. Waiting 5s before force killing")];
    assert_eq!((told(0), told(1), told(2)), (killing.to_vec(), killing.to_vec(), vec![]));
}

/// A group-wide stop finds a task that was being stopped to start again: it is not to start any more.
#[test]
fn a_task_whose_restart_becomes_its_end_is_told_to_be_killed() {
    let spec = alloc(vec![task("main", Lifecycle::Main)]);
    let mut life =
        Bench::new(&spec, known(vec![running()], Stage::WaitAlloc, up(&[Part::Dir, TASK_DIR, PROCESS])));
    life.write(|writer| writer.restart(&RestartScope::Running).expect("it runs"));
    life.settle();
    assert!(matches!(life.state.durable.tasks[0].run, Run::Stopping { then: AfterStop::Restart, .. }));
    let mut stopped = spec.clone();
    std_alloc::sync::Arc::make_mut(&mut stopped).desired = Desired::Stop;
    let mut life = Bench::new(&stopped, life.state);
    life.settle();
    let told = life.state.durable.tasks[0].events.iter().map(|event| event.kind.as_str());
    assert_eq!(told.collect::<Vec<_>>(), ["Restart Signaled", "Killing"]);
}

/// What had ended is started again with all others, and says so as they do.
#[test]
fn a_restart_of_all_tasks_is_told_by_those_that_have_ended() {
    let spec = alloc(vec![task("main", Lifecycle::Main), task("pre", Lifecycle::Prestart)]);
    let parts = up(&[Part::Dir, TASK_DIR, PROCESS]);
    for (scope, expected) in [
        (RestartScope::Running, vec![]),
        (RestartScope::All, vec!["User requested all tasks to restart", "Task restarting in 0s"]),
    ] {
        let mut life = Bench::new(&spec, known(vec![running(), dead()], Stage::WaitAlloc, parts.clone()));
        life.write(|writer| writer.restart(&scope).expect("it runs"));
        life.settle();
        let pre = &life.state.durable.tasks[1];
        let told: Vec<&str> = pre.events.iter().map(|event| event.message.as_str()).collect();
        assert_eq!((told, pre.restarts), (expected.clone(), u32::from(!expected.is_empty())), "{scope:?}");
    }
}

#[test]
fn servers_hear_of_a_signal_in_the_words_of_stock_clients() {
    for (is_of_servers, message) in
        [(true, "Task being sent a signal"), (false, "Task being sent signal SIGHUP")]
    {
        let mut spec = alloc(vec![task("main", Lifecycle::Main)]);
        let server = herdlet_api_types::fixture::server_side(&spec.job);
        std_alloc::sync::Arc::make_mut(&mut spec).server = is_of_servers.then(|| server.into());
        let parts = up(&[Part::Dir, TASK_DIR, PROCESS]);
        let mut life = Bench::new(&spec, known(vec![running()], Stage::WaitAlloc, parts));
        life.write(|writer| writer.signal(None, "SIGHUP").expect("it runs"));
        let told: Vec<_> = life.state.durable.tasks[0].events.iter().collect();
        assert_eq!((told[0].message.as_str(), told[0].details["signal"].as_str()), (message, "SIGHUP"));
    }
}
