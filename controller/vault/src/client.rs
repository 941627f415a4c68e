//! Requests to a server of Vault or OpenBao.
//!
//! In: tokens, identities, paths. Out: tokens, secrets, or errors with a class that decides whether a retry can help. Nothing is retried
//! here. API: <https://developer.hashicorp.com/vault/api-docs>.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use reqwest::Method;
use serde_json::{Value, json};

use crate::{
    answer::{Secret, TokenGrant, TokenInfo, terms_of_auth, terms_of_renewal, texts},
    config::VaultConfig,
    error::{FailureClass, VaultError},
    kv::{Access, Engine, Mount},
    lease::LeaseTerms,
    path::VaultPath,
    secret::{SecretText, SecretValue},
};

mod endpoint;
mod transport;

use transport::{Call, Scope, Transport};

/// A client of one server.
pub struct VaultClient {
    transport: Transport,
    namespace: Option<String>,
}

/// A log-in with an identity.
pub struct JwtLogin<'a> {
    /// Where the auth method is mounted: `jwt-nomad`.
    pub mount: &'a str,
    /// The method's default role if absent.
    pub role: Option<&'a str>,
    pub identity: &'a SecretText,
}

/// What a server reports about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerInfo {
    pub version: String,
    pub cluster_id: String,
    pub cluster_name: String,
}

/// Why a client can't be created.
#[derive(Debug, thiserror::Error)]
#[error("prepare a client for Vault")]
pub struct ClientError(#[from] reqwest::Error);

impl VaultClient {
    /// Sends no request.
    ///
    /// # Errors
    /// If certificates are invalid.
    pub fn new(config: VaultConfig) -> Result<Self, ClientError> {
        let namespace = config.namespace.clone();
        Ok(Self { transport: Transport::new(config)?, namespace })
    }

    /// Logs in.
    ///
    /// # Errors
    /// If Vault refuses the identity or the role, or does not answer.
    pub async fn log_in(&self, login: JwtLogin<'_>) -> Result<TokenGrant, VaultError> {
        let doing = format!("log in at auth/{}", login.mount);
        let path = path_of(&doing, &["auth", login.mount, "login"])?;
        let mut fields = json!({ "jwt": login.identity.reveal() });
        if let Some(role) = login.role {
            fields["role"] = role.into();
        }
        let body = SecretValue::new(fields);
        let hidden = vec![login.identity.reveal()];
        let call = Call { body: Some(&body), hidden, ..Call::new(Method::POST, &path, &doing) };
        let answer = self.transport.send(call).await?;
        TokenGrant::of_answer(answer).map_err(|why| VaultError::Answer { doing, why })
    }

    /// Takes the token out of a wrapping token, which works once.
    ///
    /// # Errors
    /// If it was used before, has expired or wraps no token, or Vault does not answer.
    pub async fn unwrap_token(&self, wrapping: &SecretText) -> Result<TokenGrant, VaultError> {
        let doing = "unwrap a token".to_owned();
        let path = path_of(&doing, &["sys/wrapping/unwrap"])?;
        let call = Call { token: Some(wrapping), ..Call::new(Method::POST, &path, &doing) };
        let answer = self.transport.send(call).await?;
        TokenGrant::of_answer(answer).map_err(|why| VaultError::Answer { doing, why })
    }

    /// # Errors
    /// If the token is not valid, or Vault does not answer.
    pub async fn look_up(&self, token: &SecretText) -> Result<TokenInfo, VaultError> {
        let doing = "look up a token".to_owned();
        let path = path_of(&doing, &["auth/token/lookup-self"])?;
        let call = Call { token: Some(token), ..Call::new(Method::GET, &path, &doing) };
        let answer = self.transport.send(call).await?;
        TokenInfo::of_answer(answer).map_err(|why| VaultError::Answer { doing, why })
    }

    /// Renews a token. Vault chooses the duration if `increment` is absent.
    ///
    /// # Errors
    /// See [`VaultError::lease_failure`] for whether the token is lost.
    pub async fn renew_token(
        &self,
        token: &SecretText,
        increment: Option<Duration>,
    ) -> Result<LeaseTerms, VaultError> {
        let doing = "renew a token".to_owned();
        let path = path_of(&doing, &["auth/token/renew-self"])?;
        let body = SecretValue::new(match increment {
            Some(increment) => json!({ "increment": seconds(increment) }),
            None => json!({}),
        });
        let call = Call { token: Some(token), body: Some(&body), ..Call::new(Method::POST, &path, &doing) };
        let mut answer = self.transport.send(call).await?;
        terms_of_auth(&answer.take("auth")).map_err(|why| VaultError::Answer { doing, why })
    }

    /// Revokes a token, with all its leases.
    ///
    /// # Errors
    /// [`FailureClass::Token`] if it has no rights any more.
    pub async fn revoke(&self, token: &SecretText) -> Result<(), VaultError> {
        let doing = "revoke a token".to_owned();
        let path = path_of(&doing, &["auth/token/revoke-self"])?;
        let call = Call { token: Some(token), ..Call::new(Method::POST, &path, &doing) };
        self.transport.send(call).await.map(drop)
    }

    /// Revokes the token with this accessor, by the rights of `token`.
    ///
    /// # Errors
    /// If `token` may not, there is no such token, or Vault does not answer.
    pub async fn revoke_accessor(&self, token: &SecretText, accessor: &str) -> Result<(), VaultError> {
        let doing = "revoke a token by its accessor".to_owned();
        let path = path_of(&doing, &["auth/token/revoke-accessor"])?;
        let body = SecretValue::new(json!({ "accessor": accessor }));
        let call = Call { token: Some(token), body: Some(&body), ..Call::new(Method::POST, &path, &doing) };
        self.transport.send(call).await.map(drop)
    }

    /// Reads a path as it is written.
    ///
    /// # Errors
    /// [`FailureClass::Absent`] if nothing is there.
    pub async fn read(&self, token: &SecretText, path: &VaultPath) -> Result<Secret, VaultError> {
        let doing = format!("read {}", path.as_str());
        let call = Call { token: Some(token), ..Call::new(Method::GET, path, &doing) };
        let answer = self.transport.send(call).await?;
        present(answer, doing)
    }

    /// Reads a path; data of the key-value engine's version 2 is found with and without `data/`.
    ///
    /// # Errors
    /// [`FailureClass::Absent`] if nothing is there, or it was deleted.
    pub async fn read_secret(&self, token: &SecretText, path: &VaultPath) -> Result<Secret, VaultError> {
        let mount = self.mount_of(token, path).await?;
        self.read(token, &mount.request_path(path, Access::Data, self.namespace.as_deref())).await
    }

    /// The names below a path, in Vault's order; folders end in `/`.
    ///
    /// # Errors
    /// [`FailureClass::Absent`] if there are none.
    pub async fn list(&self, token: &SecretText, path: &VaultPath) -> Result<Vec<String>, VaultError> {
        let mount = self.mount_of(token, path).await?;
        let path = mount.request_path(path, Access::Names, self.namespace.as_deref());
        let doing = format!("list {}", path.as_str());
        // Some proxies reject the method LIST.
        let mut arguments = path.arguments().to_vec();
        arguments.push(("list".to_owned(), "true".to_owned()));
        let path = VaultPath::of_checked(path.as_str().to_owned(), arguments);
        let call = Call { token: Some(token), ..Call::new(Method::GET, &path, &doing) };
        let answer = self.transport.send(call).await?;
        Ok(texts(&present(answer, doing)?.data, "keys"))
    }

    /// Writes to a path, which may issue something, such as a certificate. `None` if the answer has no data.
    ///
    /// # Errors
    /// After [`FailureClass::Later`] it is unknown whether the write was done.
    pub async fn write(
        &self,
        token: &SecretText,
        path: &VaultPath,
        data: SecretValue,
    ) -> Result<Option<Secret>, VaultError> {
        let mount = self.mount_of(token, path).await?;
        let path = mount.request_path(path, Access::Data, self.namespace.as_deref());
        let doing = format!("write to {}", path.as_str());
        let mut hidden = Vec::new();
        collect_texts(data.reveal(), &mut hidden);
        let wrapped = match mount.engine {
            Engine::KvV2 => Some(SecretValue::new(json!({ "data": data.reveal() }))),
            Engine::Plain => None,
        };
        let body = Some(wrapped.as_ref().unwrap_or(&data));
        let call = Call { token: Some(token), body, hidden, ..Call::new(Method::POST, &path, &doing) };
        let answer = self.transport.send(call).await?;
        Ok(Secret::of_write(answer, wall_seconds()))
    }

    /// The mount of a path. If the server does not report it, or not to this token, the path counts as plain: the request that
    /// follows gives the real error. While the server is not ready nothing is assumed, because a request to the wrong path
    /// could be denied for good.
    ///
    /// # Errors
    /// [`FailureClass::Later`] only.
    pub async fn mount_of(&self, token: &SecretText, path: &VaultPath) -> Result<Mount, VaultError> {
        let doing = format!("find the mount of {}", path.as_str());
        let of_mount = format!("sys/internal/ui/mounts/{}", path.as_str());
        let of_mount = VaultPath::of_checked(of_mount, Vec::new());
        let call = Call { token: Some(token), ..Call::new(Method::GET, &of_mount, &doing) };
        match self.transport.send(call).await {
            Ok(mut answer) => {
                let mount = Mount::of_answer(answer.take("data").reveal());
                mount.ok_or(VaultError::Answer { doing, why: "it has no mount".to_owned() })
            }
            Err(error) => match error.class() {
                FailureClass::Later { .. } => Err(error),
                FailureClass::Token | FailureClass::Absent | FailureClass::Request => Ok(Mount::unknown()),
            },
        }
    }

    /// Renews the lease of a secret. Vault chooses the duration if `increment` is absent.
    ///
    /// # Errors
    /// See [`VaultError::lease_failure`] for whether the lease is lost.
    pub async fn renew_lease(
        &self,
        token: &SecretText,
        lease_id: &str,
        increment: Option<Duration>,
    ) -> Result<LeaseTerms, VaultError> {
        let doing = format!("renew the lease {lease_id}");
        let path = path_of(&doing, &["sys/leases/renew"])?;
        let mut fields = json!({ "lease_id": lease_id });
        if let Some(increment) = increment {
            fields["increment"] = seconds(increment).into();
        }
        let body = SecretValue::new(fields);
        let call = Call { token: Some(token), body: Some(&body), ..Call::new(Method::POST, &path, &doing) };
        let answer = self.transport.send(call).await?;
        terms_of_renewal(&answer).map_err(|why| VaultError::Answer { doing, why })
    }

    /// The server's version and cluster, if it is up and unsealed.
    ///
    /// # Errors
    /// If it is not ready, or does not answer.
    pub async fn describe(&self) -> Result<ServerInfo, VaultError> {
        let doing = "ask for its health".to_owned();
        let arguments = ["standbyok", "perfstandbyok"].map(|name| (name.to_owned(), "true".to_owned()));
        let path = VaultPath::of_checked("sys/health".to_owned(), arguments.to_vec());
        let call = Call { scope: Scope::Root, ..Call::new(Method::GET, &path, &doing) };
        let answer = self.transport.send(call).await?;
        let text = |name: &str| answer.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        Ok(ServerInfo {
            version: text("version"),
            cluster_id: text("cluster_id"),
            cluster_name: text("cluster_name"),
        })
    }
}

fn present(answer: SecretValue, doing: String) -> Result<Secret, VaultError> {
    let why = || "there is no data".to_owned();
    match Secret::of_answer(answer, wall_seconds()) {
        Some(secret) if !secret.is_deleted() => Ok(secret),
        Some(_) | None => Err(VaultError::Missing { doing, why: why() }),
    }
}

fn path_of(doing: &str, parts: &[&str]) -> Result<VaultPath, VaultError> {
    let parts: Vec<&str> = parts.iter().map(|part| part.trim_matches('/')).collect();
    // A question mark in a mount must not begin arguments.
    let path = VaultPath::parse(&parts.join("/")).ok().filter(|path| path.arguments().is_empty());
    path.ok_or_else(|| VaultError::Invalid {
        doing: doing.to_owned(),
        why: format!("{:?} is no path", parts.join("/")),
    })
}

fn collect_texts<'v>(value: &'v Value, texts: &mut Vec<&'v str>) {
    match value {
        Value::String(text) => texts.push(text),
        Value::Array(items) => items.iter().for_each(|item| collect_texts(item, texts)),
        Value::Object(fields) => fields.values().for_each(|item| collect_texts(item, texts)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// At least one second: 0 means that Vault chooses.
fn seconds(increment: Duration) -> u64 {
    increment.as_secs().max(1)
}

fn wall_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests;
