//! The payload of a dispatched job, as Nomad's API shows it: a snappy block in base64.
//!
//! In: a job. Out: a member of its JSON. The block consists of literals only (`format_description.txt` of snappy), which every
//! decoder accepts, so no compressor is needed.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use herdlet_api_types::job::Job;
use serde_json::Value;

/// The largest literal with a two-byte length.
const LITERAL_BYTES_MAX: usize = 1 << 16;

/// Null if there is no payload.
pub(super) fn to_json(job: &Job) -> Value {
    let payload = job.dispatched().and_then(|(payload, _)| STANDARD.decode(payload).ok());
    payload
        .filter(|bytes| !bytes.is_empty())
        .map_or(Value::Null, |bytes| STANDARD.encode(block(&bytes)).into())
}

fn block(bytes: &[u8]) -> Vec<u8> {
    let mut block = Vec::with_capacity(bytes.len() + 16);
    let mut length = bytes.len();
    while length >= 0x80 {
        block.push(low_byte(length) | 0x80);
        length >>= 7;
    }
    block.push(low_byte(length));
    for literal in bytes.chunks(LITERAL_BYTES_MAX) {
        let last = literal.len() - 1;
        block.extend([61 << 2, low_byte(last), low_byte(last >> 8)]);
        block.extend_from_slice(literal);
    }
    block
}

fn low_byte(number: usize) -> u8 {
    number.to_le_bytes()[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_its_length_and_literals() {
        assert_eq!(block(b"abc"), b"\x03\xf4\x02\x00abc");
        let long = block(&[7; 300]);
        assert_eq!(long[..5], [0xac, 0x02, 0xf4, 0x2b, 0x01]);
        assert_eq!(long.len(), 5 + 300);
        assert_eq!(block(&[7; 65_537]).len(), 3 + 3 + 65_536 + 3 + 1);
    }
}
