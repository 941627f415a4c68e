//! Parts for tests only, so that every column of the table has a user before the real part that needs it exists.
//!
//! In: a task with `probe: true` in its driver's config. Out: two parts of it. The probe exists outside the agent, may
//! be unreachable, and changes under a running task, which then gets a signal. The reader is created from the probe:
//! when the reader changes, a running task restarts. No driver accepts such a config.

use std_alloc::string::String;

use herdlet_api_types::job::Task;

use super::{
    column::{
        BeforeStart, Down, IfFatal, IfLost, Inside, Medium, Memory, Need, PartRow, Read, ReadWhen, Source,
        Timeout, Trust, WhileRunning, Withdraw, Words,
    },
    task::TaskPartRow,
};
use crate::{
    facts::{ChangeAction, Facts, Notification},
    limits::OPERATION_TIMEOUT,
    op::{Part, TaskPart},
};

/// A part that exists outside the agent.
pub(super) const PROBE: TaskPartRow = TaskPartRow {
    part: TaskPart::Probe,
    needed: needed_by,
    before_start: BeforeStart::Verify,
    on_change: |_, before, after| {
        let signal = || ChangeAction::Signal([String::from("SIGUSR1")].into());
        is_other(before, after).then(|| Notification::at_once(signal()))
    },
    row: PartRow {
        name: "probe",
        medium: Medium::Catalogue,
        trust: Trust::InspectFirst,
        inside: Inside::Nothing,
        while_running: WhileRunning::Keep,
        reads: &[Read { source: Source::Shared(Part::Services), when: ReadWhen::Confirmed }],
        memory: Memory::MayExist,
        down: Down::AfterProcess,
        withdraw: Withdraw::Never,
        if_lost: IfLost::Restore,
        if_fatal: IfFatal::Ignore,
        timeout: Timeout::same(OPERATION_TIMEOUT),
        words: Words { name: "probe", them: "it", up: "creating", down: "removing" },
    },
};

/// A part made from the probe.
pub(super) const PROBE_READER: TaskPartRow = TaskPartRow {
    part: TaskPart::ProbeReader,
    needed: needed_by,
    before_start: BeforeStart::Once,
    on_change: |_, before, after| {
        let restart = || ChangeAction::Restart(String::from("the probe has changed"));
        is_other(before, after).then(|| Notification::at_once(restart()))
    },
    row: PartRow {
        name: "probe_reader",
        medium: Medium::Files,
        trust: Trust::Assert,
        inside: Inside::TaskDir,
        while_running: WhileRunning::Keep,
        reads: &[Read { source: Source::Own(TaskPart::Probe), when: ReadWhen::Live }],
        memory: Memory::Stored,
        down: Down::WithDir,
        withdraw: Withdraw::WhileStarting,
        if_lost: IfLost::FailUsers("the probe's reader is gone"),
        if_fatal: IfFatal::RestartPolicy,
        timeout: Timeout::same(OPERATION_TIMEOUT),
        words: Words { name: "probe's reader", them: "it", up: "creating", down: "removing" },
    },
};

fn needed_by(task: &Task) -> Need {
    Need::when(task.config.get("probe").is_some_and(|wanted| *wanted == true))
}

fn is_other(before: &Facts, after: &Facts) -> bool {
    before.revision != after.revision
}

#[cfg(test)]
mod tests {
    use core::fmt::Debug;
    use std_alloc::{collections::BTreeSet, format, vec, vec::Vec};

    use herdlet_api_types::job::Lifecycle;

    use super::*;
    use crate::{fixture::task, parts::TASK_PARTS};

    fn rows() -> Vec<&'static PartRow> {
        Part::OWN.into_iter().map(Part::row).chain(TASK_PARTS.into_iter().map(|row| &row.row)).collect()
    }

    /// The name of a value, without its content.
    fn name(value: impl Debug) -> String {
        let text = format!("{value:?}");
        text.split([' ', '(']).next().map(String::from).unwrap_or_default()
    }

    fn names<T: Debug>(values: impl IntoIterator<Item = T>) -> BTreeSet<String> {
        values.into_iter().map(name).collect()
    }

    #[test]
    fn only_tasks_that_request_it_have_a_probe() {
        let mut task = task("main", Lifecycle::Main);
        assert_eq!((PROBE.needed)(&task), Need::Unneeded);
        task.config = serde_json::json!({ "probe": true });
        assert_eq!(((PROBE.needed)(&task), (PROBE_READER.needed)(&task)), (Need::Needed, Need::Needed));
    }

    /// A column value that no part has would not be tested.
    #[test]
    fn every_value_of_every_column_has_a_part() {
        let rows = rows();
        let values_of =
            |column: fn(&PartRow) -> String| rows.iter().map(|row| column(row)).collect::<BTreeSet<_>>();
        let set = |text: &str| text.split(' ').map(String::from).collect::<BTreeSet<_>>();
        assert_eq!(values_of(|row| name(row.medium)), set("Files Mounts Processes Catalogue Agent"));
        assert_eq!(values_of(|row| name(row.trust)), set("InspectFirst Assert"));
        assert_eq!(values_of(|row| name(row.inside)), set("Nothing AllocDir TaskDir"));
        assert_eq!(values_of(|row| name(row.while_running)), set("Keep Leave"));
        assert_eq!(values_of(|row| name(row.memory)), set("Inspected Stored MayExist"));
        assert_eq!(values_of(|row| name(row.down)), set("First AfterProcess EachAttempt WithDir"));
        assert_eq!(values_of(|row| name(row.withdraw)), set("Never WhileStarting"));
        assert_eq!(values_of(|row| name(row.if_lost)), set("Restore FailUsers"));
        assert_eq!(values_of(|row| name(row.if_fatal)), set("Ignore FailUsers RestartPolicy GoOn"));
        let reads = || rows.iter().flat_map(|row| row.reads);
        assert_eq!(names(reads().map(|read| read.when)), set("AtStart Live Confirmed"));
        assert_eq!(names(reads().map(|read| read.source)), set("Own Shared"));
        let before_start = TASK_PARTS.into_iter().map(|row| row.before_start);
        assert_eq!(names(before_start), set("Nothing Once Verify"));
        let (before, after) = (Facts::none(), Facts { revision: crate::facts::Revision(1), ..Facts::none() });
        let task = task("main", Lifecycle::Main);
        let actions = TASK_PARTS.into_iter().filter_map(|row| (row.on_change)(&task, &before, &after));
        let actions = actions.map(|notification| notification.action);
        assert_eq!(names(actions), set("Restart Signal"));
    }

    /// Two parts that read each other would wait for each other for ever.
    #[test]
    fn part_dependencies_have_no_cycle() {
        let sources =
            |part: Part| part.row().reads.iter().filter_map(move |read| read.source.part(part.task()));
        let of_task = TASK_PARTS.into_iter().map(|row| Part::Task(0, row.part));
        for start in of_task.chain(Part::OWN) {
            let (mut seen, mut next) = (BTreeSet::new(), vec![start]);
            while let Some(part) = next.pop() {
                for source in sources(part) {
                    assert_ne!(source, start, "{start:?} reads itself through {part:?}");
                    if seen.insert(source) {
                        next.push(source);
                    }
                }
            }
        }
    }
}
