//! Task drivers that go away and come back while jobs need them.

use std_alloc::{borrow::ToOwned, boxed::Box, format, string::String};

use herdlet_api_types::{
    job::{Network, PortRequest},
    view::Reason,
};

use super::*;
use crate::{event::RestartScope, job::ports::HostNetwork};

fn driver() -> String {
    one_task()[0].groups[0].tasks[0].driver.clone()
}

impl Bench {
    fn report(&mut self, away: &[&str]) {
        let away = away.iter().map(|why| (driver(), String::from(*why))).collect();
        self.see_node(away, BTreeSet::new());
    }

    fn see_node(&mut self, away: BTreeMap<String, String>, disabled: BTreeSet<String>) {
        let facts = Box::new(self.world.ctx.settings.node.clone());
        self.see(Event::Node { facts, away, disabled });
    }

    fn starts(&mut self) -> usize {
        self.settle().iter().filter(|action| matches!(action.verb, Verb::Start { .. })).count()
    }
}

#[test]
fn a_job_waits_for_a_driver_that_is_away() {
    let mut bench = Bench::new();
    bench.report(&["it is gone"]);
    bench.apply(one_task(), Vec::new());
    assert_eq!(bench.world.allocations().count(), 0);
    let view = bench.job();
    assert_eq!(view.convergence.reason, Some(Reason::Constraint));
    assert_eq!(view.convergence.message, format!("j.g: driver {} is not available: it is gone", driver()));
    assert_eq!(view.unplaced["g"].filtered_by, ["missing drivers"]);
    bench.report(&[]);
    assert_eq!((bench.starts(), bench.world.allocations().count()), (1, 1));
}

#[test]
fn a_group_starts_once_the_machine_has_the_address_of_its_port() {
    let mut job = one_task().remove(0);
    job.groups[0].network = Some(Network {
        ports: [("http".to_owned(), PortRequest { fixed: None, to: None })].into(),
        host_networks: [("http".to_owned(), "lan".to_owned())].into(),
        ..Network::default()
    });
    let mut bench = Bench::new();
    let with_address = |bench: &mut Bench, ip: Option<&str>| {
        let lan = HostNetwork { ip: ip.map(ToOwned::to_owned), ..HostNetwork::default() };
        bench.see(Event::HostNetworks([("lan".to_owned(), lan)].into()));
    };
    with_address(&mut bench, None);
    bench.apply(vec![job], Vec::new());
    assert_eq!(bench.world.allocations().count(), 0);
    assert!(bench.job().convergence.message.contains("has no such address"));
    with_address(&mut bench, Some("192.0.2.7"));
    assert_eq!((bench.starts(), bench.world.allocations().count()), (1, 1));
    let ip = |bench: &Bench| {
        bench.world.allocations().next().map(|(alloc, _)| alloc.ports["http"].host_ip.clone())
    };
    assert_eq!(ip(&bench).as_deref(), Some("192.0.2.7"));
    with_address(&mut bench, Some("192.0.2.8"));
    assert!(bench.settle().is_empty());
    assert_eq!(ip(&bench).as_deref(), Some("192.0.2.7"), "it keeps its address");
}

#[test]
fn missing_driver_blocks_only_starts() {
    let mut bench = running();
    let id = bench.id();
    bench.report(&["it does not work: no answer"]);
    assert!(bench.settle().is_empty(), "running tasks are unchanged");
    let shown = bench.last_view().expect("a published view").convergence;
    let stale =
        format!("its state is stale: the driver {} is not available: it does not work: no answer", driver());
    assert!(shown.message.ends_with(&stale), "{}", shown.message);
    let result = crate::fixture::exit(1);
    bench.see(Event::Exited { alloc: id, task: String::from("main"), attempt: 1, result });
    // The restart delay is over.
    bench.now = at(3_600);
    bench.see(Event::ClockSet);
    bench.dirty.insert(Key::Alloc(id));
    bench.plan();
    assert_eq!(bench.starts(), 0);
    bench.dirty.insert(Key::Alloc(id));
    bench.plan();
    let shown = bench.last_view().expect("a published view").convergence;
    assert_eq!(shown.reason, Some(Reason::Dependency));
    let expected = format!("waits for the driver {}: it does not work: no answer", driver());
    assert!(shown.message.ends_with(&expected), "{}", shown.message);
    bench.report(&[]);
    assert_eq!(bench.starts(), 1);
}

#[test]
fn an_attempt_that_was_not_started_yet_waits_too() {
    let mut bench = Bench::new();
    bench.apply(one_task(), Vec::new());
    let id = bench.id();
    // The first start fails temporarily, and the driver goes away before the retry.
    let class = crate::action::FailureClass::Retry;
    let fail = |action: &Action| {
        let is_start = matches!(action.verb, Verb::Start { .. });
        is_start.then(|| Outcome::Failed { class, why: String::from("reach the driver") })
    };
    while bench.turn.actions.iter().all(|action| !matches!(action.verb, Verb::Start { .. })) {
        let asked: Vec<Action> = core::mem::take(&mut bench.turn.actions);
        for action in asked {
            let outcome = fail(&action).unwrap_or(Outcome::Done(None));
            bench.see(Event::Outcome(action.op, outcome));
        }
    }
    let start = bench.turn.actions.pop().expect("a start");
    let failed = fail(&start).expect("a failure");
    bench.see(Event::Outcome(start.op, failed));
    bench.report(&["it is gone"]);
    bench.now = at(3_600);
    bench.dirty.insert(Key::Alloc(id));
    bench.plan();
    let not_started = |action: &Action| {
        matches!(action.verb, Verb::Recover { .. }).then_some(Outcome::Recovered(Recovered::NotStarted))
    };
    let asked = bench.settle_but(not_started);
    assert!(asked.iter().all(|action| !matches!(action.verb, Verb::Start { .. })));
    bench.report(&[]);
    let asked = bench.settle_but(not_started);
    assert_eq!(asked.iter().filter(|action| matches!(action.verb, Verb::Start { .. })).count(), 1);
}

/// An inspection that failed while the driver was away was repeated half a minute after it was back.
#[test]
fn failed_recovery_is_retried_when_the_driver_returns() {
    let mut bench = running();
    let id = bench.id();
    bench.report(&["it is gone"]);
    let part = Part::Task(0, TaskPart::Process);
    bench.see(Event::Drift { alloc: id, part, by: Noticed::Event });
    let why = String::from("reach the driver");
    let failed = Outcome::Failed { class: crate::action::FailureClass::Retry, why };
    let recovers = |action: &Action| matches!(action.verb, Verb::Recover { .. });
    let asked = bench.settle_but(|action| recovers(action).then(|| failed.clone()));
    assert_eq!(asked.iter().filter(|action| recovers(action)).count(), 1);
    bench.report(&[]);
    assert_eq!(bench.settle().iter().filter(|action| recovers(action)).count(), 1, "without a wait");
}

/// A restart killed the task, and then it could not be started.
#[test]
fn restart_is_refused_without_its_driver() {
    let mut bench = running();
    let id = bench.id();
    let mut refusals = Vec::new();
    for (away, disabled) in [
        ([(driver(), String::from("it is gone"))].into(), BTreeSet::new()),
        (BTreeMap::new(), [driver()].into()),
    ] {
        bench.see_node(away, disabled);
        for scope in [RestartScope::Running, RestartScope::All, RestartScope::Task(String::from("main"))] {
            bench.turn.replies.clear();
            bench.see(Event::Command { request: 7, command: Command::Restart { alloc: id, scope } });
            let reply = bench.turn.replies.pop().map(|(_, reply)| reply);
            let Some(Reply::Refused(Refusal::Conflict(why))) = reply else { panic!("{reply:?}") };
            refusals.push(why);
        }
    }
    assert!(bench.settle().is_empty(), "nothing is touched");
    let name = driver();
    assert!(
        refusals[0].ends_with(&format!("can't be restarted: the driver {name} is not available: it is gone"))
    );
    assert!(refusals[5].ends_with(&format!("enable it with `drivers.{name}.enabled` in the config")));
    bench.report(&[]);
    bench.see(Event::Command {
        request: 8,
        command: Command::Restart { alloc: id, scope: RestartScope::All },
    });
    assert!(bench.settle().iter().any(|action| matches!(action.verb, Verb::Stop { .. })));
}
