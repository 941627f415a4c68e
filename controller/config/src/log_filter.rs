//! Which log lines are written: the directives of `RUST_LOG` (`info`, `info,herdlet=debug`, `herdlet[start{alloc=…}]=trace`).
//!
//! In: text. Out: a filter, or what is wrong with it. A lone word must be a level: elsewhere a slip in it (`inof`) is taken for a module,
//! and silences everything else.

use herdlet_manifest::yaml::nearest;
use tracing_subscriber::EnvFilter;

/// The directives that the environment gives: `HERDLET_LOG_LEVEL`, else `HERDLET_LOG`, else `RUST_LOG`, which may be meant
/// for others and counts only where it makes sense.
pub fn directives_from_env(env: impl Fn(&str) -> Option<String>) -> Option<String> {
    let set = env_set(&env);
    let usual = || set("RUST_LOG").filter(|text| check_directives(text).is_ok());
    set("HERDLET_LOG_LEVEL").or_else(|| set("HERDLET_LOG")).or_else(usual)
}

/// Whether directives make sense.
///
/// # Errors
/// What is wrong with them, to be read after the setting's name.
pub fn check_directives(text: &str) -> Result<(), String> {
    parse(text).map(drop)
}

/// What verifies certificates by what this system trusts.
const VERIFIER: &str = "rustls_platform_verifier";

const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// The filter that directives describe.
///
/// # Errors
/// What is wrong with them, to be read after the setting's name.
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
                Some(meant) => format!("; {level:?} is no level, did you mean {meant}?"),
                None => format!("; {level:?} is no level"),
            }));
        }
    }
    // It logs as an error what is the result of a check, once for each time that it is made.
    let quieted = match trimmed.contains(VERIFIER) {
        true => trimmed.to_owned(),
        false => format!("{trimmed},{VERIFIER}=off"),
    };
    EnvFilter::builder().parse(quieted).map_err(|error| expected(&format!(" ({error})")))
}

/// Reads variables that are set to something.
pub fn env_set(env: &impl Fn(&str) -> Option<String>) -> impl Fn(&str) -> Option<String> {
    |name| env(name).filter(|value| !value.is_empty())
}
