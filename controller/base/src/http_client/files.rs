//! Credentials of HTTP clients, read from files of the agent's config.
//!
//! In: paths. Out: certificates and keys, in PEM. They decide which servers get tokens: a file that another user can
//! change is refused.

use std::path::{Path, PathBuf};

use zeroize::Zeroizing;

use super::Credentials;
use crate::{error::in_full, ownership};

/// A directory of certificates has some of them; more is a mistake.
const CERTIFICATE_FILES_MAX: usize = 1_000;

/// Files of credentials, in PEM.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CredentialFiles {
    /// Certificate authorities.
    pub ca_file: Option<PathBuf>,
    /// A directory of certificate authorities.
    pub ca_path: Option<PathBuf>,
    /// A certificate and its key.
    pub certificate: Option<(PathBuf, PathBuf)>,
}

impl CredentialFiles {
    /// Reads the files. Blocks.
    ///
    /// # Errors
    /// The first file that can't be used, and why.
    pub fn read(&self) -> Result<Credentials, String> {
        let mut authorities = Vec::new();
        for path in self.ca_file.iter().cloned().chain(certificates_in(self.ca_path.as_deref())?) {
            authorities.extend(read(&path)?.iter());
            authorities.push(b'\n');
        }
        let identity = match &self.certificate {
            None => None,
            Some((certificate, key)) => {
                let mut pem = read(certificate)?;
                pem.push(b'\n');
                pem.extend(read(key)?.iter());
                Some(pem)
            }
        };
        let authorities = Some(authorities).filter(|pem| !pem.is_empty());
        Ok(Credentials { authorities, identity })
    }
}

fn certificates_in(dir: Option<&Path>) -> Result<Vec<PathBuf>, String> {
    let Some(dir) = dir else { return Ok(Vec::new()) };
    let failed = |error: std::io::Error| format!("read {}: {error}", dir.display());
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(failed)?.take(CERTIFICATE_FILES_MAX) {
        let path = entry.map_err(failed)?.path();
        if path.is_file() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn read(path: &Path) -> Result<Zeroizing<Vec<u8>>, String> {
    ownership::check_if_there(path).map_err(|error| in_full(&error))?;
    std::fs::read(path).map(Zeroizing::new).map_err(|error| format!("read {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file of another user decided which server gets the tokens of tasks.
    #[test]
    fn files_that_others_can_change_are_refused() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ca.pem");
        std::fs::write(&path, "x").unwrap();
        assert!(read(&path).is_ok());
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).unwrap();
        let error = read(&path).unwrap_err();
        assert!(error.contains("ca.pem"), "{error}");
    }

    #[test]
    fn certificates_are_read_from_files_and_directories() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["b.pem", "a.pem", "cert", "key"] {
            std::fs::write(dir.path().join(name), name).unwrap();
        }
        let file = |name: &str| dir.path().join(name);
        let files = CredentialFiles {
            ca_file: None,
            ca_path: Some(dir.path().to_owned()),
            certificate: Some((file("cert"), file("key"))),
        };
        let found = files.read().unwrap();
        assert_eq!(found.authorities.unwrap(), b"a.pem\nb.pem\ncert\nkey\n");
        assert_eq!(&**found.identity.unwrap(), b"cert\nkey");
        let missing = CredentialFiles { ca_file: Some(file("none")), ..files };
        assert!(missing.read().err().unwrap().contains("none"));
    }
}
