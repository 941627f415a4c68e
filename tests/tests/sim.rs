//! Simulated lives: seeds × faults × crashes. `HERDLET_SIM_SEEDS=FROM..TO` runs others than the
//! fixed set, `HERDLET_SIM_LOG=1` tells
//! a broken life from its beginning.
#![expect(clippy::expect_used, reason = "tests may panic")]

use herdlet_tests::sim::life::{Faults, Life};

const HARD: Faults = Faults {
    failing_one_in: 12,
    slow_one_in: 20,
    crash_one_in: 60,
    reboot_one_in: 6,
    drift_one_in: 30,
    outage_one_in: 100,
};

fn seeds() -> std::ops::Range<u64> {
    let Ok(text) = std::env::var("HERDLET_SIM_SEEDS") else { return 0..1_000 };
    let (from, to) = text.split_once("..").expect("FROM..TO");
    from.parse().expect("a number")..to.parse().expect("a number")
}

#[test]
fn every_life_keeps_the_promises() {
    let mut steps = 0;
    for seed in seeds() {
        let mut life = Life::new(seed, HARD);
        if let Err(broken) = life.live(150) {
            let mut again = Life::new(seed, HARD).logged();
            let broken = again.live(150).err().unwrap_or(broken);
            let shown = if std::env::var_os("HERDLET_SIM_LOG").is_some() { usize::MAX } else { 120 };
            let from = again.log().len().saturating_sub(shown);
            panic!("seed {seed}: {broken}\n{}", again.log()[from..].join("\n"));
        }
        steps += life.steps;
    }
    println!("{steps} steps in {} lives", seeds().count());
}

#[test]
fn the_same_seed_gives_the_same_life() {
    let log = |seed| {
        let mut life = Life::new(seed, HARD).logged();
        life.live(100).expect("a good life");
        life.log().to_vec()
    };
    assert_eq!(log(7), log(7));
}
