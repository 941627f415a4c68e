//! What the planner learns of a network that could not be made, removed or inspected.
//!
//! In: errors. Out: outcomes: a wait for what others have to do, a retry, or an end.

use herdlet_api_types::Duration;
use herdlet_base::error::in_full;
use herdlet_network::{
    address_pool::PoolError, networks::NetworkError, port_owner::PortOwner, ports::HoldError, subnet::Subnet,
};
use herdlet_plan::action::{FailureClass, Outcome};

/// How soon to ask again for a port that another process has: no event reports its release.
const ASK_FOR_PORT: Duration = Duration::from_secs(1);

/// How soon to ask again for an address.
const ASK_FOR_ADDRESS: Duration = Duration::from_secs(5);

/// Without its ports a network is not made.
pub(super) fn not_held(error: &HoldError) -> Outcome {
    match error {
        HoldError::Taken { port, owner } => {
            let named = |PortOwner { pid, program }: &PortOwner| format!("{program} (process {pid})");
            let owner = owner.as_ref().map_or_else(|| "another process".to_owned(), named);
            let on = format!("port {}/{}, which {owner} has", port.port, port.protocol.as_str());
            Outcome::Pending { on, ask_in: ASK_FOR_PORT }
        }
        HoldError::Io { .. } => retry(in_full(error)),
    }
}

pub(super) fn fatal(why: String) -> Outcome {
    Outcome::Failed { class: FailureClass::Fatal, why }
}

pub(super) fn retry(why: String) -> Outcome {
    Outcome::Failed { class: FailureClass::Retry, why }
}

pub(super) fn failed(error: &NetworkError) -> Outcome {
    match error {
        NetworkError::Pool(PoolError::Full(subnet)) => {
            Outcome::Pending { on: format!("a free address in {subnet}"), ask_in: ASK_FOR_ADDRESS }
        }
        NetworkError::NoIpv6 { .. } => {
            let hint = "set `network.subnet6` in the agent's config, or put the port on an IPv4 address";
            fatal(format!("{}; {hint}", in_full(error)))
        }
        NetworkError::Loopback6 { .. } => fatal(format!("{}; use 127.0.0.1", in_full(error))),
        NetworkError::Overlap { subnet, .. } => {
            let field = match subnet {
                Subnet::V4(_) => "network.subnet",
                Subnet::V6(_) => "network.subnet6",
            };
            let hint = format!("set `{field}` in the agent's config to a network that is free");
            retry(format!("{}; {hint}", in_full(error)))
        }
        NetworkError::Kernel(_)
        | NetworkError::Link(_)
        | NetworkError::Pool(PoolError::Io { .. })
        | NetworkError::Namespace(_)
        | NetworkError::Setting(_)
        | NetworkError::Io { .. } => retry(in_full(error)),
    }
}
