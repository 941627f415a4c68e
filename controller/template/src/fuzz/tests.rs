//! Replays the corpus, and parts of it at random.

use std::path::PathBuf;

use super::*;

fn corpus() -> Vec<Vec<u8>> {
    let dir: PathBuf = [env!("CARGO_MANIFEST_DIR"), "../../tests/fuzz/corpus/template"].iter().collect();
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 10, "the corpus has {} files", files.len());
    files.into_iter().map(|path| std::fs::read(path).unwrap()).chain(seeds()).collect()
}

#[test]
fn corpus_holds() {
    corpus().iter().for_each(|data| feed(data));
}

/// Parts of the corpus, joined, cut and damaged. `HERDLET_TEST_MUTATIONS` sets the number of runs.
#[test]
fn damaged_templates_keep_invariants() {
    let times = std::env::var("HERDLET_TEST_MUTATIONS").ok().and_then(|times| times.parse().ok());
    let files = corpus();
    let mut state: u64 = 12;
    let mut below = |max: usize| {
        // A linear congruential generator.
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(state >> 33).unwrap() % max.max(1)
    };
    for _ in 0..times.unwrap_or(2_000) {
        let mut data = files[below(files.len())].clone();
        for _ in 0..=below(4) {
            let (at, end) = (below(data.len() + 1), below(data.len() + 1));
            match below(6) {
                0 => data.truncate(at),
                1 => data.extend_from_within(at..),
                2 if at < data.len() => data[at] = b"{}|\"`$.() -/*=:,0\0\xff%\\"[below(21)],
                3 if at < end => drop(data.drain(at..end)),
                4 => {
                    let other = &files[below(files.len())];
                    let part = other[below(other.len())..].to_vec();
                    data.splice(at..at, part);
                }
                _ => data.truncate(data.len().saturating_sub(below(3))),
            }
        }
        let fed = std::panic::catch_unwind(|| feed(&data));
        assert!(fed.is_ok(), "an invariant is broken (above) by {}", data.escape_ascii());
    }
}
