//! Paths of a plugin's volumes, on this machine and in the plugin's own root. They are functions of ids.
//!
//! `staging/NAMESPACE/VOLUME/USAGE` is where a volume is staged; `USAGE.id` beside it has the volume's id.
//! `per-alloc/ALLOC/NAMESPACE/VOLUME/USAGE` is an allocation's claim. In it are `target`, where the volume is published,
//! and `volume-id`. Namespaces are part of both: volumes in two of them may have the same name.

use std::{
    io,
    path::{Path, PathBuf},
};

use herdlet_base::{mounts::table::mounts_below, paths};

use super::Claim;

/// The directory that the tasks of one plugin id share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PluginRoot {
    /// On this machine, without links.
    pub host: PathBuf,
    /// In the plugin's own root: `stage_publish_base_dir`.
    pub inside: String,
}

/// Paths for the plugin.
pub(super) struct InsidePaths {
    pub(super) staging: String,
    pub(super) target: String,
}

impl PluginRoot {
    pub(super) fn inside(&self, claim: &Claim) -> InsidePaths {
        let path =
            |relative: PathBuf| format!("{}/{}", self.inside.trim_end_matches('/'), relative.display());
        InsidePaths { staging: path(staging(claim)), target: path(target(claim)) }
    }

    pub(super) fn staging(&self, claim: &Claim) -> PathBuf {
        self.host.join(staging(claim))
    }

    pub(super) fn target(&self, claim: &Claim) -> PathBuf {
        self.host.join(target(claim))
    }

    pub(super) fn is_mounted(&self, path: &Path) -> io::Result<bool> {
        Ok(mounts_below(&self.host)?.iter().any(|mount| mount.point == path))
    }
}

/// Name of the target in the claim's directory.
pub(super) const TARGET: &str = "target";

pub(super) const STAGING: &str = "staging";

pub(super) const CLAIMS: &str = "per-alloc";

pub(super) fn staging(claim: &Claim) -> PathBuf {
    staging_parent(claim).join(claim.usage.to_string())
}

pub(super) fn staging_parent(claim: &Claim) -> PathBuf {
    [STAGING, &encode(&claim.namespace), &encode(&claim.volume)].iter().collect()
}

/// The name of the file with the id of the volume that is staged, beside its directory.
pub(super) fn staging_record(claim: &Claim) -> String {
    format!("{}.id", claim.usage)
}

pub(super) fn directory(claim: &Claim) -> PathBuf {
    let alloc = PathBuf::from(CLAIMS).join(encode(&claim.alloc));
    alloc.join(encode(&claim.namespace)).join(encode(&claim.volume)).join(claim.usage.to_string())
}

fn target(claim: &Claim) -> PathBuf {
    directory(claim).join(TARGET)
}

/// Stands for an empty name: a component of a path is not empty, and no encoded name is this.
const EMPTY: &str = "%";

/// A name as one component of a path, which [`decode`] reads back. The common encoding, except for the empty name.
pub(super) fn encode(name: &str) -> String {
    if name.is_empty() { EMPTY.to_owned() } else { paths::encode(name) }
}

/// The name of a component; `None` if it is not the result of [`encode`].
pub(super) fn decode(component: &str) -> Option<String> {
    if component == EMPTY {
        Some(String::new())
    } else {
        paths::decode(component).filter(|name| !name.is_empty())
    }
}
