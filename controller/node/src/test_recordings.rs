//! For tests: recorded traffic between stock servers and clients (`tests/nomad/recordings/README.md`).

use std::{fmt, path::PathBuf};

use herdlet_rpc::codec::{self, Extent, Limits, Value};
use serde::Deserialize;

/// One recorded message.
#[derive(Debug, Deserialize)]
pub(crate) struct Message {
    #[serde(skip)]
    pub(crate) file: String,
    pub(crate) conn: u64,
    pub(crate) stream: u64,
    pub(crate) opener: String,
    /// `s2c` or `c2s`.
    pub(crate) dir: String,
    pub(crate) kind: String,
    #[serde(default)]
    pub(crate) method: String,
    #[serde(default)]
    pub(crate) seq: u64,
    #[serde(rename = "hex", deserialize_with = "hex")]
    pub(crate) bytes: Vec<u8>,
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, conn, stream, kind, method, seq, .. } = self;
        write!(f, "{file}: {kind} {method} {seq} of {conn}/{stream}")
    }
}

impl Message {
    /// The header and body of a message of a unary call.
    pub(crate) fn plain(&self) -> (Value, Value) {
        let length = Extent::new(Limits::HEADER).of(&self.bytes).unwrap().unwrap();
        let (header, body) = self.bytes.split_at(length);
        (codec::decode(header).unwrap(), codec::decode(body).unwrap())
    }

    /// The value of a message of a streaming call.
    pub(crate) fn value(&self) -> Value {
        codec::decode(&self.bytes).unwrap()
    }
}

fn hex<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let bytes = text.as_bytes().chunks(2);
    Ok(bytes.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect())
}

/// A text as a value.
pub(crate) fn text(text: &str) -> Value {
    Value::Text(text.to_owned())
}

/// Every recorded message, in wire order within each recording.
pub(crate) fn messages() -> Vec<Message> {
    let folder: PathBuf = [env!("CARGO_MANIFEST_DIR"), "../../tests/nomad/recordings"].iter().collect();
    let mut messages = Vec::new();
    for version in ["1.1.2", "1.6.5"] {
        let entries = std::fs::read_dir(folder.join(version)).unwrap();
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        for path in paths.iter().filter(|path| path.extension().is_some_and(|ending| ending == "jsonl")) {
            let file = format!("{version}/{}", path.file_name().unwrap().to_str().unwrap());
            let text = std::fs::read_to_string(path).unwrap();
            for line in text.lines().filter(|line| line.contains("\"kind\"")) {
                messages.push(Message { file: file.clone(), ..serde_json::from_str(line).unwrap() });
            }
        }
    }
    messages
}
