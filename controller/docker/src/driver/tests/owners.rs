//! Whose containers are which: those of others, of other drivers, copies, and those that belong to no task.

use std::time::Duration;

use bollard::query_parameters::{CreateContainerOptionsBuilder, RemoveContainerOptionsBuilder};
use futures_util::StreamExt as _;
use herdlet_driver::{Health, Leftover, Recovered, TaskDriver as _, contract::attempt_id};
use serde_json::json;

use super::{
    faults::{body, client, labels, recovery},
    machine::{machines, reaches},
};
use crate::names::{self, Naming, Owner};

/// Containers of this instance without a task are removed, others are not.
#[tokio::test(flavor = "multi_thread")]
async fn containers_without_a_task_are_removed_and_strangers_are_not() {
    for machine in machines() {
        let driver = machine.connected().await;
        let client = client(&machine).await;
        driver.set_earlier(&[attempt_id(8)].into());
        let mut made = Vec::new();
        let other = Owner { instance: format!("{}-b", machine.instance), ..machine.owner() };
        for (owner, attempt) in [(machine.owner(), 7), (machine.owner(), 8), (other, 7)] {
            let id = attempt_id(attempt);
            let name = names::container(&id, &owner.instance, Naming::Own);
            let options = CreateContainerOptionsBuilder::new().name(&name).build();
            let body = body(labels(&owner, &id));
            made.push(client.create_container(Some(options), body).await.unwrap().id);
        }
        driver.start(machine.script(attempt_id(9), "sleep 3600")).await.unwrap();
        let engine = driver.shared.current();
        driver.shared.sweep(&engine, Duration::from_secs(3_600)).await.unwrap();
        assert_eq!(driver.list_attempts().await.unwrap().len(), 3, "new ones are left alone");
        driver.shared.sweep(&engine, Duration::ZERO).await.unwrap();
        assert_eq!(driver.list_attempts().await.unwrap(), [attempt_id(8), attempt_id(9)]);
        let remove = || RemoveContainerOptionsBuilder::new().force(true).build();
        client.remove_container(&made[2], Some(remove())).await.unwrap();
        client.remove_container(&made[1], Some(remove())).await.unwrap();
        driver.destroy(&attempt_id(9), Leftover::Kill).await.unwrap();
    }
}

/// On a machine with one engine both drivers use it, and each removed the containers of the other one's tasks.
#[tokio::test(flavor = "multi_thread")]
async fn two_drivers_on_one_engine_leave_each_other_alone() {
    for machine in machines() {
        let other = if machine.driver == "docker" { "podman" } else { "docker" };
        let driver = machine.connected().await;
        driver.start(machine.script(attempt_id(1), "sleep 3600")).await.unwrap();
        let second = machine.driver_of(other, "others-records");
        reaches(&second, Health::Healthy).await;
        second.set_earlier(&Default::default());
        assert!(second.list_attempts().await.unwrap().is_empty());
        second.shared.sweep(&second.shared.current(), Duration::ZERO).await.unwrap();
        let recovered = driver.recover(recovery(1)).await.unwrap();
        assert!(matches!(recovered, Recovered::Running(_)), "{recovered:?}");
        driver.destroy(&attempt_id(1), Leftover::Kill).await.unwrap();
    }
}

/// `docker commit` passes labels on: the container in which somebody examined a failed task was removed.
#[tokio::test(flavor = "multi_thread")]
async fn a_copy_of_a_container_is_a_strangers() {
    for machine in machines() {
        let driver = machine.connected().await;
        let client = client(&machine).await;
        let body = body(labels(&machine.owner(), &attempt_id(1)));
        let name = format!("debug-{}", machine.instance);
        let options = CreateContainerOptionsBuilder::new().name(&name).build();
        let copy = client.create_container(Some(options), body).await.unwrap().id;
        driver.set_earlier(&Default::default());
        driver.shared.sweep(&driver.shared.current(), Duration::ZERO).await.unwrap();
        driver.start(machine.script(attempt_id(1), "sleep 3600")).await.unwrap();
        let own = driver.shared.runs.get(&attempt_id(1)).unwrap().container.clone();
        drop(driver);
        let driver = machine.connected().await;
        driver.recover(recovery(1)).await.unwrap();
        assert_eq!(driver.shared.runs.get(&attempt_id(1)).unwrap().container, own);
        driver.destroy(&attempt_id(1), Leftover::Kill).await.unwrap();
        assert!(driver.list_attempts().await.unwrap().is_empty());
        let remove = RemoveContainerOptionsBuilder::new().force(true).build();
        client.remove_container(&copy, Some(remove)).await.unwrap();
    }
}

/// `gc.container = false`, with which people examine dead containers, had no effect after ten minutes.
#[tokio::test(flavor = "multi_thread")]
async fn ended_containers_are_kept_if_the_options_want_it() {
    for machine in machines() {
        let machine = machine.with(json!({"gc": {"container": false}}));
        let driver = machine.connected().await;
        let mut exits = driver.exits();
        driver.start(machine.script(attempt_id(1), "true")).await.unwrap();
        exits.next().await.unwrap();
        driver.destroy(&attempt_id(1), Leftover::MainMustBeGone).await.unwrap();
        driver.start(machine.script(attempt_id(2), "sleep 3600")).await.unwrap();
        drop(driver);
        std::fs::remove_file(machine.path().join("records").join(attempt_id(2).name())).unwrap();
        let driver = machine.connected().await;
        driver.set_earlier(&Default::default());
        driver.shared.sweep(&driver.shared.current(), Duration::ZERO).await.unwrap();
        assert_eq!(driver.list_attempts().await.unwrap(), [attempt_id(1)]);
        let name = names::container(&attempt_id(1), &machine.instance, Naming::Own);
        let remove = RemoveContainerOptionsBuilder::new().force(true).build();
        client(&machine).await.remove_container(&name, Some(remove)).await.unwrap();
    }
}

/// Each failed attempt to list the containers added a loop that looked for unused ones.
#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_stays_down_adds_no_loops() {
    for machine in machines() {
        let driver = machine.driver();
        driver.set_earlier(&Default::default());
        let users = std::sync::Arc::strong_count(&driver.shared);
        for _ in 0..3 {
            driver.set_earlier(&Default::default());
        }
        assert_eq!(std::sync::Arc::strong_count(&driver.shared), users);
    }
}
