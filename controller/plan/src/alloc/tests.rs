//! Plans by example. This page has the shared fixtures: states, and a bench that plans an allocation and applies
//! changes to it.

mod artifacts;
mod attempts;
mod check_restart;
mod health;
mod network;
mod parts;
mod plugin;
mod probe;
mod properties;
mod secrets;
mod task_events;
mod templates;
mod vault;

use std_alloc::{
    collections::BTreeSet,
    format,
    string::{String, ToString},
    sync::Arc,
    vec,
    vec::Vec,
};

use herdlet_api_types::{
    DeploymentId, Duration,
    alloc::{AllocDeployment, Allocation, ClientStatus, Desired},
    job::{
        ChangeMode, Check, Dependency, DependencyCondition, HealthCheck, Identity, Lifecycle, OnUpdate,
        Prestop, Provider, Service, Update,
    },
    service::{CheckResult, CheckStatus, RestartsWhen},
    task::TaskEventKind,
};

use super::*;
use crate::{
    action::{FailureClass, Outcome, Recovered, Verb},
    alloc::apply::Writer,
    event::{Noticed, RestartScope},
    facts::Facts,
    fixture::{alloc, at, dead, exit, failed, pending, running, settings, task},
    launch::Launch,
    op::{Part, TaskPart},
    state::{
        AfterStop, Doing, Durable, GroupRestart, Health, PartState, Parts, PermanentFailure, RestartPhase,
        Run, Stage, StopStep, TaskState, Tracked,
    },
    time::BootId,
    turn::{Drifted, Note},
    world::World,
};
use proptest::prelude::*;

fn context() -> Context {
    World::new(settings()).ctx
}

/// Plans an allocation as received from its source.
fn plan(now: Now, ctx: &Context, spec: &Arc<Allocation>, state: &AllocState) -> Plan {
    super::plan(now, ctx, &AllocSpec::read(spec.clone()), state)
}

fn known(tasks: Vec<TaskState>, stage: Stage, parts: Parts) -> AllocState {
    let durable = Durable { adopted: true, stage, tasks, ..Durable::default() };
    AllocState { durable: Tracked::stored(durable), parts, ..AllocState::default() }
}

fn up(all: &[Part]) -> Parts {
    let mut parts = Parts::absent();
    for part in all {
        parts.set_part(*part, PartState::Up);
    }
    parts
}

/// The changes of a plan, one per line.
fn changes(desired: Desired, state: &AllocState) -> Vec<String> {
    let mut spec = alloc(vec![task("main", Lifecycle::Main), task("stop", Lifecycle::Poststop)]);
    std_alloc::sync::Arc::make_mut(&mut spec).desired = desired;
    let plan = plan(at(100), &context(), &spec, state);
    plan.changes
        .iter()
        .filter(|change| !matches!(change, Change::Healthy(_)))
        .map(|change| match change {
            Change::Issue { part, verb, .. } => format!("{part:?} {verb:?}"),
            Change::Task(index, change) => format!("{index} {change:?}").chars().take(20).collect(),
            Change::Stop(stop) => format!("Stop {:?}", stop.reason),
            other @ (Change::Adopt
            | Change::Stage(_)
            | Change::RestartTasks(_)
            | Change::EndRestart
            | Change::EndTurn
            | Change::OutdateVerdict
            | Change::Unhealthy { .. }
            | Change::Healthy(_)
            | Change::Fail(_)
            | Change::Verdict(..)
            | Change::Forget) => format!("{other:?}"),
        })
        .collect()
}

/// A task with an artifact.
fn fetching(mut task: herdlet_api_types::job::Task) -> herdlet_api_types::job::Task {
    task.artifacts.push(herdlet_api_types::fixture::artifact("https://example.test/a.tgz"));
    task
}

const PROCESS: Part = Part::Task(0, TaskPart::Process);

const TASK_DIR: Part = Part::Task(0, TaskPart::Dir);

#[test]
fn plans_by_example() {
    let fresh = AllocState { parts: Parts::absent(), ..AllocState::default() };
    let adopted = |tasks, stage, parts| known(tasks, stage, parts);
    let table: Vec<(&str, Desired, AllocState, Vec<&str>)> = vec![
        ("nothing is done for it before that is stored", Desired::Run, fresh.clone(), vec!["Adopt"]),
        ("an allocation that was never adopted is forgotten", Desired::Gone, fresh, vec!["Forget"]),
        (
            "the directory comes first",
            Desired::Run,
            adopted(vec![pending(), pending()], Stage::Main, up(&[])),
            vec!["Dir Up"],
        ),
        (
            "then the task's",
            Desired::Run,
            adopted(vec![pending(), pending()], Stage::Main, up(&[Part::Dir])),
            vec!["Task(0, Dir) Up"],
        ),
        (
            "then an attempt begins",
            Desired::Run,
            adopted(vec![pending(), pending()], Stage::Main, up(&[Part::Dir, TASK_DIR])),
            vec!["0 Begin"],
        ),
        (
            "running + process alive: nothing",
            Desired::Run,
            adopted(vec![running(), pending()], Stage::WaitAlloc, up(&[Part::Dir, TASK_DIR, PROCESS])),
            vec![],
        ),
        (
            "running, after a start of the agent: an inspection",
            Desired::Run,
            adopted(vec![running(), pending()], Stage::WaitAlloc, Parts::unknown()),
            vec!["Dir Inspect", "Task(0, Process) Recover { attempt: 1 }", "Task(0, Dir) Inspect"],
        ),
        (
            "a stop is decided before anything is stopped",
            Desired::Stop,
            adopted(vec![running(), pending()], Stage::WaitAlloc, up(&[Part::Dir, TASK_DIR, PROCESS])),
            vec!["Stop Desired"],
        ),
        (
            "dead and complete, desired run: never started again",
            Desired::Run,
            adopted(vec![dead(), dead()], Stage::Poststop, up(&[Part::Dir, TASK_DIR])),
            vec![],
        ),
        (
            "dead, after a start of the agent: inspected, not started",
            Desired::Run,
            adopted(vec![dead(), dead()], Stage::Poststop, Parts::unknown()),
            vec!["Task(0, Process) Recover { attempt: 1 }", "Task(1, Process) Recover { attempt: 1 }"],
        ),
    ];
    for (name, desired, state, expected) in table {
        assert_eq!(changes(desired, &state), expected, "{name}");
    }
}

/// Only `status` showed the cause; `explain` and the task's history showed "Exit Code: 137, Signal: 9".
#[test]
fn a_task_that_was_out_of_memory_says_so() {
    let mut limited = task("main", Lifecycle::Main);
    limited.resources.memory_mib = Some(64);
    let spec = alloc(vec![limited]);
    let parts = up(&[Part::Dir, TASK_DIR, PROCESS]);
    let mut life = Bench::new(&spec, known(vec![running()], Stage::Main, parts));
    let result = herdlet_api_types::task::ExitResult { signal: 9, oom_killed: true, ..exit(137) };
    life.write(|writer| writer.exited("main", 1, result));
    let messages: Vec<&str> =
        life.state.durable.tasks[0].events.iter().map(|event| &*event.message).collect();
    assert!(messages.contains(&"Exit Code: 137, Signal: 9, out of memory (limit 64 MiB)"), "{messages:?}");
}

/// An allocation without a world around it.
struct Bench<'a> {
    spec: &'a Arc<Allocation>,
    state: AllocState,
    ctx: Context,
    generation: u64,
    issued: Vec<String>,
    notes: Vec<Note>,
    now: Now,
}

impl<'a> Bench<'a> {
    fn new(spec: &'a Arc<Allocation>, state: AllocState) -> Self {
        Self {
            spec,
            state,
            ctx: context(),
            generation: 0,
            issued: Vec::new(),
            notes: Vec::new(),
            now: at(100),
        }
    }

    fn write<R>(&mut self, change: impl FnOnce(&mut Writer<'_>) -> R) -> R {
        let mut issued = Vec::new();
        let result = change(&mut Writer {
            now: self.now,
            settings: &self.ctx.settings,
            spec: &AllocSpec::read(self.spec.clone()),
            state: &mut self.state,
            generation: &mut self.generation,
            issued: &mut issued,
            notes: &mut self.notes,
        });
        self.issued.extend(issued.iter().map(|issued| format!("{:?}", issued.verb)));
        result
    }

    /// Keeps only the stored state, as after a crash.
    fn crash(&mut self) {
        let durable = Durable::clone(&self.state.durable);
        self.state = AllocState { durable: Tracked::stored(durable), ..AllocState::default() };
        self.issued.clear();
    }

    /// Plans until nothing changes. Returns the number of rounds.
    fn settle(&mut self) -> usize {
        for round in 0..64 {
            let plan = plan(self.now, &self.ctx, self.spec, &self.state);
            if plan.changes.is_empty() || plan.changes.contains(&Change::Forget) {
                return round;
            }
            self.write(|writer| plan.changes.into_iter().for_each(|change| writer.change(change)));
        }
        64
    }

    fn outcome(&mut self, part: Part, outcome: Outcome) {
        if let PartState::Busy { generation, .. } = *self.state.parts.get(part) {
            self.write(|writer| writer.outcome(part, generation, outcome));
            self.settle();
        }
    }
}
