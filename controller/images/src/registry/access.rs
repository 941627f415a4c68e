//! Who asks: the credentials of a host, and the tokens that its token server gives for them.
//!
//! In: a challenge. Out: the value of the header `Authorization`. Several requests share a token; one of them fetches it. A token
//! is for pulls from one repository, whatever the host asks for. Sources: `distribution/distribution:docs/content/spec/auth`.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use reqwest::{
    Client, RequestBuilder, Url,
    header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue},
};
use serde::Deserialize;
use tokio::sync::Mutex;

use super::{challenge::Challenge, error::RegistryError};
use crate::credentials::{Credentials, Secret};

/// The largest answer of a token server.
pub(super) const TOKEN_BYTES_MAX: u64 = 256 * 1024;

/// The access to one host.
#[derive(Debug)]
pub(super) struct Access {
    credentials: Option<Credentials>,
    /// What a token is for: `repository:NAME:pull`.
    scope: String,
    /// What the last challenge led to.
    current: Mutex<Option<HeaderValue>>,
}

/// Where a token comes from.
pub(super) struct TokenRequest {
    url: Url,
    service: Option<String>,
}

/// What a challenge demands beside what is known here.
pub(super) enum Demand {
    /// This value is enough.
    Value(HeaderValue),
    Token(TokenRequest),
}

#[derive(Deserialize)]
struct TokenAnswer {
    token: Option<String>,
    access_token: Option<String>,
}

impl Access {
    pub(super) fn new(credentials: Option<Credentials>, repository: &str) -> Self {
        Self { credentials, scope: format!("repository:{repository}:pull"), current: Mutex::new(None) }
    }

    /// What to send, if a host has demanded something before.
    pub(super) async fn current(&self) -> Option<HeaderValue> {
        self.current.lock().await.clone()
    }

    /// Replaces what has been refused, by `renew`; requests that were refused at the same time share the result.
    ///
    /// # Errors
    /// That of `renew`.
    pub(super) async fn renew(
        &self,
        refused: Option<&HeaderValue>,
        renew: impl Future<Output = Result<HeaderValue, RegistryError>>,
    ) -> Result<(), RegistryError> {
        let mut current = self.current.lock().await;
        if current.as_ref() == refused {
            *current = Some(renew.await?);
        }
        Ok(())
    }

    /// What a challenge of `host` demands; none if nothing here can meet it.
    ///
    /// # Errors
    /// The reason if the challenge must not be met.
    pub(super) fn demand(&self, challenge: Challenge, host: &Url) -> Result<Option<Demand>, String> {
        match challenge {
            Challenge::Basic => Ok(self.basic().map(Demand::Value)),
            Challenge::Bearer { realm, service } => {
                let url = Url::parse(&realm)
                    .map_err(|_| "the address of its token server is invalid".to_owned())?;
                let is_safe = url.scheme() == "https" || (url.scheme() == "http" && host.scheme() == "http");
                if !is_safe || !url.username().is_empty() || url.password().is_some() {
                    return Err("the address of its token server is not a plain https address".to_owned());
                }
                Ok(Some(Demand::Token(TokenRequest { url, service })))
            }
        }
    }

    /// The request for a token.
    pub(super) fn token_request(
        &self,
        client: &Client,
        TokenRequest { mut url, service }: TokenRequest,
    ) -> RequestBuilder {
        if let Some(Credentials { secret: Secret::IdentityToken(token), .. }) = &self.credentials {
            let mut form = url.clone();
            form.set_query(None);
            form.query_pairs_mut()
                .append_pair("grant_type", "refresh_token")
                .append_pair("client_id", "herdlet")
                .append_pair("scope", &self.scope)
                .append_pair("refresh_token", token)
                .extend_pairs(service.map(|service| ("service", service)));
            let form = form.query().unwrap_or_default().to_owned();
            return client.post(url).header(CONTENT_TYPE, "application/x-www-form-urlencoded").body(form);
        }
        url.query_pairs_mut()
            .append_pair("scope", &self.scope)
            .extend_pairs(service.map(|service| ("service", service)));
        let request = client.get(url);
        match self.basic() {
            Some(basic) => request.header(AUTHORIZATION, basic),
            None => request,
        }
    }

    fn basic(&self) -> Option<HeaderValue> {
        let Credentials { username, secret: Secret::Password(password) } = self.credentials.as_ref()? else {
            return None;
        };
        secret_header(&format!("Basic {}", BASE64_STANDARD.encode(format!("{username}:{password}"))))
    }
}

/// The header for the token in an answer; none if there is none that can be sent.
pub(super) fn bearer(answer: &[u8]) -> Option<HeaderValue> {
    let TokenAnswer { token, access_token } = serde_json::from_slice(answer).ok()?;
    let token = token.or(access_token).filter(|token| !token.is_empty())?;
    secret_header(&format!("Bearer {token}"))
}

fn secret_header(text: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(text).ok()?;
    value.set_sensitive(true);
    Some(value)
}
