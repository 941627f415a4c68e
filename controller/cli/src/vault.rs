//! `herdlet vault`: the tokens of Vault that tasks have. Tokens themselves are never shown.

use clap::{Args, Subcommand};
use herdlet_api_types::vault::RevokedToken;
use serde::Serialize;

use crate::{
    Connection,
    failure::{FAILED, Failure},
    output::{Output, Reader},
    show,
    table::{Heading, Table},
};

/// Arguments of `herdlet vault`.
#[derive(Debug, Clone, Args)]
pub struct VaultArgs {
    #[command(subcommand)]
    verb: VaultVerb,
}

#[derive(Debug, Clone, Subcommand)]
enum VaultVerb {
    /// Revoke the tokens of all tasks, with all credentials that were issued with them; running tasks get others
    #[command(
        after_help = "Example:\n  herdlet vault revoke-all\n\nThe change_mode of each task acts, which is a restart by default.\n\nExit code: 0 all are revoked, 1 some are not."
    )]
    RevokeAll(RevokeAllArgs),
}

#[derive(Debug, Clone, Args)]
struct RevokeAllArgs {
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    connection: Connection,
}

#[derive(Serialize)]
struct Report {
    tokens: Vec<RevokedToken>,
}

impl VaultArgs {
    pub fn connection(&mut self) -> &mut Connection {
        let VaultVerb::RevokeAll(args) = &mut self.verb;
        &mut args.connection
    }
}

/// Runs `herdlet vault`.
///
/// # Errors
/// If the agent refuses or does not answer.
pub async fn run(args: VaultArgs) -> Result<u8, Failure> {
    let VaultVerb::RevokeAll(args) = args.verb;
    let tokens = args.connection.client()?.revoke_vault_tokens().await?;
    if args.output.reader() == Reader::Person {
        show::out(&summary(&tokens));
    }
    let is_done = tokens.iter().all(|token| token.error.is_none());
    args.output.document(&Report { tokens })?;
    Ok(if is_done { 0 } else { FAILED })
}

fn summary(tokens: &[RevokedToken]) -> String {
    if tokens.is_empty() {
        return "no task has a token of Vault\n".to_owned();
    }
    let mut table = Table::new(&["ALLOCATION", "TASK", "CLUSTER", "ACCESSOR", "RESULT"]);
    for RevokedToken { alloc, task, cluster, accessor, error, .. } in tokens {
        let result = error.as_ref().map_or("revoked".to_owned(), |error| format!("failed to {error}"));
        table.row([alloc.clone(), task.clone(), cluster.clone(), accessor.clone(), result]);
    }
    table.render(Heading::Shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_token_has_a_line() {
        let token = |error: Option<&str>| RevokedToken {
            namespace: "default".to_owned(),
            alloc: "web.g[0]".to_owned(),
            alloc_id: String::new(),
            task: "t".to_owned(),
            cluster: "default".to_owned(),
            accessor: "a".to_owned(),
            error: error.map(str::to_owned),
        };
        let text = summary(&[token(None), token(Some("revoke the token: no answer in time"))]);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[1].starts_with("web.g[0]") && lines[1].ends_with("revoked"), "{text}");
        assert!(lines[2].ends_with("failed to revoke the token: no answer in time"), "{text}");
        assert_eq!(summary(&[]), "no task has a token of Vault\n");
    }
}
