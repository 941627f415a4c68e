//! Keeps what this version leaves behind, for the tests of all later ones:
//! `cargo run --release -p herdlet-tests --bin fixture [-- DIRECTORY [NAME]]`. Needs root.
//!
//! In: where to write it (default `tests/fixtures/upgrade`) and its name (default the program's version). Out: the path of the fixture.

use std::{env, path::PathBuf};

use herdlet_tests::upgrade;

fn main() {
    let dir = env::args().nth(1).map_or_else(upgrade::fixtures, PathBuf::from);
    println!("{}", upgrade::leave(&dir, env::args().nth(2)).display());
}
