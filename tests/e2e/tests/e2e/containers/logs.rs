//! Output of containers: each line that the engine has stored appears once and in order.

use std::{fmt::Write as _, fs, time::Duration};

use herdlet_e2e::{
    agent::Agent,
    engine::{Engine, Kind},
    wait,
};

use super::{container, finish, on_every_engine, running_of};
use crate::common::job;

on_every_engine!(
    lines_appear_once_and_in_order_over_crashes_of_the_agent,
    output_rotates_as_that_of_other_drivers,
    long_lines_and_lines_without_an_end_are_complete,
    output_of_a_task_that_ended_while_the_agent_was_down_is_complete,
    a_log_type_without_logs_is_named,
    only_supervisors_of_the_agent_copy_logs,
);

/// All files of a task's output, oldest first.
fn whole(agent: &Agent, alloc: &str, kind: &str) -> String {
    let dir = agent.home.state().join("alloc").join(alloc).join("alloc/logs");
    let prefix = format!("t.{kind}.");
    let mut numbers: Vec<u32> = fs::read_dir(&dir)
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.strip_prefix(&prefix)?.parse().ok())
        .collect();
    numbers.sort_unstable();
    numbers
        .iter()
        .map(|number| fs::read_to_string(dir.join(format!("{prefix}{number}"))).unwrap_or_default())
        .collect()
}

fn numbers(count: u32) -> String {
    (1..=count).fold(String::new(), |mut text, number| {
        let _ = writeln!(text, "line {number}");
        text
    })
}

fn lines_appear_once_and_in_order_over_crashes_of_the_agent(engine: Engine<'_>) {
    const COUNT: u32 = 3_000;
    let mut agent = engine.agent("");
    let script = format!(
        "i=0; while [ $i -lt {COUNT} ]; do i=$((i+1)); echo line $i; [ $((i % 50)) != 0 ] || sleep 0.05; done; exec sleep 100000"
    );
    let logs = "logs: {max_files: 10, max_file_size: 10}";
    agent.apply(&job("counts", "service", "", &[container("t", &script, "", logs)]));
    let alloc = agent.until_alloc("counts.g[0]", "runs", |alloc| alloc.state("t") == "running").id();
    for round in 1..=8 {
        // At different moments of the copying.
        wait::until_true("it has gone on", || whole(&agent, &alloc, "stdout").lines().count() >= round * 250);
        agent.crash();
    }
    wait::until_true("it is complete", || whole(&agent, &alloc, "stdout").lines().count() >= COUNT as usize);
    wait::pause(Duration::from_millis(300));
    assert_eq!(whole(&agent, &alloc, "stdout"), numbers(COUNT));
    finish(&engine, agent);
}

fn output_rotates_as_that_of_other_drivers(engine: Engine<'_>) {
    let mut agent = engine.agent("");
    // 3 MB of lines of 64 bytes.
    let script = "i=0; while [ $i -lt 48 ]; do i=$((i+1)); yes 0123456789012345678901234567890123456789012345678901234567890123 | head -n 1024; done; echo end; exec sleep 100000";
    let logs = "logs: {max_files: 2, max_file_size: 1}";
    agent.apply(&job("rotates", "service", "", &[container("t", script, "", logs)]));
    let alloc = agent.until_alloc("rotates.g[0]", "runs", |alloc| alloc.state("t") == "running").id();
    wait::until_true("the end is written", || whole(&agent, &alloc, "stdout").ends_with("end\n"));
    let dir = agent.home.state().join("alloc").join(&alloc).join("alloc/logs");
    let sizes = || -> Vec<u64> {
        let files = fs::read_dir(&dir).unwrap().flatten();
        files
            .filter(|entry| {
                let name = entry.file_name().to_string_lossy().into_owned();
                // Supervisors keep times beside each file.
                name.strip_prefix("t.stdout.").is_some_and(|number| number.parse::<u32>().is_ok())
            })
            .filter_map(|entry| Some(entry.metadata().ok()?.len()))
            .collect()
    };
    wait::until_true("two files of at most 1 MiB remain", || {
        sizes().len() <= 2 && sizes().iter().all(|size| *size <= 1 << 20)
    });
    finish(&engine, agent);
}

fn long_lines_and_lines_without_an_end_are_complete(engine: Engine<'_>) {
    let mut agent = engine.agent("");
    // Engines store a line of more than 16 KiB in parts.
    let script =
        "head -c 40000 /dev/zero | tr '\\0' x; echo; printf unfinished; echo error >&2; exec sleep 100000";
    agent.apply(&job("long", "service", "", &[container("t", script, "", "")]));
    let alloc = agent.until_alloc("long.g[0]", "runs", |alloc| alloc.state("t") == "running").id();
    let wanted = format!("{}\nunfinished", "x".repeat(40_000));
    // Engines store the last line at the end of the task.
    agent.until_logged(&alloc, "t", "stderr", |log| log == "error\n");
    agent.cli(&["stop", "long", "--wait"]).success();
    wait::until_true("the lines are complete", || whole(&agent, &alloc, "stdout") == wanted);
    finish(&engine, agent);
}

fn output_of_a_task_that_ended_while_the_agent_was_down_is_complete(engine: Engine<'_>) {
    let mut agent = engine.agent("");
    let script = "echo first; while [ ! -e /local/go ]; do sleep 0.05; done; echo second; exit 5";
    let group = "restart: {attempts: 0, mode: fail}\nreschedule: {attempts: 0, unlimited: false}";
    agent.apply(&job("ends", "batch", group, &[container("t", script, "", "")]));
    let alloc = agent.until_alloc("ends.g[0]", "runs", |alloc| alloc.state("t") == "running").id();
    agent.until_logged(&alloc, "t", "stdout", |log| log == "first\n");
    agent.kill();
    fs::write(agent.home.state().join("alloc").join(&alloc).join("t/local/go"), "").unwrap();
    wait::until_true("the task has ended", || running_of(&engine, &agent).is_empty());
    agent.launch();
    let ended = agent.until_alloc("ends.g[0]", "has failed", |alloc| alloc.status() == "failed");
    assert_eq!(ended.exit_codes("t"), [5]);
    agent.until_logged(&alloc, "t", "stdout", |log| log == "first\nsecond\n");
    finish(&engine, agent);
}

fn a_log_type_without_logs_is_named(engine: Engine<'_>) {
    let mut agent = engine.agent("");
    let task = container("t", "echo hidden; exec sleep 100000", "logging: {type: none}", "");
    if engine.kind == Kind::Builtin {
        let once = "restart: {attempts: 0, mode: fail}\nreschedule: {attempts: 0, unlimited: false}";
        agent.apply(&job("silent", "batch", once, &[task]));
        let ended = agent.until_alloc("silent.g[0]", "has failed", |alloc| alloc.status() == "failed");
        let reason = ended.0["TaskStates"]["t"].to_string();
        assert!(reason.contains("config.logging"), "{reason}");
        return finish(&engine, agent);
    }
    agent.apply_and_wait(&job("silent", "service", "", &[task]));
    let output = agent.cli(&["logs", "silent"]);
    let text = format!("{}{}", output.stdout, output.stderr);
    let described = agent.cli(&["describe", "silent"]).success().stdout;
    assert!(described.contains("it has no logs here: its log driver is none"), "{described}");
    assert!(!text.contains("hidden"), "{text}");
    assert!(output.stderr.contains("has no logs here: its log type is none"), "{output:?}");
    finish(&engine, agent);
}

fn only_supervisors_of_the_agent_copy_logs(engine: Engine<'_>) {
    let mut agent = engine.agent("");
    let task = container("t", "echo up; exec sleep 100000", "", "");
    agent.apply_and_wait(&job("several", "service", "count: 5", &[task]));
    let supervisors = herdlet_e2e::host::supervisors(&agent.home.instance().unwrap());
    match engine.kind {
        Kind::Docker | Kind::Podman => {
            assert!(agent.members().is_empty(), "no supervisor: {:?}", agent.members());
            assert!(supervisors.is_empty());
        }
        Kind::Builtin => assert_eq!(supervisors.len(), 5),
    }
    finish(&engine, agent);
}
