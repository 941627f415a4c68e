//! The directories of running tasks that are CSI plugins.

use std::{path::PathBuf, sync::Arc};

use herdlet_api_types::{AllocId, job::CsiPlugin, view::AllocView};
use herdlet_base::paths::Paths;
use herdlet_csi::{
    description::PluginType,
    directories::{Directories, Owner},
};
use herdlet_plan::op::{Part, TaskIndex, TaskPart};

use super::is_running;
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

/// The directories of all running tasks that are CSI plugins.
pub(super) fn running(model: &ReadModel) -> Vec<(AllocId, Part)> {
    let of_alloc = |view: Arc<AllocView>| {
        let wanted = view.spec.group().map(|group| &*group.tasks).unwrap_or_default();
        let tasks = (0..).zip(wanted.iter().zip(&view.tasks));
        let running = tasks.filter(|(_, (wanted, task))| wanted.csi_plugin.is_some() && is_running(task));
        running.map(|(index, _)| (view.spec.id, Part::Task(index, TaskPart::CsiPlugin))).collect::<Vec<_>>()
    };
    model.allocs().into_iter().flat_map(of_alloc).collect()
}
