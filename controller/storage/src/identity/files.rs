//! Token files in a task's `secrets` or at its `filepath`, and tokens for its environment.
//!
//! In: the signer, the task directory, the task's identities with the claims for each. Out: files `nomad_token` (the
//! identity called `default`) and `nomad_<name>.jwt`, or the configured paths, readable only by the task's user. This
//! module does not schedule renewals; it only reports when the next is due.

use std::{ffi::OsString, path::PathBuf, time::Duration};

use herdlet_api_types::{job::Identity, manifest::defaults::DEFAULT_IDENTITY};
use herdlet_base::{
    observation::Observation,
    privileges::{Ownership, Privileges},
    safe_fs::{Dir, FileOwner, FsError, Outlives, Rights},
    token_path::{file_name, path_of},
};

use super::{IdentityError, Signer, Token};
use crate::task_dir::TaskDir;

/// The tokens of one task.
#[derive(Debug)]
pub struct TaskTokens<'a> {
    pub signer: &'a Signer,
    pub task_dir: &'a TaskDir,
    /// The task's name, for messages.
    pub task: &'a str,
    /// User and group of the task; the agent's if absent.
    pub owner: Option<(u32, u32)>,
    pub privileges: Privileges,
}

/// A token for a task.
#[derive(Debug, Clone, PartialEq)]
pub struct WantedToken {
    /// Its name and destination.
    pub identity: Identity,
    /// The claims for a token issued now: an object that includes the registered claims of RFC 7519.
    pub claims: serde_json::Value,
    /// The token, if servers have signed it. It is never signed here then.
    pub given: Option<SignedToken>,
}

/// A token that servers have signed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignedToken {
    pub token: Token,
    /// Time until renewal is due, zero if overdue; `None` if it doesn't expire.
    pub renew_in: Option<Duration>,
}

/// The result of issuing tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Issued {
    /// Time until the first renewal is due; `None` if nothing expires.
    pub renew_in: Option<Duration>,
}

impl TaskTokens<'_> {
    /// Writes a token file for each identity that has one, atomically for readers: the token from the servers, or else
    /// a newly signed one. Repeating the call renews the latter.
    ///
    /// # Errors
    ///
    /// If `secrets` or, with a `filepath`, the task's directory is missing, or a file can't be written.
    pub fn up(&self, wanted: &[WantedToken]) -> Result<Issued, IdentityError> {
        for wanted in wanted.iter().filter(|token| token.identity.file) {
            let missing = || IdentityError::NoDir { task: self.task.to_owned() };
            let Spot { dir, name } = self.spot(&wanted.identity, Missing::Made)?.ok_or_else(missing)?;
            let token = self.make(wanted)?;
            dir.write_file(&name, token.reveal().as_bytes(), self.rights(0o600), Outlives::Processes)
                .map_err(|source| self.file_error(source))?;
        }
        let due = |wanted: &WantedToken| match &wanted.given {
            Some(given) => given.renew_in,
            None => renew_in(&wanted.identity),
        };
        Ok(Issued { renew_in: wanted.iter().filter_map(due).min() })
    }

    /// Tokens for the environment, by variable name: `NOMAD_TOKEN` (default) or `NOMAD_TOKEN_<name>`.
    ///
    /// # Errors
    ///
    /// If a token can't be signed.
    pub fn env(&self, wanted: &[WantedToken]) -> Result<Vec<(String, Token)>, IdentityError> {
        wanted
            .iter()
            .filter(|token| token.identity.env)
            .map(|token| Ok((env_name(&token.identity), self.make(token)?)))
            .collect()
    }

    /// Whether all token files exist, are signed by us or the servers, readable only by their owner, not expired (at
    /// the time the wanted claims are issued), and have the wanted claims.
    ///
    /// # Errors
    ///
    /// If a file can't be read.
    pub fn inspect(&self, wanted: &[WantedToken]) -> Result<Observation, IdentityError> {
        let files: Vec<_> = wanted.iter().filter(|token| token.identity.file).collect();
        if files.is_empty() {
            return Ok(Observation::Present);
        }
        let mut missing = Vec::new();
        for token in &files {
            let Some(spot) = self.spot(&token.identity, Missing::Left)? else {
                missing.push(token.identity.name.clone());
                continue;
            };
            match self.see(&spot, token)? {
                Observation::Present => {}
                Observation::Absent => missing.push(spot.path().display().to_string()),
                seen @ (Observation::Foreign { .. } | Observation::Lost { .. }) => return Ok(seen),
            }
        }
        Ok(match missing.first() {
            None => Observation::Present,
            Some(_) if missing.len() == files.len() => Observation::Absent,
            Some(what) => Observation::foreign(format!("{what} is missing")),
        })
    }

    /// Time until the first renewal of the existing tokens is due, zero if overdue; `None` if nothing expires.
    pub fn renew_in(&self, wanted: &[WantedToken]) -> Option<Duration> {
        let due = |token: &WantedToken| {
            if let Some(given) = &token.given {
                return given.renew_in;
            }
            let spot = self.spot(&token.identity, Missing::Left).ok().flatten()?;
            let claims = self.read(&spot).ok().flatten()?.ok()?;
            let (issued, expires, now) =
                (seconds(&claims, "iat")?, seconds(&claims, "exp")?, seconds(&token.claims, "iat")?);
            let left = issued.saturating_add(expires.saturating_sub(issued) / 2).saturating_sub(now);
            Some(Duration::from_secs(u64::try_from(left).unwrap_or(0)))
        };
        wanted.iter().filter(|token| token.identity.file || token.given.is_some()).filter_map(due).min()
    }

    fn make(&self, wanted: &WantedToken) -> Result<Token, IdentityError> {
        wanted.given.clone().map_or_else(|| self.signer.sign(&wanted.claims), |given| Ok(given.token))
    }

    fn see(&self, spot: &Spot, token: &WantedToken) -> Result<Observation, IdentityError> {
        let here = spot.path();
        let seen = |what: &str| Ok(Observation::foreign(format!("{} {what}", here.display())));
        let bytes = match self.bytes(spot)? {
            None => return Ok(Observation::Absent),
            Some(Err(NotOurs)) => return seen("is not one of our tokens"),
            Some(Ok(bytes)) => bytes,
        };
        let claims = match &token.given {
            Some(given) if given.token.reveal().as_bytes() == &bytes[..] => token.claims.clone(),
            Some(_) => return seen("is not the token from the servers"),
            None => match self.claims(&bytes) {
                Ok(claims) => claims,
                Err(NotOurs) => return seen("is not one of our tokens"),
            },
        };
        let stat = spot.dir.stat_name(&spot.name).map_err(|source| self.file_error(source))?;
        if stat.is_some_and(|stat| stat.st_mode & 0o077 != 0) {
            return seen("is readable by others");
        }
        if lasting(&claims) != lasting(&token.claims) {
            return seen("has the wrong claims");
        }
        match (seconds(&claims, "exp"), seconds(&token.claims, "iat")) {
            (Some(expires), Some(now)) if expires <= now => seen("has expired"),
            _ => Ok(Observation::Present),
        }
    }

    /// The claims of the existing token.
    fn read(&self, spot: &Spot) -> Result<Option<Result<serde_json::Value, NotOurs>>, IdentityError> {
        let bytes = self.bytes(spot)?;
        Ok(bytes.map(|bytes| bytes.and_then(|bytes| self.claims(&bytes))))
    }

    fn claims(&self, bytes: &[u8]) -> Result<serde_json::Value, NotOurs> {
        let claims = std::str::from_utf8(bytes).ok().and_then(|text| self.signer.verify(text).ok());
        claims.ok_or(NotOurs)
    }

    /// The contents of the existing file.
    fn bytes(&self, spot: &Spot) -> Result<Option<Result<Bytes, NotOurs>>, IdentityError> {
        Ok(match spot.dir.read_file(&spot.name, TOKEN_BYTES_MAX) {
            Ok(Some(bytes)) => Some(Ok(Bytes::new(bytes))),
            Ok(None) => None,
            Err(FsError::Link { .. } | FsError::NotAFile { .. } | FsError::TooLarge { .. }) => {
                Some(Err(NotOurs))
            }
            Err(source) => return Err(self.file_error(source)),
        })
    }

    /// The directory and file name of a token; `None` if a directory on the way is missing and isn't created.
    fn spot(&self, identity: &Identity, missing: Missing) -> Result<Option<Spot>, IdentityError> {
        let entered = |source| IdentityError::TaskDir { task: self.task.to_owned(), source };
        let Some(path) = identity.filepath.as_deref() else {
            let secrets = self.task_dir.secrets().map_err(entered)?;
            return Ok(secrets.map(|dir| Spot { dir, name: file_name(&identity.name).into() }));
        };
        let Some(mut dir) = self.task_dir.root().map_err(entered)? else { return Ok(None) };
        let escapes = || self.file_error(FsError::Escapes { path: path.into() });
        let path = path_of(&identity.name, Some(path)).ok_or_else(escapes)?;
        let name = path.file_name().ok_or_else(escapes)?;
        for step in path.parent().into_iter().flatten() {
            let found = dir.find(step).map_err(|source| self.file_error(source))?;
            let inner = match (found, missing) {
                (Some(found), _) => found,
                (None, Missing::Left) => return Ok(None),
                (None, Missing::Made) => {
                    dir.make(step, self.rights(0o755)).map_err(|source| self.file_error(source))?
                }
            };
            if missing == Missing::Made {
                dir.check_entry(&inner, self.owner.map(FileOwner::from).as_ref())
                    .map_err(|source| self.file_error(source))?;
            }
            dir = inner;
        }
        Ok(Some(Spot { dir, name: name.to_owned() }))
    }

    /// Only the task's user may read a token: if the file can't be given to that user, it stays ours.
    fn rights(&self, mode: u32) -> Rights {
        let owner = match self.privileges.ownership {
            Ownership::Anybody => self.owner,
            Ownership::OwnOnly => None,
        };
        Rights::Exact { mode, owner }
    }

    fn file_error(&self, source: FsError) -> IdentityError {
        IdentityError::File { task: self.task.to_owned(), source }
    }
}

/// The place of a token file.
struct Spot {
    dir: Dir,
    name: OsString,
}

impl Spot {
    fn path(&self) -> PathBuf {
        self.dir.path().join(&self.name)
    }
}

/// What to do about missing directories on the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Missing {
    Made,
    Left,
}

/// The contents of a token file.
type Bytes = zeroize::Zeroizing<Vec<u8>>;

/// The file is not one of our tokens.
struct NotOurs;

fn seconds(claims: &serde_json::Value, name: &str) -> Option<i64> {
    claims.get(name)?.as_i64()
}

/// The claims that tokens for the same purpose share: all but the times and the id. Whether a token expires is part of
/// its purpose.
fn lasting(claims: &serde_json::Value) -> serde_json::Value {
    let mut claims = claims.clone();
    if let Some(claims) = claims.as_object_mut() {
        let expires = claims.contains_key("exp");
        claims.retain(|name, _| !matches!(name.as_str(), "iat" | "nbf" | "exp" | "jti"));
        claims.insert("exp".to_owned(), expires.into());
    }
    claims
}

/// Time from issue to renewal: half the lifetime, as in Nomad; `None` if the token doesn't expire.
fn renew_in(identity: &Identity) -> Option<Duration> {
    let ttl = identity.ttl.filter(|ttl| !ttl.is_zero() && !ttl.is_negative())?;
    Some((ttl.to_std() / 2).max(Duration::from_secs(1)))
}

/// Larger than any token, and far below the size of `secrets`.
const TOKEN_BYTES_MAX: u64 = 64 * 1024;

fn env_name(identity: &Identity) -> String {
    if identity.name == DEFAULT_IDENTITY {
        "NOMAD_TOKEN".to_owned()
    } else {
        format!("NOMAD_TOKEN_{}", identity.name)
    }
}
