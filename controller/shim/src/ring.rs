//! Positions of a byte ring between one producer (the loop that empties a pipe) and one consumer (the log writer).
//!
//! In: bytes put in, bytes taken out. Out: which contiguous part of the ring may be filled or read next. It holds no
//! memory and does no IO. The ring's size is a power of two, at most 2^31.

use core::sync::atomic::{AtomicU64, Ordering};

/// A contiguous part of the ring, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Where it begins.
    pub offset: usize,
    /// How long it is; 0 means that there is nothing to fill or to read.
    pub len: usize,
}

/// Both ends of one ring in one word, so that each side sees a consistent pair.
///
/// The upper half counts the bytes put in, the lower half those taken out, both modulo 2^32.
#[derive(Debug, Default)]
pub struct Cursor(AtomicU64);

impl Cursor {
    /// An empty ring.
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// How many bytes wait for the consumer.
    #[must_use]
    pub fn used(&self) -> usize {
        let (put, taken) = split(self.0.load(Ordering::SeqCst));
        put.wrapping_sub(taken) as usize
    }

    /// Producer: where the next bytes may go. An empty ring begins again at offset 0, so that light traffic touches
    /// few pages.
    #[must_use]
    pub fn vacant(&self, size: usize) -> Span {
        let word = self.0.load(Ordering::SeqCst);
        let (mut put, mut taken) = split(word);
        if put == taken {
            // Only the producer moves an empty ring, so this exchange can't fail.
            if self.0.compare_exchange(word, 0, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
                (put, taken) = (0, 0);
            }
        }
        let used = put.wrapping_sub(taken) as usize;
        let offset = put as usize & (size - 1);
        Span { offset, len: (size - used).min(size - offset) }
    }

    /// Producer: `len` bytes were put where [`Cursor::vacant`] said.
    pub fn put(&self, len: usize) {
        self.step(|put, taken| (put.wrapping_add(len as u32), taken));
    }

    /// Consumer: which bytes come next.
    #[must_use]
    pub fn filled(&self, size: usize) -> Span {
        let (put, taken) = split(self.0.load(Ordering::SeqCst));
        let offset = taken as usize & (size - 1);
        Span { offset, len: (put.wrapping_sub(taken) as usize).min(size - offset) }
    }

    /// Consumer: `len` bytes of what [`Cursor::filled`] said are done with.
    pub fn take(&self, len: usize) {
        self.step(|put, taken| (put, taken.wrapping_add(len as u32)));
    }

    fn step(&self, next: impl Fn(u32, u32) -> (u32, u32)) {
        let mut word = self.0.load(Ordering::SeqCst);
        loop {
            let (put, taken) = split(word);
            let (put, taken) = next(put, taken);
            let new = (u64::from(put) << 32) | u64::from(taken);
            match self.0.compare_exchange_weak(word, new, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return,
                Err(now) => word = now,
            }
        }
    }
}

fn split(word: u64) -> (u32, u32) {
    ((word >> 32) as u32, word as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_ring_begins_at_its_first_byte() {
        let cursor = Cursor::new();
        assert_eq!(cursor.vacant(16), Span { offset: 0, len: 16 });
        cursor.put(10);
        assert_eq!(cursor.filled(16), Span { offset: 0, len: 10 });
        cursor.take(10);
        assert_eq!(cursor.vacant(16), Span { offset: 0, len: 16 });
    }

    #[test]
    fn the_end_is_passed_in_two_parts() {
        let cursor = Cursor::new();
        cursor.put(12);
        cursor.take(8);
        assert_eq!(cursor.vacant(16), Span { offset: 12, len: 4 });
        cursor.put(4);
        assert_eq!(cursor.vacant(16), Span { offset: 0, len: 8 });
        cursor.put(8);
        assert_eq!((cursor.vacant(16).len, cursor.used()), (0, 16));
        assert_eq!(cursor.filled(16), Span { offset: 8, len: 8 });
        cursor.take(8);
        assert_eq!(cursor.filled(16), Span { offset: 0, len: 8 });
    }

    #[test]
    fn counters_may_overflow() {
        let cursor = Cursor(AtomicU64::new((u64::from(u32::MAX) << 32) | u64::from(u32::MAX - 3)));
        assert_eq!((cursor.used(), cursor.filled(16).offset), (3, 12));
        cursor.put(5);
        assert_eq!(cursor.used(), 8);
        cursor.take(4);
        assert_eq!(cursor.filled(16), Span { offset: 0, len: 4 });
    }
}
