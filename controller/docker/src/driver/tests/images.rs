//! Images: pulls, archives, and what is removed.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use bollard::{
    Docker,
    models::{ContainerConfig, ContainerCreateBody},
    query_parameters::{
        CommitContainerOptionsBuilder, RemoveContainerOptionsBuilder, TagImageOptionsBuilder,
    },
};
use futures_util::{FutureExt as _, StreamExt as _};
use herdlet_driver::{DriverError, Health, Leftover, TaskDriver as _, TaskEvent, contract::attempt_id};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use rustix::fs::{CWD, FileType};

use super::machine::{Link, SLOW, every_machine, machines, reaches};
use crate::{Containers, Mode, Setup, driver::Shared, engine::Place, used::UsedImage};

/// Two tasks that wait for one image share its pull, which goes on while one of them still waits.
#[tokio::test(flavor = "multi_thread")]
async fn tasks_share_the_pull_of_their_image() {
    for machine in machines() {
        let driver = machine.connected().await;
        let image = format!("registry.invalid/{SLOW}:1");
        let task = |attempt: u32| machine.task(attempt_id(attempt), json!({"image": &image}));
        let (first, second) = (task(1), task(2));
        let cancels = [CancellationToken::new(), CancellationToken::new()];
        let mut withdrawn = driver.prepare(&first, &cancels[0]).boxed();
        let mut waiting = driver.prepare(&second, &cancels[1]).boxed();
        let pulls = || machine.failed.load(Ordering::SeqCst);
        let has_begun = async {
            while pulls() == 0 || driver.shared.pulls.waiting() < 2 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::select! {
            _ = &mut withdrawn => panic!("the image can't be pulled"),
            _ = &mut waiting => panic!("the image can't be pulled"),
            () = has_begun => {}
        }
        cancels[0].cancel();
        withdrawn.await.unwrap_err();
        let after = tokio::time::timeout(Duration::from_millis(300), &mut waiting).await;
        assert!(after.is_err(), "the pull goes on: {after:?}");
        assert_eq!(pulls(), 1, "{}", machine.driver);
        cancels[1].cancel();
        waiting.await.unwrap_err();
    }
}

/// A pull without progress, and one that takes too long, end with the option that bounds them.
#[tokio::test(flavor = "multi_thread")]
async fn a_pull_ends_by_its_timeouts() {
    for machine in machines() {
        let machine = machine.with(json!({"pull_activity_timeout": "2s"}));
        for (total, option) in [("1s", "image_pull_timeout"), ("1h", "pull_activity_timeout")] {
            let driver = machine.driver_of(machine.driver, option);
            reaches(&driver, Health::Healthy).await;
            let config = json!({"image": format!("registry.invalid/{SLOW}:1"), "image_pull_timeout": total});
            let task = machine.task(attempt_id(1), config);
            let error = driver.prepare(&task, &CancellationToken::new()).await.unwrap_err();
            assert!(error.why().contains(option), "{} {option}: {error}", machine.driver);
        }
    }
}

/// How far a pull is was shown nowhere in the events of its task.
#[tokio::test(flavor = "multi_thread")]
async fn the_progress_of_a_pull_is_an_event() {
    for machine in machines() {
        let mut driver = machine.driver();
        Arc::get_mut(&mut driver.shared).unwrap().pull_event_period = Duration::ZERO;
        reaches(&driver, Health::Healthy).await;
        machine.link.send_replace(Link::Fetched(1));
        let mut events = driver.events();
        let task = machine.task(attempt_id(1), json!({"image": "registry.invalid/fetched:1"}));
        let cancel = CancellationToken::new();
        let mut preparing = driver.prepare(&task, &cancel);
        let following = async {
            for (done, next) in [("1 of 4 MiB (25 %)", 3), ("3 of 4 MiB (75 %)", 4)] {
                let progress = format!("Docker image pull progress: {done} in 1 layers");
                let is_it = |event: TaskEvent| matches!(event, TaskEvent::Message { message, .. } if message == progress);
                while !is_it(events.next().await.unwrap()) {}
                machine.link.send_replace(Link::Fetched(next));
            }
        };
        tokio::select! {
            done = &mut preparing => panic!("the pull goes on: {done:?}"),
            () = following => {}
        }
        cancel.cancel();
        preparing.await.unwrap_err();
    }
}

/// A task that may do without credentials waits for none.
#[tokio::test(flavor = "multi_thread")]
async fn credentials_that_cannot_be_read_stop_only_tasks_that_need_them() {
    for machine in every_machine() {
        let machine = machine.with(json!({"auth": {"helper": "herdlet-test-missing"}}));
        let driver = machine.healthy().await;
        let mut events = driver.events();
        let mut task = machine.task(attempt_id(1), json!({"image": "localhost:1/none:1"}));
        let cancel = CancellationToken::new();
        let strict = driver.prepare(&task, &cancel).await.unwrap_err();
        assert!(strict.why().contains("herdlet-test-missing"), "{strict}");
        task.config["auth_soft_fail"] = true.into();
        let error = driver.prepare(&task, &cancel).await.unwrap_err();
        assert!(error.why().contains("pull image localhost:1/none:1"), "{error}");
        let says_so = |event: TaskEvent| match event {
            TaskEvent::Message { message, .. } => {
                message.contains("herdlet-test-missing")
                    && message.ends_with("pulling without credentials (auth_soft_fail)")
            }
            TaskEvent::Drift { .. } | TaskEvent::Repaired { .. } | TaskEvent::Progress { .. } => false,
        };
        while !says_so(events.next().await.unwrap()) {}
    }
}

/// A registry that is down: a task starts with the image that is there, and says so; without one it fails, by the policy.
#[tokio::test(flavor = "multi_thread")]
async fn a_pull_that_fails_uses_the_image_that_is_there() {
    for machine in machines() {
        let driver = machine.connected().await;
        let mut events = driver.events();
        let mut task = machine.script(attempt_id(1), "sleep 3600");
        task.config["force_pull"] = true.into();
        task.config["image_pull_timeout"] = "20s".into();
        let cancel = CancellationToken::new();
        driver.prepare(&task, &cancel).await.unwrap();
        let (mut messages, mut progress) = (Vec::new(), Vec::new());
        while !messages.last().is_some_and(|message: &String| message.contains("the image that is there")) {
            match events.next().await {
                Some(TaskEvent::Message { message, .. }) => messages.push(message),
                Some(TaskEvent::Progress { what, .. }) => progress.push(what),
                other => panic!("{messages:?} {other:?}"),
            }
        }
        assert!(messages[0].starts_with("Downloading image"), "{messages:?}");
        let name = task.config["image"].as_str().unwrap();
        assert_eq!(progress[0], format!("pulling image {name}"));
        let mut missing = task.clone();
        missing.config["image"] = "localhost:1/none:1".into();
        let error = driver.prepare(&missing, &cancel).await.unwrap_err();
        assert!(
            matches!(error, DriverError::Recoverable(_))
                && error.to_string().contains("pull image localhost:1/none:1"),
            "{error}"
        );
        drop(driver);
        let strict = machine.with(json!({"pull_fallback": false}));
        let driver = strict.connected().await;
        driver.prepare(&task, &cancel).await.unwrap_err();
    }
}

/// Only age counted: the disk became full although images were unused.
#[tokio::test(flavor = "multi_thread")]
async fn unused_images_make_room_oldest_first() {
    for machine in machines() {
        // However much of this machine's disk is free, it counts as full.
        let machine = machine.with(json!({"gc": {"image_free_percent": 100}}));
        let driver = machine.connected().await;
        let (shared, engine) = (&driver.shared, driver.shared.current());
        let client = &engine.client().await.unwrap();
        let of_age = async |name: &str, at_s| {
            let image = format!("herdlet-test/{}:{name}", machine.instance);
            let fetched = Some(make_image(client, &image).await);
            shared
                .used
                .note(&UsedImage { image: image.clone(), engine: engine.place.clone(), at_s, fetched })
                .unwrap();
            image
        };
        let images = [of_age("new", 30).await, of_age("old", 10).await, of_age("used", 5).await];
        shared.claim_image(&attempt_id(1), &images[2], &engine.place);
        let present = async || {
            let mut present = Vec::new();
            for image in &images {
                present.push(crate::images::local(client, image).await.unwrap().is_some());
            }
            present
        };
        let root = engine.about().unwrap().root.clone();
        let never = |_: &Path| false;
        assert_eq!(shared.make_room(None, Duration::ZERO, Arc::new(never)).await.unwrap(), 0);
        assert_eq!(present().await, [true, true, true]);
        let asked = AtomicU32::new(0);
        let until_one_is_gone =
            move |dir: &Path| dir == Path::new(&root) && asked.fetch_add(1, Ordering::SeqCst) == 0;
        assert_eq!(shared.make_room(None, Duration::ZERO, Arc::new(until_one_is_gone)).await.unwrap(), 1);
        assert_eq!(present().await, [true, false, true], "{}", machine.driver);
        let other = Place { socket: "/nowhere".into(), ..engine.place.clone() };
        assert_eq!(shared.make_room(Some(&other), Duration::ZERO, Arc::new(|_| true)).await.unwrap(), 0);
        // A pull that fails for a full disk is tried once more if an image could be removed.
        machine.link.send_replace(Link::FullDisk);
        let task = machine.task(attempt_id(2), json!({"image": "registry.invalid/large:1"}));
        for pulls in [2, 3] {
            let error = driver.prepare(&task, &CancellationToken::new()).await.unwrap_err();
            assert!(error.why().contains("no space left on device"), "{error}");
            assert_eq!(machine.failed.load(Ordering::SeqCst), pulls, "{}", machine.driver);
            assert_eq!(present().await, [false, false, true]);
        }
        machine.link.send_replace(Link::Works);
        shared.release_image(&attempt_id(1));
        collect_until(shared, async || present().await == [false, false, false]).await;
    }
}

/// Images of tasks that ran before a restart of the agent were never removed.
#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_no_task_uses_is_removed_also_after_a_restart() {
    for machine in machines() {
        let driver = machine.connected().await;
        let engine = driver.shared.current();
        let client = &engine.client().await.unwrap();
        let repository = format!("herdlet-test/{}", machine.instance);
        let image = format!("{repository}:used");
        let other = format!("{repository}:other");
        let id = make_image(client, &image).await;
        make_image(client, &other).await;
        let mut task = machine.script(attempt_id(1), "sleep 3600");
        task.config["image"] = image.clone().into();
        // As if it had been pulled.
        driver.shared.note_fetched(&image, &engine.place, Some(id));
        driver.prepare(&task, &CancellationToken::new()).await.unwrap();
        driver.shared.collect(Duration::ZERO).await.unwrap();
        driver.start(task).await.unwrap();
        let machine_driver = machine.connected().await;
        let next = &machine_driver.shared;
        next.collect(Duration::ZERO).await.unwrap();
        let is_there = async |name: &str| crate::images::local(client, name).await.unwrap().is_some();
        assert!(is_there(&image).await, "its container runs");
        machine_driver.destroy(&attempt_id(1), Leftover::Kill).await.unwrap();
        next.collect(Duration::from_secs(3_600)).await.unwrap();
        assert!(is_there(&image).await, "it was used just now");
        next.collect(Duration::ZERO).await.unwrap();
        assert!(!is_there(&image).await);
        assert!(is_there(&other).await, "no task has used it");
        let none = None::<bollard::query_parameters::RemoveImageOptions>;
        client.remove_image(&other, none, None).await.unwrap();
    }
}

/// An archive that the engine did not store within the time of a call was never loaded; and nobody could end its loading.
#[tokio::test(flavor = "multi_thread")]
async fn an_archive_is_loaded_until_its_own_timeout_or_until_it_is_withdrawn() {
    for machine in machines().into_iter().filter(|machine| machine.driver == "docker") {
        let machine = machine.with(json!({"client_http_timeout": "1s"}));
        let driver = machine.connected().await;
        std::fs::write(machine.task_dir().join("local/a.tar"), "no archive").unwrap();
        let mut task = machine.script(attempt_id(1), "true");
        task.config["load"] = "a.tar".into();
        let cancel = CancellationToken::new();
        machine.link.send_replace(Link::HangsLoad);
        let mut preparing = driver.prepare(&task, &cancel);
        let waited = tokio::time::timeout(Duration::from_secs(3), &mut preparing).await;
        assert!(waited.is_err(), "{waited:?}");
        cancel.cancel();
        let error = preparing.await.unwrap_err().to_string();
        assert!(error.contains("withdrawn"), "{error}");
        task.config["image_pull_timeout"] = "1s".into();
        let error = driver.prepare(&task, &CancellationToken::new()).await.unwrap_err().to_string();
        assert!(error.contains("image_pull_timeout") || error.contains("in time"), "{error}");
    }
}

/// Each pull of `latest` left an image without a name; and an engine that was gone ended each search for unused images.
#[tokio::test(flavor = "multi_thread")]
async fn superseded_images_are_removed_too() {
    for machine in machines() {
        let driver = machine.connected().await;
        let (shared, engine) = (&driver.shared, driver.shared.current());
        let client = &engine.client().await.unwrap();
        let gone = Place { socket: "/nowhere".into(), ..engine.place.clone() };
        shared.note_fetched("a", &gone, Some("x".to_owned()));
        let name = format!("herdlet-test/{}:latest", machine.instance);
        let local = async |name: &str| crate::images::local(client, name).await.unwrap();
        make_image(client, &name).await;
        let first = local(&name).await.unwrap();
        shared.note_pulled(&name, &engine.place, None, &first);
        make_image(client, &name).await;
        let second = local(&name).await.unwrap();
        shared.note_pulled(&name, &engine.place, Some(first.clone()), &second);
        assert!(first.id != second.id && local(&first.id).await.is_some());
        // A container of somebody else.
        let body = ContainerCreateBody { image: Some(name.clone()), ..ContainerCreateBody::default() };
        let none = None::<bollard::query_parameters::CreateContainerOptions>;
        let container = client.create_container(none, body).await.unwrap().id;
        let other = TagImageOptionsBuilder::new().repo("herdlet-test/other").tag(&machine.instance).build();
        client.tag_image(&name, Some(other)).await.unwrap();
        collect_until(shared, async || local(&first.id).await.is_none()).await;
        assert_eq!(local(&name).await.map(|image| image.id), Some(second.id.clone()));
        let remove = RemoveContainerOptionsBuilder::new().force(true).build();
        client.remove_container(&container, Some(remove)).await.unwrap();
        collect_until(shared, async || local(&name).await.is_none()).await;
        let other = format!("herdlet-test/other:{}", machine.instance);
        client
            .remove_image(&other, None::<bollard::query_parameters::RemoveImageOptions>, None)
            .await
            .unwrap();
    }
}

/// Files were read on the threads that all tasks of the agent share: a slow disk held everything while unused images were looked for.
#[tokio::test]
async fn a_slow_disk_holds_nothing_else_while_unused_images_are_looked_for() {
    let dir = tempfile::tempdir().unwrap();
    let options = json!({"endpoint": "unix:///nowhere/docker.sock"});
    let setup = Setup {
        driver: "docker".to_owned(),
        dir: dir.path().to_owned(),
        instance: "i".to_owned(),
        options: serde_json::from_value(options).unwrap(),
        mode: Mode::Standalone,
        compute: (1, 1),
    };
    let driver = Containers::open(setup).unwrap();
    let engine = driver.shared.current();
    driver.shared.note_fetched("a", &engine.place, None);
    // Reading this record takes until somebody writes to it.
    let record = dir.path().join(attempt_id(1).name());
    rustix::fs::mknodat(CWD, &record, FileType::Fifo, rustix::fs::Mode::RWXU, 0).unwrap();
    let (read, is_read) = tokio::sync::oneshot::channel();
    let (other, others) = std::sync::mpsc::sync_channel(1);
    let writer = std::thread::spawn(move || {
        let _fifo = std::fs::OpenOptions::new().write(true).open(record).unwrap();
        read.send(()).unwrap();
        others.recv_timeout(Duration::from_secs(60)).is_ok()
    });
    let something_else = async {
        is_read.await.unwrap();
        other.send(()).unwrap();
    };
    let (collected, ()) = tokio::join!(driver.shared.collect(Duration::ZERO), something_else);
    collected.unwrap();
    assert!(writer.join().unwrap());
}

/// An image that somebody had built on the machine was removed after its task, and no registry had it.
#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_was_built_here_is_kept() {
    for machine in machines() {
        let driver = machine.connected().await;
        let engine = driver.shared.current();
        let client = &engine.client().await.unwrap();
        let image = format!("herdlet-test/{}:built", machine.instance);
        let id = make_image(client, &image).await;
        let mut task = machine.script(attempt_id(1), "true");
        task.config["image"] = image.clone().into();
        driver.prepare(&task, &CancellationToken::new()).await.unwrap();
        let mut exits = driver.exits();
        driver.start(task).await.unwrap();
        exits.next().await.unwrap();
        driver.destroy(&attempt_id(1), Leftover::MainMustBeGone).await.unwrap();
        driver.shared.collect(Duration::ZERO).await.unwrap();
        let found = async || crate::images::local(client, &image).await.unwrap().map(|image| image.id);
        assert_eq!(found().await.as_deref(), Some(&*id));
        // Neither one that replaces a fetched one.
        driver.shared.note_fetched(&image, &engine.place, Some("sha256:0".to_owned()));
        driver.shared.collect(Duration::ZERO).await.unwrap();
        assert_eq!(found().await.as_deref(), Some(&*id));
        driver.shared.note_fetched(&image, &engine.place, Some(id));
        collect_until(&driver.shared, async || found().await.is_none()).await;
        driver.shared.collect(Duration::ZERO).await.unwrap();
        assert_eq!(driver.images().await.unwrap(), []);
    }
}

/// Collects until the images are gone: an engine that works on other images refuses now and then, and the next
/// collection tries again.
async fn collect_until(shared: &Arc<Shared>, are_gone: impl AsyncFn() -> bool) {
    for _ in 0..100 {
        shared.collect(Duration::ZERO).await.unwrap();
        if are_gone().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("collected images are still there: {:?}", shared.images().await);
}

/// Makes an image that is equal to no other.
async fn make_image(client: &Docker, name: &str) -> String {
    let body = ContainerCreateBody {
        image: Some(super::IMAGE.to_owned()),
        cmd: Some(vec!["/bin/true".to_owned()]),
        ..ContainerCreateBody::default()
    };
    let none = None::<bollard::query_parameters::CreateContainerOptions>;
    let made = client.create_container(none, body).await.unwrap().id;
    let (repository, tag) = name.rsplit_once(':').unwrap();
    let options = CommitContainerOptionsBuilder::new()
        .container(&made)
        .repo(repository)
        .tag(tag)
        .changes(&format!("LABEL name={name}"))
        .build();
    // Podman's commit fails beside others with "layer not known".
    let busy =
        |error: &bollard::errors::Error| crate::failure::meaning(error) == crate::failure::Meaning::Failed;
    let mut tries = 0;
    while let Err(error) = client.commit_container(options.clone(), ContainerConfig::default()).await {
        tries += 1;
        assert!(busy(&error) && tries < 20, "{error}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let remove = RemoveContainerOptionsBuilder::new().force(true).build();
    client.remove_container(&made, Some(remove)).await.unwrap();
    crate::images::local(client, name).await.unwrap().unwrap().id
}
