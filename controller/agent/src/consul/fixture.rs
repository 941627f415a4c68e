//! A stand-in for a Consul agent, which knows the tokens of log-ins.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
};

use herdlet_services::catalog::ConsulConfig;
use serde_json::json;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};

use super::{ConsulCluster, Consuls};

/// A stand-in, and its client.
pub(crate) struct FakeConsul {
    pub(crate) consuls: Arc<Consuls>,
    pub(crate) address: String,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// The tokens that the agent knows.
    known: BTreeSet<String>,
    issued: u32,
    /// Answers to requests for a path, instead of the usual ones.
    answers: BTreeMap<&'static str, (u16, &'static str)>,
    /// Method, path and token of each request.
    requests: Vec<String>,
}

impl FakeConsul {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let state = Arc::new(Mutex::new(State::default()));
        let served = Arc::clone(&state);
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut request = Vec::new();
                let head = loop {
                    if stream.read_buf(&mut request).await.unwrap_or(0) == 0 {
                        break String::new();
                    }
                    let text = String::from_utf8_lossy(&request).into_owned();
                    if let Some((head, _)) = text.split_once("\r\n\r\n") {
                        break head.to_owned();
                    }
                };
                let (status, body) = served.lock().unwrap().answer(&head);
                let answer = format!(
                    "HTTP/1.1 {status} Status\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
                    body.len()
                );
                let _ = stream.write_all(answer.as_bytes()).await;
            }
        });
        Self { consuls: consuls(&address), address, state }
    }

    pub(crate) fn cluster(&self) -> &Arc<ConsulCluster> {
        self.consuls.cluster("default").unwrap()
    }

    /// Makes the agent know a token.
    pub(crate) fn add(&self, token: &str) {
        self.state.lock().unwrap().known.insert(token.to_owned());
    }

    /// Sets the answer for a path.
    pub(crate) fn answer(&self, path: &'static str, status: u16, body: &'static str) {
        self.state.lock().unwrap().answers.insert(path, (status, body));
    }

    /// Answers all paths as usual.
    pub(crate) fn recover(&self) {
        self.state.lock().unwrap().answers.clear();
    }

    /// The requests since the last call, and the tokens they had.
    pub(crate) fn requests(&self) -> Vec<String> {
        std::mem::take(&mut self.state.lock().unwrap().requests)
    }
}

/// The client of a Consul at this address, which may be closed.
pub(crate) fn consuls(address: &str) -> Arc<Consuls> {
    consuls_of(&[("default", address.to_owned())])
}

/// The clients of the Consuls with these names and addresses.
pub(crate) fn consuls_of(addresses: &[(&str, String)]) -> Arc<Consuls> {
    let settings = addresses.iter().map(|(name, address)| {
        let config = ConsulConfig::resolve(Some(address), None, |_| None).unwrap();
        ((*name).to_owned(), (config, Default::default()))
    });
    Arc::new(Consuls::new(settings.collect()).unwrap())
}

impl State {
    fn answer(&mut self, head: &str) -> (u16, String) {
        let mut words = head.split(' ');
        let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let token = head
            .lines()
            .find_map(|line| line.to_lowercase().strip_prefix("x-consul-token: ").map(str::to_owned));
        let token = token.unwrap_or_default();
        self.requests.push(format!("{method} {path} {token}").trim().to_owned());
        if let Some((status, body)) = self.answers.get(path) {
            return (*status, (*body).to_owned());
        }
        match path {
            "/v1/acl/login" => {
                self.issued += 1;
                let (secret, accessor) = (format!("s-{}", self.issued), format!("a-{}", self.issued));
                self.known.insert(secret.clone());
                (200, json!({ "AccessorID": accessor, "SecretID": secret }).to_string())
            }
            "/v1/acl/token/self" if self.known.contains(&token) => (200, "{}".to_owned()),
            "/v1/acl/logout" if self.known.remove(&token) => (200, "true".to_owned()),
            _ => (403, "ACL not found".to_owned()),
        }
    }
}
