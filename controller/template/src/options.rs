//! How a template is parsed and rendered.

use std::sync::Arc;

use crate::limits::Limits;

/// What a key that a map does not have yields: `error_on_missing_key` of a job.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum MissingKey {
    /// The zero value of the map's elements; without a type, `<no value>`.
    #[default]
    Zero,
    Error,
}

/// Settings of a template.
#[derive(Debug, Clone)]
pub struct Options {
    /// The name in errors.
    pub name: Arc<str>,
    /// Empty is `{{`.
    pub left_delimiter: String,
    /// Empty is `}}`.
    pub right_delimiter: String,
    pub missing_key: MissingKey,
    /// Names of functions that fail when they are called, with `*` for any characters.
    pub denylist: Vec<String>,
    /// The folder that `file` may read; none for any file.
    pub sandbox: Option<String>,
    pub limits: Limits,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            name: "template".into(),
            left_delimiter: String::new(),
            right_delimiter: String::new(),
            missing_key: MissingKey::Zero,
            denylist: Vec::new(),
            sandbox: None,
            limits: Limits::DEFAULT,
        }
    }
}

impl Options {
    pub(crate) fn delimiters(&self) -> (&str, &str) {
        (or(&self.left_delimiter, "{{"), or(&self.right_delimiter, "}}"))
    }
}

fn or<'d>(delimiter: &'d str, default: &'d str) -> &'d str {
    if delimiter.is_empty() { default } else { delimiter }
}
