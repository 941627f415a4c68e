//! Tests of tasks that are CSI plugins: their events, and which of them restart.

use std_alloc::collections::BTreeMap;

use herdlet_api_types::{UnixNanos, task::TaskEvent};

use super::*;
use crate::{event::PluginHealth, limits::EVENTS_MAX};

fn healthy() -> PluginHealth {
    PluginHealth::Healthy { plugin: String::from("disks") }
}

fn unhealthy() -> PluginHealth {
    PluginHealth::Unhealthy { why: String::from("it hangs") }
}

fn overdue() -> PluginHealth {
    PluginHealth::Overdue { why: String::from("no response") }
}

/// An allocation whose only task runs in its first attempt.
fn running_plugin(spec: &Arc<Allocation>) -> Bench<'_> {
    let parts = up(&[Part::Dir, TASK_DIR, PROCESS]);
    Bench::new(spec, known(vec![running()], Stage::WaitAlloc, parts))
}

/// The task's events and whether a restart is due, after these reports about attempt 1, which runs.
fn after(reports: &[PluginHealth]) -> (Vec<&'static str>, bool) {
    let spec = alloc(vec![task("main", Lifecycle::Main)]);
    let mut life = running_plugin(&spec);
    let before = life.state.durable.tasks[0].events.iter().count();
    for report in reports {
        life.write(|writer| writer.plugin_reported("main", 1, report.clone()));
    }
    let known = &life.state.durable.tasks[0];
    let events = known.events.iter().skip(before).map(|event| event.kind.as_str()).collect();
    (events, known.restart_requested && known.unhealthy)
}

#[test]
fn each_change_is_one_event() {
    let (good, bad) = ("Plugin became healthy", "Plugin became unhealthy");
    assert_eq!(after(&[healthy()]), (vec![good], false));
    // The next agent reports it again.
    assert_eq!(after(&[healthy(), healthy()]), (vec![good], false));
    assert_eq!(after(&[healthy(), unhealthy(), unhealthy(), healthy()]), (vec![good, bad, good], false));
}

#[test]
fn only_a_plugin_that_was_never_ready_restarts() {
    let (good, bad) = ("Plugin became healthy", "Plugin became unhealthy");
    assert_eq!(after(&[overdue()]), (vec![bad, "Restart Signaled"], true));
    assert_eq!(after(&[overdue(), overdue()]), (vec![bad, "Restart Signaled"], true));
    // The agent was replaced while the plugin did not answer.
    assert_eq!(after(&[healthy(), overdue()]), (vec![good, bad], false));
}

/// Events of other kinds displace those about the plugin.
#[test]
fn a_plugin_that_was_ready_is_remembered_beyond_its_events() {
    let spec = alloc(vec![task("main", Lifecycle::Main)]);
    let mut life = running_plugin(&spec);
    life.write(|writer| writer.plugin_reported("main", 1, healthy()));
    for _ in 0..EVENTS_MAX {
        let (kind, time) = (TaskEventKind::Signaling, UnixNanos(1));
        let event = TaskEvent { kind, time, message: String::new(), details: BTreeMap::new() };
        life.state.durable.tasks[0].remember(event);
    }
    life.write(|writer| writer.plugin_reported("main", 1, healthy()));
    let kinds = |life: &Bench| -> Vec<TaskEventKind> {
        life.state.durable.tasks[0].events.iter().map(|event| event.kind).collect()
    };
    assert_eq!(kinds(&life), [TaskEventKind::Signaling; EVENTS_MAX], "it has not changed");
    life.write(|writer| writer.plugin_reported("main", 1, overdue()));
    assert!(!life.state.durable.tasks[0].restart_requested);
}

#[test]
fn the_next_attempt_must_be_ready_again() {
    let spec = alloc(vec![task("main", Lifecycle::Main)]);
    let mut life = running_plugin(&spec);
    life.write(|writer| writer.plugin_reported("main", 1, healthy()));
    let task = &mut life.state.durable.tasks[0];
    task.attempt = 2;
    task.run = Run::Running { attempt: 2, boot: BootId(1) };
    life.write(|writer| writer.plugin_reported("main", 2, overdue()));
    let known = &life.state.durable.tasks[0];
    assert!(known.restart_requested && known.unhealthy);
}

#[test]
fn a_report_about_another_attempt_changes_nothing() {
    let spec = alloc(vec![task("main", Lifecycle::Main)]);
    let mut life = running_plugin(&spec);
    let before = life.state.durable.tasks.clone();
    for attempt in [0, 2] {
        life.write(|writer| writer.plugin_reported("main", attempt, overdue()));
    }
    life.write(|writer| writer.plugin_reported("other", 1, overdue()));
    assert_eq!(life.state.durable.tasks, before);
}
