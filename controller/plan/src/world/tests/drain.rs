//! Eligibility and drains of the node, paused deployments, and names of versions.

use herdlet_api_types::{
    Duration,
    view::{DrainStatus, NodeView, VersionTag},
};
use std_alloc::{string::String, sync::Arc};

use super::*;
use crate::node::DrainRequest;

const HOUR: Duration = Duration::from_secs(3_600);

fn request(deadline: Duration, ignore_system: bool) -> Command {
    let drain = Some(DrainRequest { deadline, ignore_system });
    Command::Drain { drain, mark_eligible: false, meta: BTreeMap::new() }
}

fn end(mark_eligible: bool) -> Command {
    Command::Drain { drain: None, mark_eligible, meta: BTreeMap::new() }
}

fn several(id: &str, kind: JobType, count: u32) -> Job {
    job(id, kind, vec![group("g", count, vec![task("main")])])
}

impl Bench {
    fn node(&self) -> NodeView {
        self.world.meta.node.view()
    }

    /// Allocations that have not ended, and how many of them should run.
    fn live(&self) -> (usize, usize) {
        let live = self.world.allocs.iter();
        let live: Vec<_> =
            live.filter(|(_, alloc)| !crate::job::placed::has_ended(&alloc.state.durable)).collect();
        let wanted = live.iter().filter(|(_, alloc)| alloc.spec.desired == Desired::Run).count();
        (live.len(), wanted)
    }

    fn unplaced(&self, id: &str) -> String {
        let job = self.world.jobs.values().find(|job| &*job.state.key.id == id).expect("the job");
        job.unplaced.values().next().map(|why| why.message.clone()).unwrap_or_default()
    }
}

#[test]
fn ineligible_node_starts_nothing_and_keeps_running_tasks() {
    let mut bench = running();
    let (reply, grown) = bench.ask(Command::SetEligibility { eligible: false });
    assert!(matches!(reply, Reply::Accepted { .. }) && grown == 1, "{reply:?}");
    assert_eq!(bench.ask(Command::SetEligibility { eligible: false }).1, 0, "it was so already");
    bench.apply(vec![several("new", JobType::Service, 2)], Vec::new());
    bench.settle();
    assert_eq!(bench.live(), (1, 1));
    assert!(bench.unplaced("new").contains("herdlet eligibility --enable"), "{}", bench.unplaced("new"));
    // A version that would have to replace the allocation waits too, and one that need not takes it over.
    let mut changed = one_task().remove(0);
    changed.groups[0].tasks[0].env.insert("A".to_owned(), "1".to_owned());
    bench.apply(vec![changed.clone()], Vec::new());
    bench.settle();
    assert_eq!(bench.live(), (1, 1));
    bench.restart(at(20));
    bench.settle();
    assert!(!bench.node().eligible, "it is durable");
    assert_eq!(bench.live(), (1, 1));
    bench.ask(Command::SetEligibility { eligible: true });
    bench.settle();
    assert_eq!(bench.live(), (3, 3));
}

#[test]
fn a_drain_stops_one_of_a_group_at_a_time_and_system_jobs_last() {
    let mut bench = Bench::new();
    let jobs = vec![several("web", JobType::Service, 3), several("log", JobType::System, 1)];
    bench.apply(jobs, Vec::new());
    bench.settle();
    assert_eq!(bench.live(), (4, 4));
    bench.ask(request(HOUR, false));
    assert_eq!(bench.live(), (4, 3), "one is being stopped");
    let refused = bench.ask(Command::SetEligibility { eligible: true }).0;
    assert!(matches!(refused, Reply::Refused(Refusal::Conflict(_))), "{refused:?}");
    let system = |bench: &Bench| {
        bench
            .world
            .allocs
            .iter()
            .any(|(_, alloc)| &*alloc.spec.job_key.id == "log" && alloc.spec.desired == Desired::Run)
    };
    let mut was = 4;
    while bench.node().drain.is_some() {
        let (live, wanted) = bench.live();
        assert!(live - wanted <= 1 && live <= was, "{live} {wanted}");
        assert!(system(&bench) || live == 1, "the system job is last");
        was = live;
        let before = bench.turn.actions.len();
        assert!(before > 0, "something goes on");
        bench.settle();
    }
    assert_eq!(bench.live(), (0, 0));
    let node = bench.node();
    assert!(!node.eligible);
    assert_eq!(node.last_drain.map(|last| last.status), Some(DrainStatus::Complete));
    assert!(bench.unplaced("web").contains("takes no new allocations"));
    bench.ask(end(true));
    bench.settle();
    assert_eq!((bench.live(), bench.node().eligible), ((4, 4), true));
}

#[test]
fn batch_jobs_run_on_until_the_deadline_also_over_a_restart() {
    let mut bench = Bench::new();
    bench.apply(vec![several("work", JobType::Batch, 2)], Vec::new());
    bench.settle();
    bench.ask(request(Duration::from_secs(60), false));
    bench.settle();
    assert_eq!(bench.live(), (2, 2));
    bench.restart(at(30));
    bench.settle();
    assert_eq!(bench.live(), (2, 2));
    let wakes: Vec<u64> = bench.turn.wakes.iter().map(|(_, wake)| *wake).collect();
    assert!(wakes.contains(&(at(1).boot_ns + 60_000_000_000)), "{wakes:?}");
    bench.now = at(61);
    bench.dirty = bench.world.keys();
    bench.plan();
    assert_eq!(bench.live(), (2, 0), "both are stopped");
    bench.settle();
    assert_eq!(bench.live(), (0, 0));
    assert_eq!(bench.node().drain, None);
}

#[test]
fn a_forced_drain_stops_everything_but_ignored_system_jobs() {
    let mut bench = Bench::new();
    let jobs = vec![
        several("web", JobType::Service, 3),
        several("work", JobType::Batch, 1),
        several("log", JobType::System, 1),
    ];
    bench.apply(jobs, Vec::new());
    bench.settle();
    bench.ask(request(Duration(-1), true));
    assert_eq!(bench.live(), (5, 1));
    bench.settle();
    assert_eq!((bench.live(), bench.node().drain), ((1, 1), None));
}

#[test]
fn ended_drain_keeps_remaining_allocations() {
    let mut bench = Bench::new();
    bench.apply(vec![several("web", JobType::Service, 3)], Vec::new());
    bench.settle();
    bench.ask(request(HOUR, false));
    bench.ask(end(false));
    bench.settle();
    let node = bench.node();
    assert_eq!((bench.live(), node.eligible), ((2, 2), false));
    assert_eq!(node.last_drain.map(|last| last.status), Some(DrainStatus::Canceled));
    bench.ask(Command::SetEligibility { eligible: true });
    bench.settle();
    assert_eq!(bench.live(), (3, 3));
    // A drain of an empty node is complete at once.
    let mut empty = Bench::new();
    empty.ask(request(HOUR, false));
    assert_eq!((empty.node().drain, empty.node().eligible), (None, false));
    assert!(empty.turn.views.iter().any(|view| matches!(view, View::Node(node) if !node.eligible)));
    empty.restart(at(9));
    empty.see(Event::Desired(DesiredChange::Complete));
    assert!(empty.turn.views.iter().any(|view| matches!(view, View::Node(node) if !node.eligible)));
}

#[test]
fn a_named_version_is_kept_and_a_name_is_not_moved() {
    let mut bench = running();
    let key = bench.job().key;
    let tag = |name: &str| VersionTag {
        name: name.to_owned(),
        ..VersionTag { name: String::new(), description: String::new(), tagged_at: at(1).wall }
    };
    let apply = |bench: &mut Bench, name: &str, version| {
        bench.ask(Command::TagVersion { job: key.clone(), version, tag: tag(name) }).0
    };
    assert!(matches!(apply(&mut bench, "good", None), Reply::Accepted { .. }));
    for n in 0..9 {
        let mut next = one_task().remove(0);
        next.priority = 60 + n;
        bench.apply(vec![next], Vec::new());
        bench.settle();
    }
    let past = |bench: &Bench| {
        let job = bench.job();
        let found = job.past.iter().find(|past| past.version == 0).map(Arc::clone);
        found.map(|past| past.tag.clone().map(|tag| tag.name))
    };
    assert_eq!(past(&bench), Some(Some("good".to_owned())));
    assert!(matches!(apply(&mut bench, "good", Some(9)), Reply::Refused(Refusal::Conflict(_))));
    assert!(
        matches!(apply(&mut bench, "other", Some(2)), Reply::Refused(Refusal::NotFound(_))),
        "it was dropped"
    );
    bench.restart(at(30));
    assert_eq!(past(&bench), Some(Some("good".to_owned())), "it is durable");
    let untag = |name: &str| Command::UntagVersion { job: key.clone(), name: name.to_owned() };
    assert!(matches!(bench.ask(untag("none")).0, Reply::Refused(Refusal::NotFound(_))));
    assert!(matches!(bench.ask(untag("good")).0, Reply::Accepted { .. }));
    bench.settle();
    assert_eq!(past(&bench), None, "it may go now");
}
