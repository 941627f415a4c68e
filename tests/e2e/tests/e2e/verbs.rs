//! Nomad's commands, as a user of Nomad types them.

use herdlet_e2e::agent::Agent;

use crate::common::{is_root, job, shell, sleeper, volume};

#[test]
fn nomad_commands_work() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    let group = "volumes: {v: {type: host, source: kept}}";
    let mounted = "volume_mounts: [{volume: v, destination: local/data}]";
    let web = format!(
        "{}{}",
        volume("kept"),
        job("web", "service", group, &[shell("t", "echo hello; exec sleep 100000", mounted)])
    );
    let file = agent.manifest(&web).display().to_string();
    assert_eq!(agent.cli(&["job", "plan", &file]).code, 1);
    agent.cli(&["job", "run", "-detach", &file]).success();
    agent.cli(&["wait", "web"]).success();
    assert!(agent.cli(&["job", "status", "web"]).success().stdout.contains("web version 0"));
    let alloc = agent.cli(&["get", "allocs", "-o", "name"]).success().stdout.trim().to_owned();
    agent.until_printed(&["alloc", "logs", &alloc, "t"], |output| output == "hello\n");
    let stdout = agent.cli(&["alloc", "exec", "-task", "t", &alloc, "echo", "-n", "hi"]).success().stdout;
    assert_eq!(stdout, "hi");
    assert!(agent.cli(&["alloc", "status", &alloc]).success().stdout.contains("Task started by client"));
    let node = agent.cli(&["node", "status"]).success().stdout;
    assert!(node.contains("${attr.cpu.arch}") && node.contains("eligible     ready"), "{node}");
    let inspected = agent.cli(&["job", "inspect", "web"]).success().stdout;
    let parsed: serde_json::Value = serde_json::from_str(&inspected).unwrap();
    assert_eq!(parsed["Job"]["ID"], "web", "{inspected}");
    let again = agent.home.write("web.json", &inspected).display().to_string();
    agent.cli(&["job", "validate", &again]).success();
    let unknown = agent.cli(&["job", "eval", "web"]).ended(2).stderr;
    assert!(
        unknown.starts_with("error: there is no command \"job eval\"")
            && unknown.contains("herdlet job run FILE"),
        "{unknown}"
    );
    let unknown = agent.cli(&["stauts"]).ended(2).stderr;
    assert_eq!(
        unknown,
        "error: there is no command \"stauts\": did you mean herdlet status?\n  all commands: herdlet --help\n"
    );
    let refused = agent.cli(&["job", "run", "-check-index", "7", &file]).ended(2).stderr;
    assert!(
        refused.starts_with("error: -check-index is not accepted: the command does not compare indexes"),
        "{refused}"
    );
    let listed = agent.cli(&["job", "allocs", "-verbose", "-json", "web"]).success().stdout;
    assert!(listed.starts_with('[') && listed.contains(&alloc), "{listed}");
    assert!(agent.cli(&["alloc", "logs", "-tail", "-n", "1", &alloc]).success().stdout.contains("hello"));
    // In Nomad it purges the job; here it never deletes the data of volumes, with two dashes either.
    let output = agent.cli(&["job", "stop", "--purge", "-detach", "-yes", "web"]).success();
    assert_eq!((output.stdout.as_str(), output.stderr.as_str()), ("job/web deleting\n", ""));
    agent.cli(&["wait", "web", "--for=deleted"]);
    assert!(agent.cli(&["get", "volumes"]).success().stdout.contains("kept"));
    agent.cli(&["delete", "volume", "kept", "--purge"]).success();
    agent.finish();
}

#[test]
fn compose_user_commands_work() {
    if !is_root() {
        return;
    }
    let agent = Agent::start();
    let web = job("web", "service", "", &[shell("t", "echo hello; exec sleep 100000", "")]);
    let folder = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| {
        let output = agent.command(arguments).current_dir(folder.path()).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
    };
    let (code, _, stderr) = run(&["up", "-d"]);
    assert!(code == 2 && stderr.contains("there is no herdlet.yaml in this folder"), "{stderr}");
    std::fs::write(folder.path().join("compose.yaml"), "services: {}\n").unwrap();
    std::fs::write(folder.path().join("web.yaml"), web).unwrap();
    assert_eq!(run(&["up", "--wait"]).0, 0);
    let (code, hostname, stderr) = run(&["exec", "web", "cat", "/etc/hostname"]);
    assert_eq!((code, hostname, stderr.as_str()), (0, std::fs::read_to_string("/etc/hostname").unwrap(), ""));
    assert!(run(&["ps"]).1.contains("web.g[0]"));
    agent.until_printed(&["logs", "web"], |output| output == "hello\n");
    assert_eq!(run(&["logs", "web"]).1, "hello\n");
    let (code, _, stderr) = run(&["logs", "t"]);
    assert!(code == 1 && stderr.contains("name a task with its job: web/t"), "{stderr}");
    let (code, stdout, stderr) = run(&["down", "--wait"]);
    assert_eq!((code, stdout.as_str()), (0, "job/web deleting\n"));
    assert!(stderr.starts_with("using web.yaml\n"), "{stderr}");
    agent.finish();
}

/// A batch job with a label whose task prints this.
fn printing(name: &str, app: &str, text: &str) -> String {
    job(name, "batch", "", &[shell("t", &format!("echo {text}"), "")]).replace(
        &format!("metadata: {{name: {name}}}"),
        &format!("metadata: {{name: {name}, labels: {{app: {app}}}}}"),
    )
}

#[test]
fn logs_are_read_of_several_or_selected_jobs() {
    let mut agent = Agent::start();
    for (name, app) in [("one", "shop"), ("two", "shop"), ("three", "other")] {
        let path = agent.manifest(&printing(name, app, &format!("said by {name}"))).display().to_string();
        assert_eq!(agent.cli(&["apply", "-f", &path, "--wait"]).code, 0);
    }
    let logs_of = |arguments: &[&str], names: &[&str]| {
        let all = ["one", "two", "three"];
        let text = agent.until_printed(arguments, |text| {
            names.iter().all(|name| text.contains(&format!("said by {name}")))
        });
        for other in all.iter().filter(|other| !names.contains(other)) {
            assert!(!text.contains(&format!("said by {other}")), "{arguments:?}: {text}");
        }
        text
    };
    let text = logs_of(&["logs", "one", "two"], &["one", "two"]);
    assert!(
        text.contains("one.g[0]/t | said by one\n") && text.contains("two.g[0]/t | said by two\n"),
        "{text}"
    );
    logs_of(&["logs"], &["one", "two", "three"]);
    logs_of(&["logs", "-l", "app=shop"], &["one", "two"]);
    logs_of(&["logs", "-l", "app!=shop"], &["three"]);
    logs_of(&["logs", "job/one"], &["one"]);
    // All have ended, so following them ends too.
    logs_of(&["logs", "-f", "one", "job/three"], &["one", "three"]);
    let id = agent.cli(&["get", "allocs", "one", "-o", "name"]).success().stdout.trim().to_owned();
    logs_of(&["logs", &format!("alloc/{id}")], &["one"]);
    let text = logs_of(&["logs", "one", "--timestamps"], &["one"]);
    let (time, rest) = text.split_at(20);
    assert!(rest == " said by one\n" && time.starts_with("20") && time.ends_with('Z'), "{text}");
    let text = logs_of(&["logs", "one", "-t", "-o", "json"], &["one"]);
    assert!(
        text.contains(&format!("\"time\":\"{}", &time[..13])) && text.contains("\"line\":\"said by one\""),
        "{text}"
    );
    let none = agent.cli(&["logs", "-l", "app=nothing"]);
    assert!(
        none.code == 1 && none.stderr.contains("no job has labels or meta that fit \"app=nothing\""),
        "{none:?}"
    );
    agent.finish();
}

#[test]
fn verbs_take_several_targets_kinds_and_selectors() {
    let mut agent = Agent::start();
    for name in ["a", "b"] {
        let text = job(name, "service", "", &[sleeper("t", "")]).replace(
            &format!("metadata: {{name: {name}}}"),
            &format!("metadata: {{name: {name}, labels: {{app: x}}}}"),
        );
        agent.apply_and_wait(&text);
    }
    let stdout = |arguments: &[&str]| agent.cli(arguments).success().stdout;
    assert_eq!(stdout(&["get", "jobs", "-o", "jsonpath={.items[*].key.id}"]), "a b");
    assert_eq!(
        stdout(&["get", "jobs", "job/b", "-o", "custom-columns=J:.key.id,V:.version"]),
        "J  V\nb  0\n"
    );
    assert_eq!(stdout(&["get", "jobs", "-l", "app in (x,y)", "-o", "name"]), "a\nb\n");
    let both = stdout(&["restart", "a", "job/b", "--wait"]);
    assert!(both.contains("a.g[0] restarting") && both.contains("b.g[0] restarting"), "{both}");
    let both = stdout(&["signal", "-s", "SIGCONT", "-l", "app=x"]);
    assert!(both.contains("a.g[0] signalled") && both.contains("b.g[0] signalled"), "{both}");
    for verb in ["describe", "explain"] {
        let both = stdout(&[verb, "job", "a", "b"]);
        assert!(both.contains("a version 0") && both.contains("b version 0"), "{verb}: {both}");
    }
    let both = stdout(&["status", "a", "b"]);
    assert!(both.contains("a version 0") && both.contains("b version 0"), "{both}");
    let failed = agent.cli(&["stop", "a", "nobody"]);
    assert!(failed.code == 1 && failed.stderr.contains("nobody"), "{failed:?}");
    let both = stdout(&["stop", "a", "b", "--wait"]);
    assert!(both.contains("job/a stopped") && both.contains("job/b stopped"), "{both}");
    assert!(stdout(&["start", "-l", "app=x", "--wait"]).contains("job/b started"));
    assert_eq!(agent.cli(&["wait", "-l", "app=x"]).code, 0);
    let nothing = agent.cli(&["restart"]);
    assert!(nothing.code == 2 && nothing.stderr.contains("no target was named"), "{nothing:?}");
    let both = stdout(&["delete", "-l", "app=x", "--wait"]);
    assert!(both.contains("job/a deleting") && both.contains("job/b deleting"), "{both}");
    agent.finish();
}

#[test]
fn verbs_take_several_targets_and_the_signal_may_follow_them() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    let script = "trap 'echo told' HUP; trap 'echo other' 37; echo ready; while :; do sleep 0.05; done";
    for name in ["one", "two"] {
        agent.apply_and_wait(&job(name, "service", "", &[shell("t", script, "")]));
        agent.until_printed(&["logs", name], |output| output.contains("ready"));
    }
    agent.cli(&["signal", "one", "two", "HUP"]).success();
    agent.cli(&["signal", "one", "two", "-s", "RTMIN+3"]).success();
    for name in ["one", "two"] {
        agent.until_printed(&["logs", name], |output| output.contains("told") && output.contains("other"));
    }
    let explanation = agent.cli(&["explain", "one", "two"]).success().stdout;
    assert!(explanation.contains("one version 0") && explanation.contains("two version 0"), "{explanation}");
    let described = agent.cli(&["describe", "one", "two", "-o", "json"]).success().stdout;
    let described: serde_json::Value = serde_json::from_str(&described).unwrap();
    assert_eq!(described["targets"][1]["job"]["key"]["id"], "two", "{described}");
    agent.cli(&["restart", "one", "two", "--wait"]).success();
    let failed = agent.cli(&["stop", "one", "nobody"]).ended(1);
    assert!(failed.stderr.contains("nobody"), "{}", failed.stderr);
    let stdout = agent.cli(&["stop", "one", "two", "--wait"]).success().stdout;
    assert_eq!(stdout, "job/one stopped (version 1)\njob/two stopped (version 1)\n");
    let stdout = agent.cli(&["start", "one", "two", "--wait"]).success().stdout;
    assert_eq!(stdout, "job/one started (version 2)\njob/two started (version 2)\n");
    agent.finish();
}

/// Only `stop` of the failed allocation did it, and nothing said so.
#[test]
fn failed_allocation_is_retried_by_restart_and_start() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    let gate = agent.home.path().join("gate");
    let script = format!("test -e {}", gate.display());
    agent.apply(&job("once", "batch", "restart: {attempts: 0}", &[shell("t", &script, "")]));
    let allocs = |agent: &Agent| agent.allocs().len();
    for (tries, verb) in [(1, "restart"), (2, "start")] {
        agent.cli(&["wait", "once"]).ended(1);
        assert_eq!(allocs(&agent).min(2), tries.min(2), "{verb}");
        if verb == "start" {
            std::fs::write(&gate, "").unwrap();
        }
        let stdout = agent.cli(&[verb, "once"]).success().stdout;
        assert!(stdout.starts_with("once.g[0] had failed"), "{stdout}");
    }
    agent.cli(&["wait", "once", "--for=complete"]).success();
    agent.finish();
}

#[test]
fn non_executable_program_is_described() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    let task = |config: &str| {
        format!("        - name: t\n          driver: raw_exec\n          config: {{{config}}}\n")
    };
    for (config, expected) in [
        ("command: pwd, work_dir: /srv/none", "the directory is /srv/none, for the agent's user"),
        ("command: /tmp", "permission denied: it is a directory"),
        ("command: /etc/passwd", "permission denied: it is not executable for any user"),
        ("command: echo hi", r#"not found; write its arguments in args (command: "echo", args: ["hi"])"#),
    ] {
        let manifest = job("bad", "batch", "restart: {attempts: 0}", &[task(config)]);
        let file = agent.manifest(&manifest).display().to_string();
        let failed = agent.cli(&["apply", "-f", &file, "--wait"]).ended(1);
        assert!(failed.stderr.contains(expected), "{config}: {}", failed.stderr);
        agent.cli(&["delete", "bad", "--wait"]).success();
    }
    agent.apply_and_wait(&job("good", "service", "", &[shell("t", "sleep 100000", "")]));
    let refused = agent.cli(&["exec", "good", "--", "/etc/passwd"]).ended(126).stderr;
    assert!(refused.contains("permission denied: it is not executable"), "{refused}");
    agent.finish();
}
