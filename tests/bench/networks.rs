//! Networks of allocations on a bridge, each with two mapped ports: made, inspected and removed, one after the other.
//!
//! In a network namespace of its own, so that the machine's networks stay as they are. Needs root.

use std::time::{Duration, Instant};

use herdlet_network::{
    link::{Hairpin, InterfaceName},
    namespace::Namespace,
    networks::{BridgeConfig, NetworkRequest, Networks, RequestedPort},
};

use super::{
    ground::BenchDirs,
    table::{Table, quantile},
};

const COUNT: u16 = 200;
const FIRST_PORT: u16 = 20_000;

/// The time for each, and the time of the machine for a namespace alone.
pub(super) fn made_and_removed(table: &mut Table, _: &BenchDirs) {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let machine = Namespace::new().expect("a network namespace");
    let [up, inspect, down] = machine.run(measure).expect("a thread in the namespace");
    let bare = median((0..COUNT).map(|_| timed(|| drop(Namespace::new().expect("a network namespace")))));
    let shown = |median: f64| format!("{median:.2} ms");
    table.row("network with 2 ports: made", shown(up), "3 ms", format!("namespace alone {}", shown(bare)));
    table.row("network with 2 ports: inspected", shown(inspect), "1 ms", "");
    table.row("network with 2 ports: removed", shown(down), "3 ms", "");
}

fn measure() -> [f64; 3] {
    let runtime = tempfile::tempdir().expect("a directory");
    let networks = Networks::open(BridgeConfig {
        instance: "bench".to_owned(),
        name: InterfaceName::new("hlbench").expect("a name"),
        subnet4: "172.26.64.0/20".parse().expect("a network"),
        subnet6: None,
        mtu: 1500,
        hairpin: Hairpin::Off,
        runtime: runtime.path().to_owned(),
    })
    .expect("netfilter");
    let owner = |index: u16| format!("00000000-0000-4000-8000-{index:012}");
    let port = |host: u16| RequestedPort { host_ip: None, host, inside: 80 };
    let ports = |index: u16| [0, 1].map(|of_two| port(FIRST_PORT + 2 * index + of_two));
    let each = |work: &dyn Fn(&NetworkRequest<'_>)| {
        median((0..COUNT).map(|index| {
            let (owner, ports) = (owner(index), ports(index));
            let request = NetworkRequest { owner: &owner, ports: &ports };
            timed(|| work(&request))
        }))
    };
    let up = each(&|request| {
        networks.up(request).expect("a network");
    });
    let inspect = each(&|request| {
        networks.inspect(request).expect("an inspection");
    });
    let down = each(&|request| networks.down(request.owner).expect("no network"));
    [up, inspect, down]
}

fn timed(work: impl FnOnce()) -> Duration {
    let begun = Instant::now();
    work();
    begun.elapsed()
}

/// In milliseconds.
fn median(times: impl Iterator<Item = Duration>) -> f64 {
    let mut times: Vec<f64> = times.map(|time| time.as_secs_f64() * 1_000.0).collect();
    times.sort_by(f64::total_cmp);
    quantile(&times, 0.5)
}
