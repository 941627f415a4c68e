//! Replays the corpus, and random mutations of it.

use std::{path::PathBuf, time::Instant};

use super::*;
use crate::recordings;

fn corpus() -> Vec<(String, Vec<u8>)> {
    let dir: PathBuf = [env!("CARGO_MANIFEST_DIR"), "../../tests/fuzz/corpus/rpc"].iter().collect();
    let mut files: Vec<_> = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let files = files.into_iter().map(|path| (path.display().to_string(), std::fs::read(&path).unwrap()));
    seeds().into_iter().map(|seed| ("a seed".to_owned(), seed)).chain(files).collect()
}

#[test]
fn the_corpus_of_rpc_holds() {
    let corpus = corpus();
    assert!(corpus.len() >= 30, "{} files", corpus.len());
    for (file, data) in corpus {
        let begun = Instant::now();
        assert!(std::panic::catch_unwind(|| feed(&data)).is_ok(), "{file} breaks an invariant (see above)");
        assert!(begun.elapsed() < Duration::from_secs(180), "{file} takes {:?}", begun.elapsed());
    }
}

/// Flips, removes and duplicates bytes of the corpus: `HERDLET_TEST_MUTATIONS` times, 2,000 by default.
#[test]
fn random_mutations_keep_invariants() {
    let times =
        std::env::var("HERDLET_TEST_MUTATIONS").ok().and_then(|times| times.parse().ok()).unwrap_or(2_000);
    let (corpus, mut chance) = (corpus(), crate::pool::Chance::of(11));
    let mut below = |max: usize| chance.below(Duration::from_nanos(max as u64)).as_nanos() as usize;
    for time in 0..times {
        let (file, mut data) = corpus[below(corpus.len())].clone();
        for _ in 0..=below(4) {
            let at = below(data.len().max(1));
            match below(5) {
                0 => data.truncate(at),
                1 => data.extend_from_within(at.min(data.len())..),
                2 if at < data.len() => {
                    data[at] = [0, 1, 4, 8, 0x7f, 0x80, 0xc0, 0xdb, 0xdf, 0xff][below(10)]
                }
                3 if at < data.len() => data[at] ^= 1 << below(8),
                4 if at < data.len() => drop(data.drain(at..(at + 1 + below(8)).min(data.len()))),
                _ => {}
            }
        }
        let fed = std::panic::catch_unwind(|| feed(&data));
        assert!(
            fed.is_ok(),
            "{file}, damaged {time} times, breaks an invariant: {}",
            recordings::to_hex(&data)
        );
    }
}

#[test]
fn it_is_a_program() {
    let dir: PathBuf = [env!("CARGO_MANIFEST_DIR"), "../../tests/fuzz/Cargo.toml"].iter().collect();
    assert!(std::fs::read_to_string(dir).unwrap().contains("name = \"rpc\""));
}
