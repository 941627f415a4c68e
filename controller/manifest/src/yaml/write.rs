//! Rust values → YAML text. The one place that knows which crate writes it.

use serde::Serialize;

/// A value could not be written.
#[derive(Debug, thiserror::Error)]
#[error("write as YAML: {0}")]
pub struct WriteError(#[source] Box<serde_saphyr::ser::Error>);

/// Writes a value as one YAML document, quoting every string that another parser could take for something else.
///
/// # Errors
/// A value that YAML has no form for, such as a map whose keys are maps.
pub fn to_yaml<T: Serialize>(value: &T) -> Result<String, WriteError> {
    serde_saphyr::to_string(value).map_err(|error| WriteError(Box::new(error)))
}
