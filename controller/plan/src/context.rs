//! The context of every plan: the agent's settings, and what allocations share.

use std_alloc::{
    collections::{BTreeMap, BTreeSet},
    format,
    string::String,
    vec::Vec,
};

use herdlet_api_types::{AllocId, Duration, InstanceId, alloc::Allocation, job::Job};

use crate::{
    action::MountSource,
    env::NodeFacts,
    job::{capacity::Room, cores::OfferedCores, ports::HostNetwork, turns::RestartTurns},
    shared::volume::{VolumeIntent, VolumeState, volume_name},
    state::{PartState, Tracked},
};

/// The agent's settings, as far as the planner needs them.
#[derive(Debug, Clone)]
pub struct Settings {
    /// This instance; part of every id that the planner creates.
    pub instance: InstanceId,
    /// Upper limit of a task's `kill_timeout`.
    pub max_kill_timeout: Duration,
    /// Range of dynamic ports.
    pub dynamic_ports: core::ops::RangeInclusive<u16>,
    /// Host address of assigned ports.
    pub host_ip: String,
    /// The machine's networks on which ports can be instead, by name.
    pub host_networks: BTreeMap<String, HostNetwork>,
    /// Facts of this machine, which constraints refer to.
    pub node: NodeFacts,
    /// Capacity that allocations may take.
    pub room: Room,
    /// The cores that tasks of this machine's own jobs may use alone.
    pub cores: OfferedCores,
    /// Ports that no allocation gets.
    pub reserved_ports: BTreeSet<u16>,
    /// Whether allocations of servers start again without contact to the servers, as after a reboot.
    pub start_offline: bool,
}

/// Job metadata that overrides `start_offline` of the node's config.
const START_OFFLINE: &str = "herdlet.start_offline";

impl Settings {
    /// With these cores, which are part of the capacity.
    #[must_use]
    pub fn with_cores(mut self, cores: OfferedCores) -> Self {
        let count = cores.available().map_or(0, |cores| cores.0.len());
        self.room.cores = u64::try_from(count).unwrap_or(u64::MAX);
        self.cores = cores;
        self
    }

    /// Whether allocations of a server's job start again without contact to the servers.
    pub(crate) fn starts_offline(&self, job: &Job) -> bool {
        match job.meta.get(START_OFFLINE).map(|word| &**word) {
            Some("true" | "1") => true,
            Some(_) => false,
            None => self.start_offline,
        }
    }
}

/// The context of every plan.
#[derive(Debug)]
pub struct Context {
    /// The agent's settings.
    pub settings: Settings,
    /// Volumes by name.
    pub(crate) volumes: BTreeMap<String, VolumeEntry>,
    /// The first complete desired list was received: what it did not name may be removed.
    pub(crate) complete: bool,
    /// The servers sent their desired state since this agent started. Before that, allocations that they placed here
    /// may already run elsewhere.
    pub(crate) contact: bool,
    /// Allocations not known to have ended, each with those that wait for their end.
    pub(crate) awaited: BTreeMap<AllocId, BTreeSet<AllocId>>,
    /// The drivers that tasks have to wait for, and why.
    pub(crate) away: BTreeMap<String, String>,
    /// The drivers that the agent's config disables.
    pub(crate) disabled: BTreeSet<String>,
    /// Allocations of this machine whose disk is still to be migrated, each with its successor.
    pub(crate) successors: BTreeMap<AllocId, AllocId>,
    /// Which allocations restart because their templates have changed, and which wait for their turn.
    pub(crate) restarts: RestartTurns,
}

impl Context {
    /// Why this driver can't start a task now, if so.
    pub(crate) fn driver_trouble(&self, driver: &str) -> Option<String> {
        if self.disabled.contains(driver) {
            return Some(format!(
                "the driver {driver} is disabled on this agent; enable it with `drivers.{driver}.enabled` in the config"
            ));
        }
        self.away.get(driver).map(|why| format!("the driver {driver} is not available: {why}"))
    }

    /// The first allocation that has to end before this one begins, if any.
    pub(crate) fn awaits(&self, spec: &Allocation) -> Option<AllocId> {
        spec.awaited().find(|id| self.awaited.get(id).is_some_and(|waiting| waiting.contains(&spec.id)))
    }

    /// Whether this machine has, or will have, such a volume.
    pub(crate) fn has_volume(&self, name: &str) -> bool {
        self.volumes.get(name).is_some_and(|entry| entry.state.fate == VolumeIntent::Desired)
    }

    /// Why a volume is not ready; `None` while it is being prepared.
    pub(crate) fn volume_problem(&self, name: &str) -> Option<String> {
        match self.volumes.get(name) {
            None => Some(String::from(
                "there is none; define it in a manifest of kind Volume, or in the agent's config",
            )),
            Some(entry) if entry.state.fate != VolumeIntent::Desired => {
                Some(String::from("it is being removed"))
            }
            Some(entry) => match &entry.part {
                PartState::Failed { why, .. } => Some(format!("failed to {why}")),
                PartState::Unknown
                | PartState::Suspect(_)
                | PartState::Absent
                | PartState::Up
                | PartState::Pending { .. }
                | PartState::Busy { .. } => None,
            },
        }
    }

    /// Path of a volume's data; `None` while it is not ready.
    pub fn volume_path(&self, name: &str) -> Option<&str> {
        let entry = self.volumes.get(name)?;
        if entry.part != PartState::Up || entry.state.fate != VolumeIntent::Desired {
            return None;
        }
        entry.state.path.as_deref()
    }

    /// The mounts of a task.
    pub(crate) fn mount_sources(&self, spec: &Allocation, task: usize) -> Vec<MountSource> {
        let Some(group) = spec.group() else { return Vec::new() };
        let Some(task) = group.tasks.get(task) else { return Vec::new() };
        let sources = task.volume_mounts.iter().filter_map(|mount| {
            let request = group.volumes.get(&mount.volume)?;
            let name = volume_name(spec, request);
            let path = self.volume_path(&name)?;
            let volume = self.volumes.get(&*name)?;
            Some(MountSource {
                path: String::from(path),
                destination: mount.destination.clone(),
                propagation: mount.propagation,
                read_only: mount.read_only || request.read_only || volume.state.spec.read_only,
                volume: name.into_owned(),
            })
        });
        sources.collect()
    }
}

/// One volume: its stored state and the state of its data.
#[derive(Debug)]
pub(crate) struct VolumeEntry {
    pub state: Tracked<VolumeState>,
    pub part: PartState,
    pub failures: u32,
}
