//! Drivers that are added, removed and changed while they are followed.

use herdlet_api_types::{AllocId, task::ExitResult};
use tokio::sync::mpsc;

use super::*;
use crate::{AttemptId, Exited, fixture::StandIn};

fn exited(attempt: u32) -> Exited {
    let id = AttemptId { alloc: AllocId::from_hash([1; 16]), task: "t".into(), attempt };
    Exited { id, result: ExitResult::default() }
}

fn fingerprint(health: Health) -> Fingerprint {
    Fingerprint { health, description: "as the test says".to_owned(), attributes: BTreeMap::new() }
}

/// Waits until the drivers satisfy `wanted`.
async fn until(registry: &Registry, wanted: impl Fn(&Entries) -> bool) -> Arc<Entries> {
    registry.watch().wait_for(|entries| wanted(entries)).await.map(|entries| Arc::clone(&entries)).unwrap()
}

#[tokio::test]
async fn drivers_are_followed_from_when_they_come_to_when_they_go() {
    let registry = Registry::new();
    let (news, mut heard) = mpsc::channel(4);
    let following = tokio::spawn(registry.clone().follow(news));
    let first = Arc::new(StandIn::default());
    registry.insert(first.clone(), Availability::Enabled);
    first.exits.send(exited(1)).await;
    assert_eq!(heard.recv().await, Some(DriverNews::Exited(exited(1))));
    assert_eq!(registry.entries().away()["stand_in"], "it has not reported its health yet");

    first.fingerprints.send(fingerprint(Health::Healthy)).await;
    let healthy = until(&registry, |entries| entries.away().is_empty()).await;
    assert_eq!(healthy.attributes(), DriverInfo::mock().attributes);
    first.fingerprints.send(fingerprint(Health::Unhealthy)).await;
    let ill = until(&registry, |entries| !entries.away().is_empty()).await;
    assert_eq!(ill.away()["stand_in"], "it does not work: as the test says");
    assert!(ill.attributes().is_empty());

    registry.remove("stand_in");
    assert!(registry.get("stand_in").is_none());
    assert_eq!(registry.entries().away()["stand_in"], "it is gone");
    // Later reports of the removed driver are ignored, and do not change its successor.
    let second = Arc::new(StandIn::default());
    registry.insert(second.clone(), Availability::Enabled);
    let gone: Arc<dyn TaskDriver> = first;
    registry.set_fingerprint(&gone, fingerprint(Health::Healthy));
    assert!(!registry.entries().away().is_empty());
    second.exits.send(exited(2)).await;
    assert_eq!(heard.recv().await, Some(DriverNews::Exited(exited(2))));
    drop(heard);
    following.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_ends_its_fingerprints_is_asked_again() {
    let driver = Arc::new(StandIn::default());
    let registry = Registry::new().with(driver.clone());
    let (news, _heard) = mpsc::channel(1);
    let _following = tokio::spawn(registry.clone().follow(news));
    driver.fingerprints.send(fingerprint(Health::Healthy)).await;
    until(&registry, |entries| entries.away().is_empty()).await;
    let began = tokio::time::Instant::now();
    driver
        .fingerprints
        .send(Fingerprint { description: String::new(), ..fingerprint(Health::Healthy) })
        .await;
    let ill = until(&registry, |entries| !entries.away().is_empty()).await;
    assert_eq!(ill.away()["stand_in"], "it does not work: failed to fingerprint driver");
    driver.fingerprints.send(fingerprint(Health::Healthy)).await;
    until(&registry, |entries| entries.away().is_empty()).await;
    assert_eq!(began.elapsed(), std::time::Duration::from_secs(5));
}

#[test]
fn what_the_config_turns_off_is_not_awaited() {
    let registry = Registry::new();
    let driver: Arc<dyn TaskDriver> = Arc::new(StandIn::default());
    registry.insert(Arc::clone(&driver), Availability::Disabled);
    registry.set_fingerprint(&driver, fingerprint(Health::Undetected));
    assert!(registry.entries().away().is_empty());
}
