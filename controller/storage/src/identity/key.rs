//! One key that signs tokens: RSA with SHA-256 (RS256, RFC 7518), or Ed25519 (EdDSA, RFC 8037).
//!
//! In: claims, tokens. Out: signed tokens, the claims of tokens that this key has signed, and its public half as a JSON
//! Web Key. The private half is never shown.

use std::{collections::BTreeMap, fmt};

use aws_lc_rs::{
    encoding::AsDer as _,
    rand::SystemRandom,
    rsa::KeySize,
    signature::{Ed25519KeyPair, KeyPair as _, RSA_PKCS1_SHA256, RsaKeyPair},
};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use herdlet_base::rsa_key;
use jsonwebtoken::{Algorithm, DecodingKey, Header, Validation};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

use super::{IdentityError, Token};

/// How a key signs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum SigningAlgorithm {
    /// What Nomad's keys use since 1.7, because OpenID Connect requires it.
    #[default]
    #[serde(rename = "RS256")]
    Rs256,
    /// Short tokens and fast signatures, but not every service verifies them.
    #[serde(rename = "EdDSA")]
    EdDsa,
}

impl SigningAlgorithm {
    /// Its name in tokens.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Rs256 => "RS256",
            Self::EdDsa => "EdDSA",
        }
    }

    /// The algorithm with this name in tokens.
    pub fn parse(name: &str) -> Option<Self> {
        [Self::Rs256, Self::EdDsa].into_iter().find(|algorithm| algorithm.as_str().eq_ignore_ascii_case(name))
    }

    fn in_header(self) -> Algorithm {
        match self {
            Self::Rs256 => Algorithm::RS256,
            Self::EdDsa => Algorithm::EdDSA,
        }
    }
}

/// A key, and the times of its life in seconds since 1970.
pub(super) struct SigningKey {
    pub(super) kid: String,
    pub(super) algorithm: SigningAlgorithm,
    /// 0 if unknown.
    pub(super) created_s: u64,
    /// When it begins to sign.
    pub(super) active_from_s: u64,
    /// The private half, in PKCS #8 (RFC 5958).
    pub(super) pkcs8: Zeroizing<Vec<u8>>,
    private: Private,
    public: DecodingKey,
    jwk: Value,
}

enum Private {
    Rsa(RsaKeyPair),
    Ed(Ed25519KeyPair),
}

impl SigningKey {
    /// A new random key. Takes a moment for RSA.
    pub(super) fn generate(
        algorithm: SigningAlgorithm,
        created_s: u64,
        active_from_s: u64,
    ) -> Result<Self, IdentityError> {
        let no_random = |_| IdentityError::Generate;
        let pkcs8 = match algorithm {
            SigningAlgorithm::Rs256 => {
                let pair = RsaKeyPair::generate(KeySize::Rsa2048).map_err(no_random)?;
                Zeroizing::new(pair.as_der().map_err(no_random)?.as_ref().to_vec())
            }
            SigningAlgorithm::EdDsa => {
                let document = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).map_err(no_random)?;
                Zeroizing::new(document.as_ref().to_vec())
            }
        };
        // Nomad's clients expect a UUID as the id of a key.
        let kid = uuid::Uuid::new_v4().to_string();
        let key = Self::from_pkcs8(algorithm, Some(kid), pkcs8).ok_or(IdentityError::Generate)?;
        Ok(key.with_times(created_s, active_from_s))
    }

    pub(super) fn with_times(self, created_s: u64, active_from_s: u64) -> Self {
        Self { created_s, active_from_s, ..self }
    }

    /// A stored key; without an id it gets its thumbprint (RFC 7638). `None` if it is not such a key.
    pub(super) fn from_pkcs8(
        algorithm: SigningAlgorithm,
        kid: Option<String>,
        pkcs8: Zeroizing<Vec<u8>>,
    ) -> Option<Self> {
        let encoded = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        let (private, public, mut jwk) = match algorithm {
            SigningAlgorithm::Rs256 => {
                let pair = RsaKeyPair::from_pkcs8(&pkcs8).ok()?;
                let (n, e) = rsa_key::components(pair.public_key().as_ref())?;
                let public = DecodingKey::from_rsa_raw_components(n, e);
                let jwk = json!({ "kty": "RSA", "n": encoded(n), "e": encoded(e) });
                (Private::Rsa(pair), public, jwk)
            }
            SigningAlgorithm::EdDsa => {
                let pair = Ed25519KeyPair::from_pkcs8(&pkcs8).ok()?;
                let x = encoded(pair.public_key().as_ref());
                let public = DecodingKey::from_ed_components(&x).ok()?;
                (Private::Ed(pair), public, json!({ "kty": "OKP", "crv": "Ed25519", "x": x }))
            }
        };
        let kid = kid.unwrap_or_else(|| thumbprint(&jwk));
        for (name, value) in [("use", "sig"), ("kid", &*kid), ("alg", algorithm.as_str())] {
            jwk[name] = value.into();
        }
        Some(Self { kid, algorithm, created_s: 0, active_from_s: 0, pkcs8, private, public, jwk })
    }

    /// Signs claims.
    pub(super) fn sign(&self, claims: &impl Serialize) -> Result<Token, IdentityError> {
        let mut header = Header::new(self.algorithm.in_header());
        header.kid = Some(self.kid.clone());
        self.sign_with(&header, claims)
    }

    pub(super) fn sign_with(&self, header: &Header, claims: &impl Serialize) -> Result<Token, IdentityError> {
        let text = |error: serde_json::Error| IdentityError::Claims(error);
        let header = URL_SAFE_NO_PAD.encode(serde_json::to_vec(header).map_err(text)?);
        let claims = Zeroizing::new(serde_json::to_vec(claims).map_err(text)?);
        let mut token = Zeroizing::new(format!("{header}.{}", URL_SAFE_NO_PAD.encode(&*claims)));
        let signature = self.signature(token.as_bytes())?;
        token.push('.');
        token.push_str(&URL_SAFE_NO_PAD.encode(signature));
        Ok(Token(token))
    }

    fn signature(&self, message: &[u8]) -> Result<Vec<u8>, IdentityError> {
        match &self.private {
            Private::Ed(pair) => Ok(pair.sign(message).as_ref().to_vec()),
            Private::Rsa(pair) => {
                let mut signature = vec![0; pair.public_modulus_len()];
                pair.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), message, &mut signature)
                    .map_err(|_| IdentityError::Sign)?;
                Ok(signature)
            }
        }
    }

    /// The claims of a token that this key has signed with its own algorithm. The caller checks times and audience.
    pub(super) fn verify(&self, token: &str) -> Result<Value, IdentityError> {
        let mut rules = Validation::new(self.algorithm.in_header());
        rules.required_spec_claims.clear();
        rules.validate_exp = false;
        rules.validate_aud = false;
        let token = jsonwebtoken::decode(token, &self.public, &rules).map_err(IdentityError::Verify)?;
        Ok(token.claims)
    }

    /// The public half (RFC 7517).
    pub(super) fn jwk(&self) -> Value {
        self.jwk.clone()
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SigningKey").field("kid", &self.kid).finish_non_exhaustive()
    }
}

/// RFC 7638, section 3: the hash of the required members, sorted by name.
fn thumbprint(required: &Value) -> String {
    let sorted: BTreeMap<_, _> = required.as_object().into_iter().flatten().collect();
    URL_SAFE_NO_PAD.encode(Sha256::digest(serde_json::to_vec(&sorted).unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thumbprint_is_that_of_the_standard() {
        // The example of RFC 8037, appendix A.
        let key =
            json!({ "kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo" });
        assert_eq!(thumbprint(&key), "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k");
    }

    #[test]
    fn a_public_key_verifies_as_a_json_web_key() {
        for algorithm in [SigningAlgorithm::Rs256, SigningAlgorithm::EdDsa] {
            assert_eq!(SigningAlgorithm::parse(&algorithm.as_str().to_lowercase()), Some(algorithm));
            let key = SigningKey::generate(algorithm, 1, 2).unwrap();
            let token = key.sign(&json!({ "a": 1 })).unwrap();
            assert_eq!(key.verify(token.reveal()).unwrap()["a"], 1);
            let read: jsonwebtoken::jwk::Jwk = serde_json::from_value(key.jwk()).unwrap();
            let mut rules = Validation::new(algorithm.in_header());
            rules.required_spec_claims.clear();
            let public = DecodingKey::from_jwk(&read).unwrap();
            let decoded = jsonwebtoken::decode::<Value>(token.reveal(), &public, &rules).unwrap();
            assert_eq!((decoded.claims["a"].as_i64(), decoded.header.kid), (Some(1), Some(key.kid.clone())));
            let again = SigningKey::from_pkcs8(algorithm, Some(key.kid.clone()), key.pkcs8.clone()).unwrap();
            assert_eq!(again.jwk(), key.jwk());
            assert!(SigningKey::from_pkcs8(algorithm, None, key.pkcs8[..40].to_vec().into()).is_none());
            assert_eq!(key.jwk()["use"], "sig");
        }
        assert_eq!(SigningAlgorithm::parse("HS256"), None);
    }
}
