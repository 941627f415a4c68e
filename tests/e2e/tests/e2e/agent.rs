//! The long-running agent and its command line: apply, update, restart, delete, logs, exec, explain, status.

use std::time::Duration;

use herdlet_e2e::{
    agent::{Agent, Setup},
    environment, host,
    http::{self, Peer},
    ports, wait,
};

use crate::common::{is_root, job, shell, sleeper};

#[test]
fn a_job_is_applied_shown_and_deleted() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    agent.apply_and_wait(&job("plain", "service", "", &[sleeper("t", "")]));
    let member = agent.single("plain.g[0]", "t");
    assert_eq!(host::arguments(member.pid).unwrap(), ["/bin/sleep", "100000"]);

    let status = agent.cli(&["status", "--check"]).success();
    assert!(status.stdout.contains("plain"), "{status:?}");
    let jobs = agent.cli(&["get", "jobs"]).success().stdout;
    assert!(jobs.contains("plain"), "{jobs}");
    let allocs = agent.cli(&["get", "allocs", "-o", "json"]).success().stdout;
    let allocs: serde_json::Value = serde_json::from_str(&allocs).unwrap();
    assert_eq!(allocs[0]["Name"], "plain.g[0]");
    assert_eq!(allocs[0]["TaskStates"]["t"]["State"], "running");
    let explained = agent.cli(&["explain", "plain"]).success().stdout;
    assert!(explained.contains("plain.g[0]"), "{explained}");

    // Applying the same job again changes nothing, and does not restart it.
    let before = agent.alloc("plain.g[0]").unwrap();
    agent.apply_and_wait(&job("plain", "service", "", &[sleeper("t", "")]));
    assert_eq!(agent.single("plain.g[0]", "t"), member);
    assert_eq!(agent.alloc("plain.g[0]").unwrap().events("t"), before.events("t"));

    agent.cli(&["delete", "plain", "--wait"]).success();
    assert!(!host::is_alive(member.pid));
    agent.finish();
}

#[test]
fn a_changed_spec_replaces_the_task_and_the_last_version_wins() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    let version = |seconds: u32| {
        let task = format!(
            "        - name: t\n          driver: raw_exec\n          config: {{command: /bin/sleep, args: [\"{seconds}\"]}}\n"
        );
        job("changing", "service", "", &[task])
    };
    agent.apply_and_wait(&version(1001));
    let first = agent.single("changing.g[0]", "t");
    agent.apply_and_wait(&version(1002));
    let second = agent.single("changing.g[0]", "t");
    assert_ne!(first.pid, second.pid);
    assert!(!host::is_alive(first.pid));
    assert_eq!(host::arguments(second.pid).unwrap(), ["/bin/sleep", "1002"]);
    // A newer version replaces one that is still rolling out.
    for seconds in 1003..1008 {
        agent.apply(&version(seconds));
    }
    agent.cli(&["wait", "changing"]).success();
    let wanted = ["/bin/sleep", "1007"];
    wait::until_true("only the last version runs", || {
        let members = agent.members();
        members.len() == 1
            && members.iter().all(|member| host::arguments(member.pid).is_some_and(|args| args == wanted))
    });
    agent.finish();
}

#[test]
fn changed_count_keeps_other_allocations() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    agent.apply_and_wait(&job("scaled", "service", "count: 2", &[sleeper("t", "")]));
    let zero = agent.single("scaled.g[0]", "t");
    agent.apply_and_wait(&job("scaled", "service", "count: 4", &[sleeper("t", "")]));
    assert_eq!(agent.members().len(), 4);
    assert_eq!(agent.single("scaled.g[0]", "t"), zero);
    agent.apply_and_wait(&job("scaled", "service", "count: 1", &[sleeper("t", "")]));
    wait::until_true("one copy remains", || agent.members() == [zero.clone()]);
    agent.finish();
}

#[test]
fn restarts_of_one_task_of_the_running_ones_and_of_all() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    let once = shell("once", "exit 0", "lifecycle: {hook: prestart}");
    agent.apply_and_wait(&job("again", "service", "", &[once, sleeper("a", ""), sleeper("b", "")]));
    let (a, b) = (agent.single("again.g[0]", "a"), agent.single("again.g[0]", "b"));

    agent.cli(&["restart", "again", "--task", "a"]).success();
    wait::until_true("a is another process", || {
        agent.members().iter().any(|m| m.task == "a" && m.pid != a.pid)
    });
    assert_eq!(agent.single("again.g[0]", "b"), b, "b was not restarted");

    agent.until_running("again.g[0]", "a");
    agent.cli(&["restart", "again", "--wait"]).success();
    assert_ne!(agent.single("again.g[0]", "b").pid, b.pid, "b was restarted");
    let alloc = agent.until_alloc("again.g[0]", "runs again", |alloc| {
        alloc.state("a") == "running" && alloc.state("b") == "running"
    });
    let started = |events: &[String]| events.iter().filter(|kind| *kind == "Started").count();
    assert_eq!(
        started(&alloc.events("once")),
        1,
        "an ended task was not restarted: {:?}",
        alloc.events("once")
    );

    agent.cli(&["restart", "again", "--all"]).success();
    agent.until_alloc("again.g[0]", "ran its prestart task again", |alloc| {
        started(&alloc.events("once")) == 2
    });
    agent.until_running("again.g[0]", "b");

    let refused = agent.cli(&["restart", "again", "--task", "once"]);
    assert_ne!(refused.code, 0, "a named task that isn't running is an error");
    assert_ne!(agent.cli(&["restart", "again", "--task", "nobody"]).code, 0);
    assert_ne!(agent.cli(&["restart", "again", "--task", "a", "--all"]).code, 0);
    agent.finish();
}

#[test]
fn failing_task_is_restarted_by_its_policy_then_fails() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    let policy = "restart: {attempts: 2, interval: 10m, delay: 100ms, mode: fail}";
    let path = agent.manifest(&job("weak", "batch", policy, &[shell("t", "echo try; exit 3", "")]));
    let output = agent.cli(&["apply", "--wait", "-f", &path.display().to_string()]);
    assert_eq!(output.code, 1, "failed permanently: {output:?}");
    let alloc = agent.until_alloc("weak.g[0]", "failed", |alloc| alloc.status() == "failed");
    assert_eq!(alloc.restarts("t"), 2);
    assert_eq!(alloc.exit_codes("t"), [3, 3, 3]);
    agent.until_printed(&["logs", "weak"], |printed| printed.matches("try").count() == 3);
    assert_eq!(agent.cli(&["status", "--check"]).code, 2);
    agent.finish();
}

/// Only its exit code was shown.
#[test]
fn last_output_of_a_task_that_waits_for_its_restart_is_shown() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    let policy = "restart: {attempts: 9, interval: 1h, delay: 5m, mode: delay}";
    agent.apply(&job(
        "crash",
        "service",
        policy,
        &[shell("t", "echo out; echo first >&2; echo why >&2; exit 3", "")],
    ));
    for command in ["status", "explain"] {
        agent.until_printed(&[command, "crash"], |printed| printed.contains("t/stderr | why"));
    }
    let status = agent.cli(&["status", "crash"]).success().stdout;
    assert!(!status.contains("first"), "the last line only: {status}");
    agent.finish();
}

#[test]
fn logs_run_on_over_restarts_of_the_task_and_are_followed() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    let script = "echo out $$; echo err $$ >&2; trap 'echo bye $$; exit 0' INT; while :; do sleep 0.05; done";
    agent.apply_and_wait(&job("talker", "service", "", &[shell("t", script, "")]));
    let follow = agent.spawn(&["logs", "-f", "talker"]);
    follow.until_stdout("out ");
    let first = agent.until_running("talker.g[0]", "t").first().unwrap().pid;
    agent.cli(&["restart", "talker"]).success();
    wait::until_true("both outputs are followed", || follow.stdout().matches("out ").count() == 2);
    let id = agent.alloc("talker.g[0]").unwrap().id();
    agent.until_logged(&id, "t", "stderr", |output| output.matches("err ").count() == 2);
    agent.until_logged(&id, "t", "stdout", |output| output.contains("bye "));
    // Standard error of tasks is printed on standard error.
    let all = agent.cli(&["logs", "talker"]).success();
    assert!(
        all.stdout.contains(&format!("out {first}")) && all.stdout.contains(&format!("bye {first}")),
        "{all:?}"
    );
    assert!(all.stderr.contains(&format!("err {first}")), "{all:?}");
    let some = agent.cli(&["logs", "talker", "--stderr", "--no-prefix"]).success();
    let lines = format!("{}{}", some.stdout, some.stderr);
    assert!(lines.lines().count() == 2 && lines.lines().all(|line| line.starts_with("err ")), "{some:?}");
    follow.signal(rustix::process::Signal::INT);
    follow.finish();
    agent.finish();
}

#[test]
fn exec_passes_output_input_exit_code_and_terminal() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    agent.apply_and_wait(&job("host", "service", "", &[sleeper("t", "")]));
    let member = agent.single("host.g[0]", "t");
    let script = "echo out; echo err >&2; echo $NOMAD_ALLOC_NAME; cat /proc/self/cgroup; test -t 0 || echo no tty; exit 7";
    let output = agent.cli(&["exec", "host", "--", "sh", "-c", script]);
    assert_eq!(output.code, 7, "{output:?}");
    assert!(output.stdout.starts_with("out\nhost.g[0]\n") && output.stdout.contains("no tty"), "{output:?}");
    assert!(output.stderr.contains("err"), "{output:?}");
    let instance = agent.home.instance().unwrap();
    assert!(output.stdout.contains(&instance), "the command runs in the instance's cgroups: {output:?}");

    assert_eq!(agent.cli(&["exec", "host", "--", "/does/not/exist"]).code, 127);
    assert_eq!(agent.cli(&["exec", "nothing", "--", "true"]).code, 125);

    let mut command = agent.command(&["exec", "-i", "host", "--", "cat"]);
    command.stdin(std::fs::File::open(agent.home.write("input", "from outside\n")).unwrap());
    let output = herdlet_e2e::command::Running::start(command).finish().success();
    assert_eq!(output.stdout, "from outside\n");

    if let Some(python) = environment::component(environment::PYTHON) {
        // Run our client in a terminal, as a user would; typed text and the terminal size arrive.
        let program = herdlet_e2e::program::program().display().to_string();
        let script = "import os,pty,sys\npid,fd=pty.fork()\nif pid==0: os.execv(sys.argv[1],sys.argv[1:])\nos.write(fd,b'tty; echo typed-$((40+2)); exit 5\\n')\nout=b''\nwhile True:\n  try: data=os.read(fd,4096)\n  except OSError: break\n  if not data: break\n  out+=data\nsys.stdout.buffer.write(out)\nsys.exit(os.waitstatus_to_exitcode(os.waitpid(pid,0)[1]))\n";
        let mut command = herdlet_e2e::command::prepare(
            &agent.home,
            herdlet_e2e::command::User::Same,
            &python,
            &["-c", script, &program, "exec", "-it", "host", "--", "sh"],
        );
        command.env("TERM", "xterm");
        let output = herdlet_e2e::command::Running::start(command).finish();
        assert_eq!(output.code, 5, "{output:?}");
        assert!(output.stdout.contains("/dev/pts/") && output.stdout.contains("typed-42"), "{output:?}");
    }
    assert_eq!(agent.single("host.g[0]", "t"), member, "the task is unchanged, and no session remains");
    agent.finish();
}

#[test]
fn actions_run_named_commands_of_the_allocations_version() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    let actions = |word: &str| {
        format!(
            "actions: [{{name: greet, command: sh, args: [-c, 'echo {word} $NOMAD_TASK_NAME; exit 7']}}, {{name: gone, command: /does/not/exist}}]"
        )
    };
    let tasks = |word: &str| [sleeper("other", ""), sleeper("t", &actions(word))];
    agent.apply_and_wait(&job("host", "service", "", &tasks("hello")));
    let members = agent.members();
    let listed = agent.cli(&["action", "host"]).success().stdout;
    assert!(listed.contains("greet") && listed.contains("gone") && !listed.contains("other"), "{listed}");
    let listed = agent.cli(&["action", "host", "-o", "json"]).success().stdout;
    let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
    assert_eq!(listed["actions"][0]["command"][0], "sh", "{listed}");
    for target in ["host", "host.g", "host.g[0]", "host.g[0]/t"] {
        let output = agent.cli(&["action", target, "greet"]);
        assert_eq!((output.code, output.stdout.as_str()), (7, "hello t\n"), "{target}: {output:?}");
        assert!(output.stderr.contains("in host.g[0]/t"), "{output:?}");
    }
    let output = agent.cli(&["job", "action", "-job=host", "-group=g", "-task=t", "greet"]);
    assert_eq!((output.code, output.stdout.as_str()), (7, "hello t\n"), "{output:?}");
    assert_eq!(agent.cli(&["action", "host", "gone"]).code, 127);
    for (target, action, why) in [
        ("host", "none", "its actions: greet, gone"),
        ("host.g[0]/other", "greet", "has no action"),
        ("nothing", "greet", "nothing"),
    ] {
        let output = agent.cli(&["action", target, action]);
        assert!(output.code == 125 && output.stderr.contains(why), "{output:?}");
    }
    // Paths of the API, as Nomad's own command line requests them.
    let get = |path: &str| http::get(&agent.peer(), path).unwrap();
    let listed: serde_json::Value = serde_json::from_str(&get("/v1/job/host/actions").body).unwrap();
    assert_eq!(
        (&listed[0]["Name"], &listed[0]["TaskName"], &listed[0]["TaskGroupName"]),
        (&"greet".into(), &"t".into(), &"g".into())
    );
    let alloc = &members[0].alloc;
    for (query, status, why) in [
        (format!("action=greet&allocID={alloc}"), 400, "\"task\" is missing"),
        (format!("task=t&allocID={alloc}"), 400, "\"action\" is missing"),
        (format!("action=none&task=t&allocID={alloc}"), 404, "action \"none\" not found in task \"t\""),
        (format!("action=greet&task=t&allocID={alloc}"), 400, "requires a websocket"),
        ("action=greet&task=t&allocID=x".to_owned(), 404, "Unknown allocation"),
    ] {
        let answer = get(&format!("/v1/job/host/action?{query}"));
        assert!(answer.status == status && answer.body.contains(why), "{query}: {answer:?}");
    }
    let answer = get(&format!("/v1/job/another/action?action=greet&task=t&allocID={alloc}"));
    assert!(answer.status == 400 && answer.body.contains("is not of job"), "{answer:?}");
    // Another text of an action is a new version that replaces nothing.
    agent.apply_and_wait(&job("host", "service", "", &tasks("hi")));
    assert_eq!(agent.cli(&["action", "host", "greet"]).stdout, "hi t\n");
    assert_eq!(agent.members(), members);
    agent.finish();
}

#[test]
fn sessions_of_exec_end_with_the_agent_and_the_task_does_not() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    agent.apply_and_wait(&job("host", "service", "", &[sleeper("t", "")]));
    let member = agent.single("host.g[0]", "t");
    let session = agent.spawn(&["exec", "host", "--", "sh", "-c", "echo up; sleep 1000"]);
    session.until_stdout("up");
    agent.terminate();
    session.finish();
    assert!(host::is_alive(member.pid));
    agent.launch();
    wait::until_true("the session's processes are gone", || agent.members() == [member.clone()]);
    agent.finish();
}

#[test]
fn two_agents_on_one_machine_never_meet() {
    if !is_root() {
        return;
    }
    let mut one = Agent::start();
    let mut two = Agent::start();
    let text = job("same", "service", "", &[sleeper("t", "")]);
    one.apply_and_wait(&text);
    two.apply_and_wait(&text);
    let (first, second) = (one.single("same.g[0]", "t"), two.single("same.g[0]", "t"));
    assert_ne!(first.alloc, second.alloc);
    // At its start, an agent removes cgroups without an owner, but not those of another agent.
    one.crash();
    assert!(host::is_alive(second.pid));
    one.cli(&["delete", "same", "--wait"]).success();
    assert!(!host::is_alive(first.pid));
    assert_eq!(two.single("same.g[0]", "t"), second);
    one.finish();
    two.finish();
}

#[test]
fn second_agent_on_a_state_directory_is_refused() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    agent.apply_and_wait(&job("mine", "service", "", &[sleeper("t", "")]));
    let member = agent.single("mine.g[0]", "t");
    let state = agent.home.state().display().to_string();
    let other = agent.home.path().join("other").display().to_string();
    for socket in [agent.home.socket().display().to_string(), other] {
        let output = agent.cli(&["agent", "--state-dir", &state, "--socket", &socket]);
        assert_ne!(output.code, 0);
        assert!(output.stderr.contains(&state) && output.stderr.contains("another agent"), "{output:?}");
    }
    assert_eq!(agent.single("mine.g[0]", "t"), member);
    agent.cli(&["status"]).success();
    agent.finish();
}

#[test]
fn sigterm_keeps_tasks_and_a_new_agent_adopts_them() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    let talker = shell("talker", "i=0; while :; do i=$((i+1)); echo tick $i; sleep 0.05; done", "");
    agent.apply_and_wait(&job("long", "service", "", &[sleeper("t", ""), talker]));
    let member = agent.single("long.g[0]", "t");
    let before = agent.alloc("long.g[0]").unwrap();
    let started = host::start_time(member.pid);
    let status = agent.terminate();
    assert!(status.success(), "{status}");
    assert!(!agent.home.socket().exists(), "the socket is removed when the agent exits");
    assert_eq!(host::start_time(member.pid), started);
    agent.launch();
    let after = agent.until_alloc("long.g[0]", "runs", |alloc| alloc.status() == "running");
    assert_eq!(agent.single("long.g[0]", "t"), member);
    assert_eq!(after.id(), before.id());
    for task in ["t", "talker"] {
        assert_eq!(after.events(task), before.events(task));
        assert_eq!(after.restarts(task), 0);
    }
    // No output was lost meanwhile.
    let log = agent.task_log(&after.id(), "talker", "stdout");
    for (line, expected) in log.lines().zip(1..) {
        assert_eq!(line, format!("tick {expected}"));
    }
    let count = log.lines().count();
    wait::until_true("the task keeps ticking", || {
        agent.task_log(&after.id(), "talker", "stdout").lines().count() > count + 2
    });
    agent.finish();
}

#[test]
fn end_without_an_agent_is_recovered_with_its_exit_code() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    let policy = "restart: {attempts: 1, interval: 10m, delay: 100ms, mode: fail}";
    let gate = agent.home.path().join("gate");
    let waits = |code: u32| {
        format!("until test -e {}; do sleep 0.02; done; echo last words; exit {code}", gate.display())
    };
    agent.apply_and_wait(&job("ends", "service", policy, &[shell("bad", &waits(9), "")]));
    agent.apply(&job("done", "batch", policy, &[shell("good", &waits(0), "")]));
    let old = agent.until_running("ends.g[0]", "bad").first().unwrap().clone();
    let good = agent.until_running("done.g[0]", "good").first().unwrap().clone();
    agent.terminate();
    agent.home.write("gate", "");
    wait::until_true("both have ended", || !host::is_alive(old.pid) && !host::is_alive(good.pid));
    agent.launch();
    agent.cli(&["wait", "done"]).success();
    let alloc = agent.until_alloc("done.g[0]", "complete", |alloc| alloc.status() == "complete");
    assert_eq!(alloc.exit_codes("good"), [0]);
    agent.until_logged(&alloc.id(), "good", "stdout", |output| output.contains("last words"));
    // The gate stays open: the second attempt fails too, and the policy allows no third one.
    let alloc = agent.until_alloc("ends.g[0]", "failed", |alloc| alloc.failed("bad"));
    assert_eq!(alloc.exit_codes("bad"), [9, 9]);
    agent.finish();
}

#[test]
fn invalid_input_changes_nothing_and_has_exit_codes() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    agent.apply_and_wait(&job("good", "service", "", &[sleeper("t", "")]));
    let member = agent.single("good.g[0]", "t");
    let index = agent.alloc("good.g[0]").unwrap().0["ModifyIndex"].clone();
    let changed = job("good", "service", "", &[shell("t", "exit 0", "")]);
    let bad: [(&str, &str, &str); 7] = [
        (
            "an unknown field",
            "apiVersion: herdlet/v1\nkind: Job\nmetadata: {name: x}\nspec: {tpye: batch}\n",
            "type",
        ),
        ("no YAML", "a: [1, 2\n", ":"),
        ("a second key", "apiVersion: herdlet/v1\nkind: Job\nkind: Job\n", "kind"),
        (
            "a duration without unit",
            "apiVersion: herdlet/v1\nkind: Job\nmetadata: {name: x}\nspec: {type: batch, groups: [{name: g, shutdown_delay: 5, tasks: [{name: t, driver: raw_exec, config: {command: x}}]}]}\n",
            "5s",
        ),
        (
            "no driver of that name",
            "apiVersion: herdlet/v1\nkind: Job\nmetadata: {name: x}\nspec: {type: batch, groups: [{name: g, tasks: [{name: t, driver: raw_exce, config: {command: x}}]}]}\n",
            "raw_exec",
        ),
        (
            "a job name that leaves its directory",
            "apiVersion: herdlet/v1\nkind: Job\nmetadata: {name: ../x}\nspec: {type: batch, groups: [{name: g, tasks: [{name: t, driver: raw_exec, config: {command: x}}]}]}\n",
            "name",
        ),
        ("nothing", "\n", ""),
    ];
    for (what, text, hint) in bad {
        // The valid document before it must not be applied either.
        let path = agent.manifest(&format!("{changed}---\n{text}"));
        let path = path.display().to_string();
        if what == "nothing" {
            continue;
        }
        for (command, code) in
            [(vec!["validate", &path], 1), (vec!["apply", "-f", &path], 2), (vec!["run", &path], 125)]
        {
            let output = agent.cli(&command);
            assert_eq!(output.code, code, "{what}: {command:?}: {output:?}");
            assert!(output.stderr.contains(&path), "{what}: no position: {output:?}");
            assert!(output.stderr.contains(hint), "{what}: no hint {hint:?}: {output:?}");
        }
    }
    assert_eq!(agent.cli(&["apply", "-f", "/does/not/exist.yaml"]).code, 2);
    assert_ne!(agent.cli(&["apply"]).code, 0);
    assert_eq!(agent.single("good.g[0]", "t"), member);
    assert_eq!(agent.alloc("good.g[0]").unwrap().0["ModifyIndex"], index);
    agent.finish();
}

#[test]
fn tcp_requires_a_token_and_metrics_serve_nothing_else() {
    let agent = Agent::prepare(Setup::default());
    let mut arguments = agent.agent_arguments();
    arguments.extend(["--listen".to_owned(), "127.0.0.1:0".to_owned()]);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let refused = agent.cli(&arguments);
    assert_eq!(refused.code, 2, "{refused:?}");
    assert!(refused.stderr.contains("token"), "{refused:?}");

    let [port] = ports::free();
    let mut agent = Agent::start_with(
        Setup::default().argument("--metrics-listen").argument(format!("127.0.0.1:{port}")),
    );
    agent.apply_and_wait(&job("counted", "batch", "", &[shell("t", "exit 0", "")]));
    let status = |path: &str| http::get(&Peer::Port(port), path).map(|answer| answer.status);
    for path in ["/metrics", "/healthz", "/readyz"] {
        assert_eq!(status(path), Some(200), "{path}");
    }
    for path in ["/v1/allocations", "/v1/metrics", "/v1/agent/self", "/"] {
        assert_eq!(status(path), Some(404), "{path}");
    }
    let page = http::get(&Peer::Port(port), "/metrics").unwrap().body;
    assert!(page.contains("herdlet_objects{") && page.contains("herdlet_convergence_lag_seconds"), "{page}");
    agent.finish();
}

#[test]
fn the_address_of_a_nomad_is_never_used() {
    if !is_root() {
        return;
    }
    let agent = Agent::start();
    let nomad = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    nomad.set_nonblocking(true).unwrap();
    let mut command = agent.command(&["get", "jobs"]);
    command.env("NOMAD_ADDR", format!("http://{}", nomad.local_addr().unwrap()));
    herdlet_e2e::command::Running::start(command).finish().success();
    let mut command = agent.command(&["get", "jobs"]);
    command.env("NOMAD_ADDR", format!("http://{}", nomad.local_addr().unwrap()));
    command.env_remove("HERDLET_ADDR").env("XDG_RUNTIME_DIR", agent.home.path());
    herdlet_e2e::command::Running::start(command).finish();
    assert!(nomad.accept().is_err(), "no connection to NOMAD_ADDR");
    agent.finish();
}

#[test]
fn ended_task_is_not_restarted_by_a_new_agent() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    let never = "restart: {attempts: 0, mode: fail}";
    agent.apply_and_wait(&job("good", "batch", never, &[shell("t", "echo ran", "")]));
    agent.apply(&job("bad", "batch", never, &[shell("t", "echo ran; exit 4", "")]));
    let ended = |agent: &Agent| {
        let good = agent.until_alloc("good.g[0]", "complete", |alloc| alloc.status() == "complete");
        let bad = agent.until_alloc("bad.g[0]", "failed", |alloc| alloc.status() == "failed");
        [good, bad].map(|alloc| {
            let output = agent.until_logged(&alloc.id(), "t", "stdout", |output| !output.is_empty());
            (alloc.id(), alloc.events("t"), output)
        })
    };
    let before = ended(&agent);
    assert!(before.iter().all(|(_, _, log)| log == "ran\n"), "{before:?}");
    for _ in 0..2 {
        agent.crash();
        wait::pause(Duration::from_millis(300));
        assert_eq!(ended(&agent), before);
    }
    agent.finish();
}
