//! Sets of a task's parts. The parts that a specification needs are computed once per specification, and read by each
//! plan.

use herdlet_api_types::job::Task;

use super::{
    column::{BeforeStart, Down, Need, WhileRunning},
    task::{TASK_PARTS, TaskPartRow},
};
use crate::op::TaskPart;

/// A set of a task's parts, in the order of the table.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PartSet(u16);

/// Parts that must be up before a start.
pub(crate) const BEFORE_START: PartSet = before_start();

/// Parts that are kept up beside a process. Services and checks have rules of their own.
pub(crate) const KEPT: PartSet = kept();

/// Parts that are taken down after the process.
pub(crate) const AFTER_PROCESS: PartSet = after_process();

impl PartSet {
    /// The parts that a task needs.
    pub fn needed_by(task: &Task) -> Self {
        let needed = TASK_PARTS.into_iter().filter(|row| (row.needed)(task) == Need::Needed);
        needed.fold(Self::default(), |set, row| set.with(row.part))
    }

    /// Whether the set holds the part.
    pub fn need(self, part: TaskPart) -> Need {
        Need::when(self.0 & bit(part) != 0)
    }

    /// The rows of its parts, in the order of the table.
    pub fn rows(self) -> impl Iterator<Item = &'static TaskPartRow> {
        let mut left = self.0;
        core::iter::from_fn(move || {
            let row = TASK_PARTS.get(usize::try_from(left.trailing_zeros()).ok()?)?;
            left &= left.wrapping_sub(1);
            Some(*row)
        })
    }

    /// The parts that both sets hold.
    pub(crate) fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    const fn with(self, part: TaskPart) -> Self {
        Self(self.0 | bit(part))
    }
}

const fn bit(part: TaskPart) -> u16 {
    1 << part as u16
}

const fn before_start() -> PartSet {
    let (mut set, mut at) = (PartSet(0), 0);
    while at < TASK_PARTS.len() {
        let row = TASK_PARTS[at];
        if !matches!(row.before_start, BeforeStart::Nothing) {
            set = set.with(row.part);
        }
        at += 1;
    }
    set
}

const fn kept() -> PartSet {
    let (mut set, mut at) = (PartSet(0), 0);
    while at < TASK_PARTS.len() {
        let TaskPartRow { part, row, .. } = TASK_PARTS[at];
        let has_own_rules = matches!(row.down, Down::First | Down::EachAttempt);
        if matches!(row.while_running, WhileRunning::Keep) && !has_own_rules {
            set = set.with(*part);
        }
        at += 1;
    }
    set
}

const fn after_process() -> PartSet {
    let (mut set, mut at) = (PartSet(0), 0);
    while at < TASK_PARTS.len() {
        if matches!(TASK_PARTS[at].row.down, Down::AfterProcess) {
            set = set.with(TASK_PARTS[at].part);
        }
        at += 1;
    }
    set
}

// Bits are positions in the table.
const _: () = {
    let mut at = 0;
    while at < TASK_PARTS.len() {
        assert!(TASK_PARTS[at].part as usize == at);
        at += 1;
    }
};

#[cfg(test)]
mod tests {
    use herdlet_api_types::job::Lifecycle;
    use std_alloc::vec::Vec;

    use super::*;
    use crate::fixture::task;

    fn parts(set: PartSet) -> Vec<TaskPart> {
        set.rows().map(|row| row.part).collect()
    }

    #[test]
    fn a_plain_task_needs_its_directory_and_its_process() {
        let needed = PartSet::needed_by(&task("main", Lifecycle::Main));
        assert_eq!(parts(needed), [TaskPart::Dir, TaskPart::Process]);
        assert_eq!(needed.need(TaskPart::Process), Need::Needed);
        assert_eq!(needed.need(TaskPart::Mounts), Need::Unneeded);
    }

    #[test]
    fn sets_are_as_the_columns_say() {
        use TaskPart as P;
        let kept = [
            P::Dir,
            P::Identity,
            P::Vault,
            P::Consul,
            P::Mounts,
            P::Templates,
            P::ApiSocket,
            P::CsiPlugin,
            P::Probe,
            P::ProbeReader,
        ];
        let mut before_start = kept.to_vec();
        before_start.splice(4..4, [P::Secrets, P::Artifacts]);
        assert_eq!(parts(BEFORE_START), before_start);
        assert_eq!(parts(KEPT), kept);
        assert_eq!(
            parts(AFTER_PROCESS),
            [P::Vault, P::Consul, P::Mounts, P::ApiSocket, P::CsiPlugin, P::Probe]
        );
    }

    #[test]
    fn every_task_with_a_program_needs_its_socket() {
        let mut task = task("main", Lifecycle::Main);
        task.driver = herdlet_api_types::driver::RAW_EXEC.into();
        assert_eq!(parts(PartSet::needed_by(&task)), [TaskPart::Dir, TaskPart::ApiSocket, TaskPart::Process]);
    }
}
