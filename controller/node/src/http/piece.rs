//! Decodes one message of a stream from servers or another node.
//!
//! In: a decoded message. Out: its payload, or why the stream has failed.

use herdlet_rpc::codec::Value;

use super::HttpError;

/// The content of a message.
pub(super) enum Piece {
    Payload(Vec<u8>),
    Failed(u16, String),
}

/// The content of a message: a payload, or the data of an event.
pub(super) fn piece(message: Value) -> Piece {
    if let Some(failure) = failure(&message) {
        return failure;
    }
    let payload = match message.get("Event") {
        Some(event) => event.get("Data"),
        None => message.get("Payload"),
    };
    Piece::Payload(match payload {
        Some(Value::Text(text)) => text.clone().into_bytes(),
        Some(Value::Bytes(bytes)) => bytes.clone(),
        _ => Vec::new(),
    })
}

pub(super) fn failure(message: &Value) -> Option<Piece> {
    let error = message.get("Error").filter(|error| matches!(error, Value::Map(_)))?;
    let why = error.get("Message").and_then(Value::as_text).unwrap_or_default();
    let code = error.get("Code").and_then(Value::as_u64).and_then(|code| u16::try_from(code).ok());
    Some(match code {
        Some(code) => Piece::Failed(code, why.to_owned()),
        None => {
            let HttpError(code, why) = herdlet_rpc::error::ServerError::new(why.to_owned()).into();
            Piece::Failed(code, why)
        }
    })
}

/// The content of a command's message, for a websocket: its payload, or why the command has failed.
pub(super) fn payload(message: Value) -> Result<Vec<u8>, (u16, String)> {
    match piece(message) {
        Piece::Payload(payload) => Ok(payload),
        Piece::Failed(code, why) => Err((code, why)),
    }
}
