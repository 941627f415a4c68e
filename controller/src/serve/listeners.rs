//! The agent's sockets: TCP, UDP and the unix socket, and what is served on each.
//!
//! In: the config, and the state that all APIs share. Out: open sockets, then tasks that serve them until the agent
//! closes. The node's API is served by the caller, after the node has joined its cluster.

use std::{os::unix::fs::DirBuilderExt as _, path::Path, sync::Arc};

use anyhow::Context as _;
use axum::Router;
use herdlet_agent::telemetry::Telemetry;
use herdlet_api::{
    dns::{self, Sockets, Zone},
    http::{self, Access, Admission, Frontend, Limits, Listener, Names, Shared, Tls, Token},
};
use herdlet_config::Config;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::warning;

/// Sockets on TCP and UDP. They are opened first, so that a taken address is reported at once. Early clients wait until
/// the agent serves.
pub(super) struct Listeners {
    pub(super) api: Option<(Listener, Token)>,
    pub(super) tls: Option<Arc<Tls>>,
    metrics: Option<Listener>,
    dns: Option<Sockets>,
    node: Option<Listener>,
    pub(super) node_tls: Option<Arc<Tls>>,
}

impl Listeners {
    pub(super) async fn open(config: &Config) -> anyhow::Result<Self> {
        let mut tls = None;
        let api = match &config.listen {
            Some((address, token_file)) => {
                let token = Token::read(token_file)?;
                tls = config.tls.clone().map(Tls::read).transpose()?.map(Arc::new);
                let listener = Listener::tcp(&address.to_string()).await?;
                let listener = match &tls {
                    Some(tls) => listener.with_tls(Arc::clone(tls)),
                    None => listener,
                };
                Some((listener, token))
            }
            None => None,
        };
        let metrics = match &config.metrics_listen {
            Some(address) => Some(Listener::tcp(&address.to_string()).await?),
            None => None,
        };
        let dns = match &config.dns_listen {
            Some(address) => Some(Sockets::open(&address.to_string()).await?),
            None => None,
        };
        let mut node_tls = None;
        let node = match &config.cluster {
            Some(cluster) => {
                let listener = Listener::tcp(&cluster.http.to_string()).await;
                let listener =
                    listener.context("open the node's HTTP API (`cluster.http_port` sets its port)")?;
                node_tls = cluster.http_tls.clone().map(Tls::read).transpose()?.map(Arc::new);
                Some(match &node_tls {
                    Some(tls) => listener.with_tls(Arc::clone(tls)),
                    None => listener,
                })
            }
            None => None,
        };
        Ok(Self { api, tls, metrics, dns, node, node_tls })
    }
}

/// State that the faces of this agent share.
pub(super) struct Open<'c> {
    config: &'c Config,
    admission: Arc<Admission>,
    closing: CancellationToken,
}

impl<'c> Open<'c> {
    pub(super) fn new(config: &'c Config, telemetry: Telemetry, closing: CancellationToken) -> Self {
        Self { config, admission: Admission::new(Names::of_config(config), telemetry), closing }
    }

    pub(super) fn serve(
        &self,
        listener: Listener,
        router: Router,
        access: Access,
    ) -> impl Future<Output = ()> + Send + use<> {
        let limits = Limits { per_peer_max: self.config.http.max_conns_per_client, ..Limits::default() };
        let frontend = Frontend { router, access, admission: Arc::clone(&self.admission), limits };
        http::serve(listener, frontend, self.closing.clone())
    }
}

/// Creates the unix socket, and serves all listeners except the node's, which is returned.
pub(super) async fn listen(
    open: &Open<'_>,
    listeners: Listeners,
    shared: &Arc<Shared>,
    faces: &mut JoinSet<()>,
) -> anyhow::Result<Option<Listener>> {
    let config = open.config;
    if let Some(parent) = config.socket.parent() {
        make_parent(parent)?;
    }
    let socket = Listener::unix(&config.socket).await?;
    faces.spawn(open.serve(socket, http::router(Arc::clone(shared)), Access::Open));
    if let (Some((listener, token)), Some((address, _))) = (listeners.api, &config.listen) {
        tracing::info!(%address, tls = config.tls.is_some(), "listening on TCP");
        warning::of_plain_text(&listener, address);
        faces.spawn(open.serve(listener, http::router(Arc::clone(shared)), Access::Token(token)));
    }
    if let (Some(listener), Some(address)) = (listeners.metrics, &config.metrics_listen) {
        tracing::info!(%address, "serving metrics");
        faces.spawn(open.serve(listener, http::metrics_router(Arc::clone(shared)), Access::Open));
    }
    let zone = Arc::new(Zone {
        model: Arc::clone(&shared.model),
        catalog: Arc::clone(&shared.catalog),
        restored: shared.restored.clone(),
    });
    let limits = dns::Limits::default();
    if let Some(ports) = shared.requests.ports() {
        let servers = ports.networks().name_servers();
        faces.spawn(dns::serve_bridges(servers, Arc::clone(&zone), limits, open.closing.clone()));
    }
    if let (Some(sockets), Some(address)) = (listeners.dns, &config.dns_listen) {
        tracing::info!(%address, "answering DNS for services");
        faces.spawn(dns::serve(sockets, zone, limits, open.closing.clone()));
    }
    Ok(listeners.node)
}

fn make_parent(dir: &Path) -> anyhow::Result<()> {
    // With this mode regardless of the umask, so that no other user can put a socket there.
    let mut builder = std::fs::DirBuilder::new();
    builder
        .recursive(true)
        .mode(0o755)
        .create(dir)
        .with_context(|| format!("create directory {}", dir.display()))
}
