//! Costs of containers without an engine, beside bare containers of Docker and Podman in the same run: the time until the first act, the
//! rate of starts, memory, adoption.
//!
//! All run the same image, without a network. The first act is a file in a directory that the container shares with the machine. What
//! Docker and Podman take is that of two requests to their API, create and start.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use herdlet_e2e::{
    engine::{Engine, Engines, IMAGE, Kind},
    wait,
};
use serde_json::json;

use super::{
    cost,
    ground::BenchDirs,
    job::Bench,
    table::{Table, median, millis},
};

/// Number of single starts of each kind.
const SINGLES: usize = 30;
/// Number of containers that start together.
const TOGETHER: usize = 100;
/// Number of containers to adopt.
const ADOPTED: usize = 200;
/// By then the agent has released what starts needed.
const SETTLED: Duration = Duration::from_secs(25);
/// The pause between checks for the first act.
const LOOK: Duration = Duration::from_micros(100);
/// Far longer than any start should take.
const LIMIT: Duration = Duration::from_secs(120);

/// The engines of a measurement, and an agent that needs none.
fn with_builtin(ground: &BenchDirs, measure: impl FnOnce(&mut Bench, &Engines)) {
    let Some(engines) = Engines::apart(&["docker", "podman"]) else { return };
    let engine = engines.engine(Kind::Builtin);
    let config = engine.config("volumes: {enabled: true}");
    let mut bench = Bench::with(ground, |setup| setup.config(config));
    engine.give_image(&bench.agent);
    measure(&mut bench, &engines);
    bench.delete();
    bench.until_removed();
    bench.agent.finish();
}

fn job(count: usize, acts: &Path, name: &str) -> String {
    format!(
        "apiVersion: herdlet/v1
kind: Job
metadata: {{name: bench}}
spec:
  type: service
  groups:
    - name: main
      count: {count}
      tasks:
        - name: work
          driver: docker
          kill_timeout: 1ms
          config: {{image: \"{IMAGE}\", network_mode: none, command: sh, args: [-c, \"{}\"], volumes: [\"{}:/acts\"]}}
",
        script(name),
        acts.display()
    )
}

fn script(name: &str) -> String {
    format!(": >/acts/{name}; exec sleep 100000")
}

/// The time since `began` at which all of these files exist.
fn acted(began: Instant, acts: &Path, count: usize) -> Duration {
    while std::fs::read_dir(acts).map_or(0, Iterator::count) < count {
        assert!(began.elapsed() < LIMIT, "{count} containers have not acted");
        wait::pause(LOOK);
    }
    began.elapsed()
}

/// One container until its first act, and a hundred.
pub(super) fn starts(table: &mut Table, ground: &BenchDirs) {
    with_builtin(ground, |bench, engines| {
        let mut own = Vec::new();
        for _ in 0..SINGLES {
            let acts = ground.dir();
            let began = Instant::now();
            bench.apply(&job(1, acts.path(), "first"));
            own.push(millis(acted(began, acts.path(), 1)));
            bench.delete();
            bench.until_removed();
        }
        let bare = Kind::DAEMONS.map(|kind| (kind, bare_starts(ground, &engines.engine(kind))));
        let beside = bare.map(|(kind, taken)| format!("{kind} {:.1} ms", median(taken)));
        table.row(
            "without an engine: one container, from the request to its first act (medians)",
            format_args!("{:.1} ms", median(own)),
            "≤ 15 ms",
            beside.join(", "),
        );
        let acts = ground.dir();
        let began = Instant::now();
        bench.apply(&job(TOGETHER, acts.path(), "$NOMAD_ALLOC_INDEX"));
        let taken = acted(began, acts.path(), TOGETHER);
        table.row(
            &format!("without an engine: {TOGETHER} containers start together"),
            format_args!("{:.0}/s", TOGETHER as f64 / taken.as_secs_f64()),
            "≥ 100/s",
            "",
        );
    });
}

/// The times of bare containers of a daemon.
fn bare_starts(ground: &BenchDirs, engine: &Engine<'_>) -> Vec<f64> {
    let mut taken = Vec::new();
    for round in 0..SINGLES {
        let acts = ground.dir();
        let binds = [format!("{}:/acts", acts.path().display())];
        let body = json!({
            "Image": IMAGE, "Cmd": ["sh", "-c", script("first")],
            "HostConfig": { "NetworkMode": "none", "Binds": binds },
        });
        let began = Instant::now();
        let id = engine.start_as(&format!("bare-{round}"), &body);
        taken.push(millis(acted(began, acts.path(), 1)));
        engine.remove(&id);
    }
    taken
}

/// Memory beyond the containers themselves: of the agent and the supervisors.
pub(super) fn memory(table: &mut Table, ground: &BenchDirs) {
    with_builtin(ground, |bench, _| {
        wait::pause(SETTLED);
        let before = cost::pss_kib([bench.agent.pid()]);
        let acts = ground.dir();
        bench.apply(&job(TOGETHER, acts.path(), "$NOMAD_ALLOC_INDEX"));
        bench.until_counted("running", TOGETHER);
        wait::pause(SETTLED);
        let agent = cost::pss_kib([bench.agent.pid()]).saturating_sub(before);
        let supervisors = cost::pss_kib(bench.supervisors());
        let each = |kib: u64| kib as f64 / TOGETHER as f64;
        table.row(
            "without an engine: memory for each container beyond it: supervisor, agent (PSS)",
            format_args!("{:.0} KB, {:.0} KB", each(supervisors), each(agent)),
            "≤ 100 KB",
            "",
        );
    });
}

/// `kill -9` with 200 containers: the time until a new agent has adopted all of them.
pub(super) fn adoption(table: &mut Table, ground: &BenchDirs) {
    with_builtin(ground, |bench, _| {
        let acts = ground.dir();
        bench.apply(&job(ADOPTED, acts.path(), "$NOMAD_ALLOC_INDEX"));
        acted(Instant::now(), acts.path(), ADOPTED);
        bench.until_counted("running", ADOPTED);
        let before = bench.tasks();
        bench.agent.kill();
        let began = Instant::now();
        bench.agent.launch();
        bench.until_counted("running", ADOPTED);
        let taken = began.elapsed();
        let same = if bench.tasks() == before { "same processes" } else { "OTHER PROCESSES" };
        table.row(
            &format!("without an engine: kill -9 with {ADOPTED} running containers, restart: all adopted"),
            format_args!("{:.2} s, {same}", taken.as_secs_f64()),
            "≤ 0.3 s",
            "",
        );
    });
}
