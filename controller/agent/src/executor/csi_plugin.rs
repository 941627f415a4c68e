//! Directories and mounts of tasks that are CSI plugins, and the supervision of their attempts.

use std::sync::Arc;

use herdlet_api_types::job::{CsiPlugin, Task};
use herdlet_csi::{
    description::Service,
    directories::{Directories, DirectoryError, Owner, SOCKET},
};
use herdlet_driver::{DriverInfo, Mount, Propagation};
use herdlet_plan::action::{Outcome, Recovered, Verb};
use herdlet_storage::file_access::FileAccess;

use super::{Context, PlaceVerb, Refusal, Workload, fatal, file_access, places, retry};
use crate::csi_plugins::{owner, plugin_type};

/// The directories of a plugin.
pub(super) async fn directories(context: &Arc<Context>, workload: &Workload, verb: PlaceVerb) -> Outcome {
    let Some(task) = workload.task() else { return fatal("find the task".to_owned()) };
    let user = match verb {
        PlaceVerb::Up => match file_access::find(context, task).await {
            Ok(FileAccess::Owner(user)) => user,
            // Only root of this machine can use the socket then.
            Ok(FileAccess::Anybody) => None,
            Err(error) => return error.into(),
        },
        PlaceVerb::Down | PlaceVerb::Inspect => None,
    };
    let (context, workload) = (Arc::clone(context), workload.clone());
    let done = herdlet_runtime::off_thread(move || {
        perform(&context, &workload, verb, user).unwrap_or_else(Outcome::from)
    });
    match done.await {
        Ok(outcome) => outcome,
        Err(error) => retry(format!("complete the operation: {error}")),
    }
}

fn perform(
    context: &Context,
    workload: &Workload,
    verb: PlaceVerb,
    user: Option<(u32, u32)>,
) -> Result<Outcome, Refusal> {
    let (task, plugin) = plugin_of(workload).ok_or("find the task's `csi_plugin`")?;
    let owner = owner(&(workload.alloc.id, task.name.clone()));
    let plugin = (plugin_type(plugin.kind), plugin.id.as_str());
    let directories = &context.csi_plugins.directories;
    let failed = |error: DirectoryError| Refusal::of(error.class(), &error);
    Ok(match verb {
        PlaceVerb::Inspect if directories.exist(&owner, plugin).map_err(failed)? => Outcome::Present(None),
        PlaceVerb::Inspect => Outcome::Absent,
        PlaceVerb::Up => {
            directories.make(&owner, plugin, user).map_err(failed)?;
            Outcome::Done(None)
        }
        PlaceVerb::Down => {
            directories.remove(&owner).map_err(failed)?;
            Outcome::Done(None)
        }
    })
}

/// The mounts of a plugin in its root. Without a root of its own, it uses the paths on this machine.
pub(super) fn mounts(context: &Context, workload: &Workload, driver: &DriverInfo) -> Vec<Mount> {
    match plugin_of(workload) {
        Some((task, plugin)) if places::mounts_volumes(driver) => {
            let owner = owner(&(workload.alloc.id, task.name.clone()));
            mounts_of(&context.csi_plugins.directories, &owner, plugin).into()
        }
        Some(_) | None => Vec::new(),
    }
}

fn mounts_of(directories: &Directories, owner: &Owner, plugin: &CsiPlugin) -> [Mount; 2] {
    let mount = |host_path, task_path: &str, propagation| Mount {
        host_path,
        task_path: task_path.into(),
        readonly: false,
        propagation,
    };
    let kind = plugin_type(plugin.kind);
    // What it mounts for volumes appears on this machine. A controller mounts nothing.
    let of_volumes = if kind.has(Service::Node) { Propagation::Bidirectional } else { Propagation::Private };
    [
        mount(directories.socket_dir(owner), &plugin.mount_dir, Propagation::Private),
        mount(directories.volumes(kind, &plugin.id), &plugin.stage_publish_base_dir, of_volumes),
    ]
}

/// `CSI_ENDPOINT` of a plugin in a root of its own.
pub(super) fn endpoint_in_root(workload: &Workload) -> Option<String> {
    let (_, plugin) = plugin_of(workload)?;
    Some(format!("unix://{}/{SOCKET}", plugin.mount_dir.trim_end_matches('/')))
}

/// `CSI_ENDPOINT` of a plugin that sees this machine's files.
pub(super) fn endpoint_on_host(context: &Context, workload: &Workload) -> Option<String> {
    let (task, _) = plugin_of(workload)?;
    let socket = context.csi_plugins.directories.socket(&owner(&(workload.alloc.id, task.name.clone())));
    Some(format!("unix://{}", socket.display()))
}

/// Performs an operation on the process of a task. If the task is a plugin, it is supervised once the process runs. Before the
/// process is stopped, the supervision ends and the plugin is deregistered.
pub(super) async fn supervised(
    context: &Context,
    workload: &Workload,
    verb: &Verb,
    operation: impl Future<Output = Outcome>,
) -> Outcome {
    let Some((task, plugin)) = plugin_of(workload) else { return operation.await };
    let (plugins, key) = (&context.csi_plugins, (workload.alloc.id, task.name.clone()));
    if let Verb::Stop { attempt, .. } | Verb::Destroy { attempt } = verb {
        plugins.end(key.clone(), *attempt, plugin);
    }
    let outcome = operation.await;
    if let (
        Verb::Start { attempt } | Verb::Recover { attempt },
        Outcome::Started(_) | Outcome::Recovered(Recovered::Running(_)),
    ) = (verb, &outcome)
    {
        plugins.begin(key, *attempt, plugin);
    } else if let (Verb::Recover { attempt }, Outcome::Recovered(_))
    | (Verb::Destroy { attempt }, Outcome::Done(_)) = (verb, &outcome)
    {
        plugins.forget(&key, *attempt);
    }
    outcome
}

fn plugin_of(workload: &Workload) -> Option<(&Task, &CsiPlugin)> {
    let task = workload.task()?;
    Some((task, task.csi_plugin.as_ref()?))
}

#[cfg(test)]
mod tests {
    use herdlet_api_types::{fixture, job::CsiPluginType};
    use herdlet_base::paths::Paths;

    use super::*;

    #[test]
    fn only_what_a_node_mounts_appears_on_the_machine() {
        let paths = Paths { state: "/state".into(), runtime: "/run".into() };
        let directories = Directories::new(&paths);
        let owner = Owner { alloc: "a1".to_owned(), task: "t".to_owned() };
        for (kind, propagation) in [
            (CsiPluginType::Node, Propagation::Bidirectional),
            (CsiPluginType::Monolith, Propagation::Bidirectional),
            (CsiPluginType::Controller, Propagation::Private),
        ] {
            let plugin = CsiPlugin { kind, ..fixture::csi_plugin("disks") };
            let [socket, volumes] = mounts_of(&directories, &owner, &plugin);
            assert_eq!(
                (socket.host_path, socket.propagation),
                (directories.socket_dir(&owner), Propagation::Private)
            );
            assert_eq!((&*socket.task_path, socket.readonly), ("/csi".as_ref(), false));
            let on_host = format!("/state/csi/{}/disks", kind.as_str());
            assert_eq!((volumes.host_path, volumes.propagation), (on_host.into(), propagation));
            assert_eq!((&*volumes.task_path, volumes.readonly), ("/local/csi".as_ref(), false));
        }
    }
}
