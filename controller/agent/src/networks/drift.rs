//! Damage to networks: which allocations a change of the machine concerns, and the repair of the bridge's rules.
//!
//! In: changes that the kernel reports. Out: owners of networks that may be damaged; the cause of a repair.

use std::sync::Arc;

use herdlet_api_types::{AllocId, alloc::Allocation, job::NetworkMode};
use herdlet_base::error::in_full;
use herdlet_network::{
    namespace::NamespaceId,
    networks::{Concern, Networks},
    socket::Socket,
    watch::Change,
};

use super::{AllocNetworks, mode_of};

/// The rules of the bridge may still be damaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RuleRepairFailure;

impl AllocNetworks {
    /// The networks on the bridge that a change in the machine's namespace may have damaged.
    pub fn concern(&self, change: &Change) -> Concern {
        self.opened().map_or(Concern::Nothing, |networks| networks.concern(change))
    }

    /// The address of the socket that changes this agent's rules, in the kernel's reports; `None` if it has none.
    pub fn rule_port(&self) -> Option<u32> {
        self.opened()?.rule_port().ok()
    }

    /// Repairs the rules of the bridge. Returns the cause; `None` if nothing had to be repaired.
    ///
    /// # Errors
    /// If they could not be inspected or repaired; the cause is logged.
    pub fn repair_rules(&self) -> Result<Option<String>, RuleRepairFailure> {
        let Some(networks) = self.opened() else { return Ok(None) };
        match networks.repair_rules() {
            Ok(repair) => Ok((!repair.is_empty()).then(|| repair.to_string())),
            Err(error) => {
                tracing::warn!(
                    error = in_full(&error),
                    "failed to inspect or repair the rules of the bridge"
                );
                Err(RuleRepairFailure)
            }
        }
    }

    /// The namespace that the file of an allocation keeps.
    pub fn namespace_of(&self, alloc: AllocId) -> Option<NamespaceId> {
        self.lone.kept(&alloc.to_string())
    }

    /// The number of an allocation's namespace in that of the socket: see
    /// [`Namespace::number_in`](herdlet_network::namespace::Namespace::number_in).
    pub fn number_of(&self, alloc: AllocId, socket: &mut Socket) -> Option<i32> {
        match self.lone.number_in(&alloc.to_string(), socket) {
            Ok(number) => number,
            // The inspection every 30 seconds remains.
            Err(error) => {
                tracing::debug!(%alloc, error = in_full(&error), "changes in this network are not reported");
                None
            }
        }
    }

    /// The networks on the bridge, if an allocation needed them since the start of the agent.
    pub(super) fn opened(&self) -> Option<Arc<Networks>> {
        self.bridge.opened()
    }
}

/// Whether the allocation's network is on the bridge.
pub fn is_on_bridge(alloc: &Allocation) -> bool {
    matches!(mode_of(alloc), NetworkMode::Bridge)
}
