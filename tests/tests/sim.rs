//! Simulated lives: seeds × faults × crashes. This is the fixed set; `cargo run --release -p herdlet-tests
//! --bin sim -- FROM..TO` runs others.

use std::{num::NonZero, ops::Range, thread};

use herdlet_tests::sim::seeds::{life_of, live_all};

/// A few seconds on idle cores in the dev profile, a minute on very busy ones. Together they meet every situation.
const LIVES: Range<u64> = 1_600..3_600;

#[test]
fn every_life_keeps_the_invariants() {
    let threads = thread::available_parallelism().map_or(1, NonZero::get);
    match live_all(LIVES, threads, &|_| {}) {
        Ok(lived) => {
            println!("{} steps in {} lives", lived.steps, lived.lives);
            for (what, lives) in lived.met.iter() {
                assert!(lives > 0, "no simulation covered {what}");
            }
        }
        Err(broken) => {
            let from = broken.log.len().saturating_sub(120);
            panic!("seed {}: {}\n{}", broken.seed, broken.why, broken.log[from..].join("\n"));
        }
    }
}

#[test]
fn equal_seeds_give_equal_lives() {
    let log = |seed| {
        let mut life = life_of(seed).logged();
        life.live(100).expect("a life without violations");
        life.log().to_vec()
    };
    assert_eq!(log(7), log(7));
}
