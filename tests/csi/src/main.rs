//! The plugin as a program: `csi-plugin --data DIR --node-id ID`, with its socket in `CSI_ENDPOINT`.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::Parser;
use herdlet_csi_plugin::{
    plugin::{Plugin, Staging},
    server,
};
use tokio::net::UnixListener;

#[derive(Parser)]
struct Options {
    /// Where it serves: `unix:///path/of/socket`.
    #[arg(long, env = "CSI_ENDPOINT")]
    endpoint: String,
    /// Volumes, faults and the list of calls.
    #[arg(long)]
    data: PathBuf,
    #[arg(long, default_value = "node-1")]
    node_id: String,
    /// Publish without staging.
    #[arg(long)]
    no_staging: bool,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let socket =
        options.endpoint.strip_prefix("unix://").context("the endpoint does not begin with unix://")?;
    // One of a plugin that was killed.
    let _ = std::fs::remove_file(socket);
    let listener = UnixListener::bind(socket).with_context(|| format!("cannot listen on {socket}"))?;
    let staging = if options.no_staging { Staging::Absent } else { Staging::Present };
    let plugin = Plugin::open(&options.data, &options.node_id, staging)?;
    server::serve(listener, plugin).await;
    Ok(())
}
