//! Measures time and allocations of each operation: `cargo bench -p herdlet-tests --bench micro [-- NAME…]`.
//!
//! `cargo test` runs each operation once.

#![expect(clippy::expect_used, reason = "an operation that fails ends the program with the reason")]

mod operations;

use divan::{AllocProfiler, Bencher};
use operations::{ALL, Operation};

#[global_allocator]
static ALLOCATOR: AllocProfiler = AllocProfiler::system();

fn main() {
    divan::main();
}

#[divan::bench(args = ALL)]
fn micro(bencher: Bencher<'_, '_>, operation: &Operation) {
    bencher.bench_local((operation.ready)());
}
