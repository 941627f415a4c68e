//! Has the cluster's servers sign identities of tasks and services (1.7 and later), and derive tokens of Vault (through 1.9).
//!
//! In: names of identities, tasks. Out: tokens, and the time to renew them. Stores nothing.
//!
//! Facts: `hashicorp/nomad:client/widmgr/widmgr.go`, `helper/backoff.go` (`ExpiryToRenewTime`).

use std::time::Duration;

use futures_util::{FutureExt as _, future::BoxFuture};
use herdlet_agent::executor::{
    Refusal,
    identities::{Cluster, DeriveRequest, SignRequest, SignedIdentity, SignedWorkload},
};
use herdlet_api_types::UnixNanos;
use herdlet_base::{clock, observation::Class};
use herdlet_nomad::{
    session::Queries,
    wire::{
        Secret,
        queries::{self, DeriveResponse, IdentityRequest, SignResponse},
    },
};
use herdlet_rpc::{
    Service,
    connect::Dial,
    error::{CallError, ErrorKind},
    pool::Chance,
};

use super::report;

/// Time limit for servers: a little less than that of an operation. After it, the operation is retried.
const WITHIN: Duration = Duration::from_secs(8);

/// Minimum time before a renewal, since clocks may differ by more than a token's lifetime.
const RENEWED_AFTER: Duration = Duration::from_secs(10);

/// Nomad's workload types.
const OF_TASK: i64 = 0;
const OF_SERVICE: i64 = 1;

/// The executor's view of the cluster's servers.
pub struct Servers<S, D>(pub Queries<S, D>);

impl<S: Service, D: Dial> std::fmt::Debug for Servers<S, D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Servers")
    }
}

impl<S: Service, D: Dial> Cluster for Servers<S, D> {
    fn sign(&self, request: SignRequest) -> BoxFuture<'static, Result<Vec<SignedIdentity>, Refusal>> {
        let queries = self.0.clone();
        async move {
            let wanted = wire_requests(&request);
            let asked = tokio::time::timeout(WITHIN, queries.sign(&wanted, request.create_index));
            let answer = asked.await.map_err(|_| {
                retry(format!("get identities signed: no server answered within {} s", WITHIN.as_secs()))
            })?;
            signed(&request, answer.map_err(|error| retry(format!("get identities signed: {error}")))?)
        }
        .boxed()
    }

    fn derive_vault_token(&self, request: DeriveRequest) -> BoxFuture<'static, Result<Secret, Refusal>> {
        let queries = self.0.clone();
        async move {
            let (alloc, tasks) = (report::id(request.alloc), [request.task.clone()]);
            let asked = queries.derive_vault_tokens(&alloc, &tasks);
            let answer = tokio::time::timeout(WITHIN, asked).await.map_err(|_| {
                retry(format!(
                    "have a token of Vault derived: no server answered within {} s",
                    WITHIN.as_secs()
                ))
            })?;
            derived(&request.task, answer.map_err(|error| not_derived(&error))?)
        }
        .boxed()
    }
}

fn not_derived(error: &CallError) -> Refusal {
    if error.kind() != ErrorKind::UnknownMethod {
        return retry(format!("have a token of Vault derived: {error}"));
    }
    Refusal {
        class: Class::Fatal,
        why: "get a token of Vault: the servers derive none (1.10 and later), and sign no identity for Vault; set \
              default_identity in the block vault of their config, or add the identity to the job"
            .to_owned(),
    }
}

/// The token in a response. Texts are Nomad's.
fn derived(task: &str, answer: DeriveResponse) -> Result<Secret, Refusal> {
    if let Some(error) = answer.error {
        let class = if error.recoverable { Class::Retry } else { Class::Fatal };
        return Err(Refusal {
            class,
            why: format!("Vault: server failed to derive vault token: {}", error.err),
        });
    }
    let mut tokens = answer.tasks;
    let token = tokens.remove(task).filter(|token| !token.is_empty());
    token.ok_or_else(|| retry("have a token of Vault derived: the response does not contain it".to_owned()))
}

fn retry(why: String) -> Refusal {
    Refusal { class: Class::Retry, why }
}

fn wire_requests(request: &SignRequest) -> Vec<IdentityRequest> {
    let (workload_type, name_in_catalogue) = match &request.workload {
        SignedWorkload::Task(_) => (OF_TASK, ""),
        SignedWorkload::Service { name, .. } => (OF_SERVICE, name.as_str()),
    };
    let request_of = |name: &String| IdentityRequest {
        alloc_id: report::id(request.alloc),
        identity_name: name.clone(),
        workload_identifier: request.workload.identifier().to_owned(),
        workload_type,
        interpolated_workload_identifier: name_in_catalogue.to_owned(),
    };
    request.identities.iter().map(request_of).collect()
}

/// The requested identities in a response.
fn signed(request: &SignRequest, answer: SignResponse) -> Result<Vec<SignedIdentity>, Refusal> {
    let is_ours = |id: &herdlet_nomad::wire::AllocId, workload: &str| {
        *id == report::id(request.alloc) && workload == request.workload.identifier()
    };
    let mut refused = answer.rejections.iter().filter(|it| is_ours(&it.alloc_id, &it.workload_identifier));
    if let Some(refused) = refused.find(|refused| request.identities.contains(&refused.identity_name)) {
        let why = format!("get identity {:?} signed: {}", refused.identity_name, refused.reason);
        return Err(Refusal { class: Class::Fatal, why });
    }
    let now = clock::wall_now().0;
    let mut chance = Chance::new();
    let is_signed =
        |it: &queries::SignedIdentity| is_ours(&it.alloc_id, &it.workload_identifier) && !it.jwt.is_empty();
    let identities = answer.signed_identities.into_iter().filter(is_signed);
    let identities = identities.map(|it| {
        let expires = it.expiration.unix_nanos().filter(|_| !it.expiration.is_zero());
        let renew_at = expires.map(|expires| UnixNanos(renew_at(now, expires, &mut chance)));
        SignedIdentity { name: it.identity_name, token: it.jwt, renew_at }
    });
    Ok(identities.collect())
}

/// When half of the lifetime is over, or up to a tenth of that earlier at random to spread renewals.
fn renew_at(now: i64, expires: i64, chance: &mut Chance) -> i64 {
    let left = Duration::from_nanos(u64::try_from(expires.saturating_sub(now)).unwrap_or_default());
    let half = left / 2;
    let wait = half.saturating_sub(chance.below(half / 10)).max(RENEWED_AFTER);
    now.saturating_add(i64::try_from(wait.as_nanos()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000_000;

    #[test]
    fn only_the_servers_know_whether_a_token_can_be_derived_later() {
        let answer = |error| DeriveResponse { error, ..DeriveResponse::default() };
        let error =
            |recoverable| Some(queries::RecoverableError { err: "Vault is sealed".to_owned(), recoverable });
        for (answer, class) in [
            (answer(error(true)), Class::Retry),
            (answer(error(false)), Class::Fatal),
            (answer(None), Class::Retry),
        ] {
            let Err(refusal) = derived("t", answer) else { panic!("there is no token") };
            assert_eq!(refusal.class, class, "{}", refusal.why);
        }
        let tasks = [("t".to_owned(), Secret::from("s.wrapped".to_owned()))].into();
        let answer = DeriveResponse { tasks, ..DeriveResponse::default() };
        assert!(derived("t", answer).is_ok_and(|token| token.reveal() == "s.wrapped"));
    }

    /// `client/widmgr/signer.go`: servers find the service by its name in the job, and sign its name in the catalogue.
    #[test]
    fn a_service_is_requested_by_both_of_its_names() {
        let workload =
            SignedWorkload::Service { spec_name: "${JOB}-api".to_owned(), name: "web-api".to_owned() };
        let alloc = herdlet_api_types::AllocId::from_hash([1; 16]);
        let identities = vec!["consul-service_web-api-http".to_owned()];
        let request = SignRequest { alloc, create_index: 7, workload, identities };
        let wire = wire_requests(&request).remove(0);
        assert_eq!((wire.workload_type, wire.workload_identifier.as_str()), (OF_SERVICE, "${JOB}-api"));
        assert_eq!(wire.interpolated_workload_identifier, "web-api");
        let signed_identity = queries::SignedIdentity {
            alloc_id: wire.alloc_id,
            identity_name: wire.identity_name,
            workload_identifier: wire.workload_identifier,
            jwt: Secret::from("jwt".to_owned()),
            ..queries::SignedIdentity::default()
        };
        let answer = SignResponse { signed_identities: vec![signed_identity], ..SignResponse::default() };
        assert_eq!(signed(&request, answer).ok().unwrap().len(), 1);
    }

    #[test]
    fn identity_is_renewed_after_half_its_life() {
        let after =
            |life: i64| (renew_at(5 * SECOND, (5 + life) * SECOND, &mut Chance::of(3)) - 5 * SECOND) / SECOND;
        assert!((1_620..=1_800).contains(&after(3_600)), "{}", after(3_600));
        assert_eq!((after(15), after(1), after(-3_600)), (10, 10, 10));
    }
}
