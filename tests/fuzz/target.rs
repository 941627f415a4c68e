//! A fuzz target as a program: bytes from libFuzzer to the target that has this program's name.
//!
//! With `HERDLET_FUZZ_SEEDS=DIR` it first writes the target's seeds into that directory.

#![no_main]

libfuzzer_sys::fuzz_target!(
    init: {
        if let Some(dir) = std::env::var_os("HERDLET_FUZZ_SEEDS") {
            herdlet::fuzz::write_seeds(env!("CARGO_BIN_NAME"), dir.as_ref());
        }
    },
    |data: &[u8]| herdlet::fuzz::run(env!("CARGO_BIN_NAME"), data)
);
