//! The guard of a private agent (`herdlet run`): a process of its own that holds a pipe from it. When the pipe hangs up,
//! whichever way the agent ended, it removes everything that is left and ends.
//!
//! In: the agent's end of the pipe, and what to remove. Out: nothing, on the machine too. Usually the agent has tidied up by
//! itself and the guard finds nothing to do.

use std::{
    io::Read,
    os::unix::process::CommandExt,
    path::PathBuf,
    process::{Child, ChildStdin, Command, Stdio},
};

use anyhow::Context as _;
use herdlet_api_types::InstanceId;
use serde::{Deserialize, Serialize};

use crate::{
    instance::{Availability, Instance, Options},
    paths::Paths,
};

/// What a guard looks after.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Charge {
    /// The private instance.
    pub instance: InstanceId,
    /// Its state directory.
    pub state: PathBuf,
    /// Its runtime directory.
    pub runtime: PathBuf,
    /// Its topmost cgroup.
    pub cgroup_parent: String,
    /// Directories that are removed with all that is in them.
    pub remove: Vec<PathBuf>,
}

/// A guard that watches us. Dropping it lets it do its work.
#[derive(Debug)]
pub struct Guard {
    leash: Option<ChildStdin>,
    child: Child,
}

impl Guard {
    /// Starts a guard.
    ///
    /// # Errors
    /// When this program can't be started once more.
    pub fn start(charge: &Charge) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("failed to find this program")?;
        let charge = serde_json::to_string(charge).context("failed to write the guard's charge")?;
        // A process group of its own: Ctrl-C is for us, not for the one who tidies up after us.
        let mut child = Command::new(program)
            .args(["guard", &charge])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .context("failed to start the guard")?;
        let leash = child.stdin.take();
        Ok(Self { leash, child })
    }

    /// Lets the guard do its work and waits until it has.
    pub fn finish(mut self) {
        drop(self.leash.take());
        let _ = self.child.wait();
    }
}

/// The guard itself: waits for the hang-up, then tidies up.
///
/// # Errors
/// When something resists removal.
pub async fn watch(charge: Charge) -> anyhow::Result<()> {
    tokio::task::spawn_blocking(|| {
        let mut rest = Vec::new();
        // Nothing is ever written: this returns at the hang-up.
        let _ = std::io::stdin().lock().read_to_end(&mut rest);
    })
    .await
    .context("failed to wait for the agent")?;
    let removed = remove_all(&charge).await;
    for dir in &charge.remove {
        if let Err(error) = std::fs::remove_dir_all(dir)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            tracing::warn!(dir = %dir.display(), %error, "failed to remove");
        }
    }
    removed
}

async fn remove_all(charge: &Charge) -> anyhow::Result<()> {
    let instance = Instance::open(Options {
        instance: charge.instance.clone(),
        paths: Paths { state: charge.state.clone(), runtime: charge.runtime.clone() },
        cgroup_parent: charge.cgroup_parent.clone(),
        raw_exec: Availability::Enabled,
        leash: None,
    })?;
    instance.remove_all().await
}

/// Runs the guard with its charge as JSON. The answer is the exit code.
pub async fn execute(charge: &str) -> u8 {
    let charge = match serde_json::from_str(charge) {
        Ok(charge) => charge,
        Err(error) => {
            tracing::error!(%error, "failed to read the guard's charge");
            return 2;
        }
    };
    match watch(charge).await {
        Ok(()) => 0,
        Err(error) => {
            tracing::error!("failed to tidy up: {error:#}");
            1
        }
    }
}
