//! The lifecycle of attempts, within one agent and across a restart.

use super::{Agent, Behaviour, LONG, Machine, assert_nothing_is_left, exit_of};
use crate::{Exited, Leftover, Preparation, Recovered};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// A preparation can be repeated and leaves no attempt. One that takes long delays no other start, and ends when it is cancelled.
pub async fn preparation_is_cancelled_and_delays_no_start(machine: &dyn Machine) {
    let agent = Agent::start(machine);
    agent.driver.set_earlier(&[].into());
    let (config, token) = (machine.task(1, Behaviour::RunsOn), CancellationToken::new());
    for _ in 0..2 {
        agent.driver.prepare(&config, &token).await.unwrap();
    }
    assert_eq!(agent.recover(&config, None).await.unwrap(), Recovered::NotStarted);
    let slow = machine.slow_task(2);
    let prepares = agent.driver.info().capabilities.preparation == Preparation::Fetches;
    assert_eq!(slow.is_some(), prepares, "a driver that fetches nothing has no slow preparation");
    if let Some(slow) = slow {
        let mut pull = agent.driver.prepare(&slow, &token);
        {
            let start = std::pin::pin!(agent.run(machine, &config));
            let first = futures_util::future::select(&mut pull, start).await;
            assert!(matches!(first, futures_util::future::Either::Right(_)), "the start waits for nothing");
        }
        token.cancel();
        pull.await.unwrap_err();
        assert_eq!(agent.found().await, std::slice::from_ref(&config.id));
        assert_eq!(agent.recover(&slow, None).await.unwrap(), Recovered::NotStarted);
    }
    agent.driver.destroy(&config.id, Leftover::Kill).await.unwrap();
}

/// Starting an attempt that runs adopts it.
pub async fn start_twice_runs_once(machine: &dyn Machine) {
    let mut agent = Agent::start(machine);
    let config = machine.task(1, Behaviour::RunsOn);
    let (first, second) =
        futures_util::future::join(agent.driver.start(config.clone()), agent.driver.start(config.clone()))
            .await;
    assert_eq!(first.unwrap(), second.unwrap());
    agent.run(machine, &config).await;
    assert_eq!(agent.found().await, std::slice::from_ref(&config.id));
    agent.stop(&config.id, LONG).await;
    assert_eq!(agent.exit().await.id, config.id);
    // The first start was stopped and destroyed: no second process may run.
    agent.driver.destroy(&config.id, Leftover::MainMustBeGone).await.unwrap();
    assert!(agent.found().await.is_empty());
}

/// The agent that started an attempt and the next agent both know its state.
pub async fn recover_in_every_state(machine: &dyn Machine) {
    let agent = Agent::start(machine);
    let config = machine.task(1, Behaviour::RunsOn);
    agent.driver.set_earlier(&[].into());
    assert_eq!(agent.recover(&config, None).await.unwrap(), Recovered::NotStarted);
    let started = agent.run(machine, &config).await;
    let running = Recovered::Running(started.clone());
    assert_eq!(agent.recover(&config, Some(&started)).await.unwrap(), running);
    drop(agent);
    let agent = Agent::start(machine);
    agent.driver.set_earlier(&[config.id.clone()].into());
    assert_eq!(agent.recover(&config, Some(&started)).await.unwrap(), running);
    // Recover again, as after drift.
    assert_eq!(agent.recover(&config, Some(&started)).await.unwrap(), running);
    agent.stop(&config.id, LONG).await;
    let exit = exit_of(agent.recover(&config, Some(&started)).await.unwrap());
    drop(agent);
    let agent = Agent::start(machine);
    agent.driver.set_earlier(&[config.id.clone()].into());
    assert_eq!(exit_of(agent.recover(&config, Some(&started)).await.unwrap()), exit);
    agent.driver.destroy(&config.id, Leftover::MainMustBeGone).await.unwrap();
    assert_nothing_is_left(&agent.recover(&config, None).await.unwrap());
}

/// Each agent receives each exit once, whether it started the attempt or recovered it.
pub async fn ends_are_reported_once(machine: &dyn Machine) {
    let mut agent = Agent::start(machine);
    for (attempt, code) in [(1, 0), (2, 3)] {
        let config = machine.task(attempt, Behaviour::Ends(code));
        agent.run(machine, &config).await;
        let Exited { id, result } = agent.exit().await;
        assert_eq!((id, result.code, result.signal), (config.id.clone(), i32::from(code), 0));
        assert_eq!(exit_of(agent.recover(&config, None).await.unwrap()), result);
    }
    let config = machine.task(3, Behaviour::RunsOn);
    let started = agent.run(machine, &config).await;
    drop(agent);
    let mut agent = Agent::start(machine);
    let recovered = agent.recover(&config, Some(&started)).await.unwrap();
    assert_eq!(recovered, Recovered::Running(started));
    agent.stop(&config.id, LONG).await;
    assert_eq!(agent.exit().await.id, config.id);
    // No other exit is reported in between: neither an earlier attempt's nor the same exit again.
    let config = machine.task(4, Behaviour::Ends(0));
    agent.run(machine, &config).await;
    assert_eq!(agent.exit().await.id, config.id);
    for attempt in 1..=4 {
        let id = machine.task(attempt, Behaviour::RunsOn).id;
        agent.driver.destroy(&id, Leftover::Kill).await.unwrap();
    }
    assert!(agent.found().await.is_empty());
}

/// A stop waits for the exit; without a grace period it kills. Stopping an ended attempt is not an error.
pub async fn stop_with_and_without_grace(machine: &dyn Machine) {
    let mut agent = Agent::start(machine);
    for (attempt, behaviour, grace) in [
        (1, Behaviour::RunsOn, LONG),
        (2, Behaviour::RunsOn, Duration::ZERO),
        (3, Behaviour::IgnoresSignals, Duration::ZERO),
        (4, Behaviour::IgnoresSignals, Duration::from_millis(50)),
    ] {
        let config = machine.task(attempt, behaviour);
        agent.run(machine, &config).await;
        agent.stop(&config.id, grace).await;
        let Exited { id, result } = agent.exit().await;
        assert_eq!(id, config.id);
        assert!(!result.is_success() || behaviour == Behaviour::RunsOn, "{result:?}");
        if behaviour == Behaviour::IgnoresSignals {
            assert_eq!(result.signal, 9);
        }
        agent.stop(&config.id, grace).await;
        agent.driver.destroy(&config.id, Leftover::MainMustBeGone).await.unwrap();
    }
    assert!(agent.found().await.is_empty());
}

/// An attempt that is stopped before its start never starts.
pub async fn fence_before_start(machine: &dyn Machine) {
    let agent = Agent::start(machine);
    let config = machine.task(1, Behaviour::RunsOn);
    agent.stop(&config.id, LONG).await;
    agent.driver.start(config.clone()).await.unwrap_err();
    let recovered = agent.recover(&config, None).await.unwrap();
    assert!(matches!(recovered, Recovered::Lost { .. }), "{recovered:?}");
    agent.driver.destroy(&config.id, Leftover::MainMustBeGone).await.unwrap();
    let next = machine.task(2, Behaviour::RunsOn);
    agent.run(machine, &next).await;
    agent.driver.destroy(&next.id, Leftover::Kill).await.unwrap();
}

/// A failed start returns an error and does not prevent the next attempt.
pub async fn failed_start_leaves_nothing(machine: &dyn Machine) {
    let agent = Agent::start(machine);
    let config = machine.task(1, Behaviour::FailsToStart);
    agent.driver.start(config.clone()).await.unwrap_err();
    let recovered = agent.recover(&config, None).await.unwrap();
    assert!(!matches!(recovered, Recovered::Running(_)));
    agent.stop(&config.id, Duration::ZERO).await;
    agent.driver.destroy(&config.id, Leftover::MainMustBeGone).await.unwrap();
    assert!(agent.found().await.is_empty());
    let next = machine.task(2, Behaviour::RunsOn);
    agent.run(machine, &next).await;
    agent.driver.destroy(&next.id, Leftover::Kill).await.unwrap();
}

/// A running attempt is destroyed only with `Leftover::Kill`; destroying an unknown attempt is not an error.
pub async fn destroy_leaves_nothing(machine: &dyn Machine) {
    let agent = Agent::start(machine);
    let config = machine.task(1, Behaviour::IgnoresSignals);
    agent.driver.destroy(&config.id, Leftover::MainMustBeGone).await.unwrap();
    let started = agent.run(machine, &config).await;
    agent.driver.destroy(&config.id, Leftover::MainMustBeGone).await.unwrap_err();
    let recovered = agent.recover(&config, Some(&started)).await.unwrap();
    assert_eq!(recovered, Recovered::Running(started));
    agent.driver.destroy(&config.id, Leftover::Kill).await.unwrap();
    agent.driver.destroy(&config.id, Leftover::Kill).await.unwrap();
    assert!(agent.found().await.is_empty());
    assert_nothing_is_left(&agent.recover(&config, None).await.unwrap());
}
