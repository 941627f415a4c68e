//! Throughput of a task's log.

use std::{
    process::{Command, Stdio},
    time::Instant,
};

use super::{ground::BenchDirs, job::Bench, table::Table};

/// Output of a task, in MiB.
const MIB: u32 = 2_048;

/// One task that writes its log in pieces of 4 KiB and of 64 KiB, compared with the same writer piped to `cat > file`.
pub(super) fn throughput(table: &mut Table, ground: &BenchDirs) {
    for (name, piece, count) in [("4 KiB", 4 << 10, MIB << 8), ("64 KiB", 64 << 10, MIB << 4)] {
        let writer = format!("dd if=/dev/zero bs={piece} count={count} 2>/dev/null");
        let plain = piped(ground, &writer);
        let bench = Bench::new(ground);
        let script = format!("{{command: /bin/sh, args: [-c, \"{writer}\"]}}");
        let began = Instant::now();
        bench.submit("batch", 1, &script);
        bench.until_complete(1);
        let ours = speed(began);
        table.row(
            &format!("log of one task, rotated, writes of {name}"),
            format_args!("{ours:.0} MiB/s, {:.0} %", 100.0 * ours / plain),
            "≥ 80 % of `| cat > file`",
            format_args!("{plain:.0} MiB/s"),
        );
        bench.delete();
        bench.until_removed();
        bench.agent.finish();
    }
}

/// Throughput of `| cat > file` in MiB/s: one growing file, without rotation.
fn piped(ground: &BenchDirs, writer: &str) -> f64 {
    let dir = ground.dir();
    let began = Instant::now();
    let script = format!("{writer} | cat > {}", dir.path().join("log").display());
    let status = Command::new("/bin/sh").args(["-c", &script]).stdin(Stdio::null()).status();
    assert!(status.is_ok_and(|status| status.success()));
    speed(began)
}

fn speed(began: Instant) -> f64 {
    f64::from(MIB) / began.elapsed().as_secs_f64()
}
