//! Jobs.

use super::{
    Action, CallBody, FIELDS_OF_JOBS, Field, FieldSource, Fields, Flag, Found, Ignored, Itself, Job, JobUse,
    List, NotBuilt, Number, OMIT_OF_ALLOCS, OMIT_OF_JOBS, ParsedJob, Raw, Renamed, Route, Servers, Stream,
    Submission, Text, VersionTag, Versions, Whole, below, delete, get, put, read, remove, write,
};
use crate::http::{
    actions, deployments, dispatch, evaluations, jobs, register, scale, services, statuses, submission, tags,
    versions,
};

const RECOMMENDATIONS: &str = "recommendations";

const ALL: &[(&str, FieldSource)] = &[("All", Flag("all"))];
const CHILDREN: &[(&str, FieldSource)] = &[("IncludeChildren", Flag("include_children"))];
const VERSIONS: &[(&str, FieldSource)] =
    &[("Diffs", Flag("diffs")), ("DiffTagName", Text("diff_tag")), ("DiffVersion", Number("diff_version"))];
const REMOVAL: &[(&str, FieldSource)] = &[
    ("Purge", Flag("purge")),
    ("Global", Flag("global")),
    ("NoShutdownDelay", Flag("no_shutdown_delay")),
    ("EvalPriority", Number("eval_priority")),
];

/// The body of a registration: the job and these fields.
const REGISTRATION: CallBody = Job(
    JobUse::Register,
    &[
        "EnforceIndex",
        "JobModifyIndex",
        "PolicyOverride",
        "PreserveCounts",
        "PreserveResources",
        "EvalPriority",
        "Submission",
    ],
);

const SCALING: CallBody =
    Fields(&["Target", "Count", "Message", "Error", "Meta", "PolicyOverride", "JobModifyIndex"]);
const REVERSION: CallBody = Fields(&["JobVersion", "EnforcePriorVersion", "ConsulToken", "VaultToken"]);
const DISPATCH: CallBody = Fields(&["Meta", "Payload", "IdPrefixTemplate", "Priority"]);
const TAG: CallBody =
    Renamed(&[("Version", "Version"), ("Latest", "Latest"), ("Description", "Tag.Description")]);

pub(super) const ROUTES: &[Route] = &[
    get(
        "jobs",
        served!(jobs::list),
        Servers(read("Job.List", List("Jobs")).with(FIELDS_OF_JOBS).with_response(OMIT_OF_JOBS)),
    ),
    put("jobs", served!(register::register), Servers(write("Job.Register", REGISTRATION))),
    put("jobs/parse", served!(register::parse), Itself(ParsedJob)),
    get("jobs/statuses", served!(statuses::list), Servers(read("Job.Statuses", List("Jobs")).with(CHILDREN))),
    put(
        "jobs/statuses",
        served!(statuses::some),
        Servers(write("Job.Statuses", Fields(&["Jobs"])).with(CHILDREN).shows(List("Jobs"))),
    ),
    put(
        "validate/job",
        served!(register::validate),
        Servers(write("Job.Validate", Job(JobUse::Validate, &[]))),
    ),
    get(
        "job/{JobID*}/allocations",
        served!(jobs::allocations),
        Servers(read("Job.Allocations", List("Allocations")).with(ALL).with_response(OMIT_OF_ALLOCS)),
    ),
    get(
        "job/{JobID*}/evaluations",
        served!(evaluations::of_job),
        Servers(read("Job.Evaluations", List("Evaluations"))),
    ),
    get(
        "job/{JobID*}/deployments",
        served!(deployments::of_job),
        Servers(read("Job.Deployments", List("Deployments")).with(ALL)),
    ),
    get(
        "job/{JobID*}/deployment",
        served!(deployments::latest_of_job),
        Servers(read("Job.LatestDeployment", Field("Deployment"))),
    ),
    get(
        "job/{JobID*}/summary",
        served!(jobs::summary),
        Servers(read("Job.Summary", Found("JobSummary", "job not found"))),
    ),
    get(
        "job/{JobID*}/versions",
        served!(versions::list),
        Servers(read("Job.GetJobVersions", Whole).with(VERSIONS).with_response(Versions)),
    ),
    put(
        "job/{JobID*}/versions/{Name}/tag",
        served!(tags::apply),
        Servers(write("Job.TagVersion", TAG).with_request(VersionTag)),
    ),
    delete(
        "job/{JobID*}/versions/{Name}/tag",
        served!(tags::remove),
        Servers(remove("Job.TagVersion").shows(Whole)),
    ),
    get(
        "job/{JobID*}/scale",
        served!(scale::read),
        Servers(read("Job.ScaleStatus", Found("JobScaleStatus", "job not found"))),
    ),
    put("job/{JobID*}/scale", served!(scale::scale), Servers(write("Job.Scale", SCALING))),
    get(
        "job/{JobID*}/services",
        served!(services::of_job),
        Servers(read("Job.GetServiceRegistrations", Found("Services", "job not found"))),
    ),
    get(
        "job/{JobID*}/submission",
        served!(submission::read),
        Servers(
            read("Job.GetJobSubmission", Found("Submission", "job source not found"))
                .with(&[("Version", Number("version"))])
                .with_response(Submission),
        ),
    ),
    get("job/{JobID*}/action", served!(actions::run), Stream(Action)),
    get("job/{JobID*}/actions", served!(actions::list), Servers(read("Job.GetActions", Field("Actions")))),
    put(
        "job/{JobID*}/plan",
        served!(register::plan),
        Servers(write("Job.Plan", Job(JobUse::Plan, &["Diff", "PolicyOverride"]))),
    ),
    put(
        "job/{JobID*}/evaluate",
        served!(jobs::evaluate),
        Servers(write("Job.Evaluate", Fields(&["EvalOptions"]))),
    ),
    put("job/{JobID*}/dispatch", served!(dispatch::dispatch), Servers(write("Job.Dispatch", DISPATCH))),
    put(
        "job/{JobID*}/dispatch/payload",
        NotBuilt("dispatch with a body as payload"),
        Servers(write("Job.Dispatch", Raw("Payload"))),
    ),
    put("job/{JobID*}/revert", served!(versions::revert), Servers(write("Job.Revert", REVERSION))),
    put(
        "job/{JobID*}/stable",
        NotBuilt("marking versions as stable"),
        Servers(write("Job.Stable", Fields(&["JobVersion", "Stable"]))),
    ),
    put("job/{JobID*}/periodic/force", served!(dispatch::force), Servers(write("Periodic.Force", Ignored))),
    get("job/{JobID*}", served!(jobs::read), Servers(read("Job.GetJob", Found("Job", "job not found")))),
    put("job/{JobID*}", served!(register::update), Servers(write("Job.Register", REGISTRATION))),
    delete(
        "job/{JobID*}",
        served!(jobs::remove),
        Servers(remove("Job.Deregister").shows(Whole).with(REMOVAL)),
    ),
    below("recommendation", RECOMMENDATIONS),
    below("recommendations", RECOMMENDATIONS),
];
