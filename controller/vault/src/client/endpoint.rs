//! HTTP clients for single servers.
//!
//! In: the config, the URL of a server. Out: a client that connects there and nowhere else: it follows no redirect and uses
//! no proxy.

use std::{path::Path, time::Duration};

use herdlet_base::http_client::{self, Tls};
use reqwest::{
    Client, Method, RequestBuilder, Url,
    dns::{Addrs, Name, Resolve, Resolving},
    header::{HOST, HeaderValue},
    redirect::Policy,
};

use crate::{
    config::{Address, VaultConfig},
    path::VaultPath,
};

/// A server that does not accept a connection within this time is down.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Connections that wait for further requests. More are opened and closed.
const IDLE_MAX: usize = 8;

/// A server with its client.
pub(super) struct Endpoint {
    client: Client,
    base: Url,
    /// Set if the URL has the certificate's name instead of the address.
    host: Option<HeaderValue>,
    /// The address in messages, and for comparison with redirects.
    pub(super) origin: String,
}

impl Endpoint {
    pub(super) fn configured(config: &VaultConfig) -> reqwest::Result<Self> {
        match &config.address {
            Address::Http(url) => Self::of_url(config, url),
            Address::Unix(path) => Self::of_socket(path),
        }
    }

    pub(super) fn of_url(config: &VaultConfig, url: &Url) -> reqwest::Result<Self> {
        let tls = config.tls(url);
        let mut builder = bounded(tls);
        let mut base = url.clone();
        let mut host = None;
        if tls != Tls::None {
            builder = config.credentials.give(builder)?;
            if let Some(name) = &config.server_name {
                builder = builder.dns_resolver(FixedHost(host_of(url)));
                host = HeaderValue::from_str(url.authority()).ok();
                // It is a valid host: the config has checked it.
                let _ = base.set_host(Some(name));
            }
        }
        let origin = url.origin().ascii_serialization();
        Ok(Self { client: builder.build()?, base, host, origin })
    }

    fn of_socket(path: &Path) -> reqwest::Result<Self> {
        let client = bounded(Tls::None).unix_socket(path).build()?;
        let origin = format!("unix://{}", path.display());
        Ok(Self { client, base: localhost(), host: None, origin })
    }

    pub(super) fn request(&self, method: Method, path: &VaultPath) -> RequestBuilder {
        let request = self.client.request(method, path.url(&self.base));
        match &self.host {
            Some(host) => request.header(HOST, host),
            None => request,
        }
    }

    pub(super) fn is_tls(&self) -> bool {
        self.base.scheme() == "https"
    }

    pub(super) fn is_socket(&self) -> bool {
        self.origin.starts_with("unix://")
    }
}

fn bounded(tls: Tls) -> reqwest::ClientBuilder {
    http_client::builder(tls)
        .connect_timeout(CONNECT_TIMEOUT)
        .pool_max_idle_per_host(IDLE_MAX)
        .redirect(Policy::none())
}

#[expect(clippy::expect_used, reason = "the text is constant")]
fn localhost() -> Url {
    Url::parse("http://localhost/").expect("a valid URL")
}

/// The host without the brackets of IPv6 addresses.
fn host_of(url: &Url) -> String {
    url.host_str().unwrap_or_default().trim_matches(['[', ']']).to_owned()
}

/// Resolves every name to the addresses of one host. The port is the URL's.
struct FixedHost(String);

impl Resolve for FixedHost {
    fn resolve(&self, _: Name) -> Resolving {
        let host = self.0.clone();
        Box::pin(async move {
            let addresses: Vec<_> = tokio::net::lookup_host((host, 0)).await?.collect();
            Ok(Box::new(addresses.into_iter()) as Addrs)
        })
    }
}
