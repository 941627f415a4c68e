//! Traefik finds services by its Nomad provider, following events or asking again and again, and loses no request while they
//! are rolled out, scaled and restarted.

use std::{
    fs::File,
    path::Path,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use herdlet_tests::{
    e2e::{
        agent::Agent,
        http::{self, Peer},
        ports, wait,
    },
    environment,
};

use crate::common::{TOKEN, is_root, on_loopback};

/// How Traefik learns of changes.
#[derive(Debug, Clone, Copy)]
enum Learns {
    FromEvents,
    ByAsking,
}

/// A running Traefik on a port of loopback.
struct Traefik {
    process: Child,
    port: u16,
}

impl Traefik {
    fn start(program: &Path, log: &Path, api: u16, learns: Learns) -> Self {
        let [port] = ports::free();
        let log = File::create(log).unwrap();
        let watch = matches!(learns, Learns::FromEvents);
        let process = Command::new(program)
            .arg(format!("--entrypoints.web.address=127.0.0.1:{port}"))
            .arg(format!("--providers.nomad.endpoint.address=http://127.0.0.1:{api}"))
            .arg(format!("--providers.nomad.endpoint.token={TOKEN}"))
            .arg(format!("--providers.nomad.watch={watch}"))
            .args(["--providers.nomad.exposedbydefault=false", "--providers.nomad.refreshinterval=1s"])
            .args(["--providers.providersthrottleduration=100ms", "--log.level=DEBUG"])
            .args(["--global.checknewversion=false", "--global.sendanonymoususage=false"])
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        Self { process, port }
    }

    /// What the service says through it; nothing where it failed.
    fn asked(&self) -> Result<String, String> {
        match http::get(&Peer::Port(self.port), "/") {
            Some(answer) if answer.status == 200 => Ok(answer.body),
            Some(answer) => Err(format!("{}: {}", answer.status, answer.body)),
            None => Err("no answer".to_owned()),
        }
    }

    /// Asks until `done`. How many were answered, and what failed.
    fn asked_until(&self, done: &AtomicBool) -> (u32, Vec<String>) {
        let (mut answered, mut failed) = (0, Vec::new());
        while !done.load(Ordering::Relaxed) {
            match self.asked() {
                Ok(_) => answered += 1,
                Err(why) => failed.push(why),
            }
            wait::pause(Duration::from_millis(10));
        }
        (answered, failed)
    }
}

impl Drop for Traefik {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The example, as this release of it.
fn web(python: &Path, release: &str) -> String {
    let example = include_str!("../../../manifests/web-traefik.yaml");
    let text = example.replace("RELEASE: first", &format!("RELEASE: {release}"));
    text.replace("exec python3", &format!("exec {}", python.display()))
}

#[test]
fn no_request_through_traefik_fails_while_its_service_is_rolled_scaled_and_restarted() {
    if !is_root() {
        return;
    }
    let (Some(python), Some(program)) =
        (environment::component(environment::PYTHON), environment::component(environment::TRAEFIK))
    else {
        return;
    };
    let (mut agent, api) = on_loopback();
    let log = |name: &str| agent.home.path().join(name);
    let proxies = [
        Traefik::start(&program, &log("events.log"), api, Learns::FromEvents),
        Traefik::start(&program, &log("asking.log"), api, Learns::ByAsking),
    ];
    agent.apply_and_wait(&web(&python, "first"));
    for proxy in &proxies {
        wait::until_true("Traefik routes to the service", || proxy.asked().as_deref() == Ok("first\n"));
    }
    let done = AtomicBool::new(false);
    let asked = std::thread::scope(|scope| {
        let clients = proxies.each_ref().map(|proxy| scope.spawn(|| proxy.asked_until(&done)));
        let changed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| change(&mut agent, &python)));
        done.store(true, Ordering::Relaxed);
        let asked = clients.map(|client| client.join().unwrap());
        changed.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        asked
    });
    for ((answered, failed), proxy) in asked.into_iter().zip(&proxies) {
        assert!(
            failed.is_empty() && answered > 100,
            "{answered} answered, {} failed: {failed:?}",
            failed.len()
        );
        assert_eq!(proxy.asked().as_deref(), Ok("second\n"));
    }
    drop(proxies);
    agent.finish();
}

/// A new version, another count and back, a restart of one replica after the other.
fn change(agent: &mut Agent, python: &Path) {
    agent.apply_and_wait(&web(python, "second"));
    for count in ["3", "2"] {
        agent.cli(&["scale", "web-traefik", count, "--wait"]).success();
    }
    for index in 0..2 {
        agent.cli(&["restart", &format!("web-traefik.web[{index}]")]).success();
        let replica = agent.alloc(&format!("web-traefik.web[{index}]")).unwrap().id();
        let listed = || http::get(&agent.peer(), "/v1/service/web").unwrap().body.contains(&replica);
        wait::until_true("the replica has left the list", || !listed());
        wait::until_true("the replica is back", listed);
        // Until whoever asks once a second has asked.
        wait::pause(Duration::from_millis(1_500));
    }
}
