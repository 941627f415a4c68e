//! A connection with a peer that sends raw bytes: recorded traffic of a stock peer, and violations of the protocol.

use std::collections::BTreeMap;

use futures_util::future::BoxFuture;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};

use super::*;
use crate::{frame::Finder, recordings};

const DATA: u8 = 0;
const WINDOW_UPDATE: u8 = 1;
const PING: u8 = 2;
const GO_AWAY: u8 = 3;
const SYN: u8 = 1;
const ACK: u8 = 2;
const FIN: u8 = 4;
const RST: u8 = 8;

fn frame(kind: u8, flags: u8, stream: u32, length: u32) -> Vec<u8> {
    [&[0, kind, 0, flags][..], &stream.to_be_bytes(), &length.to_be_bytes()].concat()
}

fn data(flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    [frame(DATA, flags, stream, payload.len() as u32), payload.to_vec()].concat()
}

/// Reads the next frame: kind, flags, stream, length, payload.
async fn read(peer: &mut DuplexStream) -> Option<(u8, u8, u32, u32, Vec<u8>)> {
    let mut header = [0; 12];
    peer.read_exact(&mut header).await.ok()?;
    let number = |at: usize| u32::from_be_bytes(header[at..at + 4].try_into().unwrap());
    let mut payload = vec![0; if header[1] == DATA { number(8) as usize } else { 0 }];
    peer.read_exact(&mut payload).await.ok()?;
    Some((header[1], header[3], number(4), number(8), payload))
}

/// Reads the next frame that is not a ping.
async fn read_on(peer: &mut DuplexStream) -> (u8, u8, u32, u32, Vec<u8>) {
    loop {
        let frame = read(peer).await.expect("a frame");
        if frame.0 != PING {
            return frame;
        }
    }
}

fn pair(side: Side) -> (Mux, Incoming, DuplexStream) {
    let (ours, peer) = duplex(1 << 20);
    let (mux, incoming) = Mux::start(ours, side);
    (mux, incoming, peer)
}

#[tokio::test]
async fn both_sides_open_streams() {
    let (ours, theirs) = duplex(4096);
    let ((client, mut at_client), (server, mut at_server)) =
        (Mux::start(ours, Side::Client), Mux::start(theirs, Side::Server));
    for (opener, incoming) in [(&client, &mut at_server), (&server, &mut at_client)] {
        let mut stream = opener.open().await.unwrap();
        // More than one window.
        let sent: Vec<u8> = (0..1_000_000_u32).map(|at| at as u8).collect();
        stream.write_all(b"x").await.unwrap();
        let mut other = incoming.recv().await.unwrap();
        let sends = async {
            stream.write_all(&sent).await.unwrap();
            stream.shutdown().await.unwrap();
        };
        let mut got = Vec::new();
        let (_, read) = tokio::join!(sends, other.read_to_end(&mut got));
        assert_eq!(read.unwrap(), 1_000_001);
        assert!(got[1..] == sent);
        // Half-closed: the other direction stays open.
        other.write_all(b"still here").await.unwrap();
        other.shutdown().await.unwrap();
        other.shutdown().await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert_eq!(answer, "still here");
    }
    drop(client);
    assert!(matches!(server.ended().await, Lost::GoAway(0)), "{:?}", server.lost());
}

#[tokio::test]
async fn stream_is_acknowledged_before_it_is_accepted() {
    let (_mux, _incoming, mut peer) = pair(Side::Client);
    peer.write_all(&frame(WINDOW_UPDATE, SYN, 2, 0)).await.unwrap();
    let (_, flags, stream, length, _) = read_on(&mut peer).await;
    assert_eq!((flags, stream, length), (ACK, 2, 0));
}

#[tokio::test]
async fn stream_is_finished_once_and_reset_on_drop() {
    let (mux, _incoming, mut peer) = pair(Side::Client);
    let mut stream = mux.open().await.unwrap();
    stream.write_all(b"a").await.unwrap();
    stream.shutdown().await.unwrap();
    stream.shutdown().await.unwrap();
    drop(stream);
    let mut dropped = mux.open().await.unwrap();
    dropped.write_all(b"b").await.unwrap();
    drop(dropped);
    let mut flags = Vec::new();
    for _ in 0..4 {
        let (_, flag, stream, ..) = read_on(&mut peer).await;
        flags.push((stream, flag));
    }
    assert_eq!(flags, [(1, SYN), (1, FIN), (3, SYN), (3, RST)]);
}

#[tokio::test]
async fn a_reset_is_no_end() {
    let (mux, _incoming, mut peer) = pair(Side::Client);
    let mut stream = mux.open().await.unwrap();
    stream.write_all(b"a").await.unwrap();
    peer.write_all(&[frame(WINDOW_UPDATE, ACK, 1, 0), data(0, 1, b"half"), frame(DATA, RST, 1, 0)].concat())
        .await
        .unwrap();
    let mut got = Vec::new();
    let error = stream.read_to_end(&mut got).await.unwrap_err();
    assert_eq!((error.kind(), &got[..]), (std::io::ErrorKind::ConnectionReset, &b"half"[..]));
}

/// A reader that has already finished its own direction must still see whether the stream is complete.
#[tokio::test]
async fn after_we_have_finished_a_reset_is_no_end_either() {
    let finish = [data(0, 1, b"half"), frame(WINDOW_UPDATE, FIN, 1, 0)].concat();
    for (then, is_whole) in [
        (finish.clone(), true),
        ([finish, frame(WINDOW_UPDATE, RST, 1, 0)].concat(), true),
        ([data(0, 1, b"half"), frame(DATA, RST, 1, 0)].concat(), false),
        (data(0, 1, b"half"), false),
        (data(FIN, 1, b"half"), true),
        // The last frame is truncated.
        ([data(0, 1, b"half"), data(FIN, 1, b"more")[..14].to_vec()].concat(), false),
    ] {
        let (mux, _incoming, mut peer) = pair(Side::Client);
        let mut stream = mux.open().await.unwrap();
        stream.write_all(b"a").await.unwrap();
        stream.shutdown().await.unwrap();
        peer.write_all(&[frame(WINDOW_UPDATE, ACK, 1, 0), then.clone()].concat()).await.unwrap();
        peer.shutdown().await.unwrap();
        let mut got = Vec::new();
        let read = stream.read_to_end(&mut got).await;
        assert_eq!((read.is_ok(), &got[..]), (is_whole, &b"half"[..]), "{then:?}");
    }
}

/// The peer opens and finishes a stream with one frame.
#[tokio::test]
async fn a_stream_may_end_with_its_first_frame() {
    let (_mux, mut incoming, mut peer) = pair(Side::Client);
    peer.write_all(&data(SYN | FIN, 2, b"all")).await.unwrap();
    let mut got = String::new();
    incoming.recv().await.unwrap().read_to_string(&mut got).await.unwrap();
    assert_eq!(got, "all");
}

/// Two tasks use one stream, one reading and one writing. Both are woken, whichever waited last.
#[tokio::test(start_paused = true)]
async fn both_ways_of_a_stream_end_with_their_connection() {
    for writes_last in [true, false] {
        let (mux, _incoming, _peer) = pair(Side::Client);
        let (mut reader, mut writer) = tokio::io::split(mux.open().await.unwrap());
        // As much as the window holds.
        writer.write_all(&vec![0; WINDOW as usize]).await.unwrap();
        let reads: BoxFuture<'_, bool> = Box::pin(async move { reader.read_u8().await.is_err() });
        let writes: BoxFuture<'_, bool> = Box::pin(async move { writer.write_all(b"more").await.is_err() });
        let mut tasks = Vec::new();
        for way in if writes_last { [reads, writes] } else { [writes, reads] } {
            tasks.push(tokio::spawn(way));
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        mux.close();
        for task in tasks {
            let ended = tokio::time::timeout(Duration::from_secs(60), task).await;
            assert!(ended.expect("a wake in time").unwrap(), "{writes_last}");
        }
    }
}

/// A closing connection counts as lost, even while the GoAway waits for a peer that does not read.
#[tokio::test(start_paused = true)]
async fn a_connection_that_is_being_closed_is_no_more() {
    let (ours, _peer) = duplex(16);
    let (mux, _incoming) = Mux::start(ours, Side::Client);
    let mut stream = mux.open().await.unwrap();
    stream.write_all(&[0; 100]).await.unwrap();
    let began = tokio::time::Instant::now();
    mux.close();
    assert!(matches!(mux.lost(), Some(Lost::Closed)));
    assert!(matches!(mux.open().await, Err(Lost::Closed)));
    assert!(stream.read_u8().await.is_err());
    assert_eq!(began.elapsed(), Duration::ZERO);
    assert!(matches!(mux.ended().await, Lost::Closed));
    assert_eq!(began.elapsed(), FAREWELL);
}

/// Servers log an error for each stream that is reset.
#[tokio::test]
async fn go_away_resets_no_stream() {
    let (mux, _incoming, mut peer) = pair(Side::Client);
    let mut streams = Vec::new();
    for _ in 0..8 {
        let mut stream = mux.open().await.unwrap();
        stream.write_all(b"a call").await.unwrap();
        streams.push(stream);
    }
    mux.close();
    drop(streams);
    mux.ended().await;
    let mut resets = 0;
    while let Some((kind, flags, ..)) = read(&mut peer).await {
        resets += usize::from(kind != GO_AWAY && flags & RST != 0);
    }
    assert_eq!(resets, 0);
}

/// A caller that waits for a free stream learns that the connection ended, even if the other callers keep their streams.
#[tokio::test(start_paused = true)]
async fn waiter_for_a_stream_is_notified_of_the_end() {
    let (mux, _incoming, peer) = pair(Side::Client);
    let _all = futures_util::future::join_all((0..STREAMS).map(|_| mux.open())).await;
    assert!(!mux.has_room());
    let opens = tokio::time::timeout(Duration::from_secs(60), mux.open());
    let (opened, ()) = tokio::join!(opens, async { drop(peer) });
    assert!(matches!(opened, Ok(Err(Lost::Ended | Lost::Failed(_)))), "{opened:?}");
}

/// A panic in a dependency affects one connection, and its users notice.
#[tokio::test(start_paused = true)]
async fn a_driver_that_panics_is_no_more() {
    struct Panics(DuplexStream);
    impl AsyncRead for Panics {
        fn poll_read(
            mut self: std::pin::Pin<&mut Self>,
            cx: &mut std::task::Context<'_>,
            buf: &mut tokio::io::ReadBuf<'_>,
        ) -> Poll<std::io::Result<()>> {
            let read = std::pin::Pin::new(&mut self.0).poll_read(cx, buf);
            assert!(read.is_pending(), "the reader waits as configured");
            read
        }
    }
    impl AsyncWrite for Panics {
        fn poll_write(
            mut self: std::pin::Pin<&mut Self>,
            cx: &mut std::task::Context<'_>,
            buf: &[u8],
        ) -> Poll<std::io::Result<usize>> {
            std::pin::Pin::new(&mut self.0).poll_write(cx, buf)
        }

        fn poll_flush(
            self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> Poll<std::io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(
            self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> Poll<std::io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }
    let (ours, mut peer) = duplex(1 << 20);
    let (mux, _incoming) = Mux::start(Panics(ours), Side::Client);
    let mut stream = mux.open().await.unwrap();
    assert!(mux.lost().is_none());
    peer.write_all(b"x").await.unwrap();
    let read = tokio::time::timeout(Duration::from_secs(60), stream.read_u8()).await;
    assert!(read.expect("a wake in time").is_err());
    assert!(matches!(mux.ended().await, Lost::Closed));
    assert!(mux.lost().is_some() && mux.open().await.is_err());
}

#[tokio::test]
async fn live_streams_are_bounded() {
    let (mux, mut incoming, mut peer) = pair(Side::Client);
    let syns: Vec<u8> = (1..=10_000).flat_map(|at| frame(WINDOW_UPDATE, SYN, 2 * at, 0)).collect();
    peer.write_all(&syns).await.unwrap();
    let (mut acknowledged, mut reset) = (0, 0);
    while acknowledged + reset < 10_000 {
        let (_, flags, ..) = read_on(&mut peer).await;
        acknowledged += usize::from(flags & ACK != 0);
        reset += usize::from(flags & RST != 0);
    }
    assert_eq!(acknowledged, STREAMS);
    assert!(mux.lost().is_none(), "{:?}", mux.lost());
    // Dropping streams frees permits.
    drop(incoming.recv().await.unwrap());
    assert_eq!(read_on(&mut peer).await.1, RST);
    peer.write_all(&frame(WINDOW_UPDATE, SYN, 30_000, 0)).await.unwrap();
    assert_eq!(read_on(&mut peer).await.1, ACK);
}

/// A client at its limit ends one stream and opens the next before the server has released the first.
#[tokio::test]
async fn a_server_has_room_for_streams_that_have_just_ended() {
    let (mux, mut incoming, mut peer) = pair(Side::Server);
    for at in 0..=STREAMS as u32 {
        let id = 2 * at + 1;
        peer.write_all(&[frame(WINDOW_UPDATE, SYN, id, 0), frame(WINDOW_UPDATE, FIN, id, 0)].concat())
            .await
            .unwrap();
        let (_, flags, stream, ..) = read_on(&mut peer).await;
        assert_eq!((stream, flags), (id, ACK));
    }
    assert!(mux.is_serving());
    incoming.close();
    while incoming.recv().await.is_some() {}
    assert!(!mux.is_serving());
}

#[tokio::test]
async fn protocol_violation_closes_the_connection() {
    let overrun =
        [frame(WINDOW_UPDATE, SYN, 2, 0), data(0, 2, &vec![0; 200_000]), data(0, 2, &vec![0; 200_000])]
            .concat();
    let cases: [(&str, Vec<u8>, &str); 8] = [
        ("HTTP", b"HTTP/1.1 400 Bad Request\r\n".to_vec(), "speaks HTTP: is this its HTTP port"),
        ("a talker", b"220 mail.example ESMTP\r\n".to_vec(), "of kind 50"),
        ("a frame of a gigabyte", frame(DATA, 0, 2, 1 << 30), "1073741824 bytes in one frame"),
        ("more than the window", overrun, "by Data"),
        ("a stream of ours", frame(WINDOW_UPDATE, SYN, 1, 0), "by WindowUpdate with flags 0x1, stream 1"),
        (
            "a stream twice",
            [frame(WINDOW_UPDATE, SYN, 2, 0), frame(WINDOW_UPDATE, SYN, 2, 0)].concat(),
            "stream 2",
        ),
        ("an answer to no ping", frame(PING, ACK, 0, 77), "by Ping"),
        ("a window without end", frame(WINDOW_UPDATE, SYN, 2, u32::MAX), "by WindowUpdate"),
    ];
    for (what, bytes, expected) in cases {
        let (mux, _incoming, mut peer) = pair(Side::Client);
        peer.write_all(&bytes).await.unwrap();
        let why = mux.ended().await;
        assert!(matches!(&why, Lost::Violation(why) if why.contains(expected)), "{what}: {why:?}");
        // The socket is closed too.
        while read(&mut peer).await.is_some() {}
        assert!(matches!(mux.open().await, Err(Lost::Violation(_))), "{what}");
    }
}

#[tokio::test]
async fn streams_end_with_their_connection() {
    for end in ["go away", "close", "cut", "ours"] {
        let (mux, _incoming, mut peer) = pair(Side::Client);
        let mut stream = mux.open().await.unwrap();
        stream.write_all(b"a").await.unwrap();
        read_on(&mut peer).await;
        match end {
            "go away" => peer.write_all(&frame(GO_AWAY, 0, 0, 2)).await.unwrap(),
            "close" => peer.shutdown().await.unwrap(),
            "cut" => {
                peer.write_all(&[0; 5]).await.unwrap();
                peer.shutdown().await.unwrap();
            }
            _ => mux.close(),
        }
        assert!(stream.read_u8().await.is_err(), "{end}");
        let why = mux.ended().await;
        let is_told = match end {
            "go away" => matches!(why, Lost::GoAway(2)),
            "ours" => matches!(why, Lost::Closed),
            _ => matches!(why, Lost::Ended),
        };
        assert!(is_told, "{end}: {why:?}");
    }
}

/// Plays one side of a recorded connection from its bytes: we receive the recorded data, and our data reaches the peer.
#[tokio::test]
async fn recorded_connections_are_understood() {
    for (file, passed) in recordings::connections() {
        for side in [Side::Server, Side::Client] {
            let (mux, mut incoming, mut peer) = pair(side);
            let peers_way = side == Side::Server;
            let mut streams = BTreeMap::<u32, Stream>::new();
            let mut sent = BTreeMap::<u32, Vec<u8>>::new();
            for line in &passed[1..] {
                let mut header = None;
                Finder::default()
                    .inspect_frames(&line.bytes, |frame| {
                        header = Some(frame);
                        Ok(())
                    })
                    .unwrap();
                let (header, payload) = (header.unwrap(), &line.bytes[12..]);
                let opens = header.flags & u16::from(SYN) != 0 && header.stream != 0;
                if line.way == peers_way {
                    // Skip its answers to pings that we do not send.
                    if header.stream == 0 && header.flags & u16::from(ACK) != 0 {
                        continue;
                    }
                    peer.write_all(&line.bytes).await.unwrap();
                    if opens {
                        streams.insert(header.stream, *incoming.recv().await.unwrap());
                    }
                    if !payload.is_empty() {
                        let mut got = vec![0; payload.len()];
                        streams.get_mut(&header.stream).unwrap().read_exact(&mut got).await.unwrap();
                        assert!(got == payload, "{file}: {header:?}");
                    }
                } else {
                    if opens {
                        streams.insert(header.stream, mux.open().await.unwrap());
                    }
                    if !payload.is_empty() {
                        let stream = streams.get_mut(&header.stream).unwrap();
                        let write = tokio::time::timeout(Duration::from_secs(20), stream.write_all(payload));
                        write.await.expect("a window").unwrap();
                        sent.entry(header.stream).or_default().extend_from_slice(payload);
                    }
                    if header.flags & u16::from(FIN) != 0 {
                        streams.get_mut(&header.stream).unwrap().shutdown().await.unwrap();
                    }
                }
                assert!(mux.lost().is_none(), "{file}: {:?} after {header:?}", mux.lost());
            }
            let mut arrived = BTreeMap::<u32, Vec<u8>>::new();
            while arrived != sent {
                let (_, _, stream, _, payload) = read_on(&mut peer).await;
                if !payload.is_empty() {
                    arrived.entry(stream).or_default().extend_from_slice(&payload);
                }
            }
        }
    }
}
