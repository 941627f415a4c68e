//! Costs of checks that the agent itself runs.

use std::{
    fmt::Write as _,
    io::{Read as _, Write as _},
    net::TcpListener,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use herdlet_e2e::wait;

use super::{cost, ground::BenchDirs, job::Bench, table::Table};

/// Number of services, each with a check.
const COUNT: usize = 1_000;
/// Number of hanging checks in the benchmark with others.
const HANGING: usize = 900;
const INTERVAL: Duration = Duration::from_secs(10);
/// Duration of the measurement.
const REST: Duration = Duration::from_secs(60);
/// By then every check has run a few times, and the agent has released the memory that its start needed.
const SETTLED: Duration = Duration::from_secs(35);

/// 1,000 HTTP checks, each every ten seconds.
pub(super) fn http(table: &mut Table, ground: &BenchDirs) {
    let target = Target::start(Answers::Always);
    let bench = Bench::new(ground);
    bench.apply(&manifest(COUNT, unchecked, ""));
    bench.until_running(GROUPS);
    wait::pause(SETTLED);
    let before = cost::pss_kib([bench.agent.pid()]);
    bench.apply(&manifest(COUNT, |index| checked(index, target.port, "10s"), ""));
    wait::pause(SETTLED);
    let made = target.request_count();
    let (cpu, began) = (cost::cpu([bench.agent.pid()]), Instant::now());
    wait::pause(REST);
    let cpu = cost::cpu([bench.agent.pid()]).saturating_sub(cpu).as_secs_f64();
    let made = target.request_count() - made;
    table.row(
        &format!("{COUNT} HTTP checks, each every {} s: processor time of the agent", INTERVAL.as_secs()),
        format_args!("{:.2} % of a core", 100.0 * cpu / began.elapsed().as_secs_f64()),
        "≤ 3 %",
        format!("{:.0} µs for each of {made}", cpu * 1e6 / made as f64),
    );
    let grown = cost::pss_kib([bench.agent.pid()]).saturating_sub(before) as f64 / 1024.0;
    table.row(&format!("{COUNT} HTTP checks: memory (PSS)"), format_args!("{grown:.1} MB"), "≤ 10 MB", "");
    bench.agent.finish();
}

/// 900 targets that accept a request and never respond, and one that responds.
pub(super) fn hanging(table: &mut Table, ground: &BenchDirs) {
    let (silent, healthy) = (Target::start(Answers::Never), Target::start(Answers::Always));
    let bench = Bench::new(ground);
    bench.apply(&manifest(
        HANGING,
        |index| checked(index, silent.port, "10s"),
        &checked(COUNT, healthy.port, "1s"),
    ));
    bench.until_running(GROUPS);
    wait::pause(SETTLED);
    let (made, began) = (healthy.request_count(), Instant::now());
    wait::pause(REST);
    let made = healthy.request_count() - made;
    table.row(
        &format!("a check every second beside {} with hanging targets: rate", HANGING),
        format_args!("{:.2} per second", made as f64 / began.elapsed().as_secs_f64()),
        "≥ 0.95",
        "",
    );
    bench.agent.finish();
}

/// Groups of the job: the number of services of one group is limited.
const GROUPS: usize = 10;

/// A job of sleeping tasks with `count` services in total, and the services in `more`.
fn manifest(count: usize, service: impl Fn(usize) -> String, more: &str) -> String {
    let mut text =
        String::from("apiVersion: herdlet/v1\nkind: Job\nmetadata: {name: bench}\nspec:\n  groups:\n");
    for group in 0..GROUPS {
        let _ = write!(
            text,
            "    - name: g{group}\n      tasks: [{{name: t, driver: raw_exec, config: {{command: sleep, args: [\"100000\"]}}}}]\n      \
             services:\n"
        );
        for index in (0..count).filter(|index| index % GROUPS == group) {
            text.push_str(&service(index));
        }
        let _ = writeln!(text, "        - {{name: plain{group}, port: 1}}");
        if group == 0 {
            text.push_str(more);
        }
    }
    text
}

fn unchecked(index: usize) -> String {
    format!("        - {{name: s{index}, port: 1}}\n")
}

fn checked(index: usize, port: u16, interval: &str) -> String {
    let check = format!("{{type: http, path: /, interval: {interval}, timeout: 9s}}");
    format!("        - {{name: s{index}, port: {port}, checks: [{check}]}}\n")
}

/// Whether a target responds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answers {
    Always,
    Never,
}

/// A server in this process.
struct Target {
    port: u16,
    asked: Arc<AtomicUsize>,
}

impl Target {
    fn start(answers: Answers) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let port = listener.local_addr().expect("it is bound").port();
        let asked = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&asked);
        std::thread::spawn(move || {
            let mut open = Vec::new();
            for mut stream in listener.incoming().flatten() {
                count.fetch_add(1, Ordering::Relaxed);
                match answers {
                    Answers::Never => open.push(stream),
                    Answers::Always => {
                        // Ignore clients that disconnect.
                        let _ = stream.read(&mut [0; 1_024]);
                        let _ = stream
                            .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
                    }
                }
            }
        });
        Self { port, asked }
    }

    fn request_count(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }
}
