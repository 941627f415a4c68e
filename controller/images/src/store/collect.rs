//! What the store has, and removing what nobody uses.
//!
//! In: claims, ages, free space. Out: lists; images and layers removed. Under the lock only names go: what has lost its name is
//! deleted afterwards, by the next process if this one ends.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    time::{Duration, SystemTime},
};

use herdlet_base::{durable, safe_fs::Dir};

use super::{
    Claims, Extent, KEPT, ListedImage, PruneOrder, RemovalReport,
    error::{StoreError, io_error},
    layout::{Layout, Staging, age, file_name},
    records::{self, ClaimRecord, NameRecord},
};
use crate::digest::Digest;

/// An image that was used this recently is not removed for want of space: its container may be about to start.
const RECENT: Duration = Duration::from_secs(10 * 60);
/// A layer without an image may be one of a pull that runs, or be continued by the next one.
const ORPHAN_AGE_MAX: Duration = Duration::from_secs(24 * 60 * 60);

pub(super) fn list(layout: &Layout) -> Result<Vec<ListedImage>, StoreError> {
    let _lock = layout.lock_shared()?;
    let names = records::all_names(layout)?;
    let claims = present_claims(layout, &names)?;
    let mut listed = Vec::new();
    for id in records::all_images(layout)? {
        let Some(image) = records::image(layout, &id, &names)? else { continue };
        let path = layout.image(&id);
        let about = fs::metadata(&path).and_then(|about| about.modified());
        let used_at: SystemTime = about.map_err(io_error("examine", &path))?;
        listed.push(ListedImage { image, used_at, claimed_by: owners(&claims, &id) });
    }
    Ok(listed)
}

/// Whether an agent has recorded that it uses an image.
pub(super) fn is_claimed(layout: &Layout, owner: &str, id: &Digest) -> Result<bool, StoreError> {
    let _lock = layout.lock_shared()?;
    Ok(records::is_claimed(layout, owner, id))
}

/// Keeps images whatever their age, as long as they have a name.
pub(super) fn keep(layout: &Layout, ids: &[Digest]) -> Result<(), StoreError> {
    let _lock = layout.lock_exclusive()?;
    let names = records::all_names(layout)?;
    let mut images = kept(&present_claims(layout, &names)?);
    images.extend(ids.iter().cloned());
    records::write_claims(layout, &Claims { owner: KEPT.to_owned(), images })
}

/// The claims of all owners. A kept image is one as long as it has a name: a newer image of the same name replaces it.
fn present_claims(layout: &Layout, names: &[NameRecord]) -> Result<Vec<ClaimRecord>, StoreError> {
    let mut claims = records::all_claims(layout)?;
    for claim in claims.iter_mut().filter(|claim| claim.owner == KEPT) {
        claim.images.retain(|id| names.iter().any(|name| name.id == *id));
    }
    Ok(claims)
}

fn kept(claims: &[ClaimRecord]) -> BTreeSet<Digest> {
    let of_store = claims.iter().filter(|claim| claim.owner == KEPT);
    of_store.flat_map(|claim| &claim.images).cloned().collect()
}

/// Removes layers unless an image needs them.
pub(super) fn release(layout: &Layout, layers: &[Digest]) -> Result<(), StoreError> {
    let removal = {
        let _lock = layout.lock_exclusive()?;
        let mut removal = Removal::begin(layout, Extent::Due)?;
        removal.released.extend(layers.iter().cloned());
        removal.layers(ORPHAN_AGE_MAX)?;
        removal
    };
    removal.finish().map(|_| ())
}

fn owners(claims: &[ClaimRecord], id: &Digest) -> Vec<String> {
    let own = claims.iter().filter(|claim| claim.images.contains(id));
    own.map(|claim| claim.owner.clone()).collect()
}

pub(super) fn claim(layout: &Layout, claims: &Claims) -> Result<(), StoreError> {
    let _lock = layout.lock_exclusive()?;
    records::write_claims(layout, claims)
}

pub(super) fn remove(layout: &Layout, id: &Digest, claims: &Claims) -> Result<RemovalReport, StoreError> {
    let removal = {
        let _lock = layout.lock_exclusive()?;
        records::write_claims(layout, claims)?;
        let mut removal = Removal::begin(layout, Extent::Due)?;
        if let Some(owner) = removal.owner_of(id) {
            return Err(StoreError::Claimed { id: id.clone(), owner });
        }
        removal.image(id)?;
        removal.layers(ORPHAN_AGE_MAX)?;
        removal
    };
    removal.finish()
}

pub(super) fn prune(layout: &Layout, order: &PruneOrder) -> Result<RemovalReport, StoreError> {
    layout.clean_staging()?;
    let removal = {
        let _lock = layout.lock_exclusive()?;
        records::write_claims(layout, &order.claims)?;
        let mut removal = Removal::begin(layout, order.extent)?;
        for (age, id) in removal.unclaimed_by_age() {
            let is_old = age >= order.unused_for;
            if is_old || (age >= RECENT && removal.free_bytes()? < order.free_bytes_min) {
                removal.image(&id)?;
                removal.layers(ORPHAN_AGE_MAX)?;
            }
        }
        removal.layers(ORPHAN_AGE_MAX)?;
        removal.forget_kept()?;
        removal
    };
    removal.finish()
}

/// The images that have a layer.
pub(super) fn images_of(layout: &Layout, layer: &Digest) -> Result<Vec<Digest>, StoreError> {
    let mut images = Vec::new();
    for id in records::all_images(layout)? {
        if records::config(layout, &id)?.is_some_and(|config| config.diff_ids.contains(layer)) {
            images.push(id);
        }
    }
    Ok(images)
}

pub(super) fn discard_layer(layout: &Layout, diff_id: &Digest) -> Result<(), StoreError> {
    let staging = {
        let _lock = layout.lock_exclusive()?;
        let staging = layout.stage()?;
        staging.take(&Dir::open(&layout.layers())?, file_name(diff_id).as_ref())?;
        staging
    };
    staging.discard()
}

/// A removal under the lock.
struct Removal<'l> {
    layout: &'l Layout,
    extent: Extent,
    claims: Vec<ClaimRecord>,
    names: Vec<NameRecord>,
    /// The layers of each image; none if its config can't be read.
    images: BTreeMap<Digest, Option<Vec<Digest>>>,
    layers: BTreeSet<Digest>,
    /// Layers of removed images.
    released: BTreeSet<Digest>,
    staging: Staging,
    removed: RemovalReport,
}

impl<'l> Removal<'l> {
    fn begin(layout: &'l Layout, extent: Extent) -> Result<Self, StoreError> {
        let mut images = BTreeMap::new();
        for id in records::all_images(layout)? {
            let config = records::config(layout, &id)?;
            images.insert(id, config.map(|config| config.diff_ids));
        }
        let names = records::all_names(layout)?;
        let mut claims = present_claims(layout, &names)?;
        claims.retain(|claim| claim.owner != KEPT || !extent.has_kept());
        Ok(Self {
            layout,
            extent,
            claims,
            names,
            images,
            layers: records::all_layers(layout)?,
            released: BTreeSet::new(),
            staging: layout.stage()?,
            removed: RemovalReport::default(),
        })
    }

    fn owner_of(&self, id: &Digest) -> Option<String> {
        owners(&self.claims, id).into_iter().next()
    }

    /// Images without claims, the one that is unused for the longest time first.
    fn unclaimed_by_age(&self) -> Vec<(Duration, Digest)> {
        let unclaimed = self.images.keys().filter(|id| self.owner_of(id).is_none());
        let mut unclaimed: Vec<_> = unclaimed
            // A time in the future is that of a clock that has been set.
            .map(|id| (age(&self.layout.image(id)).unwrap_or_default(), id.clone()))
            .collect();
        unclaimed.sort_by(|one, other| other.cmp(one));
        unclaimed
    }

    /// What will be free on the disk.
    fn free_bytes(&self) -> Result<u64, StoreError> {
        Ok(self.layout.space()?.0.saturating_add(self.removed.bytes))
    }

    /// Removes the names of an image and its config; its layers are released.
    fn image(&mut self, id: &Digest) -> Result<(), StoreError> {
        for record in self.names.iter().filter(|record| record.id == *id) {
            self.remove(&self.layout.name(&record.name))?;
        }
        let Some(layers) = self.images.remove(id) else { return Ok(()) };
        self.remove(&self.layout.image(id))?;
        self.released.extend(layers.into_iter().flatten());
        self.removed.images.push(id.clone());
        Ok(())
    }

    /// Takes away the layers that no image needs: released ones, and those that are older than this.
    fn layers(&mut self, age_max: Duration) -> Result<(), StoreError> {
        let mut needed = BTreeSet::new();
        for (id, layers) in &self.images {
            match layers {
                Some(layers) => needed.extend(layers.iter().cloned()),
                // A damaged config: its layers are not known, and a container may have them.
                None if self.owner_of(id).is_some() => return Ok(()),
                None => {}
            }
        }
        let place = Dir::open(&self.layout.layers())?;
        for diff_id in self.layers.difference(&needed).cloned().collect::<Vec<_>>() {
            let is_old = || age(&self.layout.layer(&diff_id)).is_some_and(|age| age > age_max);
            if !self.released.contains(&diff_id) && !is_old() {
                continue;
            }
            let record = records::layer(self.layout, &diff_id);
            if !self.extent.is_preview() {
                self.staging.take(&place, file_name(&diff_id).as_ref())?;
            }
            self.layers.remove(&diff_id);
            self.removed.layers += 1;
            let bytes = record.map_or(0, |record| record.bytes);
            self.removed.bytes = self.removed.bytes.saturating_add(bytes);
        }
        Ok(())
    }

    fn remove(&self, path: &Path) -> Result<(), StoreError> {
        if self.extent.is_preview() { Ok(()) } else { remove_durably(path) }
    }

    /// Forgets which removed images were kept.
    fn forget_kept(&self) -> Result<(), StoreError> {
        if self.extent.is_preview() || !self.extent.has_kept() || self.removed.images.is_empty() {
            return Ok(());
        }
        let mut images = kept(&present_claims(self.layout, &self.names)?);
        images.retain(|id| self.images.contains_key(id));
        records::write_claims(self.layout, &Claims { owner: KEPT.to_owned(), images })
    }

    /// Deletes what has been taken away, without the lock.
    fn finish(self) -> Result<RemovalReport, StoreError> {
        self.staging.discard()?;
        Ok(self.removed)
    }
}

fn remove_durably(path: &Path) -> Result<(), StoreError> {
    durable::remove(path).map_err(io_error("remove", path))
}
