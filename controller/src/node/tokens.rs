//! Tokens that servers have signed for tasks (1.4 and later): kept beside the state, for no eyes but ours and the task's.
//!
//! In: those of an allocation, by task. Out: the one of a task. A file for each allocation, 0600, as they are in no record that anybody
//! is shown.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::Path,
};

use herdlet_api_types::AllocId;
use herdlet_nomad::wire::Secret;

use crate::{drivers::identity::Token, durable, paths::Paths};

/// Keeps the tokens of an allocation, in place of those before.
///
/// # Errors
/// When they can't be written.
pub fn keep(paths: &Paths, id: AllocId, signed: &BTreeMap<String, Secret>) -> io::Result<()> {
    let signed: BTreeMap<&str, &str> = signed.iter().map(|(task, token)| (&**task, token.reveal())).collect();
    let text = zeroize::Zeroizing::new(serde_json::to_string(&signed)?);
    write(&paths.server_tokens(&id), text.as_bytes())
}

/// The token of a task; none where servers have signed none.
///
/// # Errors
/// When it can't be read.
pub fn of_task(paths: &Paths, id: AllocId, task: &str) -> io::Result<Option<Token>> {
    let text = match fs::read(paths.server_tokens(&id)) {
        Ok(text) => zeroize::Zeroizing::new(text),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut signed: BTreeMap<String, String> = serde_json::from_slice(&text)?;
    Ok(signed.remove(task).map(Token::given))
}

/// Keeps what proves to another node that the disk of the allocation before this one may be had.
///
/// # Errors
/// When it can't be written.
pub fn keep_for_disk(paths: &Paths, id: AllocId, token: &Secret) -> io::Result<()> {
    write(&paths.disk_token(&id), token.reveal().as_bytes())
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
    match fs::read_to_string(paths.disk_token(&id)) {
        Ok(token) => Ok(token.into()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Secret::default()),
        Err(error) => Err(error),
    }
}

/// The allocations for which there is something, identities too.
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
            found.extend(entry?.file_name().to_str().and_then(|name| name.parse().ok()).map(AllocId));
        }
    }
    Ok(found)
}

/// Forgets those of an allocation.
///
/// # Errors
/// When they can't be removed.
pub fn forget(paths: &Paths, id: AllocId) -> io::Result<()> {
    durable::remove(&paths.disk_token(&id))?;
    durable::remove(&paths.server_tokens(&id))
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
}
