//! Keeps what can't be used below `damaged`, so that nothing is lost: records, and accepted files.

use std::path::{Path, PathBuf};

use herdlet_api_types::UnixNanos;
use herdlet_base::durable;

use super::{OpenError, Opening, SetAside, io_error};
use crate::state_db::{accepted::files::UnreadableFile, load::Aside};

impl Opening<'_> {
    /// Keeps the bytes of removed records, each in a file of its own.
    pub(super) fn keep_aside(&mut self, aside: &[Aside]) -> Result<(), OpenError> {
        let dir = self.aside_dir();
        if !aside.is_empty() {
            durable::make_dir(&dir).map_err(io_error("create", &dir))?;
        }
        for Aside { table, place, bytes, why } in aside {
            let name = format!("{}.{}.{}", table.name(), herdlet_base::paths::file_name(place), self.time());
            let path = unused(&dir.join(name));
            durable::write(&path, bytes).map_err(io_error("write", &path))?;
            let what = format!("{}/{place}", table.name());
            tracing::error!(record = what, path = %path.display(), why, "a record was set aside");
            self.damaged.push(SetAside { what, path, why: why.clone() });
        }
        Ok(())
    }

    /// Moves unreadable accepted files out of the way of their replacements. A file that cannot be moved stays where
    /// it is, so that the others can be used.
    pub(super) fn set_aside(&mut self, unreadable: &[UnreadableFile]) {
        for UnreadableFile { path, why, .. } in unreadable {
            // A power cut leaves a new file like this; there is nothing to keep.
            let is_empty =
                std::fs::symlink_metadata(path).is_ok_and(|data| data.is_file() && data.len() == 0);
            if is_empty && durable::remove(path).is_ok() {
                tracing::info!(path = %path.display(), "an accepted file was empty, as after a power cut");
                continue;
            }
            let to = self.place_aside(path);
            let moved = durable::make_dir(&self.aside_dir()).and_then(|()| durable::rename(path, &to));
            let (path, why) = match moved {
                Ok(()) => (to, why.clone()),
                Err(error) => (path.clone(), format!("{why}; and it cannot be moved aside: {error}")),
            };
            self.damaged.push(SetAside { what: "accepted file".to_owned(), path, why });
        }
    }

    /// Keeps an accepted file that is about to be removed because the database does not know its object.
    pub(super) fn keep_unknown(&mut self, path: &Path) {
        let to = self.place_aside(path);
        // A hard link needs no space: the disk may be full, and no request that created this file was answered.
        let kept = durable::make_dir(&self.aside_dir()).and_then(|()| std::fs::hard_link(path, &to));
        let why = "the database does not know it".to_owned();
        match kept {
            Ok(()) => self.damaged.push(SetAside { what: "accepted file".to_owned(), path: to, why }),
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, why, "an accepted file is removed")
            }
        }
    }

    fn aside_dir(&self) -> PathBuf {
        self.paths.state.join("damaged")
    }

    /// An unused path for a copy of this file.
    fn place_aside(&self, path: &Path) -> PathBuf {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        unused(&self.aside_dir().join(format!("{name}.{}", self.time())))
    }

    /// The current time, as part of a file name.
    pub(super) fn time(&self) -> String {
        let UnixNanos(nanos) = self.now.wall;
        jiff::Timestamp::from_nanosecond(i128::from(nanos))
            .map_or_else(|_| nanos.to_string(), |time| time.strftime("%Y%m%dT%H%M%SZ").to_string())
    }
}

/// The path, or a numbered variant that is not in use.
pub(super) fn unused(path: &Path) -> PathBuf {
    let numbered = (2..).map(|n: u32| {
        let mut name = path.as_os_str().to_owned();
        name.push(format!("-{n}"));
        PathBuf::from(name)
    });
    std::iter::once(path.to_owned()).chain(numbered).find(|path| !path.exists()).unwrap_or_default()
}
