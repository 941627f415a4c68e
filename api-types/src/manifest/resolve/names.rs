//! The names around a service: they are its default name, and its name may contain them.

use std_alloc::{borrow::ToOwned, format, string::String};

/// The names that a service's name may contain.
#[derive(Clone, Copy)]
pub(in crate::manifest) struct Names<'a> {
    /// The job's name, which is its id unless it has another one.
    pub(in crate::manifest) job: &'a str,
    /// The group's name.
    pub(in crate::manifest) group: &'a str,
    /// The task's name; `None` for a group service.
    pub(in crate::manifest) task: Option<&'a str>,
}

impl Names<'_> {
    /// The task that runs a check's command: the given one, else the service's own.
    pub(super) fn script_task(&self, written: Option<&str>) -> String {
        written.or(self.task).unwrap_or_default().to_owned()
    }

    /// Replaces the placeholders in a service's name, or returns the default name. Other placeholders (`${NOMAD_…}`)
    /// remain.
    pub(in crate::manifest) fn service(&self, written: Option<&str>) -> String {
        let Self { job, group, task } = self;
        let Some(written) = written else {
            return match task {
                Some(task) => format!("{job}-{group}-{task}"),
                None => format!("{job}-{group}"),
            };
        };
        // Nomad uses "group" as the task name of group services.
        let task = &task.unwrap_or("group");
        let base = format!("{job}-{group}-{task}");
        [
            ("${JOB}", *job),
            ("${TASKGROUP}", group),
            ("${GROUP}", group),
            ("${TASK}", task),
            ("${BASE}", &base),
        ]
        .iter()
        .fold(written.to_owned(), |name, (placeholder, value)| name.replace(placeholder, value))
    }
}
