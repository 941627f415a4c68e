//! A real Consul agent in development mode on its own ports.
//!
//! In: whether it requires tokens. Out: its address and its API, and ways to disturb it. Dropping it ends the
//! agent.

use std::{
    path::PathBuf,
    process::{Child, Command, Stdio},
};

use rustix::process::Signal;
use serde_json::{Value, json};

use super::{
    host,
    http::{self, Answer, Peer},
    ports, wait,
};
use crate::environment;

/// The management token with [`Access::Denied`].
pub const TOKEN: &str = "6c1e1f1a-0d0c-4c7e-9a6e-2f0c3b8f5d11";

/// The auth method of [`Consul::trust`].
const METHOD: &str = "nomad-workloads";

/// Consul's default policy for anonymous callers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Everything is allowed.
    Open,
    /// Nothing is allowed.
    Denied,
}

#[derive(Debug)]
pub struct Consul {
    program: PathBuf,
    ports: [u16; 4],
    access: Access,
    child: Option<Child>,
}

impl Consul {
    /// Returns a Consul agent that is not started yet, or `None` if this machine has no Consul.
    pub fn prepare(access: Access) -> Option<Self> {
        let program = environment::component(environment::CONSUL)?;
        Some(Self { program, ports: ports::free(), access, child: None })
    }

    /// Returns a Consul agent that answers, or `None` if this machine has no Consul.
    pub fn start(access: Access) -> Option<Self> {
        let mut consul = Self::prepare(access)?;
        consul.launch();
        Some(consul)
    }

    /// Starts it and waits until it has a leader.
    ///
    /// # Panics
    /// If it can't be started.
    pub fn launch(&mut self) {
        self.begin();
        wait::until_true("Consul has a leader and accepts registrations", || self.is_ready());
    }

    /// Starts it.
    ///
    /// # Panics
    /// If it can't be started.
    pub fn begin(&mut self) {
        let [http, server, serf, grpc] = self.ports;
        let mut config = format!(
            "disable_update_check=true ports {{ dns=-1 server={server} serf_lan={serf} serf_wan=-1 grpc={grpc} }}"
        );
        if self.access == Access::Denied {
            config.push_str(&format!(
                " acl {{ enabled=true default_policy=\"deny\" tokens {{ master=\"{TOKEN}\" agent=\"{TOKEN}\" }} }}"
            ));
        }
        let mut command = Command::new(&self.program);
        command.args(["agent", "-dev", "-bind=127.0.0.1", "-log-level=err"]);
        command.arg(format!("-http-port={http}")).args(["-hcl", &config]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.child = Some(command.spawn().expect("a started Consul"));
    }

    /// Returns whether it has a leader and its API answers.
    pub fn is_ready(&self) -> bool {
        let leader = self.get("/v1/status/leader").filter(|answer| answer.status == 200);
        leader.is_some_and(|answer| answer.body.len() > 4)
            && self.get("/v1/agent/services").is_some_and(|answer| answer.status == 200)
    }

    /// Returns its pid.
    ///
    /// # Panics
    /// If it isn't running.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("a running Consul").id()
    }

    /// Freezes it: the kernel still accepts connections, but nothing is answered.
    ///
    /// # Panics
    /// If it isn't running.
    pub fn freeze(&self) {
        host::signal(self.pid(), Signal::STOP);
    }

    /// Continues it after [`freeze`](Self::freeze).
    ///
    /// # Panics
    /// If it isn't running.
    pub fn thaw(&self) {
        host::signal(self.pid(), Signal::CONT);
    }

    /// Creates a token with `rules`; returns its accessor and its secret.
    ///
    /// # Panics
    /// If Consul refuses.
    pub fn token(&self, name: &str, rules: &str) -> (String, String) {
        self.put("/v1/acl/policy", &json!({ "Name": name, "Rules": rules }).to_string());
        let made = self.put("/v1/acl/token", &json!({ "Policies": [{ "Name": name }] }).to_string()).json();
        let text = |key: &str| made[key].as_str().expect("a token").to_owned();
        (text("AccessorID"), text("SecretID"))
    }

    /// Accepts the identities of the agent whose API is at this address: tasks may read keys, services register themselves.
    ///
    /// # Panics
    /// If Consul refuses.
    pub fn trust(&self, api: &str) {
        let mappings = ["nomad_job_id", "nomad_namespace", "nomad_service", "nomad_task"];
        let mappings: serde_json::Map<String, Value> =
            mappings.into_iter().map(|claim| (claim.to_owned(), claim.into())).collect();
        let method = json!({
            "Name": METHOD, "Type": "jwt", "Config": {
                "JWKSURL": format!("http://{api}/.well-known/jwks.json"), "JWTSupportedAlgs": ["RS256"],
                "BoundAudiences": ["consul.io"], "ClaimMappings": mappings,
            },
        });
        self.put("/v1/acl/auth-method", &method.to_string());
        let rules = r#"key_prefix "" { policy = "read" } service_prefix "" { policy = "read" }"#;
        self.put("/v1/acl/policy", &json!({ "Name": "tasks", "Rules": rules }).to_string());
        self.put("/v1/acl/role", &json!({ "Name": "tasks", "Policies": [{ "Name": "tasks" }] }).to_string());
        for (selector, kind, name) in [
            (r#""nomad_service" in value"#, "service", "${value.nomad_service}"),
            (r#""nomad_service" not in value"#, "role", "tasks"),
        ] {
            let rule =
                json!({ "AuthMethod": METHOD, "Selector": selector, "BindType": kind, "BindName": name });
            self.put("/v1/acl/binding-rule", &rule.to_string());
        }
    }

    /// Returns the tokens that log-ins have made.
    ///
    /// # Panics
    /// If Consul does not answer.
    pub fn logins(&self) -> Vec<Value> {
        let answer = self.get(&format!("/v1/acl/tokens?authmethod={METHOD}")).expect("a response of Consul");
        answer.json().as_array().cloned().unwrap_or_default()
    }

    /// Returns the accessor of a token; `None` if there is no such token.
    pub fn accessor(&self, token: &str) -> Option<String> {
        let peer = Peer::Port(self.ports[0]);
        let answer = http::request(&peer, "GET", "/v1/acl/token/self", &[("X-Consul-Token", token)], "")?;
        (answer.status == 200).then(|| answer.json()["AccessorID"].as_str().unwrap_or_default().to_owned())
    }

    /// Returns the token with an accessor.
    ///
    /// # Panics
    /// If there is no such token.
    pub fn secret(&self, accessor: &str) -> String {
        let answer = self.get(&format!("/v1/acl/token/{accessor}")).expect("a response of Consul");
        answer.json()["SecretID"].as_str().expect("its secret").to_owned()
    }

    /// Revokes a token.
    ///
    /// # Panics
    /// If Consul refuses.
    pub fn revoke(&self, accessor: &str) {
        self.send("DELETE", &format!("/v1/acl/token/{accessor}"), "");
    }

    /// Returns the number of instances of a service in the servers' catalog.
    pub fn known(&self, service: &str) -> usize {
        let answer = self.get(&format!("/v1/catalog/service/{service}"));
        let answer = answer.filter(|answer| answer.status == 200).map(|answer| answer.json());
        answer.and_then(|list| list.as_array().map(Vec::len)).unwrap_or_default()
    }

    /// Ends it. Registrations are lost.
    pub fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Returns the address as in CONSUL_HTTP_ADDR.
    pub fn address(&self) -> String {
        format!("http://127.0.0.1:{}", self.ports[0])
    }

    pub fn port(&self) -> u16 {
        self.ports[0]
    }

    pub fn access(&self) -> Access {
        self.access
    }

    /// Sends a GET request with the token.
    pub fn get(&self, path: &str) -> Option<Answer> {
        http::request(&Peer::Port(self.ports[0]), "GET", path, &[("X-Consul-Token", TOKEN)], "")
    }

    /// Sends a PUT request with the token.
    ///
    /// # Panics
    /// If Consul refuses.
    pub fn put(&self, path: &str, body: &str) -> Answer {
        self.send("PUT", path, body)
    }

    fn send(&self, method: &str, path: &str, body: &str) -> Answer {
        let answer =
            http::request(&Peer::Port(self.ports[0]), method, path, &[("X-Consul-Token", TOKEN)], body);
        let answer = answer.expect("a response of Consul");
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        answer
    }

    /// Returns the agent's services by id.
    pub fn services(&self) -> serde_json::Map<String, Value> {
        let answer = self.get("/v1/agent/services").filter(|answer| answer.status == 200);
        answer.and_then(|answer| answer.json().as_object().cloned()).unwrap_or_default()
    }

    /// Returns the ids of services with this name.
    pub fn ids(&self, name: &str) -> Vec<String> {
        let named = self.services().into_iter().filter(|(_, service)| service["Service"] == name);
        named.map(|(id, _)| id).collect()
    }

    /// Returns the agent's checks of a service.
    pub fn checks(&self, name: &str) -> Vec<Value> {
        let answer = self.get("/v1/agent/checks").filter(|answer| answer.status == 200);
        let checks = answer.and_then(|answer| answer.json().as_object().cloned()).unwrap_or_default();
        checks.into_iter().map(|(_, check)| check).filter(|check| check["ServiceName"] == name).collect()
    }
}

impl Drop for Consul {
    fn drop(&mut self) {
        self.stop();
    }
}
