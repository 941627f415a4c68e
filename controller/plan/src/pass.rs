//! One pass over an allocation: what every part may read, and the few verbs it may use.

use herdlet_api_types::{Duration, alloc::Allocation, job::Group};

use crate::{
    action::Verb,
    context::Context,
    limits::OPERATION_TIMEOUT,
    op::{Part, TaskIndex, TaskPart},
    parts::Progress,
    plan::{Change, Plan, TaskChange, Waiting},
    state::{AllocState, Doing, PartState},
    time::{Deadline, Now},
};

/// What a part sees while it is planned.
pub struct Pass<'a> {
    /// The present.
    pub now: Now,
    /// What allocations share, and the agent's settings.
    pub ctx: &'a Context,
    /// What is wanted.
    pub spec: &'a Allocation,
    /// Its group.
    pub group: &'a Group,
    /// What is remembered.
    pub state: &'a AllocState,
    /// What comes out.
    pub plan: Plan,
}

impl Pass<'_> {
    /// Wants a part to be there; it has arrived once it is known to be. What was up and is only looked at or renewed is not waited
    /// for, but nothing new is built on it meanwhile.
    pub fn want_up(&mut self, part: Part, trust: Trust, timeout: Duration) -> Progress {
        match self.state.parts.get(part) {
            PartState::Up => return Progress::Arrived,
            PartState::Suspect(noticed) => {
                let noticed = *noticed;
                self.issue(part, Doing::Look(Some(noticed)), Verb::Look, timeout);
            }
            PartState::Unknown => match trust {
                Trust::LookFirst => self.issue(part, Doing::Look(None), Verb::Look, timeout),
                Trust::Assert => self.issue(part, Doing::Up, Verb::Up, timeout),
            },
            PartState::Absent => self.issue(part, Doing::Up, Verb::Up, timeout),
            PartState::Busy { doing: Doing::Look(Some(_)) | Doing::Renew, .. } => {}
            PartState::Busy { doing: Doing::Up | Doing::Down | Doing::Look(None), .. } => {
                self.wait(Waiting::Part(part));
            }
            // The delay is between tries of the same thing.
            PartState::Failed { doing: Doing::Down, .. } => {
                self.issue(part, Doing::Up, Verb::Up, timeout);
                self.wait(Waiting::Part(part));
            }
            PartState::Failed { doing, retry_at_ns, .. } => {
                let (doing, retry_at_ns) = (*doing, *retry_at_ns);
                if self.due(retry_at_ns) {
                    let again = if doing == Doing::Renew { Doing::Renew } else { Doing::Up };
                    self.issue(part, again, Verb::Up, timeout);
                }
                self.wait(Waiting::Part(part));
            }
        }
        Progress::Pending
    }

    /// Wants a part to be gone; it has arrived once it is.
    pub fn want_down(&mut self, part: Part, verb: Verb, timeout: Duration) -> Progress {
        match self.state.parts.get(part) {
            PartState::Absent => return Progress::Arrived,
            PartState::Up | PartState::Unknown | PartState::Suspect(_) => {
                self.issue(part, Doing::Down, verb, timeout);
            }
            PartState::Busy { .. } => {}
            PartState::Failed { doing: Doing::Up | Doing::Renew | Doing::Look(_), .. } => {
                self.issue(part, Doing::Down, verb, timeout);
            }
            PartState::Failed { doing: Doing::Down, retry_at_ns, .. } => {
                let retry_at_ns = *retry_at_ns;
                if self.due(retry_at_ns) {
                    self.issue(part, Doing::Down, verb, timeout);
                }
            }
        }
        self.wait(Waiting::Part(part));
        Progress::Pending
    }

    /// Wants a part of a task to be there, with the usual time limit.
    pub fn want_task_part_up(&mut self, index: TaskIndex, part: TaskPart) -> Progress {
        self.want_up(Part::Task(index, part), Trust::LookFirst, OPERATION_TIMEOUT)
    }

    /// Wants a part of a task to be gone, with the usual time limit.
    pub fn want_task_part_down(&mut self, index: TaskIndex, part: TaskPart) -> Progress {
        self.want_down(Part::Task(index, part), Verb::Down, OPERATION_TIMEOUT)
    }

    /// Starts an operation.
    pub fn issue(&mut self, part: Part, doing: Doing, verb: Verb, timeout: Duration) {
        self.plan.changes.push(Change::Issue { part, doing, verb, timeout });
    }

    /// Moves a task.
    pub fn change(&mut self, index: TaskIndex, change: TaskChange) {
        self.plan.changes.push(Change::Task(index, change));
    }

    /// Notes what is waited for.
    pub fn wait(&mut self, waiting: Waiting) {
        if !self.plan.waits.contains(&waiting) {
            self.plan.waits.push(waiting);
        }
    }

    /// Whether a time has come; if not, the plan is made again then.
    pub fn due(&mut self, at_ns: u64) -> bool {
        if at_ns <= self.now.boot_ns {
            return true;
        }
        self.plan.wake_ns = Some(self.plan.wake_ns.map_or(at_ns, |wake| wake.min(at_ns)));
        false
    }

    /// Whether a deadline has passed; if not, the plan is made again then.
    pub fn passed(&mut self, deadline: &Deadline) -> bool {
        self.due(deadline.due_ns(self.now))
    }
}

/// What to do with a part of which nothing is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trust {
    /// Look before doing anything.
    LookFirst,
    /// Bringing it up compares by itself and changes only what differs.
    Assert,
}
