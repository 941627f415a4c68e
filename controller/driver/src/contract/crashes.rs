//! Agent crashes: the driver is dropped, and a new instance continues.

use super::{Agent, Behaviour, Command, Finds, LONG, Machine, assert_nothing_is_left};
use crate::{Leftover, Recovered, Started, TaskConfig};

/// A call of an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Call {
    Start,
    Signal,
    Exec,
    Stop,
    Destroy,
}

/// A sequence of calls in which a call may be repeated.
const LIFE: [Call; 8] = [
    Call::Start,
    Call::Start,
    Call::Signal,
    Call::Exec,
    Call::Stop,
    Call::Stop,
    Call::Destroy,
    Call::Destroy,
];

/// What an agent has stored about the attempt.
struct Stored {
    config: TaskConfig,
    started: Option<Started>,
}

async fn call(machine: &dyn Machine, agent: &Agent, stored: &mut Stored, call: Call) {
    let id = stored.config.id.clone();
    match call {
        Call::Start => stored.started = Some(agent.run(machine, &stored.config).await),
        Call::Signal if agent.driver.info().capabilities.signals => {
            agent.driver.signal(&id, "SIGCONT").await.unwrap();
        }
        Call::Exec if agent.driver.info().capabilities.exec => {
            let done = agent.driver.exec(&id, &machine.command(Command::Prints), LONG).await.unwrap();
            assert_eq!(done.exit.code, 4);
        }
        Call::Signal | Call::Exec => {}
        Call::Stop => agent.stop(&id, LONG).await,
        Call::Destroy => agent.driver.destroy(&id, Leftover::MainMustBeGone).await.unwrap(),
    }
}

/// The agent crashes after each call of the sequence in turn. The next agent recovers the attempt and makes the remaining calls.
pub async fn crash_between_any_two_calls(machine: &dyn Machine) {
    for (attempt, crash_after) in (1..).zip(0..=LIFE.len()) {
        let mut stored = Stored { config: machine.task(attempt, Behaviour::RunsOn), started: None };
        let id = stored.config.id.clone();
        let (before, after) = LIFE.split_at(crash_after);
        let agent = Agent::start(machine);
        agent.driver.set_earlier(&[].into());
        for next in before {
            call(machine, &agent, &mut stored, *next).await;
        }
        drop(agent);
        let mut agent = Agent::start(machine);
        let began = before.contains(&Call::Start);
        agent.driver.set_earlier(&began.then(|| id.clone()).into_iter().collect());
        let recovered = agent.recover(&stored.config, stored.started.as_ref()).await.unwrap();
        let running = stored.started.clone().map(Recovered::Running);
        match before.last() {
            None => assert_eq!(recovered, Recovered::NotStarted),
            Some(Call::Start | Call::Signal | Call::Exec) => assert_eq!(Some(&recovered), running.as_ref()),
            Some(Call::Stop) => assert!(matches!(recovered, Recovered::Exited(_)), "{recovered:?}"),
            Some(Call::Destroy) => assert_nothing_is_left(&recovered),
        }
        for next in after {
            call(machine, &agent, &mut stored, *next).await;
        }
        if after.contains(&Call::Stop) && Some(&recovered) == running.as_ref() || before.is_empty() {
            assert_eq!(agent.exit().await.id, id);
        }
        assert!(agent.found().await.is_empty(), "after {crash_after} calls");
    }
}

/// The agent crashes while an attempt runs, before it stored anything about its start. A driver that needs the handle can't take
/// the attempt over: it ends the attempt and reports it as lost. No driver leaves two running.
pub async fn crash_without_the_result_of_a_start(machine: &dyn Machine) {
    let agent = Agent::start(machine);
    let config = machine.task(1, Behaviour::RunsOn);
    let started = agent.run(machine, &config).await;
    drop(agent);
    let mut agent = Agent::start(machine);
    agent.driver.set_earlier(&[config.id.clone()].into());
    let recovered = agent.recover(&config, None).await.unwrap();
    match machine.finds() {
        Finds::ById => {
            assert_eq!(recovered, Recovered::Running(started), "all that the start returned is known again");
            agent.stop(&config.id, LONG).await;
            assert_eq!(agent.exit().await.id, config.id);
        }
        Finds::ByHandle => assert!(matches!(recovered, Recovered::Lost { .. }), "{recovered:?}"),
    }
    agent.driver.destroy(&config.id, Leftover::MainMustBeGone).await.unwrap();
    assert!(agent.found().await.is_empty());
    let next = machine.task(2, Behaviour::RunsOn);
    agent.run(machine, &next).await;
    assert_eq!(agent.found().await, std::slice::from_ref(&next.id));
    agent.driver.destroy(&next.id, Leftover::Kill).await.unwrap();
}

/// The agent fences an attempt and crashes: the next agent does not start it either, provided it recovers it first.
pub async fn crash_of_a_fenced_attempt(machine: &dyn Machine) {
    let agent = Agent::start(machine);
    let config = machine.task(1, Behaviour::RunsOn);
    agent.stop(&config.id, LONG).await;
    drop(agent);
    let agent = Agent::start(machine);
    agent.driver.set_earlier(&[config.id.clone()].into());
    let recovered = agent.recover(&config, None).await.unwrap();
    assert!(matches!(recovered, Recovered::Lost { .. }), "{recovered:?}");
    agent.driver.start(config.clone()).await.unwrap_err();
    agent.driver.destroy(&config.id, Leftover::MainMustBeGone).await.unwrap();
    assert!(agent.found().await.is_empty());
}
