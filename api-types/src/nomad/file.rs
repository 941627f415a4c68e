//! Files of an allocation, as in `GET /v1/client/fs/ls/ALLOC` and `…/stat/ALLOC`.

use std_alloc::string::String;

use serde::{Deserialize, Serialize};

/// A file or directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
#[expect(missing_docs, reason = "the names are Nomad's; their meaning is documented there")]
pub struct FileInfo {
    pub name: String,
    pub is_dir: bool,
    pub size: u64,
    pub file_mode: String,
    pub mod_time: Option<String>,
    /// Only for a single file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
}
