//! Formats errors for people.
//!
//! In: an error. Out: one line.

/// An error with all its causes on one line: `list the tree: open /x: permission denied`.
pub fn in_full(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let why = error.to_string();
        // Some errors include their cause in their own text.
        if !text.ends_with(&why) {
            text.push_str(": ");
            text.push_str(&why);
        }
        cause = error.source();
    }
    text
}
