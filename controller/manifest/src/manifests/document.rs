//! One document → a canonical object, or its problems.
//!
//! In: a tree. Out: its content if nothing is wrong, all problems, and warnings. One pass reports problems of
//! structure (names and types of fields) and of meaning (references, ranges): the part of the document that
//! is structurally valid is typed and validated too.

use std::sync::{Arc, LazyLock};

use herdlet_api_types::job::Job;
use herdlet_api_types::manifest::{API_VERSION, JobManifest, VolumeManifest};
use herdlet_api_types::volume::Volume;
use schemars::{JsonSchema, Schema};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::drivers::Drivers;
use super::env_files::{self, EnvFiles};
use super::findings::Findings;
use super::nearby::{self, Nearby};
use super::prune::{Pruned, typed};
use super::unbuilt::{self, Unbuilt};
use super::{Judge, config, foreign_names, validate};
use crate::yaml::{self, Checked, Document, Entry, Node, Problem, Problems, Style, Value, nearest};

/// The content of a document.
#[derive(Debug)]
pub(super) enum Content {
    Job {
        job: Box<Job>,
        /// The source document as JSON.
        document: serde_json::Value,
    },
    Volume {
        volume: Volume,
        /// The source document as JSON.
        document: serde_json::Value,
    },
}

/// The result of reading a document.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// Set if there are no problems.
    pub(super) content: Option<Content>,
    pub(super) problems: Problems,
    /// Accepted, but worth reporting.
    pub(super) warnings: Vec<Problem>,
}

/// What a document is read with.
pub(super) struct Context<'r> {
    pub(super) drivers: &'r Drivers,
    pub(super) judge: Judge,
    pub(super) nearby: &'r Nearby,
}

/// Reads a document of any kind.
pub(super) fn read(document: &mut Document, context: &Context<'_>, files: &mut EnvFiles) -> Outcome {
    document.ignore_fields("x-");
    if let Some(kind) = kind(document) {
        return read_kind(kind, (document, files), context);
    }
    let problems = no_kind(document);
    let Some(kind) = meant(document) else { return Outcome { problems, ..Outcome::default() } };
    // The problems of the head already list all kinds. Read the rest as the kind that was probably meant.
    let rest = read_kind(kind, (document, files), context);
    let mut outcome = Outcome { problems, warnings: rest.warnings, ..Outcome::default() };
    outcome.problems.add_more(rest.problems.more());
    outcome.problems.extend(rest.problems.into_vec().into_iter().filter(|problem| problem.path != "kind"));
    outcome
}

fn read_kind(
    kind: DocumentKind,
    (document, files): (&Document, &mut EnvFiles),
    context: &Context<'_>,
) -> Outcome {
    match kind {
        DocumentKind::Job => read_job(document, context, files),
        DocumentKind::Volume => read_volume(document, context),
    }
}

/// Guesses the intended kind of a document without a valid one: from its `kind`, otherwise from its fields.
fn meant(document: &Document) -> Option<DocumentKind> {
    let version = document.at("apiVersion");
    let is_ours = version.is_none_or(|version| version.node.text.starts_with("herdlet/"));
    match document.at("kind") {
        _ if !is_ours => None,
        Some(kind) => match nearest(&kind.node.text, ["Job", "Volume"].into_iter()) {
            Some("Job") => Some(DocumentKind::Job),
            Some(_) => Some(DocumentKind::Volume),
            None => None,
        },
        None if document.at("spec.groups").is_some() => Some(DocumentKind::Job),
        None if document.at("spec.host_path").is_some() || document.at("spec.plugin_id").is_some() => {
            Some(DocumentKind::Volume)
        }
        None => None,
    }
}

/// Reports a document without a valid kind.
fn no_kind(document: &Document) -> Problems {
    let is_compose = document.at("kind").is_none() && document.at("apiVersion").is_none();
    match document.at("services").filter(|_| is_compose) {
        Some(services) => services.problem(COMPOSE.to_owned()).into(),
        None => yaml::check(&document.root(), &HEAD),
    }
}

/// The message for a Compose file.
const COMPOSE: &str = "this is a Compose file, which herdlet does not read: write a job (`kind: Job`) in which each of these \
                       services is a task or a group; docs/guide/from-compose.md has an example, and herdlet schema \
                       spec.groups.tasks lists the fields of a task";

/// The fields of a document that identify its kind.
#[derive(Deserialize, JsonSchema)]
#[schemars(extend("additionalProperties" = true))]
#[expect(dead_code, reason = "only its schema is used")]
struct Head {
    #[serde(rename = "apiVersion")]
    api_version: herdlet_api_types::manifest::ApiVersion,
    kind: DocumentKind,
}

#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
enum DocumentKind {
    Job,
    Volume,
}

static HEAD: LazyLock<Schema> = LazyLock::new(yaml::schema_for::<Head>);
pub(super) static JOB: LazyLock<Schema> =
    LazyLock::new(|| foreign_names::explained(yaml::schema_for::<JobManifest>()));
static VOLUME: LazyLock<Schema> = LazyLock::new(yaml::schema_for::<VolumeManifest>);

fn kind(document: &Document) -> Option<DocumentKind> {
    yaml::from_node(&document.at("kind")?).ok()
}

fn read_job(document: &Document, context: &Context<'_>, files: &mut EnvFiles) -> Outcome {
    let Context { drivers, judge, nearby } = *context;
    let Unbuilt { document, problems: unbuilt, mut warnings } = unbuilt::find(document, &JOB, judge);
    let (mut problems, pruned) = structure::<JobManifest>(&document, &JOB, ("Job", unbuilt));
    let Some(Pruned { value: mut manifest, lost }) = pruned else {
        return Outcome { problems, warnings, ..Outcome::default() };
    };
    let mut findings = Findings::new(&document, lost);
    env_files::read_env_files(&mut manifest, nearby, files, &mut findings);
    if !nearby.is_names_only() {
        config::read(&mut manifest, drivers, &mut findings);
    }
    nearby::expand_dir(&mut manifest, nearby, &mut findings);
    let job = manifest.to_job();
    match judge {
        // Values of variables from files are unknown then.
        Judge::Here if nearby.is_names_only() => {}
        Judge::Here => validate::job(&manifest, &job, drivers, &mut findings),
        Judge::Servers => validate::job_of_servers(&manifest, &job, drivers, &mut findings),
    }
    add(&mut problems, findings.problems);
    let content =
        problems.is_empty().then(|| Content::Job { job: Box::new(job), document: to_json(&manifest) });
    warnings.append(&mut findings.warnings);
    Outcome { content, problems, warnings }
}

fn read_volume(document: &Document, context: &Context<'_>) -> Outcome {
    let Unbuilt { document, problems: unbuilt, mut warnings } = unbuilt::find(document, &VOLUME, Judge::Here);
    let (mut problems, pruned) = structure::<VolumeManifest>(&document, &VOLUME, ("Volume", unbuilt));
    let Some(Pruned { value: mut manifest, lost }) = pruned else {
        return Outcome { problems, warnings, ..Outcome::default() };
    };
    nearby::place_volume(&mut manifest, context.nearby, &document.source);
    let mut findings = Findings::new(&document, lost);
    validate::volume(&manifest, &mut findings);
    add(&mut problems, findings.problems);
    let content = problems
        .is_empty()
        .then(|| Content::Volume { volume: manifest.to_volume(), document: to_json(&manifest) });
    warnings.append(&mut findings.warnings);
    Outcome { content, problems, warnings }
}

/// Adds problems of meaning, except at paths that already have a structural problem, which says more.
fn add(structural: &mut Problems, found: Problems) {
    if structural.is_empty() {
        return structural.append(found);
    }
    let is_told = |problem: &&Problem| structural.iter().any(|reported| reported.path == problem.path);
    let others: Vec<Problem> = found.iter().filter(|problem| !is_told(problem)).cloned().collect();
    structural.extend(others);
}

/// Checks the structure of a document of a kind, in which these features are unbuilt, and types as much of it as is valid.
fn structure<T: DeserializeOwned>(
    document: &Document,
    schema: &Schema,
    (kind, unbuilt): (&str, Vec<Problem>),
) -> (Problems, Option<Pruned<T>>) {
    let mut problems = Problems::new();
    let Checked { problems: checked, absent } = yaml::check_fields(&document.root(), schema);
    // At one place, "not built" says more than "unknown field".
    problems.extend(
        checked
            .iter()
            .filter(|problem| !unbuilt.iter().any(|reported| reported.path == problem.path))
            .cloned(),
    );
    problems.extend(unbuilt);
    let pruned = match typed(document, &head(document, kind)) {
        Ok(Pruned { value, mut lost }) => {
            lost.extend(absent);
            Some(Pruned { value, lost })
        }
        Err(problem) if problems.is_empty() => {
            problems.push(problem);
            None
        }
        Err(_) => None,
    };
    (problems, pruned)
}

/// Stand-ins for the mandatory fields of a document, so that the rest can be read if they are missing.
fn head(document: &Document, kind: &str) -> Node {
    let node = |value: Value, text: &str| {
        let (style, position) = (Style::Plain, document.root.position);
        Node { value, text: text.into(), style, position }
    };
    let text = |text: &str| node(Value::Str, text);
    let map = || node(Value::Map(Vec::new()), "");
    let fields =
        [("apiVersion", text(API_VERSION)), ("kind", text(kind)), ("metadata", map()), ("spec", map())];
    let key_position = document.root.position;
    let entry = |(key, value): (&str, Node)| Entry { key: key.into(), key_position, value: Arc::new(value) };
    node(Value::Map(fields.into_iter().map(entry).collect()), "")
}

fn to_json<T: serde::Serialize>(manifest: &T) -> serde_json::Value {
    // Can't fail: all keys are strings, and JSON can represent every number.
    serde_json::to_value(manifest).unwrap_or_default()
}
