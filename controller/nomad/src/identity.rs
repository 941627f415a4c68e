//! Who a node is: an id, and a secret that proves it. Made once and kept for good.
//!
//! In: the directory of the agent's state, and perhaps a data directory of Nomad whose node we are from now on. Out: an [`Identity`], in
//! the files `client-id` and `secret-id`, 0600, as stock clients keep them (`hashicorp/nomad:client/client.go`, `setupNode`); and `identity.jwt`, which servers sign. Must not
//! know what they are good for.
//!
//! Both files are on disk before the call returns: a node that forgot its secret could not register until servers have forgotten the node.

use std::{
    fmt,
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Read as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use zeroize::Zeroizing;

use crate::wire::{NodeId, Secret};

/// Names of the files, Nomad's.
const ID: &str = "client-id";
const SECRET: &str = "secret-id";

/// The file of the identity that servers have signed. Stock clients keep it in their database.
const SIGNED: &str = "identity.jwt";

/// Bytes that a signed identity has at most: it names a node, its pool and its class.
const SIGNED_MAX: u64 = 16 * 1024;

/// A node's id and secret. `Debug` shows the id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// A UUID.
    pub id: NodeId,
    /// A UUID.
    pub secret: Secret,
}

/// What keeps a node from knowing who it is. Reads after "failed to".
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// A file can't be read.
    #[error("read {}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file or directory can't be written.
    #[error("write {}", path.display())]
    Write {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file holds something else. What, is not told: it may be a secret with a typing error.
    #[error("read {} as a UUID", path.display())]
    NoUuid {
        /// Which.
        path: PathBuf,
    },
    /// There is one of the two, and not the other. Made anew, servers would refuse the node, or take it for another one.
    #[error("find {} beside its companion", path.display())]
    Half {
        /// The one that is missing.
        path: PathBuf,
    },
    /// There is no randomness.
    #[error("draw random bytes")]
    Random(#[source] io::Error),
}

impl Identity {
    /// The identity that is kept in `dir`; else the one of Nomad's client whose data directory is `moved_from`, which is kept from now
    /// on; else a new one.
    ///
    /// # Errors
    /// See [`IdentityError`]. What can't be read is never replaced.
    pub fn load_or_create(dir: &Path, moved_from: Option<&Path>) -> Result<Self, IdentityError> {
        if let Some(kept) = Self::load(dir)? {
            return Ok(kept);
        }
        let taken = moved_from.map(|nomad| Self::load(&nomad.join("client"))).transpose()?.flatten();
        let identity = match taken {
            Some(taken) => taken,
            None => Self::random()?,
        };
        identity.keep(dir)?;
        Ok(identity)
    }

    /// The identity that is kept in a directory, if there is one.
    ///
    /// # Errors
    /// See [`IdentityError`].
    pub fn load(dir: &Path) -> Result<Option<Self>, IdentityError> {
        let (id, secret) = (dir.join(ID), dir.join(SECRET));
        match (read_uuid(&id)?, read_uuid(&secret)?) {
            // Servers compare the secret as it is written; ids are in lower case.
            (Some(id), Some(secret)) => {
                let id = NodeId::from(&id.to_ascii_lowercase()[..]);
                Ok(Some(Self { id, secret: Secret::from(&secret[..]) }))
            }
            (None, None) => Ok(None),
            // The id is written last: what has only a secret was interrupted when it was made, and is known to nobody.
            (None, Some(_)) => Ok(None),
            (Some(_), None) => Err(IdentityError::Half { path: secret }),
        }
    }

    /// The identity that servers have signed, as it was kept in a directory; empty: there is none.
    ///
    /// # Errors
    /// When the file can't be read. One that is too long or no text is none.
    pub fn load_signed(dir: &Path) -> Result<Secret, IdentityError> {
        let path = dir.join(SIGNED);
        let Some(bytes) = read(&path, SIGNED_MAX)? else { return Ok(Secret::default()) };
        Ok(Secret::from(std::str::from_utf8(&bytes).unwrap_or_default().trim()))
    }

    /// Keeps the identity that servers have signed; an empty one is forgotten.
    ///
    /// # Errors
    /// When it can't be written.
    pub fn keep_signed(dir: &Path, signed: &Secret) -> Result<(), IdentityError> {
        let path = dir.join(SIGNED);
        let kept = make(dir).and_then(|()| write(&path, signed.reveal().as_bytes())).and_then(|()| sync(dir));
        kept.map_err(|source| IdentityError::Write { path, source })
    }

    /// One that nobody has had before.
    ///
    /// # Errors
    /// Without randomness.
    pub fn random() -> Result<Self, IdentityError> {
        let id = random_uuid().map_err(IdentityError::Random)?;
        let secret = random_uuid().map_err(IdentityError::Random)?;
        Ok(Self { id: NodeId::from(&id[..]), secret: Secret::from(&secret[..]) })
    }

    fn keep(&self, dir: &Path) -> Result<(), IdentityError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| IdentityError::Write { path, source }
        };
        make(dir).map_err(failed(dir))?;
        for (name, text) in [(SECRET, self.secret.reveal()), (ID, self.id.as_str())] {
            let path = dir.join(name);
            write(&path, text.as_bytes()).map_err(failed(&path))?;
            sync(dir).map_err(failed(dir))?;
        }
        Ok(())
    }
}

/// Makes a directory and those above it, all of which are on disk afterwards.
fn make(dir: &Path) -> io::Result<()> {
    let missing: Vec<_> = dir.ancestors().take_while(|dir| !dir.exists()).collect();
    DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    for made in missing {
        sync(made.parent().filter(|parent| *parent != Path::new("")).unwrap_or(Path::new(".")))?;
    }
    Ok(())
}

/// Lets what a directory holds be on disk.
fn sync(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// Whole or not at all. Who wrote it before and was interrupted has left nothing that counts.
fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let new = path.with_extension("new");
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&new, path)
}

/// What a file holds, up to so many bytes. None: there is no file.
fn read(path: &Path, most: u64) -> Result<Option<Zeroizing<Vec<u8>>>, IdentityError> {
    let failed = |source| IdentityError::Read { path: path.to_owned(), source };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    // With room for all: bytes that are moved would leave some behind.
    let mut bytes = Zeroizing::new(Vec::with_capacity(usize::try_from(most).unwrap_or_default()));
    file.take(most).read_to_end(&mut bytes).map_err(failed)?;
    Ok(Some(bytes))
}

/// A file's UUID, as it is written. None: there is no file.
fn read_uuid(path: &Path) -> Result<Option<Zeroizing<String>>, IdentityError> {
    let Some(bytes) = read(path, 64)? else { return Ok(None) };
    let text = std::str::from_utf8(&bytes).ok().map(str::trim).filter(|text| is_uuid(text));
    let text = text.ok_or_else(|| IdentityError::NoUuid { path: path.to_owned() })?;
    Ok(Some(Zeroizing::new(text.to_owned())))
}

fn is_uuid(text: &str) -> bool {
    let is_fit = |(at, byte): (usize, u8)| match at {
        8 | 13 | 18 | 23 => byte == b'-',
        _ => byte.is_ascii_hexdigit(),
    };
    text.len() == 36 && text.bytes().enumerate().all(is_fit)
}

fn random_uuid() -> io::Result<Zeroizing<String>> {
    let mut bytes = Zeroizing::new([0_u8; 16]);
    File::open("/dev/urandom")?.read_exact(&mut *bytes)?;
    // Version 4, as RFC 9562 has it.
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let mut text = Zeroizing::new(String::with_capacity(36));
    for (at, byte) in bytes.iter().enumerate() {
        let dash = if matches!(at, 4 | 6 | 8 | 10) { "-" } else { "" };
        fmt::Write::write_fmt(&mut *text, format_args!("{dash}{byte:02x}")).map_err(io::Error::other)?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn an_identity_is_made_once() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("a/b");
        let made = Identity::load_or_create(&state, None).unwrap();
        assert_eq!(Identity::load_or_create(&state, None).unwrap(), made);
        assert_ne!(Identity::random().unwrap(), made);
        for name in [ID, SECRET] {
            assert_eq!(fs::metadata(state.join(name)).unwrap().permissions().mode() & 0o777, 0o600);
            assert!(is_uuid(&fs::read_to_string(state.join(name)).unwrap()));
        }
        let shown = format!("{made:?}");
        assert!(shown.contains(made.id.as_str()) && !shown.contains(made.secret.reveal()), "{shown}");
    }

    #[test]
    fn a_signed_identity_is_kept_and_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("a/b");
        assert!(Identity::load_signed(&state).unwrap().is_empty());
        Identity::keep_signed(&state, &"header.claims.signature".into()).unwrap();
        assert_eq!(Identity::load_signed(&state).unwrap(), "header.claims.signature".into());
        assert_eq!(fs::metadata(state.join(SIGNED)).unwrap().permissions().mode() & 0o777, 0o600);
        Identity::keep_signed(&state, &Secret::default()).unwrap();
        assert!(Identity::load_signed(&state).unwrap().is_empty());
    }

    #[test]
    fn a_nomad_client_goes_on_as_who_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let (nomad, state) = (dir.path().join("nomad"), dir.path().join("state"));
        fs::create_dir_all(nomad.join("client")).unwrap();
        fs::write(nomad.join("client").join(ID), "8CAB6B85-ab0f-1241-caf0-feabba75176d\n").unwrap();
        fs::write(nomad.join("client").join(SECRET), "41c3345e-ea81-a8df-6719-6e14bbb7f4a0").unwrap();
        let taken = Identity::load_or_create(&state, Some(&nomad)).unwrap();
        assert_eq!(taken.id.as_str(), "8cab6b85-ab0f-1241-caf0-feabba75176d");
        fs::remove_dir_all(&nomad).unwrap();
        assert_eq!(Identity::load_or_create(&state, Some(&nomad)).unwrap(), taken);
    }

    #[test]
    fn what_is_damaged_is_never_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let made = Identity::load_or_create(dir.path(), None).unwrap();
        let load = || Identity::load_or_create(dir.path(), None);
        fs::write(dir.path().join(SECRET), "").unwrap();
        assert!(matches!(load(), Err(IdentityError::NoUuid { .. })));
        fs::remove_file(dir.path().join(SECRET)).unwrap();
        assert!(matches!(load(), Err(IdentityError::Half { .. })));
        // Interrupted when it was made.
        made.keep(dir.path()).unwrap();
        fs::remove_file(dir.path().join(ID)).unwrap();
        fs::write(dir.path().join("client-id.new"), "half").unwrap();
        assert_ne!(load().unwrap(), made);
    }
}
