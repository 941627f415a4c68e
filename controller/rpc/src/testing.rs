//! For tests only: a test service, and two ends of a connection.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::io::duplex;

use crate::{
    call::Caller,
    codec::{Limits, Value},
    error::Refusal,
    framed::{self, Framed, StreamFrame},
    mux::{Io, Mux, Side},
    serve::{Call, Peer, Service, answer, serve},
    stream::Stream,
};

/// Longer than anything here takes.
pub(crate) const WAIT: Duration = Duration::from_secs(20);

/// A service with methods for tests.
#[derive(Debug, Default)]
pub(crate) struct Lab {
    /// Number of calls begun.
    pub(crate) begun: AtomicUsize,
    /// The name of this server.
    pub(crate) name: &'static str,
    /// The error that every call returns, if set.
    pub(crate) fails: std::sync::Mutex<Option<String>>,
    /// Streaming calls that `Lab.Hold` opened to its callers.
    pub(crate) held: std::sync::Mutex<Vec<Framed<Stream>>>,
}

impl Service for Lab {
    async fn call(&self, peer: &Peer, call: Call) -> Result<Vec<u8>, Refusal> {
        self.begun.fetch_add(1, Ordering::SeqCst);
        if let Some(why) = self.fails.lock().unwrap().clone() {
            return Err(Refusal::Error(why));
        }
        match &call.method[..] {
            "Lab.Echo" => answer(&call.arguments::<Value>()?),
            "Status.Ping" => answer(&()),
            "Lab.Name" => answer(self.name),
            "Lab.Ports" => answer(&call.arguments::<Vec<u16>>()?),
            // A list that announces more elements than the reader accepts.
            "Lab.Huge" => Ok(vec![0xdd, 0xff, 0xff, 0xff, 0xff]),
            "Lab.Fail" => Err(Refusal::Error("node not found".to_owned())),
            "Lab.Hang" => std::future::pending().await,
            "Lab.Slow" => {
                tokio::time::sleep(Duration::from_secs(60)).await;
                answer(&())
            }
            // As on servers, zero means five minutes.
            "Lab.Block" => {
                let millis = call.arguments()?;
                tokio::time::sleep(Duration::from_millis(if millis == 0 { 300_000 } else { millis })).await;
                answer(self.name)
            }
            "Lab.Hold" => {
                let stream = framed::stream(peer.mux.as_ref().unwrap(), "Lab.Repeat", &1, WAIT).await;
                self.held.lock().unwrap().push(stream.unwrap());
                answer(&())
            }
            "Lab.Panic" => panic!("as asked"),
            "Lab.Back" => {
                // Calls the caller.
                let caller = Caller::new(peer.mux.clone().unwrap());
                let reply = caller
                    .call("Lab.Name", &(), WAIT)
                    .await
                    .map_err(|error| Refusal::Error(error.to_string()))?;
                Ok(reply.bytes().to_owned())
            }
            method if method.starts_with("Lab.") => Err(Refusal::UnknownMethod),
            _ => Err(Refusal::UnknownService),
        }
    }

    fn limits(&self) -> Limits {
        Limits::BODY
    }

    fn streams(&self, method: &str) -> bool {
        method == "Lab.Repeat"
    }

    async fn stream(&self, _: &Peer, _: String, stream: &mut Framed<Box<dyn Io>>) {
        let Ok(times) = stream.arguments::<usize>().await else { return };
        let (reader, mut writer) = stream.halves();
        while let Ok(Some(message)) = reader.next(Limits::FRAME).await {
            for _ in 0..times {
                writer.send(&StreamFrame { payload: message.clone(), error: None }).await.unwrap();
            }
        }
    }
}

/// Two ends that can call each other.
pub(crate) struct Pair {
    pub(crate) client: Caller,
    pub(crate) server: Caller,
    pub(crate) at_server: Arc<Lab>,
}

pub(crate) fn pair() -> Pair {
    let (ours, theirs) = duplex(64 * 1024);
    let start = |io, side, name| {
        let ((mux, incoming), lab) = (Mux::start(io, side), Arc::new(Lab { name, ..Lab::default() }));
        let peer = Peer { address: "test".to_owned(), mux: Some(mux.clone()) };
        tokio::spawn(serve(incoming, Arc::clone(&lab), peer));
        (Caller::new(mux), lab)
    };
    let ((client, _), (server, at_server)) =
        (start(ours, Side::Client, "client"), start(theirs, Side::Server, "server"));
    Pair { client, server, at_server }
}
