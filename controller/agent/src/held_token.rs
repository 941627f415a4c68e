//! The token of a task at Vault or Consul, as it is kept in the task's `private` and shown in its `secrets`.
//!
//! In: a token with its lease. Out: the same, after a restart of the agent too, which therefore issues nothing. Both
//! directories are in memory where that is possible: a reboot forgets the token, which the system then lets expire.

use std::ffi::OsStr;

use herdlet_base::{
    observation::Observation,
    safe_fs::{Dir, FsError, Outlives, Rights},
};
use herdlet_storage::{
    file_access::FileAccess,
    task_dir::{TaskDir, TaskDirError},
};
use herdlet_vault::{
    error::LeaseFailure,
    lease::{LeaseRecord, LeaseTerms},
    secret::SecretText,
    spread::Spread,
};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use zeroize::Zeroizing;

use crate::vault::boot_now;

/// How the token of a system is called.
#[derive(Debug)]
pub struct TokenNames {
    /// For people.
    system: &'static str,
    /// Our file in `private`.
    held: &'static str,
    /// The task's file in `secrets`. Nomad's name.
    shown: &'static str,
    /// The mode of the task's file.
    mode: u32,
}

/// The token of Vault.
pub const OF_VAULT: TokenNames =
    TokenNames { system: "Vault", held: "vault.json", shown: "vault_token", mode: 0o600 };

/// The token of Consul. The mode is Nomad's.
pub const OF_CONSUL: TokenNames =
    TokenNames { system: "Consul", held: "consul.json", shown: "consul_token", mode: 0o640 };

/// Where a token is valid.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TokenPlace {
    /// The name of the server or cluster in the agent's config.
    pub cluster: String,
    /// The namespace that the job names.
    pub namespace: Option<String>,
    /// The partition of Consul that the job names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<String>,
}

/// A token that a system has issued.
pub struct NewToken {
    pub token: SecretText,
    /// The system's name for the token, which gives no rights.
    pub accessor: String,
    pub terms: LeaseTerms,
}

/// Whether the task has a file with its token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskFile {
    Written,
    Disabled,
}

/// A token has at most some kilobytes.
const BYTES_MAX: u64 = 256 * 1024;

/// A token, and what is known about it. Has no `Debug`: it is a secret.
#[derive(Clone, Serialize, Deserialize)]
pub struct HeldToken {
    /// Identifies this token. Renewals keep it.
    pub id: u64,
    #[serde(serialize_with = "write_wiped", deserialize_with = "read_wiped")]
    token: Zeroizing<String>,
    /// The system's name for the token, which gives no rights.
    pub accessor: String,
    #[serde(flatten)]
    pub place: TokenPlace,
    pub lease: LeaseRecord,
    /// Why the last try to renew or to verify it has failed.
    pub failure: Option<String>,
    /// Consul's servers issue a token before its agent knows it.
    #[serde(default)]
    pub confirmation: Confirmation,
    /// Its replacement, which is not confirmed yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<Box<Self>>,
}

/// Whether a token is known to be usable.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Confirmation {
    /// The system has accepted it, or needs no time after issuing it.
    #[default]
    Given,
    /// The system has not accepted it yet: nothing uses it.
    Awaited,
    /// It is to be logged out: nothing uses it any more.
    Released,
}

/// The files of one task. Their methods block.
pub struct TokenFiles {
    pub names: &'static TokenNames,
    pub dir: TaskDir,
    /// Who may read the task's file.
    pub access: FileAccess,
}

/// The text completes "failed to".
#[derive(Debug, thiserror::Error)]
pub enum TokenFileError {
    #[error("open the directories of the task: {0}")]
    Dir(#[from] TaskDirError),
    #[error("write the token of {0}: the task directory is missing")]
    Missing(&'static str),
    #[error("access the token: {0}")]
    File(#[from] FsError),
}

impl HeldToken {
    /// A new token.
    pub fn new(new: NewToken, place: TokenPlace) -> Self {
        Self {
            // Never 0, which means that the planner counts.
            id: uuid::Uuid::new_v4().as_u64_pair().0.max(1),
            token: Zeroizing::new(new.token.reveal().to_owned()),
            accessor: new.accessor,
            place,
            lease: LeaseRecord::granted(new.terms, boot_now(), Spread::random()),
            failure: None,
            confirmation: Confirmation::Given,
            next: None,
        }
    }

    /// The same, to be replaced: it was revoked.
    #[must_use]
    pub fn lost(mut self) -> Self {
        self.lease.failed(LeaseFailure::Lost, boot_now(), Spread::random());
        self.failure = Some("it was revoked".to_owned());
        self
    }

    /// The same, to be logged out.
    #[must_use]
    pub fn released(mut self) -> Self {
        self.confirmation = Confirmation::Released;
        self
    }

    pub fn token(&self) -> SecretText {
        SecretText::new(String::clone(&self.token))
    }

    /// The text, for the environment of the task only.
    pub fn reveal(&self) -> &str {
        &self.token
    }
}

impl TokenFiles {
    /// Reads the token; `None` if there is none, or the file is damaged: then the task logs in again.
    ///
    /// # Errors
    /// If the file can't be read.
    pub fn read(&self) -> Result<Option<HeldToken>, TokenFileError> {
        let Some(private) = self.dir.private()? else { return Ok(None) };
        let bytes = private.read_file(OsStr::new(self.names.held), BYTES_MAX)?.map(Zeroizing::new);
        Ok(bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()))
    }

    /// Stores the token, then writes it to the task's file, unless the job disables that.
    ///
    /// # Errors
    /// If a file can't be written.
    pub fn write(&self, held: &HeldToken, file: TaskFile) -> Result<(), TokenFileError> {
        let private = self.dir.private()?.ok_or(TokenFileError::Missing(self.names.system))?;
        let bytes = Zeroizing::new(serde_json::to_vec(held).unwrap_or_default());
        let rights = Rights::Exact { mode: 0o600, owner: None };
        private.write_file(OsStr::new(self.names.held), &bytes, rights, Outlives::Processes)?;
        if file == TaskFile::Disabled {
            return Ok(());
        }
        let secrets = self.dir.secrets()?.ok_or(TokenFileError::Missing(self.names.system))?;
        let shown = secrets.stat_name(OsStr::new(self.names.shown))?;
        if shown.is_some_and(|file| self.access.is_granted_by(&file)) && self.differs(held)?.is_none() {
            return Ok(());
        }
        let bytes = held.token.as_bytes();
        let rights = self.access.rights(self.names.mode);
        Ok(secrets.write_file(OsStr::new(self.names.shown), bytes, rights, Outlives::Processes)?)
    }

    /// Whether the task sees the token as the job wants it.
    ///
    /// # Errors
    /// If a file can't be read.
    pub fn inspect(&self, held: &HeldToken, file: TaskFile) -> Result<Observation, TokenFileError> {
        let differs = match file {
            TaskFile::Disabled => None,
            TaskFile::Written => self.differs(held)?,
        };
        Ok(differs.map_or(Observation::Present, |what| {
            Observation::foreign(format!("secrets/{} {what}", self.names.shown))
        }))
    }

    /// Removes both files.
    ///
    /// # Errors
    /// If a file can't be removed.
    pub fn remove(&self) -> Result<(), TokenFileError> {
        let remove = |dir: Option<Dir>, name: &str| match dir.map(|dir| dir.remove_file(OsStr::new(name))) {
            Some(Err(error)) if !error.is_missing() => Err(error),
            Some(_) | None => Ok(()),
        };
        remove(self.dir.secrets()?, self.names.shown)?;
        Ok(remove(self.dir.private()?, self.names.held)?)
    }

    /// How the task's file differs from the token.
    fn differs(&self, held: &HeldToken) -> Result<Option<&'static str>, TokenFileError> {
        let name = OsStr::new(self.names.shown);
        let Some(secrets) = self.dir.secrets()? else { return Ok(Some("is missing")) };
        let bytes = match secrets.read_file(name, BYTES_MAX) {
            Ok(bytes) => bytes.map(Zeroizing::new),
            Err(FsError::Link { .. } | FsError::NotAFile { .. } | FsError::TooLarge { .. }) => {
                return Ok(Some("is not the token"));
            }
            Err(error) => return Err(error.into()),
        };
        let Some(bytes) = bytes else { return Ok(Some("is missing")) };
        if bytes[..] != *held.token.as_bytes() {
            return Ok(Some("is not the token"));
        }
        let is_open =
            secrets.stat_name(name)?.is_some_and(|file| self.access.is_exceeded_by(&file, self.names.mode));
        Ok(is_open.then_some("is readable by others"))
    }
}

fn write_wiped<S: Serializer>(text: &Zeroizing<String>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(text)
}

fn read_wiped<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Zeroizing<String>, D::Error> {
    String::deserialize(deserializer).map(Zeroizing::new)
}

#[cfg(test)]
mod tests {
    use std::{os::unix::fs::PermissionsExt as _, time::Duration};

    use herdlet_base::privileges::Privileges;
    use herdlet_vault::lease::{LeaseKind, LeaseTerms};

    use super::*;

    fn place() -> TokenPlace {
        TokenPlace { cluster: "default".to_owned(), namespace: None, partition: None }
    }

    fn token(text: &str) -> HeldToken {
        let terms = LeaseTerms { duration: Duration::from_secs(60), kind: LeaseKind::Renewable };
        let token = SecretText::new(text.to_owned());
        HeldToken::new(NewToken { token, accessor: "a".to_owned(), terms }, place())
    }

    /// The files of a task in a new directory.
    fn files(parent: &tempfile::TempDir) -> TokenFiles {
        let dir = TaskDir::new(parent.path().join("task"), Privileges::none());
        dir.up().unwrap();
        TokenFiles { names: &OF_VAULT, dir, access: FileAccess::Owner(None) }
    }

    #[test]
    fn the_next_agent_finds_the_token_and_its_lease() {
        let parent = tempfile::tempdir().unwrap();
        let files = files(&parent);
        assert!(files.read().unwrap().is_none());
        let held = token("s.1");
        files.write(&held, TaskFile::Written).unwrap();
        let found = files.read().unwrap().unwrap();
        assert!((found.id, found.reveal(), &found.lease) == (held.id, "s.1", &held.lease) && held.id != 0);
        assert_eq!(found.place, place());
        assert!(matches!(files.inspect(&found, TaskFile::Written), Ok(Observation::Present)));
        files.remove().unwrap();
        files.remove().unwrap();
        assert!(files.read().unwrap().is_none());
    }

    #[test]
    fn a_file_that_is_not_the_tokens_is_written_again() {
        let parent = tempfile::tempdir().unwrap();
        let (files, held) = (files(&parent), token("s.1"));
        let shown = parent.path().join("task/secrets/vault_token");
        files.write(&held, TaskFile::Disabled).unwrap();
        assert!(!shown.exists());
        assert!(matches!(files.inspect(&held, TaskFile::Disabled), Ok(Observation::Present)));
        type Damage = fn(&std::path::Path);
        let damages: [(&str, Damage); 4] = [
            ("is missing", |_| {}),
            ("is not the token", |path| std::fs::write(path, "other").unwrap()),
            ("is not the token", |path| {
                std::fs::remove_file(path).unwrap();
                std::os::unix::fs::symlink("/etc/hostname", path).unwrap();
            }),
            ("is readable by others", |path| {
                std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o644)).unwrap();
            }),
        ];
        for (what, damage) in damages {
            damage(&shown);
            let Observation::Foreign { why } = files.inspect(&held, TaskFile::Written).unwrap() else {
                panic!("not noticed: {what}")
            };
            assert!(why.contains(what), "{why}");
            files.write(&held, TaskFile::Written).unwrap();
            assert_eq!(std::fs::read_to_string(&shown).unwrap(), "s.1", "{what}");
            assert!(matches!(files.inspect(&held, TaskFile::Written), Ok(Observation::Present)), "{what}");
        }
    }

    /// A container whose user is one of its image could not read its token.
    #[test]
    fn an_unknown_user_of_an_image_can_read_the_token() {
        let parent = tempfile::tempdir().unwrap();
        let (closed, held) = (files(&parent), token("s.1"));
        closed.write(&held, TaskFile::Written).unwrap();
        let open = TokenFiles { access: FileAccess::Anybody, ..closed };
        assert!(matches!(open.inspect(&held, TaskFile::Written), Ok(Observation::Present)));
        open.write(&held, TaskFile::Written).unwrap();
        let shown = parent.path().join("task/secrets/vault_token").metadata().unwrap();
        assert_eq!(shown.permissions().mode() & 0o777, 0o644);
        assert!(matches!(open.inspect(&held, TaskFile::Written), Ok(Observation::Present)));
    }

    #[test]
    fn a_damaged_record_is_none() {
        let parent = tempfile::tempdir().unwrap();
        let files = files(&parent);
        files.write(&token("s.1"), TaskFile::Written).unwrap();
        std::fs::write(parent.path().join("task/private/vault.json"), "{").unwrap();
        assert!(files.read().unwrap().is_none());
    }
}
