//! The pause container of an allocation: what becomes of it when attempts do not start, and of one that nobody knows.

use std::time::Duration;

use herdlet_driver::{Leftover, NetworkSpace, TaskDriver as _, contract::attempt_id};

use super::machine::{Machine, machines};
use crate::{Containers, driver::locate::inspect, names, names::Naming, pause};

/// Its name on a machine.
fn name(machine: &Machine) -> String {
    names::pause(attempt_id(1).alloc, &machine.instance, Naming::Own)
}

async fn is_there(machine: &Machine, driver: &Containers) -> bool {
    let client = driver.shared.current().client().await.unwrap();
    inspect(&client, &name(machine)).await.unwrap().is_some()
}

/// A network that is gone is waited for: the agent makes it again. Its file may still be there.
#[tokio::test(flavor = "multi_thread")]
async fn a_network_that_is_gone_is_tried_again() {
    for machine in machines() {
        let driver = machine.connected().await;
        std::fs::write(machine.path().join("plain"), "").unwrap();
        for name in ["none", "plain"] {
            let mut task = machine.script(attempt_id(1), "sleep 3600");
            task.network = Some(NetworkSpace { path: machine.path().join(name), hostname: None });
            let error = driver.start(task).await.unwrap_err();
            assert!(matches!(error, herdlet_driver::DriverError::Retry(_)), "{error:?}");
            assert!(error.why().contains("it is gone"), "{error}");
            assert!(!is_there(&machine, &driver).await);
            assert_eq!(driver.shared.records.pauses().unwrap(), []);
        }
        driver.destroy(&attempt_id(1), Leftover::Kill).await.unwrap();
    }
}

/// Whatever has the name of a pause container and is none of this agent's is named, and not touched.
#[tokio::test(flavor = "multi_thread")]
async fn a_strangers_container_with_its_name_is_not_touched() {
    for machine in machines().into_iter().filter(|machine| machine.driver == "docker") {
        let driver = machine.connected().await;
        let client = driver.shared.current().client().await.unwrap();
        let body = bollard::models::ContainerCreateBody {
            image: Some(super::IMAGE.to_owned()),
            cmd: Some(vec!["sleep".to_owned(), "1".to_owned()]),
            ..Default::default()
        };
        let options = bollard::query_parameters::CreateContainerOptionsBuilder::new().name(&name(&machine));
        let stranger = client.create_container(Some(options.build()), body).await.unwrap().id;
        let mut task = machine.script(attempt_id(1), "sleep 3600");
        let path = format!("/proc/{}/ns/net", std::process::id()).into();
        task.network = Some(NetworkSpace { path, hostname: None });
        let error = driver.start(task).await.unwrap_err();
        assert!(matches!(error, herdlet_driver::DriverError::Recoverable(_)), "{error:?}");
        assert!(error.why().contains(&name(&machine)) && error.why().contains("not this agent's"), "{error}");
        driver.destroy(&attempt_id(1), Leftover::Kill).await.unwrap();
        assert!(inspect(&client, &stranger).await.unwrap().is_some());
        assert_eq!(driver.shared.records.pauses().unwrap(), []);
        driver.shared.remove(&client, &stranger).await.unwrap();
    }
}

/// A request to create one was under way when its agent was killed.
#[tokio::test(flavor = "multi_thread")]
async fn a_pause_container_without_a_task_is_swept() {
    for machine in machines().into_iter().filter(|machine| machine.driver == "docker") {
        let driver = machine.connected().await;
        let shared = &driver.shared;
        let engine = shared.current();
        let client = engine.client().await.unwrap();
        let alloc = attempt_id(1).alloc;
        let labels = names::labels_of_pause(alloc, &machine.owner(), Naming::Own);
        let create = || async {
            let mut body = pause::body(machine.path(), labels.clone(), "h".to_owned());
            body.image = Some(super::IMAGE.to_owned());
            let options =
                bollard::query_parameters::CreateContainerOptionsBuilder::new().name(&name(&machine));
            client.create_container(Some(options.build()), body).await.unwrap();
        };
        create().await;
        shared.sweep_pauses(Duration::from_secs(3_600)).await.unwrap();
        assert!(is_there(&machine, &driver).await, "it is new: its task may be about to start");
        shared.sweep_pauses(Duration::ZERO).await.unwrap();
        assert!(!is_there(&machine, &driver).await);

        // One that is noted, without the record of an attempt.
        create().await;
        shared.records.note_pause(alloc, &engine.place).unwrap();
        shared.records.fence(&attempt_id(1)).unwrap();
        shared.sweep_pauses(Duration::ZERO).await.unwrap();
        assert!(is_there(&machine, &driver).await, "an attempt may be starting");
        shared.records.remove(&attempt_id(1)).unwrap();
        shared.sweep_pauses(Duration::from_secs(3_600)).await.unwrap();
        assert!(!is_there(&machine, &driver).await);
        assert_eq!(shared.records.pauses().unwrap(), []);

        // A copy of it by another person has its labels, and another name.
        let body = pause::body(machine.path(), labels, "h".to_owned());
        let body = bollard::models::ContainerCreateBody { image: Some(super::IMAGE.to_owned()), ..body };
        let copied = client.create_container(None::<bollard::query_parameters::CreateContainerOptions>, body);
        let copied = copied.await.unwrap().id;
        shared.sweep_pauses(Duration::ZERO).await.unwrap();
        assert!(inspect(&client, &copied).await.unwrap().is_some());
        shared.remove(&client, &copied).await.unwrap();
    }
}
