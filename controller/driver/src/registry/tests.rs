//! Drivers that are added, removed and changed while they are followed.

use std::{sync::Mutex, time::Duration};

use futures_util::FutureExt as _;
use herdlet_api_types::{AllocId, task::ExitResult};
use tokio::sync::{mpsc, oneshot};

use super::*;
use crate::{AttemptId, DriverError, Exited, TaskEvent, fixture::StandIn};

fn exited(attempt: u32) -> Exited {
    let id = AttemptId { alloc: AllocId::from_hash([1; 16]), task: "t".into(), attempt };
    Exited { id, result: ExitResult::default() }
}

fn fingerprint(health: Health) -> Fingerprint {
    Fingerprint { health, description: "as the test says".to_owned(), attributes: BTreeMap::new() }
}

/// Nothing is recorded.
fn none() -> Recorded {
    Arc::new(|_| BTreeSet::new())
}

fn nothing_found() -> DriverNews {
    DriverNews::Attached { driver: "stand_in".to_owned(), found: Vec::new() }
}

/// Waits until the drivers satisfy `wanted`.
async fn until(registry: &Registry, wanted: impl Fn(&Entries) -> bool) -> Arc<Entries> {
    registry.watch().wait_for(|entries| wanted(entries)).await.map(|entries| Arc::clone(&entries)).unwrap()
}

#[tokio::test]
async fn drivers_are_followed_from_when_they_come_to_when_they_go() {
    let registry = Registry::new();
    let (news, mut heard) = mpsc::channel(4);
    let following = tokio::spawn(registry.clone().follow(none(), news));
    let first = Arc::new(StandIn::default());
    registry.insert(first.clone(), Availability::Enabled);
    assert_eq!(heard.recv().await, Some(nothing_found()));
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
    assert_eq!(heard.recv().await, Some(nothing_found()));
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
    let _following = tokio::spawn(registry.clone().follow(none(), news));
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
    assert_eq!(began.elapsed(), Duration::from_secs(5));
}

#[test]
fn what_the_config_turns_off_is_not_awaited() {
    let registry = Registry::new();
    let driver: Arc<dyn TaskDriver> = Arc::new(StandIn::default());
    registry.insert(Arc::clone(&driver), Availability::Disabled);
    registry.set_fingerprint(&driver, fingerprint(Health::Undetected));
    registry.set_link(&driver, Link::Attached);
    assert!(registry.entries().away().is_empty());
}

/// A driver was replaced while the agent ran. Its tasks ran on, but the new instance did not know them, and reported none of
/// their exits.
#[tokio::test]
async fn an_instance_that_comes_later_gets_the_recorded_attempts_before_any_call() {
    let registry = Registry::new().with(Arc::new(StandIn::default()));
    let (news, mut heard) = mpsc::channel(4);
    let id = exited(3).id;
    let known = id.clone();
    let recorded: Recorded = Arc::new(move |driver| {
        assert_eq!(driver, "stand_in");
        [known.clone()].into()
    });
    let second = Arc::new(StandIn::default());
    registry.insert(second.clone(), Availability::Enabled);
    assert!(registry.get("stand_in").is_none(), "it gets no call yet");
    second.fingerprints.send(fingerprint(Health::Healthy)).await;
    let _following = tokio::spawn(registry.clone().follow(recorded, news));
    let found = DriverNews::Attached { driver: "stand_in".to_owned(), found: vec![id.clone()] };
    assert_eq!(heard.recv().await, Some(found));
    assert_eq!(heard.recv().await, Some(DriverNews::Event(TaskEvent::Drift { id: id.clone() })));
    assert_eq!(*second.earlier.lock().unwrap(), [id].into());
    assert!(registry.get("stand_in").is_some());
    until(&registry, |entries| entries.away().is_empty()).await;
}

/// The end of a driver's exits was ignored: exits of its tasks were missed, and it went on starting tasks.
#[tokio::test(start_paused = true)]
async fn a_driver_that_ends_its_reports_is_away_until_it_reports_again() {
    let driver = Arc::new(StandIn::default());
    let registry = Registry::new().with(driver.clone());
    let (news, mut heard) = mpsc::channel(4);
    let id = exited(3).id;
    let known = id.clone();
    let recorded: Recorded = Arc::new(move |_| [known.clone()].into());
    let _following = tokio::spawn(registry.clone().follow(recorded, news));
    driver.fingerprints.send(fingerprint(Health::Healthy)).await;
    until(&registry, |entries| entries.away().is_empty()).await;
    driver.exits.send(exited(0)).await;
    let broken = until(&registry, |entries| !entries.away().is_empty()).await;
    assert_eq!(broken.away()["stand_in"], "it does not work: it no longer reports the exits of its tasks");
    assert!(broken.attributes().is_empty());
    until(&registry, |entries| entries.away().is_empty()).await;
    assert_eq!(heard.recv().await, Some(DriverNews::Event(TaskEvent::Drift { id })));
    driver.exits.send(exited(4)).await;
    assert_eq!(heard.recv().await, Some(DriverNews::Exited(exited(4))));
}

/// Servers got a disabled driver as a healthy one.
#[test]
fn a_disabled_driver_is_not_detected_whatever_it_reports() {
    let registry = Registry::new();
    let driver: Arc<dyn TaskDriver> = Arc::new(StandIn::default());
    registry.insert(Arc::clone(&driver), Availability::Disabled);
    registry.set_fingerprint(&driver, fingerprint(Health::Healthy));
    let entries = registry.entries();
    let known = entries.get("stand_in").and_then(Entry::fingerprint).unwrap();
    assert_eq!((known.health, &*known.description), (Health::Undetected, "disabled"));
    assert!(entries.attributes().is_empty());
}

/// A driver whose first list waits for an answer and fails. Returns what hears of the list, and what ends it.
fn with_a_failing_list() -> (Arc<StandIn>, oneshot::Receiver<()>, oneshot::Sender<()>) {
    let ((asked, is_asked), (end, ended)) = (oneshot::channel(), oneshot::channel::<()>());
    let first = Mutex::new(Some((asked, ended)));
    let driver = StandIn::default().with_lists_after(move || {
        let first = first.lock().unwrap().take();
        async {
            let Some((asked, ended)) = first else { return Ok(()) };
            asked.send(()).unwrap();
            ended.await.unwrap();
            Err(DriverError::retry("list them: it does not answer"))
        }
        .boxed()
    });
    (Arc::new(driver), is_asked, end)
}

/// A driver whose engine was down at the agent's start was attached up to two minutes after the engine came.
#[tokio::test(start_paused = true)]
async fn a_driver_that_begins_to_work_is_attached_at_once() {
    let (driver, is_asked, end) = with_a_failing_list();
    let registry = Registry::new();
    registry.insert(driver.clone(), Availability::Enabled);
    let (news, _heard) = mpsc::channel(4);
    let _following = tokio::spawn(registry.clone().follow(none(), news));
    driver.fingerprints.send(fingerprint(Health::Unhealthy)).await;
    is_asked.await.unwrap();
    let began = tokio::time::Instant::now();
    end.send(()).unwrap();
    // Longer than the list takes to fail, and shorter than the wait after it.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(registry.get("stand_in").is_none());
    driver.fingerprints.send(fingerprint(Health::Healthy)).await;
    until(&registry, |entries| entries.away().is_empty()).await;
    assert_eq!(began.elapsed(), Duration::from_secs(1));
}

/// A driver that began to work while its list was failing waited for its next recovery, or for up to two minutes.
#[tokio::test(start_paused = true)]
async fn a_driver_that_begins_to_work_while_its_list_fails_is_listed_again() {
    let (driver, is_asked, end) = with_a_failing_list();
    let registry = Registry::new();
    registry.insert(driver.clone(), Availability::Enabled);
    let (news, _heard) = mpsc::channel(4);
    let _following = tokio::spawn(registry.clone().follow(none(), news));
    is_asked.await.unwrap();
    driver.fingerprints.send(fingerprint(Health::Healthy)).await;
    until(&registry, |entries| entries.away().get("stand_in").is_some_and(|why| why == NOT_ATTACHED)).await;
    let began = tokio::time::Instant::now();
    end.send(()).unwrap();
    until(&registry, |entries| entries.away().is_empty()).await;
    assert_eq!(began.elapsed(), Duration::ZERO);
}
