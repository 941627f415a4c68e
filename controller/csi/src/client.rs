//! Calls of one CSI plugin: deadlines, limits of responses, and errors without secrets.
//!
//! In: a call and its request. Out: the response, or an error. The client has no state: it connects for each call.

use std::{path::PathBuf, time::Duration};

use prost::Message;

use crate::{
    connection::Exchange,
    error::{CallError, CallFailure},
    secrets::Secrets,
};

/// A plugin at a socket.
#[derive(Debug, Clone)]
pub struct Client {
    plugin: String,
    socket: PathBuf,
}

/// One of the plugin's calls, and its bounds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Method {
    /// `Service/Method`.
    pub(crate) name: &'static str,
    pub(crate) deadline: Duration,
    pub(crate) response_bytes_max: usize,
}

/// Calls that change a volume may wait for a storage system. Nomad waits as long for each try.
pub(crate) const VOLUME_DEADLINE: Duration = Duration::from_secs(120);

/// Calls that read the plugin's own state. Nomad waits as long for a plugin's description.
pub(crate) const QUERY_DEADLINE: Duration = Duration::from_secs(30);

/// Contexts and topologies have at most 4 KiB each, by the specification. Decoded, this becomes at most about 25 MiB.
pub(crate) const RESPONSE_BYTES_MAX: usize = 256 * 1024;

/// A list of some thousand entries.
pub(crate) const LIST_BYTES_MAX: usize = 1024 * 1024;

/// Longer messages of a plugin are cut.
const MESSAGE_BYTES_MAX: usize = 1024;

impl Method {
    pub(crate) const fn query(name: &'static str) -> Self {
        Self { name, deadline: QUERY_DEADLINE, response_bytes_max: RESPONSE_BYTES_MAX }
    }

    pub(crate) const fn volume(name: &'static str) -> Self {
        Self { name, deadline: VOLUME_DEADLINE, response_bytes_max: RESPONSE_BYTES_MAX }
    }

    pub(crate) const fn list(name: &'static str) -> Self {
        Self { name, deadline: VOLUME_DEADLINE, response_bytes_max: LIST_BYTES_MAX }
    }
}

impl Client {
    /// `plugin` is the id in the task's `csi_plugin` block, for errors.
    pub fn new(plugin: &str, socket: PathBuf) -> Self {
        Self { plugin: plugin.to_owned(), socket }
    }

    pub fn plugin(&self) -> &str {
        &self.plugin
    }

    pub(crate) async fn call<R: Message + Default>(
        &self,
        method: &Method,
        request: impl Message,
    ) -> Result<R, CallError> {
        self.call_with(method, &Secrets::default(), request).await
    }

    /// Calls a method whose request contains these secrets.
    pub(crate) async fn call_with<R: Message + Default>(
        &self,
        method: &Method,
        secrets: &Secrets,
        request: impl Message,
    ) -> Result<R, CallError> {
        let exchange = Exchange {
            socket: &self.socket,
            path: &format!("/csi.v1.{}", method.name),
            deadline: method.deadline,
            response_bytes_max: method.response_bytes_max,
        };
        let response = exchange.run(&request.encode_to_vec()).await;
        let response = response.map_err(|failure| self.failed(method, harmless(failure, secrets)))?;
        R::decode(response.as_slice()).map_err(|error| self.invalid(method, error.to_string()))
    }

    fn failed(&self, method: &Method, failure: CallFailure) -> CallError {
        CallError { call: method.name.to_owned(), plugin: self.plugin.clone(), failure }
    }

    /// The response violates the specification.
    pub(crate) fn invalid(&self, method: &Method, why: impl Into<String>) -> CallError {
        self.failed(method, CallFailure::Invalid { why: why.into() })
    }
}

/// A text of a plugin without secrets and control characters, and not too long.
pub(crate) fn clean(text: &str, secrets: &Secrets) -> String {
    let text = secrets.redact(text).replace(char::is_control, " ");
    match text.len() > MESSAGE_BYTES_MAX {
        true => format!("{}…", &text[..text.floor_char_boundary(MESSAGE_BYTES_MAX)]),
        false => text,
    }
}

fn harmless(failure: CallFailure, secrets: &Secrets) -> CallFailure {
    match failure {
        CallFailure::Reported { code, message } => {
            CallFailure::Reported { code, message: clean(&message, secrets) }
        }
        CallFailure::Invalid { why } => CallFailure::Invalid { why: clean(&why, secrets) },
        CallFailure::Interrupted { why } => CallFailure::Interrupted { why: clean(&why, secrets) },
        failure @ (CallFailure::Unreachable { .. } | CallFailure::Overdue { .. }) => failure,
    }
}

#[cfg(test)]
mod tests {
    use tokio::{io::AsyncWriteExt as _, net::UnixListener};

    use super::*;
    use crate::error::Code;

    /// The text that ends a connection was part of the error, with escapes.
    #[tokio::test]
    async fn a_connection_ends_without_the_text_of_the_plugin() {
        let folder = tempfile::tempdir().unwrap();
        let client = Client::new("p", folder.path().join("csi.sock"));
        let listener = UnixListener::bind(&client.socket).unwrap();
        let secrets = Secrets::new([("password".to_owned(), "hunter\"2".to_owned())]);
        let peer = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            // No settings; then GOAWAY of stream 0 because of too many calls, and a text.
            stream.write_all(b"\0\0\0\x04\0\0\0\0\0").await.unwrap();
            stream.write_all(b"\0\0\x11\x07\0\0\0\0\0\0\0\0\0\0\0\0\x0bhunter\"2\n").await.unwrap();
            stream
        };
        let method = Method::query("Node/NodeGetInfo");
        let (result, _stream) = tokio::join!(client.call_with::<()>(&method, &secrets, ()), peer);
        let CallFailure::Interrupted { why } = result.unwrap_err().failure else { panic!("another failure") };
        assert_eq!(why, "detected excessive load generating behavior");
    }

    #[test]
    fn texts_of_plugins_are_cut_and_have_no_secrets() {
        let secrets = Secrets::new([("password".to_owned(), "hunter2".to_owned())]);
        let reported = |message: &str| {
            let message = message.to_owned();
            let failure = CallFailure::Reported { code: Code::INTERNAL, message };
            let CallFailure::Reported { message, .. } = harmless(failure, &secrets) else { unreachable!() };
            message
        };
        assert_eq!(reported("mount -o pass=hunter2\n\x1b[31mfailed"), "mount -o pass=[secret]  [31mfailed");
        let long = reported(&"ä".repeat(2000));
        assert!(long.len() < MESSAGE_BYTES_MAX + 4 && long.ends_with("ä…"), "{long}");
        let at_the_limit = format!("{}hunter2", "x".repeat(MESSAGE_BYTES_MAX - 3));
        assert!(!reported(&at_the_limit).contains("hun"), "a value is removed before the text is cut");
        for failure in [
            CallFailure::Invalid { why: "hunter2\n".to_owned() },
            CallFailure::Interrupted { why: "hunter2\n".to_owned() },
        ] {
            let text = harmless(failure, &secrets).to_string();
            assert!(text.ends_with(": [secret] "), "{text:?}");
        }
    }
}
