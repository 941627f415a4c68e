//! Poststop tasks that run forever. Regression: a job with one could not be deleted.

use herdlet_api_types::job::Lifecycle;
use std_alloc::boxed::Box;

use super::*;
use crate::{event::Ending, job::placed::has_ended};

/// A job whose poststop task never ends by itself.
fn hanging() -> Bench {
    let mut tidy = task("tidy");
    tidy.lifecycle = Lifecycle::Poststop;
    tidy.shutdown_delay = herdlet_api_types::Duration::from_secs(3_600);
    let mut bench = Bench::new();
    bench.apply(vec![job("j", JobType::Service, vec![group("g", 1, vec![task("main"), tidy])])], Vec::new());
    bench.settle();
    bench
}

fn ended(bench: &Bench, alloc: AllocId) -> bool {
    bench.world.allocs.get(alloc).is_none_or(|entry| has_ended(&entry.state.durable))
}

/// The tasks of started attempts, by their index.
fn started(actions: &[Action]) -> Vec<TaskIndex> {
    let task = |action: &Action| match (&action.op.target, &action.verb) {
        (Target::Alloc(_, part), Verb::Start { .. }) => part.task(),
        (_, _) => None,
    };
    actions.iter().filter_map(task).collect()
}

#[test]
fn second_stop_ends_a_running_poststop_task() {
    let key = hanging().job().key.clone();
    for again in ["delete", "delete after a stop", "stop of the job", "stop of the allocation"] {
        let mut bench = hanging();
        let alloc = bench.id();
        let ask = match again {
            "delete" => Command::Delete { job: key.clone() },
            "stop of the job" | "delete after a stop" => Command::Stop { job: key.clone() },
            _ => Command::StopAlloc { alloc },
        };
        bench.ask(ask.clone());
        assert_eq!(started(&bench.settle()), [1], "{again}");
        assert!(!ended(&bench, alloc), "{again}: no limit ends it");
        let deletes = again == "delete after a stop";
        bench.ask(if deletes { Command::Delete { job: key.clone() } } else { ask });
        let grace =
            bench.turn.actions.iter().find_map(|action| {
                if let Verb::Stop { grace, .. } = &action.verb { Some(*grace) } else { None }
            });
        assert_eq!(grace, Some(task("tidy").kill_timeout), "{again}: at once, with its kill_timeout");
        bench.settle();
        assert!(ended(&bench, alloc), "{again}");
    }
}

#[test]
fn second_stop_keeps_a_pending_poststop_task() {
    let mut bench = hanging();
    let (alloc, key) = (bench.id(), bench.job().key.clone());
    bench.ask(Command::Delete { job: key.clone() });
    bench.ask(Command::Delete { job: key });
    assert_eq!(started(&bench.settle()), [1], "the task starts only now");
    assert!(!ended(&bench, alloc));
}

/// The request survives a killed agent.
#[test]
fn forced_stop_starts_no_poststop_task() {
    for (crash, in_one_step) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut bench = hanging();
        let (alloc, key) = (bench.id(), bench.job().key.clone());
        let (delete, skip) =
            (Command::Delete { job: key.clone() }, Command::EndPoststop { of: Ending::Job(key.clone()) });
        if in_one_step {
            let (reply, grown) = bench.ask(Command::StopFast { stop: Box::new(delete), skips: vec![skip] });
            assert!(matches!(reply, Reply::Accepted { .. }) && grown == 2, "{reply:?} {grown}");
        } else {
            bench.ask(delete);
            let (reply, grown) = bench.ask(skip);
            assert!(matches!(reply, Reply::Accepted { .. }) && grown == 1, "{reply:?}");
        }
        if crash {
            bench.restart(at(2));
        }
        assert_eq!(started(&bench.settle()).len(), 0, "crash: {crash}, in one step: {in_one_step}");
        assert!(ended(&bench, alloc), "crash: {crash}");
        assert_eq!(bench.ask(Command::EndPoststop { of: Ending::Job(key) }).1, 0, "nothing remains to end");
    }
}

#[test]
fn running_allocation_keeps_its_poststop_task() {
    let mut bench = hanging();
    let (alloc, key) = (bench.id(), bench.job().key.clone());
    assert_eq!(bench.ask(Command::EndPoststop { of: Ending::Alloc(alloc) }).1, 0);
    assert_eq!(bench.ask(Command::EndPoststop { of: Ending::Job(key) }).1, 0);
    assert!(!bench.world.allocs.get(alloc).is_some_and(|entry| entry.state.durable.no_poststop));
}

/// Regression: the job was shown as being deleted, without the task it waits for or how to end it.
#[test]
fn job_shows_its_poststop_wait_and_the_command() {
    let mut bench = hanging();
    let key = bench.job().key.clone();
    bench.ask(Command::Delete { job: key.clone() });
    bench.settle();
    let shown = bench.convergence(&key).message;
    let expected = "is being deleted, j.g[0]: task tidy: runs last and has no time limit; to end it: herdlet stop --force 'j.g[0]'";
    assert_eq!(shown, expected);
}

/// A batch job whose poststop task hung showed only that the task runs.
#[test]
fn hanging_poststop_of_a_batch_job_names_the_command() {
    let mut tidy = task("tidy");
    tidy.lifecycle = Lifecycle::Poststop;
    let mut bench = Bench::new();
    bench.apply(vec![job("j", JobType::Batch, vec![group("g", 1, vec![task("main"), tidy])])], Vec::new());
    bench.settle();
    let (alloc, result) = (bench.id(), crate::fixture::exit(0));
    bench.see(Event::Exited { alloc, task: String::from("main"), attempt: 1, result });
    assert_eq!(started(&bench.settle()), [1]);
    let shown = bench.last_view().expect("it is shown").convergence;
    assert!(shown.message.contains("herdlet stop --force"), "{}", shown.message);
}
