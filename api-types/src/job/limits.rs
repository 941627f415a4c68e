//! Limits of a task: its resources, and its logs.

use serde::{Deserialize, Serialize};

/// `resources` of a task. Absent values are neither limited nor used for placement.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resources {
    /// CPU share in MHz. A task has either this or `cores`.
    pub cpu_mhz: Option<u64>,
    /// The number of cores that no other task uses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cores: Option<u16>,
    /// Memory in MiB.
    pub memory_mib: Option<u64>,
    /// Memory in MiB that the task may use beyond `memory_mib` if available; [`Resources::ALL_MEMORY`] means unlimited.
    pub memory_max_mib: Option<u64>,
    /// Size of the directory `secrets` in MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secrets_mib: Option<u64>,
}

impl Resources {
    /// MiB of `secrets` without another size, as in Nomad.
    pub const SECRETS_MIB: u64 = 1;

    /// Size of the directory `secrets` in MiB.
    pub fn secrets_mib(&self) -> u64 {
        self.secrets_mib.unwrap_or(Self::SECRETS_MIB)
    }

    /// What the task is given: a stated size of `secrets` is added to the memory, as Nomad's scheduler does
    /// (`scheduler/feasible/rank.go`), because the directory is in memory.
    #[must_use]
    pub fn allocated(&self) -> Self {
        let secrets = self.secrets_mib.unwrap_or_default();
        let with_secrets = |mib: u64| mib.saturating_add(secrets);
        Self {
            memory_mib: self.memory_mib.map(with_secrets),
            memory_max_mib: self.memory_max_mib.map(with_secrets),
            ..self.clone()
        }
    }

    /// Unlimited memory.
    pub const ALL_MEMORY: u64 = u64::MAX;

    /// Memory in MiB beyond which the kernel kills the task; `None` if there is no limit.
    pub fn memory_limit_mib(&self) -> Option<u64> {
        let allocated = self.allocated();
        match allocated.memory_max_mib {
            Some(Self::ALL_MEMORY) => None,
            Some(most) => Some(most),
            None => allocated.memory_mib,
        }
    }

    /// `memory_max_mib` in Nomad's encoding: 0 if absent, -1 if unlimited.
    pub fn memory_max_mb(&self) -> i64 {
        match self.memory_max_mib {
            None => 0,
            Some(Self::ALL_MEMORY) => -1,
            Some(most) => i64::try_from(most).unwrap_or(i64::MAX),
        }
    }
}

/// `logs` of a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Logs {
    /// Files kept per stream.
    pub max_files: u32,
    /// Size of one file in MiB.
    pub max_file_size_mib: u64,
    /// Disable collection: output goes to `/dev/null`.
    pub disabled: bool,
    /// Behaviour when the disk is too slow.
    pub mode: LogMode,
}

/// Behaviour when the disk is too slow for the log output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum LogMode {
    /// Output is dropped and counted; the task never waits.
    Drop,
    /// The task waits.
    Block,
}
