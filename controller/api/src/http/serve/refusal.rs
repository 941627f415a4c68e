//! Connections that are not served, and what is said to them.

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

/// Why a connection is not served.
#[derive(Debug, Clone, Copy)]
pub(super) struct Refusal {
    status: &'static str,
    why: &'static str,
}

/// Another user on the unix socket.
pub(super) const FORBIDDEN: Refusal = Refusal {
    status: "403 Forbidden",
    why: "Permission denied: this socket is for the agent's user and root",
};
/// The listener has as many connections as it may.
pub(super) const FULL: Refusal = Refusal {
    status: "503 Service Unavailable",
    why: "there are as many connections to this agent as it allows; try again later",
};
/// The peer has.
pub(super) const PEER_FULL: Refusal = Refusal {
    status: "429 Too Many Requests",
    why: "there are as many connections from this address as the agent allows (http.max_conns_per_client in its config)",
};

impl Refusal {
    fn text(&self) -> String {
        let Self { status, why } = self;
        let length = why.len();
        format!(
            "HTTP/1.1 {status}\r\ncontent-type: text/plain\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{why}"
        )
    }

    /// Says why not, as far as the peer's buffer takes it, and hangs up.
    pub(super) async fn tell<S>(self, mut stream: S) -> std::io::Result<()>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        // A connection closed with something unread is reset, and the peer never sees why.
        let _ = stream.read(&mut [0; 4_096]).await?;
        stream.write_all(self.text().as_bytes()).await?;
        stream.shutdown().await
    }
}
