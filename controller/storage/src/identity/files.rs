//! Token files in a task's `secrets` or at its `filepath`, and tokens for its environment.
//!
//! In: the signer, the task directory, the task's identities with the claims for each. Out: files `nomad_token` (the
//! identity called `default`) and `nomad_<name>.jwt`, or the configured paths, readable only by the task's user. A token
//! that expires and that the task gets only as a variable has a file that the task can't see, so that the next agent knows
//! when it is due. This module does not schedule renewals; it only reports when the next is due.

use std::{ffi::OsString, path::PathBuf, time::Duration};

use herdlet_api_types::{job::Identity, manifest::defaults::DEFAULT_IDENTITY};
use herdlet_base::{
    observation::Observation,
    safe_fs::{Dir, FsError, Outlives},
    token_path::{file_name, path_of},
};

use sha2::{Digest as _, Sha256};

use super::{IdentityError, Signer, Token};
use crate::{file_access::FileAccess, task_dir::TaskDir};

/// The tokens of one task.
#[derive(Debug)]
pub struct TaskTokens<'a> {
    pub signer: &'a Signer,
    pub task_dir: &'a TaskDir,
    /// The task's name, for messages.
    pub task: &'a str,
    /// Who may read them.
    pub access: FileAccess,
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

impl WantedToken {
    /// Whether it has a file: the task's, or our own.
    fn is_stored(&self) -> bool {
        let expires = self.claims.get("exp").is_some();
        self.identity.file || (self.identity.env && expires && self.given.is_none())
    }
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
    /// a newly signed one. A token that is in place and not due stays.
    ///
    /// # Errors
    ///
    /// If `secrets` or, with a `filepath`, the task's directory is missing, or a file can't be written.
    pub fn up(&self, wanted: &[WantedToken]) -> Result<Issued, IdentityError> {
        for wanted in wanted.iter().filter(|token| token.is_stored()) {
            let missing = || IdentityError::NoDir { task: self.task.to_owned() };
            let spot = self.spot(&wanted.identity, Missing::Made)?.ok_or_else(missing)?;
            if self.is_fresh(&spot, wanted)? && self.is_granted(&spot, wanted)? {
                continue;
            }
            let token = self.make(wanted)?;
            let rights = self.access(wanted).rights(0o600);
            spot.dir
                .write_file(&spot.name, token.reveal().as_bytes(), rights, Outlives::Processes)
                .map_err(|source| self.file_error(source))?;
        }
        Ok(Issued { renew_in: self.renew_in(wanted) })
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
            .map(|token| {
                let stored = if token.is_stored() { self.stored(token)? } else { None };
                let token_for_env = stored.map_or_else(|| self.make(token), Ok)?;
                Ok((env_name(&token.identity), token_for_env))
            })
            .collect()
    }

    /// The token in its file, if it is fresh.
    fn stored(&self, wanted: &WantedToken) -> Result<Option<Token>, IdentityError> {
        let Some(spot) = self.spot(&wanted.identity, Missing::Left)? else { return Ok(None) };
        if !self.is_fresh(&spot, wanted)? {
            return Ok(None);
        }
        let bytes = self.bytes(&spot)?.and_then(Result::ok);
        let text = bytes.and_then(|bytes| std::str::from_utf8(&bytes).ok().map(str::to_owned));
        Ok(text.map(|text| Token(text.into())))
    }

    /// Whether all token files exist, are signed by us or the servers, readable only by those who may read them, not expired (at
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
        wanted.iter().filter_map(|token| self.due_in(token)).min()
    }

    fn due_in(&self, wanted: &WantedToken) -> Option<Duration> {
        if let Some(given) = &wanted.given {
            return given.renew_in;
        }
        let spot = self.spot(&wanted.identity, Missing::Left).ok().flatten();
        let claims = spot.and_then(|spot| self.read(&spot).ok().flatten()?.ok());
        match claims.or_else(|| (!wanted.identity.file).then(|| wanted.claims.clone())) {
            // Issued without a file, by a release that wrote none: it is at most as old as the agent's predecessor.
            Some(claims) => renew_in(&claims, seconds(&wanted.claims, "iat")?),
            None => None,
        }
    }

    /// Whether the token in its place is as wanted and not due.
    fn is_fresh(&self, spot: &Spot, wanted: &WantedToken) -> Result<bool, IdentityError> {
        if !matches!(self.see(spot, wanted)?, Observation::Present) {
            return Ok(false);
        }
        if wanted.given.is_some() {
            return Ok(true);
        }
        let (claims, now) = (self.read(spot)?.and_then(Result::ok), seconds(&wanted.claims, "iat"));
        let (Some(claims), Some(now)) = (claims, now) else { return Ok(false) };
        // The clock was set back: when it is due by this token says nothing.
        let is_early =
            seconds(&claims, "iat").is_some_and(|issued| issued > now.saturating_add(CLOCK_SECONDS));
        Ok(!is_early && renew_in(&claims, now).is_none_or(|left| !left.is_zero()))
    }

    /// Whether those who get the token now can read the file.
    fn is_granted(&self, spot: &Spot, wanted: &WantedToken) -> Result<bool, IdentityError> {
        let stat = spot.dir.stat_name(&spot.name).map_err(|source| self.file_error(source))?;
        Ok(stat.is_some_and(|stat| self.access(wanted).is_granted_by(&stat)))
    }

    /// Who may read a token: a token that the task gets only as a variable is stored for us.
    fn access(&self, wanted: &WantedToken) -> FileAccess {
        if wanted.identity.file { self.access } else { FileAccess::Owner(None) }
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
            None => match self.claims(&bytes)? {
                Ok(claims) => claims,
                Err(NotOurs) => return seen("is not one of our tokens"),
            },
        };
        let stat = spot.dir.stat_name(&spot.name).map_err(|source| self.file_error(source))?;
        if stat.is_some_and(|stat| self.access(token).is_exceeded_by(&stat, 0o600)) {
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
        match self.bytes(spot)? {
            None => Ok(None),
            Some(Err(NotOurs)) => Ok(Some(Err(NotOurs))),
            Some(Ok(bytes)) => self.claims(&bytes).map(Some),
        }
    }

    /// Fails if the keys can't be used: then nothing is known about the token.
    fn claims(&self, bytes: &[u8]) -> Result<Result<serde_json::Value, NotOurs>, IdentityError> {
        let Ok(text) = std::str::from_utf8(bytes) else { return Ok(Err(NotOurs)) };
        match self.signer.verify(text) {
            Ok(claims) => Ok(Ok(claims)),
            Err(error) if error.is_about_token() => Ok(Err(NotOurs)),
            Err(error) => Err(error),
        }
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
        if !identity.file {
            let private = self.task_dir.private().map_err(entered)?;
            return Ok(private.map(|dir| Spot { dir, name: file_name(&identity.name).into() }));
        }
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
                    dir.make(step, self.access.rights(0o755)).map_err(|source| self.file_error(source))?
                }
            };
            if missing == Missing::Made {
                dir.check_entry(&inner, self.access.owner().as_ref())
                    .map_err(|source| self.file_error(source))?;
            }
            dir = inner;
        }
        Ok(Some(Spot { dir, name: name.to_owned() }))
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

/// Time from `now` until a token with these claims is to be renewed: after half of its life or up to a fifth of that
/// earlier, so that tokens that were issued together are not renewed together. `None` if it doesn't expire.
fn renew_in(claims: &serde_json::Value, now: i64) -> Option<Duration> {
    let (issued, expires) = (seconds(claims, "iat")?, seconds(claims, "exp")?);
    let life = Duration::from_secs(u64::try_from(expires.saturating_sub(issued)).unwrap_or_default());
    let half = life / 2;
    // The token's id is random, and tells any agent the same time.
    let id = claims.get("jti").and_then(|id| id.as_str()).unwrap_or_default();
    let share = Sha256::digest(id.as_bytes()).first().copied().unwrap_or_default();
    let wait = half.saturating_sub(half / (5 * 256) * u32::from(share)).max(Duration::from_secs(1));
    let passed = Duration::from_secs(u64::try_from(now.saturating_sub(issued)).unwrap_or_default());
    Some(wait.saturating_sub(passed))
}

/// How far clocks may be set back without effect.
const CLOCK_SECONDS: i64 = 60;

/// Larger than any token, and far below the size of `secrets`.
const TOKEN_BYTES_MAX: u64 = 64 * 1024;

fn env_name(identity: &Identity) -> String {
    if identity.name == DEFAULT_IDENTITY {
        "NOMAD_TOKEN".to_owned()
    } else {
        format!("NOMAD_TOKEN_{}", identity.name)
    }
}

#[cfg(test)]
mod tests;
