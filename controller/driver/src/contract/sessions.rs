//! Operations on a running attempt: signals, statistics, commands.

use futures_util::{StreamExt as _, stream};
use tokio::sync::mpsc;

use super::{Agent, Behaviour, Command, Inputs, LONG, Machine};
use crate::{ExecInput, ExecOutput, ExecRequest, Leftover, MountSupport, TaskConfig};
use std::time::Duration;

async fn end(agent: &Agent, attempt: u32) {
    agent.driver.destroy(&super::attempt_id(attempt), Leftover::Kill).await.unwrap();
}

/// Signals reach a running attempt. Signalling an ended attempt, and an unknown signal name, are errors.
pub async fn signals_are_sent(machine: &dyn Machine) {
    let agent = Agent::start(machine);
    let config = machine.task(1, Behaviour::RunsOn);
    agent.run(machine, &config).await;
    let sent = agent.driver.signal(&config.id, "SIGCONT").await;
    assert_eq!(sent.is_ok(), agent.driver.info().capabilities.signals);
    agent.driver.signal(&config.id, "SIGNONE").await.unwrap_err();
    agent.stop(&config.id, LONG).await;
    agent.driver.signal(&config.id, "SIGCONT").await.unwrap_err();
    end(&agent, 1).await;
}

/// Statistics arrive until the attempt ends. An attempt that does not run has none.
pub async fn usage_until_the_end(machine: &dyn Machine) {
    let agent = Agent::start(machine);
    let config = machine.task(1, Behaviour::RunsOn);
    let interval = Duration::from_millis(100);
    assert!(agent.driver.stats(&config.id, interval).await.is_err());
    agent.run(machine, &config).await;
    let mut usage = agent.driver.stats(&config.id, interval).await.unwrap();
    assert!(usage.next().await.unwrap().unwrap().at.0 > 0);
    agent.stop(&config.id, LONG).await;
    while usage.next().await.is_some() {}
    end(&agent, 1).await;
}

/// A command in a task returns its output and exit code. It works only while the attempt runs.
pub async fn commands_run_to_their_end(machine: &dyn Machine) {
    let agent = Agent::start(machine);
    let config = machine.task(1, Behaviour::RunsOn);
    let command = machine.command(Command::Prints);
    agent.driver.exec(&config.id, &command, LONG).await.unwrap_err();
    agent.run(machine, &config).await;
    let done = agent.driver.exec(&config.id, &command, LONG).await;
    assert_eq!(done.is_ok(), agent.driver.info().capabilities.exec);
    if let Ok(done) = done {
        assert_eq!((done.exit.code, done.stdout.trim_ascii_end()), (4, b"out".as_slice()));
        // Also in an attempt that an earlier agent started.
        let started = agent.driver.start(config.clone()).await.unwrap();
        drop(agent);
        let agent = Agent::start(machine);
        agent.recover(&config, Some(&started)).await.unwrap();
        let again = agent.driver.exec(&config.id, &command, LONG).await.unwrap();
        assert_eq!((again.exit.code, again.stdout), (done.exit.code, done.stdout));
        return end(&agent, 1).await;
    }
    end(&agent, 1).await;
}

/// The raw form: input frames in, output frames out, the exit frame last.
pub async fn frames_in_and_out(machine: &dyn Machine) {
    let agent = Agent::start(machine);
    let config = machine.task(1, Behaviour::RunsOn);
    agent.run(machine, &config).await;
    if !agent.driver.info().capabilities.exec {
        return end(&agent, 1).await;
    }
    let input =
        [ExecInput::Stdin(b"one\n".to_vec()), ExecInput::Stdin(b"two\n".to_vec()), ExecInput::StdinEnd];
    let request = ExecRequest { command: machine.command(Command::Repeats), terminal: None };
    let (output, mut frames) = mpsc::channel(64);
    let input = stream::iter(input).chain(stream::pending()).boxed();
    agent.driver.exec_frames(&config.id, request, input, output).await.unwrap();
    let (mut text, mut ends, mut last) = (Vec::new(), Vec::new(), None);
    while let Some(frame) = frames.recv().await {
        assert_eq!(last, None, "the exit is the last frame");
        match frame {
            ExecOutput::Stdout(bytes) => text.extend(bytes),
            ExecOutput::Stderr(_) => {}
            ExecOutput::StdoutEnd => ends.push("stdout"),
            ExecOutput::StderrEnd => ends.push("stderr"),
            ExecOutput::Exited(exit) => last = Some(exit),
        }
    }
    ends.sort_unstable();
    assert_eq!(ends, ["stderr", "stdout"]);
    let text = String::from_utf8_lossy(&text);
    assert!(text.contains("one\ntwo\n"), "{text}");
    assert!(last.is_some());
    end(&agent, 1).await;
}

/// Mounts, devices and the allocation's network are in the task and for its commands, also for the next agent. That one has no
/// facts of the allocation's parts when it recovers the attempt.
pub async fn inputs_are_in_the_task(machine: &dyn Machine) {
    let agent = Agent::start(machine);
    let Some(Inputs { mounts, devices, network, command, expected }) = machine.inputs() else {
        let support = agent.driver.info().capabilities.mounts;
        return assert_eq!(support, MountSupport::None, "a machine whose driver mounts has inputs");
    };
    let without = machine.task(1, Behaviour::RunsOn);
    let config = TaskConfig { mounts, devices, network: network.clone(), ..without.clone() };
    let started = agent.run(machine, &config).await;
    let shown = agent.driver.exec(&config.id, &command, LONG).await.unwrap();
    assert_eq!(String::from_utf8_lossy(&shown.stdout), expected);
    drop(agent);
    let agent = Agent::start(machine);
    agent.recover(&TaskConfig { network, ..without }, Some(&started)).await.unwrap();
    let again = agent.driver.exec(&config.id, &command, LONG).await.unwrap();
    assert_eq!(String::from_utf8_lossy(&again.stdout), expected);
    end(&agent, 1).await;
}
