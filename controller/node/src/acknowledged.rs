//! Stores what servers have acknowledged of this node's allocations, so that the next agent reports only changes.
//!
//! In: acknowledgements. Out: a file in the node's directory. Nothing waits for it, and it is not synced: reports that are lost or damaged
//! are sent again (`herdlet_nomad::decide::acknowledged`).

use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use herdlet_base::durable::{self, Outlives, Steps};
use herdlet_nomad::{decide::acknowledged::Acknowledged, session::Acknowledgements};
use herdlet_runtime::off_thread;
use tokio::time::sleep;

/// The file, in the node's directory.
const FILE: &str = "acknowledged";

/// Minimum time between two writes: in a burst, servers acknowledge several times a second.
const PACE: Duration = Duration::from_secs(2);

/// Loads what the previous agent stored; empty if it cannot be read. Blocks.
pub fn load(dir: &Path) -> Acknowledged {
    let text = match std::fs::read_to_string(dir.join(FILE)) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Acknowledged::default(),
        Err(error) => {
            tracing::warn!(%error, "acknowledged reports cannot be read; sending all reports again");
            return Acknowledged::default();
        }
    };
    text.parse().unwrap_or_else(|error| {
        tracing::warn!(%error, "the file of acknowledged reports is damaged; sending all reports again");
        Acknowledged::default()
    })
}

/// Stores acknowledgements. `dir` is the node's directory.
pub async fn keep(mut acknowledgements: Acknowledgements, dir: PathBuf) {
    let path = dir.join(FILE);
    loop {
        acknowledgements.changed().await;
        sleep(PACE).await;
        let (path, all) = (path.clone(), acknowledgements.all());
        let kept = off_thread(move || {
            durable::write_in_steps(&path, all.to_string().as_bytes(), Outlives::Processes, &Steps::default())
        });
        if let Ok(Err(error)) = kept.await {
            tracing::debug!(%error, "acknowledged reports cannot be stored");
        }
    }
}
