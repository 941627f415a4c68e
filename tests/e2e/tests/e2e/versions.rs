//! Versions of a job: kept, listed, reverted to.

use herdlet_e2e::agent::Agent;
use serde_json::Value;

use crate::common::{is_root, job, shell};

fn colored(color: &str) -> String {
    let script = format!("echo {color}; exec sleep 100000");
    job("painted", "service", "", &[shell("t", &script, "kill_timeout: 5s")])
}

/// Returns the numbers of the stored versions, newest first.
fn kept(agent: &Agent) -> Vec<u64> {
    let listed = agent.cli(&["get", "versions", "painted", "-o", "name"]).success().stdout;
    listed.lines().map(|line| line.parse().unwrap()).collect()
}

#[track_caller]
fn runs(agent: &Agent, color: &str) {
    agent.until_printed(&["logs", "painted"], |output| output.contains(color));
}

#[test]
fn rollback_works_after_a_crash() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    for color in ["red", "green", "blue"] {
        agent.apply_and_wait(&colored(color));
    }
    assert_eq!(kept(&agent), [2, 1, 0]);
    let text = agent.cli(&["get", "versions", "painted", "-o", "yaml"]).success().stdout;
    assert_eq!(text.matches("kind: Job").count(), 3, "{text}");

    let back = agent.cli(&["rollback", "painted", "--wait", "-o", "json"]).success().stdout;
    let back: Value = serde_json::from_str(&back).unwrap();
    assert_eq!(
        (&back["to"], &back["version"], &back["waited"]["result"]),
        (&1.into(), &3.into(), &"reached".into())
    );
    runs(&agent, "green");

    agent.crash();
    assert_eq!(kept(&agent), [3, 2, 1, 0]);
    let output = agent.cli(&["rollback", "painted", "--to", "0", "--wait"]).success();
    assert!(output.stdout.contains("job/painted rolled back to version 0 (version 4)"), "{}", output.stdout);
    runs(&agent, "red");

    for (arguments, code, expected) in [
        (&["rollback", "painted", "--to", "4"][..], 1, "is at version 4 already"),
        (&["rollback", "painted", "--to", "77"], 1, "version 77 of job \"painted\" is not kept"),
        (&["rollback", "nobody"], 1, "there is no job \"nobody\""),
        (&["get", "versions"], 2, "herdlet get versions JOB"),
    ] {
        let refused = agent.cli(arguments);
        assert!(
            refused.code == code && refused.stderr.contains(expected),
            "{arguments:?}: {}",
            refused.stderr
        );
    }
    assert_eq!(kept(&agent).len(), 5, "refused requests changed nothing");
    agent.cli(&["delete", "painted", "--wait"]).success();
    agent.finish();
}

/// Regression: `sticky` was refused. The data of an allocation goes to the one that replaces it, also after a crash.
#[test]
fn sticky_disk_moves_to_the_next_version() {
    if !is_root() {
        return;
    }
    let counting = |color: &str, disk: &str| {
        let script = format!(
            "echo {color} >> local/seen; echo {color} >> $NOMAD_ALLOC_DIR/data/seen; \
                              cat local/seen $NOMAD_ALLOC_DIR/data/seen | tr '\\n' ' '; exec sleep 100000"
        );
        job(
            "painted",
            "service",
            &format!("ephemeral_disk: {disk}"),
            &[shell("t", &script, "kill_timeout: 5s")],
        )
    };
    let mut agent = Agent::start();
    agent.apply_and_wait(&counting("red", "{sticky: true}"));
    runs(&agent, "red red");
    agent.apply_and_wait(&counting("green", "{sticky: true}"));
    runs(&agent, "red green red green");
    agent.crash();
    agent.apply_and_wait(&counting("blue", "{sticky: true}"));
    runs(&agent, "red green blue red green blue");
    agent.apply_and_wait(&counting("black", "{sticky: false}"));
    runs(&agent, "black black");
    agent.cli(&["delete", "painted", "--wait"]).success();
    agent.finish();
}
