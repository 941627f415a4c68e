//! Patterns of paths: whether a path fits one, and the parameters that it has then.
//!
//! Parts of a pattern are as in [`Route::path`](super::Route::path).

/// The parameters of a path, by the names of their fields.
pub type PathParams = Vec<(&'static str, PathParam)>;

/// The value of a parameter of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PathParam {
    /// A text.
    One(String),
    /// A list of one.
    Listed(String),
}

/// The parameters of a path; none where it doesn't fit the pattern.
pub(super) fn params(pattern: &'static str, path: &str) -> Option<PathParams> {
    let (mut patterns, mut parts) =
        (pattern.split('/').collect::<Vec<_>>(), path.split('/').collect::<Vec<_>>());
    let mut found = Vec::new();
    // A parameter of several parts takes what is left between those before and after it.
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

/// Whether two patterns differ in names only.
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

/// Whether the first parts of a path fit a pattern. A parameter of several parts counts as one.
pub(super) fn covers(pattern: &str, path: &str) -> bool {
    let mut parts = path.split('/');
    pattern
        .split('/')
        .all(|wanted| parts.next().is_some_and(|part| wanted.starts_with('{') || wanted == part))
}

/// A pattern as axum writes it. Parameters have numbers for names, as all patterns of one shape are one route.
pub(super) fn axum_path(pattern: &str) -> String {
    let root = if pattern.starts_with(".well-known/") { "" } else { "/v1" };
    pattern.split('/').enumerate().fold(root.to_owned(), |path, (at, part)| {
        if part.starts_with('{') { format!("{path}/{{{at}}}") } else { format!("{path}/{part}") }
    })
}

/// A part of a path, without its `%XX`; none where it is no text.
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
