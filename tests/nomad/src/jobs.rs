//! Jobs as users submit them: what of them servers look at.
//!
//! In: a job as a value, such as one that was recorded, or JSON. Out: the same with its version, and a [`Spec`]: what is needed to place its
//! allocations. Nothing is canonicalised: what is left out has the simplest meaning.

use std::time::Duration;

use herdlet_nomad::wire::{Allocation, Job, resources::NetworkResource};
use herdlet_rpc::codec::{self, Value};
use serde::{Deserialize, Serialize};

/// A job that was submitted.
#[derive(Debug, Clone)]
pub struct Stored {
    /// As allocations get it.
    pub job: Job,
    /// What servers look at.
    pub spec: Spec,
    /// 0 at first.
    pub version: u64,
    /// Nothing of it is to run.
    pub is_stopped: bool,
    /// What it was before: for `auto_revert`.
    pub before: Option<Value>,
}

/// What servers look at.
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
    /// None at all, or one that is `*`: any.
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
    /// How many allocations; none: one.
    pub count: Option<i64>,
    /// Its networks.
    pub networks: Vec<NetworkResource>,
    /// Its tasks.
    pub tasks: Vec<Task>,
    /// Its disk.
    pub ephemeral_disk: Option<Disk>,
    /// How it is updated; none: all at once, without a deployment.
    pub update: Option<Update>,
    /// How what has failed is replaced.
    pub reschedule_policy: Option<Reschedule>,
    /// Nanoseconds for which it outlives that its node is out of reach (1.3 to 1.9).
    pub max_client_disconnect: Option<i64>,
    /// Likewise, and more (1.8 and later).
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
    /// What it needs.
    pub resources: Option<Needs>,
    /// When it runs.
    pub lifecycle: Option<herdlet_nomad::wire::assigned::TaskLifecycle>,
}

/// What a task needs.
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
    /// Its own networks, as jobs of before 0.12 have them.
    pub networks: Vec<NetworkResource>,
}

/// A group's disk.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct Disk {
    /// It goes along to the next allocation.
    pub sticky: bool,
    /// Also to another node.
    pub migrate: bool,
    /// MiB.
    #[serde(rename = "SizeMB")]
    pub size_mb: i64,
}

/// How a group is updated.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct Update {
    /// As many at a time; zero: all, without a deployment.
    pub max_parallel: i64,
    /// A deployment that fails brings the version before it back.
    pub auto_revert: bool,
}

/// How what has failed is replaced.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct Reschedule {
    /// As often.
    pub attempts: i64,
    /// Nanoseconds before.
    pub delay: i64,
    /// Any number of times.
    pub unlimited: bool,
}

/// What becomes of an allocation whose node is out of reach.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct Disconnect {
    /// Nanoseconds after which it is lost; zero: at once.
    pub lost_after: i64,
    /// Another one runs meanwhile; none: yes.
    pub replace: Option<bool>,
    /// Which of both stays: `keep_replacement`, or else the original.
    pub reconcile: String,
}

/// What of a group may change under what runs.
const IGNORED: [&str; 2] = ["Count", "Update"];

impl Spec {
    /// What servers look at in a job.
    ///
    /// # Errors
    /// When it is no job.
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
    /// How many there are to be.
    #[must_use]
    pub fn count(&self) -> usize {
        usize::try_from(self.count.unwrap_or(1)).unwrap_or(0)
    }

    /// For how long it outlives that its node is out of reach.
    #[must_use]
    pub fn lost_after(&self) -> Duration {
        let told = self.disconnect.as_ref().map(|disconnect| disconnect.lost_after);
        let nanos = told.or(self.max_client_disconnect).unwrap_or(0);
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(0))
    }

    /// Whether another one runs while its node is out of reach.
    #[must_use]
    pub fn is_replaced(&self) -> bool {
        self.disconnect.as_ref().and_then(|disconnect| disconnect.replace).unwrap_or(true)
    }

    /// Whether of both the other one stays.
    #[must_use]
    pub fn keeps_replacement(&self) -> bool {
        self.disconnect.as_ref().is_some_and(|disconnect| disconnect.reconcile == "keep_replacement")
    }

    /// How many change at a time in a deployment; none: there is none.
    #[must_use]
    pub fn max_parallel(&self) -> Option<usize> {
        let update = self.update.as_ref()?;
        usize::try_from(update.max_parallel).ok().filter(|max| *max > 0)
    }

    /// How long after a failure it is replaced; none: not any more. `times`: how often it was.
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

/// Any job as a value: of JSON, or of whatever can be written.
///
/// # Errors
/// When it is no message.
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

/// Whether what runs of a group may go on, changed in place: only its count, or how it is updated, is another one.
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
