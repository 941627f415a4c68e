//! Machine-dependent behaviour: users, cgroups, limits.

use herdlet_driver::limits::Limits;

use super::{super::repair::Inspected, *};

/// Set when these tests already run in a modified environment.
const MARK: &str = "HERDLET_TEST_OTHER_MACHINE";

#[tokio::test]
async fn task_user_has_only_its_own_groups() {
    if !is_root() {
        return;
    }
    for bench in Bench::both() {
        let agent = bench.agent();
        let mut task = bench.shell("grep -E '^(Uid|Gid|Groups):' /proc/self/status");
        task.user = Some("nobody".into());
        assert!(agent.run(task).await.is_success());
        agent.driver.destroy(&id(1), Leftover::MainMustBeGone).await.unwrap();
        let status = bench.log("stdout");
        let nobody = herdlet_base::user::find("nobody").unwrap();
        let numbers: Vec<Vec<u32>> = status
            .lines()
            .map(|line| line.split_whitespace().skip(1).map(|number| number.parse().unwrap()).collect())
            .collect();
        assert_eq!(numbers, [vec![nobody.uid; 4], vec![nobody.gid; 4], vec![nobody.gid]]);
        bench.close(agent).await;
    }
}

#[tokio::test]
async fn usage_is_measured_until_the_end() {
    for bench in Bench::both() {
        let agent = bench.agent();
        agent.driver.start(bench.shell("while :; do :; done")).await.unwrap();
        let mut samples = agent.driver.stats(&id(1), Duration::from_millis(100)).await.unwrap();
        let first = samples.next().await.unwrap().unwrap();
        assert!(first.memory.usage.unwrap() > 0);
        assert_eq!(first.pids, [agent.record().task.pid]);
        let mut percent = 0.0_f64;
        for _ in 0..20 {
            // A caller that measures once gets current values, too.
            let mut once = agent.driver.stats(&id(1), Duration::from_secs(1)).await.unwrap();
            let cpu = once.next().await.unwrap().unwrap().cpu;
            percent = percent.max(cpu.user_percent + cpu.system_percent);
            if percent > 5.0 {
                break;
            }
        }
        assert!(percent > 5.0 && percent < 400.0, "{percent}");
        agent.driver.stop(&id(1), stop("SIGKILL", 0)).await.unwrap();
        while samples.next().await.is_some() {}
        assert!(agent.driver.stats(&id(1), Duration::from_secs(1)).await.is_err());
        bench.close(agent).await;
    }
}

#[tokio::test]
async fn task_over_its_memory_limit_is_killed_and_reported() {
    let Some(bench) = Bench::with_cgroups() else { return };
    let agent = bench.agent();
    let can_limit =
        agent.driver.shared.setup.isolation.cgroups().is_some_and(|all| all.unlimited().is_empty());
    if can_limit {
        let mut task = bench.shell("x=$(head -c 200000000 /dev/zero | tr '\\0' x); echo ${#x}");
        task.resources.memory_mib = Some(32);
        let exit = agent.run(task).await;
        assert!(exit.oom_killed && !exit.is_success(), "{exit:?}");
    }
    bench.close(agent).await;
}

#[tokio::test]
async fn a_task_that_left_its_cgroup_is_brought_back() {
    let Some(bench) = Bench::with_cgroups() else { return };
    let mut agent = bench.agent();
    agent.driver.start(bench.shell("sleep 1000 & echo > ready; wait")).await.unwrap();
    bench.line("ready").await;
    assert_eq!(repair::repair(&agent.driver.shared, &id(1)).await.unwrap(), Inspected::Present);
    let cgroup = agent.driver.shared.cgroup(&id(1)).unwrap();
    let elsewhere = agent.driver.shared.setup.isolation.cgroups().unwrap().of(&id(2));
    let pids = cgroup.pids();
    assert_eq!(pids.len(), 2);
    elsewhere.make(&Limits::default()).unwrap();
    elsewhere.take_in(&pids).unwrap();
    assert_eq!(repair::repair(&agent.driver.shared, &id(1)).await.unwrap(), Inspected::Repaired);
    assert_eq!(cgroup.pids(), pids);
    assert!(matches!(agent.event().await, TaskEvent::Repaired { .. }));
    elsewhere.take_in(&pids).unwrap();
    fs::remove_dir(cgroup.dir()).unwrap();
    assert_eq!(agent.event().await, TaskEvent::Drift { id: id(1) });
    assert_eq!(agent.recover(None).await, Recovered::Running(Started::default()));
    let repaired = TaskEvent::Repaired { id: id(1), kind: "cgroup", what: "its cgroup was gone".into() };
    assert_eq!(agent.event().await, repaired);
    assert_eq!(cgroup.pids(), pids);
    assert_eq!(repair::repair(&agent.driver.shared, &id(1)).await.unwrap(), Inspected::Present);
    agent.driver.stop(&id(1), stop("SIGKILL", 0)).await.unwrap();
    assert_eq!(repair::repair(&agent.driver.shared, &id(1)).await.unwrap(), Inspected::Absent);
    for pid in pids {
        gone(pid).await;
    }
    bench.close(agent).await;
}

/// Repeats these tests on differently configured machines: plain v2 (without controllers, which the machine may have in v1), a
/// cgroup2 that we mount ourselves, and without permission for any cgroup.
#[test]
fn all_of_this_works_on_other_machines() {
    if !is_root() || std::env::var_os(MARK).is_some() {
        return;
    }
    let exe = std::env::current_exe().unwrap();
    for layout in [
        "umount -R /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup",
        "umount -R /sys/fs/cgroup",
        "mount -o remount,bind,ro /sys/fs/cgroup && for m in /sys/fs/cgroup/*; do
            mountpoint -q $m && { mount --bind $m $m && mount -o remount,bind,ro $m || exit; }; done; true",
    ] {
        let script = format!("{layout} && exec \"$0\" engine raw_exec cgroup attempts");
        let output = std::process::Command::new("unshare")
            .args(["-m", "sh", "-c", &script])
            .arg(&exe)
            .env(MARK, "1")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{layout}\n{text}\n{}", String::from_utf8_lossy(&output.stderr));
    }
}

/// Repeats these tests as a user other than root.
#[test]
fn tests_pass_as_an_unprivileged_user() {
    if !is_root() || std::env::var_os(MARK).is_some() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (exe, home) = (dir.path().join("exe"), dir.path().join("home"));
    fs::copy(std::env::current_exe().unwrap(), &exe).unwrap();
    fs::create_dir(&home).unwrap();
    for path in [dir.path(), &exe, &home] {
        fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    }
    let nobody = herdlet_base::user::find("nobody").unwrap();
    std::os::unix::fs::chown(&home, Some(nobody.uid), Some(nobody.gid)).unwrap();
    let output = std::process::Command::new("setpriv")
        .args([
            format!("--reuid={}", nobody.uid),
            format!("--regid={}", nobody.gid),
            "--clear-groups".to_owned(),
        ])
        .arg(&exe)
        .args(["engine", "raw_exec", "cgroup", "attempts", "mock"])
        .env_remove("HOME")
        // Tests that need root are skipped there; they run here.
        .env_remove("HERDLET_TEST_REQUIRE")
        .env("TMPDIR", &home)
        .current_dir(&home)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    // The names of the tests that pass would hide why others fail.
    let failures = text.split_once("\nfailures:").map_or(&*text, |(_, failures)| failures);
    assert!(output.status.success(), "{failures}\n{}", String::from_utf8_lossy(&output.stderr));
}
