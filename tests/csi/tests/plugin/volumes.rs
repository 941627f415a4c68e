//! Volumes of the plugin on this machine. Names of tests that begin with "flaw" are those of faults that Nomad's client has
//! or had.

use std::{
    fs,
    io::Read as _,
    os::unix::fs::{FileTypeExt as _, symlink},
    path::Path,
    time::Duration,
};

use herdlet_base::{mounts::table::mounts_below_now, test_env::TestEnv};
use herdlet_csi::{
    capability::{AttachmentMode, Usage, Writing},
    volumes::{Claim, Presence, VolumeError, share},
};
use herdlet_csi_plugin::conformance::WRITER;

use crate::machine::{Machine, claim};

#[tokio::test]
async fn volumes_come_up_and_leave_nothing() {
    for options in [&[][..], &["--no-staging"]] {
        let Some(machine) = Machine::start(options).await else { return };
        let stored = machine.create("data").await;
        assert_eq!(machine.volumes.inspect(&claim("a")).await.unwrap(), Presence::Absent);
        let path = machine.up(&claim("a"), &stored).await.unwrap();
        fs::write(path.join("file"), "kept").unwrap();
        assert_eq!(machine.volumes.inspect(&claim("a")).await.unwrap(), Presence::Published(path.clone()));
        let begun: &[&str] = match options {
            [] => &["NodeStageVolume 0", "NodePublishVolume 0"],
            _ => &["NodePublishVolume 0"],
        };
        assert_eq!(machine.running.calls(), begun);
        // Repeated without a call.
        assert_eq!(machine.up(&claim("a"), &stored).await.unwrap(), path);
        assert!(machine.running.calls().is_empty());
        machine.down(&claim("a")).await.unwrap();
        machine.assert_clean("down");
        let undone: &[&str] = match options {
            [] => &["NodeUnpublishVolume 0", "NodeUnstageVolume 0"],
            _ => &["NodeUnpublishVolume 0"],
        };
        assert_eq!(machine.running.calls(), undone);
        machine.down(&claim("a")).await.unwrap();
        assert!(machine.running.calls().is_empty(), "a claim that is undone needs no call");
        let path = machine.up(&claim("b"), &stored).await.unwrap();
        assert_eq!(fs::read_to_string(path.join("file")).unwrap(), "kept");
    }
}

#[tokio::test]
async fn the_last_user_unstages() {
    let Some(machine) = Machine::start(&[]).await else { return };
    let stored = machine.create("data").await;
    machine.up(&claim("a"), &stored).await.unwrap();
    machine.up(&claim("b"), &stored).await.unwrap();
    machine.down(&claim("a")).await.unwrap();
    machine.down(&claim("b")).await.unwrap();
    let expected = [
        "NodeStageVolume 0",
        "NodePublishVolume 0",
        "NodePublishVolume 0",
        "NodeUnpublishVolume 0",
        "NodeUnpublishVolume 0",
        "NodeUnstageVolume 0",
    ];
    assert_eq!(machine.running.calls(), expected);
    machine.assert_clean("both are down");
}

#[tokio::test]
async fn each_use_is_staged_by_itself() {
    let Some(machine) = Machine::start(&[]).await else { return };
    let stored = machine.create("data").await;
    let reader = Claim { usage: Usage { writing: Writing::ReadOnly, ..WRITER }, ..claim("b") };
    let writable = machine.up(&claim("a"), &stored).await.unwrap();
    let read_only = machine.up(&reader, &stored).await.unwrap();
    fs::write(writable.join("file"), "1").unwrap();
    assert_eq!(fs::read_to_string(read_only.join("file")).unwrap(), "1");
    assert!(fs::write(read_only.join("file"), "2").is_err());
    machine.down(&claim("a")).await.unwrap();
    assert_eq!(fs::read_to_string(read_only.join("file")).unwrap(), "1");
    machine.down(&reader).await.unwrap();
    let calls = machine.running.calls();
    let number = |name: &str| calls.iter().filter(|call| call.starts_with(name)).count();
    assert_eq!((number("NodeStageVolume 0"), number("NodeUnstageVolume 0")), (2, 2), "{calls:?}");
    machine.assert_clean("both are down");
}

/// Its tracker of users is only in memory, and empty after a restart of the agent or the plugin.
#[tokio::test]
async fn flaw_first_end_after_a_restart_unstages_a_volume_in_use() {
    let Some(mut machine) = Machine::start(&[]).await else { return };
    let stored = machine.create("data").await;
    machine.up(&claim("a"), &stored).await.unwrap();
    let path = machine.up(&claim("b"), &stored).await.unwrap();
    machine.restart_agent();
    machine.running.child.kill().unwrap();
    machine.running.restart().await;
    machine.running.calls();
    machine.down(&claim("a")).await.unwrap();
    assert_eq!(machine.running.calls(), ["NodeUnpublishVolume 0"]);
    fs::write(path.join("file"), "in use").unwrap();
    machine.down(&claim("b")).await.unwrap();
    machine.assert_clean("both are down");
}

/// Its tracker compares mount options by address, so equal uses with options are different users.
#[tokio::test]
async fn flaw_users_with_mount_options_are_not_found() {
    let Some(machine) = Machine::start(&[]).await else { return };
    let mut stored = machine.create("data").await;
    stored.options.flags = vec!["noatime".to_owned()];
    machine.up(&claim("a"), &stored).await.unwrap();
    machine.up(&claim("b"), &stored).await.unwrap();
    machine.running.calls();
    machine.down(&claim("a")).await.unwrap();
    assert_eq!(machine.running.calls(), ["NodeUnpublishVolume 0"]);
    machine.down(&claim("b")).await.unwrap();
    machine.assert_clean("both are down");
}

/// It claimed after it published, so an end between the two unstaged the volume.
#[tokio::test]
async fn flaw_volume_is_unstaged_while_another_allocation_publishes() {
    let Some(machine) = Machine::start(&[]).await else { return };
    let stored = machine.create("data").await;
    machine.up(&claim("a"), &stored).await.unwrap();
    machine.running.fail("NodePublishVolume", "delay 200");
    let (begun, ended) = (claim("b"), claim("a"));
    let (up, down) = tokio::join!(machine.up(&begun, &stored), machine.down(&ended));
    down.unwrap();
    fs::write(up.unwrap().join("file"), "in use").unwrap();
    let calls = machine.running.calls();
    assert!(!calls.contains(&"NodeUnstageVolume 0".to_owned()), "{calls:?}");
    machine.down(&claim("b")).await.unwrap();
    machine.assert_clean("both are down");
}

/// Volumes of two namespaces with the same name shared a directory.
#[tokio::test]
async fn flaw_equal_names_in_two_namespaces() {
    let Some(machine) = Machine::start(&[]).await else { return };
    let (first, second) = (machine.create("first").await, machine.create("second").await);
    let other = Claim { namespace: "other".to_owned(), ..claim("b") };
    let (one, two) =
        (machine.up(&claim("a"), &first).await.unwrap(), machine.up(&other, &second).await.unwrap());
    fs::write(one.join("file"), "first").unwrap();
    assert!(!two.join("file").exists());
    machine.down(&claim("a")).await.unwrap();
    assert!(two.is_dir());
    machine.down(&other).await.unwrap();
    machine.assert_clean("both are down");
}

/// Several calls for one volume ran at once.
#[tokio::test]
async fn flaw_calls_for_one_volume_run_at_once() {
    let Some(machine) = Machine::start(&[]).await else { return };
    let stored = machine.create("data").await;
    machine.running.fail("NodeStageVolume", "delay 200");
    let (one, two) = (claim("a"), claim("b"));
    let (first, second) = tokio::join!(machine.up(&one, &stored), machine.up(&two, &stored));
    first.and(second).unwrap();
    let calls = machine.running.calls();
    let staged = calls.iter().filter(|call| call.starts_with("NodeStageVolume")).count();
    assert_eq!(
        staged, 1,
        "the second allocation waits for the first, and finds the volume staged: {calls:?}"
    );
}

#[tokio::test]
async fn a_volume_that_hangs_delays_no_other() {
    let Some(machine) = Machine::start(&[]).await else { return };
    let (hanging, other) = (machine.create("hanging").await, machine.create("other").await);
    machine.running.fail("NodeStageVolume", "hang");
    let (stuck, free) = (claim("a"), Claim { volume: "other".to_owned(), ..claim("b") });
    let up = machine.up(&stuck, &hanging);
    tokio::pin!(up);
    // The first poll sends the call; the fault is taken by the first call.
    while machine.running.data.join("faults/NodeStageVolume").exists() {
        let _ = tokio::time::timeout(Duration::from_millis(5), &mut up).await;
    }
    machine.up(&free, &other).await.unwrap();
    machine.down(&free).await.unwrap();
}

/// An allocation that ended just before the agent was killed was never unmounted.
#[tokio::test]
async fn flaw_ended_allocation_stays_mounted_after_a_crash() {
    let Some(mut machine) = Machine::start(&[]).await else { return };
    let stored = machine.create("data").await;
    machine.up(&claim("a"), &stored).await.unwrap();
    machine.restart_agent();
    // The registry has neither the allocation nor the volume.
    let left = machine.volumes.claims().await.unwrap();
    assert_eq!(left, [claim("a")]);
    machine.down(left.first().unwrap()).await.unwrap();
    machine.assert_clean("the claims that were left are down");
    assert!(machine.volumes.claims().await.unwrap().is_empty());
}

/// A plugin that knows of no mount, where there is none, has nothing left to do.
#[tokio::test]
async fn flaw_no_mount_point_is_an_error() {
    let Some(machine) = Machine::start(&[]).await else { return };
    let stored = machine.create("data").await;
    machine.up(&claim("a"), &stored).await.unwrap();
    machine.running.fail("NodeUnpublishVolume", "after status 13 no mount point");
    machine.down(&claim("a")).await.unwrap();
    machine.assert_clean("down");
}

#[tokio::test]
async fn a_plugin_that_is_down_is_waited_for() {
    let Some(mut machine) = Machine::start(&[]).await else { return };
    let stored = machine.create("data").await;
    let path = machine.up(&claim("a"), &stored).await.unwrap();
    machine.running.child.kill().unwrap();
    machine.running.child.wait().unwrap();
    let error = machine.down(&claim("a")).await.unwrap_err();
    let text =
        "use the volume `data`: call Node/NodeUnpublishVolume of the CSI plugin `p`: cannot connect to ";
    assert!(error.is_temporary() && error.to_string().starts_with(text), "{error}");
    assert_eq!(machine.volumes.inspect(&claim("a")).await.unwrap(), Presence::Published(path));
    machine.running.restart().await;
    machine.down(&claim("a")).await.unwrap();
    machine.assert_clean("down");
}

/// A plugin's success is checked.
#[tokio::test]
async fn success_without_an_effect_is_an_error() {
    let Some(machine) = Machine::start(&[]).await else { return };
    let stored = machine.create("data").await;
    machine.running.fail("NodePublishVolume", "nothing");
    let error = machine.up(&claim("a"), &stored).await.unwrap_err();
    assert!(matches!(error, VolumeError::Invisible { .. }) && !error.is_temporary(), "{error}");
    let text = "publish the volume `data`: the CSI plugin `p` reports success, and nothing is mounted at ";
    assert!(error.to_string().starts_with(text), "{error}");
    assert_eq!(machine.volumes.inspect(&claim("a")).await.unwrap(), Presence::Partial);
    machine.up(&claim("a"), &stored).await.unwrap();
    for call in ["NodeUnpublishVolume", "NodeUnstageVolume"] {
        machine.running.fail(call, "nothing");
        let error = machine.down(&claim("a")).await.unwrap_err();
        assert!(matches!(error, VolumeError::StillMounted { .. }), "{call}: {error}");
        assert!(error.to_string().contains("the volume `data`: the CSI plugin `p` reports"), "{error}");
        assert_eq!(machine.volumes.claims().await.unwrap(), [claim("a")], "{call}");
    }
    machine.down(&claim("a")).await.unwrap();
    machine.assert_clean("down");
}

/// The plugin dies in each call, before or after its effect; or the agent is killed while it waits for the response.
/// The next agent brings the volume up, or undoes it.
#[tokio::test]
async fn volumes_are_undone_after_a_crash_at_any_point() {
    let Some(mut machine) = Machine::start(&[]).await else { return };
    let stored = machine.create("data").await;
    let (up, down) = (["NodeStageVolume", "NodePublishVolume"], ["NodeUnpublishVolume", "NodeUnstageVolume"]);
    for call in up.iter().chain(&down) {
        for fault in ["die", "after die", "hang", "after hang"] {
            for repeats in [true, false] {
                let context = format!("{call}: {fault}");
                machine.up(&claim("other"), &stored).await.unwrap();
                machine.down(&claim("other")).await.unwrap();
                if down.contains(call) {
                    machine.up(&claim("a"), &stored).await.unwrap();
                }
                machine.running.fail(call, fault);
                let name = claim("a");
                let work = async {
                    if up.contains(call) {
                        machine.up(&name, &stored).await.map(drop)
                    } else {
                        machine.down(&name).await
                    }
                };
                if fault.ends_with("die") {
                    let error = work.await.unwrap_err();
                    assert!(error.is_temporary(), "{context}: {error}");
                    machine.running.restart().await;
                } else {
                    tokio::pin!(work);
                    while machine.running.data.join("faults").join(call).exists() {
                        let _ = tokio::time::timeout(Duration::from_millis(2), &mut work).await;
                    }
                }
                machine.restart_agent();
                assert_eq!(machine.volumes.claims().await.unwrap(), [claim("a")], "{context}");
                if repeats {
                    let path = machine
                        .up(&claim("a"), &stored)
                        .await
                        .unwrap_or_else(|error| panic!("{context}: {error}"));
                    fs::write(path.join("file"), "").unwrap();
                }
                machine.down(&claim("a")).await.unwrap_or_else(|error| panic!("{context}: {error}"));
                machine.assert_clean(&context);
            }
        }
    }
}

/// A plugin can write to its directory.
#[tokio::test]
async fn links_of_a_plugin_lead_nowhere() {
    let Some(machine) = Machine::start(&[]).await else { return };
    let stored = machine.create("data").await;
    let outside = machine.env.path().join("outside");
    fs::create_dir(&outside).unwrap();
    symlink(&outside, machine.root.join("per-alloc")).unwrap();
    let error = machine.up(&claim("a"), &stored).await.unwrap_err();
    assert!(matches!(error, VolumeError::Files(_)), "{error}");
    assert!(machine.down(&claim("a")).await.is_err());
    assert_eq!(fs::read_dir(outside).unwrap().count(), 0);
    assert!(machine.running.calls().is_empty());
}

#[tokio::test]
async fn a_directory_is_shared_once() {
    let Some(env) = TestEnv::mounting() else { return };
    let folder = env.path().canonicalize().unwrap().join("csi");
    fs::create_dir(&folder).unwrap();
    for _ in 0..2 {
        share(&folder).unwrap();
        assert_eq!(mounts_below_now(&folder).unwrap().len(), 1);
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let line = table.lines().find(|line| line.contains(&format!(" {} ", folder.display()))).unwrap();
        assert!(line.contains(" shared:"), "{line}");
    }
}

/// A volume was deleted, and another one created with its name, while the first is in use.
#[tokio::test]
async fn another_volume_with_the_same_name_is_not_mistaken_for_it() {
    let Some(machine) = Machine::start(&[]).await else { return };
    let (first, second) = (machine.create("first").await, machine.create("second").await);
    let path = machine.up(&claim("a"), &first).await.unwrap();
    fs::write(path.join("file"), "first").unwrap();
    machine.running.calls();
    for alloc in ["a", "b"] {
        let error = machine.up(&claim(alloc), &second).await.unwrap_err();
        assert!(matches!(error, VolumeError::OtherVolume { .. }) && !error.is_temporary(), "{error}");
        let text = format!("is still that of the volume {}; the allocations", first.id);
        assert!(error.to_string().contains(&text), "{error}");
    }
    assert!(machine.running.calls().is_empty());
    machine.down(&claim("b")).await.unwrap();
    assert_eq!(fs::read_to_string(path.join("file")).unwrap(), "first");
    machine.down(&claim("a")).await.unwrap();
    let path = machine.up(&claim("b"), &second).await.unwrap();
    assert!(!path.join("file").exists());
    machine.down(&claim("b")).await.unwrap();
    machine.assert_clean("all are down");
}

/// The claim that waits for the end of the first volume was counted as its user, so it waited for ever.
#[tokio::test]
async fn a_refused_claim_does_not_use_the_volume_that_it_waits_for() {
    let Some(machine) = Machine::start(&[]).await else { return };
    let (first, second) = (machine.create("first").await, machine.create("second").await);
    machine.up(&claim("a"), &first).await.unwrap();
    let error = machine.up(&claim("b"), &second).await.unwrap_err();
    assert!(matches!(error, VolumeError::OtherVolume { .. }), "{error}");
    machine.down(&claim("a")).await.unwrap();
    machine.up(&claim("b"), &second).await.unwrap();
    machine.down(&claim("b")).await.unwrap();
    machine.assert_clean("both are down");
}

/// The record of a staged volume is written before its directory, and removed after it. The agent was killed in between.
#[tokio::test]
async fn a_record_without_a_directory_does_not_keep_the_name() {
    let Some(mut machine) = Machine::start(&[]).await else { return };
    let (first, second) = (machine.create("first").await, machine.create("second").await);
    machine.running.fail("NodeStageVolume", "status 13 broken");
    machine.up(&claim("a"), &first).await.unwrap_err();
    let usage = claim("a").usage.to_string();
    fs::remove_dir(machine.root.join("staging/default/data").join(usage)).unwrap();
    machine.restart_agent();
    machine.down(&claim("a")).await.unwrap();
    machine.assert_clean("down");
    machine.up(&claim("b"), &second).await.unwrap();
    machine.down(&claim("b")).await.unwrap();
}

/// A block device is published as a file; nothing is mounted where it is staged.
#[tokio::test]
async fn block_devices_come_up_and_leave_nothing() {
    let Some(machine) = Machine::start(&[]).await else { return };
    let mut stored = machine.create("data").await;
    let usage = Usage { attachment: AttachmentMode::BlockDevice, ..WRITER };
    stored.context = machine.client.attach(&stored.used(usage), "node-1").await.unwrap();
    let (first, second) = (Claim { usage, ..claim("a") }, Claim { usage, ..claim("b") });
    let path = machine.up(&first, &stored).await.unwrap();
    assert!(fs::metadata(&path).unwrap().file_type().is_block_device());
    fs::write(&path, "written").unwrap();
    let other = machine.up(&second, &stored).await.unwrap();
    let mut begin = [0; 7];
    fs::File::open(&other).unwrap().read_exact(&mut begin).unwrap();
    assert_eq!(&begin, b"written");
    machine.down(&first).await.unwrap();
    assert_eq!(machine.volumes.inspect(&second).await.unwrap(), Presence::Published(other));
    machine.down(&second).await.unwrap();
    machine.assert_clean("both are down");
    let devices = fs::read_dir("/sys/block").unwrap().flatten();
    let images =
        devices.filter_map(|device| fs::read_to_string(device.path().join("loop/backing_file")).ok());
    let data = machine.running.data.canonicalize().unwrap();
    let left: Vec<String> = images.filter(|image| Path::new(image.trim()).starts_with(&data)).collect();
    assert!(left.is_empty(), "{left:?}");
}
