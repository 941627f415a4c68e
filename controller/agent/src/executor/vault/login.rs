//! Log-ins: how a task gets a token, with an identity or through servers.
//!
//! In: a task without a token, or with one that has to be replaced. Out: a token, or why there is none. Tasks log in with their
//! identity. For tasks of servers without one (through Nomad 1.9), the servers derive a token, which arrives wrapped
//! (`client/allocrunner/taskrunner/vault_hook.go`).

use std::{sync::Arc, time::Duration};

use herdlet_vault::{
    answer::TokenGrant,
    client::JwtLogin,
    error::{FailureClass, VaultError},
    secret::SecretText,
};

use super::{Session, audit, place_of};
use crate::{
    executor::{
        Refusal,
        identities::DeriveRequest,
        login_identity::{self, LoginIdentity},
    },
    held_token::{HeldToken, NewToken},
};

/// Why there is no new token.
pub(super) struct Failure {
    pub(super) refusal: Refusal,
    pub(super) retry_after: Option<Duration>,
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Self { refusal, retry_after: None }
    }
}

impl Session<'_> {
    /// Gets a new token.
    pub(super) async fn log_in(&self) -> Result<HeldToken, Failure> {
        let task = self.workload.task().ok_or_else(|| Refusal::from("find the task"))?;
        let name = self.access.identity_name();
        let is_signed = task.identities.iter().any(|identity| identity.name == name);
        if self.workload.alloc.server.is_some() && !is_signed {
            return self.derive().await;
        }
        let Self { context, access, server, .. } = self;
        let identity = self.identity().await.map_err(Refusal::retry)?;
        let role = access.role.as_deref().or(server.config.role.as_deref());
        let login = JwtLogin { mount: &server.config.auth_path, role, identity: &identity };
        self.end("log in", context.vaults.log_in(server, self.client.log_in(login)).await)
    }

    /// Has the servers derive a token, and takes it out of its wrapping.
    async fn derive(&self) -> Result<HeldToken, Failure> {
        let Self { context, server, .. } = self;
        let wrapping = match self.wrapped().await {
            Ok(wrapping) => wrapping,
            Err(refusal) => {
                audit(self.workload, "derive", "").end(Some(&refusal.why));
                return Err(refusal.into());
            }
        };
        self.end("derive", context.vaults.log_in(server, self.client.unwrap_token(&wrapping)).await)
    }

    async fn wrapped(&self) -> Result<SecretText, Refusal> {
        let retry = |why: &str| Refusal::retry(why.to_owned());
        let cluster = self.context.cluster.get();
        let cluster = cluster.ok_or_else(|| retry("have a token of Vault derived: no cluster joined"))?;
        let request = DeriveRequest {
            alloc: self.workload.alloc.id,
            task: self.workload.task().map(|task| task.name.clone()).unwrap_or_default(),
        };
        let token = cluster.derive_vault_token(request).await?;
        Ok(SecretText::new(token.reveal().to_owned()))
    }

    fn end(
        &self,
        operation: &'static str,
        result: Result<TokenGrant, VaultError>,
    ) -> Result<HeldToken, Failure> {
        match result {
            Ok(grant) => {
                audit(self.workload, operation, &grant.accessor).end(None);
                let TokenGrant { token, accessor, terms, .. } = grant;
                Ok(HeldToken::new(NewToken { token, accessor, terms }, place_of(self.access)))
            }
            Err(error) => {
                audit(self.workload, operation, "").end(Some(&error.to_string()));
                let retry_after = match error.class() {
                    FailureClass::Later { retry_after } => retry_after,
                    FailureClass::Token | FailureClass::Absent | FailureClass::Request => None,
                };
                // Also a refused one: roles and settings of Vault change while tasks wait.
                let refusal = Refusal::retry(error.to_string());
                Err(Failure { refusal, retry_after })
            }
        }
    }

    /// The identity to log in with: signed now, or by servers.
    async fn identity(&self) -> Result<SecretText, String> {
        let (context, workload) = (Arc::clone(self.context), self.workload.clone());
        let config = &self.server.config;
        let wanted = LoginIdentity {
            name: self.access.identity_name(),
            audiences: config.audiences.clone(),
            ttl: config.identity_ttl,
        };
        let signed = herdlet_runtime::off_thread(move || {
            login_identity::of_task(&context, &workload, ("Vault", wanted))
        });
        signed.await.map_err(|error| format!("get the identity for Vault: {error}")).flatten()
    }
}
