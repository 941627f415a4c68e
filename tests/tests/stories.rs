//! Deterministic lives with readable logs in `tests/stories`. `UPDATE_STORIES=1` updates the logs.

use std::{path::Path, sync::Arc};

use herdlet_api_types::{
    Duration,
    alloc::ClientStatus,
    fixture,
    job::{
        Dependency, DependencyCondition, Job, JobType, Lifecycle, Network, Periodic, PortRequest, Prestop,
        Update,
    },
    view::{AllocView, ConvergenceState},
};
use herdlet_plan::{
    event::{Command, Event, Noticed, PromoteScope, RestartScope},
    op::{Part, TaskPart},
};
use herdlet_tests::sim::{
    jobs::{group, job, service, task},
    life::{Faults, Life},
    machine::Thing,
};
use serde_json::json;

type StoryResult = Result<Life, String>;

/// Compares a life's log with the file of that name.
fn check_story(name: &str, story: impl Fn() -> StoryResult) {
    let life = story().unwrap_or_else(|broken| panic!("{name}: {broken}"));
    let text = format!("{}\n", life.log().join("\n").trim_start_matches('\n'));
    let path = Path::new(herdlet_tests::STORIES).join(format!("{name}.txt"));
    if std::env::var_os("UPDATE_STORIES").is_some() {
        std::fs::create_dir_all(path.parent().unwrap_or(&path)).unwrap_or_default();
        return std::fs::write(&path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(kept == text, "the log of {name} has changed; if this is intended, set UPDATE_STORIES=1\n{text}");
}

fn life() -> Life {
    Life::new(1, Faults::default()).logged()
}

fn web() -> Job {
    let mut group = group("g", 1, vec![task("httpd", None, 0)]);
    group.services.push(service("web"));
    job("web", JobType::Service, vec![group])
}

fn alloc_of(life: &Life, name: &str) -> herdlet_api_types::AllocId {
    life.alloc(name).unwrap_or_else(|| panic!("there is no {name}")).spec.id
}

#[test]
fn killed_between_intent_and_start() {
    check_story("killed-between-intent-and-start", || {
        let mut life = life();
        life.apply(vec![web()]);
        life.pass(10)?;
        let (alloc, scope) = (alloc_of(&life, "web.g[0]"), RestartScope::Running);
        life.chapter("A task is restarted. The agent dies when the second start is committed and requested.");
        life.request(Command::Restart { alloc, scope });
        life.until("httpd start 2")?;
        life.crash()?;
        life.chapter("The next agent inspects first: the same attempt runs once.");
        life.pass(10)?;
        assert_eq!(life.machine().live().count(), 1);
        Ok(life)
    });
}

#[test]
fn killed_between_the_first_start_and_its_commit() {
    check_story("killed-between-first-start-and-commit", || {
        let mut life = life();
        life.chapter("A job is applied, its task runs, and the agent dies before it learns of the start.");
        life.apply(vec![web()]);
        while life.machine().live().count() < 1 {
            life.moment()?;
        }
        life.crash()?;
        life.chapter(
            "No record of the attempt is stored. The next agent searches for the attempt and keeps it.",
        );
        life.pass(10)?;
        assert_eq!(life.machine().live().count(), 1);
        life.chapter("The same again, but the job is deleted before the inspection: the task is stopped.");
        life.apply(vec![herdlet_api_types::job::Job { id: "two".to_owned(), ..web() }]);
        while life.machine().live().count() < 2 {
            life.moment()?;
        }
        life.crash()?;
        life.delete("two");
        life.pass(10)?;
        assert_eq!(life.machine().live().count(), 1);
        Ok(life)
    });
}

#[test]
fn artifacts_are_fetched_once() {
    check_story("artifacts", || {
        let mut life = life();
        let mut site = web();
        site.groups[0].tasks[0].artifacts.push(fixture::artifact("https://example.test/httpd.tgz"));
        life.chapter(
            "The agent dies while it downloads an artifact. The next agent starts the download again.",
        );
        life.apply(vec![site]);
        life.until("artifacts")?;
        life.crash()?;
        life.pass(10)?;
        life.chapter("Another agent restarts the task, and finds all parts in place.");
        life.crash()?;
        life.pass(1)?;
        let (alloc, scope) = (alloc_of(&life, "web.g[0]"), RestartScope::Running);
        life.request(Command::Restart { alloc, scope });
        life.pass(10)?;
        assert_eq!(life.machine().live().count(), 1);
        life.chapter(
            "Another job is deleted during the download of its artifact: the download is withdrawn.",
        );
        let mut other = web();
        other.id = "other".to_owned();
        other.groups[0].tasks[0].artifacts.push(fixture::artifact("https://example.test/other.tgz"));
        life.apply(vec![other]);
        life.until("artifacts")?;
        life.delete("other");
        life.pass(10)?;
        assert_eq!(life.machine().live().count(), 1);
        Ok(life)
    });
}

#[test]
fn a_volume_is_unmounted_behind_our_back() {
    check_story("volume-unmounted", || {
        let mut life = life();
        let mut site = web();
        let mounts = &mut site.groups[0].tasks[0].volume_mounts;
        mounts.push(herdlet_api_types::job::VolumeMount {
            volume: "data".to_owned(),
            destination: "local/data".to_owned(),
            read_only: true,
            propagation: herdlet_api_types::job::MountPropagation::Private,
        });
        site.groups[0].volumes.insert(
            "data".to_owned(),
            herdlet_api_types::job::VolumeRequest {
                source: "data".to_owned(),
                read_only: false,
                per_alloc: false,
            },
        );
        life.chapter("The job waits for a volume that is applied later.");
        life.apply(vec![site]);
        life.pass(5)?;
        life.want_volume();
        life.pass(5)?;
        life.chapter("A user unmounts it. The agent repairs the mount without touching the task.");
        let (alloc, part) = (alloc_of(&life, "web.g[0]"), Part::Task(0, TaskPart::Mounts));
        life.machine().vanish(&Thing::Part(alloc, part));
        life.see(Event::Drift { alloc, part, by: Noticed::Event });
        life.pass(5)?;
        life.chapter("An inspection that finds all in place changes nothing.");
        life.see(Event::Drift { alloc, part, by: Noticed::Periodic });
        life.pass(5)?;
        life.chapter(
            "A user removes the task's directory. The agent does not create an empty one: the task fails.",
        );
        let part = Part::Task(0, TaskPart::Dir);
        life.machine().vanish(&Thing::Part(alloc, part));
        life.see(Event::Drift { alloc, part, by: Noticed::Periodic });
        life.pass(10)?;
        Ok(life)
    });
}

#[test]
fn a_bad_version_halts_its_roll_out() {
    check_story("rolling-update-with-a-bad-version", || {
        let mut life = life();
        let version = |exit_code| {
            let mut group = group("g", 2, vec![task("httpd", (exit_code != 0).then_some(100), exit_code)]);
            group.update = Some(update());
            job("web", JobType::Service, vec![group])
        };
        life.apply(vec![version(0)]);
        life.pass(10)?;
        life.chapter("A failing version is applied: one allocation is replaced, the other is kept.");
        life.apply(vec![version(1)]);
        life.pass(60)?;
        life.chapter("A good version is applied: it replaces the failed allocation first, then the other.");
        let mut good = version(0);
        good.groups[0].tasks[0].env.insert("COLOR".to_owned(), "green".to_owned());
        life.apply(vec![good]);
        life.pass(60)?;
        Ok(life)
    });
}

/// One allocation at a time, healthy after 2s; a deployment without progress for a minute fails.
fn update() -> Update {
    Update { min_healthy_time: Duration::from_secs(2), ..fixture::update() }
}

/// Returns a service with two allocations in this colour, whose task runs for ever, or fails at once.
fn colored(color: &str, exit_code: i32, rules: Update) -> Job {
    let mut httpd = task("httpd", (exit_code != 0).then_some(100), exit_code);
    httpd.env.insert("COLOR".to_owned(), color.to_owned());
    let mut group = group("g", 2, vec![httpd]);
    group.update = Some(rules);
    job("web", JobType::Service, vec![group])
}

#[test]
fn canary_runs_beside_old_allocations_until_promoted() {
    check_story("canary", || {
        let mut life = life();
        let rules = Update { canary: 1, ..update() };
        life.apply(vec![colored("blue", 0, rules.clone())]);
        life.pass(10)?;
        life.chapter("A new version: one canary, and both old allocations keep running. The agent is killed meanwhile.");
        life.apply(vec![colored("green", 0, rules)]);
        life.pass(1)?;
        life.crash()?;
        life.pass(90)?;
        assert_eq!(life.machine().live().count(), 3);
        life.chapter("A user promotes it: it takes its slot, then the other old allocation is replaced.");
        let job = life.jobs.values().next().ok_or("no job")?;
        let id = job.deployments.first().ok_or("no deployment")?.id;
        life.request(Command::PromoteDeployment { id, scope: PromoteScope::All });
        life.pass(30)?;
        assert_eq!(life.machine().live().count(), 2);
        Ok(life)
    });
}

#[test]
fn stopped_canary_is_replaced() {
    check_story("canary-stopped", || {
        let mut life = life();
        let rules = Update { canary: 1, ..update() };
        life.apply(vec![colored("blue", 0, rules.clone())]);
        life.pass(10)?;
        life.apply(vec![colored("green", 0, rules)]);
        life.pass(10)?;
        let canary = |view: &&Arc<AllocView>| view.spec.deployment.is_some_and(|part| part.canary);
        let first = life.allocs.values().find(canary).map(|view| view.spec.id).ok_or("no canary")?;
        life.chapter(
            "A user stops the canary: another one replaces it, and the deployment waits for that one.",
        );
        life.request(Command::StopAlloc { alloc: first });
        life.pass(10)?;
        let deployment =
            life.jobs.values().next().and_then(|job| job.deployments.first()).ok_or("no deployment")?;
        let standing = &deployment.groups["g"].placed_canaries;
        assert!(standing.len() == 1 && !standing.contains(&first), "{standing:?}");
        life.request(Command::PromoteDeployment { id: deployment.id, scope: PromoteScope::All });
        life.pass(20)?;
        let job = life.jobs.values().next().ok_or("no job")?;
        assert_eq!(job.convergence.state, ConvergenceState::Converged);
        Ok(life)
    });
}

#[test]
fn failed_deployment_reverts_the_job() {
    check_story("auto-revert", || {
        let mut life = life();
        let rules = Update { auto_revert: true, ..update() };
        life.apply(vec![colored("blue", 0, rules.clone())]);
        life.pass(10)?;
        life.chapter(
            "A failing version: a minute later its deployment has failed, and the stable version is back.",
        );
        life.apply(vec![colored("red", 1, rules)]);
        life.pass(100)?;
        let job = life.jobs.values().next().ok_or("no job")?;
        assert_eq!((job.version, job.convergence.state), (2, ConvergenceState::Converged));
        Ok(life)
    });
}

#[test]
fn a_stop_while_the_catalogue_is_down() {
    check_story("stop-while-the-catalogue-is-down", || {
        let mut life = life();
        let mut slow = web();
        slow.groups[0].shutdown_delay = Duration::from_secs(3);
        slow.groups[0].tasks[0].shutdown_delay = Duration::from_secs(2);
        life.apply(vec![slow]);
        life.pass(10)?;
        life.chapter("The catalogue is down. The stop takes no more than 3s + 2s from its decision.");
        life.catalogue_down(60);
        life.delete("web");
        life.until("attempt 1 ends")?;
        life.chapter("The registrations are removed when the catalogue answers again.");
        life.pass(90)?;
        assert!(life.jobs.is_empty());
        Ok(life)
    });
}

#[test]
fn restart_of_all_tasks() {
    check_story("restart-all", || {
        let mut life = life();
        let mut pre = task("pre", Some(500), 0);
        pre.lifecycle = Lifecycle::Prestart;
        let mut group = group("g", 1, vec![pre, task("httpd", None, 0)]);
        group.services.push(service("web"));
        group.shutdown_delay = Duration::from_secs(3);
        life.apply(vec![job("web", JobType::Service, vec![group])]);
        life.pass(10)?;
        let alloc = alloc_of(&life, "web.g[0]");
        life.chapter("All tasks: services are deregistered, 3s pass, all tasks end, then prestart runs again before the main task.");
        life.request(Command::Restart { alloc, scope: RestartScope::All });
        life.pass(10)?;
        life.chapter("One task: the group's services stay registered.");
        life.request(Command::Restart { alloc, scope: RestartScope::Task("httpd".to_owned()) });
        life.pass(10)?;
        Ok(life)
    });
}

#[test]
fn the_machine_restarts_before_a_task_began() {
    check_story("reboot-before-a-start", || {
        let mut life = life();
        let mut second = task("second", None, 0);
        second.depends_on =
            vec![Dependency { task: "first".to_owned(), condition: DependencyCondition::Completed }];
        let group = group("g", 1, vec![task("first", Some(5_000), 0), second]);
        life.apply(vec![job("two", JobType::Batch, vec![group])]);
        life.pass(2)?;
        life.chapter(
            "The machine restarts while the second task, which has no directory yet, waits for the first.",
        );
        life.reboot();
        life.crash()?;
        life.pass(30)?;
        let second = &life.alloc("two.g[0]").ok_or("no allocation")?.tasks[1];
        assert_eq!((second.failed, second.restarts, second.started_at.0 > 0), (false, 0, true));
        Ok(life)
    });
}

#[test]
fn the_machine_restarts() {
    check_story("reboot", || {
        let mut life = life();
        life.apply(vec![web()]);
        life.pass(10)?;
        life.chapter("The machine restarts. The attempt is lost; the next one doesn't count against the restart policy.");
        life.reboot();
        life.crash()?;
        life.pass(10)?;
        let task = &life.alloc("web.g[0]").ok_or("no allocation")?.tasks[0];
        assert_eq!((task.attempt, task.restarts, task.failed), (2, 1, false));
        Ok(life)
    });
}

#[test]
fn group_stops_in_order() {
    check_story("stop-order", || {
        let mut life = life();
        let mut side = task("side", None, 0);
        side.lifecycle = Lifecycle::PrestartSidecar;
        let mut leader = task("leader", None, 0);
        leader.leader = true;
        leader.prestop =
            Some(Prestop { command: "drain".to_owned(), args: Vec::new(), timeout: Duration::from_secs(3) });
        let mut front = task("front", None, 0);
        front
            .depends_on
            .push(Dependency { task: "back".to_owned(), condition: DependencyCondition::Started });
        let mut stop = task("stop", Some(100), 0);
        stop.lifecycle = Lifecycle::Poststop;
        let tasks = vec![side, leader, task("back", None, 0), front, stop];
        life.apply(vec![job("web", JobType::Service, vec![group("g", 1, tasks)])]);
        life.pass(10)?;
        life.chapter("The leader stops first, with its prestop; then front before back, its dependency; then the sidecar; then poststop.");
        life.delete("web");
        life.pass(20)?;
        assert!(life.jobs.is_empty());
        Ok(life)
    });
}

/// Nomad's kill timing: kill_timeout 30 s capped to max_kill_timeout 30 s here, task delay 10 s, group delay
/// 5 s.
#[test]
fn a_stubborn_task_is_killed_on_time() {
    check_story("kill-timing", || {
        let mut life = life();
        let mut slow = web();
        slow.groups[0].shutdown_delay = Duration::from_secs(5);
        let task = &mut slow.groups[0].tasks[0];
        task.shutdown_delay = Duration::from_secs(10);
        task.kill_timeout = Duration::from_secs(45);
        task.config = json!({"stubborn": true});
        task.services.push(service("own"));
        life.apply(vec![slow]);
        life.pass(10)?;
        life.chapter("t=0: group services; t=5: the task's services; t=15: the signal; t=45: the kill, since the agent caps it at 30s.");
        life.delete("web");
        life.pass(60)?;
        assert!(life.jobs.is_empty());
        Ok(life)
    });
}

#[test]
fn a_task_ends_while_the_agent_is_dead() {
    check_story("ended-while-the-agent-was-dead", || {
        let mut life = life();
        let batch = job("sum", JobType::Batch, vec![group("g", 1, vec![task("main", Some(2_000), 0)])]);
        life.apply(vec![batch]);
        life.until("is running")?;
        life.chapter(
            "The agent dies, and the task ends meanwhile. The next agent finds the result, and starts nothing.",
        );
        life.machine().pass_time(u64::MAX);
        life.crash()?;
        life.pass(5)?;
        assert_eq!(life.alloc("sum.g[0]").map(|view| view.status), Some(ClientStatus::Complete));
        life.chapter("Another restart of the agent changes nothing.");
        life.crash()?;
        life.pass(5)?;
        Ok(life)
    });
}

#[test]
fn the_state_of_running_tasks_is_lost() {
    check_story("state-lost", || {
        let mut life = life();
        let mut proxy = task("proxy", None, 0);
        proxy.lifecycle = Lifecycle::PrestartSidecar;
        let web = job("web", JobType::Service, vec![group("g", 1, vec![proxy, task("httpd", None, 0)])]);
        life.chapter("A sidecar and a main task run; a damaged record makes the agent forget both.");
        life.apply(vec![web]);
        life.pass(10)?;
        let alloc = alloc_of(&life, "web.g[0]");
        life.lose_state(alloc)?;
        life.chapter("It finds their attempts and keeps them: nothing starts, nothing stops.");
        life.pass(10)?;
        let mut live: Vec<u32> = life.machine().live().map(|((_, _, attempt), _)| *attempt).collect();
        live.sort_unstable();
        assert_eq!(live, [1, 1]);
        Ok(life)
    });
}

/// Regression: a rebuilt state was stuck at the barrier of a restart of all tasks, which waits until none
/// runs.
#[test]
fn state_damaged_while_tasks_run() {
    check_story("state-damaged", || {
        let mut life = life();
        let mut side = task("side", None, 0);
        side.lifecycle = Lifecycle::PrestartSidecar;
        let web = group("g", 1, vec![task("httpd", Some(20_000), 0), side]);
        life.chapter("The stored state of a running allocation is damaged while no agent runs.");
        life.apply(vec![job("web", JobType::Service, vec![web])]);
        life.pass(10)?;
        let alloc = alloc_of(&life, "web.g[0]");
        life.damage(alloc)?;
        life.chapter("The agent keeps the running tasks. A task that ends is restarted beside its sibling.");
        life.until("httpd start 2")?;
        life.pass(2)?;
        let live: Vec<u32> = life.machine().live().map(|((_, _, attempt), _)| *attempt).collect();
        assert_eq!(live, [2, 1]);
        Ok(life)
    });
}

#[test]
fn a_port_is_held_by_another_job() {
    check_story("port-held", || {
        let mut life = life();
        let on_8080 = |id: &str| {
            let mut web = job(id, JobType::Service, vec![group("g", 1, vec![task("httpd", None, 0)])]);
            let fixed = PortRequest { fixed: Some(8080), to: None };
            web.groups[0].network =
                Some(Network { ports: [("http".to_owned(), fixed)].into(), ..Network::default() });
            web
        };
        life.chapter("Two jobs request the same host port; the second reports what it waits for.");
        life.apply(vec![on_8080("first")]);
        life.pass(10)?;
        life.apply(vec![on_8080("second")]);
        life.pass(60)?;
        assert!(life.alloc("second.g[0]").is_none());
        life.chapter(
            "The first is deleted: when its task has ended, the port is free, and the second starts.",
        );
        life.delete("first");
        life.pass(10)?;
        assert_eq!(life.alloc("second.g[0]").map(|view| view.status), Some(ClientStatus::Running));
        Ok(life)
    });
}

#[test]
fn launched_once_over_a_kill_and_a_clock_that_is_set() {
    check_story("launches", || {
        let mut life = life();
        life.chapter("A job is due each minute. The agent is killed right after a launch.");
        let periodic = Periodic {
            crons: vec!["* * * * *".to_owned()],
            time_zone: "UTC".to_owned(),
            prohibit_overlap: false,
            enabled: true,
        };
        let group = group("g", 1, vec![task("dump", Some(100), 0)]);
        life.apply(vec![Job { periodic: Some(periodic), ..job("backup", JobType::Batch, vec![group]) }]);
        life.until("dump start 1")?;
        life.crash()?;
        life.pass(5)?;
        life.chapter("A user sets the clock ten minutes ahead: one launch replaces all missed ones.");
        life.set_clock_by(600_000_000_000);
        life.pass(5)?;
        life.chapter("And back: nothing is launched again until the clock has caught up.");
        life.set_clock_by(-300_000_000_000);
        life.pass(420)?;
        let launched: Vec<&str> = life.jobs.keys().skip(1).map(|key| &*key.id).collect();
        let expected =
            [40, 645, 700, 760].map(|seconds| format!("backup/periodic-{}", 1_700_000_000 + seconds));
        assert_eq!(launched, expected);
        Ok(life)
    });
}
