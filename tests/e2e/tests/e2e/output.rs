//! Output of commands: write errors, closed pipes, logs that are followed across replacements.

use std::{
    cell::RefCell,
    io::Read as _,
    process::{Command, Stdio},
    time::Duration,
};

use herdlet_e2e::{agent::Agent, ports, program::program, wait};

use crate::common::{is_root, job, shell};

#[test]
fn broken_stdout_is_an_error_and_closed_pipe_an_end() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    agent.apply_and_wait(&job(
        "chat",
        "service",
        "",
        &[shell("t", "while echo said; do sleep 0.1; done", "")],
    ));
    let full = || std::fs::File::options().write(true).open("/dev/full").unwrap();
    for (arguments, code) in [
        (["get", "jobs"].as_slice(), 1),
        (&["schema"], 1),
        (&["logs", "chat"], 1),
        (&["exec", "chat", "--", "echo", "x"], 125),
    ] {
        let status = agent.command(arguments).stdout(full()).status().unwrap();
        assert_eq!(status.code(), Some(code), "{arguments:?}");
    }
    // The reason can't be printed anywhere.
    let status = agent.command(&["status", "nobody"]).stderr(full()).status().unwrap();
    assert_eq!(status.code(), Some(1));
    let status = agent.command(&["restart", "chat", "--wait"]).stderr(full()).status().unwrap();
    assert_eq!(status.code(), Some(0));
    for (arguments, code) in [
        (["logs", "-f", "chat"].as_slice(), 0),
        (&["status", "--watch"], 0),
        (&["get", "jobs", "--watch"], 0),
        (&["exec", "chat", "--", "yes"], 141),
    ] {
        let mut running = agent.command(arguments).stdout(Stdio::piped()).spawn().unwrap();
        running.stdout.take().unwrap().read_exact(&mut [0]).unwrap();
        let running = RefCell::new(running);
        let ended = || running.borrow_mut().try_wait().unwrap();
        wait::until_true(&format!("{arguments:?} ends"), || ended().is_some());
        assert_eq!(ended().unwrap().code(), Some(code), "{arguments:?}");
    }
    agent.finish();
}

/// The follower used to stay with the old file, and print nothing more.
#[test]
fn followed_log_survives_removal_truncation_and_rename() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    let script = "i=0; while echo tick $i; do i=$((i+1)); sleep 0.02; done";
    agent.apply_and_wait(&job("tick", "service", "", &[shell("t", script, "")]));
    let alloc = agent.alloc("tick.g[0]").unwrap().id();
    let log = agent.home.state().join("alloc").join(alloc).join("alloc/logs/t.stdout.0");
    let running = agent.spawn(&["logs", "-f", "tick", "--no-prefix", "-n", "1"]);
    running.until_stdout("tick");
    let later = || {
        let text = running.stdout();
        let last = text.lines().filter_map(|line| line.strip_prefix("tick ")?.parse::<u64>().ok()).max();
        format!("tick {}\n", last.unwrap_or_default() + 20)
    };
    for what in ["remove", "truncate", "rename", "remove"] {
        wait::until_true("the log has its file", || log.exists());
        match what {
            "remove" => std::fs::remove_file(&log).unwrap(),
            "truncate" => std::fs::File::options().write(true).open(&log).unwrap().set_len(0).unwrap(),
            _ => std::fs::rename(&log, log.with_extension("0.old")).unwrap(),
        }
        running.until_stdout(&later());
    }
    running.signal(rustix::process::Signal::INT);
    running.finish().success();
    agent.finish();
}

/// Text without colours lost all lines after an unfinished escape sequence, and every byte that is not UTF-8.
#[test]
fn logs_through_a_pipe_are_the_bytes_that_the_task_wrote() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    let script = r"echo one; printf 'Gr\374\337e\n'; printf 'two \033]0;title\n'; printf '\033[31mred\033[0m\n'; echo ERROR; sleep 100000";
    agent.apply_and_wait(&job("talk", "service", "", &[shell("t", script, "")]));
    let file = || agent.command(&["fs", "cat", "talk", "alloc/logs/t.stdout.0"]).output().unwrap().stdout;
    wait::until_true("everything is written", || file().ends_with(b"ERROR\n"));
    for more in [[].as_slice(), &["--color", "always"], &["-f", "-n", "100"]] {
        let mut command = agent.command(&[&["logs", "talk", "--no-prefix"], more].concat());
        let mut running = command.env("NO_COLOR", "1").stdout(Stdio::piped()).spawn().unwrap();
        let mut bytes = vec![0; file().len()];
        running.stdout.take().unwrap().read_exact(&mut bytes).unwrap();
        running.kill().unwrap();
        running.wait().unwrap();
        assert_eq!(bytes, file(), "{more:?}: {}", String::from_utf8_lossy(&bytes));
    }
    agent.finish();
}

#[test]
fn simulate_fails_if_no_node_is_ready() {
    let [port] = ports::free();
    let gone = format!("127.0.0.1:{port}");
    let output = Command::new(program())
        .args(["simulate", "--servers", &gone, "--nodes", "20", "--for", "8s"])
        .output()
        .unwrap();
    let printed = String::from_utf8(output.stderr).unwrap();
    let why =
        format!("error: no node is ready: failed to reach a server: connect to {gone}: Connection refused");
    assert_eq!(output.status.code(), Some(1), "{printed}");
    assert!(printed.starts_with(&why) && printed.lines().count() == 2, "no message for each node: {printed}");
}

#[test]
fn followed_job_logs_include_replacements() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    let text = |line: &str| {
        job(
            "chat",
            "service",
            "count: 2",
            &[shell("t", &format!("while echo {line}; do sleep 0.2; done"), "")],
        )
    };
    agent.apply_and_wait(&text("first"));
    let logs = agent.spawn(&["logs", "-f", "chat"]);
    logs.until_stdout("first");
    agent.apply_and_wait(&text("second"));
    for name in ["chat.g[0]/t | second", "chat.g[1]/t | second"] {
        logs.until_stdout(name);
    }
    agent.cli(&["delete", "chat", "--wait"]).success();
    assert_eq!(logs.finish().code, 0, "the command ends with the job");
    agent.finish();
}

#[test]
fn logs_since_a_moment_are_those_that_were_written_since() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    let gate = agent.home.path().join("gate");
    let script = format!(
        "echo early; until test -e {}; do sleep 0.1; done; echo late; exec sleep 100000",
        gate.display()
    );
    agent.apply_and_wait(&job("chat", "service", "", &[shell("t", &script, "")]));
    let follow = agent.spawn(&["logs", "-f", "chat"]);
    follow.until_stdout("early");
    // The time of a log line is known to within ten seconds.
    wait::pause(Duration::from_secs(12));
    let date = Command::new("date").args(["-u", "+%Y-%m-%dT%H:%M:%SZ"]).output().unwrap().stdout;
    let between = String::from_utf8(date).unwrap().trim().to_owned();
    wait::pause(Duration::from_secs(2));
    std::fs::write(gate, "").unwrap();
    follow.until_stdout("late");
    let logs_of = |arguments: &[&str]| {
        let arguments = [["logs", "chat"].as_slice(), arguments].concat();
        agent.cli(&arguments).success().stdout
    };
    assert_eq!(logs_of(&["--since", "1h"]), "early\nlate\n");
    assert_eq!(logs_of(&["--since", &between]), "late\n");
    assert_eq!(logs_of(&["--since", "1h", "--tail", "1"]), "late\n");
    for (time, why) in [("2999-01-01T00:00:00Z", "future"), ("yesterday", "2026-01-02T15:04:05Z")] {
        let refused = agent.cli(&["logs", "chat", "--since", time]).ended(2).stderr;
        assert!(refused.contains(why), "{refused}");
    }
    agent.finish();
}

// Regression: followers of a log saw a prompt only after it was answered.
#[test]
fn followed_log_shows_partial_lines_and_a_lost_agent() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    let ask = "printf 'your name? '; sleep 100000";
    agent.apply_and_wait(&job("chat", "service", "", &[shell("t", ask, "")]));
    let ends: [fn(&mut Agent); 2] = [Agent::kill, |agent| assert!(agent.terminate().success())];
    for end in ends {
        let labelled = agent.spawn(&["logs", "-f", "chat"]);
        labelled.until_stdout("chat.g[0]/t | your name? ");
        let id = agent.alloc("chat.g[0]").unwrap().id();
        let alone = agent.spawn(&["logs", "-f", "--stdout", &id]);
        alone.until_stdout("your name? ");
        end(&mut agent);
        // Without labels, the output of a task is not altered.
        for (logs, last) in [(labelled, "your name? \n"), (alone, "your name? ")] {
            let ended = logs.finish().ended(1);
            assert!(ended.stdout.ends_with(last), "{:?}", ended.stdout);
            assert!(
                ended.stderr.contains("the agent ended while its logs were being read"),
                "{}",
                ended.stderr
            );
            assert!(!ended.stderr.contains("body") && !ended.stderr.contains("message"), "{}", ended.stderr);
        }
        agent.launch();
    }
    agent.finish();
}

/// One task's names in the directory of logs denied `herdlet logs` of all jobs.
#[test]
fn a_directory_full_of_planted_names_hides_no_log() {
    let mut agent = Agent::start();
    let plants = "cd \"$NOMAD_ALLOC_DIR/logs\"; n=0; while [ $n -le 10001 ]; do : > planted.$n; n=$((n+1)); done; echo full; exec sleep 100000";
    let tasks = [shell("web", "echo one; exec sleep 100000", ""), shell("other", plants, "")];
    agent.apply_and_wait(&job("two", "service", "", &tasks));
    let alloc = agent.alloc("two.g[0]").unwrap().id();
    agent.until_logged(&alloc, "other", "stdout", |log| log == "full\n");
    for arguments in [&["logs", "two", "--task", "web"][..], &["logs", "two"], &["logs"]] {
        let output = agent.cli(arguments).success();
        assert!(output.stdout.contains("one"), "{arguments:?}: {output:?}");
        assert!(output.stderr.contains("are not in the order of their last writes"), "{output:?}");
    }
    agent.finish();
}

// Regression: readers and the next supervisor took the file for the newest part of the log, and the
// supervisor removed all others.
#[test]
fn planted_log_file_hides_nothing() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    let plants = "echo one; sleep 0.5; echo planted > \"$NOMAD_ALLOC_DIR/logs/t.stdout.999999\"; echo two; exec sleep 100000";
    agent.apply_and_wait(&job("chat", "service", "", &[shell("t", plants, "")]));
    let logs = agent.spawn(&["logs", "-f", "chat", "--no-prefix"]);
    logs.until_stdout("one\ntwo\n");
    agent.cli(&["restart", "chat", "--wait"]).success();
    logs.until_stdout("one\ntwo\none\ntwo\n");
    let logs_of = |arguments: &[&str]| agent.cli(&[&["logs", "chat"], arguments].concat()).success().stdout;
    assert_eq!(logs_of(&[]), "one\ntwo\none\ntwo\n");
    assert_eq!(logs_of(&["--tail", "1"]), "two\n");
    assert_eq!(logs_of(&["--since", "1h"]), "one\ntwo\none\ntwo\n");
    agent.cli(&["delete", "chat", "--wait"]).success();
    assert_eq!(logs.finish().code, 0);
    agent.finish();
}
