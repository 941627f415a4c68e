//! Who may use the API: on the unix socket the agent's own user and root, on TCP whoever knows the token.

use std::{
    fmt,
    io::Read,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use axum::{
    extract::{Request, State},
    http::{HeaderMap, StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use zeroize::Zeroizing;

use super::JWKS_PATH;

/// A shorter token could be guessed.
const TOKEN_LEN_MIN: usize = 16;
/// A longer one is a wrong file.
const TOKEN_LEN_MAX: u64 = 4_096;

/// The secret that callers on TCP must know.
#[derive(Clone)]
pub struct Token(Arc<Zeroizing<Vec<u8>>>);

/// Why a token file can't be used. Reads after "failed to".
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// It can't be read.
    #[error("read token file {path}")]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// Everybody may read it.
    #[error("use token file {path}: everybody may read it; chmod 600 {path}")]
    Public {
        /// Which.
        path: PathBuf,
    },
    /// It holds no usable token.
    #[error(
        "use token file {path}: the token must have {TOKEN_LEN_MIN} to {TOKEN_LEN_MAX} visible characters"
    )]
    Unfit {
        /// Which.
        path: PathBuf,
    },
}

impl Token {
    /// Reads a token from a file; white space around it does not count.
    ///
    /// # Errors
    /// When the file can't be read, is open to everybody, or holds no usable token.
    pub fn read(path: &Path) -> Result<Self, TokenError> {
        let failed = |source| TokenError::Read { path: path.to_owned(), source };
        let file = std::fs::File::open(path).map_err(failed)?;
        if file.metadata().map_err(failed)?.mode() & 0o007 != 0 {
            return Err(TokenError::Public { path: path.to_owned() });
        }
        let mut text = Zeroizing::new(Vec::new());
        file.take(TOKEN_LEN_MAX + 1).read_to_end(&mut text).map_err(failed)?;
        let token = text.trim_ascii();
        let fits = (TOKEN_LEN_MIN..=TOKEN_LEN_MAX as usize).contains(&token.len());
        if !fits || !token.iter().all(u8::is_ascii_graphic) {
            return Err(TokenError::Unfit { path: path.to_owned() });
        }
        Ok(Self(Arc::new(Zeroizing::new(token.to_vec()))))
    }

    /// Whether `given` is this token, in a time that doesn't tell how much of it is.
    fn is(&self, given: &[u8]) -> bool {
        aws_lc_rs::constant_time::verify_slices_are_equal(&self.0, given).is_ok()
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// Lets only requests with the token through, and those for public keys.
pub(super) async fn require_token(State(token): State<Token>, request: Request, next: Next) -> Response {
    if request.uri().path() == JWKS_PATH {
        return next.run(request).await;
    }
    match given(request.headers()) {
        Some(given) if token.is(given) => next.run(request).await,
        Some(_) => (StatusCode::FORBIDDEN, "Permission denied: wrong token").into_response(),
        None => {
            let ask = [(header::WWW_AUTHENTICATE, "Bearer")];
            (StatusCode::UNAUTHORIZED, ask, "a token is needed: Authorization: Bearer TOKEN").into_response()
        }
    }
}

fn given(headers: &HeaderMap) -> Option<&[u8]> {
    if let Some(token) = headers.get("x-nomad-token") {
        return Some(token.as_bytes());
    }
    let value = headers.get(header::AUTHORIZATION)?.as_bytes();
    let (scheme, token) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}
