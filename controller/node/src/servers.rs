//! Finds the servers: from the config, by DNS, or in Consul.
//!
//! In: the config, Consul, and the node's contact. Out: addresses for the pool, now and whenever the session asks for others. Addresses
//! reported by servers themselves reach the pool elsewhere.

pub mod srv;

use std::{io, sync::Arc, time::Duration};

use herdlet_base::ownership;
use herdlet_config::{Cluster, RpcTls};
use herdlet_nomad::session::Contact;
use herdlet_rpc::{
    Service,
    address::Address,
    connect::{Dial, Network},
    pool::Pool,
    tls::{ClientTls, Pem, TlsError, Verify},
};
use herdlet_services::catalog::ConsulReader;
use tokio::{
    net::lookup_host,
    sync::watch,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::consul;

/// Time limit for resolving a name.
const RESOLVE_MAX: Duration = Duration::from_secs(10);
/// Minimum time between two searches.
const PAUSE: Duration = Duration::from_secs(5);
/// Maximum number of addresses from all names together.
const ADDRESSES_MAX: usize = 256;

/// No server was found after all tries. Reads after "failed to".
#[derive(Debug, thiserror::Error)]
#[error("find a server of the cluster: none was found in {tries} tries (retry_max)")]
pub struct NotFound {
    tries: u32,
}

/// How to connect to servers: with TLS if configured.
///
/// # Errors
/// If certificates cannot be used.
pub fn network(cluster: &Cluster, region: &str) -> Result<Network, TlsError> {
    Ok(Network::new(cluster.tls.as_ref().map(|files| tls(files, region)).transpose()?))
}

/// TLS with these files.
///
/// # Errors
/// If they cannot be used.
pub fn tls(files: &RpcTls, region: &str) -> Result<ClientTls, TlsError> {
    for path in [&files.authority, &files.certificate, &files.key] {
        let exposed =
            |error| TlsError::Read { path: path.display().to_string(), source: io::Error::other(error) };
        ownership::check_if_there(path).map_err(exposed)?;
    }
    let pem = Pem::read(&files.authority, &files.certificate, &files.key)?;
    let verify = if files.verify_server_hostname { Verify::ServerOfRegion } else { Verify::AuthorityOnly };
    ClientTls::new(&pem, verify, region)
}

/// The servers from the config; if it names none, those registered in Consul. A name gives all its addresses; a name that cannot be
/// resolved now is kept as a name. Bounded in time.
pub async fn find(cluster: &Cluster, consul: Option<&ConsulReader>) -> Vec<Address> {
    let mut found: Vec<Address> = Vec::new();
    let named = cluster.servers.iter().filter_map(|text| text.parse::<Address>().ok());
    for addresses in futures_util::future::join_all(named.map(resolve)).await {
        for address in addresses {
            if found.len() < ADDRESSES_MAX && !found.contains(&address) {
                found.push(address);
            }
        }
    }
    if let Some(consul) = consul.filter(|_| cluster.servers.is_empty() && cluster.client_auto_join) {
        match timeout(RESOLVE_MAX, consul::servers(consul)).await {
            Ok(Ok(addresses)) => found = addresses,
            Ok(Err(why)) => tracing::warn!(why, "failed to look up servers in Consul"),
            Err(_) => tracing::warn!("looking up servers in Consul timed out"),
        }
    }
    found
}

/// Finds servers at the start, and again whenever the session asks for others, until it is cancelled. Known servers are kept: the next
/// response of a server gives the valid list.
///
/// # Errors
/// If none was found in the configured number of tries.
pub async fn follow<S: Service, D: Dial>(
    pool: Arc<Pool<S, D>>,
    mut contact: watch::Receiver<Contact>,
    cluster: Cluster,
    consul: Option<Arc<ConsulReader>>,
    cancel: CancellationToken,
) -> Result<(), NotFound> {
    let work = async {
        first(&pool, &cluster, consul.as_deref()).await?;
        let mut asked = contact.borrow().wants_servers;
        loop {
            if contact.wait_for(|contact| contact.wants_servers > asked).await.is_err() {
                return Ok(());
            }
            asked = contact.borrow().wants_servers;
            let found = find(&cluster, consul.as_deref()).await;
            let known = pool.servers();
            if found.iter().any(|address| !known.contains(address)) {
                let new = found.into_iter().filter(|address| !known.contains(address));
                pool.set_servers(known.iter().cloned().chain(new).collect());
            }
            sleep(PAUSE).await;
        }
    };
    tokio::select! {
        () = cancel.cancelled() => Ok(()),
        done = work => done,
    }
}

/// Repeats the search until there are servers.
async fn first<S: Service, D: Dial>(
    pool: &Pool<S, D>,
    cluster: &Cluster,
    consul: Option<&ConsulReader>,
) -> Result<(), NotFound> {
    let mut tries = 0;
    loop {
        let found = find(cluster, consul).await;
        if !found.is_empty() {
            pool.set_servers(found);
        }
        if !pool.servers().is_empty() {
            return Ok(());
        }
        tries += 1;
        if cluster.retry_max > 0 && tries >= cluster.retry_max {
            return Err(NotFound { tries });
        }
        tracing::warn!(tries, "no server of the cluster is known yet");
        sleep(cluster.retry_interval.to_std().max(Duration::from_secs(1))).await;
    }
}

/// All addresses of a name.
async fn resolve(address: Address) -> Vec<Address> {
    let (host, port) = address.parts();
    if host.parse::<std::net::IpAddr>().is_ok() {
        return vec![address];
    }
    // A service name such as `_nomad._tcp.example.org`.
    let targets = if host.starts_with('_') {
        match timeout(RESOLVE_MAX, srv::look_up(host))
            .await
            .unwrap_or_else(|_| Err("no answer in time".to_owned()))
        {
            Ok(targets) => targets,
            Err(why) => {
                tracing::warn!(name = host, why, "failed to look up the servers");
                return Vec::new();
            }
        }
    } else {
        vec![(host.to_owned(), port)]
    };
    let mut found = Vec::new();
    for (host, port) in targets {
        match timeout(RESOLVE_MAX, lookup_host((host.as_str(), port))).await {
            Ok(Ok(addresses)) => {
                found.extend(addresses.filter_map(|address| address.to_string().parse::<Address>().ok()));
            }
            // Keep the name; dialling resolves it again.
            Ok(Err(_)) | Err(_) => found.extend(format!("{host}:{port}").parse::<Address>().ok()),
        }
    }
    found
}

#[cfg(test)]
mod tests;
