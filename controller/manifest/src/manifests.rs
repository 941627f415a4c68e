//! Manifests: what people wrote → canonical jobs and volumes, or everything that is wrong with it.
//!
//! In: files, folders, standard input or bytes with a name. Out: a [`Set`] whose every job and volume is valid, with the
//! place it came from; or [`Problems`], all of them, each with file, line, column and path. Nothing of a set is given
//! out while anything in it is wrong, except by [`read_folder`], which answers file by file.
//! It must not know what runs, what was applied before, or how a driver works (see [`Drivers`]).
//!
//! ```text
//! YAML ──yaml──────────────► documents ──check(schema)──► typed ──► canonical
//! Nomad's JSON ──yaml──nomad──►  │            │             │
//! Nomad's HCL ───hcl───nomad──►  │         unbuilt       validate
//!                                └────────────┴──────┬──────┘
//!                                                Problems, warnings
//! ```

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use herdlet_api_types::{job::Job, volume::Volume};

use super::hcl::{self, Variables};
use super::yaml::{self, Position, Problem, Problems};

mod config;
mod document;
mod drivers;
mod findings;
mod folder;
mod nomad;
mod prune;
mod schema;
mod unbuilt;
mod validate;
mod write;

#[cfg(test)]
mod tests;

pub use drivers::{DriverRules, Drivers};
pub use folder::{Folder, FolderFile, read_folder, texts};
pub use nomad::in_manifest_words;
pub use schema::schema;
pub use write::{job_to_yaml, volume_to_yaml};

use document::Content;

/// Jobs and volumes that are valid, each and together.
#[derive(Debug, Clone, Default)]
pub struct Set {
    /// In the order of files and documents.
    pub jobs: Vec<Loaded<Job>>,
    /// In the order of files and documents.
    pub volumes: Vec<Loaded<Volume>>,
    /// What is accepted although it doesn't do what it seems to say.
    pub warnings: Vec<Problem>,
}

/// Something that was read, and where it was written.
#[derive(Debug, Clone, PartialEq)]
pub struct Loaded<T> {
    pub object: T,
    /// Name of the text it is from: a path, or `<stdin>`.
    pub source: Arc<str>,
    /// Number of its document in that text, from 0, empty ones not counted.
    pub index: usize,
    /// Where its document begins.
    pub position: Position,
    /// The document itself as JSON, without comments: annotations are only here.
    pub document: serde_json::Value,
}

/// So many jobs and volumes make a set; more is a slip or an attack.
pub const OBJECTS_MAX: usize = 10_000;

/// Reads all manifests at these paths: files, folders (what bears a manifest's name in them, not below), and `-` for
/// standard input.
///
/// # Errors
/// Everything that is wrong with any of them, an unreadable file included.
pub fn load(paths: &[PathBuf], drivers: &Drivers, variables: &Variables) -> Result<Set, Problems> {
    let mut reading = Reading::new(drivers, variables);
    for text in folder::texts(paths) {
        match text {
            Ok((source, bytes)) => reading.text(&source, &bytes),
            Err(problem) => reading.problems.push(problem),
        }
    }
    reading.finish()
}

/// Reads all manifests in a text.
///
/// # Errors
/// Everything that is wrong with it.
pub fn parse(source: &str, bytes: &[u8], drivers: &Drivers) -> Result<Set, Problems> {
    parse_all([(source, bytes)], drivers, &Variables::default())
}

/// Reads all manifests in several texts as one set: YAML, Nomad's API JSON, or HCL with values for its variables, told
/// apart by their names (`x.hcl`, `x.nomad`) and otherwise by how they begin.
///
/// # Errors
/// Everything that is wrong with any of them.
pub fn parse_all<'a>(
    texts: impl IntoIterator<Item = (&'a str, &'a [u8])>,
    drivers: &Drivers,
    variables: &Variables,
) -> Result<Set, Problems> {
    let mut reading = Reading::new(drivers, variables);
    for (source, bytes) in texts {
        reading.text(source, bytes);
    }
    reading.finish()
}

/// Reads the job of an allocation as servers send it: Nomad's API JSON. Fields that no release up to this one has are
/// passed over, as by every client that is older than its servers. What servers have judged isn't judged again.
///
/// # Errors
/// Everything that is wrong with it, and everything in it that Nomad has and this release doesn't.
pub fn read_of_servers(job: &serde_json::Value, drivers: &Drivers) -> Result<Set, Problems> {
    let variables = Variables::default();
    let mut reading = Reading { judge: Judge::Servers, ..Reading::new(drivers, &variables) };
    match yaml::tree_of("job.json", job, yaml::Limits::DEFAULT) {
        Ok(document) => reading.api_job(&document, nomad::Unknown::PassedOver),
        Err(problem) => reading.problems.push(problem),
    }
    reading.finish()
}

/// Who has judged whether a job makes sense.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Judge {
    Here,
    /// Servers, by their own rules, which allow more here and there: only what this machine must hold itself is looked at.
    Servers,
}

/// A set in the making.
#[derive(Debug)]
struct Reading<'r> {
    drivers: &'r Drivers,
    judge: Judge,
    variables: &'r Variables,
    set: Set,
    problems: Problems,
    places: Places,
    /// Variables of all HCL texts.
    declared: BTreeSet<String>,
}

/// Where each object of a set is defined, by kind, namespace and name.
type Places = BTreeMap<(&'static str, String, String), String>;

impl<'r> Reading<'r> {
    fn new(drivers: &'r Drivers, variables: &'r Variables) -> Self {
        let (set, problems) = (Set::default(), Problems::new());
        let (judge, declared) = (Judge::Here, BTreeSet::new());
        Self { drivers, judge, variables, set, problems, places: Places::new(), declared }
    }

    fn text(&mut self, source: &str, bytes: &[u8]) {
        if hcl::is_hcl(source, bytes) {
            return self.hcl(source, bytes);
        }
        let parsed = yaml::parse(source, bytes);
        self.problems.append(parsed.problems);
        for document in parsed.documents {
            if nomad::is_job(&document) {
                self.api_job(&document, nomad::Unknown::Told);
            } else {
                let content = self.document(document, str::to_owned);
                self.contents(content);
            }
        }
    }

    fn hcl(&mut self, source: &str, bytes: &[u8]) {
        let evaluated = match hcl::evaluate(source, bytes, self.variables) {
            Ok(evaluated) => evaluated,
            Err(problems) => return self.problems.append(problems),
        };
        self.declared.extend(evaluated.declared);
        let (documents, problems) = nomad::from_hcl(source, &evaluated.body, self.drivers);
        let translates = problems.is_empty() && evaluated.problems.is_empty();
        self.problems.append(evaluated.problems);
        self.problems.append(problems);
        for document in documents {
            let content = self.document(document, str::to_owned).filter(|_| translates);
            self.contents(content);
        }
    }

    /// A job of Nomad's API: what is wrong with it is told by the API's own names.
    fn api_job(&mut self, written: &yaml::Document, unknown: nomad::Unknown) {
        let job = if written.root.get("Job").is_some() { "Job" } else { "" };
        let (document, problems) = nomad::from_json(written, unknown);
        let translates = problems.is_empty();
        self.problems.append(problems);
        let content = self.document(document, |path| nomad::in_api_words(path, job)).filter(|_| translates);
        self.contents(content);
    }

    /// Reads a document. `words` says a path as its author knows it.
    fn document(
        &mut self,
        mut document: yaml::Document,
        words: impl Fn(&str) -> String,
    ) -> Option<(yaml::Document, Content)> {
        let outcome = document::read(&mut document, self.drivers, self.judge);
        let in_words = |problem: Problem| Problem { path: words(&problem.path), ..problem };
        self.problems.add_more(outcome.problems.more());
        self.problems.extend(outcome.problems.into_vec().into_iter().map(in_words));
        self.set.warnings.extend(outcome.warnings.into_iter().map(in_words));
        outcome.content.map(|content| (document, content))
    }

    fn contents(&mut self, content: Option<(yaml::Document, Content)>) {
        if let Some((document, content)) = content {
            self.content(&document, content);
        }
    }

    fn content(&mut self, document: &yaml::Document, content: Content) {
        let (kind, namespace, name) = match &content {
            Content::Job { job, .. } => ("Job", job.namespace.clone(), job.id.clone()),
            Content::Volume { volume, .. } => ("Volume", String::new(), volume.name.clone()),
        };
        if self.places.len() >= OBJECTS_MAX {
            if self.places.len() == OBJECTS_MAX {
                let message =
                    format!("this is one more than the {OBJECTS_MAX} jobs and volumes that make a set");
                self.problems.push(document.root().problem(message));
                self.places.insert(("", String::new(), String::new()), String::new());
            }
            return;
        }
        let place = document.problem("metadata.name", "");
        match self.places.entry((kind, namespace, name)) {
            Entry::Occupied(first) => {
                let (kind, _, name) = first.key();
                let message = format!("{kind} `{name}` is already defined at {}", first.get());
                self.problems.push(Problem { message, ..place });
            }
            Entry::Vacant(free) => {
                free.insert(format!("{}:{}:{}", place.source, place.line, place.column));
            }
        }
        let (source, index, position) = (document.source.clone(), document.index, document.root.position);
        match content {
            Content::Job { job, document } => {
                self.set.jobs.push(Loaded { object: *job, source, index, position, document });
            }
            Content::Volume { volume, document } => {
                self.set.volumes.push(Loaded { object: volume, source, index, position, document });
            }
        }
    }

    fn finish(mut self) -> Result<Set, Problems> {
        // What a text declares is only known where it could be read.
        if self.problems.is_empty() {
            self.problems = self.variables.undeclared(&self.declared);
        }
        self.problems.into_result().map(|()| self.set)
    }
}
