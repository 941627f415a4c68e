//! Settings of the whole machine that were changed, with the values that they had, so that they can be restored.
//!
//! In: changes; a directory of files that last until the next boot, as the settings do. Out: one file for each setting, written before
//! the change. Settings of a bridge or of a namespace end with it and are not recorded.

use std::{
    fs, io,
    path::{Component, Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use herdlet_base::durable;

use crate::sysctl::{self, Setting, SettingError};

/// The records.
#[derive(Debug)]
pub struct ChangedSettings {
    dir: PathBuf,
    /// A file has one writer at a time.
    writing: Mutex<()>,
}

impl ChangedSettings {
    /// Those in this directory, which is made with the first one.
    pub fn in_dir(dir: PathBuf) -> Self {
        Self { dir, writing: Mutex::default() }
    }

    /// Changes a setting, and records the value that it has now. Without effect if it has the wanted value, or this kernel lacks it.
    ///
    /// # Errors
    /// If it can't be recorded, read or changed.
    pub fn change(&self, setting: &Setting, value: &str) -> Result<(), SettingError> {
        let before = setting.get()?;
        let Some(before) = before.filter(|before| before != value) else { return Ok(()) };
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let record = self.dir.join(file_name(&setting.path()));
        let recorded = durable::make_dir(&self.dir)
            .and_then(|()| durable::write(&record, format!("{before} {value}\n").as_bytes()));
        recorded.map_err(|source| SettingError { what: "record the value of", path: record, source })?;
        setting.set(value)?;
        Ok(())
    }

    /// Restores the settings that still have the value of [`ChangedSettings::change`] and satisfy `is_free`, and forgets all of them.
    ///
    /// # Errors
    /// If the records can't be read, or a setting can't be changed.
    pub fn restore(&self, is_free: impl Fn(&Path) -> bool) -> Result<(), SettingError> {
        let failed = |what: &'static str, path: &Path| {
            let path = path.to_owned();
            move |source| SettingError { what, path, source }
        };
        let entries = match fs::read_dir(&self.dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            entries => entries.map_err(failed("read", &self.dir))?,
        };
        for entry in entries {
            let record = entry.map_err(failed("read", &self.dir))?.path();
            if let Some((path, before, ours)) = read(&record)
                && is_free(&path)
                && sysctl::read(&path)?.as_deref() == Some(&*ours)
            {
                sysctl::write(&path, &before)?;
                tracing::info!(setting = %path.display(), value = before, "restored a setting of the kernel");
            }
            fs::remove_file(&record).map_err(failed("remove", &record))?;
        }
        fs::remove_dir(&self.dir).map_err(failed("remove", &self.dir))
    }
}

/// The path of a setting without its directory, with `:` for `/`: no interface has a `:` in its name.
fn file_name(path: &Path) -> String {
    let below = path.strip_prefix(sysctl::DIR).unwrap_or(path);
    below.to_string_lossy().replace('/', ":")
}

/// The setting, the value that it had and the one that it got; `None` if the file is damaged, or is no record.
fn read(record: &Path) -> Option<(PathBuf, String, String)> {
    let below = PathBuf::from(record.file_name()?.to_str()?.replace(':', "/"));
    let is_below = below.components().all(|part| matches!(part, Component::Normal(_)));
    let text = fs::read_to_string(record).ok().filter(|_| is_below)?;
    let (before, ours) = text.trim_end().split_once(' ')?;
    Some((Path::new(sysctl::DIR).join(below), before.to_owned(), ours.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_machine::on_machine;

    fn forward(value: &str) {
        Setting::ForwardV4.set(value).unwrap();
    }

    fn forwards() -> String {
        Setting::ForwardV4.get().unwrap().unwrap()
    }

    #[test]
    fn setting_is_restored_unless_others_have_changed_it() {
        on_machine(|machine| {
            let dir = machine.dir().join("settings");
            let changed = || ChangedSettings::in_dir(dir.clone());
            forward("0");
            for _ in 0..2 {
                changed().change(&Setting::ForwardV4, "1").unwrap();
            }
            assert_eq!(forwards(), "1");
            changed().restore(|_| true).unwrap();
            assert_eq!(forwards(), "0");
            assert!(!dir.exists());
            changed().restore(|_| true).unwrap();

            changed().change(&Setting::ForwardV4, "1").unwrap();
            changed().restore(|path| path != Setting::ForwardV4.path()).unwrap();
            assert_eq!(forwards(), "1", "another program needs it");
            changed().change(&Setting::ForwardV4, "1").unwrap();
            assert!(!dir.exists(), "it had the value before");

            forward("0");
            changed().change(&Setting::ForwardV4, "1").unwrap();
            forward("0");
            changed().change(&Setting::ForwardV4, "1").unwrap();
            forward("2");
            changed().restore(|_| true).unwrap();
            assert_eq!(forwards(), "2", "another program has changed it");
        });
    }

    #[test]
    fn record_without_a_meaning_changes_nothing() {
        on_machine(|machine| {
            let dir = machine.dir().join("settings");
            std::fs::create_dir(&dir).unwrap();
            forward("1");
            let elsewhere = machine.dir().join("elsewhere");
            std::fs::write(&elsewhere, "1\n").unwrap();
            let outside = format!("..:..:..{}", elsewhere.display().to_string().replace('/', ":"));
            for (name, text) in
                [("ipv4:ip_forward", "0"), (".ipv4:ip_forward.tmp", "0 1\n"), (outside.as_str(), "0 1\n")]
            {
                std::fs::write(dir.join(name), text).unwrap();
            }
            ChangedSettings::in_dir(dir.clone()).restore(|_| true).unwrap();
            assert_eq!(forwards(), "1");
            assert_eq!(std::fs::read_to_string(elsewhere).unwrap(), "1\n");
            assert!(!dir.exists());
        });
    }
}
