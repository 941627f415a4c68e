//! Several changes within `wait` are one action.

use std::time::{Duration, Instant};

use herdlet_e2e::agent::{Agent, Setup};

use super::{greeting, path_of, put, quick, recorder, template, templates, until_recorded};
use crate::common::{is_root, job, shell};

/// Longer than three changes take on a busy machine.
const QUIET: Duration = Duration::from_secs(10);

const SCRIPT: &str = "trap 'echo \"hup $(cat local/conf)\" >> local/log' HUP; trap 'exit 0' INT TERM; echo \"start $(cat local/conf)\" >> local/log; while :; do sleep 0.05; done";

#[test]
fn several_changes_within_the_wait_are_one_action() {
    if !is_root() {
        return;
    }
    let mut agent = quick();
    let mut expected = Vec::new();
    for round in 0.. {
        let name = format!("quiet{round}");
        let path = format!("nomad/jobs/{name}");
        put(&agent, &path, &["greeting=first"]);
        let more = format!("change_mode: signal, wait: {{min: {}s, max: 10m}}", QUIET.as_secs());
        let each = [template(&greeting(&name), "local/conf", &more)];
        let task = shell("t", SCRIPT, &format!("kill_timeout: 5s\n{}", templates(&each)));
        agent.apply_and_wait(&job(&name, "service", "", &[task]));
        let alloc = format!("{name}.g[0]");
        until_recorded(&agent, (&alloc, "t"), &["start first"]);
        let begun = Instant::now();
        for value in ["second", "third", "last"] {
            put(&agent, &path, &[&format!("greeting={value}")]);
        }
        // On a machine that is too busy for this, the changes were not within one wait: another round.
        let were_within_the_wait = QUIET.checked_sub(begun.elapsed()).is_some();
        if were_within_the_wait {
            // A signal for an earlier value would stand before this one.
            expected.extend(["start first", "hup last"]);
            until_recorded(&agent, (&alloc, "t"), &expected);
            break;
        }
    }
    assert_eq!(expected.len(), 2);
    agent.finish();
}

/// `wait` returned before the data was quiet, and the task had the old file.
#[test]
fn a_wait_includes_a_change_that_is_not_quiet_yet() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start_with(Setup::default().config("template: {wait: {min: 2s, max: 2s}}\n"));
    put(&agent, "nomad/jobs/waited", &["greeting=first"]);
    let each = [template(&greeting("waited"), "local/conf", "")];
    agent.apply_and_wait(&job("waited", "service", "", &[recorder("t", &each)]));
    for value in ["second", "third"] {
        put(&agent, "nomad/jobs/waited", &[&format!("greeting={value}")]);
        agent.cli(&["wait", "waited"]).success();
        let text = std::fs::read_to_string(path_of(&agent, "waited.g[0]", "t/local/conf")).unwrap();
        assert_eq!(text, value);
    }
    agent.finish();
}
