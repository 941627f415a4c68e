//! What the agent tells its service manager, as systemd would hear it: sd_notify(3).

use std::{os::unix::net::UnixDatagram, time::Duration};

use herdlet_tests::e2e::{
    agent::{Agent, Setup},
    wait,
};

use crate::common::{is_root, job, shell};

/// Waits for a notification with this line. What was said before is dropped.
#[track_caller]
fn until_said(manager: &UnixDatagram, line: &str) {
    let mut message = [0; 4_096];
    let mut heard = Vec::new();
    wait::until(line, || {
        let len = manager.recv(&mut message).ok()?;
        let text = String::from_utf8_lossy(message.get(..len)?).into_owned();
        let found = text.lines().any(|said| said == line);
        heard.push(text);
        found.then_some(())
    });
}

#[test]
fn it_is_told_when_the_agent_is_ready_how_far_it_is_that_it_turns_and_that_it_ends() {
    if !is_root() {
        return;
    }
    let setup = Setup::default().env("WATCHDOG_USEC", "600000");
    let mut agent = Agent::prepare(setup);
    let manager = agent.launch_unready();
    until_said(&manager, "READY=1");
    until_said(&manager, "WATCHDOG=1");
    agent.apply(&job("web", "service", "", &[shell("t", "sleep 2; exit 7", "restart: {attempts: 0}")]));
    until_said(&manager, "STATUS=1/1 converged");
    until_said(&manager, "STATUS=0/1 converged");
    agent.cli(&["delete", "web", "--wait"]).success();
    until_said(&manager, "STATUS=0/0 converged");
    manager.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    agent.terminate();
    until_said(&manager, "STOPPING=1");
}
