//! `-l`: selects jobs by their labels and meta, in the syntax of Kubernetes' label selectors; and the names of objects as
//! commands print them (`job/web`).
//!
//! In: the texts of the command line, and the present jobs. Out: targets as [`super::target`] resolves them.

use std::{fmt, str::FromStr};

use clap::Args;
use herdlet_api_types::{JobKey, job::Job, view::JobView};

use super::{
    client::Client,
    failure::{Failure, USAGE},
};

/// The flag `-l`.
#[derive(Debug, Clone, Default, Args)]
pub struct SelectorFlag {
    /// Select jobs by labels and meta: app=web,tier!=db, 'env in (a,b)', 'env notin (a,b)', app, !app
    #[arg(short = 'l', long = "selector", value_name = "SELECTOR")]
    selector: Option<Selector>,
}

/// What an absent target means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Absent {
    /// Everything.
    All,
    /// An error.
    Wrong,
}

/// Requirements of which all must hold.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Selector {
    text: String,
    requirements: Vec<Requirement>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Requirement {
    key: String,
    test: Test,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Test {
    Exists,
    Absent,
    In(Vec<String>),
    /// Also true if the key is absent.
    NotIn(Vec<String>),
}

/// The kinds in names that commands print and accept.
const KINDS: [&str; 12] = [
    "job",
    "jobs",
    "alloc",
    "allocs",
    "allocation",
    "task",
    "tasks",
    "volume",
    "volumes",
    "deployment",
    "deployments",
    "service",
];

impl SelectorFlag {
    pub(super) fn is_given(&self) -> bool {
        self.selector.is_some()
    }

    /// The targets: those that are named, without their kinds, or the selected jobs. Without both, an empty list stands
    /// for everything.
    ///
    /// # Errors
    /// If nothing is named but must be, if both are given, or if no job fits the selector.
    pub(super) async fn targets(
        &self,
        client: &Client,
        names: Vec<String>,
        absent: Absent,
    ) -> Result<Vec<String>, Failure> {
        match (&self.selector, names.is_empty()) {
            (None, true) if absent == Absent::Wrong => Err(Failure::new("no target was named")
                .code(USAGE)
                .hint("name a job, an allocation or a task, or select jobs by labels: -l app=web")),
            (None, true) => Ok(names),
            (None, false) if !names.iter().any(|name| has_kind(name)) => Ok(names),
            (None, false) => Ok(plain_names(names, &client.jobs().await?)),
            (Some(_), false) => Err(Failure::new("targets and -l exclude each other").code(USAGE)),
            (Some(selector), true) => {
                let jobs = client.jobs().await?;
                let fitting = jobs.iter().filter(|view| selector.fits(&view.job));
                let found: Vec<String> = fitting.map(|view| name_among(&jobs, &view.key)).collect();
                if found.is_empty() {
                    return Err(Failure::new(format!("no job has labels or meta that fit {selector:?}", selector = selector.text))
                        .hint("see them: herdlet get jobs -o custom-columns=JOB:.key.id,LABELS:.job.labels,META:.job.meta"));
                }
                Ok(found)
            }
        }
    }
}

/// Whether the text may begin with a kind.
fn has_kind(text: &str) -> bool {
    KINDS
        .iter()
        .any(|kind| text.strip_prefix(kind).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')))
}

/// Removes kinds: `job/web`, and the first word of `job web api`. A job whose own name begins like that keeps it.
fn plain_names(mut names: Vec<String>, jobs: &[JobView]) -> Vec<String> {
    let is_kind = |word: &String| KINDS.contains(&word.as_str());
    let is_job = |word: &String| job_named(jobs, word).is_some();
    if names.len() > 1 && names.first().is_some_and(|first| is_kind(first) && !is_job(first)) {
        names.remove(0);
    }
    names.iter().map(|name| plain_name(name, jobs).to_owned()).collect()
}

/// Removes the kind from a name such as `job/web`, unless a job has this name.
pub(super) fn plain_name<'n>(name: &'n str, jobs: &[JobView]) -> &'n str {
    if jobs.iter().any(|view| after_job(name, &view.key).is_some()) {
        return name;
    }
    let mut rests = KINDS.iter().filter_map(|kind| name.strip_prefix(kind)?.strip_prefix('/'));
    rests.find(|rest| !rest.is_empty()).unwrap_or(name)
}

/// The shortest name that names this job and no other.
fn name_among(jobs: &[JobView], key: &JobKey) -> String {
    let name = key.to_string();
    if job_named(jobs, &name).is_none_or(|view| view.key == *key) { name } else { key.full() }
}

/// The job that `name` names: `NAMESPACE/ID`, or `ID` in the default namespace.
pub(super) fn job_named<'j>(jobs: &'j [JobView], name: &str) -> Option<&'j JobView> {
    let exact = jobs.iter().find(|view| view.key.full() == name);
    exact.or_else(|| jobs.iter().find(|view| view.key.to_string() == name))
}

/// The rest of `text` after a name of this job; none if `text` does not begin with one.
pub(super) fn after_job<'t>(text: &'t str, job: &JobKey) -> Option<&'t str> {
    let after = |name: &str| {
        text.strip_prefix(name).filter(|rest| rest.is_empty() || rest.starts_with(['.', '[', '/']))
    };
    after(&job.full()).or_else(|| after(&job.to_string()))
}

impl Selector {
    fn fits(&self, job: &Job) -> bool {
        self.requirements.iter().all(|requirement| requirement.holds(job))
    }
}

impl Requirement {
    fn holds(&self, job: &Job) -> bool {
        let value = job.labels.get(&self.key).or_else(|| job.meta.get(&self.key));
        match &self.test {
            Test::Exists => value.is_some(),
            Test::Absent => value.is_none(),
            Test::In(values) => value.is_some_and(|value| values.contains(value)),
            Test::NotIn(values) => value.is_none_or(|value| !values.contains(value)),
        }
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for Selector {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let requirements: Result<Vec<Requirement>, String> = split(text).map(requirement).collect();
        Ok(Self { text: text.to_owned(), requirements: requirements? })
    }
}

/// The parts between commas outside parentheses.
fn split(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_u32;
    text.split(move |char| {
        match char {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        char == ',' && depth == 0
    })
}

fn requirement(text: &str) -> Result<Requirement, String> {
    let text = text.trim();
    let requirement_on = |key: &str, test: Test| {
        let key = key.trim();
        if key.is_empty() || key.contains(char::is_whitespace) || key.contains(['(', ')', '=', '!']) {
            return Err(format!(
                "{text:?} is no requirement; examples: app=web, tier!=db, env in (a,b), !old"
            ));
        }
        Ok(Requirement { key: key.to_owned(), test })
    };
    if let Some((key, value)) = text.split_once("!=") {
        return requirement_on(key, Test::NotIn(vec![value.trim().to_owned()]));
    }
    if let Some((key, values)) = set(text, " notin ") {
        return requirement_on(key, Test::NotIn(values));
    }
    if let Some((key, values)) = set(text, " in ") {
        return requirement_on(key, Test::In(values));
    }
    if let Some((key, value)) = text.split_once('=') {
        let value = value.strip_prefix('=').unwrap_or(value);
        return requirement_on(key, Test::In(vec![value.trim().to_owned()]));
    }
    match text.strip_prefix('!') {
        Some(key) => requirement_on(key, Test::Absent),
        None => requirement_on(text, Test::Exists),
    }
}

/// Splits `KEY in (A,B)`.
fn set<'t>(text: &'t str, word: &str) -> Option<(&'t str, Vec<String>)> {
    let (key, values) = text.split_once(word)?;
    let values = values.trim().strip_prefix('(')?.strip_suffix(')')?;
    Some((key, values.split(',').map(|value| value.trim().to_owned()).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use herdlet_manifest::fixture::{job, job_view};

    fn labelled(labels: &[(&str, &str)], meta: &[(&str, &str)]) -> Job {
        let pairs =
            |of: &[(&str, &str)]| of.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
        Job { labels: pairs(labels), meta: pairs(meta), ..Job::clone(&job("web", "g", "t")) }
    }

    // Two jobs have the name `prod/web`: one of namespace `prod`, one whose id has a slash.
    #[test]
    fn selected_job_name_is_unambiguous() {
        let view_of = |namespace: &str, id: &str| {
            job_view(&Job { namespace: namespace.into(), ..Job::clone(&job(id, "g", "t")) }.into(), 0)
        };
        let jobs = [view_of("prod", "web"), view_of("default", "prod/web"), view_of("default", "web")];
        let names: Vec<String> = jobs.iter().map(|view| name_among(&jobs, &view.key)).collect();
        assert_eq!(names, ["prod/web", "default/prod/web", "web"]);
        for (name, view) in names.iter().zip(&jobs) {
            assert_eq!(job_named(&jobs, name).map(|view| &view.key), Some(&view.key));
        }
        assert_eq!(job_named(&jobs, "default/web").map(|view| &view.key), Some(&jobs[2].key));
    }

    #[test]
    fn jobs_are_selected_by_labels_and_meta_as_kubernetes_does() {
        let job = labelled(&[("app", "web"), ("env", "prod")], &[("tier", "front"), ("app", "other")]);
        for (selector, fits) in [
            ("app=web", true),
            ("app==web", true),
            ("app=other", false),
            ("tier=front,env=prod", true),
            ("tier=front,env=test", false),
            ("tier!=db", true),
            ("none!=db", true),
            ("env in (test, prod),app", true),
            ("env notin (test,prod)", false),
            ("none notin (a)", true),
            ("app", true),
            ("!app", false),
            ("!none", true),
            ("none", false),
        ] {
            assert_eq!(selector.parse::<Selector>().unwrap().fits(&job), fits, "{selector}");
        }
        for text in ["", "app=web,", "=web", "a b", "in (a)", "(a)"] {
            assert!(text.parse::<Selector>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn printed_names_are_accepted() {
        let jobs = ["web", "job", "job/x"].map(|name| job_view(&job(name, "g", "t"), 0));
        let plain =
            |names: &[&str]| plain_names(names.iter().map(|name| (*name).to_owned()).collect(), &jobs[..1]);
        assert_eq!(plain(&["job/web", "alloc/0123abcd", "web"]), ["web", "0123abcd", "web"]);
        assert_eq!(plain(&["job", "web", "api"]), ["web", "api"]);
        assert_eq!(plain(&["job"]), ["job"]);
        // A job has this name, or a task of it.
        assert_eq!(plain_name("job/x", &jobs), "job/x");
        assert_eq!(plain_name("job/task", &jobs), "job/task");
        assert_eq!(plain_name("job/", &jobs[..1]), "job/");
    }
}
