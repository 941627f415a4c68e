//! Variables of the tokens that a task has at Vault and Consul.

use std::sync::Arc;

use herdlet_plan::env::Variables;

use super::{Context, Refusal, Workload, consul, vault};

/// `VAULT_TOKEN`, `CONSUL_HTTP_TOKEN` and the like, if the task wants them.
///
/// # Errors
/// If a token is not there, or can't be read.
pub(super) async fn variables(context: &Arc<Context>, workload: &Workload) -> Result<Variables, Refusal> {
    let mut variables = vault::variables(context, workload).await?;
    variables.extend(consul::variables(context, workload).await?);
    Ok(variables)
}
