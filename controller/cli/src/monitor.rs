//! `herdlet monitor`: follows the agent's log.

use clap::Args;
use futures_util::StreamExt as _;

use super::{Connection, client::LogForm, failure::Failure, stdout};

/// Arguments of `herdlet monitor`.
#[derive(Debug, Clone, Args)]
pub struct MonitorArgs {
    /// Lines of at least this level: trace, debug, info, warn or error
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    log_level: String,
    /// One JSON object for each line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pub connection: Connection,
}

pub async fn run(args: MonitorArgs) -> Result<u8, Failure> {
    let client = args.connection.client()?;
    let form = if args.json { LogForm::Json } else { LogForm::Text };
    let mut pieces = client.monitor(&args.log_level, form).await?;
    while let Some(piece) = pieces.next().await {
        stdout::bytes(&piece?);
    }
    Ok(0)
}
