//! Warnings about users of tasks that this agent can't change to.
//!
//! In: jobs. Out: warnings for users. It consults the name services of this machine, which may block.

use herdlet_api_types::{
    driver::{DriverInfo, FsIsolation, built_in},
    job::{Job, Task},
};
use herdlet_base::{
    observation::Class,
    user::{self, UserError},
};

/// A warning for each task whose start would fail because of its `user`.
pub fn warnings<'j>(jobs: impl IntoIterator<Item = &'j Job>) -> Vec<String> {
    let drivers = built_in();
    let of_job = |job: &'j Job| {
        let tasks = job.groups.iter().flat_map(|group| &group.tasks);
        let failing = tasks.filter_map(|task| Some((task, unusable(task, &drivers)?)));
        let told = failing.map(|(task, error)| {
            format!("job {}, task {}: its start will fail to {error}", job.key(), task.name)
        });
        told.collect::<Vec<_>>()
    };
    jobs.into_iter().flat_map(of_job).collect()
}

/// Why the task can't run as its user. Users of a container's image are unknown to this machine.
fn unusable(task: &Task, drivers: &[DriverInfo]) -> Option<UserError> {
    let driver = drivers.iter().find(|driver| driver.name == task.driver)?;
    match driver.capabilities.fs_isolation {
        FsIsolation::None | FsIsolation::Chroot => {}
        FsIsolation::Image => return None,
    }
    let error = user::credentials(task.user.as_deref()).err()?;
    (error.class() == Class::Fatal).then_some(error)
}

#[cfg(test)]
mod tests {
    use herdlet_manifest::fixture::job;

    use super::*;

    #[test]
    fn a_user_that_no_task_can_run_as_is_warned_about() {
        let mut web = Job::clone(&job("web", "front", "httpd"));
        assert!(warnings([&web]).is_empty());
        let task = &mut web.groups[0].tasks[0];
        (task.driver, task.user) = ("raw_exec".to_owned(), Some("no-such-user".to_owned()));
        let told = warnings([&web]);
        let expected = "job web, task httpd: its start will fail to find user \"no-such-user\"";
        assert!(told.len() == 1 && told[0].starts_with(expected), "{told:?}");
    }
}
