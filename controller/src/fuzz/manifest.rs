//! Manifests in YAML or Nomad's JSON, and job files in HCL: bytes → canonical jobs that can be written, stored and planned, or
//! problems with positions.

use std::sync::LazyLock;

use herdlet_api_types::{job::Job, volume::Volume};
use herdlet_manifest::{
    manifests::{Drivers, Set, job_to_yaml, parse, volume_to_yaml},
    yaml::Problems,
};
use herdlet_plan::event::{Command, Event};

use super::state::{NOW, plan_all, settings, stored};

static DRIVERS: LazyLock<Drivers> = LazyLock::new(Drivers::built_in);

/// Jobs with more allocations are read and written, but not planned, because that takes seconds.
const PLANNED_MAX: u32 = 50;

pub(super) fn feed(data: &[u8]) {
    feed_as("m.yaml", data);
}

pub(super) fn feed_hcl(data: &[u8]) {
    feed_as("m.hcl", data);
}

fn feed_as(name: &str, data: &[u8]) {
    match parse(name, data, &DRIVERS) {
        Ok(set) => accepted(set),
        Err(problems) => refused(name, data, &problems),
    }
}

/// Accepted jobs are written as manifests and read again, stored in the database and read again, and planned.
fn accepted(set: Set) {
    for warning in &set.warnings {
        assert!(warning.line > 0 && warning.column > 0, "a warning without a position: {warning:?}");
    }
    let jobs: Vec<Job> = set.jobs.into_iter().map(|loaded| loaded.object).collect();
    let volumes: Vec<Volume> = set.volumes.into_iter().map(|loaded| loaded.object).collect();
    for job in &jobs {
        let written = job_to_yaml(job).unwrap();
        assert_eq!(only(&written).0.as_slice(), std::slice::from_ref(job), "{written}");
        assert_eq!(&stored(job), job);
        let json = serde_json::to_vec(job).unwrap();
        assert_eq!(&serde_json::from_slice::<Job>(&json).unwrap(), job);
    }
    for volume in &volumes {
        let written = volume_to_yaml(volume).unwrap();
        assert_eq!(only(&written).1.as_slice(), std::slice::from_ref(volume), "{written}");
        assert_eq!(&stored(volume), volume);
    }
    let count: u32 = jobs.iter().flat_map(|job| &job.groups).map(|group| group.count).sum();
    if count <= PLANNED_MAX {
        let mut world = herdlet_plan::world::World::new(settings());
        let (mut dirty, mut turn) = Default::default();
        let command = Command::Apply { jobs, volumes };
        world.apply(NOW, Event::Command { request: 1, command }, &mut dirty, &mut turn);
        plan_all(&mut world, dirty);
    }
}

fn only(written: &str) -> (Vec<Job>, Vec<Volume>) {
    let set = parse("written.yaml", written.as_bytes(), &DRIVERS)
        .unwrap_or_else(|problems| panic!("the written manifest is refused: {problems}\n{written}"));
    (
        set.jobs.into_iter().map(|loaded| loaded.object).collect(),
        set.volumes.into_iter().map(|loaded| loaded.object).collect(),
    )
}

fn refused(name: &str, data: &[u8], problems: &Problems) {
    assert!(!problems.is_empty());
    check_positions(name, data, problems);
}

/// Every problem has a position in the text, in order, and can be printed on a terminal.
pub(super) fn check_positions(name: &str, data: &[u8], problems: &Problems) {
    let text = String::from_utf8_lossy(data);
    // As YAML counts lines: a carriage return alone also ends a line.
    let normal = text.replace("\r\n", "\n").replace('\r', "\n");
    let lines: Vec<&str> = normal.split('\n').collect();
    let mut last = (0, 0);
    for problem in problems {
        assert_eq!(problem.source, name);
        let (line, column) = (problem.line as usize, problem.column as usize);
        assert!(last <= (line, column), "out of order: {problems}");
        last = (line, column);
        for text in [&problem.path, &problem.message] {
            assert!(!text.chars().any(char::is_control), "a control sequence for the terminal: {text:?}");
        }
        assert!(!problem.message.is_empty() && problem.message.len() < 10_000, "{problem:?}");
        if line == 0 {
            assert_eq!(column, 0, "{problem:?}");
            continue;
        }
        let length = lines.get(line - 1).map(|line| line.chars().count());
        let length = length.unwrap_or_else(|| panic!("line {line} does not exist: {problem}"));
        assert!((1..=length + 1).contains(&column), "line {line} has no column {column}: {problem}");
    }
}

pub(super) fn hcl_seeds() -> Vec<Vec<u8>> {
    [
        include_str!("../../manifest/src/manifests/nomad/corpus/batch.nomad.hcl"),
        include_str!("../../manifest/src/manifests/nomad/corpus/lone.nomad.hcl"),
        include_str!("../../manifest/src/manifests/nomad/corpus/service.nomad.hcl"),
    ]
    .map(|text| text.as_bytes().to_vec())
    .into()
}

pub(super) fn seeds() -> Vec<Vec<u8>> {
    let mut seeds: Vec<Vec<u8>> = [
        include_str!("../../../manifests/hello.yaml"),
        include_str!("../../../manifests/identity.yaml"),
        include_str!("../../../manifests/sidecar.yaml"),
        include_str!("../../../manifests/volume.yaml"),
        include_str!("../../../manifests/web-consul.yaml"),
        include_str!("../../../manifests/web.yaml"),
        include_str!("../../manifest/src/manifests/tests/web.written.yaml"),
        include_str!("../../manifest/src/yaml/tests/golden/foreign.yaml"),
        include_str!("../../manifest/src/yaml/tests/golden/slips.yaml"),
        include_str!("../../manifest/src/manifests/nomad/corpus/batch.json"),
        include_str!("../../manifest/src/manifests/nomad/corpus/lone.json"),
        include_str!("../../manifest/src/manifests/nomad/corpus/service.json"),
    ]
    .map(|text| text.as_bytes().to_vec())
    .into();
    let bad = include_str!("../../manifest/src/manifests/tests/bad.txt").split("### ").skip(1);
    let bad = bad.filter_map(|case| Some(case.split_once('\n')?.1.split_once("\n>>>\n")?.0));
    seeds.extend(bad.map(|text| text.as_bytes().to_vec()));
    seeds
}
