//! Registration, deregistration and inspection of the services of an owner, with their tokens of Consul.
//!
//! In: resolved services. Out: requests to the catalogues, and their outcome. A service without a token delays no other.

use std::sync::Arc;

use herdlet_api_types::{alloc::Allocation, job::Provider, service::Registration};
use herdlet_base::observation::Observation;
use herdlet_plan::action::Outcome;
use herdlet_services::catalog::ServiceOwner;

use super::{
    Resolved, checking, refused,
    tokens::{self, Specs, Tokens},
};
use crate::executor::{Context, PlaceVerb, Refusal, retry};

/// Registers, deregisters or inspects the services of an owner.
pub(super) async fn carry_out(
    context: &Arc<Context>,
    (alloc, owner): (&Arc<Allocation>, &ServiceOwner),
    (resolved, specs): (&Resolved, &Specs<'_>),
    verb: PlaceVerb,
) -> Outcome {
    let outcome = match verb {
        PlaceVerb::Up => up(context, (alloc, owner), (resolved, specs)).await,
        PlaceVerb::Down => down(context, owner, &resolved.registrations).await,
        PlaceVerb::Inspect => inspect(context, (alloc, owner), (&resolved.registrations, specs)).await,
    };
    outcome.unwrap_or_else(Outcome::from)
}

async fn up(
    context: &Arc<Context>,
    (alloc, owner): (&Arc<Allocation>, &ServiceOwner),
    (resolved, specs): (&Resolved, &Specs<'_>),
) -> Result<Outcome, Refusal> {
    let Resolved { registrations, broken, .. } = resolved;
    let tokens = tokens::ensure(context, (alloc, owner), (registrations, specs)).await?;
    let without_token = tokens.refused.keys().cloned().collect();
    let registered = context.services.catalogs.up(owner, registrations, &without_token).await;
    if registered.is_ok() {
        tokens::release(context, owner, &tokens).await?;
    }
    let registration = registered.err().map(|error| error.to_string());
    let failures: Vec<&str> =
        broken.iter().chain(tokens.refused.values()).chain(&registration).map(String::as_str).collect();
    Ok(match failures.is_empty() {
        true if registrations.iter().any(|one| one.provider == Provider::Consul) => checking(registrations),
        true => Outcome::Done(None),
        false => retry(failures.join("; ")),
    })
}

async fn down(
    context: &Arc<Context>,
    owner: &ServiceOwner,
    registrations: &[Registration],
) -> Result<Outcome, Refusal> {
    tokens::load_known(context, owner, registrations).await?;
    if let Err(error) = context.services.catalogs.down(owner, registrations).await {
        return Ok(refused(&error));
    }
    // Only now: a deregistration needs the token.
    tokens::release(context, owner, &Tokens::default()).await?;
    Ok(Outcome::Done(None))
}

async fn inspect(
    context: &Arc<Context>,
    (alloc, owner): (&Allocation, &ServiceOwner),
    (registrations, specs): (&[Registration], &Specs<'_>),
) -> Result<Outcome, Refusal> {
    let kept = tokens::load_known(context, owner, registrations).await?;
    let lack = tokens::lack(context, (alloc, owner), (registrations, specs), &kept);
    Ok(match context.services.catalogs.inspect(owner, registrations).await {
        Ok(Observation::Present) => match lack {
            Some(why) => Outcome::Foreign { why },
            None => Outcome::Present(None),
        },
        Ok(Observation::Absent) => Outcome::Absent,
        Ok(Observation::Foreign { why } | Observation::Lost { why }) => Outcome::Foreign { why },
        Err(error) => refused(&error),
    })
}
