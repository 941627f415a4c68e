//! The directories of tasks that are CSI plugins.

use std::{path::PathBuf, sync::Arc};

use herdlet_api_types::{AllocId, alloc::Desired, job::CsiPlugin, task::TaskPhase, view::AllocView};
use herdlet_base::paths::Paths;
use herdlet_csi::{
    description::{PluginType, Service},
    directories::{Directories, Owner},
};
use herdlet_plan::op::{Part, TaskIndex, TaskPart};

use crate::{
    csi_plugins::{TaskKey, owner, plugin_type},
    publish::ReadModel,
};

/// A task that is a CSI plugin.
pub(super) struct PluginTask {
    task: TaskIndex,
    directories: Directories,
    owner: Owner,
    kind: PluginType,
    id: String,
    /// Its directories.
    pub(super) paths: [PathBuf; 2],
}

impl PluginTask {
    pub(super) fn new(paths: &Paths, task: TaskIndex, key: TaskKey, plugin: &CsiPlugin) -> Self {
        let (directories, owner, kind) = (Directories::new(paths), owner(&key), plugin_type(plugin.kind));
        let paths = [directories.socket_dir(&owner), directories.volumes(kind, &plugin.id)];
        Self { task, directories, owner, kind, id: plugin.id.clone(), paths }
    }

    pub(super) fn part(&self) -> Part {
        Part::Task(self.task, TaskPart::CsiPlugin)
    }

    /// Whether nothing is missing, as far as it can be inspected.
    pub(super) fn is_whole(&self) -> bool {
        self.directories.exist(&self.owner, (self.kind, &self.id)).unwrap_or(true)
    }
}

/// The directories of all tasks whose plugin mounts volumes. A stopped allocation needs them no longer.
pub(super) fn mounting(model: &ReadModel) -> Vec<(AllocId, Part)> {
    let mounts = |plugin: &Option<CsiPlugin>| {
        plugin.as_ref().is_some_and(|plugin| plugin_type(plugin.kind).has(Service::Node))
    };
    let of_alloc = |view: Arc<AllocView>| {
        let wanted = view.spec.group().map(|group| &*group.tasks).unwrap_or_default();
        let tasks = (0..).zip(wanted.iter().zip(&view.tasks));
        let used =
            tasks.filter(|(_, (wanted, task))| mounts(&wanted.csi_plugin) && task.phase != TaskPhase::Dead);
        used.map(|(index, _)| (view.spec.id, Part::Task(index, TaskPart::CsiPlugin))).collect::<Vec<_>>()
    };
    let running = model.allocs().into_iter().filter(|view| view.spec.desired == Desired::Run);
    running.flat_map(of_alloc).collect()
}
