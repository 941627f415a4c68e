//! Limited capacity: what does not fit waits, reports what it wants and what is free, and starts once something ends.

use std_alloc::{borrow::ToOwned, string::ToString as _};

use herdlet_api_types::{
    alloc::CoreSet,
    job::{Network, NetworkMode, PortRequest},
    view::{ConvergenceState, Reason},
};

use super::*;
use crate::job::{capacity::Room, cores::OfferedCores};

/// A machine with 1,000 MiB.
fn bench() -> Bench {
    let mut bench = Bench::new();
    bench.world.ctx.settings.room = Room { cpu_mhz: 1_000, cores: 0, memory_mib: 1_000, disk_mib: 1_000 };
    bench
}

fn wanting(id: &str, memory_mib: u64, priority: u8) -> Job {
    let mut wanted = job(id, JobType::Service, vec![group("g", 1, vec![task("main")])]);
    wanted.groups[0].tasks[0].resources.memory_mib = Some(memory_mib);
    wanted.priority = priority;
    wanted
}

fn key(id: &str) -> JobKey {
    JobKey { namespace: "default".into(), id: id.into() }
}

fn runs(bench: &Bench, id: &str) -> bool {
    bench.world.allocs.of_job(&key(id)).any(|(_, alloc)| alloc.spec.desired == Desired::Run)
}

#[test]
fn job_without_room_waits_for_an_end() {
    let mut bench = bench();
    bench.apply(vec![wanting("first", 600, 50)], Vec::new());
    bench.apply(vec![wanting("second", 500, 50)], Vec::new());
    let verdict = bench.convergence(&key("second"));
    assert_eq!((verdict.state, verdict.reason), (ConvergenceState::Waiting, Some(Reason::Capacity)));
    let expected = "second.g[0] needs 500 MiB of memory (400 of 1000 MiB are free)";
    assert_eq!(verdict.message, expected);
    bench.ask(Command::Delete { job: key("first") });
    bench.settle();
    assert!(runs(&bench, "second"));
}

#[test]
fn highest_priority_gets_room_first() {
    let mut bench = bench();
    bench.apply(vec![wanting("holder", 900, 50)], Vec::new());
    bench.apply(vec![wanting("a-low", 800, 10), wanting("b-high", 800, 90)], Vec::new());
    bench.ask(Command::Delete { job: key("holder") });
    bench.settle();
    assert!(runs(&bench, "b-high") && !runs(&bench, "a-low"));
}

#[test]
fn successor_gets_its_predecessors_room() {
    let mut bench = bench();
    bench.apply(vec![wanting("web", 600, 10)], Vec::new());
    bench.apply(vec![wanting("dear", 600, 90)], Vec::new());
    bench.apply(vec![wanting("web", 700, 10)], Vec::new());
    bench.settle();
    assert!(runs(&bench, "web") && !runs(&bench, "dear"), "a rolling update is not starved");
    bench.apply(vec![wanting("web", 2_000, 10)], Vec::new());
    bench.settle();
    let kept = bench.world.allocs.of_job(&key("web")).find(|(_, alloc)| alloc.spec.desired == Desired::Run);
    assert_eq!(kept.map(|(_, alloc)| alloc.spec.job_version), Some(1));
    let verdict = bench.convergence(&key("web"));
    assert_eq!(verdict.reason, Some(Reason::Capacity));
    let expected =
        "web.g[0] is not replaced: its successor needs 2000 MiB of memory (1000 of 1000 MiB are free)";
    assert_eq!(verdict.message, expected);
}

#[test]
fn promised_room_is_not_given_to_others() {
    let mut bench = bench();
    bench.apply(vec![wanting("web", 600, 50)], Vec::new());
    bench.settle();
    // Nothing has ended yet, and 400 MiB are free.
    bench.apply(vec![wanting("web", 900, 50)], Vec::new());
    bench.apply(vec![wanting("other", 300, 90)], Vec::new());
    assert!(!runs(&bench, "web") && !runs(&bench, "other"), "the first one is being stopped");
    assert_eq!(taken_after_a_restart(&bench), 900);
    bench.settle();
    assert!(runs(&bench, "web") && !runs(&bench, "other"));
    let expected = "other.g[0] needs 300 MiB of memory (100 of 1000 MiB are free)";
    assert_eq!(bench.convergence(&key("other")).message, expected);
}

#[test]
fn promised_room_is_freed_when_less_is_wanted() {
    let less = wanting("web", 400, 50);
    let nothing = Job { parameterized: Some(Default::default()), ..wanting("web", 900, 50) };
    for follower in [less, nothing] {
        let mut bench = bench();
        bench.apply(vec![wanting("web", 500, 50)], Vec::new());
        bench.settle();
        // The first one is being stopped, and stays for a while.
        bench.apply(vec![wanting("web", 900, 50)], Vec::new());
        bench.apply(vec![wanting("other", 300, 10)], Vec::new());
        assert!(!runs(&bench, "other"), "the resources are reserved for web");
        bench.apply(vec![follower], Vec::new());
        assert!(runs(&bench, "other"), "500 MiB are free beside web's old allocation");
    }
}

#[test]
fn nothing_is_stopped_for_a_port_that_another_job_holds() {
    let mut bench = bench();
    let on = |id: &str, port: u16| {
        let mut job = wanting(id, 100, 50);
        let request = PortRequest { fixed: Some(port), to: None };
        job.groups[0].network =
            Some(Network { ports: [("http".to_owned(), request)].into(), ..Network::default() });
        job
    };
    bench.apply(vec![on("a", 80), on("b", 81)], Vec::new());
    bench.settle();
    bench.apply(vec![on("a", 81)], Vec::new());
    bench.settle();
    assert!(runs(&bench, "a"));
    let expected = "a.g[0] is not replaced: its successor needs port 81, which b.g[0] holds";
    assert_eq!(bench.convergence(&key("a")).message, expected);
    bench.ask(Command::Delete { job: key("b") });
    bench.settle();
    let a = key("a");
    let live = bench.world.allocs.of_job(&a).filter(|(_, alloc)| alloc.spec.desired == Desired::Run);
    let ports: Vec<u16> =
        live.flat_map(|(_, alloc)| alloc.spec.ports.values().map(|port| port.value)).collect();
    assert_eq!(ports, [81]);
}

/// Its network maps them, also after its tasks have ended.
#[test]
fn ports_are_held_until_the_network_is_removed() {
    for (mode, expected) in [(NetworkMode::Host, true), (NetworkMode::Bridge, false)] {
        let mut bench = bench();
        let on = |id: &str, port: u16| {
            let request = PortRequest { fixed: Some(port), to: None };
            let ports = [("http".to_owned(), request)].into();
            let mut job = wanting(id, 100, 50);
            job.groups[0].network = Some(Network { ports, mode: mode.clone(), ..Network::default() });
            job
        };
        bench.apply(vec![on("a", 80)], Vec::new());
        bench.settle();
        bench.apply(vec![on("b", 80)], Vec::new());
        bench.ask(Command::Delete { job: key("a") });
        // The removal takes long.
        let is_removal = |action: &Action| {
            matches!((&action.op.target, &action.verb), (Target::Alloc(_, Part::Network), Verb::Down))
        };
        let asked = bench.settle_but(|action| is_removal(action).then_some(Outcome::Overdue));
        assert_eq!(runs(&bench, "b"), expected);
        let Some(removal) = asked.into_iter().find(is_removal) else { continue };
        let verdict = bench.convergence(&key("b"));
        assert_eq!(verdict.message, "b.g[0] needs port 80, which a.g[0] holds");
        bench.see(Event::Outcome(removal.op, Outcome::Done(None)));
        bench.settle();
        assert!(runs(&bench, "b"));
    }
}

#[test]
fn reschedule_waits_for_room() {
    let mut bench = bench();
    let mut web = wanting("web", 600, 50);
    web.groups[0].tasks[0].restart.attempts = 0;
    web.groups[0].reschedule = fixture::reschedule();
    bench.apply(vec![web], Vec::new());
    bench.settle();
    let first = bench.id();
    bench.fail(first);
    bench.settle();
    bench.apply(vec![wanting("other", 600, 10)], Vec::new());
    bench.settle();
    assert!(runs(&bench, "other"), "failed allocations hold no resources");
    bench.now = at(6);
    bench.dirty.insert(Key::Job(key("web")));
    bench.plan();
    bench.settle();
    assert!(!runs(&bench, "web"));
    assert_eq!(bench.convergence(&key("web")).reason, Some(Reason::Capacity));
    bench.ask(Command::Delete { job: key("other") });
    bench.settle();
    let of_web = bench.world.allocs.of_job(&key("web")).find(|(id, _)| *id != first);
    let (_, second) = of_web.expect("a replacement");
    assert_eq!((second.spec.previous, second.spec.rescheduled.len()), (Some(first), 1));
}

#[test]
fn first_in_queue_gets_all_room_of_a_turn() {
    let mut bench = bench();
    let held = ["one", "two"].map(|id| Job { kind: JobType::Batch, ..wanting(id, 400, 50) });
    bench.apply(held.into(), Vec::new());
    bench.settle();
    bench.apply(vec![wanting("large", 900, 80), wanting("small", 400, 10)], Vec::new());
    bench.settle();
    assert!(!runs(&bench, "large") && !runs(&bench, "small"));
    // One frees enough for the small one, both together for the large one.
    let ids: Vec<AllocId> = bench.world.allocs.iter().map(|(id, _)| id).collect();
    for id in ids {
        let exited =
            Event::Exited { alloc: id, task: "main".to_owned(), attempt: 1, result: crate::fixture::exit(0) };
        bench.world.apply(bench.now, exited, &mut bench.dirty, &mut bench.turn);
    }
    bench.plan();
    bench.settle();
    assert!(runs(&bench, "large") && !runs(&bench, "small"));
}

/// How much is taken once the next agent has read the stored state.
fn taken_after_a_restart(bench: &Bench) -> u64 {
    let limited = crate::context::Settings { room: bench.world.ctx.settings.room, ..settings() };
    let (world, unusable) = World::restore(limited, at(60), bench.stored.clone());
    assert!(unusable.is_empty());
    world.allocs.taken().memory_mib
}

#[test]
fn restart_keeps_promised_room() {
    let mut bench = bench();
    let two = |count: u32, memory_mib: u64| {
        let mut job = wanting("web", memory_mib, 50);
        job.groups[0].count = count;
        vec![job]
    };
    bench.apply(two(2, 300), Vec::new());
    bench.settle();
    assert_eq!(taken_after_a_restart(&bench), 600);
    // The first has a successor of 400 MiB, the second has none. Neither has ended.
    bench.apply(two(1, 400), Vec::new());
    assert!(!runs(&bench, "web"));
    assert_eq!(taken_after_a_restart(&bench), 700);
    bench.ask(Command::Delete { job: key("web") });
    assert_eq!(taken_after_a_restart(&bench), 600, "no replacement follows");
}

#[test]
fn quarantined_job_blocks_no_other() {
    let mut bench = bench();
    let jobs = vec![wanting("a", 600, 90), wanting("b", 600, 10)];
    let event = Event::Command { request: 1, command: Command::Apply { jobs, volumes: Vec::new() } };
    bench.world.apply(bench.now, event, &mut bench.dirty, &mut bench.turn);
    bench.dirty.clear();
    bench.world.reconcile(bench.now, &Key::Job(key("b")), &mut bench.dirty, &mut bench.turn);
    assert!(!runs(&bench, "b"), "the other job is first in the queue");
    bench.dirty.clear();
    bench.world.quarantine(bench.now, &Key::Job(key("a")), "a defect", &mut bench.dirty, &mut bench.turn);
    bench.plan();
    assert!(runs(&bench, "b"));
}

/// A job that requests one host port and nothing else.
fn listening(id: &str) -> Job {
    let mut job = job(id, JobType::Service, vec![group("g", 1, vec![task("main")])]);
    let request = PortRequest { fixed: Some(8080), to: None };
    job.groups[0].network =
        Some(Network { ports: [("http".to_owned(), request)].into(), ..Network::default() });
    job.groups[0].disk_mib = 0;
    job
}

#[test]
fn freed_port_goes_to_the_waiting_job() {
    let mut bench = bench();
    bench.apply(vec![listening("first")], Vec::new());
    bench.settle();
    bench.apply(vec![listening("second")], Vec::new());
    assert_eq!(bench.convergence(&key("second")).reason, Some(Reason::Port));
    bench.ask(Command::Stop { job: key("first") });
    bench.settle();
    assert!(runs(&bench, "second"));
}

// A group with a static port and several allocations was refused as a whole.
#[test]
fn one_of_several_allocations_gets_a_static_port() {
    let mut bench = bench();
    let mut several = listening("web");
    several.groups[0].count = 3;
    bench.apply(vec![several.clone()], Vec::new());
    bench.settle();
    let verdict = bench.convergence(&key("web"));
    assert_eq!((verdict.state, verdict.reason), (ConvergenceState::Waiting, Some(Reason::Port)));
    assert_eq!(verdict.message, "web.g[1] needs port 8080, which web.g[0] holds");
    let live = |bench: &Bench| {
        let web = key("web");
        let live = bench.world.allocs.of_job(&web).filter(|(_, alloc)| alloc.spec.desired == Desired::Run);
        live.map(|(_, alloc)| alloc.spec.job_version).collect::<Vec<_>>()
    };
    assert_eq!(live(&bench), [0]);
    // A new version replaces it: still one.
    several.groups[0].tasks[0].env.insert("A".to_owned(), "b".to_owned());
    bench.apply(vec![several.clone()], Vec::new());
    bench.settle();
    assert_eq!(live(&bench), [1]);
    several.groups[0].count = 1;
    bench.apply(vec![several], Vec::new());
    bench.settle();
    assert_eq!(bench.convergence(&key("web")).state, ConvergenceState::Converged);
}

#[test]
fn static_port_of_a_task_is_held_until_its_request_changes() {
    let mut bench = bench();
    let on = |id: &str, port: u16| {
        let mut job = listening(id);
        let network = job.groups[0].network.take();
        job.groups[0].tasks[0].ports = network.map(|network| network.ports).unwrap_or_default();
        job.groups[0].tasks[0].ports.values_mut().for_each(|request| request.fixed = Some(port));
        job
    };
    bench.apply(vec![on("first", 8080)], Vec::new());
    bench.settle();
    bench.apply(vec![on("second", 8080)], Vec::new());
    let verdict = bench.convergence(&key("second"));
    assert_eq!((verdict.state, verdict.reason), (ConvergenceState::Waiting, Some(Reason::Port)));
    assert_eq!(verdict.message, "second.g[0] needs port 8080, which first.g[0] holds");
    bench.apply(vec![on("first", 8081)], Vec::new());
    bench.settle();
    assert!(runs(&bench, "second"));
    let first = key("first");
    let live = bench.world.allocs.of_job(&first).filter(|(_, alloc)| alloc.spec.desired == Desired::Run);
    let live: Vec<(u64, u16)> = live
        .map(|(_, alloc)| (alloc.spec.job_version, alloc.spec.task_ports["main"]["http"].value))
        .collect();
    assert_eq!(live, [(1, 8081)]);
}

#[test]
fn reserved_port_is_never_assigned() {
    let reserved_ports = [8080].into();
    let mut bench = Bench::new();
    bench.world = World::new(Settings { reserved_ports, ..settings() });
    bench.apply(vec![listening("first")], Vec::new());
    let verdict = bench.convergence(&key("first"));
    assert_eq!((verdict.state, verdict.reason), (ConvergenceState::Waiting, Some(Reason::Port)));
    assert!(!runs(&bench, "first"));
}

#[test]
fn stop_during_backoff_frees_room_at_once() {
    let mut bench = bench();
    bench.apply(vec![wanting("first", 600, 50)], Vec::new());
    bench.settle();
    bench.fail(bench.id());
    bench.settle();
    bench.apply(vec![wanting("second", 500, 50)], Vec::new());
    assert!(!runs(&bench, "second"));
    bench.ask(Command::Stop { job: key("first") });
    assert!(runs(&bench, "second"));
}

fn with_cores(id: &str, cores: u16) -> Job {
    let mut job = wanting(id, 10, 50);
    job.groups[0].tasks[0].resources.cores = Some(cores);
    job
}

/// The cores of the job's allocation that shall run.
fn cores_of(bench: &Bench, id: &str) -> Vec<(String, u64)> {
    let key = key(id);
    let live = bench.world.allocs.of_job(&key).filter(|(_, alloc)| alloc.spec.desired == Desired::Run);
    let given = live.flat_map(|(_, alloc)| alloc.spec.task_cores.values());
    given.map(|given| (given.cores.to_string(), given.cpu_mhz)).collect()
}

/// Machine with the cores 1, 2 and 3, of 1,000 MHz each.
fn bench_with_cores() -> Bench {
    let mut bench = Bench::new();
    let room = Room { cpu_mhz: 3_000, ..Room::ENDLESS };
    let cores = OfferedCores::Cores(CoreSet([1, 2, 3].into()));
    bench.world.ctx.settings = Settings { room, ..settings() }.with_cores(cores);
    bench
}

#[test]
fn a_core_has_one_holder() {
    let mut bench = bench_with_cores();
    bench.apply(vec![with_cores("first", 2)], Vec::new());
    bench.settle();
    assert_eq!(cores_of(&bench, "first"), [("1-2".to_owned(), 2_000)]);
    bench.apply(vec![with_cores("second", 1)], Vec::new());
    bench.settle();
    assert_eq!(cores_of(&bench, "second"), [("3".to_owned(), 1_000)]);
    bench.apply(vec![with_cores("third", 2)], Vec::new());
    let verdict = bench.convergence(&key("third"));
    assert_eq!((verdict.state, verdict.reason), (ConvergenceState::Waiting, Some(Reason::Capacity)));
    assert_eq!(
        verdict.message,
        "third.g[0] needs 2000 MHz of cpu (0 of 3000 MHz are free) and 2 cores of its own (0 of 3 are free)"
    );
    bench.ask(Command::Delete { job: key("second") });
    bench.settle();
    assert!(!runs(&bench, "third"), "one core is too little");
    bench.ask(Command::Delete { job: key("first") });
    bench.settle();
    assert_eq!(cores_of(&bench, "third"), [("1-2".to_owned(), 2_000)]);
}

#[test]
fn a_new_number_of_cores_replaces_the_allocation() {
    let mut bench = bench_with_cores();
    bench.apply(vec![with_cores("web", 2)], Vec::new());
    bench.settle();
    bench.apply(vec![with_cores("web", 3)], Vec::new());
    bench.settle();
    assert_eq!(cores_of(&bench, "web"), [("1-3".to_owned(), 3_000)], "its predecessor had two of them");
    bench.apply(vec![with_cores("web", 4)], Vec::new());
    bench.settle();
    assert_eq!(cores_of(&bench, "web"), [("1-3".to_owned(), 3_000)], "it is not stopped for nothing");
}

#[test]
fn a_task_without_cores_may_use_what_is_left() {
    let mut bench = bench_with_cores();
    bench.apply(vec![with_cores("first", 2)], Vec::new());
    bench.settle();
    let mut shared = wanting("shared", 10, 50);
    shared.groups[0].tasks[0].resources.cpu_mhz = Some(1_001);
    bench.apply(vec![shared], Vec::new());
    let message = bench.convergence(&key("shared")).message;
    assert_eq!(message, "shared.g[0] needs 1001 MHz of cpu (1000 of 3000 MHz are free)");
}

#[test]
fn cores_that_cannot_be_kept_are_not_assigned() {
    let mut bench = Bench::new();
    let why = "this machine has no cpuset".to_owned();
    bench.world = World::new(settings().with_cores(OfferedCores::Unsupported { why }));
    bench.apply(vec![with_cores("web", 1)], Vec::new());
    let message = bench.convergence(&key("web")).message;
    assert!(message.ends_with("and there are none: this machine has no cpuset"), "{message}");
}
