//! Observes the yamux frames that pass between a socket and the `yamux` crate, which does not expose them.
//!
//! ```text
//! version 0 │ kind │ flags, 2 bytes │ stream, 4 bytes │ length, 4 bytes │ data frames: payload       all big-endian
//! ```
//!
//! In: bytes in both directions. Out: the same bytes, how many arrived, which streams the peer has finished, and why the connection ends:
//! it was cut, the peer violated the protocol, or one side sent GoAway. The crate answers a violation with a GoAway and continues; here the
//! connection ends. All this is recorded before any task that waits for a stream is woken.
//!
//! Facts: `hashicorp/yamux:spec.md` and `const.go`.

use std::{
    collections::HashMap,
    io,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::error::Lost;

/// How much a peer may send on a stream before it is granted more: the initial window of every stream, never enlarged. The crate would
/// let it grow, but a Go peer sends as much as it was granted in *one* frame, and the crate rejects frames above 1 MiB.
pub(crate) const WINDOW: u32 = 256 * 1024;

const HEADER: usize = 12;

/// The flag of the last frame that a side sends on a stream.
const FIN: u16 = 4;

/// The kind of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FrameKind {
    Data,
    WindowUpdate,
    Ping,
    GoAway,
}

/// A frame header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) kind: FrameKind,
    pub(crate) flags: u16,
    pub(crate) stream: u32,
    pub(crate) length: u32,
}

impl Frame {
    /// Parses a header; an error describes how the peer violates the protocol.
    fn parse(header: [u8; HEADER]) -> Result<Self, String> {
        if header.starts_with(b"HTTP/") {
            return Err(
                "speaks HTTP: is this its HTTP port instead of its RPC port (4647 by default)?".to_owned()
            );
        }
        let [version, kind, f0, f1, s0, s1, s2, s3, l0, l1, l2, l3] = header;
        let kind = match kind {
            0 => FrameKind::Data,
            1 => FrameKind::WindowUpdate,
            2 => FrameKind::Ping,
            3 => FrameKind::GoAway,
            4.. => return Err(format!("sends a frame of kind {kind}, which yamux does not have")),
        };
        if version != 0 {
            return Err(format!("uses version {version} of yamux"));
        }
        let flags = u16::from_be_bytes([f0, f1]);
        let (stream, length) = (u32::from_be_bytes([s0, s1, s2, s3]), u32::from_be_bytes([l0, l1, l2, l3]));
        let frame = Self { kind, flags, stream, length };
        match kind {
            FrameKind::Data if length > WINDOW => {
                Err(format!("sends {length} bytes in one frame, more than allowed"))
            }
            FrameKind::Data | FrameKind::WindowUpdate if stream == 0 => {
                Err("sends data on stream 0, which does not exist".to_owned())
            }
            FrameKind::Data | FrameKind::WindowUpdate | FrameKind::Ping | FrameKind::GoAway => Ok(frame),
        }
    }

    fn payload(self) -> usize {
        match self.kind {
            FrameKind::Data => usize::try_from(self.length).unwrap_or(usize::MAX),
            FrameKind::WindowUpdate | FrameKind::Ping | FrameKind::GoAway => 0,
        }
    }
}

/// Finds the frames in the bytes of one direction, however they are split.
#[derive(Debug, Default)]
pub(crate) struct Finder {
    header: [u8; HEADER],
    have: usize,
    /// Bytes of the last frame's payload that have not passed yet.
    payload: usize,
}

impl Finder {
    /// Calls `each` for every frame whose header ends in `bytes`.
    pub(crate) fn inspect_frames(
        &mut self,
        mut bytes: &[u8],
        mut each: impl FnMut(Frame) -> Result<(), String>,
    ) -> Result<(), String> {
        while !bytes.is_empty() {
            let skipped = self.payload.min(bytes.len());
            self.payload -= skipped;
            bytes = &bytes[skipped..];
            let taken = bytes.len().min(HEADER - self.have);
            self.header[self.have..self.have + taken].copy_from_slice(&bytes[..taken]);
            self.have += taken;
            bytes = &bytes[taken..];
            if self.have == HEADER {
                self.have = 0;
                let frame = Frame::parse(self.header)?;
                self.payload = frame.payload();
                each(frame)?;
            }
        }
        Ok(())
    }
}

/// What is known about a connection from its traffic.
#[derive(Debug, Default)]
pub(crate) struct ConnectionState {
    received: AtomicU64,
    end: Mutex<Option<Lost>>,
    streams: Mutex<Streams>,
}

/// Which streams the peer has finished. The crate reports a reset, or a lost connection, as a regular end.
#[derive(Debug, Default)]
struct Streams {
    /// Our open streams, and whether the peer has finished each.
    live: HashMap<u32, bool>,
    /// The last finished stream that is not in `live`: one frame can open and finish a stream, and is seen here before the stream exists.
    unknown: Option<u32>,
}

impl ConnectionState {
    /// Number of bytes received.
    pub(crate) fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Why the connection ends, if known.
    pub(crate) fn end(&self) -> Option<Lost> {
        self.end.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Records why the connection ends, unless a reason is already known.
    pub(crate) fn ends(&self, why: Lost) {
        self.end.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(why);
    }

    /// Starts tracking a stream, until [`ConnectionState::remove_stream`].
    pub(crate) fn heed(&self, stream: u32) {
        let mut streams = self.streams();
        let is_finished = streams.unknown == Some(stream);
        streams.live.insert(stream, is_finished);
    }

    pub(crate) fn remove_stream(&self, stream: u32) {
        self.streams().live.remove(&stream);
    }

    /// Whether the peer has finished a tracked stream.
    pub(crate) fn is_finished(&self, stream: u32) -> bool {
        self.streams().live.get(&stream).copied().unwrap_or_default()
    }

    fn finished(&self, stream: u32) {
        let mut streams = self.streams();
        match streams.live.get_mut(&stream) {
            Some(is_finished) => *is_finished = true,
            None => streams.unknown = Some(stream),
        }
    }

    fn streams(&self) -> MutexGuard<'_, Streams> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection whose frames are observed.
pub(crate) struct Watched<T> {
    io: T,
    inbound: Finder,
    outbound: Finder,
    /// The last frame received: if the crate reports a violation, this frame caused it.
    last: Option<Frame>,
    /// The stream that the current frame finishes, once its payload has passed.
    finishing: Option<u32>,
    /// The crate has sent the peer a GoAway for a violation.
    condemned: bool,
    seen: Arc<ConnectionState>,
}

impl<T> Watched<T> {
    pub(crate) fn new(io: T) -> (Self, Arc<ConnectionState>) {
        let seen = Arc::<ConnectionState>::default();
        let (inbound, outbound) = Default::default();
        let known = Arc::clone(&seen);
        (Self { io, inbound, outbound, last: None, finishing: None, condemned: false, seen }, known)
    }

    fn came(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.seen.received.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        let (last, finishing, seen) = (&mut self.last, &mut self.finishing, &self.seen);
        let looked = self.inbound.inspect_frames(bytes, |frame| {
            *last = Some(frame);
            // The previous frame has passed completely.
            finishing.take().into_iter().for_each(|stream| seen.finished(stream));
            match frame.kind {
                FrameKind::GoAway => seen.ends(Lost::GoAway(frame.length)),
                FrameKind::Data | FrameKind::WindowUpdate => {
                    *finishing = (frame.flags & FIN != 0).then_some(frame.stream);
                }
                FrameKind::Ping => {}
            }
            Ok(())
        });
        if self.inbound.payload == 0 {
            self.finishing.take().into_iter().for_each(|stream| self.seen.finished(stream));
        }
        looked.map_err(|why| self.violation(why))
    }

    /// Records the error as the end of the connection, and returns it.
    fn cut(&self, error: io::Error) -> io::Error {
        let (kind, why) = (error.kind(), Lost::from(error));
        self.seen.ends(why.clone());
        io::Error::new(kind, why)
    }

    fn violation(&self, why: String) -> io::Error {
        let error = io::Error::new(io::ErrorKind::InvalidData, why.clone());
        self.seen.ends(Lost::Violation(why));
        error
    }

    fn went(&mut self, bytes: &[u8]) {
        let condemned = &mut self.condemned;
        // Frames that we send are well-formed.
        let _ = self.outbound.inspect_frames(bytes, |frame| {
            *condemned |= frame.kind == FrameKind::GoAway && frame.length != 0;
            Ok(())
        });
    }

    fn why_condemned(&self) -> String {
        match self.last {
            None => "violates the yamux protocol".to_owned(),
            Some(Frame { kind, flags, stream, length }) => {
                format!(
                    "violates the yamux protocol by {kind:?} with flags {flags:#x}, stream {stream}, length {length}"
                )
            }
        }
    }
}

impl<T: AsyncRead + Unpin> futures_util::io::AsyncRead for Watched<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        if self.condemned {
            return Poll::Ready(Err(self.violation(self.why_condemned())));
        }
        let mut buf = ReadBuf::new(buf);
        ready!(Pin::new(&mut self.io).poll_read(cx, &mut buf)).map_err(|error| self.cut(error))?;
        if buf.filled().is_empty() && buf.remaining() > 0 {
            self.seen.ends(Lost::Ended);
        }
        self.came(buf.filled())?;
        Poll::Ready(Ok(buf.filled().len()))
    }
}

impl<T: AsyncWrite + Unpin> futures_util::io::AsyncWrite for Watched<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.io).poll_write(cx, buf)).map_err(|error| self.cut(error))?;
        self.went(&buf[..written]);
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx).map_err(|error| self.cut(error))
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recordings;

    #[test]
    fn recorded_connections_are_frames_from_end_to_end() {
        for (file, passed) in recordings::connections() {
            for way in [true, false] {
                let mut lines = passed.iter().filter(|line| line.way == way).map(|line| &line.bytes[..]);
                if way {
                    assert_eq!(lines.next(), Some(&[6][..]), "{file} begins with the byte for yamux");
                }
                let lines: Vec<_> = lines.collect();
                let (mut finder, mut found) = (Finder::default(), Vec::new());
                // Split at arbitrary places.
                for piece in lines.concat().chunks(7) {
                    finder
                        .inspect_frames(piece, |frame| {
                            found.push(frame);
                            Ok(())
                        })
                        .unwrap();
                }
                assert_eq!(found.len(), lines.len(), "{file}");
                for (frame, line) in found.iter().zip(lines) {
                    assert_eq!(line.len(), HEADER + frame.payload(), "{file}");
                }
            }
        }
    }

    /// A task that is woken by the end of a connection can already read why it ended.
    #[tokio::test]
    async fn end_is_stored_before_it_wakes() {
        let (ours, peer) = tokio::io::duplex(64);
        let (mut ended, seen) = Watched::new(ours);
        drop(peer);
        let mut byte = [0];
        assert!(matches!(futures_util::AsyncReadExt::read(&mut ended, &mut byte).await, Ok(0)));
        assert!(matches!(seen.end(), Some(Lost::Ended)));
        let cut =
            futures_util::stream::iter([Err::<&[u8], _>(io::Error::from(io::ErrorKind::ConnectionReset))]);
        let (mut read, seen) = Watched::new(tokio_util::io::StreamReader::new(cut));
        assert!(futures_util::AsyncReadExt::read(&mut read, &mut byte).await.is_err());
        assert!(
            matches!(seen.end(), Some(Lost::Failed(why)) if why.kind() == io::ErrorKind::ConnectionReset)
        );
        let (ours, peer) = tokio::io::duplex(64);
        let (mut written, seen) = Watched::new(ours);
        drop(peer);
        assert!(futures_util::AsyncWriteExt::write(&mut written, &byte).await.is_err());
        assert!(matches!(seen.end(), Some(Lost::Failed(_))));
    }

    #[test]
    fn invalid_frame_is_reported() {
        let look = |header: [u8; HEADER]| Finder::default().inspect_frames(&header, |_| Ok(())).unwrap_err();
        assert_eq!(look([1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0]), "uses version 1 of yamux");
        assert_eq!(look(*b"GET / HTTP/1"), "sends a frame of kind 69, which yamux does not have");
        assert!(look([0, 0, 0, 0, 0, 0, 0, 1, 0, 4, 0, 1]).contains("262145 bytes"));
        assert!(look([0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]).contains("stream 0"));
    }
}
