//! Successful calls, and misbehaving peers.

use std::sync::atomic::Ordering;

use tokio::io::{AsyncReadExt as _, DuplexStream, duplex};

use super::*;
use crate::{
    codec::{Value, encode},
    error::{ErrorKind, Lost},
    framed,
    mux::{Incoming, STREAMS, Side},
    testing::{WAIT, pair},
};

#[tokio::test]
async fn calls_are_answered_both_ways() {
    let pair = pair();
    let reply = pair.client.call("Lab.Echo", &[1, 2], WAIT).await.unwrap();
    assert_eq!(reply.decode::<Vec<u8>>().unwrap(), [1, 2]);
    let reply = pair.server.call("Lab.Name", &(), WAIT).await.unwrap();
    assert_eq!(reply.decode::<String>().unwrap(), "client");
    let reply = pair.client.call("Lab.Back", &(), WAIT).await.unwrap();
    assert_eq!(reply.decode::<String>().unwrap(), "client");
}

#[tokio::test]
async fn error_affects_only_its_call() {
    let pair = pair();
    for (method, expected) in [
        ("Lab.Fail", "node not found"),
        ("Lab.Nothing", "rpc: can't find method Lab.Nothing"),
        ("Nobody.Echo", "rpc: can't find service Nobody.Echo"),
        ("Lab.Ports", "failed to decode [1]: a text instead of u16"),
    ] {
        let arguments = Value::List(vec![Value::Int(1), Value::Text("secret".to_owned())]);
        let error = pair.client.call(method, &arguments, WAIT).await.unwrap_err();
        assert_eq!(error.to_string(), expected);
        pair.client.call("Lab.Echo", &(), WAIT).await.unwrap();
    }
    // A panic in the service ends only its stream.
    let error = pair.client.call("Lab.Panic", &(), WAIT).await.unwrap_err();
    assert!(error.is_lost() && !error.nothing_was_done(), "{error}");
    pair.client.call("Lab.Echo", &(), WAIT).await.unwrap();
}

#[tokio::test]
async fn many_calls_are_under_way_at_once() {
    let pair = pair();
    let calls = (0..1_000).map(|at| {
        let client = pair.client.clone();
        tokio::spawn(async move {
            client.call("Lab.Echo", &at, WAIT).await.unwrap().decode::<i32>().unwrap() == at
        })
    });
    for call in calls.collect::<Vec<_>>() {
        assert!(call.await.unwrap());
    }
    assert_eq!(pair.client.idle.lock().unwrap().len(), IDLE);
}

#[tokio::test]
async fn large_messages_pass() {
    let pair = pair();
    let large = Value::Text("x".repeat(20 << 20));
    let reply = pair.client.call("Lab.Echo", &large, WAIT).await.unwrap();
    assert!(reply.decode::<Value>().unwrap() == large);
    assert!(pair.client.idle.lock().unwrap().iter().all(|stream| !stream.has_more()));
}

#[tokio::test(start_paused = true)]
async fn call_waits_for_its_timeout() {
    let pair = pair();
    let began = tokio::time::Instant::now();
    let error = pair.client.call("Lab.Hang", &(), Duration::from_secs(330)).await.unwrap_err();
    assert!(matches!(error, CallError::Late(_)), "{error}");
    assert_eq!(began.elapsed().as_secs(), 330);
    pair.client.call("Lab.Slow", &(), Duration::from_secs(61)).await.unwrap();
}

/// A peer that sends raw bytes: it waits for a request on the first stream and answers with the given frames.
struct Raw {
    caller: Caller,
    _incoming: Incoming,
    peer: DuplexStream,
}

fn raw() -> Raw {
    let (ours, peer) = duplex(1 << 20);
    let (mux, incoming) = Mux::start(ours, Side::Client);
    Raw { caller: Caller::new(mux), _incoming: incoming, peer }
}

fn data(flags: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap();
    [&[0, 0, 0, flags, 0, 0, 0, 1][..], &length.to_be_bytes(), payload].concat()
}

impl Raw {
    /// Makes a call and answers it with `frames`.
    async fn error_after(mut self, frames: &[u8]) -> CallError {
        let call = self.caller.call("Lab.Echo", &(), Duration::from_secs(5));
        let answers = async {
            let mut heard = [0; 4096];
            while !heard.ends_with(b"Lab.Echo\xc0") {
                let read = self.peer.read(&mut heard).await.unwrap();
                if heard[..read].ends_with(b"Lab.Echo\xc0") {
                    break;
                }
            }
            self.peer.write_all(frames).await.unwrap();
        };
        tokio::join!(call, answers).0.unwrap_err()
    }
}

fn response(seq: u64, error: &str) -> Vec<u8> {
    encode(&Response { error: error.to_owned(), seq, service_method: "Lab.Echo".to_owned() }).unwrap()
}

#[tokio::test]
async fn invalid_answer_closes_the_connection() {
    let fin = data(4, &[]);
    let error = raw().error_after(&data(0, &[response(7, ""), vec![0xc0]].concat())).await;
    assert!(matches!(error, CallError::Sequence { expected: 1, found: 7 }), "{error}");
    let error = raw().error_after(&[data(0, &response(1, "")), fin.clone()].concat()).await;
    assert!(matches!(error, CallError::Message(MessageError::Ended)), "{error}");
    let error = raw().error_after(&fin).await;
    assert!(matches!(error, CallError::Message(MessageError::Ended)), "{error}");
    let error = raw().error_after(&data(8, &[])).await;
    assert!(matches!(error, CallError::Message(MessageError::Io(_))), "{error}");
    let error = raw().error_after(&data(0, b"\x82\xa3Seq\xa1x\xa1y\xc0\xc0")).await;
    assert_eq!(error.to_string(), "decode Seq: a text instead of u64");
    let error = raw().error_after(&data(0, b"\x81\xa5Error\xdb\xff\xff\xff\xff")).await;
    assert_eq!(error.to_string(), "accept a message of more than 262144 bytes");
    let error =
        raw().error_after(&data(0, &[response(1, ""), vec![0xdd, 0xff, 0xff, 0xff, 0xff]].concat())).await;
    assert_eq!(error.to_string(), "accept a message of more than 67108864 bytes");
    let error = raw().error_after(&data(0, &[0xc1])).await;
    assert!(matches!(error, CallError::Message(MessageError::Limit(_))), "{error}");
    let error = raw().error_after(b"HTTP/1.1 400 Bad Request").await;
    assert!(matches!(error, CallError::Lost(Lost::Violation(_))), "{error}");
    let error = raw().error_after(&[0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]).await;
    assert!(matches!(error, CallError::Lost(Lost::GoAway(0))), "{error}");
    // An error without its body is not a complete response: the next response would be read from the middle.
    let error = raw().error_after(&[data(0, &response(1, "node not found")), fin].concat()).await;
    assert!(matches!(error, CallError::Message(MessageError::Ended)), "{error}");
    let error = raw().error_after(&data(0, &[response(1, "node not found"), vec![0x80]].concat())).await;
    assert!(matches!(&error, CallError::Server(error) if error.kind() == ErrorKind::NodeNotFound), "{error}");
}

/// A connection that is cut within a response gives an error, at whichever byte.
#[tokio::test]
async fn a_connection_may_break_at_any_byte_of_an_answer() {
    let answer =
        [[0, 1, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0].to_vec(), data(0, &response(1, "")), data(0, &[0x91, 0x07])]
            .concat();
    for end in 0..answer.len() {
        let Raw { caller, _incoming, mut peer } = raw();
        let call = caller.call("Lab.Echo", &(), WAIT);
        let answers = async {
            let mut heard = [0; 4096];
            let _ = peer.read(&mut heard).await.unwrap();
            peer.write_all(&answer[..end]).await.unwrap();
            drop(peer);
        };
        let error = tokio::join!(call, answers).0.unwrap_err();
        assert!(matches!(error, CallError::Lost(_)) && error.is_lost(), "{end}: {error}");
    }
}

#[tokio::test]
async fn dropped_call_resets_its_stream() {
    let pair = pair();
    let call = pair.client.call("Lab.Hang", &(), WAIT);
    let begun = async {
        while pair.at_server.begun.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        _ = call => panic!("the call must not end"),
        () = begun => {}
    }
    // The other side completes the call, and the connection remains usable.
    pair.client.call("Lab.Echo", &(), WAIT).await.unwrap();
}

#[tokio::test]
async fn calls_end_with_their_connection() {
    let pair = pair();
    let call = pair.client.call("Lab.Hang", &(), WAIT);
    let close = async {
        while pair.at_server.begun.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
        pair.server.mux().close();
    };
    let error = tokio::join!(call, close).0.unwrap_err();
    assert!(matches!(error, CallError::Lost(Lost::GoAway(0) | Lost::Ended)), "{error}");
    let error = pair.client.call("Lab.Echo", &(), WAIT).await.unwrap_err();
    assert!(matches!(error, CallError::NotSent(_)), "{error}");
}

/// A call that got no stream was never sent, however it ended, so another server may be asked.
#[tokio::test(start_paused = true)]
async fn a_call_that_has_no_stream_was_not_sent() {
    let pair = pair();
    let all = futures_util::future::join_all((0..STREAMS).map(|_| pair.client.mux().open())).await;
    let error = pair.client.call("Lab.Echo", &(), WAIT).await.unwrap_err();
    assert!(matches!(error, CallError::NoRoom(WAIT)) && error.nothing_was_done(), "{error}");
    let error = framed::stream(pair.client.mux(), "Lab.Repeat", &1, WAIT).await.unwrap_err();
    assert!(matches!(error, CallError::NoRoom(WAIT)), "{error}");
    let close = async { pair.client.mux().close() };
    let error = tokio::join!(pair.client.call("Lab.Echo", &(), WAIT), close).0.unwrap_err();
    assert!(matches!(error, CallError::NotSent(Lost::Closed)), "{error}");
    assert!(error.nothing_was_done() && error.is_lost());
    drop(all);
    let error = pair.client.call("Lab.Echo", &(), WAIT).await.unwrap_err();
    assert!(matches!(error, CallError::NotSent(Lost::Closed)), "{error}");
    assert_eq!(pair.at_server.begun.load(Ordering::SeqCst), 0);
}

/// The last stream passes from one call to the next waiting one; it is not kept idle while calls wait.
#[tokio::test(start_paused = true)]
async fn no_stream_is_kept_while_others_wait_for_one() {
    let pair = pair();
    let _others = futures_util::future::join_all((1..STREAMS).map(|_| pair.client.mux().open())).await;
    let call = || pair.client.call("Lab.Echo", &(), WAIT);
    let (first, second, third) = tokio::join!(call(), call(), call());
    assert!(first.is_ok() && second.is_ok() && third.is_ok());
    pair.client.mux().open().await.unwrap();
}

/// A restarted server has closed the idle streams. The client detects this and does not reuse them.
#[tokio::test]
async fn a_stream_that_was_closed_meanwhile_is_not_used_again() {
    let (ours, theirs) = duplex(4096);
    let ((client, _incoming), (_server, mut streams)) =
        (Mux::start(ours, Side::Client), Mux::start(theirs, Side::Server));
    let caller = Caller::new(client);
    tokio::spawn(async move {
        // Answers once on each stream, then closes it.
        while let Some(mut stream) = streams.recv().await {
            assert_eq!(stream.read_u8().await.unwrap(), PLAIN);
            let mut reader = Reader::new(stream);
            let request: Request = reader.read(Limits::HEADER).await.unwrap();
            reader.next(Limits::BODY).await.unwrap();
            let answer = [response(request.seq, ""), vec![0xc0]].concat();
            message::write(reader.io(), &answer).await.unwrap();
            reader.io().shutdown().await.unwrap();
        }
    });
    for _ in 0..10 {
        caller.call("Lab.Echo", &(), WAIT).await.unwrap();
        while caller.idle.lock().unwrap().iter_mut().any(is_quiet) {
            tokio::task::yield_now().await;
        }
    }
}
