//! Starting, exiting, recovering.

use super::*;

#[tokio::test]
async fn codes_signals_and_output_arrive() {
    for bench in Bench::both() {
        let mut agent = bench.agent();
        let exit = agent.run(bench.shell("echo out; echo err >&2; pwd; exit 3")).await;
        assert_eq!((exit.code, exit.signal, exit.oom_killed, exit.error.as_str()), (3, 0, false, ""));
        assert!(exit.at.0 > 0);
        assert_eq!(agent.notice().await, exit);
        assert_eq!(agent.recover(None).await, Recovered::Exited(exit));
        agent.driver.destroy(&id(1), Leftover::MainMustBeGone).await.unwrap();
        assert!(agent.driver.list_attempts().await.unwrap().is_empty());
        // The record is written before the last output; once the attempt is removed, all output is there.
        assert_eq!(bench.log("stdout"), format!("out\n{}\n", bench.path("task").display()));
        assert_eq!(bench.log("stderr"), "err\n");
        let mut next = bench.shell("kill -TERM $$");
        next.id = id(2);
        agent.driver.start(next).await.unwrap();
        let exit = agent.end_of(2).await;
        assert_eq!((exit.code, exit.signal), (128 + 15, 15));
        bench.close(agent).await;
    }
}

#[tokio::test]
async fn repeated_start_runs_once() {
    for bench in Bench::both() {
        let agent = bench.agent();
        let script = "echo $$ >> pids; echo > ready; exec sleep 1000";
        let (first, second) =
            tokio::join!(agent.driver.start(bench.shell(script)), agent.driver.start(bench.shell(script)));
        first.unwrap();
        second.unwrap();
        agent.driver.start(bench.shell(script)).await.unwrap();
        bench.line("ready").await;
        assert_eq!(fs::read_to_string(bench.path("task/pids")).unwrap().lines().count(), 1);
        bench.close(agent).await;
    }
}

#[tokio::test]
async fn a_task_outlives_the_agent_and_its_end_is_found_later() {
    for bench in Bench::both() {
        let first = bench.agent();
        let script = "echo > ready; while [ ! -e go ]; do sleep 0.1; done; exit 6";
        first.driver.start(bench.shell(script)).await.unwrap();
        bench.line("ready").await;
        drop(first);
        let mut second = bench.agent();
        assert_eq!(second.driver.list_attempts().await.unwrap(), [id(1)]);
        assert_eq!(second.recover(None).await, Recovered::Running(Started::default()));
        fs::write(bench.path("task/go"), "").unwrap();
        assert_eq!(second.notice().await.code, 6);
        drop(second);
        let third = bench.agent();
        assert!(matches!(third.recover(None).await, Recovered::Exited(exit) if exit.code == 6));
        bench.close(third).await;
    }
}

#[tokio::test]
async fn end_without_an_agent_is_recovered() {
    for bench in Bench::both() {
        let first = bench.agent();
        first
            .driver
            .start(bench.shell("while [ ! -e go ]; do sleep 0.1; done; echo > done; exit 8"))
            .await
            .unwrap();
        let record = first.record();
        drop(first);
        fs::write(bench.path("task/go"), "").unwrap();
        bench.line("done").await;
        gone(record.shim.pid).await;
        let second = bench.agent();
        assert!(matches!(second.recover(None).await, Recovered::Exited(exit) if exit.code == 8));
        bench.close(second).await;
    }
}

#[tokio::test]
async fn a_dead_supervisor_ends_the_attempt() {
    for bench in Bench::both() {
        let mut agent = bench.agent();
        agent.driver.start(bench.shell("sleep 1000 & echo $! > a; wait")).await.unwrap();
        let (child, record) = (bench.pid("a").await, agent.record());
        kill_supervisor(&record);
        let exit = agent.notice().await;
        assert!(exit.error.contains("was killed or crashed"), "{}", exit.error);
        assert!(!exit.is_success());
        gone(record.task.pid).await;
        gone(child).await;
        bench.close(agent).await;
    }
}

// Regression: the second recovery reported it as running. The planner may recover twice, as at an agent's start, and waited for
// ever.
#[tokio::test]
async fn attempt_whose_supervisor_died_early_stays_lost() {
    for bench in Bench::both() {
        let mut dead = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let start_ticks = process_tree::stat(dead.id()).unwrap().start_ticks;
        let shim = Process { pid: dead.id(), start_ticks };
        dead.kill().unwrap();
        dead.wait().unwrap();
        let agent = bench.agent();
        fs::write(bench.record(), Record { shim, ..Record::claimed() }.to_bytes()).unwrap();
        for _ in 0..2 {
            let recovered = agent.recover(None).await;
            let is_lost =
                matches!(&recovered, Recovered::Lost { why } if why == "its supervisor died before it ran");
            assert!(is_lost, "{recovered:?}");
        }
        bench.close(agent).await;
    }
}

#[tokio::test]
async fn a_supervisor_that_died_unseen_ends_the_attempt() {
    for bench in Bench::both() {
        let first = bench.agent();
        let record = first.begin(bench.shell("exec sleep 1000")).await;
        drop(first);
        kill_supervisor(&record);
        gone(record.shim.pid).await;
        let second = bench.agent();
        match second.recover(None).await {
            Recovered::Exited(exit) => {
                assert!(exit.error.contains("was killed or crashed"), "{}", exit.error)
            }
            // The exit was detected after recovery returned.
            Recovered::Running(_) => {
                let error = second.wait().await.error;
                assert!(error.contains("was killed or crashed"), "{error}");
            }
            other @ (Recovered::NotStarted | Recovered::Lost { .. }) => panic!("{other:?}"),
        }
        gone(record.task.pid).await;
        bench.close(second).await;
    }
}

#[tokio::test]
async fn a_damaged_record_is_a_lost_attempt() {
    let Some(bench) = Bench::with_cgroups() else { return };
    let agent = bench.agent();
    let record = agent.begin(bench.shell("exec sleep 1000")).await;
    drop(agent);
    fs::write(bench.record(), "rubbish").unwrap();
    let agent = bench.agent();
    assert!(matches!(agent.recover(None).await, Recovered::Lost { .. }));
    gone(record.task.pid).await;
    agent.driver.stop(&id(1), stop("SIGTERM", 0)).await.unwrap();
    agent.driver.destroy(&id(1), Leftover::MainMustBeGone).await.unwrap();
    assert!(agent.driver.list_attempts().await.unwrap().is_empty());
    bench.close(agent).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_attempts_at_once() {
    for bench in Bench::both() {
        let agent = bench.agent();
        let began = Instant::now();
        let driver = &agent.driver;
        futures_util::future::join_all((1..=100).map(|attempt| {
            let mut task = bench.task(json!({"command": "sleep", "args": ["1000"]}));
            task.id = id(attempt);
            async move { driver.start(task).await.unwrap() }
        }))
        .await;
        let started = began.elapsed();
        let files = fs::read_dir("/proc/self/fd").unwrap().count();
        let this = &agent;
        futures_util::future::join_all((1..=100).map(|attempt| async move {
            driver.stop(&id(attempt), stop("SIGTERM", 20_000)).await.unwrap();
            assert_eq!(this.end_of(attempt).await.signal, 15);
            driver.destroy(&id(attempt), Leftover::MainMustBeGone).await.unwrap();
        }))
        .await;
        println!("100 started in {started:?} with {files} files, gone after {:?}", began.elapsed());
        assert!(driver.list_attempts().await.unwrap().is_empty());
        bench.close(agent).await;
    }
}

#[tokio::test]
async fn failed_starts_say_why() {
    for bench in Bench::both() {
        let agent = bench.agent();
        // Written by another process: a fork of this one (in another test) could hold the file open for writing, and executing it
        // would fail with ETXTBSY.
        let rubbish = bench.path("task/local/rubbish");
        let mut copy = std::process::Command::new("cp");
        assert!(copy.arg("/etc/passwd").arg(&rubbish).status().unwrap().success());
        let start = async |attempt, config| {
            let mut task = bench.task(config);
            task.id = id(attempt);
            let error = agent.driver.start(task).await.unwrap_err();
            (error.class(), error.why())
        };
        let fatal = herdlet_driver::FailureClass::Fatal;
        let (class, why) = start(1, json!({"command": "no-such-tool"})).await;
        assert_eq!(class, herdlet_driver::FailureClass::NoProgram);
        assert!(why.starts_with("exec \"no-such-tool\": not found in the task's directory /"), "{why}");
        let (class, why) = start(2, json!({"command": "rubbish"})).await;
        assert!(class == fatal && why.starts_with("execute the program: not a program"), "{why}");
        let (class, why) = start(3, json!({"command": "sh", "work_dir": "nowhere"})).await;
        assert!(class == fatal && why.starts_with("change to the working directory: No such file"), "{why}");
        // It was not named, nor was the user.
        assert!(
            why.contains("; the directory is /") && why.ends_with("/nowhere, for the agent's user"),
            "{why}"
        );
        let (class, why) = start(4, json!({"command": "sh", "argz": []})).await;
        assert!(class == fatal && why.contains("argz"), "{why}");
        let mut task = bench.shell("true");
        task.id = id(5);
        task.user = Some("no such user".into());
        let why = agent.driver.start(task).await.unwrap_err().why();
        assert_eq!(why, "find user \"no such user\": it does not exist on this machine");
        let mut task = bench.shell("true");
        task.id.task = "ä".repeat(128);
        let error = agent.driver.start(task).await.unwrap_err();
        assert!(error.class() == fatal && error.why().ends_with("the task's name is too long"), "{error}");
        // None is recovered as one that has run and exited. The next start of one with a record reports the recorded failure.
        for attempt in 1..=5 {
            let recovery = Recovery { id: id(attempt), config: None, handle: None, network: None };
            match (attempt, agent.driver.recover(recovery).await.unwrap()) {
                (_, Recovered::NotStarted) | (1 | 4 | 5, Recovered::Lost { .. }) => {}
                (_, other) => panic!("{attempt}: {other:?}"),
            }
            if attempt == 3 {
                let (class, again) = start(3, json!({"command": "sh", "work_dir": "nowhere"})).await;
                assert!(
                    class == fatal && again.starts_with("change to the working directory: No such file"),
                    "{again}"
                );
            }
            agent.driver.destroy(&id(attempt), Leftover::MainMustBeGone).await.unwrap();
        }
        assert!(agent.driver.list_attempts().await.unwrap().is_empty());
        bench.close(agent).await;
    }
}

#[tokio::test]
async fn secrets_are_not_in_debug_output() {
    let bench = Bench::without_cgroups();
    let task = bench.task(json!({"command": "s3cret"}));
    assert!(!format!("{task:?}").contains("s3cret"));
}
