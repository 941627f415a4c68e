//! Invariants for any file that is read as the state of Nomad's client; for tests and fuzzing only.
//!
//! In: the file's bytes. Out: nothing, or a panic. The caller checks time and memory.

#![expect(clippy::unwrap_used, reason = "a broken invariant panics")]

use super::{bolt::Bolt, live};

/// Reads the file and asserts the invariants.
pub fn feed(bytes: &[u8]) {
    let Ok(state) = Bolt::open(bytes) else { return };
    let Ok(allocs) = live(&state) else { return };
    for alloc in &allocs {
        assert!(alloc.chars().count() <= 64, "{alloc:?}");
    }
    // A second read, as by the next start, gives the same result.
    let again = Bolt::open(bytes).and_then(|state| live(&state)).unwrap_or_default();
    assert_eq!(allocs, again);
}

/// A file written by bbolt 1.3.6: two allocations with two tasks each; one task of the second allocation is running. `state.db.txt` holds
/// its non-empty rows.
pub fn example() -> Vec<u8> {
    const PAGES: usize = 16;
    const PAGE: usize = 4_096;
    let mut bytes = vec![0; PAGES * PAGE];
    for line in include_str!("state.db.txt").lines() {
        let (at, row) = line.split_once(' ').unwrap();
        let at = usize::from_str_radix(at, 16).unwrap();
        for (nth, pair) in row.as_bytes().chunks(2).enumerate() {
            bytes[at + nth] = u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
        }
    }
    bytes
}
