//! A daemon that is down, hangs or restarts: no running task fails for it, nothing starts twice, exits are the daemon's.

use std::{fs, path::Path, time::Duration};

use herdlet_e2e::{
    agent::Agent,
    engine::{Engine, Engines, Kind},
    host, wait,
};
use rustix::process::Signal;
use serde_json::Value;

use crate::{
    common::job,
    containers::{container, containers_of, finish, running_of, sleeping},
};

const RESTARTS: &str = "restart: {attempts: 100, interval: 1h, delay: 50ms, mode: delay}";

fn on_own(kind: Kind, test: impl Fn(Engine<'_>)) {
    let Some(engines) = Engines::own(&[kind.name()]) else { return };
    test(engines.engine(kind));
}

/// Counts the starts of a task, in its allocation's events.
fn starts(agent: &Agent, alloc: &str) -> usize {
    agent.alloc(alloc).map_or(0, |alloc| alloc.events("t").iter().filter(|kind| *kind == "Started").count())
}

fn pid_of(engine: &Engine<'_>, id: &str) -> u32 {
    u32::try_from(engine.inspect(id).unwrap()["State"]["Pid"].as_u64().unwrap()).unwrap()
}

/// A daemon that does not answer: the task keeps its state, which is shown as old; an exit is seen once it answers.
#[test]
fn a_hanging_daemon_fails_no_task_and_exits_are_seen_later() {
    on_own(Kind::Docker, |engine| {
        let mut agent = engine.agent("");
        agent.apply_and_wait(&job("steady", "service", RESTARTS, &[sleeping("t", "")]));
        agent.apply_and_wait(&job("ends", "service", RESTARTS, &[sleeping("t", "")]));
        let alloc = agent.alloc("ends.g[0]").unwrap().id();
        let [ends] = engine.containers(&alloc).try_into().unwrap();
        let pid = pid_of(&engine, ends["Id"].as_str().unwrap());
        let steady = agent.alloc("steady.g[0]").unwrap().id();
        let [steady_container] = engine.containers(&steady).try_into().unwrap();

        engine.freeze();
        host::signal(pid, Signal::KILL);
        wait::until_true("the process has ended", || !host::is_alive(pid));
        let stale = "its state is stale: the driver docker is not available: ";
        agent.until_printed(&["explain", "steady"], |text| text.contains(stale));
        agent.until_printed(&["status"], |text| text.contains(stale));
        for name in ["steady.g[0]", "ends.g[0]"] {
            assert_eq!(agent.alloc(name).unwrap().state("t"), "running", "{name}");
        }
        // A new agent meets the same silence, and does not wait for it with anything else: it is ready before the driver gives up.
        agent.crash();
        let log = agent.log();
        let (_, log) = log
            .rsplit_once("the driver has not reported its state; it stays unusable until it does")
            .unwrap();
        assert!(!log.contains("failed to list the tasks of the driver"), "{log}");
        let raw = crate::common::sleeper("t", "");
        agent.apply_and_wait(&job("raw", "service", "", &[raw]));

        engine.thaw();
        let alloc = agent.until_alloc("ends.g[0]", "was restarted", |alloc| {
            alloc.restarts("t") == 1 && alloc.state("t") == "running"
        });
        assert_eq!(alloc.exit_codes("t"), [137]);
        assert_eq!((starts(&agent, "steady.g[0]"), starts(&agent, "ends.g[0]")), (1, 2));
        let [still] = engine.containers(&steady).try_into().unwrap();
        assert_eq!(still["Id"], steady_container["Id"]);
        finish(&engine, agent);
    });
}

#[test]
fn a_daemon_that_is_down_fails_no_task_and_holds_no_new_one_for_ever() {
    on_own(Kind::Docker, |engine| {
        engine.kill();
        engine.start(&["--live-restore"]);
        let mut agent = engine.agent("");
        agent.apply_and_wait(&job("kept", "service", &format!("{RESTARTS}\ncount: 3"), &[sleeping("t", "")]));
        agent.apply_and_wait(&job("ends", "service", RESTARTS, &[sleeping("t", "")]));
        let before = running_of(&engine, &agent);
        engine.kill();
        // A stop is tried again, and it is shown why it does not succeed.
        agent.cli(&["stop", "ends"]).success();
        let why = format!("Docker at {}", engine.socket().display());
        agent.until_printed(&["explain", "ends"], |text| {
            let is_it =
                |line: &str| line.contains("process: stopping it failed (try ") && line.contains(&why);
            text.lines().any(is_it)
        });
        // Nothing is placed on a driver that is away, with that reason.
        agent.apply(&job("waits", "service", RESTARTS, &[sleeping("t", "")]));
        let away = format!(
            "driver docker is not available: it does not work: failed to reach Docker at {}",
            engine.socket().display()
        );
        agent.until_printed(&["explain", "waits"], |text| text.contains(&away));
        let images = agent.cli(&["images"]);
        assert!(images.code == 1 && images.stderr.contains("Docker at"), "{images:?}");
        let config = agent.home.path().join("config.yaml").display().to_string();
        let doctor = agent.cli(&["doctor", "--config", &config]);
        assert!(doctor.stdout.contains("driver docker: failed to reach Docker at"), "{doctor:?}");
        agent.crash();
        for index in 0..3 {
            assert_eq!(agent.alloc(&format!("kept.g[{index}]")).unwrap().state("t"), "running");
        }
        // A job that is deleted meanwhile ends once the daemon answers.
        agent.cli(&["delete", "kept"]).success();
        engine.start(&["--live-restore"]);
        agent.cli(&["wait", "waits"]).success();
        wait::until_true("the containers of the jobs that were ended are gone", || {
            before.iter().all(|id| engine.inspect(id).is_none())
        });
        assert_eq!(starts(&agent, "waits.g[0]"), 1);
        finish(&engine, agent);
    });
}

#[test]
fn tasks_outlive_restarts_of_a_daemon_with_live_restore() {
    on_own(Kind::Docker, |engine| {
        engine.kill();
        engine.start(&["--live-restore"]);
        let mut agent = engine.agent("");
        let script = "i=0; while :; do i=$((i+1)); echo $i; sleep 0.2; done";
        agent.apply_and_wait(&job(
            "kept",
            "service",
            &format!("{RESTARTS}\ncount: 4"),
            &[container("t", script, "", "")],
        ));
        let before = running_of(&engine, &agent);
        for round in 0..3 {
            if round == 1 {
                engine.terminate()
            } else {
                engine.kill()
            }
            if round == 2 {
                agent.crash();
            }
            engine.start(&["--live-restore"]);
            agent.cli(&["wait", "kept"]).success();
            assert_eq!(running_of(&engine, &agent), before, "round {round}");
        }
        for index in 0..4 {
            assert_eq!(starts(&agent, &format!("kept.g[{index}]")), 1);
        }
        // Output goes on after the last restart, in order; a slow writer loses nothing.
        let alloc = agent.alloc("kept.g[0]").unwrap().id();
        let count = agent.task_log(&alloc, "t", "stdout").lines().count();
        let log = agent.until_logged(&alloc, "t", "stdout", |log| log.lines().count() > count + 5);
        let numbers: Vec<u32> = log.lines().filter_map(|line| line.parse().ok()).collect();
        assert!(numbers.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{log}");
        finish(&engine, agent);
    });
}

#[test]
fn a_daemon_without_live_restore_ends_tasks_and_each_is_started_once_more() {
    on_own(Kind::Docker, |engine| {
        let mut agent = engine.agent("");
        agent.apply_and_wait(&job(
            "again",
            "service",
            &format!("{RESTARTS}\ncount: 4"),
            &[sleeping("t", "")],
        ));
        for round in 1..=2_u64 {
            if round == 1 {
                engine.terminate()
            } else {
                engine.kill()
            }
            engine.start(&[]);
            for index in 0..4 {
                let name = format!("again.g[{index}]");
                let alloc = agent.until_alloc(&name, "runs again", |alloc| {
                    alloc.state("t") == "running" && alloc.restarts("t") == round
                });
                assert_eq!(alloc.exit_codes("t").len() as u64, round, "{:#}", alloc.0);
            }
            wait::until_true("each task has one container", || {
                running_of(&engine, &agent).len() == 4 && containers_of(&engine, &agent).len() == 4
            });
        }
        finish(&engine, agent);
    });
}

/// An end that only the supervisor of the container could have seen, and with it the agent, was shown as the task's own code 255.
#[test]
fn an_exit_that_nobody_has_seen_is_called_unknown() {
    on_own(Kind::Docker, |engine| {
        engine.kill();
        engine.start(&["--live-restore"]);
        let mut agent = engine.agent("");
        agent.apply_and_wait(&job("lost", "service", RESTARTS, &[sleeping("t", "")]));
        let alloc = agent.alloc("lost.g[0]").unwrap().id();
        let [container] = engine.containers(&alloc).try_into().unwrap();
        let pid = pid_of(&engine, container["Id"].as_str().unwrap());
        let supervisor = host::parent(pid).unwrap();
        engine.kill();
        for pid in [supervisor, pid] {
            host::signal(pid, Signal::KILL);
        }
        wait::until_true("the process has ended", || !host::is_alive(pid));
        engine.start(&["--live-restore"]);
        agent.until_alloc("lost.g[0]", "was restarted", |alloc| {
            alloc.restarts("t") == 1 && alloc.state("t") == "running"
        });
        agent.until_printed(&["describe", "lost"], |text| text.contains("its exit is unknown"));
        finish(&engine, agent);
    });
}

/// Docker that is killed while it starts a container calls it created afterwards. Its program ran on beside the next attempt.
#[test]
fn what_docker_has_started_and_forgotten_ends_before_its_task_restarts() {
    on_own(Kind::Docker, |engine| {
        engine.kill();
        engine.start(&["--live-restore"]);
        let mut agent = engine.agent("");
        agent.apply_and_wait(&job("forgotten", "service", RESTARTS, &[sleeping("t", "")]));
        let alloc = agent.alloc("forgotten.g[0]").unwrap().id();
        for round in 1..=2 {
            let [container] = engine.containers(&alloc).try_into().unwrap();
            let id = container["Id"].as_str().unwrap();
            let pid = pid_of(&engine, id);
            let log = engine.inspect(id).unwrap()["LogPath"].as_str().unwrap().to_owned();
            engine.kill();
            // What is stored until the start has ended.
            let file = Path::new(&log).with_file_name("config.v2.json");
            let mut stored: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
            stored["State"]["Running"] = false.into();
            stored["State"]["Pid"] = 0.into();
            stored["State"]["StartedAt"] = "0001-01-01T00:00:00Z".into();
            fs::write(&file, stored.to_string()).unwrap();
            if round == 2 {
                agent.crash();
            }
            assert!(host::is_alive(pid), "it outlives its daemon");
            engine.start(&["--live-restore"]);
            agent.until_alloc("forgotten.g[0]", "was restarted", |alloc| {
                alloc.restarts("t") == round && alloc.state("t") == "running"
            });
            assert!(!host::is_alive(pid), "two containers of the task run");
            let why = ["the engine has no record of its start", "its start was interrupted"];
            agent.until_printed(&["describe", "forgotten"], |text| {
                text.contains(why[usize::from(round == 2)])
            });
        }
        finish(&engine, agent);
    });
}

#[test]
fn a_daemon_that_restarts_while_tasks_start_and_end_starts_none_twice() {
    on_own(Kind::Docker, |engine| {
        engine.kill();
        engine.start(&["--live-restore"]);
        let mut agent = engine.agent("");
        let brief = "sleep 0.3; exit 1";
        agent.apply(&job(
            "brief",
            "service",
            &format!("{RESTARTS}\ncount: 3"),
            &[container("t", brief, "", "")],
        ));
        for round in 0..4_u64 {
            agent.apply(&job(&format!("steady-{round}"), "service", RESTARTS, &[sleeping("t", "")]));
            wait::pause(Duration::from_millis(150 * (round + 1)));
            engine.kill();
            if round % 2 == 1 {
                agent.crash();
            }
            engine.start(&["--live-restore"]);
        }
        for round in 0..4 {
            agent.cli(&["wait", &format!("steady-{round}")]).success();
            let alloc = agent.alloc(&format!("steady-{round}.g[0]")).unwrap();
            assert_eq!(engine.containers(&alloc.id()).len(), 1);
        }
        let found = containers_of(&engine, &agent);
        let attempts: std::collections::BTreeSet<String> =
            found.iter().map(|found| found["Labels"]["herdlet.attempt"].to_string()).collect();
        assert_eq!(attempts.len(), found.len(), "{found:#?}");
        finish(&engine, agent);
    });
}

/// The choice of an engine is kept for each allocation; `auto` waits for an engine that is installed.
#[test]
fn auto_keeps_the_engine_of_an_allocation() {
    let Some(engines) = Engines::own(&["docker", "podman"]) else { return };
    let (docker, podman) = (engines.engine(Kind::Docker), engines.engine(Kind::Podman));
    let address = |engine: &Engine<'_>| format!("unix://{}", engine.socket().display());
    let setup = herdlet_e2e::agent::Setup::default()
        .config("drivers: {docker: {engine: auto}}\n")
        .env("DOCKER_HOST", address(&docker))
        .env("CONTAINER_HOST", address(&podman));
    let mut agent = Agent::start_with(setup);
    agent.apply_and_wait(&job("sticky", "service", RESTARTS, &[sleeping("t", "")]));
    let before = running_of(&docker, &agent);
    assert_eq!(before.len(), 1, "docker comes first");
    docker.kill();
    agent.crash();
    // Its engine is named, not the one that new allocations use.
    let away = format!("failed to reach Docker at {}", docker.socket().display());
    agent.until_printed(&["explain", "sticky"], |text| text.contains(&away));
    assert!(running_of(&podman, &agent).is_empty(), "the task must not run a second time elsewhere");
    docker.start(&["--live-restore"]);
    agent.cli(&["wait", "sticky"]).success();
    assert!(containers_of(&podman, &agent).is_empty());
    finish(&docker, agent);
}

/// The config names another engine than that of a running allocation: the allocation keeps its engine, and the message names it.
#[test]
fn a_running_allocation_keeps_its_engine_when_the_config_names_another() {
    let Some(engines) = Engines::own(&["docker", "podman"]) else { return };
    let (docker, podman) = (engines.engine(Kind::Docker), engines.engine(Kind::Podman));
    let mut agent = docker.agent("");
    agent.apply_and_wait(&job("kept", "service", RESTARTS, &[sleeping("t", "")]));
    let before = running_of(&docker, &agent);
    agent.kill();
    agent.home.write("config.yaml", &podman.config(""));
    agent.launch();
    agent.cli(&["wait", "kept"]).success();
    agent.apply_and_wait(&job("new", "service", RESTARTS, &[sleeping("t", "")]));
    assert_eq!((running_of(&docker, &agent), running_of(&podman, &agent).len()), (before, 1));
    // Its next attempt, too, waits for that engine.
    docker.kill();
    agent.crash();
    let away = format!("Docker at {}", docker.socket().display());
    agent.until_printed(&["explain", "kept"], |text| text.contains(&away));
    docker.start(&[]);
    agent.until_alloc("kept.g[0]", "runs again", |alloc| {
        alloc.state("t") == "running" && alloc.restarts("t") > 0
    });
    assert_eq!(running_of(&docker, &agent).len(), 1);
    agent.cli(&["delete", "kept", "--wait"]).success();
    assert!(containers_of(&docker, &agent).is_empty());
    finish(&podman, agent);
}

/// The daemon was restarted after the agent was killed and before the next agent began: each task runs once.
#[test]
fn a_daemon_that_is_restarted_while_no_agent_runs_starts_nothing_twice() {
    on_own(Kind::Docker, |engine| {
        engine.kill();
        engine.start(&["--live-restore"]);
        let mut agent = engine.agent("");
        let count = format!("{RESTARTS}\ncount: 2");
        agent.apply_and_wait(&job("kept", "service", &count, &[sleeping("t", "")]));
        let before = running_of(&engine, &agent);
        agent.kill();
        engine.kill();
        engine.start(&["--live-restore"]);
        agent.launch();
        agent.cli(&["wait", "kept"]).success();
        assert_eq!(running_of(&engine, &agent), before);
        // Without live-restore the daemon ends them meanwhile, and each is started once more.
        agent.kill();
        engine.terminate();
        engine.start(&[]);
        agent.launch();
        for index in 0..2 {
            let name = format!("kept.g[{index}]");
            agent.until_alloc(&name, "runs again", |alloc| {
                alloc.state("t") == "running" && alloc.restarts("t") == 1
            });
            assert_eq!(starts(&agent, &name), 2);
        }
        assert_eq!(containers_of(&engine, &agent).len(), 2);
        finish(&engine, agent);
    });
}

#[test]
fn podmans_service_may_end_and_come_back() {
    on_own(Kind::Podman, |engine| {
        let mut agent = engine.agent("");
        agent.apply_and_wait(&job("kept", "service", RESTARTS, &[sleeping("t", "")]));
        let before = running_of(&engine, &agent);
        for _ in 0..2 {
            engine.kill();
            agent.crash();
            assert_eq!(agent.alloc("kept.g[0]").unwrap().state("t"), "running");
            engine.start(&[]);
            agent.cli(&["wait", "kept"]).success();
            assert_eq!(running_of(&engine, &agent), before);
        }
        assert_eq!(starts(&agent, "kept.g[0]"), 1);
        finish(&engine, agent);
    });
}
