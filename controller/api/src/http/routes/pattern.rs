//! Patterns of paths: matches a path, and extracts its parameters.
//!
//! [`Route::path`](super::Route::path) describes the segments of a pattern.

/// Path parameters, by field name.
pub type PathParams = Vec<(&'static str, PathParam)>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PathParam {
    One(String),
    /// A list with one element.
    Listed(String),
}

/// Returns the path parameters; none if the path does not match the pattern.
pub(super) fn params(pattern: &'static str, path: &str) -> Option<PathParams> {
    let (mut patterns, mut parts) =
        (pattern.split('/').collect::<Vec<_>>(), path.split('/').collect::<Vec<_>>());
    let mut found = Vec::new();
    // A parameter of several segments takes everything between the segments before and after it.
    let several = patterns.iter().position(|part| part.ends_with("*}"));
    if let Some(at) = several {
        let after = patterns.len() - at - 1;
        let end = parts.len().checked_sub(after).filter(|end| *end > at)?;
        let value = percent_decoded(&parts.get(at..end)?.join("/")).filter(|value| !value.is_empty())?;
        found.push((patterns.remove(at).trim_matches(['{', '*', '}']), PathParam::One(value)));
        parts.drain(at..end);
    }
    if patterns.len() != parts.len() {
        return None;
    }
    for (pattern, part) in patterns.into_iter().zip(parts) {
        match pattern.strip_prefix('{').and_then(|name| name.strip_suffix('}')) {
            Some(name) => {
                let value = percent_decoded(part).filter(|value| !value.is_empty())?;
                found.push(match name.strip_suffix("[]") {
                    Some(name) => (name, PathParam::Listed(value)),
                    None => (name, PathParam::One(value)),
                });
            }
            None if pattern == part => {}
            None => return None,
        }
    }
    Some(found)
}

/// Whether two patterns differ only in parameter names.
pub(super) fn has_shape(one: &str, other: &str) -> bool {
    let (mut one, mut other) = (one.split('/'), other.split('/'));
    loop {
        match (one.next(), other.next()) {
            (None, None) => return true,
            (Some(a), Some(b)) => {
                let is_any =
                    a.starts_with('{') && b.starts_with('{') && a.ends_with("*}") == b.ends_with("*}");
                if a != b && !is_any {
                    return false;
                }
            }
            (Some(_), None) | (None, Some(_)) => return false,
        }
    }
}

/// Whether a path begins with the segments of a pattern. A parameter of several segments counts as one.
pub(super) fn covers(pattern: &str, path: &str) -> bool {
    let mut parts = path.split('/');
    pattern
        .split('/')
        .all(|wanted| parts.next().is_some_and(|part| wanted.starts_with('{') || wanted == part))
}

/// A pattern in axum's syntax. Parameters are named by their position, because all patterns of one shape share
/// a route.
pub(super) fn axum_path(pattern: &str) -> String {
    let root = if pattern.starts_with(".well-known/") { "" } else { "/v1" };
    pattern.split('/').enumerate().fold(root.to_owned(), |path, (at, part)| {
        if part.starts_with('{') { format!("{path}/{{{at}}}") } else { format!("{path}/{part}") }
    })
}

/// Decodes `%XX` in a path segment; none if the result is not UTF-8.
pub fn percent_decoded(part: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(part.len());
    let mut left = part.as_bytes();
    while let [byte, rest @ ..] = left {
        left = rest;
        match (byte, left) {
            (b'%', [high, low, rest @ ..]) => {
                let digits = [*high, *low];
                bytes.push(u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?);
                left = rest;
            }
            (byte, _) => bytes.push(*byte),
        }
    }
    String::from_utf8(bytes).ok()
}
