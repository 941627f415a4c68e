//! Metrics of tokens of Vault and Consul.
//!
//! In: figures of the agent's servers. Out: samples.

use std::{collections::BTreeMap, fmt};

use super::{names, number, page::Page};
use crate::{consul::ConsulLoginFigures, vault::VaultFigures};

/// `consuls` has the figures of each Consul, by name.
pub(super) fn write(
    page: &mut Page<'_>,
    vault: VaultFigures,
    consuls: &BTreeMap<String, ConsulLoginFigures>,
) -> fmt::Result {
    write_vault(page, vault)?;
    write_consul(page, consuls)
}

fn write_vault(page: &mut Page<'_>, figures: VaultFigures) -> fmt::Result {
    let VaultFigures { logged_in, failed, outdated, outdated_for } = figures;
    let logins = [("done", logged_in), ("failed", failed)];
    page.counters(&names::VAULT_LOGINS, logins.map(|(result, count)| ([result], count)))?;
    page.gauges(&names::VAULT_OUTDATED, [([], number(u64::try_from(outdated).unwrap_or(u64::MAX)))])?;
    page.gauges(&names::VAULT_OUTDATED_AGE, [([], outdated_for.as_secs_f64())])
}

fn write_consul(page: &mut Page<'_>, consuls: &BTreeMap<String, ConsulLoginFigures>) -> fmt::Result {
    let logins = consuls.iter().flat_map(|(name, figures)| {
        let ConsulLoginFigures { logged_in, failed } = *figures;
        [("done", logged_in), ("failed", failed)].map(|(result, count)| ([name.as_str(), result], count))
    });
    page.counters(&names::CONSUL_LOGINS, logins)
}
