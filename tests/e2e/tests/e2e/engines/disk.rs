//! An image that does not fit on the disk.

use std::fs;

use herdlet_e2e::{
    engine::{Engines, IMAGE, Kind, PASSWORD, REGISTRY, USER},
    wait,
};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use serde_json::Value;

use crate::{
    common::job,
    containers::{containers_of, finish, image_task, sleeping},
};

/// The pull fails with that reason, leaves nothing, and other tasks run.
#[test]
fn a_full_disk_during_a_pull_leaves_nothing_and_is_reported() {
    let Some(mut engines) = Engines::prepare() else { return };
    let data = engines.folder().join("docker");
    fs::create_dir(&data).unwrap();
    mount("small", &data, "tmpfs", MountFlags::empty(), c"size=24m").unwrap();
    engines.serve(&["docker", "podman", "registry"]);
    // Podman, which has another disk, pushes an image that is larger than Docker's disk.
    let image = format!("{REGISTRY}/herdlet-test/large:1");
    engines.large_image(&image);

    let engine = engines.engine(Kind::Docker);
    let mut agent = engine.agent("");
    let config =
        format!("command: sleep\nargs: [\"100000\"]\nauth: {{username: {USER}, password: {PASSWORD}}}");
    let group = "restart: {attempts: 1, interval: 10h, delay: 1h, mode: delay}";
    agent.apply(&job("large", "service", group, &[image_task("t", &image, &config, "")]));
    agent.until_printed(&["explain", "large"], |text| text.contains("no space left"));
    agent.apply_and_wait(&job("small", "service", "", &[sleeping("t", "")]));
    assert_eq!(containers_of(&engine, &agent).len(), 1);
    assert_eq!(engine.images(), [IMAGE]);
    wait::until_true("the parts of the image are removed", || {
        let usage = engine.request("GET", "/system/df", &Value::Null).json();
        usage["LayersSize"].as_u64().is_some_and(|size| size < 10 << 20)
    });
    finish(&engine, agent);
    drop(engines);
    let _ = unmount(&data, UnmountFlags::DETACH);
}
