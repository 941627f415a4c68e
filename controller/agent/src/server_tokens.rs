//! Tokens that servers have signed for tasks (1.4 and later), and identities (1.7 and later): kept beside the state, for nobody but us and
//! the task.
//!
//! In: those of an allocation, by task. Out: the ones of a task. A file for each allocation, 0600; no record and no API shows them.
//! What the disk does not take is held in memory until it does; if that is lost, servers send it again with the allocation.

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
    /// What is to be in files and is not yet, by path; none: the file is to be removed. Locked for moments only: tasks begin with it.
    held: Mutex<BTreeMap<PathBuf, Option<Zeroizing<String>>>>,
    /// Files change one at a time, or an older token would be written after a newer one.
    turn: Mutex<()>,
}

/// An identity as it is kept.
#[derive(Clone, Serialize, Deserialize)]
pub struct KeptIdentity {
    pub token: Secret,
    /// When another one is to be asked for, in nanoseconds since 1970; none: it doesn't expire.
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
    /// Those below these paths. Nothing is read yet.
    pub fn new(paths: Paths) -> Self {
        Self { paths, held: Mutex::default(), turn: Mutex::default() }
    }

    /// Keeps the tokens of an allocation, in place of those before.
    ///
    /// # Errors
    /// When they can't be written: they are held then, for [`Self::keep_held`].
    pub fn keep(&self, id: AllocId, signed: &BTreeMap<String, Secret>) -> io::Result<()> {
        let signed: BTreeMap<&str, &str> =
            signed.iter().map(|(task, token)| (&**task, token.reveal())).collect();
        let text = Zeroizing::new(serde_json::to_string(&signed)?);
        self.change(self.paths.server_tokens(&id), Some(text))
    }

    /// Writes and removes what is held, as far as that can be done. True: nothing is held any more.
    pub fn keep_held(&self) -> bool {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let paths: Vec<PathBuf> = self.held().keys().cloned().collect();
        // What fails stays.
        paths.iter().for_each(|path| drop(self.carry_out(path)));
        self.held().is_empty()
    }

    /// Whether there are any of an allocation, and its token for the disk if it waits for one: a crash may have taken what was held.
    pub fn are_kept(&self, id: AllocId, is_heir: bool) -> bool {
        self.paths.server_tokens(&id).exists() && (!is_heir || self.paths.disk_token(&id).exists())
    }

    /// The token of a task; none where servers have signed none.
    ///
    /// # Errors
    /// When it can't be read.
    pub fn of_task(&self, id: AllocId, task: &str) -> io::Result<Option<Token>> {
        let Some(text) = self.read(&self.paths.server_tokens(&id))? else { return Ok(None) };
        let mut signed: BTreeMap<String, String> = serde_json::from_str(&text)?;
        Ok(signed.remove(task).map(Token::given))
    }

    /// Keeps the proof to another node that this allocation may have the disk of its predecessor.
    ///
    /// # Errors
    /// When it can't be written: it is held then, for [`Self::keep_held`].
    pub fn keep_for_disk(&self, id: AllocId, token: &Secret) -> io::Result<()> {
        self.change(self.paths.disk_token(&id), Some(Zeroizing::new(token.reveal().to_owned())))
    }

    /// The same; empty where there is none.
    ///
    /// # Errors
    /// When it can't be read.
    pub fn of_disk(&self, id: AllocId) -> io::Result<Secret> {
        let token = self.read(&self.paths.disk_token(&id))?;
        Ok(token.map_or_else(Secret::default, |token| Secret::from(token.as_str())))
    }

    /// Identities that were kept of a task. Those that can't be read are left out: servers sign others.
    ///
    /// # Errors
    /// When the file can't be read.
    pub fn identities(&self, id: AllocId, task: &str) -> io::Result<Identities> {
        let text = match fs::read(self.identities_file(id, task)) {
            Ok(text) => Zeroizing::new(text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Identities::new()),
            Err(error) => return Err(error),
        };
        Ok(serde_json::from_slice(&text).unwrap_or_default())
    }

    /// Keeps identities of a task, in place of those before.
    ///
    /// # Errors
    /// When they can't be written.
    pub fn keep_identities(&self, id: AllocId, task: &str, kept: &Identities) -> io::Result<()> {
        let text = Zeroizing::new(serde_json::to_string(kept)?);
        write(&self.identities_file(id, task), text.as_bytes())
    }

    /// Removes the identities of an allocation.
    ///
    /// # Errors
    /// When they can't be removed.
    pub fn forget_identities(&self, id: AllocId) -> io::Result<()> {
        match fs::remove_dir_all(self.paths.server_identities(&id)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// The allocations for which there is something, identities too, and what a crash left of writing it. A directory that can't be read is
    /// logged.
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
    /// When their files can't be removed: that is left to [`Self::keep_held`].
    pub fn forget(&self, id: AllocId) -> io::Result<()> {
        // Each is tried.
        [self.paths.disk_token(&id), self.paths.server_tokens(&id)]
            .map(|path| self.change(path, None))
            .into_iter()
            .fold(Ok(()), Result::and)
    }

    fn identities_file(&self, id: AllocId, task: &str) -> PathBuf {
        self.paths.server_identities(&id).join(paths::encode(task))
    }

    fn held(&self) -> MutexGuard<'_, BTreeMap<PathBuf, Option<Zeroizing<String>>>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, path: PathBuf, text: Option<Zeroizing<String>>) -> io::Result<()> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        self.held().insert(path.clone(), text);
        self.carry_out(&path)
    }

    /// Writes or removes what is held under a path. In turn only.
    fn carry_out(&self, path: &Path) -> io::Result<()> {
        let wanted = self.held().get(path).cloned();
        match wanted {
            None => return Ok(()),
            Some(None) => durable::remove(path)?,
            Some(Some(text)) => write(path, text.as_bytes()).inspect_err(|_| {
                // An older one would be taken for it after a crash; of none at all servers are asked again.
                let _ = fs::remove_file(path);
            })?,
        }
        self.held().remove(path);
        Ok(())
    }

    /// What is held, or was written.
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

/// A secret, in a directory that only we may enter.
fn write(path: &Path, secret: &[u8]) -> io::Result<()> {
    path.parent().map_or(Ok(()), durable::make_dir)?;
    durable::write(path, secret)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn they_are_kept_for_nobody_else_until_they_are_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths { state: dir.path().join("state"), runtime: dir.path().join("run") };
        let tokens = ServerTokens::new(paths.clone());
        let id = AllocId::from_hash([1; 16]);
        let of = |task| tokens.of_task(id, task).unwrap().map(|token| token.reveal().to_owned());
        assert_eq!(of("main"), None);
        tokens.forget(id).unwrap();
        tokens.keep(id, &[("main".to_owned(), Secret::from("a.b.c"))].into()).unwrap();
        assert_eq!((of("main").as_deref(), of("other")), (Some("a.b.c"), None));
        let mode = |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let file = paths.server_tokens(&id);
        assert_eq!((mode(&file), mode(file.parent().unwrap())), (0o600, 0o700));
        tokens.keep_for_disk(id, &Secret::from("disk")).unwrap();
        assert_eq!((tokens.of_disk(id).unwrap().reveal(), mode(&paths.disk_token(&id))), ("disk", 0o600));
        assert_eq!(tokens.all(), [id].into());
        tokens.forget(id).unwrap();
        assert!(tokens.all().is_empty());
        assert_eq!((of("main"), tokens.of_disk(id).unwrap().is_empty()), (None, true));
    }

    // Tasks ran without a token for good where the disk had been full for a moment.
    #[test]
    fn what_a_disk_does_not_take_is_held_until_it_does() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths { state: dir.path().join("state"), runtime: dir.path().join("run") };
        let tokens = ServerTokens::new(paths.clone());
        let (kept, forgotten) = (AllocId::from_hash([2; 16]), AllocId::from_hash([3; 16]));
        let of = |id| tokens.of_task(id, "main").unwrap().map(|token| token.reveal().to_owned());
        // In the place of its directory nothing can be written.
        std::fs::write(&paths.state, "").unwrap();
        for id in [kept, forgotten] {
            tokens.keep(id, &[("main".to_owned(), Secret::from("a.b.c"))].into()).unwrap_err();
            tokens.keep_for_disk(id, &Secret::from("disk")).unwrap_err();
            assert_eq!((of(id).as_deref(), tokens.of_disk(id).unwrap().reveal()), (Some("a.b.c"), "disk"));
        }
        assert!(!tokens.keep_held());
        tokens.keep(kept, &[("main".to_owned(), Secret::from("d.e.f"))].into()).unwrap_err();
        assert_eq!(of(kept).as_deref(), Some("d.e.f"));
        std::fs::remove_file(&paths.state).unwrap();
        // Nor can this one be removed.
        std::fs::create_dir_all(paths.server_tokens(&forgotten).join("x")).unwrap();
        tokens.forget(forgotten).unwrap_err();
        assert_eq!(of(forgotten), None);
        // What can't be done keeps nothing else from being done.
        std::fs::create_dir_all(paths.disk_token(&kept).join("x")).unwrap();
        assert!(!tokens.keep_held());
        assert!(paths.server_tokens(&kept).is_file());
        std::fs::remove_dir_all(paths.server_tokens(&forgotten)).unwrap();
        assert!(!tokens.keep_held());
        std::fs::remove_dir_all(paths.disk_token(&kept)).unwrap();
        assert!(tokens.keep_held());
        assert_eq!((tokens.all(), of(forgotten)), ([kept].into(), None));
        assert_eq!(fs::read_to_string(paths.disk_token(&kept)).unwrap(), "disk");
        assert_eq!(of(kept).as_deref(), Some("d.e.f"));
        assert_eq!([kept, forgotten].map(|id| tokens.are_kept(id, true)), [true, false]);
    }

    #[test]
    fn what_a_crash_left_of_a_token_is_found_and_forgotten() {
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
    fn what_is_kept_can_be_read_by_nobody_else_and_is_forgotten() {
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
        assert!(tokens.identities(id, "a/b").unwrap().is_empty(), "it is asked for again");
        tokens.forget_identities(id).unwrap();
        assert!(!path.exists());
    }
}
