//! Deployments: listing, summarizing, promoting and failing them.

mod find;

use clap::{Args, Subcommand};
use herdlet_api_types::{
    DeploymentId, JobKey, UnixNanos,
    deployment::{Deployment, DeploymentGroup, DeploymentStatus},
    rfc3339::rfc3339,
    view::JobView,
};
use serde::Serialize;

use super::{
    Connection,
    client::Pause,
    failure::Failure,
    output::Output,
    show::{self, styled},
    style,
    table::{Heading, Table},
    wait::{Accepted, Goal, WaitFlags, WaitTarget},
};
pub(super) use find::of;
use find::{all_deployments, find_all};

/// Arguments of `herdlet promote`.
#[derive(Debug, Clone, Args)]
pub struct PromoteArgs {
    /// Jobs, or prefixes of deployment ids
    #[arg(value_name = "TARGET", required = true)]
    targets: Vec<String>,
    /// Only this group; may be repeated [default: all groups with canaries]
    #[arg(long = "group", value_name = "GROUP")]
    groups: Vec<String>,
    #[command(flatten)]
    wait: WaitFlags,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    pub connection: Connection,
}

/// Arguments of `herdlet deployment`.
#[derive(Debug, Clone, Args)]
pub struct DeploymentArgs {
    #[command(subcommand)]
    pub verb: DeploymentVerb,
}

/// The verbs of `herdlet deployment`.
#[derive(Debug, Clone, Subcommand)]
pub enum DeploymentVerb {
    /// Promote the canaries, which then replace the old allocations: herdlet promote
    #[command(after_help = "Example:\n  herdlet deployment promote web --wait")]
    Promote(PromoteArgs),
    /// Mark a deployment as failed; with auto_revert, the job returns to its last stable version
    #[command(after_help = "Example:\n  herdlet deployment fail web")]
    Fail(FailArgs),
    /// Pause a deployment: nothing is placed, replaced or promoted until it is resumed
    #[command(after_help = "Example:\n  herdlet deployment pause web")]
    Pause(FailArgs),
    /// Resume a paused deployment
    #[command(after_help = "Example:\n  herdlet deployment resume web")]
    Resume(FailArgs),
    /// Show the progress of a deployment, by group
    #[command(after_help = "Example:\n  herdlet deployment status web")]
    Status(StatusArgs),
}

/// Arguments of `herdlet deployment status`.
#[derive(Debug, Clone, Args)]
pub struct StatusArgs {
    /// Jobs, or prefixes of deployment ids [default: all]
    #[arg(value_name = "TARGET")]
    targets: Vec<String>,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    pub connection: Connection,
}

impl DeploymentVerb {
    pub fn connection(&mut self) -> &mut Connection {
        match self {
            Self::Promote(args) => &mut args.connection,
            Self::Fail(args) | Self::Pause(args) | Self::Resume(args) => &mut args.connection,
            Self::Status(args) => &mut args.connection,
        }
    }
}

/// Arguments of `herdlet deployment fail`.
#[derive(Debug, Clone, Args)]
pub struct FailArgs {
    /// Jobs, or prefixes of deployment ids
    #[arg(value_name = "TARGET", required = true)]
    targets: Vec<String>,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    connection: Connection,
}

#[derive(Serialize)]
struct Report {
    job: JobKey,
    deployment: DeploymentId,
    /// The version that the job reverted to; only for `fail`.
    #[serde(skip_serializing_if = "Option::is_none")]
    reverted_to: Option<u64>,
}

/// The report of several deployments.
#[derive(Serialize)]
struct Reports {
    deployments: Vec<Report>,
}

pub async fn promote(args: PromoteArgs) -> Result<u8, Failure> {
    let limit = args.wait.limit();
    let client = args.connection.client()?;
    let (mut reports, mut jobs, mut last) = (Vec::new(), Vec::new(), 0);
    for deployment in limit.within("find it", find_all(&client, &args.targets)).await? {
        let promoted = client.promote(deployment.id, &args.groups);
        let promoted = async { promoted.await.map_err(|error| with_end(error.into(), &deployment)) };
        last = limit.within("promote it", promoted).await?;
        let Deployment { job_key: job, job_version, id, .. } = deployment;
        args.output.line(&format!("job/{job} version {job_version} promoted (deployment {})", id.short()));
        jobs.push(WaitTarget::version(job.clone(), job_version));
        reports.push(Report { job, deployment: id, reverted_to: None });
    }
    let accepted = Accepted { client: &client, jobs, index: last, goal: Goal::Converged };
    match reports.as_slice() {
        [report] => args.wait.finish(limit, accepted, report, args.output).await,
        _ => args.wait.finish(limit, accepted, &Reports { deployments: reports }, args.output).await,
    }
}

pub async fn run(args: DeploymentArgs) -> Result<u8, Failure> {
    match args.verb {
        DeploymentVerb::Promote(args) => promote(args).await,
        DeploymentVerb::Fail(args) => fail(args).await,
        DeploymentVerb::Pause(args) => pause(args, Pause::Pause).await,
        DeploymentVerb::Resume(args) => pause(args, Pause::Resume).await,
        DeploymentVerb::Status(args) => status(args).await,
    }
}

async fn pause(args: FailArgs, wanted: Pause) -> Result<u8, Failure> {
    let client = args.connection.client()?;
    let done = match wanted {
        Pause::Pause => "paused",
        Pause::Resume => "resumed",
    };
    let mut reports = Vec::new();
    for deployment in find_all(&client, &args.targets).await? {
        let paused = client.pause_deployment(deployment.id, wanted).await;
        paused.map_err(|error| with_end(error.into(), &deployment))?;
        let (job, id) = (deployment.job_key, deployment.id);
        args.output.line(&format!("deployment {} of job/{job} is {done}", id.short()));
        reports.push(Report { job, deployment: id, reverted_to: None });
    }
    print(reports, args.output)
}

/// Prints the document of the only deployment, or of several.
fn print(reports: Vec<Report>, output: Output) -> Result<u8, Failure> {
    match reports.as_slice() {
        [report] => output.document(report)?,
        _ => output.document(&Reports { deployments: reports })?,
    }
    Ok(0)
}

#[derive(Serialize)]
struct Shown {
    deployments: Vec<Deployment>,
}

async fn status(args: StatusArgs) -> Result<u8, Failure> {
    let client = args.connection.client()?;
    let deployments = match args.targets.as_slice() {
        [] => all_deployments(&client.jobs().await?).into_iter().cloned().collect(),
        targets => find_all(&client, targets).await?,
    };
    if deployments.is_empty() {
        herdlet_base::stderr_line!("there are no deployments");
    }
    let texts: Vec<String> =
        deployments.iter().map(|one| format!("{}\n{}", heading(one), groups(one))).collect();
    args.output.line(texts.join("\n").trim_end());
    args.output.document(&Shown { deployments })?;
    Ok(0)
}

fn heading(one: &Deployment) -> String {
    format!(
        "deployment {} of job {} version {}: {}, {}",
        one.id.short(),
        one.job_key,
        one.job_version,
        one.status_name(),
        one.description
    )
}

/// The groups as a table, as in Nomad's `deployment status`.
fn groups(one: &Deployment) -> String {
    let mut table = Table::new(&[
        "GROUP",
        "PROMOTED",
        "DESIRED",
        "CANARIES",
        "PLACED",
        "HEALTHY",
        "UNHEALTHY",
        "PROGRESS DEADLINE",
    ]);
    for (name, group) in &one.groups {
        let (promoted, canaries) = match (group.desired_canaries, group.promoted) {
            (0, _) => ("-", "-".to_owned()),
            (desired, true) => ("yes", format!("{}/{desired}", group.placed_canaries.len())),
            (desired, false) => ("no", format!("{}/{desired}", group.placed_canaries.len())),
        };
        let deadline = group.require_progress_by.and_then(to_the_second);
        table.row([
            name.clone(),
            promoted.to_owned(),
            group.desired_total.to_string(),
            canaries,
            group.placed_allocs.to_string(),
            group.healthy_allocs.to_string(),
            group.unhealthy_allocs.to_string(),
            deadline.unwrap_or_else(|| "-".to_owned()),
        ]);
    }
    table.render(Heading::Shown)
}

fn to_the_second(at: UnixNanos) -> Option<String> {
    const SECOND: i64 = 1_000_000_000;
    rfc3339(UnixNanos(at.0 - at.0.rem_euclid(SECOND)))
}

async fn fail(args: FailArgs) -> Result<u8, Failure> {
    let client = args.connection.client()?;
    let mut reports = Vec::new();
    for deployment in find_all(&client, &args.targets).await? {
        let failed = client.fail_deployment(deployment.id).await;
        let reverted_to = failed.map_err(|error| with_end(error.into(), &deployment))?;
        let follows = reverted_to.map(|to| format!(", rolling back to version {to}")).unwrap_or_default();
        let Deployment { job_key: job, job_version, id, .. } = deployment;
        args.output
            .line(&format!("job/{job} version {job_version} failed (deployment {}){follows}", id.short()));
        reports.push(Report { job, deployment: id, reverted_to });
    }
    print(reports, args.output)
}

/// Adds how the deployment ended. The agent's text is Nomad's, which clients compare.
fn with_end(failure: Failure, deployment: &Deployment) -> Failure {
    if !failure.to_string().contains("terminal deployment") {
        return failure;
    }
    let (job, status) = (&deployment.job_key, deployment.status.as_str());
    failure.hint(format!("the deployment of {job} has ended: {status}"))
}

/// The headings of [`row`].
pub(super) const COLUMNS: [&str; 6] = ["ID", "JOB", "VERSION", "STATUS", "HEALTHY", "DESCRIPTION"];

pub(super) fn row(one: &Deployment, id: String) -> [String; 6] {
    let sum = |of: fn(&DeploymentGroup) -> u32| one.groups.values().map(of).sum::<u32>();
    let healthy = format!("{}/{}", sum(|group| group.healthy_allocs), sum(|group| group.desired_total));
    [
        id,
        one.job_key.to_string(),
        one.job_version.to_string(),
        one.status_name().to_owned(),
        healthy,
        one.description.clone(),
    ]
}

/// Prints the job's newest deployment if it is running or failed.
pub(super) fn show(job: &JobView) {
    let Some(newest) = job.deployments.first() else { return };
    let colour = match newest.status {
        DeploymentStatus::Running => style::HEADING,
        DeploymentStatus::Failed => style::ERROR,
        DeploymentStatus::Successful | DeploymentStatus::Cancelled => return,
    };
    show::out(&format!("  {}\n", styled(colour, line(newest))));
}

fn line(one: &Deployment) -> String {
    let groups = one.groups.iter().map(|(name, group)| {
        let canaries = if group.is_canarying() {
            format!("{} of {} canaries placed, ", group.placed_canaries.len(), group.desired_canaries)
        } else {
            String::new()
        };
        let (healthy, total) = (group.healthy_allocs, group.desired_total);
        let unhealthy = match group.unhealthy_allocs {
            0 => String::new(),
            some => format!(", {some} unhealthy"),
        };
        format!("{name}: {canaries}{healthy}/{total} healthy{unhealthy}")
    });
    let groups = groups.collect::<Vec<_>>().join("; ");
    let (id, version, description) = (one.id.short(), one.job_version, &one.description);
    format!("deployment {id} of version {version}: {description} ({groups}){}", end_of(one))
}

/// When a running deployment with unhealthy allocations fails.
fn end_of(one: &Deployment) -> String {
    let is_bad = |group: &&DeploymentGroup| group.unhealthy_allocs > 0;
    let bad = one.groups.values().filter(is_bad).filter(|_| one.status == DeploymentStatus::Running);
    let by = bad.filter_map(|group| group.require_progress_by).min();
    by.map_or_else(String::new, |by| {
        format!("; fails in {} unless another allocation becomes healthy", show::ahead(by))
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use herdlet_api_types::Duration;

    use super::{find::each_once, *};
    use crate::missing::Missing;
    use herdlet_manifest::fixture::{THEN, job, job_view};

    #[test]
    fn deployment_is_shown_in_one_row() {
        let web = job("web", "front", "httpd");
        let group = DeploymentGroup {
            auto_revert: false,
            auto_promote: false,
            promoted: false,
            progress_deadline: Duration::from_secs(60),
            require_progress_by: Some(UnixNanos(THEN.0 + 5)),
            desired_canaries: 1,
            desired_total: 3,
            placed_canaries: vec![herdlet_api_types::AllocId::from_hash([1; 16])],
            placed_allocs: 1,
            healthy_allocs: 1,
            unhealthy_allocs: 0,
        };
        let plain = DeploymentGroup {
            require_progress_by: None,
            desired_canaries: 0,
            desired_total: 1,
            placed_canaries: Vec::new(),
            placed_allocs: 0,
            healthy_allocs: 0,
            ..group.clone()
        };
        let deployment = Deployment {
            id: DeploymentId::from_hash([7; 16]),
            job_key: web.key(),
            job_version: 2,
            status: DeploymentStatus::Running,
            description: "Deployment is running but requires manual promotion".to_owned(),
            groups: [("front".to_owned(), group), ("back".to_owned(), plain)].into(),
            paused: false,
            reverted_to: None,
            create_index: 1,
            modify_index: 2,
            create_time: UnixNanos(0),
            modify_time: UnixNanos(0),
        };
        assert_eq!(
            line(&deployment),
            "deployment 07070707 of version 2: Deployment is running but requires manual promotion (back: 0/1 healthy; \
             front: 1 of 1 canaries placed, 1/3 healthy)"
        );
        assert_eq!(
            format!("{}\n{}", heading(&deployment), groups(&deployment)),
            "deployment 07070707 of job web version 2: running, Deployment is running but requires manual promotion\n\
             GROUP  PROMOTED  DESIRED  CANARIES  PLACED  HEALTHY  UNHEALTHY  PROGRESS DEADLINE\n\
             back   -         1        -         0       0        0          -\n\
             front  no        3        1/1       1       1        0          2026-01-02T03:04:05Z\n"
        );
        let mut bad = deployment.clone();
        bad.groups.values_mut().for_each(|group| group.unhealthy_allocs = 1);
        assert!(
            line(&bad).ends_with("; fails in 0s unless another allocation becomes healthy"),
            "{}",
            line(&bad)
        );
        let view = JobView { deployments: vec![Arc::new(deployment)], ..job_view(&web, 2) };
        let jobs = [view];
        // A job whose name is also the prefix of an id.
        let short = job("07", "front", "httpd");
        let named = [jobs[0].clone(), job_view(&short, 0)];
        let found = |target: &str| of(&named, &[target.to_owned()], Missing::IsWrong).unwrap().len();
        assert_eq!((found("web"), found("0707"), found("07")), (1, 1, 0));
        let targets =
            |names: &[&str]| each_once(&jobs, &names.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert_eq!(targets(&["web", "job/web", "0707"]).unwrap().len(), 1, "each deployment once");
        assert!(targets(&["web", "x"]).is_err(), "nothing changes if one target is unknown");
        let rows: Vec<_> = all_deployments(&jobs).into_iter().map(|one| row(one, one.id.short())).collect();
        assert_eq!(rows[0][..5], ["07070707", "web", "2", "running", "1/4"]);
    }
}
