//! What must hold for any file that is taken for the state of Nomad's client; for tests and fuzzing only.
//!
//! In: its bytes. Out: nothing, or a panic. Whether it ends soon, and in little memory, is seen by who feeds it.

#![expect(clippy::unwrap_used, reason = "a broken promise is told by a panic")]

use super::{bolt::Bolt, live};

/// Takes the file and asserts what must hold.
pub fn feed(bytes: &[u8]) {
    let Ok(state) = Bolt::open(bytes) else { return };
    let Ok(allocs) = live(&state) else { return };
    for alloc in &allocs {
        assert!(alloc.chars().count() <= 64, "{alloc:?}");
    }
    // What was read once is read again, as by the next start.
    let again = Bolt::open(bytes).and_then(|state| live(&state)).unwrap_or_default();
    assert_eq!(allocs, again);
}

/// A file that bbolt 1.3.6 wrote: two allocations of two tasks each, of which one of the second is running. Of its rows those that are not
/// empty are kept.
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
