//! The fuzz target of `controller/images` as a program: bytes from libFuzzer.
//!
//! With `HERDLET_FUZZ_SEEDS=DIR` it first writes the target's seeds into that directory.

#![no_main]

libfuzzer_sys::fuzz_target!(
    init: {
        if let Some(dir) = std::env::var_os("HERDLET_FUZZ_SEEDS") {
            let dir = std::path::PathBuf::from(dir);
            std::fs::create_dir_all(&dir).unwrap();
            for (number, seed) in herdlet_images::fuzz::seeds().iter().enumerate() {
                std::fs::write(dir.join(format!("seed-{number:03}")), seed).unwrap();
            }
        }
    },
    |data: &[u8]| herdlet_images::fuzz::feed(data)
);
