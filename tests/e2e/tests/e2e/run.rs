//! `herdlet run`: a private agent, its output, its exit code, and its remains after a kill.

use std::path::Path;

use herdlet_e2e::{command::User, home::Home, host, program::example, wait};
use rustix::process::Signal;

use crate::common::{is_root, job, shell, sleeper, start_run, volume};

#[test]
fn first_readme_command_prints_hello_and_its_verdict() {
    let home = Home::new(User::Same);
    let output = start_run(&home, User::Same, &[&example("hello")]).finish().success();
    assert_eq!(output.stdout, "greet | hello from hello.hello[0]\n", "{}", output.stderr);
    assert!(
        output.stderr.contains("hello.hello[0]/greet complete (exit 0), converged in "),
        "{}",
        output.stderr
    );
    home.until_no_trace();
}

#[test]
fn exit_code_is_the_first_nonzero_in_file_order() {
    let home = Home::new(User::Same);
    let fails = |code: u32, after: &str| format!("sleep {after}; exit {code}");
    let restart = "restart: {attempts: 0, mode: fail}";
    // The later ones fail first, but the order in the files decides.
    let first = home.write("1.yaml", &job("first", "batch", restart, &[shell("good", "exit 0", "")]));
    // A failed task ends its siblings, so the tasks to compare are in separate groups.
    let group = |name: &str, code: u32, after: &str| {
        format!("    - name: {name}\n      {restart}\n      tasks:\n{}", shell("t", &fails(code, after), ""))
    };
    let groups = [group("a", 0, "0"), group("b", 7, "0.5"), group("c", 8, "0.2")].concat();
    let second = home.write(
        "2.yaml",
        &format!("apiVersion: herdlet/v1\nkind: Job\nmetadata: {{name: second}}\nspec:\n  type: batch\n  groups:\n{groups}"),
    );
    let third = home.write("3.yaml", &job("third", "batch", restart, &[shell("d", &fails(9, "0"), "")]));
    let output = start_run(&home, User::Same, &[&first, &second, &third]).finish();
    assert_eq!(output.code, 7, "{}", output.stderr);
    home.until_no_trace();
}

#[test]
fn a_task_that_is_tried_again_and_succeeds_makes_a_success() {
    let home = Home::new(User::Same);
    let restart = "restart: {attempts: 2, interval: 1m, delay: 100ms, mode: fail}";
    let script = "test -e $NOMAD_ALLOC_DIR/data/again && exit 0; touch $NOMAD_ALLOC_DIR/data/again; exit 3";
    let file = home.write("m.yaml", &job("again", "batch", restart, &[shell("t", script, "")]));
    let output = start_run(&home, User::Same, &[&file]).finish().success();
    assert!(output.stderr.contains("restart"), "{}", output.stderr);
}

#[test]
fn a_program_that_does_not_exist_ends_the_run_as_a_shell_does() {
    let home = Home::new(User::Same);
    let restart = "restart: {attempts: 0, mode: fail}";
    let task =
        "        - name: t\n          driver: raw_exec\n          config: {command: /does/not/exist}\n"
            .to_owned();
    let file = home.write("m.yaml", &job("missing", "batch", restart, &[task]));
    let output = start_run(&home, User::Same, &[&file]).finish();
    assert_eq!(output.code, 127, "{output:?}");
    assert!(output.stderr.contains("/does/not/exist"), "{}", output.stderr);
    home.until_no_trace();
}

#[test]
fn invalid_manifest_is_reported_and_nothing_runs() {
    let home = Home::new(User::Same);
    let good = home.write("good.yaml", &job("good", "batch", "", &[shell("t", "touch ../../../../ran", "")]));
    let bad = home.write(
        "bad.yaml",
        "apiVersion: herdlet/v1\nkind: Job\nmetadata: {name: bad}\nspec:\n  type: batch\n  groups:\n    - name: g\n      cuont: 2\n      tasks:\n        - name: t\n          driver: raw_exec\n          config: {comand: /bin/true}\n          kill_timeout: 5\n",
    );
    let output = start_run(&home, User::Same, &[&good, &bad]).finish();
    assert_eq!(output.code, 125, "{}", output.stderr);
    assert_eq!(output.stdout, "");
    for part in [
        "bad.yaml:8:7",
        "cuont",
        "count",
        "bad.yaml:12:20",
        "comand",
        "command",
        "bad.yaml:13:",
        "kill_timeout",
    ] {
        assert!(output.stderr.contains(part), "{part} is missing in:\n{}", output.stderr);
    }
    assert!(!home.path().join("ran").exists());
    home.until_no_trace();
}

/// It printed nothing while a network could not be made.
#[test]
fn what_a_run_waits_for_is_printed() {
    if !is_root() {
        return;
    }
    let home = Home::new(User::Same);
    let network = "network: {mode: cni/there-is-no-such-network}";
    let file = home.write("m.yaml", &job("stuck", "batch", network, &[shell("t", "exit 0", "")]));
    let run = start_run(&home, User::Same, &[&file]);
    wait::until_true("the reason is printed", || {
        let printed = run.stderr();
        printed.contains("stuck.g[0]: waiting, ") && printed.contains("there-is-no-such-network")
    });
    run.signal(Signal::INT);
    assert_eq!(run.finish().code, 130);
    home.until_no_trace();
}

#[test]
fn ctrl_c_stops_tasks_by_their_signals() {
    let home = Home::new(User::Same);
    let script = "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.1; done";
    let file =
        home.write("m.yaml", &job("polite", "service", "", &[shell("t", script, "kill_signal: SIGTERM")]));
    let run = start_run(&home, User::Same, &[&file]);
    run.until_stdout("up");
    run.signal(Signal::INT);
    let output = run.finish();
    assert_eq!(output.code, 130, "{}", output.stderr);
    assert!(output.stdout.contains("bye"), "the last output is shown: {output:?}");
    home.until_no_trace();
}

#[test]
fn killed_run_leaves_nothing() {
    if !is_root() {
        return;
    }
    let home = Home::new(User::Same);
    let mount = "volume_mounts: [{volume: data, destination: local/data}]";
    let text = format!(
        "{}{}",
        volume("data"),
        job(
            "leashed",
            "service",
            "volumes: {data: {type: host, source: data}}",
            &[
                shell(
                    "tree",
                    "setsid sh -c 'trap \"\" TERM INT HUP; sleep 1000 & echo forked; sleep 1000' & sleep 1000",
                    mount
                ),
                sleeper("plain", mount),
            ],
        )
    );
    let file = home.write("m.yaml", &text);
    let run = start_run(&home, User::Same, &[&file]);
    run.until_stdout("forked");
    let instance = wait::until("the private instance", || home.private_instance());
    wait::until_true("both tasks run", || host::members(&instance).len() >= 5);
    assert!(host::mounts_below(home.path()).len() >= 2, "{:?}", host::mounts_below(home.path()));
    run.signal(Signal::KILL);
    home.until_no_trace();
    assert_eq!(run.finish().code, 128 + 9);
}

#[test]
fn tasks_end_with_the_process_group_of_their_run() {
    let home = Home::new(User::Same);
    let file =
        home.write("m.yaml", &job("group", "service", "", &[shell("t", "echo up; exec sleep 1000", "")]));
    let program = herdlet_e2e::program::program();
    let mut command =
        herdlet_e2e::command::prepare(&home, User::Same, program, &["run".as_ref(), file.as_os_str()]);
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    let run = herdlet_e2e::command::Running::start(command);
    run.until_stdout("up");
    let group = rustix::process::Pid::from_raw(i32::try_from(run.pid()).unwrap()).unwrap();
    #[expect(
        clippy::disallowed_methods,
        reason = "the group was made by this test and its leader was not waited for"
    )]
    rustix::process::kill_process_group(group, Signal::KILL).unwrap();
    home.until_no_trace();
    run.finish();
}

#[test]
fn a_kept_state_directory_is_used_and_kept() {
    let home = Home::new(User::Same);
    let kept = home.path().join("kept");
    let program = herdlet_e2e::program::program();
    let kept_text = kept.display().to_string();
    let hello = example("hello").display().to_string();
    let command = herdlet_e2e::command::prepare(
        &home,
        User::Same,
        program,
        &["run", "--state-dir", &kept_text, &hello],
    );
    let output = herdlet_e2e::command::Running::start(command).finish().success();
    assert_eq!(output.stdout, "greet | hello from hello.hello[0]\n");
    assert!(kept.join("instance").exists());
    assert!(home.private_homes().is_empty());
}

#[test]
fn even_without_its_guard_a_killed_run_leaves_no_process() {
    let home = Home::new(User::Same);
    let script = "setsid sh -c 'trap \"\" TERM INT HUP; sleep 1000' & echo up; exec sleep 1000";
    let file = home.write("m.yaml", &job("alone", "service", "", &[shell("t", script, "")]));
    let run = start_run(&home, User::Same, &[&file]);
    run.until_stdout("up");
    let guards = host::processes_naming(home.path());
    let guards: Vec<u32> =
        guards.into_iter().filter(|(_, line)| line.contains(" guard ")).map(|(pid, _)| pid).collect();
    assert_eq!(guards.len(), 1);
    host::signal(guards[0], Signal::KILL);
    run.signal(Signal::KILL);
    wait::until_true("no process is left", || host::processes_naming(home.path()).is_empty());
    run.finish();
}

/// Regression: `run` waited for ever, because a periodic job runs no tasks itself.
#[test]
fn a_periodic_job_is_refused() {
    let home = Home::new(User::Same);
    let periodic = job("nightly", "batch", "", &[shell("t", "true", "")])
        .replace("  type: batch\n", "  type: batch\n  periodic: {cron: \"0 3 * * *\"}\n");
    let file = home.write("m.yaml", &periodic);
    let output = start_run(&home, User::Same, &[&file]).finish();
    assert_eq!(output.code, 125, "{}", output.stderr);
    assert!(output.stderr.contains("job nightly is periodic"), "{}", output.stderr);
}

#[test]
fn run_admits_named_users_and_reports_unknown_ones() {
    if !is_root() {
        return;
    }
    let home = Home::new(User::Same);
    let restart = "restart: {attempts: 0, mode: fail}";
    let script =
        "echo mine > local/own; setpriv --reuid=bin --regid=nogroup --clear-groups cat $NOMAD_TASK_DIR/own";
    let file = home.write("m.yaml", &job("guests", "batch", restart, &[shell("t", script, "")]));
    let named = Path::new("--task-dir-users=bin,no-such-user");
    let output = start_run(&home, User::Same, &[named, &file]).finish().success();
    assert!(output.stdout.contains("mine"), "{output:?}");
    assert!(output.stderr.contains("there is no user \"no-such-user\""), "{}", output.stderr);
    let output = start_run(&home, User::Same, &[&file]).finish();
    assert!(output.code != 0 && !output.stdout.contains("mine"), "{output:?}");
    home.until_no_trace();
}
