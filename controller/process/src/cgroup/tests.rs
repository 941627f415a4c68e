//! Tests with real cgroups, where the machine allows it.

use std::process::{Command, Stdio};

use herdlet_api_types::{AllocId, alloc::CoreSet};
use herdlet_driver::limits::CpuQuota;

use super::*;

fn setup(instance: &str) -> Setup {
    let parent = format!("herdlet-test-{}", std::process::id());
    let runtime = std::env::temp_dir().join(&parent).join(instance);
    Setup { parent, instance: instance.into(), runtime }
}

/// Returns `None` where the machine has no writable cgroups; then there is nothing to test.
fn open(instance: &str) -> Option<(Setup, Arc<Cgroups>)> {
    let setup = setup(instance);
    let isolation = Isolation::detect(&setup);
    isolation.cgroups().map(|cgroups| (setup, Arc::clone(cgroups)))
}

fn id(attempt: u32) -> AttemptId {
    AttemptId { alloc: AllocId::from_hash([3; 16]), task: "a task".into(), attempt }
}

#[tokio::test]
async fn only_processes_of_the_cgroup_are_killed() {
    let Some((_, cgroups)) = open("kill") else { return };
    let mine = cgroups.create(&id(1), &Limits::default()).unwrap();
    let other = cgroups.create(&id(2), &Limits::default()).unwrap();
    let sleep = |cgroup: &Cgroup| {
        let child = Command::new("sleep").arg("1000").stdin(Stdio::null()).spawn().unwrap();
        cgroup.take_in(&[child.id()]).unwrap();
        child
    };
    let (mut first, mut second, mut third) = (sleep(&mine), sleep(&mine), sleep(&other));
    assert!(mine.is_populated().unwrap());
    assert_eq!(mine.pids().len(), 2);
    mine.kill().await.unwrap();
    assert!(!mine.is_populated().unwrap());
    first.wait().unwrap();
    second.wait().unwrap();
    assert!(third.try_wait().unwrap().is_none());
    mine.remove().await.unwrap();
    assert!(!mine.exists());
    mine.kill().await.unwrap();
    mine.remove().await.unwrap();
    assert_eq!(cgroups.existing_attempts().unwrap(), BTreeSet::from([id(2)]));
    cgroups.remove().await.unwrap();
    third.wait().unwrap();
    assert!(!other.exists());
}

#[tokio::test]
async fn a_kernel_without_cgroup_kill_will_do() {
    let Some((_, cgroups)) = open("old") else { return };
    let cgroup = cgroups.create(&id(1), &Limits::default()).unwrap();
    // Forks as fast as it can.
    let bomb = "while :; do sleep 0.01 & done";
    let mut child = Command::new("sh").args(["-c", bomb]).stdin(Stdio::null()).spawn().unwrap();
    cgroup.take_in(&[child.id()]).unwrap();
    kill::kill_one_by_one(cgroup.dir()).unwrap();
    tokio::time::timeout(std::time::Duration::from_secs(180), cgroup.emptied()).await.unwrap().unwrap();
    child.wait().unwrap();
    cgroups.remove().await.unwrap();
}

#[tokio::test]
async fn cgroups_of_another_instance_are_kept() {
    let Some((_, ours)) = open("ours") else { return };
    let Some((_, theirs)) = open("theirs") else { return };
    ours.create(&id(1), &Limits::default()).unwrap();
    let stranger = theirs.create(&id(1), &Limits::default()).unwrap();
    ours.remove().await.unwrap();
    assert!(stranger.exists());
    theirs.remove().await.unwrap();
}

#[tokio::test]
async fn limits_are_written_where_the_machine_has_the_controller() {
    let Some((_, cgroups)) = open("limits") else { return };
    let limits = Limits {
        memory_bytes: Some(64 << 20),
        cpu_shares: Some(512),
        cpu_quota: Some(CpuQuota { quota_us: 20_000, period_us: 50_000 }),
        processes: Some(32),
        ..Limits::default()
    };
    let cgroup = cgroups.create(&id(1), &limits).unwrap();
    if let Some(dir) = cgroup.v1_dir(Controller::Cpu) {
        let of = |name| files::number(&dir.join(name));
        assert_eq!((of("cpu.cfs_quota_us"), of("cpu.cfs_period_us")), (Some(20_000), Some(50_000)));
    } else if cgroups.v2.contains(&Controller::Cpu) {
        assert_eq!(files::read(&cgroup.dir().join("cpu.max")).unwrap(), "20000 50000\n");
    }
    if let Some(dir) = cgroup.v1_dir(Controller::Memory) {
        assert_eq!(files::number(&dir.join("memory.limit_in_bytes")), Some(64 << 20));
    } else if cgroups.v2.contains(&Controller::Memory) {
        assert_eq!(files::number(&cgroup.dir().join("memory.max")), Some(64 << 20));
    } else {
        assert!(!cgroups.unlimited().is_empty());
    }
    if let Some(dir) = cgroup.v1_dir(Controller::Pids) {
        assert_eq!(files::number(&dir.join("pids.max")), Some(32));
    } else if cgroups.v2.contains(&Controller::Pids) {
        assert_eq!(files::number(&cgroup.dir().join("pids.max")), Some(32));
    } else {
        assert!(!cgroups.unlimited().is_empty());
    }
    assert_eq!(cgroup.oom_kills(), 0);
    cgroups.remove().await.unwrap();
    assert!(cgroup.v1_dir(Controller::Memory).is_none());
}

/// Where the machine has cpusets and at least two cores: one attempt has a core, and all others keep off it.
#[tokio::test]
async fn a_core_of_an_attempt_is_kept_from_others() {
    let Some((_, cgroups)) = open("cores") else { return };
    let Ok(cores) = cgroups.cores() else { return };
    let all = cores.available().clone();
    let (Some(first), true) = (all.0.first().copied(), all.0.len() > 1) else { return };
    let rest = CoreSet(all.0.iter().copied().skip(1).collect());
    let sleep = |cgroup: &Cgroup| {
        let child = Command::new("sleep").arg("1000").stdin(Stdio::null()).spawn().unwrap();
        cgroup.take_in(&[child.id()]).unwrap();
        child
    };
    let allowed = |child: &std::process::Child| {
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
        let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        CoreSet::parse(list.unwrap()).unwrap()
    };
    let other = cgroups.create(&id(1), &Limits::default()).unwrap();
    let other = (sleep(&other), other);
    assert_eq!(allowed(&other.0), all);
    let limits = Limits { cores: CoreSet([first].into()), ..Limits::default() };
    let own = cgroups.create(&id(2), &limits).unwrap();
    let own = (sleep(&own), own);
    assert_eq!((allowed(&own.0), allowed(&other.0)), (limits.cores.clone(), rest.clone()));
    // A later agent knows it too.
    let again = Isolation::detect(&setup("cores"));
    let later = again.cgroups().unwrap().create(&id(3), &Limits::default()).unwrap();
    let later = (sleep(&later), later);
    assert_eq!((allowed(&later.0), allowed(&other.0)), (rest.clone(), rest));
    let own_again = again.cgroups().unwrap().of(&id(2));
    own_again.kill().await.unwrap();
    own_again.remove().await.unwrap();
    assert_eq!((allowed(&later.0), allowed(&other.0)), (all.clone(), all));
    assert_eq!(cgroups.existing_attempts().unwrap(), BTreeSet::from([id(1), id(3)]));
    cgroups.remove().await.unwrap();
    for mut child in [own.0, other.0, later.0] {
        child.wait().unwrap();
    }
}

#[test]
fn a_machine_without_cgroups_says_why() {
    let mut setup = setup("none");
    setup.parent = "\0".into();
    let Isolation::None { why } = Isolation::detect(&setup) else { panic!("isolated") };
    assert!(why.starts_with("failed to "), "{why}");
}
