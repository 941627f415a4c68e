//! The state of a simulation in numbers.

use std::{fmt, time::Duration};

use serde::Serialize;

/// The state at one moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Figures {
    pub seconds: f64,
    /// Nodes that were started.
    pub nodes: u64,
    /// Of these, registered and in contact with servers.
    pub ready: u64,
    /// Known allocations, including ended ones.
    pub allocations: u64,
    pub running: u64,
    /// Changes of allocations so far.
    pub updates: u64,
    /// Changes per second since the previous figures.
    pub updates_per_second: f64,
    /// Calls that servers have answered.
    pub calls: u64,
    /// How often servers may have considered a node down because its heartbeat came too late.
    pub late_heartbeats: u64,
    /// Latency of the last ping; none if it failed.
    pub latency_ms: Option<f64>,
    /// Why the last ping failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ping_error: Option<String>,
}

impl Figures {
    /// Adds the rates since the previous figures.
    pub(super) fn after(self, last: &Self) -> Self {
        let elapsed = (self.seconds - last.seconds).max(0.001);
        let updates_per_second = self.updates.saturating_sub(last.updates) as f64 / elapsed;
        Self { updates_per_second, ..self }
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { nodes, ready, running, allocations, updates_per_second, late_heartbeats, .. } = self;
        let since = Duration::from_secs_f64(self.seconds.max(0.0)).as_secs();
        write!(
            f,
            "{since:>5} s  {ready}/{nodes} nodes ready  {running}/{allocations} allocations running  {updates_per_second:.0} updates/s"
        )?;
        if let Some(latency) = self.latency_ms {
            write!(f, "  ping {latency:.1} ms")?;
        }
        if *late_heartbeats > 0 {
            write!(f, "  {late_heartbeats} late heartbeats")?;
        }
        if let Some(why) = &self.ping_error {
            write!(f, "  ping: {why}")?;
        }
        Ok(())
    }
}
