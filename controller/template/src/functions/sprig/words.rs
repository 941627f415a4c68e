//! Words within names, for changes of case.

/// `FirstName` → `first_name`
pub(super) fn joined(text: &str, connector: char) -> String {
    let mut out = String::with_capacity(text.len() + 8);
    let chars: Vec<char> = text.chars().collect();
    for (index, char) in chars.iter().enumerate() {
        if is_connector(*char) {
            out.push(connector);
            continue;
        }
        let before = index.checked_sub(1).map(|index| chars[index]);
        let after = chars.get(index + 1);
        let begins_word = char.is_uppercase()
            && before.is_some_and(|before| {
                before.is_lowercase()
                    || before.is_ascii_digit()
                    || (before.is_uppercase() && after.is_some_and(|after| after.is_lowercase()))
            });
        if begins_word {
            out.push(connector);
        }
        out.extend(char.to_lowercase());
    }
    out
}

fn is_connector(char: char) -> bool {
    char == '-' || char == '_' || char.is_whitespace()
}

/// `first_name` → `FirstName`
pub(super) fn camel(text: &str) -> String {
    let body = text.trim_start_matches(is_connector);
    let mut out = text[..text.len() - body.len()].to_owned();
    let core = body.trim_end_matches(is_connector);
    let mut before = ' ';
    for char in core.chars() {
        if is_connector(before) {
            out.extend(char.to_uppercase().filter(|_| !is_connector(char)));
        } else if before.is_uppercase() {
            out.extend(char.to_lowercase().filter(|_| !is_connector(char)));
        } else if !is_connector(char) {
            out.push(char);
        }
        before = char;
    }
    out.push_str(&body[core.len()..]);
    out
}

/// The first letters of words.
pub(super) fn initials(text: &str) -> String {
    text.split_whitespace().filter_map(|word| word.chars().next()).collect()
}

/// Makes the first letter of each word upper case.
pub(super) fn title(text: &str) -> String {
    let mut is_inside = false;
    let mut out = String::with_capacity(text.len());
    for char in text.chars() {
        if is_inside {
            out.push(char);
        } else {
            out.extend(char.to_uppercase());
        }
        is_inside =
            if char.is_ascii() { char.is_ascii_alphanumeric() || char == '_' } else { !char.is_whitespace() };
    }
    out
}

/// Makes the first letter of each word lower case.
pub(super) fn untitle(text: &str) -> String {
    let mut begins = true;
    text.chars()
        .flat_map(|char| {
            let changed = if begins { char.to_lowercase().collect::<Vec<_>>() } else { vec![char] };
            begins = char.is_whitespace();
            changed
        })
        .collect()
}

pub(super) fn swap_case(text: &str) -> String {
    text.chars()
        .flat_map(|char| {
            if char.is_uppercase() {
                char.to_lowercase().collect::<Vec<_>>()
            } else if char.is_lowercase() {
                char.to_uppercase().collect()
            } else {
                vec![char]
            }
        })
        .collect()
}
