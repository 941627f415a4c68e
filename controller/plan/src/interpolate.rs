//! `${name}`: replaces names by their values.
//!
//! In: a text or a driver's config, and the values of variables. Out: the same with its variables replaced. It does not
//! know the source of the values.
//!
//! Two rules, as in Nomad:
//!
//! | where | a variable | an unknown one | escape |
//! | --- | --- | --- | --- |
//! | everything except driver config | `${` `[a-zA-Z0-9_.-]+` `}` | stays as written | none |
//! | driver config ([`interpolate_config`]) | `${NAME}`, `${env["x.y"]}`, `${attr.…}`, `${meta.…}`, `${node.…}`, `${secret.NAME.KEY}` | an error | `$${` is `${` |

mod config;

use std_alloc::string::String;

pub use config::{ConfigError, interpolate_config};

/// Longest text that interpolation produces, in bytes. The kernel accepts 128 KiB for one argument or variable; files
/// may be longer. Without the limit, values that refer to each other many times could grow without bound.
pub const OUTPUT_BYTES_MAX: usize = 1 << 20;

/// The values of variables.
pub trait Values {
    /// A variable of the task's environment.
    fn var(&self, name: &str) -> Option<&str>;

    /// The value of `${name}`: a variable, else a fact of the node, else a value of a secret.
    fn get(&self, name: &str) -> Option<&str>;
}

/// Replaces every `${name}` for which `value_of` has a value. A text that would exceed `bytes_max` is returned as
/// written.
pub(crate) fn replace<'v>(
    text: &str,
    bytes_max: usize,
    value_of: impl Fn(&str) -> Option<&'v str>,
) -> String {
    let mut out = String::with_capacity(text.len());
    for piece in pieces(text) {
        let part = match piece {
            Piece::Text(part) => part,
            Piece::Variable { name, written } => value_of(name).unwrap_or(written),
        };
        if out.len() + part.len() > bytes_max {
            return String::from(text);
        }
        out.push_str(part);
    }
    out
}

/// Names of the variables in a text, in order and with repetition.
pub(crate) fn variables(text: &str) -> impl Iterator<Item = &str> {
    pieces(text).filter_map(|piece| match piece {
        Piece::Text(_) => None,
        Piece::Variable { name, .. } => Some(name),
    })
}

/// A piece of a text.
enum Piece<'t> {
    /// Literal text.
    Text(&'t str),
    /// `${name}`.
    Variable { name: &'t str, written: &'t str },
}

/// Splits like the regular expression `\$\{[a-zA-Z0-9_.-]+\}`: leftmost match first; a match is not searched again.
fn pieces(text: &str) -> impl Iterator<Item = Piece<'_>> {
    let mut rest = text;
    core::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        if let Some(name) = variable_at_start(rest) {
            let (written, after) = rest.split_at(name.len() + "${}".len());
            rest = after;
            return Some(Piece::Variable { name, written });
        }
        // No variable begins at the first character, so the search for the next `$` starts after it.
        let skip = rest.chars().next().map_or(0, char::len_utf8);
        let end = rest[skip..].find('$').map_or(rest.len(), |at| skip + at);
        let (part, after) = rest.split_at(end);
        rest = after;
        Some(Piece::Text(part))
    })
}

fn variable_at_start(text: &str) -> Option<&str> {
    let inner = text.strip_prefix("${")?;
    let end = inner.find(|c: char| !is_name_char(c))?;
    (end > 0 && inner[end..].starts_with('}')).then(|| &inner[..end])
}

/// The characters of a variable's name.
fn is_name_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-')
}

#[cfg(test)]
mod tests;
