//! Connections that are refused, and their answers.

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

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
/// The listener has reached its limit of connections.
pub(super) const FULL: Refusal = Refusal {
    status: "503 Service Unavailable",
    why: "the agent has reached its limit of connections; try again later",
};
/// The peer has reached its limit.
pub(super) const PEER_FULL: Refusal = Refusal {
    status: "429 Too Many Requests",
    why: "this address has reached the agent's limit of connections (http.max_conns_per_client in its config)",
};

impl Refusal {
    fn text(&self) -> String {
        let Self { status, why } = self;
        let length = why.len();
        format!(
            "HTTP/1.1 {status}\r\ncontent-type: text/plain\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{why}"
        )
    }

    /// Sends the refusal, as far as the peer's buffer takes it, and closes the connection.
    pub(super) async fn send<S>(self, mut stream: S) -> std::io::Result<()>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        // A connection closed with unread data is reset, and the peer would not see the answer.
        let _ = stream.read(&mut [0; 4_096]).await?;
        stream.write_all(self.text().as_bytes()).await?;
        stream.shutdown().await
    }
}
