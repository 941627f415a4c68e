//! Environment variables that are not UTF-8: an error that names the variable, instead of treating it as unset.
//!
//! In: the environment. Out: the first variable that herdlet reads and that is not UTF-8.

use std::ffi::{OsStr, OsString};

use super::failure::{Failure, USAGE};

/// Prefixes of variables that are read.
const PREFIXES: [&str; 3] = ["HERDLET_", "NOMAD_VAR_", "CONSUL_HTTP_"];
/// Full names of variables that are read.
const NAMES: [&str; 8] = [
    "NOMAD_TOKEN",
    "NOMAD_CACERT",
    "NOMAD_CLIENT_CERT",
    "NOMAD_CLIENT_KEY",
    "XDG_STATE_HOME",
    "XDG_RUNTIME_DIR",
    "HOME",
    "RUST_LOG",
];

/// Checks the environment of this process.
pub fn check() -> Result<(), Failure> {
    match not_text(std::env::vars_os()) {
        None => Ok(()),
        Some(name) => {
            let message = format!("variable {name} is not UTF-8");
            Err(Failure::new(message)
                .code(USAGE)
                .hint(format!("correct its value, or unset it: unset {name}")))
        }
    }
}

fn not_text(variables: impl Iterator<Item = (OsString, OsString)>) -> Option<String> {
    let is_read = |name: &OsStr| {
        let starts = |prefix: &&str| name.as_encoded_bytes().starts_with(prefix.as_bytes());
        PREFIXES.iter().any(starts) || NAMES.iter().any(|known| name == *known)
    };
    let mut not_utf8 = variables.filter(|(name, value)| is_read(name) && value.to_str().is_none());
    not_utf8.next().map(|(name, _)| name.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt as _;

    use super::*;

    #[test]
    fn non_utf8_variable_is_named() {
        let set = |name: &str, value: &[u8]| (OsString::from(name), OsString::from_vec(value.to_vec()));
        let broken = || set("HERDLET_STATE_DIR", b"/state\xff");
        assert_eq!(
            not_text([set("PATH", b"\xff"), broken()].into_iter()).as_deref(),
            Some("HERDLET_STATE_DIR")
        );
        assert_eq!(not_text([set("HERDLET_STATE_DIR", "/st\u{e4}te".as_bytes())].into_iter()), None);
        assert_eq!(not_text([set("HOME", b"\xff")].into_iter()).as_deref(), Some("HOME"));
        for name in ["PATH", "HOMEBREW_PREFIX", "RUST_LOG_STYLE"] {
            assert_eq!(not_text([set(name, b"\xff")].into_iter()), None, "{name}");
        }
    }
}
