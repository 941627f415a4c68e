//! A node that serves calls, and the server's end of its connection.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::{FutureExt as _, future::BoxFuture};
use herdlet_agent::{
    gc::Collector,
    planner::{self, Input},
    publish::ReadModel,
    requests::Requests,
    telemetry::Telemetry,
};
use herdlet_api::alloc_ops::{AllocOps, bounds::Bounds};
use herdlet_api_types::view::AllocView;
use herdlet_base::paths::Paths;
use herdlet_config::gc::Rules;
use herdlet_driver::{FsIsolation, Registry};
use herdlet_manifest::fixture::{alloc_view, job};
use herdlet_nomad::wire::Secret;
use herdlet_plan::{
    event::{Command, Refusal as PlanRefusal, Reply},
    turn::View,
};
use herdlet_rpc::{
    address::Address,
    call::Caller,
    codec::Value,
    error::{CallError, ServerError},
    framed::{self, Framed, StreamFrame},
    mux::{Io, Mux, Side},
    serve::{Peer, serve},
    stream::Stream,
};
use herdlet_runtime::{CommitIndex, Inbox, Publisher as _, StoreHealth};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{
    super::{
        NodeService, Parts,
        meta::{DynamicMeta, MetaRefused, MetaView},
    },
    stub_driver::hands,
};
use crate::{
    acl::{Mode, Resolver, Settings},
    cluster_client::{Answer, Question, Servers},
    test_recordings::text,
};

/// Longer than anything here takes.
pub(super) const WAIT: Duration = Duration::from_secs(180);

/// Policy rules by token; `None` if the cluster has no ACLs.
pub(super) type Book = Option<BTreeMap<&'static str, &'static str>>;

struct Cluster {
    book: Book,
    renewals: Arc<AtomicUsize>,
}

impl Servers for Cluster {
    fn registered(&self) -> BoxFuture<'_, ()> {
        async {}.boxed()
    }

    fn ask(&self, question: Question) -> BoxFuture<'_, Result<Answer, CallError>> {
        let body = question.body("global", Duration::ZERO);
        let map = |fields: Vec<(&str, Value)>| {
            Value::Map(fields.into_iter().map(|(name, value)| (text(name), value)).collect())
        };
        let text_field = |field| body.get(field).and_then(Value::as_text).unwrap_or_default();
        let answer = match (&self.book, &*question.method) {
            (None, _) => Err(ServerError::new("ACL support disabled").into()),
            (Some(book), "ACL.ResolveToken") => Ok(match book.get(text_field("SecretID")) {
                Some(&"management") => map(vec![("Token", map(vec![("Type", text("management"))]))]),
                Some(_) => {
                    let policies = Value::List(vec![text("p")]);
                    map(vec![("Token", map(vec![("Type", text("client")), ("Policies", policies)]))])
                }
                None => map(vec![("Token", Value::Nil)]),
            }),
            (Some(book), "ACL.GetPolicies") => {
                let rules = book.get(text_field("AuthToken")).copied().unwrap_or_default();
                Ok(map(vec![("Policies", map(vec![("p", map(vec![("Rules", text(rules))]))]))]))
            }
            (Some(_), _) => Err(ServerError::new("ACL token not found").into()),
        };
        async move { answer.map(Answer) }.boxed()
    }

    fn stream(&self, _: Question) -> BoxFuture<'_, Result<Framed<Box<dyn Io>>, CallError>> {
        async { Err(CallError::NoServers) }.boxed()
    }

    fn set_addresses(&self, _: Vec<Address>) -> BoxFuture<'_, Result<(), String>> {
        async { Ok(()) }.boxed()
    }

    /// The claims are `{"sub":"node:global:default:n1:default","exp":1767323045}`.
    fn signed(&self) -> Secret {
        "e30.eyJzdWIiOiJub2RlOmdsb2JhbDpkZWZhdWx0Om4xOmRlZmF1bHQiLCJleHAiOjE3NjczMjMwNDV9.c2lnbmF0dXJl".into()
    }

    fn renew_identity(&self) {
        self.renewals.fetch_add(1, Ordering::Relaxed);
    }

    fn addresses(&self) -> Vec<String> {
        Vec::new()
    }
}

/// Metadata in memory only.
#[derive(Default)]
struct Meta(Mutex<MetaView>);

impl DynamicMeta for Meta {
    fn read(&self) -> MetaView {
        self.0.lock().unwrap().clone()
    }

    fn apply(
        &self,
        changes: BTreeMap<String, Option<String>>,
    ) -> BoxFuture<'_, Result<MetaView, MetaRefused>> {
        async move {
            if changes.contains_key("") {
                return Err(MetaRefused::Invalid("metadata keys must not be empty".to_owned()));
            }
            let mut view = self.0.lock().unwrap();
            view.dynamic.extend(changes);
            view.meta = view.configured.clone();
            for (key, value) in view.dynamic.clone() {
                match value {
                    Some(value) => view.meta.insert(key, value),
                    None => view.meta.remove(&key),
                };
            }
            Ok(view.clone())
        }
        .boxed()
    }
}

pub(super) struct TestEnv {
    pub(super) dir: tempfile::TempDir,
    pub(super) reach: AllocOps,
    pub(super) closing: CancellationToken,
    /// The commands sent to the planner.
    pub(super) commands: Arc<Mutex<Vec<Command>>>,
    /// How often a new identity was requested.
    pub(super) renewals: Arc<AtomicUsize>,
    pub(super) server: Caller,
    _store: watch::Sender<StoreHealth>,
}

/// The node's options.
pub(super) struct Options {
    pub(super) book: Book,
    pub(super) isolation: FsIsolation,
    pub(super) remote_exec: bool,
    pub(super) debug: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { book: None, isolation: FsIsolation::None, remote_exec: true, debug: false }
    }
}

impl TestEnv {
    pub(super) fn new() -> Self {
        Self::with(Options::default())
    }

    pub(super) fn with(options: Options) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = watch::Sender::new(StoreHealth::Ok);
        let (inbox, mut arrivals) = Inbox::with_capacity(64);
        let requests = Requests::to(inbox, store.subscribe(), dir.path().join("state"));
        let model = Arc::new(ReadModel::default());
        let commands: Arc<Mutex<Vec<Command>>> = Arc::default();
        let asked = Arc::clone(&commands);
        tokio::spawn(async move {
            loop {
                let Some(input) = arrivals.take() else {
                    tokio::time::sleep(Duration::from_millis(2)).await;
                    continue;
                };
                let Input::Request(command, sender) = input else { continue };
                let reply = if let Command::Collect { allocs, .. } = &command {
                    Reply::Collected { index: 7, jobs: Vec::new(), allocs: allocs.clone() }
                } else if matches!(&command, Command::Signal { signal, .. } if signal == "SIGSTOP") {
                    Reply::Refused(PlanRefusal::Conflict("not now".to_owned()))
                } else {
                    Reply::Accepted { index: 7 }
                };
                asked.lock().unwrap().push(command);
                let _ = sender.send(planner::Answer { reply, index: CommitIndex(7) });
            }
        });
        let paths = Paths { state: dir.path().join("state"), runtime: dir.path().join("run") };
        let gc = Collector {
            rules: Rules::default(),
            model: Arc::clone(&model),
            requests: requests.clone(),
            alloc_dirs: dir.path().to_owned(),
            telemetry: Telemetry::new(),
        };
        let drivers = Registry::new().with(Arc::new(hands(options.isolation)));
        let reach = AllocOps {
            model,
            drivers,
            paths,
            requests,
            gc: Arc::new(gc),
            core_mhz: 2_000,
            bounds: Bounds::default(),
        };
        let configured = BTreeMap::from([("rack".to_owned(), "r1".to_owned())]);
        let meta = MetaView { meta: configured.clone(), dynamic: BTreeMap::new(), configured };
        let closing = CancellationToken::new();
        let settings = Settings { mode: Mode::Cluster, ..Settings::default() };
        let renewals: Arc<AtomicUsize> = Arc::default();
        let servers = Arc::new(Cluster { book: options.book, renewals: Arc::clone(&renewals) });
        let service = NodeService::new(Parts {
            reach: reach.clone(),
            acl: Resolver::new(servers.clone(), settings),
            servers,
            meta: Arc::new(Meta(Mutex::new(meta))),
            agent: "n1".to_owned(),
            remote_exec: options.remote_exec,
            debug: options.debug,
            closing: closing.clone(),
        });
        let (ours, theirs) = tokio::io::duplex(1 << 20);
        let (node, incoming) = Mux::start(ours, Side::Client);
        let peer = Peer { address: "server".to_owned(), mux: Some(node) };
        tokio::spawn(serve(incoming, Arc::new(service), peer));
        let (server, _) = Mux::start(theirs, Side::Server);
        let server = Caller::new(server);
        Self { dir, reach, closing, commands, renewals, server, _store: store }
    }

    /// An allocation of the job `web` with the tasks `web` and `two`, and its directory.
    pub(super) fn alloc(&self, id: &str) -> AllocView {
        let mut of = (*job("web", "g", "web")).clone();
        let mut two = of.groups[0].tasks[0].clone();
        two.name = "two".to_owned();
        of.groups[0].tasks.push(two);
        of.groups[0].tasks.iter_mut().for_each(|task| task.driver = "hands".to_owned());
        let mut view = alloc_view(&Arc::new(of), 0, 7);
        let mut spec = (*view.spec).clone();
        spec.id = herdlet_api_types::AllocId(id.parse().unwrap());
        view.spec = Arc::new(spec);
        self.show(&view);
        std::fs::create_dir_all(self.logs(id)).unwrap();
        view
    }

    pub(super) fn show(&self, view: &AllocView) {
        let index = self.reach.model.index() + 1;
        let views = vec![View::Alloc(Arc::new(view.clone()))];
        self.reach.model.publisher().offer(CommitIndex(index), views);
    }

    pub(super) fn path(&self, id: &str) -> PathBuf {
        self.dir.path().join("state/alloc").join(id)
    }

    pub(super) fn logs(&self, id: &str) -> PathBuf {
        self.path(id).join("alloc/logs")
    }

    /// The answer to a server's call.
    pub(super) async fn call(&self, method: &str, arguments: &[(&str, Value)]) -> Result<Value, String> {
        let reply = self.server.call(method, &map(arguments), WAIT).await;
        reply.and_then(|reply| reply.decode()).map_err(|error| error.to_string())
    }

    pub(super) async fn stream(&self, method: &str, arguments: &[(&str, Value)]) -> Framed<Stream> {
        framed::stream(self.server.mux(), method, &map(arguments), WAIT).await.unwrap()
    }

    /// Everything that a stream returns: payloads, and the code and text of its error.
    pub(super) async fn read_stream(
        &self,
        method: &str,
        arguments: &[(&str, Value)],
    ) -> (Vec<u8>, Option<(Option<i64>, String)>) {
        all(&mut self.stream(method, arguments).await).await
    }
}

/// Reads a stream to its end.
pub(super) async fn all(stream: &mut Framed<Stream>) -> (Vec<u8>, Option<(Option<i64>, String)>) {
    let mut payload = Vec::new();
    while let Some(frame) = next(stream).await {
        payload.extend(frame.payload);
        if let Some(error) = frame.error {
            assert!(next(stream).await.is_none(), "nothing follows an error");
            return (payload, Some((error.code, error.message)));
        }
    }
    (payload, None)
}

/// The next frame; `None` at the end.
pub(super) async fn next(stream: &mut Framed<Stream>) -> Option<StreamFrame> {
    tokio::time::timeout(WAIT, stream.receive()).await.expect("a frame in time").unwrap()
}

pub(super) fn map(fields: &[(&str, Value)]) -> Value {
    Value::Map(fields.iter().map(|(name, value)| (text(name), value.clone())).collect())
}
