//! `herdlet simulate`: many nodes in one process, for capacity tests of Nomad servers.
//!
//! In: servers, and how nodes and their tasks behave. Out: nodes that servers can't tell from others, each a whole controller (session,
//! planner, loop, read model) with its own id and secret, whose hands and state are imagined: [`hands`]. A line tells how they are, until
//! Ctrl-C. Nothing runs and nothing is written on this machine.

pub mod behaviour;
mod figures;
mod hands;
mod node;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use herdlet_agent::memory;
use herdlet_nomad::identity::Identity;
use herdlet_rpc::{address::Address, tls::ClientTls};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::{task::JoinSet, time::sleep};
use tokio_util::sync::CancellationToken;

use behaviour::Behaviour;
pub use figures::Figures;
use node::Ground;

/// What to simulate.
#[derive(Debug, Clone)]
pub struct Options {
    /// Servers of the region.
    pub servers: Vec<Address>,
    pub nodes: u32,
    /// What nodes are called, with a number behind.
    pub name: String,
    pub region: String,
    /// How they speak TLS, if they do.
    pub tls: Option<ClientTls>,
    pub datacenter: String,
    pub node_class: String,
    pub node_pool: String,
    /// What each has of processors, in MHz.
    pub cpu_mhz: u32,
    /// What each has of memory, in MiB.
    pub memory_mib: u32,
    /// Task drivers that they tell of.
    pub drivers: Vec<String>,
    /// So many nodes are begun in a second.
    pub rate: u32,
    /// How their tasks behave.
    pub behaviour: Behaviour,
}

/// After so many lines without an update what is free is given back: what a burst has needed was much.
const QUIET_LINES: u64 = 5;

/// Simulates until `end`, and tells `line` how it goes, once a second.
///
/// # Errors
/// When there is no randomness for identities.
pub async fn simulate(
    options: Options,
    end: impl Future<Output = ()>,
    line: impl Fn(&Figures),
) -> anyhow::Result<Figures> {
    let began = Instant::now();
    let cancel = CancellationToken::new();
    let ground = Arc::new(Ground::new(options, cancel.clone()));
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
                let _ = herdlet_runtime::off_thread(memory::give_back).await;
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

/// Descriptors beside the connections of nodes.
const OTHER_DESCRIPTORS: u64 = 128;

/// Sees to it that so many nodes can have a connection each.
///
/// # Errors
/// When the machine allows fewer, with what would be right.
pub fn raise_limits(nodes: u32) -> Result<(), String> {
    let Some(raised) = raised(nodes, getrlimit(Resource::Nofile))? else { return Ok(()) };
    setrlimit(Resource::Nofile, raised).map_err(|error| format!("failed to allow more open files: {error}"))
}

/// What the limit has to become; none: it is enough.
fn raised(nodes: u32, limit: Rlimit) -> Result<Option<Rlimit>, String> {
    let wanted = u64::from(nodes) + OTHER_DESCRIPTORS;
    if let Some(most) = limit.maximum.filter(|most| *most < wanted) {
        return Err(format!(
            "{nodes} nodes need {wanted} open files, and at most {most} are allowed; raise it with ulimit -Hn"
        ));
    }
    let is_too_low = limit.current.is_some_and(|current| current < wanted);
    Ok(is_too_low.then_some(Rlimit { current: Some(wanted), ..limit }))
}

#[cfg(test)]
mod tests;
