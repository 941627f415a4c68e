//! Which call to the servers answers which path of Nomad's HTTP API, as a table.
//!
//! Facts: `hashicorp/nomad:command/agent/http.go` (`registerHandlers`) and its endpoints.

/// A path, and the call that answers it.
#[derive(Debug)]
pub(super) struct Route {
    /// What is done with it.
    pub(super) verb: Verb,
    /// Its parts; what is in braces stands for any, and is the field of that name.
    pub(super) path: &'static str,
    /// The call to a server.
    pub(super) call: &'static str,
    /// The call to this very node, where it is meant or has the allocation.
    pub(super) own: Option<&'static str>,
    /// Fields from parameters of the query, each with the parameter's name.
    pub(super) query: &'static [(&'static str, Take)],
    /// Fields from the body.
    pub(super) body: &'static [&'static str],
    /// What of the answer is the answer.
    pub(super) answer: Part,
}

/// What is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verb {
    /// Something is read.
    Get,
    /// Something is changed: POST, or PUT.
    Put,
    /// Something is removed.
    Delete,
}

/// How a field is taken from a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Take {
    /// As a text.
    Text(&'static str),
    /// As true or false.
    Flag(&'static str),
    /// As a number.
    Number(&'static str),
}

/// What of the answer is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// All of it.
    Whole,
    /// One field.
    Field(&'static str),
    /// One field; where it is nil, there is no such thing, which is said so.
    Found(&'static str, &'static str),
    /// Nothing.
    Nothing,
}

use Part::{Field, Found, Nothing, Whole};
use Take::{Flag, Number, Text};
use Verb::{Delete, Get, Put};

const fn get(path: &'static str, call: &'static str, answer: Part) -> Route {
    Route { verb: Get, path, call, own: None, query: &[], body: &[], answer }
}

const fn put(path: &'static str, call: &'static str, body: &'static [&'static str]) -> Route {
    Route { verb: Put, path, call, own: None, query: &[], body, answer: Whole }
}

impl Route {
    const fn with(self, query: &'static [(&'static str, Take)]) -> Self {
        Self { query, ..self }
    }

    const fn or_here(self, own: &'static str) -> Self {
        Self { own: Some(own), ..self }
    }

    const fn told(self, answer: Part) -> Self {
        Self { answer, ..self }
    }
}

/// Fields of lists that are told only where they are asked for.
const OF_NODES: &[(&str, Take)] = &[("Fields.Resources", Flag("resources")), ("Fields.OS", Flag("os"))];
const OF_ALLOCS: &[(&str, Take)] =
    &[("Fields.Resources", Flag("resources")), ("Fields.TaskStates", Flag("task_states"))];
const ALL: &[(&str, Take)] = &[("All", Flag("all"))];
const PATH: &[(&str, Take)] = &[("Path", Text("path"))];

/// All of them. The first that fits counts.
pub(super) const ROUTES: &[Route] = &[
    // This node, or another one.
    get("client/stats", "ClientStats.Stats", Field("HostStats")).or_here("ClientStats.Stats"),
    get("client/gc", "ClientAllocations.GarbageCollectAll", Nothing).or_here("Allocations.GarbageCollectAll"),
    put("client/gc", "ClientAllocations.GarbageCollectAll", &[])
        .or_here("Allocations.GarbageCollectAll")
        .told(Nothing),
    get("client/metadata", "NodeMeta.Read", Whole).or_here("NodeMeta.Read"),
    put("client/metadata", "NodeMeta.Apply", &["Meta"]).or_here("NodeMeta.Apply"),
    get("agent/host", "Agent.Host", Whole).or_here("Agent.Host"),
    // Allocations of this node, or of another one.
    get("client/allocation/{AllocID}/stats", "ClientAllocations.Stats", Field("Stats"))
        .or_here("Allocations.Stats")
        .with(&[("Task", Text("task"))]),
    get("client/allocation/{AllocID}/checks", "ClientAllocations.Checks", Field("Results"))
        .or_here("Allocations.Checks"),
    get("client/allocation/{AllocID}/gc", "ClientAllocations.GarbageCollect", Nothing)
        .or_here("Allocations.GarbageCollect"),
    put("client/allocation/{AllocID}/gc", "ClientAllocations.GarbageCollect", &[])
        .or_here("Allocations.GarbageCollect")
        .told(Nothing),
    put("client/allocation/{AllocID}/restart", "ClientAllocations.Restart", &["TaskName", "AllTasks"])
        .or_here("Allocations.Restart"),
    put("client/allocation/{AllocID}/signal", "ClientAllocations.Signal", &["Task", "Signal"])
        .or_here("Allocations.Signal"),
    get("client/fs/ls/{AllocID}", "FileSystem.List", Field("Files")).or_here("FileSystem.List").with(PATH),
    get("client/fs/stat/{AllocID}", "FileSystem.Stat", Field("Info")).or_here("FileSystem.Stat").with(PATH),
    // The cluster.
    get("jobs", "Job.List", Field("Jobs")).with(&[("Fields.Meta", Flag("meta"))]),
    get("jobs/statuses", "Job.Statuses", Field("Jobs")),
    get("job/{JobID}", "Job.GetJob", Found("Job", "job not found")),
    Route {
        verb: Delete,
        query: &[
            ("Purge", Flag("purge")),
            ("Global", Flag("global")),
            ("NoShutdownDelay", Flag("no_shutdown_delay")),
            ("EvalPriority", Number("eval_priority")),
        ],
        ..put("job/{JobID}", "Job.Deregister", &[])
    },
    get("job/{JobID}/allocations", "Job.Allocations", Field("Allocations")).with(ALL),
    get("job/{JobID}/evaluations", "Job.Evaluations", Field("Evaluations")),
    get("job/{JobID}/deployments", "Job.Deployments", Field("Deployments")).with(ALL),
    get("job/{JobID}/deployment", "Job.LatestDeployment", Field("Deployment")),
    get("job/{JobID}/summary", "Job.Summary", Found("JobSummary", "job not found")),
    get("job/{JobID}/versions", "Job.GetJobVersions", Whole).with(&[("Diffs", Flag("diffs"))]),
    get("job/{JobID}/scale", "Job.ScaleStatus", Found("JobScaleStatus", "job not found")),
    get("job/{JobID}/services", "Job.GetServiceRegistrations", Field("Services")),
    get("job/{JobID}/submission", "Job.GetJobSubmission", Found("Submission", "job source not found"))
        .with(&[("Version", Number("version"))]),
    put("job/{JobID}/evaluate", "Job.Evaluate", &["EvalOptions"]),
    put("job/{JobID}/dispatch", "Job.Dispatch", &["Meta", "Payload", "IdPrefixTemplate"]),
    put("job/{JobID}/revert", "Job.Revert", &["JobVersion", "EnforcePriorVersion"]),
    put("job/{JobID}/stable", "Job.Stable", &["JobVersion", "Stable"]),
    put("job/{JobID}/scale", "Job.Scale", &["Target", "Count", "Message", "Error", "Meta"]),
    put("job/{JobID}/periodic/force", "Periodic.Force", &[]),
    get("nodes", "Node.List", Field("Nodes")).with(OF_NODES),
    get("node/pools", "NodePool.List", Field("NodePools")),
    get("node/pool/{Name}", "NodePool.GetNodePool", Found("NodePool", "node pool not found")),
    get("node/pool/{Name}/nodes", "NodePool.ListNodes", Field("Nodes")).with(OF_NODES),
    get("node/{NodeID}", "Node.GetNode", Found("Node", "node not found")),
    get("node/{NodeID}/allocations", "Node.GetAllocs", Field("Allocs")),
    put("node/{NodeID}/evaluate", "Node.Evaluate", &[]),
    put("node/{NodeID}/eligibility", "Node.UpdateEligibility", &["Eligibility"]),
    put("node/{NodeID}/drain", "Node.UpdateDrain", &["DrainSpec", "MarkEligible", "Meta"]),
    put("node/{NodeID}/purge", "Node.Deregister", &[]),
    get("allocations", "Alloc.List", Field("Allocations")).with(OF_ALLOCS),
    get("allocation/{AllocID}", "Alloc.GetAlloc", Found("Alloc", "alloc not found")),
    put("allocation/{AllocID}/stop", "Alloc.Stop", &[])
        .with(&[("NoShutdownDelay", Flag("no_shutdown_delay")), ("Reschedule", Flag("reschedule"))]),
    get("allocation/{AllocID}/services", "Alloc.GetServiceRegistrations", Field("Services")),
    get("evaluations", "Eval.List", Field("Evaluations"))
        .with(&[("FilterEvalStatus", Text("status")), ("FilterJobID", Text("job"))]),
    get("evaluation/{EvalID}", "Eval.GetEval", Found("Eval", "eval not found"))
        .with(&[("IncludeRelated", Flag("related"))]),
    get("evaluation/{EvalID}/allocations", "Eval.Allocations", Field("Allocations")),
    get("deployments", "Deployment.List", Field("Deployments")),
    get("deployment/{DeploymentID}", "Deployment.GetDeployment", Found("Deployment", "deployment not found")),
    get("deployment/allocations/{DeploymentID}", "Deployment.Allocations", Field("Allocations")),
    put("deployment/promote/{DeploymentID}", "Deployment.Promote", &["All", "Groups"]),
    put("deployment/fail/{DeploymentID}", "Deployment.Fail", &[]),
    put("deployment/pause/{DeploymentID}", "Deployment.Pause", &["Pause"]),
    put("deployment/unblock/{DeploymentID}", "Deployment.Unblock", &[]),
    put(
        "deployment/allocation-health/{DeploymentID}",
        "Deployment.SetAllocHealth",
        &["HealthyAllocationIDs", "UnhealthyAllocationIDs"],
    ),
    get("services", "ServiceRegistration.List", Field("Services")),
    get("service/{ServiceName}", "ServiceRegistration.GetService", Field("Services"))
        .with(&[("Choose", Text("choose"))]),
    Route {
        verb: Delete,
        ..put("service/{ServiceName}/{ID}", "ServiceRegistration.DeleteByID", &[]).told(Nothing)
    },
    put("search", "Search.PrefixSearch", &["Prefix", "Context"]),
    put("search/fuzzy", "Search.FuzzySearch", &["Text", "Context"]),
    get("namespaces", "Namespace.ListNamespaces", Field("Namespaces")),
    get("namespace/{Name}", "Namespace.GetNamespace", Found("Namespace", "Namespace not found")),
    get("volumes", "CSIVolume.List", Field("Volumes"))
        .with(&[("NodeID", Text("node_id")), ("PluginID", Text("plugin_id"))]),
    get("volume/csi/{ID}", "CSIVolume.Get", Found("Volume", "volume not found")),
    get("plugins", "CSIPlugin.List", Field("Plugins")),
    get("regions", "Region.List", Whole),
    get("status/leader", "Status.Leader", Whole),
    get("status/peers", "Status.Peers", Whole),
    get("agent/members", "Status.Members", Whole),
    get("operator/raft/configuration", "Operator.RaftGetConfiguration", Whole),
    get("operator/scheduler/configuration", "Operator.SchedulerGetConfiguration", Whole),
    put("system/gc", "System.GarbageCollect", &[]).told(Nothing),
    put("system/reconcile/summaries", "System.ReconcileJobSummaries", &[]).told(Nothing),
];

/// What stands in a path, by the name of its field.
pub(super) type Named = Vec<(&'static str, String)>;

/// The route of a path below `/v1/`, and the fields that stand in it.
pub(super) fn find(verb: Verb, path: &str) -> Result<(&'static Route, Named), Missing> {
    let mut is_known = false;
    for route in ROUTES {
        let Some(fields) = fields(route.path, path) else { continue };
        if route.verb == verb {
            return Ok((route, fields));
        }
        is_known = true;
    }
    Err(if is_known { Missing::Verb } else { Missing::Path })
}

/// Why there is no route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Missing {
    /// There is one for another method.
    Verb,
    /// There is none at all.
    Path,
}

/// What stands in a path for the names in its pattern.
fn fields(pattern: &'static str, path: &str) -> Option<Named> {
    let decoded = |part: &str| percent_decoded(part).filter(|part| !part.is_empty());
    let (mut left, mut found) = (path, Vec::new());
    let mut parts = pattern.split('/').peekable();
    while let Some(part) = parts.next() {
        let (first, rest) = left.split_once('/').unwrap_or((left, ""));
        match part.strip_prefix('{').and_then(|part| part.strip_suffix('}')) {
            Some(name) => found.push((name, decoded(first)?)),
            None if part == first => {}
            None => return None,
        }
        if parts.peek().is_none() {
            return (left.len() == first.len()).then_some(found);
        }
        left = rest;
    }
    None
}

/// A part of a path, without its `%XX`.
pub(super) fn percent_decoded(part: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(part.len());
    let mut left = part.as_bytes();
    while let [byte, rest @ ..] = left {
        left = rest;
        match (byte, left) {
            (b'%', [high, low, rest @ ..]) => {
                let digits = [*high, *low];
                bytes.push(u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?);
                left = rest;
            }
            (byte, _) => bytes.push(*byte),
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_have_the_calls_that_answer_them() {
        for (verb, path, call, expected) in [
            (Get, "jobs", "Job.List", &[][..]),
            (Get, "job/web", "Job.GetJob", &[("JobID", "web")]),
            (Get, "job/web%2Fone", "Job.GetJob", &[("JobID", "web/one")]),
            (Delete, "job/web", "Job.Deregister", &[("JobID", "web")]),
            (Get, "node/pools", "NodePool.List", &[]),
            (Get, "node/n1/allocations", "Node.GetAllocs", &[("NodeID", "n1")]),
            (Get, "deployment/d1", "Deployment.GetDeployment", &[("DeploymentID", "d1")]),
            (Get, "deployment/allocations/d1", "Deployment.Allocations", &[("DeploymentID", "d1")]),
            (Put, "client/allocation/a1/restart", "ClientAllocations.Restart", &[("AllocID", "a1")]),
            (
                Delete,
                "service/web/s1",
                "ServiceRegistration.DeleteByID",
                &[("ServiceName", "web"), ("ID", "s1")],
            ),
        ] {
            let (route, fields) = find(verb, path).unwrap();
            let fields: Vec<_> = fields.iter().map(|(name, value)| (*name, value.as_str())).collect();
            assert_eq!((route.call, fields.as_slice()), (call, expected), "{path}");
        }
        for (verb, path, why) in [
            (Get, "nope", Missing::Path),
            (Get, "job/", Missing::Path),
            (Get, "jobs/", Missing::Path),
            (Get, "job/web/nope", Missing::Path),
            (Put, "allocations", Missing::Verb),
        ] {
            assert_eq!(find(verb, path).unwrap_err(), why, "{path}");
        }
    }

    #[test]
    fn each_route_can_be_reached() {
        for route in ROUTES {
            let path: Vec<_> =
                route.path.split('/').map(|part| if part.starts_with('{') { "x" } else { part }).collect();
            let (found, _) = find(route.verb, &path.join("/")).unwrap();
            assert_eq!(found.call, route.call, "{}", route.path);
        }
    }
}
