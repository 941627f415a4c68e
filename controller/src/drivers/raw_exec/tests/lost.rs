//! Records and their directory, taken away under attempts that run.

use super::*;

/// A start of the agent whose end is that of its runtime: nothing of it lives on.
fn on_a_machine<T>(act: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(act)
}

/// As somebody does who cleans up; what comes back meanwhile may keep the directory.
fn delete(dir: &std::path::Path) {
    let _ = fs::remove_dir_all(dir);
}

async fn repaired(agent: &mut Agent) {
    match tokio::time::timeout(DEADLINE, agent.seen.recv()).await.unwrap() {
        Some(Notice::Repaired { kind: "record", .. }) => {}
        other => panic!("{other:?}"),
    }
}

// The agent held a deleted directory: each start failed with `it ended with code 18` until it was restarted, and what ran was
// killed.
#[tokio::test]
async fn a_deleted_runtime_directory_is_made_again_and_what_runs_is_kept() {
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
        // Moved away whole.
        fs::rename(bench.path("run/attempts"), bench.path("moved")).unwrap();
        repaired(&mut agent).await;
        // It is not started twice,
        agent.driver.start(bench.shell("echo again > again")).await.unwrap();
        assert_eq!(agent.record().task.pid, pid);
        assert!(!bench.path("task/again").exists());
        // others can be started,
        let mut other = bench.shell("exit 3");
        other.id = id(2);
        agent.driver.start(other).await.unwrap();
        assert_eq!(agent.driver.wait(&id(2)).await.unwrap().code, 3);
        // and its end is told.
        agent.driver.stop(&id(1), stop("SIGTERM", 20_000)).await.unwrap();
        assert_eq!(agent.wait().await.code, 7);
        agent.driver.destroy(&id(1), Leftover::MainMustBeGone).await.unwrap();
        assert_eq!(agent.driver.found().await.unwrap(), [id(2)]);
        bench.close(agent).await;
    }
}

#[test]
fn what_lost_its_record_while_no_agent_was_there_is_taken_over() {
    for bench in Bench::both() {
        let pid = on_a_machine(async {
            let agent = bench.agent();
            agent.driver.start(bench.shell("echo $$ > pid; exec sleep 1000")).await.unwrap();
            bench.pid("pid").await
        });
        delete(&bench.path("run/attempts"));
        // Put back by one agent, followed by the next.
        for _ in 0..2 {
            on_a_machine(async {
                let agent = bench.agent();
                assert!(matches!(agent.recover(None).await, Recovered::Running));
                assert_eq!(agent.record().task.pid, pid);
            });
        }
        on_a_machine(async {
            let agent = bench.agent();
            assert!(matches!(agent.recover(None).await, Recovered::Running));
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

// The next agent looked for supervisors by the path of the directory that they hold, which a move changes: what ran was killed.
#[test]
fn what_runs_is_taken_over_after_its_directory_was_moved() {
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
        // What the first agent has put back is written by nobody now.
        on_a_machine(async {
            let agent = bench.agent();
            assert!(matches!(agent.recover(None).await, Recovered::Running));
            assert_eq!(agent.record().task.pid, pid);
            agent.driver.stop(&id(1), stop("SIGTERM", 20_000)).await.unwrap();
            assert_eq!(agent.wait().await.code, 7);
            agent.driver.destroy(&id(1), Leftover::MainMustBeGone).await.unwrap();
        });
        // Moved while no agent is there.
        on_a_machine(async {
            let agent = bench.agent();
            let mut other = bench.shell("exec sleep 1000");
            other.id = id(2);
            agent.driver.start(other).await.unwrap();
        });
        fs::rename(bench.path("run/attempts"), bench.path("moved again")).unwrap();
        on_a_machine(async {
            let agent = bench.agent();
            assert_eq!(agent.driver.found().await.unwrap(), [id(2)]);
            agent.driver.destroy(&id(2), Leftover::Kill).await.unwrap();
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
        assert_eq!(agent.driver.found().await.unwrap(), [id(1)]);
        assert!(matches!(agent.recover(None).await, Recovered::Lost { .. }));
        gone(record.task.pid).await;
        bench.close(agent).await;
    });
}

#[test]
fn a_supervisor_without_a_record_is_told_with_what_to_do() {
    let dir = std::path::Path::new("/run/x");
    let why = |end| super::super::start::without_record(end, dir);
    assert!(why(supervisor::ShimEnd::Code(17)).contains("is somebody deleting files in /run/x?"));
    assert!(why(supervisor::ShimEnd::Code(18)).contains("could not write its record in /run/x; see that"));
    assert!(why(supervisor::ShimEnd::Code(3)).contains("code 3"));
    assert!(why(supervisor::ShimEnd::Signal(9)).contains("lack of memory"));
    assert!(why(supervisor::ShimEnd::Signal(31)).contains("seccomp"));
    assert!(why(supervisor::ShimEnd::Signal(11)).contains("signal 11"));
}
