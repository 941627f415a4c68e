//! `-o`: output of commands for programs. Its shapes are stable: under one `apiVersion`, fields are only added.
//!
//! In: the result of a command, as data. Out: one document and nothing else on stdout. [`super::get`] prints its own
//! lists. Errors are text on stderr, in every form.

use clap::{Args, ValueEnum};
use serde::Serialize;

use super::{failure::Failure, show};

/// How a command prints what it has to say.
#[derive(Debug, Clone, Copy, Default, Args)]
pub struct Output {
    /// Output format: text for people, or data for programs
    #[arg(short = 'o', long = "output", value_enum, default_value = "text", value_name = "FORM")]
    form: Form,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum Form {
    #[default]
    #[value(alias = "table", alias = "wide")]
    Text,
    Json,
    Yaml,
}

/// The reader of a command's output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reader {
    /// Gets lines as things happen.
    Person,
    /// Gets one document at the end.
    Program,
}

impl Output {
    pub fn reader(self) -> Reader {
        match self.form {
            Form::Text => Reader::Person,
            Form::Json | Form::Yaml => Reader::Program,
        }
    }

    /// Prints a line for people. Programs get only the document.
    pub fn line(self, line: &str) {
        match self.reader() {
            Reader::Person => show::out(&format!("{line}\n")),
            Reader::Program => {}
        }
    }

    /// Prints the document for programs, an object with `apiVersion`. People have already got the lines.
    pub fn document<T: Serialize>(self, data: &T) -> Result<(), Failure> {
        let document = versioned(data);
        match self.form {
            Form::Text => Ok(()),
            Form::Json => show::json(&document),
            Form::Yaml => show::yaml(&document),
        }
    }
}

/// The version of all shapes, the same as of manifests.
const API_VERSION: &str = "herdlet/v1";

/// Adds `apiVersion` to an object.
pub(super) fn versioned<T: Serialize>(data: &T) -> impl Serialize {
    Document { api_version: API_VERSION, data }
}

#[derive(Serialize)]
struct Document<'d, T> {
    #[serde(rename = "apiVersion")]
    api_version: &'static str,
    #[serde(flatten)]
    data: &'d T,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_objects_with_a_version() {
        let text = serde_json::to_string(&versioned(&serde_json::json!({ "jobs": [] }))).unwrap();
        assert_eq!(text, r#"{"apiVersion":"herdlet/v1","jobs":[]}"#);
    }
}
