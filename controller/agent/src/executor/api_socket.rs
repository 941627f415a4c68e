//! Sockets of the Task API: opens them in the directories of tasks, and hands them to the API.

use std::{sync::Arc, time::Duration};

use herdlet_api_types::{
    alloc::Allocation,
    driver::{REMAPS_USERS, runs_images},
    job::Task,
};
use herdlet_base::{
    error::in_full,
    observation::{Class, Observation},
    privileges::Ownership,
    user,
};
use herdlet_driver::Entry;
use herdlet_plan::action::Outcome;
use herdlet_storage::{
    api_socket::{self, ApiSocket, SocketAccess},
    task_dir::TaskDir,
};

use super::{Context, PlaceVerb, Refusal, Workload, places, retry};

/// How long a socket waits for an engine that has not answered since the agent's start. It answers at once, or its tasks can't start
/// and anybody in their directories may connect.
const DRIVER_MAX: Duration = Duration::from_secs(5);

/// The socket of a task. It ends with the agent; the next one puts its own in its place.
pub async fn api_socket(context: &Arc<Context>, workload: &Workload, verb: PlaceVerb) -> Outcome {
    let user = match (verb, workload.task()) {
        (PlaceVerb::Up, Some(task)) => user_of_container(context, task).await,
        (PlaceVerb::Up | PlaceVerb::Down | PlaceVerb::Inspect, _) => None,
    };
    let (context, workload) = (Arc::clone(context), workload.clone());
    let runtime = tokio::runtime::Handle::current();
    let done = herdlet_runtime::off_thread(move || {
        // For the API, which starts to serve the socket.
        let _entered = runtime.enter();
        perform(&context, &workload, verb, user).unwrap_or_else(Outcome::from)
    });
    match done.await {
        Ok(outcome) => outcome,
        Err(error) => retry(format!("complete the operation: {error}")),
    }
}

/// The user and group of a container's task on this machine, if the task names the user by number. A name would be one of the
/// image, and in a user namespace the users of the container have other numbers on this machine.
async fn user_of_container(context: &Context, task: &Task) -> Option<(u32, u32)> {
    let user = task.user.as_deref().filter(|_| runs_images(&task.driver))?;
    let (user, group) = user.split_once(':').unwrap_or((user, ""));
    // The mode gives the group no rights.
    let user = (user.parse().ok()?, group.parse().unwrap_or_default());
    let is_own =
        |key: &&str| task.config.get(*key).is_some_and(|mode| !matches!(mode.as_str(), Some("" | "host")));
    if ["userns_mode", "userns"].iter().any(is_own) {
        return None;
    }
    let mut drivers = context.drivers.watch();
    let ready = drivers.wait_for(|entries| entries.get(&task.driver).is_some_and(Entry::is_ready));
    let entries = tokio::time::timeout(DRIVER_MAX, ready).await.ok()?.ok()?;
    let remaps = format!("driver.{}.{REMAPS_USERS}", task.driver);
    let attributes = entries.get(&task.driver)?.attributes();
    (!attributes.contains_key(&remaps)).then_some(user)
}

fn perform(
    context: &Context,
    workload: &Workload,
    verb: PlaceVerb,
    user: Option<(u32, u32)>,
) -> Result<Outcome, Refusal> {
    let task = workload.task().ok_or("find the task")?;
    let alloc = &workload.alloc.id;
    let key = (*alloc, task.name.clone());
    let task_dir = TaskDir::new(context.paths.task(alloc, &task.name), context.privileges);
    let access = match (verb, context.privileges.ownership) {
        (PlaceVerb::Up, Ownership::Anybody) if runs_images(&task.driver) => {
            user.map_or(SocketAccess::Anybody, |user| SocketAccess::Owner(Some(user)))
        }
        _ if runs_images(&task.driver) => SocketAccess::Anybody,
        (PlaceVerb::Up, Ownership::Anybody) => {
            match user::credentials(places::machine_user(task)) {
                Ok(user) => SocketAccess::Owner(user.map(|user| (user.uid, user.gid))),
                // The start fails because of the user, and names it: it must not wait for a socket that nobody needs.
                Err(error) if error.class() == Class::Fatal => SocketAccess::Owner(None),
                Err(error) => return Err(Refusal::of(error.class(), &error)),
            }
        }
        (PlaceVerb::Up, Ownership::OwnOnly) | (PlaceVerb::Down | PlaceVerb::Inspect, _) => {
            SocketAccess::Owner(None)
        }
    };
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
