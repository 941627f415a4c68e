//! Results of checks that we run for Consul.
//!
//! In: results. Out: requests to the agent. The last results are kept, and reported again after a registration.

use std::{
    collections::BTreeMap,
    sync::{MutexGuard, PoisonError},
};

use herdlet_api_types::service::{CheckStatus, Registration};

use super::{
    Consul,
    client::{Put, RequestKind},
    path_part, retry,
    tokens::Token,
};
use crate::catalog::CatalogFailure;
impl Consul {
    /// Reports the result of a check that Consul does not run itself.
    ///
    /// # Errors
    ///
    /// If the agent can't be reached, refuses, or does not know the check (yet).
    pub async fn update_check(
        &self,
        service: &str,
        id: &str,
        status: CheckStatus,
        output: &str,
    ) -> Result<(), CatalogFailure> {
        let doing = || format!("report the result of a check of service {service}");
        let token = self.tokens.by_id(id, service).await;
        let token = token.map_err(|error| retry(format!("{}: {error}", doing())))?;
        let status = match status {
            CheckStatus::Success => "passing",
            CheckStatus::Warning => "warning",
            CheckStatus::Pending | CheckStatus::Failure => "critical",
        };
        let body = serde_json::json!({ "Status": status, "Output": output });
        self.reported().insert(id.to_owned(), body.clone());
        let path = format!("/v1/agent/check/update/{}", path_part(id));
        let put = Put { kind: RequestKind::Update, path: &path, body: Some(&body), token: &token };
        Ok(self.api.put(put, &doing).await?)
    }

    /// Forgets a check that is no longer run.
    pub fn remove_check(&self, id: &str) {
        self.reported().remove(id);
    }

    /// Repeats the last results of checks that Consul does not run itself: the agent forgets them when their service is
    /// registered again or it has lost its data, and the next run may be an hour away.
    pub(super) async fn report_again(&self, wanted: &Registration, token: &Token) {
        let doing = || format!("report the results of checks of service {}", wanted.name);
        for check in wanted.checks.iter().filter(|check| !check.kind.has_address()) {
            let Some(body) = self.reported().get(&check.id).cloned() else { continue };
            let path = format!("/v1/agent/check/update/{}", path_part(&check.id));
            let put = Put { kind: RequestKind::Update, path: &path, body: Some(&body), token };
            if let Err(refused) = self.api.put(put, &doing).await {
                let failure = CatalogFailure::from(refused);
                tracing::debug!(why = %failure.why, "failed to report a check result to Consul");
            }
        }
    }

    fn reported(&self) -> MutexGuard<'_, BTreeMap<String, serde_json::Value>> {
        self.results.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
