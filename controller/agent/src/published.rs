//! Published ports: a port of the machine leads to the healthy instances of a service.
//!
//! In: the built-in catalogue, and the read model. Out: sockets that hold the ports, targets in the kernel, and what is shown of them.
//! It follows both sources, and keeps nothing of its own: a new agent corrects what the earlier one has left, once it knows all
//! allocations. Until then, and while no agent runs, the ports lead where they led before.
//!
//! ```text
//! catalogue, read model ─► wanted: port, addresses, targets ─► hold the port ─► targets in the kernel ─► shown
//! ```

mod wanted;

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::SocketAddr,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use herdlet_api_types::{
    AllocId, JobKey,
    service::{PublishedView, Registration},
};
use herdlet_base::{error::in_full, paths::Paths};
use herdlet_network::{
    firewall::published::{PublishedPort, PublishedPorts},
    port_owner::HeldPort,
    ports::{HoldError, PortHolder},
};
use herdlet_runtime::{Gate, off_thread};
use herdlet_services::catalog::BuiltIn;
use tokio::task::JoinError;

use crate::{networks::Permission, publish::ReadModel, watch::drift::INSPECTION_PERIOD};
use wanted::{PortPlan, wanted};

pub use wanted::Places;

/// One comparison serves a burst of changes.
const BURST: Duration = Duration::from_millis(5);

/// The same while nothing is published: a busy agent then computes little for it.
const QUIET_BURST: Duration = Duration::from_millis(50);

/// How soon to try again for a port that another process has, because no event reports its release, and after a refusal of the kernel.
const RETRY: Duration = Duration::from_secs(1);

/// The file that exists while the kernel may have published ports of this instance.
const MARK: &str = "published";

/// Why the agent publishes no ports.
const UNPRIVILEGED: &str = "the agent lacks the capabilities CAP_SYS_ADMIN and CAP_NET_ADMIN, and can't publish ports of services: run it \
                            as root, or remove `publish`";

/// The published ports of this agent.
#[derive(Debug)]
pub struct PublishedServices {
    instance: String,
    places: Places,
    permission: Permission,
    mark: PathBuf,
    catalogue: Arc<BuiltIn>,
    model: Arc<ReadModel>,
    holder: PortHolder,
    /// Opened when it is first needed.
    kernel: Mutex<Option<Arc<PublishedPorts>>>,
    shown: Mutex<BTreeMap<u16, PortState>>,
    /// Locked during a comparison, so that there is only one at a time. Readers don't wait for it.
    comparing: Mutex<()>,
}

/// What an agent that publishes ports has.
#[derive(Debug)]
pub struct PublishedParts {
    pub instance: String,
    pub places: Places,
    pub permission: Permission,
    pub catalogue: Arc<BuiltIn>,
    pub model: Arc<ReadModel>,
}

/// A published port as it is now.
#[derive(Debug, Clone, PartialEq, Eq)]
struct PortState {
    owner: JobKey,
    addresses: Vec<SocketAddr>,
    /// Why it is not open.
    problem: Option<String>,
    /// The registrations that get connections.
    receiving: BTreeSet<String>,
    /// Why healthy registrations get none.
    barred: BTreeMap<String, String>,
}

/// Numbers of published ports and their targets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PublishedCounts {
    /// Ports that are held and lead to their targets.
    pub open: u64,
    /// Ports that wait for something.
    pub waiting: u64,
    /// Instances that get connections.
    pub targets: u64,
}

/// How thoroughly the kernel is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Depth {
    /// What this agent has changed last counts.
    Changes,
    /// The kernel's tables are read: other programs may have changed them.
    Kernel,
}

impl PublishedServices {
    /// Changes nothing.
    pub fn new(parts: PublishedParts, paths: &Paths) -> Self {
        let PublishedParts { instance, places, permission, catalogue, model } = parts;
        Self {
            instance,
            places,
            permission,
            mark: paths.runtime.join(MARK),
            catalogue,
            model,
            holder: PortHolder::default(),
            kernel: Mutex::default(),
            shown: Mutex::default(),
            comparing: Mutex::default(),
        }
    }

    /// The published port of a registration, as it is now; `None` if it has none.
    pub fn view(&self, registration: &Registration) -> Option<PublishedView> {
        let port = registration.publish.as_ref()?.port;
        let shown = self.lock_shown();
        let Some(shown) = shown.get(&port) else { return Some(PublishedView::default()) };
        if shown.owner != registration.job {
            let problem = format!("port {port} is published by job {}", shown.owner);
            return Some(PublishedView { problem: Some(problem), ..PublishedView::default() });
        }
        Some(PublishedView {
            addresses: shown.addresses.iter().map(ToString::to_string).collect(),
            receives: shown.receiving.contains(&registration.id),
            problem: shown.problem.clone().or_else(|| shown.barred.get(&registration.id).cloned()),
        })
    }

    /// How many ports and targets there are.
    pub fn counts(&self) -> PublishedCounts {
        let mut counts = PublishedCounts::default();
        for shown in self.lock_shown().values() {
            match shown.problem {
                None => counts.open += 1,
                Some(_) => counts.waiting += 1,
            }
            counts.targets += u64::try_from(shown.receiving.len()).unwrap_or(u64::MAX);
        }
        counts
    }

    /// Follows the catalogue and the read model until the agent ends. Nothing is changed before the stored state is restored: what is not
    /// known yet may be wanted.
    pub async fn follow(self: Arc<Self>, restored: Gate) {
        if restored.opened().await.is_err() {
            return;
        }
        let mut depth = Depth::Kernel;
        loop {
            let (catalogue, model) = (self.catalogue.version(), self.model.version());
            let next = match self.compare_off_thread(depth).await {
                Ok(next) => next,
                Err(Ok(panic)) => std::panic::resume_unwind(panic),
                // The async runtime is shutting down.
                Err(Err(_)) => return,
            };
            let changed = async {
                tokio::select! {
                    () = self.catalogue.changed(catalogue) => {}
                    () = self.model.changed(model) => {}
                }
            };
            depth = match next {
                None => {
                    changed.await;
                    Depth::Changes
                }
                Some(wait) => match tokio::time::timeout(wait, changed).await {
                    Ok(()) => Depth::Changes,
                    Err(_) => Depth::Kernel,
                },
            };
            // Only a port that is open must follow its instances at once.
            tokio::time::sleep(if next.is_none() { QUIET_BURST } else { BURST }).await;
        }
    }

    /// An agent without published ports needs no other thread.
    async fn compare_off_thread(
        self: &Arc<Self>,
        depth: Depth,
    ) -> Result<Option<Duration>, Result<Box<dyn std::any::Any + Send>, JoinError>> {
        if depth == Depth::Changes && self.lock_shown().is_empty() && self.wanted().is_empty() {
            return Ok(None);
        }
        let this = Arc::clone(self);
        off_thread(move || this.compare(depth)).await.map_err(JoinError::try_into_panic)
    }

    /// Compares what is wanted with what is there, and corrects it. Returns when to do so again without a change; `None` if there is
    /// nothing to watch.
    fn compare(&self, depth: Depth) -> Option<Duration> {
        let _alone = self.comparing.lock().unwrap_or_else(PoisonError::into_inner);
        let shown = self.lock_shown().clone();
        let wanted = self.wanted_beside(&shown);
        let mut now: BTreeMap<u16, PortState> = BTreeMap::new();
        let mut ports = Vec::new();
        for (port, wanted) in &wanted {
            let (open, one) = self.hold(*port, wanted);
            ports.extend(open);
            now.insert(*port, one);
        }
        if let Err(why) = self.apply(&ports, depth) {
            tracing::warn!(why, "failed to publish ports of services; retrying");
            for one in now.values_mut().filter(|one| one.problem.is_none()) {
                (one.problem, one.receiving) = (Some(format!("failed to {why}")), BTreeSet::new());
            }
        }
        // Only now: the port must not lead elsewhere once others may have it.
        for port in shown.keys().filter(|port| !now.contains_key(port)) {
            self.holder.release(&port.to_string());
        }
        log_changes(&shown, &now);
        // No time changes the config.
        let may_end = |port: &u16| wanted.get(port).is_some_and(|wanted| wanted.addresses.is_ok());
        let mut problems = now.iter().filter(|(_, one)| one.problem.is_some());
        let waits = self.permission == Permission::Granted && problems.any(|(port, _)| may_end(port));
        let is_empty = now.is_empty();
        *self.lock_shown() = now;
        match (waits, is_empty) {
            (true, _) => Some(RETRY),
            (false, true) => None,
            (false, false) => Some(INSPECTION_PERIOD),
        }
    }

    /// Holds a port at its addresses, and decides where it leads.
    fn hold(&self, port: u16, wanted: &PortPlan) -> (Vec<PublishedPort>, PortState) {
        let mut shown = PortState {
            owner: wanted.owner.clone(),
            addresses: Vec::new(),
            problem: None,
            receiving: BTreeSet::new(),
            barred: BTreeMap::new(),
        };
        let addresses = match (&wanted.addresses, lack(self.permission)) {
            (Ok(addresses), None) => addresses,
            (Err(why), _) => return (Vec::new(), PortState { problem: Some(why.clone()), ..shown }),
            (Ok(_), Some(why)) => return (Vec::new(), PortState { problem: Some(why.to_owned()), ..shown }),
        };
        shown.addresses = addresses.iter().map(|ip| SocketAddr::new(*ip, port)).collect();
        let held = |at: &SocketAddr| HeldPort::held_for(Some(at.ip()), at.port());
        let held: Vec<HeldPort> = shown.addresses.iter().flat_map(held).collect();
        if let Err(error) = self.holder.hold(&port.to_string(), &held) {
            let why = self.not_held(port, &error);
            // The process came later, while no agent ran: the port leads to the instances already.
            if !self.leads_somewhere(&shown.addresses) {
                return (Vec::new(), PortState { problem: Some(why), ..shown });
            }
            tracing::warn!(port, why, "a published port is not held: another process may lose its packets");
        }
        let (ports, barred) = wanted.targets_at(&shown.addresses);
        shown.receiving = wanted.instances.iter().map(|one| one.id.clone()).collect();
        shown.receiving.retain(|id| !barred.contains_key(id));
        shown.barred = barred;
        (ports, shown)
    }

    fn not_held(&self, port: u16, error: &HoldError) -> String {
        let allocs = self.model.allocs();
        let live = allocs.iter().filter(|view| !view.status.is_terminal());
        let mut holders = live.filter(|view| view.spec.host_ports().any(|held| held.value == port));
        match holders.next() {
            Some(holder) => format!("failed to take port {port}: {} has it", holder.spec.name()),
            None => format!("failed to {}", in_full(error)),
        }
    }

    fn leads_somewhere(&self, addresses: &[SocketAddr]) -> bool {
        let open = self.has_mark().then(|| self.kernel().ok()).flatten().map(|kernel| kernel.open_ports());
        matches!(open, Some(Ok(open)) if addresses.iter().any(|at| open.contains(at)))
    }

    /// Makes exactly these ports lead to their targets.
    fn apply(&self, ports: &[PublishedPort], depth: Depth) -> Result<(), String> {
        let has_any = ports.iter().any(|port| !port.targets.is_empty());
        if self.permission == Permission::Missing || (!has_any && !self.has_mark()) {
            return Ok(());
        }
        if has_any && !self.has_mark() {
            let marked = std::fs::write(&self.mark, b"");
            marked.map_err(|error| format!("write {}: {error}", self.mark.display()))?;
        }
        let kernel = self.kernel().map_err(|error| format!("open a netlink socket: {error}"))?;
        match depth {
            Depth::Changes => kernel.set(ports).map_err(|error| in_full(&error))?,
            Depth::Kernel => {
                if kernel.repair(ports).map_err(|error| in_full(&error))? {
                    tracing::info!("published ports were corrected");
                }
            }
        }
        if has_any { Ok(()) } else { self.remove_mark() }
    }

    /// Takes the instances of an allocation whose addresses go to others next from all ports.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn withdraw(&self, alloc: AllocId) -> Result<(), String> {
        if self.permission == Permission::Missing || !self.has_mark() {
            return Ok(());
        }
        let _alone = self.comparing.lock().unwrap_or_else(PoisonError::into_inner);
        let kernel = self.kernel().map_err(|error| format!("open a netlink socket: {error}"))?;
        kernel.withdraw(&alloc.to_string()).map_err(|error| in_full(&error))
    }

    fn has_mark(&self) -> bool {
        self.mark.exists()
    }

    fn remove_mark(&self) -> Result<(), String> {
        match std::fs::remove_file(&self.mark) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(format!("remove {}: {error}", self.mark.display()))
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }

    fn kernel(&self) -> io::Result<Arc<PublishedPorts>> {
        let mut kernel = self.kernel.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kernel) = kernel.as_ref() {
            return Ok(Arc::clone(kernel));
        }
        Ok(Arc::clone(kernel.insert(Arc::new(PublishedPorts::open(&self.instance)?))))
    }

    fn wanted(&self) -> BTreeMap<u16, PortPlan> {
        wanted(&self.places, &self.model, &self.catalogue)
    }

    /// Of jobs that publish the same port, that which has it keeps it.
    fn wanted_beside(&self, shown: &BTreeMap<u16, PortState>) -> BTreeMap<u16, PortPlan> {
        let owners = shown.iter().map(|(port, shown)| (*port, shown.owner.clone())).collect();
        wanted::wanted_by(&owners, (&self.places, &self.model, &self.catalogue))
    }

    fn lock_shown(&self) -> MutexGuard<'_, BTreeMap<u16, PortState>> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn log_changes(before: &BTreeMap<u16, PortState>, now: &BTreeMap<u16, PortState>) {
    for (port, one) in now {
        let before = before.get(port).map(|before| &before.problem);
        match &one.problem {
            problem if before == Some(problem) => {}
            Some(why) => tracing::warn!(port, job = %one.owner, why, "port is not published"),
            None => tracing::info!(port, job = %one.owner, "port is published"),
        }
    }
}

/// Why an agent with this permission can't publish ports; `None` if it can.
pub fn lack(permission: Permission) -> Option<&'static str> {
    match permission {
        Permission::Granted => None,
        Permission::Missing => Some(UNPRIVILEGED),
    }
}

/// Removes all published ports of an instance, at its end.
///
/// # Errors
/// If the kernel refuses.
pub fn remove_all(instance: &str, paths: &Paths) -> Result<(), String> {
    let mark = paths.runtime.join(MARK);
    if !mark.exists() {
        return Ok(());
    }
    let kernel = PublishedPorts::open(instance).map_err(|error| format!("open a netlink socket: {error}"))?;
    kernel.remove().map_err(|error| in_full(&error))?;
    std::fs::remove_file(&mark).map_err(|error| format!("remove {}: {error}", mark.display()))
}
