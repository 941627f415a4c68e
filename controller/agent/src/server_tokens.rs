//! Tokens that servers have signed for tasks (1.4 and later), and identities (1.7 and later). They are stored beside
//! the state, readable only by the agent's user and the task.
//!
//! In: the tokens of an allocation, by task. Out: the token of a task. Each allocation has one file, 0600; no record
//! and no API shows them. Tokens that the disk does not accept are held in memory until it does; if they are lost,
//! servers send them again with the allocation.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

use herdlet_api_types::AllocId;
use herdlet_base::{
    durable,
    paths::{self, Paths},
};
use herdlet_nomad::wire::Secret;
use herdlet_storage::identity::Token;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

/// The tokens of one instance.
#[derive(Debug)]
pub struct ServerTokens {
    paths: Paths,
    /// Changes that are not on disk yet, by path; `None` means that the file is to be removed. Locked only briefly,
    /// because tasks wait for it when they start.
    held: Mutex<BTreeMap<PathBuf, Option<Zeroizing<String>>>>,
    /// Serializes changes of files, so that an older token is never written after a newer one.
    turn: Mutex<()>,
}

/// A stored identity.
#[derive(Clone, Serialize, Deserialize)]
pub struct KeptIdentity {
    pub token: Secret,
    /// When to request a new one, in nanoseconds since 1970; `None` if it does not expire.
    pub renew_at: Option<i64>,
}

/// Identities of a task by name.
pub type Identities = BTreeMap<String, KeptIdentity>;

impl std::fmt::Debug for KeptIdentity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeptIdentity").field("renew_at", &self.renew_at).finish_non_exhaustive()
    }
}

impl ServerTokens {
    /// Creates the tokens below `paths`, without reading anything.
    pub fn new(paths: Paths) -> Self {
        Self { paths, held: Mutex::default(), turn: Mutex::default() }
    }

    /// Stores the tokens of an allocation, replacing earlier ones.
    ///
    /// # Errors
    /// When they cannot be written; they are then held for [`Self::keep_held`].
    pub fn keep(&self, id: AllocId, signed: &BTreeMap<String, Secret>) -> io::Result<()> {
        let signed: BTreeMap<&str, &str> =
            signed.iter().map(|(task, token)| (&**task, token.reveal())).collect();
        let text = Zeroizing::new(serde_json::to_string(&signed)?);
        self.change(self.paths.server_tokens(&id), Some(text))
    }

    /// Writes and removes held changes as far as possible. Returns `true` if none are left.
    pub fn keep_held(&self) -> bool {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let paths: Vec<PathBuf> = self.held().keys().cloned().collect();
        // Failed changes stay held.
        paths.iter().for_each(|path| drop(self.carry_out(path)));
        self.held().is_empty()
    }

    /// Whether the tokens of an allocation exist, including its disk token if it inherits a disk; a crash may have
    /// lost held ones.
    pub fn are_kept(&self, id: AllocId, is_successor: bool) -> bool {
        self.paths.server_tokens(&id).exists() && (!is_successor || self.paths.disk_token(&id).exists())
    }

    /// The token of a task; `None` if servers have signed none.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn of_task(&self, id: AllocId, task: &str) -> io::Result<Option<Token>> {
        let Some(text) = self.read(&self.paths.server_tokens(&id))? else { return Ok(None) };
        let mut signed: BTreeMap<String, String> = serde_json::from_str(&text)?;
        Ok(signed.remove(task).map(Token::from_servers))
    }

    /// Stores the token that proves to another node that this allocation may have its predecessor's disk.
    ///
    /// # Errors
    /// When it cannot be written; it is then held for [`Self::keep_held`].
    pub fn keep_for_disk(&self, id: AllocId, token: &Secret) -> io::Result<()> {
        self.change(self.paths.disk_token(&id), Some(Zeroizing::new(token.reveal().to_owned())))
    }

    /// The token stored by [`Self::keep_for_disk`]; empty if there is none.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn of_disk(&self, id: AllocId) -> io::Result<Secret> {
        let token = self.read(&self.paths.disk_token(&id))?;
        Ok(token.map_or_else(Secret::default, |token| Secret::from(token.as_str())))
    }

    /// The stored identities of a task; empty if they cannot be parsed, as servers sign new ones.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn identities(&self, id: AllocId, task: &str) -> io::Result<Identities> {
        let text = match fs::read(self.identities_file(id, task)) {
            Ok(text) => Zeroizing::new(text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Identities::new()),
            Err(error) => return Err(error),
        };
        Ok(serde_json::from_slice(&text).unwrap_or_default())
    }

    /// Stores the identities of a task, replacing earlier ones.
    ///
    /// # Errors
    /// When they cannot be written.
    pub fn keep_identities(&self, id: AllocId, task: &str, kept: &Identities) -> io::Result<()> {
        let text = Zeroizing::new(serde_json::to_string(kept)?);
        write(&self.identities_file(id, task), text.as_bytes())
    }

    /// Removes the identities of an allocation.
    ///
    /// # Errors
    /// When they cannot be removed.
    pub fn forget_identities(&self, id: AllocId) -> io::Result<()> {
        match fs::remove_dir_all(self.paths.server_identities(&id)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// The allocations with tokens, identities or remains of interrupted writes. Logs a directory that cannot be
    /// read.
    pub fn all(&self) -> BTreeSet<AllocId> {
        let mut found = BTreeSet::new();
        for dir in self.paths.given_by_servers() {
            match fs::read_dir(&dir) {
                Ok(entries) => {
                    let names = entries.filter_map(|entry| Some(entry.ok()?.file_name()));
                    let id = |name: OsString| durable::own_name(name.to_str()?).parse().ok().map(AllocId);
                    found.extend(names.filter_map(id));
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    tracing::warn!(dir = %dir.display(), %error, "failed to list the tokens of servers")
                }
            }
        }
        found
    }

    /// Removes the tokens of an allocation.
    ///
    /// # Errors
    /// When their files cannot be removed; [`Self::keep_held`] then retries.
    pub fn forget(&self, id: AllocId) -> io::Result<()> {
        // Try both, even if one fails.
        [self.paths.disk_token(&id), self.paths.server_tokens(&id)]
            .map(|path| self.change(path, None))
            .into_iter()
            .fold(Ok(()), Result::and)
    }

    fn identities_file(&self, id: AllocId, task: &str) -> PathBuf {
        self.paths.server_identities(&id).join(paths::file_name(task))
    }

    fn held(&self) -> MutexGuard<'_, BTreeMap<PathBuf, Option<Zeroizing<String>>>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, path: PathBuf, text: Option<Zeroizing<String>>) -> io::Result<()> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        self.held().insert(path.clone(), text);
        self.carry_out(&path)
    }

    /// Writes or removes the held change of a path. The caller must hold `turn`.
    fn carry_out(&self, path: &Path) -> io::Result<()> {
        let wanted = self.held().get(path).cloned();
        match wanted {
            None => return Ok(()),
            Some(None) => durable::remove(path)?,
            Some(Some(text)) => write(path, text.as_bytes()).inspect_err(|_| {
                // After a crash an older token would be taken for this one; if there is none, servers are asked
                // again.
                let _ = fs::remove_file(path);
            })?,
        }
        self.held().remove(path);
        Ok(())
    }

    /// Reads the held or the stored token.
    fn read(&self, path: &Path) -> io::Result<Option<Zeroizing<String>>> {
        if let Some(wanted) = self.held().get(path) {
            return Ok(wanted.clone());
        }
        match fs::read_to_string(path) {
            Ok(text) => Ok(Some(Zeroizing::new(text))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// Writes a secret into a directory that only the agent's user may enter.
fn write(path: &Path, secret: &[u8]) -> io::Result<()> {
    path.parent().map_or(Ok(()), durable::make_dir)?;
    durable::write(path, secret)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn tokens_are_private_until_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths { state: dir.path().join("state"), runtime: dir.path().join("run") };
        let tokens = ServerTokens::new(paths.clone());
        let id = AllocId::from_hash([1; 16]);
        let token_of = |task| tokens.of_task(id, task).unwrap().map(|token| token.reveal().to_owned());
        assert_eq!(token_of("main"), None);
        tokens.forget(id).unwrap();
        tokens.keep(id, &[("main".to_owned(), Secret::from("a.b.c"))].into()).unwrap();
        assert_eq!((token_of("main").as_deref(), token_of("other")), (Some("a.b.c"), None));
        let mode = |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let file = paths.server_tokens(&id);
        assert_eq!((mode(&file), mode(file.parent().unwrap())), (0o600, 0o700));
        tokens.keep_for_disk(id, &Secret::from("disk")).unwrap();
        assert_eq!((tokens.of_disk(id).unwrap().reveal(), mode(&paths.disk_token(&id))), ("disk", 0o600));
        assert_eq!(tokens.all(), [id].into());
        tokens.forget(id).unwrap();
        assert!(tokens.all().is_empty());
        assert_eq!((token_of("main"), tokens.of_disk(id).unwrap().is_empty()), (None, true));
    }

    // Tasks stayed without a token permanently if the disk had been full for a moment.
    #[test]
    fn token_is_held_until_the_disk_accepts_it() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths { state: dir.path().join("state"), runtime: dir.path().join("run") };
        let tokens = ServerTokens::new(paths.clone());
        let (kept, forgotten) = (AllocId::from_hash([2; 16]), AllocId::from_hash([3; 16]));
        let token_of = |id| tokens.of_task(id, "main").unwrap().map(|token| token.reveal().to_owned());
        // Nothing can be written, because a file is in the place of the directory.
        std::fs::write(&paths.state, "").unwrap();
        for id in [kept, forgotten] {
            tokens.keep(id, &[("main".to_owned(), Secret::from("a.b.c"))].into()).unwrap_err();
            tokens.keep_for_disk(id, &Secret::from("disk")).unwrap_err();
            assert_eq!(
                (token_of(id).as_deref(), tokens.of_disk(id).unwrap().reveal()),
                (Some("a.b.c"), "disk")
            );
        }
        assert!(!tokens.keep_held());
        tokens.keep(kept, &[("main".to_owned(), Secret::from("d.e.f"))].into()).unwrap_err();
        assert_eq!(token_of(kept).as_deref(), Some("d.e.f"));
        std::fs::remove_file(&paths.state).unwrap();
        // This file cannot be removed either.
        std::fs::create_dir_all(paths.server_tokens(&forgotten).join("x")).unwrap();
        tokens.forget(forgotten).unwrap_err();
        assert_eq!(token_of(forgotten), None);
        // A failing change does not prevent the others.
        std::fs::create_dir_all(paths.disk_token(&kept).join("x")).unwrap();
        assert!(!tokens.keep_held());
        assert!(paths.server_tokens(&kept).is_file());
        std::fs::remove_dir_all(paths.server_tokens(&forgotten)).unwrap();
        assert!(!tokens.keep_held());
        std::fs::remove_dir_all(paths.disk_token(&kept)).unwrap();
        assert!(tokens.keep_held());
        assert_eq!((tokens.all(), token_of(forgotten)), ([kept].into(), None));
        assert_eq!(fs::read_to_string(paths.disk_token(&kept)).unwrap(), "disk");
        assert_eq!(token_of(kept).as_deref(), Some("d.e.f"));
        assert_eq!([kept, forgotten].map(|id| tokens.are_kept(id, true)), [true, false]);
    }

    #[test]
    fn token_left_by_a_crash_is_found_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths { state: dir.path().join("state"), runtime: dir.path().join("run") };
        let tokens = ServerTokens::new(paths.clone());
        let id = AllocId::from_hash([4; 16]);
        let torn = paths.server_tokens(&id).with_file_name(format!(".{id}.tmp"));
        fs::create_dir_all(torn.parent().unwrap()).unwrap();
        fs::write(&torn, "{\"main\":\"a.b").unwrap();
        assert_eq!(tokens.all(), [id].into());
        tokens.forget(id).unwrap();
        assert!(!torn.exists());
    }

    #[test]
    fn stored_identities_are_private_and_removable() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths { state: dir.path().join("state"), runtime: dir.path().join("run") };
        let tokens = ServerTokens::new(paths.clone());
        let id = AllocId::from_hash([1; 16]);
        tokens.forget_identities(id).unwrap();
        assert!(tokens.identities(id, "a/b").unwrap().is_empty());
        let kept = KeptIdentity { token: "a.b.c".into(), renew_at: Some(7) };
        tokens.keep_identities(id, "a/b", &[("aws".to_owned(), kept)].into()).unwrap();
        let mode = |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let path = tokens.identities_file(id, "a/b");
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
        let read_again = &tokens.identities(id, "a/b").unwrap()["aws"];
        assert_eq!((read_again.token.reveal(), read_again.renew_at), ("a.b.c", Some(7)));
        fs::write(&path, "half").unwrap();
        assert!(tokens.identities(id, "a/b").unwrap().is_empty(), "the token is requested again");
        tokens.forget_identities(id).unwrap();
        assert!(!path.exists());
    }
}
