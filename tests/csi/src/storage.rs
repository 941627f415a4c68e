//! Volumes and snapshots of the plugin, as directories: `KIND/ID/{name,capacity,token,source,content/,attached/,published/}`.
//!
//! In: names, ids. Out: paths and properties. Each property is a file, so a plugin that is killed loses nothing.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// A folder of volumes, or of snapshots.
#[derive(Debug, Clone)]
pub struct Storage {
    folder: PathBuf,
}

/// A volume or a snapshot that exists.
#[derive(Debug, Clone)]
pub struct Item {
    pub id: String,
    folder: PathBuf,
}

impl Storage {
    /// # Errors
    ///
    /// If the folder can't be created.
    pub fn open(folder: PathBuf) -> io::Result<Self> {
        fs::create_dir_all(&folder)?;
        Ok(Self { folder })
    }

    /// The id of the item with this name: the same at each call.
    pub fn id(name: &str) -> String {
        // FNV-1a.
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        format!("id-{hash:016x}")
    }

    pub fn find(&self, id: &str) -> Option<Item> {
        // An id is one component of a path.
        let is_id = id.starts_with("id-") && !id.contains('/');
        let folder = self.folder.join(id);
        (is_id && folder.join("capacity").exists()).then(|| Item { id: id.to_owned(), folder })
    }

    /// Creates an item, or completes one whose creation was interrupted. `fill` adds properties and content before it exists.
    ///
    /// # Errors
    ///
    /// If a file can't be written.
    pub fn create(
        &self,
        name: &str,
        capacity: i64,
        fill: impl FnOnce(&Item) -> io::Result<()>,
    ) -> io::Result<Item> {
        let id = Self::id(name);
        let item = Item { folder: self.folder.join(&id), id };
        for folder in ["content", "attached", "published"] {
            fs::create_dir_all(item.folder.join(folder))?;
        }
        item.set("name", name)?;
        fill(&item)?;
        // Last: the item exists with this file.
        item.set("capacity", &capacity.to_string())?;
        Ok(item)
    }

    /// # Errors
    ///
    /// If the folder can't be read.
    pub fn list(&self) -> io::Result<Vec<Item>> {
        let mut ids = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            ids.extend(entry?.file_name().into_string());
        }
        ids.sort();
        Ok(ids.iter().filter_map(|id| self.find(id)).collect())
    }
}

impl Item {
    pub fn content(&self) -> PathBuf {
        self.folder.join("content")
    }

    /// The image of a block device, as long as the volume's capacity.
    ///
    /// # Errors
    ///
    /// If the file can't be created.
    pub fn image(&self) -> io::Result<PathBuf> {
        let path = self.folder.join("image");
        let image = fs::OpenOptions::new().create(true).append(true).open(&path)?;
        image.set_len(self.capacity().try_into().unwrap_or_default())?;
        Ok(path)
    }

    pub fn get(&self, property: &str) -> Option<String> {
        fs::read_to_string(self.folder.join(property)).ok()
    }

    pub fn capacity(&self) -> i64 {
        self.get("capacity").and_then(|text| text.parse().ok()).unwrap_or_default()
    }

    /// # Errors
    ///
    /// If the file can't be written.
    pub fn set(&self, property: &str, value: &str) -> io::Result<()> {
        let path = self.folder.join(property);
        let unfinished = path.with_extension("new");
        fs::write(&unfinished, value)?;
        fs::rename(unfinished, path)
    }

    /// # Errors
    ///
    /// If the file can't be removed.
    pub fn clear(&self, property: &str) -> io::Result<()> {
        match fs::remove_file(self.folder.join(property)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Names of the properties in `attached` or `published`.
    pub fn names(&self, folder: &str) -> Vec<String> {
        let entries = fs::read_dir(self.folder.join(folder)).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        // One that was being written when the plugin was killed.
        names.retain(|name| !name.ends_with(".new"));
        names.sort();
        names
    }

    /// # Errors
    ///
    /// If a file can't be removed.
    pub fn delete(&self) -> io::Result<()> {
        fs::remove_file(self.folder.join("capacity"))?;
        fs::remove_dir_all(&self.folder)
    }
}

/// Copies files and directories.
///
/// # Errors
///
/// If a file can't be read or written.
pub fn copy(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}
