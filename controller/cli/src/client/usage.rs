//! Resource usage of an allocation's tasks, in Nomad's JSON.

use std::collections::BTreeMap;

use serde::Deserialize;

/// The fields that the command line prints.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Usage {
    /// The sum of all tasks.
    pub resource_usage: ResourceUsage,
    /// By the names of tasks.
    #[serde(default)]
    pub tasks: BTreeMap<String, TaskUsage>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct TaskUsage {
    pub resource_usage: ResourceUsage,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct ResourceUsage {
    pub memory_stats: MemoryStats,
    pub cpu_stats: CpuStats,
}

/// In bytes.
#[derive(Debug, Clone, Deserialize)]
pub struct MemoryStats {
    #[serde(rename = "RSS")]
    pub rss: u64,
    /// Memory that counts against the limit; 0 if unknown.
    #[serde(rename = "Usage")]
    pub usage: u64,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct CpuStats {
    pub percent: f64,
}
