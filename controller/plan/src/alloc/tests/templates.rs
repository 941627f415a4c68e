//! Templates of a task: rendered before it starts, again when their data changes, and what a running task is notified
//! of.

mod notices;

use herdlet_api_types::{
    fixture,
    job::{ChangeScript, Template, TemplateChange},
};

use super::*;
use crate::{
    facts::{ChangeAction, Owed, Revision},
    state::LastValue,
};

const TEMPLATES: Part = Part::Task(0, TaskPart::Templates);

/// Nomad's text for a restart.
const RESTART: &str = "Template with change_mode restart re-rendered";

fn templated(templates: Vec<Template>) -> Arc<Allocation> {
    let mut main = task("main", Lifecycle::Main);
    main.templates = templates;
    alloc(vec![main])
}

fn restarting() -> Template {
    fixture::template(TemplateChange::Restart)
}

fn signalling(signal: &str) -> Template {
    fixture::template(TemplateChange::Signal(signal.to_string()))
}

fn scripted(change: impl FnOnce(&mut ChangeScript)) -> Template {
    let mut script = fixture::change_script("/bin/reload");
    change(&mut script);
    fixture::template(TemplateChange::Script(script))
}

/// A task that has never run and waits only for its templates.
fn life(spec: &Arc<Allocation>) -> Bench<'_> {
    let mut state = known(vec![pending()], Stage::Main, up(&[Part::Dir, TASK_DIR]));
    state.durable.offered = Some(BTreeSet::new());
    state.durable.boot = Some(at(0).boot);
    let mut life = Bench::new(spec, state);
    life.state.durable.tasks[0].name = "main".into();
    life.settle();
    life
}

fn rendered(outputs: &[u64]) -> Outcome {
    let outputs = outputs.iter().copied().map(Revision).collect();
    Outcome::Done(Some(Arc::new(Facts { outputs, ..Facts::none() })))
}

fn missing(on: &str) -> Outcome {
    Outcome::Pending { on: on.to_string(), ask_in: Duration::from_secs(60) }
}

fn outdated(on: &str) -> Outcome {
    Outcome::Outdated { on: on.to_string(), ask_in: Duration::from_secs(60), since_ns: 7 }
}

fn fatal() -> Outcome {
    Outcome::Failed { class: FailureClass::Fatal, why: "render local/file: no such function".to_string() }
}

/// A running task that has read these outputs.
fn running_with<'a>(spec: &'a Arc<Allocation>, outputs: &[u64]) -> Bench<'a> {
    let mut life = life(spec);
    life.outcome(TEMPLATES, rendered(outputs));
    life.outcome(PROCESS, Outcome::Started(Launch::with(1, &life.state.inputs(PROCESS))));
    assert!(matches!(life.state.durable.tasks[0].run, Run::Running { .. }), "{:?}", life.issued);
    life
}

impl Bench<'_> {
    /// The data of the templates changes, and the render that follows ends like this.
    fn change_data(&mut self, outcome: Outcome) {
        self.source_changed();
        self.outcome(TEMPLATES, outcome);
    }

    fn source_changed(&mut self) {
        self.write(|writer| writer.source_changed(TEMPLATES));
        self.settle();
    }

    /// The next agent, which knows only the stored state and finds the process running.
    fn restore(&mut self) {
        let durable = Durable::clone(&self.state.durable);
        self.state = AllocState::restored(self.spec, durable, self.now);
        self.issued.clear();
        self.settle();
        self.outcome(PROCESS, Outcome::Recovered(Recovered::Running(Default::default())));
        for part in [Part::Dir, TASK_DIR] {
            self.outcome(part, Outcome::Present(None));
        }
    }

    /// The task's process ends, and is started again after its delay.
    fn exit_and_wait(&mut self) {
        let attempt = self.state.durable.tasks[0].attempt;
        self.write(|writer| writer.exited("main", attempt, exit(1)));
        self.now = Now { boot_ns: self.now.boot_ns + 20_000_000_000, ..self.now };
        self.settle();
        self.outcome(PROCESS, Outcome::Done(None));
    }

    fn task(&self) -> &TaskState {
        &self.state.durable.tasks[0]
    }

    fn owed(&self) -> Option<&Owed> {
        self.task().owed.get(&TaskPart::Templates)
    }

    fn restarts(&self) -> bool {
        matches!(self.task().run, Run::Stopping { then: AfterStop::Restart, .. })
    }

    fn messages(&self) -> Vec<&str> {
        self.task().events.iter().map(|event| &*event.message).collect()
    }

    fn count(&self, message: &str) -> usize {
        self.messages().into_iter().filter(|other| *other == message).count()
    }

    fn issued(&self, verb: &str) -> usize {
        self.issued.iter().filter(|issued| issued.starts_with(verb)).count()
    }

    /// What the plan waits for because of the templates, as `explain` shows it.
    fn explained(&self) -> Vec<String> {
        let plan = plan(self.now, &self.ctx, self.spec, &self.state);
        let explanation = show::explain(self.now, self.spec, &self.state, &plan);
        let waits = explanation.waits.into_iter().filter(|wait| wait.part == "task main: templates");
        waits.map(|wait| wait.message).collect()
    }
}

#[test]
fn first_render_precedes_the_process() {
    let spec = templated(vec![restarting()]);
    let mut life = life(&spec);
    assert_eq!(life.issued, ["Up"]);
    life.outcome(TEMPLATES, rendered(&[1]));
    assert_eq!(life.issued, ["Up", "Start { attempt: 1 }"]);
    life.outcome(PROCESS, Outcome::Started(Launch::of(1)));
    assert_eq!((life.owed(), life.restarts()), (None, false), "it has read what it was started with");
}

#[test]
fn a_start_waits_for_missing_data() {
    let spec = templated(vec![restarting()]);
    let mut life = life(&spec);
    life.outcome(TEMPLATES, missing("nomad/jobs/x"));
    assert_eq!(life.explained(), ["waits for nomad/jobs/x"]);
    life.now = at(160);
    life.settle();
    life.outcome(TEMPLATES, missing("nomad/jobs/x"));
    assert_eq!(life.count("Missing: nomad/jobs/x"), 1, "recorded once: {:?}", life.messages());
    life.change_data(missing("nomad/jobs/y"));
    assert_eq!(life.count("Missing: nomad/jobs/y"), 1, "a change asks at once");
    assert_eq!(life.issued("Start"), 0);
    assert!(life.task().events.iter().any(|event| event.kind == TaskEventKind::Template));
    life.change_data(rendered(&[1]));
    assert_eq!(life.issued("Start"), 1);
}

/// "Outdated" without a known output is missing data.
#[test]
fn a_start_waits_for_data_that_was_never_rendered() {
    let spec = templated(vec![restarting()]);
    let mut life = life(&spec);
    life.outcome(TEMPLATES, outdated("nomad/jobs/x"));
    assert_eq!((life.issued("Start"), life.explained()), (0, vec!["waits for nomad/jobs/x".to_string()]));
}

#[test]
fn changed_data_is_rendered_again() {
    let spec = templated(vec![restarting()]);
    let mut life = running_with(&spec, &[1]);
    life.source_changed();
    let part = |life: &Bench<'_>| life.state.parts.get(TEMPLATES).clone();
    assert!(matches!(part(&life), PartState::Busy { doing: Doing::Renew, .. }));
    life.outcome(TEMPLATES, outdated("x"));
    life.source_changed();
    assert!(matches!(part(&life), PartState::Busy { doing: Doing::Up, .. }), "while it waits");
    let no = Outcome::Failed { class: FailureClass::Retry, why: "no space".to_string() };
    life.outcome(TEMPLATES, no);
    assert!(matches!(part(&life), PartState::Failed { .. }));
    life.source_changed();
    assert!(part(&life).is_busy(), "after a failure, without its delay");
    life.outcome(TEMPLATES, rendered(&[1]));
    assert_eq!((part(&life), life.owed()), (PartState::Up, None));
}

/// Data that changes faster than it is rendered would otherwise never be.
#[test]
fn a_change_during_a_render_causes_another_and_the_first_counts() {
    let spec = templated(vec![restarting()]);
    let mut life = running_with(&spec, &[1]);
    life.source_changed();
    life.source_changed();
    assert_eq!(life.issued("Up"), 2, "one render at a time");
    life.outcome(TEMPLATES, rendered(&[2]));
    assert!(life.restarts(), "{:?}", life.messages());
    life.write(|writer| writer.exited("main", 1, exit(0)));
    life.settle();
    assert_eq!(life.issued("Up"), 3, "{:?}", life.issued);
    // The stop, and the removal of what it left.
    life.outcome(PROCESS, Outcome::Done(None));
    life.outcome(PROCESS, Outcome::Done(None));
    assert_eq!(life.issued("Start"), 1, "no start with a value that is known to be old");
    life.outcome(TEMPLATES, rendered(&[3]));
    assert_eq!(life.issued("Start"), 2);
}

/// An inspection reads no data, so its result does not mean that the files have the newest.
#[test]
fn a_change_of_data_before_an_inspection_is_rendered_after_it() {
    let spec = templated(vec![restarting()]);
    let mut life = running_with(&spec, &[1]);
    life.write(|writer| writer.drift(TEMPLATES, Noticed::Event));
    life.source_changed();
    life.outcome(TEMPLATES, Outcome::Present(None));
    assert_eq!(life.issued[2..], ["Inspect", "Up"], "{:?}", life.issued);
    life.outcome(TEMPLATES, rendered(&[2]));
    assert!(life.restarts(), "{:?}", life.messages());
    assert!(life.state.changed_sources.is_empty());
}

#[test]
fn equal_outputs_change_nothing() {
    let spec = templated(vec![restarting()]);
    let mut life = running_with(&spec, &[1]);
    life.state.durable.take_touched();
    life.change_data(rendered(&[1]));
    assert_eq!((life.owed(), life.restarts()), (None, false));
    assert!(!life.state.durable.is_touched(), "nothing is stored");
    life.source_changed();
    assert_eq!(life.issued("Up"), 3, "the next change is rendered too");
}

#[test]
fn a_restart_waits_for_its_splay() {
    let spec = |splay| templated(vec![Template { splay: Duration::from_secs(splay), ..restarting() }]);
    let dues: Vec<u64> = (2..40)
        .map(|output| {
            let spec = spec(10);
            let mut life = running_with(&spec, &[1]);
            life.change_data(rendered(&[output]));
            let due = life.owed().expect("a restart").due.boot_ns;
            assert!((at(100).boot_ns..at(110).boot_ns).contains(&due), "{due}");
            life.now = Now { boot_ns: due - 1, ..life.now };
            life.settle();
            assert!(!life.restarts(), "{output}");
            assert_eq!(life.explained(), [format!("the task restarts after a random delay: {RESTART}")]);
            life.now = Now { boot_ns: due, ..life.now };
            life.settle();
            assert!(life.restarts() && life.count(RESTART) == 1, "{:?}", life.messages());
            due
        })
        .collect();
    let different: BTreeSet<u64> = dues.iter().copied().collect();
    assert_eq!(different.len(), dues.len(), "spread over the splay");
    let spec = spec(10);
    let mut life = running_with(&spec, &[1]);
    life.change_data(rendered(&[2]));
    assert_eq!(life.owed().map(|owed| owed.due.boot_ns), Some(dues[0]), "the same for the same change");
}

#[test]
fn changes_before_the_first_is_due_are_one_action() {
    let slow = |template| Template { splay: Duration::from_secs(100), ..template };
    let spec = templated(vec![slow(signalling("SIGHUP")), slow(signalling("SIGUSR1")), slow(restarting())]);
    let mut life = running_with(&spec, &[1, 1, 1]);
    life.change_data(rendered(&[2, 1, 1]));
    let first = life.owed().expect("a signal").clone();
    life.change_data(rendered(&[2, 2, 1]));
    let both = life.owed().expect("signals").clone();
    let signals = ["SIGHUP", "SIGUSR1"].map(String::from);
    assert_eq!((both.action, both.due), (ChangeAction::Signal(signals.into()), first.due));
    life.change_data(rendered(&[2, 2, 2]));
    assert_eq!(life.owed().map(|owed| &owed.action), Some(&ChangeAction::Restart(RESTART.to_string())));
    life.now = Now { boot_ns: first.due.boot_ns, ..life.now };
    life.settle();
    assert!(life.restarts());
    assert_eq!(life.issued("Signal"), 0, "a restart makes signals unnecessary");
}

#[test]
fn a_change_while_the_task_starts_is_owed() {
    let spec = templated(vec![restarting()]);
    let mut life = life(&spec);
    life.outcome(TEMPLATES, rendered(&[1]));
    assert!(matches!(life.task().run, Run::Starting { .. }));
    life.write(|writer| writer.drift(TASK_DIR, Noticed::Event));
    life.settle();
    // The templates of a starting task are not rendered, but an operation may have begun before.
    life.write(|writer| {
        let (doing, timeout) = (Doing::Renew, Duration::from_secs(1));
        writer.change(Change::Issue { part: TEMPLATES, doing, verb: Verb::Up, timeout });
    });
    life.outcome(TEMPLATES, rendered(&[2]));
    assert!(life.owed().is_some() && !life.restarts());
    life.outcome(PROCESS, Outcome::Started(Launch::of(1)));
    assert!(life.restarts(), "{:?}", life.messages());
}

#[test]
fn the_next_agent_notifies_of_what_has_changed_meanwhile() {
    let spec = templated(vec![restarting()]);
    for (outputs, restarts) in [([1], false), ([2], true)] {
        let mut life = running_with(&spec, &[1]);
        life.restore();
        assert_eq!(life.issued("Up"), 1, "it is rendered without an inspection: {:?}", life.issued);
        life.outcome(TEMPLATES, rendered(&outputs));
        assert_eq!(life.restarts(), restarts, "{:?}", life.messages());
    }
}

/// The splay of a change goes on under the next agent, also after its outputs have been found equal.
#[test]
fn the_next_agent_keeps_what_is_owed() {
    let spec = templated(vec![Template { splay: Duration::from_secs(1_000), ..restarting() }]);
    let mut life = running_with(&spec, &[1]);
    life.change_data(rendered(&[2]));
    let due = life.owed().expect("a restart").due;
    life.restore();
    life.outcome(TEMPLATES, rendered(&[2]));
    assert_eq!((life.owed().map(|owed| owed.due), life.restarts()), (Some(due), false));
    life.now = Now { boot_ns: due.boot_ns, ..life.now };
    life.settle();
    assert!(life.restarts());
}

#[test]
fn a_lost_source_restarts_nothing() {
    let spec = templated(vec![restarting()]);
    let mut life = running_with(&spec, &[1]);
    life.change_data(outdated("consul.service"));
    assert_eq!(life.explained(), ["outdated, the last output is kept: waits for consul.service"]);
    assert_eq!(life.count("Missing: consul.service"), 0, "nothing that the task needs is missing");
    assert!(matches!(
        life.state.parts.get(TEMPLATES),
        PartState::Pending { last: LastValue::Kept, since_ns: 7, .. }
    ));
    life.exit_and_wait();
    assert_eq!(life.issued("Start"), 2, "a restart of the task does not wait: {:?}", life.explained());
    life.outcome(PROCESS, Outcome::Started(Launch::of(2)));
    life.change_data(rendered(&[1]));
    assert_eq!((life.owed(), life.restarts()), (None, false));
}

/// What is owed does not wait for an outage to end: the task has not read what is there.
#[test]
fn a_lost_source_does_not_delay_what_is_owed() {
    let spec = templated(vec![Template { splay: Duration::from_secs(10), ..restarting() }]);
    let mut life = running_with(&spec, &[1]);
    life.change_data(rendered(&[2]));
    life.change_data(outdated("consul.service"));
    life.now = at(111);
    life.settle();
    assert!(life.restarts());
}

#[test]
fn render_templates_renders_for_each_start() {
    let mut spec = templated(vec![restarting()]);
    let job = Arc::make_mut(&mut Arc::make_mut(&mut spec).job);
    job.groups[0].tasks[0].restart.render_templates = true;
    let mut life = running_with(&spec, &[1]);
    life.exit_and_wait();
    assert_eq!((life.issued("Up"), life.issued("Start")), (2, 1), "{:?}", life.issued);
    life.outcome(TEMPLATES, outdated("consul.service"));
    assert_eq!(life.issued("Start"), 1, "it demands the newest");
    life.change_data(rendered(&[2]));
    assert_eq!(life.issued("Start"), 2);
}

#[test]
fn lost_files_are_rendered_again_without_an_action() {
    let spec = templated(vec![restarting()]);
    for (outputs, restarts) in [([1], false), ([2], true)] {
        let mut life = running_with(&spec, &[1]);
        life.write(|writer| writer.drift(TEMPLATES, Noticed::Event));
        life.settle();
        life.outcome(TEMPLATES, Outcome::Absent);
        assert_eq!(life.issued[2..], ["Inspect", "Up"], "{:?}", life.issued);
        life.outcome(TEMPLATES, rendered(&outputs));
        assert_eq!((life.restarts(), life.state.parts.get(TEMPLATES)), (restarts, &PartState::Up));
    }
}

/// A directory that was mounted again has none of the files that were in it.
#[test]
fn a_repaired_directory_is_rendered_into_again() {
    let spec = templated(vec![restarting()]);
    let mut life = running_with(&spec, &[1]);
    life.write(|writer| writer.drift(TASK_DIR, Noticed::Event));
    life.settle();
    life.outcome(TEMPLATES, Outcome::Present(None));
    life.outcome(TASK_DIR, Outcome::Foreign { why: "no tmpfs".to_string() });
    life.outcome(TASK_DIR, Outcome::Done(None));
    assert_eq!(life.issued[2..], ["Inspect", "Inspect", "Up", "Inspect"], "{:?}", life.issued);
}

#[test]
fn wrong_templates_fail_a_task_that_waits() {
    let spec = templated(vec![restarting()]);
    let mut life = life(&spec);
    life.outcome(TEMPLATES, fatal());
    let failure = life.task().permanent_failure.clone().expect("a failure");
    let message = "Template failed: render local/file: no such function";
    assert_eq!((failure.kind, &*failure.message), (TaskEventKind::Killing, message));
    assert_eq!(life.issued("Start"), 0);
}

/// Nomad kills it. Here, one wrong value must not end all tasks that use it.
#[test]
fn wrong_templates_leave_a_running_task_alone() {
    let spec = templated(vec![restarting()]);
    let mut life = running_with(&spec, &[1]);
    life.change_data(fatal());
    life.change_data(fatal());
    assert!(life.task().permanent_failure.is_none() && matches!(life.task().run, Run::Running { .. }));
    let message = "templates: render local/file: no such function; the task keeps the last output";
    assert_eq!(life.count(message), 1, "{:?}", life.messages());
    assert_eq!(life.explained().len(), 1, "{:?}", life.explained());
    life.write(|writer| writer.exited("main", 1, exit(1)));
    life.now = at(200);
    life.settle();
    life.outcome(PROCESS, Outcome::Done(None));
    life.outcome(TEMPLATES, fatal());
    assert!(life.task().failed, "its next start fails: {:?}", life.messages());
}
