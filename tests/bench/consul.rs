//! Costs of templates with data of a real Consul: a thousand tasks, each with a template that uses one key.

use std::{
    fs,
    time::{Duration, Instant},
};

use herdlet_e2e::{
    agent::Setup,
    consul::{Access, Consul},
    wait,
};

use super::{
    ground::BenchDirs,
    job::Bench,
    table::{Table, quantile},
    templates::{COUNT, WAIT, files, manifest, until_all_have},
};

/// Changes of the key.
const CHANGES: usize = 11;
/// Waits between two counts of connections.
const PAUSE: Duration = Duration::from_millis(20);
const TEMPLATE: &str = r#"templates:
            - {data: '{{ key "bench/number" }}', destination: local/out, change_mode: noop, splay: 0s}"#;

/// Connections to Consul and the time until all files have a change.
pub(super) fn a_thousand(table: &mut Table, ground: &BenchDirs) {
    let Some(consul) = Consul::start(Access::Open) else { return };
    put(&consul, 0);
    let bench =
        Bench::with(ground, |setup: Setup| setup.config(WAIT).env("CONSUL_HTTP_ADDR", consul.address()));
    bench.apply(&manifest(TEMPLATE));
    let mut most = 0;
    while files(&bench.allocs()).len() < COUNT {
        most = most.max(connections(consul.port()));
        wait::pause(PAUSE);
    }
    let files = files(&bench.allocs());
    let mut taken = Vec::new();
    for number in 1..=CHANGES {
        let began = Instant::now();
        put(&consul, number);
        until_all_have(&files, &number.to_string());
        taken.push(began.elapsed().as_secs_f64() * 1_000.0);
        most = most.max(connections(consul.port()));
        wait::pause(Duration::from_millis(500));
    }
    table.row(
        &format!("{COUNT} tasks with a template of one key of Consul: open queries"),
        format_args!("{:.0}", bench.metric("herdlet_template_queries")),
        "1",
        "",
    );
    table.row("their connections to Consul at most", format_args!("{most}"), "≤ 100", "");
    taken.sort_by(f64::total_cmp);
    table.row(
        "a change of the key, until all files have it (`wait {min = \"0s\"}`), median / maximum",
        format_args!("{:.0} / {:.0} ms", quantile(&taken, 0.5), quantile(&taken, 1.0)),
        "≤ 1 s",
        "",
    );
    bench.agent.finish();
}

fn put(consul: &Consul, number: usize) {
    consul.put("/v1/kv/bench/number", &number.to_string());
}

/// Established connections to a port of this machine (`man 5 proc_pid_net`, `/proc/net/tcp`).
fn connections(port: u16) -> usize {
    const ESTABLISHED: &str = "01";
    let text = fs::read_to_string("/proc/net/tcp").unwrap_or_default();
    let suffix = format!(":{port:04X}");
    let is_to_port = |line: &&str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        fields.get(2).is_some_and(|remote| remote.ends_with(&suffix)) && fields.get(3) == Some(&ESTABLISHED)
    };
    text.lines().filter(is_to_port).count()
}
