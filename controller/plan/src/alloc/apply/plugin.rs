//! The health of a task that is a CSI plugin.
//!
//! In: reports about its present attempt. Out: Nomad's events, one for each change, and a restart if it was never ready.
//! Each agent begins with a report, so one may repeat what the task's events say already.

use std_alloc::{format, string::String};

use herdlet_api_types::task::{TaskEvent, TaskEventKind};

use super::Writer;
use crate::{
    event::PluginHealth,
    state::{Run, TaskState},
};

/// Why a plugin restarts.
const NOT_READY: &str = "The CSI plugin was not ready within its health_timeout";

impl Writer<'_> {
    /// Applies a report. Only one about the live attempt counts.
    pub fn plugin_reported(&mut self, task: &str, attempt: u32, health: PluginHealth) {
        let Some(index) = self.index_of(task) else { return };
        let Some(known) = self.known(index) else { return };
        let is_live = match known.run {
            Run::Starting { attempt: live, .. } | Run::Running { attempt: live, .. } => live == attempt,
            Run::Waiting | Run::BackingOff { .. } | Run::Stopping { .. } | Run::Dead => false,
        };
        if !is_live {
            return;
        }
        let is_overdue = matches!(health, PluginHealth::Overdue { .. });
        let (kind, message) = match health {
            PluginHealth::Healthy { plugin } => (TaskEventKind::PluginHealthy, format!("plugin: {plugin}")),
            PluginHealth::Unhealthy { why } | PluginHealth::Overdue { why } => {
                (TaskEventKind::PluginUnhealthy, why)
            }
        };
        let is_change = reports(known).next().is_none_or(|last| last.kind != kind);
        let was_ready = reports(known).any(|report| report.kind == TaskEventKind::PluginHealthy);
        if is_change {
            self.note(index, kind, message);
        }
        // As in Nomad, a plugin that was ready once is not restarted: its volumes are in use.
        if is_overdue && !was_ready && self.known(index).is_some_and(|known| !known.restart_requested) {
            self.note(index, TaskEventKind::RestartSignaled, String::from(NOT_READY));
            if let Some(known) = self.known_mut(index) {
                known.restart_requested = true;
                known.unhealthy = true;
            }
        }
    }
}

/// The events about the plugin since the task has begun its attempt, the newest first.
fn reports(known: &TaskState) -> impl Iterator<Item = &TaskEvent> {
    let is_of_attempt = |event: &&TaskEvent| {
        let ends_before = [
            TaskEventKind::Started,
            TaskEventKind::Terminated,
            TaskEventKind::Restarting,
            TaskEventKind::Killed,
        ];
        !ends_before.contains(&event.kind)
    };
    let is_report = |event: &&TaskEvent| {
        [TaskEventKind::PluginHealthy, TaskEventKind::PluginUnhealthy].contains(&event.kind)
    };
    known.events.iter().rev().take_while(is_of_attempt).filter(is_report)
}
