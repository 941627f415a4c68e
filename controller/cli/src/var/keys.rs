//! `herdlet var key`: the keys that encrypt variables. Keys themselves are never shown.

use clap::{Args, Subcommand};
use herdlet_api_types::UnixNanos;
use serde::Serialize;

use crate::{
    Connection,
    client::VariableKeyInfo,
    failure::Failure,
    output::{Output, Reader},
    show,
    table::{Heading, Table},
};

/// Arguments of `herdlet var key`.
#[derive(Debug, Clone, Args)]
pub struct VarKeyArgs {
    #[command(subcommand)]
    verb: VarKeyVerb,
}

#[derive(Debug, Clone, Subcommand)]
enum VarKeyVerb {
    /// List the keys: the active one encrypts; rekeying ones are being replaced; inactive ones are not needed
    #[command(after_help = "Example:\n  herdlet var key list")]
    List(KeyArgs),
    /// Create a key, and encrypt all variables again with it
    #[command(
        after_help = "Example:\n  herdlet var key rotate\n\nOnly for keys that the agent generated. The old key stays until it is removed: older backups need it."
    )]
    Rotate(KeyArgs),
    /// Remove a key that is not in use
    #[command(after_help = "Example:\n  herdlet var key remove 0f1e2d3c-4b5a-8697-8899-aabbccddeeff")]
    Remove(RemoveArgs),
}

#[derive(Debug, Clone, Args)]
struct KeyArgs {
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    connection: Connection,
}

#[derive(Debug, Clone, Args)]
struct RemoveArgs {
    /// The id of a key
    id: String,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    connection: Connection,
}

impl VarKeyArgs {
    pub(super) fn connection(&mut self) -> &mut Connection {
        match &mut self.verb {
            VarKeyVerb::List(args) | VarKeyVerb::Rotate(args) => &mut args.connection,
            VarKeyVerb::Remove(args) => &mut args.connection,
        }
    }
}

#[derive(Serialize)]
struct Listing {
    keys: Vec<KeyReport>,
}

#[derive(Serialize)]
struct KeyReport {
    id: String,
    state: String,
    variables: u64,
    /// Nanoseconds since 1970; 0 if unknown.
    created: i64,
}

impl From<VariableKeyInfo> for KeyReport {
    fn from(info: VariableKeyInfo) -> Self {
        Self { id: info.id, state: info.state, variables: info.variables, created: info.create_time }
    }
}

pub(super) async fn run(args: VarKeyArgs) -> Result<u8, Failure> {
    match args.verb {
        VarKeyVerb::List(KeyArgs { output, connection }) => {
            let keys = connection.client()?.variable_keys().await?.into_iter().map(KeyReport::from).collect();
            let listing = Listing { keys };
            match output.reader() {
                Reader::Person => show::out(&table(&listing.keys)),
                Reader::Program => output.document(&listing)?,
            }
        }
        VarKeyVerb::Rotate(KeyArgs { output, connection }) => {
            let key = KeyReport::from(connection.client()?.rotate_variable_key().await?);
            output.line(&format!(
                "created key {}; variables are encrypted again in the background: herdlet var key list",
                key.id
            ));
            output.document(&Listing { keys: vec![key] })?;
        }
        VarKeyVerb::Remove(RemoveArgs { id, output, connection }) => {
            connection.client()?.remove_variable_key(&id).await?;
            output.line(&format!("key {id} removed"));
            output.document(&Listing { keys: Vec::new() })?;
        }
    }
    Ok(0)
}

fn table(keys: &[KeyReport]) -> String {
    let mut table = Table::new(&["KEY", "STATE", "VARIABLES", "AGE"]);
    for key in keys {
        let age = show::age(UnixNanos(key.created));
        table.row([key.id.clone(), key.state.clone(), key.variables.to_string(), age]);
    }
    if table.is_empty() {
        "there are no keys yet; the first variable creates one\n".to_owned()
    } else {
        table.render(Heading::Shown)
    }
}
