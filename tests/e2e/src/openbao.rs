//! A real OpenBao on a port of its own, with its data in a directory, so that it can be stopped, started and sealed.
//!
//! In: an agent's address, whose identities it accepts. Out: its address, and ways to disturb it. Dropping it ends it.

use std::{
    fs,
    path::PathBuf,
    process::{Child, Command, Stdio},
};

use serde_json::{Value, json};

use super::{
    http::{self, Answer, Peer},
    ports, wait,
};
use crate::environment;

/// The path of the JWT auth method, and the role of tasks.
const AUTH: &str = "jwt-nomad";
pub const ROLE: &str = "web";

#[derive(Debug)]
pub struct OpenBao {
    program: PathBuf,
    /// For requests, and for other servers of a cluster.
    ports: [u16; 2],
    home: tempfile::TempDir,
    child: Option<Child>,
    /// The key that unseals it, and the token that may do everything; empty before the first start.
    keys: Option<(String, String)>,
}

impl OpenBao {
    /// Returns an OpenBao that is not started yet, or `None` if this machine has none.
    ///
    /// # Panics
    /// If it has no room for its data.
    pub fn prepare() -> Option<Self> {
        let program = environment::component(environment::OPENBAO)?;
        let home = tempfile::tempdir().expect("a directory for OpenBao");
        Some(Self { program, ports: ports::free(), home, child: None, keys: None })
    }

    /// Starts it, and unseals it.
    ///
    /// # Panics
    /// If it can't be started.
    pub fn launch(&mut self) {
        let (config, data) = (self.home.path().join("config.hcl"), self.home.path().join("data"));
        fs::create_dir_all(&data).expect("a directory for data");
        let [port, cluster] = self.ports;
        let text = format!(
            "storage \"raft\" {{ path = \"{}\" node_id = \"one\" }}\n\
             listener \"tcp\" {{ address = \"127.0.0.1:{port}\" cluster_address = \"127.0.0.1:{cluster}\" tls_disable = true }}\n\
             api_addr = \"http://127.0.0.1:{port}\"\ncluster_addr = \"http://127.0.0.1:{cluster}\"\n",
            data.display(),
        );
        fs::write(&config, text).expect("a config of OpenBao");
        let mut command = Command::new(&self.program);
        command.arg("server").arg("-config").arg(&config).env("HOME", self.home.path());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.child = Some(command.spawn().expect("a started OpenBao"));
        wait::until_true("OpenBao answers", || self.ask("GET", "sys/seal-status", &Value::Null).is_some());
        if self.keys.is_none() {
            let made = self.send("PUT", "sys/init", &json!({ "secret_shares": 1, "secret_threshold": 1 }));
            let text = |value: &Value| value.as_str().expect("a key").to_owned();
            self.keys = Some((text(&made["keys"][0]), text(&made["root_token"])));
        }
        self.unseal();
    }

    /// Unseals it, and waits until it is active.
    ///
    /// # Panics
    /// If it was never started.
    pub fn unseal(&self) {
        let (key, _) = self.keys.as_ref().expect("an initialized OpenBao");
        self.send("PUT", "sys/unseal", &json!({ "key": key }));
        wait::until_true("OpenBao is active", || {
            self.ask("GET", "sys/health", &Value::Null).is_some_and(|answer| answer.status == 200)
        });
    }

    /// Seals it: it answers, but refuses everything.
    pub fn seal(&self) {
        self.send("PUT", "sys/seal", &Value::Null);
    }

    /// Ends it. Its data stay.
    pub fn stop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Accepts the identities of the agent whose API is at this address. Tokens have this lifetime, such as `60s`.
    pub fn trust(&self, api: &str, ttl: &str) {
        self.send("POST", &format!("sys/auth/{AUTH}"), &json!({ "type": "jwt" }));
        let config = json!({
            "jwks_url": format!("http://{api}/.well-known/jwks.json"), "jwt_supported_algs": ["RS256", "EdDSA"],
        });
        self.send("POST", &format!("auth/{AUTH}/config"), &config);
        self.send("POST", "sys/mounts/secret", &json!({ "type": "kv", "options": { "version": "2" } }));
        let policy = r#"path "secret/*" { capabilities = ["create", "update", "read", "list"] }"#;
        self.send("POST", &format!("sys/policy/{ROLE}"), &json!({ "policy": policy }));
        let role = json!({
            "role_type": "jwt", "bound_audiences": ["vault.io"], "user_claim": "/nomad_job_id",
            "user_claim_json_pointer": true, "token_policies": [ROLE], "token_ttl": ttl,
            "claim_mappings": { "nomad_task": "task" },
        });
        self.send("POST", &format!("auth/{AUTH}/role/{ROLE}"), &role);
    }

    /// Returns the address for a config.
    pub fn address(&self) -> String {
        format!("http://127.0.0.1:{}", self.ports[0])
    }

    /// Returns the section of an agent's config that uses it.
    pub fn config(&self) -> String {
        format!("vault: {{default: {{address: \"{}\", create_from_role: {ROLE}}}}}\n", self.address())
    }

    /// Returns what it knows of a token; `None` if the token is not valid.
    pub fn look_up(&self, token: &str) -> Option<Value> {
        let answer = self.ask("POST", "auth/token/lookup", &json!({ "token": token }))?;
        (answer.status == 200).then(|| answer.json()["data"].clone())
    }

    /// Writes with the rights of an operator. Returns the answer.
    pub fn set(&self, path: &str, body: &Value) -> Value {
        // A new engine answers that it is being upgraded, for a moment.
        wait::until_true("the engine is ready", || {
            self.ask("GET", "secret/config", &Value::Null)
                .is_none_or(|answer| !answer.body.contains("Upgrading"))
        });
        self.send("POST", path, body)
    }

    /// Makes a token that is renewed for this long, and returns it wrapped, as servers of Nomad through 1.9 do.
    ///
    /// # Panics
    /// If it makes none.
    pub fn wrapped_token(&self, period: &str) -> String {
        let root = self.keys.as_ref().map_or("", |(_, root)| root);
        let headers = [("X-Vault-Token", root), ("X-Vault-Wrap-TTL", "600s")];
        let body = json!({ "period": period, "policies": ["default"] }).to_string();
        let peer = Peer::Port(self.ports[0]);
        let answer = http::request(&peer, "POST", "/v1/auth/token/create", &headers, &body);
        let answer = answer.expect("a response of OpenBao").json();
        answer["wrap_info"]["token"].as_str().expect("a wrapped token").to_owned()
    }

    /// Returns the names at a path.
    pub fn list(&self, path: &str) -> Vec<String> {
        let answer = self.ask("GET", &format!("{path}?list=true"), &Value::Null);
        let answer = answer.filter(|answer| answer.status == 200).map(|answer| answer.json());
        let names = answer.map(|answer| answer["data"]["keys"].clone()).unwrap_or_default();
        names.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
    }

    /// Revokes a token, as an operator does.
    pub fn revoke(&self, token: &str) {
        self.send("POST", "auth/token/revoke", &json!({ "token": token }));
    }

    /// Sends a request with this token.
    pub fn with_token(&self, token: &str, method: &str, path: &str, body: &Value) -> Option<Answer> {
        let text = if body.is_null() { String::new() } else { body.to_string() };
        let headers = [("X-Vault-Token", token), ("Content-Type", "application/json")];
        http::request(&Peer::Port(self.ports[0]), method, &format!("/v1/{path}"), &headers, &text)
    }

    fn ask(&self, method: &str, path: &str, body: &Value) -> Option<Answer> {
        let root = self.keys.as_ref().map_or("", |(_, root)| root);
        self.with_token(root, method, path, body)
    }

    fn send(&self, method: &str, path: &str, body: &Value) -> Value {
        let answer =
            self.ask(method, path, body).unwrap_or_else(|| panic!("no response of OpenBao to {path}"));
        assert!((200..300).contains(&answer.status), "{path}: {} {}", answer.status, answer.body);
        serde_json::from_str(&answer.body).unwrap_or_default()
    }
}

impl Drop for OpenBao {
    fn drop(&mut self) {
        self.stop();
    }
}
