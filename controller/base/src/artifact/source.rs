//! Artifact addresses in go-getter's form: `[http::]https://host/path.tgz[//folder][?checksum=…&archive=…&filename=…]`.
//!
//! In: the source and options, with variables replaced. Out: a URL, and how to process the response. Nothing is
//! fetched. An address may contain secrets: only [`Source::redacted`] may be shown, and errors show no more than that.
//!
//! Sources: `hashicorp/go-getter:client.go`, `source.go`, `detect.go`.

use std::{
    collections::BTreeMap,
    path::{Component, Path, PathBuf},
};

use reqwest::Url;

use super::format::Format;

/// A parsed artifact address.
pub struct Source {
    /// The URL to request.
    pub url: Url,
    /// The archive format; `None` for a plain file.
    pub format: Option<Format>,
    /// The expected checksum, as written.
    pub checksum: Option<String>,
    /// The name of the resulting file.
    pub file_name: String,
    /// The file name to find in checksum lists.
    pub remote_name: String,
    /// The folder to take from the archive; empty for all of it.
    pub folder: PathBuf,
}

/// Errors in addresses.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// A scheme that Nomad supports and herdlet does not.
    #[error("`{scheme}` is not supported; available: `http`, `https`")]
    NotBuilt {
        /// What it is called.
        scheme: String,
    },
    #[error("must be an address that begins with http:// or https://")]
    Unknown,
    /// Not a valid address.
    #[error("is no valid address: {why}")]
    Invalid { why: String },
    /// An option with an invalid value.
    #[error("`{option}` {why}")]
    Option {
        option: &'static str,
        /// Reads after the option's name.
        why: String,
    },
}

/// Options for the fetcher, which are not sent to the server.
const OURS: [&str; 3] = ["checksum", "archive", "filename"];

/// Schemes that only Nomad supports.
const NOT_BUILT: [&str; 5] = ["git", "hg", "s3", "gcs", "file"];

impl Source {
    /// Parses an address.
    ///
    /// # Errors
    /// [`SourceError`].
    pub fn parse(text: &str, options: &BTreeMap<String, String>) -> Result<Self, SourceError> {
        let address = check_scheme(text)?;
        let (address, folder) = split_folder(address);
        let folder = PathBuf::from(folder);
        if !folder.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir)) {
            let why = "the part after `//` must be a folder of the archive".to_owned();
            return Err(SourceError::Invalid { why });
        }
        let mut url =
            Url::parse(&address).map_err(|error| SourceError::Invalid { why: error.to_string() })?;
        if url.host_str().is_none_or(str::is_empty) {
            return Err(SourceError::Invalid { why: "it has no host".to_owned() });
        }
        let mut ours: BTreeMap<String, String> =
            url.query_pairs().filter(|(key, _)| is_ours(key)).map(|(k, v)| (k.into(), v.into())).collect();
        drop_from_query(&mut url, |key| is_ours(key) || options.contains_key(key));
        let (own, others): (Vec<_>, Vec<_>) = options.iter().partition(|(key, _)| is_ours(key));
        ours.extend(own.into_iter().map(|(key, value)| (key.clone(), value.clone())));
        if !others.is_empty() {
            url.query_pairs_mut().extend_pairs(others);
        }
        let remote_name = file_name_of(&url);
        let format = format_of(ours.get("archive"), url.path())?;
        let file_name = match (ours.remove("filename").filter(|name| !name.is_empty()), format) {
            (Some(name), _) if !is_name(&name) => {
                let why = "must be the name of a file, without a path".to_owned();
                return Err(SourceError::Option { option: "filename", why });
            }
            (Some(name), _) => name,
            (None, Some(format)) => format.stem_of(&remote_name).to_owned(),
            (None, None) => remote_name.clone(),
        };
        let checksum = ours.remove("checksum").filter(|checksum| !checksum.is_empty());
        Ok(Self { url, format, checksum, file_name, remote_name, folder })
    }

    /// The address without user, password and query, for logs and errors.
    pub fn redacted(&self) -> String {
        redacted_url(&self.url)
    }
}

/// The address without user, password and query, for logs and errors.
pub fn redacted_url(url: &Url) -> String {
    let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
    format!("{}://{}{port}{}", url.scheme(), url.host_str().unwrap_or_default(), url.path())
}

/// Returns the address without a `http::` or `https::` prefix.
///
/// # Errors
/// If the scheme is not `http` or `https`.
pub fn check_scheme(text: &str) -> Result<&str, SourceError> {
    let known = |scheme: &str| matches!(scheme, "http" | "https");
    let refused = |scheme: &str| match NOT_BUILT.contains(&scheme) {
        true => SourceError::NotBuilt { scheme: scheme.to_owned() },
        false => SourceError::Unknown,
    };
    let mut address = text.trim();
    if let Some((forced, rest)) = address.split_once("::")
        && !forced.is_empty()
        && forced.bytes().all(|byte| byte.is_ascii_alphanumeric())
    {
        if !known(forced) {
            return Err(refused(forced));
        }
        address = rest;
    }
    match address.split_once("://") {
        Some((scheme, _)) if known(&scheme.to_ascii_lowercase()) => Ok(address),
        Some((scheme, _)) => Err(refused(match scheme {
            "ssh" => "git",
            other => other,
        })),
        // The short forms that go-getter expands to addresses.
        None => Err(refused(match address {
            address if address.starts_with("git@") => "git",
            address
                if ["github.com/", "gitlab.com/", "bitbucket.org/"]
                    .iter()
                    .any(|host| address.starts_with(host)) =>
            {
                "git"
            }
            address if address.contains(".amazonaws.com/") => "s3",
            address if address.contains("googleapis.com/") => "gcs",
            address if address.starts_with(['/', '.']) => "file",
            _ => "",
        })),
    }
}

/// Splits `scheme://host/path//folder?query` into the address and the folder.
fn split_folder(address: &str) -> (String, &str) {
    let (before, query) = match address.split_once('?') {
        Some((before, query)) => (before, Some(query)),
        None => (address, None),
    };
    let scheme_len = before.find("://").map_or(0, |at| at + 3);
    let (scheme, rest) = before.split_at(scheme_len);
    let (path, folder) = rest.split_once("//").unwrap_or((rest, ""));
    let query = query.map(|query| format!("?{query}")).unwrap_or_default();
    (format!("{scheme}{path}{query}"), folder.trim_matches('/'))
}

fn is_ours(key: &str) -> bool {
    OURS.contains(&key)
}

/// Removes fields from a query. The others keep their exact spelling, because the URL may be signed.
fn drop_from_query(url: &mut Url, drops: impl Fn(&str) -> bool) {
    let Some(query) = url.query() else { return };
    let key_of = |pair: &str| {
        let mut alone = url.clone();
        alone.set_query(Some(pair));
        alone.query_pairs().next().map(|(key, _)| key.into_owned()).unwrap_or_default()
    };
    let kept: Vec<&str> = query.split('&').filter(|pair| !drops(&key_of(pair))).collect();
    let kept = kept.join("&");
    url.set_query(Some(&kept).filter(|kept| !kept.is_empty()).map(String::as_str));
}

/// The last non-empty segment of the path.
fn file_name_of(url: &Url) -> String {
    let last = url.path_segments().and_then(|mut segments| segments.rfind(|part| !part.is_empty()));
    let last = last.map(decoded).filter(|name| is_name(name));
    last.unwrap_or_else(|| "artifact".to_owned())
}

/// Decodes `%20` to a space; text that isn't valid UTF-8 afterwards stays as written.
fn decoded(part: &str) -> String {
    let mut bytes = Vec::with_capacity(part.len());
    let mut rest = part.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        let hex = tail.get(..2).filter(|_| *first == b'%').and_then(|hex| std::str::from_utf8(hex).ok());
        match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = tail.get(2..).unwrap_or_default();
            }
            None => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8(bytes).unwrap_or_else(|_| part.to_owned())
}

fn is_name(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    let is_plain =
        matches!((parts.next(), parts.next()), (Some(Component::Normal(part)), None) if part == name);
    is_plain && name.len() <= 255 && !name.contains('\0')
}

fn format_of(archive: Option<&String>, path: &str) -> Result<Option<Format>, SourceError> {
    match archive.map(String::as_str) {
        None | Some("" | "true" | "1" | "t" | "T" | "TRUE" | "True") => Ok(Format::of_path(path)),
        Some("false" | "0" | "f" | "F" | "FALSE" | "False") => Ok(None),
        Some(name) => Format::named(name).map(Some).ok_or_else(|| {
            let why = format!("must be `false` or one of {}", Format::names().join(", "));
            SourceError::Option { option: "archive", why }
        }),
    }
}
