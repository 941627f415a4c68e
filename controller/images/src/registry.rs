//! Fetches images from registries, by the OCI distribution specification.
//!
//! In: the name of an image, the hosts that may have it, files for its layers. Out: the documents of the image, its layers in the
//! files, or why not. Hosts are strangers: every answer is bounded in size, time and number, content counts only with the digest
//! that was asked for, and credentials go to their own host and to the token server that it names, over TLS if the host has it.
//!
//! - [`host`]: requests to one host: redirects, errors, pauses. [`access`]: who asks: tokens and passwords. [`challenge`]: what a
//!   host demands.
//! - [`download`]: contents into files, resumed where they ended.

mod access;
mod challenge;
mod download;
mod error;
mod host;

use std::{fs::File, net::IpAddr, sync::Arc, time::Duration};

use reqwest::Url;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

pub use self::error::RegistryError;
use self::{
    download::Partial,
    host::{Host, Query},
};
use crate::{
    config::ImageConfig,
    credentials::Credentials,
    digest::Digest,
    document::{DOCUMENT_BYTES_MAX, Descriptor, Document, DocumentError, Manifest},
    platform::Platforms,
    progress::Progress,
    reference::{DOCKER_HUB, Reference},
};

/// The host of Docker's registry.
const HUB_HOST: &str = "registry-1.docker.io";
/// How many layers are fetched at once, as Docker does.
pub(crate) const LAYERS_AT_ONCE: usize = 3;
/// How deep indexes may be nested. Builders nest none; the specification allows it.
const INDEX_DEPTH_MAX: usize = 3;

/// A host that serves images.
#[derive(Debug, Clone)]
pub struct Endpoint {
    /// Its scheme, name and port.
    pub url: Url,
    pub credentials: Option<Credentials>,
    /// Certificate authorities in PEM that are trusted besides the system's.
    pub authorities: Option<Vec<u8>>,
}

/// How a registry is reached.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Transport {
    /// With TLS, and a certificate that is verified. Without it only on this machine.
    #[default]
    Secure,
    /// Also without TLS.
    Any,
}

/// How long and how often to try.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// Tries without progress of each request, the first one included.
    pub tries: u32,
    /// The pause after the first failed try; it doubles with each further one.
    pub first_pause: Duration,
    /// The longest pause. A host that demands a longer one has failed.
    pub pause_max: Duration,
    /// How long a host may send nothing.
    pub silence_max: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            tries: 4,
            first_pause: Duration::from_secs(1),
            pause_max: Duration::from_secs(60),
            silence_max: Duration::from_secs(60),
        }
    }
}

/// An image in a registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteImage {
    /// What the image's name stands for: of the index, if there is one.
    pub digest: Digest,
    pub manifest: Manifest,
    pub config: ImageConfig,
    /// The config as it was sent: its digest is that in the manifest.
    pub config_bytes: Vec<u8>,
}

/// A repository, for one pull.
#[derive(Debug)]
pub struct Repository {
    image: Reference,
    hosts: Vec<Host>,
    /// The last host that can't be used.
    unusable: Option<UnusableHost>,
}

/// A host without a client, for instance with TLS on a machine without certificates.
#[derive(Debug)]
struct UnusableHost {
    name: Arc<str>,
    why: String,
}

/// A document as its host sent it.
struct ReceivedDocument {
    digest: Digest,
    document: Document,
}

impl Endpoint {
    /// The hosts of a registry, the first one first. One on this machine may always be without TLS, as with Docker.
    ///
    /// # Errors
    /// If the name is no host.
    pub fn of_registry(
        registry: &str,
        credentials: Option<&Credentials>,
        transport: Transport,
    ) -> Result<Vec<Self>, RegistryError> {
        let host = if registry == DOCKER_HUB { HUB_HOST } else { registry };
        let of = |scheme: &str| -> Result<Self, RegistryError> {
            let url = Url::parse(&format!("{scheme}://{host}/"));
            let url = url.map_err(|_| RegistryError::Endpoint { url: host.to_owned() })?;
            Ok(Self { url, credentials: credentials.cloned(), authorities: None })
        };
        let secure = of("https")?;
        match transport == Transport::Any || is_of_machine(&secure.url) {
            true => Ok(vec![secure, of("http")?]),
            false => Ok(vec![secure]),
        }
    }
}

fn is_of_machine(url: &Url) -> bool {
    let name = url.host_str().unwrap_or_default();
    let address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    name == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

impl Repository {
    /// The repository of an image on these hosts: mirrors first, then the registry itself.
    ///
    /// # Errors
    /// If no host can be used.
    pub fn new(image: &Reference, endpoints: Vec<Endpoint>, pace: Pace) -> Result<Self, RegistryError> {
        let (mut hosts, mut unusable) = (Vec::new(), None);
        for endpoint in endpoints {
            match Host::new(endpoint, &image.repository, pace) {
                Ok(host) => hosts.push(host),
                // Another one may have the image.
                Err(RegistryError::Client { host, why }) => {
                    tracing::warn!(host, why, "a host of images can't be used");
                    unusable = Some(UnusableHost { name: host.into(), why });
                }
                Err(error) => return Err(error),
            }
        }
        if let Some(host) = unusable.as_ref().filter(|_| hosts.is_empty()) {
            return Err(host.error());
        }
        let names: Vec<Arc<str>> = hosts.iter().map(|host| Arc::clone(host.name())).collect();
        for (host, next) in hosts.iter_mut().zip(names.iter().skip(1)) {
            host.has_next = true;
            if host.name() != next {
                // The next host is the second try.
                host.pace.tries = 1;
            }
        }
        Ok(Self { image: image.clone(), hosts, unusable })
    }

    /// Finds the image for a machine.
    ///
    /// # Errors
    /// [`RegistryError`].
    pub async fn resolve(&self, platforms: &Platforms) -> Result<RemoteImage, RegistryError> {
        let ReceivedDocument { digest, mut document } = self.document(self.image.version()).await?;
        for _ in 0..=INDEX_DEPTH_MAX {
            match document {
                Document::Index(index) => {
                    let wanted = index.choose(platforms)?.descriptor.digest.clone();
                    document = self.document(wanted.as_str()).await?.document;
                }
                Document::Manifest(manifest) => {
                    let bytes = self.small_content(&manifest.config).await?;
                    let config = ImageConfig::read(&bytes, manifest.layers.len())?;
                    return Ok(RemoteImage { digest, manifest, config, config_bytes: bytes });
                }
            }
        }
        Err(DocumentError::Ambiguous { why: "it has indexes in indexes in indexes" }.into())
    }

    /// Fetches a content into its file. What the file already has is kept if it is a part of the content. After a failure the file
    /// has what has been fetched, for the next try; after a full disk it is empty. Once this has returned, also after `cancelled`,
    /// nothing is written any more, so it must not be dropped before. The progress gets what is done; the caller sets the total.
    ///
    /// # Errors
    /// [`RegistryError`].
    pub async fn fetch(
        &self,
        content: Descriptor,
        file: File,
        progress: &watch::Sender<Progress>,
        cancelled: &CancellationToken,
    ) -> Result<(), RegistryError> {
        let mut partial = Partial::open(file, content, progress.clone(), cancelled.clone()).await?;
        let mut failures = Failures::begin(self.unusable.as_ref());
        for host in self.hosts() {
            if !failures.allow(host) {
                continue;
            }
            let (kept, fetched) = download::from_host(host, partial).await?;
            partial = kept;
            match fetched {
                Ok(()) => return Ok(()),
                Err(RegistryError::Cancelled) => return Err(RegistryError::Cancelled),
                Err(error) => failures.add(host, error),
            }
        }
        Err(failures.into_error())
    }

    async fn document(&self, version: &str) -> Result<ReceivedDocument, RegistryError> {
        let read = |host: &Host, answer: Answer| document_of(host, version, answer);
        self.first(&Query::Document { version }, DOCUMENT_BYTES_MAX, read).await
    }

    async fn small_content(&self, wanted: &Descriptor) -> Result<Vec<u8>, RegistryError> {
        let query = Query::Blob { digest: &wanted.digest, from: 0 };
        let read = |host: &Host, (bytes, _): Answer| match wanted.digest.is_of(&bytes) {
            true => Ok(bytes),
            false => Err(host.corrupt(&wanted.digest)),
        };
        self.first(&query, wanted.size, read).await
    }

    /// What the first host gives that can.
    async fn first<T>(
        &self,
        query: &Query<'_>,
        bytes_max: u64,
        read: impl Fn(&Host, Answer) -> Result<T, RegistryError>,
    ) -> Result<T, RegistryError> {
        let mut failures = Failures::begin(self.unusable.as_ref());
        for host in self.hosts() {
            if !failures.allow(host) {
                continue;
            }
            match host.bytes(query, bytes_max).await.and_then(|answer| read(host, answer)) {
                Ok(got) => return Ok(got),
                Err(error) => failures.add(host, error),
            }
        }
        Err(failures.into_error())
    }

    /// The hosts that are worth a try; the last one always is.
    fn hosts(&self) -> impl Iterator<Item = &Host> {
        let last = self.hosts.len().saturating_sub(1);
        let worth = move |(index, host): &(usize, &Host)| *index == last || !host.is_down();
        self.hosts.iter().enumerate().filter(worth).map(|(_, host)| host)
    }
}

/// Why the hosts before the next one did not give what was asked for.
struct Failures(Option<Failure>);

struct Failure {
    host: Arc<str>,
    error: RegistryError,
    is_unreachable: bool,
}

impl UnusableHost {
    fn error(&self) -> RegistryError {
        RegistryError::Client { host: (*self.name).to_owned(), why: self.why.clone() }
    }
}

impl Failures {
    /// Before the first request.
    fn begin(unusable: Option<&UnusableHost>) -> Self {
        Self(unusable.map(|unusable| Failure {
            host: Arc::clone(&unusable.name),
            error: unusable.error(),
            is_unreachable: true,
        }))
    }

    /// Whether a host may have another answer. The same one without TLS only has if there is none with TLS.
    fn allow(&self, host: &Host) -> bool {
        self.0.as_ref().is_none_or(|before| before.host != *host.name() || before.is_unreachable)
    }

    fn add(&mut self, host: &Host, error: RegistryError) {
        let is_unreachable = host.is_unreachable_by(&error);
        if is_unreachable {
            host.set_down();
        }
        match &self.0 {
            // A second failure to connect, without TLS, would hide the reason of the first, and so would the answer of a server
            // that expects TLS.
            Some(before) if before.host == *host.name() && (is_unreachable || error.is_protocol()) => {}
            Some(_) | None => self.0 = Some(Failure { host: Arc::clone(host.name()), error, is_unreachable }),
        }
    }

    fn into_error(self) -> RegistryError {
        self.0.map_or(RegistryError::NoHost, |failure| failure.error)
    }
}

/// What a host sends, and the media type that it declares.
type Answer = (Vec<u8>, Option<String>);

fn document_of(
    host: &Host,
    version: &str,
    (bytes, media_type): Answer,
) -> Result<ReceivedDocument, RegistryError> {
    let digest = match Digest::parse(version) {
        Ok(wanted) if wanted.is_of(&bytes) => wanted,
        Ok(wanted) => return Err(host.corrupt(&wanted)),
        Err(_tag) => Digest::of_bytes(&bytes),
    };
    Ok(ReceivedDocument { digest, document: Document::read(&bytes, media_type.as_deref())? })
}

#[cfg(test)]
pub(crate) mod tests;
