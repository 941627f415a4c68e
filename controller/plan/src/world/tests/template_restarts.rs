//! Turns of allocations that restart because their templates have changed.

use herdlet_api_types::{
    Duration,
    job::{DelayFunction, Group, HealthCheck, ReschedulePolicy, TemplateChange, Update},
};
use std_alloc::format;

use super::*;
use crate::facts::Revision;

const TEMPLATES: Part = Part::Task(0, TaskPart::Templates);

/// A group whose templates have the same output in all allocations.
struct Replicas {
    bench: Bench,
    output: u64,
}

fn replicas(count: u32, change: impl FnOnce(&mut Group)) -> Replicas {
    let mut main = task("main");
    main.templates.push(fixture::template(TemplateChange::Restart));
    let mut group = group("g", count, vec![main]);
    let min_healthy_time = Duration::from_secs(10);
    let health_check = HealthCheck::TaskStates;
    group.update = Some(Update { min_healthy_time, health_check, ..fixture::update() });
    change(&mut group);
    let mut replicas = Replicas { bench: Bench::new(), output: 1 };
    replicas.bench.apply(vec![job("j", JobType::Service, vec![group])], Vec::new());
    replicas.settle();
    replicas.pass(100);
    replicas
}

impl Replicas {
    fn settle(&mut self) {
        let output = self.output;
        self.bench.settle_but(|action| {
            let is_render = matches!(&action.op.target, Target::Alloc(_, part) if *part == TEMPLATES)
                && action.verb == Verb::Up;
            let outputs = vec![Revision(output)];
            is_render.then(|| Outcome::Done(Some(Arc::new(Facts { outputs, ..Facts::none() }))))
        });
    }

    /// Time passes, and everything that is due is done.
    fn pass(&mut self, seconds: u64) {
        let boot_ns = self.bench.now.boot_ns + seconds * 1_000_000_000;
        self.bench.now = Now { boot_ns, ..self.bench.now };
        self.bench.dirty = self.bench.world.keys();
        self.bench.plan();
        self.settle();
    }

    /// The data of all allocations changes.
    fn change(&mut self, output: u64) {
        self.output = output;
        for alloc in self.ids() {
            self.bench.see(Event::SourceChanged { alloc, part: TEMPLATES });
        }
        self.settle();
    }

    /// In the order of the group's slots.
    fn ids(&self) -> Vec<AllocId> {
        let (key, world) = (one_task()[0].key(), &self.bench.world);
        let live = world.allocs.of_job(&key).filter(|(_, entry)| entry.spec.desired == Desired::Run);
        live.map(|(id, _)| id).collect()
    }

    fn state(&self, id: AllocId) -> &AllocState {
        self.bench.world.allocation(id).expect("a known object").1
    }

    /// Those that have restarted.
    fn restarted(&self) -> Vec<AllocId> {
        let has = |id: &AllocId| self.state(*id).durable.tasks[0].restarts > 0;
        self.ids().into_iter().filter(has).collect()
    }

    /// The one allocation that has restarted.
    fn first(&self) -> AllocId {
        let restarted = self.restarted();
        assert_eq!(restarted.len(), 1);
        restarted[0]
    }

    /// How many restart or have to become healthy again.
    fn turns(&self) -> usize {
        self.ids().into_iter().filter(|id| self.state(*id).durable.takes_turn).count()
    }

    fn exit(&mut self, alloc: AllocId, task: &str) {
        let index = usize::from(task != "main");
        let attempt = self.state(alloc).durable.tasks[index].attempt;
        let (task, result) = (task.to_owned(), crate::fixture::exit(1));
        self.bench.see(Event::Exited { alloc, task, attempt, result });
        self.settle();
    }

    /// What an allocation waits for.
    fn explain(&mut self, alloc: AllocId) -> Vec<String> {
        let (Reply::Explanation(explanation), _) = self.bench.ask(Command::Explain { alloc }) else {
            panic!("expected an explanation")
        };
        explanation.waits.into_iter().map(|wait| wait.message).collect()
    }
}

#[test]
fn replicas_restart_one_after_the_other() {
    let mut group = replicas(3, |_| ());
    group.change(2);
    let first = group.first();
    let name = group.bench.world.allocation(first).expect("a known object").0.name();
    let other = group.ids().into_iter().find(|id| *id != first).expect("another");
    let why = format!(
        "waits for its turn to restart: its templates have changed, but {name} restarts or is not healthy yet, \
         and `max_parallel` of `update` is 1"
    );
    assert_eq!(group.explain(other), [why]);
    for (seconds, restarted, turns) in [(9, 1, 1), (1, 2, 1), (9, 2, 1), (1, 3, 1), (10, 3, 0), (100, 3, 0)] {
        group.pass(seconds);
        assert_eq!((group.restarted().len(), group.turns()), (restarted, turns));
    }
    assert!(group.ids().into_iter().all(|id| group.state(id).durable.tasks[0].restarts == 1));
    assert_eq!(group.explain(other), [] as [&str; 0]);
}

/// Until the new data was rendered, the allocation was shown as converged: `wait` returned before the change had begun.
#[test]
fn an_allocation_with_old_data_has_not_converged() {
    let mut group = replicas(1, |_| ());
    let alloc = group.ids()[0];
    let shown = |group: &Replicas| {
        let entry = group.bench.world.allocs.get(alloc).expect("a known object");
        entry.verdict.as_ref().expect("a verdict").state
    };
    assert_eq!(shown(&group), ConvergenceState::Converged);
    let old = "data has changed; it is read once it is quiet (`wait`)";
    group.bench.see(Event::SourceChanging { alloc, part: TEMPLATES });
    assert_eq!(shown(&group), ConvergenceState::Progressing);
    assert_eq!(group.explain(alloc), [old]);
    // While it is rendered, it changes again.
    group.bench.see(Event::SourceChanged { alloc, part: TEMPLATES });
    let render = group.bench.turn.actions.pop().expect("a render");
    assert_eq!(group.explain(alloc), [old]);
    group.bench.see(Event::SourceChanging { alloc, part: TEMPLATES });
    let facts = Facts { outputs: vec![Revision(1)], ..Facts::none() };
    group.bench.see(Event::Outcome(render.op, Outcome::Done(Some(Arc::new(facts)))));
    assert_eq!(group.explain(alloc), [old], "this render may have read the data before the change");
    group.change(1);
    assert_eq!(group.explain(alloc), [] as [&str; 0]);
    assert_eq!((shown(&group), group.restarted().len()), (ConvergenceState::Converged, 0));
    // What is made later has read the new data.
    group.bench.see(Event::SourceChanging { alloc, part: TEMPLATES });
    group.exit(alloc, "main");
    group.pass(30);
    group.pass(3_600);
    group.change(1);
    assert_eq!(shown(&group), ConvergenceState::Converged);
}

/// The end of a delay changes no state, and so does the restart of another allocation.
#[test]
fn a_new_wait_is_published_although_the_state_is_the_same() {
    let mut group = replicas(2, |group| group.tasks[0].templates[0].splay = Duration::from_secs(30));
    let shown = |group: &Replicas, id| {
        let entry = group.bench.world.allocs.get(id).expect("a known object");
        entry.verdict.as_ref().expect("a verdict").message.clone()
    };
    group.change(2);
    for id in group.ids() {
        assert!(shown(&group, id).contains("restarts after a random delay"), "{}", shown(&group, id));
    }
    group.pass(30);
    let first = group.first();
    let other = group.ids().into_iter().find(|id| *id != first).expect("another");
    assert!(shown(&group, other).contains("waits for its turn to restart"), "{}", shown(&group, other));
}

#[test]
fn as_many_as_max_parallel_restart_together() {
    let mut group = replicas(3, |group| {
        let update = group.update.take();
        group.update = update.map(|update| Update { max_parallel: 2, ..update });
    });
    group.change(2);
    assert_eq!(group.restarted().len(), 2);
    group.pass(10);
    assert_eq!(group.restarted().len(), 3);
}

#[test]
fn without_update_all_restart_at_once() {
    let mut group = replicas(3, |group| group.update = None);
    group.change(2);
    assert_eq!((group.restarted().len(), group.turns()), (3, 0));
}

#[test]
fn signals_have_no_turns() {
    let mut group = replicas(3, |group| {
        group.tasks[0].templates[0].on_change = TemplateChange::Signal("SIGHUP".to_owned());
    });
    group.change(2);
    let owes = |id: &AllocId| !group.state(*id).durable.tasks[0].owed.is_empty();
    assert_eq!((group.restarted().len(), group.ids().iter().filter(|id| owes(id)).count()), (0, 0));
}

/// The others go on with the data they have until a user acts, also after `healthy_deadline`.
#[test]
fn a_replica_that_fails_with_new_data_keeps_the_others_from_it() {
    let mut group = replicas(2, |group| group.tasks[0].restart.attempts = 2);
    group.change(2);
    let first = group.first();
    for _ in 0..2 {
        group.exit(first, "main");
        group.pass(5);
    }
    assert_eq!(group.restarted(), [first], "it restarts repeatedly");
    group.exit(first, "main");
    assert!(group.state(first).durable.tasks[0].failed);
    group.pass(1_000);
    assert_eq!(group.restarted(), [first], "it has failed for good");
    // Data that works reaches the others once a replacement is healthy.
    let other = group.ids().into_iter().find(|id| *id != first).expect("another");
    group.change(3);
    group.bench.ask(Command::StopAlloc { alloc: first });
    group.settle();
    assert_eq!(group.state(other).durable.tasks[0].restarts, 0, "the replacement has yet to prove itself");
    group.pass(10);
    assert_eq!(group.state(other).durable.tasks[0].restarts, 1);
}

/// A replacement that failed too let the next replica restart, until all had failed.
#[test]
fn failed_replacements_of_a_replica_keep_the_others_from_its_data() {
    let mut group = replicas(3, |group| {
        group.tasks[0].restart.attempts = 0;
        // Its first deployment has to succeed: allocations of a failed one are not replaced.
        let update = group.update.take();
        group.update =
            update.map(|update| Update { progress_deadline: Duration::from_secs(1_000), ..update });
        group.reschedule = ReschedulePolicy {
            attempts: 0,
            interval: Duration::ZERO,
            delay: Duration::from_secs(5),
            delay_function: DelayFunction::Constant,
            max_delay: Duration::ZERO,
            unlimited: true,
        };
    });
    let old = group.ids();
    let restarts = |group: &Replicas| -> Vec<u32> {
        let kept = group.ids().into_iter().filter(|id| old.contains(id));
        kept.map(|id| group.state(id).durable.tasks[0].restarts).collect()
    };
    group.change(2);
    let mut failing = group.first();
    for _ in 0..4 {
        group.exit(failing, "main");
        assert!(group.state(failing).durable.tasks[0].failed);
        group.pass(5);
        let new: Vec<AllocId> = group.ids().into_iter().filter(|id| !old.contains(id)).collect();
        assert_eq!((new.len(), restarts(&group)), (1, vec![0, 0]), "only the failed one is replaced");
        failing = new[0];
    }
    group.change(3);
    for _ in 0..3 {
        group.pass(10);
    }
    assert_eq!((restarts(&group), group.turns()), (vec![1, 1], 0), "data that works reaches all");
}

/// A restart takes nothing away from a replica that does not work, and may be what it needs.
#[test]
fn an_unhealthy_replica_does_not_wait() {
    let mut group = replicas(3, |group| {
        group.tasks.push(task("side"));
    });
    let last = *group.ids().last().expect("an allocation");
    group.change(2);
    let first = group.first();
    assert_ne!(first, last);
    group.exit(last, "side");
    group.settle();
    assert!(group.restarted().contains(&last));
    assert_eq!(group.restarted().len(), 2);
}

#[test]
fn turns_outlive_the_agent() {
    let mut group = replicas(2, |_| ());
    group.change(2);
    let first = group.first();
    let now = group.bench.now;
    group.bench.restart(now);
    group.settle();
    assert_eq!(group.restarted(), [first]);
    group.pass(9);
    assert_eq!(group.restarted(), [first], "it has to be healthy for long enough");
    group.pass(1);
    assert_eq!(group.restarted().len(), 2);
}

/// Each node knows only its own allocations of a job of servers.
#[test]
fn allocations_of_servers_have_no_turns() {
    use crate::policy::Policy;
    let mut group = replicas(1, |_| ());
    let mut spec = Allocation::clone(group.bench.world.allocation(group.ids()[0]).expect("a known object").0);
    assert_eq!(Policy::of(&spec).parallel_restarts, Some(1));
    spec.server = Some(Arc::new(fixture::server_side(&spec.job)));
    assert_eq!(Policy::of(&spec).parallel_restarts, None);
    group.settle();
}
