//! Faults of stock clients in their interaction with servers, tested with whole agents. Each has the number
//! of its entry in this project's list of races and design flaws. `controller/nomad/tests/session/flaws.rs`
//! has those within the session.

use herdlet_api_types::task::TaskPhase;
use herdlet_nomad::wire::{AllocId, ClientStatus, DesiredStatus, RunState};
use herdlet_nomad_server::{Fault, Settings, state::State};
use herdlet_plan::event::{Command, Refusal, Reply, RestartScope};
use serde_json::json;
use tokio::time::sleep;

use crate::world::{Living, World, job, nanos, seconds, within};

const FOR_EVER: &str = "100000h";

/// Servers and its replacement wait for its end.
#[tokio::test(start_paused = true)]
async fn flaw_1_allocation_stopped_before_delivery_reports_its_end() {
    let world = World::new(Settings::default());
    let node = world.ready_node(0).await;
    world.cluster.fault("Alloc.GetAllocs", 1, &Fault::Error("boom".to_owned()));
    let id = world.place(&node, &job("web", "service", json!({ "run_for": FOR_EVER }), json!({})));
    sleep(seconds(1)).await;
    world.cluster.stop(&id);
    let next = world.cluster.write(|state| {
        let job = state.allocs[&id].job.clone();
        let next = state.place(&node.id, &job, "group");
        state.change(&next, |alloc| alloc.previous_allocation = id.to_string());
        next
    });
    world.reaches(&id, ClientStatus::Complete).await;
    world.reaches(&next, ClientStatus::Running).await;
    assert_eq!((node.starts(&id), node.starts(&next)), (0, 1));
    node.end().await;
}

/// The agent was another one when the allocation was set up.
#[tokio::test(start_paused = true)]
async fn flaw_2_allocation_stopped_after_a_restart_is_cleaned_up() {
    let world = World::new(Settings::default());
    let node = world.ready_node(0).await;
    let id = world.place(&node, &job("web", "service", json!({ "run_for": FOR_EVER }), json!({})));
    world.reaches(&id, ClientStatus::Running).await;
    let node = world.again(node).await;
    world.cluster.stop(&id);
    world.reaches(&id, ClientStatus::Complete).await;
    world.cluster.write(|state| state.collect(&id));
    within(30, "it is forgotten", || node.view(&id).is_none()).await;
    let dir = node.paths.alloc(&herdlet_api_types::AllocId(id.as_str().parse().unwrap()));
    within(30, "its directory has gone", || !dir.exists()).await;
    node.end().await;
}

/// In stock clients it became a zombie whose hooks ran again.
#[tokio::test(start_paused = true)]
async fn flaw_4_ended_allocation_is_not_restarted() {
    let world = World::new(Settings::default());
    let node = world.ready_node(0).await;
    let done = world.place(&node, &job("sum", "batch", json!({ "run_for": "5s" }), json!({})));
    let stopped = world.place(&node, &job("web", "service", json!({ "run_for": FOR_EVER }), json!({})));
    let slow = json!({ "run_for": FOR_EVER, "kill_after": "4s" });
    let stopping = world.place(&node, &job("slow", "service", slow, json!({})));
    for id in [&done, &stopped, &stopping] {
        world.reaches(id, ClientStatus::Running).await;
    }
    world.cluster.stop(&stopped);
    world.reaches(&stopped, ClientStatus::Complete).await;
    world.reaches(&done, ClientStatus::Complete).await;
    world.cluster.stop(&stopping);
    within(30, "its task is asked to end", || !is_asked_to_run(&node, &stopping)).await;
    refuse_restarts(&node, &stopping).await;
    world.reaches(&stopping, ClientStatus::Complete).await;
    let report_count = |id: &AllocId| world.cluster.read(|state| state.reports[id].len());
    let all = [done, stopped, stopping];
    let before = all.clone().map(|id| report_count(&id));
    for id in &all {
        refuse_restarts(&node, id).await;
    }
    // A later agent does not restart them either. The previous one had time to store the acknowledgements.
    sleep(seconds(10)).await;
    let node = world.again(node).await;
    within(60, "they are shown", || all.iter().all(|id| node.view(id).is_some())).await;
    for id in &all {
        refuse_restarts(&node, id).await;
    }
    sleep(seconds(60)).await;
    for id in &all {
        let view = node.view(id).unwrap();
        assert_eq!((node.starts(id), view.tasks[0].attempt), (1, 1));
        assert_eq!(node.status(id), Some(ClientStatus::Complete));
    }
    // It sends no reports again.
    assert!(all.iter().zip(before).all(|(id, before)| report_count(id) == before));
    let is_complete = |id: &AllocId| world.cluster.client_status(id) == ClientStatus::Complete;
    assert!(all.iter().all(is_complete));
    node.end().await;
}

fn is_asked_to_run(node: &Living, id: &AllocId) -> bool {
    node.view(id).is_some_and(|view| view.tasks[0].phase == TaskPhase::Running)
}

/// Asserts that every kind of restart request is refused.
async fn refuse_restarts(node: &Living, id: &AllocId) {
    for scope in [RestartScope::All, RestartScope::Running, RestartScope::Task("main".to_owned())] {
        let reply = restart(node, id, scope.clone()).await;
        assert!(matches!(reply, Reply::Refused(Refusal::Conflict(_))), "{id} {scope:?}: {reply:?}");
    }
}

async fn restart(node: &Living, id: &AllocId, scope: RestartScope) -> Reply {
    let alloc = herdlet_api_types::AllocId(id.as_str().parse().unwrap());
    node.agent.requests.ask(Command::Restart { alloc, scope }).await.unwrap().reply
}

#[tokio::test(start_paused = true)]
async fn flaws_5_and_6_lagging_lists_stop_nothing() {
    let world = World::new(Settings { servers: 3, ..Settings::default() });
    let mut node = world.ready_node(0).await;
    (0..3).for_each(|server| world.cluster.freeze(server));
    let text = job("web", "service", json!({ "run_for": FOR_EVER }), json!({}));
    let ids: Vec<_> = (0..5).map(|_| world.place(&node, &text)).collect();
    (0..3).for_each(|server| world.cluster.thaw(server));
    for id in &ids {
        world.reaches(id, ClientStatus::Running).await;
    }
    for round in 0..4 {
        world.cluster.fault("Node.GetClientAllocs", 2, &Fault::EmptyList(2));
        (0..3).for_each(|server| world.cluster.freeze(server));
        world.cluster.lead(None);
        node = world.again(node).await;
        sleep(seconds(10)).await;
        world.cluster.lead(Some(round % 3));
        sleep(seconds(60)).await;
        (0..3).for_each(|server| world.cluster.thaw(server));
        assert!(ids.iter().all(|id| node.status(id) == Some(ClientStatus::Running) && node.starts(id) == 1));
    }
    node.end().await;
}

#[tokio::test(start_paused = true)]
async fn flaw_7_allocation_deleted_during_downtime_is_stopped() {
    let world = World::new(Settings::default());
    let node = world.ready_node(0).await;
    let text = job("web", "service", json!({ "run_for": FOR_EVER }), json!({}));
    let (kept, gone) = (world.place(&node, &text), world.place(&node, &text));
    world.reaches(&kept, ClientStatus::Running).await;
    world.reaches(&gone, ClientStatus::Running).await;
    let number = node.end().await;
    world.cluster.write(|state| state.collect(&gone));
    let node = world.node(number).await;
    within(60, "what is here is shown", || node.view(&kept).is_some()).await;
    within(60, "it is gone", || node.view(&gone).is_none()).await;
    assert_eq!((node.status(&kept), node.starts(&kept)), (Some(ClientStatus::Running), 1));
    node.end().await;
}

/// The servers did not receive the report, and the agent that saw the end is gone.
#[tokio::test(start_paused = true)]
async fn flaws_8_and_9_complete_allocation_never_runs_again() {
    let world = World::new(Settings::default());
    let node = world.ready_node(0).await;
    let id = world.place(&node, &job("sum", "batch", json!({ "run_for": "5s" }), json!({})));
    world.reaches(&id, ClientStatus::Running).await;
    world.cluster.fault("Node.UpdateAlloc", 50, &Fault::Error("boom".to_owned()));
    within(30, "it ends", || node.status(&id) == Some(ClientStatus::Complete)).await;
    let node = world.again(node).await;
    assert_eq!(world.cluster.client_status(&id), ClientStatus::Running);
    world.cluster.no_faults();
    world.reaches(&id, ClientStatus::Complete).await;
    // The servers change it once more, and another agent starts.
    world
        .cluster
        .write(|state| state.change(&id, |alloc| alloc.desired_description = "still wanted".to_owned()));
    let node = world.again(node).await;
    sleep(seconds(60)).await;
    assert_eq!((node.status(&id), node.starts(&id)), (Some(ClientStatus::Complete), 1));
    node.end().await;
}

/// In stock clients the only call that removes it had failed.
#[tokio::test(start_paused = true)]
async fn flaw_36_service_is_removed_despite_failures() {
    const REMOVED: &str = "ServiceRegistration.DeleteByID";
    let world = World::new(Settings::default());
    let node = world.ready_node(0).await;
    let group = json!({ "Services": [{ "Name": "web", "Provider": "nomad" }] });
    // It ends late, because servers themselves remove services of an ended allocation.
    let task = json!({ "run_for": FOR_EVER, "kill_after": "4m" });
    let mut text = job("web", "service", task, group);
    text["TaskGroups"][0]["Tasks"][0]["KillTimeout"] = nanos(300).into();
    let (kept, gone) = (world.place(&node, &text), world.place(&node, &text));
    let holds = |id: &AllocId| world.cluster.read(|state| state.services.values().any(|of| of == id));
    within(60, "servers hold both", || holds(&kept) && holds(&gone)).await;
    for fault in [
        Fault::Error("No cluster leader".to_owned()),
        Fault::Error("boom".to_owned()),
        Fault::Drop,
        Fault::Hang,
        Fault::Late("boom".to_owned()),
    ] {
        world.cluster.fault(REMOVED, 2, &fault);
    }
    world.cluster.stop(&gone);
    within(200, "servers hold it no more", || !holds(&gone)).await;
    assert_ne!(
        world.cluster.client_status(&gone),
        ClientStatus::Complete,
        "the servers have removed the service"
    );
    // An unconfirmed removal is repeated once more, and not after that.
    within(300, "the faults are used up", || world.cluster.requests(REMOVED).len() >= 2).await;
    let asked = world.cluster.requests(REMOVED).len();
    sleep(seconds(60)).await;
    assert_eq!(world.cluster.requests(REMOVED).len(), asked);
    assert!(holds(&kept) && world.cluster.client_status(&kept) == ClientStatus::Running);
    node.end().await;
}

/// Attempts of all agents count.
#[tokio::test(start_paused = true)]
async fn flaw_41_crash_loop_fails_over_agent_restarts() {
    let world = World::new(Settings::default());
    let mut node = world.ready_node(0).await;
    let policy = json!({ "RestartPolicy": { "Attempts": 2, "Mode": "fail", "Interval": nanos(3_600), "Delay": nanos(10) } });
    let id = world.place(&node, &job("bad", "batch", json!({ "run_for": "1s", "exit_code": 1 }), policy));
    for starts in 1..=3 {
        within(60, "it is started", || node.starts(&id) == starts).await;
        node = world.again(node).await;
    }
    world.reaches(&id, ClientStatus::Failed).await;
    sleep(seconds(120)).await;
    assert_eq!((node.starts(&id), node.status(&id)), (3, Some(ClientStatus::Failed)));
    node.end().await;
}

/// The wait is a condition: it outlives servers and agents, and ends if the waiting allocation is no longer
/// wanted.
#[tokio::test(start_paused = true)]
async fn flaw_46_wait_for_another_node_survives_agents() {
    let world = World::new(Settings { servers: 3, ..Settings::default() });
    let (there, here) = (world.ready_node(0).await, world.ready_node(1).await);
    let text = job("web", "service", json!({ "run_for": FOR_EVER, "kill_after": "1h" }), json!({}));
    let previous = world.place(&there, &text);
    world.reaches(&previous, ClientStatus::Running).await;
    let follow = || {
        world.cluster.write(|state| {
            let job = state.allocs[&previous].job.clone();
            let next = state.place(&here.id, &job, "group");
            state.change(&next, |alloc| alloc.previous_allocation = previous.to_string());
            next
        })
    };
    let (given_up, next) = (follow(), follow());
    within(30, "both are here", || here.view(&given_up).is_some() && here.view(&next).is_some()).await;
    world.cluster.stop(&given_up);
    world.reaches(&given_up, ClientStatus::Complete).await;
    let here = world.again(here).await;
    for server in 0..3 {
        world.cluster.set_down(server, true);
        sleep(seconds(3)).await;
        world.cluster.set_down(server, false);
    }
    sleep(seconds(30)).await;
    assert_eq!((here.starts(&next), here.status(&next)), (0, Some(ClientStatus::Pending)));
    world.cluster.stop(&previous);
    world.reaches(&previous, ClientStatus::Complete).await;
    world.reaches(&next, ClientStatus::Running).await;
    assert_eq!((here.starts(&given_up), here.starts(&next)), (0, 1));
    here.end().await;
    there.end().await;
}

/// A reconnection can bring another version of the job, or a stop.
#[tokio::test(start_paused = true)]
async fn flaw_54_what_comes_with_a_reconnection_is_done() {
    let world = World::new(Settings::default());
    let node = world.ready_node(0).await;
    let group = |version: &str| json!({ "Count": 2, "Meta": { "version": version }, "Disconnect": { "LostAfter": nanos(3_600) } });
    let text = |version| job("web", "service", json!({ "run_for": FOR_EVER }), group(version));
    let key = world.submit(&text("old"));
    world
        .until(60, "both run", |state| {
            state.allocs.values().all(|alloc| alloc.client_status == ClientStatus::Running)
        })
        .await;
    let ids: Vec<_> = world.cluster.allocs_of(&key).into_iter().map(|alloc| alloc.id).collect();
    assert_eq!(ids.len(), 2);
    world.cluster.set_down(0, true);
    world
        .until(60, "the allocations are unknown", |state| {
            state.allocs.values().all(|alloc| alloc.client_status == ClientStatus::Unknown)
        })
        .await;
    // An update in place of one, whose status on the servers stays unknown meanwhile, and a stop of the
    // other.
    world.cluster.write(|state| {
        state.change(&ids[0], |alloc| alloc.desired_description = "changed".to_owned());
        state.change(&ids[1], |alloc| alloc.desired_status = DesiredStatus::Stop);
    });
    world.cluster.set_down(0, false);
    world.reaches(&ids[0], ClientStatus::Running).await;
    world.reaches(&ids[1], ClientStatus::Complete).await;
    let view = node.view(&ids[0]).unwrap();
    assert_eq!(view.spec.desired_description, "changed");
    assert!(ids.iter().all(|id| node.starts(id) == 1));
    node.end().await;
}

/// In stock clients a task that had failed was still reported as failed while it was running again.
#[tokio::test(start_paused = true)]
async fn flaw_55_failure_belongs_to_its_incarnation() {
    let world = World::new(Settings::default());
    let node = world.ready_node(0).await;
    let policy = json!({ "RestartPolicy": { "Attempts": 1, "Mode": "fail", "Interval": nanos(7_200), "Delay": nanos(3_600) } });
    let id = world.place(&node, &job("bad", "batch", json!({ "run_for": "30s", "exit_code": 1 }), policy));
    let is_waiting = || node.view(&id).is_some_and(|view| view.tasks[0].phase == TaskPhase::BackingOff);
    within(60, "it has failed and waits", is_waiting).await;
    let reply = restart(&node, &id, RestartScope::All).await;
    assert!(matches!(reply, Reply::Accepted { .. }), "{reply:?}");
    let task_state = |state: &State| state.allocs[&id].task_states["main"].clone();
    world
        .until(20, "the task runs again", |state| {
            task_state(state).state == RunState::Running && task_state(state).restarts == 1
        })
        .await;
    assert_eq!((node.starts(&id), world.cluster.read(task_state).failed), (2, false));
    assert_eq!(world.cluster.client_status(&id), ClientStatus::Running);
    // It fails once more, now permanently: nothing restarts it.
    world.until(60, "the task has failed permanently", |state| task_state(state).failed).await;
    assert_eq!((node.starts(&id), world.cluster.client_status(&id)), (2, ClientStatus::Failed));
    refuse_restarts(&node, &id).await;
    let node = world.again(node).await;
    sleep(seconds(60)).await;
    assert!(world.cluster.read(task_state).failed && node.starts(&id) == 2);
    node.end().await;
}
