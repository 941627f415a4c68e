//! Whoever can connect: he may take all connections that he is given, and the agent goes on.

use std::{io::Write, net::TcpStream, time::Duration};

use herdlet_tests::e2e::{
    agent::{Agent, Setup},
    http, ports, wait,
};

use crate::common::{is_root, job, sleeper};

// With 256 files (the usual 1,024 only take longer to fill) held connections left none to start a task with.
#[test]
fn connections_of_strangers_do_not_keep_tasks_from_being_started() {
    if !is_root() {
        return;
    }
    let [api, metrics] = ports::free();
    let setup = Setup::default()
        .config("token_file: token\n")
        .argument("--listen")
        .argument(format!("127.0.0.1:{api}"))
        .argument("--metrics-listen")
        .argument(format!("127.0.0.1:{metrics}"));
    let mut agent = Agent::prepare(setup);
    let token = agent.home.write("token", "0123456789abcdef0123\n");
    std::fs::set_permissions(&token, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    agent.home.write("config.yaml", &format!("token_file: {}\n", token.display()));
    agent.set_shell("ulimit -n 256");
    agent.launch();
    let mut held = Vec::new();
    for port in [api, metrics] {
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
    wait::until_true("there is room again", || {
        http::get(&http::Peer::Port(metrics), "/healthz").is_some_and(|answer| answer.status == 200)
    });
    agent.finish();
}
