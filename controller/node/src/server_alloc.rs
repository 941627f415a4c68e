//! Converts an allocation from a server into one for the planner.
//!
//! In: an allocation with its whole job, as received. Out: an [`Allocation`] whose job has only its own group, parsed like a JSON job file.
//! Fields that only servers use (constraints, counts, rescheduling) are removed first: servers have already decided. A job that cannot be
//! parsed, or that uses unsupported features, becomes a refused allocation, whose tasks fail with the reason.
//!
//! Facts: `hashicorp/nomad:nomad/structs/structs.go` (`Allocation`, `Job`), `client/allocrunner/taskrunner/dispatch_hook.go` (payloads
//! are compressed by snappy).

use std::{collections::BTreeMap, sync::Arc};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use herdlet_api_types::{
    AllocId, DeploymentId, Duration, JobKey, UnixNanos,
    alloc::{AllocDeployment, Allocation, Desired, DiskMigration, ServerSide},
    job::{Child, HealthCheck, Job, Migrate, Origin},
    manifest::defaults::DEFAULT_NAMESPACE,
    parse_duration,
};
use herdlet_manifest::{
    manifests::{self, Drivers},
    yaml::Problems,
};
use herdlet_nomad::wire;
use herdlet_rpc::codec::Value;
use serde_json::{Map, Value as Json, json};
use tokio::sync::watch;
use uuid::Uuid;

mod given;
mod ignored_fields;

use self::given::Limits;

/// Fields of a task that simulation keeps.
const PRETENDED_TASK: [&str; 8] =
    ["KillTimeout", "Leader", "Lifecycle", "Meta", "Name", "Resources", "RestartPolicy", "ShutdownDelay"];

/// Fields of a group that simulation keeps.
const PRETENDED_GROUP: [&str; 5] = ["Meta", "Name", "RestartPolicy", "ShutdownDelay", "Update"];

/// Maximum number of problems to report per job.
const PROBLEMS_MAX: usize = 3;

/// Maximum size of a payload in bytes. Servers accept 16 KiB; other releases may accept more.
const PAYLOAD_MAX: usize = 1024 * 1024;

/// How jobs are read.
#[derive(Debug, Clone)]
pub enum Reading {
    /// For execution by these drivers: unsupported features are refused.
    Real(watch::Receiver<Drivers>),
    /// For simulation: every task uses the driver mock, whatever it would do.
    Pretended,
}

/// A parsed job of a batch: the job as received, the group, the tasks' limits, and the result.
type ConvertedJob = (wire::Job, String, Limits, Result<Arc<Job>, String>);

/// Converts servers' allocations, parsing a job only once per batch.
pub struct Reader<'r> {
    reading: &'r Reading,
    jobs: Vec<ConvertedJob>,
}

impl<'r> Reader<'r> {
    /// Starts a batch.
    pub fn new(reading: &'r Reading) -> Self {
        Self { reading, jobs: Vec::new() }
    }

    /// Converts an allocation. If it cannot run here, the result is refused and holds the reason.
    ///
    /// # Errors
    /// If not even a refused allocation can be planned: an invalid id, or invalid names.
    pub fn allocation(&mut self, alloc: &wire::Allocation) -> Result<Allocation, String> {
        let id = AllocId(uuid("ID", alloc.id.as_str())?.ok_or("ID is empty")?);
        let (job, refused) = match self.job(alloc) {
            Ok(job) => (job, None),
            Err(why) => (Arc::new(stand_in(alloc).map_err(|_| why.clone())?), Some(why)),
        };
        let (group, given) = (alloc.job.group(&alloc.task_group), alloc.allocated_resources.as_ref());
        let canary = alloc.deployment_status.as_ref().is_some_and(|status| status.canary);
        let deployment = uuid("DeploymentID", &alloc.deployment_id)?;
        let preempted = alloc.preempted_allocations.iter().map(|id| uuid("PreemptedAllocations", id));
        let preempted: Vec<Option<Uuid>> = preempted.collect::<Result<_, String>>()?;
        let server = ServerSide {
            modify_index: alloc.alloc_modify_index,
            create_index: alloc.create_index,
            job: Arc::clone(&job),
            no_shutdown_delay: alloc.desired_transition.no_shutdown_delay == Some(true),
            refused,
            migrate: group.and_then(migrate),
            stop_on_client_after: group.and_then(stop_on_client_after),
            max_run_duration: group.filter(|_| job.kind.completes()).and_then(max_run_duration),
            heritage: group.map(disk_migration).unwrap_or_default(),
            preempted: preempted.into_iter().flatten().map(AllocId).collect(),
            task_ports: BTreeMap::new(),
            actions: BTreeMap::new(),
        };
        Ok(Allocation {
            id,
            job_key: JobKey { namespace: namespace(alloc).into(), id: (*alloc.job_id).into() },
            job_version: alloc.job.version(),
            job,
            group: alloc.task_group.clone(),
            index: index_of(&alloc.name),
            ports: given.map(given::ports).unwrap_or_default(),
            task_ports: given.map(given::task_ports).unwrap_or_default(),
            task_cores: given.map(given::task_cores).unwrap_or_default(),
            desired: if alloc.desired_status.is_terminal() { Desired::Stop } else { Desired::Run },
            desired_description: alloc.desired_description.clone(),
            create_index: 0,
            create_time: UnixNanos(alloc.create_time),
            previous: uuid("PreviousAllocation", &alloc.previous_allocation)?.map(AllocId),
            deployment: deployment.map(|id| AllocDeployment { id: DeploymentId(id), canary }),
            next: uuid("NextAllocation", &alloc.next_allocation)?.map(AllocId),
            rescheduled: Vec::new(),
            server: Some(Arc::new(server)),
        })
    }

    fn job(&mut self, alloc: &wire::Allocation) -> Result<Arc<Job>, String> {
        let group = &alloc.task_group;
        let limits = alloc.allocated_resources.as_ref().map(given::limits).unwrap_or_default();
        let is_it =
            |(job, name, known, _): &&ConvertedJob| name == group && job.is(&alloc.job) && *known == limits;
        if let Some((_, _, _, read)) = self.jobs.iter().find(is_it) {
            return read.clone();
        }
        let read = match self.reading {
            Reading::Real(drivers) => read(alloc, &drivers.borrow()),
            Reading::Pretended => pretended(alloc),
        };
        let read = read.map(|job| Arc::new(given::limited(job, &limits)));
        self.jobs.push((alloc.job.clone(), group.clone(), limits, read.clone()));
        read
    }
}

fn read(alloc: &wire::Allocation, drivers: &Drivers) -> Result<Job, String> {
    let Some(group) = alloc.job.group(&alloc.task_group) else {
        return Err(format!("its job has no group {:?}", alloc.task_group));
    };
    let mut written = fields(alloc.job.value(), &ignored_fields::OF_JOB);
    // A dispatched child still has this field, and its tasks may use the payload.
    let is_dispatched =
        !matches!(alloc.job.value().get("Dispatched"), None | Some(Value::Nil | Value::Bool(false)));
    if !is_dispatched {
        written.remove("ParameterizedJob");
    }
    let mut of_group = fields(group, &[]);
    ignored_fields::leave_out(&mut of_group);
    written.insert("ID".into(), "job".into());
    written.insert("Name".into(), "job".into());
    written.insert("TaskGroups".into(), json!([of_group]));
    let job = parse(&Json::Object(written), drivers)?;
    Ok(Job { child: child(&alloc.job)?, parameterized: None, ..named(job, alloc) })
}

/// Parses a job for simulation: everything that its tasks would do is removed.
fn pretended(alloc: &wire::Allocation) -> Result<Job, String> {
    let Some(group) = alloc.job.group(&alloc.task_group) else {
        return Err(format!("its job has no group {:?}", alloc.task_group));
    };
    let kept = |task: &Value| {
        let mut kept = fields(task, &[]);
        kept.retain(|name, _| PRETENDED_TASK.contains(&&**name));
        kept.insert("Driver".into(), "mock".into());
        kept.insert("Config".into(), json!({}));
        kept
    };
    let tasks: Vec<_> = items(group, "Tasks").iter().map(kept).collect();
    let mut of_group = fields(group, &[]);
    of_group.retain(|name, _| PRETENDED_GROUP.contains(&&**name));
    of_group.insert("Tasks".into(), tasks.into());
    let job = json!({ "ID": "job", "Type": alloc.job.kind(), "TaskGroups": [of_group] });
    parse(&job, &Drivers::built_in()).map(|job| named(job, alloc))
}

/// Replaces a job that cannot be parsed: only its group and task names are kept.
fn stand_in(alloc: &wire::Allocation) -> Result<Job, String> {
    let task = |name: &str| json!({ "Name": name, "Driver": "mock", "Config": {} });
    let tasks: Vec<Json> = alloc.job.tasks(&alloc.task_group).map(task).collect();
    let mut group =
        Map::from_iter([("Name".to_owned(), (*alloc.task_group).into()), ("Tasks".to_owned(), tasks.into())]);
    // The deployment must learn that the allocation is unhealthy.
    let kind = if alloc.deployment_id.is_empty() {
        "batch"
    } else {
        group.insert("Update".to_owned(), json!({}));
        "service"
    };
    let job = json!({ "ID": "job", "Type": kind, "TaskGroups": [group] });
    parse(&job, &Drivers::built_in()).map(|job| named(job, alloc))
}

/// Servers may omit the default namespace.
fn namespace(alloc: &wire::Allocation) -> &str {
    if alloc.namespace.is_empty() { DEFAULT_NAMESPACE } else { &alloc.namespace }
}

/// Restores the names and ids that servers use.
fn named(job: Job, alloc: &wire::Allocation) -> Job {
    let text =
        |name: &str| alloc.job.value().get(name).and_then(Value::as_text).unwrap_or_default().to_owned();
    let name = text("Name");
    Job {
        namespace: namespace(alloc).to_owned(),
        name: if name.is_empty() { alloc.job_id.clone() } else { name },
        id: alloc.job_id.clone(),
        region: text("Region"),
        priority: priority(alloc.job.value()).unwrap_or(job.priority),
        ..job
    }
}

/// The priority orders task starts. Newer servers accept higher ones than this agent.
fn priority(job: &Value) -> Option<u8> {
    let priority = u8::try_from(job.get("Priority")?.as_u64()?).unwrap_or(PRIORITY_MAX);
    Some(priority.clamp(1, PRIORITY_MAX))
}

/// The highest priority.
const PRIORITY_MAX: u8 = 100;

fn parse(job: &Json, drivers: &Drivers) -> Result<Job, String> {
    let set = manifests::read_of_servers(job, drivers).map_err(|problems| problems_text(&problems))?;
    let job = set.jobs.into_iter().next().ok_or("it holds no job")?;
    Ok(job.object)
}

/// Describes a job's problems in one sentence. Line numbers are omitted: users do not see this text.
fn problems_text(problems: &Problems) -> String {
    let mut texts: Vec<String> = problems
        .iter()
        .take(PROBLEMS_MAX)
        .map(|problem| match &*problem.path {
            "" => problem.message.clone(),
            path => format!("{path}: {}", problem.message),
        })
        .collect();
    let more = (problems.len() + problems.more()).saturating_sub(texts.len());
    if more > 0 {
        texts.push(format!("and {more} more"));
    }
    format!("this job cannot run here: {}", texts.join("; "))
}

/// The job's parent, and the payload that it was dispatched with.
fn child(job: &wire::Job) -> Result<Option<Child>, String> {
    let value = job.value();
    let parent = value.get("ParentID").and_then(Value::as_text).unwrap_or_default();
    let compressed: &[u8] = match value.get("Payload") {
        Some(Value::Bytes(bytes)) => bytes,
        Some(Value::Text(text)) => text.as_bytes(),
        Some(
            Value::Nil
            | Value::Bool(_)
            | Value::Int(_)
            | Value::Uint(_)
            | Value::Float(_)
            | Value::List(_)
            | Value::Map(_),
        )
        | None => &[],
    };
    if parent.is_empty() && compressed.is_empty() {
        return Ok(None);
    }
    let payload = if compressed.is_empty() { Vec::new() } else { decompressed(compressed)? };
    let origin =
        Origin::Dispatch { payload: BASE64_STANDARD.encode(payload), idempotency_token: String::new() };
    let is_periodic = compressed.is_empty() && job.id().contains("/periodic-");
    Ok(Some(Child { parent: parent.to_owned(), origin: if is_periodic { Origin::Launch } else { origin } }))
}

pub(super) fn decompressed(payload: &[u8]) -> Result<Vec<u8>, String> {
    let failure = |error: snap::Error| format!("Payload: {error}");
    if snap::raw::decompress_len(payload).map_err(failure)? > PAYLOAD_MAX {
        return Err(format!("Payload: larger than {PAYLOAD_MAX} bytes"));
    }
    snap::raw::Decoder::new().decompress_vec(payload).map_err(failure)
}

/// How to judge the health of a group's allocations while their node is drained.
fn migrate(group: &Value) -> Option<Migrate> {
    let migrate = group.get("Migrate").filter(|migrate| matches!(migrate, Value::Map(_)))?;
    let health_check = match migrate.get("HealthCheck").and_then(Value::as_text) {
        Some("task_states") => HealthCheck::TaskStates,
        Some(_) | None => HealthCheck::Checks,
    };
    let duration = |name: &str| migrate.get(name).and_then(duration).unwrap_or_default();
    Some(Migrate {
        health_check,
        min_healthy_time: duration("MinHealthyTime"),
        healthy_deadline: duration("HealthyDeadline"),
    })
}

/// What an allocation takes over from its predecessor's disk. `AnyNode` includes the same node.
fn disk_migration(group: &Value) -> DiskMigration {
    let is = |name: &str| {
        let disk = group.get("EphemeralDisk");
        matches!(disk.and_then(|disk| disk.get(name)), Some(Value::Bool(true)))
    };
    match (is("Migrate"), is("Sticky")) {
        (true, _) => DiskMigration::AnyNode,
        (false, true) => DiskMigration::SameNode,
        (false, false) => DiskMigration::None,
    }
}

/// Since 1.8 the value is in `disconnect`.
fn stop_on_client_after(group: &Value) -> Option<Duration> {
    let new = group.get("Disconnect").and_then(|disconnect| disconnect.get("StopOnClientAfter"));
    new.and_then(duration).or_else(|| group.get("StopAfterClientDisconnect").and_then(duration))
}

/// Servers accept any value; clients ignore those that are not positive, and those of jobs that run for ever: `structs/alloc.go`.
fn max_run_duration(group: &Value) -> Option<Duration> {
    duration(group.get("MaxRunDuration")?).filter(|longest| *longest > Duration::ZERO)
}

/// Nanoseconds, or a text with a unit.
fn duration(value: &Value) -> Option<Duration> {
    match value {
        Value::Int(nanos) => Some(Duration(*nanos)),
        Value::Uint(nanos) => Some(Duration(i64::try_from(*nanos).unwrap_or(i64::MAX))),
        Value::Text(text) => parse_duration(text).ok().map(Duration),
        Value::Nil | Value::Bool(_) | Value::Float(_) | Value::Bytes(_) | Value::List(_) | Value::Map(_) => {
            None
        }
    }
}

/// The items of a list field; empty if it is missing.
fn items<'v>(owner: &'v Value, field: &str) -> &'v [Value] {
    match owner.get(field) {
        Some(Value::List(items)) => items,
        Some(_) | None => &[],
    }
}

/// Parses the index in `job.group[3]`.
fn index_of(name: &str) -> u32 {
    let index = name
        .strip_suffix(']')
        .and_then(|name| name.rsplit_once('['))
        .and_then(|(_, index)| index.parse().ok());
    index.unwrap_or_default()
}

fn uuid(field: &str, text: &str) -> Result<Option<Uuid>, String> {
    if text.is_empty() {
        return Ok(None);
    }
    text.parse().map(Some).map_err(|_| format!("{field} is not a UUID"))
}

/// The fields of a map, except those in `but`.
fn fields(value: &Value, but: &[&str]) -> Map<String, Json> {
    let Value::Map(entries) = value else { return Map::new() };
    let named = entries.iter().filter_map(|(key, value)| Some((key.as_text()?, value)));
    named.filter(|(key, _)| !but.contains(key)).map(|(key, value)| (key.to_owned(), json(value))).collect()
}

/// Converts a value to JSON as Nomad's API does. Numbers in a task's config arrive as floats: whole ones stand for integers.
fn json(value: &Value) -> Json {
    match value {
        Value::Nil => Json::Null,
        Value::Bool(value) => (*value).into(),
        Value::Int(value) => (*value).into(),
        Value::Uint(value) => (*value).into(),
        Value::Float(value) => number(*value),
        Value::Text(text) => text.clone().into(),
        Value::Bytes(bytes) => BASE64_STANDARD.encode(bytes).into(),
        Value::List(items) => items.iter().map(json).collect(),
        Value::Map(_) => fields(value, &[]).into(),
    }
}

fn number(value: f64) -> Json {
    // The shortest text of a whole number has no fraction.
    value.to_string().parse::<i64>().map_or_else(|_| value.into(), Json::from)
}

#[cfg(test)]
mod tests;
