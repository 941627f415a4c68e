//! What servers have acknowledged of this node's allocations is kept for the next agent, which then tells only what has changed.
//!
//! In: acknowledgements, as they come. Out: a file in the node's directory. Nobody waits for it, nor is the disk waited for: what is lost, or
//! damaged, is told once more (`herdlet_nomad::decide::acknowledged`).

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

/// Written at most once in this time: in a burst there are several acknowledgements a second.
const PACE: Duration = Duration::from_secs(2);

/// What an agent before this one has kept; nothing where it can't be read. Blocks.
pub fn load(dir: &Path) -> Acknowledged {
    let text = match std::fs::read_to_string(dir.join(FILE)) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Acknowledged::default(),
        Err(error) => {
            tracing::warn!(%error, "what servers have acknowledged can't be read; all is told once more");
            return Acknowledged::default();
        }
    };
    text.parse().unwrap_or_else(|error| {
        tracing::warn!(%error, "what servers have acknowledged is damaged; all is told once more");
        Acknowledged::default()
    })
}

/// Keeps what is acknowledged. `dir` is the node's directory.
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
            tracing::debug!(%error, "what servers have acknowledged can't be kept");
        }
    }
}
