//! The guard of a private agent (`herdlet run`): a separate process that holds a pipe from the agent. When the pipe closes,
//! however the agent ended, the guard removes everything that is left and ends.
//!
//! In: the agent's end of the pipe, and what to remove. Out: nothing, on the machine too. Usually the agent has cleaned up
//! itself, and the guard finds nothing to do.

use std::{
    io::Read,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
};

use anyhow::Context as _;
use herdlet_agent::{
    instance::{Host, Instance, Options},
    state_db::StateDir,
};
use herdlet_api_types::InstanceId;
use herdlet_base::{paths::Paths, safe_fs::Dir};
use herdlet_config::DriverSettings;
use serde::{Deserialize, Serialize};

/// What a guard must remove.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Charge {
    /// The private agent's state directory, which may not exist yet: the guard reads the instance from it at the end, so that
    /// it can start before the agent.
    pub state: PathBuf,
    pub runtime: PathBuf,
    pub cgroup_parent: String,
    /// Directories that are removed with their contents.
    pub remove: Vec<PathBuf>,
}

/// A running guard. Dropping it starts the cleanup.
#[derive(Debug)]
pub struct Guard {
    leash: Option<ChildStdin>,
    child: Child,
}

impl Guard {
    /// Starts the guard process.
    ///
    /// # Errors
    /// When this program can't be started again.
    pub fn start(charge: &Charge) -> anyhow::Result<Self> {
        let charge = serde_json::to_string(charge).context("encode the guard's instructions")?;
        // A separate process group, so that Ctrl-C does not interrupt the cleanup. The path refers to this program, even if
        // its file has been replaced since.
        let mut child = Command::new("/proc/self/exe")
            .args(["guard", &charge])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .process_group(0)
            .spawn()
            .context("start the guard")?;
        let leash = child.stdin.take();
        Ok(Self { leash, child })
    }

    /// Starts the cleanup, and waits for its end. Blocking.
    ///
    /// # Errors
    /// When something is left; the guard has logged what.
    pub fn finish(mut self) -> anyhow::Result<()> {
        drop(self.leash.take());
        let status = self.child.wait().context("wait for the guard")?;
        anyhow::ensure!(status.success(), "not everything of this run could be removed");
        Ok(())
    }
}

/// The guard process: waits for the pipe to close, then cleans up.
///
/// # Errors
/// When something can't be removed.
pub async fn watch(charge: Charge) -> anyhow::Result<()> {
    herdlet_runtime::off_thread(|| {
        let mut rest = Vec::new();
        // Nothing is ever written, so this returns when the pipe closes.
        let _ = std::io::stdin().lock().read_to_end(&mut rest);
    })
    .await
    .context("wait for the agent")?;
    let mut removed = match StateDir::instance_in(&charge.state) {
        Some(instance) => remove_all(&charge, instance).await,
        // The agent died before it had claimed the directory, and has created nothing else.
        None => Ok(()),
    };
    for dir in charge.remove {
        let gone = herdlet_runtime::off_thread(move || remove_dir(&dir)).await;
        removed = removed.and(gone.context("wait for a removal").and_then(|gone| gone));
    }
    removed
}

async fn remove_all(charge: &Charge, instance: InstanceId) -> anyhow::Result<()> {
    let instance = Instance::open(Options {
        instance,
        paths: Paths { state: charge.state.clone(), runtime: charge.runtime.clone() },
        cgroup_parent: charge.cgroup_parent.clone(),
        drivers: DriverSettings::all(),
        host: Host::standalone(),
        network: herdlet_config::network::Network::default(),
        leash: None,
    })?;
    instance.remove_all().await
}

/// Runs the guard with its `Charge` as JSON. Returns the exit code.
pub async fn execute(charge: &str) -> u8 {
    let charge = match serde_json::from_str(charge) {
        Ok(charge) => charge,
        Err(error) => {
            tracing::error!(%error, "failed to decode the guard's instructions");
            return 2;
        }
    };
    match watch(charge).await {
        Ok(()) => 0,
        Err(error) => {
            tracing::error!("failed to clean up: {error:#}");
            1
        }
    }
}

/// Removes a directory with its contents, but does not enter mounts: behind a mount that could not be removed are the user's
/// own files.
fn remove_dir(dir: &Path) -> anyhow::Result<()> {
    let (Some(parent), Some(name)) = (dir.parent(), dir.file_name()) else { return Ok(()) };
    if !parent.is_dir() {
        return Ok(());
    }
    Dir::open(parent)
        .and_then(|parent| parent.remove_tree(name))
        .map_err(|error| anyhow::anyhow!("{}", herdlet_base::error::in_full(&error)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use herdlet_base::{
        mounts::kernel::{self, Access},
        privileges::{Mounting, Privileges},
    };

    #[test]
    fn directory_is_removed_without_following_links() {
        let dir = tempfile::tempdir().unwrap();
        let (ours, theirs) = (dir.path().join("ours"), dir.path().join("theirs"));
        std::fs::create_dir_all(ours.join("a/b")).unwrap();
        std::fs::create_dir(&theirs).unwrap();
        std::fs::write(theirs.join("kept"), "x").unwrap();
        std::os::unix::fs::symlink(&theirs, ours.join("a/volume")).unwrap();
        remove_dir(&ours).unwrap();
        remove_dir(&ours).unwrap();
        remove_dir(&ours.join("below/what/is/gone")).unwrap();
        assert!(!ours.exists() && theirs.join("kept").exists());
    }

    // A guard that could not open the instance removed the directory recursively, through volumes that were still mounted in
    // it.
    #[test]
    fn mounted_directory_is_not_emptied() {
        if Privileges::probe().mounting == Mounting::Impossible {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let (ours, theirs) = (dir.path().join("ours"), dir.path().join("theirs"));
        for dir in [&ours, &theirs] {
            std::fs::create_dir(dir).unwrap();
        }
        std::fs::create_dir(ours.join("volume")).unwrap();
        std::fs::write(theirs.join("kept"), "x").unwrap();
        let point = Dir::open(&ours.join("volume")).unwrap();
        kernel::bind(&theirs, &point, Access::ReadWrite).unwrap();
        let removed = remove_dir(&ours);
        kernel::unmount_below(&Dir::open(dir.path()).unwrap(), std::ffi::OsStr::new("ours")).unwrap();
        assert!(removed.is_err());
        assert!(theirs.join("kept").exists());
    }
}
