//! What a text that is no YAML is told.
//!
//! In: the parser's error. Out: its sentence, with the usual cause and remedy where a person who writes manifests would
//! not see it from the sentence.

use granit_parser::{ErrorKind as Kind, ScanError};

/// A message which reads after the place.
pub(super) fn message(error: &ScanError) -> String {
    match remedy(error.kind()) {
        Some(remedy) => format!("is not YAML: {}; {remedy}", error.info()),
        None => format!("is not YAML: {}", error.info()),
    }
}

fn remedy(kind: &Kind) -> Option<&'static str> {
    if matches!(
        kind,
        Kind::TabNotAllowed
            | Kind::TabInBlockIndentation
            | Kind::TabInIndentation
            | Kind::TabInPlainScalar
            | Kind::TabAtBlockScalarStart
    ) {
        Some("indent with spaces")
    } else if matches!(kind, Kind::MappingValueNotAllowed | Kind::InvalidIndentation) {
        Some("check the indentation, and put a value that holds `: ` in quotes")
    } else if matches!(kind, Kind::UnexpectedCharacter { .. }) {
        Some("put the value in quotes")
    } else if matches!(kind, Kind::SimpleKeyExpected | Kind::InvalidSimpleKey) {
        Some("a line of a map reads `key: value`")
    } else if matches!(kind, Kind::InvalidQuotedScalarIndent | Kind::UnclosedQuotedScalar) {
        Some("look for a quote that is not closed")
    } else if matches!(kind, Kind::UnknownQuotedScalarEscape) {
        Some("in single quotes a backslash stands for itself")
    } else {
        None
    }
}
