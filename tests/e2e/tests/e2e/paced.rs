//! Starts on a machine under pressure: the highest priority goes first. The pressure is a folder mounted over
//! `/proc/pressure` that only the agent sees.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    time::{Duration, Instant},
};

use herdlet_e2e::{
    agent::{Agent, Setup},
    program::program,
    wait,
};

use crate::common::{is_root, job, sleeper};

/// A fake `/proc/pressure`.
struct Pressure(PathBuf);

impl Pressure {
    /// Prepares it for an agent that is not started yet.
    fn for_agent(agent: &mut Agent) -> Self {
        let dir = agent.home.path().join("pressure");
        fs::create_dir(&dir).unwrap();
        let wrapper = agent.home.path().join("under-pressure");
        let (shown, herdlet) = (dir.display(), program().display());
        let script = format!(
            "#!/bin/sh\nexec unshare --mount --propagation private sh -c 'mount --bind {shown} /proc/pressure && exec {herdlet} \"$@\"' herdlet \"$@\"\n"
        );
        fs::write(&wrapper, script).unwrap();
        fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o755)).unwrap();
        agent.set_program(wrapper);
        Self(dir)
    }

    fn set(&self, percent: u8) {
        for file in ["cpu", "io", "memory"] {
            let text = format!("some avg10={percent}.00 avg60=0.00 avg300=0.00 total=1\n");
            fs::write(self.0.join(file), text).unwrap();
        }
    }
}

fn of_priority(name: &str, priority: u8) -> String {
    job(name, "service", "", &[sleeper("t", "")])
        .replace("  type: service\n", &format!("  type: service\n  priority: {priority}\n"))
}

fn is_running(agent: &Agent, job: &str) -> bool {
    agent.allocs().iter().any(|alloc| alloc.job() == job && alloc.status() == "running")
}

fn paced(agent: &Agent) -> f64 {
    agent.metric("herdlet_operations_paced_total", "start")
}

/// Applies a job, and two of lower priority right after its start, which therefore wait. On a very busy
/// machine they may come too late, so the function repeats this with new jobs. Returns the time, and the
/// names of the waiting jobs.
fn until_paced(agent: &mut Agent) -> (Instant, String, String) {
    for round in 0..100 {
        let (began, before) = (Instant::now(), paced(agent));
        let [high, low, given_up] = ["high", "low", "given-up"].map(|name| format!("{name}-{round}"));
        agent.apply(&of_priority(&high, 80));
        wait::until_true("the job of the highest priority runs", || is_running(agent, &high));
        assert_eq!(paced(agent), before, "the highest priority does not wait");
        agent.apply(&[of_priority(&low, 20), of_priority(&given_up, 10)].join("---\n"));
        let (wait, run) =
            (|| paced(agent) >= before + 2.0, || is_running(agent, &low) && is_running(agent, &given_up));
        wait::until_true("the others wait, or came too late", || wait() || run());
        if wait() {
            return (began, low, given_up);
        }
        agent.cli(&["delete", "--wait", &high, &low, &given_up]).success();
    }
    panic!("none of a hundred jobs waits");
}

#[test]
fn pressure_starts_highest_priority_first() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::prepare(Setup::default());
    let pressure = Pressure::for_agent(&mut agent);
    pressure.set(90);
    agent.launch();
    agent.set_program(program().to_path_buf());
    let (began, low, given_up) = until_paced(&mut agent);
    let waiting = paced(&agent);

    // A start that is no longer wanted does not delay its deletion.
    agent.cli(&["delete", "--wait", &given_up]).success();
    let was_started = agent.log().contains(&format!("task is running name=\"{given_up}.g[0]\""));
    assert!(!was_started || began.elapsed() > Duration::from_secs(10), "{}", agent.log_tail());

    pressure.set(0);
    wait::until_true("the other jobs run", || is_running(&agent, &low));
    assert_eq!(paced(&agent), waiting);
    agent.finish();
}
