//! Tests of the network that the tasks of an allocation share.

use super::*;
use crate::{
    action::Started,
    facts::{Fact, Revision},
    network::AllocNetwork,
    parts::Need,
};
use herdlet_api_types::job::{Dns, Network, NetworkMode, Task};

const OTHER: Part = Part::Task(1, TaskPart::Process);

fn networked(tasks: Vec<Task>, mode: NetworkMode) -> Arc<Allocation> {
    let mut spec = alloc(tasks);
    let job = Arc::make_mut(&mut Arc::make_mut(&mut spec).job);
    job.groups[0].network = Some(Network { mode, ..Network::default() });
    spec
}

/// A main task, and one that cleans up after it.
fn main_and_poststop() -> Arc<Allocation> {
    let tasks = vec![task("main", Lifecycle::Main), task("stop", Lifecycle::Poststop)];
    networked(tasks, NetworkMode::Bridge)
}

/// The facts of the network with this number.
fn network(number: u64) -> Arc<Facts> {
    let network = AllocNetwork {
        interface: "eth0".to_string(),
        address: "10.9.0.2".to_string(),
        ..AllocNetwork::default()
    };
    Arc::new(Facts { revision: Revision(number), network: Some(network), ..Facts::none() })
}

fn is_busy(life: &Bench<'_>, part: Part) -> bool {
    life.state.parts.get(part).is_busy()
}

/// Brings the directories and the network up.
fn set_up(life: &mut Bench<'_>) {
    life.settle();
    life.outcome(Part::Dir, Outcome::Done(None));
    life.outcome(Part::Network, Outcome::Done(Some(network(1))));
}

/// Starts a task, with what its start reads.
fn start(life: &mut Bench<'_>, index: u16) {
    life.outcome(Part::Task(index, TaskPart::Dir), Outcome::Done(None));
    let process = Part::Task(index, TaskPart::Process);
    let launch = Launch::with(1, &life.state.inputs(process));
    life.outcome(process, Outcome::Started(launch));
    assert!(matches!(life.state.durable.tasks[usize::from(index)].run, Run::Running { .. }));
}

fn read_by(life: &Bench<'_>, index: usize) -> Option<Revision> {
    let known = &life.state.durable.tasks[index];
    known.launch_of(known.attempt)?.revisions.get(&Part::Network).copied()
}

fn restarts(life: &Bench<'_>) -> Vec<bool> {
    life.state.durable.tasks.iter().map(TaskState::is_restarting).collect()
}

#[test]
fn only_groups_with_a_network_or_resolver_of_their_own_need_one() {
    let main = || vec![task("main", Lifecycle::Main)];
    let mut with_dns = networked(main(), NetworkMode::Host);
    let job = Arc::make_mut(&mut Arc::make_mut(&mut with_dns).job);
    let dns = Dns { searches: vec!["example.org".to_string()], ..Dns::default() };
    job.groups[0].network = Some(Network { dns, ..Network::default() });
    for (spec, expected) in [
        (alloc(main()), Need::Unneeded),
        (networked(main(), NetworkMode::Host), Need::Unneeded),
        (with_dns, Need::Needed),
        (networked(main(), NetworkMode::None), Need::Needed),
        (networked(main(), NetworkMode::Bridge), Need::Needed),
        (networked(main(), NetworkMode::Cni("other".to_string())), Need::Needed),
    ] {
        assert_eq!(AllocSpec::read(spec.clone()).need(Part::Network), expected);
        let mut life = Bench::new(&spec, known(vec![pending()], Stage::Main, up(&[Part::Dir, TASK_DIR])));
        life.settle();
        let is_needed = expected == Need::Needed;
        assert_eq!((is_busy(&life, Part::Network), is_busy(&life, PROCESS)), (is_needed, !is_needed));
    }
}

#[test]
fn network_follows_the_directory_and_precedes_the_tasks() {
    let spec = main_and_poststop();
    let mut life = Bench::new(&spec, known(vec![pending(), pending()], Stage::Main, Parts::absent()));
    life.settle();
    assert!(is_busy(&life, Part::Dir) && !is_busy(&life, Part::Network));
    life.outcome(Part::Dir, Outcome::Done(None));
    assert!(is_busy(&life, Part::Network));
    assert!(!is_busy(&life, TASK_DIR));
    life.outcome(Part::Network, Outcome::Done(Some(network(1))));
    life.outcome(TASK_DIR, Outcome::Done(None));
    assert_eq!(life.state.durable.facts.get(&Part::Network), Some(&network(1)), "stored before the start");
    assert!(is_busy(&life, PROCESS));
    assert_eq!(read_by(&life, 0), Some(Revision(1)));
}

/// Ports of a CNI network may lead nowhere.
#[test]
fn what_users_of_a_network_should_know_is_an_event_of_each_task() {
    let spec = main_and_poststop();
    let mut life = Bench::new(&spec, known(vec![pending(), pending()], Stage::Main, Parts::absent()));
    life.settle();
    life.outcome(Part::Dir, Outcome::Done(None));
    let facts = Facts { message: Some("ports lead nowhere".to_string()), ..Facts::clone(&network(1)) };
    life.outcome(Part::Network, Outcome::Done(Some(Arc::new(facts))));
    for task in &life.state.durable.tasks {
        let messages: Vec<&str> = task.events.iter().map(|event| event.message.as_str()).collect();
        assert_eq!(
            messages.iter().filter(|message| **message == "ports lead nowhere").count(),
            1,
            "{messages:?}"
        );
    }
}

/// The poststop task runs in the network, so that remains until its end.
#[test]
fn network_is_removed_after_the_last_process_and_before_the_directory() {
    let mut spec = main_and_poststop();
    let mut life = Bench::new(&spec, known(vec![pending(), pending()], Stage::Main, Parts::absent()));
    set_up(&mut life);
    start(&mut life, 0);
    let state = core::mem::take(&mut life.state);
    Arc::make_mut(&mut spec).desired = Desired::Gone;
    let mut life = Bench::new(&spec, state);
    life.settle();
    assert!(is_busy(&life, PROCESS) && !is_busy(&life, Part::Network));
    life.outcome(PROCESS, Outcome::Done(None));
    life.outcome(PROCESS, Outcome::Recovered(Recovered::Exited(exit(0))));
    life.outcome(PROCESS, Outcome::Done(None));
    start(&mut life, 1);
    assert_eq!(read_by(&life, 1), Some(Revision(1)));
    assert_eq!(*life.state.parts.get(Part::Network), PartState::Up);
    life.write(|writer| writer.exited("stop", 1, exit(0)));
    life.settle();
    assert!(is_busy(&life, OTHER) && !is_busy(&life, Part::Network));
    life.outcome(OTHER, Outcome::Done(None));
    assert!(is_busy(&life, Part::Network) && !is_busy(&life, Part::Dir));
    life.outcome(Part::Network, Outcome::Done(None));
    assert_eq!((life.state.fact(Part::Network), life.state.durable.facts.len()), (Fact::Unknown, 0));
    assert!(is_busy(&life, Part::Dir));
}

/// Nomad's event for a failed hook of the allocation.
#[test]
fn a_network_that_can_not_be_set_up_fails_the_tasks() {
    let spec = main_and_poststop();
    let mut life = Bench::new(&spec, known(vec![pending(), pending()], Stage::Main, up(&[Part::Dir])));
    life.settle();
    let class = FailureClass::Fatal;
    life.outcome(Part::Network, Outcome::Failed { class, why: "no plugin".to_string() });
    let failure = life.state.durable.tasks[0].permanent_failure.clone().map(|it| (it.kind, it.message));
    let expected = (TaskEventKind::SetupFailure, "failed to set up network: no plugin".to_string());
    assert_eq!(failure, Some(expected));
}

#[test]
fn a_stop_withdraws_only_what_no_task_uses() {
    let withdrawn = |life: &Bench<'_>| life.issued.iter().any(|verb| verb == "Withdraw");
    let stopped = |spec: &Arc<Allocation>| {
        let mut spec = spec.clone();
        Arc::make_mut(&mut spec).desired = Desired::Stop;
        spec
    };
    let spec = main_and_poststop();
    let mut life = Bench::new(&spec, known(vec![pending(), pending()], Stage::Main, up(&[Part::Dir])));
    life.settle();
    let end = stopped(&spec);
    let mut life = Bench::new(&end, core::mem::take(&mut life.state));
    life.settle();
    assert!(withdrawn(&life), "{:?}", life.issued);
    let mut life = Bench::new(&spec, known(vec![pending(), pending()], Stage::Main, Parts::absent()));
    set_up(&mut life);
    start(&mut life, 0);
    life.write(|writer| writer.drift(Part::Network, Noticed::Event));
    life.settle();
    life.outcome(Part::Network, Outcome::Absent);
    assert!(is_busy(&life, Part::Network), "it is repaired");
    let mut life = Bench::new(&end, core::mem::take(&mut life.state));
    life.settle();
    assert!(is_busy(&life, PROCESS) && !withdrawn(&life), "{:?}", life.issued);
}

/// A process does not move between namespaces.
#[test]
fn tasks_restart_once_if_their_network_was_set_up_again() {
    let tasks = vec![task("main", Lifecycle::Main), task("side", Lifecycle::PrestartSidecar)];
    let spec = networked(tasks, NetworkMode::Bridge);
    let mut life = Bench::new(&spec, known(vec![pending(), pending()], Stage::Main, Parts::absent()));
    set_up(&mut life);
    start(&mut life, 0);
    start(&mut life, 1);
    for (inspected, repaired, expected) in [
        (Outcome::Present(Some(network(1))), None, [false, false]),
        // Repaired in place.
        (Outcome::Foreign { why: "no address".to_string() }, Some(network(1)), [false, false]),
        (Outcome::Absent, Some(network(2)), [true, true]),
    ] {
        life.write(|writer| writer.drift(Part::Network, Noticed::Event));
        life.settle();
        life.outcome(Part::Network, inspected);
        if let Some(facts) = repaired {
            life.outcome(Part::Network, Outcome::Done(Some(facts)));
        }
        assert_eq!(*life.state.parts.get(Part::Network), PartState::Up);
        assert_eq!(restarts(&life), expected);
    }
    let reasons = |life: &Bench<'_>| {
        let events = life.state.durable.tasks[0].events.iter();
        events.filter(|event| event.kind == TaskEventKind::RestartSignaled).count()
    };
    assert_eq!(reasons(&life), 1);
    // The next attempts have read the present network.
    life.outcome(PROCESS, Outcome::Done(None));
    life.outcome(PROCESS, Outcome::Recovered(Recovered::Exited(exit(143))));
    life.outcome(OTHER, Outcome::Done(None));
    life.outcome(OTHER, Outcome::Recovered(Recovered::Exited(exit(143))));
    life.outcome(PROCESS, Outcome::Done(None));
    life.outcome(OTHER, Outcome::Done(None));
    assert_eq!((read_by(&life, 0), read_by(&life, 1)), (Some(Revision(2)), Some(Revision(2))));
    for process in [PROCESS, OTHER] {
        let launch = Launch::with(2, &life.state.inputs(process));
        life.outcome(process, Outcome::Started(launch));
    }
    assert_eq!((restarts(&life), reasons(&life)), (vec![false, false], 1));
}

#[test]
fn the_next_agent_restarts_tasks_only_if_the_network_is_another_one() {
    let spec = networked(vec![task("main", Lifecycle::Main)], NetworkMode::Bridge);
    for (found, expected) in [(1, false), (2, true)] {
        let mut life = Bench::new(&spec, known(vec![pending()], Stage::Main, Parts::absent()));
        set_up(&mut life);
        start(&mut life, 0);
        let durable = Durable::clone(&life.state.durable);
        let mut life = Bench::new(&spec, AllocState::restored(&spec, durable, at(100)));
        life.settle();
        life.outcome(PROCESS, Outcome::Recovered(Recovered::Running(Started::default())));
        assert_eq!(restarts(&life), [false]);
        life.outcome(Part::Dir, Outcome::Present(None));
        life.outcome(Part::Network, Outcome::Present(Some(network(found))));
        assert_eq!(restarts(&life), [expected], "network {found}");
    }
}

/// The network was lost and set up again, and the agent died before it stored that. The next one inspects the network
/// before it finds the attempt, whose start was not stored.
#[test]
fn an_unstored_first_attempt_has_read_what_was_stored() {
    let spec = networked(vec![task("main", Lifecycle::Main)], NetworkMode::Bridge);
    let durable = Durable {
        adopted: true,
        boot: Some(at(0).boot),
        stage: Stage::Main,
        tasks: vec![pending()],
        facts: [(Part::Network, network(1))].into(),
        ..Durable::default()
    };
    let mut life = Bench::new(&spec, AllocState::restored(&spec, durable, at(100)));
    life.settle();
    life.outcome(Part::Network, Outcome::Present(Some(network(2))));
    life.outcome(PROCESS, Outcome::Recovered(Recovered::Running(Started::default())));
    assert_eq!(restarts(&life), [true]);
}

/// The state was lost, so nothing shows which network the task has read: it was the one before the change.
#[test]
fn an_attempt_without_a_launch_record_restarts_too() {
    let spec = networked(vec![task("main", Lifecycle::Main)], NetworkMode::Bridge);
    let durable = Durable::rebuilt(&spec, |_, _| Some(1), at(100));
    let mut life = Bench::new(&spec, AllocState::restored(&spec, durable, at(100)));
    life.settle();
    life.outcome(PROCESS, Outcome::Recovered(Recovered::Running(Started::default())));
    life.outcome(Part::Dir, Outcome::Present(None));
    life.outcome(Part::Network, Outcome::Present(Some(network(1))));
    assert_eq!(restarts(&life), [false]);
    life.write(|writer| writer.drift(Part::Network, Noticed::Event));
    life.settle();
    life.outcome(Part::Network, Outcome::Absent);
    life.outcome(Part::Network, Outcome::Done(Some(network(2))));
    assert_eq!(restarts(&life), [true]);
}

/// A start that is repeated by the next agent does not enter a network that it has not found.
#[test]
fn a_start_waits_until_the_network_is_confirmed() {
    let spec = networked(vec![task("main", Lifecycle::Main)], NetworkMode::Bridge);
    let starting =
        TaskState { run: Run::Starting { attempt: 2, boot: at(0).boot }, attempt: 2, ..TaskState::default() };
    let durable = Durable {
        adopted: true,
        stage: Stage::Main,
        tasks: vec![starting],
        facts: [(Part::Network, network(1))].into(),
        ..Durable::default()
    };
    let mut life = Bench::new(&spec, AllocState::restored(&spec, durable, at(100)));
    life.settle();
    life.outcome(PROCESS, Outcome::Recovered(Recovered::NotStarted));
    life.outcome(Part::Dir, Outcome::Present(None));
    assert!(!is_busy(&life, PROCESS));
    life.outcome(Part::Network, Outcome::Present(Some(network(1))));
    assert!(is_busy(&life, PROCESS));
}

/// Addresses of services may be those of the network.
#[test]
fn services_are_inspected_if_the_network_changes() {
    let mut spec = networked(vec![task("main", Lifecycle::Main)], NetworkMode::Bridge);
    let job = Arc::make_mut(&mut Arc::make_mut(&mut spec).job);
    job.groups[0].services.push(crate::fixture::service("web"));
    let mut life = Bench::new(&spec, known(vec![pending()], Stage::Main, Parts::absent()));
    life.settle();
    life.outcome(Part::Dir, Outcome::Done(None));
    assert!(!is_busy(&life, Part::Services), "its address is not known yet");
    life.outcome(Part::Network, Outcome::Done(Some(network(1))));
    life.outcome(Part::Services, Outcome::Done(None));
    assert_eq!(*life.state.parts.get(Part::Services), PartState::Up);
    life.write(|writer| writer.drift(Part::Network, Noticed::Event));
    life.settle();
    life.outcome(Part::Network, Outcome::Absent);
    life.outcome(Part::Network, Outcome::Done(Some(network(2))));
    assert!(is_busy(&life, Part::Services));
}

/// It is reported to servers after a restart of the agent, before the network is inspected, and after the end.
#[test]
fn last_network_is_stored_and_shown() {
    let spec = networked(vec![task("main", Lifecycle::Main)], NetworkMode::Bridge);
    let mut life = Bench::new(&spec, known(vec![pending()], Stage::Main, up(&[])));
    set_up(&mut life);
    let stored = life.state.durable.network.clone();
    assert_eq!(stored, network(1).network);
    life.state.parts.set_part(Part::Network, PartState::Suspect(Noticed::Event));
    life.settle();
    life.outcome(Part::Network, Outcome::Absent);
    assert_eq!(life.state.durable.network, stored);
}
