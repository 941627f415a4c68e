//! How long each operation takes, and what memory it asks for: `cargo bench -p herdlet-tests --bench micro [-- NAME…]`.
//!
//! `cargo test` does each operation once.

#![expect(clippy::expect_used, reason = "an operation that can't be done says why and ends")]

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
