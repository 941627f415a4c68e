//! `kill -9` of the agent at any moment, and a lost or damaged database: accepted jobs still exist, once, and
//! keep running.

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use herdlet_e2e::{
    agent::Agent,
    crashes::{
        campaign::{Burial, Campaign},
        starting,
    },
    flat, host, wait,
};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::common::{is_root, job, shell, sleeper};

/// The variable with a seed to repeat.
const SEED: &str = "HERDLET_TEST_SEED";

#[test]
fn agents_are_killed_at_200_random_points() {
    if !is_root() {
        return;
    }
    let seed = seed();
    let program = PathBuf::from(env!("CARGO_BIN_EXE_crashes"));
    let outcome =
        Campaign { points: 200, seed, agents: 6, program, burial: Burial::AtOnce, strangers: 0, reused: 0 }
            .run();
    eprintln!("{}", outcome.table());
    assert!(outcome.broken.is_empty(), "{}", outcome.table());
    assert_eq!(outcome.reached(), 200);
}

#[test]
fn agent_killed_during_many_starts_starts_no_task_twice() {
    if !is_root() {
        return;
    }
    let outcome = starting::run(3, 60, seed(), Path::new(env!("CARGO_BIN_EXE_crashes")));
    eprintln!("{outcome:?}");
    assert!(outcome.broken.is_empty(), "{outcome:?}");
    assert_eq!((outcome.trials, outcome.twice, outcome.again), (3, 0, 0));
}

#[test]
fn agent_does_not_grow_over_restarts_and_updates() {
    if !is_root() {
        return;
    }
    for outcome in [flat::restarts(300), flat::updates(50)] {
        eprintln!("{}", outcome.table());
        assert!(outcome.grown.is_empty(), "{}", outcome.table());
    }
}

#[test]
fn accepted_apply_survives_an_immediate_kill() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    for round in 0..20_u32 {
        let name = format!("kept-{round}");
        agent.apply(&timed(&name, 2000 + round));
        agent.kill();
        agent.launch();
        assert_eq!(current_sleep(&agent, &name), Some(2000 + round), "round {round}");
    }
    let all: Vec<u32> = (2000..2020).collect();
    wait::until_true("all of them run", || running(&agent) == all);
    agent.finish();
}

#[test]
fn pending_stop_is_completed_by_the_next_agent() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    let script = "trap '' TERM; echo up; while :; do sleep 0.1; done";
    agent.apply_and_wait(&job(
        "slow",
        "service",
        "",
        &[shell("t", script, "kill_signal: SIGTERM\nkill_timeout: 2s")],
    ));
    let members = agent.until_running("slow.g[0]", "t");
    agent.cli(&["delete", "slow"]).success();
    // Between the signal and the end of its kill_timeout.
    agent.crash();
    wait::until_true("it is stopped", || members.iter().all(|member| !host::is_alive(member.pid)));
    wait::until_true("it is forgotten", || {
        agent.alloc("slow.g[0]").is_none_or(|alloc| alloc.status() == "complete")
    });
    agent.finish();
}

#[test]
fn requested_restart_happens_once_after_a_crash() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    let script = "trap 'sleep 0.3; exit 0' INT; while :; do sleep 0.05; done";
    agent.apply_and_wait(&job("asked", "service", "", &[shell("t", script, "")]));
    let first = agent.until_alloc("asked.g[0]", "runs", |alloc| alloc.state("t") == "running");
    agent.cli(&["restart", "asked"]).success();
    agent.crash();
    let alloc = agent.until_alloc("asked.g[0]", "runs again", |alloc| {
        alloc.state("t") == "running"
            && alloc.events("t").iter().filter(|kind| *kind == "Started").count() == 2
    });
    assert_eq!(alloc.id(), first.id());
    agent.crash();
    wait::pause(Duration::from_millis(300));
    let again = agent.until_alloc("asked.g[0]", "runs", |alloc| alloc.state("t") == "running");
    assert_eq!(again.events("t"), alloc.events("t"));
    agent.finish();
}

#[test]
fn lost_database_kills_no_task_and_jobs_are_restored() {
    lose_the_database(|path| fs::remove_file(path).unwrap());
}

#[test]
fn damaged_database_is_set_aside_and_jobs_are_restored() {
    lose_the_database(|path| {
        let len = fs::metadata(path).unwrap().len();
        fs::write(path, vec![0xa5; usize::try_from(len).unwrap()]).unwrap();
    });
}

#[test]
fn empty_database_kills_nothing() {
    lose_the_database(|path| fs::write(path, "").unwrap());
}

fn lose_the_database(lose: impl Fn(&std::path::Path)) {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    agent.apply_and_wait(&timed("first", 3001));
    agent.apply_and_wait(&job("second", "service", "count: 2", &[sleeper("t", "")]));
    let members = agent.members();
    assert_eq!(members.len(), 3);
    agent.terminate();
    let instance = agent.home.instance();
    lose(&agent.home.state().join("state.db"));
    agent.launch();
    assert_eq!(agent.home.instance(), instance);
    assert!(agent.log().contains("was rebuilt from the plain files"), "{}", agent.log_tail());
    agent.cli(&["wait", "first", "second"]).success();
    assert_eq!(agent.members(), members, "same processes\n{}", agent.log_tail());
    assert_eq!(current_sleep(&agent, "first"), Some(3001));
    // The version is in effect, not only displayed.
    agent.apply_and_wait(&timed("first", 3002));
    wait::until_true("the new version runs alone", || {
        agent.members().len() == 3 && running(&agent).contains(&3002)
    });
    agent.finish();
}

#[test]
fn a_state_of_a_newer_format_is_refused_and_untouched() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    agent.apply_and_wait(&timed("kept", 3001));
    let members = agent.members();
    agent.terminate();
    let format = agent.home.state().join("format");
    let known = fs::read_to_string(&format).unwrap();
    let database = fs::read(agent.home.state().join("state.db")).unwrap();
    fs::write(&format, "4711\n").unwrap();
    let arguments = agent.agent_arguments();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let output = agent.cli(&arguments);
    assert_ne!(output.code, 0);
    assert!(output.stderr.contains("4711"), "{output:?}");
    assert!(fs::read(agent.home.state().join("state.db")).unwrap() == database);
    assert!(members.iter().all(|member| host::is_alive(member.pid)));
    fs::write(&format, known).unwrap();
    agent.launch();
    assert_eq!(agent.members(), members);
    agent.finish();
}

/// Returns a job whose only process sleeps for `seconds`, which identifies it.
fn timed(name: &str, seconds: u32) -> String {
    let task = format!(
        "        - name: t\n          driver: raw_exec\n          config: {{command: /bin/sleep, args: [\"{seconds}\"]}}\n          kill_timeout: 5s\n"
    );
    job(name, "service", "restart: {attempts: 3, interval: 1m, delay: 50ms, mode: delay}", &[task])
}

/// The sleeping time of the job's current version; none if there is no such job, or it is being deleted.
fn current_sleep(agent: &Agent, name: &str) -> Option<u32> {
    let answer = herdlet_e2e::http::get(&agent.peer(), &format!("/v1/job/{name}")).unwrap();
    if answer.status != 200 {
        return None;
    }
    let job = answer.json();
    if job["Stop"] == true {
        return None;
    }
    job["TaskGroups"][0]["Tasks"][0]["Config"]["args"][0].as_str()?.parse().ok()
}

/// Returns the sleeping times of all processes in attempts, sorted.
fn running(agent: &Agent) -> Vec<u32> {
    let times =
        agent.members().into_iter().filter_map(|member| host::arguments(member.pid)?.get(1)?.parse().ok());
    let mut times: Vec<u32> = times.collect();
    times.sort_unstable();
    times
}

/// Returns the seed to repeat, or a new one.
fn seed() -> u64 {
    let given = std::env::var(SEED).ok().and_then(|seed| seed.parse().ok());
    let new = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |time| time.as_secs() * 1_000);
    let seed = given.unwrap_or_else(new);
    eprintln!("{SEED}={seed}");
    seed
}

#[test]
fn older_database_repeats_a_deletion() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    agent.apply_and_wait(&job("stays", "service", "", &[sleeper("t", "")]));
    agent.apply_and_wait(&job("goes", "service", "", &[sleeper("t", "")]));
    let member = agent.single("stays.g[0]", "t");
    agent.terminate();
    let database = agent.home.state().join("state.db");
    let older = std::fs::read(&database).unwrap();
    agent.launch();
    agent.cli(&["delete", "--wait", "goes"]).success();
    agent.kill();
    std::fs::write(&database, older).unwrap();

    agent.launch();
    wait::until_true("the job is forgotten again", || {
        !agent.cli(&["get", "jobs"]).success().stdout.contains("goes")
    });
    assert_eq!(
        agent.members(),
        [member],
        "the job that stays has the same process, and no task of the other has started"
    );
    assert!(
        !agent.log().contains("task is starting alloc=\"goes.g[0]\" task=\"t\" attempt=2"),
        "{}",
        agent.log()
    );
    agent.finish();
}

/// Forgetting an allocation is synced to the disk by the database; the removal of its directory before that
/// is not.
#[test]
fn directory_restored_by_a_power_cut_is_removed() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    agent.apply_and_wait(&job("stays", "service", "", &[sleeper("t", "")]));
    agent.apply_and_wait(&job("goes", "service", "", &[sleeper("t", "")]));
    let stays = agent.single("stays.g[0]", "t");
    let allocs = agent.home.state().join("alloc");
    let back = allocs.join(agent.single("goes.g[0]", "t").alloc);
    let copy = agent.home.path().join("copy");
    copy_tree(&back, &copy);
    agent.cli(&["delete", "--wait", "goes"]).success();
    agent.kill();
    assert!(!back.exists());
    copy_tree(&copy, &back);
    // This database never had an allocation of this name.
    let unknown = allocs.join("11111111-2222-3333-4444-555555555555");
    copy_tree(&copy, &unknown);
    // Another program already uses it.
    let theirs = back.join("t/local");
    mount("theirs", &theirs, "tmpfs", MountFlags::empty(), c"size=1m").unwrap();

    agent.launch();
    assert!(theirs.exists() && unknown.exists(), "{}", agent.log_tail());
    let left = |agent: &Agent| agent.metric("herdlet_orphans{", "alloc_dir");
    assert!((left(&agent) - 2.0).abs() < 0.5, "{}", left(&agent));
    agent.kill();
    unmount(&theirs, UnmountFlags::empty()).unwrap();

    agent.launch();
    assert!(!back.exists() && unknown.exists(), "{}", agent.log_tail());
    assert!((left(&agent) - 1.0).abs() < 0.5, "{}", left(&agent));
    let removed = agent.metric("herdlet_orphans_removed_total", "alloc_dir");
    assert!((removed - 1.0).abs() < 0.5, "{removed}");
    assert_eq!(agent.single("stays.g[0]", "t"), stays);
    std::fs::remove_dir_all(unknown).unwrap();
    agent.finish();
}

/// The directory may be all that is left of a job. Later agents, with the new database intact, keep it too.
#[test]
fn directory_of_a_lost_database_is_kept() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    agent.apply_and_wait(&job("goes", "service", "", &[sleeper("t", "")]));
    let back = agent.home.state().join("alloc").join(agent.single("goes.g[0]", "t").alloc);
    let copy = agent.home.path().join("copy");
    copy_tree(&back, &copy);
    agent.cli(&["delete", "--wait", "goes"]).success();
    agent.terminate();
    copy_tree(&copy, &back);
    fs::remove_file(agent.home.state().join("state.db")).unwrap();
    for _ in 0..2 {
        agent.launch();
        assert!(back.join("alloc.json").exists(), "{}", agent.log_tail());
        agent.kill();
    }
    fs::remove_dir_all(back).unwrap();
    agent.launch();
    agent.finish();
}

fn copy_tree(from: &Path, to: &Path) {
    let status = std::process::Command::new("cp").arg("-a").args([from, to]).status().unwrap();
    assert!(status.success());
}

// Regression: the state was moved away while its tasks ran, and the next agent started every job a second time.
#[test]
fn empty_state_does_not_replace_one_with_live_tasks() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    agent.apply_and_wait(&job("kept", "service", "", &[sleeper("t", "")]));
    let members = agent.members();
    agent.kill();
    let (state, moved) = (agent.home.state(), agent.home.path().join("moved"));
    fs::rename(&state, &moved).unwrap();
    drop(agent.launch_unready());
    wait::until_true("it does not start", || agent.has_ended());
    let advice = format!("start the agent with --state-dir {}", moved.display());
    assert!(agent.log().contains(&advice), "{}", agent.log_tail());
    let (of_state, of_socket) = (state.display().to_string(), agent.home.socket().display().to_string());
    let doctor = agent.cli(&["doctor", "--state-dir", &of_state, "--socket", &of_socket]);
    assert!(doctor.code != 0 && doctor.stdout.contains(&advice), "{doctor:?}");
    assert!(!state.exists(), "the directory can be moved back");
    fs::rename(&moved, &state).unwrap();
    agent.launch();
    assert_eq!(agent.members(), members);
    agent.finish();
}
