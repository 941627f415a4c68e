//! The node's metadata: from the config, and changed by operators at run time (`nomad node meta apply`).
//!
//! In: changes. Out: the merged metadata, stored on disk before anything uses it. Setting a key to null removes it; a removed key of the
//! config stays removed across restarts until it is set again.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
};

use herdlet_base::durable;

/// Keys and values; a key without a value is a removed key of the config.
pub type Changes = BTreeMap<String, Option<String>>;

/// Maximum number of keys that operators may set.
const KEYS_MAX: usize = 1_000;
/// Maximum total size of these keys and their values.
const BYTES_MAX: usize = 256 << 10;

/// The metadata from the config and from operators.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NodeMeta {
    /// From the config.
    pub fixed: BTreeMap<String, String>,
    pub dynamic: Changes,
}

/// Why metadata cannot be changed or loaded. Reads after "failed to".
#[derive(Debug, thiserror::Error)]
pub enum MetaError {
    #[error("change the node's meta: missing required Meta object")]
    Nothing,
    /// A key is not a valid name.
    #[error("change the node's meta: \"{0}\" is invalid: keys must be names joined by dots")]
    Key(String),
    /// Too many keys or bytes.
    #[error("change the node's meta: more than {KEYS_MAX} keys or {BYTES_MAX} bytes")]
    TooMuch,
    /// The file cannot be read.
    #[error("read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// The file cannot be written.
    #[error("write {}", path.display())]
    Write { path: PathBuf, source: io::Error },
}

impl NodeMeta {
    /// Loads earlier changes from a file in the state directory.
    ///
    /// # Errors
    /// If the file exists and cannot be read.
    pub fn load(fixed: BTreeMap<String, String>, state_dir: &Path) -> Result<Self, MetaError> {
        let path = file(state_dir);
        let failed = |source| MetaError::Read { path: path.clone(), source };
        let dynamic = match std::fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| failed(error.into()))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Changes::new(),
            Err(error) => return Err(failed(error)),
        };
        Ok(Self { fixed, dynamic })
    }

    /// Applies changes.
    ///
    /// # Errors
    /// If a key is invalid, or the result is too large.
    pub fn with(&self, changes: &Changes) -> Result<Self, MetaError> {
        if changes.is_empty() {
            return Err(MetaError::Nothing);
        }
        let mut dynamic = self.dynamic.clone();
        for (key, value) in changes {
            if !key.split('.').all(is_name) {
                return Err(MetaError::Key(key.chars().take(128).collect()));
            }
            if value.is_some() || self.fixed.contains_key(key) {
                dynamic.insert(key.clone(), value.clone());
            } else {
                dynamic.remove(key);
            }
        }
        let bytes =
            |(key, value): (&String, &Option<String>)| key.len() + value.as_ref().map_or(0, String::len);
        if dynamic.len() > KEYS_MAX || dynamic.iter().map(bytes).sum::<usize>() > BYTES_MAX {
            return Err(MetaError::TooMuch);
        }
        Ok(Self { fixed: self.fixed.clone(), dynamic })
    }

    /// Stores the changes durably.
    ///
    /// # Errors
    /// If writing fails.
    pub fn save(&self, state_dir: &Path) -> Result<(), MetaError> {
        let path = file(state_dir);
        let failed = |source| MetaError::Write { path: path.clone(), source };
        let bytes = serde_json::to_vec(&self.dynamic).map_err(|error| failed(error.into()))?;
        durable::write(&path, &bytes).map_err(failed)
    }

    /// The effective metadata.
    pub fn merged(&self) -> BTreeMap<String, String> {
        let mut merged = self.fixed.clone();
        for (key, value) in &self.dynamic {
            match value {
                Some(value) => merged.insert(key.clone(), value.clone()),
                None => merged.remove(key),
            };
        }
        merged
    }
}

fn file(state_dir: &Path) -> PathBuf {
    state_dir.join("node-meta.json")
}

/// Whether constraints can refer to it.
fn is_name(part: &str) -> bool {
    let mut chars = part.chars();
    chars.next().is_some_and(|char| char.is_alphabetic() || char == '_')
        && chars.all(|char| char.is_alphanumeric() || char == '_' || char == '-')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changes(pairs: &[(&str, Option<&str>)]) -> Changes {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), value.map(str::to_owned))).collect()
    }

    #[test]
    fn metadata_changes_persist_over_restarts() {
        let dir = tempfile::tempdir().unwrap();
        let fixed =
            BTreeMap::from([("rack".to_owned(), "1".to_owned()), ("zone".to_owned(), "a".to_owned())]);
        let meta = NodeMeta::load(fixed.clone(), dir.path()).unwrap();
        assert_eq!(meta.merged(), fixed);
        let first = changes(&[("rack", None), ("zone", Some("b")), ("a.b-c", Some("x")), ("gone", None)]);
        let meta = meta.with(&first).unwrap();
        meta.save(dir.path()).unwrap();
        let again = NodeMeta::load(fixed, dir.path()).unwrap();
        assert_eq!(again, meta);
        let shown: Vec<_> = again.merged().into_iter().collect();
        assert_eq!(shown, [("a.b-c".to_owned(), "x".to_owned()), ("zone".to_owned(), "b".to_owned())]);
        let back = again.with(&changes(&[("rack", Some("2")), ("a.b-c", None)])).unwrap();
        assert_eq!(back.merged()["rack"], "2");
        assert!(
            !back.dynamic.contains_key("a.b-c"),
            "a removed key that the config does not set leaves no entry"
        );
    }

    #[test]
    fn invalid_metadata_changes_nothing() {
        let meta = NodeMeta::default();
        assert!(matches!(meta.with(&Changes::new()), Err(MetaError::Nothing)));
        for key in ["", "a..b", "a b", "1a", ".a", "-a"] {
            assert!(matches!(meta.with(&changes(&[(key, Some("x"))])), Err(MetaError::Key(_))), "{key}");
        }
        let long = "x".repeat(BYTES_MAX);
        assert!(matches!(meta.with(&changes(&[("a", Some(&long))])), Err(MetaError::TooMuch)));
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(file(dir.path()), "{").unwrap();
        assert!(matches!(NodeMeta::load(BTreeMap::new(), dir.path()), Err(MetaError::Read { .. })));
    }
}
