//! `herdlet simulate`: many nodes in one process, for capacity tests of Nomad servers.
//!
//! In: servers, and the behaviour of nodes and their tasks. Out: nodes that servers can't distinguish from real ones. Each is a
//! whole controller (session, planner, loop, read model) with its own id and secret, but with a simulated executor and no stored
//! state: [`executor`]. A line reports their state every second, until Ctrl-C. Nothing runs and nothing is written on this machine.

pub mod behaviour;
mod executor;
mod figures;
mod node;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use herdlet_agent::malloc;
use herdlet_nomad::identity::Identity;
use herdlet_rpc::{address::Address, tls::ClientTls};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::{task::JoinSet, time::sleep};
use tokio_util::sync::CancellationToken;

use behaviour::Behaviour;
pub use figures::Figures;
use node::Fleet;

#[derive(Debug, Clone)]
pub struct Options {
    /// Servers of the region.
    pub servers: Vec<Address>,
    pub nodes: u32,
    /// Prefix of the nodes' names; a number follows.
    pub name: String,
    pub region: String,
    /// The nodes' TLS settings, if they use TLS.
    pub tls: Option<ClientTls>,
    pub datacenter: String,
    pub node_class: String,
    pub node_pool: String,
    /// Processors of each node, in MHz.
    pub cpu_mhz: u32,
    /// Memory of each node, in MiB.
    pub memory_mib: u32,
    /// Task drivers that the nodes offer.
    pub drivers: Vec<String>,
    /// Nodes that start per second.
    pub rate: u32,
    pub behaviour: Behaviour,
}

/// After this many lines without an update, free memory is returned to the system: a burst needs a lot.
const QUIET_LINES: u64 = 5;

/// Simulates until `end`, and calls `line` with figures once a second.
///
/// # Errors
/// When the system provides no randomness for identities.
pub async fn simulate(
    options: Options,
    end: impl Future<Output = ()>,
    line: impl Fn(&Figures),
) -> anyhow::Result<Figures> {
    let began = Instant::now();
    let cancel = CancellationToken::new();
    let ground = Arc::new(Fleet::new(options, cancel.clone()));
    let mut nodes = JoinSet::new();
    tokio::pin!(end);
    let pause = Duration::from_secs(1) / ground.options.rate.max(1);
    let mut number = 0;
    let mut last = Figures::default();
    let mut next_line = began;
    let mut quiet = 0_u64;
    loop {
        if Instant::now() >= next_line {
            next_line += Duration::from_secs(1);
            let figures = ground.figures(began.elapsed(), &last);
            line(&figures);
            quiet = if figures.updates == last.updates { quiet + 1 } else { 0 };
            if quiet == QUIET_LINES {
                let _ = herdlet_runtime::off_thread(malloc::give_back).await;
            }
            last = figures;
        }
        let wait = if number < ground.options.nodes {
            pause
        } else {
            next_line.saturating_duration_since(Instant::now())
        };
        tokio::select! {
            () = &mut end => break,
            () = sleep(wait) => {}
        }
        if number < ground.options.nodes {
            nodes.spawn(node::live(Arc::clone(&ground), number, Identity::random()?));
            number += 1;
        }
    }
    let figures = ground.figures(began.elapsed(), &last);
    cancel.cancel();
    while nodes.join_next().await.is_some() {}
    Ok(figures)
}

/// Descriptors besides the connections of nodes.
const OTHER_DESCRIPTORS: u64 = 128;

/// Raises the limit of open files, so that each node can have a connection.
///
/// # Errors
/// When the machine allows fewer. The error has the required number.
pub fn raise_limits(nodes: u32) -> Result<(), String> {
    let Some(raised) = raised(nodes, getrlimit(Resource::Nofile))? else { return Ok(()) };
    setrlimit(Resource::Nofile, raised)
        .map_err(|error| format!("failed to raise the limit of open files: {error}"))
}

/// The required limit; none if the present one is sufficient.
fn raised(nodes: u32, limit: Rlimit) -> Result<Option<Rlimit>, String> {
    let wanted = u64::from(nodes) + OTHER_DESCRIPTORS;
    if let Some(most) = limit.maximum.filter(|most| *most < wanted) {
        return Err(format!(
            "{nodes} nodes need {wanted} open files, but at most {most} are allowed; raise the limit with ulimit -Hn"
        ));
    }
    let is_too_low = limit.current.is_some_and(|current| current < wanted);
    Ok(is_too_low.then_some(Rlimit { current: Some(wanted), ..limit }))
}

#[cfg(test)]
mod tests;
