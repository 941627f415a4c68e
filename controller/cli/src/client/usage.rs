//! What the tasks of an allocation use, in Nomad's JSON.

use serde::Deserialize;

/// What the tasks of an allocation use, as far as the command line shows it.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Usage {
    /// All of them together.
    pub resource_usage: ResourceUsage,
}

/// Memory and processor time.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct ResourceUsage {
    pub memory_stats: MemoryStats,
    pub cpu_stats: CpuStats,
}

/// Memory in bytes.
#[derive(Debug, Clone, Deserialize)]
pub struct MemoryStats {
    #[serde(rename = "RSS")]
    pub rss: u64,
    /// All that counts against the limit; 0 where that is not known.
    #[serde(rename = "Usage")]
    pub usage: u64,
}

/// Processor time.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct CpuStats {
    pub percent: f64,
}
