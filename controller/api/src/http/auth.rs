//! The token of the API on TCP: reads it from its file, and compares it with what callers send.

use std::{
    fmt,
    io::Read,
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{Arc, PoisonError, RwLock},
};

use herdlet_base::ownership::{self, OwnershipError};
use zeroize::Zeroizing;

/// A shorter token could be guessed.
const TOKEN_LEN_MIN: usize = 16;
/// A larger file is not a token file.
const TOKEN_LEN_MAX: u64 = 4_096;

/// The secret that TCP callers must send. Clones share it.
#[derive(Clone)]
pub struct Token {
    path: PathBuf,
    secret: Arc<RwLock<Zeroizing<Vec<u8>>>>,
}

/// Why a token file can't be used. Reads after "failed to".
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    #[error("read token file {path}")]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// Another user could change it.
    #[error(transparent)]
    Exposed(#[from] OwnershipError),
    #[error("use token file {path}: it is a directory; name the file in it that holds the token")]
    Directory { path: PathBuf },
    /// It is a FIFO, a socket or a device.
    #[error("use token file {path}: it is not a regular file; name one that holds the token")]
    Special { path: PathBuf },
    /// Every user may read it.
    #[error("use token file {path}: every user can read it; run: chmod 600 {path}")]
    Public { path: PathBuf },
    #[error(
        "use token file {path}: the token must have {TOKEN_LEN_MIN} to {TOKEN_LEN_MAX} visible characters"
    )]
    Unfit { path: PathBuf },
}

impl Token {
    /// Reads a token from a file. White space around the token is ignored.
    ///
    /// # Errors
    /// When the file can't be read, is readable by every user, can be changed by another one, or holds no usable
    /// token.
    pub fn read(path: &Path) -> Result<Self, TokenError> {
        Ok(Self { path: path.to_owned(), secret: Arc::new(RwLock::new(secret(path)?)) })
    }

    /// Reads the file again.
    ///
    /// # Errors
    /// As [`Token::read`]; the previous token stays valid.
    pub fn reload(&self) -> Result<(), TokenError> {
        let read = secret(&self.path)?;
        *self.secret.write().unwrap_or_else(PoisonError::into_inner) = read;
        Ok(())
    }

    /// Whether `given` is this token. The comparison takes constant time.
    pub(super) fn is(&self, given: &[u8]) -> bool {
        let secret = self.secret.read().unwrap_or_else(PoisonError::into_inner);
        aws_lc_rs::constant_time::verify_slices_are_equal(&secret, given).is_ok()
    }
}

fn secret(path: &Path) -> Result<Zeroizing<Vec<u8>>, TokenError> {
    let failed = |source| TokenError::Read { path: path.to_owned(), source };
    ownership::check_if_there(path)?;
    // Opening a FIFO without a writer would block the start.
    let mut options = std::fs::File::options();
    let file = options.read(true).custom_flags(libc::O_NONBLOCK).open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if metadata.is_dir() {
        return Err(TokenError::Directory { path: path.to_owned() });
    }
    if !metadata.is_file() {
        return Err(TokenError::Special { path: path.to_owned() });
    }
    if metadata.mode() & 0o007 != 0 {
        return Err(TokenError::Public { path: path.to_owned() });
    }
    let mut text = Zeroizing::new(Vec::new());
    file.take(TOKEN_LEN_MAX + 1).read_to_end(&mut text).map_err(failed)?;
    let token = text.trim_ascii();
    let fits = (TOKEN_LEN_MIN..=TOKEN_LEN_MAX as usize).contains(&token.len());
    if !fits || !token.iter().all(u8::is_ascii_graphic) {
        return Err(TokenError::Unfit { path: path.to_owned() });
    }
    Ok(Zeroizing::new(token.to_vec()))
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reload_replaces_the_token_unless_the_file_is_unusable() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        let write = |text: &str| {
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        };
        let (old, new) = ("old-token-0123456789", "new-token-0123456789");
        write(old);
        let token = Token::read(&path).unwrap();
        let of_listener = token.clone();
        write(new);
        assert!(of_listener.is(old.as_bytes()));
        token.reload().unwrap();
        assert!(of_listener.is(new.as_bytes()) && !of_listener.is(old.as_bytes()));
        write("short");
        assert!(matches!(token.reload(), Err(TokenError::Unfit { .. })));
        assert!(of_listener.is(new.as_bytes()));
    }

    /// A FIFO without a writer must not block the start silently.
    #[test]
    fn fifo_is_refused_as_token_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fifo");
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, 0o600.into()).unwrap();
        let refused = Token::read(&path).unwrap_err();
        assert!(matches!(refused, TokenError::Special { .. }), "{refused}");
    }
}
