//! Records and their directory, removed while attempts run.

use super::*;

/// Runs an agent in a runtime of its own, so that nothing of it survives.
fn on_a_machine<T>(act: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(act)
}

/// Deletes a directory as a careless user does. Files created meanwhile may keep the directory alive.
fn delete(dir: &std::path::Path) {
    let _ = fs::remove_dir_all(dir);
}

async fn repaired(agent: &mut Agent) {
    let event = agent.event().await;
    assert!(matches!(event, TaskEvent::Repaired { kind: "record", .. }), "{event:?}");
}

// Regression: the agent held a deleted directory. Every start failed with `it ended with code 18` until the agent was restarted,
// and running tasks were killed.
#[tokio::test]
async fn deleted_runtime_directory_is_made_again() {
    for bench in Bench::both() {
        let mut agent = bench.agent();
        let script = "trap 'exit 7' TERM; echo $$ > pid; while :; do sleep 0.1; done";
        agent.driver.start(bench.shell(script)).await.unwrap();
        let pid = bench.pid("pid").await;
        for _ in 0..2 {
            delete(&bench.path("run/attempts"));
            repaired(&mut agent).await;
            assert!(lives(pid));
        }
        // The whole directory is moved away.
        fs::rename(bench.path("run/attempts"), bench.path("moved")).unwrap();
        repaired(&mut agent).await;
        // The attempt is not started twice,
        agent.driver.start(bench.shell("echo again > again")).await.unwrap();
        assert_eq!(agent.record().task.pid, pid);
        assert!(!bench.path("task/again").exists());
        // other attempts can be started,
        let mut other = bench.shell("exit 3");
        other.id = id(2);
        agent.driver.start(other).await.unwrap();
        assert_eq!(agent.end_of(2).await.code, 3);
        // and its exit is reported.
        agent.driver.stop(&id(1), stop("SIGTERM", 20_000)).await.unwrap();
        assert_eq!(agent.wait().await.code, 7);
        agent.driver.destroy(&id(1), Leftover::MainMustBeGone).await.unwrap();
        assert_eq!(agent.driver.list_attempts().await.unwrap(), [id(2)]);
        bench.close(agent).await;
    }
}

#[test]
fn attempt_without_its_record_is_adopted() {
    for bench in Bench::both() {
        let pid = on_a_machine(async {
            let agent = bench.agent();
            agent.driver.start(bench.shell("echo $$ > pid; exec sleep 1000")).await.unwrap();
            bench.pid("pid").await
        });
        delete(&bench.path("run/attempts"));
        // The first agent restores the record, the second finds it.
        for _ in 0..2 {
            on_a_machine(async {
                let agent = bench.agent();
                assert!(matches!(agent.recover(None).await, Recovered::Running(_)));
                assert_eq!(agent.record().task.pid, pid);
            });
        }
        on_a_machine(async {
            let agent = bench.agent();
            assert!(matches!(agent.recover(None).await, Recovered::Running(_)));
            supervisor::open_task(&agent.record())
                .unwrap()
                .unwrap()
                .send(rustix::process::Signal::TERM)
                .unwrap();
            assert_eq!(agent.wait().await.signal, 15);
            bench.close(agent).await;
        });
    }
}

// Regression: the next agent searched for supervisors by the path of the directory they hold, which a move changes, and running
// tasks were killed.
#[test]
fn attempt_in_a_moved_directory_is_adopted() {
    for bench in Bench::both() {
        let pid = on_a_machine(async {
            let mut agent = bench.agent();
            agent
                .driver
                .start(bench.shell("trap 'exit 7' TERM; echo $$ > pid; while :; do sleep 0.1; done"))
                .await
                .unwrap();
            let pid = bench.pid("pid").await;
            fs::rename(bench.path("run/attempts"), bench.path("moved")).unwrap();
            repaired(&mut agent).await;
            pid
        });
        // The supervisor does not write to the record that the first agent restored.
        on_a_machine(async {
            let agent = bench.agent();
            assert!(matches!(agent.recover(None).await, Recovered::Running(_)));
            assert_eq!(agent.record().task.pid, pid);
            agent.driver.stop(&id(1), stop("SIGTERM", 20_000)).await.unwrap();
            assert_eq!(agent.wait().await.code, 7);
            agent.driver.destroy(&id(1), Leftover::MainMustBeGone).await.unwrap();
        });
        // Moved while no agent runs.
        on_a_machine(async {
            let agent = bench.agent();
            let mut other = bench.shell("exec sleep 1000");
            other.id = id(2);
            agent.driver.start(other).await.unwrap();
        });
        fs::rename(bench.path("run/attempts"), bench.path("moved again")).unwrap();
        on_a_machine(async {
            let agent = bench.agent();
            assert_eq!(agent.driver.list_attempts().await.unwrap(), [id(2)]);
            agent.driver.destroy(&id(2), Leftover::Kill).await.unwrap();
            bench.close(agent).await;
        });
    }
}

#[test]
fn record_of_a_live_supervisor_is_not_replaced() {
    for bench in Bench::both() {
        let mut other = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let start_ticks = process_tree::stat(other.id()).unwrap().start_ticks;
        let record = on_a_machine(async {
            let agent = bench.agent();
            agent.driver.start(bench.shell("exec sleep 1000")).await.unwrap();
            agent.record()
        });
        let file = bench.path("run/attempts").join(id(1).name());
        let replace = |record: &supervisor::Record| {
            fs::remove_file(&file).unwrap();
            fs::write(&file, record.to_bytes()).unwrap();
        };
        let shim = supervisor::Process { pid: other.id(), start_ticks };
        let living = supervisor::Record { shim, ..record };
        replace(&living);
        on_a_machine(async { assert_eq!(bench.agent().record(), living) });
        // The record of an exited process is replaced.
        other.kill().unwrap();
        other.wait().unwrap();
        on_a_machine(async {
            let agent = bench.agent();
            assert_eq!(agent.record(), record);
            agent.driver.destroy(&id(1), Leftover::Kill).await.unwrap();
            bench.close(agent).await;
        });
    }
}

#[test]
fn processes_with_neither_record_nor_supervisor_are_ended() {
    let Some(bench) = Bench::with_cgroups() else { return };
    let record = on_a_machine(async {
        let agent = bench.agent();
        agent.driver.start(bench.shell("exec sleep 1000")).await.unwrap();
        agent.record()
    });
    fs::remove_file(bench.path("run/attempts").join(id(1).name())).unwrap();
    on_a_machine(async {
        let shim = supervisor::PidFd::open(record.shim).unwrap().unwrap();
        shim.send(rustix::process::Signal::KILL).unwrap();
        shim.ended().await.unwrap();
        let agent = bench.agent();
        assert_eq!(agent.driver.list_attempts().await.unwrap(), [id(1)]);
        assert!(matches!(agent.recover(None).await, Recovered::Lost { .. }));
        gone(record.task.pid).await;
        bench.close(agent).await;
    });
}

#[test]
fn missing_record_error_has_a_hint() {
    let dir = std::path::Path::new("/run/x");
    let why = |end| super::super::failure::without_record(end, dir);
    assert!(why(supervisor::ShimEnd::Code(17)).contains("check whether something deletes files in /run/x"));
    assert!(why(supervisor::ShimEnd::Code(18)).contains("could not write its record in /run/x; check that"));
    assert!(why(supervisor::ShimEnd::Code(3)).contains("code 3"));
    assert!(why(supervisor::ShimEnd::Signal(9)).contains("out-of-memory kill"));
    assert!(why(supervisor::ShimEnd::Signal(31)).contains("seccomp"));
    assert!(why(supervisor::ShimEnd::Signal(11)).contains("signal 11"));
}

fn left_by_a_supervisor(bench: &Bench, record: &[u8]) {
    let path = bench.record();
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, record).unwrap();
}

// Regression: the agent that was to retry the start was killed first, and the next one took the failed start for the task's exit.
#[tokio::test]
async fn start_without_free_processes_is_retried_by_the_next_agent() {
    for bench in Bench::both() {
        let agent = bench.agent();
        agent.driver.set_earlier(&Default::default());
        let failed = State::StartFailed {
            step: supervisor::Step::Clone,
            errno: u16::try_from(libc::EAGAIN).unwrap(),
            at_unix_ns: 1,
        };
        let record = Record { state: failed, ..Record::claimed() };
        left_by_a_supervisor(&bench, &record.to_bytes());
        assert_eq!(agent.recover(None).await, Recovered::NotStarted);
        let error = agent.driver.start(bench.shell("exit 3")).await.unwrap_err();
        assert_eq!(error.class(), herdlet_driver::FailureClass::Retry, "{}", error.why());
        assert_eq!(agent.recover(None).await, Recovered::NotStarted);
        assert_eq!(agent.run(bench.shell("exit 3")).await.code, 3);
        bench.close(agent).await;
    }
}

// A supervisor that was killed between creating its record and writing its first entry has started nothing.
#[tokio::test(start_paused = true)]
async fn attempt_killed_while_claimed_has_not_begun() {
    for bench in Bench::both() {
        let agent = bench.agent();
        agent.driver.set_earlier(&Default::default());
        left_by_a_supervisor(&bench, b"");
        assert_eq!(agent.recover(None).await, Recovered::NotStarted);
        let error = agent.driver.start(bench.shell("exit 3")).await.unwrap_err();
        assert_eq!(error.class(), herdlet_driver::FailureClass::Retry, "{}", error.why());
        assert!(!bench.record().exists());
        bench.close(agent).await;
    }
}

// Regression: on an agent's first start in a runtime directory, as after a boot, an attempt that was never started counted as
// lost.
#[tokio::test]
async fn new_directory_loses_only_earlier_attempts() {
    for bench in Bench::both() {
        let agent = bench.agent();
        agent.driver.set_earlier(&[id(1)].into());
        let recovered = |attempt| async {
            let recovery = Recovery { id: attempt, config: None, handle: None, network: None };
            agent.driver.recover(recovery).await.unwrap()
        };
        assert_eq!(recovered(id(2)).await, Recovered::NotStarted);
        assert!(matches!(recovered(id(1)).await, Recovered::Lost { .. }));
        bench.close(agent).await;
    }
}
