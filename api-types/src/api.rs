//! Bodies of the local API's own endpoints, `/v1/herdlet/…`. What Nomad has too is in [`crate::nomad`].

use std_alloc::{collections::BTreeMap, string::String, sync::Arc, vec::Vec};

use serde::{Deserialize, Serialize};

use crate::{
    AllocId, Duration, JobKey, UnixNanos,
    view::{AllocView, Convergence, JobView, Unplaced, VolumeView},
};

/// Header of an answer 503: whether the request may still take effect.
pub const EFFECT_HEADER: &str = "herdlet-effect";

/// Value of [`EFFECT_HEADER`]: it may.
pub const EFFECT_OPEN: &str = "open";

/// The release of the agent and its command line.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Body of `POST /v1/herdlet/apply`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ApplyRequest {
    /// Manifests, as their author wrote them.
    pub files: Vec<ManifestText>,
    /// Values for the variables of HCL job files.
    #[serde(default)]
    pub variables: VariableTexts,
    /// The set that the jobs belong to from then on; none where empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub set: String,
}

/// Answer of `POST /v1/herdlet/plan`: what would come of an apply of these manifests. Nothing is changed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanReply {
    /// Each job.
    pub jobs: Vec<PlannedJob>,
    /// What an apply would say beside what the manifests themselves tell, a line each.
    #[serde(default)]
    pub warnings: Vec<String>,
}

/// What would come of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedJob {
    /// Which.
    pub job: JobKey,
    /// Groups of which allocations would wait, and why.
    pub unplaced: BTreeMap<String, Unplaced>,
    /// When it would be launched first, were it applied now; none where it is not periodic.
    #[serde(default)]
    pub next_launch: Option<UnixNanos>,
}

/// Values for the variables of HCL job files, as they were given; of several for one variable the last holds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct VariableTexts {
    /// `NOMAD_VAR_<name>` by name; what no file declares is passed over.
    pub environment: BTreeMap<String, String>,
    /// Files of values, HCL or JSON.
    pub files: Vec<ManifestText>,
    /// `NAME=VALUE`
    pub assignments: Vec<String>,
}

/// One manifest file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ManifestText {
    /// What problems call it: a path, or `<stdin>`.
    pub name: String,
    /// YAML, Nomad's JSON or HCL.
    pub text: String,
}

/// Answer to an accepted apply. It is durable.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApplyReply {
    /// The commit that made it so.
    pub index: u64,
    /// Per job, in the order of the files.
    pub jobs: Vec<AppliedJob>,
    /// Names of volumes that were made or changed.
    pub volumes: Vec<String>,
    /// What was accepted although it doesn't do what it seems to say, a line each.
    pub warnings: Vec<String>,
}

/// What an apply did to one job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AppliedJob {
    /// Which.
    pub job: JobKey,
    /// Its version now, from 0.
    pub version: u64,
    /// What happened.
    pub change: JobChange,
    /// When it is launched next; none where it is not periodic.
    #[serde(default)]
    pub next_launch: Option<UnixNanos>,
}

/// What an apply did to one job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum JobChange {
    /// It is new.
    Created,
    /// It has a new version.
    Updated,
    /// It was equal already.
    Unchanged,
}

impl JobChange {
    /// The word for it in output.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Updated => "updated",
            Self::Unchanged => "unchanged",
        }
    }
}

/// Answer of `GET /v1/herdlet/status`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentStatus {
    /// Release of the agent.
    pub version: String,
    /// Node id.
    pub node_id: String,
    /// Node name.
    pub node_name: String,
    /// The instance whose state this is.
    pub instance: String,
    /// How tasks are held, for instance `cgroup v2` or `none: …`.
    pub isolation: String,
    /// Controllers of cgroups that are missing, so that limits have no effect: `memory`, `cpu`, `pids`.
    #[serde(default)]
    pub missing_controllers: Vec<String>,
    /// The longest `kill_timeout` that a task gets; none where an older agent does not say.
    #[serde(default)]
    pub max_kill_timeout: Option<Duration>,
    /// The directory of its state; empty where an older agent does not say.
    #[serde(default)]
    pub state_dir: String,
    /// When the agent process started.
    pub started_at: UnixNanos,
    /// Why it is not ready; none when it is.
    pub not_ready: Option<String>,
    /// Why it is degraded, for instance a state database that can't be written; none when it is not.
    pub degraded: Option<String>,
    /// What somebody should see to before it hurts, such as a certificate that ends soon.
    #[serde(default)]
    pub warnings: Vec<String>,
    /// What is wrong with the manifests of followed folders; what is named here is not in force.
    #[serde(default)]
    pub manifest_problems: Vec<ManifestProblem>,
    /// The last commit that changed anything shown.
    pub index: u64,
    /// How many jobs are how far, by `converged progressing waiting failed`.
    pub jobs: BTreeMap<String, usize>,
    /// The same for allocations.
    pub allocs: BTreeMap<String, usize>,
    /// What has not converged, jobs first.
    pub unconverged: Vec<Unconverged>,
}

/// One thing wrong with one place of a manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManifestProblem {
    /// The file, or the folder as a whole.
    pub source: String,
    /// Line, from 1; 0 when the text as a whole is meant.
    pub line: u32,
    /// Column in characters, from 1; 0 when the text as a whole is meant.
    pub column: u32,
    /// Where that is in the data, such as `spec.groups[0].name`; empty for the whole document.
    pub path: String,
    /// What is wrong.
    pub message: String,
}

/// Something that has not converged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unconverged {
    /// A job, or `job.group[index]`.
    pub name: String,
    /// The allocation, where it is one.
    pub alloc: Option<AllocId>,
    /// How far it is.
    pub convergence: Convergence,
}

/// One line of `GET /v1/herdlet/events`: newline-delimited JSON.
///
/// A stream begins with everything that is shown after a `reset`, unless it was resumed at the present index; `reset` comes
/// again when a reader was too slow to be told every change.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// Forget everything: what there is follows.
    Reset,
    /// This is the job now.
    Job(Arc<JobView>),
    /// This job is forgotten.
    JobGone(JobKey),
    /// This is the allocation now.
    Alloc(Arc<AllocView>),
    /// This allocation is forgotten.
    AllocGone(AllocId),
    /// This is the volume now.
    Volume(Arc<VolumeView>),
    /// This volume is forgotten.
    VolumeGone(String),
    /// All changes up to this commit were told.
    Index(u64),
}
