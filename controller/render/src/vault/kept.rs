//! Values of Vault in the task's `private`, which the task cannot see: in memory, gone with the allocation.
//!
//! In: values with their leases. Out: the same, for the next render and the next agent.

use std::{collections::BTreeMap, ffi::OsStr, sync::Arc};

use herdlet_base::{
    artifact::destination::Dirs,
    observation::Class,
    safe_fs::{FsError, Outlives, Rights},
};
use herdlet_vault::{
    error::LeaseFailure,
    lease::{BootTime, LeaseRecord},
    spread::Spread,
};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use zeroize::Zeroizing;

use crate::{place, watches::Consumer};

/// Larger than everything that fits into `private`.
const BYTES_MAX: u64 = 8 << 20;

/// `private`, of 1 MiB, also holds the variables of templates. A file is there twice while it is replaced.
const KEPT_BYTES_MAX: usize = 96 << 10;

/// What is kept for one consumer. Has no `Debug`: values are secrets.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct KeptValues {
    /// By [`super::VaultRequest::key`].
    pub values: BTreeMap<String, KeptValue>,
    /// Renders in a row that have waited for a value.
    #[serde(skip_serializing_if = "is_zero")]
    pub failures: u32,
}

/// A value and its lease.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct KeptValue {
    #[serde(serialize_with = "write_shared", deserialize_with = "read_shared")]
    pub answer: Arc<Value>,
    /// Empty without a lease.
    pub lease_id: String,
    /// The token that it was asked for with.
    pub token_id: u64,
    /// Vault has made it for this task: another read would give another value.
    pub is_issued: bool,
    pub lease: LeaseRecord,
    /// Why the last try to renew it has failed.
    pub failure: Option<String>,
}

/// Why values can't be kept.
#[derive(Debug, thiserror::Error)]
pub enum KeepError {
    #[error("{0}")]
    File(#[from] FsError),
    #[error(
        "those that it has issued to one task have {bytes} bytes, at most {limit} are kept; use fewer or smaller ones"
    )]
    TooLarge { bytes: usize, limit: usize },
    #[error("{0}")]
    Thread(String),
}

impl KeepError {
    /// Whether a retry can help.
    pub fn class(&self) -> Class {
        match self {
            Self::File(error) => error.class(),
            Self::TooLarge { .. } => Class::Fatal,
            Self::Thread(_) => Class::Retry,
        }
    }
}

impl KeptValues {
    /// Reads them; none if nothing was kept, or the file is damaged: then everything is read again.
    ///
    /// # Errors
    /// If they can't be read.
    pub(super) fn read(dirs: &Dirs, consumer: Consumer) -> Result<Self, FsError> {
        let Some(private) = place::private(dirs)? else { return Ok(Self::default()) };
        let bytes = private.read_file(OsStr::new(file(consumer)), BYTES_MAX)?.map(Zeroizing::new);
        Ok(bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default())
    }

    /// Writes them. If they are too large, those that were only read are left out: reading them again changes nothing.
    ///
    /// # Errors
    /// If they can't be written, or what was issued is too large.
    pub(super) fn write(mut self, dirs: &Dirs, consumer: Consumer) -> Result<(), KeepError> {
        let mut bytes = self.bytes();
        if bytes.len() > KEPT_BYTES_MAX {
            self.values.retain(|_, kept| kept.is_issued);
            bytes = self.bytes();
        }
        if bytes.len() > KEPT_BYTES_MAX {
            return Err(KeepError::TooLarge { bytes: bytes.len(), limit: KEPT_BYTES_MAX });
        }
        let missing = || FsError::io("open", dirs.task.join("private"), rustix::io::Errno::NOENT);
        let private = place::private(dirs)?.ok_or_else(missing)?;
        let rights = Rights::Exact { mode: 0o600, owner: None };
        Ok(private.write_file(OsStr::new(file(consumer)), &bytes, rights, Outlives::Processes)?)
    }

    fn bytes(&self) -> Zeroizing<Vec<u8>> {
        Zeroizing::new(serde_json::to_vec(self).unwrap_or_default())
    }
}

impl KeptValue {
    /// Leases end with their token: notes it if the task has another one now. Returns whether it has.
    pub(super) fn lose_token(&mut self, token_id: u64, now: BootTime) -> bool {
        let is_lost = !self.lease_id.is_empty() && self.token_id != token_id;
        if is_lost {
            self.token_id = token_id;
            self.lease.failed(LeaseFailure::Lost, now, Spread::random());
            self.failure = Some("its lease has ended with the last token of the task".to_owned());
        }
        is_lost
    }
}

/// Each consumer has its own file: their operations may run at the same time.
fn file(consumer: Consumer) -> &'static str {
    match consumer {
        Consumer::Secrets => "vault_secrets.json",
        Consumer::Templates => "vault_templates.json",
    }
}

fn write_shared<S: Serializer>(value: &Arc<Value>, serializer: S) -> Result<S::Ok, S::Error> {
    value.serialize(serializer)
}

fn read_shared<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<Value>, D::Error> {
    Value::deserialize(deserializer).map(Arc::new)
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the shape that serde calls")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}
