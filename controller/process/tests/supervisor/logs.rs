//! Logs: rotation, restarts, hostile and lost files, full and stalled disks.

use std::{
    fs,
    path::{Path, PathBuf},
};

use herdlet_process::supervisor::*;

use super::bench::*;

#[test]
fn five_and_a_half_megabytes_leave_the_last_three_files() {
    let bench = Bench::new();
    let script = shell("yes 'a short line of the task' | head -c 5767168");
    let child = bench.launch_with("a", &script, &log_files(3, 1 << 20), None);
    assert_eq!(end_of(child), ShimEnd::Code(0));
    assert_eq!(bench.record("a").dropped_bytes, 0);
    assert_eq!(bench.log_names(), ["t.stdout.3", "t.stdout.4", "t.stdout.5"]);
    assert_eq!(
        bench.times_names(),
        ["t.stdout.3.times", "t.stdout.4.times", "t.stdout.5.times"],
        "times are removed with their files"
    );
    for name in ["t.stdout.3", "t.stdout.4"] {
        let text = bench.log(name);
        assert!(text.len() <= 1 << 20 && text.len() > (1 << 20) - 40_000 && text.ends_with('\n'), "{name}");
        assert!(text.starts_with("a short line"));
    }
}

/// In pieces of all sizes: small ones are copied, large ones moved.
#[test]
fn no_output_is_lost_or_repeated() {
    let bench = Bench::new();
    let script = "seq 1000000; for size in 100 5000 70000; do seq 2000000 | dd bs=$size iflag=fullblock 2>/dev/null; done";
    let child = bench.launch_with("a", &shell(script), &log_files(1_000, 1 << 20), None);
    assert_eq!(end_of(child), ShimEnd::Code(0));
    assert_eq!(bench.record("a").dropped_bytes, 0);
    let files = bench.log_names().len();
    let kept: String = (0..files).map(|index| bench.log(&format!("t.stdout.{index}"))).collect();
    let counted = |last: u32| (1..=last).map(|number| format!("{number}\n")).collect::<String>();
    let written = counted(1_000_000) + &counted(2_000_000).repeat(3);
    assert!(kept == written, "{} bytes of {}", kept.len(), written.len());
    assert!(files >= written.len() >> 20, "every file is within its limit");
}

/// Each attempt leaves a child that keeps the pipe open, so that the supervisor does not end with the main process.
#[test]
fn exit_is_recorded_after_preceding_output() {
    let bench = Bench::new();
    for attempt in 1..=50 {
        let name = format!("a{attempt}");
        let child = bench.launch(&name, &shell("sleep 0.3 & head -c 1000 /dev/zero"));
        assert_eq!(code_of(bench.wait_for(&name, has_exited).state), (0, 0));
        assert_eq!(bench.log("t.stdout.0").len(), attempt * 1000);
        assert_eq!(end_of(child), ShimEnd::Code(0));
    }
}

#[test]
fn restart_continues_the_newest_file() {
    let bench = Bench::new();
    bench.run("a", &shell("echo one"));
    bench.run("b", &shell("echo two"));
    assert_eq!(bench.log("t.stdout.0"), "one\ntwo\n");
    fs::write(bench.path("logs/t.stdout.4"), "older\n").unwrap();
    fs::write(bench.path("logs/t.stdout.4.times"), "").unwrap();
    bench.run("c", &shell("echo three"));
    assert_eq!(bench.log("t.stdout.4"), "older\nthree\n");
    fs::write(bench.path("logs/t.stdout.5"), vec![b'x'; 1 << 20]).unwrap();
    bench.run("d", &shell("echo four"));
    assert_eq!(bench.log("t.stdout.6"), "four\n");
}

// The supervisor took it for the newest part of the log and removed the older parts.
#[test]
fn file_with_an_extreme_number_is_not_continued() {
    let bench = Bench::new();
    bench.run("a", &shell("echo one"));
    fs::write(bench.path("logs/t.stdout.999999"), "planted\n").unwrap();
    bench.run("b", &shell("echo two"));
    assert_eq!(bench.log("t.stdout.0"), "one\ntwo\n");
    assert_eq!(bench.log("t.stdout.999999"), "planted\n");
}

#[test]
fn planted_files_among_logs_are_skipped() {
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
    std::os::unix::fs::symlink(bench.path("victim"), bench.path("logs/t.stdout.5.times")).unwrap();
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
    // The file exists before the line is written.
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
    // There will be no room: a supervisor that waited for it would not end.
    let state = bench.run("a", &shell("head -c 2000000 /dev/zero; echo end >&2; exit 9"));
    let kept = bench.log_bytes();
    rustix::mount::unmount(&logs, rustix::mount::UnmountFlags::DETACH).unwrap();
    assert_eq!(code_of(state), (9, 0));
    assert!(kept <= 256 * 1024);
    assert_eq!(bench.record("a").dropped_bytes, 2_000_004 - kept);
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
    // The `.times` file takes one page.
    eventually("a full disk", || {
        fs::metadata(logs.join("t.stdout.0")).is_ok_and(|file| file.len() == 61_440)
    });
    let record = bench.record("a");
    assert_eq!((record.state, record.dropped_bytes), (State::Running, 0));
    let more = rustix::mount::mount_remount(&logs, flags, c"size=8m");
    let end = end_of(child);
    let kept = bench.log_bytes();
    rustix::mount::unmount(&logs, rustix::mount::UnmountFlags::DETACH).unwrap();
    more.unwrap();
    assert_eq!(end, ShimEnd::Code(0));
    assert_eq!((code_of(bench.record("a").state), bench.record("a").dropped_bytes), ((4, 0), 0));
    assert_eq!(kept, 1_500_000);
}

/// A separate filesystem whose writes can be stopped, like those of a dead disk or network.
struct Stallable(PathBuf);

impl Stallable {
    /// Returns `None` where it can't be mounted: it needs root, a loop device and two tools.
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
    fs::write(bench.path("fifo"), "go\n").unwrap();
    // The disk stalls until then: a supervisor that waited for it would not end.
    let record = bench.wait_for("a", has_exited);
    drop(disk);
    assert_eq!(code_of(record.state), (5, 0));
    assert_eq!(end_of(child), ShimEnd::Code(0));
    assert!(bench.record("a").dropped_bytes > 10_000_000);
}
