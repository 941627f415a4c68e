//! Costs of a real Consul: a thousand tasks, each with a template that uses one key; a log-in before the start of a task.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    time::{Duration, Instant},
};

use herdlet_e2e::{
    agent::Setup,
    consul::{Access, Consul, TOKEN},
    ports, wait,
};

use super::{
    ground::BenchDirs,
    job::Bench,
    table::{Table, quantile},
    templates::{COUNT, WAIT, files, manifest, until_all_have},
};

/// Changes of the key.
const CHANGES: usize = 11;
/// Starts of a task with a token, and without.
const STARTS: usize = 21;
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

/// The time that a log-in adds to a task, from the request to its end.
pub(super) fn token_at_start(table: &mut Table, ground: &BenchDirs) {
    let Some(consul) = Consul::start(Access::Denied) else { return };
    let [port] = ports::free();
    let api = format!("127.0.0.1:{port}");
    let token = ground.disk().join("api-token");
    fs::write(&token, "bench\n").expect("a token");
    fs::set_permissions(&token, fs::Permissions::from_mode(0o600)).expect("a token of our own");
    let config =
        format!("consul: {{address: \"{}\", token: {TOKEN}, task_identity: {{}}}}\n", consul.address());
    let bench = Bench::with(ground, |setup: Setup| {
        let setup = setup.config(config).argument("--listen").argument(&api);
        setup.argument("--token-file").argument(token.display().to_string())
    });
    consul.trust(&api);
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for _ in 0..STARTS {
        for (taken, block) in [(&mut with, "consul: {}"), (&mut without, "leader: false")] {
            wait::pause(Duration::from_millis(50));
            let began = Instant::now();
            bench.apply(&format!(
                "apiVersion: herdlet/v1\nkind: Job\nmetadata: {{name: bench}}\nspec:\n  type: batch\n  groups:\n    - name: g\n      tasks:\n        - {{name: t, driver: raw_exec, config: {{command: /bin/true}}, {block}}}\n"
            ));
            bench.until_complete(1);
            taken.push(began.elapsed().as_secs_f64() * 1_000.0);
            bench.delete();
            bench.until_removed();
        }
    }
    with.sort_by(f64::total_cmp);
    without.sort_by(f64::total_cmp);
    table.row(
        "a log-in at Consul before the start of a task adds, median",
        format_args!("{:.1} ms", quantile(&with, 0.5) - quantile(&without, 0.5)),
        "≤ 10 ms",
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
