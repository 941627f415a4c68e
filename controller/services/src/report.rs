//! Reports of check results from this agent or Consul.

use herdlet_api_types::{AllocId, service::CheckResult};

/// The result of a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckReport {
    /// The allocation of the check.
    pub alloc: AllocId,
    pub result: CheckResult,
}
