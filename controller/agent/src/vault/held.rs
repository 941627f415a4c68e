//! The token of a task, as it is kept in the task's `private` and shown in its `secrets`.
//!
//! In: a token with its lease. Out: the same, after a restart of the agent too, which therefore issues nothing. Both
//! directories are in memory: a reboot ends the token with the task.

use std::ffi::OsStr;

use herdlet_api_types::job::VaultAccess;
use herdlet_base::{
    observation::Observation,
    safe_fs::{Dir, FsError, Outlives, Rights},
};
use herdlet_storage::{
    file_access::FileAccess,
    task_dir::{TaskDir, TaskDirError},
};
use herdlet_vault::{
    answer::TokenGrant, error::LeaseFailure, lease::LeaseRecord, secret::SecretText, spread::Spread,
};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use zeroize::Zeroizing;

use super::boot_now;

/// Our file in `private`.
const HELD: &str = "vault.json";
/// The task's file in `secrets`. Nomad's name.
const SHOWN: &str = "vault_token";
/// A token has at most some kilobytes.
const BYTES_MAX: u64 = 256 * 1024;

/// A token, and what is known about it. Has no `Debug`: it is a secret.
#[derive(Clone, Serialize, Deserialize)]
pub struct HeldToken {
    /// Identifies this token. Renewals keep it.
    pub id: u64,
    #[serde(serialize_with = "write_wiped", deserialize_with = "read_wiped")]
    token: Zeroizing<String>,
    /// Vault's name for the token, which gives no rights.
    pub accessor: String,
    cluster: String,
    /// The job's namespace of Vault.
    namespace: Option<String>,
    pub lease: LeaseRecord,
    /// Why the last try to renew it has failed.
    pub failure: Option<String>,
}

/// The files of one task. Their methods block.
pub struct TokenFiles {
    pub dir: TaskDir,
    /// Who may read the task's file.
    pub access: FileAccess,
}

/// The text completes "failed to".
#[derive(Debug, thiserror::Error)]
pub enum TokenFileError {
    #[error("open the directories of the task: {0}")]
    Dir(#[from] TaskDirError),
    #[error("write the token of Vault: the task directory is missing")]
    Missing,
    #[error("access the token of Vault: {0}")]
    File(#[from] FsError),
}

impl HeldToken {
    /// A new token.
    pub fn new(grant: TokenGrant, access: &VaultAccess) -> Self {
        Self {
            // Never 0, which means that the planner counts.
            id: uuid::Uuid::new_v4().as_u64_pair().0.max(1),
            token: Zeroizing::new(grant.token.reveal().to_owned()),
            accessor: grant.accessor,
            cluster: access.cluster.clone(),
            namespace: access.namespace.clone(),
            lease: LeaseRecord::granted(grant.terms, boot_now(), Spread::random()),
            failure: None,
        }
    }

    /// Whether it is a token of the server and namespace that the job names.
    pub fn is_of(&self, access: &VaultAccess) -> bool {
        self.cluster == access.cluster && self.namespace == access.namespace
    }

    /// The same, to be replaced: it was revoked.
    #[must_use]
    pub fn lost(mut self) -> Self {
        self.lease.failed(LeaseFailure::Lost, boot_now(), Spread::random());
        self.failure = Some("the token was revoked".to_owned());
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
        let bytes = private.read_file(OsStr::new(HELD), BYTES_MAX)?.map(Zeroizing::new);
        Ok(bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()))
    }

    /// Stores the token, then writes it to the task's file, unless the job disables that.
    ///
    /// # Errors
    /// If a file can't be written.
    pub fn write(&self, held: &HeldToken, access: &VaultAccess) -> Result<(), TokenFileError> {
        let private = self.dir.private()?.ok_or(TokenFileError::Missing)?;
        let bytes = Zeroizing::new(serde_json::to_vec(held).unwrap_or_default());
        let rights = Rights::Exact { mode: 0o600, owner: None };
        private.write_file(OsStr::new(HELD), &bytes, rights, Outlives::Processes)?;
        if access.disable_file {
            return Ok(());
        }
        let secrets = self.dir.secrets()?.ok_or(TokenFileError::Missing)?;
        let shown = secrets.stat_name(OsStr::new(SHOWN))?;
        if shown.is_some_and(|file| self.access.is_granted_by(&file)) && self.differs(held)?.is_none() {
            return Ok(());
        }
        let bytes = held.token.as_bytes();
        let rights = self.access.rights(0o600);
        Ok(secrets.write_file(OsStr::new(SHOWN), bytes, rights, Outlives::Processes)?)
    }

    /// Whether the task sees the token as the job wants it.
    ///
    /// # Errors
    /// If a file can't be read.
    pub fn inspect(&self, held: &HeldToken, access: &VaultAccess) -> Result<Observation, TokenFileError> {
        let differs = if access.disable_file { None } else { self.differs(held)? };
        Ok(differs
            .map_or(Observation::Present, |what| Observation::foreign(format!("secrets/{SHOWN} {what}"))))
    }

    /// Removes both files.
    ///
    /// # Errors
    /// If a file can't be removed.
    pub fn remove(&self) -> Result<(), TokenFileError> {
        let remove = |dir: Option<Dir>, name: &str| match dir.map(|dir| dir.unlink(OsStr::new(name))) {
            Some(Err(error)) if !error.is_missing() => Err(error),
            Some(_) | None => Ok(()),
        };
        remove(self.dir.secrets()?, SHOWN)?;
        Ok(remove(self.dir.private()?, HELD)?)
    }

    /// How the task's file differs from the token.
    fn differs(&self, held: &HeldToken) -> Result<Option<&'static str>, TokenFileError> {
        let name = OsStr::new(SHOWN);
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
        let is_open = secrets.stat_name(name)?.is_some_and(|file| self.access.is_exceeded_by(&file));
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

    fn access() -> VaultAccess {
        herdlet_api_types::fixture::vault_access()
    }

    fn token(text: &str) -> HeldToken {
        let terms = LeaseTerms { duration: Duration::from_secs(60), kind: LeaseKind::Renewable };
        let token = SecretText::new(text.to_owned());
        let grant = TokenGrant { token, accessor: "a".to_owned(), policies: Vec::new(), terms };
        HeldToken::new(grant, &access())
    }

    /// The files of a task in a new directory.
    fn files(parent: &tempfile::TempDir) -> TokenFiles {
        let dir = TaskDir::new(parent.path().join("task"), Privileges::none());
        dir.up().unwrap();
        TokenFiles { dir, access: FileAccess::Owner(None) }
    }

    #[test]
    fn the_next_agent_finds_the_token_and_its_lease() {
        let parent = tempfile::tempdir().unwrap();
        let files = files(&parent);
        assert!(files.read().unwrap().is_none());
        let held = token("s.1");
        files.write(&held, &access()).unwrap();
        let found = files.read().unwrap().unwrap();
        assert!((found.id, found.reveal(), &found.lease) == (held.id, "s.1", &held.lease) && held.id != 0);
        assert!(found.is_of(&access()));
        let elsewhere = VaultAccess { namespace: Some("n".to_owned()), ..access() };
        assert!(!found.is_of(&elsewhere));
        assert!(matches!(files.inspect(&found, &access()), Ok(Observation::Present)));
        files.remove().unwrap();
        files.remove().unwrap();
        assert!(files.read().unwrap().is_none());
    }

    #[test]
    fn a_file_that_is_not_the_tokens_is_written_again() {
        let parent = tempfile::tempdir().unwrap();
        let (files, held) = (files(&parent), token("s.1"));
        let shown = parent.path().join("task/secrets/vault_token");
        let hidden = VaultAccess { disable_file: true, ..access() };
        files.write(&held, &hidden).unwrap();
        assert!(!shown.exists());
        assert!(matches!(files.inspect(&held, &hidden), Ok(Observation::Present)));
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
            let Observation::Foreign { why } = files.inspect(&held, &access()).unwrap() else {
                panic!("not noticed: {what}")
            };
            assert!(why.contains(what), "{why}");
            files.write(&held, &access()).unwrap();
            assert_eq!(std::fs::read_to_string(&shown).unwrap(), "s.1", "{what}");
            assert!(matches!(files.inspect(&held, &access()), Ok(Observation::Present)), "{what}");
        }
    }

    /// A container whose user is one of its image could not read its token.
    #[test]
    fn an_unknown_user_of_an_image_can_read_the_token() {
        let parent = tempfile::tempdir().unwrap();
        let (closed, held) = (files(&parent), token("s.1"));
        closed.write(&held, &access()).unwrap();
        let open = TokenFiles { access: FileAccess::Anybody, ..closed };
        assert!(matches!(open.inspect(&held, &access()), Ok(Observation::Present)));
        open.write(&held, &access()).unwrap();
        let shown = parent.path().join("task/secrets/vault_token").metadata().unwrap();
        assert_eq!(shown.permissions().mode() & 0o777, 0o644);
        assert!(matches!(open.inspect(&held, &access()), Ok(Observation::Present)));
    }

    #[test]
    fn a_damaged_record_is_none() {
        let parent = tempfile::tempdir().unwrap();
        let files = files(&parent);
        files.write(&token("s.1"), &access()).unwrap();
        std::fs::write(parent.path().join("task/private/vault.json"), "{").unwrap();
        assert!(files.read().unwrap().is_none());
    }
}
