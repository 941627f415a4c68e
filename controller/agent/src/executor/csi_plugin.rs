//! Tasks that are CSI plugins: makes their directories, mounts them in the task, and has each attempt supervised while it runs.

use std::sync::Arc;

use herdlet_api_types::job::{CsiPlugin, Task};
use herdlet_csi::{
    description::{PluginType, Service},
    directories::{DirectoryError, Owner, SOCKET},
};
use herdlet_driver::{DriverInfo, FsIsolation, Mount, Propagation};
use herdlet_plan::action::{Outcome, Recovered, Verb};
use herdlet_storage::file_access::FileAccess;

use super::{Context, PlaceVerb, Refusal, Workload, fatal, file_access, retry};

/// The directories of a plugin.
pub(super) async fn directories(context: &Arc<Context>, workload: &Workload, verb: PlaceVerb) -> Outcome {
    let Some(task) = workload.task() else { return fatal("find the task".to_owned()) };
    let user = match verb {
        PlaceVerb::Up => match file_access::find(context, task).await {
            Ok(FileAccess::Owner(user)) => user,
            // Its user has to be root in the container, as in Nomad.
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
    let alloc = workload.alloc.id.to_string();
    let owner = Owner { alloc: &alloc, task: &task.name };
    let plugin = (kind(plugin), plugin.id.as_str());
    let directories = &context.csi_plugins.directories;
    let failed = |error: DirectoryError| Refusal::of(error.class(), &error);
    Ok(match verb {
        PlaceVerb::Inspect if directories.exist(owner, plugin).map_err(failed)? => Outcome::Present(None),
        PlaceVerb::Inspect => Outcome::Absent,
        PlaceVerb::Up => {
            directories.make(owner, plugin, user).map_err(failed)?;
            Outcome::Done(None)
        }
        PlaceVerb::Down => {
            context.csi_plugins.end(&(workload.alloc.id, task.name.clone()));
            directories.remove(owner).map_err(failed)?;
            Outcome::Done(None)
        }
    })
}

/// The mounts of a plugin in its root. Without a root of its own, it uses the paths on this machine.
pub(super) fn mounts(context: &Context, workload: &Workload, driver: &DriverInfo) -> Vec<Mount> {
    let Some((task, plugin)) = plugin_of(workload) else { return Vec::new() };
    match driver.capabilities.fs_isolation {
        FsIsolation::None => return Vec::new(),
        FsIsolation::Chroot | FsIsolation::Image => {}
    }
    let (alloc, kind) = (workload.alloc.id.to_string(), kind(plugin));
    let directories = &context.csi_plugins.directories;
    let mount = |host_path, task_path: &str, propagation| Mount {
        host_path,
        task_path: task_path.into(),
        readonly: false,
        propagation,
    };
    // What it mounts for volumes appears on this machine. A controller mounts nothing.
    let of_volumes = if kind.has(Service::Node) { Propagation::Bidirectional } else { Propagation::Private };
    let socket = directories.socket_dir(Owner { alloc: &alloc, task: &task.name });
    let volumes = directories.volumes(kind, &plugin.id);
    Vec::from([
        mount(socket, &plugin.mount_dir, Propagation::Private),
        mount(volumes, &plugin.stage_publish_base_dir, of_volumes),
    ])
}

/// `CSI_ENDPOINT` of a plugin in a root of its own.
pub(super) fn endpoint_in_root(workload: &Workload) -> Option<String> {
    let (_, plugin) = plugin_of(workload)?;
    Some(format!("unix://{}/{SOCKET}", plugin.mount_dir.trim_end_matches('/')))
}

/// `CSI_ENDPOINT` of a plugin that sees this machine's files.
pub(super) fn endpoint_on_host(context: &Context, workload: &Workload) -> Option<String> {
    let (task, _) = plugin_of(workload)?;
    let alloc = workload.alloc.id.to_string();
    let socket = context.csi_plugins.directories.socket(Owner { alloc: &alloc, task: &task.name });
    Some(format!("unix://{}", socket.display()))
}

/// Performs an operation on the process of a task. If the task is a plugin, it is supervised once the process runs, and called
/// by nobody once it is to end.
pub(super) async fn supervised(
    context: &Context,
    workload: &Workload,
    verb: &Verb,
    operation: impl Future<Output = Outcome>,
) -> Outcome {
    let Some((task, plugin)) = plugin_of(workload) else { return operation.await };
    let key = (workload.alloc.id, task.name.clone());
    if matches!(verb, Verb::Stop { .. } | Verb::Destroy { .. }) {
        context.csi_plugins.end(&key);
    }
    let outcome = operation.await;
    if let (
        Verb::Start { attempt } | Verb::Recover { attempt },
        Outcome::Started(_) | Outcome::Recovered(Recovered::Running(_)),
    ) = (verb, &outcome)
    {
        context.csi_plugins.begin(key, *attempt, plugin);
    } else if let Outcome::Recovered(_) = outcome {
        context.csi_plugins.end(&key);
    }
    outcome
}

fn plugin_of(workload: &Workload) -> Option<(&Task, &CsiPlugin)> {
    let task = workload.task()?;
    Some((task, task.csi_plugin.as_ref()?))
}

/// Both have the same names.
fn kind(plugin: &CsiPlugin) -> PluginType {
    PluginType::from_name(plugin.kind.as_str()).unwrap_or(PluginType::Monolith)
}
