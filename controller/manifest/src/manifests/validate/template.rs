//! `templates` of a task. Paths with variables of the node are validated when the template is rendered, like the text of a
//! `source`.

use std::{collections::BTreeMap, path::Path};

use herdlet_api_types::manifest::{
    ChangeScript, Identity, TaskSpec, Template, TemplateChangeMode, TemplateWait, Text,
    defaults::DEFAULT_IDENTITY, template::permissions,
};
use herdlet_base::{
    artifact::destination::{Destination, Dirs},
    token_path::path_of,
};
use herdlet_template::{self as language, Function, Options, Support};

use super::{Findings, GroupContext, text};
use crate::yaml::Trail;

/// Maximum length of a path.
const PATH_LEN_MAX: usize = 1_024;

pub(super) fn of_task(
    context: &GroupContext<'_>,
    spec: &TaskSpec,
    trail: &Trail<'_>,
    findings: &mut Findings<'_>,
) {
    let list = trail.field("templates");
    for (index, template) in spec.templates.iter().flatten().enumerate() {
        let trail = list.item(index);
        origin(template, &trail, findings);
        file(template, &trail, findings);
        change(template, &trail, findings);
        if let Some(wait) = &template.wait {
            self::wait(wait, &trail.field("wait"), findings);
        }
        script_runs(context, spec, template, (&trail, findings));
        language(context, template, &trail, findings);
    }
    apart(spec, &list, findings);
    same_once(spec, &list, findings);
}

/// Validates the templates of a job that servers have validated: they read neither the text nor the paths.
pub(super) fn of_servers(
    context: &GroupContext<'_>,
    spec: &TaskSpec,
    trail: &Trail<'_>,
    findings: &mut Findings<'_>,
) {
    let list = trail.field("templates");
    for (index, template) in spec.templates.iter().flatten().enumerate() {
        let trail = list.item(index);
        origin(template, &trail, findings);
        file(template, &trail, findings);
        if let Some(signal) = &template.change_signal {
            text::signal(&signal.0, &trail.field("change_signal"), findings);
        }
        script_runs(context, spec, template, (&trail, findings));
        language(context, template, &trail, findings);
    }
}

/// Validates where the text comes from. Servers write an empty `data` beside a `source`.
fn origin(template: &Template, trail: &Trail<'_>, findings: &mut Findings<'_>) {
    let written = |text: &Option<Text>| text.as_ref().is_some_and(|text| !text.0.is_empty());
    match (written(&template.data), &template.source) {
        (true, Some(source)) if !source.0.is_empty() => {
            let message = "can't be combined with `source`; remove one of the two";
            findings.problem(&trail.field("data"), message);
        }
        (false, Some(source)) if !source.0.is_empty() => {
            if let Err(complaint) = Place::of(&source.0) {
                findings.problem(&trail.field("source"), complaint);
            }
        }
        (true, Some(_) | None) => {}
        (false, Some(_) | None) => {
            let message = "needs `data`, the text of the template, or `source`, a file with it";
            findings.absent(trail, trail, message);
        }
    }
}

/// Validates what is written: path and permissions.
fn file(template: &Template, trail: &Trail<'_>, findings: &mut Findings<'_>) {
    if let Some(Err(complaint)) = template.destination.as_ref().map(|path| Place::of(&path.0)) {
        findings.problem(&trail.field("destination"), complaint);
    }
    if let Some(perms) = &template.perms {
        let trail = trail.field("perms");
        match permissions(perms) {
            None => findings.problem(&trail, "must be octal permissions, for instance \"0640\""),
            Some(0o1000..) => findings.problem(
                &trail,
                "the set-user-ID, set-group-ID and sticky bits are not allowed; write for instance \"0755\"",
            ),
            Some(_) => {}
        }
    }
    for (name, delimiter) in
        [("left_delimiter", &template.left_delimiter), ("right_delimiter", &template.right_delimiter)]
    {
        if let Some(Text(delimiter)) = delimiter {
            text::plain(delimiter, &trail.field(name), findings);
        }
    }
}

/// Validates what happens when the output changes.
fn change(template: &Template, trail: &Trail<'_>, findings: &mut Findings<'_>) {
    let mode = template.change_mode.unwrap_or(TemplateChangeMode::Restart);
    if let Some(signal) = &template.change_signal {
        let trail = trail.field("change_signal");
        text::signal(&signal.0, &trail, findings);
        if mode != TemplateChangeMode::Signal {
            findings.problem(&trail, "is only allowed with `change_mode: signal`");
        }
    }
    if mode == TemplateChangeMode::Signal && template.env == Some(true) {
        let message = "a signal can't bring new variables to a running task; write `change_mode: restart` or `noop`, or no `env`";
        findings.problem(&trail.field("env"), message);
    }
    match (&template.change_script, mode) {
        (Some(script), TemplateChangeMode::Script) => {
            self::script(script, &trail.field("change_script"), findings);
        }
        (None, TemplateChangeMode::Script) => {
            let message = "`change_script` is missing, for `change_mode: script`";
            findings.absent(&trail.field("change_script"), trail, message);
        }
        (Some(_), TemplateChangeMode::Noop | TemplateChangeMode::Restart | TemplateChangeMode::Signal) => {
            let message = "is only allowed with `change_mode: script`";
            findings.problem(&trail.field("change_script"), message);
        }
        (None, TemplateChangeMode::Noop | TemplateChangeMode::Restart | TemplateChangeMode::Signal) => {}
    }
}

fn script(script: &ChangeScript, trail: &Trail<'_>, findings: &mut Findings<'_>) {
    if script.command.as_ref().is_some_and(String::is_empty) {
        findings.problem(&trail.field("command"), "must not be empty");
    }
    if script.timeout.is_some_and(|timeout| timeout.0.is_zero()) {
        findings.problem(&trail.field("timeout"), "must be longer than 0");
    }
}

/// Refuses a command for a task whose driver cannot run one.
fn script_runs(
    context: &GroupContext<'_>,
    spec: &TaskSpec,
    template: &Template,
    (trail, findings): (&Trail<'_>, &mut Findings<'_>),
) {
    let driver = spec.driver.as_deref().unwrap_or_default();
    let runs = context.drivers.get(driver).is_none_or(|rules| rules.capabilities.exec);
    if template.change_mode == Some(TemplateChangeMode::Script) && !runs {
        let message = format!("the driver `{driver}` can't run a command in a running task; write `restart`");
        findings.problem(&trail.field("change_mode"), message);
    }
}

fn wait(wait: &TemplateWait, trail: &Trail<'_>, findings: &mut Findings<'_>) {
    let bounds = wait.to_wait();
    if bounds.min > bounds.max {
        let message = format!("min ({}) must be at most max ({})", bounds.min, bounds.max);
        findings.problem(trail, message);
    }
}

/// Parses the text, and refuses functions that fail in any case.
fn language(context: &GroupContext<'_>, template: &Template, trail: &Trail<'_>, findings: &mut Findings<'_>) {
    let Some(data) = &template.data else { return };
    let trail = trail.field("data");
    let delimiter = |text: &Option<Text>| text.clone().unwrap_or_default().0;
    let options = Options {
        left_delimiter: delimiter(&template.left_delimiter),
        right_delimiter: delimiter(&template.right_delimiter),
        denylist: context.drivers.denied_functions().to_vec(),
        ..Options::default()
    };
    let parsed = match language::Template::parse(&data.0, &options) {
        Ok(parsed) => parsed,
        Err(error) => {
            let at = (error.position.line, error.position.column);
            return findings.problem_in_text(&trail, at, &error.message);
        }
    };
    let has_vault = context.task.is_some_and(|task| task.vault.is_some());
    let refusal = |function: &Function| match function.support() {
        Support::NeedsVault if !has_vault => {
            Some(format!("`{}` needs a token of Vault; add a block `vault` to the task", function.name))
        }
        Support::NeedsConsul | Support::NeedsVault | Support::Works | Support::Refused(_) => {
            self::refusal(function, &parsed)
        }
    };
    for call in parsed.calls(|function| refusal(function).is_some()) {
        let at = (call.position.line, call.position.column);
        if let Some(message) = refusal(call.function) {
            findings.problem_in_text(&trail, at, &message);
        }
    }
}

/// Returns why a call of this function fails whatever the data is, if so.
fn refusal(function: &Function, template: &language::Template) -> Option<String> {
    let name = function.name;
    match function.support() {
        Support::Refused(why) => Some(format!("`{name}` is not available: {why}")),
        Support::Works | Support::NeedsConsul | Support::NeedsVault => template
            .denies(function)
            .then(|| format!("`{name}` is disabled by `template.function_denylist` of the agent")),
    }
}

/// Requires that no two templates write the same file, or one of them a file where the other needs a directory, and
/// none a file of the agent.
fn apart(spec: &TaskSpec, list: &Trail<'_>, findings: &mut Findings<'_>) {
    let mut known: BTreeMap<String, usize> = BTreeMap::new();
    let tokens = token_files(spec);
    for (index, template) in spec.templates.iter().flatten().enumerate() {
        let Some(destination) = &template.destination else { continue };
        let Ok(Place { path: Some(path) }) = Place::of(&destination.0) else { continue };
        if let Some(owner) = owner_of(&path, &tokens) {
            findings
                .problem(&list.item(index).field("destination"), format!("is {owner}; write another path"));
            continue;
        }
        let above = Path::new(&path).ancestors().filter_map(Path::to_str).find_map(|above| known.get(above));
        let within = format!("{path}/");
        let below = || known.range(within.clone()..).next().filter(|(other, _)| other.starts_with(&within));
        match above.or_else(|| below().map(|(_, other)| other)) {
            Some(other) => {
                let other = list.item(*other);
                let message = format!("conflicts with the destination of `{other}`; write another path");
                findings.problem(&list.item(index).field("destination"), message);
            }
            None => {
                known.insert(path, index);
            }
        }
    }
}

/// The files of the task's identities, with the names of these.
fn token_files(spec: &TaskSpec) -> BTreeMap<String, &str> {
    let identities = spec.identities.iter().flatten().filter(|identity| identity.file == Some(true));
    let file = |identity: &'_ Identity| {
        let name = identity.name.as_deref().unwrap_or(DEFAULT_IDENTITY);
        Some(format!("{TASK}/{}", path_of(name, identity.filepath.as_deref())?.to_str()?))
    };
    identities
        .filter_map(|identity| Some((file(identity)?, identity.name.as_deref().unwrap_or(DEFAULT_IDENTITY))))
        .collect()
}

/// What the agent itself has at this path, if anything.
fn owner_of(path: &str, tokens: &BTreeMap<String, &str>) -> Option<String> {
    if let Some(identity) = tokens.get(path) {
        return Some(format!("the file of the identity `{identity}`"));
    }
    if path == format!("{TASK}/secrets/{API_SOCKET}") {
        return Some(String::from("the socket of the task's API"));
    }
    let path = Path::new(path);
    if path.starts_with(format!("{SHARED}/logs")) {
        return Some(String::from("in the directory of the task's logs"));
    }
    let name = path.file_name()?.to_str()?;
    let is_draft = name.starts_with('.') && name.ends_with(".new");
    is_draft.then(|| format!("a name that the agent uses while it writes another file ({name})"))
}

/// Requires the same `once` of all templates: a task is either watched or not.
fn same_once(spec: &TaskSpec, list: &Trail<'_>, findings: &mut Findings<'_>) {
    let mut all = spec.templates.iter().flatten().map(|template| template.once.unwrap_or(false)).enumerate();
    let Some((_, first)) = all.next() else { return };
    if let Some((index, once)) = all.find(|(_, once)| *once != first) {
        let first_at = list.item(0);
        let message = format!(
            "is {once} here and {first} in `{first_at}`; it must be the same in all templates of a task"
        );
        findings.problem(&list.item(index).field("once"), message);
    }
}

/// A path of a template.
struct Place {
    /// Without variables and `..`; `None` if only the node knows it.
    path: Option<String>,
}

/// The task's directory and the shared one, for validation.
const TASK: &str = "/alloc-dir/task";
const SHARED: &str = "/alloc-dir/alloc";

/// Directories that every task has, so that they cannot be files.
const DIRECTORIES: [&str; 5] =
    ["/alloc-dir/task", "/alloc-dir/task/local", "/alloc-dir/task/secrets", "/alloc-dir/task/tmp", SHARED];

/// The file of the task's API in `secrets`.
const API_SOCKET: &str = "api.sock";

const OUTSIDE: &str =
    "must be a path in the task's directory or in ${NOMAD_ALLOC_DIR}, for instance local/app.conf";

impl Place {
    /// Checks a path.
    fn of(text: &str) -> Result<Self, &'static str> {
        if text.is_empty() {
            return Err("must not be empty");
        }
        if text.len() > PATH_LEN_MAX || text.contains(char::is_control) {
            return Err("must have at most 1024 bytes, and no control characters");
        }
        let text = with_directories(text);
        if text.contains("${") {
            return Ok(Self { path: None });
        }
        let dirs = Dirs { task: TASK.into(), shared: SHARED.into() };
        if Destination::of(&text, &dirs).is_err() {
            return Err(OUTSIDE);
        }
        let path = absolute(&text);
        let is_within = [TASK, SHARED].iter().any(|directory| Path::new(&path).starts_with(directory));
        if !is_within {
            return Err(OUTSIDE);
        }
        if text.ends_with('/') || DIRECTORIES.contains(&path.as_str()) {
            return Err("must name a file, for instance local/app.conf");
        }
        Ok(Self { path: Some(path) })
    }
}

/// Replaces the variables of a task's directories.
fn with_directories(text: &str) -> String {
    let directories = [
        ("NOMAD_TASK_DIR", "/alloc-dir/task/local"),
        ("NOMAD_SECRETS_DIR", "/alloc-dir/task/secrets"),
        ("NOMAD_ALLOC_DIR", SHARED),
    ];
    directories.iter().fold(text.to_owned(), |text, (name, directory)| {
        let text = text.replace(&format!("${{{name}}}"), directory);
        text.replace(&format!("${{env[\"{name}\"]}}"), directory)
    })
}

/// The path below one of the directories, without `.` and `..`: the text is valid.
fn absolute(text: &str) -> String {
    let is_absolute = [TASK, SHARED].iter().any(|directory| Path::new(text).starts_with(directory));
    // A task with its own root has the shared directory at `/alloc`.
    let shared = text.strip_prefix("/alloc/").or_else(|| text.strip_prefix("alloc/"));
    let base = match (is_absolute, shared) {
        (true, _) => "",
        (false, Some(_)) => SHARED,
        (false, None) => TASK,
    };
    let text = shared.unwrap_or(text);
    let mut steps: Vec<&str> = Vec::new();
    for step in base.split('/').chain(text.split('/')) {
        match step {
            "" | "." => {}
            ".." => {
                steps.pop();
            }
            step => steps.push(step),
        }
    }
    format!("/{}", steps.join("/"))
}
