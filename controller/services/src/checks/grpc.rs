//! A call of gRPC's health protocol (`grpc.health.v1.Health/Check`) without a gRPC client: a request and a response of
//! one message each, over HTTP/2.
//!
//! In: the service to check. Out: whether it is serving. The messages are small enough to encode here: a
//! `HealthCheckRequest` has the service's name as field 1, a `HealthCheckResponse` its status.

use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderValue, TE};

/// The path of the health protocol.
pub(super) const PATH: &str = "/grpc.health.v1.Health/Check";

/// A longer response is something else.
pub(super) const ANSWER_BYTES_MAX: usize = 4 * 1024;

/// The headers of every call.
pub(super) fn headers() -> HeaderMap {
    HeaderMap::from_iter([
        (CONTENT_TYPE, HeaderValue::from_static("application/grpc")),
        (TE, HeaderValue::from_static("trailers")),
    ])
}

/// The framed request: not compressed, its length, the message.
pub(super) fn question(service: &str) -> Vec<u8> {
    let mut message = Vec::new();
    if !service.is_empty() {
        // Field 1, a string.
        message.push(0x0a);
        varint(service.len() as u64, &mut message);
        message.extend_from_slice(service.as_bytes());
    }
    let mut frame = vec![0];
    frame.extend_from_slice(&u32::try_from(message.len()).unwrap_or(u32::MAX).to_be_bytes());
    frame.extend(message);
    frame
}

/// Evaluates the response.
pub(super) fn verdict(headers: &HeaderMap, body: &[u8]) -> Result<(), String> {
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    // A response without a message has its status in the headers.
    if let Some(code) = header("grpc-status").filter(|code| *code != "0") {
        let meaning = match code {
            "5" => "service unknown",
            "12" => "the health protocol is not served",
            _ => "refused",
        };
        let message = header("grpc-message").unwrap_or_default();
        return Err(format!("grpc {meaning} (status {code}) {message}").trim_end().to_owned());
    }
    match serving_status(body) {
        Some(1) => Ok(()),
        Some(0) => Err("grpc UNKNOWN".to_owned()),
        Some(2) => Err("grpc NOT_SERVING".to_owned()),
        Some(3) => Err("grpc SERVICE_UNKNOWN".to_owned()),
        Some(other) => Err(format!("grpc answers with the unknown status {other}")),
        None => Err("grpc answers without a health status".to_owned()),
    }
}

/// Field 1 of the framed message; 0 if it is absent.
fn serving_status(body: &[u8]) -> Option<u64> {
    let (head, message) = body.split_at_checked(5)?;
    let length = u32::from_be_bytes(head.get(1..)?.try_into().ok()?);
    if head.first() != Some(&0) || usize::try_from(length) != Ok(message.len()) {
        return None;
    }
    let mut status = 0;
    let mut rest = message;
    while !rest.is_empty() {
        let key = read_varint(&mut rest)?;
        match (key >> 3, key & 7) {
            (1, 0) => status = read_varint(&mut rest)?,
            // Later versions of the protocol may add fields.
            (_, 0) => drop(read_varint(&mut rest)?),
            (_, 2) => {
                let length = usize::try_from(read_varint(&mut rest)?).ok()?;
                rest = rest.get(length..)?;
            }
            _ => return None,
        }
    }
    Some(status)
}

fn varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn read_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn framed(message: &[u8]) -> Vec<u8> {
        [&[0, 0, 0, 0, message.len() as u8], message].concat()
    }

    #[test]
    fn questions_name_their_service() {
        assert_eq!(question(""), framed(&[]));
        assert_eq!(question("a.B"), framed(b"\x0a\x03a.B"));
        let long = "s".repeat(300);
        assert_eq!(question(&long)[5..8], [0x0a, 0xac, 0x02]);
    }

    #[test]
    fn only_serving_is_fine() {
        let none = HeaderMap::new();
        for (body, expected) in [
            (framed(&[8, 1]), Ok(())),
            // With an unknown field.
            (framed(&[0x12, 2, 9, 9, 8, 1, 0x18, 5]), Ok(())),
            (framed(&[8, 2]), Err("grpc NOT_SERVING")),
            (framed(&[]), Err("grpc UNKNOWN")),
            (framed(&[8, 3]), Err("grpc SERVICE_UNKNOWN")),
            (framed(&[8, 99]), Err("grpc answers with the unknown status 99")),
        ] {
            assert_eq!(verdict(&none, &body), expected.map_err(str::to_owned));
        }
        let bodies = [
            vec![],
            vec![0, 0, 0, 0],
            vec![1, 0, 0, 0, 2, 8, 1],
            vec![0, 0, 0, 0, 9, 8, 1],
            vec![0, 255, 255, 255, 255],
            framed(&[8]),
            framed(&[8, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255]),
            framed(&[0x12, 200, 1]),
            framed(&[0x0b]),
        ];
        for body in bodies {
            let verdict = verdict(&none, &body);
            assert_eq!(verdict, Err("grpc answers without a health status".to_owned()), "{body:?}");
        }
    }

    #[test]
    fn grpc_status_without_a_message_is_shown() {
        let with = |code, message| {
            HeaderMap::from_iter([
                ("grpc-status".parse().unwrap(), HeaderValue::from_static(code)),
                ("grpc-message".parse().unwrap(), HeaderValue::from_static(message)),
            ])
        };
        let verdict = |code, message| verdict(&with(code, message), &[]).unwrap_err();
        assert_eq!(verdict("5", "unknown service"), "grpc service unknown (status 5) unknown service");
        assert_eq!(verdict("12", ""), "grpc the health protocol is not served (status 12)");
        assert_eq!(verdict("16", "no"), "grpc refused (status 16) no");
    }
}
