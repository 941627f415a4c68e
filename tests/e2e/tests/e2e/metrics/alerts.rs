//! The alerts of `deploy/alerts.yaml`, evaluated by promtool on samples that agents in trouble have served.
//!
//! [`ROWS`] has a state that raises each alert, and the resulting summary. States that a test cannot cause (a panic of the planner, a
//! disk that is full for minutes) are values of samples that the page already has: names and labels are always those of a page.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::Command,
};

use herdlet_e2e::{
    agent::{Agent, Setup},
    environment, http, ports,
    program::project,
    wait,
};
use serde_json::{Value, json};

use super::{Format, Page};
use crate::{
    common::{TOKEN, is_root, job, shell, sleeper},
    node::NodeTest,
};

/// What raises an alert.
enum State {
    /// What [`troubled`] has caused.
    Caused,
    /// This value of a sample of the page, written `NAME LABEL=VALUE…`.
    Set(&'static str, f64),
    /// Prometheus itself writes the sample.
    Scrape,
}

struct Row {
    alert: &'static str,
    state: State,
    /// The labels of the alert without `instance` and `severity`, and its summary on the instance `m`.
    fires: &'static [(&'static [(&'static str, &'static str)], &'static str)],
}

/// The labels that Prometheus gives to each scraped sample. Without `honor_labels` it renames the sample's own labels
/// of these names.
const TARGET: [(&str, &str); 2] = [("instance", "m"), ("job", "herdlet")];

/// The label of alerts whose expression does not sum.
const JOB: (&str, &str) = ("job", "herdlet");

const ROWS: &[Row] = &[
    Row {
        alert: "HerdletOverdue",
        state: State::Set("herdlet_overdue kind=job", 2.0),
        fires: &[(
            &[("kind", "job")],
            "2 objects of kind job on m have not converged by the deadline of their plan",
        )],
    },
    Row { alert: "HerdletDown", state: State::Scrape, fires: &[(&[JOB], "The agent on m does not answer")] },
    Row {
        alert: "HerdletStuck",
        state: State::Set("herdlet_operation_oldest_seconds kind=start", 1200.0),
        fires: &[(&[JOB, ("kind", "start")], "An operation of kind start on m has been running for 20m 0s")],
    },
    Row {
        alert: "HerdletStateNotWritten",
        state: State::Set("herdlet_state_degraded", 1.0),
        fires: &[(&[JOB], "The agent on m cannot write its state")],
    },
    Row {
        alert: "HerdletDiskFull",
        state: State::Set("herdlet_state_reserve_in_use", 1.0),
        fires: &[(&[JOB], "The disk of the agent on m is full")],
    },
    Row {
        alert: "HerdletPanics",
        state: State::Set("herdlet_panics_total", 1.0),
        fires: &[(&[JOB], "Planning panicked on m")],
    },
    Row {
        alert: "HerdletFailed",
        state: State::Caused,
        fires: &[
            (&[("kind", "alloc")], "1 objects of kind alloc on m have failed permanently"),
            (&[("kind", "job")], "1 objects of kind job on m have failed permanently"),
        ],
    },
    Row {
        alert: "HerdletWaiting",
        state: State::Caused,
        fires: &[(&[], "1 jobs on m have been waiting for 15 minutes")],
    },
    Row {
        alert: "HerdletChecks",
        state: State::Caused,
        fires: &[(
            &[("namespace", "default"), ("job_name", "sick"), ("service", "s"), ("check", "c")],
            "Check c of service s on m fails in 1 allocations",
        )],
    },
    Row {
        alert: "HerdletIneligible",
        state: State::Caused,
        fires: &[(&[JOB], "m has taken no allocations for an hour")],
    },
    Row {
        alert: "HerdletManifests",
        state: State::Caused,
        fires: &[(&[JOB], "The agent on m refuses 1 manifest files")],
    },
    Row {
        alert: "HerdletHeld",
        state: State::Caused,
        fires: &[(
            &[("namespace", "default"), ("job_name", "held")],
            "Job held on m was rolled back, and its file defines another version",
        )],
    },
    Row {
        alert: "HerdletServers",
        state: State::Set("herdlet_node_contact_age_seconds", 300.0),
        fires: &[(&[JOB], "No server of the cluster has answered m for 5m 0s")],
    },
    Row {
        alert: "HerdletServices",
        state: State::Set("herdlet_services catalog=consul state=pending", 2.0),
        fires: &[(&[("catalog", "consul")], "2 services of m are not up to date in consul")],
    },
    Row {
        alert: "HerdletCertificate",
        // promtool's clock begins at 0 and shows 75 minutes.
        state: State::Set("herdlet_tls_certificate_expiry_timestamp_seconds", 4500.0 + 2.0 * 86400.0),
        fires: &[(&[JOB], "The certificate of the API on m expires in 2d 0h 0m 0s")],
    },
    Row {
        alert: "HerdletRestarts",
        state: State::Caused,
        fires: &[(
            &[("namespace", "default"), ("job_name", "crashing"), ("task", "worker")],
            "Task worker of job crashing on m has restarted 7 times in half an hour",
        )],
    },
    Row {
        alert: "HerdletDrift",
        state: State::Set("herdlet_drift_detected_total kind=mount by=event", 12.0),
        fires: &[(&[("kind", "mount")], "Parts of kind mount on m are removed again and again")],
    },
    Row {
        alert: "HerdletOrphans",
        state: State::Caused,
        fires: &[(
            &[("kind", "alloc_dir")],
            "1 leftovers of kind alloc_dir on m belong to no known object and were left alone",
        )],
    },
];

type Samples = BTreeMap<(String, BTreeMap<String, String>), f64>;

/// An alert as the file defines it.
struct Alert {
    severity: String,
    description: String,
}

fn alerts_file() -> std::path::PathBuf {
    project().join("deploy/alerts.yaml")
}

/// The alerts of the file, by name.
fn defined() -> BTreeMap<String, Alert> {
    let text = fs::read_to_string(alerts_file()).unwrap();
    let blocks = text.split("- alert: ").skip(1);
    let field = |block: &str, name: &str| {
        let (_, rest) = block.split_once(name).unwrap();
        rest.lines().next().unwrap().trim().trim_end_matches('}').trim_matches('\'').replace("''", "'")
    };
    let alert = |block: &str| {
        let name = block.lines().next().unwrap().trim().to_owned();
        let (severity, description) = (field(block, "severity: "), field(block, "description: "));
        (name, Alert { severity, description })
    };
    blocks.map(alert).collect()
}

#[test]
fn each_alert_has_a_state_that_raises_it() {
    let tested: BTreeSet<&str> = ROWS.iter().map(|row| row.alert).collect();
    let alerts = defined();
    let names: BTreeSet<&str> = alerts.keys().map(String::as_str).collect();
    assert_eq!(tested, names, "ROWS has a row for each alert of deploy/alerts.yaml");
    assert_eq!(tested.len(), ROWS.len());
}

/// An agent with a job that crashed and failed, one that waits, one whose check fails and one that was rolled back; with a file that
/// it refuses and a directory that belongs to nothing; with TLS, and ineligible.
fn troubled() -> Agent {
    let [port] = ports::free();
    // Replaced below: it names files of the home.
    let mut agent = Agent::prepare(Setup::default().config("{}\n"));
    let pem = agent.home.write("agent.pem", include_str!("../security/self-signed.pem"));
    let token = agent.home.write("token", &format!("{TOKEN}\n"));
    for secret in [&pem, &token] {
        fs::set_permissions(secret, fs::Permissions::from_mode(0o600)).unwrap();
    }
    let (pem, token) = (pem.display(), token.display());
    let tls = format!("token_file: {token}\ntls: {{cert_file: {pem}, key_file: {pem}}}\n");
    agent.home.write("config.yaml", &format!("{tls}{}", ports::for_tasks()));
    let folder = agent.home.manifests();
    agent.set_arguments(
        ["--manifests", &folder.display().to_string(), "--listen", &format!("127.0.0.1:{port}")]
            .map(str::to_owned)
            .into(),
    );
    let version =
        |number: &str| job("held", "service", "", &[sleeper("t", &format!("env: {{V: {number:?}}}"))]);
    agent.home.write("manifests/held.yaml", &version("1"));
    agent.launch();
    let first = agent.until_alloc("held.g[0]", "runs", |alloc| alloc.state("t") == "running").id();

    // The copy of a directory of an allocation is no allocation.
    agent.kill();
    let allocs = agent.home.state().join("alloc");
    let copy = allocs.join("11111111-2222-3333-4444-555555555555");
    let copied = Command::new("cp").arg("-a").args([&allocs.join(first), &copy]).status().unwrap();
    assert!(copied.success());
    agent.launch();

    fs::write(folder.join("held.yaml"), version("2")).unwrap();
    agent.until_printed(&["get", "versions", "held", "-o", "name"], |output| output.starts_with('1'));
    agent.cli(&["rollback", "held", "--wait"]).success();
    fs::write(folder.join("broken.yaml"), "apiVersion: herdlet/v1\nkind: Jop\n").unwrap();

    let policy = "restart: {attempts: 7, interval: 1h, delay: 1ms, mode: fail}";
    let crashing = job("crashing", "batch", policy, &[shell("worker", "exit 3", "")]);
    let path = agent.manifest(&crashing).display().to_string();
    assert_eq!(agent.cli(&["apply", "-f", &path, "--wait"]).code, 1);
    agent.apply(&job(
        "waiting",
        "service",
        "constraints: [{attribute: \"${attr.kernel.name}\", value: plan9}]",
        &[sleeper("t", "")],
    ));
    let check = "{name: c, type: script, task: t, command: /bin/sh, args: [-c, \"exit 2\"], interval: 1s, timeout: 2m}";
    agent.apply(&job(
        "sick",
        "service",
        &format!("services: [{{name: s, checks: [{check}]}}]"),
        &[sleeper("t", "")],
    ));
    wait::until_true("the check fails", || agent.metric("herdlet_check_state", "state=\"failure\"") == 1.0);
    wait::until_true("the file is refused", || agent.metric("herdlet_manifest_errors", "") == 1.0);
    agent.cli(&["eligibility", "--disable"]).success();
    agent
}

fn samples_of(agent: &Agent) -> Samples {
    let text = http::request(&agent.peer(), "GET", "/v1/metrics?format=prometheus", &[], "").unwrap().body;
    let mut samples = Page::read(&text, Format::Text).samples;
    samples.retain(|(name, labels), _| name.starts_with("herdlet_") && !labels.contains_key("le"));
    samples
}

/// Gives a sample of the page another value.
fn set(samples: &mut Samples, sample: &str, value: f64) {
    let mut words = sample.split(' ');
    let name = words.next().unwrap().to_owned();
    let label = |word: &str| {
        let (name, value) = word.split_once('=').unwrap();
        (name.to_owned(), value.to_owned())
    };
    let key = (name, words.map(label).collect());
    *samples.get_mut(&key).unwrap_or_else(|| panic!("the page has no sample {sample}")) = value;
}

/// A scraped sample as an input series of promtool: an hour of 0 for a counter, then `value`.
fn series(name: &str, labels: &BTreeMap<String, String>, value: f64) -> Value {
    let mut shown: Vec<String> = TARGET.iter().map(|(label, value)| format!("{label}={value:?}")).collect();
    for (label, value) in labels {
        let renamed = TARGET.iter().any(|(given, _)| given == label);
        shown.push(format!("{}{label}={value:?}", if renamed { "exported_" } else { "" }));
    }
    let before = if name.ends_with("_total") { 0.0 } else { value };
    json!({ "series": format!("{name}{{{}}}", shown.join(", ")), "values": format!("{before}+0x60 {value}+0x40") })
}

/// The expectation of a row, for promtool.
fn expected(row: &Row, alert: &Alert) -> Value {
    let fires = row.fires.iter().map(|(labels, summary)| {
        let mut shown: BTreeMap<&str, &str> = labels.iter().copied().collect();
        shown.insert("instance", TARGET[0].1);
        let fill = |text: String, (label, value): (&&str, &&str)| {
            text.replace(&format!("{{{{ $labels.{label} }}}}"), value)
        };
        let description = shown.iter().fold(alert.description.clone(), fill);
        shown.insert("severity", &alert.severity);
        json!({ "exp_labels": shown, "exp_annotations": { "summary": summary, "description": description } })
    });
    json!({ "eval_time": "75m", "alertname": row.alert, "exp_alerts": fires.collect::<Vec<_>>() })
}

/// Runs promtool on the samples.
fn check(promtool: &Path, dir: &Path, input: &[Value], expected: &[Value]) {
    let test = json!({
        "rule_files": [alerts_file()],
        "evaluation_interval": "1m",
        "tests": [{ "interval": "1m", "input_series": input, "alert_rule_test": expected }],
    });
    let file = dir.join("alerts-test.yaml");
    fs::write(&file, test.to_string()).unwrap();
    let output = Command::new(promtool).args(["test", "rules"]).arg(file).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&[output.stdout, output.stderr].concat()));
}

#[test]
fn each_alert_fires_on_scraped_samples() {
    let Some(promtool) = environment::component(environment::PROMTOOL).filter(|_| is_root()) else { return };
    let agent = troubled();
    let mut samples = samples_of(&agent);
    // A node of a cluster has the age of its contact with servers too.
    let node = NodeTest::start();
    samples.extend(
        samples_of(&node.agent).into_iter().filter(|((name, _), _)| name.starts_with("herdlet_node_contact")),
    );
    node.finish();
    for row in ROWS {
        if let State::Set(sample, value) = row.state {
            set(&mut samples, sample, value);
        }
    }
    let mut input: Vec<Value> =
        samples.iter().map(|((name, labels), value)| series(name, labels, *value)).collect();
    input.push(json!({ "series": "up{instance=\"m\", job=\"herdlet\"}", "values": "0x100" }));
    let alerts = defined();
    let expected: Vec<Value> = ROWS.iter().map(|row| expected(row, &alerts[row.alert])).collect();
    check(&promtool, agent.home.path(), &input, &expected);
    fs::remove_dir_all(agent.home.state().join("alloc/11111111-2222-3333-4444-555555555555")).unwrap();
    // A job of a folder is deleted with its file.
    fs::remove_file(agent.home.manifests().join("held.yaml")).unwrap();
    wait::until_true("the folder's job is gone", || agent.alloc("held.g[0]").is_none());
    agent.finish();
}

/// On an agent without trouble no alert fires.
#[test]
fn no_alert_fires_on_a_calm_agent() {
    let Some(promtool) = environment::component(environment::PROMTOOL) else { return };
    let mut agent = Agent::start();
    agent.apply_and_wait(&job("calm", "service", "", &[sleeper("t", "")]));
    let samples = samples_of(&agent);
    let input: Vec<Value> =
        samples.iter().map(|((name, labels), value)| series(name, labels, *value)).collect();
    let none = |name: &String| json!({ "eval_time": "75m", "alertname": name, "exp_alerts": [] });
    check(&promtool, agent.home.path(), &input, &defined().keys().map(none).collect::<Vec<_>>());
    agent.finish();
}
