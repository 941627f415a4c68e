//! Watches the links in the path of a folder: replacing one of them, as release tools do, replaces the folder.
//!
//! In: a path. Out: a notification that it may lead elsewhere. It must not know what the folder is for.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use futures_util::future::select_all;
use herdlet_base::directory::{DirectoryWatch, Interests};

/// The most links that a path may lead through, as in the kernel.
const LINKS_MAX: usize = 40;

/// Watches of the directories that hold the links.
pub(super) struct Links(Vec<DirectoryWatch>);

impl Links {
    /// Opens the watches; directories that cannot be watched are skipped.
    pub(super) fn on_the_way_to(path: &Path) -> Self {
        let holders = holders_of_links(path);
        Self(
            holders.iter().filter_map(|holder| DirectoryWatch::open(holder, Interests::Names).ok()).collect(),
        )
    }

    /// Waits until something changes beside one of the links, or a directory that holds one is gone. The path may
    /// then lead to another folder, or to the same one by another route.
    pub(super) async fn changed(&self) {
        match self.0.is_empty() {
            true => std::future::pending().await,
            false => drop(select_all(self.0.iter().map(|holder| Box::pin(holder.changed()))).await),
        }
    }
}

/// The directories that hold the links of `path`: replacing one of the links changes where `path` leads.
fn holders_of_links(path: &Path) -> BTreeSet<PathBuf> {
    let mut holders = BTreeSet::new();
    let Ok(path) = std::path::absolute(path) else { return holders };
    let parts = |path: &Path| path.iter().rev().map(ToOwned::to_owned).collect::<Vec<_>>();
    let (mut at, mut rest, mut left) = (PathBuf::new(), parts(&path), LINKS_MAX);
    while let Some(part) = rest.pop() {
        if part == ".." {
            at.pop();
            continue;
        }
        let next = at.join(&part);
        match std::fs::read_link(&next) {
            Ok(target) if left > 0 => {
                left -= 1;
                holders.insert(at.clone());
                if target.is_absolute() {
                    at.clear();
                }
                rest.extend(parts(&target));
            }
            Ok(_) | Err(_) => at = next,
        }
    }
    holders
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symlink_ancestors_are_known_by_their_directories() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().canonicalize().unwrap().join(name);
        std::fs::create_dir_all(at("releases/7/jobs")).unwrap();
        std::os::unix::fs::symlink("releases/7", at("current")).unwrap();
        std::os::unix::fs::symlink(at("current"), at("releases/newest")).unwrap();
        std::os::unix::fs::symlink("round", at("round")).unwrap();
        let holders = |name: &str| Vec::from_iter(holders_of_links(&at(name)));
        assert_eq!(holders("releases/7/jobs"), Vec::<PathBuf>::new());
        assert_eq!(holders("current/jobs"), [at("")]);
        assert_eq!(holders("releases/newest/../7/jobs").len(), 2);
        assert_eq!(holders("round").len(), 1, "a circular link ends");
    }
}
