//! Artifacts of a task that can't be fetched: as in Nomad, a failed start, which its restart policy counts.

use std_alloc::{
    collections::BTreeMap,
    string::{String, ToString},
};

use herdlet_api_types::{
    job::Lifecycle,
    task::{ExitResult, TaskEventKind},
};

use super::{Writer, process::seed};
use crate::{
    action::FailureClass,
    alloc::task::restart::{self, Decision, RestartCause},
    op::{Part, TaskPart},
    state::{PartState, Run},
};

impl Writer<'_> {
    /// Records the event of a download, if the part to bring up is a task's artifacts.
    pub(super) fn note_download(&mut self, part: Part) {
        if let Part::Task(index, TaskPart::Artifacts) = part {
            let message = String::from("Client is downloading artifacts");
            self.note(index, TaskEventKind::DownloadingArtifacts, message);
        }
    }

    /// A failed download is retried with the delay of a restart.
    pub(super) fn download_failed(&mut self, part: Part, class: FailureClass, why: String) {
        let Some(index) = part.task() else { return };
        self.state.parts.set_part(part, PartState::Absent);
        let spec = self.spec.allocation().clone();
        let Some(task) = spec.group().and_then(|group| group.tasks.get(usize::from(index))) else { return };
        let group_stops = self.state.durable.stop.is_some() && task.lifecycle != Lifecycle::Poststop;
        let waits =
            |known: &crate::state::TaskState| known.run == Run::Waiting && known.permanent_failure.is_none();
        if group_stops || !self.known(index).is_some_and(waits) {
            return;
        }
        let details = BTreeMap::from([("download_error".to_string(), why.clone())]);
        self.note_with(index, TaskEventKind::FailedArtifactDownload, why.clone(), details);
        let (now, on_success) = (self.now, restart::restarts_on_success(spec.job.kind, task.lifecycle));
        let Some(known) = self.known_mut(index) else { return };
        known.exit = Some(ExitResult { error: why, at: now.wall, ..ExitResult::default() });
        let ended = match class {
            FailureClass::Retry | FailureClass::Recoverable => RestartCause::StartFailed,
            FailureClass::Fatal | FailureClass::NoProgram => RestartCause::StartImpossible,
        };
        let seed = seed(&spec, index, known.newest());
        match restart::decide(now, &task.restart, on_success, ended, known, seed) {
            Decision::Restart { delay, reason } => self.back_off(index, delay, &reason, "failed_start"),
            // Not possible: nothing has ended with success.
            Decision::Done => {}
            Decision::Fail { reason } => self.fail_permanently(index, TaskEventKind::NotRestarting, reason),
        }
    }
}
