//! Short texts from users, tasks and file names: durations, variables, encoded names. The first byte selects which.

use std::{collections::BTreeMap, sync::Arc};

use herdlet_agent::telemetry;
use herdlet_api::http;
use herdlet_api_types::{
    AllocId, Duration, UnixNanos,
    alloc::{Allocation, Desired},
    fixture, format_duration,
    job::JobType,
    manifest::scalar::Span,
    parse_duration,
};
use herdlet_base::{paths, signal};
use herdlet_cli::Address;
use herdlet_plan::{
    env::{self, Inputs, NodeFacts, TaskEnv},
    interpolate::{OUTPUT_BYTES_MAX, interpolate_config},
};

pub(super) fn feed(data: &[u8]) {
    let Some((kind, data)) = data.split_first() else { return };
    if kind % 8 == 7 {
        return frames(data);
    }
    let Ok(text) = std::str::from_utf8(data) else { return };
    match kind % 8 {
        0 => duration(text),
        1 => variables(text),
        2 => config(text),
        3 => names(text),
        4 => drop(telemetry::Format::negotiate(Some(text))),
        5 => drop(signal::parse(text)),
        _ => address(text),
    }
}

/// A duration is the same in every notation.
fn duration(text: &str) {
    let Ok(nanos) = parse_duration(text) else { return };
    assert_eq!(parse_duration(&format_duration(nanos)), Ok(nanos));
    let span = Span(Duration(nanos));
    assert_eq!(parse_duration(&span.to_string()), Ok(nanos), "in the form of manifests: {span}");
    let shown = Duration(nanos).rounded();
    assert!(shown.0.abs_diff(nanos) <= 1_000_000_000, "{nanos} is shown as {shown}");
}

/// References between variables are resolved in bounded space, and always to the same result. Each line is a variable.
fn variables(text: &str) {
    let env = environment(text);
    assert!(env.variables() == environment(text).variables());
    let bytes: usize = env.variables().values().map(String::len).sum();
    assert!(bytes <= env::VALUES_BYTES_MAX + OUTPUT_BYTES_MAX + 2 * text.len() + 10_000, "{bytes}");
    let out = env.interpolate(text);
    assert!(out.len() <= OUTPUT_BYTES_MAX.max(text.len()));
    assert!(text.contains("${") || out == text, "nothing but ${{…}} is replaced");
}

fn environment(text: &str) -> TaskEnv {
    let entries = text.lines().filter_map(|line| line.split_once('='));
    let mut task = fixture::task("t");
    task.env = entries.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    let job = fixture::job("j", JobType::Service, vec![fixture::group("g", 1, vec![task.clone()])]);
    let alloc = Allocation {
        id: AllocId::from_hash([7; 16]),
        job_key: job.key(),
        job_version: 0,
        job: Arc::new(job),
        group: "g".to_owned(),
        index: 0,
        ports: BTreeMap::new(),
        task_ports: BTreeMap::new(),
        task_cores: BTreeMap::new(),
        desired: Desired::Run,
        desired_description: String::new(),
        create_index: 1,
        create_time: UnixNanos(0),
        previous: None,
        deployment: None,
        next: None,
        rescheduled: Vec::new(),
        server: None,
    };
    env::build(&Inputs { task: Some(&task), ..Inputs::new(&alloc, &NodeFacts::default()) })
}

/// A driver's config keeps its shape, or the error has a position.
fn config(text: &str) {
    let env = environment("A=1\nB=${A}${A}\nx.y=z");
    if let Ok(json) = serde_json::from_str::<serde_json::Value>(text)
        && let Ok(done) = interpolate_config(&json, &env)
    {
        assert_eq!(std::mem::discriminant(&json), std::mem::discriminant(&done));
    }
    let one = serde_json::Value::String(text.to_owned());
    match interpolate_config(&one, &env) {
        Ok(done) => assert!(text.contains('$') || done == one),
        Err(error) => assert!(error.to_string().len() < 1_000, "{error}"),
    }
}

/// Names become single path segments, and only encoded names can be decoded.
fn names(text: &str) {
    let part = paths::encode(text);
    assert!(!part.contains(['/', '.', '\0']));
    assert_eq!(paths::decode(&part).as_deref(), Some(text));
    if let Some(name) = paths::decode(text) {
        assert_eq!(paths::encode(&name), text, "one file name for each name");
    }
    let dir = paths::dir_name(text);
    assert!(!dir.contains(['/', '\0']) && !dir.starts_with('.') && dir != paths::SHARED, "{dir}");
    assert_eq!(paths::task_of(&dir).as_deref(), Some(text));
    if let Some(task) = paths::task_of(text) {
        assert!(
            paths::dir_name(&task) == text || paths::encode(&task) == text,
            "two directories of one task"
        );
    }
    if let Some((alloc, task, attempt)) = paths::parse_attempt_name(text) {
        assert_eq!(paths::attempt_name(&alloc, &task, attempt), text, "one file name for each attempt");
    }
}

/// The text form of an accepted address is accepted.
fn address(text: &str) {
    if let Ok(address) = text.parse::<Address>() {
        assert_eq!(address.to_string().parse::<Address>().unwrap(), address);
    }
}

/// Input frames of an exec session.
fn frames(data: &[u8]) {
    assert!(http::exec_input_frames(data).len() <= 3);
}

pub(super) fn seeds() -> Vec<Vec<u8>> {
    let seeds: [(u8, &str); 21] = [
        (0, "1h30m"),
        (0, "-2562047h47m16.854775808s"),
        (0, "+.5s"),
        (0, "1.000000001µs"),
        (1, "A=${B}\nB=${C}x\nC=${A}"),
        (1, "A=1\nB=${A}${A}\nC=${B}${B}\nNOMAD_META_a.b=${env.A}"),
        (1, "A=$${x}\nB=${NOMAD_ALLOC_ID}${node.unique.name}"),
        (2, r#"{"args":["${A}","$${A}",1,null,true],"m":{"k":"${env[\"x.y\"]}"}}"#),
        (2, r#"["${node.datacenter}", "${nope}", "${A"]"#),
        (2, "${ A }${meta[\"a b\"]}${attr.kernel.name}"),
        (3, "a%2Fb"),
        (3, "07070707-0707-0707-0707-070707070707.web%2D.3"),
        (3, "default.web"),
        (4, "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.3,*/*;q=0"),
        (5, "SIGHUP"),
        (5, "hup"),
        (6, "unix:///run/x.sock"),
        (6, "https://[::1]:4646/"),
        (7, r#"{"stdin":{"data":"aGk=","close":true},"tty_size":{"height":3,"width":9}}"#),
        (7, r#"{"stdin":{"close":true}}"#),
        (7, "{}"),
    ];
    seeds.iter().map(|(kind, text)| [&[*kind], text.as_bytes()].concat()).collect()
}
