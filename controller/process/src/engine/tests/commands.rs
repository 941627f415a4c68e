//! Signals and commands in a running task.

use super::*;

#[tokio::test]
async fn signals_reach_the_main_process() {
    for bench in Bench::both() {
        let agent = bench.agent();
        let script = "trap 'exit 5' USR1; echo > ready; while :; do sleep 0.1; done";
        agent.driver.start(bench.shell(script)).await.unwrap();
        bench.line("ready").await;
        assert_eq!(agent.recover(None).await, Recovered::Running(Started::default()));
        agent.driver.signal(&id(1), "SIGNONE").await.unwrap_err();
        agent.driver.signal(&id(1), "SIGUSR1").await.unwrap();
        assert_eq!(agent.wait().await.code, 5);
        assert!(agent.driver.signal(&id(1), "SIGUSR1").await.is_err());
        bench.close(agent).await;
    }
}

#[tokio::test]
async fn commands_run_in_the_task() {
    for bench in Bench::both() {
        let agent = bench.agent();
        agent.driver.start(bench.shell("exec sleep 1000")).await.unwrap();
        let command = |script: &str| vec!["sh".to_owned(), "-c".to_owned(), script.to_owned()];
        let script = "echo $SECRET; pwd; head -c 5000 /dev/zero | tr '\\0' x >&2; exit 7";
        let done = agent.driver.exec(&id(1), &command(script), DEADLINE).await.unwrap();
        assert_eq!(done.exit.code, 7);
        assert_eq!(done.stdout, format!("s3cret\n{}\n", bench.path("task").display()).into_bytes());
        assert_eq!(done.stderr, [b'x'; 4096]);
        let error = agent.driver.exec(&id(1), &["no-such".to_owned()], DEADLINE).await.unwrap_err().why();
        assert!(error.starts_with("exec \"no-such\": not found"), "{error}");
        let slow = command("echo $$ > slow; sleep 1000");
        // Until it starts within its time limit.
        let mut limit = Duration::from_millis(300);
        while !bench.path("task/slow").exists() {
            assert!(agent.driver.exec(&id(1), &slow, limit).await.is_err());
            limit *= 2;
        }
        gone(bench.pid("slow").await).await;
        assert!(lives(agent.record().task.pid));
        if let Some(cgroup) = agent.driver.shared.cgroup(&id(1)) {
            let done = agent.driver.exec(&id(1), &command("cat /proc/self/cgroup"), DEADLINE).await.unwrap();
            let name = cgroup.dir().file_name().unwrap().to_str().unwrap().to_owned();
            assert!(String::from_utf8(done.stdout).unwrap().contains(&name));
        }
        bench.close(agent).await;
    }
}

#[tokio::test]
async fn a_session_has_input_or_a_terminal() {
    for bench in Bench::both() {
        let agent = bench.agent();
        agent.driver.start(bench.shell("exec sleep 1000")).await.unwrap();
        let request = ExecRequest { command: vec!["cat".into()], terminal: None };
        let mut session = agent.driver.exec_streaming(&id(1), request).await.unwrap();
        session.stdin.send(b"hello".to_vec()).await.unwrap();
        assert_eq!(session.stdout.recv().await.unwrap(), b"hello");
        drop(session.stdin);
        assert_eq!(session.exit.await.unwrap().code, 0);
        assert_eq!(session.stdout.recv().await, None);

        // The new size may arrive after input that was typed later.
        let script = "stty size; read x; while stty size | grep -q '^10 20'; do :; done; stty size; tty -s && echo $TERM; exit 3";
        let request = ExecRequest {
            command: vec!["sh".into(), "-c".into(), script.into()],
            terminal: Some(TerminalSize { height: 10, width: 20 }),
        };
        let mut session = agent.driver.exec_streaming(&id(1), request).await.unwrap();
        let mut text = Vec::new();
        while !text.ends_with(b"10 20\r\n") {
            text.extend(session.stdout.recv().await.unwrap());
        }
        session.resize.send(TerminalSize { height: 30, width: 40 }).await.unwrap();
        session.stdin.send(b"\n".to_vec()).await.unwrap();
        while let Some(bytes) = session.stdout.recv().await {
            text.extend(bytes);
        }
        assert_eq!(String::from_utf8(text).unwrap(), "10 20\r\n\r\n30 40\r\nxterm\r\n");
        assert_eq!(session.exit.await.unwrap().code, 3);
        bench.close(agent).await;
    }
}

#[tokio::test]
async fn a_dropped_session_ends_its_command() {
    for bench in Bench::both() {
        let agent = bench.agent();
        agent.driver.start(bench.shell("exec sleep 1000")).await.unwrap();
        let request = ExecRequest {
            command: vec!["sh".into(), "-c".into(), "echo $$ > a; sleep 1000".into()],
            terminal: Some(TerminalSize::default()),
        };
        let session = agent.driver.exec_streaming(&id(1), request).await.unwrap();
        let pid = bench.pid("a").await;
        drop(session);
        gone(pid).await;
        bench.close(agent).await;
    }
}
