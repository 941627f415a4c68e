//! Workload identities: the node's signing key, and the tokens it signs for tasks (JWTs, EdDSA over Ed25519, RFC 8037).
//!
//! In: the directory of keys, claims, the files to write, tokens signed by servers. Out: signed tokens, token files in
//! the task's `secrets` or elsewhere in its directory, and the public key as a JWK set for verification. Keys and
//! tokens never appear in `Debug` output and are wiped when dropped. All calls block.

use std::{ffi::OsStr, fmt, path::Path};

use aws_lc_rs::{
    rand::SystemRandom,
    signature::{Ed25519KeyPair, KeyPair as _},
};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use herdlet_base::{
    observation::Class,
    safe_fs::{Dir, FsError, Outlives, Rights},
};
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation};
use serde::Serialize;
use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

mod files;

pub use files::{Issued, SignedToken, TaskTokens, WantedToken};

/// The key that signs this node's tokens.
pub struct Signer {
    kid: String,
    /// Public key, base64url.
    x: String,
    private: EncodingKey,
    public: DecodingKey,
}

/// A signed token. Only the task may see its text.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(Zeroizing<String>);

/// Errors of keys and tokens.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The key file can't be read or written.
    #[error("load or store the signing key: {0}")]
    Key(#[source] FsError),
    /// A key can't be generated.
    #[error("generate a signing key: the system provided no random data")]
    Generate,
    /// The file does not contain an Ed25519 key.
    #[error("load the signing key: it is damaged")]
    Damaged,
    /// Signing failed.
    #[error("sign a token: {0}")]
    Sign(#[source] jsonwebtoken::errors::Error),
    /// This key did not sign the token.
    #[error("verify a token: {0}")]
    Verify(#[source] jsonwebtoken::errors::Error),
    /// Another key signed it, by its own account.
    #[error("verify a token: it names another key")]
    OtherKey,
    /// The task has no `secrets` directory or, with a `filepath`, no directory at all.
    #[error("write tokens of task {task}: its directory, or `secrets` in it, is missing")]
    NoDir { task: String },
    /// A token file can't be written, read or removed.
    #[error("access the tokens of task {task}: {source}")]
    File { task: String, source: FsError },
    /// The task directory can't be entered.
    #[error("access the tokens of task {task}: {source}")]
    TaskDir { task: String, source: crate::task_dir::TaskDirError },
}

impl IdentityError {
    /// Whether a retry can help.
    pub fn class(&self) -> Class {
        match self {
            Self::Key(source) | Self::File { source, .. } => source.class(),
            Self::TaskDir { source, .. } => source.class(),
            Self::Generate | Self::NoDir { .. } => Class::Retry,
            Self::Damaged | Self::Sign(_) | Self::Verify(_) | Self::OtherKey => Class::Fatal,
        }
    }
}

impl Signer {
    /// Loads the key from `keys`, or generates and keeps a new one. A damaged key file is renamed and replaced: tokens
    /// signed by it become invalid, and new ones are issued.
    ///
    /// # Errors
    ///
    /// If the key can't be read, generated or kept.
    pub fn load_or_create(keys: &Path) -> Result<Self, IdentityError> {
        let dir = Dir::open_or_make(keys, 0o700).map_err(IdentityError::Key)?;
        dir.set_rights(Rights::Exact { mode: 0o700, owner: None }).map_err(IdentityError::Key)?;
        let name = OsStr::new(KEY_FILE);
        let kept = dir.read_file(name, KEY_BYTES_MAX).map_err(IdentityError::Key)?.map(Zeroizing::new);
        match kept.as_deref().map(|bytes| Self::from_pkcs8(bytes)) {
            Some(Ok(signer)) => return Ok(signer),
            Some(Err(_)) => {
                tracing::error!(path = %keys.join(KEY_FILE).display(), "the signing key is damaged; it is set aside and a new one is generated");
                dir.rename(name, OsStr::new(DAMAGED_FILE)).map_err(IdentityError::Key)?;
            }
            None => {}
        }
        let document =
            Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).map_err(|_| IdentityError::Generate)?;
        let signer = Self::from_pkcs8(document.as_ref())?;
        let rights = Rights::Exact { mode: 0o600, owner: None };
        dir.write_file(name, document.as_ref(), rights, Outlives::PowerCuts).map_err(IdentityError::Key)?;
        Ok(signer)
    }

    /// Uses an Ed25519 key pair in PKCS#8 form (RFC 5958).
    ///
    /// # Errors
    ///
    /// If it is not one.
    pub fn from_pkcs8(document: &[u8]) -> Result<Self, IdentityError> {
        let pair = Ed25519KeyPair::from_pkcs8(document).map_err(|_| IdentityError::Damaged)?;
        let x = URL_SAFE_NO_PAD.encode(pair.public_key().as_ref());
        Ok(Self {
            kid: thumbprint(&x),
            private: EncodingKey::from_ed_der(document),
            public: DecodingKey::from_ed_components(&x).map_err(|_| IdentityError::Damaged)?,
            x,
        })
    }

    /// The key's id: its thumbprint (RFC 7638).
    pub fn kid(&self) -> &str {
        &self.kid
    }

    /// Signs `claims`.
    ///
    /// # Errors
    ///
    /// If they can't be serialized as JSON.
    pub fn sign(&self, claims: &impl Serialize) -> Result<Token, IdentityError> {
        let mut header = Header::new(Algorithm::EdDSA);
        header.kid = Some(self.kid.clone());
        let text = jsonwebtoken::encode(&header, claims, &self.private).map_err(IdentityError::Sign)?;
        Ok(Token(Zeroizing::new(text)))
    }

    /// Checks a token's signature and returns its claims. The caller must check time and audience.
    ///
    /// # Errors
    ///
    /// If this key did not sign it.
    pub fn verify(&self, token: &str) -> Result<serde_json::Value, IdentityError> {
        let mut rules = Validation::new(Algorithm::EdDSA);
        rules.required_spec_claims.clear();
        rules.validate_exp = false;
        rules.validate_aud = false;
        let token = jsonwebtoken::decode(token, &self.public, &rules).map_err(IdentityError::Verify)?;
        if token.header.kid.as_deref() == Some(&self.kid) {
            Ok(token.claims)
        } else {
            Err(IdentityError::OtherKey)
        }
    }

    /// The public key as a JWK set (RFC 7517), as served at `/.well-known/jwks.json`.
    pub fn jwks(&self) -> serde_json::Value {
        serde_json::json!({ "keys": [{
            "kty": "OKP", "crv": "Ed25519", "alg": "EdDSA", "use": "sig", "kid": self.kid, "x": self.x,
        }] })
    }
}

impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signer").field("kid", &self.kid).finish_non_exhaustive()
    }
}

impl Token {
    /// A token that a server has signed.
    pub fn from_servers(text: String) -> Self {
        Self(Zeroizing::new(text))
    }

    /// The token's text, for the task only.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

const KEY_FILE: &str = "identity.p8";
const DAMAGED_FILE: &str = "identity.p8.damaged";

/// An Ed25519 key pair takes about 90 bytes.
const KEY_BYTES_MAX: u64 = 4096;

/// RFC 7638 §3 with the members from RFC 8037 §2, in lexicographic order.
fn thumbprint(x: &str) -> String {
    let canonical = format!(r#"{{"crv":"Ed25519","kty":"OKP","x":"{x}"}}"#);
    URL_SAFE_NO_PAD.encode(Sha256::digest(canonical.as_bytes()))
}

#[cfg(test)]
mod tests;
