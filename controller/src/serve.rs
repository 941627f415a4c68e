//! `herdlet agent`: the long-running agent, from its config to its end.
//!
//! In: the config. Out: an exit code. Order of the start: TCP addresses, state directory, drivers, database, loop, API,
//! folders, readiness. SIGTERM or SIGINT stops it in reverse order. Tasks continue, unless the node leaves its cluster
//! ([`ending`]). SIGHUP reloads ([`reload`]).

mod ending;
mod health;
mod listeners;
mod preparation;
mod readiness;
mod reload;
mod scrape;
mod systemd;
mod warning;

use std::{path::PathBuf, sync::Arc};

use anyhow::Context as _;
use futures_util::future::join_all;
use herdlet_agent::{
    agent::{
        Agent, Parts,
        drivers::{self, Named},
        folder::{FolderSource, Rereads},
    },
    executor::vault::revoke_all,
    gc::Collector,
    instance::offered_cores,
    telemetry::{Format, Measured, Telemetry, logs},
};
use herdlet_api::{
    alloc_ops::bounds::Bounds,
    http::{
        self, Access, Evaluations, Facts, LocalAuthority, Shared, Submissions, TaskApiServer, Token,
        Unidentified, Vitals,
    },
};
use herdlet_base::{error::in_full, ownership};
use herdlet_config::{Config, Flags, Surroundings, host_name};
use herdlet_plan::{env::NodeFacts, job::cores::OfferedCores};
use herdlet_runtime::off_thread;
use herdlet_variables::Variables;
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::consul_config;

use ending::Signals;
use health::Sources;
use listeners::{Open, listen};
use preparation::{Prepared, open_listeners, prepare, warn_of_limits};
use readiness::Readiness;
use reload::{HarmlessSignals, Reloader, Started};
use scrape::Scraped;
use systemd::{notify, pet_watchdog};

/// Exit code for an invalid config or command line.
const USAGE: u8 = 2;

/// Runs the agent until it is asked to end. Returns the exit code.
pub async fn run_agent(flags: Flags) -> u8 {
    let host = host_name();
    let config = match Config::load_trusted(flags.clone(), &Surroundings::of_process(&host)) {
        Ok(config) => config,
        Err(error) => {
            herdlet_base::stderr_line!("herdlet: failed to {}", in_full(&error));
            return USAGE;
        }
    };
    let level = match logs::init(&config.log_level, config.log_format) {
        Ok(level) => level,
        Err(error) => {
            herdlet_base::stderr_line!("herdlet: failed to {error}");
            return USAGE;
        }
    };
    logs::log_panics();
    for problem in &config.warnings {
        tracing::warn!("{problem}");
    }
    for (variable, name) in ownership::unknown_names() {
        tracing::warn!(
            "{variable} names {name}, which is not in /etc/passwd or /etc/group: it is not trusted; `herdlet doctor` lists trusted users"
        );
    }
    match run(config, Started { flags, level }).await {
        Ok(()) => 0,
        Err(error) => {
            tracing::error!("failed to {error:#}");
            1
        }
    }
}

async fn run(config: Config, started: Started) -> anyhow::Result<()> {
    let harmless = HarmlessSignals::listen()?;
    ownership::check_session(config.runtime_paths())?;
    warn_of_limits();
    let listeners = open_listeners(&config).await?;
    let consuls = consul_config::resolve(&config)?;
    // Its locks are held until the end.
    let Prepared { alone: _alone, member, instance, state, variables, facts } = prepare(&config, &consuls)?;
    let cores = match &member {
        Some(_) => OfferedCores::OfServers,
        None => config.offered_cores(offered_cores(&instance.isolation)),
    };
    let settings = config.planner_settings(instance.id.clone(), config.total()).with_cores(cores);
    let room = facts.room;
    let telemetry = Telemetry::new();
    let mut agent = Agent::start(Parts {
        instance,
        state,
        node: facts.node.clone(),
        settings,
        volumes: config.volumes(),
        consuls,
        start_pressure_limit: config.start_pressure_limit,
        task_dir_users: config.task_dir_users.clone(),
        artifacts: config.artifact,
        variables: Arc::clone(&variables),
        secrets_plugins: config.secrets_plugins(),
        templates: config.template.clone(),
        network: config.network.clone(),
        issuer: config.issuer.clone(),
        vault: config.vault.clone(),
        notes: telemetry.sink(),
    })
    .await?;
    let signals = Signals::listen()?;
    let folders = folders(&config, &agent);
    let readiness = Readiness::new(agent.handle.first_turn.clone(), &folders);
    let closing = CancellationToken::new();
    let mut reloader = Reloader::new(started, readiness.clone());
    reloader.token = listeners.api.as_ref().map(|(_, token)| token.clone());
    reloader.tls = listeners.tls.iter().chain(&listeners.node_tls).cloned().collect();
    reloader.variables = Some(Arc::clone(&variables));
    let rereads: Vec<_> = folders.iter().map(FolderSource::rereads).collect();
    reloader.folders.clone_from(&rereads);
    let problems: Vec<_> = folders.iter().map(FolderSource::status).collect();
    let mut faces = JoinSet::new();
    let open = Open::new(&config, telemetry.clone(), closing.clone());
    telemetry.orphans(agent.orphans);
    let collector = Arc::new(Collector {
        rules: config.gc,
        model: Arc::clone(&agent.model),
        requests: agent.requests.clone(),
        alloc_dirs: agent.context.paths.allocs(),
        telemetry: telemetry.clone(),
    });
    let joined = Arc::clone(&reloader.joined);
    let of_node = Arc::clone(&joined);
    let scrape = scrape::scrape(
        telemetry,
        &mut agent,
        Scraped { folders: problems.clone(), room, tls: listeners.tls.clone(), joined: of_node },
    );
    let vitals = Sources {
        readiness: readiness.clone(),
        requests: agent.requests.clone(),
        orphans: agent.orphans,
        reserve: agent.reserve.clone(),
        state: config.state_dir.clone(),
        folders: problems,
        tls: listeners.tls.clone(),
        consuls: Arc::clone(&agent.context.services.catalogs.consuls),
        model: Arc::clone(&agent.model),
        variables: Arc::clone(&variables),
        joined: Arc::clone(&joined),
    }
    .vitals();
    agent.watch(Arc::clone(&variables).maintain());
    let shared = shared(
        &config,
        &agent,
        Served { facts, variables, gc: Arc::clone(&collector), rereads },
        vitals,
        scrape,
        closing.clone(),
    );
    agent.watch(http::prune_sources(Arc::clone(&shared)));
    if member.is_none() {
        let token = listeners.api.as_ref().map(|(_, token)| token.clone());
        serve_tasks(&agent, &shared, token);
    }
    // Before anything that may wait, so that users can query the agent.
    let node_door = listen(&open, listeners, &shared, &mut faces).await?;
    if let (Some(member), Some(listener)) = (member, node_door) {
        let listens = listener.address();
        // With all drivers: tasks of a disabled driver continue, and the driver itself reports what it can't start.
        let rules = drivers::rules(&agent.context.drivers, Named::All, &config);
        let now = member.join(&config, &mut agent, rules, &shared).await.context("join the cluster")?;
        let router = herdlet_node::http::router(Arc::clone(&now.api));
        let access = Access::Cluster(Arc::clone(&now.api) as Arc<dyn http::Tokens>);
        faces.spawn(open.serve(listener, router, access));
        warning::of_open_node(listens, &now.api, &closing);
        let task_api = herdlet_node::http::task_api(Arc::clone(&now.api));
        agent.context.task_sockets.serve_by(Arc::new(task_api));
        let _ = joined.set(now);
    }
    for folder in folders {
        agent.watch(folder.follow());
    }
    agent.watch(reloader.follow(harmless));
    watch(&mut agent, readiness, (collector, &config));
    let ended = tokio::select! {
        () = ending::wait(signals, config.cluster.as_ref(), &joined) => Ok(()),
        error = agent.failed() => Err(error),
        Some(ended) = faces.join_next() => Err(face_ended(ended)),
    };
    tracing::info!("stopping; tasks continue");
    notify(&[sd_notify::NotifyState::Stopping]);
    closing.cancel();
    while faces.join_next().await.is_some() {}
    let tokens = Arc::clone(&agent.context.server_tokens);
    agent.stop().await;
    // The disk may have space by now.
    let _ = off_thread(move || tokens.keep_held()).await;
    ended
}

/// Starts what runs beside the loop until the agent ends.
fn watch(agent: &mut Agent, readiness: Readiness, (collector, config): (Arc<Collector>, &Config)) {
    agent.complete_after(readiness.clone().until_folders_read());
    // Collection needs the folders' ownership: a collected job of a folder would run again.
    agent.watch({
        let ready = readiness.clone().reached();
        async move {
            ready.await;
            collector.run().await;
        }
    });
    let (requests, model) = (agent.requests.clone(), Arc::clone(&agent.model));
    agent.watch(readiness.notify_service_manager(requests, model, config.socket.clone()));
    agent.watch(pet_watchdog(agent.inbox.clone(), Arc::clone(&agent.handle.metrics)));
}

/// Without this listener, the agent could not be queried.
fn face_ended(ended: Result<(), JoinError>) -> anyhow::Error {
    match ended {
        Ok(()) => anyhow::anyhow!("continue: a listener ended unexpectedly"),
        Err(error) => anyhow::anyhow!("continue: a listener ended: {error}"),
    }
}

/// All folders; none has been read yet.
fn folders(config: &Config, agent: &Agent) -> Vec<FolderSource> {
    let state = &agent.context.paths.state;
    let rules = drivers::rules(&agent.context.drivers, Named::Offered, config);
    let folder = |dir: &PathBuf| {
        let owners = agent.requests.owners();
        FolderSource::new(dir.clone(), state, rules.clone(), agent.inbox.clone(), owners)
            .in_region(config.region.clone())
    };
    config.manifests.iter().map(folder).collect()
}

/// What the API serves beside the agent.
struct Served {
    facts: Facts,
    variables: Arc<Variables>,
    gc: Arc<Collector>,
    rereads: Vec<Arc<Rereads>>,
}

fn shared(
    config: &Config,
    agent: &Agent,
    served: Served,
    vitals: impl Fn() -> Vitals + Send + Sync + 'static,
    scrape: impl Fn(Format, Vec<Measured>) -> String + Send + Sync + 'static,
    closing: CancellationToken,
) -> Arc<Shared> {
    let Served { facts, variables, gc, rereads } = served;
    let renderer = Arc::clone(&agent.context.renderer);
    Arc::new(Shared {
        requests: agent.requests.clone(),
        model: Arc::clone(&agent.model),
        restored: agent.handle.first_turn.clone(),
        drivers: agent.context.drivers.clone(),
        bounds: Bounds::default(),
        host: herdlet_api::alloc_ops::host::HostSampler::default(),
        manifests: drivers::rules(&agent.context.drivers, Named::Offered, config),
        paths: agent.context.paths.clone(),
        catalog: Arc::clone(&agent.context.services.catalogs.built_in),
        published: {
            let published = Arc::clone(&agent.context.published);
            Box::new(move |registration| published.view(registration))
        },
        plugins: {
            let plugins = Arc::clone(&agent.context.csi_plugins);
            Box::new(move || plugins.views())
        },
        consuls: Arc::clone(&agent.context.services.catalogs.consuls),
        variables,
        template_users: {
            let renderer = Arc::clone(&agent.context.renderer);
            Box::new(move |key| renderer.users_of(key))
        },
        evaluations: Evaluations::default(),
        submissions: Submissions::below(&agent.context.paths.state),
        gc,
        // Includes the attributes that the drivers have set.
        facts: Facts { node: NodeFacts::clone(&agent.context.node.get()), ..facts },
        vitals: Box::new(vitals),
        read_inputs: Box::new(move || {
            let (rereads, renderer) = (rereads.clone(), Arc::clone(&renderer));
            Box::pin(async move {
                // A new job registers services, which are data.
                join_all(rereads.iter().map(|folder| folder.read_again())).await;
                renderer.flush().await;
            })
        }),
        revoke_vault_tokens: {
            let (context, model) = (Arc::clone(&agent.context), Arc::clone(&agent.model));
            let inbox = agent.inbox.clone();
            Box::new(move || {
                let (context, inbox) = (Arc::clone(&context), inbox.clone());
                let allocs = model.allocs().iter().map(|view| Arc::clone(&view.spec)).collect();
                Box::pin(async move { revoke_all(&context, allocs, &inbox).await })
            })
        },
        identity_keys: Arc::clone(&agent.context.identity_keys),
        metrics: Box::new(scrape),
        measuring: tokio::sync::Mutex::default(),
        publish_allocation_metrics: config.publish_allocation_metrics,
        closing,
    })
}

/// Serves the sockets of tasks. On a node the cluster's servers sign and check identities.
fn serve_tasks(agent: &Agent, shared: &Arc<Shared>, token: Option<Token>) {
    // The context holds the sockets, and so this.
    let context = Arc::downgrade(&agent.context);
    let verify = Box::new(move |token: &str| {
        let context = context.upgrade().ok_or(Unidentified::Rejected)?;
        context.signer.verify(token).map_err(|error| match error.is_about_token() {
            true => Unidentified::Rejected,
            false => Unidentified::Failed(error.to_string()),
        })
    });
    let known = (Arc::clone(&shared.model), shared.restored.clone());
    agent.context.task_sockets.serve_by(Arc::new(TaskApiServer {
        router: http::router(Arc::clone(shared)),
        authority: Arc::new(LocalAuthority::new(verify, known, token)),
        closing: shared.closing.clone(),
    }));
}
