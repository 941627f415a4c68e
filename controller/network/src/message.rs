//! Netlink messages (netlink(7)): a header, a part of fixed size, and attributes, which may contain attributes.
//!
//! In: numbers, texts, bytes. Out: bytes for the kernel; and the parts of its answers. Reading never fails: what is torn or
//! too short is not there.

/// Length of a message's header.
pub const HEADER_LEN: usize = 16;

/// Length of an attribute's header.
const ATTRIBUTE_HEADER_LEN: usize = 4;

/// The value consists of attributes.
const NESTED: u16 = 1 << 15;

/// The two bits of a kind that describe its value.
const KIND_MASK: u16 = !(0b11 << 14);

/// The request wants an acknowledgement.
pub const ACK: u16 = 0x4;
/// A request.
pub const REQUEST: u16 = 0x1;
/// All objects, not one.
pub const DUMP: u16 = 0x300;
/// Replace what exists.
pub const REPLACE: u16 = 0x100;
/// Fail if it exists.
pub const EXCLUSIVE: u16 = 0x200;
/// Create it.
pub const CREATE: u16 = 0x400;
/// Add it after the others.
pub const APPEND: u16 = 0x800;

/// Attributes, in the order in which they are added.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Attributes {
    bytes: Vec<u8>,
    overlong: Overlong,
}

/// Whether a value is too long for the length in its header.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Overlong {
    #[default]
    No,
    Yes,
}

impl Attributes {
    /// No attributes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Attributes that follow a header of their own, as in the description of a link's peer.
    pub fn after(header: &[u8]) -> Self {
        let mut all = Self { bytes: header.to_vec(), overlong: Overlong::No };
        all.pad();
        all
    }

    /// Adds bytes.
    #[must_use]
    pub fn with(mut self, kind: u16, value: &[u8]) -> Self {
        match u16::try_from(ATTRIBUTE_HEADER_LEN + value.len()) {
            Ok(len) => {
                self.bytes.extend(len.to_ne_bytes());
                self.bytes.extend(kind.to_ne_bytes());
                self.bytes.extend(value);
                self.pad();
            }
            Err(_) => self.overlong = Overlong::Yes,
        }
        self
    }

    /// Adds a number in the machine's byte order, as rtnetlink has it.
    #[must_use]
    pub fn with_u32(self, kind: u16, value: u32) -> Self {
        self.with(kind, &value.to_ne_bytes())
    }

    /// Adds a number in network byte order, as nf_tables has it.
    #[must_use]
    pub fn with_be32(self, kind: u16, value: u32) -> Self {
        self.with(kind, &value.to_be_bytes())
    }

    /// Adds a text with its end.
    #[must_use]
    pub fn with_text(self, kind: u16, value: &str) -> Self {
        let mut bytes = value.as_bytes().to_vec();
        bytes.push(0);
        self.with(kind, &bytes)
    }

    /// Adds attributes as the value of one.
    #[must_use]
    pub fn with_nested(mut self, kind: u16, inner: &Self) -> Self {
        if inner.overlong == Overlong::Yes {
            self.overlong = Overlong::Yes;
        }
        self.with(kind | NESTED, &inner.bytes)
    }

    /// The encoded attributes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

/// A request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// What is requested.
    pub kind: u16,
    /// Such as [`REQUEST`].
    pub flags: u16,
    /// The part of fixed size.
    pub fixed: Vec<u8>,
    /// What follows it.
    pub attributes: Attributes,
}

/// The message does not fit into the lengths of its headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("encode a message: a value is too long")]
pub struct TooLong;

impl Message {
    /// Appends the message to `out`.
    ///
    /// # Errors
    /// If a value is too long. `out` is unchanged.
    pub fn encode(&self, sequence: u32, out: &mut Vec<u8>) -> Result<(), TooLong> {
        if self.attributes.overlong == Overlong::Yes {
            return Err(TooLong);
        }
        let fixed_len = self.fixed.len().next_multiple_of(4);
        let len = HEADER_LEN + fixed_len + self.attributes.bytes.len();
        let start = out.len();
        out.extend(u32::try_from(len).map_err(|_| TooLong)?.to_ne_bytes());
        out.extend(self.kind.to_ne_bytes());
        out.extend(self.flags.to_ne_bytes());
        out.extend(sequence.to_ne_bytes());
        // The kernel sees the sender from the socket.
        out.extend(0_u32.to_ne_bytes());
        out.extend(&self.fixed);
        out.resize(start + HEADER_LEN + fixed_len, 0);
        out.extend(&self.attributes.bytes);
        Ok(())
    }
}

/// A message of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageView<'b> {
    /// What it is.
    pub kind: u16,
    /// Its flags.
    pub flags: u16,
    /// The number of the request that it answers.
    pub sequence: u32,
    /// The address of the socket whose request has caused it.
    pub port: u32,
    /// Everything after the header.
    pub body: &'b [u8],
}

/// Splits off the first message of a datagram; the second value is the rest.
pub fn read(datagram: &[u8]) -> Option<(MessageView<'_>, &[u8])> {
    let len = usize::try_from(read_u32(datagram, 0)?).ok()?;
    let kind = read_u16(datagram, 4)?;
    let flags = read_u16(datagram, 6)?;
    let sequence = read_u32(datagram, 8)?;
    let port = read_u32(datagram, 12)?;
    let body = datagram.get(HEADER_LEN..len)?;
    let rest = datagram.get(len.next_multiple_of(4)..).unwrap_or_default();
    Some((MessageView { kind, flags, sequence, port, body }, rest))
}

/// The attributes in these bytes, each with its kind.
pub fn attributes(bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let len = usize::from(read_u16(rest, 0)?);
        let kind = read_u16(rest, 2)? & KIND_MASK;
        let value = rest.get(ATTRIBUTE_HEADER_LEN..len)?;
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// The attributes after a part of fixed size.
pub fn attributes_after(body: &[u8], fixed_len: usize) -> impl Iterator<Item = (u16, &[u8])> {
    attributes(body.get(fixed_len.next_multiple_of(4)..).unwrap_or_default())
}

/// The value of the first attribute of this kind.
pub fn find(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(bytes).find_map(|(other, value)| (other == kind).then_some(value))
}

/// The value of the first attribute of this kind after a fixed part of this length.
pub fn find_after(body: &[u8], fixed_len: usize, kind: u16) -> Option<&[u8]> {
    find(body.get(fixed_len.next_multiple_of(4)..).unwrap_or_default(), kind)
}

/// A number in the machine's byte order.
pub fn read_u16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(at..at.checked_add(2)?)?.first_chunk()?))
}

/// A number in the machine's byte order.
pub fn read_u32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..at.checked_add(4)?)?.first_chunk()?))
}

/// A number in network byte order.
pub fn read_be32(bytes: &[u8], at: usize) -> Option<u32> {
    read_u32(bytes, at).map(u32::from_be)
}

/// A text up to its end.
pub fn read_text(bytes: &[u8]) -> String {
    let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The fields of headers have the machine's byte order; these bytes are those of a little-endian one.
    #[cfg(target_endian = "little")]
    #[test]
    fn message_is_encoded_byte_for_byte() {
        let inner = Attributes::new().with(1, &[7]).with_be32(2, 0x0102_0304);
        let attributes = Attributes::new().with_text(3, "lo").with_nested(18, &inner);
        let message = Message { kind: 16, flags: REQUEST | ACK, fixed: vec![1, 2, 3], attributes };
        let mut bytes = vec![9];
        message.encode(5, &mut bytes).unwrap();
        #[rustfmt::skip]
        assert_eq!(bytes, [
            9,
            48, 0, 0, 0, 16, 0, 5, 0, 5, 0, 0, 0, 0, 0, 0, 0,
            1, 2, 3, 0,
            7, 0, 3, 0, b'l', b'o', 0, 0,
            20, 0, 18, 0x80,
            5, 0, 1, 0, 7, 0, 0, 0,
            8, 0, 2, 0, 1, 2, 3, 4,
        ]);
        let (received, rest) = read(&bytes[1..]).unwrap();
        assert_eq!((received.kind, received.sequence, rest.len()), (16, 5, 0));
        let found: Vec<_> =
            attributes_after(received.body, 3).map(|(kind, value)| (kind, value.len())).collect();
        assert_eq!(found, [(3, 3), (18, 16)]);
        let nested = attributes_after(received.body, 3).nth(1).map(|(_, value)| value).unwrap();
        assert_eq!(find(nested, 2).and_then(|value| read_be32(value, 0)), Some(0x0102_0304));
    }

    #[test]
    fn value_that_does_not_fit_is_refused() {
        let long = vec![0; usize::from(u16::MAX)];
        let inner = Attributes::new().with(1, &long);
        for attributes in [inner.clone(), Attributes::new().with_nested(2, &inner)] {
            let message = Message { kind: 1, flags: 0, fixed: Vec::new(), attributes };
            let mut bytes = Vec::new();
            assert_eq!(message.encode(1, &mut bytes), Err(TooLong));
            assert!(bytes.is_empty());
        }
    }

    #[test]
    fn torn_bytes_have_no_content_and_no_end() {
        for bytes in [
            &[][..],
            &[0; 3],
            &[0; 15],
            &[0; 16],
            &[0xff; 20],
            &[0xff; 64],
            &[15, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        ] {
            assert!(read(bytes).is_none_or(|(_, rest)| rest.len() < bytes.len()), "{bytes:?}");
            assert!(attributes(bytes).count() <= bytes.len(), "{bytes:?}");
            assert!(attributes_after(bytes, 1 << 20).next().is_none());
        }
        // A length of zero would be read for ever.
        assert_eq!(attributes(&[0; 64]).count(), 0);
        // The second attribute is longer than what is left.
        assert_eq!(attributes(&[4, 0, 1, 0, 9, 0, 2, 0]).count(), 1);
        assert_eq!(read_text(b"eth0\0x"), "eth0");
        assert_eq!(read_u32(&[0; 8], usize::MAX), None);
    }
}
