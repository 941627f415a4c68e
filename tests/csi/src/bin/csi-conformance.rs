//! The suite as a program, for any plugin: `csi-conformance --socket PATH --folder DIR`. The plugin shares this mount
//! namespace, and may create volumes; it is a plugin for tests.

use std::path::PathBuf;

use clap::Parser;
use herdlet_csi::client::Client;
use herdlet_csi_plugin::conformance;

#[derive(Parser)]
struct Options {
    /// The plugin's socket.
    #[arg(long)]
    socket: PathBuf,
    /// An empty directory for staging and target directories.
    #[arg(long)]
    folder: PathBuf,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let report = conformance::run(Client::new("tested", options.socket), &options.folder).await?;
    for name in &report.passed {
        println!("passed  {name}");
    }
    for (name, why) in &report.failed {
        println!("FAILED  {name}: {why}");
    }
    anyhow::ensure!(report.failed.is_empty(), "{} checks have failed", report.failed.len());
    Ok(())
}
