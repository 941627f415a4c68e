//! What Compose's users expect of a manifest and its folder: files of variables, restart policies in a word, order between
//! groups and jobs, one command in the environment of a job.

use herdlet_e2e::{agent::Agent, wait};
use rustix::process::Signal;

use crate::common::{job, shell, sleeper};

#[test]
fn variables_come_from_files_beside_the_manifest() {
    let agent = Agent::start();
    let task = shell(
        "t",
        "echo \"$GREETING|$MODE|$HERE\"",
        "env: {MODE: own, HERE: \"${manifest.dir}\"}\nenv_file: [.env, {path: none.env, required: false}]",
    );
    let folder = agent.home.path().join("project");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join(".env"), "GREETING=hello from dotenv\nMODE=file\n").unwrap();
    std::fs::write(folder.join("web.yaml"), job("web", "batch", "", &[task])).unwrap();
    let path = folder.join("web.yaml").display().to_string();
    assert_eq!(agent.cli(&["apply", "-f", &path, "--wait"]).code, 0);
    let expected = format!("hello from dotenv|own|{}\n", folder.display());
    agent.until_printed(&["logs", "web"], |text| text == expected);
    assert_eq!(agent.cli(&["validate", "--strict", &path]).code, 0);
    std::fs::remove_file(folder.join(".env")).unwrap();
    let missing = agent.cli(&["apply", "-f", &path]);
    assert!(missing.code != 0 && missing.stderr.contains("\".env\" does not exist"), "{missing:?}");
    // Names are enough for a deletion.
    agent.cli(&["delete", "-f", &path, "--wait"]).success();
    assert_eq!(agent.cli(&["get", "jobs", "-o", "name"]).success().stdout, "");
    agent.finish();
}

#[test]
fn groups_and_jobs_start_in_order() {
    let mut agent = Agent::start();
    let web = job("web", "service", "depends_on: [{job: init, condition: completed}]", &[sleeper("t", "")]);
    let path = agent.manifest(&web).display().to_string();
    agent.cli(&["apply", "-f", &path]).success();
    let status = agent.until_printed(&["status", "web"], |text| text.contains("waits for job init"));
    assert!(status.contains("web.g waits for job init, which is not applied"), "{status}");
    assert!(agent.allocs().is_empty());
    let init = job("init", "batch", "", &[shell("t", "true", "")]);
    let path = agent.manifest(&init).display().to_string();
    assert_eq!(agent.cli(&["apply", "-f", &path, "--wait"]).code, 0);
    agent.until_running("web.g[0]", "t");
    agent.finish();
}

#[test]
fn a_command_runs_once_in_the_environment_of_a_job() {
    let mut agent = Agent::start();
    agent.apply_and_wait(&job("web", "service", "", &[sleeper("t", "env: {GREETING: hello}")]));
    let ran = agent.cli(&["run", "web", "--", "/bin/sh", "-c", "echo $GREETING; echo wrong >&2; exit 7"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (7, "hello\n"), "{ran:?}");
    assert!(ran.stderr.contains("wrong"), "{ran:?}");
    assert_eq!(agent.cli(&["run", "job/web", "--", "/bin/true"]).code, 0);
    agent.cli(&["run", "web", "--", "/nonexistent"]).ended(127);
    agent.cli(&["run", "web", "--", "no-such-program"]).ended(127);
    agent.cli(&["run", "web", "--", "/etc/passwd"]).ended(126);
    let unknown = agent.cli(&["run", "nobody", "--", "/bin/true"]);
    assert!(unknown.code == 125 && unknown.stderr.contains("there is no job"), "{unknown:?}");
    wait::until_true("the jobs of the commands are deleted", || {
        agent.cli(&["get", "jobs", "-o", "name"]).success().stdout == "web\n"
    });
    assert_eq!(agent.alloc("web.g[0]").map(|alloc| alloc.job()), Some("web".to_owned()));
    agent.finish();
}

/// A task that reads the variables of its job could run no command.
#[test]
fn a_command_may_read_the_variables_of_the_job() {
    let mut agent = Agent::start();
    agent.cli(&["var", "put", "nomad/jobs/web", "greeting=hello"]).success();
    let template = "templates: [{data: '{{ with nomadVar \"nomad/jobs/web\" }}G={{ .greeting }}{{ end }}', \
                    destination: local/env, env: true}]";
    agent.apply_and_wait(&job("web", "service", "", &[sleeper("t", template)]));
    let ran = agent.cli(&["run", "web", "--", "/bin/sh", "-c", "echo $G"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "hello\n"), "{ran:?}");
    agent.finish();
}

/// The command went on without anybody who waited for it.
#[test]
fn one_off_job_is_deleted_when_its_client_is_killed() {
    let mut agent = Agent::start();
    agent.apply_and_wait(&job("web", "service", "", &[sleeper("t", "")]));
    for (signal, code) in [(Signal::TERM, 130), (Signal::HUP, 130), (Signal::KILL, 128 + 9)] {
        let run = agent.spawn(&["run", "web", "--", "/bin/sh", "-c", "echo begun; sleep 100000"]);
        run.until_stdout("begun");
        run.signal(signal);
        run.finish().ended(code);
        wait::until_true("the job of the command is deleted", || {
            agent.cli(&["get", "jobs", "-o", "name"]).success().stdout == "web\n"
        });
    }
    agent.finish();
}
