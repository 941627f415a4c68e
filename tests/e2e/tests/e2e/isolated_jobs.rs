//! The job files in `tests/e2e/isolated-jobs`: the driver `exec` and networks of the mode `bridge` as public job files use them.
//!
//! A row of the table is a file, and the check of its effect. Each file is applied unchanged.

use std::{collections::BTreeSet, fs};

use herdlet_e2e::{
    agent::{Agent, Setup},
    http, ports,
    program::project,
    wait,
};

use crate::{
    common::{is_root, volume},
    templates::put,
};

/// The agent, and the value of the variable `port`.
struct Ground {
    agent: Agent,
    port: u16,
}

type Check = fn(&Ground);

const JOBS: [(&str, Check); 20] = [
    ("backup", backup),
    ("bridged", |ground| ground.serves(ground.port, "port 8080 of the network\n")),
    ("capabilities", capabilities),
    ("discovery", |ground| ground.prints("discovery", &["--task", "client"], |log| log == "found")),
    ("dispatch", dispatch),
    ("dns", dns),
    ("environment", |ground| {
        let expected = "db.dc1.example:5432\n640\nallocation 0 {{ untouched }}";
        ground.prints("environment", &[], |log| log == expected);
    }),
    ("etc", etc),
    ("graceful", graceful),
    ("hello", |ground| {
        ground.prints("hello", &[], |log| log == "hello from hello as nobody in /\n");
    }),
    ("host-modes", host_modes),
    ("init", init),
    ("raw-bridge", raw_bridge),
    ("script-check", script_check),
    ("sidecar", |ground| {
        ground.prints("sidecar", &["--task", "reader"], |log| log == "from the sidecar\n");
    }),
    ("sysbatch", |ground| ground.prints("sysbatch", &[], |log| log == "Linux\n")),
    ("system", |ground| ground.prints("system", &[], |log| log == "collecting on linux\n")),
    ("variables", variables),
    ("volume", volumes),
    ("web", |ground| {
        let port = ground.agent.until_alloc("web.web[0]", "runs", |alloc| alloc.state("server") == "running");
        ground.serves(port.port("http").unwrap(), "site of web.web[0]");
        ground.agent.cli(&["wait", "web"]).success();
    }),
];

#[test]
fn every_job_file_has_a_check() {
    let entries = fs::read_dir(project().join("tests/e2e/isolated-jobs")).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().to_string_lossy().replace(".nomad.hcl", ""));
    let found: BTreeSet<String> = names.collect();
    assert_eq!(found, JOBS.map(|(name, _)| name.to_owned()).into());
}

#[test]
fn every_job_file_runs() {
    if !is_root() {
        return;
    }
    let config = "drivers: {exec: {allow_caps: [all], allowed_modes: {pid: [host], ipc: [host]}}}\nhost_ip: 127.0.0.1\nmax_kill_timeout: 1s\n";
    let mut agent = Agent::start_with(Setup::default().config(format!("{config}{}", ports::for_tasks())));
    agent.apply(&volume("shared"));
    let [port] = ports::free();
    let ground = Ground { agent, port };
    let wanted = std::env::var("HERDLET_TEST_JOB").ok();
    for (name, check) in JOBS {
        if wanted.as_deref().is_some_and(|wanted| wanted != name) {
            continue;
        }
        eprintln!("{name}");
        ground.apply(name);
        check(&ground);
        ground.agent.cli(&["delete", name, "--wait"]).success();
    }
    ground.agent.finish();
}

impl Ground {
    fn apply(&self, name: &str) {
        if name == "etc" {
            put(&self.agent, "nomad/jobs/etc", &["level=info"]);
        }
        let file = project().join(format!("tests/e2e/isolated-jobs/{name}.nomad.hcl")).display().to_string();
        let port = format!("port={}", self.port);
        let mut arguments = vec!["apply", "-f", &file];
        if name == "bridged" {
            arguments.extend(["--var", &port]);
        }
        let output = self.agent.cli(&arguments);
        assert_eq!(output.code, 0, "{name}: {}{}", output.stdout, output.stderr);
    }

    /// Waits until the output of a task is as wanted.
    fn prints(&self, job: &str, more: &[&str], wanted: impl Fn(&str) -> bool) {
        self.agent.until_printed(&[&["logs", job], more].concat(), wanted);
    }

    fn serves(&self, port: u16, body: &str) {
        wait::until_true(&format!("port {port} serves {body:?}"), || {
            http::poll_task(port, "/").is_some_and(|answer| answer.body == body)
        });
    }
}

fn backup(ground: &Ground) {
    let forced = ground.agent.cli(&["job", "periodic", "force", "backup", "-o", "json"]).success().stdout;
    let forced: serde_json::Value = serde_json::from_str(&forced).unwrap();
    let child = forced["job"]["id"].as_str().unwrap();
    ground.prints(child, &[], |log| log == "passwd\n");
}

fn capabilities(ground: &Ground) {
    ground.prints("capabilities", &["--task", "more"], |log| log == "CapEff:\t0000000000002000\n");
    ground.prints("capabilities", &["--task", "user"], |log| log == "12345\n23456\n/local\n");
}

fn dispatch(ground: &Ground) {
    let payload = ground.agent.home.write("payload", "some input").display().to_string();
    let arguments = ["dispatch", "dispatch", &payload, "--meta", "who=me", "--wait", "-o", "json"];
    let done = ground.agent.cli(&arguments).success().stdout;
    let done: serde_json::Value = serde_json::from_str(&done).unwrap();
    ground.prints(done["job"]["id"].as_str().unwrap(), &[], |log| log == "me: some input\n");
}

fn dns(ground: &Ground) {
    let lines =
        ["search internal.example", "options ndots:2", "nameserver 192.0.2.53", "nameserver 192.0.2.54"];
    ground.prints("dns", &[], |log| lines.iter().all(|line| log.lines().any(|found| found == *line)));
}

/// The running task sees the changed file below a directory of the machine.
fn etc(ground: &Ground) {
    ground.prints("etc", &[], |log| log == "level = info\n");
    for (index, level) in ["debug", "warn"].into_iter().enumerate() {
        put(&ground.agent, "nomad/jobs/etc", &[&format!("level={level}")]);
        let last = format!("level = {level}\n");
        ground.prints("etc", &[], |log| log.ends_with(&last) && log.lines().count() == index + 2);
    }
    assert!(ground.agent.members().iter().all(|member| member.attempt == 1), "it was not restarted");
    let next = "level = warn\n".repeat(2);
    ground.agent.cli(&["restart", "etc"]).success();
    ground.prints("etc", &[], |log| log.ends_with(&next));
}

fn graceful(ground: &Ground) {
    ground.prints("graceful", &[], |log| log == "up\n");
    ground.agent.cli(&["stop", "graceful"]).success();
    let drained = ground.agent.home.state().join("volumes/shared/drained");
    wait::until_true("the task has ended its work", || {
        fs::read_to_string(&drained).is_ok_and(|text| text == "drained\n")
    });
}

fn host_modes(ground: &Ground) {
    let ipc = fs::read_link("/proc/self/ns/ipc").unwrap();
    let expected = format!("not the first\n{}\n", ipc.display());
    ground.prints("host-modes", &[], |log| log == expected);
}

fn init(ground: &Ground) {
    ground.prints("init", &["--task", "main"], |log| log == "migrated\n");
    ground.prints("init", &["--task", "cleanup"], |log| log == "removed '/alloc/data/state'\n");
}

fn raw_bridge(ground: &Ground) {
    for index in 0..2 {
        let name = format!("raw-bridge.web[{index}]");
        let alloc = ground.agent.until_alloc(&name, "runs", |alloc| alloc.state("server") == "running");
        ground.serves(alloc.port("http").unwrap(), &format!("raw {index}\n"));
    }
}

fn script_check(ground: &Ground) {
    ground.prints("script-check", &[], |log| log == "ready\n");
    ground.agent.until_printed(&["status", "script-check"], |text| {
        text.contains("passing") || text.contains("healthy")
    });
}

fn variables(ground: &Ground) {
    for queue in ["mail", "images"] {
        let expected = format!("{queue} of 1.0 1.0\n");
        ground.prints(&format!("variables.{queue}[0]"), &[], |log| log == expected);
    }
}

fn volumes(ground: &Ground) {
    ground.prints("volume", &[], |log| log == "1\n");
    ground.agent.cli(&["restart", "volume"]).success();
    ground.prints("volume", &[], |log| log == "1\n2\n");
}
