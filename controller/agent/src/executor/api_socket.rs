//! Sockets of the Task API: opens them in the directories of tasks, and hands them to the API.

use std::sync::Arc;

use herdlet_api_types::alloc::Allocation;
use herdlet_base::{
    error::in_full,
    observation::{Class, Observation},
};
use herdlet_plan::action::Outcome;
use herdlet_storage::{
    api_socket::{self, ApiSocket},
    file_access::FileAccess,
    task_dir::TaskDir,
};

use super::{Context, PlaceVerb, Refusal, Workload, file_access, retry};

/// The socket of a task. It ends with the agent; the next one puts its own in its place.
pub async fn api_socket(context: &Arc<Context>, workload: &Workload, verb: PlaceVerb) -> Outcome {
    let access = match (verb, workload.task()) {
        (PlaceVerb::Up, Some(task)) => match file_access::find(context, task).await {
            Ok(access) => access,
            // The start fails because of the user, and names it: it must not wait for a socket that nobody needs.
            Err(error) if error.class == Class::Fatal => FileAccess::Owner(None),
            Err(error) => return error.into(),
        },
        (PlaceVerb::Up | PlaceVerb::Down | PlaceVerb::Inspect, _) => FileAccess::Owner(None),
    };
    let (context, workload) = (Arc::clone(context), workload.clone());
    let runtime = tokio::runtime::Handle::current();
    let done = herdlet_runtime::off_thread(move || {
        // For the API, which starts to serve the socket.
        let _entered = runtime.enter();
        perform(&context, &workload, verb, access).unwrap_or_else(Outcome::from)
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
    access: FileAccess,
) -> Result<Outcome, Refusal> {
    let task = workload.task().ok_or("find the task")?;
    let alloc = &workload.alloc.id;
    let key = (*alloc, task.name.clone());
    let task_dir = TaskDir::new(context.paths.task(alloc, &task.name), context.privileges);
    let socket = ApiSocket { task_dir: &task_dir, task: &task.name, access };
    let failed = |error: api_socket::ApiSocketError| Refusal::of(error.class(), &error);
    let is_there = || match context.task_sockets.id(&key) {
        Some(id) => socket.inspect(id).map_err(failed).map(|seen| seen == Observation::Present),
        None => Ok(false),
    };
    match verb {
        PlaceVerb::Inspect => Ok(if is_there()? { Outcome::Present(None) } else { Outcome::Absent }),
        PlaceVerb::Up => {
            if !is_there()? {
                let opened = socket.bind().map_err(failed)?;
                context.task_sockets.add(key, opened);
            }
            let made = api_socket::make_alias(&context.paths, alloc, &task.name);
            made.map_err(|error| Refusal::of(error.class(), &error))?;
            Ok(Outcome::Done(None))
        }
        PlaceVerb::Down => {
            context.task_sockets.close(&key);
            let removed = api_socket::remove_alias(&context.paths, alloc, &task.name);
            removed.map_err(|error| Refusal::of(error.class(), &error))?;
            socket.remove().map_err(failed)?;
            Ok(Outcome::Done(None))
        }
    }
}

/// Removes the aliases of all tasks of an allocation, before its directory is removed: an agent that was killed may have
/// left one.
pub async fn forget(context: &Arc<Context>, alloc: &Arc<Allocation>) {
    let (context, alloc) = (Arc::clone(context), Arc::clone(alloc));
    let removed = herdlet_runtime::off_thread(move || {
        let tasks = alloc.group().map(|group| &group.tasks).into_iter().flatten();
        for task in tasks {
            context.task_sockets.close(&(alloc.id, task.name.clone()));
            if let Err(error) = api_socket::remove_alias(&context.paths, &alloc.id, &task.name) {
                tracing::warn!(alloc = %alloc.id, error = in_full(&error), "failed to remove the alias of a socket");
            }
        }
    });
    let _ = removed.await;
}

/// Removes aliases whose directories are gone.
pub(crate) fn sweep(context: &Context) {
    if let Err(error) = api_socket::sweep_aliases(&context.paths) {
        tracing::warn!(error = in_full(&error), "failed to remove aliases of sockets");
    }
}
