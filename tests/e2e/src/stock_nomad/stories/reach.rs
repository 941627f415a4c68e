//! Operations on an allocation: logs, files, commands, signals.

use std::{fs::File, process::Stdio};

use rustix::process::Signal;

use crate::{
    command::Running,
    stock_nomad::{
        cluster::{ApiSide, StockCluster, assert_has},
        jobs::{UPDATE, group, job, shell},
    },
};

/// Runs a job with three tasks: one that writes to its log, one that writes nothing, one that writes
/// repeatedly; returns its allocation.
fn talkers(ground: &mut StockCluster) -> String {
    let says = "trap 'echo got usr1' USR1; echo out1; echo out2; echo err1 >&2; while :; do sleep 0.2; done";
    let tasks = [
        shell("says", says, ""),
        shell("quiet", "exec sleep 100000", ""),
        shell("ticks", "i=0; while :; do i=$((i+1)); echo tick $i; sleep 0.3; done", ""),
    ];
    ground.run("talk", &job("talk", "service", &format!("{UPDATE}{}", group("g", &tasks.concat()))));
    let alloc = ground.single("talk", "g");
    ground.logged(&alloc, "says", "out2\n");
    alloc
}

pub(super) fn logs(ground: &mut StockCluster) {
    let alloc = talkers(ground);
    let says = |arguments: &[&str], task: &str| {
        let all: Vec<&str> =
            ["alloc", "logs"].iter().chain(arguments).copied().chain([alloc.as_str(), task]).collect();
        ground.ok(&all)
    };
    let same = |found: String, wanted: &str| assert!(found == wanted, "expected {wanted:?}, found {found:?}");
    same(says(&[], "says"), "out1\nout2\n");
    same(says(&["-stderr"], "says"), "err1\n");
    same(says(&[], "quiet"), "");
    same(says(&["-tail", "-n", "1"], "says"), "out2\n");
    let followed = ["alloc", "logs", "-f", &alloc, "ticks"];
    let followed = Running::start(ground.command(ApiSide::Server, None, &followed));
    followed.until_stdout("tick 3\n");
    followed.until_stdout("tick 8\n");
    followed.signal(Signal::INT);
    followed.finish();
}

pub(super) fn files(ground: &mut StockCluster) {
    let alloc = talkers(ground);
    assert_has(&ground.ok(&["alloc", "fs", &alloc]), &["alloc/", "says/", "quiet/"]);
    assert_has(&ground.ok(&["alloc", "fs", &alloc, "alloc/logs"]), &["says.stdout.0", "says.stderr.0"]);
    assert_has(
        &ground.ok(&["alloc", "fs", "-stat", &alloc, "alloc/logs/says.stdout.0"]),
        &["says.stdout.0", "10 B"],
    );
    assert_has(&ground.ok(&["alloc", "fs", "-H", &alloc, "says"]), &["local/", "secrets/", "tmp/"]);
    assert_has(&ground.ok(&["alloc", "fs", &alloc, "alloc/logs/says.stdout.0"]), &["out1\nout2\n"]);
    for path in ["says/secrets", "says/secrets/x", "../../..", "nowhere"] {
        let output = ground.at(ApiSide::Server, &["alloc", "fs", &alloc, path]);
        assert!(output.code != 0, "expected that {path} is refused, found {output:?}");
    }
}

pub(super) fn exec(ground: &mut StockCluster) {
    let alloc = talkers(ground);
    let plain = ["alloc", "exec", "-i=false", "-t=false", "-task", "says", &alloc];
    let run = |words: &[&str]| ground.at(ApiSide::Server, &[&plain[..], words].concat());
    let output = run(&["/bin/sh", "-c", "echo to out; echo to err >&2; echo in $NOMAD_TASK_NAME; exit 3"]);
    assert!(
        output.code == 3 && output.stdout == "to out\nin says\n" && output.stderr.contains("to err"),
        "expected code 3, both outputs and the task's name, found {output:?}"
    );
    let output = run(&["/no/such/command"]);
    assert!(
        output.code != 0 && output.stderr.contains("/no/such/command"),
        "expected a failure that names the command, found {output:?}"
    );
    let output = ground.at(ApiSide::Server, &["alloc", "exec", "-task", "nobody", &alloc, "true"]);
    assert!(
        output.code != 0 && output.stderr.contains("nobody"),
        "expected a failure that names the task, found {output:?}"
    );
    let input = ground.write("txt", "words from here\n");
    let mut command = ground.command(
        ApiSide::Server,
        None,
        &["alloc", "exec", "-i=true", "-t=false", "-task", "says", &alloc, "cat"],
    );
    command.stdin(File::open(input).map_or(Stdio::null(), Stdio::from));
    let output = Running::start(command).finish();
    assert!(
        output.code == 0 && output.stdout == "words from here\n",
        "expected the typed lines in the output, found {output:?}"
    );
}

pub(super) fn terminal(ground: &mut StockCluster) {
    let alloc = talkers(ground);
    // `script` (of util-linux) provides a terminal for the command line. It reports the size after the
    // command has started.
    let script = format!(
        "stty rows 33 cols 101; {} alloc exec -i -t -task says {alloc} /bin/sh -c 'sleep 1; stty size; exit 6'",
        ground.program.path.display()
    );
    let mut command = ground.command(ApiSide::Server, None, &[]);
    let mut within = std::process::Command::new("script");
    within.args(["-qec", &script, "/dev/null"]).env_clear().current_dir(ground.home().path());
    within.envs(command.get_envs().filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned()))));
    within.env("TERM", "xterm").stdin(Stdio::piped());
    command = within;
    let output = Running::start(command).finish();
    assert!(
        output.code == 6 && output.stdout.contains("33 101"),
        "expected code 6 and a terminal of 33 times 101, found {output:?}"
    );
}

pub(super) fn verbs(ground: &mut StockCluster) {
    let alloc = talkers(ground);
    ground.ok(&["alloc", "signal", "-s", "SIGUSR1", &alloc, "says"]);
    ground.logged(&alloc, "says", "got usr1");
    let unknown = ground.at(ApiSide::Server, &["alloc", "signal", "-s", "SIGUSR9", &alloc, "says"]);
    assert!(unknown.code != 0, "expected that SIGUSR9 is refused, found {unknown:?}");
    let before = ground.pid(&alloc, "quiet");
    ground.ok(&["alloc", "restart", &alloc, "quiet"]);
    ground.until_true(
        "another process runs",
        || matches!(ground.pids(&alloc, "quiet").as_slice(), [pid] if *pid != before),
    );
    let unknown = ground.at(ApiSide::Server, &["alloc", "restart", &alloc, "nobody"]);
    assert!(unknown.code != 0, "expected that a restart of an unknown task is refused, found {unknown:?}");
    ground.ok(&["alloc", "stop", "-detach", &alloc]);
    ground.becomes(&alloc, "complete");
    let next = ground.single("talk", "g");
    assert!(next != alloc, "expected another allocation");
}
