//! One pass over an allocation: the inputs of every part, and the operations available to it.

use herdlet_api_types::{Duration, job::Group};

use crate::{
    action::Verb,
    context::Context,
    facts::Fact,
    op::{Part, TaskIndex},
    parts::{IfLost, Memory, Need, Progress, ReadWhen, Trust, WhileRunning},
    plan::{Change, Plan, TaskChange, Waiting},
    spec::AllocSpec,
    state::{AllocState, Doing, PartState, Run},
    time::{Deadline, Now},
};

/// The view of a part while it is planned.
pub struct Pass<'a> {
    /// The current time.
    pub now: Now,
    /// What allocations share, and the agent's settings.
    pub ctx: &'a Context,
    /// The desired state.
    pub spec: &'a AllocSpec,
    /// Its group.
    pub group: &'a Group,
    /// The stored state.
    pub state: &'a AllocState,
    /// The resulting plan.
    pub plan: Plan,
}

impl Pass<'_> {
    /// Wants a part to be up; it has arrived once that is confirmed. A part that is up and merely being re-checked or
    /// renewed does not block, but later parts do not start until it is confirmed.
    pub fn want_up(&mut self, part: Part) -> Progress {
        match self.state.parts.get(part) {
            PartState::Up => return Progress::Arrived,
            PartState::Suspect(noticed) => {
                let noticed = *noticed;
                self.operate(part, Doing::Inspect(Some(noticed)), Verb::Inspect);
            }
            PartState::Unknown => match part.row().trust {
                Trust::InspectFirst => self.operate(part, Doing::Inspect(None), Verb::Inspect),
                Trust::Assert => self.bring_up(part, Doing::Up),
            },
            PartState::Absent => self.bring_up(part, Doing::Up),
            PartState::Busy { doing: Doing::Inspect(Some(_)) | Doing::Renew, .. } => {}
            PartState::Busy { doing: Doing::Up | Doing::Down | Doing::Inspect(None), .. } => {
                self.wait(Waiting::Part(part));
            }
            PartState::Pending { ask_at_ns, .. } => {
                let ask_at_ns = *ask_at_ns;
                if self.due(ask_at_ns) {
                    self.bring_up(part, Doing::Up);
                }
                self.wait(Waiting::Part(part));
            }
            // The delay applies to tries of the same operation.
            PartState::Failed { doing: Doing::Down, .. } => {
                self.bring_up(part, Doing::Up);
                self.wait(Waiting::Part(part));
            }
            PartState::Failed { doing, retry_at_ns, .. } => {
                let (doing, retry_at_ns) = (*doing, *retry_at_ns);
                if self.due(retry_at_ns) {
                    self.try_again(part, doing);
                }
                self.wait(Waiting::Part(part));
            }
        }
        Progress::Pending
    }

    /// Repeats what has failed. An inspection need not be repeated, as bringing the part up compares too, except of what may not
    /// be made again without its users' knowledge.
    fn try_again(&mut self, part: Part, failed: Doing) {
        match failed {
            Doing::Inspect(_) if part.row().if_lost != IfLost::Restore => {
                self.operate(part, failed, Verb::Inspect);
            }
            Doing::Renew => self.bring_up(part, Doing::Renew),
            Doing::Up | Doing::Down | Doing::Inspect(_) => self.bring_up(part, Doing::Up),
        }
    }

    /// Brings a part up once all its inputs are known.
    pub fn bring_up(&mut self, part: Part, doing: Doing) {
        if self.inputs(part).has_arrived() {
            self.operate(part, doing, Verb::Up);
        }
    }

    /// Whether all inputs of a part are known.
    pub fn inputs(&mut self, part: Part) -> Progress {
        let mut known = Progress::Arrived;
        for read in part.row().reads {
            let Some(source) = read.source.part(part.task()) else { continue };
            if self.spec.need(source) == Need::Unneeded {
                continue;
            }
            let is_known = match read.when {
                ReadWhen::AtStart if self.is_left_alone(source) => true,
                ReadWhen::AtStart | ReadWhen::Live => self.state.fact(source) != Fact::Unknown,
                ReadWhen::Confirmed => *self.state.parts.get(source) == PartState::Up,
            };
            if !is_known {
                self.wait(Waiting::Part(source));
                known = Progress::Pending;
            }
        }
        known
    }

    /// Whether the part is not inspected now, because its task runs: the process has read it.
    fn is_left_alone(&self, part: Part) -> bool {
        let known = part.task().and_then(|index| self.state.durable.tasks.get(usize::from(index)));
        let runs = known.is_some_and(|known| matches!(known.run, Run::Running { .. } | Run::Stopping { .. }));
        runs && matches!(part.row().while_running, WhileRunning::Leave)
    }

    /// Wants a part to be gone; it has arrived once it is.
    pub fn want_down(&mut self, part: Part) -> Progress {
        if self.never_existed(part) {
            return Progress::Arrived;
        }
        match self.state.parts.get(part) {
            PartState::Absent => return Progress::Arrived,
            PartState::Up | PartState::Unknown | PartState::Suspect(_) | PartState::Pending { .. } => {
                self.operate(part, Doing::Down, Verb::Down);
            }
            PartState::Busy { .. } => {}
            PartState::Failed { doing: Doing::Up | Doing::Renew | Doing::Inspect(_), .. } => {
                self.operate(part, Doing::Down, Verb::Down);
            }
            PartState::Failed { doing: Doing::Down, retry_at_ns, .. } => {
                let retry_at_ns = *retry_at_ns;
                if self.due(retry_at_ns) {
                    self.operate(part, Doing::Down, Verb::Down);
                }
            }
        }
        self.wait(Waiting::Part(part));
        Progress::Pending
    }

    /// Whether it was never brought up, according to the stored state. Services also depend on their catalogue: see
    /// [`crate::alloc::services`].
    fn never_existed(&self, part: Part) -> bool {
        part.row().memory == Memory::MayExist
            && part.services(self.spec).is_none()
            && !self.state.durable.may_be_held(part)
    }

    /// Starts an operation with the part's usual timeout.
    pub fn operate(&mut self, part: Part, doing: Doing, verb: Verb) {
        self.issue(part, doing, verb, part.row().timeout.of(doing));
    }

    /// Starts an operation.
    pub fn issue(&mut self, part: Part, doing: Doing, verb: Verb, timeout: Duration) {
        self.plan.changes.push(Change::Issue { part, doing, verb, timeout });
    }

    /// Changes the state of a task.
    pub fn change(&mut self, index: TaskIndex, change: TaskChange) {
        self.plan.changes.push(Change::Task(index, change));
    }

    /// Notes what the plan waits for.
    pub fn wait(&mut self, waiting: Waiting) {
        if !self.plan.waits.contains(&waiting) {
            self.plan.waits.push(waiting);
        }
    }

    /// Whether a time has come; if not, the allocation is planned again then.
    pub fn due(&mut self, at_ns: u64) -> bool {
        if at_ns <= self.now.boot_ns {
            return true;
        }
        self.plan.wake_ns = Some(self.plan.wake_ns.map_or(at_ns, |wake| wake.min(at_ns)));
        false
    }

    /// Whether a deadline has passed; if not, the allocation is planned again then.
    pub fn passed(&mut self, deadline: &Deadline) -> bool {
        self.due(deadline.due_ns(self.now))
    }
}
