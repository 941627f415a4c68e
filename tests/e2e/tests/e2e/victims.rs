//! Objects that look like those of an agent but aren't: no cleanup, start, deletion or kill touches them.
//! `agent.rs` tests two concurrent agents, `processes.rs` a reused pid.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use herdlet_e2e::{
    agent::Agent,
    environment,
    home::{Home, runtime},
    host, wait,
};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::common::{is_root, job, sleeper, volume};

/// Another user's process in a place of the agent's processes.
struct ForeignProcess(Child);

impl ForeignProcess {
    /// Starts it with the name of a supervisor of `home`, in `cgroup` if there is one.
    fn new(home: &Home, cgroup: Option<&Path>) -> Self {
        use std::os::unix::process::CommandExt;
        let mut command = Command::new("/bin/sleep");
        command.arg0("herdlet-shim").arg("100000").env("NOMAD_ALLOC_DIR", home.state()).stdin(Stdio::null());
        let child = command.spawn().unwrap();
        if let Some(dir) = cgroup {
            fs::create_dir_all(dir).unwrap();
            fs::write(dir.join("cgroup.procs"), child.id().to_string()).unwrap();
        }
        Self(child)
    }

    fn is_alive(&self) -> bool {
        host::is_alive(self.0.id())
    }
}

impl Drop for ForeignProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Directories and their mounts, which are removed at the end.
struct Made(Vec<PathBuf>);

impl Drop for Made {
    fn drop(&mut self) {
        for dir in self.0.iter().rev() {
            let _ = unmount(dir, UnmountFlags::DETACH);
            if dir.starts_with("/sys") {
                wait::until_true("the cgroup is empty", || host::pids_below(dir).is_empty());
                let _ = fs::remove_dir(dir);
            } else {
                let _ = fs::remove_dir_all(dir);
            }
        }
    }
}

const ATTEMPT: &str = "11111111-2222-3333-4444-555555555555.t.1";

#[test]
fn similar_foreign_objects_survive_every_sweep() {
    if !is_root() {
        return;
    }
    let Some(cgroups) = host::cgroup2().map(|top| top.join("herdlet")) else {
        environment::leave_out("there are no cgroups");
        return;
    };
    // Another instance, whose agent is dead.
    let mut other = Agent::start();
    let mounted = "volume_mounts: [{volume: data, destination: local/data}]";
    let group = "volumes: {data: {type: host, source: v}}";
    let work = format!("{}{}", volume("v"), job("kept", "service", group, &[sleeper("t", mounted)]));
    other.apply_and_wait(&work);
    let kept = other.single("kept.g[0]", "t");
    other.kill();
    let others_mounts = host::mounts_below(&other.home.state());
    assert!(!others_mounts.is_empty());
    let others_record = runtime(&other.home.instance().unwrap()).join("attempts");
    let others_record = others_record.join(format!("{}.{}.{}", kept.alloc, kept.task, kept.attempt));

    let mut agent = Agent::start();
    let own = agent.home.instance().unwrap();
    agent.apply_and_wait(&work);
    // A unique name for each run, since several may run on this machine.
    let nobodys = format!("feedbeef{:08x}", std::process::id());
    // An unknown instance; a cgroup beside the instances; one among ours with an unknown name.
    let groups = [
        cgroups.join(&nobodys).join(ATTEMPT),
        cgroups.join(format!("notes-{nobodys}")),
        cgroups.join(&own).join("somebody"),
    ];
    let mut made = Made(vec![cgroups.join(&nobodys)]);
    made.0.extend(groups.iter().cloned());
    let mut strangers: Vec<ForeignProcess> =
        groups.iter().map(|dir| ForeignProcess::new(&agent.home, Some(dir))).collect();
    strangers.push(ForeignProcess::new(&agent.home, None));
    // A record of an unknown instance, and a mount in our directory that belongs to no object.
    let record = runtime(&nobodys).join("attempts").join(ATTEMPT);
    fs::create_dir_all(record.parent().unwrap()).unwrap();
    fs::copy(&others_record, &record).unwrap();
    let mountpoint = agent.home.path().join("theirs");
    fs::create_dir_all(&mountpoint).unwrap();
    mount("theirs", &mountpoint, "tmpfs", MountFlags::empty(), c"size=1m").unwrap();
    fs::write(mountpoint.join("precious"), "").unwrap();
    made.0.extend([runtime(&nobodys), mountpoint.clone()]);

    agent.cli(&["restart", "kept"]).success();
    agent.crash();
    agent.cli(&["delete", "kept", "--wait"]).success();
    agent.crash();
    agent.apply_and_wait(&work);
    agent.terminate();
    agent.launch();
    agent.cli(&["delete", "kept", "--wait"]).success();

    assert!(strangers.iter().all(ForeignProcess::is_alive), "{}", agent.log_tail());
    assert!(groups.iter().all(|dir| dir.is_dir()));
    assert!(record.exists() && mountpoint.join("precious").exists());
    assert!(host::is_alive(kept.pid) && others_record.exists());
    assert_eq!(host::mounts_below(&other.home.state()), others_mounts);
    drop(strangers);
    drop(made);
    other.launch();
    assert_eq!(other.single("kept.g[0]", "t"), kept);
    other.finish();
    agent.finish();
}

#[test]
fn reused_pids_are_never_taken_for_own_processes() {
    if !is_root() {
        return;
    }
    // Before Linux 6.14, pid_max is global.
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let numbers: Vec<u32> = release.split(['.', '-']).map_while(|part| part.trim().parse().ok()).collect();
    if numbers < vec![6, 14] {
        eprintln!("left out: pid namespaces have no own pid_max in Linux {}", release.trim());
        return;
    }
    let script = "echo 1000 > /proc/sys/kernel/pid_max && exec \"$0\" --points 75 --agents 3 --strangers 300 --reused 20 --tombstones 0";
    let output = Command::new("unshare")
        .args(["--pid", "--fork", "--kill-child", "--mount-proc", "/bin/sh", "-c", script])
        .arg(env!("CARGO_BIN_EXE_crashes"))
        .env("HERDLET_TEST_PROGRAM", herdlet_e2e::program::program())
        .output()
        .unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    eprintln!("{stdout}");
    assert!(output.status.success(), "{stdout}\n{}", String::from_utf8_lossy(&output.stderr));
    let whole = fs::read_to_string("/proc/sys/kernel/pid_max").unwrap();
    assert!(whole.trim().parse::<u32>().unwrap() > 1000, "the machine's pid_max is unchanged");
}
