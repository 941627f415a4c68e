//! The process of a task's attempt: starts it, follows it, inspects it, and removes what it left.
//!
//! In: a pass and the task's state. Out: operations on the process, and whether the step that needs them is done.

use super::TaskTurn;
use crate::{
    action::Verb,
    op::TaskPart,
    parts::Progress,
    pass::Pass,
    plan::Waiting,
    state::{Doing, Noticed, PartState},
};

impl TaskTurn<'_> {
    /// Starts the attempt, once all facts that it reads are known: an agent that began since may have to inspect them.
    pub(super) fn start(self, pass: &mut Pass<'_>, attempt: u32) {
        let part = self.part(TaskPart::Process);
        if let Some(waiting) = self.lacks_driver(pass) {
            pass.wait(waiting);
        } else if !self.volumes_ready(pass) {
            // Without its path, a volume is not among the mounts. The step of volumes reports the wait.
        } else if pass.inputs(part).has_arrived() && self.is_mounted(pass) {
            pass.operate(part, Doing::Up, Verb::Start { attempt });
        } else {
            self.parts_up(pass);
        }
    }

    /// Ensures that the process's state is known, and inspects it if not.
    pub(super) fn watch(self, pass: &mut Pass<'_>, attempt: u32) {
        let part = self.part(TaskPart::Process);
        match pass.state.parts.get(part) {
            PartState::Up | PartState::Busy { doing: Doing::Inspect(Some(_)) | Doing::Renew, .. } => {}
            PartState::Suspect(noticed) => {
                let noticed = *noticed;
                self.recover(pass, attempt, Some(noticed));
            }
            PartState::Unknown | PartState::Absent => self.recover(pass, attempt, None),
            PartState::Busy { doing: Doing::Up | Doing::Down | Doing::Inspect(None), .. } => {
                pass.wait(Waiting::Part(part));
            }
            PartState::Failed { retry_at_ns: due_ns, .. } | PartState::Pending { ask_at_ns: due_ns, .. } => {
                let due_ns = *due_ns;
                if pass.due(due_ns) {
                    self.recover(pass, attempt, None);
                }
                pass.wait(Waiting::Part(part));
            }
        }
    }

    /// Whether the driver follows the process, as far as is known.
    pub(super) fn is_followed(self, pass: &Pass<'_>) -> bool {
        matches!(
            pass.state.parts.get(self.part(TaskPart::Process)),
            PartState::Up
                | PartState::Suspect(_)
                | PartState::Busy { doing: Doing::Inspect(Some(_)) | Doing::Renew, .. }
        )
    }

    /// Removes what an ended attempt left. After a restart of the agent it inspects first: a live process is stopped,
    /// not removed.
    pub(super) fn clean_process(self, pass: &mut Pass<'_>) -> Progress {
        let part = self.part(TaskPart::Process);
        let attempt = self.known.newest();
        if attempt == 0 {
            return Progress::Arrived;
        }
        match pass.state.parts.get(part) {
            PartState::Unknown => self.recover(pass, attempt, None),
            PartState::Absent => return Progress::Arrived,
            PartState::Up | PartState::Suspect(_) | PartState::Pending { .. } => {
                pass.operate(part, Doing::Down, Verb::Destroy { attempt });
            }
            PartState::Busy { .. } => {}
            PartState::Failed { doing, retry_at_ns, .. } => {
                let (doing, retry_at_ns) = (*doing, *retry_at_ns);
                if pass.due(retry_at_ns) {
                    match doing {
                        Doing::Inspect(_) => self.recover(pass, attempt, None),
                        Doing::Up | Doing::Renew | Doing::Down => {
                            pass.operate(part, Doing::Down, Verb::Destroy { attempt });
                        }
                    }
                }
            }
        }
        pass.wait(Waiting::Part(part));
        Progress::Pending
    }

    /// Whether the fate of a first attempt that a previous agent may have begun is known.
    pub(super) fn first_is_known(self, pass: &mut Pass<'_>) -> bool {
        let part = self.part(TaskPart::Process);
        match pass.state.parts.get(part) {
            PartState::Absent => return true,
            PartState::Unknown | PartState::Suspect(_) | PartState::Up => self.recover(pass, 1, None),
            PartState::Busy { .. } => {}
            PartState::Failed { retry_at_ns: due_ns, .. } | PartState::Pending { ask_at_ns: due_ns, .. } => {
                let due_ns = *due_ns;
                if pass.due(due_ns) {
                    self.recover(pass, 1, None);
                }
            }
        }
        pass.wait(Waiting::Part(part));
        false
    }

    /// The `prestop` command of an ended attempt may take time to end.
    pub(super) fn clean_prestop(self, pass: &mut Pass<'_>) -> Progress {
        let part = self.part(TaskPart::Prestop);
        if !pass.state.parts.get(part).is_busy() {
            return Progress::Arrived;
        }
        pass.wait(Waiting::Part(part));
        Progress::Pending
    }

    pub(super) fn recover(self, pass: &mut Pass<'_>, attempt: u32, noticed: Option<Noticed>) {
        pass.operate(self.part(TaskPart::Process), Doing::Inspect(noticed), Verb::Recover { attempt });
    }
}
