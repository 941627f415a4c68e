//! Services in a real Consul and in the built-in catalogue.

use std::time::{Duration, Instant};

use herdlet_e2e::{
    agent::{Agent, Setup},
    consul::{Access, Consul, TOKEN},
    host, http, ports, wait,
};

use crate::common::{is_root, job, shell, sleeper};

/// Returns a group with a port and a service in `provider`.
fn group(name: &str, provider: &str, more: &str) -> String {
    format!(
        "network: {{ports: {{p: {{}}}}}}\nservices: [{{name: {name}, provider: {provider}, port: p{more}}}]"
    )
}

fn with(consul: &Consul) -> Setup {
    Setup::default().env("CONSUL_HTTP_ADDR", consul.address())
}

#[test]
fn registration_precedes_start_and_ends_before_stop() {
    if !is_root() {
        return;
    }
    let Some(consul) = Consul::start(Access::Open) else { return };
    let mut agent = Agent::start_with(with(&consul));
    // Exits only on the signal, after a short delay.
    let script = "trap 'echo asked; sleep 0.3; exit 0' TERM; echo up; while :; do sleep 0.02; done";
    // Long enough that it never ends before it is skipped.
    let order = format!("{}\nshutdown_delay: 1h", group("ordered", "consul", ""));
    agent.apply_and_wait(&job(
        "ordered",
        "service",
        &order,
        &[shell("t", script, "kill_signal: SIGTERM\nkill_timeout: 10s")],
    ));
    let alloc = agent.alloc("ordered.g[0]").unwrap().id();
    wait::until_true("the registration", || consul.ids("ordered").len() == 1);
    let main = agent.members().first().unwrap().pid;

    agent.cli(&["delete", "ordered"]).success();
    wait::until_true("the service is deregistered", || consul.ids("ordered").is_empty());
    // The shutdown_delay comes between the two.
    wait::pause(Duration::from_millis(300));
    assert!(
        !agent.task_log(&alloc, "t", "stdout").contains("asked"),
        "the service is deregistered before the signal"
    );
    assert!(host::is_alive(main));
    agent.cli(&["delete", "ordered", "--no-shutdown-delay"]).success();
    wait::until_true("it has ended", || !host::is_alive(main));
    agent.finish();
}

#[test]
fn unavailable_consul_blocks_nothing_and_is_updated_later() {
    if !is_root() {
        return;
    }
    let Some(mut consul) = Consul::prepare(Access::Open) else { return };
    let mut agent = Agent::start_with(with(&consul));
    let text = job("brave", "service", &group("brave", "consul", ""), &[sleeper("t", "")]);
    agent.apply(&text);
    let member = agent.single("brave.g[0]", "t");
    consul.launch();
    wait::until_true("it is registered", || consul.ids("brave").len() == 1);
    // A restarted Consul in development mode has lost all registrations: that is drift.
    consul.stop();
    consul.launch();
    wait::until_true("it is registered again", || consul.ids("brave").len() == 1);
    assert_eq!(agent.single("brave.g[0]", "t"), member);
    // Consul is down while the job is stopped: the stop waits for the task, not for the catalogue.
    consul.stop();
    agent.cli(&["delete", "brave"]).success();
    wait::until_true("the task ends", || !host::is_alive(member.pid));
    consul.launch();
    agent.finish();
}

#[test]
fn foreign_entries_stay_and_own_ones_are_restored() {
    if !is_root() {
        return;
    }
    let Some(consul) = Consul::start(Access::Open) else { return };
    let foreign = [
        "_nomad-task-8d5e2f3a-0000-0000-0000-000000000000-group-web-web-http",
        "_nomad-client-x",
        "by-hand",
        "_herdlet-task-11111111-2222-3333-4444-555555555555-group-g-other-p",
    ];
    for id in foreign {
        consul.put(
            "/v1/agent/service/register",
            &format!("{{\"ID\": \"{id}\", \"Name\": \"foreign\", \"Port\": 1}}"),
        );
    }
    let mut agent = Agent::start_with(with(&consul));
    agent.apply_and_wait(&job("mine", "service", &group("mine", "consul", ""), &[sleeper("t", "")]));
    let member = agent.single("mine.g[0]", "t");
    let id = wait::until("the registration", || consul.ids("mine").pop());
    let repaired = agent.metric("herdlet_drift_repaired_total", "service");
    consul.put(&format!("/v1/agent/service/deregister/{id}"), "");
    wait::until_true("the service is registered again", || consul.ids("mine") == [id.clone()]);
    assert_eq!(agent.single("mine.g[0]", "t"), member);
    wait::until_true("the repair is counted", || {
        agent.metric("herdlet_drift_repaired_total", "service") > repaired
    });

    agent.crash();
    agent.until_running("mine.g[0]", "t");
    wait::pause(Duration::from_millis(500));
    agent.cli(&["delete", "mine", "--wait"]).success();
    assert!(consul.ids("mine").is_empty());
    let mut left = consul.ids("foreign");
    left.sort();
    let mut all = foreign.to_vec();
    all.sort_unstable();
    assert_eq!(left, all);
    agent.finish();
}

#[test]
fn a_token_opens_a_consul_that_denies_by_default() {
    if !is_root() {
        return;
    }
    let Some(consul) = Consul::start(Access::Denied) else { return };
    let mut without = Agent::start_with(with(&consul));
    let mut agent = Agent::start_with(with(&consul).env("CONSUL_HTTP_TOKEN", TOKEN));
    without.apply(&job("stranger", "service", &group("stranger", "consul", ""), &[sleeper("t", "")]));
    agent.apply_and_wait(&job("friend", "service", &group("friend", "consul", ""), &[sleeper("t", "")]));
    wait::until_true("it is registered", || consul.ids("friend").len() == 1);
    without.single("stranger.g[0]", "t");
    let explained = wait::until("an explanation", || {
        let output = without.cli(&["explain", "stranger"]);
        let output = format!("{}{}", output.stdout, without.log());
        (output.contains("403") || output.contains("ermission denied")).then_some(output)
    });
    assert!(consul.ids("stranger").is_empty(), "{explained}");
    agent.cli(&["delete", "friend", "--wait"]).success();
    assert!(consul.ids("friend").is_empty());
    assert!(!agent.log().contains(TOKEN));
    agent.finish();
    // A service whose deregistration can't be confirmed is not forgotten, but no process waits for that.
    let stranger = without.members();
    without.cli(&["delete", "stranger"]).success();
    wait::until_true("the task ends", || stranger.iter().all(|member| !host::is_alive(member.pid)));
}

#[test]
fn built_in_checks_follow_the_answers_of_the_task() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start_with(Setup::default().config(ports::for_tasks()));
    let python = herdlet_e2e::environment::component(herdlet_e2e::environment::PYTHON);
    let Some(python) = python else { return };
    let checks = ", checks: [{name: alive, type: http, path: /alive, interval: 1s, timeout: 2m}]";
    let script = format!(
        "exec {} -m http.server $NOMAD_PORT_p --bind $NOMAD_IP_p --directory local",
        python.display()
    );
    let update = "update: {min_healthy_time: 100ms, healthy_deadline: 10m, progress_deadline: 20m}\n";
    agent.apply(&job(
        "checked",
        "service",
        &format!("{update}{}", group("checked", "nomad", checks)),
        &[shell("t", &script, "")],
    ));
    let member = agent.single("checked.g[0]", "t");
    assert_eq!(agent.cli(&["wait", "checked", "--timeout", "1500ms"]).code, 3, "the check gets 404");
    let explained = agent.cli(&["explain", "checked"]).success().stdout;
    assert!(explained.contains("alive") || explained.contains("check"), "{explained}");
    let file = agent.home.state().join("alloc").join(&member.alloc).join("t/local/alive");
    std::fs::write(&file, "yes").unwrap();
    agent.cli(&["wait", "checked"]).success();
    assert_eq!(agent.cli(&["status", "--check"]).code, 0);
    let listed = || {
        let answer = http::get(&agent.peer(), "/v1/service/checked").unwrap();
        answer.json().as_array().map(Vec::len)
    };
    assert_eq!(listed(), Some(1));
    std::fs::remove_file(&file).unwrap();
    wait::until_true("it is degraded", || agent.cli(&["status", "--check"]).code != 0);
    assert_eq!(agent.single("checked.g[0]", "t"), member);
    assert_eq!(listed(), Some(0), "a router must not use a failing instance");
    agent.cli(&["delete", "checked", "--wait"]).success();
    let gone = http::get(&agent.peer(), "/v1/service/checked").unwrap();
    assert!(gone.status == 404 || gone.json().as_array().is_some_and(Vec::is_empty));
    agent.finish();
}

#[test]
fn deleted_entry_is_restored_while_wanted() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    let text = job("kept", "service", &group("kept", "nomad", ""), &[sleeper("t", "")]);
    agent.apply_and_wait(&text);
    let member = agent.single("kept.g[0]", "t");
    let listed = |agent: &Agent| {
        let answer = http::get(&agent.peer(), "/v1/service/kept").unwrap().json();
        answer
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one["ID"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    let id = listed(&agent).remove(0);
    let delete = |agent: &Agent| {
        let path = format!("/v1/service/kept/{id}");
        http::request(&agent.peer(), "DELETE", &path, &[], "").unwrap().status
    };
    let repaired = agent.metric("herdlet_drift_repaired_total", "service");
    assert_eq!(delete(&agent), 200);
    wait::until_true("the service is registered again", || listed(&agent) == [id.clone()]);
    wait::until_true("the repair is counted", || {
        agent.metric("herdlet_drift_repaired_total", "service") > repaired
    });
    assert_eq!(agent.single("kept.g[0]", "t"), member);
    agent.cli(&["delete", "kept", "--wait"]).success();
    assert_eq!(delete(&agent), 404);
    assert!(listed(&agent).is_empty());
    agent.finish();
}

#[test]
fn restarted_task_is_healthy_after_its_check_passes() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start_with(Setup::default().config(ports::for_tasks()));
    let python = herdlet_e2e::environment::component(herdlet_e2e::environment::PYTHON);
    let Some(python) = python else { return };
    // Its second process serves nothing.
    let script = format!(
        "[ -e local/served ] && exec sleep 1000; touch local/served; exec {} -m http.server $NOMAD_PORT_p --bind $NOMAD_IP_p",
        python.display()
    );
    let checks = ", checks: [{name: alive, type: tcp, interval: 2s, timeout: 2m}]";
    // Many times the start-up time of the server.
    let update = "update: {min_healthy_time: 100ms, healthy_deadline: 15s, progress_deadline: 10m}\n";
    let group = format!("{update}{}", group("again", "nomad", checks));
    let text = job("again", "service", &group, &[shell("t", &script, "")]);
    agent.apply_and_wait(&text);
    let listed = |agent: &Agent| {
        let answer = http::get(&agent.peer(), "/v1/service/again").unwrap();
        answer.json().as_array().map(Vec::len)
    };
    assert_eq!(listed(&agent), Some(1));
    let first = agent.single("again.g[0]", "t");
    // Older than its healthy_deadline.
    wait::pause(Duration::from_secs(15));
    agent.cli(&["restart", "again"]).success();
    wait::until_true("another process runs", || agent.members().iter().any(|member| member.pid != first.pid));
    let restarted = Instant::now();
    let is_overdue = |agent: &Agent| agent.metric("herdlet_overdue", "alloc") > 0.0;
    assert_eq!(listed(&agent), Some(0), "the check has not run yet");
    assert!(
        !is_overdue(&agent) || restarted.elapsed() > Duration::from_secs(14),
        "the deadline starts again"
    );
    assert_eq!(agent.cli(&["wait", "again", "--timeout", "1500ms"]).code, 3, "the check does not pass");
    // The roll-out is over: only the check is pending, and every output shows the allocation as not healthy.
    let row = |arguments: &[&str]| {
        let text = agent.cli(arguments).success().stdout;
        let row = text.lines().find(|line| line.contains("again")).unwrap_or_default().to_owned();
        (row.split_whitespace().collect::<Vec<_>>().join(" "), text)
    };
    assert!(row(&["status"]).0.contains(" 0/1 again.g[0]: health: waits for passing checks"));
    assert!(row(&["ps"]).0.contains("running no progressing"), "{:?}", row(&["ps"]));
    let described = row(&["describe", "again"]).1;
    assert!(described.contains("found healthy at "), "{described}");
    assert!(described.contains("  health: waits for passing checks"), "{described}");
    wait::until_true("get services shows it", || row(&["get", "services"]).0.contains("again critical 0/1"));
    let wide = row(&["service", "list", "-verbose"]).0;
    assert!(wide.contains(" alive: "), "{wide}");
    let events = row(&["get", "events", "again"]).1;
    for cause in ["version 0 was applied", "User requested", "progressing"] {
        assert!(events.contains(cause), "{cause}: {events}");
    }
    wait::until_true("it is overdue", || is_overdue(&agent));
    assert_eq!(listed(&agent), Some(0));
    agent.finish();
}

#[test]
fn only_group_restart_deregisters() {
    if !is_root() {
        return;
    }
    let Some(consul) = Consul::start(Access::Open) else { return };
    let mut agent = Agent::start_with(with(&consul));
    let tasks = [sleeper("a", ""), sleeper("b", "")];
    agent.apply_and_wait(&job(
        "both",
        "service",
        &format!("{}\nshutdown_delay: 1s", group("both", "consul", "")),
        &tasks,
    ));
    wait::until_true("it is registered", || consul.ids("both").len() == 1);
    let created = |consul: &Consul| {
        let answer = consul.get("/v1/catalog/service/both").unwrap().json();
        answer[0]["CreateIndex"].as_u64()
    };
    let before = wait::until("the catalogue entry", || created(&consul));
    let a = agent.single("both.g[0]", "a");
    agent.cli(&["restart", "both", "--task", "a"]).success();
    wait::until_true("a is another process", || {
        agent.members().iter().any(|m| m.task == "a" && m.pid != a.pid)
    });
    assert_eq!(created(&consul), Some(before), "the entry of b is unchanged");
    agent.until_running("both.g[0]", "a");
    agent.cli(&["restart", "both"]).success();
    wait::until_true("it was deregistered and registered again", || {
        consul.ids("both").len() == 1 && created(&consul).is_some_and(|index| index != before)
    });
    agent.finish();
}

/// A fake of the part of Consul's API that an agent needs, which refuses to deregister until the test allows it.
struct Refusing {
    address: String,
    willing: std::sync::Arc<std::sync::atomic::AtomicBool>,
}

impl Refusing {
    fn start() -> Self {
        use std::{io::Write as _, sync::atomic::Ordering};

        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let willing = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let consents = std::sync::Arc::clone(&willing);
        // The thread ends with the test's process.
        std::thread::spawn(move || {
            let mut services = serde_json::Map::new();
            for mut stream in listener.incoming().flatten() {
                let (line, body) = read_request(&mut stream);
                let (mut status, mut answer) = ("200 OK", "{}".to_owned());
                if line.contains("/deregister/") && !consents.load(Ordering::SeqCst) {
                    (status, answer) =
                        ("403 Forbidden", "Permission denied: token lacks permission".to_owned());
                } else if line.contains("/deregister/") {
                    services.clear();
                } else if line.contains("/register") {
                    let mut service: serde_json::Value = serde_json::from_str(&body).unwrap();
                    service["Service"] = service["Name"].clone();
                    services.insert(service["ID"].as_str().unwrap().to_owned(), service);
                } else if line.contains("/agent/services") {
                    answer = serde_json::to_string(&services).unwrap();
                }
                let length = answer.len();
                let head =
                    format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n");
                let _ = stream.write_all(format!("{head}{answer}").as_bytes());
            }
        });
        Self { address, willing }
    }
}

/// Reads a whole request: its first line and its body.
fn read_request(stream: &mut std::net::TcpStream) -> (String, String) {
    use std::io::{BufRead as _, Read as _};

    let _ = stream.set_read_timeout(Some(wait::PATIENCE));
    let mut reader = std::io::BufReader::new(stream);
    let (mut first, mut length) = (String::new(), 0);
    let _ = reader.read_line(&mut first);
    loop {
        let mut field = String::new();
        if reader.read_line(&mut field).is_err() || field.trim().is_empty() {
            break;
        }
        if let Some(value) = field.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap_or(0);
        }
    }
    let mut body = String::new();
    let _ = reader.take(length).read_to_string(&mut body);
    (first, body)
}

#[test]
fn refused_deregistration_keeps_only_the_job_name() {
    if !is_root() {
        return;
    }
    let consul = Refusing::start();
    let mut agent = Agent::start_with(Setup::default().env("CONSUL_HTTP_ADDR", consul.address.clone()));
    let group = group("stubborn", "consul", "");
    agent.apply_and_wait(&job("stubborn", "service", &group, &[sleeper("t", "")]));
    let alloc = agent.alloc("stubborn.g[0]").unwrap().id();
    let dir = agent.home.state().join("alloc").join(alloc);
    assert!(dir.exists());
    agent.cli(&["delete", "stubborn"]).success();
    wait::until_true("its processes are gone", || agent.members().is_empty());
    wait::until_true("its directory is gone", || !dir.exists());
    wait::until_true("the job shows why it is not deleted yet", || {
        let jobs = agent.cli(&["status", "stubborn"]).success().stdout;
        jobs.contains("403") && jobs.contains("being deleted")
    });
    wait::until_true("explain shows it too", || agent.cli(&["explain", "stubborn"]).stdout.contains("403"));
    consul.willing.store(true, std::sync::atomic::Ordering::SeqCst);
    wait::until_true("forgotten", || !agent.cli(&["get", "jobs"]).success().stdout.contains("stubborn"));
    agent.finish();
}

// Regression: Consul was not queried once no job used it, so leftovers of a crash stayed for ever.
#[test]
fn leftovers_in_consul_are_swept_without_jobs() {
    if !is_root() {
        return;
    }
    let Some(consul) = Consul::start(Access::Open) else { return };
    let mut agent = Agent::start_with(with(&consul));
    let instance = agent.home.instance().unwrap();
    agent.kill();
    for (name, meta) in [("ours", instance.as_str()), ("theirs", "another")] {
        let body = format!(
            "{{\"ID\": \"_herdlet-{name}\", \"Name\": \"{name}\", \"Meta\": {{\"herdlet-instance\": \"{meta}\"}}}}"
        );
        consul.put("/v1/agent/service/register", &body);
    }
    agent.launch();
    wait::until_true("the agent's own service is gone", || consul.ids("ours").is_empty());
    assert_eq!(consul.ids("theirs").len(), 1);
    agent.finish();
}

/// Regression: on a machine without Consul, a job written for Nomad was accepted without a warning, and its
/// deletion never ended.
#[test]
fn job_for_a_missing_consul_is_warned_about_and_deletable() {
    if !is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let nobody = format!("unix://{}", dir.path().join("consul.sock").display());
    let mut agent = Agent::start_with(Setup::default().env("CONSUL_HTTP_ADDR", &nobody));
    let file = dir.path().join("web.nomad.hcl");
    let text = "job \"web\" {\n group \"g\" {\n network {\n port \"http\" {}\n }\n service {\n port = \"http\"\n }\n \
                task \"t\" {\n driver = \"raw_exec\"\n config {\n command = \"/bin/sleep\"\n args = [\"1000\"]\n }\n }\n }\n}\n";
    std::fs::write(&file, text).unwrap();
    let path = file.display().to_string();
    for command in [["diff", "-f", &path], ["apply", "-f", &path]] {
        let done = agent.cli(&command);
        assert!(
            done.stderr.contains("no Consul answers") && done.stderr.contains("provider = \"nomad\""),
            "{}",
            done.stderr
        );
    }
    let member = agent.single("web.g[0]", "t");
    agent.crash();
    assert_eq!(agent.single("web.g[0]", "t"), member);
    let is_warned = |agent: &Agent| {
        let shown = agent.cli(&["status"]);
        shown.stdout.contains("Consul") || shown.stderr.contains("Consul")
    };
    wait::until_true("the warning about Consul", || is_warned(&agent));
    agent.cli(&["delete", "web", "--wait"]).success();
    assert!(!host::is_alive(member.pid));
    // The warning stayed until a request of the metrics.
    wait::until_true("no warning about Consul", || !is_warned(&agent));
    agent.finish();
}

/// Regression: a `shutdown_delay` of an hour delayed a deletion for an hour, and nothing could shorten it.
#[test]
fn running_shutdown_delay_is_skipped_after_a_crash() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start_with(Setup::default());
    let script = "trap 'echo heard' HUP; trap 'exit 0' TERM; echo up; while :; do sleep 0.02; done";
    agent.apply_and_wait(&job(
        "slow",
        "service",
        "shutdown_delay: 1s",
        &[shell("t", script, "kill_signal: SIGTERM\nshutdown_delay: 1h")],
    ));
    let alloc = agent.alloc("slow.g[0]").unwrap().id();
    let member = agent.members().remove(0);
    agent.cli(&["delete", "slow"]).success();
    wait::until_true("the task's delay runs", || {
        agent.cli(&["explain", "slow"]).stdout.contains("shutdown_delay of 1h0m0s runs")
    });
    agent.cli(&["signal", "slow", "--signal", "SIGHUP"]).success();
    wait::until_true("the task receives the signal", || {
        agent.task_log(&alloc, "t", "stdout").contains("heard")
    });
    assert!(host::is_alive(member.pid));
    agent.cli(&["delete", "slow", "--no-shutdown-delay"]).success();
    agent.crash();
    wait::until_true("it has ended", || !host::is_alive(member.pid));
    wait::until_true("it is forgotten", || agent.cli(&["get", "jobs", "-o", "name"]).stdout.is_empty());
    agent.finish();
}

/// Also after a crash of the agent: the driver's report of a start is stored.
#[test]
fn a_service_has_the_address_that_its_driver_made() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    let text = "{apiVersion: herdlet/v1, kind: Job, metadata: {name: boxed}, spec: {type: service, groups: [{name: g, tasks: [
        {name: t, driver: mock, config: {run_for: 1h, driver_ip: 10.1.2.3, driver_advertise: true},
         services: [{name: by-mode, provider: nomad, port: \"8080\", address_mode: driver},
                    {name: by-itself, provider: nomad, port: \"8081\"}]}]}]}}";
    agent.apply_and_wait(text);
    let registered = |agent: &Agent, name: &str| {
        let answer = http::get(&agent.peer(), &format!("/v1/service/{name}")).unwrap().json();
        let one = |one: &serde_json::Value| (one["Address"].clone(), one["Port"].clone());
        answer.as_array().unwrap().iter().map(one).collect::<Vec<_>>()
    };
    for _ in 0..2 {
        for (name, port) in [("by-mode", 8080), ("by-itself", 8081)] {
            let expected = [("10.1.2.3".into(), port.into())];
            wait::until_true("the driver's address", || registered(&agent, name) == expected);
        }
        agent.crash();
    }
    agent.cli(&["delete", "boxed", "--wait"]).success();
    agent.finish();
}
