//! Which names of variables are cleaned, and how.
//!
//! In: a name. Out: the name in the environment. It knows no values.

use std_alloc::{borrow::Cow, string::String};

/// Prefixes of names that are cleaned; Nomad does not clean `NOMAD_HOST_IP_`, `NOMAD_HOST_ADDR_` and `NOMAD_ALLOC_*`.
const CLEANED: [&str; 5] = ["NOMAD_ADDR_", "NOMAD_IP_", "NOMAD_PORT_", "NOMAD_HOST_PORT_", "NOMAD_META_"];

/// The name in the environment.
pub(super) fn cleaned(name: &str) -> Cow<'_, str> {
    if CLEANED.iter().any(|prefix| name.starts_with(prefix)) && !is_clean(name) {
        Cow::Owned(clean(name))
    } else {
        Cow::Borrowed(name)
    }
}

/// Replaces each byte that is no letter, digit or `_`, and a leading digit, by `_`.
pub(super) fn clean(name: &str) -> String {
    name.bytes()
        .enumerate()
        .map(|(at, byte)| if is_clean_byte(at, byte) { char::from(byte) } else { '_' })
        .collect()
}

fn is_clean(name: &str) -> bool {
    name.bytes().enumerate().all(|(at, byte)| is_clean_byte(at, byte))
}

fn is_clean_byte(at: usize, byte: u8) -> bool {
    byte == b'_' || byte.is_ascii_alphabetic() || (at > 0 && byte.is_ascii_digit())
}
