//! Costs of templates: a thousand tasks, each with a template that uses one variable, compared with as many without.

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use herdlet_e2e::{agent::Setup, wait};
use serde_json::json;

use super::{
    cost,
    ground::BenchDirs,
    job::Bench,
    table::{Table, millis, quantile},
};

pub(super) const COUNT: usize = 1_000;
/// Changes of the variable.
const CHANGES: usize = 11;
/// By then the work after a start is done, and the agent has released the memory that it needed.
const SETTLED: Duration = Duration::from_secs(45);
/// Duration of the measurement of an idle agent.
const REST: Duration = Duration::from_secs(60);
const VARIABLE: &str = "nomad/jobs/bench";
/// Data does not have to be quiet before a render.
pub(super) const WAIT: &str = "template: {wait: {min: 0s, max: 0s}}\n";
/// Its output is short, so that the measured memory is that of watches and records.
const TEMPLATE: &str = r#"templates:
            - {data: '{{ with nomadVar "nomad/jobs/bench" }}{{ .number }}{{ end }}', destination: local/out, change_mode: noop, splay: 0s}"#;

/// An agent that has been idle for a minute.
struct Idle {
    memory_kib: u64,
    cpu: Duration,
}

/// Watches, memory, processor time of an idle agent, and the time until all files have a change.
pub(super) fn a_thousand(table: &mut Table, ground: &BenchDirs) {
    let bare = {
        let bench = Bench::new(ground);
        bench.apply(&manifest(""));
        let idle = idle(&bench);
        bench.agent.finish();
        idle
    };
    let bench = Bench::with(ground, |setup: Setup| setup.config(WAIT));
    put(&bench, 0);
    bench.apply(&manifest(TEMPLATE));
    let with = idle(&bench);
    table.row(
        &format!("{COUNT} tasks with a template of one variable: watches"),
        format_args!("{:.0}", bench.metric("herdlet_template_queries")),
        "1",
        "",
    );
    table.row(
        "their templates: memory for each task (PSS)",
        format_args!("{:.1} KB", each(with.memory_kib) - each(bare.memory_kib)),
        "≤ 4 KB",
        "",
    );
    table.row(
        &format!("idle agent with {COUNT} templates for {} s: processor time", REST.as_secs()),
        format_args!("{:.1} ms", millis(with.cpu)),
        "no more than without templates",
        format_args!("{:.1} ms without templates", millis(bare.cpu)),
    );
    let (mut taken, cpu) = (Vec::new(), cost::cpu([bench.agent.pid()]));
    let files = files(&bench.allocs());
    assert_eq!(files.len(), COUNT, "each task has its file");
    for number in 1..=CHANGES {
        let began = Instant::now();
        put(&bench, number);
        until_all_have(&files, &number.to_string());
        taken.push(began.elapsed().as_secs_f64() * 1_000.0);
        wait::pause(Duration::from_millis(500));
    }
    let cpu = cost::cpu([bench.agent.pid()]).saturating_sub(cpu);
    taken.sort_by(f64::total_cmp);
    table.row(
        "a change of the variable, until all files have it (`wait {min = \"0s\"}`), median / maximum",
        format_args!("{:.0} / {:.0} ms", quantile(&taken, 0.5), quantile(&taken, 1.0)),
        "≤ 1 s",
        format_args!(
            "{:.0} µs of processor time for each file",
            millis(cpu) * 1e3 / (COUNT * CHANGES) as f64
        ),
    );
    bench.agent.finish();
}

/// Waits until all tasks run and the work after their start is done, and measures a minute.
fn idle(bench: &Bench) -> Idle {
    bench.until_running(COUNT);
    wait::pause(SETTLED);
    let memory_kib = cost::pss_kib([bench.agent.pid()]);
    let cpu = cost::cpu([bench.agent.pid()]);
    wait::pause(REST);
    Idle { memory_kib, cpu: cost::cpu([bench.agent.pid()]).saturating_sub(cpu) }
}

pub(super) fn manifest(templates: &str) -> String {
    format!(
        "apiVersion: herdlet/v1
kind: Job
metadata: {{name: bench}}
spec:
  groups:
    - name: main
      count: {COUNT}
      tasks:
        - name: t
          driver: raw_exec
          config: {{command: sleep, args: [\"100000\"]}}
          {templates}
"
    )
}

fn put(bench: &Bench, number: usize) {
    let body = json!({ "Items": { "number": number.to_string() } }).to_string();
    bench.call("PUT", &format!("/v1/var/{VARIABLE}"), &body);
}

/// The file of each task.
pub(super) fn files(allocs: &Path) -> Vec<PathBuf> {
    let dirs = fs::read_dir(allocs).into_iter().flatten().flatten();
    dirs.map(|dir| dir.path().join("t/local/out")).filter(|file| file.exists()).collect()
}

/// Waits for one file after another: what was true once stays so, and polls take hardly any time from the agent.
pub(super) fn until_all_have(files: &[PathBuf], content: &str) {
    for file in files {
        while fs::read_to_string(file).ok().as_deref() != Some(content) {
            wait::pause(Duration::from_millis(2));
        }
    }
}

fn each(kib: u64) -> f64 {
    kib as f64 * 1.024 / COUNT as f64
}
