//! Calling peers that misbehave or disconnect.

use std::sync::atomic::Ordering;

use tokio::io::duplex;

use super::*;
use crate::{
    codec::{Value, encode},
    error::CallError,
    framed::{self, StreamFrame},
    mux::Side,
    recordings,
    testing::{Lab, WAIT, pair},
};

#[tokio::test]
async fn streaming_calls_go_both_ways_until_one_side_has_finished() {
    let pair = pair();
    for mux in [pair.client.mux(), pair.server.mux()] {
        let mut stream = framed::stream(mux, "Lab.Repeat", &2, WAIT).await.unwrap();
        for text in ["a", "b"] {
            stream.send(text).await.unwrap();
            for _ in 0..2 {
                let frame: StreamFrame = stream.receive().await.unwrap().unwrap();
                assert_eq!(frame, StreamFrame { payload: encode(text).unwrap(), error: None });
            }
        }
        stream.finish().await.unwrap();
        assert!(stream.receive::<StreamFrame>().await.unwrap().is_none());
    }
}

#[tokio::test]
async fn an_unknown_streaming_method_is_refused() {
    let error = framed::stream(pair().client.mux(), "Lab.\"Nothing\"", &(), WAIT).await.unwrap_err();
    assert_eq!(error.to_string(), "Unknown rpc method: \"Lab.\\\"Nothing\\\"\"");
    assert!(matches!(error, CallError::Server(_)));
}

#[tokio::test(start_paused = true)]
async fn stream_without_a_type_is_closed() {
    let pair = pair();
    for first in [7, 0] {
        let mut stream = pair.client.mux().open().await.unwrap();
        stream.write_all(&[first]).await.unwrap();
        assert!(stream.read_u8().await.is_err(), "{first:?}");
    }
    let (ours, _silent) = duplex(4096);
    let began = tokio::time::Instant::now();
    assert!(of_any_kind(ours, &Lab::default(), &peer()).await.is_err());
    assert_eq!(began.elapsed(), FIRST_BYTE);
    pair.client.call("Lab.Echo", &(), WAIT).await.unwrap();
}

fn peer() -> Peer {
    Peer { address: "test".to_owned(), mux: None }
}

/// A truncated request does not start a call, wherever it ends.
#[tokio::test]
async fn a_request_may_break_at_any_byte() {
    let header = Request { seq: 1, service_method: "Lab.Echo".to_owned() };
    let request = [encode(&header).unwrap(), encode(&["x"]).unwrap()].concat();
    for end in 0..=request.len() {
        let (ours, mut theirs) = duplex(4096);
        theirs.write_all(&request[..end]).await.unwrap();
        theirs.shutdown().await.unwrap();
        let lab = Lab::default();
        let served = plain(ours, &lab, &peer()).await;
        assert_eq!(lab.begun.load(Ordering::SeqCst), usize::from(end == request.len()), "{end}");
        assert_eq!(served.is_ok(), end == 0 || end == request.len(), "{end}: {served:?}");
    }
}

/// Every recorded request gets a response, whatever its arguments.
#[tokio::test]
async fn recorded_requests_are_answered() {
    let (ours, theirs) = duplex(4096);
    tokio::spawn(async move { plain(ours, &Anything, &peer()).await.unwrap() });
    let (read, mut write) = tokio::io::split(theirs);
    let mut reader = Reader::new(read);
    for message in recordings::messages().into_iter().filter(|message| message.kind == "request") {
        message::write(&mut write, &message.bytes).await.unwrap();
        let header: Response = reader.read(Limits::HEADER).await.unwrap();
        assert_eq!((header.seq, &header.service_method), (message.seq, &message.method), "{message}");
        let body = reader.next(Limits::BODY).await.unwrap().unwrap();
        assert!(message.bytes.ends_with(&body), "{message}");
    }
}

/// Arguments above the service's limit end their stream before they have arrived. The default limit is 1 MiB, since there are many streams.
#[tokio::test]
async fn service_limits_argument_size() {
    let header = Request { seq: 1, service_method: "Lab.Echo".to_owned() };
    let request = [encode(&header).unwrap(), vec![0xdb, 0, 0x20, 0, 0]].concat();
    let (ours, mut theirs) = duplex(4096);
    theirs.write_all(&request).await.unwrap();
    theirs.shutdown().await.unwrap();
    let refused = plain(ours, &Anything, &peer()).await.unwrap_err();
    assert_eq!(refused.to_string(), "accept a message of more than 1048576 bytes");
    // The lab has a higher limit, and waits for the arguments.
    let (ours, mut theirs) = duplex(4096);
    theirs.write_all(&request).await.unwrap();
    theirs.shutdown().await.unwrap();
    let cut = plain(ours, &Lab::default(), &peer()).await.unwrap_err();
    assert_eq!(cut.to_string(), "read a message: the stream ended");
}

/// Echoes the arguments.
struct Anything;

impl Service for Anything {
    async fn call(&self, _: &Peer, call: Call) -> Result<Vec<u8>, Refusal> {
        answer(&call.arguments::<Value>()?)
    }

    fn streams(&self, _: &str) -> bool {
        false
    }

    async fn stream(&self, _: &Peer, _: String, _: &mut Framed<Box<dyn Io>>) {}
}

#[tokio::test]
async fn call_completes_after_its_caller_has_gone() {
    let (ours, theirs) = duplex(4096);
    let (client, _incoming) = Mux::start(ours, Side::Client);
    let (mux, incoming) = Mux::start(theirs, Side::Server);
    let lab = Arc::new(Lab::default());
    let served = tokio::spawn(serve(incoming, Arc::clone(&lab), Peer { mux: Some(mux), ..peer() }));
    let mut stream = client.open().await.unwrap();
    let header = Request { seq: 1, service_method: "Lab.Echo".to_owned() };
    let request = [vec![PLAIN], encode(&header).unwrap(), encode(&()).unwrap()].concat();
    stream.write_all(&request).await.unwrap();
    client.close();
    drop(stream);
    tokio::time::timeout(WAIT, served).await.unwrap().unwrap();
    assert_eq!(lab.begun.load(Ordering::SeqCst), 1);
}
