//! Costs of services: a real Consul, a thousand running tasks, and a new version of their job that registers a service for each.

use std::time::{Duration, Instant};

use herdlet_e2e::{
    consul::{Access, Consul},
    wait,
};

use super::{cost, ground::BenchDirs, job::Bench, table::Table};

const COUNT: usize = 1_000;
const SLEEP: &str = r#"{command: sleep, args: ["100000"]}"#;
/// By then the agent has released the memory that starts and registrations needed.
const SETTLED: Duration = Duration::from_secs(25);
/// Duration of the measurement: the agent lists the services twice, and Consul synchronizes once.
const REST: Duration = Duration::from_secs(60);
/// Interval between polls of this benchmark, which cost Consul time too.
const BETWEEN: Duration = Duration::from_millis(250);

/// A thousand services.
pub(super) fn a_thousand(table: &mut Table, ground: &BenchDirs) {
    let Some(consul) = Consul::start(Access::Open) else { return };
    let bench = Bench::with(ground, |setup| setup.env("CONSUL_HTTP_ADDR", consul.address()));
    bench.submit("service", COUNT, SLEEP);
    bench.until_running(COUNT);
    wait::pause(SETTLED);
    let (agent, peer) = (bench.agent.pid(), consul.pid());
    let spent = || (cost::cpu([agent]), cost::cpu([peer]));
    let (pss, (ours, theirs)) = (cost::pss_kib([agent]), spent());
    let began = Instant::now();
    bench.submit("service", COUNT, &format!("{SLEEP}\n      services: [{{name: bench, provider: consul}}]"));
    while consul.services().len() < COUNT {
        assert!(
            began.elapsed() < Duration::from_secs(300),
            "only {} services are registered",
            consul.services().len()
        );
        wait::pause(BETWEEN);
    }
    let took = began.elapsed();
    wait::pause(SETTLED);
    let (ours_then, theirs_then) = spent();
    table.row(
        &format!("{COUNT} services registered in Consul, one for each running task"),
        format_args!(
            "{:.1} s; processor time {:.2} s",
            took.as_secs_f64(),
            ours_then.saturating_sub(ours).as_secs_f64()
        ),
        "≤ 10 s",
        format_args!("Consul: processor time {:.2} s", theirs_then.saturating_sub(theirs).as_secs_f64()),
    );
    let grown = cost::pss_kib([agent]).saturating_sub(pss);
    table.row(
        "memory of the agent for each service (PSS)",
        format_args!("{:.1} KB", per_service(grown)),
        "≤ 15 KB",
        "",
    );
    let (ours, theirs) = spent();
    wait::pause(REST);
    let (ours_then, theirs_then) = spent();
    table.row(
        &format!("{COUNT} services, no events for {} s: processor time", REST.as_secs()),
        format_args!("{:.3} s", ours_then.saturating_sub(ours).as_secs_f64()),
        "≤ 0.3 s",
        format_args!("Consul: {:.3} s", theirs_then.saturating_sub(theirs).as_secs_f64()),
    );
    bench.agent.finish();
}

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
fn per_service(kib: u64) -> f64 {
    kib as f64 / COUNT as f64
}
