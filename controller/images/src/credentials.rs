//! Credentials of registries: a file like Docker's `config.json`, and credential helpers, in Nomad's order.
//!
//! In: where to search, an image. Out: credentials for one pull. They are read for each pull, so that rotated ones are used, and
//! never stored or logged.

use std::{
    collections::HashMap,
    fs,
    io::Read as _,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use herdlet_base::{error::in_full, ownership};
use serde::Deserialize;
use tokio::{io::AsyncReadExt as _, io::AsyncWriteExt as _, process::Command, time};

use crate::reference::{DOCKER_HUB, Reference};

/// How long a credential helper may take.
const HELPER_MAX: Duration = Duration::from_secs(30);
/// The largest file or answer with credentials.
const LEN_MAX: u64 = 1024 * 1024;
/// The key of Docker's registry in files and for helpers.
const HUB_KEY: &str = "https://index.docker.io/v1/";

/// Why there are no credentials. Continues "failed to"; holds no secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AuthError {
    #[error("read credentials from {path}: {why}")]
    File { path: PathBuf, why: String },
    #[error("ask the credential helper {helper} about {registry}: {why}")]
    Helper { helper: String, registry: String, why: String },
}

/// What proves to a registry who pulls.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// Empty if the registry needs none beside an identity token.
    pub username: String,
    pub secret: Secret,
}

/// The secret of [`Credentials`].
#[derive(Clone, PartialEq, Eq)]
pub enum Secret {
    Password(String),
    /// A refresh token of OAuth 2, which the registry's token server exchanges for an access token.
    IdentityToken(String),
}

/// Omits everything.
impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Credentials")
    }
}

/// Omits everything.
impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

/// Where credentials are.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sources<'s> {
    /// A file in the format of Docker's `config.json`.
    pub file: Option<&'s Path>,
    /// The NAME of a program `docker-credential-NAME`, for registries that the file does not have.
    pub helper: Option<&'s str>,
}

impl Sources<'_> {
    /// Finds credentials for an image; none if there are none.
    ///
    /// # Errors
    /// If a source is configured but can't be used.
    pub async fn find(&self, image: &Reference) -> Result<Option<Credentials>, AuthError> {
        if let Some(path) = self.file {
            let file = File::read(path)?;
            if let Some(found) = file.find(image).await.map_err(|error| error.at(path))? {
                return Ok(Some(found));
            }
        }
        match self.helper {
            Some(helper) => ask(helper, image).await,
            None => Ok(None),
        }
    }
}

/// A file in the format of Docker's `config.json`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct File {
    auths: HashMap<String, Entry>,
    cred_helpers: HashMap<String, String>,
    creds_store: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Entry {
    auth: String,
    username: String,
    password: String,
    identitytoken: String,
}

/// Omits everything.
impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Entry")
    }
}

impl AuthError {
    fn at(self, path: &Path) -> Self {
        match self {
            Self::File { why, .. } => Self::File { path: path.to_owned(), why },
            helper @ Self::Helper { .. } => helper,
        }
    }
}

impl File {
    fn read(path: &Path) -> Result<Self, AuthError> {
        let wrong = |why: String| AuthError::File { path: path.to_owned(), why };
        // It names programs that run as the agent's user.
        ownership::check_if_there(path).map_err(|error| wrong(in_full(&error)))?;
        let mut text = String::new();
        let file = fs::File::open(path).map_err(|error| wrong(error.to_string()))?;
        file.take(LEN_MAX).read_to_string(&mut text).map_err(|error| wrong(error.to_string()))?;
        // The parser's message could quote a secret.
        serde_json::from_str(&text).map_err(|error| {
            wrong(format!("it is not in the format of Docker's config.json (line {})", error.line()))
        })
    }

    async fn find(&self, image: &Reference) -> Result<Option<Credentials>, AuthError> {
        if let Some(entry) = pick(&self.auths, image) {
            let found = entry.credentials(&image.registry)?;
            if found.is_some() {
                return Ok(found);
            }
        }
        let helper = pick(&self.cred_helpers, image).map(String::as_str);
        match helper.or(Some(&*self.creds_store)).filter(|name| !name.is_empty()) {
            Some(helper) => ask(helper, image).await,
            None => Ok(None),
        }
    }
}

impl Entry {
    fn credentials(&self, registry: &str) -> Result<Option<Credentials>, AuthError> {
        let wrong = || AuthError::File {
            path: PathBuf::new(),
            why: format!("the `auth` of {registry} is not USER:PASSWORD in base64"),
        };
        let (mut username, mut password) = (self.username.clone(), self.password.clone());
        if !self.auth.is_empty() {
            let decoded = BASE64_STANDARD.decode(self.auth.trim()).map_err(|_| wrong())?;
            let text = String::from_utf8(decoded).map_err(|_| wrong())?;
            let (user, secret) = text.split_once(':').ok_or_else(wrong)?;
            (username, password) = (user.to_owned(), secret.trim_end_matches('\0').to_owned());
        }
        if username.is_empty() && self.identitytoken.is_empty() {
            return Ok(None);
        }
        let secret = match self.identitytoken.is_empty() {
            true => Secret::Password(password),
            false => Secret::IdentityToken(self.identitytoken.clone()),
        };
        Ok(Some(Credentials { username, secret }))
    }
}

/// The entry of an image's registry; one of a repository in it has priority.
fn pick<'f, T>(all: &'f HashMap<String, T>, image: &Reference) -> Option<&'f T> {
    let full = image.name();
    let matching = all.iter().filter_map(|(key, value)| {
        let plain = key.trim_start_matches("https://").trim_start_matches("http://");
        let plain = plain.trim_end_matches('/').trim_end_matches("/v1").trim_end_matches("/v2");
        let plain =
            if matches!(plain, "index.docker.io" | "registry-1.docker.io") { DOCKER_HUB } else { plain };
        let rest = full.strip_prefix(plain)?;
        (rest.is_empty() || rest.starts_with('/')).then_some((plain.len(), value))
    });
    matching.max_by_key(|(len, _)| *len).map(|(_, value)| value)
}

/// Runs `docker-credential-NAME get`.
#[expect(clippy::disallowed_methods, reason = "a pull that is withdrawn leaves no program behind")]
async fn ask(helper: &str, image: &Reference) -> Result<Option<Credentials>, AuthError> {
    let registry = if image.registry == DOCKER_HUB { HUB_KEY } else { &*image.registry };
    let wrong =
        |why: String| AuthError::Helper { helper: helper.to_owned(), registry: registry.to_owned(), why };
    if helper.contains('/') {
        return Err(wrong("a helper is named without a path, and found in PATH".to_owned()));
    }
    let program = format!("docker-credential-{helper}");
    let asked = async {
        let mut child = Command::new(&program)
            .arg("get")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()?;
        if let Some(mut input) = child.stdin.take() {
            input.write_all(registry.as_bytes()).await?;
        }
        let mut answer = String::new();
        if let Some(output) = child.stdout.take() {
            output.take(LEN_MAX).read_to_string(&mut answer).await?;
        }
        Ok::<_, std::io::Error>((child.wait().await?, answer))
    };
    let (status, answer) = match time::timeout(HELPER_MAX, asked).await {
        Ok(Ok(done)) => done,
        Ok(Err(error)) => return Err(wrong(format!("{program}: {error}"))),
        Err(_) => return Err(wrong(format!("it did not answer within {} s", HELPER_MAX.as_secs()))),
    };
    if !status.success() {
        // The protocol's text for a registry without credentials.
        return match answer.contains("credentials not found") {
            true => Ok(None),
            false => Err(wrong(format!("it ended with {status}"))),
        };
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Answer {
        username: String,
        secret: String,
    }
    let Ok(Answer { username, secret }) = serde_json::from_str(&answer) else {
        return Err(wrong("its answer is not in the format of credential helpers".to_owned()));
    };
    let secret = match username == "<token>" {
        true => Secret::IdentityToken(secret),
        false => Secret::Password(secret),
    };
    Ok(Some(Credentials { username, secret }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> File {
        serde_json::from_str(text).unwrap()
    }

    #[tokio::test]
    async fn entries_of_a_file() {
        let auth = BASE64_STANDARD.encode("user:pass:word");
        let file = file(&format!(
            "{{\"auths\": {{\"https://index.docker.io/v1/\": {{\"auth\": \"{auth}\"}}, \"quay.io/team\": {{\"username\": \"u\", \"password\": \"p\"}}}}}}"
        ));
        let find = async |name: &str| file.find(&Reference::parse(name).unwrap()).await.unwrap();
        let hub = find("redis").await.unwrap();
        assert_eq!((&*hub.username, hub.secret), ("user", Secret::Password("pass:word".to_owned())));
        assert_eq!(find("quay.io/team/app").await.unwrap().username, "u");
        assert!(find("quay.io/teams/app").await.is_none() && find("ghcr.io/x").await.is_none());
        let broken =
            serde_json::from_str::<File>("{\"auths\": {\"x.io\": {\"auth\": \"c2VjcmV0\"}}}").unwrap();
        let error = broken.find(&Reference::parse("x.io/y").unwrap()).await.unwrap_err().to_string();
        assert!(!error.contains("secret") && error.contains("base64"), "{error}");
    }

    #[tokio::test]
    async fn a_helper_is_named_without_a_path() {
        let error = ask("../x", &Reference::parse("redis").unwrap()).await.unwrap_err().to_string();
        assert!(error.contains("without a path"), "{error}");
        let error = ask("herdlet-none", &Reference::parse("redis").unwrap()).await.unwrap_err().to_string();
        assert!(error.contains("docker-credential-herdlet-none"), "{error}");
    }
}
