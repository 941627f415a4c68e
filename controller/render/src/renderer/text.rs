//! The texts of templates, and files that they read.

use herdlet_api_types::job::TemplateSource;
use herdlet_base::{artifact::destination::Dirs, observation::Class};
use herdlet_template::{Answer, MissingKey, Options, Query, Template, source::unavailable};

use super::{RenderError, TaskTemplates};
use crate::place::Place;

pub(super) fn parse_all(task: &TaskTemplates, denied: &[String]) -> Result<Vec<Template>, RenderError> {
    task.templates
        .iter()
        .map(|block| {
            let options = Options {
                name: block.destination.as_str().into(),
                left_delimiter: block.left_delimiter.clone(),
                right_delimiter: block.right_delimiter.clone(),
                missing_key: if block.error_on_missing_key { MissingKey::Error } else { MissingKey::Zero },
                denylist: denied.to_vec(),
                ..Options::default()
            };
            let failed = |source| RenderError::Template { destination: block.destination.clone(), source };
            match &block.source {
                TemplateSource::Inline(text) => Template::parse(text, &options).map_err(failed),
                TemplateSource::File(path) => {
                    Template::parse(&text_of(path, &task.dirs)?, &options).map_err(failed)
                }
            }
        })
        .collect()
}

fn text_of(path: &str, dirs: &Dirs) -> Result<String, RenderError> {
    let read = Place::of(path, dirs)?.read(dirs);
    let bytes = read.map_err(|source| RenderError::Read { path: path.to_owned(), source })?;
    let bytes = bytes.ok_or_else(|| RenderError::NoSource { path: path.to_owned() })?;
    String::from_utf8(bytes).map_err(|_| RenderError::NotText { path: path.to_owned() })
}

/// The answer to `file`: a file that does not exist yet is waited for. An error if it can't be read now.
pub(super) fn file(path: &str, task: &TaskTemplates) -> Result<Answer, String> {
    let dirs = &task.dirs;
    let query = Query::File { path: path.to_owned() };
    Ok(match Place::of(path, dirs) {
        Err(_) => Answer::Failed(format!(
            "file {path}: it is not in the task's directories `local`, `secrets`, `tmp` or `alloc`"
        )),
        Ok(place) => match place.read(dirs) {
            Ok(Some(bytes)) => Answer::Text(bytes.into()),
            // Nothing is written before all outputs are known.
            Ok(None) if task.templates.iter().any(|block| place.is_of(&block.destination, dirs)) => {
                Answer::Failed(format!(
                    "file {path}: it is the output of a template of the same task; write that text into this template too"
                ))
            }
            Ok(None) => Answer::Pending,
            Err(error) => match error.class() {
                Class::Fatal => Answer::Failed(format!("{}: {error}", unavailable(&query))),
                Class::Retry => return Err(error.to_string()),
            },
        },
    })
}
