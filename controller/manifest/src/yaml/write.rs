//! Rust values → YAML text. Only this module depends on the YAML writer.

use serde::Serialize;

/// Serialization to YAML failed.
#[derive(Debug, thiserror::Error)]
#[error("write as YAML: {0}")]
pub struct WriteError(#[source] Box<serde_saphyr::ser::Error>);

/// Writes a value as one YAML document. Quotes every string that another parser could resolve to another
/// type.
///
/// # Errors
/// A value that YAML can't represent, such as a map whose keys are maps.
pub fn to_yaml<T: Serialize>(value: &T) -> Result<String, WriteError> {
    serde_saphyr::to_string(value).map_err(|error| WriteError(Box::new(error)))
}
