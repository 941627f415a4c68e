//! Submitted jobs, and the fields that servers read.
//!
//! In: a job as a value, for example a recorded one, or JSON. Out: the same with its version, and a [`Spec`] with the
//! data to place its allocations. Nothing is canonicalised: an absent field has the simplest meaning.

use std::time::Duration;

use herdlet_nomad::wire::{Allocation, Job, resources::NetworkResource};
use herdlet_rpc::codec::{self, Value};
use serde::{Deserialize, Serialize};

/// A submitted job.
#[derive(Debug, Clone)]
pub struct Stored {
    /// The job as allocations get it.
    pub job: Job,
    /// The fields that servers read.
    pub spec: Spec,
    /// The version, from 0.
    pub version: u64,
    /// It is stopped: nothing of it should run.
    pub is_stopped: bool,
    /// The previous version, for `auto_revert`.
    pub before: Option<Value>,
}

/// The fields of a job that servers read.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct Spec {
    /// Its id.
    #[serde(rename = "ID")]
    pub id: String,
    /// Empty: `default`.
    pub namespace: String,
    /// `service`, `batch`, `system` or `sysbatch`; empty: `service`.
    #[serde(rename = "Type")]
    pub kind: String,
    /// Empty, or with an entry `*`: any.
    pub datacenters: Vec<String>,
    /// Groups.
    pub task_groups: Vec<Group>,
}

/// A group.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct Group {
    /// Its name.
    pub name: String,
    /// Number of allocations; `None`: one.
    pub count: Option<i64>,
    /// Its networks.
    pub networks: Vec<NetworkResource>,
    /// Its tasks.
    pub tasks: Vec<Task>,
    /// Its disk.
    pub ephemeral_disk: Option<Disk>,
    /// How it is updated; `None`: all at once, without a deployment.
    pub update: Option<Update>,
    /// How failed allocations are replaced.
    pub reschedule_policy: Option<Reschedule>,
    /// How long it outlives the loss of contact with its node, in nanoseconds (1.3 to 1.9).
    pub max_client_disconnect: Option<i64>,
    /// The same, and more (1.8 and later).
    pub disconnect: Option<Disconnect>,
}

/// A task.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct Task {
    /// Its name.
    pub name: String,
    /// Its driver.
    pub driver: String,
    /// The resources that it needs.
    pub resources: Option<Needs>,
    /// When it runs.
    pub lifecycle: Option<herdlet_nomad::wire::assigned::TaskLifecycle>,
}

/// The resources that a task needs.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct Needs {
    /// MHz.
    #[serde(rename = "CPU")]
    pub cpu: i64,
    /// MiB.
    #[serde(rename = "MemoryMB")]
    pub memory_mb: i64,
    /// MiB.
    #[serde(rename = "MemoryMaxMB")]
    pub memory_max_mb: i64,
    /// Its own networks, as in jobs from before 0.12.
    pub networks: Vec<NetworkResource>,
}

/// A group's disk.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct Disk {
    /// Its data is moved to the next allocation.
    pub sticky: bool,
    /// The same, also to another node.
    pub migrate: bool,
    /// MiB.
    #[serde(rename = "SizeMB")]
    pub size_mb: i64,
}

/// How a group is updated.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct Update {
    /// Number of allocations updated at a time; zero: all, without a deployment.
    pub max_parallel: i64,
    /// A failed deployment restores the previous version.
    pub auto_revert: bool,
}

/// How failed allocations are replaced.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct Reschedule {
    /// Number of replacements.
    pub attempts: i64,
    /// Delay before each, in nanoseconds.
    pub delay: i64,
    /// The number of replacements is unlimited.
    pub unlimited: bool,
}

/// What happens to an allocation whose node lost contact.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct Disconnect {
    /// Nanoseconds after which it is lost; zero: at once.
    pub lost_after: i64,
    /// A replacement runs meanwhile; `None`: yes.
    pub replace: Option<bool>,
    /// Which of both is kept: `keep_replacement`, or else the original.
    pub reconcile: String,
}

/// Fields of a group that may change without a replacement of its allocations.
const IGNORED: [&str; 2] = ["Count", "Update"];

impl Spec {
    /// Reads the fields that servers use.
    ///
    /// # Errors
    /// When it is not a job.
    pub fn of(job: &Value) -> Result<Self, codec::DecodeError> {
        let bytes = codec::encode(job).unwrap_or_default();
        let mut spec: Self = codec::decode(&bytes)?;
        for (text, default) in [(&mut spec.kind, "service"), (&mut spec.namespace, "default")] {
            if text.is_empty() {
                default.clone_into(text);
            }
        }
        Ok(spec)
    }

    /// The group of this name.
    #[must_use]
    pub fn group(&self, name: &str) -> Option<&Group> {
        self.task_groups.iter().find(|group| group.name == name)
    }
}

impl Group {
    /// The wanted number of allocations.
    #[must_use]
    pub fn count(&self) -> usize {
        usize::try_from(self.count.unwrap_or(1)).unwrap_or(0)
    }

    /// How long it outlives the loss of contact with its node.
    #[must_use]
    pub fn lost_after(&self) -> Duration {
        let configured = self.disconnect.as_ref().map(|disconnect| disconnect.lost_after);
        let nanos = configured.or(self.max_client_disconnect).unwrap_or(0);
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(0))
    }

    /// Whether a replacement runs while its node has lost contact.
    #[must_use]
    pub fn is_replaced(&self) -> bool {
        self.disconnect.as_ref().and_then(|disconnect| disconnect.replace).unwrap_or(true)
    }

    /// Whether the replacement is kept after a reconnect.
    #[must_use]
    pub fn keeps_replacement(&self) -> bool {
        self.disconnect.as_ref().is_some_and(|disconnect| disconnect.reconcile == "keep_replacement")
    }

    /// The number of allocations that a deployment changes at a time; `None` without a deployment.
    #[must_use]
    pub fn max_parallel(&self) -> Option<usize> {
        let update = self.update.as_ref()?;
        usize::try_from(update.max_parallel).ok().filter(|max| *max > 0)
    }

    /// The delay of a replacement after a failure; `None` if there is none any more. `times`: the number of previous
    /// replacements.
    #[must_use]
    pub fn reschedules_after(&self, kind: &str, times: usize) -> Option<Duration> {
        let unsaid = match kind {
            "service" => Reschedule { unlimited: true, delay: 30_000_000_000, attempts: 0 },
            "batch" => Reschedule { attempts: 1, delay: 5_000_000_000, unlimited: false },
            _ => Reschedule::default(),
        };
        let policy = self.reschedule_policy.as_ref().unwrap_or(&unsaid);
        let is_left =
            policy.unlimited || usize::try_from(policy.attempts).is_ok_and(|attempts| times < attempts);
        is_left.then(|| Duration::from_nanos(u64::try_from(policy.delay).unwrap_or(0)))
    }
}

/// A job as a value, from JSON or anything else that can be encoded.
///
/// # Errors
/// When it can't be encoded.
pub fn value(job: &(impl Serialize + ?Sized)) -> Result<Value, String> {
    let bytes = codec::encode(job).map_err(|error| format!("failed to {error}"))?;
    codec::decode(&bytes).map_err(|error| format!("failed to {error}"))
}

/// A job's value with a field set.
#[must_use]
pub fn with(job: Value, name: &str, value: Value) -> Value {
    let Value::Map(mut entries) = job else { return job };
    entries.retain(|(key, _)| key.as_text() != Some(name));
    entries.push((Value::Text(name.to_owned()), value));
    Value::Map(entries)
}

/// Whether allocations of a group can be updated in place: only its count or its update strategy differs.
#[must_use]
pub fn is_in_place(old: &Job, new: &Job, group: &str) -> bool {
    let rest = |job: &Job| {
        let Some(Value::Map(entries)) = job.group(group) else { return None };
        let is_heeded = |key: &Value| key.as_text().is_none_or(|key| !IGNORED.contains(&key));
        Some(entries.iter().filter(|(key, _)| is_heeded(key)).cloned().collect::<Vec<_>>())
    };
    rest(old) == rest(new)
}

/// The number in an allocation's name.
#[must_use]
pub fn index_of(alloc: &Allocation) -> usize {
    let index = alloc.name.rsplit_once('[').and_then(|(_, index)| index.strip_suffix(']'));
    index.and_then(|index| index.parse().ok()).unwrap_or(0)
}
