//! The log filter: directives as in `RUST_LOG` (`info`, `info,herdlet=debug`,
//! `herdlet[start{alloc=…}]=trace`).
//!
//! In: text. Out: a filter, or what is wrong with it. A directive without `=` must be a level: `EnvFilter`
//! takes a mistyped one (`inof`) for a module and silences everything else.

use herdlet_manifest::yaml::nearest;
use tracing_subscriber::EnvFilter;

/// Returns the directives in `HERDLET_LOG_LEVEL`, otherwise `HERDLET_LOG`, otherwise `RUST_LOG`. The latter
/// may be meant for other programs, so it is ignored if it is invalid.
pub fn directives_from_env(env: impl Fn(&str) -> Option<String>) -> Option<String> {
    let set = env_set(&env);
    let usual = || set("RUST_LOG").filter(|text| check_directives(text).is_ok());
    set("HERDLET_LOG_LEVEL").or_else(|| set("HERDLET_LOG")).or_else(usual)
}

/// Validates directives.
///
/// # Errors
/// What is wrong with them; follows the setting's name in messages.
pub fn check_directives(text: &str) -> Result<(), String> {
    parse(text).map(drop)
}

/// The target of the crate that verifies certificates with the system's trust store.
const VERIFIER: &str = "rustls_platform_verifier";

const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// Parses directives into a filter.
///
/// # Errors
/// What is wrong with them; follows the setting's name in messages.
pub fn parse(text: &str) -> Result<EnvFilter, String> {
    let expected = |why: &str| {
        format!(
            "expected error, warn, info, debug, trace, off or directives such as info,herdlet=debug, found {text:?}{why}"
        )
    };
    let trimmed = text.trim();
    for directive in trimmed.split(',').map(str::trim) {
        let level = directive.rsplit_once('=').map_or(directive, |(_, level)| level);
        if !LEVELS.iter().any(|known| known.eq_ignore_ascii_case(level)) {
            let meant = nearest(level, LEVELS.into_iter());
            return Err(expected(&match meant {
                Some(meant) => format!("; {level:?} is not a level, did you mean {meant}?"),
                None => format!("; {level:?} is not a level"),
            }));
        }
    }
    // The verifier logs an error for each failed check, whose result is reported anyway.
    let quieted = match trimmed.contains(VERIFIER) {
        true => trimmed.to_owned(),
        false => format!("{trimmed},{VERIFIER}=off"),
    };
    EnvFilter::builder().parse(quieted).map_err(|error| expected(&format!(" ({error})")))
}

/// Ignores variables that are set to an empty string.
pub fn env_set(env: &impl Fn(&str) -> Option<String>) -> impl Fn(&str) -> Option<String> {
    |name| env(name).filter(|value| !value.is_empty())
}
