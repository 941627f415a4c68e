//! Tokens that servers have signed for tasks (1.4 and later): kept beside the state, for no eyes but ours and the task's.
//!
//! In: those of an allocation, by task. Out: the one of a task. A file for each allocation, 0600, as they are in no record that anybody
//! is shown. What a full disk does not take is held in memory until it does: servers give each token once.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

use herdlet_api_types::AllocId;
use herdlet_nomad::wire::Secret;
use zeroize::Zeroizing;

use crate::{drivers::identity::Token, durable, paths::Paths};

/// What could not be written yet, by its file.
static HELD: Mutex<BTreeMap<PathBuf, Zeroizing<String>>> = Mutex::new(BTreeMap::new());

/// Keeps the tokens of an allocation, in place of those before.
///
/// # Errors
/// When they can't be written: they are held then, for [`keep_held`]. Where those before are held they take their place.
pub fn keep(paths: &Paths, id: AllocId, signed: &BTreeMap<String, Secret>) -> io::Result<()> {
    let signed: BTreeMap<&str, &str> = signed.iter().map(|(task, token)| (&**task, token.reveal())).collect();
    let text = Zeroizing::new(serde_json::to_string(&signed)?);
    write_or_hold(paths.server_tokens(&id), text)
}

/// Writes what is held, as far as that can be done. True: nothing is held any more.
pub fn keep_held() -> bool {
    // Locked as long as it writes, so that what is forgotten or given anew meanwhile isn't written afterwards.
    let mut held = held();
    held.retain(|path, text| write(path, text.as_bytes()).is_err());
    held.is_empty()
}

fn held() -> MutexGuard<'static, BTreeMap<PathBuf, Zeroizing<String>>> {
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}

fn write_or_hold(path: PathBuf, text: Zeroizing<String>) -> io::Result<()> {
    if let Some(held) = held().get_mut(&path) {
        // In turn, so that there is one or the other at any time.
        *held = text;
        return Ok(());
    }
    let written = write(&path, text.as_bytes());
    if written.is_err() {
        held().insert(path, text);
    }
    written
}

/// What is held, or was written.
fn read(path: &Path) -> io::Result<Option<Zeroizing<String>>> {
    if let Some(text) = held().get(path) {
        return Ok(Some(text.clone()));
    }
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(Zeroizing::new(text))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether there are any of an allocation: a crash may have lost what was held.
pub fn are_kept(paths: &Paths, id: AllocId) -> bool {
    let path = paths.server_tokens(&id);
    held().contains_key(&path) || path.exists()
}

/// The token of a task; none where servers have signed none.
///
/// # Errors
/// When it can't be read.
pub fn of_task(paths: &Paths, id: AllocId, task: &str) -> io::Result<Option<Token>> {
    let Some(text) = read(&paths.server_tokens(&id))? else { return Ok(None) };
    let mut signed: BTreeMap<String, String> = serde_json::from_str(&text)?;
    Ok(signed.remove(task).map(Token::given))
}

/// Keeps what proves to another node that the disk of the allocation before this one may be had.
///
/// # Errors
/// When it can't be written: it is held then, for [`keep_held`].
pub fn keep_for_disk(paths: &Paths, id: AllocId, token: &Secret) -> io::Result<()> {
    write_or_hold(paths.disk_token(&id), Zeroizing::new(token.reveal().to_owned()))
}

/// A secret, in a directory that only we may enter.
pub(super) fn write(path: &Path, secret: &[u8]) -> io::Result<()> {
    path.parent().map_or(Ok(()), durable::make_dir)?;
    durable::write(path, secret)
}

/// The same; empty where there is none.
///
/// # Errors
/// When it can't be read.
pub fn of_disk(paths: &Paths, id: AllocId) -> io::Result<Secret> {
    Ok(read(&paths.disk_token(&id))?.map_or_else(Secret::default, |token| Secret::from(token.as_str())))
}

/// The allocations for which there is something, identities too, and what a crash left of writing it.
///
/// # Errors
/// When a directory can't be read.
pub fn all(paths: &Paths) -> io::Result<BTreeSet<AllocId>> {
    let mut found = BTreeSet::new();
    for dir in paths.given_by_servers() {
        let entries = match fs::read_dir(dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        for entry in entries {
            let name = entry?.file_name();
            let name = name.to_str().map(durable::own_name);
            found.extend(name.and_then(|name| name.parse().ok()).map(AllocId));
        }
    }
    Ok(found)
}

/// Forgets those of an allocation.
///
/// # Errors
/// When they can't be removed.
pub fn forget(paths: &Paths, id: AllocId) -> io::Result<()> {
    let files = [paths.disk_token(&id), paths.server_tokens(&id)];
    files.iter().for_each(|path| drop(held().remove(path)));
    // Each is tried.
    files.iter().map(|path| durable::remove(path)).fold(Ok(()), Result::and)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn they_are_kept_for_nobody_else_until_they_are_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths { state: dir.path().join("state"), runtime: dir.path().join("run") };
        let id = AllocId::from_hash([1; 16]);
        let of = |task| of_task(&paths, id, task).unwrap().map(|token| token.reveal().to_owned());
        assert_eq!(of("main"), None);
        forget(&paths, id).unwrap();
        keep(&paths, id, &[("main".to_owned(), Secret::from("a.b.c"))].into()).unwrap();
        assert_eq!((of("main").as_deref(), of("other")), (Some("a.b.c"), None));
        let mode = |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let file = paths.server_tokens(&id);
        assert_eq!((mode(&file), mode(file.parent().unwrap())), (0o600, 0o700));
        keep_for_disk(&paths, id, &Secret::from("disk")).unwrap();
        assert_eq!((of_disk(&paths, id).unwrap().reveal(), mode(&paths.disk_token(&id))), ("disk", 0o600));
        assert_eq!(all(&paths).unwrap(), [id].into());
        forget(&paths, id).unwrap();
        assert!(all(&paths).unwrap().is_empty());
        assert_eq!((of("main"), of_disk(&paths, id).unwrap().is_empty()), (None, true));
    }

    // Tasks ran without a token for good where the disk had been full for a moment.
    #[test]
    fn what_a_disk_does_not_take_is_held_until_it_does() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths { state: dir.path().join("state"), runtime: dir.path().join("run") };
        let (kept, forgotten) = (AllocId::from_hash([2; 16]), AllocId::from_hash([3; 16]));
        let of = |id| of_task(&paths, id, "main").unwrap().map(|token| token.reveal().to_owned());
        // In the place of its directory nothing can be written.
        std::fs::write(&paths.state, "").unwrap();
        for id in [kept, forgotten] {
            keep(&paths, id, &[("main".to_owned(), Secret::from("a.b.c"))].into()).unwrap_err();
            keep_for_disk(&paths, id, &Secret::from("disk")).unwrap_err();
            assert_eq!((of(id).as_deref(), of_disk(&paths, id).unwrap().reveal()), (Some("a.b.c"), "disk"));
        }
        assert!(!keep_held());
        keep(&paths, kept, &[("main".to_owned(), Secret::from("d.e.f"))].into()).unwrap();
        assert_eq!((of(kept).as_deref(), are_kept(&paths, kept)), (Some("d.e.f"), true));
        forget(&paths, forgotten).unwrap_err();
        let is_held = of_task(&paths, forgotten, "main").is_ok_and(|token| token.is_some());
        assert!(!is_held, "also where its files can't be removed");
        std::fs::remove_file(&paths.state).unwrap();
        // One that can't be written keeps none of the others from it.
        std::fs::create_dir_all(paths.disk_token(&kept).join("x")).unwrap();
        assert!(!keep_held());
        assert!(paths.server_tokens(&kept).is_file());
        std::fs::remove_dir_all(paths.disk_token(&kept)).unwrap();
        assert!(keep_held());
        assert_eq!((all(&paths).unwrap(), of(forgotten)), ([kept].into(), None));
        assert_eq!(fs::read_to_string(paths.disk_token(&kept)).unwrap(), "disk");
        assert_eq!(of(kept).as_deref(), Some("d.e.f"));
        assert_eq!([kept, forgotten].map(|id| are_kept(&paths, id)), [true, false]);
    }

    #[test]
    fn what_a_crash_left_of_a_token_is_found_and_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths { state: dir.path().join("state"), runtime: dir.path().join("run") };
        let id = AllocId::from_hash([4; 16]);
        let torn = paths.server_tokens(&id).with_file_name(format!(".{id}.tmp"));
        fs::create_dir_all(torn.parent().unwrap()).unwrap();
        fs::write(&torn, "{\"main\":\"a.b").unwrap();
        assert_eq!(all(&paths).unwrap(), [id].into());
        forget(&paths, id).unwrap();
        assert!(!torn.exists());
    }
}
