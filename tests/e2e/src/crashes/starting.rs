//! Kills the agent while very many tasks start: no task may be lost, and none may run twice.
//!
//! In: the numbers of trials and tasks, a seed. Out: how many tasks ran twice, started again or did not run.

use std::{path::Path, time::Duration};

use super::{
    job::Work,
    operation::{self, Begun, ExpectedState, Operation, RequestOutcome},
    oracle,
    work::Journal,
};
use crate::{agent::Agent, random::Rng, wait};

/// The result of all trials.
#[derive(Debug, Default)]
pub struct Outcome {
    pub trials: u64,
    /// Minimum and maximum number of running tasks at a kill.
    pub begun_at_kill: (u64, u64),
    /// Number of places that had two processes at the same time.
    pub twice: usize,
    /// Number of places whose work started more than once.
    pub again: usize,
    /// Descriptions of the failures.
    pub broken: Vec<String>,
}

/// Runs the trials with `count` tasks each, all on one agent.
pub fn run(trials: u64, count: u64, seed: u64, program: &Path) -> Outcome {
    let mut rng = Rng::new(seed);
    let mut agent = Agent::start();
    let instance = agent.home.instance().expect("an instance has a name");
    let bare = oracle::traces(&agent, &instance);
    let mut outcome = Outcome { begun_at_kill: (u64::MAX, 0), ..Outcome::default() };
    for trial in 0..trials {
        let journal = Journal::new(agent.home.path().join(format!("journal{trial}")));
        let work = Work::many(count, format!("w{trial}"));
        let mut wanted = ExpectedState::default();
        let begun = Begun::begin(Operation::Apply(work.clone()), &wanted, &agent, program, journal.dir());
        wait::until_true("the request is answered", || begun.is_answered());
        let (operation, fate) = begun.end();
        assert_eq!(fate, RequestOutcome::Accepted, "an idle agent accepts a job");
        // A random point during the starts, however long they take.
        let enough = usize::try_from(rng.below(count)).unwrap_or(0);
        wait::until_true("some tasks have started", || journal.begun().len() >= enough);
        wait::pause(Duration::from_micros(rng.below(3_000)));
        agent.kill();
        let at_kill = journal.begun().len() as u64;
        outcome.begun_at_kill.0 = outcome.begun_at_kill.0.min(at_kill);
        outcome.begun_at_kill.1 = outcome.begun_at_kill.1.max(at_kill);
        agent.launch();
        outcome.broken.extend(operation::settle(&mut wanted, &operation, &fate, &agent.peer()).err());
        let open = oracle::until_reached(&agent, &instance, &wanted, &journal);
        outcome.broken.extend(open.into_iter().map(|words| format!("trial {trial}: {words}")));
        outcome.twice += journal.twice().len();
        outcome.again += journal.begun().len().saturating_sub(usize::try_from(count).unwrap_or(0));
        outcome.trials += 1;
        agent.cli(&["delete", "--wait", &work.name]).success();
        let left = oracle::until_bare(&agent, &instance, &bare);
        outcome.broken.extend(left.into_iter().map(|words| format!("trial {trial}: {words}")));
        if !outcome.broken.is_empty() {
            break;
        }
        if (trial + 1).is_multiple_of(10) {
            eprintln!("{} trials, {} ran twice, {} restarted", trial + 1, outcome.twice, outcome.again);
        }
    }
    agent.finish();
    outcome
}
