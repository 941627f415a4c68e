//! Engines that lose requests, and answers that can't be used: none is taken for the end of something.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use bollard::query_parameters::RemoveContainerOptionsBuilder;
use futures_util::StreamExt as _;
use herdlet_driver::{
    ExecRequest, FailureClass, Leftover, Recovered, StopRequest, TaskDriver as _, contract::attempt_id,
};

use super::super::locate::inspect;
use super::{
    faults::{client, recovery},
    machine::{Link, machines},
};
use crate::{
    names::{self, Naming},
    stats,
};

/// An attempt whose container was never created was recovered as exited with -1, if the engine ended during the request.
#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_without_a_container_has_not_started() {
    for machine in machines() {
        let driver = machine.connected().await;
        let task = machine.script(attempt_id(1), "sleep 3600");
        machine.link.send_replace(Link::LosesCreate);
        let error = driver.start(task.clone()).await.unwrap_err();
        assert_eq!(error.class(), FailureClass::Retry, "{error}");
        assert_eq!(driver.recover(recovery(1)).await.unwrap(), Recovered::NotStarted);
        // Nor for the next agent.
        drop(driver);
        machine.link.send_replace(Link::Works);
        let driver = machine.connected().await;
        assert_eq!(driver.recover(recovery(1)).await.unwrap(), Recovered::NotStarted);
        driver.start(task).await.unwrap();
        // Of a container that was started and is gone nothing is known.
        drop(driver);
        let name = names::container(&attempt_id(1), &machine.instance, Naming::Own);
        let remove = RemoveContainerOptionsBuilder::new().force(true).build();
        client(&machine).await.remove_container(&name, Some(remove)).await.unwrap();
        let driver = machine.connected().await;
        let recovered = driver.recover(recovery(1)).await.unwrap();
        assert!(matches!(recovered, Recovered::Lost { .. }), "{recovered:?}");
        driver.destroy(&attempt_id(1), Leftover::MainMustBeGone).await.unwrap();
        // One that was never created is cancelled without a trace.
        machine.link.send_replace(Link::LosesCreate);
        driver.start(machine.script(attempt_id(2), "sleep 3600")).await.unwrap_err();
        driver.stop(&attempt_id(2), StopRequest { signal: None, grace: Duration::ZERO }).await.unwrap();
        driver.destroy(&attempt_id(2), Leftover::MainMustBeGone).await.unwrap();
        assert!(driver.list_attempts().await.unwrap().is_empty());
    }
}

/// An attempt that waited for its engine when its agent was killed ended with -1, because "its container was gone".
#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_without_a_record_and_a_container_has_not_started() {
    for machine in machines() {
        let driver = machine.connected().await;
        driver.set_earlier(&[attempt_id(1)].into());
        assert_eq!(driver.recover(recovery(1)).await.unwrap(), Recovered::NotStarted);
        driver.start(machine.script(attempt_id(1), "sleep 3600")).await.unwrap();
        driver.destroy(&attempt_id(1), Leftover::Kill).await.unwrap();
        assert!(driver.list_attempts().await.unwrap().is_empty());
    }
}

/// Docker that is killed while it starts a container calls it created: its program ran a second time, or twice at the same time.
#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_docker_has_forgotten_is_not_repeated() {
    for machine in machines().into_iter().filter(|machine| machine.driver == "docker") {
        let driver = machine.connected().await;
        let task = machine.script(attempt_id(1), "sleep 3600");
        machine.link.send_replace(Link::LosesStart);
        let error = driver.start(task.clone()).await.unwrap_err();
        assert_eq!(error.class(), FailureClass::Retry, "{error}");
        machine.link.send_replace(Link::Works);
        let recovered = driver.recover(recovery(1)).await.unwrap();
        assert_eq!(recovered, Recovered::NotStarted, "there is no file for its output yet");

        let engine = driver.shared.current();
        let client = &engine.reach().await.unwrap();
        let name = names::container(&attempt_id(1), &machine.instance, Naming::Own);
        let container = inspect(client, &name).await.unwrap().unwrap().id.unwrap();
        std::fs::write(engine.about().unwrap().log_file(&container), "").unwrap();
        let recovered = driver.recover(recovery(1)).await.unwrap();
        assert!(
            matches!(&recovered, Recovered::Lost { why } if why.contains("its exit is unknown")),
            "{recovered:?}"
        );
        assert!(inspect(client, &name).await.unwrap().is_none());
        driver.start(task).await.unwrap_err();
        driver.destroy(&attempt_id(1), Leftover::MainMustBeGone).await.unwrap();
        assert!(driver.list_attempts().await.unwrap().is_empty());
    }
}

/// An engine with an event that could not be read counted as one that is down.
#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_cannot_be_read_is_followed_by_a_list() {
    for machine in machines() {
        machine.link.send_replace(Link::Odd);
        let driver = machine.connected().await;
        let engine = driver.shared.current();
        let mut state = engine.watch();
        state.borrow_and_update();
        while machine.lists.load(Ordering::SeqCst) < 2 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let mut exits = driver.exits();
        driver.start(machine.script(attempt_id(1), "exit 7")).await.unwrap();
        assert_eq!(exits.next().await.unwrap().result.code, 7);
        assert!(!state.has_changed().unwrap(), "{:?}", &*state.borrow());
        driver.destroy(&attempt_id(1), Leftover::MainMustBeGone).await.unwrap();
    }
}

/// A sample without figures ended the statistics of a container that ran.
#[tokio::test(flavor = "multi_thread")]
async fn a_sample_without_figures_is_not_the_end_of_statistics() {
    for machine in machines() {
        let driver = machine.connected().await;
        driver.start(machine.script(attempt_id(1), "sleep 3600")).await.unwrap();
        machine.link.send_replace(Link::Odd);
        let mut usage = driver.stats(&attempt_id(1), Duration::ZERO).await.unwrap();
        let first = usage.next().await.expect("a sample with figures follows").unwrap();
        assert_eq!((first.memory.usage, first.cpu.user_ns), (Some(8192), 6));
        machine.link.send_replace(Link::Works);
        // The sample of a container that has ended is the end.
        driver.stop(&attempt_id(1), StopRequest { signal: None, grace: Duration::ZERO }).await.unwrap();
        machine.link.send_replace(Link::Odd);
        let name = names::container(&attempt_id(1), &machine.instance, Naming::Own);
        let client = driver.shared.current().reach().await.unwrap();
        let mut ended = stats::follow(&client, &name, Duration::ZERO, Arc::default());
        assert!(ended.next().await.is_none(), "figures that follow are not waited for");
        machine.link.send_replace(Link::Works);
        driver.destroy(&attempt_id(1), Leftover::MainMustBeGone).await.unwrap();
    }
}

/// After one failed inspection, a command that had succeeded was reported as failed.
#[tokio::test(flavor = "multi_thread")]
async fn the_exit_of_a_command_is_asked_for_again() {
    for machine in machines() {
        let driver = machine.connected().await;
        driver.start(machine.script(attempt_id(1), "sleep 3600")).await.unwrap();
        machine.link.send_replace(Link::FailsExit);
        let request =
            ExecRequest { command: ["sh", "-c", "exit 3"].map(str::to_owned).to_vec(), terminal: None };
        let session = driver.exec_streaming(&attempt_id(1), request).await.unwrap();
        assert_eq!(session.exit.await.unwrap().code, 3);
        assert_eq!(machine.failed.load(Ordering::SeqCst), 1);
        driver.destroy(&attempt_id(1), Leftover::Kill).await.unwrap();
    }
}
