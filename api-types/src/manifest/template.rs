//! `templates` of a task: as people write them, and their conversion to and from the canonical form.
//!
//! Total and exact: the canonical form of a written template is the one that was written. Missing required fields become
//! empty; validation refuses them before.

use std_alloc::{borrow::ToOwned, format, string::String, vec::Vec};

use serde::{Deserialize, Serialize};

#[cfg(feature = "schema")]
use super::unused::OLD;
use super::{Signal, Span, Text, unless};
use crate::{
    Duration,
    job::{self, TemplateChange, TemplateSource},
};

block! {
    /// A file that is rendered from data before the task starts, and again when its data changes.
    #[cfg_attr(feature = "schema", schemars(extend("x-no-effect" = { "vault_grace": OLD }, "x-misplaced" = {
        "content": "did you mean `data`?",
        "contents": "did you mean `data`?",
        "dest": "did you mean `destination`?",
        "template": "did you mean `data`?",
    })))]
    pub struct Template {
        /// The text of the template, in Go's template language with the functions of consul-template. Either this or `source`.
        pub data: Text,
        /// A file with the text, relative to the task's directory: an artifact brings it. May contain `${…}`.
        pub source: Text,
        /// The file to write, relative to the task's directory. May contain `${…}`.
        #[cfg_attr(feature = "schema", schemars(required))]
        pub destination: Text,
        /// Permissions of the file, octal; default `"0644"`.
        pub perms: Text,
        /// Number of the user that owns the file; −1, the default, for the owner of the task's directory.
        #[cfg_attr(feature = "schema", schemars(range(min = -1, max = 4_294_967_294_i64)))]
        pub uid: i64,
        /// Number of the file's group; −1, the default, for the group of the task's directory.
        #[cfg_attr(feature = "schema", schemars(range(min = -1, max = 4_294_967_294_i64)))]
        pub gid: i64,
        /// Make its lines `NAME=value` variables of the task.
        pub env: bool,
        /// What happens to the running task when the output changes: `restart` (the default), `signal`, `script` or `noop`.
        pub change_mode: TemplateChangeMode,
        /// The signal for `change_mode: signal`; default `SIGHUP`.
        pub change_signal: Signal,
        /// The command for `change_mode: script`.
        pub change_script: ChangeScript,
        /// Maximum of a random delay before the task is notified, so that not all tasks are notified at once; default 5s.
        pub splay: Span,
        /// How long the data must be quiet before the file is rendered; default `template.wait` of the agent.
        pub wait: TemplateWait,
        /// Begins an action; default `"{{"`.
        pub left_delimiter: Text,
        /// Ends an action; default `"}}"`.
        pub right_delimiter: Text,
        /// Fail on a key that a map lacks, instead of rendering `<no value>`.
        pub error_on_missing_key: bool,
        /// Render only once, before the task starts. The same for all templates of a task.
        pub once: bool,
    }
}

/// `change_mode` of a template.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum TemplateChangeMode {
    /// Nothing.
    Noop,
    /// A restart of the task.
    Restart,
    /// A signal to the task.
    Signal,
    /// A command inside the task.
    Script,
}

block! {
    /// A command to run inside the task when the output of a template has changed.
    pub struct ChangeScript {
        /// The program.
        #[cfg_attr(feature = "schema", schemars(required, extend("x-command" = true)))]
        pub command: String,
        /// Its arguments.
        pub args: Vec<Text>,
        /// It is killed after this time; default 5s.
        pub timeout: Span,
        /// Fail the task if it fails.
        pub fail_on_error: bool,
        /// Run it after the first start too.
        pub run_on_first_render: bool,
    }
}

block! {
    /// How long the data of a template must be quiet before it is rendered.
    pub struct TemplateWait {
        /// Without a change for this long; default 0.
        pub min: Span,
        /// Render after this time, however often the data changes; default four times `min`.
        pub max: Span,
    }
}

impl Template {
    /// The canonical template.
    pub fn to_template(&self) -> job::Template {
        let text = |text: &Option<Text>| text.clone().unwrap_or_default().0;
        let or = |text: &Option<Text>, default: &str| {
            text.as_ref().map_or_else(|| default.to_owned(), |text| text.0.clone())
        };
        let source = match &self.source {
            Some(path) if !path.0.is_empty() => TemplateSource::File(path.0.clone()),
            Some(_) | None => TemplateSource::Inline(text(&self.data)),
        };
        job::Template {
            source,
            destination: text(&self.destination),
            perms: self.perms.as_ref().and_then(permissions).unwrap_or(job::Template::PERMS_DEFAULT),
            uid: self.uid.and_then(|uid| u32::try_from(uid).ok()),
            gid: self.gid.and_then(|gid| u32::try_from(gid).ok()),
            env: self.env.unwrap_or(false),
            on_change: self.to_change(),
            splay: self.splay.map_or(job::Template::SPLAY_DEFAULT, |splay| splay.0),
            wait: self.wait.as_ref().map(TemplateWait::to_wait),
            left_delimiter: or(&self.left_delimiter, job::Template::LEFT_DELIMITER),
            right_delimiter: or(&self.right_delimiter, job::Template::RIGHT_DELIMITER),
            error_on_missing_key: self.error_on_missing_key.unwrap_or(false),
            once: self.once.unwrap_or(false),
        }
    }

    fn to_change(&self) -> TemplateChange {
        match self.change_mode.unwrap_or(TemplateChangeMode::Restart) {
            TemplateChangeMode::Noop => TemplateChange::Noop,
            TemplateChangeMode::Restart => TemplateChange::Restart,
            TemplateChangeMode::Signal => TemplateChange::Signal(
                self.change_signal
                    .as_ref()
                    .map_or_else(|| SIGNAL_DEFAULT.to_owned(), |signal| signal.0.to_ascii_uppercase()),
            ),
            TemplateChangeMode::Script => {
                TemplateChange::Script(self.change_script.clone().unwrap_or_default().to_script())
            }
        }
    }

    /// The block for a template; defaults are left out.
    pub(super) fn of(template: &job::Template) -> Self {
        let (data, source) = match &template.source {
            TemplateSource::Inline(text) => (Some(Text(text.clone())), None),
            TemplateSource::File(path) => (None, Some(Text(path.clone()))),
        };
        let mode = match &template.on_change {
            TemplateChange::Restart => None,
            TemplateChange::Noop => Some(TemplateChangeMode::Noop),
            TemplateChange::Signal(_) => Some(TemplateChangeMode::Signal),
            TemplateChange::Script(_) => Some(TemplateChangeMode::Script),
        };
        let (signal, script) = match &template.on_change {
            TemplateChange::Noop | TemplateChange::Restart => (None, None),
            TemplateChange::Signal(signal) => (unless(signal, SIGNAL_DEFAULT).map(Signal), None),
            TemplateChange::Script(script) => (None, Some(ChangeScript::of(script))),
        };
        Self {
            data,
            source,
            destination: Some(Text(template.destination.clone())),
            perms: (template.perms != job::Template::PERMS_DEFAULT).then(|| octal(template.perms)),
            uid: template.uid.map(i64::from),
            gid: template.gid.map(i64::from),
            env: template.env.then_some(true),
            change_mode: mode,
            change_signal: signal,
            change_script: script,
            splay: (template.splay != job::Template::SPLAY_DEFAULT).then_some(Span(template.splay)),
            wait: template.wait.as_ref().map(TemplateWait::of),
            left_delimiter: unless(&template.left_delimiter, job::Template::LEFT_DELIMITER).map(Text),
            right_delimiter: unless(&template.right_delimiter, job::Template::RIGHT_DELIMITER).map(Text),
            error_on_missing_key: template.error_on_missing_key.then_some(true),
            once: template.once.then_some(true),
        }
    }

    /// Writes the defaults of a template out.
    pub(super) fn fill(&mut self, template: &job::Template) {
        self.perms.get_or_insert_with(|| octal(template.perms));
        self.env.get_or_insert(false);
        self.change_mode.get_or_insert(TemplateChangeMode::Restart);
        match (&template.on_change, &mut self.change_script) {
            (TemplateChange::Signal(signal), _) => {
                self.change_signal.get_or_insert_with(|| Signal(signal.clone()));
            }
            (TemplateChange::Script(script), Some(written)) => {
                written.timeout.get_or_insert(Span(script.timeout));
                written.fail_on_error.get_or_insert(false);
                written.run_on_first_render.get_or_insert(false);
            }
            (TemplateChange::Noop | TemplateChange::Restart | TemplateChange::Script(_), _) => {}
        }
        self.splay.get_or_insert(Span(template.splay));
        self.left_delimiter.get_or_insert_with(|| Text(template.left_delimiter.clone()));
        self.right_delimiter.get_or_insert_with(|| Text(template.right_delimiter.clone()));
        self.error_on_missing_key.get_or_insert(false);
        self.once.get_or_insert(false);
    }
}

impl ChangeScript {
    fn to_script(&self) -> job::ChangeScript {
        job::ChangeScript {
            command: self.command.clone().unwrap_or_default(),
            args: self.args.iter().flatten().map(|text| text.0.clone()).collect(),
            timeout: self.timeout.map_or(job::ChangeScript::TIMEOUT_DEFAULT, |timeout| timeout.0),
            fail_on_error: self.fail_on_error.unwrap_or(false),
            run_on_first_render: self.run_on_first_render.unwrap_or(false),
        }
    }

    fn of(script: &job::ChangeScript) -> Self {
        Self {
            command: Some(script.command.clone()),
            args: super::non_empty(script.args.iter().cloned().map(Text).collect()),
            timeout: (script.timeout != job::ChangeScript::TIMEOUT_DEFAULT).then_some(Span(script.timeout)),
            fail_on_error: script.fail_on_error.then_some(true),
            run_on_first_render: script.run_on_first_render.then_some(true),
        }
    }
}

impl TemplateWait {
    /// The canonical wait, with consul-template's defaults of a missing bound.
    pub fn to_wait(&self) -> job::TemplateWait {
        let min = self.min.map_or(Duration::ZERO, |min| min.0);
        let max = self.max.map_or_else(|| max_of(min), |max| max.0);
        job::TemplateWait { min, max }
    }

    fn of(wait: &job::TemplateWait) -> Self {
        Self { min: Some(Span(wait.min)), max: (wait.max != max_of(wait.min)).then_some(Span(wait.max)) }
    }
}

/// Octal permissions, `0640` or `0o640`; `None` if the text is not a mode of at most four digits beside a leading 0.
pub fn permissions(text: &Text) -> Option<u32> {
    let digits = text.0.strip_prefix("0o").unwrap_or(&text.0);
    let are_digits = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let mode = are_digits.then(|| u32::from_str_radix(digits, 8).ok()).flatten();
    mode.filter(|mode| *mode <= 0o7777)
}

/// The signal of `change_mode: signal` unless the job names another.
const SIGNAL_DEFAULT: &str = "SIGHUP";

/// The default of `wait.max`.
fn max_of(min: Duration) -> Duration {
    Duration(min.0.saturating_mul(4))
}

fn octal(mode: u32) -> Text {
    Text(format!("{mode:04o}"))
}
