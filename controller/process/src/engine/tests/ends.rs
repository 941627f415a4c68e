//! Stopping and destroying attempts.

use super::*;

#[tokio::test]
async fn process_that_ignores_its_signal_is_killed() {
    for bench in Bench::both() {
        let mut agent = bench.agent();
        agent
            .driver
            .start(bench.shell("trap '' INT; echo > ready; while :; do sleep 1; done"))
            .await
            .unwrap();
        bench.line("ready").await;
        let began = Instant::now();
        agent.driver.stop(&id(1), stop("SIGINT", 200)).await.unwrap();
        assert!(began.elapsed() >= Duration::from_millis(200));
        assert_eq!(agent.wait().await.signal, 9);
        assert_eq!(agent.notice().await.code, 137);
        agent.driver.stop(&id(1), stop("SIGINT", 200)).await.unwrap();
        bench.close(agent).await;
    }
}

#[tokio::test]
async fn process_ends_on_its_signal() {
    for bench in Bench::both() {
        let agent = bench.agent();
        let script = "trap 'exit 4' TERM; echo > ready; while :; do sleep 0.1; done";
        agent.driver.start(bench.shell(script)).await.unwrap();
        bench.line("ready").await;
        agent.driver.stop(&id(1), stop("SIGTERM", 20_000)).await.unwrap();
        assert_eq!(agent.wait().await.code, 4);
        bench.close(agent).await;
    }
}

#[tokio::test]
async fn only_processes_of_the_task_are_killed() {
    for bench in Bench::both() {
        let agent = bench.agent();
        let mut stranger = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        // A child, a child in its own session, an orphan in its own session.
        let script = "sleep 1000 & echo $! > a
            setsid sh -c 'echo $$ > b; exec sleep 1000' &
            (setsid sh -c '(sleep 1000 & echo $! > c)' &)
            wait";
        agent.driver.start(bench.shell(script)).await.unwrap();
        let pids = [bench.pid("a").await, bench.pid("b").await, bench.pid("c").await];
        assert!(pids.iter().all(|pid| lives(*pid)));
        agent.driver.stop(&id(1), stop("SIGTERM", 5000)).await.unwrap();
        for pid in pids {
            gone(pid).await;
        }
        assert!(stranger.try_wait().unwrap().is_none());
        stranger.kill().unwrap();
        stranger.wait().unwrap();
        bench.close(agent).await;
    }
}

#[tokio::test]
async fn destroy_kills_leftover_processes() {
    for bench in Bench::both() {
        let agent = bench.agent();
        let exit = agent.run(bench.shell("(setsid sleep 1000 & echo $! > a); exit 0")).await;
        assert!(exit.is_success());
        let pid = bench.pid("a").await;
        assert!(lives(pid));
        agent.driver.destroy(&id(1), Leftover::MainMustBeGone).await.unwrap();
        gone(pid).await;
        bench.close(agent).await;
    }
}

#[tokio::test]
async fn a_running_attempt_is_not_destroyed_by_mistake() {
    for bench in Bench::both() {
        let agent = bench.agent();
        agent.driver.start(bench.shell("sleep 1000")).await.unwrap();
        let error = agent.driver.destroy(&id(1), Leftover::MainMustBeGone).await.unwrap_err();
        assert!(error.to_string().ends_with("it still runs"), "{error}");
        assert!(lives(agent.record().task.pid));
        bench.close(agent).await;
    }
}

#[tokio::test]
async fn stop_before_a_start_fences_it() {
    for bench in Bench::both() {
        let agent = bench.agent();
        agent.driver.stop(&id(1), stop("SIGTERM", 1000)).await.unwrap();
        let error = agent.driver.start(bench.shell("echo > ran")).await.unwrap_err();
        assert!(matches!(error, DriverError::Fatal(_)), "{error}");
        assert!(matches!(agent.recover(None).await, Recovered::Lost { .. }));
        assert!(!bench.path("task/ran").exists());
        bench.close(agent).await;
    }
}

#[tokio::test]
async fn stop_ends_the_task_of_a_dead_supervisor() {
    for bench in Bench::both() {
        let first = bench.agent();
        let record = first.begin(bench.shell("exec sleep 1000")).await;
        drop(first);
        kill_supervisor(&record);
        gone(record.shim.pid).await;
        let second = bench.agent();
        second.driver.stop(&id(1), stop("SIGCONT", 0)).await.unwrap();
        gone(record.task.pid).await;
        bench.close(second).await;
    }
}

#[tokio::test]
async fn a_running_attempt_that_is_destroyed_ends_as_killed() {
    for bench in Bench::both() {
        let mut agent = bench.agent();
        agent.driver.start(bench.shell("exec sleep 1000")).await.unwrap();
        agent.driver.destroy(&id(1), Leftover::Kill).await.unwrap();
        let exit = agent.notice().await;
        assert_eq!((exit.signal, exit.error.as_str()), (9, ""));
        bench.close(agent).await;
    }
}

#[tokio::test]
async fn reused_pid_is_not_signalled() {
    let bench = Bench::without_cgroups();
    let mut stranger = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
    let agent = bench.agent();
    let process = Process { pid: stranger.id(), start_ticks: 1 };
    let record = Record { state: State::Running, shim: process, task: process, ..Record::claimed() };
    fs::write(bench.record(), record.to_bytes()).unwrap();
    agent.driver.stop(&id(1), stop("SIGKILL", 0)).await.unwrap();
    let _ = agent.recover(None).await;
    agent.driver.destroy(&id(1), Leftover::Kill).await.unwrap();
    assert!(stranger.try_wait().unwrap().is_none());
    stranger.kill().unwrap();
    stranger.wait().unwrap();
    bench.close(agent).await;
}

#[tokio::test]
async fn a_leash_ends_everything_when_the_agent_is_gone() {
    for bench in Bench::both() {
        let (held, leash) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
        let agent = bench.agent_on(Some(held));
        agent.driver.start(bench.shell("setsid sleep 1000 & echo $! > a; wait")).await.unwrap();
        let (child, record) = (bench.pid("a").await, agent.record());
        drop(leash);
        for pid in [child, record.task.pid, record.shim.pid] {
            gone(pid).await;
        }
        assert_eq!(agent.wait().await.signal, 9);
        bench.close(agent).await;
    }
}

#[tokio::test]
async fn task_with_a_stopped_supervisor_is_ended() {
    for bench in Bench::both() {
        let agent = bench.agent();
        let exit = agent.run(bench.shell("kill -STOP $PPID; exit 3")).await;
        assert_eq!((exit.code, exit.error.as_str()), (3, ""));
        agent.driver.destroy(&id(1), Leftover::MainMustBeGone).await.unwrap();
        let mut second = bench
            .shell("while [ ! -e go ]; do sleep 0.1; done; kill -STOP $PPID; echo > done; exec sleep 1000");
        second.id = id(2);
        agent.driver.start(second).await.unwrap();
        fs::write(bench.path("task/go"), "").unwrap();
        bench.line("done").await;
        agent.driver.stop(&id(2), stop("SIGTERM", 5_000)).await.unwrap();
        let exit = agent.end_of(2).await;
        assert_eq!((exit.signal, exit.error.as_str()), (15, ""));
        bench.close(agent).await;
    }
}
