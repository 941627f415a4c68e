//! Fuzz targets, and the invariants that must hold for any input.
//!
//! In: bytes, from a fuzzer (`tests/fuzz/run rpc`) or from the corpus (`tests/fuzz/corpus/rpc`, replayed by the tests below). The first
//! byte selects the target. Out: nothing, or a panic that names the broken invariant. Compiled only for tests and fuzzing.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a broken invariant panics")]

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

use crate::{
    call::Caller,
    codec::{self, Extent, Limits, Time, Value, decode_within, encode},
    connect,
    error::Refusal,
    framed::{Framed, StreamFrame},
    message::{Request, Response},
    mux::{Io, Mux, Side},
    serve::{Call, Peer, Service, answer, serve},
};

/// Limits for messages: as much as a fuzzer generates.
const LIMITS: Limits = Limits { bytes: 64 * 1024, depth: 96, values: 64 * 1024 };

/// Longer than all timeouts of the crate; time is paused.
const WAIT: Duration = Duration::from_secs(120);

/// Runs the target that the first byte selects.
///
/// # Panics
/// If an invariant is broken.
pub fn feed(data: &[u8]) {
    let Some((kind, data)) = data.split_first() else { return };
    match kind % 4 {
        0 => message(data),
        1 => in_time(client(data)),
        2 => in_time(server(data)),
        _ => in_time(answer_call(data)),
    }
}

/// The start of the input is decoded or refused. A decoded value stays the same when it is encoded and decoded again.
fn message(data: &[u8]) {
    let mut extent = Extent::new(LIMITS);
    let Ok(Some(length)) = extent.of(data) else {
        assert!(decode_within::<Value>(data, LIMITS).is_err());
        return;
    };
    let message = &data[..length];
    // Splitting the input does not change where the message ends.
    let mut pieces = Extent::new(LIMITS);
    assert!(
        (0..length).all(|end| pieces.of(&data[..end]) == Ok(None)) && pieces.of(data) == Ok(Some(length))
    );
    if length < data.len() {
        assert!(decode_within::<Value>(data, LIMITS).is_err(), "something follows it");
    }
    let _ = decode_within::<Everything>(message, LIMITS).map_err(|error| error.to_string());
    let _ = decode_within::<Request>(message, LIMITS);
    let _ = decode_within::<StreamFrame>(message, LIMITS);
    let Ok(value) = decode_within::<Value>(message, LIMITS) else { return };
    let written = encode(&value).unwrap();
    let again: Value = codec::decode(&written).unwrap();
    assert!(encode(&again).unwrap() == written);
    // Compare encoded bytes: distinct kinds of text encode alike, and NaN does not equal itself.
    if let Ok(everything) = decode_within::<Everything>(message, LIMITS) {
        let again: Everything = codec::decode(&encode(&everything).unwrap()).unwrap();
        assert!(encode(&again).unwrap() == encode(&everything).unwrap());
    }
}

/// A value of each type that Nomad's structs use.
#[derive(Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct Everything {
    name: String,
    count: i32,
    index: u64,
    ready: bool,
    weight: f64,
    created_at: Time,
    #[serde(with = "codec::duration")]
    interval: Duration,
    #[serde(with = "codec::bytes")]
    payload: Vec<u8>,
    servers: Vec<Everything>,
    meta: BTreeMap<String, Value>,
    parent: Option<Box<Everything>>,
    #[serde(flatten)]
    options: Options,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct Options {
    #[serde(deserialize_with = "codec::nil::or_default")]
    region: String,
    #[serde(deserialize_with = "codec::nil::or_default")]
    allow_stale: bool,
}

/// Time is paused, so a wait without a cause times out at once.
fn in_time(what: impl Future<Output = ()>) {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async { tokio::time::timeout(WAIT, what).await.expect("it ends") });
}

/// A server sends the input as its whole connection: the connection ends, and so does everything we do over it.
async fn client(data: &[u8]) {
    let (ours, theirs) = duplex(1 << 20);
    let (mux, incoming) = Mux::start(ours, Side::Client);
    let caller = Caller::new(mux.clone());
    let peer = Peer { address: String::new(), mux: None };
    let served = serve(incoming, Arc::new(Repeats), peer);
    let called = async {
        let _ = caller.call("A.B", &(), WAIT / 2).await;
        mux.ended().await;
    };
    tokio::join!(served, called, write_all(theirs, data));
}

/// A client sends the input, starting with its kind byte.
async fn server(data: &[u8]) {
    let (ours, theirs) = duplex(1 << 20);
    let served = connect::accept(ours, None, Arc::new(Repeats), String::new());
    let _ = tokio::join!(served, write_all(theirs, data));
}

/// A server answers a call with the input.
async fn answer_call(data: &[u8]) {
    let (ours, theirs) = duplex(1 << 20);
    let ((client, _incoming), (_server, mut streams)) =
        (Mux::start(ours, Side::Client), Mux::start(theirs, Side::Server));
    let caller = Caller::new(client);
    let answers = async {
        let mut stream = streams.recv().await.unwrap();
        let _ = stream.write_all(data).await;
        let _ = stream.shutdown().await;
        stream
    };
    let (answer, _stream) = tokio::join!(caller.call("A.B", &(), WAIT / 2), answers);
    let _ = answer.map(|reply| reply.decode::<Everything>().is_ok());
}

/// Sends all the data and closes, ignoring whatever the other side sends.
async fn write_all(theirs: tokio::io::DuplexStream, data: &[u8]) {
    let (mut read, mut write) = tokio::io::split(theirs);
    let says = async {
        let _ = write.write_all(data).await;
        let _ = write.shutdown().await;
    };
    let mut heard = Vec::new();
    let (_, ()) = tokio::join!(read.read_to_end(&mut heard), says);
}

/// Echoes what it receives.
struct Repeats;

impl Service for Repeats {
    async fn call(&self, _: &Peer, call: Call) -> Result<Vec<u8>, Refusal> {
        answer(&call.arguments::<Value>()?)
    }

    fn streams(&self, _: &str) -> bool {
        true
    }

    async fn stream(&self, _: &Peer, _: String, stream: &mut Framed<Box<dyn Io>>) {
        while let Ok(Some(message)) = stream.receive::<Value>().await {
            if stream.send(&message).await.is_err() {
                break;
            }
        }
    }
}

/// Valid inputs to start from.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    let everything = Everything {
        parent: Some(Box::default()),
        servers: vec![Everything::default()],
        ..Everything::default()
    };
    let everything = encode(&everything).unwrap();
    let request = [
        encode(&Request { seq: 1, service_method: "A.B".to_owned() }).unwrap(),
        encode(&Options::default()).unwrap(),
    ]
    .concat();
    let response =
        encode(&Response { error: String::new(), seq: 1, service_method: "A.B".to_owned() }).unwrap();
    let syn = [0, 1, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0];
    let mut call = vec![0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, u8::try_from(request.len() + 1).unwrap(), 1];
    call.extend(&request);
    let streaming =
        [&[2, 5][..], &encode(&BTreeMap::from([("Method", "A.B")])).unwrap(), &everything].concat();
    vec![
        [&[0][..], &everything].concat(),
        [&[2, 6][..], &syn, &call].concat(),
        [&[2, 1][..], &request].concat(),
        streaming,
        [&[3][..], &response, &everything].concat(),
        [&[1][..], &[0, 1, 0, 1, 0, 0, 0, 2, 0, 0, 0, 0], &[0, 0, 0, 4, 0, 0, 0, 2, 0, 0, 0, 1, 5]].concat(),
        vec![1, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
    ]
}

#[cfg(test)]
mod tests;
