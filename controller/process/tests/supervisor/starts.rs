//! Starts: one winner, its record, and its errors.

use std::fs;

use herdlet_process::supervisor::*;

use super::bench::*;

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
    // Of this hour and of this clock; the rest depends on the load.
    assert!(now - exit.at_unix_ns < 3_600_000_000_000);
}

#[test]
fn end_by_a_signal_is_recorded() {
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
    assert!(fs::read_dir(bench.path("run")).unwrap().count() == 40, "no other files remain");
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
    let what = bench.bare_launch("b", &nul, &Logs::Disabled);
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
