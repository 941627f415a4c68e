//! Compiles this crate's source a second time, as the freestanding program that the library embeds.
//!
//! In: `src/`, and cargo's compiler. Out: `$OUT_DIR/herdlet-shim`. The compiler is called directly: a nested cargo
//! would wait for the lock of the shared target directory, and use flags that are not for this program.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

const FLAGS: &[&str] = &[
    "--crate-name=herdlet_shim",
    "--crate-type=bin",
    "--edition=2024",
    "--cfg=shim_program",
    "--cap-lints=allow",
    "-Cpanic=abort",
    "-Copt-level=z",
    "-Ccodegen-units=1",
    // Otherwise `core` requires an unwinder's personality function.
    "-Clto=fat",
    "-Cstrip=symbols",
    "-Cforce-unwind-tables=no",
    "-Coverflow-checks=off",
    "-Cdebug-assertions=off",
    "-Crelocation-model=static",
    "-Ctarget-feature=+crt-static",
];

/// The toolchain's own linker, which needs no installation.
const RUST_LLD: &[&str] = &[
    "-Clinker=rust-lld",
    "-Clinker-flavor=ld.lld",
    "-Clink-self-contained=no",
    "-Cdefault-linker-libraries=no",
    "-Clink-args=-static --gc-sections -z noseparate-code --no-eh-frame-hdr --build-id=none",
];

/// For toolchains without rust-lld.
const CC: &[&str] = &[
    "-Clinker=cc",
    "-Clink-args=-nostartfiles -nostdlib -static -no-pie -Wl,--gc-sections -Wl,-z,noseparate-code -Wl,--build-id=none",
];

fn main() {
    println!("cargo::rustc-check-cfg=cfg(shim_program)");
    println!("cargo::rerun-if-changed=src");
    println!("cargo::rerun-if-changed=build.rs");
    if let Err(problem) = build() {
        println!("cargo::error={problem}");
    }
}

fn build() -> Result<(), String> {
    let target = variable("TARGET")?;
    let known =
        ["x86_64", "aarch64"].iter().any(|arch| target.starts_with(arch)) && target.contains("-linux-");
    if !known {
        return Err(format!("herdlet-shim runs on Linux on x86_64 and aarch64, not on {target}"));
    }
    let program = PathBuf::from(variable("OUT_DIR")?).join("herdlet-shim");
    let with_lld = compile(&target, &program, RUST_LLD);
    with_lld.or_else(|first| {
        compile(&target, &program, CC).map_err(|second| format!("with rust-lld: {first}; with cc: {second}"))
    })
}

fn compile(target: &str, program: &Path, linker: &[&str]) -> Result<(), String> {
    let mut rustc = Command::new(variable("RUSTC")?);
    rustc.args(FLAGS).args(linker);
    if target.starts_with("aarch64") {
        // Outlined atomics call libc to detect the CPU's support.
        rustc.arg("-Ctarget-feature=-outline-atomics");
    }
    rustc.arg("--target").arg(target).arg("-o").arg(program).arg("src/lib.rs");
    // The library requires this file; the program has no such requirement.
    rustc.env_remove("RUSTFLAGS").env_remove("CARGO_ENCODED_RUSTFLAGS");
    let output = rustc.output().map_err(|problem| format!("failed to start rustc: {problem}"))?;
    if output.status.success() {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    Err(format!("rustc: {}", stderr.lines().take(20).collect::<Vec<_>>().join(" | ")))
}

fn variable(name: &str) -> Result<String, String> {
    env::var(name).map_err(|problem| format!("{name}: {problem}"))
}
