//! The node's identity: an id, and a secret that proves it. Created once and kept for good.
//!
//! In: the agent's state directory, and optionally the data directory of a Nomad client whose node the agent takes over. Out: an
//! [`Identity`], in the files `client-id` and `secret-id` with mode 0600, in the format of stock clients
//! (`hashicorp/nomad:client/client.go`, `setupNode`); and `identity.jwt`, the identity signed by servers. Must not know how they are used.
//!
//! Both files are on disk before the call returns: a node that lost its secret could not register until servers have forgotten the node.

use std::{
    fmt,
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Read as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use zeroize::Zeroizing;

use crate::wire::{NodeId, Secret};

/// File names, as in Nomad.
const ID: &str = "client-id";
const SECRET: &str = "secret-id";

/// The file of the identity signed by servers. Stock clients keep it in their database.
const SIGNED: &str = "identity.jwt";

/// Maximum size of a signed identity in bytes: it names a node, its pool and its class.
const SIGNED_MAX: u64 = 16 * 1024;

/// A node's id and secret. `Debug` prints only the id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// A UUID.
    pub id: NodeId,
    /// A UUID.
    pub secret: Secret,
}

/// Why the identity cannot be loaded or created. Reads after "failed to".
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// A file cannot be read.
    #[error("read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A file or directory cannot be written.
    #[error("write {}", path.display())]
    Write {
        /// The file or directory.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A file does not hold a UUID. The content is not reported: it may be a mistyped secret.
    #[error("read {}: it does not hold a UUID", path.display())]
    NoUuid {
        /// The file.
        path: PathBuf,
    },
    /// One of the two files is missing. With a newly created one, servers would refuse the node or treat it as another one.
    #[error("find {}: client-id and secret-id must exist together", path.display())]
    Half {
        /// The missing file.
        path: PathBuf,
    },
    /// Random bytes are unavailable.
    #[error("get random bytes")]
    Random(#[source] io::Error),
}

impl Identity {
    /// Loads the identity from `dir`. If there is none, copies the one from the Nomad data directory `moved_from`, or creates one.
    ///
    /// # Errors
    /// See [`IdentityError`]. Unreadable files are never replaced.
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

    /// Loads the identity from a directory; `None` if there is none.
    ///
    /// # Errors
    /// See [`IdentityError`].
    pub fn load(dir: &Path) -> Result<Option<Self>, IdentityError> {
        let (id, secret) = (dir.join(ID), dir.join(SECRET));
        match (read_uuid(&id)?, read_uuid(&secret)?) {
            // Servers compare the secret literally; ids are in lower case.
            (Some(id), Some(secret)) => {
                let id = NodeId::from(&id.to_ascii_lowercase()[..]);
                Ok(Some(Self { id, secret: Secret::from(&secret[..]) }))
            }
            (None, None) => Ok(None),
            // The id is written last: a secret without an id is left from an interrupted creation, and no server knows it.
            (None, Some(_)) => Ok(None),
            (Some(_), None) => Err(IdentityError::Half { path: secret }),
        }
    }

    /// Loads the stored identity signed by servers; empty if there is none.
    ///
    /// # Errors
    /// If the file cannot be read. A file that is not UTF-8, or too long, gives an empty identity.
    pub fn load_signed(dir: &Path) -> Result<Secret, IdentityError> {
        let path = dir.join(SIGNED);
        let bytes = read(&path, SIGNED_MAX + 1)?.filter(|bytes| bytes.len() as u64 <= SIGNED_MAX);
        let Some(bytes) = bytes else { return Ok(Secret::default()) };
        Ok(Secret::from(std::str::from_utf8(&bytes).unwrap_or_default().trim()))
    }

    /// Stores the identity signed by servers; an empty one clears the file.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn keep_signed(dir: &Path, signed: &Secret) -> Result<(), IdentityError> {
        let path = dir.join(SIGNED);
        let kept = make(dir).and_then(|()| write(&path, signed.reveal().as_bytes())).and_then(|()| sync(dir));
        kept.map_err(|source| IdentityError::Write { path, source })
    }

    /// Creates a new identity.
    ///
    /// # Errors
    /// If random bytes are unavailable.
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

/// Creates a directory and its missing parents, and syncs them to disk.
fn make(dir: &Path) -> io::Result<()> {
    let missing: Vec<_> = dir.ancestors().take_while(|dir| !dir.exists()).collect();
    DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    for made in missing {
        sync(made.parent().filter(|parent| *parent != Path::new("")).unwrap_or(Path::new(".")))?;
    }
    Ok(())
}

/// Syncs a directory to disk.
fn sync(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// Replaces a file atomically. A leftover of an interrupted write is removed.
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

/// Reads up to `most` bytes of a file; `None` if it does not exist.
fn read(path: &Path, most: u64) -> Result<Option<Zeroizing<Vec<u8>>>, IdentityError> {
    let failed = |source| IdentityError::Read { path: path.to_owned(), source };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    // Reserve the full size: growing the buffer would leave copies of the secret in memory.
    let mut bytes = Zeroizing::new(Vec::with_capacity(usize::try_from(most).unwrap_or_default()));
    file.take(most).read_to_end(&mut bytes).map_err(failed)?;
    Ok(Some(bytes))
}

/// Reads a UUID from a file, as written; `None` if the file does not exist.
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
    // Version 4 of RFC 9562.
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
        fs::write(state.join(SIGNED), "x".repeat(16 * 1024 + 1)).unwrap();
        assert!(Identity::load_signed(&state).unwrap().is_empty(), "a part of a token is not accepted");
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
    fn damaged_identity_is_never_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let made = Identity::load_or_create(dir.path(), None).unwrap();
        let load = || Identity::load_or_create(dir.path(), None);
        fs::write(dir.path().join(SECRET), "").unwrap();
        assert!(matches!(load(), Err(IdentityError::NoUuid { .. })));
        fs::remove_file(dir.path().join(SECRET)).unwrap();
        assert!(matches!(load(), Err(IdentityError::Half { .. })));
        // The creation was interrupted.
        made.keep(dir.path()).unwrap();
        fs::remove_file(dir.path().join(ID)).unwrap();
        fs::write(dir.path().join("client-id.new"), "half").unwrap();
        assert_ne!(load().unwrap(), made);
    }
}
