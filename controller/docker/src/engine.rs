//! A connection to an engine on this machine, and what is known of it.
//!
//! In: the path of a socket. Out: calls; whether the engine answers, and why not. It is watched as long as the driver is open: see
//! `follow`. This module knows no attempts.

mod daemon;
mod find;
mod follow;

use std::{
    collections::{BTreeMap, HashMap},
    path::{Path, PathBuf},
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use bollard::{
    API_DEFAULT_VERSION, Docker,
    errors::Error,
    models::{ContainerSummary, EventMessage},
    query_parameters::ListContainersOptionsBuilder,
};
use futures_util::future::BoxFuture;
use herdlet_api_types::UnixNanos;
use tokio::{sync::watch, time};

use crate::{
    failure,
    names::{self, Owner},
};

pub(crate) use find::{Kind, Place, candidates, uses_builtin};

/// How long a probe may take. A daemon that hangs counts as down.
const PROBE_MAX: Duration = Duration::from_secs(10);
/// How long a call waits for the first answer of an engine.
const NEW_MAX: Duration = Duration::from_secs(5);
/// States of containers that Docker's API has and both engines can filter by, without those that have ended.
const READABLE: [&str; 3] = ["created", "running", "paused"];

/// An engine of this machine.
pub(crate) struct Engine {
    pub(crate) place: Place,
    state: watch::Sender<State>,
    /// Speaks a version of the API that was agreed on when the engine was connected to.
    client: RwLock<Option<Docker>>,
    call_timeout: Duration,
}

/// What is known of an engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum State {
    /// It has not answered yet.
    New,
    /// It answers.
    Up(Arc<About>),
    /// It does not.
    Down {
        /// Why.
        why: String,
        /// What it was when it last answered.
        was: Option<Arc<About>>,
    },
}

/// A description of an engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct About {
    pub(crate) kind: Kind,
    pub(crate) version: String,
    /// 1 or 2.
    pub(crate) cgroup_version: u8,
    pub(crate) os_type: String,
    pub(crate) bridge_ip: Option<String>,
    pub(crate) runtimes: Vec<String>,
    pub(crate) rootless: bool,
    /// Users of containers have other numbers on the machine.
    pub(crate) remaps_users: bool,
    /// The directory of its images, volumes and containers.
    pub(crate) root: String,
    /// How it stores images: `overlay2`. Part of paths of Podman.
    pub(crate) storage: String,
}

impl About {
    pub(crate) fn is_docker(&self) -> bool {
        self.kind == Kind::Docker
    }

    /// The file in which it stores the output of a container, unless the container's options name another.
    pub(crate) fn log_file(&self, container: &str) -> String {
        let root = &self.root;
        match self.kind {
            Kind::Docker => format!("{root}/containers/{container}/{container}-json.log"),
            Kind::Podman => format!("{root}/{}-containers/{container}/userdata/ctr.log", self.storage),
        }
    }

    /// The engine in the agent. As for Podman, tasks join networks by the files that keep them.
    pub(crate) fn builtin() -> Self {
        Self {
            kind: Kind::Podman,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            cgroup_version: 2,
            os_type: "linux".to_owned(),
            bridge_ip: None,
            runtimes: Vec::new(),
            rootless: false,
            remaps_users: false,
            root: String::new(),
            storage: String::new(),
        }
    }

    #[cfg(test)]
    pub(crate) fn fixture() -> Self {
        Self { kind: Kind::Docker, version: "1".to_owned(), ..Self::builtin() }
    }
}

/// Whether an engine has run since the last connection to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Continuity {
    /// As far as is known.
    Kept,
    /// It was restarted, and is one that stores the output of containers itself.
    Restarted,
}

/// The containers of an owner.
pub(crate) struct List {
    pub(crate) all: Vec<ContainerSummary>,
    /// When the engine was asked: the list has everything that happened before.
    pub(crate) asked: UnixNanos,
}

/// What an engine reports of an owner's containers.
pub(crate) enum EngineReport {
    /// All of them, once after each connection.
    Listed(List, Continuity),
    /// A change of one.
    Changed(EventMessage),
}

/// Receives an engine's reports.
pub(crate) trait Listener: Send + Sync + 'static {
    fn report(&self, engine: &Arc<Engine>, report: EngineReport) -> BoxFuture<'_, ()>;
}

impl Engine {
    pub(crate) fn new(place: Place, call_timeout: Duration) -> Arc<Self> {
        Arc::new(Self {
            place,
            state: watch::Sender::new(State::New),
            client: RwLock::default(),
            call_timeout,
        })
    }

    pub(crate) fn watch(&self) -> watch::Receiver<State> {
        self.state.subscribe()
    }

    pub(crate) fn socket(&self) -> &Path {
        &self.place.socket
    }

    /// Whether it answers, as far as is known.
    pub(crate) fn is_up(&self) -> bool {
        matches!(&*self.state.borrow(), State::Up(_))
    }

    /// What it is, even if it is down at the moment; none before it has answered.
    pub(crate) fn about(&self) -> Option<Arc<About>> {
        match &*self.state.borrow() {
            State::Up(about) => Some(Arc::clone(about)),
            State::Down { was, .. } => was.clone(),
            State::New => None,
        }
    }

    /// The client, once the engine has answered.
    ///
    /// # Errors
    /// Why it does not answer; continues "failed to".
    pub(crate) async fn client(&self) -> Result<Docker, String> {
        if let Some(client) = self.connected() {
            return Ok(client);
        }
        let client = self.connect().await?;
        *self.client.write().unwrap_or_else(PoisonError::into_inner) = Some(client.clone());
        Ok(client)
    }

    fn connected(&self) -> Option<Docker> {
        self.client.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The client of an engine that answers, as far as is known. Calls of one that does not would only keep others waiting.
    ///
    /// # Errors
    /// Why it does not answer; continues "failed to".
    pub(crate) async fn reach(&self) -> Result<Docker, String> {
        let mut state = self.state.subscribe();
        // Just after the driver was opened.
        let _ = time::timeout(NEW_MAX, state.wait_for(|state| *state != State::New)).await;
        let down = match &*state.borrow() {
            State::Down { why, .. } => Some(why.clone()),
            State::Up(_) | State::New => None,
        };
        match down {
            Some(why) => Err(why),
            None => self.client().await,
        }
    }

    async fn connect(&self) -> Result<Docker, String> {
        let failed = |error: &Error| format!("reach {}: {}", self.place, failure::sentence(error));
        let path = self.place.socket.display().to_string();
        let timeout_s = self.call_timeout.as_secs().max(1);
        let client = Docker::connect_with_unix(&path, timeout_s, API_DEFAULT_VERSION)
            .map_err(|error| failed(&error))?;
        let negotiated = time::timeout(PROBE_MAX, client.negotiate_version()).await;
        match negotiated {
            Ok(client) => client.map_err(|error| failed(&error)),
            Err(_) => Err(format!("reach {}: it did not answer in time", self.place)),
        }
    }

    /// Describes the engine, and notes whether it answers.
    ///
    /// # Errors
    /// Why it does not answer; continues "failed to".
    pub(crate) async fn probe(&self) -> Result<Arc<About>, String> {
        let asked = async {
            let client = self.client().await?;
            let failed = |error: &Error| format!("reach {}: {}", self.place, failure::sentence(error));
            let asked = async { tokio::join!(client.version(), client.info()) };
            let Ok((version, info)) = time::timeout(PROBE_MAX, asked).await else {
                return Err(format!("reach {}: it did not answer in time", self.place));
            };
            let (version, info) =
                (version.map_err(|error| failed(&error))?, info.map_err(|error| failed(&error))?);
            let is_podman = version
                .components
                .iter()
                .flatten()
                .any(|component| component.name.to_ascii_lowercase().contains("podman"));
            let is_v2 = info.cgroup_version.is_some_and(|version| version.to_string() == "2");
            let options = info.security_options.unwrap_or_default();
            Ok(Arc::new(About {
                kind: if is_podman { Kind::Podman } else { Kind::Docker },
                version: version.version.unwrap_or_default(),
                cgroup_version: if is_v2 { 2 } else { 1 },
                os_type: info.os_type.unwrap_or_else(|| "linux".to_owned()),
                bridge_ip: None,
                runtimes: info.runtimes.map(|all| sorted(all.into_keys())).unwrap_or_default(),
                rootless: options.iter().any(|option| option.contains("rootless")),
                remaps_users: options.iter().any(|option| option == "name=userns"),
                root: info.docker_root_dir.unwrap_or_default(),
                storage: info.driver.unwrap_or_default(),
            }))
        };
        match asked.await {
            Ok(about) => {
                let about: Arc<About> = match self.bridge_address().await {
                    None => about,
                    bridge_ip => Arc::new(About { bridge_ip, ..About::clone(&about) }),
                };
                self.set(State::Up(Arc::clone(&about)));
                Ok(about)
            }
            Err(why) => {
                self.went_down(&why);
                Err(why)
            }
        }
    }

    /// Whether it answers. Describes it again, unless it is a Podman service, which reads its configuration only when it starts, and
    /// no task's request has found it down meanwhile: a description costs Podman a second of processor time.
    ///
    /// # Errors
    /// Why not; continues "failed to".
    async fn ping_or_probe(&self, client: &Docker) -> Result<(), String> {
        let is_known = matches!(&*self.state.borrow(), State::Up(about) if !about.is_docker());
        if !is_known {
            return self.probe().await.map(drop);
        }
        match time::timeout(PROBE_MAX, client.ping()).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(format!("reach {}: {}", self.place, failure::sentence(&error))),
            Err(_) => Err(format!("reach {}: it did not answer in time", self.place)),
        }
    }

    async fn bridge_address(&self) -> Option<String> {
        let client = self.connected()?;
        let asked =
            client.inspect_network("bridge", None::<bollard::query_parameters::InspectNetworkOptions>);
        let network = time::timeout(PROBE_MAX, asked).await.ok()?.ok()?;
        let configs = network.ipam?.config?;
        let named = configs.iter().find_map(|config| config.gateway.clone()).filter(|ip| !ip.is_empty());
        // Docker from 17.09 on does not name the gateway, which is the first address.
        named.or_else(|| configs.iter().find_map(|config| first_address(config.subnet.as_deref()?)))
    }

    fn set(&self, state: State) {
        self.state.send_if_modified(|known| {
            let is_change = *known != state;
            if is_change {
                *known = state;
            }
            is_change
        });
    }

    /// Agrees on a version of the API again at the next call: another release may answer it.
    fn forget_client(&self) {
        *self.client.write().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn went_down(&self, why: &str) {
        self.forget_client();
        self.set(State::Down { why: why.to_owned(), was: self.about() });
    }

    /// All containers of an owner.
    ///
    /// # Errors
    /// The engine's.
    pub(crate) async fn containers(&self, owner: &Owner) -> Result<Vec<ContainerSummary>, String> {
        let options = ListContainersOptionsBuilder::new().all(true);
        self.list(options, owner.filters()).await
    }

    /// All containers with Nomad's label.
    ///
    /// # Errors
    /// The engine's.
    pub(crate) async fn containers_of_nomad(&self) -> Result<Vec<ContainerSummary>, String> {
        self.list(ListContainersOptionsBuilder::new().all(true), vec![names::NOMAD_ALLOC.to_owned()]).await
    }

    /// Whether any container, also one of others, has an image.
    ///
    /// # Errors
    /// The engine's.
    pub(crate) async fn has_containers_of(&self, image: &str) -> Result<bool, String> {
        let options = ListContainersOptionsBuilder::new().all(true).limit(1);
        // Podman's ids have no prefix.
        let id = image.strip_prefix("sha256:").unwrap_or(image);
        let found = self.filtered(options, "ancestor", vec![id.to_owned()]).await?;
        Ok(!found.is_empty())
    }

    /// What the containers of an owner have written into their own layers, by attempt. Takes the engine some time.
    ///
    /// # Errors
    /// The engine's.
    pub(crate) async fn writable_bytes(&self, owner: &Owner) -> Result<BTreeMap<String, u64>, String> {
        let options = ListContainersOptionsBuilder::new().all(true).size(true);
        let all = self.list(options, owner.filters()).await?;
        let size = |container: ContainerSummary| {
            let attempt = container.labels?.get(names::ATTEMPT)?.clone();
            Some((attempt, u64::try_from(container.size_rw.unwrap_or(0)).ok()?))
        };
        Ok(all.into_iter().filter_map(size).collect())
    }

    async fn list(
        &self,
        options: ListContainersOptionsBuilder,
        labels: Vec<String>,
    ) -> Result<Vec<ContainerSummary>, String> {
        self.filtered(options, "label", labels).await
    }

    async fn filtered(
        &self,
        options: ListContainersOptionsBuilder,
        filter: &str,
        values: Vec<String>,
    ) -> Result<Vec<ContainerSummary>, String> {
        let client = self.client().await?;
        let filters: HashMap<String, Vec<String>> = HashMap::from([(filter.to_owned(), values)]);
        let failed =
            |error: &Error| format!("list the containers of {}: {}", self.place, failure::sentence(error));
        let ask = |filters: &HashMap<String, Vec<String>>| {
            let options = options.clone().filters(filters).build();
            client.list_containers(Some(options))
        };
        match failure::settled(|| ask(&filters)).await {
            // One whose state can't be read is none that runs; the others are not lost with it.
            Err(Error::JsonDataError { .. }) => {
                let mut filters = filters;
                filters.insert("status".to_owned(), READABLE.map(str::to_owned).to_vec());
                ask(&filters).await.map_err(|error| failed(&error))
            }
            answer => answer.map_err(|error| failed(&error)),
        }
    }
}

/// The first address of an IPv4 network, `172.17.0.0/16`.
fn first_address(subnet: &str) -> Option<String> {
    let (network, _) = subnet.split_once('/')?;
    let network: std::net::Ipv4Addr = network.parse().ok()?;
    Some(std::net::Ipv4Addr::from(u32::from(network).checked_add(1)?).to_string())
}

fn sorted(names: impl Iterator<Item = String>) -> Vec<String> {
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

/// The engines in use, by socket.
pub(crate) type Engines = BTreeMap<PathBuf, Arc<Engine>>;

#[cfg(test)]
mod tests;
