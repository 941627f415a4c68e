//! The coordinator's traces, and which tasks end together.

use std_alloc::{string::ToString, vec, vec::Vec};

use herdlet_api_types::job::Lifecycle as L;

use super::*;
use crate::{
    fixture::{dead, failed, leader, pending, running, task},
    state::Run,
    time::BootId,
};

/// Follows the stages through these states of the tasks, from the beginning.
fn trace(tasks: &[Task], states: &[&[TaskState]]) -> Vec<Stage> {
    let mut stage = Stage::Init;
    let mut seen = vec![];
    for states in states {
        stage = advance(stage, tasks, states);
        seen.push(stage);
    }
    seen
}

#[test]
fn a_main_task_passes_all_stages() {
    let tasks = [task("m", L::Main)];
    assert_eq!(
        trace(&tasks, &[&[pending()], &[running()], &[dead()]]),
        [Stage::Main, Stage::WaitAlloc, Stage::Poststop]
    );
}

#[test]
fn a_main_task_waits_for_the_success_of_prestart() {
    let tasks = [task("pe", L::Prestart), task("m", L::Main)];
    assert_eq!(
        trace(&tasks, &[&[pending(), pending()], &[running(), pending()], &[dead(), pending()]]),
        [Stage::Prestart, Stage::Prestart, Stage::Main]
    );
    assert!(!Stage::Prestart.admits(L::Main));
    assert_eq!(trace(&tasks, &[&[failed(), pending()]]), [Stage::Init]);
    assert_eq!(trace(&tasks, &[&[pending(), pending()], &[failed(), pending()]])[1], Stage::Prestart);
    assert_eq!(
        stop_reason(&tasks, &[failed(), pending()]),
        Some(StopReason::SiblingFailed("pe".to_string()))
    );
    assert_eq!(advance(Stage::Prestart, &tasks, &[failed(), dead()]), Stage::Poststop);
}

#[test]
fn late_sidecar_crash_closes_no_gate() {
    let tasks = [task("ps", L::PrestartSidecar), task("m", L::Main)];
    let stages = trace(
        &tasks,
        &[&[pending(), pending()], &[running(), pending()], &[pending(), pending()], &[pending(), running()]],
    );
    assert_eq!(stages, [Stage::Prestart, Stage::Main, Stage::Main, Stage::WaitAlloc]);
    assert!(Stage::Main.admits(L::Main) && Stage::WaitAlloc.admits(L::PrestartSidecar));
}

#[test]
fn poststart_follows_main_and_poststop_follows_all() {
    let tasks = [task("m", L::Main), task("te", L::Poststart), task("p", L::Poststop)];
    let stages = trace(
        &tasks,
        &[
            &[pending(), pending(), pending()],
            &[running(), pending(), pending()],
            &[running(), dead(), pending()],
            &[dead(), dead(), pending()],
        ],
    );
    assert_eq!(stages, [Stage::Main, Stage::Poststart, Stage::WaitAlloc, Stage::Poststop]);
    assert!(Stage::Poststart.admits(L::Poststart) && !Stage::WaitAlloc.admits(L::Poststart));
    assert!(Stage::Poststop.admits(L::Poststop) && !Stage::Poststop.admits(L::Main));
}

#[test]
fn the_end_is_reached_from_every_stage() {
    let tasks = [task("pe", L::Prestart), task("m", L::Main), task("p", L::Poststop)];
    for stage in [Stage::Init, Stage::Prestart, Stage::Main, Stage::Poststart, Stage::WaitAlloc] {
        assert_eq!(advance(stage, &tasks, &[failed(), dead(), pending()]), Stage::Poststop);
    }
}

#[test]
fn a_restart_of_all_waits_until_all_are_pending() {
    let tasks = [task("pe", L::Prestart), task("m", L::Main)];
    assert_eq!(advance(Stage::Init, &tasks, &[pending(), running()]), Stage::Init);
    assert_eq!(advance(Stage::Init, &tasks, &[pending(), pending()]), Stage::Prestart);
    // In a simulated life, a main task that was being started ran its prestart task again beside it.
    let starting = TaskState { run: Run::Starting { attempt: 1, boot: BootId(1) }, ..pending() };
    assert_eq!(advance(Stage::Init, &tasks, &[pending(), starting]), Stage::Init);
}

#[test]
fn a_restart_of_all_does_not_wait_for_a_poststop_task() {
    let tasks = [task("m", L::Main), task("p", L::Poststop)];
    assert_eq!(advance(Stage::Init, &tasks, &[pending(), dead()]), Stage::Main);
}

#[test]
fn end_of_a_task_ends_others_by_lifecycle() {
    let tasks = [
        leader(task("l", L::Main)),
        task("m", L::Main),
        task("s", L::PrestartSidecar),
        task("p", L::Poststop),
    ];
    let reason = |states: [TaskState; 4]| stop_reason(&tasks, &states);
    assert_eq!(reason([dead(), running(), running(), pending()]), Some(StopReason::LeaderDead));
    let sibling = |name: &str| Some(StopReason::SiblingFailed(name.to_string()));
    assert_eq!(reason([running(), failed(), running(), pending()]), sibling("m"));
    assert_eq!(reason([failed(), running(), running(), pending()]), sibling("l"));
    assert_eq!(stop_reason(&tasks[1..], &[dead(), running(), pending()]), Some(StopReason::MainDead));
    assert_eq!(reason([running(), dead(), running(), pending()]), None);
    assert_eq!(reason([dead(), dead(), dead(), failed()]), None, "a poststop task ends no other task");
}

#[test]
fn leader_stops_first_and_sidecars_last() {
    let mut tasks = [
        task("s", L::PrestartSidecar),
        task("m", L::Main),
        leader(task("l", L::Main)),
        task("d", L::Main),
        task("p", L::Poststop),
    ];
    let on_m = herdlet_api_types::job::Dependency {
        task: "m".to_string(),
        condition: herdlet_api_types::job::DependencyCondition::Started,
    };
    tasks[3].depends_on.push(on_m);
    let may = |states: &[TaskState; 5]| -> Vec<&str> {
        (0..4)
            .filter(|index| may_stop(*index, &tasks, states))
            .map(|index| tasks[index].name.as_str())
            .collect()
    };
    assert_eq!(may(&[running(), running(), running(), running(), pending()]), ["l"]);
    assert_eq!(may(&[running(), running(), dead(), running(), pending()]), ["l", "d"]);
    assert_eq!(may(&[running(), running(), dead(), dead(), pending()]), ["m", "l", "d"]);
    assert_eq!(may(&[running(), dead(), dead(), dead(), pending()]), ["s", "m", "l", "d"]);
}
