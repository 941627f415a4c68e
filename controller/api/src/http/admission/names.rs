//! Which host names a request may use, and which web pages may send requests.
//!
//! In: the head of a request. Out: nothing, or a refusal. A page open in a browser can send requests to any address that the
//! browser's machine can reach. The browser sends the host name (`Host`) and the page's origin (`Origin`). An unknown name that
//! resolves to this machine is DNS rebinding, and a page of another origin may not change anything.

use std::{collections::BTreeSet, fs::File, io::Read as _, path::Path};

use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Version, header, request::Parts};
use herdlet_base::authority::{Authority, Host};
use herdlet_config::{Cluster, Config, HostPort, host_name, http::ANY_HOST};

/// The config key that lists more names, for messages.
const KEY: &str = "http.allowed_hosts";

/// A browser's statement of how the page's site relates to the target (Fetch Metadata Request Headers, W3C).
const SITE: &str = "sec-fetch-site";

/// Bytes read of a system file. The names of this machine are near the beginning.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Names of this machine, and names that the config adds.
#[derive(Debug, Clone, Default)]
pub struct Names {
    own: BTreeSet<String>,
    allowed: Vec<Authority>,
    is_any_allowed: bool,
    /// Whether a config can add names.
    is_configured: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HostRefusal {
    /// It has no `Host` header, more than one, or an invalid one.
    #[error("the request must have one Host header, with a host and a port")]
    Malformed,
    /// It uses an unknown host name.
    #[error(
        "\"{text}\" is not a name of this machine, and a web page can send requests under any name (DNS rebinding)."
    )]
    Host {
        /// As in the request.
        text: String,
        /// The name alone, in one spelling.
        name: String,
    },
    /// A web page of another origin sends it.
    #[error(
        "the request comes from a web page of another origin ({0}), which may not change anything here. To allow it, add the page's host to {KEY} in the agent's config."
    )]
    Page(String),
    /// A browser sends it without naming the page.
    #[error(
        "a browser sent this GET request, which changes something, without naming the web page that it comes from. Use PUT, or the command line."
    )]
    UnnamedPage,
}

impl HostRefusal {
    pub(super) fn code(&self) -> StatusCode {
        match self {
            Self::Malformed => StatusCode::BAD_REQUEST,
            Self::Host { .. } => StatusCode::MISDIRECTED_REQUEST,
            Self::Page(_) | Self::UnnamedPage => StatusCode::FORBIDDEN,
        }
    }
}

/// What a listener knows about the host name already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Naming {
    /// Nothing.
    Unknown,
    /// The client has verified our name and shown a certificate, so the name is ours.
    Verified,
}

impl Names {
    /// The names of this machine that are known without a query: its host name, the aliases in `/etc/hosts`, and the host name
    /// with the domains of `/etc/resolv.conf`. `more`: the config's names of the node and of the addresses it is served on.
    #[must_use]
    pub fn of_machine(more: &[String]) -> Self {
        let hosts = beginning_of(Path::new("/etc/hosts"));
        let resolver = beginning_of(Path::new("/etc/resolv.conf"));
        Self::of(&host_name(), &hosts, &resolver).with_own(more)
    }

    fn of(host: &str, hosts: &str, resolver: &str) -> Self {
        let short = host.split('.').next().unwrap_or(host);
        let mut names = vec![host.to_owned(), short.to_owned()];
        let without_comments = |line: &'_ str| line.split('#').next().unwrap_or_default().to_owned();
        for line in hosts.lines().map(without_comments) {
            let of_line: Vec<_> = line.split_whitespace().skip(1).map(str::to_owned).collect();
            if of_line.iter().any(|name| name.eq_ignore_ascii_case(host) || name.eq_ignore_ascii_case(short))
            {
                names.extend(of_line);
            }
        }
        for line in resolver.lines().map(without_comments) {
            let mut words = line.split_whitespace();
            if matches!(words.next(), Some("search" | "domain")) {
                names.extend(words.map(|domain| format!("{short}.{domain}")));
            }
        }
        Self::default().with_own(&names)
    }

    fn with_own(mut self, names: &[String]) -> Self {
        let read = names.iter().filter_map(|name| match Authority::parse(name)?.host {
            Host::Name(name) => Some(name),
            Host::Ip(_) => None,
        });
        self.own.extend(read);
        self
    }

    /// The names of this machine, according to the system and the config.
    #[must_use]
    pub fn of_config(config: &Config) -> Self {
        let advertised = config.cluster.as_ref().and_then(Cluster::advertised_host);
        let listens = config.listen.as_ref().map(|(address, _)| address);
        let listens =
            listens.into_iter().chain(&config.metrics_listen).map(|HostPort { host, .. }| host.clone());
        let own: Vec<String> = listens.chain(advertised).chain([config.name.clone()]).collect();
        Self::of_machine(&own).allowing(&config.http.allowed_hosts)
    }

    /// Adds entries of the config: `HOST`, `HOST:PORT`, or `*` for any name.
    #[must_use]
    pub fn allowing(mut self, entries: &[String]) -> Self {
        self.is_configured = true;
        self.is_any_allowed |= entries.iter().any(|entry| entry == ANY_HOST);
        self.allowed.extend(entries.iter().filter_map(|entry| Authority::parse(entry)));
        self
    }

    /// Whether the config can add names. It can't for the port of `herdlet ui`, which has no config.
    pub(super) fn can_be_extended(&self) -> bool {
        self.is_configured
    }

    /// Judges a request without a token or anything else that a web page could not send.
    pub(super) fn judge(&self, head: &Parts, naming: Naming) -> Result<(), HostRefusal> {
        let host = named_authorities(head)?;
        let is_ours = |authority: &Authority| naming == Naming::Verified || self.is_ours(authority);
        if let Some((text, authority)) = host.iter().find(|(_, authority)| !is_ours(authority)) {
            return Err(HostRefusal::Host { text: (*text).to_owned(), name: authority.host.to_string() });
        }
        let host = host.last().map(|(_, authority)| authority);
        match Purpose::of(head) {
            Purpose::Read => Ok(()),
            Purpose::Change => self.judge_page(&head.headers, host),
            Purpose::ChangeByGet if is_unnamed_page(&head.headers) => Err(HostRefusal::UnnamedPage),
            Purpose::ChangeByGet => self.judge_page(&head.headers, host),
        }
    }

    /// IP addresses can't be rebound. Ports don't count, because a port forwarding changes them.
    fn is_ours(&self, asked: &Authority) -> bool {
        match &asked.host {
            Host::Ip(_) => true,
            Host::Name(name) => {
                let is_allowed = self.allowed.iter().any(|entry| entry.host == asked.host);
                // Browsers resolve these to loopback and ask no server for them (RFC 6761 §6.3).
                let is_local = name == "localhost" || name.ends_with(".localhost");
                is_local || self.own.contains(name) || is_allowed || self.is_any_allowed
            }
        }
    }

    fn judge_page(&self, headers: &HeaderMap, host: Option<&Authority>) -> Result<(), HostRefusal> {
        let mut origins = headers.get_all(header::ORIGIN).iter();
        let (origin, second) = (origins.next(), origins.next());
        let site = headers.get(SITE);
        let is_cross = site.is_some_and(|site| site == "cross-site");
        let Some(origin) = origin else {
            // Another port of this host is the same site but another origin.
            let is_own = |site: &HeaderValue| site == "same-origin" || site == "none";
            return match site.filter(|site| !is_own(site)) {
                Some(site) => Err(HostRefusal::Page(site.to_str().unwrap_or("not readable").to_owned())),
                None => Ok(()),
            };
        };
        let text = origin.to_str().unwrap_or("not readable");
        let page = Authority::of_origin(text).filter(|_| second.is_none());
        let is_own = |page: &Authority| !is_cross && host.is_some_and(|host| host.is_of(page));
        match page {
            Some(page) if is_own(&page) || self.allows_page(&page) => Ok(()),
            Some(_) | None => Err(HostRefusal::Page(text.to_owned())),
        }
    }

    /// Whether the config allows the origin of the page. Such a page may read and change everything that its token, or no token,
    /// permits.
    pub(super) fn allows_pages_of(&self, headers: &HeaderMap) -> bool {
        let origin = headers.get(header::ORIGIN).and_then(|origin| origin.to_str().ok());
        origin.and_then(Authority::of_origin).is_some_and(|page| self.allows_page(&page))
    }

    fn allows_page(&self, page: &Authority) -> bool {
        let names =
            |entry: &Authority| entry.host == page.host && (entry.port.is_none() || entry.port == page.port);
        self.allowed.iter().any(names)
    }
}

/// The authorities that a request names, as text and parsed: its `Host` header, then its target, which has precedence (RFC 9112
/// §3.2.2). Empty if neither is required (HTTP/1.0, which no browser speaks).
fn named_authorities(head: &Parts) -> Result<Vec<(&str, Authority)>, HostRefusal> {
    let mut named = head.headers.get_all(header::HOST).iter();
    let (host, second) = (named.next(), named.next());
    let target = head.uri.authority().map(|authority| authority.as_str());
    let must_say = head.version == Version::HTTP_11 || target.is_none() && head.version > Version::HTTP_11;
    if second.is_some() || host.is_none() && must_say {
        return Err(HostRefusal::Malformed);
    }
    let host = host.map(|host| host.to_str().map_err(|_| HostRefusal::Malformed)).transpose()?;
    let read = |text| Some((text, Authority::parse(text)?));
    host.into_iter().chain(target).map(|text| read(text).ok_or(HostRefusal::Malformed)).collect()
}

/// What a request does, for the check of web pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// It reads. Browsers keep the answer from pages of other origins.
    Read,
    /// It changes something, or opens a websocket.
    Change,
    /// It changes something by GET, which browsers also use for images, without `Origin`.
    ChangeByGet,
}

impl Purpose {
    fn of(head: &Parts) -> Self {
        if !matches!(head.method, Method::GET | Method::HEAD | Method::OPTIONS)
            || head.headers.contains_key(header::UPGRADE)
        {
            Self::Change
        } else if changes_by_get(head.uri.path()) {
            Self::ChangeByGet
        } else {
            Self::Read
        }
    }
}

/// Whether a GET of this path changes something: Nomad's clients collect garbage that way. A test covers the routes of a node;
/// those of the local API were inspected.
fn changes_by_get(path: &str) -> bool {
    let of_alloc = path.strip_prefix("/v1/client/allocation/").and_then(|rest| rest.strip_suffix("/gc"));
    path == "/v1/client/gc" || of_alloc.is_some()
}

/// Whether a browser sends it without naming the page. Over plain HTTP, except to loopback, browsers send no `Sec-Fetch-Site`,
/// and for an image no `Origin`. The `User-Agent` of every browser begins like this, and a page can't change it for an image.
fn is_unnamed_page(headers: &HeaderMap) -> bool {
    let agent = headers.get(header::USER_AGENT).map(HeaderValue::as_bytes).unwrap_or_default();
    agent.starts_with(b"Mozilla/") && !headers.contains_key(SITE) && !headers.contains_key(header::ORIGIN)
}

fn beginning_of(path: &Path) -> String {
    let mut bytes = Vec::new();
    // A system without the file has no names in it.
    let _ = File::open(path).and_then(|file| file.take(FILE_BYTES_MAX).read_to_end(&mut bytes));
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests;
