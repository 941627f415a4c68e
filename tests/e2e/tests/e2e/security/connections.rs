//! Clients that take all connections that a listener offers don't stop the agent.

use std::{io::Write, net::TcpStream, time::Duration};

use herdlet_e2e::{http, wait};

use crate::common::{is_root, job, prepared_on_loopback, sleeper};

// Regression: with a limit of 256 files (the usual 1,024 only take longer to fill), held connections left
// none for the start of a task.
#[test]
fn foreign_connections_do_not_block_task_starts() {
    if !is_root() {
        return;
    }
    let (mut agent, ports) = prepared_on_loopback();
    agent.set_shell("ulimit -n 256");
    agent.launch();
    let mut held = Vec::new();
    for port in ports {
        for _ in 0..300 {
            let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
            stream.set_write_timeout(Some(Duration::from_secs(5))).unwrap();
            let _ = stream.write_all(b"GET /metr");
            held.push(stream);
        }
    }
    let tasks: Vec<String> = (0..10).map(|n| sleeper(&format!("t{n}"), "")).collect();
    agent.apply_and_wait(&job("anyway", "service", "", &tasks));
    assert_eq!(agent.members().len(), 10);
    drop(held);
    wait::until_true("the listener accepts connections again", || {
        http::get(&http::Peer::Port(ports[1]), "/healthz").is_some_and(|answer| answer.status == 200)
    });
    agent.finish();
}
