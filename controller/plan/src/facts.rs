//! The facts that parts have produced, for the parts that read them.
//!
//! In: the outcome of an operation. Out: the facts of each part, kept beside its state, not in it: they are the last
//! good value while the part is inspected, renewed or failing. No fact is a secret: a secret is a file, and its path is
//! the fact.

use std_alloc::{
    collections::{BTreeMap, BTreeSet},
    string::String,
    sync::Arc,
    vec::Vec,
};

use herdlet_api_types::Duration;
use serde::{Deserialize, Serialize};

use crate::{
    hash::Fields,
    network::AllocNetwork,
    op::{Part, TemplateIndex},
    time::{Deadline, Now},
};

/// The facts that one part has produced. Newer releases add fields, each with a default.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Facts {
    /// Identifies this value of the part.
    pub revision: Revision,
    /// Environment variables.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Files with environment variables that are secret.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub env_files: Vec<EnvFile>,
    /// Mounts that the driver must make.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<Mount>,
    /// Device nodes that the driver must make.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<Device>,
    /// A directory for other parts to use: a root file system, or the data of a volume.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub root: Option<String>,
    /// The network that the allocation's tasks share.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<AllocNetwork>,
    /// What its users should know about it: an event of each task that uses the part.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// When the part is to be renewed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub renew_at: Option<Deadline>,
    /// One revision for each thing that the part consists of and that changes on its own: each template of a task.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub outputs: Vec<Revision>,
}

/// Identifies one value of a part. Only equality is meaningful. A part that can't derive it from its content reports
/// [`Revision::COUNTED`]: the planner then derives it from the part's outputs, if it has any, or else counts its
/// renewals, starting from the task's launch record.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Revision(pub u64);

impl Revision {
    /// Reported by a part that leaves it to the planner.
    pub const COUNTED: Self = Self(0);

    /// The next revision that the planner counts.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.wrapping_add(1).max(1))
    }

    /// The revision of a part that consists of these outputs.
    pub(crate) fn of_outputs(outputs: &[Self]) -> Self {
        let mut fields = Fields::default();
        outputs.iter().for_each(|output| fields.number(output.0));
        Self(u64::from_le_bytes(fields.start()).max(1))
    }
}

/// How a running task is notified of a change of facts that concerns it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeAction {
    /// Restart it, for this reason.
    Restart(String),
    /// Send it each of these signals.
    Signal(BTreeSet<String>),
    /// Send it each of these signals, then run these scripts inside it.
    Run {
        /// Signals.
        signals: BTreeSet<String>,
        /// The templates whose scripts are run.
        scripts: BTreeSet<TemplateIndex>,
    },
}

impl ChangeAction {
    /// Signals and scripts; without scripts, only signals.
    pub fn run(signals: BTreeSet<String>, scripts: BTreeSet<TemplateIndex>) -> Self {
        if scripts.is_empty() { Self::Signal(signals) } else { Self::Run { signals, scripts } }
    }

    /// Both in one: a restart replaces everything else.
    #[must_use]
    pub fn merged(self, other: Self) -> Self {
        match (self, other) {
            (Self::Restart(why), _) | (_, Self::Restart(why)) => Self::Restart(why),
            (one, other) => {
                let (mut signals, mut scripts) = one.into_sets();
                let (more_signals, more_scripts) = other.into_sets();
                signals.extend(more_signals);
                scripts.extend(more_scripts);
                Self::run(signals, scripts)
            }
        }
    }

    /// Whether the task restarts.
    pub fn is_restart(&self) -> bool {
        matches!(self, Self::Restart(_))
    }

    fn into_sets(self) -> (BTreeSet<String>, BTreeSet<TemplateIndex>) {
        match self {
            Self::Restart(_) => Default::default(),
            Self::Signal(signals) => (signals, BTreeSet::new()),
            Self::Run { signals, scripts } => (signals, scripts),
        }
    }
}

/// A change that concerns a running task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notification {
    /// What it is notified with.
    pub action: ChangeAction,
    /// Upper bound of a random delay, so that many tasks do not act at the same time.
    pub splay: Duration,
}

impl Notification {
    /// Without a delay.
    pub fn at_once(action: ChangeAction) -> Self {
        Self { action, splay: Duration::ZERO }
    }
}

/// A change that a running task must still be notified of. Stored before the notification, and cleared by its outcome.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owed {
    /// The notification.
    pub action: ChangeAction,
    /// The value that the task has then read.
    pub revision: Revision,
    /// When it is due.
    pub due: Deadline,
}

/// A file with environment variables, one `NAME=value` per line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnvFile {
    /// Absolute path on the machine.
    pub path: String,
}

/// A mount that the driver makes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// Absolute path on the machine.
    pub host_path: String,
    /// Path in the task.
    pub task_path: String,
    /// The task may not write.
    pub read_only: bool,
}

/// A device node that the driver makes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// Absolute path on the machine.
    pub host_path: String,
    /// Path in the task.
    pub task_path: String,
    /// Of `r`, `w` and `m`.
    pub permissions: String,
}

/// What is known of a part's facts. A part without facts is known to have none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fact<'a> {
    /// The last good value.
    Known(&'a Facts),
    /// Nothing since the agent's start.
    Unknown,
}

/// Facts by part. Few entries: most parts have none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AllFacts(BTreeMap<Part, Arc<Facts>>);

/// The facts of a part that produces none.
static NONE: Facts = Facts::none();

impl Facts {
    /// No facts at all.
    pub const fn none() -> Self {
        Self {
            revision: Revision(0),
            env: BTreeMap::new(),
            env_files: Vec::new(),
            mounts: Vec::new(),
            devices: Vec::new(),
            root: None,
            network: None,
            message: None,
            renew_at: None,
            outputs: Vec::new(),
        }
    }

    /// The facts of a part that offers a directory.
    pub fn rooted(root: String) -> Arc<Self> {
        Arc::new(Self { root: Some(root), ..Self::none() })
    }

    /// The facts of a part that is due for renewal at that time, if ever.
    pub fn renewed_at(renew_at: Option<Deadline>) -> Arc<Self> {
        Arc::new(Self { renew_at, ..Self::none() })
    }
}

impl Fact<'static> {
    /// The part is known to have none.
    pub const NONE: Self = Self::Known(&NONE);
}

impl AllFacts {
    /// The facts that a previous agent has stored, with deadlines moved to this boot.
    pub(crate) fn stored(known: &BTreeMap<Part, Arc<Facts>>, now: Now) -> Self {
        let rebased = |facts: &Arc<Facts>| match facts.renew_at {
            Some(renew_at) if renew_at.boot != now.boot => {
                Arc::new(Facts { renew_at: Some(renew_at.rebased(now)), ..Facts::clone(facts) })
            }
            Some(_) | None => facts.clone(),
        };
        Self(known.iter().map(|(part, facts)| (*part, rebased(facts))).collect())
    }

    /// The last good value of a part's facts.
    pub fn get(&self, part: Part) -> Option<&Arc<Facts>> {
        self.0.get(&part)
    }

    /// Stores the facts that a part has produced.
    pub(crate) fn set(&mut self, part: Part, facts: Arc<Facts>) {
        self.0.insert(part, facts);
    }

    /// Drops the facts of a part that is gone.
    pub(crate) fn remove(&mut self, part: Part) {
        self.0.remove(&part);
    }
}

/// Facts of another part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Input {
    /// The part.
    pub part: Part,
    /// The facts it has produced.
    pub facts: Arc<Facts>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        op::TaskPart,
        state::{AllocState, Noticed, PartState},
    };

    const PART: Part = Part::Task(0, TaskPart::Identity);

    #[test]
    fn unknown_facts_are_not_none() {
        let mut state = AllocState::default();
        assert_eq!(state.fact(PART), Fact::Unknown);
        state.parts.set_part(PART, PartState::Up);
        assert_eq!(state.fact(PART), Fact::NONE, "an active part without facts");
        state.parts.set_part(PART, PartState::Suspect(Noticed::Event));
        assert_eq!(state.fact(PART), Fact::Unknown);
    }

    #[test]
    fn the_last_good_value_outlives_what_becomes_of_its_part() {
        let mut state = AllocState::default();
        let facts = Facts::rooted(String::from("/data"));
        state.facts.set(PART, facts.clone());
        for known in [PartState::Up, PartState::Suspect(Noticed::Event), PartState::Unknown] {
            state.parts.set_part(PART, known);
            assert_eq!(state.fact(PART), Fact::Known(&facts));
        }
        state.facts.remove(PART);
        assert_eq!(state.fact(PART), Fact::Unknown);
    }
}
