//! Limits of what containers write outside of their mounts: `storage_opt.size`.
//!
//! In: the limits that containers were recorded with. Out: containers that have written more are killed, and an event gives the reason. Few
//! file systems have quotas for directories, so sizes are measured periodically; in between a container may write more.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use herdlet_driver::{AttemptId, DriverError, DriverResult};
use herdlet_process::engine::Engine;
use rustix::process::Signal;
use tokio::time;

use super::shared::BuiltinState;

/// How often sizes are measured.
const PERIOD: Duration = Duration::from_secs(10);
/// Measurements take at most one part in this many of a core.
const SHARE: u32 = 20;
const MIB: u64 = 1024 * 1024;

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
