//! `herdlet identity`: the keys that sign identities. Keys themselves are never shown.

use clap::{Args, Subcommand, ValueEnum};
use herdlet_api_types::{UnixNanos, parse_duration};
use herdlet_base::clock;
use serde::Serialize;

use crate::{
    Connection,
    client::{KeyRemoval, VariableKeyInfo},
    failure::{Failure, USAGE},
    output::{Output, Reader},
    show,
    table::{Heading, Table},
};

/// Arguments of `herdlet identity`.
#[derive(Debug, Clone, Args)]
pub struct IdentityArgs {
    #[command(subcommand)]
    subject: Subject,
}

#[derive(Debug, Clone, Subcommand)]
enum Subject {
    /// List, rotate and remove the keys that sign identities
    #[command(after_help = "Examples:\n  herdlet identity key list\n  herdlet identity key rotate")]
    Key(KeyArgs),
}

#[derive(Debug, Clone, Args)]
struct KeyArgs {
    #[command(subcommand)]
    verb: KeyVerb,
}

#[derive(Debug, Clone, Subcommand)]
enum KeyVerb {
    /// List the keys: the active one signs; prepublished ones will; inactive ones only verify
    #[command(after_help = "Example:\n  herdlet identity key list")]
    List(ListArgs),
    /// Create a key, which signs from now on
    #[command(
        after_help = "Examples:\n  herdlet identity key rotate\n  herdlet identity key rotate --publish-for 1h     services learn the key before it signs\n\nTokens of the old key stay valid. The agent removes it when none is left."
    )]
    Rotate(RotateArgs),
    /// Remove a key that does not sign
    #[command(
        after_help = "Examples:\n  herdlet identity key remove 0f1e2d3c-4b5a-8697-8899-aabbccddeeff\n  herdlet identity key remove --force 0f1e2d3c-4b5a-8697-8899-aabbccddeeff     also if tokens become invalid"
    )]
    Remove(RemoveArgs),
}

#[derive(Debug, Clone, Args)]
struct ListArgs {
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    connection: Connection,
}

#[derive(Debug, Clone, Args)]
struct RotateArgs {
    /// Publish the key for this time before it signs [default: it signs at once]
    #[arg(long, value_name = "TIME")]
    publish_for: Option<String>,
    /// Algorithm of the new key
    #[arg(long, value_enum, value_name = "NAME", default_value = "rs256")]
    algorithm: Algorithm,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    connection: Connection,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Algorithm {
    /// RSA, which OpenID Connect requires
    Rs256,
    /// Ed25519: shorter tokens, but not every service verifies them
    Eddsa,
}

impl Algorithm {
    fn as_str(self) -> &'static str {
        match self {
            Self::Rs256 => "RS256",
            Self::Eddsa => "EdDSA",
        }
    }
}

#[derive(Debug, Clone, Args)]
struct RemoveArgs {
    /// The id of a key
    id: String,
    /// Remove it also if tokens that it has signed may be valid
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    connection: Connection,
}

impl IdentityArgs {
    pub fn connection(&mut self) -> &mut Connection {
        let Subject::Key(args) = &mut self.subject;
        match &mut args.verb {
            KeyVerb::List(args) => &mut args.connection,
            KeyVerb::Rotate(args) => &mut args.connection,
            KeyVerb::Remove(args) => &mut args.connection,
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
    algorithm: String,
    state: String,
    /// Nanoseconds since 1970; 0 if unknown.
    created: i64,
    /// When it begins to sign, likewise; 0 if it has begun.
    signs_from: i64,
}

impl From<VariableKeyInfo> for KeyReport {
    fn from(info: VariableKeyInfo) -> Self {
        Self {
            id: info.id,
            algorithm: info.algorithm,
            state: info.state,
            created: info.create_time,
            signs_from: info.publish_time,
        }
    }
}

/// Runs `herdlet identity`.
///
/// # Errors
/// If the agent refuses or does not answer.
pub async fn run(args: IdentityArgs) -> Result<u8, Failure> {
    let Subject::Key(KeyArgs { verb }) = args.subject;
    match verb {
        KeyVerb::List(ListArgs { output, connection }) => {
            let keys = connection.client()?.identity_keys().await?.into_iter().map(KeyReport::from).collect();
            let listing = Listing { keys };
            match output.reader() {
                Reader::Person => show::out(&table(&listing.keys)),
                Reader::Program => output.document(&listing)?,
            }
        }
        KeyVerb::Rotate(RotateArgs { publish_for, algorithm, output, connection }) => {
            let from = publish_for.map_or(Ok(0), |text| publish_time(&text))?;
            let added = connection.client()?.rotate_identity_key(algorithm.as_str(), from).await?;
            let key = KeyReport::from(added);
            output.line(&format!("created key {}: herdlet identity key list", key.id));
            output.document(&Listing { keys: vec![key] })?;
        }
        KeyVerb::Remove(RemoveArgs { id, force, output, connection }) => {
            let removal = if force { KeyRemoval::Forced } else { KeyRemoval::Checked };
            connection.client()?.remove_identity_key(&id, removal).await?;
            output.line(&format!("key {id} removed"));
            output.document(&Listing { keys: Vec::new() })?;
        }
    }
    Ok(0)
}

/// The end of a time that begins now, in nanoseconds since 1970.
fn publish_time(text: &str) -> Result<i64, Failure> {
    let length = parse_duration(text).map_err(|error| {
        let message = format!("--publish-for: {error}");
        Failure::new(message).code(USAGE)
    })?;
    Ok(clock::wall_now().0.saturating_add(length))
}

fn table(keys: &[KeyReport]) -> String {
    let mut table = Table::new(&["KEY", "ALGORITHM", "STATE", "AGE"]);
    for key in keys {
        let age = show::age(UnixNanos(key.created));
        table.row([key.id.clone(), key.algorithm.clone(), key.state.clone(), age]);
    }
    if table.is_empty() {
        "there are no keys yet; the first identity creates one\n".to_owned()
    } else {
        table.render(Heading::Shown)
    }
}
