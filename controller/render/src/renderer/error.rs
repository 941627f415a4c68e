//! Why templates can't be rendered.

use herdlet_base::{artifact::destination::Outside, observation::Class, safe_fs::FsError};

use crate::{env_file::EnvFileError, vault::KeepError};

/// Why templates can't be rendered. Has no part of an output: outputs are secrets.
#[derive(Debug, thiserror::Error)]
pub enum RenderError {
    #[error("{0}")]
    Outside(#[from] Outside),
    #[error("read the template {path}: {source}")]
    Read { path: String, source: FsError },
    #[error("read the template {path}: there is no such file; an artifact or an earlier task must create it")]
    NoSource { path: String },
    #[error("read the template {path}: it is not UTF-8")]
    NotText { path: String },
    #[error("render {destination}: {source}")]
    Template { destination: String, source: herdlet_template::Error },
    #[error("render {destination}: its output is not a list of variables: {source}")]
    Env { destination: String, source: EnvFileError },
    #[error("read the secret \"{name}\": {why}")]
    Secret { name: String, why: String },
    #[error("render {destination}: {limit} queries are too many for the templates of one task")]
    Queries { destination: String, limit: usize },
    #[error(
        "write {destination}: {bytes} bytes do not fit into `secrets`, which holds {mib} MiB; raise `secrets` of the task's `resources`, or write the file to `local`"
    )]
    TooLarge { destination: String, bytes: usize, mib: u64 },
    #[error(
        "write {destination}: its {bytes} bytes do not fit into `secrets` beside the other files there, which holds {mib} MiB; a file is replaced in one step, which needs space for both; raise `secrets` of the task's `resources`, or write it to `local`"
    )]
    NoRoom { destination: String, bytes: usize, mib: u64 },
    #[error(
        "render templates with `env`: their variables have {bytes} bytes, at most {limit} are kept; write large values to files"
    )]
    Variables { bytes: usize, limit: usize },
    #[error("write {destination}: {source}")]
    Write { destination: String, source: FsError },
    #[error("keep the variables of templates: {0}")]
    Record(#[source] FsError),
    #[error("keep the values of Vault: {0}")]
    Vault(#[from] KeepError),
    #[error("render templates: {0}")]
    Thread(String),
}

impl RenderError {
    /// Whether a retry can help.
    pub fn class(&self) -> Class {
        match self {
            Self::Outside(_)
            | Self::NoSource { .. }
            | Self::NotText { .. }
            | Self::Template { .. }
            | Self::Env { .. }
            | Self::Queries { .. }
            | Self::Secret { .. }
            | Self::TooLarge { .. }
            | Self::Variables { .. } => Class::Fatal,
            Self::Read { source, .. } | Self::Write { source, .. } | Self::Record(source) => source.class(),
            Self::Vault(error) => error.class(),
            // The task may remove files.
            Self::NoRoom { .. } | Self::Thread(_) => Class::Retry,
        }
    }
}
