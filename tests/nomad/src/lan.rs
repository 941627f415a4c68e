//! How nodes reach the servers: in memory, for time that doesn't pass, or over loopback.

use std::{io, sync::Arc};

use herdlet_rpc::{
    address::Address,
    connect::{Dial, DialError, Purpose, accept},
    mux::Io,
};
use tokio::{io::AsyncWriteExt as _, net::TcpListener, task::AbortHandle};

use crate::Cluster;

/// Bytes that a connection in memory holds each way.
const BUFFER: usize = 16 * 1024;

/// The network of a cluster, in memory. Servers are called `s0:4647`, `s1:4647`, …; other names are unknown.
#[derive(Debug, Clone)]
pub struct Lan(Cluster);

impl Lan {
    /// The network of these servers.
    #[must_use]
    pub fn new(cluster: &Cluster) -> Self {
        Self(cluster.clone())
    }
}

impl Dial for Lan {
    async fn dial(&self, address: &Address, purpose: Purpose) -> Result<Box<dyn Io>, DialError> {
        let refused =
            |kind: io::ErrorKind| DialError::Connect { address: address.clone(), source: kind.into() };
        let number = address.parts().0.strip_prefix('s').and_then(|number| number.parse::<usize>().ok());
        let number = number.filter(|&number| number < self.0.0.settings.servers);
        let number = number.ok_or_else(|| refused(io::ErrorKind::HostUnreachable))?;
        if self.0.0.down.borrow()[number] {
            return Err(refused(io::ErrorKind::ConnectionRefused));
        }
        let (mut ours, theirs) = tokio::io::duplex(BUFFER);
        let first = match purpose {
            Purpose::Streams => 6,
            Purpose::OneStream => 5,
        };
        ours.write_u8(first).await.map_err(|error| refused(error.kind()))?;
        let server = self.0.server(number);
        tokio::spawn(async move { accept(theirs, None, server, "a node".to_owned()).await });
        Ok(Box::new(ours))
    }
}

/// A server that listens on loopback, until this is dropped. Connections that it has live on.
#[derive(Debug)]
pub struct Listener {
    /// Where.
    pub address: String,
    task: AbortHandle,
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Cluster {
    /// Lets all servers listen on loopback, and tells nodes of these addresses.
    ///
    /// # Errors
    /// When the kernel does not do it.
    pub async fn listen(&self) -> io::Result<Vec<Listener>> {
        let mut listeners = Vec::new();
        for number in 0..self.0.settings.servers {
            listeners.push(self.open(number, 0).await?);
        }
        self.set_addresses(listeners.iter().map(|listener| listener.address.clone()).collect());
        Ok(listeners)
    }

    /// Lets the first server listen on this port of loopback, and tells nodes so.
    ///
    /// # Errors
    /// When the kernel does not do it.
    pub async fn listen_at(&self, port: u16) -> io::Result<Listener> {
        let listener = self.open(0, port).await?;
        self.set_addresses(vec![listener.address.clone()]);
        Ok(listener)
    }

    async fn open(&self, number: usize, port: u16) -> io::Result<Listener> {
        let listener = TcpListener::bind(("127.0.0.1", port)).await?;
        let address = listener.local_addr()?.to_string();
        let server = self.server(number);
        let task = tokio::spawn(async move {
            while let Ok((tcp, from)) = listener.accept().await {
                let _ = tcp.set_nodelay(true);
                tokio::spawn(accept(tcp, None, Arc::clone(&server), from.to_string()));
            }
        });
        Ok(Listener { address, task: task.abort_handle() })
    }
}
