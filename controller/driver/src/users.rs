//! Warnings about users of tasks that this agent can't change to.
//!
//! In: jobs. Out: warnings for users. Finding users asks the name services of this machine, which may block.

use std::collections::BTreeMap;

use herdlet_api_types::{
    driver::{FsIsolation, built_in},
    job::{Job, Task},
};
use herdlet_base::{
    observation::Class,
    user::{self, UserError},
};

/// A task that runs as a user of this machine.
#[derive(Debug, Clone)]
pub struct TaskUser {
    /// Job and task, for the warning.
    task: String,
    user: String,
}

/// The tasks that run as a user of this machine. Users of a container's image are unknown to it.
pub fn users_of<'j>(jobs: impl IntoIterator<Item = &'j Job>) -> Vec<TaskUser> {
    let drivers = built_in();
    let is_here = |task: &Task| {
        let driver = drivers.iter().find(|driver| driver.name == task.driver);
        driver.is_some_and(|driver| match driver.capabilities.fs_isolation {
            FsIsolation::None | FsIsolation::Chroot => true,
            FsIsolation::Image => false,
        })
    };
    let of_job = |job: &'j Job| {
        let tasks = job.groups.iter().flat_map(|group| &group.tasks).filter(|task| is_here(task));
        let with_user = tasks.filter_map(|task| {
            let task_name = format!("job {}, task {}", job.key(), task.name);
            Some(TaskUser { task: task_name, user: task.user.clone()? })
        });
        with_user.collect::<Vec<_>>()
    };
    jobs.into_iter().flat_map(of_job).collect()
}

/// A warning for each task whose start would fail because of its user. Blocks while the name services answer; each user
/// is looked up once.
pub fn warnings(tasks: Vec<TaskUser>) -> Vec<String> {
    let mut errors: BTreeMap<String, Option<UserError>> = BTreeMap::new();
    let warning = |TaskUser { task, user }: TaskUser| {
        let error = errors.entry(user).or_insert_with_key(|user| {
            user::credentials(Some(user)).err().filter(|error| error.class() == Class::Fatal)
        });
        error.as_ref().map(|error| format!("{task}: its start will fail to {error}"))
    };
    tasks.into_iter().filter_map(warning).collect()
}

#[cfg(test)]
mod tests {
    use herdlet_manifest::fixture::job;

    use super::*;

    #[test]
    fn a_user_that_no_task_can_run_as_is_warned_about() {
        let mut web = Job::clone(&job("web", "front", "httpd"));
        assert!(warnings(users_of([&web])).is_empty());
        let task = &mut web.groups[0].tasks[0];
        (task.driver, task.user) = ("raw_exec".to_owned(), Some("no-such-user".to_owned()));
        let told = warnings(users_of([&web]));
        let expected = "job web, task httpd: its start will fail to find user \"no-such-user\"";
        assert!(told.len() == 1 && told[0].starts_with(expected), "{told:?}");
    }
}
