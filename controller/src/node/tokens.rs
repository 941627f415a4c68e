//! Tokens that servers have signed for tasks (1.4 and later): kept beside the state, for no eyes but ours and the task's.
//!
//! In: those of an allocation, by task. Out: the one of a task. A file for each allocation, 0600, as they are in no record that anybody
//! is shown. What a disk does not take is held in memory until it does; what is lost with that, servers give once more with the allocation.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

use herdlet_api_types::AllocId;
use herdlet_nomad::wire::Secret;
use zeroize::Zeroizing;

use crate::{drivers::identity::Token, durable, paths::Paths};

/// What is to be in files that are not so yet, by path; none: it is to be removed. Locked for moments only: tasks begin with what it says.
static HELD: Mutex<BTreeMap<PathBuf, Option<Zeroizing<String>>>> = Mutex::new(BTreeMap::new());

/// Whose turn it is to change files: one at a time, or an older token would be written after a newer one.
static TURN: Mutex<()> = Mutex::new(());

/// Keeps the tokens of an allocation, in place of those before.
///
/// # Errors
/// When they can't be written: they are held then, for [`keep_held`].
pub fn keep(paths: &Paths, id: AllocId, signed: &BTreeMap<String, Secret>) -> io::Result<()> {
    let signed: BTreeMap<&str, &str> = signed.iter().map(|(task, token)| (&**task, token.reveal())).collect();
    let text = Zeroizing::new(serde_json::to_string(&signed)?);
    change(paths.server_tokens(&id), Some(text))
}

/// Writes and removes what is held, as far as that can be done. True: nothing is held any more.
pub fn keep_held() -> bool {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let paths: Vec<PathBuf> = held().keys().cloned().collect();
    // What fails stays.
    paths.iter().for_each(|path| drop(carry_out(path)));
    held().is_empty()
}

fn held() -> MutexGuard<'static, BTreeMap<PathBuf, Option<Zeroizing<String>>>> {
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}

fn change(path: PathBuf, text: Option<Zeroizing<String>>) -> io::Result<()> {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    held().insert(path.clone(), text);
    carry_out(&path)
}

/// Writes or removes what is held under a path. In turn only.
fn carry_out(path: &Path) -> io::Result<()> {
    let wanted = held().get(path).cloned();
    match wanted {
        None => return Ok(()),
        Some(None) => durable::remove(path)?,
        Some(Some(text)) => write(path, text.as_bytes()).inspect_err(|_| {
            // An older one would be taken for it after a crash; of none at all servers are asked again.
            let _ = fs::remove_file(path);
        })?,
    }
    held().remove(path);
    Ok(())
}

/// What is held, or was written.
fn read(path: &Path) -> io::Result<Option<Zeroizing<String>>> {
    if let Some(wanted) = held().get(path) {
        return Ok(wanted.clone());
    }
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(Zeroizing::new(text))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether there are any of an allocation, and what it gets a disk for if it is an heir: a crash may have taken what was held.
pub fn are_kept(paths: &Paths, id: AllocId, is_heir: bool) -> bool {
    paths.server_tokens(&id).exists() && (!is_heir || paths.disk_token(&id).exists())
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
    change(paths.disk_token(&id), Some(Zeroizing::new(token.reveal().to_owned())))
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

/// The allocations for which there is something, identities too, and what a crash left of writing it. A directory that can't be read is told
/// in the log.
pub fn all(paths: &Paths) -> BTreeSet<AllocId> {
    let mut found = BTreeSet::new();
    for dir in paths.given_by_servers() {
        match fs::read_dir(&dir) {
            Ok(entries) => {
                let names = entries.filter_map(|entry| Some(entry.ok()?.file_name()));
                let id = |name: OsString| durable::own_name(name.to_str()?).parse().ok().map(AllocId);
                found.extend(names.filter_map(id));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => tracing::warn!(dir = %dir.display(), %error, "failed to look for tokens"),
        }
    }
    found
}

/// Forgets those of an allocation.
///
/// # Errors
/// When their files can't be removed: that is left to [`keep_held`].
pub fn forget(paths: &Paths, id: AllocId) -> io::Result<()> {
    // Each is tried.
    [paths.disk_token(&id), paths.server_tokens(&id)]
        .map(|path| change(path, None))
        .into_iter()
        .fold(Ok(()), Result::and)
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
        assert_eq!(all(&paths), [id].into());
        forget(&paths, id).unwrap();
        assert!(all(&paths).is_empty());
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
        keep(&paths, kept, &[("main".to_owned(), Secret::from("d.e.f"))].into()).unwrap_err();
        assert_eq!(of(kept).as_deref(), Some("d.e.f"));
        std::fs::remove_file(&paths.state).unwrap();
        // Nor can this one be removed.
        std::fs::create_dir_all(paths.server_tokens(&forgotten).join("x")).unwrap();
        forget(&paths, forgotten).unwrap_err();
        assert_eq!(of(forgotten), None);
        // What can't be done keeps nothing else from being done.
        std::fs::create_dir_all(paths.disk_token(&kept).join("x")).unwrap();
        assert!(!keep_held());
        assert!(paths.server_tokens(&kept).is_file());
        std::fs::remove_dir_all(paths.server_tokens(&forgotten)).unwrap();
        assert!(!keep_held());
        std::fs::remove_dir_all(paths.disk_token(&kept)).unwrap();
        assert!(keep_held());
        assert_eq!((all(&paths), of(forgotten)), ([kept].into(), None));
        assert_eq!(fs::read_to_string(paths.disk_token(&kept)).unwrap(), "disk");
        assert_eq!(of(kept).as_deref(), Some("d.e.f"));
        assert_eq!([kept, forgotten].map(|id| are_kept(&paths, id, true)), [true, false]);
    }

    #[test]
    fn what_a_crash_left_of_a_token_is_found_and_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths { state: dir.path().join("state"), runtime: dir.path().join("run") };
        let id = AllocId::from_hash([4; 16]);
        let torn = paths.server_tokens(&id).with_file_name(format!(".{id}.tmp"));
        fs::create_dir_all(torn.parent().unwrap()).unwrap();
        fs::write(&torn, "{\"main\":\"a.b").unwrap();
        assert_eq!(all(&paths), [id].into());
        forget(&paths, id).unwrap();
        assert!(!torn.exists());
    }
}
