//! Processes: which outlive which, which are reaped, which are killed together.

use std::{
    fs,
    path::{Path, PathBuf},
};

use herdlet_process::supervisor::*;

use super::bench::*;

#[test]
fn shim_and_task_outlive_the_agent() {
    let bench = Bench::new();
    let mut agent = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "trees::inner_agent", "--nocapture"])
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
    let bench = Bench::at(PathBuf::from(dir));
    let invocation = shell("echo started; exec sleep 1000");
    launch(&bench.bare_launch("task", &invocation, &log_files(3, 1 << 20))).unwrap();
    std::thread::sleep(DEADLINE);
}

#[test]
fn exit_is_recorded_while_a_grandchild_holds_pipes() {
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
fn daemonized_process_is_found_and_reaped() {
    let bench = Bench::new();
    // A daemon: forked twice, in its own session, with its streams closed.
    let daemon = "setsid sh -c 'echo $$ > daemon; exec sleep 1000 >/dev/null 2>&1' &";
    let mut invocation =
        shell(&format!("{daemon} wait_for=$!; while ! test -s daemon; do sleep 0.1; done; exit 0"));
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
