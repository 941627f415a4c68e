//! `herdlet rollback` and `herdlet get versions`: which versions of a job are kept, and going back to one.

use clap::Args;
use herdlet_api_types::{
    JobKey,
    view::{JobVersion, JobView},
};
use serde::Serialize;

use super::{
    Connection,
    client::Client,
    failure::Failure,
    output::Output,
    wait::{Applied, Goal, WaitFlags},
};

/// Arguments of `herdlet rollback`.
#[derive(Debug, Clone, Args)]
pub struct RollbackArgs {
    /// A job
    job: String,
    /// The version whose text becomes the newest version [default: the one before the current]
    #[arg(long, value_name = "VERSION")]
    to: Option<u64>,
    #[command(flatten)]
    wait: WaitFlags,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    pub(super) connection: Connection,
}

/// What `-o json` prints.
#[derive(Serialize)]
struct Report {
    job: JobKey,
    /// Which version was gone back to.
    to: u64,
    /// The version that has its text now.
    version: u64,
}

pub(super) async fn run(args: RollbackArgs) -> Result<u8, Failure> {
    let limit = args.wait.limit();
    let client = args.connection.client()?;
    let job = limit.within("find it", find(&client, &args.job)).await?.key;
    let kept = limit.within("list its versions", client.versions(&job)).await?;
    let (current, to) = choose(&args.job, &kept, args.to)?;
    let index = limit.within("roll it back", client.revert(&job, to, current)).await?;
    let after = limit.within("list its versions", client.versions(&job)).await?;
    let version = after.first().map_or(current, |newest| newest.version);
    if version == current {
        args.output.line(&format!("job/{job} unchanged: version {current} says the same as version {to}"));
    } else {
        args.output.line(&format!("job/{job} rolled back to version {to} (version {version})"));
    }
    let report = Report { job: job.clone(), to, version };
    let applied = Applied { client: &client, jobs: &[(job, version)], index, goal: Goal::Converged };
    args.wait.finish(limit, applied, &report, args.output).await
}

/// The job of that name.
pub(super) async fn find(client: &Client, name: &str) -> Result<JobView, Failure> {
    known(client.jobs().await?, name)
}

/// The one of that name.
pub(super) fn known(jobs: Vec<JobView>, name: &str) -> Result<JobView, Failure> {
    let found = jobs.into_iter().find(|view| view.key.to_string() == name);
    found.ok_or_else(|| Failure::new(format!("there is no job {name:?}")).hint("list them: herdlet get jobs"))
}

/// The current version, and the one to go back to. `kept` are newest first.
fn choose(name: &str, kept: &[JobVersion], to: Option<u64>) -> Result<(u64, u64), Failure> {
    let [current, past @ ..] = kept else {
        return Err(Failure::new(format!("no version of {name} is kept")));
    };
    match to.or_else(|| past.first().map(|before| before.version)) {
        Some(to) => Ok((current.version, to)),
        None => Err(Failure::new(format!("{name} has had no version before this one"))
            .hint(format!("list them: herdlet get versions {name}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_views::job;

    #[test]
    fn without_a_number_the_version_before_is_meant() {
        let version = |version| JobVersion {
            version,
            index: 0,
            submit_time: herdlet_api_types::UnixNanos(0),
            job: job("web", "front", "httpd"),
        };
        let kept = [version(7), version(5), version(4)];
        assert_eq!(choose("web", &kept, None).unwrap(), (7, 5));
        assert_eq!(choose("web", &kept, Some(4)).unwrap(), (7, 4));
        assert!(choose("web", &kept[..1], None).is_err());
    }
}
