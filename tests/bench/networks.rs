//! Networks of allocations on a bridge, each with two mapped ports: made, inspected and removed, one after the other, and 200 at
//! once by an agent.
//!
//! In a network namespace of its own, so that the machine's networks stay as they are. Needs root.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use herdlet_e2e::wait;
use herdlet_network::{
    link::{self, Hairpin, InterfaceName},
    namespace::Namespace,
    networks::{BridgeConfig, NetworkRequest, Networks, RequestedPort},
    socket::{Protocol, Socket},
};

use super::{
    chain::Chain,
    cost,
    ground::BenchDirs,
    job::Bench,
    table::{Table, median, millis},
};

const COUNT: u16 = 200;
const FIRST_PORT: u16 = 20_000;
/// Number of networks of each kind, made and removed in turn.
const PAIRS: u16 = 21;
/// By then tasks have been healthy for long enough, and threads that starts needed have ended.
const SETTLED: Duration = Duration::from_secs(24);
/// Duration of the measurement of an idle agent.
const REST: Duration = Duration::from_secs(60);

/// The time for each, and the time of the machine for a namespace alone.
pub(super) fn made_and_removed(table: &mut Table, _: &BenchDirs) {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let machine = Namespace::new().expect("a network namespace");
    let ([up, inspect, down], free) = machine.run(measure).expect("a thread in the namespace");
    let bare =
        median((0..COUNT).map(|_| millis(timed(|| drop(Namespace::new().expect("a network namespace"))))));
    let shown = |median: f64| format!("{median:.2} ms");
    table.row("network with 2 ports: made", shown(up), "3 ms", format!("namespace alone {}", shown(bare)));
    table.row("network with 2 ports: inspected", shown(inspect), "1 ms", "");
    table.row("network with 2 ports: removed", shown(down), "3 ms", "");
    let free = format_args!("{:.2} s", free.as_secs_f64());
    table.row(
        "200 networks removed, until the kernel has removed all and their addresses are free",
        free,
        "1 s",
        "",
    );
}

/// Beside the plugins that Nomad runs for a bridge network.
pub(super) fn beside_plugins(table: &mut Table, _: &BenchDirs) {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let Some(chain) = Chain::find() else { return };
    let machine = Namespace::new().expect("a network namespace");
    let [up, down, plugins_up, plugins_down] =
        machine.run(|| measure_beside(&chain)).expect("a thread in the namespace");
    for (what, ours, plugins) in [("made", up, plugins_up), ("removed", down, plugins_down)] {
        table.row(
            &format!("network with 2 ports {what}, beside CNI plugins"),
            format_args!("{ours:.2} ms, {:.0} × faster", plugins / ours),
            "≤ 3 ms, ≥ 20 ×",
            format_args!("plugins {plugins:.1} ms"),
        );
    }
}

fn measure_beside(chain: &Chain) -> [f64; 4] {
    link::set_up(&mut Socket::open(Protocol::Route).expect("a socket"), 1).expect("a loopback interface");
    let runtime = tempfile::tempdir().expect("a directory");
    let networks = open(runtime.path());
    let times: Vec<[Duration; 4]> = (0..PAIRS)
        .map(|index| {
            let (owner, ports) = (owner(index), ports(index));
            let request = NetworkRequest { owner: &owner, ports: &ports };
            let up = timed(|| _ = networks.up(&request).expect("a network"));
            let down = timed(|| networks.down(&owner).expect("no network"));
            let made = Instant::now();
            let namespace = Namespace::new().expect("a network namespace");
            let attached = chain.add(&namespace, index);
            let plugins_up = made.elapsed();
            let removed = Instant::now();
            chain.remove(&namespace, &attached);
            drop(namespace);
            [up, down, plugins_up, removed.elapsed()]
        })
        .collect();
    [0, 1, 2, 3].map(|column| median(times.iter().map(|row| millis(row[column]))))
}

/// 200 allocations with a network and two mapped ports each, submitted at once; then a minute without events.
pub(super) fn many(table: &mut Table, ground: &BenchDirs) {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let machine = Namespace::new().expect("a network namespace");
    let (rate, busy) = machine.run(|| measure_many(ground)).expect("a thread in the namespace");
    table.row(
        "200 tasks in bridge networks with 2 ports submitted, all running",
        format_args!("{rate:.0}/s"),
        "≥ 250/s",
        "",
    );
    table.row(
        "200 in bridge networks, no events for 60 s: processor time, whole process tree",
        format_args!("{:.3} s", busy.as_secs_f64()),
        "≤ 0.1 s",
        "",
    );
}

fn measure_many(ground: &BenchDirs) -> (f64, Duration) {
    link::set_up(&mut Socket::open(Protocol::Route).expect("a socket"), 1).expect("a loopback interface");
    let bench = Bench::new(ground);
    let count = usize::from(COUNT);
    let began = Instant::now();
    bench.apply(&format!(
        "apiVersion: herdlet/v1
kind: Job
metadata: {{name: bench}}
spec:
  groups:
    - name: main
      count: {count}
      network: {{mode: bridge, ports: {{http: {{to: 8080}}, admin: {{to: 9090}}}}}}
      tasks:
        - name: work
          driver: raw_exec
          config: {{command: sleep, args: [\"100000\"]}}
"
    ));
    bench.until_running(count);
    let rate = f64::from(COUNT) / began.elapsed().as_secs_f64();
    wait::pause(SETTLED);
    let pids = bench.whole_tree();
    let before = cost::cpu(pids.iter().copied());
    wait::pause(REST);
    let busy = cost::cpu(pids.iter().copied()).saturating_sub(before);
    bench.delete();
    bench.until_removed();
    bench.agent.finish();
    (rate, busy)
}

fn open(runtime: &Path) -> Networks {
    Networks::open(BridgeConfig {
        instance: "bench".to_owned(),
        name: InterfaceName::new("hlbench").expect("a name"),
        subnet4: "172.26.64.0/20".parse().expect("a network"),
        subnet6: None,
        mtu: 1500,
        hairpin: Hairpin::Off,
        runtime: runtime.to_owned(),
    })
    .expect("netfilter")
}

fn owner(index: u16) -> String {
    format!("00000000-0000-4000-8000-{index:012}")
}

fn ports(index: u16) -> [RequestedPort; 2] {
    [0, 1].map(|of_two| RequestedPort { host_ip: None, host: FIRST_PORT + 2 * index + of_two, inside: 80 })
}

fn measure() -> ([f64; 3], Duration) {
    let runtime = tempfile::tempdir().expect("a directory");
    let networks = open(runtime.path());
    let each = |work: &dyn Fn(&NetworkRequest<'_>)| {
        median((0..COUNT).map(|index| {
            let (owner, ports) = (owner(index), ports(index));
            let request = NetworkRequest { owner: &owner, ports: &ports };
            millis(timed(|| work(&request)))
        }))
    };
    let up = each(&|request| {
        networks.up(request).expect("a network");
    });
    let inspect = each(&|request| {
        networks.inspect(request).expect("an inspection");
    });
    let begun = Instant::now();
    let down = each(&|request| networks.down(request.owner).expect("no network"));
    networks.finish_removals().expect("no network");
    ([up, inspect, down], begun.elapsed())
}

fn timed(work: impl FnOnce()) -> Duration {
    let begun = Instant::now();
    work();
    begun.elapsed()
}
