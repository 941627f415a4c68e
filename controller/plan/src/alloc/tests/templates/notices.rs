//! Signals and scripts of templates.

use super::*;
use crate::state::Notice;

impl Bench<'_> {
    /// The first signal or script in flight ends.
    fn end_notice(&mut self, outcome: Outcome) {
        let generation = self.in_flight();
        self.end_this(generation, outcome);
    }

    fn end_this(&mut self, generation: u64, outcome: Outcome) {
        self.write(|writer| writer.outcome(PROCESS, generation, outcome));
        self.settle();
    }

    fn in_flight(&self) -> u64 {
        *self.state.notices_in_flight.keys().next().expect("a notice in flight")
    }
}

fn exited(code: i32) -> Outcome {
    let why = format!(
        "Template ran script /bin/reload with arguments [] on change but it exited with code: {code}"
    );
    Outcome::Failed { class: FailureClass::Fatal, why }
}

#[test]
fn signals_and_scripts_are_owed_until_they_have_ended() {
    let spec = templated(vec![signalling("SIGHUP"), scripted(|_| ()), signalling("SIGHUP")]);
    let mut life = running_with(&spec, &[1, 1, 1]);
    life.change_data(rendered(&[2, 2, 2]));
    let script = "Script { attempt: 1, template: 1 }";
    assert_eq!(life.issued[3..], ["Signal { attempt: 1, signal: \"SIGHUP\" }", script], "the signal once");
    assert_eq!(life.count("Template re-rendered"), 1);
    life.end_notice(Outcome::Done(None));
    assert!(life.owed().is_some(), "the script has not ended");
    let stored = Durable::clone(&life.state.durable);
    life.end_notice(Outcome::Done(None));
    assert_eq!(life.owed(), None);
    let ended = "Template successfully ran script /bin/reload with arguments: . Exit code: 0";
    assert_eq!(life.count(ended), 1, "{:?}", life.messages());
    let launch = life.task().launch.as_ref().expect("a launch record");
    let known = life.state.facts.get(TEMPLATES).map(|facts| facts.revision);
    assert_eq!(launch.revisions.get(&TEMPLATES).copied(), known, "it has read the new outputs");
    // An agent that dies before that repeats both.
    life.state.durable = Tracked::stored(stored);
    life.restore();
    assert_eq!(life.issued("Signal") + life.issued("Script"), 0, "not before the outputs are known");
    life.outcome(TEMPLATES, rendered(&[2, 2, 2]));
    assert_eq!((life.issued("Signal"), life.issued("Script")), (1, 1), "{:?}", life.issued);
}

/// A driver sends nothing to an attempt that it has not recovered.
#[test]
fn signals_wait_for_the_process_to_be_recovered() {
    let spec = templated(vec![signalling("SIGHUP")]);
    let mut life = running_with(&spec, &[1]);
    let durable = Durable::clone(&life.state.durable);
    life.state = AllocState::restored(&spec, durable, life.now);
    life.settle();
    for part in [Part::Dir, TASK_DIR] {
        life.outcome(part, Outcome::Present(None));
    }
    life.outcome(TEMPLATES, rendered(&[2]));
    assert_eq!(life.issued("Signal"), 0, "{:?}", life.issued);
    life.outcome(PROCESS, Outcome::Recovered(Recovered::Running(Default::default())));
    assert_eq!(life.issued("Signal"), 1, "{:?}", life.issued);
}

/// The second change has a delay of its own, and does not repeat what is under way for the first.
#[test]
fn a_change_during_a_notification_causes_another() {
    let slow = Template { splay: Duration::from_secs(100), ..signalling("SIGUSR1") };
    let spec = templated(vec![scripted(|_| ()), slow]);
    let mut life = running_with(&spec, &[1, 1]);
    life.change_data(rendered(&[2, 1]));
    assert_eq!(life.issued("Script"), 1);
    life.change_data(rendered(&[2, 2]));
    let all = life.owed().expect("both").action.clone();
    let expected = ChangeAction::run([String::from("SIGUSR1")].into(), [0].into());
    assert_eq!(all, expected, "a crash repeats both");
    life.end_notice(Outcome::Done(None));
    let owed = life.owed().expect("the signal").clone();
    assert_eq!(owed.action, ChangeAction::Signal([String::from("SIGUSR1")].into()));
    assert!(owed.due.boot_ns > life.now.boot_ns && life.issued("Signal") == 0);
    life.now = Now { boot_ns: owed.due.boot_ns, ..life.now };
    life.settle();
    assert_eq!((life.issued("Signal"), life.issued("Script")), (1, 1));
    life.end_notice(Outcome::Done(None));
    assert_eq!(life.owed(), None);
}

#[test]
fn a_signal_that_could_not_be_sent_is_repeated() {
    let spec = templated(vec![signalling("SIGHUP"), signalling("SIGUSR1")]);
    let mut life = running_with(&spec, &[1, 1]);
    life.change_data(rendered(&[2, 2]));
    let away = Outcome::Failed { class: FailureClass::Retry, why: "the driver is away".to_string() };
    life.end_notice(away);
    life.end_notice(Outcome::Done(None));
    assert_eq!((life.issued("Signal"), life.owed().is_some()), (2, true), "after a pause");
    life.now = at(105);
    life.settle();
    assert_eq!(life.issued.last().map(|verb| &**verb), Some("Signal { attempt: 1, signal: \"SIGHUP\" }"));
    life.end_notice(Outcome::Done(None));
    assert_eq!((life.issued("Signal"), life.owed()), (3, None));
}

#[test]
fn failed_scripts_are_recorded_and_may_fail_the_task() {
    for (fails, killed) in [(false, 0), (true, 1)] {
        let spec = templated(vec![scripted(|script| script.fail_on_error = fails)]);
        let mut life = running_with(&spec, &[1]);
        life.change_data(rendered(&[2]));
        life.end_notice(exited(3));
        let failed = "Template ran script /bin/reload with arguments [] on change but it exited with code: 3";
        assert_eq!(life.count(failed), 1, "{:?}", life.messages());
        assert_eq!(life.count("Template script failed, task is being killed"), killed);
        assert_eq!(life.task().permanent_failure.is_some(), fails);
        assert_eq!(life.owed(), None, "it ran");
        assert_eq!(matches!(life.task().run, Run::Stopping { then: AfterStop::Dead, .. }), fails);
    }
}

/// An engine that was away for a moment made a script fail, and killed its task.
#[test]
fn a_script_whose_driver_is_away_runs_later() {
    let away = || Outcome::Failed { class: FailureClass::Retry, why: "the engine is away".to_string() };
    let killed = "Template script failed, task is being killed";
    let spec = templated(vec![scripted(|script| script.fail_on_error = true)]);
    let mut life = running_with(&spec, &[1]);
    let began_ns = life.now.boot_ns;
    let pass = |life: &mut Bench<'_>, seconds: u64| {
        life.now = Now { boot_ns: began_ns + seconds * 1_000_000_000, ..life.now };
        life.settle();
    };
    life.change_data(rendered(&[2]));
    life.end_notice(away());
    assert_eq!((life.issued("Script"), life.owed().is_some()), (1, true), "after a pause");
    pass(&mut life, 1);
    assert_eq!(life.issued("Script"), 2);
    life.end_notice(Outcome::Done(None));
    assert_eq!((life.owed(), life.count(killed)), (None, 0));
    // The next change has its full time: the timeout of the script, 5 s.
    life.change_data(rendered(&[3]));
    for second in 1..=5 {
        life.end_notice(away());
        assert_eq!((life.issued("Script"), life.count(killed)), (2 + second, 0));
        pass(&mut life, 1 + second as u64);
    }
    life.end_notice(away());
    assert_eq!((life.issued("Script"), life.count(killed), life.owed()), (8, 1, None));
}

/// A restart kills a script that runs inside the process: that is not a failure of the script.
#[test]
fn a_script_ends_with_its_process() {
    let spec = templated(vec![scripted(|script| script.fail_on_error = true)]);
    let mut life = running_with(&spec, &[1]);
    life.change_data(rendered(&[2]));
    let script = life.in_flight();
    life.exit_and_wait();
    assert_eq!(life.issued("Start"), 2);
    life.outcome(PROCESS, Outcome::Started(Launch::of(2)));
    life.end_this(script, exited(137));
    assert!(life.task().permanent_failure.is_none() && life.owed().is_none(), "{:?}", life.messages());
    // Nor does it hold back notifications of the new attempt.
    life.change_data(rendered(&[3]));
    assert_eq!(life.issued("Script"), 2, "{:?}", life.issued);
}

#[test]
fn scripts_of_the_first_render_run_once() {
    let spec = templated(vec![scripted(|script| script.run_on_first_render = true), scripted(|_| ())]);
    let mut life = running_with(&spec, &[1, 1]);
    assert_eq!(life.issued.last().map(|verb| &**verb), Some("Script { attempt: 1, template: 0 }"));
    assert_eq!(
        life.state.notices_in_flight.values().map(|notice| notice.notice.clone()).collect::<Vec<_>>(),
        [Notice::Script(0)]
    );
    life.end_notice(Outcome::Done(None));
    assert_eq!(life.owed(), None);
    life.exit_and_wait();
    life.outcome(PROCESS, Outcome::Started(Launch::of(2)));
    assert_eq!(life.issued("Script"), 1, "{:?}", life.issued);
    life.change_data(rendered(&[2, 1]));
    assert_eq!(life.issued("Script"), 2);
}

/// A group that stops needs no restart, and no event about one.
#[test]
fn a_stop_makes_an_owed_restart_unnecessary() {
    let mut spec = templated(vec![restarting()]);
    {
        let spec = Arc::make_mut(&mut spec);
        Arc::make_mut(&mut spec.job).groups[0].shutdown_delay = Duration::from_secs(30);
    }
    let mut life = running_with(&spec, &[1]);
    let stopped = {
        let mut stopped = Allocation::clone(&spec);
        stopped.desired = Desired::Stop;
        Arc::new(stopped)
    };
    life.source_changed();
    life.spec = &stopped;
    life.settle();
    life.outcome(TEMPLATES, rendered(&[2]));
    assert!(life.owed().is_some() && life.count(RESTART) == 0, "{:?}", life.messages());
}
