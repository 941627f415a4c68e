//! Finds the end of a message. Messages have no length prefix, so finding the end requires a walk over the values.
//!
//! In: the bytes received so far. Out: the length of the first message once it is complete, or the limit that it exceeds, as soon as a
//! length in it claims so. The walk resumes where it stopped: it reads no byte twice, and skips the contents of texts.

use super::Limits;

/// A message that exceeds a limit, or is not a message. Reads after "failed to".
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LimitError {
    /// Too many bytes.
    #[error("accept a message of more than {0} bytes")]
    Bytes(usize),
    /// Too deeply nested.
    #[error("accept a message with more than {0} nested lists and maps")]
    Depth(usize),
    /// Too many values.
    #[error("accept a message of more than {0} values")]
    Values(usize),
    /// The byte 0xc1 starts no value.
    #[error("accept a message with the byte 0xc1 at {0}, which starts no value")]
    Reserved(usize),
}

/// The head of a value.
pub(super) struct Head {
    /// Bytes of the head itself.
    pub(super) head: usize,
    /// Bytes that follow the head.
    pub(super) payload: usize,
    /// Values that follow the head.
    pub(super) values: usize,
}

/// The head at the start of `bytes`; `None` if it is incomplete, `Err` if its first byte starts no value.
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
        // Extensions have a type byte, counted here as payload.
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
    /// Offset of the next value; beyond the received bytes while a text is incomplete.
    at: usize,
    values: usize,
    /// How many values each open list or map still lacks.
    open: Vec<usize>,
}

impl Extent {
    /// Starts a message with these limits.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self { limits, at: 0, values: 0, open: Vec::new() }
    }

    /// Continues over `bytes`, which holds the message from its start. Returns its length once it is complete.
    ///
    /// # Errors
    /// If the message exceeds a limit, even if the bytes that it announces have not arrived.
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
        // Each value to come takes at least one byte.
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
