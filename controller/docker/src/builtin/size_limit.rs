//! Limits of what containers write outside of their mounts: `storage_opt.size`.
//!
//! In: the limits that containers were recorded with. Out: containers that have written more are killed, with an event that says so. Few file
//! systems have quotas for a directory, so that sizes are measured now and then; until then a container may write more.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use herdlet_driver::{AttemptId, DriverError, DriverResult};
use herdlet_process::engine::Engine;
use rustix::process::Signal;
use tokio::time;

use super::shared::BuiltinState;
use crate::config::FieldError;

/// How often sizes are measured.
const PERIOD: Duration = Duration::from_secs(10);
/// Measurements take at most one part in this many of a core.
const SHARE: u32 = 20;
/// The only option of the engine.
const SIZE: &str = "size";
const MIB: u64 = 1024 * 1024;

/// The limit in the options of a container's storage, in bytes.
///
/// # Errors
/// Another option, or a size that is none.
pub(super) fn of_options<'o>(
    options: impl IntoIterator<Item = (&'o String, &'o String)>,
) -> Result<Option<u64>, FieldError> {
    let mut limit = None;
    for (name, value) in options {
        if name != SIZE {
            let why = "the built-in engine knows only `size`; remove it, or use Docker or Podman";
            return Err(FieldError::new(format!("storage_opt.{name}"), why));
        }
        let wrong = || {
            let why = format!(
                "expected a number of bytes with or without k, m, g or t, such as 10g, found {value:?}"
            );
            FieldError::new("storage_opt.size", why)
        };
        limit = Some(bytes(value).ok_or_else(wrong)?);
    }
    Ok(limit)
}

/// `10g`, `10G`, `10gb`, `10GiB`: all are powers of 1024, as with Docker.
fn bytes(text: &str) -> Option<u64> {
    let text = text.trim().to_ascii_lowercase();
    let digits = text.find(|char: char| !char.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let power = match unit.trim() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 1,
        "m" | "mb" | "mib" => 2,
        "g" | "gb" | "gib" => 3,
        "t" | "tb" | "tib" => 4,
        _ => return None,
    };
    let number: u64 = number.parse().ok()?;
    number.checked_mul(1 << (10 * power)).filter(|bytes| *bytes > 0)
}

/// Ends containers that have written too much, as long as the agent runs.
pub(super) async fn enforce(shared: Arc<BuiltinState>, engine: Engine) {
    let mut pause = PERIOD;
    loop {
        time::sleep(pause).await;
        let (own, engine, begun) = (Arc::clone(&shared), engine.clone(), Instant::now());
        let done = herdlet_runtime::off_thread(move || own.end_too_large(&engine)).await;
        match done.map_err(|error| error.to_string()).and_then(|done| done.map_err(|error| error.why())) {
            Ok(()) => {}
            Err(error) => tracing::warn!(error, "failed to measure what containers have written"),
        }
        pause = PERIOD.max(begun.elapsed().saturating_mul(SHARE));
    }
}

impl BuiltinState {
    fn end_too_large(&self, engine: &Engine) -> DriverResult<()> {
        let failed = |error| DriverError::retry(format!("list the containers: {error}"));
        for id in self.dirs.list().map_err(failed)? {
            let Some(limit) = self.recorded(&id)?.and_then(|record| record.changes_bytes_max) else {
                continue;
            };
            let written = self.dirs.written_bytes(&id);
            // One with too many files to measure is too large as well.
            if written.is_some_and(|written| written <= limit) {
                continue;
            }
            self.end(engine, &id, (written, limit))?;
        }
        Ok(())
    }

    fn end(&self, engine: &Engine, id: &AttemptId, (written, limit): (Option<u64>, u64)) -> DriverResult<()> {
        let Some(main) = engine.main_process(id)? else { return Ok(()) };
        let written = written.map_or_else(
            || "more than a million files".to_owned(),
            |written| format!("{} MiB", written.div_ceil(MIB)),
        );
        self.message(
            id,
            format!(
                "The container has written {written} outside of its mounts, more than storage_opt.size ({} MiB) allows: it is killed",
                limit / MIB
            ),
        );
        main.send(Signal::KILL).map_err(DriverError::retry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_docker() {
        let of = |text: &str| {
            let (name, value) = ("size".to_owned(), text.to_owned());
            of_options([(&name, &value)]).map_err(|error| error.to_string())
        };
        assert_eq!(of("10g"), Ok(Some(10 << 30)));
        assert_eq!(
            (of("5M"), of("7 kb"), of("1TiB"), of("12")),
            (Ok(Some(5 << 20)), Ok(Some(7 << 10)), Ok(Some(1 << 40)), Ok(Some(12)))
        );
        for wrong in ["", "g", "1x", "-1", "1.5g", "0", "99999999999t"] {
            assert!(of(wrong).unwrap_err().starts_with("use config.storage_opt.size: "), "{wrong}");
        }
        let other = ("dm.basesize".to_owned(), "1g".to_owned());
        let refused = of_options([(&other.0, &other.1)]).unwrap_err().to_string();
        assert!(refused.starts_with("use config.storage_opt.dm.basesize: "), "{refused}");
        assert_eq!(of_options([]).unwrap(), None);
    }
}
