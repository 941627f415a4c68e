//! Bodies of the local API's own endpoints, `/v1/herdlet/…`. Those that Nomad has too are in [`crate::nomad`].

use std_alloc::{collections::BTreeMap, string::String, sync::Arc, vec::Vec};

use serde::{Deserialize, Serialize};

use crate::{
    AllocId, Duration, JobKey, UnixNanos,
    view::{AllocView, Convergence, JobView, Unplaced, VolumeView},
};

/// Header of a 503 response: whether the request may still take effect.
pub const EFFECT_HEADER: &str = "herdlet-effect";

/// Value of [`EFFECT_HEADER`]: the request may still take effect.
pub const EFFECT_OPEN: &str = "open";

/// The version of the agent and its command line.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The commit that the program was built from, if the build set `HERDLET_COMMIT`.
pub const COMMIT: Option<&str> = option_env!("HERDLET_COMMIT");

/// Body of `POST /v1/herdlet/apply`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ApplyRequest {
    /// Manifests as their author wrote them.
    pub files: Vec<ManifestText>,
    /// Values for the variables of HCL job files.
    #[serde(default)]
    pub variables: VariableTexts,
    /// The set that the jobs belong to from then on; none if empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub set: String,
    /// The files of variables that the manifests name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env_files: Vec<EnvFileText>,
    /// The absolute directories of manifests, by name, where a manifest refers to its own.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub dirs: BTreeMap<String, String>,
}

/// A file of variables, beside a manifest.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EnvFileText {
    /// The name of the manifest.
    pub manifest: String,
    /// The path as the manifest names it.
    pub path: String,
    /// Its content; `None` if it does not exist.
    pub text: Option<String>,
}

/// Response of `POST /v1/herdlet/plan`: the result of an apply of these manifests. Changes nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanReply {
    /// The jobs.
    pub jobs: Vec<PlannedJob>,
    /// Warnings of an apply, in addition to those about the manifests; one per line.
    #[serde(default)]
    pub warnings: Vec<String>,
}

/// The result of an apply for one job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedJob {
    /// The job.
    pub job: JobKey,
    /// Groups whose allocations would wait, and why.
    pub unplaced: BTreeMap<String, Unplaced>,
    /// The first launch if it were applied now; `None` if it is not periodic.
    #[serde(default)]
    pub next_launch: Option<UnixNanos>,
}

/// Values for the variables of HCL job files, as given; the last of several values for a variable wins.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct VariableTexts {
    /// `NOMAD_VAR_<name>` by name; variables that no file declares are ignored.
    pub environment: BTreeMap<String, String>,
    /// Variable files, HCL or JSON.
    pub files: Vec<ManifestText>,
    /// `NAME=VALUE`
    pub assignments: Vec<String>,
}

/// One manifest file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ManifestText {
    /// The name in problems: a path, or `<stdin>`.
    pub name: String,
    /// YAML, Nomad's JSON or HCL.
    pub text: String,
}

/// Response to an accepted apply. The change is durable.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApplyReply {
    /// The commit of the change.
    pub index: u64,
    /// The jobs, in the order of the files.
    pub jobs: Vec<AppliedJob>,
    /// Names of volumes that were created or changed.
    pub volumes: Vec<String>,
    /// Warnings about accepted parts without the effect they suggest; one per line.
    pub warnings: Vec<String>,
}

/// The change of one job by an apply.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AppliedJob {
    /// The job.
    pub job: JobKey,
    /// Its current version, from 0.
    pub version: u64,
    /// The change.
    pub change: JobChange,
    /// The next launch; `None` if it is not periodic.
    #[serde(default)]
    pub next_launch: Option<UnixNanos>,
}

/// The change of a job by an apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum JobChange {
    /// It is new.
    Created,
    /// It has a new version.
    Updated,
    /// It was already equal.
    Unchanged,
}

impl JobChange {
    /// The name in output.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Updated => "updated",
            Self::Unchanged => "unchanged",
        }
    }
}

/// Response of `GET /v1/herdlet/status`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentStatus {
    /// The agent's version.
    pub version: String,
    /// Node id.
    pub node_id: String,
    /// Node name.
    pub node_name: String,
    /// The commit that the agent was built from, if its build recorded it.
    #[serde(default)]
    pub commit: Option<String>,
    /// The instance that the state belongs to.
    pub instance: String,
    /// How tasks are isolated, for instance `cgroup v2` or `none: …`.
    pub isolation: String,
    /// Missing cgroup controllers, whose limits have no effect: `memory`, `cpu`, `pids`.
    #[serde(default)]
    pub missing_controllers: Vec<String>,
    /// The maximum `kill_timeout` of a task; `None` from an older agent.
    #[serde(default)]
    pub max_kill_timeout: Option<Duration>,
    /// Whether it is a node of a cluster: servers place jobs here, too.
    #[serde(default)]
    pub in_cluster: bool,
    /// The state directory; empty from an older agent.
    #[serde(default)]
    pub state_dir: String,
    /// The start time of the agent process.
    pub started_at: UnixNanos,
    /// Why it is not ready; `None` if it is.
    pub not_ready: Option<String>,
    /// Why it is degraded, for instance a state database that can't be written; `None` if it is not.
    pub degraded: Option<String>,
    /// That the disk is full, though the state can still be written, and what to do; `None` if it is not full.
    #[serde(default)]
    pub disk_full: Option<String>,
    /// Problems to fix before they cause harm, such as a certificate about to expire.
    #[serde(default)]
    pub warnings: Vec<String>,
    /// Problems in the manifests of followed folders; the affected parts are not in force.
    #[serde(default)]
    pub manifest_problems: Vec<ManifestProblem>,
    /// The last commit that changed visible state.
    pub index: u64,
    /// The number of jobs by state: `converged progressing waiting failed`.
    pub jobs: BTreeMap<String, usize>,
    /// The number of allocations by state.
    pub allocs: BTreeMap<String, usize>,
    /// Everything that has not converged, jobs first.
    pub unconverged: Vec<Unconverged>,
}

/// A problem at one place of a manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManifestProblem {
    /// The file, or the folder as a whole.
    pub source: String,
    /// Line, from 1; 0 for the whole text.
    pub line: u32,
    /// Column in characters, from 1; 0 for the whole text.
    pub column: u32,
    /// Its place in the data, such as `spec.groups[0].name`; empty for the whole document.
    pub path: String,
    /// The problem.
    pub message: String,
}

/// A job or allocation that has not converged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unconverged {
    /// A job, or `job.group[index]`.
    pub name: String,
    /// The allocation, if it is one.
    pub alloc: Option<AllocId>,
    /// Its progress.
    pub convergence: Convergence,
}

/// A line of `GET /v1/herdlet/events`: newline-delimited JSON.
///
/// A stream begins with `reset` and all visible objects, unless it resumes at the current index. `reset` comes again if
/// the reader was too slow for every change.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// Forget everything: all objects follow.
    Reset,
    /// A new or changed job.
    Job(Arc<JobView>),
    /// The job was removed.
    JobGone(JobKey),
    /// A new or changed allocation.
    Alloc(Arc<AllocView>),
    /// The allocation was removed.
    AllocGone(AllocId),
    /// A new or changed volume.
    Volume(Arc<VolumeView>),
    /// The volume was removed.
    VolumeGone(String),
    /// All changes up to this commit have been sent.
    Index(u64),
}
