//! Engines that are down, agents that are killed, containers of others.

use bollard::{
    Docker,
    models::{ContainerCreateBody, ContainerSummary},
    query_parameters::{CreateContainerOptionsBuilder, RemoveContainerOptionsBuilder},
};
use futures_util::StreamExt as _;
use herdlet_driver::{
    AttemptId, FailureClass, Health, Leftover, Recovered, Recovery, StopRequest, TaskDriver as _,
    contract::attempt_id,
};
use serde_json::json;
use std::{collections::HashMap, sync::atomic::Ordering, time::Duration};

use super::super::locate::inspect;
use super::{
    IMAGE, Machine,
    machine::{Link, machines, reaches},
};
use crate::engine::Place;
use crate::names::{self, Naming, Owner};

pub(super) fn recovery(attempt: u32) -> Recovery {
    Recovery { id: attempt_id(attempt), config: None, handle: None, network: None }
}

/// The labels of an attempt's container.
pub(super) fn labels(owner: &Owner, id: &AttemptId) -> HashMap<String, String> {
    let all = [
        (names::INSTANCE, owner.instance.clone()),
        (names::DRIVER, owner.driver.clone()),
        (names::ATTEMPT, id.name()),
    ];
    all.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

pub(super) fn body(labels: HashMap<String, String>) -> ContainerCreateBody {
    let (image, cmd) = (Some(IMAGE.to_owned()), Some(vec!["/bin/true".to_owned()]));
    ContainerCreateBody { image, cmd, labels: Some(labels), ..ContainerCreateBody::default() }
}

pub(super) async fn client(machine: &Machine) -> Docker {
    let path = machine.path().join("e.sock").display().to_string();
    Docker::connect_with_unix(&path, 60, bollard::API_DEFAULT_VERSION)
        .unwrap()
        .negotiate_version()
        .await
        .unwrap()
}

/// An engine that was down failed the tasks that ran on, or their exits were missed.
#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_is_down_fails_no_task_and_its_exits_are_seen_later() {
    for machine in machines() {
        let driver = machine.connected().await;
        let mut exits = driver.exits();
        let task = machine.script(attempt_id(1), "while [ ! -e /local/end ]; do sleep 0.1; done; exit 7");
        driver.start(task).await.unwrap();
        machine.link.send_replace(Link::Down);
        reaches(&driver, Health::Unhealthy).await;
        let error = driver.recover(recovery(1)).await.unwrap_err();
        assert_eq!(error.class(), FailureClass::Retry, "{error}");
        let stop = StopRequest { signal: None, grace: Duration::from_secs(1) };
        let error = driver.stop(&attempt_id(1), stop.clone()).await.unwrap_err();
        assert_eq!(error.class(), FailureClass::Retry, "{error}");
        // What never started needs no engine to be cancelled.
        driver.set_earlier(&[attempt_id(1)].into());
        driver.stop(&attempt_id(2), stop).await.unwrap();
        let ended = std::fs::write(machine.task_dir().join("local/end"), "");
        ended.unwrap();
        machine.link.send_replace(Link::Works);
        let exited = exits.next().await.unwrap();
        assert_eq!((exited.id, exited.result.code), (attempt_id(1), 7));
        reaches(&driver, Health::Healthy).await;
        for attempt in [1, 2] {
            driver.destroy(&attempt_id(attempt), Leftover::Kill).await.unwrap();
        }
        assert!(driver.list_attempts().await.unwrap().is_empty());
    }
}

/// Each line of output is there once, whenever agents are killed.
#[tokio::test(flavor = "multi_thread")]
async fn output_is_copied_once_over_kills_of_the_agent() {
    const LINES: usize = 3_000;
    for machine in machines() {
        let script = format!("n=0; while [ $n -lt {LINES} ]; do echo line $n; n=$((n+1)); done; exit 5");
        let first = machine.connected().await;
        first.start(machine.script(attempt_id(1), &script)).await.unwrap();
        let exit = loop {
            let driver = machine.connected().await;
            if let Recovered::Exited(exit) = driver.recover(recovery(1)).await.unwrap() {
                driver.destroy(&attempt_id(1), Leftover::MainMustBeGone).await.unwrap();
                break exit;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        assert_eq!(exit.code, 5);
        let expected: String = (0..LINES).map(|number| format!("line {number}\n")).collect();
        let found = machine.stdout();
        assert!(found == expected, "{} of {} bytes", found.len(), expected.len());
    }
}

/// A container with a task's name that is not the agent's is refused, and one of the same attempt with an old request is
/// replaced.
#[tokio::test(flavor = "multi_thread")]
async fn a_container_is_adopted_only_if_it_is_what_the_task_asks_for() {
    for machine in machines() {
        let driver = machine.connected().await;
        let client = client(&machine).await;
        let name = names::container(&attempt_id(1), &machine.instance, Naming::Own);
        let create = |labels| {
            let body = body(labels);
            let options = CreateContainerOptionsBuilder::new().name(&name).build();
            client.create_container(Some(options), body)
        };
        create(HashMap::new()).await.unwrap();
        let task = machine.script(attempt_id(1), "echo new; sleep 3600");
        let error = driver.start(task.clone()).await.unwrap_err().to_string();
        assert!(error.contains("not this agent's"), "{error}");
        let remove = RemoveContainerOptionsBuilder::new().force(true).build();
        client.remove_container(&name, Some(remove)).await.unwrap();
        create(labels(&machine.owner(), &attempt_id(1))).await.unwrap();
        driver.start(task).await.unwrap();
        while machine.stdout() != "new\n" {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        driver.destroy(&attempt_id(1), Leftover::Kill).await.unwrap();
    }
}

/// A state that was restored from a copy repeats the numbers of attempts: a container of the newer state was taken for the task's.
#[tokio::test(flavor = "multi_thread")]
async fn a_container_of_another_request_is_never_adopted() {
    for machine in machines() {
        let task = |word: &str| machine.script(attempt_id(1), &format!("echo {word}; sleep 3600"));
        let record = machine.path().join("records").join(attempt_id(1).name());
        machine.connected().await.start(task("newer")).await.unwrap();
        let restored = std::fs::read_to_string(&record).unwrap();
        let mut restored: serde_json::Value = serde_json::from_str(&restored).unwrap();
        restored["request"] = "0123456789abcdef".into();
        std::fs::write(&record, restored.to_string()).unwrap();
        let driver = machine.connected().await;
        let recovered = driver.recover(recovery(1)).await.unwrap();
        assert!(matches!(recovered, Recovered::Lost { .. }), "{recovered:?}");
        driver.destroy(&attempt_id(1), Leftover::MainMustBeGone).await.unwrap();
        assert!(driver.list_attempts().await.unwrap().is_empty());

        driver.start(task("newer")).await.unwrap();
        drop(driver);
        std::fs::remove_file(&record).unwrap();
        let driver = machine.connected().await;
        driver.start(task("older")).await.unwrap();
        while !machine.stdout().ends_with("older\n") {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        driver.destroy(&attempt_id(1), Leftover::Kill).await.unwrap();
        assert!(driver.list_attempts().await.unwrap().is_empty());
    }
}

/// An agent that was killed during a start repeats it: a container that had ended ran a second time.
#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_start_does_not_run_an_ended_container_again() {
    for machine in machines() {
        let task = machine.script(attempt_id(1), "echo once >> /local/runs");
        let first = machine.connected().await;
        let mut exits = first.exits();
        first.start(task.clone()).await.unwrap();
        exits.next().await.unwrap();
        drop(first);
        let driver = machine.connected().await;
        let mut exits = driver.exits();
        driver.start(task).await.unwrap();
        assert_eq!(exits.next().await.unwrap().result.code, 0);
        driver.destroy(&attempt_id(1), Leftover::MainMustBeGone).await.unwrap();
        let runs = std::fs::read_to_string(machine.task_dir().join("local/runs")).unwrap();
        assert_eq!(runs, "once\n");
    }
}

/// A container that ended after it was inspected and before its run was known ran for ever.
#[tokio::test(flavor = "multi_thread")]
async fn an_exit_that_comes_before_its_run_is_known_is_seen() {
    for machine in machines() {
        let driver = machine.connected().await;
        let script = "while [ ! -e /local/end ]; do sleep 0.1; done; exit 7";
        driver.start(machine.script(attempt_id(1), script)).await.unwrap();
        let shared = &driver.shared;
        let run = shared.runs.get(&attempt_id(1)).unwrap();
        let client = &run.engine.client().await.unwrap();
        let about = inspect(client, &run.container).await.unwrap().unwrap();
        shared.runs.remove(&attempt_id(1));
        // An event of the container removes it from this list.
        let is_listed = || shared.listed.lock().unwrap()[run.engine.socket()].contains_key(&attempt_id(1));
        let summary = ContainerSummary::default();
        shared.listed.lock().unwrap().get_mut(run.engine.socket()).unwrap().insert(attempt_id(1), summary);
        std::fs::write(machine.task_dir().join("local/end"), "").unwrap();
        while is_listed() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let mut exits = driver.exits();
        shared.adopt(&attempt_id(1), &run.engine, &run.record, &about);
        assert_eq!(exits.next().await.unwrap().result.code, 7);
        driver.destroy(&attempt_id(1), Leftover::MainMustBeGone).await.unwrap();
    }
}

/// One failed inspection at the end of a container, and its task ran for ever.
#[tokio::test(flavor = "multi_thread")]
async fn an_exit_is_asked_for_until_the_engine_answers() {
    for machine in machines() {
        let driver = machine.connected().await;
        let mut exits = driver.exits();
        let script = "while [ ! -e /local/end ]; do sleep 0.1; done; exit 7";
        driver.start(machine.script(attempt_id(1), script)).await.unwrap();
        machine.link.send_replace(Link::FailsInspect);
        std::fs::write(machine.task_dir().join("local/end"), "").unwrap();
        while machine.failed.load(Ordering::SeqCst) < 3 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        machine.link.send_replace(Link::Works);
        assert_eq!(exits.next().await.unwrap().result.code, 7);
        driver.destroy(&attempt_id(1), Leftover::MainMustBeGone).await.unwrap();
    }
}

/// Many containers were inspected one by one after a restart of the agent: 200 took as long as 200 answers of the engine.
#[tokio::test(flavor = "multi_thread")]
async fn all_containers_are_adopted_with_one_list() {
    for machine in machines() {
        let first = machine.connected().await;
        let mut started = Vec::new();
        for attempt in [1, 2, 3] {
            started.push(first.start(machine.script(attempt_id(attempt), "sleep 3600")).await.unwrap());
        }
        drop(first);
        machine.lists.store(0, Ordering::SeqCst);
        let driver = machine.connected().await;
        let all = driver.list_attempts().await.unwrap();
        assert_eq!(all, [1, 2, 3].map(attempt_id));
        machine.link.send_replace(Link::FailsInspect);
        for (attempt, started) in (1..).zip(started) {
            let recovered = driver.recover(recovery(attempt)).await.unwrap();
            assert!(started.network.is_some());
            assert_eq!(recovered, Recovered::Running(started));
        }
        assert_eq!(machine.failed.load(Ordering::SeqCst), 0, "no container is inspected");
        assert_eq!(machine.lists.load(Ordering::SeqCst), 1);
        machine.link.send_replace(Link::Works);
        for attempt in [1, 2, 3] {
            driver.destroy(&attempt_id(attempt), Leftover::Kill).await.unwrap();
        }
    }
}

/// A power cut left a record without content: no task of the driver was recovered, stopped or removed any more.
#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_record_keeps_no_task_from_its_driver() {
    for machine in machines() {
        let first = machine.connected().await;
        for attempt in [1, 2] {
            first.start(machine.script(attempt_id(attempt), "sleep 3600")).await.unwrap();
        }
        drop(first);
        std::fs::write(machine.path().join("records").join(attempt_id(1).name()), "").unwrap();
        let driver = machine.connected().await;
        assert_eq!(driver.list_attempts().await.unwrap(), [attempt_id(1), attempt_id(2)]);
        for attempt in [1, 2] {
            let recovered = driver.recover(recovery(attempt)).await.unwrap();
            assert!(matches!(recovered, Recovered::Running(_)), "{recovered:?}");
            driver.destroy(&attempt_id(attempt), Leftover::Kill).await.unwrap();
        }
        assert!(driver.list_attempts().await.unwrap().is_empty());
    }
}

/// An engine that was removed from the machine kept the driver from all tasks, and its own tasks never ended.
#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_is_gone_is_no_obstacle() {
    for machine in machines() {
        let first = machine.connected().await;
        for attempt in [1, 2] {
            first.start(machine.script(attempt_id(attempt), "sleep 3600")).await.unwrap();
        }
        drop(first);
        let record = machine.path().join("records").join(attempt_id(1).name());
        let mut gone: serde_json::Value =
            serde_json::from_str(&std::fs::read_to_string(&record).unwrap()).unwrap();
        gone["engine"] = json!({"kind": "podman", "socket": "/nowhere/podman.sock"});
        let before = std::fs::read(&record).unwrap();
        std::fs::write(&record, gone.to_string()).unwrap();
        let driver = machine.connected().await;
        assert_eq!(driver.list_attempts().await.unwrap(), [attempt_id(1), attempt_id(2)]);
        assert!(matches!(driver.recover(recovery(2)).await.unwrap(), Recovered::Running(_)));
        let error = driver.recover(recovery(1)).await.unwrap_err();
        assert!(error.class() == FailureClass::Retry && error.to_string().contains("/nowhere"), "{error}");
        drop(driver);
        let machine = machine.with(json!({"forget_engines": ["unix:///nowhere/podman.sock"]}));
        let driver = machine.connected().await;
        let recovered = driver.recover(recovery(1)).await.unwrap();
        assert!(matches!(recovered, Recovered::Lost { .. }), "{recovered:?}");
        driver.destroy(&attempt_id(1), Leftover::MainMustBeGone).await.unwrap();
        assert!(!record.exists());
        let gone = Place { socket: "/nowhere/podman.sock".into(), ..driver.shared.current().place.clone() };
        driver.shared.records.note_engine(attempt_id(3).alloc, &gone).unwrap();
        driver.start(machine.script(attempt_id(3), "sleep 3600")).await.unwrap();
        std::fs::write(&record, before).unwrap();
        for attempt in [1, 2, 3] {
            driver.destroy(&attempt_id(attempt), Leftover::Kill).await.unwrap();
        }
    }
}

/// A daemon behind the socket of a service manager, and one that was restarted while no agent ran, left gaps without a mark.
#[tokio::test(flavor = "multi_thread")]
async fn each_restart_of_the_daemon_is_marked_in_the_output() {
    for machine in machines().into_iter().filter(|machine| machine.driver == "docker") {
        let marked = async |times: usize| {
            while machine.stdout().matches("the engine was restarted here").count() != times {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let driver = machine.connected().await;
        driver.start(machine.script(attempt_id(1), "sleep 3600")).await.unwrap();
        machine.link.send_replace(Link::Down);
        reaches(&driver, Health::Unhealthy).await;
        machine.link.send_replace(Link::Works);
        marked(1).await;
        let memory = driver.shared.records.daemon(driver.shared.current().socket());
        drop(driver);
        // The same daemon: no mark.
        let driver = machine.connected().await;
        driver.recover(recovery(1)).await.unwrap();
        drop(driver);
        std::fs::write(memory, "another").unwrap();
        let driver = machine.connected().await;
        driver.recover(recovery(1)).await.unwrap();
        marked(2).await;
        driver.destroy(&attempt_id(1), Leftover::Kill).await.unwrap();
    }
}

/// A container that somebody removes ends its task, with an exit that is called unknown or the engine's.
#[tokio::test(flavor = "multi_thread")]
async fn a_container_that_somebody_removes_ends_its_task() {
    for machine in machines() {
        let driver = machine.connected().await;
        let mut exits = driver.exits();
        driver.start(machine.script(attempt_id(1), "sleep 3600")).await.unwrap();
        let name = names::container(&attempt_id(1), &machine.instance, Naming::Own);
        let remove = RemoveContainerOptionsBuilder::new().force(true).build();
        client(&machine).await.remove_container(&name, Some(remove)).await.unwrap();
        let exited = exits.next().await.unwrap();
        assert!(!exited.result.is_success(), "{exited:?}");
        driver.destroy(&attempt_id(1), Leftover::MainMustBeGone).await.unwrap();
    }
}

/// A start beside a restart of the engine used an attempt of the task for each such error.
#[tokio::test(flavor = "multi_thread")]
async fn passing_errors_of_an_engine_use_no_attempt() {
    for machine in machines() {
        let driver = machine.connected().await;
        machine.link.send_replace(Link::FailsCreate);
        driver.start(machine.script(attempt_id(1), "sleep 3600")).await.unwrap();
        assert_eq!(machine.failed.load(Ordering::SeqCst), 2);
        driver.destroy(&attempt_id(1), Leftover::Kill).await.unwrap();
        machine.link.send_replace(Link::Works);
        assert!(driver.list_attempts().await.unwrap().is_empty());
    }
}
