//! Manifests: what people wrote → canonical jobs and volumes, or everything that is wrong with it.
//!
//! In: files, folders, standard input or bytes with a name. Out: a [`Set`] whose every job and volume is valid, with the
//! place it came from; or [`Problems`], all of them, each with file, line, column and path. Nothing of a set is given
//! out while anything in it is wrong, except by [`read_folder`], which answers file by file.
//! It must not know what runs, what was applied before, or how a driver works (see [`Drivers`]).
//!
//! ```text
//! bytes ──yaml──► documents ──check(schema)──► typed ──► canonical
//!                     │            │             │
//!                     │         unbuilt       validate
//!                     └────────────┴──────┬──────┘
//!                                     Problems, warnings
//! ```

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::PathBuf;
use std::sync::Arc;

use herdlet_api_types::{job::Job, volume::Volume};

use super::yaml::{self, Position, Problem, Problems};

mod config;
mod document;
mod drivers;
mod findings;
mod folder;
mod prune;
mod schema;
mod unbuilt;
mod validate;
mod write;

#[cfg(test)]
mod tests;

pub use drivers::{DriverRules, Drivers, Filesystem};
pub use folder::{Folder, FolderFile, read_folder, texts};
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
    /// The canonical object.
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

/// Reads all manifests at these paths: files, folders (`*.yaml` and `*.yml` in them, by name, not below), and `-` for
/// standard input.
///
/// # Errors
/// Everything that is wrong with any of them, an unreadable file included.
pub fn load(paths: &[PathBuf], drivers: &Drivers) -> Result<Set, Problems> {
    let mut reading = Reading::default();
    for text in folder::texts(paths) {
        match text {
            Ok((source, bytes)) => reading.text(&source, &bytes, drivers),
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
    parse_all([(source, bytes)], drivers)
}

/// Reads all manifests in several texts as one set.
///
/// # Errors
/// Everything that is wrong with any of them.
pub fn parse_all<'a>(
    texts: impl IntoIterator<Item = (&'a str, &'a [u8])>,
    drivers: &Drivers,
) -> Result<Set, Problems> {
    let mut reading = Reading::default();
    for (source, bytes) in texts {
        reading.text(source, bytes, drivers);
    }
    reading.finish()
}

/// A set in the making.
#[derive(Debug, Default)]
struct Reading {
    set: Set,
    problems: Problems,
    places: Places,
}

/// Where each object of a set is defined, by kind, namespace and name.
type Places = BTreeMap<(&'static str, String, String), String>;

impl Reading {
    fn text(&mut self, source: &str, bytes: &[u8], drivers: &Drivers) {
        let parsed = yaml::parse(source, bytes);
        self.problems.append(parsed.problems);
        for mut document in parsed.documents {
            let outcome = document::read(&mut document, drivers);
            self.problems.append(outcome.problems);
            self.set.warnings.extend(outcome.warnings);
            if let Some(content) = outcome.content {
                self.content(&document, content);
            }
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
                self.set.jobs.push(Loaded { object: job, source, index, position, document });
            }
            Content::Volume { volume, document } => {
                self.set.volumes.push(Loaded { object: volume, source, index, position, document });
            }
        }
    }

    fn finish(self) -> Result<Set, Problems> {
        self.problems.into_result().map(|()| self.set)
    }
}
