//! Services in a Consul that responds, or never does.

use super::*;
use crate::{action::FailureClass, fixture::service};

/// A world with a service in Consul.
fn served() -> Vec<Job> {
    let mut jobs = one_task();
    jobs[0].groups[0].services.push(service("web"));
    jobs
}

/// A machine without Consul.
fn refused(action: &Action) -> Option<Outcome> {
    let why = "connection refused".to_owned();
    of_services(action).then_some(Outcome::Failed { class: FailureClass::Retry, why })
}

fn of_services(action: &Action) -> bool {
    matches!(action.op.target, Target::Alloc(_, Part::Services | Part::Task(_, TaskPart::Services)))
}

fn verbs(asked: &[Action]) -> Vec<&Verb> {
    asked.iter().filter(|action| of_services(action)).map(|action| &action.verb).collect()
}

/// The next agent, with all sources read.
fn next_agent(bench: &mut Bench) {
    bench.restart(at(50));
    bench.see(Event::Desired(DesiredChange::Complete));
}

fn delete(bench: &mut Bench) {
    bench.ask(Command::Delete { job: one_task()[0].key() });
}

/// A job written for Nomad ran on a machine without Consul. Its deletion waited for Consul forever.
#[test]
fn consul_that_never_answered_gets_no_deregistration() {
    for restarts in [false, true] {
        let mut bench = Bench::new();
        bench.apply(served(), Vec::new());
        assert_eq!(verbs(&bench.settle_but(refused)), [&Verb::Ask]);
        let (_, state) = bench.world.allocation(bench.id()).expect("the allocation");
        assert!(matches!(state.durable.tasks[0].run, crate::state::Run::Running { .. }), "no task waits");
        assert_eq!(bench.last_view().expect("a published view").convergence.state, ConvergenceState::Waiting);
        if restarts {
            next_agent(&mut bench);
            assert_eq!(verbs(&bench.settle_but(refused)), [&Verb::Ask]);
        }
        delete(&mut bench);
        assert_eq!(verbs(&bench.settle_but(refused)), [] as [&Verb; 0]);
        assert!(bench.world.jobs.is_empty() && bench.stored.len() == 1, "{:?}", bench.stored.keys());
    }
}

/// Registrations in the built-in catalogue were treated as if Consul might hold them.
#[test]
fn move_to_consul_asks_it_first() {
    let moved = |provider| {
        let mut jobs = served();
        jobs[0].groups[0].services[0].provider = provider;
        jobs
    };
    let mut bench = Bench::new();
    bench.apply(moved(herdlet_api_types::job::Provider::Nomad), Vec::new());
    assert_eq!(verbs(&bench.settle()), [&Verb::Up]);
    bench.apply(moved(herdlet_api_types::job::Provider::Consul), Vec::new());
    assert_eq!(verbs(&bench.settle_but(refused)), [&Verb::Ask]);
    delete(&mut bench);
    bench.settle_but(refused);
    assert!(bench.world.jobs.is_empty());
    // The built-in catalogue removes what it holds, even without a previous query.
    let mut bench = Bench::new();
    bench.apply(moved(herdlet_api_types::job::Provider::Nomad), Vec::new());
    bench.settle();
    next_agent(&mut bench);
    delete(&mut bench);
    assert!(verbs(&bench.settle()).contains(&&Verb::Down));
}

#[test]
fn consul_is_asked_again_until_it_answers() {
    let mut bench = Bench::new();
    bench.apply(served(), Vec::new());
    bench.settle_but(refused);
    bench.now = at(500);
    bench.dirty.insert(Key::Alloc(bench.id()));
    bench.plan();
    assert_eq!(verbs(&bench.settle()), [&Verb::Ask, &Verb::Up]);
    assert_eq!(bench.last_view().expect("a published view").convergence.state, ConvergenceState::Converged);
}

/// Everything that may have been sent is deregistered, whether or not it arrived.
#[test]
fn answering_consul_deregisters_all_possible_entries() {
    for killed in [false, true] {
        let mut bench = Bench::new();
        bench.apply(served(), Vec::new());
        // Consul disappears before it confirms the registration.
        let lost = |action: &Action| refused(action).filter(|_| action.verb != Verb::Ask);
        assert_eq!(verbs(&bench.settle_but(lost)), [&Verb::Ask, &Verb::Up]);
        if killed {
            next_agent(&mut bench);
            bench.settle_but(refused);
        }
        delete(&mut bench);
        assert_eq!(verbs(&bench.settle_but(refused)), [&Verb::Down]);
        let (_, state) = bench.world.allocation(bench.id()).expect("the allocation");
        assert!(crate::job::placed::has_ended(&state.durable), "its tasks don't wait");
        bench.now = at(5_000);
        bench.dirty.insert(Key::Alloc(bench.id()));
        bench.plan();
        assert_eq!(verbs(&bench.settle()), [&Verb::Down]);
        assert!(bench.world.jobs.is_empty());
    }
}

/// An earlier agent did not store what it had sent.
#[test]
fn state_of_an_older_agent_counts_as_sent() {
    let mut bench = Bench::new();
    bench.apply(served(), Vec::new());
    bench.settle_but(refused);
    for value in bench.stored.values_mut() {
        if let RecordValue::AllocState(durable) = value {
            durable.offered = None;
        }
    }
    next_agent(&mut bench);
    assert_eq!(verbs(&bench.settle_but(refused)), [&Verb::Up]);
    delete(&mut bench);
    assert_eq!(verbs(&bench.settle_but(refused)), [&Verb::Down]);
    assert_eq!(bench.world.jobs.len(), 1);
}
