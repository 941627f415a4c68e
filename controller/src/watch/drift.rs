//! Drift of what the agent has made: mounts by the kernel's own events, directories by a rare look.
//!
//! In: the mount table, and the directories of live allocations. Out: events that ask the planner to look. It repairs
//! nothing.

use std::{io, path::Path, sync::Arc, time::Duration};

use herdlet_api_types::{AllocId, alloc::Desired};
use herdlet_plan::{
    event::{Event, Noticed},
    op::{Part, TaskIndex, TaskPart},
};
use herdlet_runtime::Inbox;

use crate::{
    drivers::mounts::MountWatch,
    paths::{self, Paths},
    planner::Input,
    publish::ReadModel,
};

/// How often directories are looked at: nothing tells of their removal, and a task that lost its directory mostly notices
/// by itself.
pub const LOOK_PERIOD: Duration = Duration::from_secs(30);

/// Follows the mount table below the allocations until the agent ends.
pub async fn watch_mounts(paths: Paths, model: Arc<ReadModel>, inbox: Inbox<Input>) {
    loop {
        let Err(error) = follow_mounts(&paths, &model, &inbox).await else { return };
        tracing::warn!(%error, "failed to follow the mount table; it is tried again");
        tokio::time::sleep(LOOK_PERIOD).await;
    }
}

/// Until the agent ends, or the mount table can't be read.
async fn follow_mounts(paths: &Paths, model: &ReadModel, inbox: &Inbox<Input>) -> io::Result<()> {
    let mut watch = MountWatch::open(&paths.allocs())?;
    loop {
        for change in watch.changed().await? {
            if let Some((alloc, part)) = part_at(change.point(), paths, model)
                && inbox.send(Input::Event(Event::Drift { alloc, part, by: Noticed::Event })).await.is_err()
            {
                return Ok(());
            }
        }
    }
}

/// Looks at the directories of live allocations every [`LOOK_PERIOD`]; asks the planner only about those that are gone.
pub async fn look_at_directories(paths: Paths, model: Arc<ReadModel>, inbox: Inbox<Input>) {
    loop {
        tokio::time::sleep(LOOK_PERIOD).await;
        let (at, shown) = (paths.clone(), Arc::clone(&model));
        // A disk that hangs holds up this look and nothing else.
        let missing = tokio::task::spawn_blocking(move || missing_directories(&at, &shown)).await;
        for (alloc, part) in missing.unwrap_or_default() {
            if inbox.send(Input::Event(Event::Drift { alloc, part, by: Noticed::Look })).await.is_err() {
                return;
            }
        }
    }
}

fn missing_directories(paths: &Paths, model: &ReadModel) -> Vec<(AllocId, Part)> {
    let mut missing = Vec::new();
    for view in model.allocs() {
        let id = view.spec.id;
        for (index, task) in (0..).zip(&view.tasks) {
            if task.phase == "running" && !paths.task(&id, &task.name).is_dir() {
                missing.push((id, Part::Task(index, TaskPart::Dir)));
            }
        }
    }
    missing
}

/// The part that a mount point belongs to: a task's own tmpfs, or one of its volumes.
fn part_at(point: &Path, paths: &Paths, model: &ReadModel) -> Option<(AllocId, Part)> {
    let below = point.strip_prefix(paths.allocs()).ok()?;
    let mut names = below.components().map(|part| part.as_os_str().to_str());
    let id = AllocId(names.next()??.parse().ok()?);
    let task = paths::decode(names.next()??)?;
    let entry = names.next()??;
    // What is taken down is unmounted by ourselves.
    let view = model.alloc(&id).filter(|view| view.spec.desired == Desired::Run)?;
    let index = TaskIndex::try_from(view.tasks.iter().position(|known| known.name == task)?).ok()?;
    let part = match entry {
        "secrets" | "private" => TaskPart::Dir,
        _ => TaskPart::Mounts,
    };
    Some((id, Part::Task(index, part)))
}
