//! Public keys of RSA, as PKCS #1 encodes them (RFC 8017, A.1.1).
//!
//! In: bytes. Out: the two numbers of the key, as a JSON Web Key needs them (RFC 7518, 6.3.1).

/// Modulus and exponent of a key in DER, big-endian and without a sign byte; `None` if it is none.
pub fn components(der: &[u8]) -> Option<(&[u8], &[u8])> {
    let (sequence, _) = element(der, 0x30)?;
    let (modulus, rest) = element(sequence, 0x02)?;
    let (exponent, _) = element(rest, 0x02)?;
    Some((unsigned(modulus), unsigned(exponent)))
}

/// The content of the first element, which must have this tag, and the bytes after it.
fn element(der: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let [found, length, rest @ ..] = der else { return None };
    let (length, rest) = match length {
        short @ 0..=0x7f => (usize::from(*short), rest),
        // RSA keys are shorter than 64 KiB.
        0x81 => (usize::from(*rest.first()?), rest.get(1..)?),
        0x82 => (usize::from(u16::from_be_bytes([*rest.first()?, *rest.get(1)?])), rest.get(2..)?),
        _ => return None,
    };
    (*found == tag).then_some(())?;
    rest.split_at_checked(length)
}

/// Removes the zero byte that marks a number as non-negative.
fn unsigned(number: &[u8]) -> &[u8] {
    number.strip_prefix(&[0]).unwrap_or(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_two_numbers() {
        let key = [0x30, 0x09, 0x02, 0x02, 0x00, 0x80, 0x02, 0x03, 0x01, 0x00, 0x01];
        assert_eq!(components(&key), Some((&[0x80][..], &[1, 0, 1][..])));
        for end in 0..key.len() {
            assert_eq!(components(&key[..end]), None, "{end}");
        }
        assert_eq!(components(&[0x31; 11]), None);
    }
}
