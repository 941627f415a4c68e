//! Unpacking a layer into the store.
//!
//! In: the file of a layer, its digest when unpacked. Out: the layer under its name, or nothing. The order is: unpack in staging,
//! check, seal, sync, rename. Several processes may unpack the same layer: the first one publishes it.

use std::{ffi::OsStr, fs::File, path::Path, sync::Arc, time::Duration};

use herdlet_base::{
    artifact::format::Codec,
    durable::Outlives,
    safe_fs::{Dir, FsError, Rights},
};
use herdlet_runtime::off_thread;
use herdlet_unpack::{LayerOrder, UnpackError, Unpacker};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::{
    error::{LayerError, StoreError, io_error},
    layout::{Layout, Staging, file_name},
    records::{LAYER_RECORD, LayerRecord, has_layer, to_bytes},
    seal,
};
use crate::{digest::Digest, media::Compression};

/// The limits of a layer.
#[derive(Debug, Clone, Copy)]
pub struct LayerLimits {
    /// The total size of its files.
    pub bytes_max: u64,
    /// The number of its files, directories, links and marks.
    pub entries_max: u64,
    /// How often its compressed size it may have, beyond [`LayerLimits::ratio_from`]. Layers have less than 20; zeros have more.
    pub ratio_max: u64,
    /// A layer with fewer bytes may have any ratio.
    pub ratio_from: u64,
    /// The time limit.
    pub time_max: Duration,
    /// The pause after the first fault of the machine; it doubles with each further one.
    pub fault_pause: Duration,
}

impl Default for LayerLimits {
    fn default() -> Self {
        Self {
            bytes_max: 256 << 30,
            entries_max: 2_000_000,
            ratio_max: 200,
            ratio_from: 1 << 30,
            time_max: Duration::from_secs(60 * 60),
            fault_pause: Duration::from_secs(1),
        }
    }
}

/// How often a layer is unpacked whose machine fails. The restart policy of the task decides about further tries.
const FAULTS_MAX: u32 = 3;

/// The part of the disk that unpacking leaves free.
const RESERVE_PART: u64 = 50;

/// A layer to unpack.
#[derive(Debug)]
pub(super) struct LayerSource {
    pub(super) diff_id: Digest,
    pub(super) file: File,
    pub(super) compression: Compression,
}

/// What unpacks layers.
#[derive(Debug)]
pub(super) struct Layers {
    pub(super) unpacker: Unpacker,
    pub(super) limits: LayerLimits,
    /// Unpacking uses a processor.
    pub(super) permits: Semaphore,
}

/// Where a bound comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bound {
    Limit,
    Disk,
}

impl Layers {
    pub(super) fn new(unpacker: Unpacker, limits: LayerLimits) -> Self {
        let at_once = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self { unpacker, limits, permits: Semaphore::new(at_once) }
    }

    /// Unpacks a layer and publishes it. Nothing is left of one that is refused. A fault of the machine may be over soon.
    pub(super) async fn unpack(
        &self,
        layout: &Arc<Layout>,
        source: LayerSource,
        cancelled: &CancellationToken,
    ) -> Result<(), LayerError> {
        let mut pause = self.limits.fault_pause;
        for _ in 1..FAULTS_MAX {
            match self.unpack_once(layout, &source, cancelled).await {
                Err(LayerError::Machine { .. } | LayerError::Store(_)) => {}
                ended => return ended,
            }
            let waited = cancelled.run_until_cancelled(tokio::time::sleep(pause)).await;
            waited.ok_or(LayerError::Cancelled)?;
            pause = pause.saturating_mul(2);
        }
        self.unpack_once(layout, &source, cancelled).await
    }

    async fn unpack_once(
        &self,
        layout: &Arc<Layout>,
        source: &LayerSource,
        cancelled: &CancellationToken,
    ) -> Result<(), LayerError> {
        let LayerSource { diff_id, file, compression } = source;
        let file = file.try_clone().map_err(io_error("open again", layout.dir()))?;
        let diff_id = diff_id.clone();
        let permit = cancelled.run_until_cancelled(self.permits.acquire()).await;
        let _permit = permit.ok_or(LayerError::Cancelled)?.map_err(|_| LayerError::Cancelled)?;
        let stored = file.metadata().map_err(io_error("examine", layout.dir()))?.len();
        let (bytes_max, bound) = self.bytes_max(layout, stored)?;
        let order = LayerOrder {
            codec: codec(*compression),
            algorithm: diff_id.algorithm(),
            bytes_max,
            entries_max: self.limits.entries_max,
            seconds_max: self.limits.time_max.as_secs().max(1),
        };
        let of_staging = Arc::clone(layout);
        let staging = blocking(move || of_staging.stage()).await?;
        let unpacked = self.unpacker.unpack_layer(file, &staging.dir, &order, cancelled).await;
        let unpacked = unpacked.map_err(|error| blame(error, bound));
        let of_store = Arc::clone(layout);
        blocking(move || match unpacked {
            Ok(()) => complete(&of_store, staging, &diff_id),
            Err(error) => {
                staging.discard()?;
                Err(error)
            }
        })
        .await
    }

    /// How many bytes the files of a layer may have that has so many as it is stored.
    pub(super) fn bytes_max(&self, layout: &Layout, stored: u64) -> Result<(u64, Bound), StoreError> {
        let by_ratio = stored.saturating_mul(self.limits.ratio_max).saturating_add(self.limits.ratio_from);
        let limit = self.limits.bytes_max.min(by_ratio);
        let (free, size) = layout.space()?;
        let disk = free.saturating_sub(size.checked_div(RESERVE_PART).unwrap_or_default());
        Ok(if disk < limit { (disk, Bound::Disk) } else { (limit, Bound::Limit) })
    }
}

/// A layer that does not fit the disk is not at fault.
pub(super) fn blame(error: UnpackError, bound: Bound) -> LayerError {
    match (bound, error) {
        (Bound::Disk, UnpackError::TooLarge { why }) => LayerError::Full { why },
        (Bound::Disk | Bound::Limit, error) => error.into(),
    }
}

fn codec(compression: Compression) -> Codec {
    match compression {
        Compression::None => Codec::Plain,
        Compression::Gzip => Codec::Gzip,
        Compression::Zstd => Codec::Zstd,
    }
}

/// Checks the staged layer and publishes it, or removes it.
fn complete(layout: &Layout, staging: Staging, diff_id: &Digest) -> Result<(), LayerError> {
    match check(&staging.dir, diff_id) {
        Ok(()) => Ok(publish(layout, staging, diff_id)?),
        Err(error) => {
            staging.discard()?;
            Err(error)
        }
    }
}

fn check(dir: &Dir, diff_id: &Digest) -> Result<(), LayerError> {
    let (tree, report) = herdlet_unpack::finish_layer(dir)?;
    if report.digest != diff_id.as_str() {
        let why = format!("its digest is {}, not {diff_id}", report.digest);
        return Err(LayerError::Refused { why });
    }
    let seal = seal::of_layer(&tree).map_err(StoreError::Fs)?;
    let record = LayerRecord { bytes: report.bytes, skipped: report.skipped, seal };
    let bytes = to_bytes(Path::new(LAYER_RECORD), &record)?;
    let rights = Rights::Exact { mode: 0o600, owner: None };
    dir.write_file(LAYER_RECORD.as_ref(), &bytes, rights, Outlives::Processes).map_err(StoreError::Fs)?;
    // One call for all files, instead of one for each.
    let synced = rustix::fs::syncfs(dir).map_err(|errno| FsError::io("sync", dir.path(), errno));
    Ok(synced.map_err(StoreError::Fs)?)
}

fn publish(layout: &Layout, staging: Staging, diff_id: &Digest) -> Result<(), StoreError> {
    let lock = layout.lock_exclusive()?;
    let (place, name) = (Dir::open(&layout.layers())?, file_name(diff_id));
    let name = OsStr::new(&name);
    if has_layer(layout, diff_id) {
        drop(lock);
        return staging.discard();
    }
    if place.stat_name(name)?.is_none() {
        return staging.publish(&place, name);
    }
    // What has no record is damaged.
    let removed = layout.stage()?;
    removed.take(&place, name)?;
    staging.publish(&place, name)?;
    drop(lock);
    removed.discard()
}

/// Does what blocks.
pub(super) async fn blocking<T: Send + 'static, E: From<StoreError> + Send + 'static>(
    work: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<T, E> {
    off_thread(work).await.unwrap_or_else(|_| Err(StoreError::Thread.into()))
}
