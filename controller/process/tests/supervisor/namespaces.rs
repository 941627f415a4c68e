//! Namespaces and capabilities of a task, and of sessions in it. These tests need root.

use std::{
    fs::{self, File},
    os::{
        fd::{AsFd, AsRawFd as _, OwnedFd},
        unix::fs::PermissionsExt as _,
    },
    path::PathBuf,
    process::Command,
    sync::Arc,
    thread,
};

use herdlet_process::supervisor::*;
use rustix::{
    mount::{MountFlags, MountPropagationFlags, mount, mount_change},
    pipe::{PipeFlags, pipe_with},
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
    thread::{UnshareFlags, unshare_unsafe},
};

use super::bench::*;

const KINDS: [&str; 7] = ["cgroup", "ipc", "mnt", "net", "pid", "user", "uts"];

/// A copy of this process's mounts, with a directory for message queues at /dev/mqueue.
fn mounts() -> Arc<OwnMounts> {
    let made = thread::spawn(|| {
        #[expect(unsafe_code, reason = "the other threads keep their mounts")]
        // SAFETY: descriptors stay shared, and only this thread changes.
        unsafe {
            unshare_unsafe(UnshareFlags::NEWNS).unwrap();
        }
        mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).unwrap();
        let opened = opened();
        mount("tmpfs", "/mnt", "tmpfs", MountFlags::empty(), None).unwrap();
        fs::write("/mnt/inside", "").unwrap();
        // Also where the machine has none.
        if !PathBuf::from("/dev/mqueue").exists() {
            mount("tmpfs", "/dev", "tmpfs", MountFlags::empty(), None).unwrap();
            fs::create_dir("/dev/mqueue").unwrap();
            fs::write("/dev/null", "").unwrap();
        }
        opened
    });
    Arc::new(made.join().unwrap())
}

/// The mount namespace of this thread.
fn opened() -> OwnMounts {
    let null = File::options().read(true).write(true).open("/dev/null").unwrap();
    let namespace = File::open("/proc/thread-self/ns/mnt").unwrap();
    OwnMounts { namespace: namespace.into(), null: null.into() }
}

fn all_created() -> Namespaces {
    Namespaces::PID | Namespaces::IPC | Namespaces::UTS | Namespaces::CGROUP
}

fn own() -> OwnNamespaces {
    OwnNamespaces {
        created: all_created(),
        mounts: Some(mounts()),
        proc: Some(Proc {
            read_only: ["bus", "sys", "sysrq-trigger", "no/such/file"].map(PathBuf::from).into(),
            masked: ["kcore", "driver", "keys", "timer_list", "no-such-file"].map(PathBuf::from).into(),
            settings: Vec::new(),
        }),
        message_queues: MessageQueues::Mounted,
        cgroups: ShownCgroups::None,
        hostname: Some("web-1".to_owned()),
        first: FirstProcess::Task,
    }
}

fn isolated(script: &str, own: OwnNamespaces) -> Invocation {
    Invocation { isolation: Some(Isolation::Own(own)), ..shell(script) }
}

/// The shell, by its directory.
fn shell_entry() -> Entry {
    let path = fs::canonicalize("/bin/sh").unwrap();
    Entry { dir: Arc::new(open_dir(path.parent().unwrap())), name: path.file_name().unwrap().to_owned() }
}

/// The namespaces of a process, in the order of [`KINDS`].
fn namespaces_of(pid: u32) -> Vec<String> {
    let link = |kind| fs::read_link(format!("/proc/{pid}/ns/{kind}")).unwrap();
    KINDS.map(|kind| link(kind).into_os_string().into_string().unwrap()).into()
}

const LIST: &str = "for kind in cgroup ipc mnt net pid user uts; do readlink /proc/self/ns/$kind; done";

#[test]
fn a_task_is_in_namespaces_of_its_own() {
    if !is_root() {
        return;
    }
    let bench = Bench::new();
    let own = own();
    let made = fs::read_link(format!(
        "/proc/self/fd/{}",
        std::os::fd::AsRawFd::as_raw_fd(&own.mounts.as_ref().unwrap().namespace)
    ));
    let script = format!("{LIST}; echo $$; cat /proc/sys/kernel/hostname; ls -d /mnt/inside; exit 7");
    let mut invocation = isolated(&script, own);
    invocation.oom_score_adj = Some(500);
    assert_eq!(code_of(bench.run("a", &invocation)), (7, 0));
    let outside = namespaces_of(std::process::id());
    let text = bench.log("t.stdout.0");
    let lines: Vec<&str> = text.lines().collect();
    for (at, kind) in KINDS.iter().enumerate() {
        let is_kept = ["net", "user"].contains(kind);
        assert_eq!(lines[at] == outside[at], is_kept, "{kind}: {} and {}", lines[at], outside[at]);
    }
    assert_eq!(lines[2], made.unwrap().to_str().unwrap(), "the mounts handed over");
    assert_eq!(lines[KINDS.len()..], ["1", "web-1", "/mnt/inside"]);
    assert_eq!(namespaces_of(std::process::id()), outside, "this process is where it was");
    assert_ne!(fs::read_to_string("/proc/sys/kernel/hostname").unwrap().trim(), "web-1");
}

#[test]
fn proc_is_of_the_new_pid_namespace_and_closed() {
    if !is_root() {
        return;
    }
    let bench = Bench::new();
    let script = "
        cd /proc; echo $(ls -d [0-9]*)
        for path in sys/kernel/hostname sysrq-trigger bus; do test -w $path && echo $path can be written; done
        for path in kcore keys timer_list; do
            test -e $path && echo $(wc -c <$path) $(stat -c %t,%T $path)
        done
        echo $(ls driver | wc -l); test -w driver && echo driver can be written
        grep -E ' /(proc|dev/mqueue) ' self/mountinfo | sed 's/.* - //' | cut -d' ' -f1
        grep ' /proc ' self/mountinfo | cut -d' ' -f6
        cat self/oom_score_adj; true";
    let mut invocation = isolated(script, own());
    invocation.oom_score_adj = Some(500);
    assert_eq!(code_of(bench.run("a", &invocation)), (0, 0));
    let text = bench.log("t.stdout.0");
    let mut lines = text.lines();
    // The shell, and the command in its substitution.
    let pids: Vec<&str> = lines.next().unwrap().split(' ').collect();
    assert!(pids[0] == "1" && pids.len() <= 3, "{text}");
    let expected =
        ["0 1,3"].repeat(["kcore", "keys", "timer_list"].iter().filter(|name| exists(name)).count());
    let rest: Vec<&str> = lines.collect();
    let (masked, rest) = rest.split_at(expected.len());
    assert_eq!(masked, expected);
    let options = "rw,nosuid,nodev,noexec,relatime";
    assert_eq!(rest.iter().filter(|line| **line == options).count(), 1, "{text}");
    assert!(rest.contains(&"mqueue") && rest.contains(&"500"), "{text}");
    assert_eq!(rest[0], "0", "nothing in a hidden directory: {text}");
    assert!(!text.contains("written"), "{text}");
}

fn exists(name: &str) -> bool {
    PathBuf::from("/proc").join(name).exists()
}

/// A task that had been able to write to its root had replaced the directories there.
#[test]
fn links_in_the_root_are_not_followed() {
    if !is_root() {
        return;
    }
    let bench = Bench::new();
    let made = thread::spawn(|| {
        #[expect(unsafe_code, reason = "the other threads keep their mounts")]
        // SAFETY: as in `mounts`.
        unsafe {
            unshare_unsafe(UnshareFlags::NEWNS).unwrap();
        }
        mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).unwrap();
        let opened = opened();
        mount("tmpfs", "/dev", "tmpfs", MountFlags::empty(), None).unwrap();
        std::os::unix::fs::symlink("/mnt", "/dev/mqueue").unwrap();
        opened
    });
    let own = OwnNamespaces { mounts: Some(Arc::new(made.join().unwrap())), ..own() };
    let state = bench.run("a", &isolated("true", own));
    assert_failed(state, Step::MessageQueues, libc::ENOTDIR);
}

fn assert_failed(state: State, step: Step, errno: i32) {
    let found = match state {
        State::StartFailed { step, errno, .. } => Some((step, i32::from(errno))),
        State::Created | State::Running | State::Exited(_) | State::Tombstone => None,
    };
    assert_eq!(found, Some((step, errno)), "{state:?}");
}

#[test]
fn bad_namespaces_are_failed_starts() {
    if !is_root() {
        return;
    }
    let bench = Bench::new();
    let no_mounts = OwnMounts { namespace: open_dir(bench.dir.path()), ..opened() };
    let no_mounts = OwnNamespaces { mounts: Some(Arc::new(no_mounts)), ..own() };
    assert_failed(bench.run("a", &isolated("true", no_mounts)), Step::MountNamespace, libc::EINVAL);
    let nameless = OwnNamespaces { created: all_created().without(Namespaces::UTS), ..own() };
    assert_failed(bench.run("b", &isolated("true", nameless)), Step::Spec, 0);
    // Descriptor 5 is the program's directory, opened outside.
    let mut outside = isolated("true", own());
    outside.entry = Some(shell_entry());
    assert_eq!(code_of(bench.run("c", &outside)), (0, 0));
    outside.directory = Some("/proc/self/fd/5".into());
    assert_failed(bench.run("d", &outside), Step::Directory, libc::EACCES);
    outside.directory = Some("/mnt".into());
    assert_eq!(code_of(bench.run("e", &outside)), (0, 0));
}

#[test]
fn a_cgroup_namespace_begins_at_the_cgroup_of_the_task() {
    if !is_root() {
        return;
    }
    let bench = Bench::new();
    let Some(group) = bench.cgroup() else { return };
    let mut invocation = isolated("grep 0:: /proc/self/cgroup", own());
    invocation.cgroup = Some(group.clone());
    let state = bench.run("a", &invocation);
    fs::remove_dir(&group).unwrap();
    assert_eq!((code_of(state), &*bench.log("t.stdout.0")), ((0, 0), "0::/\n"));
}

const CHOWN: u64 = 1;
const KILL: u64 = 1 << 5;
const SETUID: u64 = 1 << 7;
const BIND: u64 = 1 << 10;

/// The capability sets that a program has, as `/proc/self/status` shows them.
fn sets_of(bench: &Bench, record: &str, capabilities: Option<Capabilities>, uid: u32) -> [u64; 5] {
    let mut invocation = shell("grep ^Cap /proc/self/status");
    invocation.arguments[2] = format!("{} >{record}", invocation.arguments[2].display()).into();
    fs::create_dir_all(bench.path("out")).unwrap();
    rustix::fs::chmod(bench.dir.path(), rustix::fs::Mode::from(0o755)).unwrap();
    rustix::fs::chmod(bench.path("out"), rustix::fs::Mode::from(0o777)).unwrap();
    invocation.directory = Some(bench.path("out"));
    invocation.user = Some(User { uid, gid: uid, groups: vec![] });
    invocation.capabilities = capabilities;
    assert_eq!(code_of(bench.run(record, &invocation)), (0, 0));
    let text = fs::read_to_string(bench.path("out").join(record)).unwrap();
    ["CapBnd:", "CapEff:", "CapInh:", "CapPrm:", "CapAmb:"].map(|field| {
        let line = text.lines().find_map(|line| line.strip_prefix(field)).unwrap();
        u64::from_str_radix(line.trim(), 16).unwrap()
    })
}

#[test]
fn capability_sets_are_exact() {
    if !is_root() {
        return;
    }
    let bench = Bench::new();
    let all = CHOWN | KILL | SETUID | BIND;
    let granted = Capabilities {
        bounding: all,
        effective: KILL | BIND,
        inheritable: KILL | BIND,
        permitted: CHOWN | KILL | BIND,
        ambient: BIND,
    };
    // Of a program without file capabilities only the ambient ones are left to a user.
    assert_eq!(sets_of(&bench, "nobody", Some(granted), 65_534), [all, BIND, KILL | BIND, BIND, BIND]);
    // Root has what the bounding set allows.
    assert_eq!(sets_of(&bench, "root", Some(granted), 0), [all, all, KILL | BIND, all, BIND]);
    let none = Capabilities::default();
    assert_eq!(sets_of(&bench, "nobody-none", Some(none), 65_534), [0; 5]);
    assert_eq!(sets_of(&bench, "root-none", Some(none), 0), [0; 5]);
    let [bounding, rest @ ..] = sets_of(&bench, "nobody-without", None, 65_534);
    assert_eq!(rest, [0; 4]);
    assert_ne!(bounding, 0, "the agent's");
    let [_, effective, ..] = sets_of(&bench, "root-without", None, 0);
    assert_ne!(effective, 0, "the agent's");
}

#[test]
fn unknown_capabilities_are_dropped_and_missing_ones_fail() {
    if !is_root() {
        return;
    }
    let bench = Bench::new();
    let permitted = |set| Some(Capabilities { permitted: set, effective: set, ..Capabilities::default() });
    assert_eq!(sets_of(&bench, "unknown", permitted(1 << 63), 0), [0; 5]);
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let own = status.lines().find_map(|line| line.strip_prefix("CapPrm:")).unwrap();
    let lacking = !u64::from_str_radix(own.trim(), 16).unwrap() & ((1 << 38) - 1);
    if lacking != 0 {
        let invocation = Invocation { capabilities: permitted(lacking), ..shell("true") };
        assert_failed(bench.run("missing", &invocation), Step::Capabilities, libc::EPERM);
    }
}

#[test]
fn a_first_process_gets_only_the_signals_that_it_handles() {
    if !is_root() {
        return;
    }
    let bench = Bench::new();
    let script = "trap 'echo caught; exit 3' TERM; echo ready; while :; do sleep 0.01; done";
    let child = bench.launch("a", &isolated(script, own()));
    let task = ready(&bench, "a", 1);
    task.send(Signal::HUP).unwrap();
    task.send(Signal::TERM).unwrap();
    end_of(child);
    assert_eq!(code_of(bench.record("a").state), (3, 0), "HUP was ignored");
    let child = bench.launch("b", &isolated("echo ready; exec sleep 1000", own()));
    let task = ready(&bench, "b", 3);
    task.send(Signal::TERM).unwrap();
    task.send(Signal::KILL).unwrap();
    end_of(child);
    assert_eq!(code_of(bench.record("b").state), (0, 9), "TERM was ignored");
}

/// The task's main process, once its output has this many lines.
fn ready(bench: &Bench, record: &str, lines: usize) -> PidFd {
    eventually("the output", || {
        bench.log_names() == ["t.stdout.0"] && bench.log("t.stdout.0").lines().count() >= lines
    });
    open_task(&bench.wait_for(record, is_running)).unwrap().unwrap()
}

fn with_init() -> OwnNamespaces {
    OwnNamespaces { first: FirstProcess::Init, ..own() }
}

#[test]
fn init_passes_signals_on() {
    if !is_root() {
        return;
    }
    let bench = Bench::new();
    let child = bench.launch("a", &isolated("echo ready; exec sleep 1000", with_init()));
    ready(&bench, "a", 1).send(Signal::TERM).unwrap();
    end_of(child);
    assert_eq!(code_of(bench.record("a").state), (143, 0));
    let script =
        "trap 'echo caught; exit 3' USR1; trap '' TERM; echo ready $$ $PPID; while :; do sleep 0.01; done";
    let child = bench.launch("b", &isolated(script, with_init()));
    let init = ready(&bench, "b", 2);
    init.send(Signal::TERM).unwrap();
    init.send(Signal::USR1).unwrap();
    end_of(child);
    assert_eq!(code_of(bench.record("b").state), (3, 0));
    assert_eq!(bench.log("t.stdout.0"), "ready\nready 2 1\ncaught\n");
}

#[test]
fn init_reaps_orphans_and_ends_with_the_task() {
    if !is_root() {
        return;
    }
    let bench = Bench::new();
    let script = "
        orphan=$(sh -c 'sleep 1000 >/dev/null & echo $!')
        kill -9 $orphan; while test -e /proc/$orphan; do sleep 0.01; done; echo reaped
        setsid sleep 1000 & exit 5";
    let state = bench.run("a", &isolated(script, with_init()));
    assert_eq!((code_of(state), &*bench.log("t.stdout.0")), ((5, 0), "reaped\n"));
}

#[test]
fn init_has_the_identity_of_the_task_and_no_file() {
    if !is_root() {
        return;
    }
    let bench = Bench::new();
    let script = "readlink /proc/1/exe; (echo x >/proc/1/exe) 2>/dev/null || echo refused
        grep -E '^(CapEff|CapBnd|NSpid)' /proc/1/status; grep -E '^(SigBlk|SigIgn)' /proc/self/status
        echo $(ls /proc/self/fd) $(ls /proc/1/fd)";
    let mut invocation = isolated(script, with_init());
    let bounding = CHOWN | KILL;
    // A program that gains capabilities hides its files.
    let sets = Capabilities { bounding, permitted: bounding, effective: bounding, ..Capabilities::default() };
    invocation.capabilities = Some(sets);
    invocation.entry = Some(shell_entry());
    assert_eq!(code_of(bench.run("a", &invocation)), (0, 0));
    let text = bench.log("t.stdout.0");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[..2], ["/memfd:herdlet-init (deleted)", "refused"], "{text}");
    assert_eq!(lines[2], "NSpid:\t1", "{text}");
    assert_eq!(lines[3..5], ["CapEff:\t0000000000000021", "CapBnd:\t0000000000000021"], "{text}");
    assert_eq!(lines[5..7], ["SigBlk:\t0000000000000000", "SigIgn:\t0000000000000000"], "{text}");
    // The directory that `ls` reads; of init the program's directory and its signals.
    assert_eq!(lines[7], "0 1 2 3 0 1 2 3 4", "{text}");
}

#[test]
fn init_reports_a_program_that_it_cannot_execute() {
    if !is_root() {
        return;
    }
    let bench = Bench::new();
    let mut missing = isolated("true", with_init());
    missing.program = "/no/such".into();
    assert_eq!(code_of(bench.run("a", &missing)), (127, 0));
    assert!(bench.log("t.stderr.0").starts_with("herdlet: failed to execute the program: "));
    missing.program = "/etc/passwd".into();
    assert_eq!(code_of(bench.run("b", &missing)), (126, 0));
}

/// Runs a script in a session in all namespaces of a task; returns its output.
fn session(bench: &Bench, of: &Arc<PidFd>, script: &str) -> (ShimEnd, String) {
    let kinds = all_created() | Namespaces::MOUNT | Namespaces::NETWORK;
    let joined = JoinedNamespaces { kinds, of: Arc::clone(of) };
    let invocation = Invocation { isolation: Some(Isolation::Joined(joined)), ..shell(script) };
    let null: OwnedFd = File::options().read(true).write(true).open("/dev/null").unwrap().into();
    let (output, their_output) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    let (leash, _held) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    let child = enter(&Session {
        program: &bench.program,
        title: "session",
        invocation: &invocation,
        stdio: [null.as_fd(), their_output.as_fd(), their_output.as_fd()],
        terminal: Terminal::None,
        shims_cgroup: None,
        leash: leash.as_fd(),
    })
    .unwrap();
    drop(their_output);
    let end = end_of(child);
    (end, std::io::read_to_string(File::from(output)).unwrap())
}

#[test]
fn a_session_enters_the_namespaces_of_the_task() {
    if !is_root() {
        return;
    }
    let bench = Bench::new();
    for (at, own) in [own(), with_init()].into_iter().enumerate() {
        let name = format!("a{at}");
        let child = bench.launch(&name, &isolated("echo ready; exec sleep 1000", own));
        let task = Arc::new(ready(&bench, &name, at + 1));
        let script = format!("{LIST}; hostname; ls -d /mnt/inside; pwd; echo $PPID; exit 9");
        let (end, text) = session(&bench, &task, &script);
        assert_eq!(end, ShimEnd::Code(9), "{text}");
        let mut expected = namespaces_of(task.process().pid);
        expected.extend(["web-1", "/mnt/inside", "/", "0"].map(str::to_owned));
        assert_eq!(text.lines().collect::<Vec<_>>(), expected);
        let (end, _) = session(&bench, &task, "kill -9 $$");
        assert_eq!(end, ShimEnd::Code(137));
        task.send(Signal::KILL).unwrap();
        end_of(child);
        let (end, text) = session(&bench, &task, "true");
        assert_eq!(end, ShimEnd::Code(126));
        assert!(text.starts_with("herdlet: failed to enter the namespaces of the task"), "{text}");
    }
}

/// The program with the verb `hold`, and the path of a namespace.
fn hold(bench: &Bench, namespace: &str) -> std::process::Child {
    let program = bench.path("hold");
    if !program.exists() {
        fs::write(&program, herdlet_shim::PROGRAM).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    }
    Command::new(program).args(["hold", namespace]).spawn().unwrap()
}

#[test]
fn a_network_namespace_is_held_without_a_capability_until_sigterm() {
    if !is_root() {
        return;
    }
    let bench = Bench::new();
    let made = thread::spawn(|| {
        #[expect(unsafe_code, reason = "the other threads keep their network")]
        // SAFETY: descriptors stay shared, and only this thread changes.
        unsafe {
            unshare_unsafe(UnshareFlags::NEWNET).unwrap();
        }
        File::open("/proc/thread-self/ns/net").unwrap()
    });
    let made = made.join().unwrap();
    let path = format!("/proc/{}/fd/{}", std::process::id(), made.as_raw_fd());
    let expected = fs::read_link(&path).unwrap();
    let mut child = hold(&bench, &path);
    let status = || fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    // The capabilities are dropped after it has entered.
    eventually("it has no capability", || {
        ["CapInh", "CapPrm", "CapEff"]
            .iter()
            .all(|set| status().contains(&format!("{set}:\t0000000000000000")))
    });
    assert_eq!(fs::read_link(format!("/proc/{}/ns/net", child.id())).unwrap(), expected);
    let process = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).unwrap();
    pidfd_send_signal(&process, Signal::HUP).unwrap();
    pidfd_send_signal(&process, Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    for bad in ["/none", "/proc/self/ns/uts", "/dev/null"] {
        assert_eq!(
            hold(&bench, bad).wait().unwrap().code(),
            Some(herdlet_shim::EXIT_NO_NAMESPACE as i32),
            "{bad}"
        );
    }
}
