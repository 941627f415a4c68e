//! For tests only: recorded traffic between stock servers and clients (`tests/nomad/recordings/README.md`).

use std::{fmt, path::PathBuf};

use serde::Deserialize;

/// One recorded message.
#[derive(Debug, Deserialize)]
pub(crate) struct Message {
    #[serde(skip)]
    pub(crate) file: String,
    pub(crate) conn: u64,
    pub(crate) stream: u64,
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

fn hex<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    Ok(from_hex(&String::deserialize(deserializer)?))
}

pub(crate) fn from_hex(text: &str) -> Vec<u8> {
    text.as_bytes()
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

pub(crate) fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The folder of recordings; the variable names another one with more of them.
fn folder() -> PathBuf {
    match std::env::var_os("HERDLET_TEST_RECORDINGS") {
        Some(folder) => folder.into(),
        None => [env!("CARGO_MANIFEST_DIR"), "../../tests/nomad/recordings"].iter().collect(),
    }
}

fn files(ending: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for version in ["1.1.2", "1.6.5"] {
        for entry in std::fs::read_dir(folder().join(version)).unwrap() {
            let path = entry.unwrap().path();
            let name = format!("{version}/{}", path.file_name().unwrap().to_str().unwrap());
            if name.ends_with(ending) {
                found.push((name, std::fs::read_to_string(path).unwrap()));
            }
        }
    }
    found.sort();
    found
}

/// Every recorded message.
pub(crate) fn messages() -> Vec<Message> {
    let mut messages = Vec::new();
    for (file, text) in files(".jsonl") {
        for line in text.lines().filter(|line| line.contains("\"kind\"")) {
            messages.push(Message { file: file.clone(), ..serde_json::from_str(line).unwrap() });
        }
    }
    messages
}

/// Bytes that were sent together.
pub(crate) struct Segment {
    /// From the client to the server.
    pub(crate) way: bool,
    pub(crate) bytes: Vec<u8>,
}

/// The recorded raw connections: first the kind byte, then one frame per line.
pub(crate) fn connections() -> Vec<(String, Vec<Segment>)> {
    let line = |line: &str| {
        let (way, text) = line.split_once(' ').unwrap();
        Segment { way: way == "c2s", bytes: from_hex(text) }
    };
    files(".hex").into_iter().map(|(file, text)| (file, text.lines().map(line).collect())).collect()
}
