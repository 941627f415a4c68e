//! Costs of containers, beside the engine's own: starts, memory, rest, adoption.
//!
//! The engines are a Docker daemon and a Podman service of this run (`tests/engines`). Containers have no network and no mounts beyond
//! those of every task, so that the engine's own time is as short as it can be. A bare start is two requests, create and start, of a
//! container with the same image, command, mounts and limits.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use herdlet_e2e::{
    engine::{Engine, Engines, IMAGE, Kind},
    wait,
};
use serde_json::{Value, json};

use super::{
    cost,
    ground::BenchDirs,
    job::Bench,
    table::{Table, median, millis},
};

/// Number of single starts of each kind.
const SINGLES: usize = 30;
/// By then a container has started, on a machine that is idle.
const START: Duration = Duration::from_secs(1);
/// Seconds of a day.
const DAY: f64 = 86_400.0;
/// Number of containers at rest.
const RESTING: usize = 100;
/// Number of containers to adopt.
const ADOPTED: usize = 200;
/// By then the agent has released what starts needed.
const SETTLED: Duration = Duration::from_secs(25);
/// Duration of the measurement at rest.
const REST: Duration = Duration::from_secs(60);

/// What a bare start has in common with that of a task, of `HostConfig`.
const COMMON: [&str; 8] =
    ["Binds", "CapAdd", "CapDrop", "CpuShares", "LogConfig", "Memory", "MemorySwap", "NetworkMode"];

/// Starts each engine with an agent that uses it; nothing without engines on this machine.
fn with_engines(ground: &BenchDirs, mut measure: impl FnMut(&mut Bench, Engine<'_>)) {
    for kind in Kind::DAEMONS {
        let Some(engines) = Engines::apart(&[kind.name()]) else { return };
        with_engine(ground, engines.engine(kind), &mut measure);
    }
}

fn with_engine(ground: &BenchDirs, engine: Engine<'_>, mut measure: impl FnMut(&mut Bench, Engine<'_>)) {
    let config = engine.config("");
    let mut bench = Bench::with(ground, |setup| setup.config(config));
    measure(&mut bench, engine);
    bench.delete();
    wait::until_true("no container is left", || {
        let instance = bench.agent.home.instance().unwrap_or_default();
        engine.containers(&instance).is_empty()
    });
    bench.agent.finish();
}

fn job(name: &str, count: usize) -> String {
    format!(
        "apiVersion: herdlet/v1
kind: Job
metadata: {{name: {name}}}
spec:
  type: service
  groups:
    - name: main
      count: {count}
      tasks:
        - name: work
          driver: docker
          kill_timeout: 1ms
          config: {{image: \"{IMAGE}\", network_mode: none, command: sleep, args: [\"100000\"]}}
"
    )
}

/// The time over a bare create and start in the same run, and the agent's processor time.
pub(super) fn starts(table: &mut Table, ground: &BenchDirs) {
    with_engines(ground, |bench, engine| {
        let (mut ours, mut bare, mut cpu) = (Vec::new(), Vec::new(), Vec::new());
        let instance = bench.agent.home.instance().unwrap_or_default();
        for round in 0..SINGLES {
            let before = cost::cpu([bench.agent.pid()]);
            let began = SystemTime::now();
            bench.apply(&job("bench", 1));
            // Questions take the agent's time, too.
            wait::pause(START);
            bench.until_counted("running", 1);
            ours.push(started(&engine, &only(&engine, &instance), began));
            cpu.push(millis(cost::cpu([bench.agent.pid()]).saturating_sub(before)));
            let body = same(&engine, &instance);
            wait::pause(Duration::from_millis(200));
            let began = SystemTime::now();
            let id = engine.start_as(&format!("bare-{round}"), &body);
            bare.push(started(&engine, &id, began));
            engine.remove(&id);
            bench.delete();
            bench.until_counted("running", 0);
            wait::pause(Duration::from_millis(200));
        }
        let (own, alone) = (median(ours), median(bare));
        table.row(
            &format!(
                "{}: one container, from the request to its start: over a bare create and start (medians); processor time of the agent",
                engine.kind
            ),
            format_args!("{:.1} ms ({:.2} times); {:.1} ms", own - alone, own / alone, median(cpu)),
            "≤ 5 ms; ≤ 3 ms",
            format_args!("{alone:.1} ms (the engine)"),
        );
        bench.apply(&job("bench", 1));
    });
}

/// Memory of the agent for each container, and a minute without events.
pub(super) fn rest(table: &mut Table, ground: &BenchDirs) {
    with_engines(ground, |bench, engine| {
        let pid = bench.agent.pid();
        wait::pause(SETTLED);
        let before = cost::pss_kib([pid]);
        bench.apply(&job("bench", RESTING));
        bench.until_counted("running", RESTING);
        wait::pause(SETTLED);
        let each = cost::pss_kib([pid]).saturating_sub(before) / RESTING as u64;
        table.row(
            &format!("{}: memory of the agent for each container, logs included (PSS)", engine.kind),
            format_args!("{each} KB, no process"),
            "≤ 200 KB",
            "",
        );
        let (cpu, woken) = (cost::cpu([pid]), cost::wake_ups([pid]));
        wait::pause(REST);
        table.row(
            &format!(
                "{}: {RESTING} containers, no events for {} s: processor time of the agent",
                engine.kind,
                REST.as_secs()
            ),
            format_args!(
                "{:.3} s, {} wake-ups",
                cost::cpu([pid]).saturating_sub(cpu).as_secs_f64(),
                cost::wake_ups([pid]).saturating_sub(woken)
            ),
            "≤ 0.1 s",
            "",
        );
    });
}

/// `kill -9` with 200 containers: the time until a new agent has adopted all of them.
pub(super) fn adoption(table: &mut Table, ground: &BenchDirs) {
    with_engines(ground, |bench, engine| {
        bench.apply(&job("bench", ADOPTED));
        bench.until_counted("running", ADOPTED);
        let instance = bench.agent.home.instance().unwrap_or_default();
        let ids = || {
            let found = engine.containers(&instance);
            let mut ids: Vec<String> = found.iter().map(|found| found["Id"].to_string()).collect();
            ids.sort();
            ids
        };
        let before = ids();
        let began = Instant::now();
        let listed = engine.request("GET", "/containers/json?all=true", &Value::Null);
        let list = began.elapsed();
        assert_eq!(listed.status, 200);
        bench.agent.kill();
        let began = Instant::now();
        bench.agent.launch();
        bench.until_counted("running", ADOPTED);
        let took = began.elapsed();
        let same = if ids() == before { "same containers" } else { "OTHER CONTAINERS" };
        table.row(
            &format!("{}: kill -9 with {ADOPTED} running containers, restart: all adopted", engine.kind),
            format_args!("{:.2} s, {same}", took.as_secs_f64()),
            "≤ 0.6 s",
            format_args!("{:.2} s (one list of the engine)", list.as_secs_f64()),
        );
    });
}

/// The id of the agent's container.
fn only(engine: &Engine<'_>, instance: &str) -> String {
    let found = engine.containers(instance);
    found.first().and_then(|found| found["Id"].as_str()).expect("a container").to_owned()
}

/// The request for a container like the task's.
fn same(engine: &Engine<'_>, instance: &str) -> Value {
    let about = engine.inspect(&only(engine, instance)).expect("a container that exists");
    let host: serde_json::Map<String, Value> =
        COMMON.iter().map(|key| ((*key).to_owned(), about["HostConfig"][key].clone())).collect();
    json!({ "Image": IMAGE, "Cmd": about["Config"]["Cmd"], "Env": about["Config"]["Env"], "HostConfig": host })
}

/// The time from `began` to the start of a container, as the engine reports it.
fn started(engine: &Engine<'_>, id: &str, began: SystemTime) -> f64 {
    let about = engine.inspect(id).expect("a container that exists");
    let at = seconds_of_day(about["State"]["StartedAt"].as_str().unwrap_or_default()).expect("a time");
    let began = began.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    (at - began).rem_euclid(DAY) * 1000.0
}

/// The time of day in UTC, of `2026-11-27T00:10:00.123456789Z`.
fn seconds_of_day(text: &str) -> Option<f64> {
    let time = text.split_once('T')?.1;
    let time = time.split(['Z', '+']).next()?;
    let parts: Vec<f64> = time.split(':').map(str::parse).collect::<Result<_, _>>().ok()?;
    let [hours, minutes, seconds] = parts.as_slice() else { return None };
    Some((hours * 60.0 + minutes) * 60.0 + seconds)
}
