//! Lines of an engine's log file.
//!
//! In: bytes of a file in Docker's `json-file` format (one JSON object per line) or Podman's `k8s-file` format (`TIME STREAM F|P TEXT`).
//! Out: what a container wrote, by stream. An unfinished last line is left for later.

use serde::Deserialize;

/// A stream of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stream {
    Stdout,
    Stderr,
}

/// What a container wrote at once.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) stream: Stream,
    pub(super) bytes: Vec<u8>,
}

/// Parses one line of a file, without its end. `None` if it is in neither format.
pub(super) fn piece(line: &[u8]) -> Option<Piece> {
    if line.first() == Some(&b'{') { of_json(line) } else { of_k8s(line) }
}

fn of_json(line: &[u8]) -> Option<Piece> {
    #[derive(Deserialize)]
    struct Entry<'e> {
        #[serde(default)]
        log: String,
        #[serde(borrow)]
        stream: std::borrow::Cow<'e, str>,
    }
    let entry: Entry<'_> = serde_json::from_slice(line).ok()?;
    Some(Piece { stream: stream(&entry.stream)?, bytes: entry.log.into_bytes() })
}

fn of_k8s(line: &[u8]) -> Option<Piece> {
    let mut parts = line.splitn(4, |byte| *byte == b' ');
    let (_, name, tag) = (parts.next()?, parts.next()?, parts.next()?);
    let mut bytes = parts.next().unwrap_or_default().to_vec();
    if tag == b"F" {
        bytes.push(b'\n');
    }
    Some(Piece { stream: stream(std::str::from_utf8(name).ok()?)?, bytes })
}

fn stream(name: &str) -> Option<Stream> {
    match name {
        "stdout" => Some(Stream::Stdout),
        "stderr" => Some(Stream::Stderr),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_formats() {
        let json = br#"{"log":"a \u003c\n","stream":"stderr","time":"2026-11-26T10:00:00.5Z"}"#;
        let read = piece(json).unwrap();
        assert_eq!((read.stream, &*read.bytes), (Stream::Stderr, b"a <\n".as_slice()));
        let full = piece(b"2026-11-26T10:00:00.5+00:00 stdout F hello  world").unwrap();
        assert_eq!((full.stream, &*full.bytes), (Stream::Stdout, b"hello  world\n".as_slice()));
        assert_eq!(piece(b"2026-11-26T10:00:00Z stdout P par").unwrap().bytes, b"par");
        assert_eq!(piece(b"2026-11-26T10:00:00Z stdout F ").unwrap().bytes, b"\n");
        for wrong in [b"".as_slice(), b"x", b"{}", b"{\"log\":\"x\",\"stream\":\"other\"}"] {
            assert_eq!(piece(wrong), None);
        }
    }
}
