//! Metrics of tokens of Vault and Consul.
//!
//! In: figures of the agent's servers. Out: samples.

use std::fmt;

use super::{names, number, page::Page};
use crate::{consul::ConsulLoginFigures, vault::VaultFigures};

pub(super) fn write(page: &mut Page<'_>, vault: VaultFigures, consul: ConsulLoginFigures) -> fmt::Result {
    write_vault(page, vault)?;
    write_consul(page, consul)
}

fn write_vault(page: &mut Page<'_>, figures: VaultFigures) -> fmt::Result {
    let VaultFigures { logged_in, failed, outdated, outdated_for } = figures;
    let logins = [("done", logged_in), ("failed", failed)];
    page.counters(&names::VAULT_LOGINS, logins.map(|(result, count)| ([result], count)))?;
    page.gauges(&names::VAULT_OUTDATED, [([], number(u64::try_from(outdated).unwrap_or(u64::MAX)))])?;
    page.gauges(&names::VAULT_OUTDATED_AGE, [([], outdated_for.as_secs_f64())])
}

fn write_consul(page: &mut Page<'_>, figures: ConsulLoginFigures) -> fmt::Result {
    let ConsulLoginFigures { logged_in, failed } = figures;
    let logins = [("done", logged_in), ("failed", failed)];
    page.counters(&names::CONSUL_LOGINS, logins.map(|(result, count)| ([result], count)))
}
