//! Services of other jobs: a file follows the catalogue, and a new agent does not mistake its empty catalogue for a change.

use herdlet_e2e::{
    agent::{Agent, Setup},
    ports, wait,
};

use super::{QUICK, path_of, recorded, recorder, template, until_file, until_recorded};
use crate::common::{is_root, job, sleeper};

const UPSTREAM: &str =
    "{{ range nomadService \"back\" }}server {{ .Address }}:{{ .Port }} {{ .Tags | join \",\" }}\n{{ end }}";

fn back(count: usize) -> String {
    let more = "services: [{name: back, provider: nomad, port: http, tags: [blue, v1]}]";
    let group = format!("count: {count}\nnetwork: {{ports: {{http: {{}}}}}}");
    job("back", "service", &group, &[sleeper("t", more)])
}

/// The lines of the instances, in the order of the file.
fn expected(agent: &Agent, count: usize) -> Vec<String> {
    let ports =
        (0..count).map(|index| agent.alloc(&format!("back.g[{index}]")).unwrap().port("http").unwrap());
    let mut lines: Vec<String> = ports.map(|port| format!("server 127.0.0.1:{port} blue,v1")).collect();
    lines.sort();
    lines
}

fn until_lines(agent: &Agent, count: usize) {
    let path = path_of(agent, "front.g[0]", "t/local/upstream");
    let expected = expected(agent, count);
    let mut found = Vec::new();
    wait::until_true(&format!("the file has {expected:?}"), || {
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        found = text.lines().map(str::to_owned).collect::<Vec<_>>();
        found.sort();
        found == expected
    });
}

#[test]
fn a_file_follows_the_services_of_another_job() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start_with(
        Setup::default().config(format!("{QUICK}host_ip: 127.0.0.1\n{}", ports::for_tasks())),
    );
    let front = recorder("t", &[template(UPSTREAM, "local/upstream", "change_mode: signal")]);
    agent.apply_and_wait(&job("front", "service", "", &[front]));
    // No instance is an answer too.
    until_recorded(&agent, ("front.g[0]", "t"), &["start"]);
    until_file(&agent, "front.g[0]", ("t/local/upstream", ""));
    for count in [2, 3, 1] {
        agent.apply_and_wait(&back(count));
        until_lines(&agent, count);
    }
    agent.cli(&["delete", "--wait", "back"]).success();
    until_file(&agent, "front.g[0]", ("t/local/upstream", ""));
    wait::until_true("signals were sent", || recorded(&agent, "front.g[0]", "t").contains(&"hup".to_owned()));
    assert_eq!(agent.alloc("front.g[0]").unwrap().restarts("t"), 0);
    agent.finish();
}

#[test]
fn a_new_agent_keeps_the_services_of_the_last_one() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start_with(
        Setup::default().config(format!("{QUICK}host_ip: 127.0.0.1\n{}", ports::for_tasks())),
    );
    agent.apply_and_wait(&back(2));
    let front = recorder("t", &[template(UPSTREAM, "local/upstream", "")]);
    agent.apply_and_wait(&job("front", "service", "", &[front]));
    until_recorded(&agent, ("front.g[0]", "t"), &["start"]);
    until_lines(&agent, 2);
    let path = path_of(&agent, "front.g[0]", "t/local/upstream");
    let about = || {
        use std::os::unix::fs::MetadataExt as _;
        let found = std::fs::metadata(&path).unwrap();
        (found.ino(), found.mtime(), found.mtime_nsec())
    };
    let before = about();
    for _ in 0..5 {
        agent.crash();
        agent.cli(&["wait", "back", "front"]).success();
        until_lines(&agent, 2);
        assert_eq!(about(), before, "the file was written again");
        assert_eq!(recorded(&agent, "front.g[0]", "t"), ["start"]);
    }
    // Changes are still noticed.
    agent.apply_and_wait(&back(3));
    until_lines(&agent, 3);
    until_recorded(&agent, ("front.g[0]", "t"), &["start", "start"]);
    agent.finish();
}
