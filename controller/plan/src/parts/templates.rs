//! What a running task is notified with when outputs of its templates have changed.
//!
//! In: the facts before and after a render, each with one revision per template. Out: Nomad's rules: one template with
//! `change_mode` restart restarts the task and makes everything else unnecessary; otherwise each distinct signal is
//! sent once, and each script is run. The delay is the longest `splay` of the changed templates.

use std_alloc::{collections::BTreeSet, string::String};

use herdlet_api_types::job::{Task, Template, TemplateChange};

use crate::{
    facts::{ChangeAction, Facts, Notification},
    op::TemplateIndex,
};

/// Nomad's text.
const RESTART: &str = "Template with change_mode restart re-rendered";

/// Compares the outputs. Without outputs before, the task has read the new ones.
pub(super) fn notification(task: &Task, before: &Facts, after: &Facts) -> Option<Notification> {
    let changed = changed(task, before, after);
    let splay = changed.clone().map(|(_, template)| template.splay).max()?;
    let (mut signals, mut scripts) = (BTreeSet::new(), BTreeSet::new());
    for (index, template) in changed {
        match &template.on_change {
            TemplateChange::Noop => {}
            TemplateChange::Restart => {
                return Some(Notification { action: ChangeAction::Restart(String::from(RESTART)), splay });
            }
            TemplateChange::Signal(signal) => drop(signals.insert(signal.clone())),
            TemplateChange::Script(_) => drop(scripts.insert(index)),
        }
    }
    let is_concerned = !signals.is_empty() || !scripts.is_empty();
    is_concerned.then(|| Notification { action: ChangeAction::run(signals, scripts), splay })
}

/// The templates that have another output than before. The longest delay counts only templates with an effect.
fn changed<'t>(
    task: &'t Task,
    before: &'t Facts,
    after: &'t Facts,
) -> impl Iterator<Item = (TemplateIndex, &'t Template)> + Clone {
    let outputs = before.outputs.iter().zip(&after.outputs);
    (0..)
        .zip(task.templates.iter().zip(outputs))
        .filter(|(_, (_, (before, after)))| before != after)
        .map(|(index, (template, _))| (index, template))
        .filter(|(_, template)| template.on_change != TemplateChange::Noop)
}

#[cfg(test)]
mod tests {
    use std_alloc::{vec, vec::Vec};

    use herdlet_api_types::{Duration, fixture, job::Lifecycle};

    use super::*;
    use crate::{facts::Revision, fixture::task};

    fn template(on_change: TemplateChange, splay: i64) -> Template {
        Template { splay: Duration::from_secs(splay), ..fixture::template(on_change) }
    }

    fn facts(outputs: &[u64]) -> Facts {
        Facts { outputs: outputs.iter().copied().map(Revision).collect(), ..Facts::none() }
    }

    fn notified(templates: Vec<Template>, before: &[u64], after: &[u64]) -> Option<Notification> {
        let mut task = task("main", Lifecycle::Main);
        task.templates = templates;
        notification(&task, &facts(before), &facts(after))
    }

    fn signal(name: &str) -> TemplateChange {
        TemplateChange::Signal(String::from(name))
    }

    fn script() -> TemplateChange {
        TemplateChange::Script(fixture::change_script("/bin/reload"))
    }

    #[test]
    fn only_changed_templates_have_an_effect() {
        let templates = || vec![template(TemplateChange::Restart, 5), template(signal("SIGHUP"), 2)];
        assert_eq!(notified(templates(), &[1, 1], &[1, 1]), None);
        assert_eq!(notified(templates(), &[], &[1, 1]), None, "the first render");
        let hup = ChangeAction::Signal([String::from("SIGHUP")].into());
        let expected = Notification { action: hup, splay: Duration::from_secs(2) };
        assert_eq!(notified(templates(), &[1, 1], &[1, 2]), Some(expected));
        let restart = ChangeAction::Restart(String::from(RESTART));
        let expected = Notification { action: restart, splay: Duration::from_secs(5) };
        assert_eq!(notified(templates(), &[1, 1], &[2, 2]), Some(expected));
    }

    #[test]
    fn signals_are_sent_once_and_scripts_run_each() {
        let templates = vec![
            template(signal("SIGHUP"), 0),
            template(script(), 1),
            template(signal("SIGHUP"), 0),
            template(script(), 0),
            template(TemplateChange::Noop, 60),
        ];
        let notified = notified(templates, &[0; 5], &[1; 5]).expect("a notification");
        let signals = [String::from("SIGHUP")].into();
        assert_eq!(notified.action, ChangeAction::Run { signals, scripts: [1, 3].into() });
        assert_eq!(notified.splay, Duration::from_secs(1), "a template without effect does not delay");
    }

    #[test]
    fn actions_merge_into_one() {
        let signal = |name: &str| ChangeAction::Signal([String::from(name)].into());
        let both = signal("SIGHUP").merged(signal("SIGUSR1"));
        assert_eq!(both, ChangeAction::Signal([String::from("SIGHUP"), String::from("SIGUSR1")].into()));
        let run = ChangeAction::run(BTreeSet::new(), [2].into());
        let merged = signal("SIGHUP").merged(run);
        assert_eq!(merged, ChangeAction::run([String::from("SIGHUP")].into(), [2].into()));
        let restart = ChangeAction::Restart(String::from("why"));
        assert_eq!(merged.merged(restart.clone()), restart);
    }
}
