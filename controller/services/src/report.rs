//! News of a check, whoever makes it: this agent or Consul.

use herdlet_api_types::{AllocId, service::CheckResult};

/// News of a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckReport {
    /// The allocation it belongs to.
    pub alloc: AllocId,
    pub result: CheckResult,
}
