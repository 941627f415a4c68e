//! Saves the files of this version for the upgrade tests of all later ones: `cargo run --release -p
//! herdlet-e2e --bin fixture [-- DIRECTORY [NAME]]`. Needs root.
//!
//! In: the directory (default `tests/fixtures/upgrade`) and name (default the program's version) of the
//! fixture. Out: its path.

use std::{env, path::PathBuf};

use herdlet_e2e::upgrade;

fn main() {
    let dir = env::args().nth(1).map_or_else(upgrade::fixtures, PathBuf::from);
    println!("{}", upgrade::leave(&dir, env::args().nth(2)).display());
}
