//! All routes. Of several patterns that fit a path the first counts.

use super::{
    Body::{self, All, Fields, Ignored, In, Job, OneOf, Raw},
    Part::{self, Field, First, Found, List, Nothing, Whole},
    Route,
    Take::{self, Always, Flag, Given, Number, Text},
    Verb::{Delete, Get, Put},
};

const fn get(path: &'static str, call: &'static str, answer: Part) -> Route {
    Route { verb: Get, path, call, own: None, query: &[], body: Ignored, answer }
}

const fn put(path: &'static str, call: &'static str, body: Body) -> Route {
    Route { verb: Put, path, call, own: None, query: &[], body, answer: Whole }
}

const fn delete(path: &'static str, call: &'static str) -> Route {
    Route { verb: Delete, path, call, own: None, query: &[], body: Ignored, answer: Nothing }
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
const OF_JOBS: &[(&str, Take)] = &[("Fields.Meta", Flag("meta"))];
const ALL: &[(&str, Take)] = &[("All", Flag("all"))];
const PATH: &[(&str, Take)] = &[("Path", Text("path"))];
const TASK: &[(&str, Take)] = &[("Task", Text("task"))];
const FORCE: &[(&str, Take)] = &[("Force", Flag("force"))];
const CHECKED: &[(&str, Take)] = &[("CAS", Given("cas")), ("Config.ModifyIndex", Number("cas"))];
const PLUGIN: &[(&str, Take)] = &[("PluginID", Text("plugin_id"))];
const PROFILE: &[(&str, Take)] = &[
    ("ServerID", Text("server_id")),
    ("Debug", Number("debug")),
    ("GC", Number("gc")),
    ("Seconds", Number("seconds")),
];

/// What is said of a job beside itself.
const OF_REGISTRATION: Body = Job(&[
    "EnforceIndex",
    "JobModifyIndex",
    "PolicyOverride",
    "PreserveCounts",
    "PreserveResources",
    "EvalPriority",
    "Submission",
]);

pub(super) const ROUTES: &[Route] = &[
    // This node, or another one.
    get("client/stats", "ClientStats.Stats", Field("HostStats")).or_here("ClientStats.Stats"),
    get("client/gc", "ClientAllocations.GarbageCollectAll", Nothing).or_here("Allocations.GarbageCollectAll"),
    put("client/gc", "ClientAllocations.GarbageCollectAll", Ignored)
        .or_here("Allocations.GarbageCollectAll")
        .told(Nothing),
    get("client/metadata", "NodeMeta.Read", Whole).or_here("NodeMeta.Read"),
    put("client/metadata", "NodeMeta.Apply", Fields(&["NodeID", "Meta"])).or_here("NodeMeta.Apply"),
    get("client/identity", "NodeIdentity.Get", Whole).or_here("NodeIdentity.Get"),
    put("client/identity/renew", "NodeIdentity.Renew", Fields(&["NodeID"])).or_here("NodeIdentity.Renew"),
    get("agent/host", "Agent.Host", Whole).or_here("Agent.Host").with(&[("ServerID", Text("server_id"))]),
    get("agent/pprof/{Profile}", "Agent.Profile", Field("Payload")).or_here("Agent.Profile").with(PROFILE),
    // Allocations of this node, or of another one.
    get("client/allocation/{AllocID}/stats", "ClientAllocations.Stats", Field("Stats"))
        .or_here("Allocations.Stats")
        .with(TASK),
    get("client/allocation/{AllocID}/checks", "ClientAllocations.Checks", Field("Results"))
        .or_here("Allocations.Checks"),
    get("client/allocation/{AllocID}/gc", "ClientAllocations.GarbageCollect", Nothing)
        .or_here("Allocations.GarbageCollect"),
    put("client/allocation/{AllocID}/gc", "ClientAllocations.GarbageCollect", Ignored)
        .or_here("Allocations.GarbageCollect")
        .told(Nothing),
    put(
        "client/allocation/{AllocID}/restart",
        "ClientAllocations.Restart",
        Fields(&["TaskName", "AllTasks"]),
    )
    .or_here("Allocations.Restart"),
    put("client/allocation/{AllocID}/signal", "ClientAllocations.Signal", Fields(&["Task", "Signal"]))
        .or_here("Allocations.Signal"),
    get("client/allocation/{AllocID}/pause", "ClientAllocations.GetPauseState", Whole)
        .or_here("Allocations.GetPauseState")
        .with(TASK),
    put(
        "client/allocation/{AllocID}/pause",
        "ClientAllocations.SetPauseState",
        Fields(&["Task", "ScheduleState"]),
    )
    .or_here("Allocations.SetPauseState"),
    get("client/fs/ls/{AllocID}", "FileSystem.List", Field("Files")).or_here("FileSystem.List").with(PATH),
    get("client/fs/stat/{AllocID}", "FileSystem.Stat", Field("Info")).or_here("FileSystem.Stat").with(PATH),
    get("allocation/{AllocID}/checks", "ClientAllocations.Checks", Field("Results"))
        .or_here("Allocations.Checks"),
    // Jobs.
    get("jobs", "Job.List", List("Jobs")).with(OF_JOBS),
    put("jobs", "Job.Register", OF_REGISTRATION),
    get("jobs/statuses", "Job.Statuses", List("Jobs")).with(&[("IncludeChildren", Flag("include_children"))]),
    put("jobs/statuses", "Job.Statuses", Fields(&["Jobs"]))
        .with(&[("IncludeChildren", Flag("include_children"))])
        .told(List("Jobs")),
    put("validate/job", "Job.Validate", Job(&[])),
    get("job/{JobID*}/allocations", "Job.Allocations", List("Allocations")).with(ALL),
    get("job/{JobID*}/evaluations", "Job.Evaluations", List("Evaluations")),
    get("job/{JobID*}/deployments", "Job.Deployments", List("Deployments")).with(ALL),
    get("job/{JobID*}/deployment", "Job.LatestDeployment", Field("Deployment")),
    get("job/{JobID*}/summary", "Job.Summary", Found("JobSummary", "job not found")),
    get("job/{JobID*}/versions", "Job.GetJobVersions", Whole).with(&[
        ("Diffs", Flag("diffs")),
        ("DiffTagName", Text("diff_tag")),
        ("DiffVersion", Number("diff_version")),
    ]),
    put("job/{JobID*}/versions/{Name}/tag", "Job.TagVersion", Fields(&["Version", "Latest", "Description"])),
    Route { answer: Whole, ..delete("job/{JobID*}/versions/{Name}/tag", "Job.TagVersion") },
    get("job/{JobID*}/scale", "Job.ScaleStatus", Found("JobScaleStatus", "job not found")),
    put(
        "job/{JobID*}/scale",
        "Job.Scale",
        Fields(&["Target", "Count", "Message", "Error", "Meta", "PolicyOverride", "JobModifyIndex"]),
    ),
    get("job/{JobID*}/services", "Job.GetServiceRegistrations", Found("Services", "job not found")),
    get("job/{JobID*}/submission", "Job.GetJobSubmission", Found("Submission", "job source not found"))
        .with(&[("Version", Number("version"))]),
    get("job/{JobID*}/actions", "Job.GetActions", Field("Actions")),
    put("job/{JobID*}/plan", "Job.Plan", Job(&["Diff", "PolicyOverride"])),
    put("job/{JobID*}/evaluate", "Job.Evaluate", Fields(&["EvalOptions"])),
    put(
        "job/{JobID*}/dispatch",
        "Job.Dispatch",
        Fields(&["Meta", "Payload", "IdPrefixTemplate", "Priority"]),
    ),
    put("job/{JobID*}/dispatch/payload", "Job.Dispatch", Raw("Payload")),
    put(
        "job/{JobID*}/revert",
        "Job.Revert",
        Fields(&["JobVersion", "EnforcePriorVersion", "ConsulToken", "VaultToken"]),
    ),
    put("job/{JobID*}/stable", "Job.Stable", Fields(&["JobVersion", "Stable"])),
    put("job/{JobID*}/periodic/force", "Periodic.Force", Ignored),
    get("job/{JobID*}", "Job.GetJob", Found("Job", "job not found")),
    put("job/{JobID*}", "Job.Register", OF_REGISTRATION),
    Route { answer: Whole, ..delete("job/{JobID*}", "Job.Deregister") }.with(&[
        ("Purge", Flag("purge")),
        ("Global", Flag("global")),
        ("NoShutdownDelay", Flag("no_shutdown_delay")),
        ("EvalPriority", Number("eval_priority")),
    ]),
    // Nodes.
    get("nodes", "Node.List", List("Nodes")).with(OF_NODES),
    get("node/pools", "NodePool.List", List("NodePools")),
    put("node/pools", "NodePool.UpsertNodePools", OneOf("NodePools")).told(Nothing),
    get("node/pool/{Name}/nodes", "NodePool.ListNodes", List("Nodes")).with(OF_NODES),
    get("node/pool/{Name}/jobs", "NodePool.ListJobs", List("Jobs")).with(OF_JOBS),
    get("node/pool/{Name}", "NodePool.GetNodePool", Found("NodePool", "node pool not found")),
    put("node/pool/{Name}", "NodePool.UpsertNodePools", OneOf("NodePools")).told(Nothing),
    delete("node/pool/{Names[]}", "NodePool.DeleteNodePools"),
    get("node/{NodeID}", "Node.GetNode", Found("Node", "node not found")),
    get("node/{NodeID}/allocations", "Node.GetAllocs", List("Allocs")),
    put("node/{NodeID}/evaluate", "Node.Evaluate", Ignored),
    put("node/{NodeID}/eligibility", "Node.UpdateEligibility", Fields(&["Eligibility"])),
    put("node/{NodeID}/drain", "Node.UpdateDrain", Fields(&["DrainSpec", "MarkEligible", "Meta"])),
    put("node/{NodeID}/purge", "Node.Deregister", Ignored),
    // Allocations, evaluations, deployments, services.
    get("allocations", "Alloc.List", List("Allocations")).with(OF_ALLOCS),
    get("allocation/{AllocID}", "Alloc.GetAlloc", Found("Alloc", "alloc not found")),
    put("allocation/{AllocID}/stop", "Alloc.Stop", Ignored)
        .with(&[("NoShutdownDelay", Flag("no_shutdown_delay")), ("Reschedule", Flag("reschedule"))]),
    get(
        "allocation/{AllocID}/services",
        "Alloc.GetServiceRegistrations",
        Found("Services", "alloc not found"),
    ),
    get("evaluations", "Eval.List", List("Evaluations"))
        .with(&[("FilterEvalStatus", Text("status")), ("FilterJobID", Text("job"))]),
    Route { body: Fields(&["EvalIDs", "Filter"]), answer: Whole, ..delete("evaluations", "Eval.Delete") },
    get("evaluations/count", "Eval.Count", Whole),
    get("evaluation/{EvalID}", "Eval.GetEval", Found("Eval", "eval not found"))
        .with(&[("IncludeRelated", Flag("related"))]),
    get("evaluation/{EvalID}/allocations", "Eval.Allocations", List("Allocations")),
    get("deployments", "Deployment.List", List("Deployments")),
    get("deployment/allocations/{DeploymentID}", "Deployment.Allocations", List("Allocations")),
    put("deployment/promote/{DeploymentID}", "Deployment.Promote", Fields(&["All", "Groups"])),
    put("deployment/fail/{DeploymentID}", "Deployment.Fail", Ignored),
    put("deployment/pause/{DeploymentID}", "Deployment.Pause", Fields(&["Pause"])),
    put("deployment/unblock/{DeploymentID}", "Deployment.Unblock", Ignored),
    put(
        "deployment/allocation-health/{DeploymentID}",
        "Deployment.SetAllocHealth",
        Fields(&["HealthyAllocationIDs", "UnhealthyAllocationIDs"]),
    ),
    get("deployment/{DeploymentID}", "Deployment.GetDeployment", Found("Deployment", "deployment not found")),
    get("services", "ServiceRegistration.List", List("Services")),
    get("service/{ServiceName}", "ServiceRegistration.GetService", List("Services"))
        .with(&[("Choose", Text("choose"))]),
    delete("service/{ServiceName}/{ID}", "ServiceRegistration.DeleteByID"),
    // Namespaces, variables, scaling, search.
    get("namespaces", "Namespace.ListNamespaces", List("Namespaces")),
    put("namespace", "Namespace.UpsertNamespaces", OneOf("Namespaces")).told(Nothing),
    get("namespace/{Name}", "Namespace.GetNamespace", Found("Namespace", "Namespace not found")),
    put("namespace/{Name}", "Namespace.UpsertNamespaces", OneOf("Namespaces")).told(Nothing),
    delete("namespace/{Namespaces[]}", "Namespace.DeleteNamespaces"),
    get("vars", "Variables.List", List("Data")),
    get("var/{Path*}", "Variables.Read", Found("Data", "variable not found")),
    put("var/{Path*}", "Variables.Apply", In("Var")).told(Field("Output")),
    delete("var/{Path*}", "Variables.Apply"),
    get("scaling/policies", "Scaling.ListPolicies", List("Policies"))
        .with(&[("Job", Text("job")), ("Type", Text("type"))]),
    get("scaling/policy/{ID}", "Scaling.GetPolicy", Found("Policy", "policy not found")),
    put("search", "Search.PrefixSearch", Fields(&["Prefix", "Context"])),
    put("search/fuzzy", "Search.FuzzySearch", Fields(&["Text", "Context"])),
    // Volumes. Those of hosts are listed by another call, see `RequestParams::path`.
    get("volumes", "CSIVolume.List", List("Volumes"))
        .with(&[("NodeID", Text("node_id")), ("PluginID", Text("plugin_id"))]),
    get("volumes?host", "HostVolume.List", List("Volumes"))
        .with(&[("NodeID", Text("node_id")), ("NodePool", Text("node_pool"))]),
    get("volumes/external", "CSIVolume.ListExternal", Whole).with(PLUGIN),
    get("volumes/snapshot", "CSIVolume.ListSnapshots", Whole).with(PLUGIN),
    put("volumes/snapshot", "CSIVolume.CreateSnapshot", Fields(&["Snapshots"])),
    get("volume/csi/{ID}", "CSIVolume.Get", Found("Volume", "volume not found")),
    put("volume/csi/{ID}", "CSIVolume.Register", Fields(&["Volumes", "PolicyOverride"])),
    delete("volume/csi/{VolumeIDs[]}", "CSIVolume.Deregister").with(FORCE),
    put("volume/csi/{ID}/create", "CSIVolume.Create", Fields(&["Volumes", "PolicyOverride"])),
    delete("volume/csi/{VolumeIDs[]}/delete", "CSIVolume.Delete"),
    delete("volume/csi/{VolumeID}/detach", "CSIVolume.Unpublish")
        .with(&[("Claim.NodeID", Text("node")), ("Claim.Mode", Always(2))]),
    put("volume/host/create", "HostVolume.Create", Fields(&["Volume", "PolicyOverride"])),
    put("volume/host/register", "HostVolume.Register", Fields(&["Volume", "PolicyOverride"])),
    get("volume/host/{ID}", "HostVolume.Get", Found("Volume", "volume not found")),
    delete("volume/host/{VolumeID}", "HostVolume.Delete").with(FORCE).told(Whole),
    delete("volume/host/{VolumeID}/delete", "HostVolume.Delete").with(FORCE).told(Whole),
    get("plugins", "CSIPlugin.List", List("Plugins")),
    get("plugin/csi/{ID}", "CSIPlugin.Get", Found("Plugin", "plugin not found")),
    // Who may do what.
    get("acl/policies", "ACL.ListPolicies", List("Policies")),
    get("acl/policy/{Name}", "ACL.GetPolicy", Found("Policy", "ACL policy not found")),
    put("acl/policy/{Name}", "ACL.UpsertPolicies", OneOf("Policies")).told(Nothing),
    delete("acl/policy/{Names[]}", "ACL.DeletePolicies"),
    put("acl/bootstrap", "ACL.Bootstrap", Fields(&["BootstrapSecret"])).told(First("Tokens")),
    get("acl/tokens", "ACL.ListTokens", List("Tokens")).with(&[("GlobalOnly", Flag("global"))]),
    put("acl/token", "ACL.UpsertTokens", OneOf("Tokens")).told(First("Tokens")),
    put("acl/token/onetime", "ACL.UpsertOneTimeToken", Ignored),
    put("acl/token/onetime/exchange", "ACL.ExchangeOneTimeToken", All),
    get("acl/token/self", "ACL.WhoAmI", Found("Identity.ACLToken", "ACL token not found")),
    get("acl/token/{AccessorID}", "ACL.GetToken", Found("Token", "ACL token not found")),
    put("acl/token/{AccessorID}", "ACL.UpsertTokens", OneOf("Tokens")).told(First("Tokens")),
    delete("acl/token/{AccessorIDs[]}", "ACL.DeleteTokens"),
    get("acl/roles", "ACL.ListRoles", List("ACLRoles")),
    put("acl/role", "ACL.UpsertRoles", OneOf("ACLRoles")).told(First("ACLRoles")),
    get("acl/role/name/{RoleName}", "ACL.GetRoleByName", Found("ACLRole", "ACL role not found")),
    get("acl/role/{RoleID}", "ACL.GetRoleByID", Found("ACLRole", "ACL role not found")),
    put("acl/role/{RoleID}", "ACL.UpsertRoles", OneOf("ACLRoles")).told(First("ACLRoles")),
    delete("acl/role/{ACLRoleIDs[]}", "ACL.DeleteRolesByID"),
    get("acl/auth-methods", "ACL.ListAuthMethods", List("AuthMethods")),
    put("acl/auth-method", "ACL.UpsertAuthMethods", OneOf("AuthMethods")).told(First("AuthMethods")),
    get(
        "acl/auth-method/{MethodName}",
        "ACL.GetAuthMethod",
        Found("AuthMethod", "ACL auth-method not found"),
    ),
    put("acl/auth-method/{MethodName}", "ACL.UpsertAuthMethods", OneOf("AuthMethods"))
        .told(First("AuthMethods")),
    delete("acl/auth-method/{Names[]}", "ACL.DeleteAuthMethods"),
    get("acl/binding-rules", "ACL.ListBindingRules", List("ACLBindingRules")),
    put("acl/binding-rule", "ACL.UpsertBindingRules", OneOf("ACLBindingRules"))
        .told(First("ACLBindingRules")),
    get(
        "acl/binding-rule/{ACLBindingRuleID}",
        "ACL.GetBindingRule",
        Found("ACLBindingRule", "ACL binding rule not found"),
    ),
    put("acl/binding-rule/{ACLBindingRuleID}", "ACL.UpsertBindingRules", OneOf("ACLBindingRules"))
        .told(First("ACLBindingRules")),
    delete("acl/binding-rule/{ACLBindingRuleIDs[]}", "ACL.DeleteBindingRules"),
    put("acl/oidc/auth-url", "ACL.OIDCAuthURL", All),
    put("acl/oidc/complete-auth", "ACL.OIDCCompleteAuth", All).told(Field("ACLToken")),
    put("acl/login", "ACL.Login", All).told(Field("ACLToken")),
    put("acl/identity/client-introduction-token", "ACL.CreateClientIntroductionToken", All),
    // The servers themselves.
    get("regions", "Region.List", Whole),
    get("status/leader", "Status.Leader", Whole),
    get("status/peers", "Status.Peers", Whole),
    get("agent/members", "Status.Members", Whole),
    get("operator/raft/configuration", "Operator.RaftGetConfiguration", Whole),
    delete("operator/raft/peer", "Operator.RaftRemovePeerByID").with(&[("ID", Text("id"))]),
    put("operator/raft/transfer-leadership", "Operator.TransferLeadershipToPeer", Ignored)
        .with(&[("ID", Text("id")), ("Address", Text("address"))]),
    get("operator/autopilot/configuration", "Operator.AutopilotGetConfiguration", Whole),
    put("operator/autopilot/configuration", "Operator.AutopilotSetConfiguration", In("Config")).with(CHECKED),
    get("operator/autopilot/health", "Operator.ServerHealth", Whole),
    get("operator/scheduler/configuration", "Operator.SchedulerGetConfiguration", Whole),
    put("operator/scheduler/configuration", "Operator.SchedulerSetConfiguration", In("Config")).with(CHECKED),
    get("operator/keyring/keys", "Keyring.List", List("Keys")),
    get(".well-known/jwks.json", "Keyring.ListPublic", Whole),
    get(".well-known/openid-configuration", "Keyring.GetConfig", Whole),
    put("operator/keyring/rotate", "Keyring.Rotate", Ignored).with(&[
        ("Algorithm", Text("algo")),
        ("Full", Given("full")),
        ("PublishTime", Number("publish_time")),
    ]),
    delete("operator/keyring/key/{KeyID}", "Keyring.Delete").with(FORCE),
    get(
        "operator/upgrade-check/vault-workload-identity",
        "Operator.UpgradeCheckVaultWorkloadIdentity",
        Whole,
    ),
    put("system/gc", "System.GarbageCollect", Ignored).told(Nothing),
    put("system/reconcile/summaries", "System.ReconcileJobSummaries", Ignored).told(Nothing),
];
