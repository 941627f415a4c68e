//! The files of commands that read manifests without an agent.

use std::path::PathBuf;

use clap::Args;

#[derive(Debug, Clone, Args)]
pub(crate) struct JobFiles {
    /// Manifests and job files, in YAML, HCL or JSON: files, folders, or - for standard input
    #[arg(required_unless_present = "named", value_name = "FILE")]
    files: Vec<PathBuf>,
    /// The same, as for apply
    #[arg(id = "named", short = 'f', long = "file", value_name = "FILE")]
    named: Vec<PathBuf>,
}

impl JobFiles {
    /// All of them, those without a flag first.
    pub(crate) fn paths(&self) -> Vec<PathBuf> {
        self.files.iter().chain(&self.named).cloned().collect()
    }
}
