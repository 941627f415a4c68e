//! What an agent needs before its loop: free addresses, its directories, its drivers and its database.
//!
//! In: the config. Out: everything that is claimed and opened. Nothing is started here.

use std::{collections::BTreeSet, sync::Arc};

use anyhow::Context as _;
use herdlet_agent::{
    agent,
    consul::ConsulSettings,
    instance::{Host, Instance, Mode, Options, offered_cores},
    networks::Permission,
    present, published,
    state_db::{Alone, ClaimError, Opened, StateDb, StateDir},
};
use herdlet_api::http::Facts;
use herdlet_base::{clock, error::in_full};
use herdlet_config::Config;
use herdlet_node::member::Member;
use herdlet_plan::job::cores::OfferedCores;
use herdlet_process::cgroup::Isolation;
use herdlet_storage::{alloc_dir, volume::HostVolumes};
use herdlet_unpack::Barrier;
use herdlet_variables::{Store, Variables};

use super::{listeners::Listeners, warning};
use crate::{doctor, variable_keys};

/// Opens the addresses before any change: an agent whose addresses are taken must not have started tasks.
pub(super) async fn open_listeners(config: &Config) -> anyhow::Result<Listeners> {
    match Listeners::open(config).await {
        Ok(listeners) => Ok(listeners),
        // An agent with the same state is a better explanation than a taken address.
        Err(error) => match config.state_dir.is_dir().then(|| StateDir::claim(&config.state_dir)) {
            Some(Err(taken @ ClaimError::InUse { .. })) => Err(taken.into()),
            Some(Ok(_) | Err(_)) | None => Err(error),
        },
    }
}

/// What the agent starts with.
pub(super) struct Prepared {
    pub(super) alone: Alone,
    /// The membership in a cluster, for an agent that has one.
    pub(super) member: Option<Member>,
    pub(super) instance: Instance,
    pub(super) state: Opened,
    pub(super) variables: Arc<Variables>,
    pub(super) facts: Facts,
}

/// Claims the state and runtime directories, and opens what they contain.
pub(super) fn prepare(config: &Config, consuls: &ConsulSettings) -> anyhow::Result<Prepared> {
    if let Some(runtimes) = &config.runtime_parent {
        for beside in StateDir::inspect_abandoned(&config.state_dir, runtimes)? {
            tracing::warn!("tasks run without an agent: {beside}");
        }
    }
    let dir = StateDir::claim(&config.state_dir)?;
    let id = dir.instance().clone();
    let paths = config.paths(&id);
    // Before anything is written: on a full disk, the start may get no further.
    agent::close_left_open(&paths, &config.task_dir_users);
    let mut alone = dir.claim_runtime(&paths.runtime)?;
    let member = Member::of(config, consuls)?;
    let instance = Instance::open(Options {
        instance: id,
        paths: paths.clone(),
        cgroup_parent: config.cgroup_parent.clone(),
        drivers: config.drivers.clone(),
        host: Host {
            mode: if member.is_some() { Mode::Node } else { Mode::Standalone },
            cpu_mhz: config.total().cpu_mhz,
            private_paths: config.private_paths(),
        },
        network: config.network.clone(),
        leash: None,
    })?;
    let tree = instance.isolation.cgroups().map(|cgroups| cgroups.tree());
    if let Some(tree) = tree {
        dir.claim_cgroups(&mut alone, tree)?;
    }
    dir.check_cgroups(&paths.runtime, tree)?;
    dir.keep_location(&paths.runtime, tree);
    let facts = facts_of(config, &instance, member.as_ref());
    tracing::info!(
        instance = facts.instance, state = %config.state_dir.display(), isolation = facts.isolation, "agent starts"
    );
    sweep(&instance);
    let state = StateDb::open(dir, &paths, present::now()).context("open the state database")?;
    let variables = Store::open(&config.state_dir, variable_keys::source(config, &config.state_dir))
        .context("open the variables")?;
    warning::of_task_dir_users(&config.task_dir_users);
    Ok(Prepared { alone, member, instance, state, variables: Arc::new(Variables::new(variables)), facts })
}

/// What the API shows of this agent.
fn facts_of(config: &Config, instance: &Instance, member: Option<&Member>) -> Facts {
    let mut total = config.total();
    let mut node = config.node_facts(&instance.id, total);
    if let OfferedCores::Cores(cores) = config.offered_cores(offered_cores(&instance.isolation)) {
        node.attributes.insert("cpu.reservablecores".to_owned(), cores.0.len().to_string());
        total.cores = u64::try_from(cores.0.len()).unwrap_or(u64::MAX);
    }
    node.attributes.extend(Permission::probe().attributes());
    if let Some(member) = member {
        member.id().clone_into(&mut node.id);
        total.cores = 0;
    }
    Facts {
        node,
        instance: instance.id.0.clone(),
        isolation: describe(&instance.isolation),
        ineffective: instance.isolation.ineffective().with_max_kill_timeout(Some(config.max_kill_timeout)),
        started_at: clock::wall_now(),
        host_ip: member.is_none().then_some(config.host_ip),
        reserved_ports: comma_list(&config.reserved_ports),
        room: (total, config.reserved),
        dynamic_ports: (*config.dynamic_ports.start(), *config.dynamic_ports.end()),
        unpublishable: published::lack(Permission::probe()),
    }
}

/// Logs findings of `herdlet doctor` whose effects would be hard to diagnose, such as too few file descriptors.
pub(super) fn warn_of_limits() {
    for found in [doctor::open_files(), doctor::unpacking(Barrier::probe())] {
        if let Some(hint) = found.hint {
            tracing::warn!(hint, "{}; `herdlet doctor` shows all checks", found.message);
        }
    }
}

/// Finishes removals that an earlier agent began. A failure does not prevent the start, and is tried again at the next
/// one.
fn sweep(instance: &Instance) {
    if let Err(error) = alloc_dir::sweep(&instance.paths) {
        tracing::warn!(error = in_full(&error), "failed to finish the removal of allocation directories");
    }
    if let Err(error) = HostVolumes::new(instance.paths.clone(), instance.privileges).sweep() {
        tracing::warn!(error = in_full(&error), "failed to finish the removal of volumes");
    }
}

fn describe(isolation: &Isolation) -> String {
    match isolation {
        Isolation::Cgroups(cgroups) if cgroups.unlimited().is_empty() => "cgroups".to_owned(),
        Isolation::Cgroups(cgroups) => format!("cgroups; no limits: {}", cgroups.unlimited().join("; ")),
        Isolation::None { why } => format!("none ({why})"),
    }
}

/// Ports in the notation of Nomad's API.
fn comma_list(ports: &BTreeSet<u16>) -> String {
    let ports: Vec<String> = ports.iter().map(u16::to_string).collect();
    ports.join(",")
}
