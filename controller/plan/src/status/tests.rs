//! Nomad's client status over all task states.

use herdlet_api_types::{Duration, alloc::ClientStatus};

use super::client_status;
use crate::{
    fixture::{at, backing_off, dead, failed, pending, running},
    state::{AfterStop, Run, StopStep, TaskState},
    time::{BootId, Deadline},
};

#[test]
fn the_first_rule_that_matches_decides() {
    let until = Deadline::after(at(0), Duration::from_secs(1));
    let stopping = |step| TaskState {
        run: Run::Stopping { attempt: 1, boot: BootId(1), ran: true, step, then: AfterStop::Dead },
        ..running()
    };
    let delayed = stopping(StopStep::Delay { until });
    let killed = stopping(StopStep::Kill { until });
    let table: [(&str, &[TaskState], ClientStatus); 11] = [
        ("running, running", &[running(), running()], ClientStatus::Running),
        ("running, dead ok", &[running(), dead()], ClientStatus::Running),
        ("dead failed, running", &[failed(), running()], ClientStatus::Failed),
        ("pending, pending", &[pending(), pending()], ClientStatus::Pending),
        ("pending (shutdown_delay), dead ok", &[delayed, dead()], ClientStatus::Pending),
        ("dead ok, dead ok", &[dead(), dead()], ClientStatus::Complete),
        ("main dead ok, poststop pending", &[dead(), pending()], ClientStatus::Pending),
        ("main dead ok, poststop failed", &[dead(), failed()], ClientStatus::Failed),
        ("being killed", &[killed], ClientStatus::Running),
        ("between two starts", &[backing_off(), dead()], ClientStatus::Pending),
        ("no tasks known yet", &[], ClientStatus::Pending),
    ];
    for (name, tasks, expected) in table {
        assert_eq!(client_status(tasks).0, expected, "{name}");
    }
}
