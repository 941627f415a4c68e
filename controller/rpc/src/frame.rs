//! Frames of yamux as they pass, on their way between a socket and the `yamux` crate, which keeps to itself what it thinks of them.
//!
//! ```text
//! version 0 │ kind │ flags, 2 bytes │ stream, 4 bytes │ length, 4 bytes │ of data: as many bytes       all big-endian
//! ```
//!
//! In: bytes both ways. Out: the same bytes, how many came, and why a connection is to end: the peer breaks the protocol, or one
//! side says that it goes. The crate answers a violation with a GoAway and goes on; here that is the end.
//!
//! Facts: `hashicorp/yamux:spec.md` and `const.go`.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::error::Lost;

/// What a peer may send on a stream before it is granted more. Fixed at what every stream begins with: the crate would let it grow, and
/// a Go peer sends as much as is granted in *one* frame, of which the crate takes 1 MiB.
pub(crate) const WINDOW: u32 = 256 * 1024;

const HEADER: usize = 12;

/// The kind of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Data,
    WindowUpdate,
    Ping,
    GoAway,
}

/// A frame without what it carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) kind: Kind,
    pub(crate) flags: u16,
    pub(crate) stream: u32,
    pub(crate) length: u32,
}

impl Frame {
    /// A header, or how the peer breaks the protocol with it.
    fn parse(header: [u8; HEADER]) -> Result<Self, String> {
        let [version, kind, f0, f1, s0, s1, s2, s3, l0, l1, l2, l3] = header;
        let kind = match kind {
            0 => Kind::Data,
            1 => Kind::WindowUpdate,
            2 => Kind::Ping,
            3 => Kind::GoAway,
            4.. => return Err(format!("sends a frame of kind {kind}, which is none of yamux")),
        };
        if version != 0 {
            return Err(format!("speaks version {version} of yamux"));
        }
        let flags = u16::from_be_bytes([f0, f1]);
        let (stream, length) = (u32::from_be_bytes([s0, s1, s2, s3]), u32::from_be_bytes([l0, l1, l2, l3]));
        let frame = Self { kind, flags, stream, length };
        match kind {
            Kind::Data if length > WINDOW => Err(format!("sends {length} bytes at a time, more than it may")),
            Kind::Data | Kind::WindowUpdate if stream == 0 => {
                Err("sends data on stream 0, which is none".to_owned())
            }
            Kind::Data | Kind::WindowUpdate | Kind::Ping | Kind::GoAway => Ok(frame),
        }
    }

    fn payload(self) -> usize {
        match self.kind {
            Kind::Data => usize::try_from(self.length).unwrap_or(usize::MAX),
            Kind::WindowUpdate | Kind::Ping | Kind::GoAway => 0,
        }
    }
}

/// Finds the frames in one direction's bytes, whatever the pieces in which they pass.
#[derive(Debug, Default)]
pub(crate) struct Finder {
    header: [u8; HEADER],
    have: usize,
    /// How many bytes of the last frame are still to pass.
    payload: usize,
}

impl Finder {
    /// Shows `each` the frames whose headers end in these bytes.
    pub(crate) fn look(
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

/// What is known of a connection from what has passed.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    received: AtomicU64,
    end: Mutex<Option<Lost>>,
}

impl Seen {
    /// How many bytes the peer has sent.
    pub(crate) fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Why the connection ends, where that was seen.
    pub(crate) fn end(&self) -> Option<Lost> {
        self.end.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn ends(&self, why: Lost) {
        self.end.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(why);
    }
}

/// A connection whose frames are looked at.
pub(crate) struct Watched<T> {
    io: T,
    inbound: Finder,
    outbound: Finder,
    /// The last frame that came, of which the crate may think ill.
    last: Option<Frame>,
    /// We have told the peer that it breaks the protocol.
    condemned: bool,
    seen: Arc<Seen>,
}

impl<T> Watched<T> {
    pub(crate) fn new(io: T) -> (Self, Arc<Seen>) {
        let seen = Arc::<Seen>::default();
        let (inbound, outbound) = Default::default();
        (Self { io, inbound, outbound, last: None, condemned: false, seen: Arc::clone(&seen) }, seen)
    }

    fn came(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.seen.received.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        let (last, seen) = (&mut self.last, &self.seen);
        let looked = self.inbound.look(bytes, |frame| {
            *last = Some(frame);
            if frame.kind == Kind::GoAway {
                seen.ends(Lost::GoAway(frame.length));
            }
            Ok(())
        });
        looked.map_err(|why| self.violation(why))
    }

    fn violation(&self, why: String) -> io::Error {
        let error = io::Error::new(io::ErrorKind::InvalidData, why.clone());
        self.seen.ends(Lost::Violation(why));
        error
    }

    fn went(&mut self, bytes: &[u8]) {
        let condemned = &mut self.condemned;
        // What we send is well formed.
        let _ = self.outbound.look(bytes, |frame| {
            *condemned |= frame.kind == Kind::GoAway && frame.length != 0;
            Ok(())
        });
    }

    fn why_condemned(&self) -> String {
        match self.last {
            None => "breaks the protocol of yamux".to_owned(),
            Some(Frame { kind, flags, stream, length }) => {
                format!(
                    "breaks the protocol of yamux by {kind:?} with flags {flags:#x}, stream {stream}, length {length}"
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
        ready!(Pin::new(&mut self.io).poll_read(cx, &mut buf))?;
        self.came(buf.filled())?;
        Poll::Ready(Ok(buf.filled().len()))
    }
}

impl<T: AsyncWrite + Unpin> futures_util::io::AsyncWrite for Watched<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.io).poll_write(cx, buf))?;
        self.went(&buf[..written]);
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
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
                // Whatever the pieces.
                for piece in lines.concat().chunks(7) {
                    finder
                        .look(piece, |frame| {
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

    #[test]
    fn nonsense_is_told() {
        let look = |header: [u8; HEADER]| Finder::default().look(&header, |_| Ok(())).unwrap_err();
        assert_eq!(look([1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0]), "speaks version 1 of yamux");
        assert_eq!(look(*b"GET / HTTP/1"), "sends a frame of kind 69, which is none of yamux");
        assert!(look([0, 0, 0, 0, 0, 0, 0, 1, 0, 4, 0, 1]).contains("262145 bytes"));
        assert!(look([0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]).contains("stream 0"));
    }
}
