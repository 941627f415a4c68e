//! The number of functions with a `bool` parameter, or with more than four parameters: it only falls.

use super::{code, sources};

/// Functions with a `bool` parameter that are left. Lower it with each one that goes.
const FLAGGED_LEFT: usize = 35;
/// Functions with more than four parameters, besides `self`, that are left.
const WIDE_LEFT: usize = 70;
const PARAMETERS_MAX: usize = 4;

/// A function and its parameters without `self`.
struct Signature {
    name: String,
    parameters: Vec<String>,
}

#[test]
fn parameters_are_few_and_no_flags() {
    let (mut flagged, mut wide) = (Vec::new(), Vec::new());
    for (file, text) in ["api-types", "controller"].into_iter().flat_map(sources) {
        if file.contains("/tests/") || file.ends_with("tests.rs") || file.contains("/fuzz/") {
            continue;
        }
        for Signature { name, parameters } in signatures(&text) {
            // serde decides about these.
            let is_foreign = matches!(&*name, "visit_bool" | "serialize_bool");
            if !is_foreign && parameters.iter().any(|parameter| parameter.ends_with(": bool")) {
                flagged.push(format!("{file}: {name}"));
            }
            if parameters.len() > PARAMETERS_MAX {
                wide.push(format!("{file}: {name} has {}", parameters.len()));
            }
        }
    }
    let lists = [
        ("a `bool` parameter: use an enum", flagged, FLAGGED_LEFT),
        ("more than four parameters: use a struct", wide, WIDE_LEFT),
    ];
    for (what, found, left) in lists {
        let number = found.len();
        assert!(number <= left, "{number} functions have {what}; {left} may:\n{}", found.join("\n"));
        assert_eq!(number, left, "fewer functions have {what}: lower the number here");
    }
}

/// Returns the signatures of a file, without those of its tests.
fn signatures(text: &str) -> Vec<Signature> {
    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let text: Vec<&str> = code(text).collect();
    text.join("\n").split("fn ").skip(1).filter_map(signature).collect()
}

/// Reads a signature from what follows `fn`; none if this is a type or a bound such as `fn(&T)`.
fn signature(text: &str) -> Option<Signature> {
    let is_of_name = |char: char| char.is_alphanumeric() || char == '_';
    let name: String = text.chars().take_while(|char| is_of_name(*char)).collect();
    let rest = text.get(name.len()..)?;
    let from = match rest.chars().next()? {
        '<' => generics_end(rest)?,
        '(' => 0,
        _ => return None,
    };
    let inner = rest.get(from..)?.strip_prefix('(')?;
    let (mut depth, mut parameters, mut parameter) = (0_usize, Vec::new(), String::new());
    for char in inner.chars() {
        match char {
            ')' if depth == 0 => break,
            ',' if depth == 0 => parameters.push(std::mem::take(&mut parameter)),
            _ => {
                match char {
                    '(' | '<' | '[' => depth += 1,
                    // The `>` of an arrow closes nothing.
                    '>' if parameter.ends_with('-') => {}
                    ')' | '>' | ']' => depth = depth.saturating_sub(1),
                    _ => {}
                }
                parameter.push(char);
            }
        }
    }
    parameters.push(parameter);
    let parameters = parameters.into_iter().map(|parameter| parameter.trim().to_owned());
    let is_self = |parameter: &str| parameter.rsplit([' ', '&']).next() == Some("self");
    let parameters = parameters.filter(|parameter| !parameter.is_empty() && !is_self(parameter)).collect();
    (!name.is_empty()).then_some(Signature { name, parameters })
}

/// Where the generics end with which this begins.
fn generics_end(text: &str) -> Option<usize> {
    let mut depth = 0_usize;
    let mut before = ' ';
    for (at, char) in text.char_indices() {
        match char {
            '<' => depth += 1,
            '>' if before != '-' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 {
            return Some(at + 1);
        }
        before = char;
    }
    None
}
