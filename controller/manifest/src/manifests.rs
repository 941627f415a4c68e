//! Manifests: text → canonical jobs and volumes, or all problems.
//!
//! In: files, folders, standard input or named bytes. Out: a [`Set`] of valid jobs and volumes, each with its
//! origin; or [`Problems`], all of them, each with file, line, column and path. If anything in a set is
//! wrong, nothing of it is returned, except by [`read_folder`], which returns a result for each file. This
//! module does not know what runs, what was applied before, or how a driver works (see [`Drivers`]).
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
mod env_files;
mod findings;
mod folder;
mod foreign_names;
mod nearby;
mod nomad;
mod prune;
mod schema;
mod unbuilt;
mod validate;
mod write;

#[cfg(test)]
mod tests;

pub use drivers::{DENIED_FUNCTIONS, DriverRules, Drivers};
pub use env_files::{env_file_paths, read_env_file};
pub use folder::{Folder, FolderFile, hash_of, read_folder, texts};
pub use nearby::{Nearby, dir_of};
pub use nomad::to_manifest_name;
pub use schema::schema;
pub use write::{job_to_yaml, volume_to_yaml};

use document::Content;
use env_files::EnvFiles;

/// Jobs and volumes that are valid, each by itself and together.
#[derive(Debug, Clone, Default)]
pub struct Set {
    /// In the order of files and documents.
    pub jobs: Vec<Loaded<Job>>,
    /// In the order of files and documents.
    pub volumes: Vec<Loaded<Volume>>,
    /// Manifests that are accepted, but may not do what their author expects.
    pub warnings: Vec<Problem>,
}

/// An object and its origin.
#[derive(Debug, Clone, PartialEq)]
pub struct Loaded<T> {
    pub object: T,
    /// Name of its text: a path, or `<stdin>`.
    pub source: Arc<str>,
    /// Index of its document in that text, from 0. Empty documents don't count.
    pub index: usize,
    /// Where its document begins.
    pub position: Position,
    /// The document as JSON without comments. Only this field has the annotations.
    pub document: serde_json::Value,
}

/// Maximum number of jobs and volumes in a set; more is a mistake or an attack.
pub const OBJECTS_MAX: usize = 10_000;

/// Reads all manifests at these paths: files, folders (files with a manifest's name directly in them), and
/// `-` for standard input.
///
/// # Errors
/// All problems, including unreadable files.
pub fn load(paths: &[PathBuf], drivers: &Drivers, variables: &Variables) -> Result<Set, Problems> {
    Reading { nearby: Nearby::Disk, ..Reading::new(drivers, variables) }.paths(paths)
}

/// Reads manifests like [`load`] for the names of their objects: without the files that they refer to, so a
/// missing `env_file` is no problem.
///
/// # Errors
/// All problems.
pub fn load_names(paths: &[PathBuf], drivers: &Drivers, variables: &Variables) -> Result<Set, Problems> {
    Reading { nearby: Nearby::NamesOnly, ..Reading::new(drivers, variables) }.paths(paths)
}

/// Reads all manifests in a text.
///
/// # Errors
/// All problems.
pub fn parse(source: &str, bytes: &[u8], drivers: &Drivers) -> Result<Set, Problems> {
    parse_all([(source, bytes)], drivers, &Variables::default())
}

/// Reads all manifests in several texts as one set. A text is YAML, Nomad's API JSON, or HCL with values for
/// its variables. Its name tells HCL apart (`x.hcl`, `x.nomad`), otherwise its beginning.
///
/// # Errors
/// All problems.
pub fn parse_all<'a>(
    texts: impl IntoIterator<Item = (&'a str, &'a [u8])>,
    drivers: &Drivers,
    variables: &Variables,
) -> Result<Set, Problems> {
    parse_sent(texts, Nearby::nothing(), drivers, variables)
}

/// Reads manifests like [`parse_all`], with the files that were sent with them.
///
/// # Errors
/// All problems.
pub fn parse_sent<'a>(
    texts: impl IntoIterator<Item = (&'a str, &'a [u8])>,
    nearby: Nearby,
    drivers: &Drivers,
    variables: &Variables,
) -> Result<Set, Problems> {
    let mut reading = Reading { nearby, ..Reading::new(drivers, variables) };
    for (source, bytes) in texts {
        reading.text(source, bytes);
    }
    reading.finish()
}

/// Reads the job of an allocation from a Nomad server, in Nomad's API JSON. Fields unknown to this release
/// are ignored, as in every client that is older than its servers. Rules that servers have checked are not
/// checked again.
///
/// # Errors
/// All problems, and all features of Nomad in it that this release lacks.
pub fn read_of_servers(job: &serde_json::Value, drivers: &Drivers) -> Result<Set, Problems> {
    let variables = Variables::default();
    let mut reading = Reading { judge: Judge::Servers, ..Reading::new(drivers, &variables) };
    match yaml::tree_of("job.json", job, yaml::Limits::DEFAULT) {
        Ok(document) => reading.api_job(&document, nomad::Unknown::PassedOver),
        Err(problem) => reading.problems.push(problem),
    }
    reading.finish()
}

/// Whether the problem is about a file of variables.
fn is_of_env_file(problem: &Problem) -> bool {
    problem.path.contains(".env_file")
}

/// Which side validated the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Judge {
    Here,
    /// The servers, by their own rules, which are partly more permissive. Only this machine's own
    /// requirements are checked.
    Servers,
}

/// A set under construction.
#[derive(Debug)]
struct Reading<'r> {
    drivers: &'r Drivers,
    judge: Judge,
    variables: &'r Variables,
    nearby: Nearby,
    env_files: EnvFiles,
    set: Set,
    problems: Problems,
    places: Places,
    /// Variables that any HCL text declares.
    declared: BTreeSet<String>,
}

/// Where each object of a set is defined, by kind, namespace and name.
type Places = BTreeMap<(&'static str, String, String), String>;

impl<'r> Reading<'r> {
    fn new(drivers: &'r Drivers, variables: &'r Variables) -> Self {
        let (set, problems) = (Set::default(), Problems::new());
        let (judge, declared) = (Judge::Here, BTreeSet::new());
        let (nearby, env_files) = (Nearby::nothing(), EnvFiles::default());
        Self { drivers, judge, variables, nearby, env_files, set, problems, places: Places::new(), declared }
    }

    fn paths(mut self, paths: &[PathBuf]) -> Result<Set, Problems> {
        for text in folder::texts(paths) {
            match text {
                Ok((source, bytes)) => self.text(&source, &bytes),
                Err(problem) => self.problems.push(problem),
            }
        }
        self.finish()
    }

    fn text(&mut self, source: &str, bytes: &[u8]) {
        if hcl::is_hcl(source, bytes) {
            return self.hcl(source, bytes);
        }
        let parsed = yaml::parse(source, bytes);
        self.problems.append(parsed.problems);
        for document in parsed.documents {
            if nomad::is_job(&document) {
                self.api_job(&document, nomad::Unknown::Reported);
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
        self.set.warnings.extend(evaluated.warnings);
        let (documents, problems) = nomad::from_hcl(source, &evaluated.body, self.drivers);
        let translates = problems.is_empty() && evaluated.problems.is_empty();
        self.problems.append(evaluated.problems);
        self.problems.append(problems);
        for document in documents {
            let content = self.document(document, str::to_owned).filter(|_| translates);
            self.contents(content);
        }
    }

    /// Reads a job of Nomad's API. Its problems use the API's field names.
    fn api_job(&mut self, written: &yaml::Document, unknown: nomad::Unknown) {
        let job = if written.root.get("Job").is_some() { "Job" } else { "" };
        let (document, problems) = nomad::from_json(written, unknown);
        let translates = problems.is_empty();
        self.problems.append(problems);
        let content = self.document(document, |path| nomad::to_api_path(path, job)).filter(|_| translates);
        self.contents(content);
    }

    /// Reads a document. `words` translates a path into its author's names.
    fn document(
        &mut self,
        mut document: yaml::Document,
        words: impl Fn(&str) -> String,
    ) -> Option<(yaml::Document, Content)> {
        let context = document::Context { drivers: self.drivers, judge: self.judge, nearby: &self.nearby };
        let outcome = document::read(&mut document, &context, &mut self.env_files);
        let in_words = |problem: Problem| Problem { path: words(&problem.path), ..problem };
        self.problems.add_more(outcome.problems.more());
        // A mistake in a file of variables is reported once, not for each task that uses the file.
        for problem in outcome.problems.into_vec() {
            let is_reported = |known: &Problem| is_of_env_file(known) && known.message == problem.message;
            if !is_of_env_file(&problem) || !self.problems.iter().any(is_reported) {
                self.problems.push(in_words(problem));
            }
        }
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
                let message = format!("a set may contain at most {OBJECTS_MAX} jobs and volumes");
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
        // Undeclared variables can be determined only if every text was parsed.
        if self.problems.is_empty() {
            self.problems = self.variables.undeclared(&self.declared);
        }
        self.problems.into_result().map(|()| self.set)
    }
}
