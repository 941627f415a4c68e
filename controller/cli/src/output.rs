//! `-o`: what commands print for programs. Shapes are promised: fields are only added, under one `apiVersion`.
//!
//! In: what a command has to say, as data. Out: one document on stdout, and nothing else there. Lists of `get` are printed
//! by [`super::get`]; what goes wrong is told on stderr in words, whatever the form.

use clap::{Args, ValueEnum};
use serde::Serialize;

use super::{failure::Failure, show};

/// How a command prints what it has to say.
#[derive(Debug, Clone, Copy, Default, Args)]
pub struct Output {
    /// How to print it: for people, or as data for programs
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

/// Whom a command speaks to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reader {
    /// Lines as things happen.
    Person,
    /// One document at the end.
    Program,
}

impl Output {
    pub fn reader(self) -> Reader {
        match self.form {
            Form::Text => Reader::Person,
            Form::Json | Form::Yaml => Reader::Program,
        }
    }

    /// Prints a line for people; programs get all of it at the end.
    pub fn line(self, line: &str) {
        match self.reader() {
            Reader::Person => show::out(&format!("{line}\n")),
            Reader::Program => {}
        }
    }

    /// Prints the document for programs, an object with `apiVersion`; people have been told in lines.
    pub fn document<T: Serialize>(self, data: &T) -> Result<(), Failure> {
        let document = versioned(data);
        match self.form {
            Form::Text => Ok(()),
            Form::Json => show::json(&document),
            Form::Yaml => show::yaml(&document),
        }
    }
}

/// The version of all shapes, the manifests' own.
const API_VERSION: &str = "herdlet/v1";

/// An object with `apiVersion`.
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
