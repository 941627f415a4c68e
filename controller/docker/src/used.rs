//! The images that tasks have used: a small file for each, so that unused ones are found after any restart.
//!
//! In: images and times. Out: the images with the time of their last use. Whether an image is in use now follows from the records of
//! attempts, not from these files. Tasks that start note their images while unused ones are looked for: all access is in turn. All
//! calls block.

use std::{
    fs, io,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
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
    turn: Mutex<()>,
}

impl UsedImages {
    /// Opens the directory, creating it if it is missing. Removes what is no image's file, as the partial ones of an agent that was
    /// killed.
    pub(crate) fn open(dir: &Path) -> io::Result<Self> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        let used = Self { dir: dir.to_owned(), turn: Mutex::default() };
        for entry in fs::read_dir(dir)? {
            let path = entry?.path();
            if read(&path).is_none_or(|known| used.path(&known.image, &known.engine) != path) {
                remove_file(&path)?;
            }
        }
        Ok(used)
    }

    fn path(&self, image: &str, engine: &Place) -> PathBuf {
        let hash = Sha256::digest(format!("{} {image}", engine.socket.display()).as_bytes());
        self.dir.join(names::hex(&hash).chars().take(32).collect::<String>())
    }

    fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a use. What was fetched earlier stays known.
    pub(crate) fn note(&self, used: &UsedImage) -> io::Result<()> {
        let _turn = self.turn();
        let path = self.path(&used.image, &used.engine);
        let known = || read(&path)?.fetched;
        let used = UsedImage { fetched: used.fetched.clone().or_else(known), ..used.clone() };
        let partial = path.with_extension(uuid::Uuid::new_v4().to_string());
        fs::write(&partial, serde_json::to_vec(&used)?)?;
        fs::rename(partial, path)
    }

    pub(crate) fn get(&self, image: &str, engine: &Place) -> Option<UsedImage> {
        read(&self.path(image, engine))
    }

    /// Forgets a use. One that was noted since `used` was read stays.
    pub(crate) fn remove(&self, used: &UsedImage) -> io::Result<()> {
        let _turn = self.turn();
        match self.get(&used.image, &used.engine) {
            Some(known) if known == *used => remove_file(&self.path(&used.image, &used.engine)),
            Some(_) | None => Ok(()),
        }
    }

    /// All of them. Changes nothing.
    pub(crate) fn list(&self) -> io::Result<Vec<UsedImage>> {
        let _turn = self.turn();
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            let path = entry?.path();
            found.extend(read(&path).filter(|used| path == self.path(&used.image, &used.engine)));
        }
        found.sort_by(|one, other| one.image.cmp(&other.image));
        Ok(found)
    }
}

/// The use in a file; none if there is none that can be read.
fn read(path: &Path) -> Option<UsedImage> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

fn remove_file(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
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
        let found: Vec<(String, i64)> =
            used.list().unwrap().into_iter().map(|used| (used.image, used.at_s)).collect();
        let mut sorted = found.clone();
        sorted.sort();
        assert_eq!(sorted, [("a".to_owned(), 3), ("a".to_owned(), 4), ("b".to_owned(), 1)]);
        let place = |socket: &str| Place { kind: Kind::Docker, socket: socket.into() };
        assert_eq!(used.get("a", &place("/x")).unwrap().fetched.as_deref(), Some("id"));
        assert_eq!(used.get("a", &place("/y")).unwrap().fetched, None);
        used.remove(&of("b", "/x", 1)).unwrap();
        assert_eq!(used.list().unwrap().len(), 2);
    }

    /// The list of images removed the file that a task was just writing, and what became unused removed what was used meanwhile: such
    /// an image was never collected.
    #[test]
    fn a_use_that_is_noted_meanwhile_stays() {
        let dir = tempfile::tempdir().unwrap();
        let used = UsedImages::open(dir.path()).unwrap();
        let engine = Place { kind: Kind::Docker, socket: "/x".into() };
        let at = |at_s| UsedImage { image: "a".to_owned(), engine: engine.clone(), at_s, fetched: None };
        used.note(&at(1)).unwrap();
        let partial = used.path("a", &engine).with_extension("partial");
        fs::write(&partial, serde_json::to_vec(&at(2)).unwrap()).unwrap();
        let listed = used.list().unwrap();
        assert_eq!(listed, [at(1)]);
        fs::rename(&partial, used.path("a", &engine)).unwrap();
        used.remove(&listed[0]).unwrap();
        assert_eq!(used.list().unwrap(), [at(2)]);
        // The next agent removes what this one has left.
        fs::write(&partial, "{").unwrap();
        let used = UsedImages::open(dir.path()).unwrap();
        assert!(!partial.exists());
        used.remove(&at(2)).unwrap();
        assert!(used.list().unwrap().is_empty());
    }
}
