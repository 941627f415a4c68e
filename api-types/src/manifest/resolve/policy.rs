//! The rules for restarts, rescheduling, roll-outs and scaling: merges the fields of a block over an outer block or
//! the defaults.

use super::length;
use crate::{
    job::{self, ReschedulePolicy, RestartPolicy},
    manifest::{Reschedule, Restart, Scaling, Update},
};

impl Restart {
    /// Merges these fields over an outer policy.
    pub fn over(&self, outer: &RestartPolicy) -> RestartPolicy {
        RestartPolicy {
            attempts: self.attempts.unwrap_or(outer.attempts),
            interval: length(self.interval, outer.interval),
            delay: length(self.delay, outer.delay),
            mode: self.mode.unwrap_or(outer.mode),
            render_templates: self.render_templates.unwrap_or(outer.render_templates),
        }
    }
}

impl Reschedule {
    /// Merges these fields over an outer policy. Explicit `attempts` above 0 disable an inherited `unlimited`; an
    /// explicit `unlimited: true` resets inherited attempts.
    pub fn over(&self, outer: &ReschedulePolicy) -> ReschedulePolicy {
        let attempts = if self.unlimited == Some(true) { 0 } else { outer.attempts };
        ReschedulePolicy {
            attempts: self.attempts.unwrap_or(attempts),
            interval: length(self.interval, outer.interval),
            delay: length(self.delay, outer.delay),
            delay_function: self.delay_function.unwrap_or(outer.delay_function),
            max_delay: length(self.max_delay, outer.max_delay),
            unlimited: self
                .unlimited
                .unwrap_or(outer.unlimited && self.attempts.is_none_or(|count| count == 0)),
        }
    }
}

impl Update {
    /// Merges these fields over outer rules.
    pub fn over(&self, outer: &job::Update) -> job::Update {
        job::Update {
            max_parallel: self.max_parallel.unwrap_or(outer.max_parallel),
            min_healthy_time: length(self.min_healthy_time, outer.min_healthy_time),
            healthy_deadline: length(self.healthy_deadline, outer.healthy_deadline),
            progress_deadline: length(self.progress_deadline, outer.progress_deadline),
            health_check: self.health_check.unwrap_or(outer.health_check),
            auto_revert: self.auto_revert.unwrap_or(outer.auto_revert),
            auto_promote: self.auto_promote.unwrap_or(outer.auto_promote),
            canary: self.canary.unwrap_or(outer.canary),
            stagger: length(self.stagger, outer.stagger),
        }
    }
}

impl Scaling {
    /// The scaling range for a group with this count.
    pub fn of(&self, count: u32) -> job::Scaling {
        job::Scaling {
            enabled: self.enabled.unwrap_or(true),
            min: self.min.unwrap_or(count),
            max: self.max.unwrap_or_default(),
            policy: self.policy.clone().map(serde_json::Value::Object),
        }
    }
}
