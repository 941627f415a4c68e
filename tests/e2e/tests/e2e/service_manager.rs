//! The agent's notifications to its service manager, as systemd would receive them: sd_notify(3).

use std::{os::unix::net::UnixDatagram, sync::mpsc};

use herdlet_e2e::{
    agent::{Agent, Setup},
    wait,
};

use crate::common::{is_root, job, shell};

/// Receives all notifications as they are sent, because the kernel queues only ten.
fn listen(manager: UnixDatagram) -> mpsc::Receiver<String> {
    let (sender, heard) = mpsc::sync_channel(100_000);
    manager.set_read_timeout(None).unwrap();
    // The thread ends with the test's process.
    std::thread::spawn(move || {
        let mut message = [0; 4_096];
        while let Ok(len) = manager.recv(&mut message) {
            let text = String::from_utf8_lossy(message.get(..len).unwrap_or_default()).into_owned();
            if sender.send(text).is_err() {
                return;
            }
        }
    });
    heard
}

/// Waits for a notification with this line. Earlier ones are dropped.
#[track_caller]
fn until_notified(manager: &mpsc::Receiver<String>, line: &str) {
    wait::until_true(line, || manager.try_iter().any(|text| text.lines().any(|notified| notified == line)));
}

#[test]
fn service_manager_is_notified_of_each_state() {
    if !is_root() {
        return;
    }
    let setup = Setup::default().env("WATCHDOG_USEC", "600000");
    let mut agent = Agent::prepare(setup);
    let manager = listen(agent.launch_unready());
    let gate = agent.home.path().join("gate");
    until_notified(&manager, "READY=1");
    until_notified(&manager, "WATCHDOG=1");
    let script = format!("until test -e {}; do sleep 0.1; done; exit 7", gate.display());
    agent.apply(&job("web", "service", "", &[shell("t", &script, "restart: {attempts: 0}")]));
    until_notified(&manager, "STATUS=1/1 converged");
    std::fs::write(gate, "").unwrap();
    until_notified(&manager, "STATUS=0/1 converged");
    agent.cli(&["delete", "web", "--wait"]).success();
    until_notified(&manager, "STATUS=0/0 converged");
    agent.terminate();
    until_notified(&manager, "STOPPING=1");
}
