//! What a server wants of the allocations that it has placed here.

use herdlet_api_types::{alloc::ServerSide, task::TaskStatus};

use super::*;
use crate::state::TaskState;

/// The allocation as a server has it after its change of this number.
fn told(modify_index: u64, desired: Desired) -> Allocation {
    let spec = (*crate::fixture::alloc(vec![task("main")])).clone();
    let server =
        ServerSide { modify_index, create_index: 900, job: Arc::clone(&spec.job), no_shutdown_delay: false };
    Allocation { desired, server: Some(server.into()), ..spec }
}

impl Bench {
    fn tell(&mut self, spec: Allocation) {
        self.see(Event::Desired(DesiredChange::Alloc(spec.into())));
        self.settle();
    }

    fn wanted(&self) -> Option<Desired> {
        self.world.allocations().next().map(|(spec, _)| spec.desired)
    }

    fn status(&self) -> Vec<TaskStatus> {
        let states = self.world.allocations().flat_map(|(_, state)| &state.durable.tasks);
        states.map(TaskState::status).collect()
    }
}

#[test]
fn it_runs_stops_and_goes_as_the_server_says() {
    let mut bench = Bench::new();
    bench.tell(told(10, Desired::Run));
    assert_eq!(bench.status(), [TaskStatus::Running]);
    bench.restart(at(2));
    bench.settle();
    assert_eq!(bench.status(), [TaskStatus::Running], "it is adopted by the next agent");
    bench.tell(told(12, Desired::Stop));
    assert_eq!(bench.status(), [TaskStatus::Dead]);
    assert_eq!(bench.wanted(), Some(Desired::Stop), "it is kept until the server forgets it");
    let id = bench.id();
    bench.see(Event::Desired(DesiredChange::AllocGone(id)));
    bench.settle();
    assert_eq!(bench.world.allocations().count(), 0);
    assert!(
        !bench.stored.keys().any(|key| matches!(key, RecordKey::AllocSpec(_) | RecordKey::AllocState(_)))
    );
}

#[test]
fn older_words_change_nothing_and_what_was_to_stop_never_runs_again() {
    let mut bench = Bench::new();
    bench.tell(told(10, Desired::Run));
    for older in [9, 10] {
        bench.tell(told(older, Desired::Stop));
        assert_eq!(bench.wanted(), Some(Desired::Run), "{older}");
    }
    bench.tell(told(11, Desired::Stop));
    bench.tell(told(12, Desired::Run));
    assert_eq!((bench.wanted(), bench.status()), (Some(Desired::Stop), vec![TaskStatus::Dead]));
}

#[test]
fn what_is_over_before_it_came_here_is_not_begun() {
    let mut bench = Bench::new();
    bench.tell(told(10, Desired::Stop));
    assert_eq!(bench.world.allocations().count(), 0);
}

/// A desired list without it is not this module's business: only its name removes it.
#[test]
fn a_complete_list_of_jobs_leaves_it_alone() {
    let mut bench = Bench::new();
    bench.tell(told(10, Desired::Run));
    bench.see(Event::Desired(DesiredChange::Complete));
    bench.apply(Vec::new(), Vec::new());
    assert_eq!(bench.status(), [TaskStatus::Running]);
}

#[test]
fn another_text_of_its_job_leaves_its_tasks_running() {
    let mut bench = Bench::new();
    bench.tell(told(10, Desired::Run));
    let attempts = |bench: &Bench| {
        let states = bench.world.allocations().flat_map(|(_, state)| &state.durable.tasks);
        states.map(|task| task.attempt).collect::<Vec<_>>()
    };
    let before = attempts(&bench);
    let mut spec = told(11, Desired::Run);
    let mut job = (*spec.job).clone();
    job.groups[0].services = vec![crate::fixture::service("web")];
    spec.server = spec.server.map(|server| ServerSide { job: job.into(), ..(*server).clone() }.into());
    bench.tell(spec);
    assert_eq!((attempts(&bench), bench.status()), (before, vec![TaskStatus::Running]));
    let (spec, state) = bench.world.allocations().next().expect("it is there");
    assert_eq!(spec.group().map(|group| group.services.len()), Some(1));
    assert_eq!(state.parts.get(Part::Services), &PartState::Up, "its services are registered");
}

#[test]
fn no_server_touches_what_this_machine_has_placed_itself() {
    let mut bench = running();
    let own = bench.id();
    bench.tell(Allocation { id: own, ..told(10, Desired::Stop) });
    bench.see(Event::Desired(DesiredChange::AllocGone(own)));
    bench.settle();
    assert_eq!((bench.wanted(), bench.status()), (Some(Desired::Run), vec![TaskStatus::Running]));
}
