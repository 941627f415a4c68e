//! Where keys come from: a file of the operator, a systemd credential, or a file that the agent generates.
//!
//! In: the config, the environment, the directory of keys. Out: a [`Keyring`], or why there is none. Only the generated file
//! is ever written. Its keys decrypt in any case, so that an operator can move to a file or a credential: the first key
//! of the chosen source encrypts from then on.

use std::{
    fs, io,
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use herdlet_base::{durable, ownership};
use zeroize::Zeroizing;

use crate::{
    error::KeyError,
    keyring::{self, KeyId, Keyring},
};

/// The name of the systemd credential.
pub const CREDENTIAL: &str = "herdlet.variables-key";
/// The generated file, in the directory of keys.
const GENERATED: &str = "variables";
/// A larger file is not a key file.
const BYTES_MAX: u64 = 64 * 1024;

/// Where the keys are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeySource {
    /// The file of the operator; none if the agent generates the keys.
    given: Option<Given>,
    generated: PathBuf,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Given {
    /// Named in the config.
    File(PathBuf),
    /// Provided by systemd.
    Credential(PathBuf),
}

impl Given {
    fn path(&self) -> &Path {
        match self {
            Self::File(path) | Self::Credential(path) => path,
        }
    }
}

impl KeySource {
    /// The file of the config, else the credential in `credentials` (systemd's `CREDENTIALS_DIRECTORY`) if it is there,
    /// else the generated file in `keys`.
    pub fn choose(configured: Option<&Path>, credentials: Option<&Path>, keys: &Path) -> Self {
        let credential = credentials.map(|dir| dir.join(CREDENTIAL)).filter(|path| path.exists());
        let given = configured.map(|path| Given::File(path.to_owned())).or(credential.map(Given::Credential));
        Self { given, generated: keys.join(GENERATED) }
    }

    /// The file with the key that encrypts.
    pub fn path(&self) -> &Path {
        self.given.as_ref().map_or(&self.generated, Given::path)
    }

    /// The source, for people.
    pub fn describe(&self) -> String {
        let path = self.path().display();
        match &self.given {
            Some(Given::File(_)) => format!("the file {path}"),
            Some(Given::Credential(_)) => format!("the systemd credential {CREDENTIAL}"),
            None => format!("{path}, which the agent generates"),
        }
    }

    /// Reads all keys. Blocking.
    ///
    /// # Errors
    /// [`KeyError`]; a generated file that does not exist is an empty ring.
    pub fn load(&self) -> Result<Keyring, KeyError> {
        let generated = match read(&self.generated) {
            Ok(text) => parse(&self.generated, &text)?,
            Err(KeyError::Missing { .. }) => Keyring::default(),
            Err(error) => return Err(error),
        };
        let Some(given) = &self.given else { return Ok(generated) };
        let keys = parse(given.path(), &read(given.path())?)?;
        if keys.active().is_none() {
            return Err(KeyError::Empty { path: given.path().to_owned() });
        }
        Ok(keys.and(&generated))
    }

    /// Puts a new key before the others of the generated file, and creates the file if needed. It is on disk before the
    /// call returns. Blocking.
    ///
    /// # Errors
    /// [`KeyError::Managed`] if the operator provides the keys.
    pub fn generate(&self, now_s: u64) -> Result<(), KeyError> {
        self.check_ours("add a key as the first line, and reload the agent (SIGHUP)")?;
        let old = match read(&self.generated) {
            Ok(text) => text,
            Err(KeyError::Missing { .. }) => Zeroizing::default(),
            Err(error) => return Err(error),
        };
        // A file that can't be parsed must not be changed.
        parse(&self.generated, &old)?;
        let new = keyring::new_line(now_s).ok_or(KeyError::Random)?;
        let text = Zeroizing::new(format!("{}{}", &*new, &*old));
        parse(&self.generated, &text)?;
        self.write(&text)
    }

    /// Removes a key from the generated file. Blocking.
    ///
    /// # Errors
    /// [`KeyError`] if it is not there.
    pub fn remove(&self, id: KeyId) -> Result<(), KeyError> {
        let text = match read(&self.generated) {
            Ok(text) => text,
            Err(KeyError::Missing { .. }) => Zeroizing::default(),
            Err(error) => return Err(error),
        };
        if !parse(&self.generated, &text)?.contains(id) {
            self.check_ours("remove its line, and reload the agent (SIGHUP)")?;
            return Err(KeyError::NoSuchKey { id: id.to_string() });
        }
        let is_kept = |line: &&str| keyring::id_in(line) != Some(id);
        let kept = text.lines().filter(is_kept).fold(Zeroizing::new(String::new()), |mut kept, line| {
            kept.push_str(line);
            kept.push('\n');
            kept
        });
        self.write(&kept)
    }

    fn check_ours(&self, remedy: &'static str) -> Result<(), KeyError> {
        match &self.given {
            Some(given) => Err(KeyError::Managed { path: given.path().to_owned(), remedy }),
            None => Ok(()),
        }
    }

    fn write(&self, text: &str) -> Result<(), KeyError> {
        let path = || self.generated.clone();
        if let Some(dir) = self.generated.parent() {
            durable::make_dir(dir).map_err(|source| KeyError::Write { path: path(), source })?;
        }
        durable::write(&self.generated, text.as_bytes())
            .map_err(|source| KeyError::Write { path: path(), source })
    }
}

/// Reads a key file that only its owner and its group may read.
fn read(path: &Path) -> Result<Zeroizing<String>, KeyError> {
    let failed = |source: io::Error| {
        let path = path.to_owned();
        if source.kind() == io::ErrorKind::NotFound {
            KeyError::Missing { path }
        } else {
            KeyError::Read { path, source }
        }
    };
    ownership::check_if_there(path)?;
    // Opening a FIFO without a writer would block.
    let mut options = fs::File::options();
    let file = options.read(true).custom_flags(NONBLOCK).open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err(KeyError::Special { path: path.to_owned() });
    }
    if metadata.mode() & 0o007 != 0 {
        return Err(KeyError::Public { path: path.to_owned() });
    }
    let mut text = Zeroizing::new(String::new());
    io::Read::read_to_string(&mut io::Read::take(file, BYTES_MAX + 1), &mut text).map_err(failed)?;
    if text.len() as u64 > BYTES_MAX {
        return Err(KeyError::Invalid { path: path.to_owned(), line: 1, why: "the file is too large" });
    }
    Ok(text)
}

/// `O_NONBLOCK`, as the standard library wants it.
const NONBLOCK: i32 = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();

fn parse(path: &Path, text: &str) -> Result<Keyring, KeyError> {
    let invalid = |(line, why)| KeyError::Invalid { path: path.to_owned(), line, why };
    Keyring::parse(text).map_err(invalid)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn written(path: &Path, text: &str) {
        fs::write(path, text).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
    }

    fn line() -> String {
        keyring::new_line(0).unwrap().to_string()
    }

    #[test]
    fn generated_keys_are_kept_0600_and_rotate() {
        let dir = tempfile::tempdir().unwrap();
        let source = KeySource::choose(None, None, &dir.path().join("keys"));
        assert_eq!(source.load().unwrap().active(), None);
        source.generate(5).unwrap();
        let first = source.load().unwrap().active().unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(source.path()), mode(&dir.path().join("keys"))), (0o600, 0o700));
        source.generate(6).unwrap();
        let ring = source.load().unwrap();
        let second = ring.active().unwrap();
        assert!(first != second && ring.contains(first) && ring.created(second) == 6);
        source.remove(first).unwrap();
        assert_eq!(source.load().unwrap().ids().collect::<Vec<_>>(), [second]);
        assert!(matches!(source.remove(first), Err(KeyError::NoSuchKey { .. })));
        // A damaged file is never replaced.
        written(source.path(), "damaged");
        assert!(matches!(source.generate(7), Err(KeyError::Invalid { line: 1, .. })));
        assert_eq!(fs::read_to_string(source.path()).unwrap(), "damaged");
    }

    #[test]
    fn keys_of_the_operator_come_first_and_are_not_changed() {
        let dir = tempfile::tempdir().unwrap();
        let keys = dir.path().join("keys");
        KeySource::choose(None, None, &keys).generate(0).unwrap();
        let old = KeySource::choose(None, None, &keys).load().unwrap().active().unwrap();
        written(&dir.path().join(CREDENTIAL), &line());
        let credential = KeySource::choose(None, Some(dir.path()), &keys);
        assert_eq!(credential.path(), dir.path().join(CREDENTIAL));
        let ring = credential.load().unwrap();
        assert!(ring.active() != Some(old) && ring.contains(old), "the generated key still decrypts");
        assert!(matches!(credential.generate(0), Err(KeyError::Managed { .. })));
        assert!(matches!(credential.remove(ring.active().unwrap()), Err(KeyError::Managed { .. })));
        credential.remove(old).unwrap();
        assert!(!credential.load().unwrap().contains(old));
        let named = dir.path().join("named");
        let file = KeySource::choose(Some(&named), Some(dir.path()), &keys);
        assert!(matches!(file.load(), Err(KeyError::Missing { path }) if path == named));
        assert!(!named.exists(), "it is not generated");
        written(&named, "# none\n");
        assert!(matches!(file.load(), Err(KeyError::Empty { .. })));
        written(&named, &line());
        assert!(file.load().is_ok());
    }

    #[test]
    fn a_key_file_that_others_can_read_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        let source = KeySource::choose(Some(&path), None, dir.path());
        written(&path, &line());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o604)).unwrap();
        assert!(matches!(source.load(), Err(KeyError::Public { .. })));
        fs::remove_file(&path).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, 0o600.into()).unwrap();
        assert!(matches!(source.load(), Err(KeyError::Special { .. })));
    }
}
