//! Tokens for requests to Consul: the agent's own, and those of services, each of a log-in or in a separate file.
//!
//! In: the name of a service. Out: its token, and where that comes from. Files are read for each request, so that
//! tokens can be replaced at any time. This module does not know the requests. Tokens are never shown; their sources
//! are.

use std::{
    collections::BTreeMap,
    fmt,
    fs::File,
    hash::{BuildHasher as _, RandomState},
    io::Read as _,
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Component, Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

use herdlet_base::{error::in_full, ownership};
use reqwest::header::HeaderValue;
use rustix::fs::OFlags;
use zeroize::Zeroizing;

use super::config::{ConsulConfig, header};

/// The maximum length of a token; longer files are rejected.
const TOKEN_LEN_MAX: u64 = 4_096;

/// All tokens that this agent may use.
#[derive(Debug)]
pub(super) struct Tokens {
    agent: Token,
    /// Directory with the tokens of services.
    services: Option<PathBuf>,
    logged_in: Mutex<LoggedIn>,
    /// Random per process, so that hashes of tokens reveal nothing.
    secret: RandomState,
}

/// Tokens of log-ins.
#[derive(Debug, Default)]
struct LoggedIn {
    services: BTreeMap<String, Token>,
    /// The service of each check.
    checks: BTreeMap<String, String>,
}

/// A token, or none.
#[derive(Clone)]
pub(super) struct Token {
    value: Option<HeaderValue>,
    source: Source,
    print: u64,
}

/// The source of a token.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Source {
    /// There is no token.
    Nowhere,
    /// The agent's own token, from this setting.
    Agent(String),
    /// A service's own token, from this file.
    File(PathBuf),
    /// A service's own token, of a log-in.
    LogIn,
}

/// A hash that distinguishes tokens without revealing them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Print(u64);

/// Why there is no token for a service. Shows nothing of its text.
#[derive(Debug, thiserror::Error)]
#[error("read the token in {}: {why}", .path.display())]
pub(super) struct TokenError {
    path: PathBuf,
    why: String,
}

impl Tokens {
    pub(super) fn new(config: &ConsulConfig) -> Self {
        let secret = RandomState::new();
        let source = config.token_source.clone().map_or(Source::Nowhere, Source::Agent);
        let agent = Token::new(config.token.as_ref().and_then(|text| header(text)), source, &secret);
        Self { agent, services: config.service_tokens_dir.clone(), logged_in: Mutex::default(), secret }
    }

    /// The agent's own token.
    pub(super) fn agent(&self) -> &Token {
        &self.agent
    }

    /// Whether tokens may change while the agent runs.
    pub(super) fn may_change(&self) -> bool {
        self.services.is_some()
    }

    /// Sets the token of a log-in for a service and its checks; without a token, the others apply to all of its checks.
    pub(super) fn set<'c>(&self, id: &str, checks: impl Iterator<Item = &'c str>, token: Option<&str>) {
        let mut logged_in = self.logged_in();
        match token {
            Some(text) => {
                let token = Token::new(header(text), Source::LogIn, &self.secret);
                logged_in.services.insert(id.to_owned(), token);
                logged_in.checks.extend(checks.map(|check| (check.to_owned(), id.to_owned())));
            }
            None => {
                if logged_in.services.remove(id).is_some() {
                    logged_in.checks.retain(|_, service| service != id);
                }
            }
        }
    }

    /// Removes the token of a log-in for a service, unless the service has another one by now.
    pub(super) fn remove(&self, id: &str, token: &str) {
        let print = Token::new(header(token), Source::LogIn, &self.secret).print();
        if self.of_log_in(id).is_some_and(|known| known.print() == print) {
            self.set(id, std::iter::empty(), None);
        }
    }

    /// The token of a log-in for a service or a check.
    pub(super) fn of_log_in(&self, id: &str) -> Option<Token> {
        let logged_in = self.logged_in();
        let service = logged_in.checks.get(id).map_or(id, String::as_str);
        logged_in.services.get(service).cloned()
    }

    fn logged_in(&self) -> MutexGuard<'_, LoggedIn> {
        self.logged_in.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The token of a service, by its own id or that of one of its checks: of its log-in, or as [`Self::of`].
    pub(super) async fn by_id(&self, id: &str, service: &str) -> Result<Token, TokenError> {
        match self.of_log_in(id) {
            Some(token) => Ok(token),
            None => self.of(service).await,
        }
    }

    /// The token of services of this name in a file, or the agent's own if there is none.
    pub(super) async fn of(&self, service: &str) -> Result<Token, TokenError> {
        let Some(dir) = self.services.clone() else { return Ok(self.agent.clone()) };
        let path = dir.join(service);
        let name = service.to_owned();
        let read = herdlet_runtime::off_thread(move || read(&dir, &name)).await;
        match read.unwrap_or_else(|error| Err(error.to_string())) {
            Ok(Some(value)) => Ok(Token::new(Some(value), Source::File(path), &self.secret)),
            Ok(None) => Ok(self.agent.clone()),
            Err(why) => Err(TokenError { path, why }),
        }
    }
}

impl Token {
    fn new(value: Option<HeaderValue>, source: Source, secret: &RandomState) -> Self {
        let source = if value.is_some() { source } else { Source::Nowhere };
        let print = secret.hash_one(value.as_ref().map(HeaderValue::as_bytes));
        Self { value, source, print }
    }

    /// As a request header.
    pub(super) fn header(&self) -> Option<&HeaderValue> {
        self.value.as_ref()
    }

    pub(super) fn print(&self) -> Print {
        Print(self.print)
    }

    pub(super) fn is_some(&self) -> bool {
        self.value.is_some()
    }
}

/// Reads on after a description of the request.
impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.source {
            Source::Nowhere => f.write_str("without a token"),
            Source::Agent(setting) => write!(f, "with the token of {setting}"),
            Source::File(path) => write!(f, "with the token in {}", path.display()),
            Source::LogIn => f.write_str("with the token of its log-in"),
        }
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Token").field(&self.source).finish()
    }
}

/// Checks whether the token file of this service can be used.
///
/// # Errors
///
/// The reason, without anything of the token's text.
pub fn check_service_token(dir: &Path, service: &str) -> Result<(), String> {
    let read = read(dir, service).map(drop);
    read.map_err(|why| TokenError { path: dir.join(service), why }.to_string())
}

/// The token in the file with this name; `None` if there is no such file.
fn read(dir: &Path, name: &str) -> Result<Option<HeaderValue>, String> {
    let mut parts = Path::new(name).components();
    if !matches!((parts.next(), parts.next()), (Some(Component::Normal(only)), None) if only == name) {
        return Err("the service's name can't be a file name".to_owned());
    }
    ownership::check_if_there(&dir.join(name)).map_err(|error| in_full(&error))?;
    // Links are followed, because secrets are often mounted that way, but not out of the directory.
    let (dir, path) = match (dir.canonicalize(), dir.join(name).canonicalize()) {
        (Ok(dir), Ok(path)) => (dir, path),
        (Err(error), _) | (_, Err(error)) if error.kind() == std::io::ErrorKind::NotFound => {
            let is_link = dir.join(name).symlink_metadata().is_ok();
            return if is_link { Err("it is a dangling link".to_owned()) } else { Ok(None) };
        }
        (Err(error), _) | (_, Err(error)) => return Err(in_full(&error)),
    };
    if !path.starts_with(&dir) {
        return Err("its target is outside of the token directory".to_owned());
    }
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let mut options = File::options();
    let options = options.read(true).custom_flags(i32::try_from(flags.bits()).unwrap_or_default());
    let file = match options.open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(in_full(&error)),
    };
    let metadata = file.metadata().map_err(|error| in_full(&error))?;
    if !metadata.is_file() {
        return Err("it is not a regular file".to_owned());
    }
    if metadata.mode() & 0o007 != 0 {
        return Err("other users can access it; run `chmod o=` on it".to_owned());
    }
    let mut text = Zeroizing::new(Vec::new());
    file.take(TOKEN_LEN_MAX + 1).read_to_end(&mut text).map_err(|error| in_full(&error))?;
    if text.len() as u64 > TOKEN_LEN_MAX {
        return Err(format!("it is longer than {TOKEN_LEN_MAX} bytes"));
    }
    let text = std::str::from_utf8(&text).ok().and_then(header);
    text.map(Some).ok_or_else(|| {
        "it holds no token: its first line must be visible ASCII characters without spaces".to_owned()
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    /// The token of a service that had moved within one catalogue was removed with the token of its old place.
    #[test]
    fn only_the_token_that_is_meant_is_removed() {
        let tokens = tokens(None);
        tokens.set("web", ["check"].into_iter(), Some("new"));
        tokens.remove("web", "old");
        assert!(tokens.of_log_in("web").is_some() && tokens.of_log_in("check").is_some());
        tokens.remove("web", "new");
        assert!(tokens.of_log_in("web").is_none() && tokens.of_log_in("check").is_none());
    }

    fn tokens(dir: Option<&Path>) -> Tokens {
        let config = ConsulConfig::resolve(None, Some("agents-0wn".to_owned()), |_| None).unwrap();
        Tokens::new(&config.with_service_tokens(dir.map(Path::to_owned)))
    }

    fn write(path: &Path, text: &str, mode: u32) {
        std::fs::write(path, text).unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    #[tokio::test]
    async fn token_file_applies_to_its_service_only() {
        let dir = tempfile::tempdir().unwrap();
        let tokens = tokens(Some(dir.path()));
        write(&dir.path().join("web"), "s3cret-one \nmore\n", 0o640);
        let web = tokens.of("web").await.unwrap();
        assert_eq!(web.header().unwrap(), "s3cret-one");
        let path = dir.path().join("web");
        assert_eq!(web.to_string(), format!("with the token in {}", path.display()));
        assert!(!format!("{web:?} {web} {tokens:?}").contains("s3cret"));
        let api = tokens.of("api").await.unwrap();
        assert_eq!(api.header().unwrap(), "agents-0wn");
        assert_eq!(api.to_string(), "with the token of consul.token_file");
        assert_ne!(api.print(), web.print());
        // The replaced file is read again.
        write(&path, "s3cret-two", 0o600);
        let again = tokens.of("web").await.unwrap();
        assert!(again.header().unwrap() == "s3cret-two" && again.print() != web.print());
        std::fs::remove_file(&path).unwrap();
        assert_eq!(tokens.of("web").await.unwrap().print(), api.print());
    }

    #[tokio::test]
    async fn a_check_has_the_token_of_its_service_until_that_ends() {
        let tokens = tokens(None);
        tokens.set("s", ["c", "d"].into_iter(), Some("one"));
        // The checks of a service that is no longer wanted are not known any more.
        tokens.set("s", [].into_iter(), Some("two"));
        for id in ["s", "c", "d"] {
            assert_eq!(tokens.by_id(id, "web").await.unwrap().header().unwrap(), "two", "{id}");
        }
        tokens.set("s", [].into_iter(), None);
        for id in ["s", "c", "d"] {
            assert_eq!(tokens.by_id(id, "web").await.unwrap().header().unwrap(), "agents-0wn", "{id}");
        }
        let logged_in = tokens.logged_in();
        assert!(logged_in.services.is_empty() && logged_in.checks.is_empty());
    }

    #[tokio::test]
    async fn unsafe_token_file_is_refused() {
        let ground = tempfile::tempdir().unwrap();
        let dir = ground.path().join("tokens");
        std::fs::create_dir(&dir).unwrap();
        let tokens = tokens(Some(&dir));
        write(&ground.path().join("outside"), "s3cret", 0o600);
        write(&dir.join("public"), "s3cret", 0o644);
        write(&dir.join("empty"), "\ns3cret", 0o600);
        write(&dir.join("long"), &"x".repeat(5_000), 0o600);
        write(&dir.join("binary"), "s3cret\u{7f}", 0o600);
        write(&dir.join("..data"), "kept-inside", 0o600);
        std::fs::create_dir(dir.join("folder")).unwrap();
        symlink("../outside", dir.join("link")).unwrap();
        symlink("..data", dir.join("mounted")).unwrap();
        let pipe = std::ffi::CString::new(dir.join("pipe").display().to_string()).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, pipe.as_c_str(), rustix::fs::FileType::Fifo, 0o600.into(), 0)
            .unwrap();
        for (name, why) in [
            ("public", "other users can access it"),
            ("empty", "holds no token"),
            ("long", "longer than"),
            ("binary", "holds no token"),
            ("folder", "not a regular file"),
            ("pipe", "not a regular file"),
            ("link", "outside of the token directory"),
            ("../outside", "can't be a file name"),
            ("..", "can't be a file name"),
            (".", "can't be a file name"),
            ("", "can't be a file name"),
            ("web/", "can't be a file name"),
            ("/etc/hosts", "can't be a file name"),
        ] {
            let error = tokens.of(name).await.unwrap_err().to_string();
            assert!(error.contains(why) && !error.contains("s3cret"), "{name}: {error}");
        }
        assert_eq!(tokens.of("mounted").await.unwrap().header().unwrap(), "kept-inside");
        assert!(tokens.of("nobody").await.is_ok());
    }
}
