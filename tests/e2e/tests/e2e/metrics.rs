//! The metrics page of a running agent, parsed strictly by the specifications of its two formats:
//! <https://prometheus.io/docs/instrumenting/exposition_formats/> and
//! <https://prometheus.io/docs/specs/om/open_metrics_spec/>.

mod alerts;

use std::{
    collections::{BTreeMap, BTreeSet},
    io::Write as _,
    process::{Command, Stdio},
};

use herdlet_e2e::{
    agent::{Agent, Setup},
    environment, http,
};

use crate::common::{is_root, job, shell, sleeper, volume};

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0";

/// The types of families by name, and every sample with its labels.
#[derive(Debug, Default)]
struct Page {
    families: BTreeMap<String, String>,
    samples: BTreeMap<(String, BTreeMap<String, String>), f64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Text,
    OpenMetrics,
}

impl Page {
    fn read(text: &str, format: Format) -> Self {
        let mut page = Self::default();
        let (mut family, mut helped, mut done) = (String::new(), BTreeSet::new(), false);
        for line in text.strip_suffix('\n').expect_line("the page ends with a line").split('\n') {
            assert!(!done, "{line}: follows the end mark");
            if line == "# EOF" {
                assert_eq!(format, Format::OpenMetrics, "{line}");
                done = true;
            } else if let Some(rest) = line.strip_prefix("# HELP ") {
                let (name, help) = rest.split_once(' ').expect_line(line);
                assert!(
                    helped.insert(name.to_owned()) && !help.is_empty(),
                    "{line}: not exactly one HELP line"
                );
            } else if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').expect_line(line);
                assert!(helped.contains(name), "{line}: precedes its HELP line");
                assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
                family = name.to_owned();
                assert!(page.families.insert(family.clone(), kind.to_owned()).is_none(), "{line}: duplicate");
            } else if let Some(rest) = line.strip_prefix("# UNIT ") {
                assert_eq!(format, Format::OpenMetrics, "{line}");
                let (name, unit) = rest.split_once(' ').expect_line(line);
                assert!(name.ends_with(&format!("_{unit}")), "{line}");
            } else {
                page.sample(line, &family, format);
            }
        }
        assert_eq!(done, format == Format::OpenMetrics, "the page has an end mark");
        page
    }

    fn sample(&mut self, line: &str, family: &str, format: Format) {
        let (name, labels, value) = sample(line);
        let suffix = name.strip_prefix(family).expect_line(line);
        let suffixes: &[&str] = match (self.families[family].as_str(), format) {
            ("counter", Format::OpenMetrics) => &["_total"],
            ("counter" | "gauge", _) => &[""],
            _ => &["_bucket", "_sum", "_count"],
        };
        assert!(suffixes.contains(&suffix), "{line}: in family {family}");
        assert_eq!(suffix == "_bucket", labels.contains_key("le"), "{line}");
        assert!(name.ends_with("_total") == (self.families[family] == "counter"), "{line}");
        let value: f64 = value.parse().expect_line(line);
        assert!(self.samples.insert((name, labels), value).is_none(), "{line}: duplicate");
    }

    /// Checks that buckets are cumulative and that the last one equals the count.
    fn check_histograms(&self) {
        for family in self.families.iter().filter(|(_, kind)| *kind == "histogram").map(|(name, _)| name) {
            let counts = self.samples.iter().filter(|((name, _), _)| *name == format!("{family}_count"));
            for ((_, labels), count) in counts {
                let mut buckets: Vec<(f64, f64)> = Vec::new();
                for ((name, of), value) in &self.samples {
                    let mut rest = of.clone();
                    let Some(le) = rest.remove("le") else { continue };
                    if *name == format!("{family}_bucket") && rest == *labels {
                        buckets.push((le.parse().expect_line(&le), *value));
                    }
                }
                buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
                assert!(buckets.windows(2).all(|pair| pair[0].1 <= pair[1].1), "{family}: {buckets:?}");
                assert_eq!(buckets.last(), Some(&(f64::INFINITY, *count)), "{family}");
            }
        }
    }
}

/// Parses name, labels and value of a line.
fn sample(line: &str) -> (String, BTreeMap<String, String>, String) {
    let end = line.find(['{', ' ']).expect_line(line);
    let name = &line[..end];
    assert!(is_name(name), "{line}");
    let mut labels = BTreeMap::new();
    let mut rest = &line[end..];
    if let Some(inner) = rest.strip_prefix('{') {
        rest = inner;
        while !rest.starts_with('}') {
            let (label, after) = rest.split_once("=\"").expect_line(line);
            assert!(is_name(label) && !label.contains(':'), "{line}");
            let (value, after) = quoted(after, line);
            assert!(labels.insert(label.to_owned(), value).is_none(), "{line}: duplicate label");
            rest = after.strip_prefix(',').unwrap_or(after);
        }
        rest = &rest[1..];
    }
    let value = rest.strip_prefix(' ').expect_line(line);
    assert!(!value.contains(' '), "{line}: has a timestamp");
    (name.to_owned(), labels, value.to_owned())
}

/// Parses a label's value up to its closing quote; returns the rest.
fn quoted<'t>(text: &'t str, line: &str) -> (String, &'t str) {
    let (mut value, mut chars) = (String::new(), text.char_indices());
    while let Some((at, char)) = chars.next() {
        match char {
            '"' => return (value, &text[at + 1..]),
            '\\' => value.push(match chars.next().map(|(_, escaped)| escaped) {
                Some('n') => '\n',
                Some(escaped @ ('"' | '\\')) => escaped,
                other => panic!("{line}: unknown escape {other:?}"),
            }),
            plain => value.push(plain),
        }
    }
    panic!("{line}: unterminated value")
}

fn is_name(text: &str) -> bool {
    let fits = |char: char| char == '_' || char == ':' || char.is_ascii_alphanumeric();
    text.starts_with(|char: char| !char.is_ascii_digit()) && text.chars().all(fits)
}

/// Panics with the line if a part of it is missing.
trait OrLine<T> {
    fn expect_line(self, line: &str) -> T;
}

impl<T> OrLine<T> for Option<T> {
    fn expect_line(self, line: &str) -> T {
        self.unwrap_or_else(|| panic!("not well-formed: {line}"))
    }
}

impl<T, E> OrLine<T> for Result<T, E> {
    fn expect_line(self, line: &str) -> T {
        self.ok().expect_line(line)
    }
}

#[test]
fn the_page_of_a_busy_agent_is_well_formed_in_both_formats() {
    if !is_root() {
        return;
    }
    let mut agent =
        Agent::start_with(Setup::default().config("telemetry: {publish_allocation_metrics: true}\n"));
    let failing = job(
        "failing",
        "batch",
        "restart: {attempts: 1, delay: 1ms, mode: fail}",
        &[shell("t", "exit 3", "")],
    );
    let path = agent.manifest(&failing).display().to_string();
    assert_eq!(agent.cli(&["apply", "-f", &path, "--wait"]).code, 1);
    agent.apply_and_wait(&format!(
        "{}{}",
        volume("site"),
        job("busy", "service", "count: 2", &[sleeper("t", "")])
    ));
    let page = |accept: &str| {
        let answer =
            http::request(&agent.peer(), "GET", "/v1/metrics?format=prometheus", &[("Accept", accept)], "")
                .unwrap();
        assert_eq!(answer.status, 200);
        answer.body
    };
    let (text, open) = (page("*/*"), page(OPEN_METRICS));
    for (text, format) in [(&text, Format::Text), (&open, Format::OpenMetrics)] {
        let page = Page::read(text, format);
        page.check_histograms();
        let ours = |name: &String| name.starts_with("herdlet_") || name.starts_with("nomad_client_");
        assert!(page.families.keys().all(ours), "{:?}", page.families.keys());
        let is = |name: &str, labels: &[(&str, &str)]| {
            let labels =
                labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            page.samples.get(&(name.to_owned(), labels)).copied()
        };
        assert_eq!(is("herdlet_objects", &[("kind", "job"), ("state", "converged")]), Some(1.0));
        assert_eq!(is("herdlet_objects", &[("kind", "job"), ("state", "failed")]), Some(1.0));
        assert_eq!(is("herdlet_tasks", &[("state", "running")]), Some(2.0));
        assert!(is("herdlet_turns_total", &[]).is_some_and(|turns| turns > 0.0));
        // For each running task; processor usage only from the second page on.
        let of_tasks = |name: &str| page.samples.keys().filter(|(sample, _)| sample == name).count();
        for name in ["nomad_client_allocs_memory_rss", "nomad_client_allocs_restart"] {
            assert_eq!(of_tasks(name), 2, "{name}");
        }
        let shares = of_tasks("nomad_client_allocs_cpu_total_percent");
        assert_eq!(shares, if format == Format::Text { 0 } else { 2 });
        assert!(of_tasks("nomad_client_host_cpu_idle") > 0);
    }
    if let Some(promtool) = environment::component(environment::PROMTOOL) {
        let mut command = Command::new(promtool);
        command
            .args(["check", "metrics"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut checking = command.spawn().unwrap();
        checking.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        let checked = checking.wait_with_output().unwrap();
        let printed = [checked.stdout, checked.stderr].concat();
        assert!(checked.status.success() && printed.is_empty(), "{}", String::from_utf8_lossy(&printed));
    }
    agent.finish();
}
