//! `herdlet rollback` and `herdlet get versions`: the stored versions of a job, and reverting to one.

use clap::Args;
use herdlet_api_types::{
    JobKey,
    view::{JobVersion, JobView, held_message},
};
use serde::Serialize;

use super::{
    Connection,
    client::{Client, JobChange},
    failure::Failure,
    output::Output,
    selection::{job_named, plain_name},
    wait::{Accepted, WaitFlags},
};

/// Arguments of `herdlet rollback`.
#[derive(Debug, Clone, Args)]
pub struct RollbackArgs {
    /// A job
    job: String,
    /// Version to restore [default: the newest older one that differs from the current one and is neither stopped nor failed]
    #[arg(long, value_name = "VERSION")]
    to: Option<u64>,
    #[command(flatten)]
    wait: WaitFlags,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    pub connection: Connection,
}

#[derive(Serialize)]
struct Report {
    job: JobKey,
    /// The version that was reverted to.
    to: u64,
    /// The new version with the same job.
    version: u64,
    /// The file of a folder that is not in force until its definition of the job changes.
    #[serde(skip_serializing_if = "Option::is_none")]
    held: Option<String>,
}

pub async fn run(args: RollbackArgs) -> Result<u8, Failure> {
    let limit = args.wait.limit();
    let client = args.connection.client()?;
    let view = limit.within("find it", find(&client, &args.job)).await?;
    let job = view.key.clone();
    let kept = limit.within("list its versions", client.versions(&job)).await?;
    let (current, to) = choose(&view, &kept, args.to)?;
    let reverting = client.revert(&job, to, current);
    let JobChange { index, version } = limit.within("roll it back", reverting).await?;
    if version == current {
        args.output.line(&format!("job/{job} unchanged: version {current} is the same as version {to}"));
    } else {
        args.output.line(&format!("job/{job} rolled back to version {to} (version {version})"));
    }
    if let Some(skipped) = skipped(&view, &kept, to).filter(|_| args.to.is_none()) {
        args.output.line(&format!("job/{job} skipped {skipped}"));
    }
    // The file of a folder is no longer in force: it would be a surprise later.
    let held = client.jobs().await.ok().and_then(|jobs| known(jobs, &args.job).ok()?.held);
    if let Some(file) = &held {
        args.output.line(&format!("job/{job} is {}", held_message(file)));
    }
    let report = Report { job: job.clone(), to, version, held };
    let accepted = Accepted::version(&client, job, version, index);
    args.wait.finish(limit, accepted, &report, args.output).await
}

pub(super) async fn find(client: &Client, name: &str) -> Result<JobView, Failure> {
    known(client.jobs().await?, name)
}

pub(super) fn known(jobs: Vec<JobView>, name: &str) -> Result<JobView, Failure> {
    let found = job_named(&jobs, plain_name(name, &jobs)).cloned();
    found.ok_or_else(|| Failure::new(format!("there is no job {name:?}")).hint("list them: herdlet get jobs"))
}

/// The current version, and the version to revert to: by default the newest older one that is neither stopped nor has failed.
/// `kept` is sorted newest first.
fn choose(view: &JobView, kept: &[JobVersion], to: Option<u64>) -> Result<(u64, u64), Failure> {
    let (name, word) = (&view.key, view.key.argument());
    let [current, past @ ..] = kept else {
        return Err(Failure::new(format!("no version of {name} is stored")));
    };
    if past.is_empty() && to.is_none() {
        return Err(Failure::new(format!(
            "{name} has only version {}, so there is no older one to return to",
            current.version
        )));
    }
    // Reverting to the same job would change nothing.
    let is_good =
        |past: &&JobVersion| !past.job.stop && past.job != current.job && !view.has_failed(past.version);
    match to.or_else(|| past.iter().find(is_good).map(|before| before.version)) {
        Some(to) => Ok((current.version, to)),
        None => Err(Failure::new(format!(
            "no older version of {name} can be restored: each is the same, stopped, or has failed"
        ))
        .hint(format!("list them: herdlet get versions {word}; then: herdlet rollback {word} --to VERSION"))),
    }
}

/// The newer versions that the default passes over, and why.
fn skipped(view: &JobView, kept: &[JobVersion], to: u64) -> Option<String> {
    let (current, past) = kept.split_first()?;
    let why = |past: &JobVersion| {
        if past.job == current.job {
            Some("the same as the current one")
        } else if past.job.stop {
            Some("stopped")
        } else {
            view.has_failed(past.version).then_some("failed")
        }
    };
    let newer = past.iter().take_while(|past| past.version > to);
    let versions: Vec<String> =
        newer.filter_map(|past| Some(format!("version {} ({})", past.version, why(past)?))).collect();
    (!versions.is_empty()).then(|| versions.join(", "))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use herdlet_api_types::{DeploymentId, deployment::Deployment, job::Job};
    use serde_json::json;

    use super::*;
    use herdlet_manifest::fixture::{job, job_view};

    #[test]
    fn rollback_without_number_skips_stopped_versions() {
        let version = |version| JobVersion {
            version,
            index: 0,
            submit_time: herdlet_api_types::UnixNanos(0),
            job: Job {
                priority: 50 + u8::try_from(version).unwrap(),
                ..Job::clone(&job("web", "front", "httpd"))
            }
            .into(),
            tag: None,
        };
        let kept = [version(7), version(5), version(4)];
        let view = job_view(&job("web", "front", "httpd"), 7);
        assert_eq!(choose(&view, &kept, None).unwrap(), (7, 5));
        assert_eq!(choose(&view, &kept, Some(4)).unwrap(), (7, 4));
        assert!(choose(&view, &kept[..1], None).is_err());
        let stopped = |number| {
            let known = version(number);
            JobVersion { job: Job { stop: true, ..Job::clone(&known.job) }.into(), ..known }
        };
        assert_eq!(choose(&view, &[stopped(7), stopped(6), version(5)], None).unwrap(), (7, 5));
        assert_eq!(choose(&view, &[version(7), stopped(6), version(5)], None).unwrap(), (7, 5));
        assert!(choose(&view, &[version(7), stopped(6)], None).is_err());
        let failed = json!({
            "id": DeploymentId::from_hash([1; 16]), "job_key": view.key, "job_version": 5, "status": "failed", "description": "",
            "groups": {}, "create_index": 1, "modify_index": 1, "create_time": 1, "modify_time": 1,
        });
        let failed: Deployment = serde_json::from_value(failed).unwrap();
        let view = JobView { deployments: vec![Arc::new(failed)], ..view };
        assert_eq!(
            choose(&view, &kept, None).unwrap(),
            (7, 4),
            "a failed version is restored by number only"
        );
        assert_eq!(choose(&view, &kept, Some(5)).unwrap(), (7, 5));
    }

    /// It was reported as unchanged: the failed version was the result of an automatic revert.
    #[test]
    fn rollback_skips_equal_versions() {
        let texts = ["good", "bad", "worse", "bad"].map(|name| job(name, "front", "httpd"));
        let version = |(version, job)| JobVersion {
            version,
            index: 0,
            submit_time: herdlet_api_types::UnixNanos(0),
            job,
            tag: None,
        };
        let mut kept: Vec<JobVersion> = (0..).zip(texts).map(version).collect();
        kept.reverse();
        let view = job_view(&kept[0].job, 3);
        let expected = "version 1 (the same as the current one)";
        assert_eq!(skipped(&view, &kept, 0).as_deref(), Some(expected));
        assert_eq!(skipped(&view, &kept, 2), None);
        assert_eq!(
            choose(&view, &[kept[0].clone(), kept[2].clone(), kept[3].clone()], None).unwrap(),
            (3, 0)
        );
    }
}
