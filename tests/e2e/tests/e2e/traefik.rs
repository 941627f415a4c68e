//! Traefik finds services through its Nomad provider and its Consul catalogue, by events or by polling, and
//! loses no request while they are rolled out, scaled and restarted.

use std::{
    fs::File,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use herdlet_e2e::{
    agent::{Agent, Setup},
    consul::{Access, Consul},
    environment,
    http::{self, Peer},
    ports, wait,
};

use serde_json::Value;

use crate::common::{TOKEN, is_root, on_loopback, patient};

/// Traefik's source of services.
#[derive(Debug, Clone, Copy)]
enum Catalogue {
    /// An agent's own catalogue, through its API on this port.
    Nomad(u16),
    /// A Consul on this port.
    Consul(u16),
}

/// How Traefik learns of changes.
#[derive(Debug, Clone, Copy)]
enum Learns {
    FromEvents,
    ByAsking,
}

impl Catalogue {
    fn arguments(self, learns: Learns) -> Vec<String> {
        let (name, address) = match self {
            Self::Nomad(port) => ("nomad", format!("http://127.0.0.1:{port}")),
            Self::Consul(port) => ("consulcatalog", format!("127.0.0.1:{port}")),
        };
        let watch = matches!(learns, Learns::FromEvents);
        let mut arguments = vec![
            format!("--providers.{name}.endpoint.address={address}"),
            format!("--providers.{name}.exposedbydefault=false"),
            format!("--providers.{name}.refreshinterval=1s"),
            format!("--providers.{name}.watch={watch}"),
        ];
        if let Self::Nomad(_) = self {
            arguments.push(format!("--providers.nomad.endpoint.token={TOKEN}"));
        }
        arguments
    }
}

/// A running Traefik on a loopback port.
struct Traefik {
    process: Child,
    port: u16,
    /// The port of Traefik's own API.
    api: u16,
}

impl Traefik {
    fn start(program: &Path, log: &Path, catalogue: Catalogue, learns: Learns) -> Self {
        let [port, api] = ports::free();
        let log = File::create(log).unwrap();
        let process = Command::new(program)
            .arg(format!("--entrypoints.web.address=127.0.0.1:{port}"))
            .arg("--api.insecure=true")
            .arg(format!("--entrypoints.traefik.address=127.0.0.1:{api}"))
            .args(catalogue.arguments(learns))
            .args(["--providers.providersthrottleduration=100ms", "--log.level=DEBUG"])
            .args(["--global.checknewversion=false", "--global.sendanonymoususage=false"])
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        Self { process, port, api }
    }

    /// Returns how many servers Traefik knows for the service.
    fn servers(&self) -> usize {
        let answer = http::get(&Peer::Port(self.api), "/api/http/services");
        let Some(answer) = answer.filter(|answer| answer.status == 200) else { return 0 };
        let known = answer.json();
        let is_web = |service: &&Value| service["name"].as_str().is_some_and(|name| name.starts_with("web"));
        let web = known.as_array().into_iter().flatten().find(is_web);
        web.and_then(|web| web["loadBalancer"]["servers"].as_array()).map_or(0, Vec::len)
    }

    /// Sends a request through Traefik; returns the body, or the failure.
    fn request(&self) -> Result<String, String> {
        match http::get(&Peer::Port(self.port), "/") {
            Some(answer) if answer.status == 200 => Ok(answer.body),
            Some(answer) => Err(format!("{}: {}", answer.status, answer.body)),
            None => Err("no answer".to_owned()),
        }
    }

    /// Sends requests until `done` and until enough were sent or one failed. Returns the number of answers,
    /// and the failures.
    fn request_until(&self, done: &AtomicBool) -> (u32, Vec<String>) {
        let (mut answered, mut failed) = (0, Vec::new());
        while !done.load(Ordering::Relaxed) || (answered < 100 && failed.is_empty()) {
            match self.request() {
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

/// A service with two replicas, and access to its catalogue.
struct Story<'s> {
    agent: &'s mut Agent,
    /// Returns the manifest of a release.
    manifest: &'s dyn Fn(&str) -> String,
    /// Returns a text with the ids of all listed instances.
    listed: &'s dyn Fn(&Agent) -> String,
}

impl Story<'_> {
    /// Rolls out, scales and restarts the service while sending requests through `proxies`.
    fn run_changes(mut self, proxies: &[Traefik]) {
        self.agent.apply_and_wait(&(self.manifest)("first"));
        for proxy in proxies {
            wait::until_true("Traefik routes to the service", || proxy.request().as_deref() == Ok("first\n"));
            wait::until_true("Traefik knows both replicas", || proxy.servers() == 2);
        }
        let done = AtomicBool::new(false);
        let asked: Vec<_> = std::thread::scope(|scope| {
            let clients: Vec<_> =
                proxies.iter().map(|proxy| scope.spawn(|| proxy.request_until(&done))).collect();
            let changed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.change(proxies)));
            done.store(true, Ordering::Relaxed);
            let asked = clients.into_iter().map(|client| client.join().unwrap()).collect();
            changed.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            asked
        });
        for ((answered, failed), proxy) in asked.into_iter().zip(proxies) {
            assert!(failed.is_empty(), "{answered} answered, {} failed: {failed:?}", failed.len());
            assert_eq!(proxy.request().as_deref(), Ok("second\n"));
        }
    }

    /// Applies a new version, changes the count and back, restarts one replica after the other.
    fn change(&mut self, proxies: &[Traefik]) {
        self.agent.apply_and_wait(&(self.manifest)("second"));
        for count in ["3", "2"] {
            self.agent.cli(&["scale", "web-traefik", count, "--wait"]).success();
        }
        for index in 0..2 {
            let name = format!("web-traefik.web[{index}]");
            self.agent.cli(&["restart", &name]).success();
            let replica = self.agent.alloc(&name).unwrap().id();
            let is_listed = || (self.listed)(self.agent).contains(&replica);
            wait::until_true("the replica has left the list", || !is_listed());
            wait::until_true("the replica is back", is_listed);
            // A proxy that polls once a second has polled by then, or knows only one server until it has.
            wait::pause(Duration::from_millis(1_500));
            wait::until_true("Traefik knows both", || proxies.iter().all(|proxy| proxy.servers() == 2));
        }
    }
}

/// Returns the example as this release of it. A replica keeps serving long enough for a busy Traefik to learn
/// of its removal.
fn web(python: &Path, release: &str) -> String {
    let example = patient("web-traefik").replace("shutdown_delay: 5s", "shutdown_delay: 12s");
    let text = example.replace("RELEASE: first", &format!("RELEASE: {release}"));
    text.replace("exec python3", &format!("exec {}", python.display()))
}

/// Returns the required programs, or `None` if this machine lacks one.
fn programs() -> Option<(PathBuf, PathBuf)> {
    if !is_root() {
        return None;
    }
    Some((environment::component(environment::PYTHON)?, environment::component(environment::TRAEFIK)?))
}

/// Starts a proxy that follows events, and one that polls.
fn proxies(program: &Path, agent: &Agent, catalogue: Catalogue) -> [Traefik; 2] {
    let log = |name: &str| agent.home.path().join(name);
    [
        Traefik::start(program, &log("events.log"), catalogue, Learns::FromEvents),
        Traefik::start(program, &log("asking.log"), catalogue, Learns::ByAsking),
    ]
}

#[test]
fn traefik_loses_no_request_during_changes() {
    let Some((python, program)) = programs() else { return };
    let (mut agent, api) = on_loopback();
    let proxies = proxies(&program, &agent, Catalogue::Nomad(api));
    let manifest = |release: &str| web(&python, release);
    let listed = |agent: &Agent| http::get(&agent.peer(), "/v1/service/web").unwrap().body;
    Story { agent: &mut agent, manifest: &manifest, listed: &listed }.run_changes(&proxies);
    drop(proxies);
    agent.finish();
}

#[test]
fn traefik_with_consul_loses_no_request_during_changes() {
    let Some((python, program)) = programs() else { return };
    let Some(consul) = Consul::start(Access::Open) else { return };
    let setup = Setup::default().config(ports::for_tasks()).env("CONSUL_HTTP_ADDR", consul.address());
    let mut agent = Agent::start_with(setup);
    let proxies = proxies(&program, &agent, Catalogue::Consul(consul.port()));
    let manifest = |release: &str| web(&python, release).replace("provider: nomad", "provider: consul");
    let listed = |_: &Agent| consul.get("/v1/health/service/web?passing").unwrap().body;
    Story { agent: &mut agent, manifest: &manifest, listed: &listed }.run_changes(&proxies);
    drop(proxies);
    agent.finish();
}
