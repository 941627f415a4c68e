//! The volumes of one plugin on this machine: stage and publish them for allocations, and undo it.
//!
//! In: a claim of an allocation on a volume. Out: the directory or device for its tasks. What was begun is on disk before a
//! call: the next agent, and the next plugin of the same id, undo it without further knowledge. Users of a staged volume are
//! derived from these claims, never counted. Calls for one volume follow one another; volumes do not wait for each other.
//!
//! Up: record the claim, stage unless it is staged, publish unless it is published. Down: unpublish, unstage unless another
//! claim has the same use, forget the claim. Each step can be repeated, after any failure and any crash.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use herdlet_base::{observation::Class, safe_fs::FsError};
use herdlet_runtime::off_thread;

use tokio::sync::OwnedMutexGuard;

use crate::{
    client::Client,
    error::{CallError, ErrorClass},
    node::{NodeFeature, PublishPaths, VolumeUse},
};

mod claim;
mod paths;
mod shared;
#[cfg(test)]
mod tests;

pub use claim::Claim;
pub use paths::PluginRoot;
pub use shared::share;

use claim::Claims;

/// Why a volume is not up or not down. The text continues "failed to".
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    #[error("use the volume `{volume}`: {error}")]
    Call {
        volume: String,
        #[source]
        error: CallError,
    },
    #[error(transparent)]
    Files(#[from] FsError),
    #[error("read the mount table: {0}")]
    Table(#[source] io::Error),
    /// The plugin's mounts do not reach this mount namespace, or it has mounted nothing.
    #[error(
        "publish the volume `{volume}`: the CSI plugin `{plugin}` reports success, and nothing is mounted at {}; mount the \
         directory of its task with the propagation `bidirectional`",
        target.display()
    )]
    Invisible { volume: String, plugin: String, target: PathBuf },
    /// The plugin reports success, and the volume is still mounted.
    #[error(
        "{doing} the volume `{volume}`: the CSI plugin `{plugin}` reports success, and it is still mounted at {}",
        path.display()
    )]
    StillMounted { doing: &'static str, volume: String, plugin: String, path: PathBuf },
    /// It was deleted and created again with the same name, while claims on the first one exist.
    #[error(
        "use the volume {volume_id}: {} is still that of {}; the allocations that use it must end first",
        path.display(),
        found.as_deref().map_or_else(|| "an unknown volume".to_owned(), |found| format!("the volume {found}"))
    )]
    OtherVolume { volume_id: String, found: Option<String>, path: PathBuf },
    #[error("list {}: it has more than {entries_max} entries; remove those that the agent has not created", path.display())]
    Crowded { path: PathBuf, entries_max: usize },
    #[error("use the volume `{volume}`: its id has {bytes} bytes, and at most {bytes_max} can be recorded")]
    LongId { volume: String, bytes: usize, bytes_max: usize },
    /// Something else than the agent wrote it.
    #[error(
        "read {}: it is not the id of a volume; write the id to it, or unmount the volume and remove the file",
        path.display()
    )]
    BrokenRecord { path: PathBuf },
    /// The agent is ending.
    #[error("use the plugin's directory: the work was interrupted")]
    Interrupted,
}

impl VolumeError {
    /// Whether the same operation may succeed later, without a change of the volume or the plugin.
    pub fn is_temporary(&self) -> bool {
        match self {
            Self::Call { error, .. } => error.class() == ErrorClass::Retry,
            Self::Table(_) | Self::Interrupted => true,
            Self::Files(error) => error.class() == Class::Retry,
            Self::Invisible { .. }
            | Self::StillMounted { .. }
            | Self::OtherVolume { .. }
            | Self::Crowded { .. }
            | Self::LongId { .. }
            | Self::BrokenRecord { .. } => false,
        }
    }
}

/// What is found of a claim, without a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Presence {
    Absent,
    /// It was begun, or is not undone completely.
    Partial,
    /// The path on this machine.
    Published(PathBuf),
}

/// The volumes of all plugins with one id: those of a plugin that is being replaced, too.
#[derive(Debug)]
pub struct NodeVolumes {
    root: Arc<PluginRoot>,
    /// One for each volume in use by a call.
    locks: Mutex<BTreeMap<VolumeName, Weak<tokio::sync::Mutex<()>>>>,
    /// Held for each step on disk. Volumes have common parents, which are removed when they are empty.
    steps: Arc<tokio::sync::Mutex<()>>,
}

/// Namespace and name of a volume.
type VolumeName = (String, String);

/// The only work for a volume. A step on disk has it, too: the step goes on if the future of its caller is dropped.
struct Turn {
    claim: Claim,
    _alone: OwnedMutexGuard<()>,
}

/// The plugin that a volume is used through.
#[derive(Debug, Clone, Copy)]
pub struct NodePlugin<'a> {
    pub client: &'a Client,
    pub features: &'a BTreeSet<NodeFeature>,
}

impl NodeVolumes {
    pub fn new(root: PluginRoot) -> Self {
        Self { root: Arc::new(root), locks: Mutex::default(), steps: Arc::default() }
    }

    /// Stages and publishes a volume. Returns its path on this machine. `volume.usage` is that of the claim.
    ///
    /// # Errors
    ///
    /// What was begun is undone by [`Self::down`].
    pub async fn up(
        &self,
        plugin: NodePlugin<'_>,
        claim: &Claim,
        volume: &VolumeUse<'_>,
    ) -> Result<PathBuf, VolumeError> {
        let turn = self.turn(claim).await;
        let (id, same) = (volume.volume_id.to_owned(), volume.volume_id.to_owned());
        self.on_disk(&turn, move |claims, claim| claims.begin(claim, &id)).await?;
        let inside = self.root.inside(claim);
        let stages = plugin.features.contains(&NodeFeature::Stage);
        if stages {
            let is_staged =
                self.on_disk(&turn, move |claims, claim| claims.prepare_staging(claim, &same)).await?;
            if !is_staged {
                called(claim, plugin.client.stage(volume, &inside.staging).await)?;
            }
        }
        let target = self.root.target(claim);
        if self.is_mounted(target.clone()).await? {
            return Ok(target);
        }
        let staging = stages.then_some(inside.staging.as_str());
        let published = plugin.client.publish(volume, PublishPaths { staging, target: &inside.target }).await;
        called(claim, published)?;
        match self.is_mounted(target.clone()).await? {
            true => Ok(target),
            false => {
                let (volume, plugin) = (claim.volume.clone(), plugin.client.plugin().to_owned());
                Err(VolumeError::Invisible { volume, plugin, target })
            }
        }
    }

    /// Undoes a claim, whatever exists of it. A claim that does not exist is undone.
    ///
    /// # Errors
    ///
    /// What is left is undone by the next call.
    pub async fn down(&self, client: &Client, claim: &Claim) -> Result<(), VolumeError> {
        let turn = self.turn(claim).await;
        let found = self.on_disk(&turn, |claims, claim| claims.find(claim)).await?;
        let Some(found) = found else { return Ok(()) };
        // Without the volume's id, no call was made.
        if let Some(volume_id) = &found.volume_id {
            self.unpublish(client, &turn, volume_id).await?;
            self.unstage(client, &turn).await?;
        }
        self.on_disk(&turn, |claims, claim| claims.end(claim)).await
    }

    /// What exists of a claim, without a call.
    ///
    /// # Errors
    ///
    /// If the plugin's directory or the mount table can't be read.
    pub async fn inspect(&self, claim: &Claim) -> Result<Presence, VolumeError> {
        let wanted = claim.clone();
        let found = self.step(move |claims| claims.find(&wanted)).await?;
        if found.is_none() {
            return Ok(Presence::Absent);
        }
        let target = self.root.target(claim);
        Ok(match self.is_mounted(target.clone()).await? {
            true => Presence::Published(target),
            false => Presence::Partial,
        })
    }

    /// All claims on volumes of the plugin that are not undone, also those of former agents.
    ///
    /// # Errors
    ///
    /// If the plugin's directory can't be read.
    pub async fn claims(&self) -> Result<Vec<Claim>, VolumeError> {
        self.step(|claims| claims.list()).await
    }

    async fn unpublish(&self, client: &Client, turn: &Arc<Turn>, volume_id: &str) -> Result<(), VolumeError> {
        let claim = &turn.claim;
        let inside = self.root.inside(claim);
        let result = client.unpublish(volume_id, &inside.target).await;
        let path = self.root.target(claim);
        let is_mounted = self.is_mounted(path.clone()).await?;
        match result {
            Ok(()) if is_mounted => return Err(still_mounted("unpublish", claim, client, path)),
            Ok(()) => {}
            // An error such as "no mount point" means that nothing is left to do.
            Err(error) if error.class() != ErrorClass::Retry && !is_mounted => {}
            Err(error) => return called(claim, Err(error)),
        }
        self.on_disk(turn, |claims, claim| Ok(claims.remove_target(claim)?)).await
    }

    async fn unstage(&self, client: &Client, turn: &Arc<Turn>) -> Result<(), VolumeError> {
        let claim = &turn.claim;
        // It may be that of another volume: the claim was refused because of it, and is the last.
        let staged = self.on_disk(turn, |claims, claim| claims.last_staged_id(claim)).await?;
        let Some(volume_id) = staged else { return Ok(()) };
        let result = client.unstage(&volume_id, &self.root.inside(claim).staging).await;
        let path = self.root.staging(claim);
        let is_mounted = self.is_mounted(path.clone()).await?;
        match result {
            Ok(()) if is_mounted => return Err(still_mounted("unstage", claim, client, path)),
            Ok(()) => {}
            // The volume was deleted.
            Err(error) if error.class() == ErrorClass::NotFound && !is_mounted => {}
            Err(error) => return called(claim, Err(error)),
        }
        self.on_disk(turn, |claims, claim| Ok(claims.remove_staging(claim)?)).await
    }

    /// Waits until no other call and no step on disk for the volume runs.
    async fn turn(&self, claim: &Claim) -> Arc<Turn> {
        let _alone = self.lock(claim).lock_owned().await;
        Arc::new(Turn { claim: claim.clone(), _alone })
    }

    fn lock(&self, claim: &Claim) -> Arc<tokio::sync::Mutex<()>> {
        let mut locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
        locks.retain(|_, lock| lock.strong_count() > 0);
        let entry = locks.entry((claim.namespace.clone(), claim.volume.clone())).or_default();
        entry.upgrade().unwrap_or_else(|| {
            let lock = Arc::default();
            *entry = Arc::downgrade(&lock);
            lock
        })
    }

    async fn on_disk<T: Send + 'static>(
        &self,
        turn: &Arc<Turn>,
        work: impl FnOnce(&Claims<'_>, &Claim) -> Result<T, VolumeError> + Send + 'static,
    ) -> Result<T, VolumeError> {
        let turn = Arc::clone(turn);
        self.step(move |claims| work(claims, &turn.claim)).await
    }

    async fn step<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Claims<'_>) -> Result<T, VolumeError> + Send + 'static,
    ) -> Result<T, VolumeError> {
        let (root, alone) = (Arc::clone(&self.root), Arc::clone(&self.steps).lock_owned().await);
        let result = off_thread(move || {
            let _alone = alone;
            work(&Claims::new(&root))
        });
        result.await.map_err(|_| VolumeError::Interrupted)?
    }

    /// Asks the mount table: a mount of a server that does not answer would block other calls.
    async fn is_mounted(&self, path: PathBuf) -> Result<bool, VolumeError> {
        let root = Arc::clone(&self.root);
        let result = off_thread(move || root.is_mounted(&path)).await;
        result.map_err(|_| VolumeError::Interrupted)?.map_err(VolumeError::Table)
    }
}

fn called(claim: &Claim, result: Result<(), CallError>) -> Result<(), VolumeError> {
    result.map_err(|error| VolumeError::Call { volume: claim.volume.clone(), error })
}

fn still_mounted(doing: &'static str, claim: &Claim, client: &Client, path: PathBuf) -> VolumeError {
    let (volume, plugin) = (claim.volume.clone(), client.plugin().to_owned());
    VolumeError::StillMounted { doing, volume, plugin, path }
}
