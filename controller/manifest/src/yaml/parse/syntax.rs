//! Messages for syntax errors.
//!
//! In: the parser's error and the text. Out: the parser's message, with the usual cause and remedy if an
//! author of manifests would not see it in the message.

use granit_parser::{ErrorKind as Kind, ScanError};

/// Returns a message that follows the position.
pub(super) fn message(error: &ScanError, text: &str) -> String {
    let before = error.marker().byte_offset().and_then(|offset| text.get(..offset)).unwrap_or_default();
    match remedy(error.kind(), before) {
        Some(remedy) => format!("is not YAML: {}; {remedy}", error.info()),
        None => format!("is not YAML: {}", error.info()),
    }
}

/// Returns a remedy, given the text before the error.
fn remedy(kind: &Kind, before: &str) -> Option<&'static str> {
    let is_tab = matches!(
        kind,
        Kind::TabNotAllowed
            | Kind::TabInBlockIndentation
            | Kind::TabInIndentation
            | Kind::TabInPlainScalar
            | Kind::TabAtBlockScalarStart
    );
    let in_brackets = matches!(
        kind,
        Kind::ExpectedFlowSequenceSeparator
            | Kind::ExpectedFlowMappingSeparator
            | Kind::InvalidColonPlacement
            | Kind::UnexpectedEofFlowMapping
            | Kind::UnexpectedEofFlowSequence
    );
    if is_tab {
        Some("indent with spaces")
    } else if in_brackets && before.ends_with('$') {
        Some("within brackets, put a value that contains `${…}` in quotes")
    } else if in_brackets {
        Some("look for a bracket that is not closed, or a comma that is missing")
    } else if matches!(kind, Kind::MappingValueNotAllowed | Kind::InvalidIndentation) {
        Some("check the indentation, and put a value that contains `: ` in quotes")
    } else if matches!(kind, Kind::ExpectedBlockMappingKey | Kind::ExpectedBlockSequenceEntry) {
        Some("check the indentation")
    } else if matches!(kind, Kind::BlockSequenceEntryNotAllowed) {
        Some("begin the list on the next line, or put the value in quotes")
    } else if matches!(kind, Kind::UnexpectedCharacter { character } if !character.is_control()) {
        Some("put the value in quotes")
    } else if matches!(kind, Kind::MissingAnchorOrAliasName) {
        Some("put a value that begins with `*` or `&` in quotes")
    } else if matches!(kind, Kind::SimpleKeyExpected | Kind::InvalidSimpleKey) {
        Some("a line of a map reads `key: value`")
    } else if matches!(kind, Kind::InvalidQuotedScalarIndent | Kind::UnclosedQuotedScalar) {
        Some("look for a quote that is not closed")
    } else if matches!(kind, Kind::InvalidTrailingSingleQuotedScalar) {
        Some("within single quotes write ' twice")
    } else if matches!(kind, Kind::InvalidTrailingDoubleQuotedScalar) {
        Some("within double quotes write \\\"")
    } else if matches!(kind, Kind::UnknownQuotedScalarEscape) {
        Some("in single quotes, a backslash is literal")
    } else {
        None
    }
}
