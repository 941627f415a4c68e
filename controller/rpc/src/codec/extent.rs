//! Where a message ends. Messages follow each other without a length before them, so the end is found by walking over the values.
//!
//! In: what has arrived so far. Out: the length of the first message once all of it is there, or which bound it breaks, as soon as
//! it claims to. Goes on where it stopped: no byte is looked at twice, and none of the contents of texts.

use super::Limits;

/// A message that is larger than it may be, or is none. Reads after "failed to".
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LimitError {
    /// Too long.
    #[error("take a message of more than {0} bytes")]
    Bytes(usize),
    /// Too deep.
    #[error("take a message with more than {0} lists and maps within each other")]
    Depth(usize),
    /// Too many values.
    #[error("take a message of more than {0} values")]
    Values(usize),
    /// The byte c1 begins nothing.
    #[error("take a message with the byte 0xc1 at {0}, which begins no value")]
    Reserved(usize),
}

/// What one value begins with.
pub(super) struct Head {
    /// Bytes of the value's head.
    pub(super) head: usize,
    /// Bytes that follow it.
    pub(super) payload: usize,
    /// Values that follow it.
    pub(super) values: usize,
}

/// The head at the beginning of `bytes`. None: more of it must arrive. An error: no value begins so.
pub(super) fn head(bytes: &[u8]) -> Option<Result<Head, ()>> {
    let &first = bytes.first()?;
    let sized = |width: usize| -> Option<usize> {
        let length = bytes.get(1..1 + width)?;
        let length = length.iter().fold(0_u64, |sum, &byte| sum << 8 | u64::from(byte));
        Some(usize::try_from(length).unwrap_or(usize::MAX))
    };
    let value = |head, payload, values| Some(Ok(Head { head, payload, values }));
    let small = |mask: u8| usize::from(first & mask);
    match first {
        0x00..=0x7f | 0xe0..=0xff | 0xc0 | 0xc2 | 0xc3 => value(1, 0, 0),
        0x80..=0x8f => value(1, 0, 2 * small(0x0f)),
        0x90..=0x9f => value(1, 0, small(0x0f)),
        0xa0..=0xbf => value(1, small(0x1f), 0),
        0xc1 => Some(Err(())),
        0xc4 | 0xd9 => value(2, sized(1)?, 0),
        0xc5 | 0xda => value(3, sized(2)?, 0),
        0xc6 | 0xdb => value(5, sized(4)?, 0),
        // Extensions have a byte for their type, here counted with what follows.
        0xc7 => value(2, sized(1)?.saturating_add(1), 0),
        0xc8 => value(3, sized(2)?.saturating_add(1), 0),
        0xc9 => value(5, sized(4)?.saturating_add(1), 0),
        0xca | 0xce | 0xd2 => value(1, 4, 0),
        0xcb | 0xcf | 0xd3 => value(1, 8, 0),
        0xcc | 0xd0 => value(1, 1, 0),
        0xcd | 0xd1 => value(1, 2, 0),
        0xd4..=0xd8 => value(1, 1 + (1 << (first - 0xd4)), 0),
        0xdc => value(3, 0, sized(2)?),
        0xdd => value(5, 0, sized(4)?),
        0xde => value(3, 0, sized(2)?.saturating_mul(2)),
        0xdf => value(5, 0, sized(4)?.saturating_mul(2)),
    }
}

/// The walk over one message.
#[derive(Debug)]
pub struct Extent {
    limits: Limits,
    /// Where the next value begins, from the beginning of the message; beyond what is there while a text is still to come.
    at: usize,
    values: usize,
    /// How many values each list or map that is open still has.
    open: Vec<usize>,
}

impl Extent {
    /// A message with these bounds.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self { limits, at: 0, values: 0, open: Vec::new() }
    }

    /// Goes on over `bytes`, the message from its beginning as far as it is there. Its length once it is there in full.
    ///
    /// # Errors
    /// When it breaks a bound, whether or not what it claims to have has arrived.
    pub fn of(&mut self, bytes: &[u8]) -> Result<Option<usize>, LimitError> {
        loop {
            if self.at > 0 && self.open.is_empty() {
                return Ok((self.at <= bytes.len()).then_some(self.at));
            }
            let Some(rest) = bytes.get(self.at..) else { return Ok(None) };
            let Some(head) = head(rest) else { return Ok(None) };
            let head = head.map_err(|()| LimitError::Reserved(self.at))?;
            self.step(&head)?;
        }
    }

    fn step(&mut self, head: &Head) -> Result<(), LimitError> {
        let Limits { bytes, depth, values } = self.limits;
        self.at = self.at.saturating_add(head.head).saturating_add(head.payload);
        // Each value that is still to come has a byte.
        if self.at.saturating_add(head.values) > bytes {
            return Err(LimitError::Bytes(bytes));
        }
        self.values = self.values.saturating_add(1);
        if self.values.saturating_add(head.values) > values {
            return Err(LimitError::Values(values));
        }
        if let Some(left) = self.open.last_mut() {
            *left -= 1;
        }
        if head.values > 0 {
            self.open.push(head.values);
        }
        if self.open.len() > depth {
            return Err(LimitError::Depth(depth));
        }
        while self.open.last() == Some(&0) {
            self.open.pop();
        }
        Ok(())
    }
}
