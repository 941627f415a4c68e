//! The health of a task that is a CSI plugin.
//!
//! In: reports about its present attempt. Out: Nomad's events, one for each change, and a restart if it was never ready.
//! A new agent begins with a report, which may repeat the last event. What is known is stored with the task.

use std_alloc::{format, string::String};

use herdlet_api_types::task::TaskEventKind;

use super::Writer;
use crate::{
    event::PluginHealth,
    state::{PluginState, Run},
};

/// Why a plugin restarts.
const NOT_READY: &str = "The CSI plugin was not ready within its health_timeout";

impl Writer<'_> {
    /// Applies a report. Only one about the live attempt counts.
    pub fn plugin_reported(&mut self, task: &str, attempt: u32, health: PluginHealth) {
        let Some(index) = self.index_of(task) else { return };
        let Some(known) = self.known_mut(index) else { return };
        let is_live = match known.run {
            Run::Starting { attempt: live, .. } | Run::Running { attempt: live, .. } => live == attempt,
            Run::Waiting | Run::BackingOff { .. } | Run::Stopping { .. } | Run::Dead => false,
        };
        if !is_live {
            return;
        }
        let before = known.plugin.filter(|plugin| plugin.attempt == attempt);
        let was_ready = before.is_some_and(|plugin| plugin.was_ready);
        let is_overdue = matches!(health, PluginHealth::Overdue { .. });
        let is_healthy = matches!(health, PluginHealth::Healthy { .. });
        known.plugin = Some(PluginState { attempt, is_healthy, was_ready: was_ready || is_healthy });
        // In Nomad only until the client restarts: volumes of a plugin that was ready are in use.
        let must_restart = is_overdue && !was_ready && !known.restart_requested;
        if before.is_none_or(|plugin| plugin.is_healthy != is_healthy) {
            let (kind, message) = match health {
                PluginHealth::Healthy { plugin } => {
                    (TaskEventKind::PluginHealthy, format!("plugin: {plugin}"))
                }
                PluginHealth::Unhealthy { why } | PluginHealth::Overdue { why } => {
                    (TaskEventKind::PluginUnhealthy, why)
                }
            };
            self.note(index, kind, message);
        }
        if must_restart {
            self.restart_unhealthy_task(index, String::from(NOT_READY));
        }
    }
}
