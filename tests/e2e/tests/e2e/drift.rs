//! External changes are detected, repaired without touching the task, and counted. A repair must never kill
//! the task.

use std::{
    fs,
    time::{Duration, Instant},
};

use herdlet_e2e::{
    agent::Agent,
    host::{self, Member},
    wait,
};
use rustix::{
    mount::{MountFlags, UnmountFlags},
    process::Signal,
};

use crate::common::{is_root, job, sleeper, volume};

/// Creates a job with one task and one volume, and returns the volume's mount point.
fn with_volume(agent: &mut Agent) -> (Member, std::path::PathBuf) {
    let text = format!(
        "{}{}",
        volume("data"),
        job(
            "drift",
            "service",
            "volumes: {data: {type: host, source: data}}",
            &[sleeper("t", "volume_mounts: [{volume: data, destination: local/data}]")]
        )
    );
    agent.apply_and_wait(&text);
    fs::write(agent.home.state().join("volumes/data/file"), "ours").unwrap();
    let member = agent.single("drift.g[0]", "t");
    let point = agent.home.state().join("alloc").join(&member.alloc).join("t/local/data");
    assert!(host::mounts_below(&point).contains(&point), "{:?}", host::mounts_below(&agent.home.state()));
    (member, point)
}

/// With reports by the kernel, four or more changes in sequence take about a second. The agent's inspections
/// happen every 30 s, so with them alone they would take a minute and a half.
#[track_caller]
fn assert_used_kernel_events(began: Instant) {
    assert!(
        began.elapsed() < Duration::from_secs(80),
        "not detected before the periodic inspections: {:?}",
        began.elapsed()
    );
}

fn is_ours(point: &std::path::Path) -> bool {
    fs::read_to_string(point.join("file")).is_ok_and(|text| text == "ours")
}

#[test]
fn unmounted_volume_is_remounted_under_its_task() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    let (member, point) = with_volume(&mut agent);
    let detected = agent.metric("herdlet_drift_detected_total", "mount");
    rustix::mount::unmount(&point, UnmountFlags::DETACH).unwrap();
    wait::until_true("it is mounted again", || is_ours(&point));
    assert_eq!(agent.single("drift.g[0]", "t"), member);
    wait::until_true("it is counted", || agent.metric("herdlet_drift_detected_total", "mount") > detected);
    wait::until_true("the repair is counted", || {
        agent.metric("herdlet_drift_repaired_total", "mount") >= 1.0
    });
    agent.until_printed(&["drift", "drift.g"], |output| {
        let line = output.lines().find(|line| line.contains(" mount "));
        line.is_some_and(|line| line.contains("drift.g[0]") && line.contains("repaired after"))
    });
    assert_eq!(agent.alloc("drift.g[0]").unwrap().restarts("t"), 0);
    // The same change while no agent runs.
    agent.kill();
    rustix::mount::unmount(&point, UnmountFlags::DETACH).unwrap();
    agent.launch();
    wait::until_true("it is mounted again", || is_ours(&point));
    assert_eq!(agent.single("drift.g[0]", "t"), member);
    agent.finish();
}

#[test]
fn something_that_was_mounted_over_ours_is_taken_away_again() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    let (member, point) = with_volume(&mut agent);
    rustix::mount::mount("none", &point, "tmpfs", MountFlags::empty(), None).unwrap();
    wait::until_true("the agent's mount is on top", || is_ours(&point));
    assert_eq!(agent.single("drift.g[0]", "t"), member);
    assert_eq!(fs::read_to_string(agent.home.state().join("volumes/data/file")).unwrap(), "ours");
    agent.finish();
}

/// A mount that comes and goes between two reads of the mount table is not seen.
#[test]
fn repeatedly_unmounted_volume_is_remounted() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    let (member, point) = with_volume(&mut agent);
    let began = Instant::now();
    for _ in 0..10 {
        wait::until_true("it is mounted", || rustix::mount::unmount(&point, UnmountFlags::DETACH).is_ok());
    }
    wait::until_true("it is mounted again", || is_ours(&point));
    assert_used_kernel_events(began);
    assert_eq!(agent.single("drift.g[0]", "t"), member);
    agent.finish();
}

#[test]
fn a_mount_that_is_not_ours_in_our_place_is_replaced() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    let (member, point) = with_volume(&mut agent);
    agent.kill();
    rustix::mount::unmount(&point, UnmountFlags::DETACH).unwrap();
    let other = agent.home.path().join("other");
    fs::create_dir(&other).unwrap();
    fs::write(other.join("precious"), "theirs").unwrap();
    rustix::mount::mount_bind(&other, &point).unwrap();
    agent.launch();
    wait::until_true("the agent's mount is on top", || is_ours(&point));
    assert_eq!(agent.single("drift.g[0]", "t"), member);
    assert_eq!(
        fs::read_to_string(other.join("precious")).unwrap(),
        "theirs",
        "files of others are unchanged"
    );
    agent.finish();
}

#[test]
fn removed_cgroup_is_restored_with_its_task() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    agent.apply_and_wait(&job("moved", "service", "", &[sleeper("t", "")]));
    let member = agent.single("moved.g[0]", "t");
    let instance = agent.home.instance().unwrap();
    let cgroup = host::cgroup_of(&instance, &member);
    let elsewhere = host::cgroup2().unwrap().join(format!("herdlet-test-{}", member.pid));
    fs::create_dir(&elsewhere).unwrap();
    fs::write(elsewhere.join("cgroup.procs"), member.pid.to_string()).unwrap();
    wait::until_true("the cgroup can be removed", || fs::remove_dir(&cgroup).is_ok());
    wait::until_true("the task is in a cgroup of the agent again", || agent.members() == [member.clone()]);
    wait::until_true("the agent removes the cgroup", || fs::remove_dir(&elsewhere).is_ok());
    assert_eq!(agent.alloc("moved.g[0]").unwrap().restarts("t"), 0);
    wait::until_true("it is counted", || agent.metric("herdlet_drift_repaired_total", "") >= 1.0);
    agent.finish();
}

#[test]
fn killed_process_follows_the_restart_policy() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    let policy = "restart: {attempts: 1, interval: 10m, delay: 100ms, mode: fail}";
    agent.apply_and_wait(&job("killed", "service", policy, &[sleeper("t", "")]));
    let member = agent.single("killed.g[0]", "t");
    host::signal(member.pid, Signal::KILL);
    let alloc = agent.until_alloc("killed.g[0]", "runs again", |alloc| {
        alloc.restarts("t") == 1 && alloc.state("t") == "running"
    });
    assert!(alloc.events("t").iter().any(|kind| kind == "Terminated"), "{:?}", alloc.events("t"));
    assert!(agent.metric("herdlet_task_restarts_total", "killed") >= 1.0);
    assert!(agent.metric("herdlet_drift_repaired_total", "") < 1.0);
    let member = agent.single("killed.g[0]", "t");
    host::signal(member.pid, Signal::KILL);
    agent.until_alloc("killed.g[0]", "failed for good", |alloc| {
        alloc.failed("t") && alloc.status() == "failed"
    });
    agent.finish();
}

#[test]
fn deleted_task_directory_fails_the_task() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    let policy = "restart: {attempts: 0, interval: 10m, delay: 100ms, mode: fail}";
    agent.apply_and_wait(&job("homeless", "service", &format!("count: 4\n{policy}"), &[sleeper("t", "")]));
    let began = Instant::now();
    for index in 0..4 {
        let alloc = format!("homeless.g[{index}]");
        let member = agent.single(&alloc, "t");
        let dir = agent.home.state().join("alloc").join(&member.alloc).join("t");
        // Moved in one step: if it were dismantled, the agent would repair its mounts meanwhile.
        let moved = agent.home.path().join("moved");
        fs::rename(&dir, &moved).unwrap();
        for point in host::mounts_below(&moved) {
            rustix::mount::unmount(&point, UnmountFlags::DETACH).unwrap();
        }
        fs::remove_dir_all(&moved).unwrap();
        agent.until_alloc(&alloc, "fails", |alloc| alloc.failed("t"));
        assert!(!dir.exists(), "the directory is not created again");
        assert!(!host::is_alive(member.pid));
    }
    assert_used_kernel_events(began);
    agent.finish();
}

// Regression: inspections covered only the top of a task's directory, so deletions inside it were never
// detected.
#[test]
fn deletion_inside_the_directory_fails_the_task() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    let policy = "restart: {attempts: 0, interval: 10m, delay: 100ms, mode: fail}";
    let began = Instant::now();
    for (name, inside) in
        [("local", "t/local"), ("shared", "alloc/data"), ("local2", "t/local"), ("shared2", "alloc/data")]
    {
        agent.apply_and_wait(&job(name, "service", policy, &[sleeper("t", "")]));
        let alloc = format!("{name}.g[0]");
        let member = agent.single(&alloc, "t");
        let dir = agent.home.state().join("alloc").join(&member.alloc).join(inside);
        fs::remove_dir_all(&dir).unwrap();
        agent.until_alloc(&alloc, "fails", |alloc| alloc.failed("t"));
        assert!(!host::is_alive(member.pid));
    }
    assert_used_kernel_events(began);
    agent.finish();
}

#[test]
fn replaced_volume_directory_is_remounted() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    let (member, point) = with_volume(&mut agent);
    let data = agent.home.state().join("volumes/data");
    let old = agent.home.path().join("old");
    fs::rename(&data, &old).unwrap();
    wait::until_true("explain shows what to do", || {
        agent.cli(&["explain", "drift"]).stdout.contains("restore it")
    });
    assert!(is_ours(&point), "the task keeps its mount");
    fs::create_dir(&data).unwrap();
    fs::write(data.join("file"), "new").unwrap();
    wait::until_true("the new one is mounted", || {
        fs::read_to_string(point.join("file")).is_ok_and(|text| text == "new")
    });
    assert_eq!(agent.single("drift.g[0]", "t"), member);
    agent.finish();
}
