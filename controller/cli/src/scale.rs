//! `herdlet scale`: changes the count of a group.

use clap::Args;
use herdlet_api_types::{JobKey, job::Group, view::JobView};
use serde::Serialize;

use super::{
    Connection,
    client::JobChange,
    failure::{Failure, USAGE},
    output::Output,
    selection::{after_job, job_named, plain_name},
    wait::{Accepted, WaitFlags},
};

/// Arguments of `herdlet scale`.
#[derive(Debug, Clone, Args)]
pub struct ScaleArgs {
    /// A job that has one group, or JOB.GROUP
    target: String,
    /// Number of allocations
    count: u32,
    /// Reason, for the job's scaling events
    #[arg(long, value_name = "TEXT", default_value = "")]
    message: String,
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
    group: String,
    from: u32,
    to: u32,
    /// The version with the new count.
    version: u64,
}

pub async fn run(args: ScaleArgs) -> Result<u8, Failure> {
    let limit = args.wait.limit();
    let client = args.connection.client()?;
    let jobs = limit.within("find it", client.jobs()).await?;
    let (view, group) = find(&jobs, &args.target)?;
    let job = view.key.clone();
    let scaling = client.scale(&job, &group.name, args.count, &args.message);
    let JobChange { index, version } = limit.within("scale it", scaling).await?;
    let name = &group.name;
    if group.count == args.count {
        args.output.line(&format!("job/{job} unchanged: group {name} has count {} already", args.count));
    } else {
        let (from, to) = (group.count, args.count);
        args.output.line(&format!("job/{job} scaled: group {name} from {from} to {to} (version {version})"));
    }
    let (job, group, from, to) = (job.clone(), name.clone(), group.count, args.count);
    let report = Report { job: job.clone(), group, from, to, version };
    let accepted = Accepted::version(&client, job, version, index);
    args.wait.finish(limit, accepted, &report, args.output).await
}

/// The group of the target. A job whose whole name matches comes before a job and group, since names may contain dots.
fn find<'v>(jobs: &'v [JobView], target: &str) -> Result<(&'v JobView, &'v Group), Failure> {
    let target = plain_name(target, jobs);
    if let Some(view) = job_named(jobs, target) {
        return match &view.job.groups[..] {
            [only] => Ok((view, only)),
            groups => {
                let names: Vec<String> =
                    groups.iter().map(|group| format!("{target}.{}", group.name)).collect();
                let message = format!("job {target} has {} groups; name one", groups.len());
                Err(Failure::new(message).hint(format!("one of: {}", names.join(", "))).code(USAGE))
            }
        };
    }
    let groups = jobs.iter().flat_map(|view| view.job.groups.iter().map(move |group| (view, group)));
    let group_of = |view: &JobView| after_job(target, &view.key).and_then(|rest| rest.strip_prefix('.'));
    let mut found = groups.clone().filter(|(view, group)| group_of(view) == Some(&*group.name));
    found.next().ok_or_else(|| {
        let of_name = groups.filter(|(_, group)| group.name == target);
        let names: Vec<String> =
            of_name.map(|(view, group)| format!("{}.{}", view.key.argument(), group.name)).collect();
        let hint = match names.as_slice() {
            [] => "list them: herdlet get jobs".to_owned(),
            [only] => format!("did you mean {only}?"),
            several => format!("name a group with its job: {}", several.join(", ")),
        };
        Failure::new(format!("there is no job or group {target:?}")).hint(hint)
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use herdlet_manifest::fixture::{job, job_view};

    #[test]
    fn a_group_is_found_by_its_job_or_by_both() {
        let one = job("a.b", "front", "t");
        let mut two = (*job("a", "b", "t")).clone();
        two.groups.push(two.groups[0].clone());
        two.groups[1].name = "c".to_owned();
        let jobs = [job_view(&one, 0), job_view(&Arc::new(two), 0)];
        let group_of = |target| {
            let found = find(&jobs, target).map(|(view, group)| format!("{} {}", view.key, group.name));
            found.map_err(|failure| format!("{failure} {}", failure.hint_text()))
        };
        assert_eq!(group_of("a.b").unwrap(), "a.b front", "a job comes first");
        assert_eq!(group_of("a.c").unwrap(), "a c");
        assert_eq!(group_of("a.b.front").unwrap(), "a.b front");
        assert_eq!(group_of("job/a.b").unwrap(), "a.b front", "as other commands print it");
        assert_eq!(group_of("job/a.c").unwrap(), "a c");
        assert!(group_of("a").unwrap_err().contains("has 2 groups"));
        assert!(group_of("x").is_err() && group_of("a.x").is_err());
        assert!(group_of("front").unwrap_err().ends_with("did you mean a.b.front?"));
        assert!(group_of("c").unwrap_err().ends_with("did you mean a.c?"));
    }
}
