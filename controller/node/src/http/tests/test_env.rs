//! A node's HTTP API over a real socket, with stand-in servers that record calls.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use futures_util::{FutureExt as _, future::BoxFuture};
use herdlet_api::http::{Access, fixture::ApiFixture};
use herdlet_manifest::fixture::{alloc_view, job, job_view};
use herdlet_nomad::wire::Secret;
use herdlet_rpc::{address::Address, framed::Framed, mux::Io};
use reqwest::Method;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::{
    acl::{Mode, Resolver, Settings},
    cluster_client::Question,
    serve::{
        Parts,
        meta::{DynamicMeta, MetaRefused, MetaView},
    },
    snapshot::tests::SECRET,
    test_recordings::text,
};

pub(in crate::http) fn map(fields: &[(&str, Value)]) -> Value {
    Value::Map(fields.iter().map(|(name, value)| (text(name), value.clone())).collect())
}

/// A stream message with this payload.
pub(super) fn payload(payload: &str) -> Value {
    map(&[("Error", Value::Nil), ("Payload", text(payload))])
}

#[derive(Default)]
pub(super) struct Cluster {
    /// The answer to each call.
    pub(super) answers: Mutex<BTreeMap<String, Result<Value, String>>>,
    pub(super) asked: Mutex<Vec<(String, Value)>>,
    /// The messages in answer to each streaming call. For commands, the first input follows them.
    pub(super) streams: Mutex<BTreeMap<String, Vec<Value>>>,
    has_acls: bool,
    /// The node is never registered.
    pub(super) is_unreachable: AtomicBool,
}

impl Servers for Arc<Cluster> {
    fn registered(&self) -> BoxFuture<'_, ()> {
        if self.is_unreachable.load(Ordering::SeqCst) {
            return std::future::pending().boxed();
        }
        async {}.boxed()
    }

    fn ask(&self, question: Question) -> BoxFuture<'_, Result<Answer, CallError>> {
        let body = question.body("here", Duration::from_secs(300));
        let token = body.get("SecretID").and_then(Value::as_text).unwrap_or_default();
        let answer = match &*question.method {
            "ACL.WhoAmI" if self.answers.lock().unwrap().contains_key("ACL.WhoAmI") => {
                self.answers.lock().unwrap()["ACL.WhoAmI"].clone()
            }
            "ACL.ResolveToken" | "ACL.GetPolicies" | "ACL.WhoAmI" if !self.has_acls => {
                Err("ACL support disabled".to_owned())
            }
            "ACL.ResolveToken" if token == "boss" => {
                Ok(map(&[("Token", map(&[("Type", text("management"))]))]))
            }
            "ACL.ResolveToken" => Ok(map(&[("Token", Value::Nil)])),
            "ACL.GetPolicies" => Ok(map(&[("Policies", Value::Nil)])),
            "ACL.WhoAmI" => Err("ACL token not found".to_owned()),
            method => {
                self.asked.lock().unwrap().push((method.to_owned(), body));
                let known = self.answers.lock().unwrap().get(method).cloned();
                known.unwrap_or_else(|| Err(format!("rpc: can't find method {method}")))
            }
        };
        async move { answer.map(Answer).map_err(|error| ServerError::new(error).into()) }.boxed()
    }

    fn stream(&self, question: Question) -> BoxFuture<'_, Result<Framed<Box<dyn Io>>, CallError>> {
        let body = question.body("here", Duration::ZERO);
        self.asked.lock().unwrap().push((question.method.clone(), body));
        let messages = self.streams.lock().unwrap().get(&question.method).cloned();
        let Some(messages) = messages else {
            let error = ServerError::new(format!("Unknown rpc method: {:?}", question.method));
            return async { Err(error.into()) }.boxed();
        };
        let (ours, theirs): (Box<dyn Io>, Box<dyn Io>) = {
            let (ours, theirs) = tokio::io::duplex(1 << 16);
            (Box::new(ours), Box::new(theirs))
        };
        tokio::spawn(async move {
            let mut stream = Framed::new(theirs);
            for message in messages {
                stream.send(&message).await.unwrap();
            }
            if question.method == "Allocations.Exec" {
                let typed: Value = stream.receive().await.unwrap().unwrap();
                let data = typed.get("Stdin").unwrap().get("Data").unwrap().clone();
                let Value::Text(data) = data else { panic!("expected typed text") };
                stream.send(&payload(&format!("{{\"heard\":\"{data}\"}}"))).await.unwrap();
            }
            stream.finish().await.unwrap();
        });
        async { Ok(Framed::new(ours)) }.boxed()
    }

    /// Servers called `dead` do not answer.
    fn set_addresses(&self, servers: Vec<Address>) -> BoxFuture<'_, Result<(), String>> {
        let servers: Vec<String> = servers.iter().map(ToString::to_string).collect();
        let answer = match servers.iter().find(|server| server.starts_with("dead")) {
            Some(dead) => Err(format!("Server at address {dead} failed ping: no answer")),
            None => Ok(()),
        };
        let servers = servers.iter().map(|server| text(server)).collect();
        self.asked.lock().unwrap().push(("servers".to_owned(), Value::List(servers)));
        async { answer }.boxed()
    }

    /// The claims are `{"sub":"n1"}`.
    fn signed(&self) -> Secret {
        "e30.eyJzdWIiOiJuMSJ9.c2lnbmF0dXJl".into()
    }

    fn renew_identity(&self) {
        self.asked.lock().unwrap().push(("renew".to_owned(), Value::Nil));
    }

    fn addresses(&self) -> Vec<String> {
        vec!["10.0.0.2:4647".to_owned(), "10.0.0.1:4647".to_owned()]
    }
}

pub(super) struct NoMeta;

impl DynamicMeta for NoMeta {
    fn read(&self) -> MetaView {
        MetaView { meta: BTreeMap::from([("rack".to_owned(), "r1".to_owned())]), ..MetaView::default() }
    }

    fn apply(&self, _: BTreeMap<String, Option<String>>) -> BoxFuture<'_, Result<MetaView, MetaRefused>> {
        async { Err(MetaRefused::Invalid("a key is empty".to_owned())) }.boxed()
    }
}

pub(in crate::http) struct Node {
    pub(in crate::http) ground: ApiFixture,
    pub(super) cluster: Arc<Cluster>,
    pub(in crate::http) api: Arc<NodeApi>,
    pub(super) url: String,
    pub(super) http: reqwest::Client,
    pub(in crate::http) alloc: String,
}

impl Node {
    pub(in crate::http) async fn new(has_acls: bool) -> Self {
        let ground = ApiFixture::new();
        let web = job("web", "front", "httpd");
        let view = alloc_view(&web, 0, 7);
        let alloc = view.spec.id.to_string();
        ground.show(5, &[job_view(&web, 0)], &[view]);
        let cluster = Arc::new(Cluster { has_acls, ..Cluster::default() });
        let servers: Arc<dyn Servers> = Arc::new(Arc::clone(&cluster));
        let service = Arc::new(NodeService::new(Parts {
            reach: ground.shared.reach(),
            acl: Resolver::new(Arc::clone(&servers), Settings { mode: Mode::Cluster, ..Settings::default() }),
            servers: Arc::clone(&servers),
            meta: Arc::new(NoMeta),
            agent: "n1".to_owned(),
            remote_exec: true,
            debug: false,
            closing: CancellationToken::new(),
        }));
        let api = NodeApi {
            shared: Arc::clone(&ground.shared),
            service,
            servers,
            snapshots: Snapshots::new(ground.shared.reach().paths, SECRET.into(), CancellationToken::new()),
            standing: Box::new(ServerContact::default),
        };
        let api = Arc::new(api);
        let access = Access::Cluster(Arc::clone(&api) as Arc<dyn Tokens>);
        let url = ground.tcp_for(router(Arc::clone(&api)), access).await;
        Self { ground, cluster, api, url, http: reqwest::Client::new(), alloc }
    }

    pub(in crate::http) fn answers(&self, method: &str, answer: Value) {
        self.cluster.answers.lock().unwrap().insert(method.to_owned(), Ok(answer));
    }

    /// Servers refuse this call.
    pub(in crate::http) fn refuses(&self, method: &str, why: &str) {
        self.cluster.answers.lock().unwrap().insert(method.to_owned(), Err(why.to_owned()));
    }

    pub(super) async fn ask(&self, method: Method, path: &str, token: &str, body: &str) -> reqwest::Response {
        let request = self.http.request(method, format!("{}{path}", self.url));
        request.header("x-nomad-token", token).body(body.to_owned()).send().await.unwrap()
    }

    pub(super) async fn get(&self, path: &str) -> (u16, String) {
        let answer = self.ask(Method::GET, path, "", "").await;
        (answer.status().as_u16(), answer.text().await.unwrap())
    }

    pub(in crate::http) fn last_call(&self) -> (String, Value) {
        self.cluster.asked.lock().unwrap().pop().expect("a call to the servers")
    }
}
