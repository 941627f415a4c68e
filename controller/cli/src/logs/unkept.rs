//! Which tasks have no logs because their engine keeps their output elsewhere.
//!
//! In: targets, and their jobs. Out: a message for each such task. The default of the agent's config is not known here.

use std::collections::BTreeSet;

use herdlet_api_types::{driver::runs_images, job::Task, manifest::driver::DockerConfig, view::JobView};
use serde::Deserialize as _;

use crate::target::Target;

/// The log types whose output the agent copies.
const KEPT: [&str; 2] = ["json-file", "k8s-file"];

/// Explains the missing logs of tasks whose config names another log type.
pub(super) fn unkept(targets: &[Target], jobs: &[JobView]) -> BTreeSet<String> {
    let of_target = |target: &Target| {
        let found = target.tasks().filter_map(|(view, task)| {
            let of = jobs.iter().find(|of| of.key == view.spec.job_key)?;
            let spec = of.job.group(&view.spec.group)?.tasks.iter().find(|spec| spec.name == *task.name)?;
            let kind = log_type(spec).filter(|kind| !KEPT.contains(&kind.as_str()))?;
            let title = view.spec.task_title(&task.name);
            Some(format!(
                "{title} has no logs here: its log type is {kind}; herdlet reads those of json-file"
            ))
        });
        found.collect::<Vec<_>>()
    };
    targets.iter().flat_map(of_target).collect()
}

/// The log type that a container's config names.
fn log_type(task: &Task) -> Option<String> {
    let logging = task.config.get("logging").filter(|_| runs_images(&task.driver))?;
    let config = DockerConfig::deserialize(serde_json::json!({ "logging": logging })).ok()?;
    config.logging?.0.name().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use herdlet_api_types::job::Job;

    use super::*;

    // `logs` of a task with `logging.type: syslog` printed nothing and succeeded.
    #[test]
    fn a_log_type_without_logs_is_named() {
        let mut job = Arc::unwrap_or_clone(herdlet_manifest::fixture::job("web", "front", "httpd"));
        let with = |job: &mut Job, driver: &str, logging: serde_json::Value| {
            let task = &mut job.groups[0].tasks[0];
            task.driver = driver.to_owned();
            task.config =
                serde_json::from_value(serde_json::json!({ "image": "x", "logging": logging })).unwrap();
            log_type(task)
        };
        assert_eq!(
            with(&mut job, "docker", serde_json::json!([{"type": "syslog"}])),
            Some("syslog".to_owned())
        );
        assert_eq!(
            with(&mut job, "podman", serde_json::json!({"driver": "journald"})),
            Some("journald".to_owned())
        );
        assert_eq!(with(&mut job, "raw_exec", serde_json::json!({"type": "none"})), None);
        // As over the API, an allocation comes without its job.
        let shown = |job: &Job| {
            let of = herdlet_manifest::fixture::job_view(&Arc::new(job.clone()), 1);
            let allocs = vec![herdlet_manifest::fixture::alloc_view(&of.job, 0, 1)];
            unkept(&[Target { job: None, allocs, task: None }], &[of])
        };
        with(&mut job, "docker", serde_json::json!({"type": "none"}));
        let expected =
            "web.front[0]/httpd has no logs here: its log type is none; herdlet reads those of json-file";
        assert_eq!(shown(&job), [expected.to_owned()].into());
        with(&mut job, "docker", serde_json::json!({"type": "json-file"}));
        assert!(shown(&job).is_empty());
    }
}
