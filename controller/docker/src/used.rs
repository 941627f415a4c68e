//! The images that tasks have used: a small file for each, so that unused ones are found after any restart.
//!
//! In: images and times. Out: the images with the time of their last use. Whether an image is in use now follows from the records of
//! attempts, not from these files.

use std::{
    fs, io,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::{engine::Place, names};

/// An image that a task has used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct UsedImage {
    /// Its name, as the task writes it.
    pub(crate) image: String,
    pub(crate) engine: Place,
    /// The last use in seconds since 1970.
    pub(crate) at_s: i64,
    /// The id of the image that was fetched for a task by this name; none if people put it there, who may have no other copy.
    #[serde(default)]
    pub(crate) fetched: Option<String>,
}

/// The directory of these files.
#[derive(Debug)]
pub(crate) struct UsedImages {
    dir: PathBuf,
}

impl UsedImages {
    /// Opens the directory, creating it if it is missing.
    pub(crate) fn open(dir: &Path) -> io::Result<Self> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        Ok(Self { dir: dir.to_owned() })
    }

    fn path(&self, image: &str, engine: &Place) -> PathBuf {
        let hash = Sha256::digest(format!("{} {image}", engine.socket.display()).as_bytes());
        self.dir.join(names::hex(&hash).chars().take(32).collect::<String>())
    }

    /// Notes a use. What was fetched earlier stays known.
    pub(crate) fn note(&self, used: &UsedImage) -> io::Result<()> {
        let path = self.path(&used.image, &used.engine);
        let known = || self.get(&used.image, &used.engine)?.fetched;
        let used = UsedImage { fetched: used.fetched.clone().or_else(known), ..used.clone() };
        let partial = path.with_extension(uuid::Uuid::new_v4().to_string());
        fs::write(&partial, serde_json::to_vec(&used)?)?;
        fs::rename(partial, path)
    }

    pub(crate) fn get(&self, image: &str, engine: &Place) -> Option<UsedImage> {
        serde_json::from_slice(&fs::read(self.path(image, engine)).ok()?).ok()
    }

    pub(crate) fn remove(&self, used: &UsedImage) -> io::Result<()> {
        match fs::remove_file(self.path(&used.image, &used.engine)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// All of them. A file that an agent left unfinished is removed.
    pub(crate) fn list(&self) -> io::Result<Vec<UsedImage>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            let path = entry?.path();
            match fs::read(&path).map(|bytes| serde_json::from_slice::<UsedImage>(&bytes)) {
                Ok(Ok(used)) if path == self.path(&used.image, &used.engine) => found.push(used),
                Ok(_) => fs::remove_file(&path)?,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        found.sort_by(|one, other| one.image.cmp(&other.image));
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Kind;

    #[test]
    fn each_image_of_an_engine_has_one_file() {
        let dir = tempfile::tempdir().unwrap();
        let used = UsedImages::open(&dir.path().join("images")).unwrap();
        let of = |image: &str, socket: &str, at_s| UsedImage {
            image: image.to_owned(),
            engine: Place { kind: Kind::Docker, socket: socket.into() },
            at_s,
            fetched: None,
        };
        used.note(&UsedImage { fetched: Some("id".to_owned()), ..of("a", "/x", 1) }).unwrap();
        for image in [of("b", "/x", 1), of("a", "/x", 2), of("a", "/y", 3), of("a", "/x", 4)] {
            used.note(&image).unwrap();
        }
        fs::write(dir.path().join("images/left"), "{").unwrap();
        let found: Vec<(String, i64)> =
            used.list().unwrap().into_iter().map(|used| (used.image, used.at_s)).collect();
        let mut sorted = found.clone();
        sorted.sort();
        assert_eq!(sorted, [("a".to_owned(), 3), ("a".to_owned(), 4), ("b".to_owned(), 1)]);
        let place = |socket: &str| Place { kind: Kind::Docker, socket: socket.into() };
        assert_eq!(used.get("a", &place("/x")).unwrap().fetched.as_deref(), Some("id"));
        assert_eq!(used.get("a", &place("/y")).unwrap().fetched, None);
        used.remove(&of("b", "/x", 0)).unwrap();
        assert_eq!(used.list().unwrap().len(), 2);
    }
}
