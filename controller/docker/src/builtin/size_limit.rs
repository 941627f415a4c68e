//! Limits of what containers write outside of their mounts: `storage_opt.size`.
//!
//! In: the limits that containers were recorded with. Out: containers that have written more are killed, and an event gives the reason. Few
//! file systems have quotas for directories, so sizes are measured periodically; in between a container may write more.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use herdlet_base::error::in_full;
use herdlet_driver::{AttemptId, DriverError, DriverResult};
use herdlet_process::engine::Engine;
use rustix::process::Signal;
use tokio::time;

use super::{
    dirs::{MEASURED_MAX, Written},
    shared::BuiltinState,
};

/// How often sizes are measured.
const PERIOD: Duration = Duration::from_secs(10);
/// Measurements take at most one part in this many of a core.
const SHARE: u32 = 20;
const MIB: u64 = 1024 * 1024;

/// Ends containers that have written too much, as long as the agent runs. Without a container with a limit it does nothing.
pub(super) async fn enforce(shared: Arc<BuiltinState>, engine: Engine) {
    let mut pause = Duration::ZERO;
    loop {
        time::sleep(pause).await;
        let (own, engine, begun) = (Arc::clone(&shared), engine.clone(), Instant::now());
        let done = herdlet_runtime::off_thread(move || own.end_too_large(&engine)).await;
        match done.map_err(|error| error.to_string()).and_then(|done| done.map_err(|error| error.why())) {
            Ok(0) => shared.limited.notified().await,
            Ok(_) => {}
            Err(error) => tracing::warn!(error, "failed to measure what containers have written"),
        }
        pause = PERIOD.max(begun.elapsed().saturating_mul(SHARE));
    }
}

impl BuiltinState {
    /// Returns the number of containers with a limit.
    fn end_too_large(&self, engine: &Engine) -> DriverResult<usize> {
        let failed = |error| DriverError::retry(format!("list the containers: {error}"));
        let mut limited = 0;
        for id in self.dirs.list().map_err(failed)? {
            let limit = match self.recorded(&id) {
                Ok(record) => record.and_then(|record| record.changes_bytes_max),
                Err(error) => {
                    tracing::warn!(error = error.why(), "the limit of a container is not enforced");
                    continue;
                }
            };
            let Some(limit) = limit else { continue };
            limited += 1;
            if let Err(error) = self.end_if_too_large(engine, &id, limit) {
                tracing::warn!(%id, error = error.why(), "failed to enforce the limit of a container");
            }
        }
        Ok(limited)
    }

    fn end_if_too_large(&self, engine: &Engine, id: &AttemptId, limit: u64) -> DriverResult<()> {
        let written = self.dirs.written(id).map_err(|error| DriverError::retry(in_full(&error)))?;
        let reason = match written {
            Written::Bytes(bytes) if bytes <= limit => return Ok(()),
            Written::Bytes(bytes) => format!(
                "has written {} MiB outside of its mounts, more than storage_opt.size ({} MiB) allows",
                bytes.div_ceil(MIB),
                limit / MIB
            ),
            // Its size is unknown.
            Written::TooManyFiles => format!(
                "has more than {MEASURED_MAX} files outside of its mounts, too many to enforce storage_opt.size"
            ),
        };
        let Some(main) = engine.main_process(id)? else { return Ok(()) };
        self.message(id, format!("The container {reason}: it is killed"));
        main.send(Signal::KILL).map_err(DriverError::retry)
    }
}
