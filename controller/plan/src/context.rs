//! What every plan may read: the agent's settings, and what allocations share.

use std_alloc::{
    collections::{BTreeMap, BTreeSet},
    string::String,
    vec::Vec,
};

use herdlet_api_types::{AllocId, Duration, InstanceId, alloc::Allocation, job::Job};

use crate::{
    action::MountSource,
    env::NodeFacts,
    job::capacity::Room,
    shared::volume::{Fate, VolumeState, volume_name},
    state::{PartState, Tracked},
};

/// The agent's settings, as far as the planner needs them.
#[derive(Debug, Clone)]
pub struct Settings {
    /// This instance; part of every id that is made here.
    pub instance: InstanceId,
    /// Longest `kill_timeout` that a task gets.
    pub max_kill_timeout: Duration,
    /// Dynamic ports are taken from here.
    pub dynamic_ports: core::ops::RangeInclusive<u16>,
    /// Address that ports are given on.
    pub host_ip: String,
    /// What this machine is: what constraints are about.
    pub node: NodeFacts,
    /// What allocations may take of this machine.
    pub room: Room,
    /// Ports that no allocation gets.
    pub reserved_ports: BTreeSet<u16>,
    /// What servers have placed here is started again before they were heard, as after a reboot.
    pub start_offline: bool,
}

/// Metadata of a job by which it is started again before servers were heard, or not, whatever the node's config says.
const START_OFFLINE: &str = "herdlet.start_offline";

impl Settings {
    /// Whether a job that a server has placed here is started again before servers were heard.
    pub(crate) fn starts_offline(&self, job: &Job) -> bool {
        match job.meta.get(START_OFFLINE).map(|word| &**word) {
            Some("true" | "1") => true,
            Some(_) => false,
            None => self.start_offline,
        }
    }
}

/// What every plan may read.
#[derive(Debug)]
pub struct Context {
    /// The agent's settings.
    pub settings: Settings,
    /// Volumes by name.
    pub(crate) volumes: BTreeMap<String, VolumeEntry>,
    /// The first complete desired list was seen: what it did not name may be removed.
    pub(crate) complete: bool,
    /// Servers have said what they want since this agent began. Before, it isn't known whether what they have placed here runs elsewhere
    /// by now.
    pub(crate) contact: bool,
    /// Allocations that have not ended, as far as is known, each with those that wait for that.
    pub(crate) awaited: BTreeMap<AllocId, BTreeSet<AllocId>>,
    /// The drivers that tasks have to wait for, and why.
    pub(crate) away: BTreeMap<String, String>,
    /// Allocations of this machine whose disk is still to be taken over, each with the one that does.
    pub(crate) heirs: BTreeMap<AllocId, AllocId>,
}

impl Context {
    /// The first of those that have to end before this one begins; none where all have.
    pub(crate) fn awaits(&self, spec: &Allocation) -> Option<AllocId> {
        spec.awaited().find(|id| self.awaited.get(id).is_some_and(|waiting| waiting.contains(&spec.id)))
    }

    /// Whether there is to be such a volume on this machine.
    pub(crate) fn has_volume(&self, name: &str) -> bool {
        self.volumes.get(name).is_some_and(|entry| entry.state.fate == Fate::Wanted)
    }

    /// Where a volume's data is; none while it is not ready.
    pub fn volume_path(&self, name: &str) -> Option<&str> {
        let entry = self.volumes.get(name)?;
        if entry.part != PartState::Up || entry.state.fate != Fate::Wanted {
            return None;
        }
        entry.state.path.as_deref()
    }

    /// What a task mounts.
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
                read_only: mount.read_only || request.read_only || volume.state.spec.read_only,
                volume: name.into_owned(),
            })
        });
        sources.collect()
    }
}

/// One volume: what is remembered of it and what is known of its data.
#[derive(Debug)]
pub(crate) struct VolumeEntry {
    pub state: Tracked<VolumeState>,
    pub part: PartState,
    pub failures: u32,
}
