//! The real supervisor program with real processes: what design and contract promise, seen from outside.
//!
//! Works as root and as anybody; what needs root is skipped without it. Everything lives in temporary directories.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "tests may panic")]

use herdlet::drivers::supervisor::*;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::ffi::OsString;
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long anything may take before a test fails.
const DEADLINE: Duration = Duration::from_secs(30);

struct Bench {
    dir: TempDir,
    program: Program,
    records: RuntimeDir,
    logs: OwnedFd,
}

impl Bench {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("run")).unwrap();
        fs::create_dir(dir.path().join("logs")).unwrap();
        let program = Program::install(dir.path()).unwrap();
        let records = RuntimeDir::open(&dir.path().join("run")).unwrap();
        let logs = open_dir(&dir.path().join("logs"));
        Self { dir, program, records, logs }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn launch(&self, record: &str, invocation: &Invocation) -> Child {
        self.launch_with(record, invocation, &log_files(10, 1 << 20), None)
    }

    fn launch_with(
        &self,
        record: &str,
        invocation: &Invocation,
        logs: &Logs,
        leash: Option<&OwnedFd>,
    ) -> Child {
        let what = Launch {
            program: &self.program,
            record,
            runtime_dir: self.records.as_fd(),
            logs_dir: self.logs.as_fd(),
            invocation,
            logs,
            shims_cgroup: None,
            leash: leash.map(AsFd::as_fd),
        };
        launch(&what).unwrap()
    }

    /// Runs to the end; returns how the task ended.
    fn run(&self, record: &str, invocation: &Invocation) -> State {
        let end = end_of(self.launch(record, invocation));
        assert_eq!(end, ShimEnd::Code(0));
        self.record(record).state
    }

    fn record(&self, name: &str) -> Record {
        self.records.read(name).unwrap().expect("a record")
    }

    /// Waits until the record is there and as wanted.
    fn wait_for(&self, name: &str, wanted: impl Fn(&Record) -> bool) -> Record {
        let mut found = None;
        eventually(name, || {
            found = self.records.read(name).unwrap().filter(|record| wanted(record));
            found.is_some()
        });
        found.unwrap()
    }

    fn log(&self, name: &str) -> String {
        fs::read_to_string(self.path("logs").join(name)).unwrap()
    }

    fn log_names(&self) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(self.path("logs"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

fn open_dir(path: &Path) -> OwnedFd {
    fs::File::open(path).unwrap().into()
}

fn log_files(files_max: u32, file_size_max: u64) -> Logs {
    Logs::Files(LogFiles { name: "t".to_owned(), files_max, file_size_max, when_full: WhenFull::Drop })
}

fn program(path: &str, arguments: &[&str]) -> Invocation {
    Invocation {
        program: path.into(),
        arguments: arguments.iter().map(OsString::from).collect(),
        environment: vec![("PATH".into(), "/usr/bin:/bin".into())],
        ..Invocation::default()
    }
}

fn shell(script: &str) -> Invocation {
    program("/bin/sh", &["sh", "-c", script])
}

/// Waits for a shim's end, not for ever.
fn end_of(child: Child) -> ShimEnd {
    let timeout = Timespec { tv_sec: DEADLINE.as_secs() as i64, tv_nsec: 0 };
    let ended = poll(&mut [PollFd::new(&child, PollFlags::IN)], Some(&timeout)).unwrap() > 0;
    assert!(ended, "shim {} didn't end in time", child.pid());
    child.wait_blocking().unwrap()
}

/// Looks again and again: the end of somebody else's process has no event for us.
#[expect(clippy::disallowed_methods, reason = "a test thread of its own")]
fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < DEADLINE, "{what}: it didn't happen in time");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn is_running(record: &Record) -> bool {
    record.state == State::Running
}

fn has_exited(record: &Record) -> bool {
    matches!(record.state, State::Exited(_))
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn is_alive(process: Process) -> bool {
    PidFd::open(process).unwrap().is_some()
}

fn code_of(state: State) -> (u8, u8) {
    match state {
        State::Exited(exit) => (exit.code, exit.signal),
        State::Created | State::Running | State::StartFailed { .. } | State::Tombstone => {
            panic!("not an exit: {state:?}")
        }
    }
}

#[test]
fn a_task_runs_and_its_exit_code_output_and_processes_are_kept() {
    let bench = Bench::new();
    let child = bench.launch("a.1", &shell("echo out; echo err >&2; exit 7"));
    let pid = child.pid();
    assert_eq!(end_of(child), ShimEnd::Code(0));
    let record = bench.record("a.1");
    assert_eq!(code_of(record.state), (7, 0));
    assert_eq!(record.shim.pid, pid);
    assert!(record.shim.start_ticks > 0 && record.task.start_ticks >= record.shim.start_ticks);
    assert_eq!(record.dropped_bytes, 0);
    assert_eq!((bench.log("t.stdout.0"), bench.log("t.stderr.0")), ("out\n".to_owned(), "err\n".to_owned()));
    assert!(open_task(&record).unwrap().is_none());
    let State::Exited(exit) = record.state else { panic!() };
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64;
    assert!(now - exit.at_unix_ns < 60_000_000_000);
}

#[test]
fn the_end_by_a_signal_is_told() {
    let bench = Bench::new();
    assert_eq!(code_of(bench.run("a", &shell("kill -TERM $$"))), (0, 15));
}

#[test]
fn a_program_that_cannot_be_executed_is_a_failed_start() {
    let bench = Bench::new();
    let failure = |state| match state {
        State::StartFailed { step, errno, .. } => (step, i32::from(errno)),
        State::Created | State::Running | State::Exited(_) | State::Tombstone => panic!("{state:?}"),
    };
    assert_eq!(failure(bench.run("a", &program("/no/such", &["x"]))), (Step::Exec, libc::ENOENT));
    assert_eq!(failure(bench.run("b", &program("/etc/passwd", &["x"]))), (Step::Exec, libc::EACCES));
    let mut lost = shell("true");
    lost.directory = Some("/no/such/dir".into());
    assert_eq!(failure(bench.run("c", &lost)), (Step::Directory, libc::ENOENT));
    let mut no_cgroup = shell("true");
    no_cgroup.cgroup = Some("/no/such/cgroup".into());
    assert_eq!(failure(bench.run("d", &no_cgroup)), (Step::Cgroup, libc::ENOENT));
    let mut no_tasks = shell("true");
    no_tasks.tasks_files = vec!["/no/such/tasks".into()];
    assert_eq!(failure(bench.run("e", &no_tasks)), (Step::TasksFile, libc::ENOENT));
}

#[test]
fn a_tombstone_or_an_earlier_start_wins() {
    let bench = Bench::new();
    assert_eq!(bench.records.tombstone("a").unwrap(), TombstoneOutcome::Cancelled);
    let late = bench.launch("a", &shell("echo ran"));
    assert_eq!(end_of(late), ShimEnd::Code(herdlet_shim::EXIT_LOST as i32));
    assert_eq!(bench.record("a").state, State::Tombstone);

    let children: Vec<Child> = (0..8).map(|_| bench.launch("b", &shell("echo ran"))).collect();
    let ends: Vec<ShimEnd> = children.into_iter().map(end_of).collect();
    assert_eq!(ends.iter().filter(|end| **end == ShimEnd::Code(0)).count(), 1, "{ends:?}");
    assert_eq!(bench.log("t.stdout.0"), "ran\n");
    let TombstoneOutcome::TooLate(record) = bench.records.tombstone("b").unwrap() else { panic!() };
    assert_eq!(code_of(record.state), (0, 0));
}

#[test]
fn a_tombstone_that_races_with_a_start_has_one_winner() {
    let bench = Bench::new();
    let mut cancelled = 0;
    for n in 0..40 {
        let name = format!("a.{n}");
        let child = bench.launch(&name, &shell("exit 3"));
        for _ in 0..n * 40 {
            std::hint::spin_loop();
        }
        let outcome = bench.records.tombstone(&name).unwrap();
        let end = end_of(child);
        let state = bench.record(&name).state;
        match outcome {
            TombstoneOutcome::Cancelled => {
                cancelled += 1;
                assert_eq!((end, state), (ShimEnd::Code(herdlet_shim::EXIT_LOST as i32), State::Tombstone));
            }
            TombstoneOutcome::TooLate(_) => {
                assert_eq!((end, code_of(state)), (ShimEnd::Code(0), (3, 0)));
            }
        }
    }
    println!("{cancelled} of 40 were cancelled");
    assert!(fs::read_dir(bench.path("run")).unwrap().count() == 40, "nothing is left lying about");
}

#[test]
fn five_and_a_half_megabytes_leave_the_last_three_files() {
    let bench = Bench::new();
    let script = shell("yes 'a short line of the task' | head -c 5767168");
    let child = bench.launch_with("a", &script, &log_files(3, 1 << 20), None);
    assert_eq!(end_of(child), ShimEnd::Code(0));
    assert_eq!(bench.record("a").dropped_bytes, 0);
    assert_eq!(bench.log_names(), ["t.stdout.3", "t.stdout.4", "t.stdout.5"]);
    for name in ["t.stdout.3", "t.stdout.4"] {
        let text = bench.log(name);
        assert!(text.len() <= 1 << 20 && text.len() > (1 << 20) - 40_000 && text.ends_with('\n'), "{name}");
        assert!(text.starts_with("a short line"));
    }
}

#[test]
fn a_restart_goes_on_with_the_newest_file() {
    let bench = Bench::new();
    bench.run("a", &shell("echo one"));
    bench.run("b", &shell("echo two"));
    assert_eq!(bench.log("t.stdout.0"), "one\ntwo\n");
    fs::write(bench.path("logs/t.stdout.4"), "older\n").unwrap();
    bench.run("c", &shell("echo three"));
    assert_eq!(bench.log("t.stdout.4"), "older\nthree\n");
    fs::write(bench.path("logs/t.stdout.5"), vec![b'x'; 1 << 20]).unwrap();
    bench.run("d", &shell("echo four"));
    assert_eq!(bench.log("t.stdout.6"), "four\n");
}

#[test]
fn links_fifos_and_directories_planted_among_the_logs_are_passed_over() {
    let bench = Bench::new();
    fs::write(bench.path("victim"), "precious\n").unwrap();
    std::os::unix::fs::symlink(bench.path("victim"), bench.path("logs/t.stdout.0")).unwrap();
    std::os::unix::fs::symlink("/no/such", bench.path("logs/t.stdout.1")).unwrap();
    let mode = rustix::fs::Mode::from_raw_mode(0o666);
    rustix::fs::mknodat(&bench.logs, "t.stdout.2", rustix::fs::FileType::Fifo, mode, 0).unwrap();
    fs::create_dir(bench.path("logs/t.stdout.3")).unwrap();
    fs::hard_link(bench.path("victim"), bench.path("logs/t.stdout.4")).unwrap();
    std::os::unix::fs::symlink(bench.path("victim"), bench.path("logs/t.stdout.4294967295")).unwrap();
    fs::write(bench.path("logs/t.stdout.99999999999"), "not ours").unwrap();
    bench.run("a", &shell("echo safe"));
    assert_eq!(bench.log("t.stdout.5"), "safe\n");
    assert_eq!(fs::read_to_string(bench.path("victim")).unwrap(), "precious\n");
    assert_eq!(bench.record("a").dropped_bytes, 0);
}

#[test]
fn the_largest_index_is_not_passed() {
    let bench = Bench::new();
    fs::write(bench.path("logs/t.stdout.999999999"), vec![b'x'; 1 << 20]).unwrap();
    bench.run("a", &shell("echo again"));
    assert_eq!(bench.log("t.stdout.999999999"), "again\n");
}

#[test]
fn removed_log_files_come_back() {
    let bench = Bench::new();
    let script = "echo one; read line < fifo; echo two";
    let mode = rustix::fs::Mode::from_raw_mode(0o666);
    rustix::fs::mknodat(open_dir(bench.dir.path()), "fifo", rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let mut invocation = shell(script);
    invocation.directory = Some(bench.dir.path().into());
    let child = bench.launch("a", &invocation);
    // The name alone is there before the line is.
    eventually("the first line", || {
        fs::read(bench.path("logs/t.stdout.0")).is_ok_and(|text| text == b"one\n")
    });
    fs::remove_file(bench.path("logs/t.stdout.0")).unwrap();
    fs::write(bench.path("fifo"), "go\n").unwrap();
    end_of(child);
    assert_eq!(bench.log("t.stdout.0"), "two\n");
}

#[test]
fn lost_logs_never_hurt_the_task() {
    let bench = Bench::new();
    fs::remove_dir(bench.path("logs")).unwrap();
    let state = bench.run("a", &shell("head -c 3000000 /dev/zero; exit 3"));
    assert_eq!(code_of(state), (3, 0));
    assert_eq!(bench.record("a").dropped_bytes, 3_000_000);
}

#[test]
fn disabled_logs_go_nowhere() {
    let bench = Bench::new();
    let script = shell("readlink /proc/self/fd/1; test \"$(readlink /proc/$$/fd/1)\" = /dev/null");
    let child = bench.launch_with("a", &script, &Logs::Disabled, None);
    end_of(child);
    assert_eq!(code_of(bench.record("a").state), (0, 0));
    assert!(bench.log_names().is_empty());
}

#[test]
fn a_full_disk_loses_output_but_neither_task_nor_exit() {
    if !is_root() {
        return;
    }
    let mut bench = Bench::new();
    let logs = bench.path("logs");
    let flags = rustix::mount::MountFlags::empty();
    if rustix::mount::mount("tmpfs", &logs, "tmpfs", flags, Some(c"size=256k")).is_err() {
        return;
    }
    bench.logs = open_dir(&logs);
    let started = Instant::now();
    let state = bench.run("a", &shell("head -c 2000000 /dev/zero; echo end >&2; exit 9"));
    let took = started.elapsed();
    let kept: u64 = fs::read_dir(&logs).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum();
    rustix::mount::unmount(&logs, rustix::mount::UnmountFlags::DETACH).unwrap();
    assert_eq!(code_of(state), (9, 0));
    assert!(kept <= 256 * 1024);
    assert_eq!(bench.record("a").dropped_bytes, 2_000_004 - kept);
    assert!(took < Duration::from_secs(5), "{took:?}");
}

#[test]
fn a_blocking_log_waits_for_room_on_the_disk() {
    if !is_root() {
        return;
    }
    let mut bench = Bench::new();
    let logs = bench.path("logs");
    let flags = rustix::mount::MountFlags::empty();
    if rustix::mount::mount("tmpfs", &logs, "tmpfs", flags, Some(c"size=64k")).is_err() {
        return;
    }
    bench.logs = open_dir(&logs);
    let files =
        LogFiles { name: "t".to_owned(), files_max: 10, file_size_max: 1 << 20, when_full: WhenFull::Block };
    let child =
        bench.launch_with("a", &shell("head -c 1500000 /dev/zero; exit 4"), &Logs::Files(files), None);
    bench.wait_for("a", is_running);
    eventually("a full disk", || {
        fs::metadata(logs.join("t.stdout.0")).is_ok_and(|file| file.len() == 65_536)
    });
    let record = bench.record("a");
    assert_eq!((record.state, record.dropped_bytes), (State::Running, 0));
    let more = rustix::mount::mount_remount(&logs, flags, c"size=8m");
    let end = end_of(child);
    let kept: u64 = fs::read_dir(&logs).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum();
    rustix::mount::unmount(&logs, rustix::mount::UnmountFlags::DETACH).unwrap();
    more.unwrap();
    assert_eq!(end, ShimEnd::Code(0));
    assert_eq!((code_of(bench.record("a").state), bench.record("a").dropped_bytes), ((4, 0), 0));
    assert_eq!(kept, 1_500_000);
}

/// A filesystem of its own whose writes can be stopped, as a dead disk or network would.
struct Stallable(PathBuf);

impl Stallable {
    /// Nothing where this can't be had: it takes root, a loop device and two tools.
    fn mount(image: &Path, at: &Path) -> Option<Self> {
        fs::File::create(image).ok()?.set_len(16 << 20).ok()?;
        let run = |tool: &str, arguments: &[&std::ffi::OsStr]| {
            std::process::Command::new(tool)
                .args(arguments)
                .output()
                .is_ok_and(|output| output.status.success())
        };
        let done = is_root()
            && run("mkfs.ext4", &["-q".as_ref(), image.as_os_str()])
            && run("mount", &["-o".as_ref(), "loop".as_ref(), image.as_os_str(), at.as_os_str()]);
        done.then(|| Self(at.to_owned()))
    }

    fn freeze(&self, option: &str) -> bool {
        std::process::Command::new("fsfreeze")
            .arg(option)
            .arg(&self.0)
            .status()
            .is_ok_and(|status| status.success())
    }
}

impl Drop for Stallable {
    fn drop(&mut self) {
        self.freeze("--unfreeze");
        let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

#[test]
fn a_stalled_disk_does_not_stall_the_task() {
    let mut bench = Bench::new();
    let logs = bench.path("logs");
    let Some(disk) = Stallable::mount(&bench.path("image"), &logs) else { return };
    bench.logs = open_dir(&logs);
    let mode = rustix::fs::Mode::from_raw_mode(0o666);
    rustix::fs::mknodat(open_dir(bench.dir.path()), "fifo", rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let mut invocation = shell("echo begin; read go < fifo; head -c 20000000 /dev/zero; exit 5");
    invocation.directory = Some(bench.dir.path().into());
    let child = bench.launch("a", &invocation);
    eventually("the first line", || bench.log_names().contains(&"t.stdout.0".to_owned()));
    if !disk.freeze("--freeze") {
        return;
    }
    let started = Instant::now();
    fs::write(bench.path("fifo"), "go\n").unwrap();
    let record = bench.wait_for("a", has_exited);
    let took = started.elapsed();
    drop(disk);
    assert_eq!(code_of(record.state), (5, 0));
    assert!(took < Duration::from_secs(10), "{took:?}");
    assert_eq!(end_of(child), ShimEnd::Code(0));
    assert!(bench.record("a").dropped_bytes > 10_000_000);
}

/// Field of `/proc/self/status`, as a hexadecimal mask.
fn mask(text: &str, field: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    u64::from_str_radix(line.trim_start_matches(':').trim(), 16).unwrap()
}

#[test]
fn the_task_has_clean_signals_and_nothing_open_but_its_streams() {
    let bench = Bench::new();
    // What a shell's `&` does to its children, and what the Rust runtime does to itself.
    let script = "trap '' INT HUP TERM; exec 7</dev/null; exec \"$0\" --exact inner_launch --nocapture";
    let status = std::process::Command::new("/bin/sh")
        .args(["-c", script])
        .arg(std::env::current_exe().unwrap())
        .env("HERDLET_TEST_DIR", bench.dir.path())
        .stdout(std::process::Stdio::null())
        .status()
        .unwrap();
    assert!(status.success());
    bench.wait_for("inner", has_exited);
    eventually("all output", || {
        bench.log_names() == ["t.stdout.0"] && bench.log("t.stdout.0").contains("end")
    });
    let text = bench.log("t.stdout.0");
    for field in ["SigIgn", "SigBlk", "SigCgt"] {
        assert_eq!(mask(&text, field), 0, "{field}");
    }
    let (_, fds) = text.split_once("fds\n").unwrap();
    // 3 is the directory that `ls` reads.
    assert_eq!(fds.split_whitespace().collect::<Vec<_>>(), ["0", "1", "2", "3", "end"]);
}

/// Not a test of its own: runs in a process with hostile dispositions and a leaked descriptor, see above.
#[test]
fn inner_launch() {
    let Some(dir) = std::env::var_os("HERDLET_TEST_DIR") else { return };
    let dir = PathBuf::from(dir);
    let program_file = Program::install(&dir).unwrap();
    let records = RuntimeDir::open(&dir.join("run")).unwrap();
    let logs_dir = open_dir(&dir.join("logs"));
    let what = Launch {
        program: &program_file,
        record: "inner",
        runtime_dir: records.as_fd(),
        logs_dir: logs_dir.as_fd(),
        invocation: &shell("cat /proc/self/status; echo fds; ls /proc/self/fd; echo end"),
        logs: &log_files(3, 1 << 20),
        shims_cgroup: None,
        leash: None,
    };
    launch(&what).unwrap();
}

#[test]
fn task_environment_directory_and_limits_are_exact() {
    let bench = Bench::new();
    let mut invocation =
        shell("env | grep -v -e ^PWD -e ^_ -e ^SHLVL -e ^OLDPWD; pwd; umask; ulimit -n; ulimit -Hn");
    invocation.environment.push(("EMPTY".into(), "".into()));
    invocation.directory = Some("/usr".into());
    invocation.umask = Some(0o027);
    invocation.open_files = Some(99);
    invocation.oom_score_adj = Some(0);
    bench.run("a", &invocation);
    assert_eq!(bench.log("t.stdout.0"), "PATH=/usr/bin:/bin\nEMPTY=\n/usr\n0027\n99\n99\n");
    let mut greedy = shell("ulimit -n");
    greedy.open_files = Some(1 << 40);
    assert!(matches!(bench.run("b", &greedy), State::Exited(_)) || is_root());
}

#[test]
fn a_session_leader_runs_outside_the_agents_session() {
    let bench = Bench::new();
    let child = bench.launch("a", &shell("cut -d' ' -f1,5,6,7 /proc/$$/stat"));
    let shim = child.pid();
    end_of(child);
    let text = bench.log("t.stdout.0");
    let fields: Vec<i64> = text.split_whitespace().map(|field| field.parse().unwrap()).collect();
    let [pid, group, session, terminal] = fields[..] else { panic!("{text}") };
    assert_eq!((group, session, terminal), (pid, pid, 0));
    assert_ne!(pid, i64::from(shim));
}

#[test]
fn ids_groups_and_no_new_privs_are_set() {
    if !is_root() {
        return;
    }
    let bench = Bench::new();
    let mut invocation = shell("id -u; id -g; id -G; grep -e NoNewPrivs -e CapEff /proc/self/status");
    invocation.user = Some(User { uid: 65_534, gid: 65_533, groups: vec![7, 8] });
    invocation.new_privileges = NewPrivileges::Refused;
    assert_eq!(code_of(bench.run("a", &invocation)), (0, 0));
    let text = bench.log("t.stdout.0");
    assert_eq!(text, "65534\n65533\n65533 7 8\nCapEff:\t0000000000000000\nNoNewPrivs:\t1\n");
    invocation.user = Some(User { uid: 65_534, gid: 65_534, groups: vec![] });
    invocation.arguments = vec!["sh".into(), "-c".into(), "id -G >&2".into()];
    bench.run("b", &invocation);
    assert_eq!(bench.log("t.stderr.0"), "65534\n");
}

#[test]
fn shim_and_task_outlive_the_agent() {
    let bench = Bench::new();
    let mut agent = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "inner_agent", "--nocapture"])
        .env("HERDLET_TEST_AGENT", bench.dir.path())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let record = bench.wait_for("task", is_running);
    eventually("the output", || bench.log_names() == ["t.stdout.0"] && !bench.log("t.stdout.0").is_empty());
    agent.kill().unwrap();
    agent.wait().unwrap();
    let shim = PidFd::open(record.shim).unwrap().expect("the shim lives");
    let task = open_task(&record).unwrap().expect("the task lives");
    task.send(rustix::process::Signal::TERM).unwrap();
    let record = bench.wait_for("task", has_exited);
    assert_eq!(code_of(record.state), (0, 15));
    eventually("the shim's end", || !is_alive(shim.process()));
    assert_eq!(bench.log("t.stdout.0"), "started\n");
}

/// Not a test of its own: the agent that is killed, see above.
#[test]
#[expect(clippy::disallowed_methods, reason = "waits to be killed")]
fn inner_agent() {
    let Some(dir) = std::env::var_os("HERDLET_TEST_AGENT") else { return };
    let dir = PathBuf::from(dir);
    let program_file = Program::install(&dir).unwrap();
    let records = RuntimeDir::open(&dir.join("run")).unwrap();
    let logs_dir = open_dir(&dir.join("logs"));
    let what = Launch {
        program: &program_file,
        record: "task",
        runtime_dir: records.as_fd(),
        logs_dir: logs_dir.as_fd(),
        invocation: &shell("echo started; exec sleep 1000"),
        logs: &log_files(3, 1 << 20),
        shims_cgroup: None,
        leash: None,
    };
    launch(&what).unwrap();
    std::thread::sleep(DEADLINE);
}

#[test]
fn the_exit_is_told_while_a_grandchild_holds_the_pipes() {
    let bench = Bench::new();
    let child = bench.launch("a", &shell("(sleep 1000; echo late) & echo $!; exit 5"));
    let record = bench.wait_for("a", has_exited);
    assert_eq!(code_of(record.state), (5, 0));
    let shim = PidFd::open(record.shim).unwrap().expect("the shim drains the pipes");
    eventually("the pid", || bench.log_names() == ["t.stdout.0"] && bench.log("t.stdout.0").ends_with('\n'));
    assert!(kill_tree(&shim, DEADLINE).unwrap() >= 1);
    assert_eq!(end_of(child), ShimEnd::Code(0));
    assert_eq!(code_of(bench.record("a").state), (5, 0), "the first exit counts");
}

#[test]
fn whoever_detaches_is_reaped_and_found() {
    let bench = Bench::new();
    // A daemon: forked twice, in a session of its own, with its streams closed.
    let daemon = "setsid sh -c 'echo $$ > daemon; exec sleep 1000 >/dev/null 2>&1' &";
    let mut invocation =
        shell(&format!("{daemon} wait_for=$!; while ! test -s daemon; do sleep 0.01; done; exit 0"));
    invocation.directory = Some(bench.dir.path().into());
    let child = bench.launch("a", &invocation);
    let record = bench.wait_for("a", has_exited);
    let pid: u32 = fs::read_to_string(bench.path("daemon")).unwrap().trim().parse().unwrap();
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let parent: u32 = stat.rsplit(") ").next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    assert_eq!(parent, record.shim.pid, "the shim is the subreaper");
    let shim = PidFd::open(record.shim).unwrap().expect("the shim waits for it");
    assert_eq!(kill_tree(&shim, DEADLINE).unwrap(), 1);
    assert_eq!(end_of(child), ShimEnd::Code(0));
    assert!(!Path::new(&format!("/proc/{pid}")).exists(), "reaped");
}

#[test]
fn a_whole_tree_is_killed_without_cgroups() {
    let bench = Bench::new();
    let script =
        "for i in 1 2 3; do (setsid sh -c 'sleep 1000 & sleep 1000 & wait' &) ; done; echo ready; sleep 1000";
    let child = bench.launch("a", &shell(script));
    let record = bench.wait_for("a", is_running);
    eventually("the tree", || bench.log_names() == ["t.stdout.0"]);
    let shim = PidFd::open(record.shim).unwrap().unwrap();
    assert!(kill_tree(&shim, DEADLINE).unwrap() >= 4);
    assert_eq!(end_of(child), ShimEnd::Code(0));
    assert_eq!(code_of(bench.record("a").state), (0, 9));
    assert_eq!(kill_tree(&shim, DEADLINE).unwrap(), 0);
}

#[test]
fn signals_do_not_reach_the_shim() {
    let bench = Bench::new();
    let child = bench.launch("a", &shell("echo ready; exec sleep 1000"));
    let record = bench.wait_for("a", is_running);
    let shim = PidFd::open(record.shim).unwrap().unwrap();
    use rustix::process::Signal;
    for signal in
        [Signal::HUP, Signal::INT, Signal::TERM, Signal::PIPE, Signal::USR1, Signal::ALARM, Signal::QUIT]
    {
        shim.send(signal).unwrap();
    }
    eventually("the output", || bench.log_names() == ["t.stdout.0"]);
    assert!(is_alive(record.shim) && is_alive(record.task));
    open_task(&record).unwrap().unwrap().send_to_group(Signal::INT).unwrap();
    end_of(child);
    assert_eq!(code_of(bench.record("a").state), (0, 2));
}

#[test]
fn a_later_process_with_the_same_pid_is_not_taken_for_the_task() {
    let bench = Bench::new();
    let child = bench.launch("a", &shell("exec sleep 1000"));
    let record = bench.wait_for("a", is_running);
    let task = open_task(&record).unwrap().unwrap();
    let other = Process { start_ticks: record.task.start_ticks + 1, ..record.task };
    assert!(PidFd::open(other).unwrap().is_none());
    let unknown = Process { start_ticks: 0, ..record.task };
    assert!(matches!(PidFd::open(unknown), Err(ProcessError::Unverifiable { .. })));
    task.send(rustix::process::Signal::KILL).unwrap();
    end_of(child);
    assert!(open_task(&record).unwrap().is_none());
    task.send(rustix::process::Signal::KILL).unwrap();
}

#[test]
fn a_cut_leash_ends_shim_and_task() {
    let bench = Bench::new();
    let (reading, writing) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
    let script = shell("setsid sleep 1000 & echo ready; sleep 1000");
    let child = bench.launch_with("a", &script, &log_files(3, 1 << 20), Some(&reading));
    bench.wait_for("a", is_running);
    eventually("the output", || bench.log_names() == ["t.stdout.0"]);
    drop(writing);
    assert_eq!(end_of(child), ShimEnd::Code(0));
    assert_eq!(code_of(bench.record("a").state), (0, 9));
}

#[tokio::test]
async fn ends_can_be_awaited() {
    let bench = Bench::new();
    let child = bench.launch("a", &shell("exec sleep 1000"));
    let record = bench.wait_for("a", is_running);
    let task = open_task(&record).unwrap().unwrap();
    let (end, ()) = tokio::join!(async { task.ended().await }, async {
        task.send(rustix::process::Signal::KILL).unwrap();
    });
    end.unwrap();
    assert_eq!(child.wait().await.unwrap(), ShimEnd::Code(0));
}

#[test]
fn a_damaged_spec_is_a_failed_start() {
    let bench = Bench::new();
    let empty = Invocation { arguments: vec!["x".into()], ..Invocation::default() };
    let State::StartFailed { step, errno, .. } = bench.run("a", &empty) else { panic!() };
    assert_eq!((step, errno), (Step::Spec, 0));
    let end = end_of(bench.launch("../a", &shell("true")));
    assert_eq!(end, ShimEnd::Code(herdlet_shim::EXIT_NO_RECORD as i32));
    let nul = shell("a\0b");
    let what = Launch {
        program: &bench.program,
        record: "b",
        runtime_dir: bench.records.as_fd(),
        logs_dir: bench.logs.as_fd(),
        invocation: &nul,
        logs: &Logs::Disabled,
        shims_cgroup: None,
        leash: None,
    };
    assert!(matches!(launch(&what), Err(LaunchError::Spec { .. })));
    let mut large = shell("true");
    large.environment = (0..20).map(|n| (format!("N{n}").into(), "x".repeat(100_000).into())).collect();
    assert_eq!(code_of(bench.run("c", &large)), (0, 0), "2 MB of environment");
}

#[test]
fn memory_serves_where_files_cannot_be_executed() {
    if !is_root() {
        return;
    }
    let bench = Bench::new();
    let dir = bench.path("noexec");
    fs::create_dir(&dir).unwrap();
    let flags = rustix::mount::MountFlags::NOEXEC;
    if rustix::mount::mount("tmpfs", &dir, "tmpfs", flags, None).is_err() {
        return;
    }
    let in_memory = Program::install(&dir);
    rustix::mount::unmount(&dir, rustix::mount::UnmountFlags::DETACH).unwrap();
    let bench = Bench { program: in_memory.unwrap(), ..bench };
    assert_eq!(code_of(bench.run("a", &shell("exit 3"))), (3, 0));
}

#[test]
fn a_v2_cgroup_is_entered_at_birth() {
    let Some(root) = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"]
        .into_iter()
        .map(PathBuf::from)
        .find(|path| path.join("cgroup.procs").exists())
    else {
        return;
    };
    let bench = Bench::new();
    let group = root.join(format!("herdlet-test-{}", bench.dir.path().file_name().unwrap().display()));
    if fs::create_dir(&group).is_err() {
        return;
    }
    let mut invocation = shell("cat /proc/self/cgroup");
    invocation.cgroup = Some(group.clone());
    let state = bench.run("a", &invocation);
    invocation.cgroup = Some(group.join("cgroup.procs"));
    let not_a_group = bench.run("c", &invocation);
    let shims = open_dir(&group);
    let what = Launch {
        program: &bench.program,
        record: "b",
        runtime_dir: bench.records.as_fd(),
        logs_dir: bench.logs.as_fd(),
        invocation: &shell("cat /proc/$PPID/cgroup >&2"),
        logs: &log_files(3, 1 << 20),
        shims_cgroup: Some(shims.as_fd()),
        leash: None,
    };
    end_of(launch(&what).unwrap());
    // Some kernels kill whoever is born where cgroup.kill was written before.
    fs::write(group.join("cgroup.kill"), "1").unwrap();
    invocation.cgroup = Some(group.clone());
    let killed = bench.run("d", &invocation);
    fs::remove_dir(&group).unwrap();
    assert!(matches!(not_a_group, State::StartFailed { step: Step::Cgroup, .. }), "{not_a_group:?}");
    let is_told = matches!(killed, State::StartFailed { step: Step::Cgroup, .. });
    assert!(is_told || code_of(killed) == (0, 0), "{killed:?}");
    assert_eq!(code_of(state), (0, 0));
    let name = group.file_name().unwrap().to_str().unwrap().to_owned();
    let wanted = format!("0::/{name}\n");
    assert!(bench.log("t.stdout.0").contains(&wanted));
    assert!(bench.log("t.stderr.0").contains(&wanted));
}

#[test]
fn v1_cgroups_are_entered_by_the_task_itself() {
    let bench = Bench::new();
    let name = format!("herdlet-test-{}", bench.dir.path().file_name().unwrap().display());
    let groups: Vec<PathBuf> = ["pids", "freezer"]
        .iter()
        .map(|kind| PathBuf::from("/sys/fs/cgroup").join(kind).join(&name))
        .collect();
    let is_v1 =
        Path::new("/sys/fs/cgroup/pids/tasks").exists() && Path::new("/sys/fs/cgroup/freezer/tasks").exists();
    if !is_v1 || groups.iter().any(|group| fs::create_dir(group).is_err()) {
        return;
    }
    let mut invocation = shell("cat /proc/self/cgroup; grep '' /proc/$PPID/cgroup >&2");
    invocation.tasks_files = groups.iter().map(|group| group.join("tasks")).collect();
    let state = bench.run("a", &invocation);
    for group in &groups {
        fs::remove_dir(group).unwrap();
    }
    assert_eq!(code_of(state), (0, 0));
    for kind in ["pids", "freezer"] {
        let line = format!("{kind}:/{name}\n");
        assert!(
            bench.log("t.stdout.0").contains(&line) && !bench.log("t.stderr.0").contains(&line),
            "{kind}"
        );
    }
}
