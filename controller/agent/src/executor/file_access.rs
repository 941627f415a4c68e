//! The user of a task, as far as it is known on this machine, for the files and sockets that the agent makes for the task.

use std::time::Duration;

use herdlet_api_types::{
    driver::{REMAPS_USERS, machine_user, runs_images},
    job::Task,
};
use herdlet_base::{privileges::Ownership, user};
use herdlet_driver::Entry;
use herdlet_storage::file_access::FileAccess;

use super::{Context, Refusal};

/// How long a file waits for an engine that has not answered since the agent's start. Usually it answers at once; until it does, its
/// tasks can't start, and anybody in their directories may use the file.
const DRIVER_MAX: Duration = Duration::from_secs(5);

/// Who may use the files that are made for a task.
pub async fn find(context: &Context, task: &Task) -> Result<FileAccess, Refusal> {
    if context.privileges.ownership == Ownership::OwnOnly {
        return Ok(widest(task));
    }
    if runs_images(&task.driver) {
        let user = user_of_container(context, task).await;
        return Ok(user.map_or(FileAccess::Anybody, |user| FileAccess::Owner(Some(user))));
    }
    let user = machine_user(&task.driver, task.user.as_deref()).map(str::to_owned);
    let found = herdlet_runtime::off_thread(move || user::credentials(user.as_deref())).await;
    let found = found.map_err(|error| Refusal::retry(format!("find the user: {error}")))?;
    let found = found.map_err(|error| Refusal::of(error.class(), &error))?;
    Ok(FileAccess::Owner(found.map(|user| (user.uid, user.gid))))
}

/// The widest access that the files of a task may give, for their inspection: needs neither engines nor name services.
pub fn widest(task: &Task) -> FileAccess {
    if runs_images(&task.driver) { FileAccess::Anybody } else { FileAccess::Owner(None) }
}

/// The user and group of a container's task on this machine, if the task names the user by number. A name would be one of the
/// image, and in a user namespace the users of the container have other numbers on this machine.
async fn user_of_container(context: &Context, task: &Task) -> Option<(u32, u32)> {
    let (user, group) = numbers(task.user.as_deref()?)?;
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
    (!attributes.contains_key(&remaps)).then_some((user, group))
}

/// The numbers of `USER[:GROUP]`. The group of a user without one is the image's to choose, and a file gives it no rights.
fn numbers(user: &str) -> Option<(u32, u32)> {
    let (user, group) = user.split_once(':').unwrap_or((user, ""));
    Some((user.parse().ok()?, group.parse().unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_numbers_are_users_of_this_machine() {
        assert_eq!(numbers("1000:50"), Some((1000, 50)));
        assert_eq!((numbers("1000"), numbers("1000:staff")), (Some((1000, 0)), Some((1000, 0))));
        assert_eq!((numbers("nobody"), numbers(""), numbers("-1")), (None, None, None));
    }
}
