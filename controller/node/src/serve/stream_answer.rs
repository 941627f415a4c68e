//! Sends data in pieces over a stream.

use std::future::Future;

use herdlet_api::alloc_ops::stream::{Gone, PIECES_LEN, Pieces};
use herdlet_rpc::{
    codec::Limits,
    error::MessageError,
    framed::{Framed, StreamFrame},
    mux::Io,
};
use tokio::sync::mpsc;

use super::{NodeService, failure::StreamEnd};

/// A stream with a server.
pub(super) type ToServer = Framed<Box<dyn Io>>;

impl NodeService {
    /// Sends what `produce` writes, at the peer's pace, until the data ends, the peer ends the stream, or the agent shuts down.
    pub(super) async fn send_stream<F>(
        &self,
        stream: &mut ToServer,
        produce: impl FnOnce(Pieces) -> F,
    ) -> Result<(), StreamEnd>
    where
        F: Future<Output = Result<(), Gone>>,
    {
        let (pieces, mut written) = mpsc::channel(PIECES_LEN);
        let producing = produce(pieces);
        let (reader, mut writer) = stream.halves();
        let writing = async {
            while let Some(payload) = written.recv().await {
                writer.send(&StreamFrame { error: None, payload }).await?;
            }
            Ok::<_, MessageError>(())
        };
        let hangs_up = async { while let Ok(Some(_)) = reader.next(Limits::FRAME).await {} };
        tokio::select! {
            // If the peer has gone, sending the next piece fails.
            (_, written) = async { tokio::join!(producing, writing) } => Ok(written?),
            () = hangs_up => Ok(()),
            () = self.parts.closing.cancelled() => Ok(()),
        }
    }
}
