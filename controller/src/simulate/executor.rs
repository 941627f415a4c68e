//! The simulated executor: carries out every action at once, except that tasks start, run and end as configured.
//!
//! In: actions. Out: outcomes and exits of tasks, through the inbox. It remembers which attempts run, as the machine would.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use herdlet_agent::planner::{Input, PlannedAction};
use herdlet_api_types::{AllocId, job::JobType, task::ExitResult};
use herdlet_plan::{
    action::{Action, FailureClass, Outcome, Recovered, Started, Verb},
    event::Event,
    facts::Facts,
    launch::Launch,
    op::{Op, Part, Subject, Target, TaskPart},
};
use herdlet_runtime::{Executor, Inbox};
use tokio::{task::AbortHandle, time::sleep};

use super::behaviour::AttemptScript;

/// Exit code of a stopped task: 128 + SIGINT.
const STOPPED: i32 = 130;

/// The executor of one node.
#[derive(Clone)]
pub(super) struct SimulatedExecutor {
    inbox: Inbox<Input>,
    fate: Arc<AttemptScript>,
    /// Running attempts with their tokio tasks. Without a handle, an attempt runs until it is stopped: the handle would keep the
    /// memory of its ended tokio task.
    running: Arc<Mutex<BTreeMap<Attempt, Option<AbortHandle>>>>,
}

type Attempt = (AllocId, String, u32);

impl Executor<PlannedAction> for SimulatedExecutor {
    fn start(&mut self, actions: Vec<PlannedAction>) {
        let hands = self.clone();
        // In order, and without blocking the loop.
        tokio::spawn(async move {
            for PlannedAction(action) in actions {
                hands.carry_out(action).await;
            }
        });
    }
}

impl SimulatedExecutor {
    pub(super) fn new(inbox: Inbox<Input>, fate: Arc<AttemptScript>) -> Self {
        Self { inbox, fate, running: Arc::default() }
    }

    async fn carry_out(&self, action: Action) {
        let task = task_of(&action);
        let outcome = match (action.verb, task) {
            (Verb::Withdraw, _) => return,
            (Verb::Start { attempt }, Some((alloc, task, kind))) => {
                return self.begin(action.op, (alloc, task, attempt), kind);
            }
            (Verb::Stop { attempt, .. }, Some((alloc, task, _))) => {
                self.end(&(alloc, task, attempt)).await;
                Outcome::Done(None)
            }
            (Verb::Recover { attempt }, Some((alloc, task, _))) => {
                let runs = self.running().contains_key(&(alloc, task, attempt));
                Outcome::Recovered(if runs {
                    Recovered::Running(Started::default())
                } else {
                    Recovered::NotStarted
                })
            }
            (Verb::Up, _) => match &action.subject {
                Subject::Volume(volume) => Outcome::Done(Some(Facts::rooted(volume.name.clone()))),
                Subject::Alloc(..) => Outcome::Done(None),
            },
            (Verb::Inspect, _) => Outcome::Absent,
            (Verb::Ask, _) => Outcome::Absent,
            (
                Verb::Down
                | Verb::Start { .. }
                | Verb::Stop { .. }
                | Verb::Recover { .. }
                | Verb::Destroy { .. }
                | Verb::Prestop { .. }
                | Verb::Script { .. }
                | Verb::Signal { .. },
                _,
            ) => Outcome::Done(None),
        };
        self.send(Event::Outcome(action.op, outcome)).await;
    }

    /// Starts a task, which ends by itself as configured.
    fn begin(&self, op: Op, attempt: Attempt, kind: JobType) {
        let hands = self.clone();
        let life = {
            let attempt = attempt.clone();
            async move {
                match hands.fate.start() {
                    Err(why) => {
                        hands.running().remove(&attempt);
                        let (class, why) = (FailureClass::Fatal, why.to_owned());
                        let failed = Event::Outcome(op, Outcome::Failed { class, why });
                        return Box::pin(hands.send(failed)).await;
                    }
                    Ok(takes) if takes.is_zero() => {}
                    Ok(takes) => sleep(takes).await,
                }
                // Boxed, so that a long-running task does not hold the memory for it.
                let started = Outcome::Started(Launch::of(attempt.2));
                Box::pin(hands.send(Event::Outcome(op, started))).await;
                let Some((length, exit)) = hands.fate.end(kind) else {
                    if let Some(life) = hands.running().get_mut(&attempt) {
                        *life = None;
                    }
                    return;
                };
                sleep(length).await;
                hands.running().remove(&attempt);
                Box::pin(hands.send(exited(attempt, exit))).await;
            }
        };
        // The lock is held until the attempt is inserted, so that it can't end before.
        let mut running = self.running();
        running.insert(attempt, Some(tokio::spawn(life).abort_handle()));
    }

    async fn end(&self, attempt: &Attempt) {
        let Some(life) = self.running().remove(attempt) else { return };
        if let Some(life) = life {
            life.abort();
        }
        let exit = ExitResult { code: STOPPED, ..ExitResult::default() };
        self.send(exited(attempt.clone(), exit)).await;
    }

    /// Drops all running tasks without events.
    pub(super) fn let_go(&self) {
        std::mem::take(&mut *self.running()).into_values().flatten().for_each(|life| life.abort());
    }

    async fn send(&self, event: Event) {
        // The loop may have ended with its node.
        let _ = self.inbox.send(Input::Event(event)).await;
    }

    fn running(&self) -> MutexGuard<'_, BTreeMap<Attempt, Option<AbortHandle>>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn exited((alloc, task, attempt): Attempt, result: ExitResult) -> Event {
    Event::Exited { alloc, task, attempt, result }
}

/// The task of an action on a process, and the type of its job.
fn task_of(action: &Action) -> Option<(AllocId, String, JobType)> {
    let Target::Alloc(id, Part::Task(index, TaskPart::Process)) = action.op.target else { return None };
    let Subject::Alloc(alloc, _) = &action.subject else { return None };
    let task = alloc.group()?.tasks.get(usize::from(index))?;
    Some((id, task.name.clone(), alloc.job.kind))
}
