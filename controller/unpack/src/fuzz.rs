//! The fuzz target, and the invariants that must hold for any layer.
//!
//! In: bytes, from a fuzzer (`tests/fuzz/run layer`) or from damaged examples (the test below): a tar. Out: nothing, or a panic that
//! names the broken invariant. Compiled only for tests and fuzzing.

use std::{
    io::Read as _,
    path::{Component, Path},
};

use crate::{
    marks::{Marker, marker},
    names::{inside_layer, stays_inside},
    tape::{Entry, TapeReader},
};

/// A sparse file may have any length.
const CONTENT_BYTES_MAX: u64 = 1 << 20;

/// Reads a tar, and what its names mean in a layer.
///
/// # Panics
/// If an invariant is broken.
pub fn feed(data: &[u8]) {
    let mut tape = TapeReader::new(data);
    // Each entry has a header.
    let entries_max = data.len() / 512;
    let mut entries = 0;
    while let Ok(Some(entry)) = tape.next_entry() {
        entries += 1;
        assert!(entries <= entries_max, "more entries than headers");
        check(&entry);
        let mut content = Vec::new();
        // A content that is cut off is an error of the next entry, too.
        let _ = tape.content().take(CONTENT_BYTES_MAX).read_to_end(&mut content);
    }
}

fn check(entry: &Entry) {
    for path in [&entry.path, &entry.target] {
        if let Ok(inside) = inside_layer(path) {
            assert_inside(&inside);
        }
        let parts = path.components().filter(|part| matches!(part, Component::ParentDir)).count();
        assert!(!stays_inside(path, 0) || parts == 0, "{path:?} leaves the tree");
    }
    match marker(&entry.path) {
        Ok(Some(Marker::Whiteout(path) | Marker::Opaque(path))) => {
            if let Ok(inside) = inside_layer(&path) {
                assert_inside(&inside);
            }
        }
        Ok(Some(Marker::Obsolete) | None) | Err(_) => {}
    }
    assert!(entry.modified_at.is_none_or(|(_, nanoseconds)| nanoseconds < 1_000_000_000));
}

fn assert_inside(path: &Path) {
    assert!(path.components().all(|part| matches!(part, Component::Normal(_))), "{path:?} leads out");
}

/// Valid examples.
#[cfg(any(test, feature = "fixture"))]
pub fn seeds() -> Vec<Vec<u8>> {
    use crate::fixture::{TarEntry, TarText};
    let long = "d/".repeat(100) + "f";
    let attributes: &[(&str, &[u8])] = &[("security.capability", &[1, 0, 0, 2, 10]), ("user.a", b"b")];
    vec![
        TarText::new()
            .directory("d")
            .file("d/f", b"hello")
            .symlink("l", "../x")
            .hard_link("h", "d/f")
            .finish(),
        TarText::new().file("d/.wh.gone", b"").file("d/.wh..wh..opq", b"").file(".wh..wh.plnk", b"").finish(),
        TarText::new()
            .file(&long, b"x")
            .entry(&TarEntry { path: "a", attributes, ..TarEntry::default() })
            .finish(),
        TarText::new()
            .entry(&TarEntry { path: "pax", kind: b'x', content: b"11 path=yz\n", ..TarEntry::default() })
            .file("a", b"")
            .finish(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Damaged examples: bytes changed, removed, repeated. `HERDLET_TEST_MUTATIONS` sets how many.
    #[test]
    fn damaged_layers_break_no_invariant() {
        let number = std::env::var("HERDLET_TEST_MUTATIONS").ok().and_then(|number| number.parse().ok());
        let mut state = 1_u64;
        let mut random = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            usize::try_from(state >> 33).unwrap() % below.max(1)
        };
        let seeds = seeds();
        seeds.iter().for_each(|seed| feed(seed));
        for _ in 0..number.unwrap_or(2_000_u32) {
            let mut bytes = seeds[random(seeds.len())].clone();
            for _ in 0..=random(4) {
                let at = random(bytes.len());
                match random(4) {
                    0 => bytes[at] = u8::try_from(random(256)).unwrap(),
                    1 => bytes[at] ^= 1 << random(8),
                    2 => bytes.truncate(at.max(1)),
                    _ => {
                        let part = bytes[at..(at + random(600)).min(bytes.len())].to_vec();
                        bytes.splice(at..at, part);
                    }
                }
            }
            // A wrong sum would hide what is behind it.
            for block in bytes.chunks_exact_mut(512).filter(|block| block[257..262] == *b"ustar") {
                let mut header = tar::Header::new_gnu();
                header.as_mut_bytes().copy_from_slice(block);
                header.set_cksum();
                block.copy_from_slice(header.as_bytes());
            }
            feed(&bytes);
        }
    }
}
