//! The job files in `tests/e2e/jobs`: those combinations of keys that public job files use most.
//!
//! A row of the table is a file, the values of its variables, and the check of its effect. Each file is applied unchanged,
//! with Docker, with Podman, and with the engine in the agent, which refuses some of them by a key.

use std::{
    fs,
    io::{Read as _, Write as _},
    os::unix::fs::PermissionsExt as _,
    path::Path,
};

use herdlet_e2e::{
    agent::Agent,
    engine::{Engine, Kind},
    http, ports,
    program::project,
    shown::Alloc,
    wait,
};
use serde_json::{Value, json};

use super::{PERMISSIVE, finish, on_every_engine};

on_every_engine!(every_job_file_runs);

/// A job with its machine.
struct Ground<'g> {
    agent: &'g Agent,
    engine: &'g Engine<'g>,
    /// The value of the variable `port`.
    port: u16,
    /// The value of the variable `data`.
    data: &'g Path,
}

/// The network of the job `network`.
const NETWORK: &str = "herdlet-test";

type Check = fn(&Ground<'_>);

/// Files, the variables that they declare, and their checks.
const JOBS: [(&str, &[&str], Check); 23] = [
    ("agent", &["data"], agent),
    ("batch", &[], batch),
    ("database", &["data", "port"], database),
    ("devices", &[], devices),
    ("dispatch", &[], dispatch),
    ("failing", &[], failing),
    ("hardened", &[], hardened),
    ("host-network", &["port"], host_network),
    ("host-volume", &[], host_volume),
    ("limits", &[], limits),
    ("load", &["port"], load),
    ("mounts", &[], mounts),
    ("names", &[], names),
    ("network", &["address"], network),
    ("old-network", &["port"], old_network),
    ("podman", &[], podman),
    ("port-map", &[], port_map),
    ("private", &[], private),
    ("rolling", &["release=1"], rolling),
    ("services", &[], services),
    ("sidecar", &[], sidecar),
    ("terminal", &[], terminal),
    ("web", &[], web),
];

#[test]
fn every_job_file_has_a_check() {
    let entries = fs::read_dir(project().join("tests/e2e/jobs")).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().to_string_lossy().replace(".nomad.hcl", ""));
    let mut found: Vec<String> = names.collect();
    found.sort();
    assert_eq!(found, JOBS.map(|(name, ..)| name));
}

/// The jobs that the engine in the agent refuses, with the key.
const REFUSED: [(&str, &str); 4] = [
    ("mounts", "mount[1].type"),
    ("names", "mac_address"),
    ("network", "network_aliases"),
    // The name is known to the daemons only, and the credentials of the task are not for its mirror.
    ("private", "pull image registry.test:5000/"),
];

fn every_job_file_runs(engine: Engine<'_>) {
    let podman = format!(
        "}}, podman: {{endpoint: \"unix://{}\", gc: {{image: false}}}}}}\nhost_ip",
        engine.socket().with_file_name("podman.sock").display()
    );
    let config = engine.config(PERMISSIVE).replace("}}\nhost_ip", &podman);
    let mut agent = engine.agent_with(&config);
    agent.apply("apiVersion: herdlet/v1\nkind: Volume\nmetadata: {name: shared}\nspec: {type: host, plugin_id: mkdir}\n");
    let data = agent.home.path().join("data");
    fs::create_dir(&data).unwrap();
    fs::set_permissions(&data, fs::Permissions::from_mode(0o777)).unwrap();
    fs::write(data.join("marker"), "").unwrap();
    let wanted = std::env::var("HERDLET_TEST_JOB").ok();
    for (name, variables, check) in JOBS {
        // Podman's driver works with Podman only.
        if wanted.as_deref().is_some_and(|wanted| wanted != name)
            || name == "podman" && engine.kind != Kind::Podman
        {
            continue;
        }
        eprintln!("{name} with {}", engine.kind);
        let [port] = ports::free();
        let ground = Ground { agent: &agent, engine: &engine, port, data: &data };
        ground.prepare(name);
        ground.apply(name, variables);
        match REFUSED.iter().find(|(refused, _)| engine.kind == Kind::Builtin && *refused == name) {
            Some((_, key)) => ground.is_refused(name, key),
            None => check(&ground),
        }
        // What is removed then must not be in use any more.
        let waiting = ["load", "network"].contains(&name).then_some("--wait");
        let arguments: Vec<&str> = ["delete", name].into_iter().chain(waiting).collect();
        agent.cli(&arguments).success();
        ground.clean(name);
    }
    finish(&engine, agent);
}

impl Ground<'_> {
    fn is_refused(&self, name: &str, key: &str) {
        self.agent.until_printed(&["describe", name], |text| text.contains(key));
    }

    /// Makes what a job expects on its machine.
    fn prepare(&self, name: &str) {
        match name {
            "load" => {
                let archive = self.data.join("image.tar");
                // All engines load archives of each other.
                let maker = self.engine.beside(if self.engine.kind == Kind::Builtin {
                    Kind::Docker
                } else {
                    self.engine.kind
                });
                maker.tag("herdlet-test/loaded", "1");
                maker.save("herdlet-test/loaded:1", &archive);
                maker.untag("herdlet-test/loaded:1");
                serve(self.port, fs::read(archive).unwrap());
            }
            "network" if self.engine.kind != Kind::Builtin => {
                let config = json!({ "Subnet": format!("{}/24", self.subnet(0)), "Gateway": self.subnet(1) });
                let network = json!({ "Name": NETWORK, "Driver": "bridge", "IPAM": { "Config": [config] } });
                let made = self.engine.request("POST", "/networks/create", &network);
                assert_eq!(made.status, 201, "{}", made.body);
            }
            _ => {}
        }
    }

    /// Removes it, and what the job leaves by design.
    fn clean(&self, name: &str) {
        match name {
            "load" if self.engine.kind != Kind::Builtin => self.engine.untag("herdlet-test/loaded:1"),
            "network" if self.engine.kind != Kind::Builtin => {
                let removed = self.engine.request("DELETE", &format!("/networks/{NETWORK}"), &Value::Null);
                assert!(removed.status < 300, "{}", removed.body);
            }
            _ => {}
        }
    }

    /// An address in the network of the job `network`. The engines share the machine.
    fn subnet(&self, host: u8) -> String {
        let third = match self.engine.kind {
            Kind::Docker => 1,
            Kind::Podman => 2,
            Kind::Builtin => 3,
        };
        format!("10.213.{third}.{host}")
    }

    fn apply(&self, name: &str, variables: &[&str]) {
        let file = project().join(format!("tests/e2e/jobs/{name}.nomad.hcl"));
        let mut arguments = vec!["apply".to_owned(), "-f".to_owned(), file.display().to_string()];
        for variable in variables {
            let value = match *variable {
                "data" => format!("data={}", self.data.display()),
                "port" => format!("port={}", self.port),
                "address" => format!("address={}", self.subnet(9)),
                given => given.to_owned(),
            };
            arguments.extend(["--var".to_owned(), value]);
        }
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let output = self.agent.cli(&arguments);
        assert_eq!(output.code, 0, "{name}: {}{}", output.stdout, output.stderr);
    }

    fn running(&self, alloc: &str, task: &str) -> Alloc {
        self.agent.until_alloc(alloc, "runs", |alloc| alloc.state(task) == "running")
    }

    fn ended(&self, alloc: &str, status: &str) -> Alloc {
        self.agent.until_alloc(alloc, status, |alloc| alloc.status() == status)
    }

    /// Waits until the standard output of a running task contains all of `texts`, and returns it.
    fn printed(&self, alloc: &str, task: &str, texts: &[&str]) -> String {
        let id = self.running(alloc, task).id();
        self.agent.until_logged(&id, task, "stdout", |log| texts.iter().all(|text| log.contains(text)))
    }

    fn serves(&self, port: u16, path: &str, body: &str) {
        wait::until_true(&format!("{path} on port {port} is {body:?}"), || {
            http::poll_task(port, path).is_some_and(|answer| answer.body == body)
        });
    }

    /// Waits for a service, and returns its address and port.
    fn registered(&self, name: &str) -> (String, u16) {
        wait::until("the service is registered", || {
            let answer = http::get(&self.agent.peer(), &format!("/v1/service/{name}"))?;
            let list = answer.json();
            let first = list.get(0)?;
            Some((first["Address"].as_str()?.to_owned(), u16::try_from(first["Port"].as_u64()?).ok()?))
        })
    }

    fn container(&self, alloc: &Alloc, task: &str) -> Value {
        self.engine.container(&alloc.id(), task)
    }
}

fn web(ground: &Ground<'_>) {
    for index in 0..2 {
        let alloc = ground.running(&format!("web.web[{index}]"), "httpd");
        ground.serves(alloc.port("http").unwrap(), "/", &format!("site of {index}\n"));
    }
}

fn database(ground: &Ground<'_>) {
    let alloc = ground.running("database.database[0]", "server");
    let journal = ground.data.join("journal");
    wait::until_true("it has opened its files", || {
        fs::read_to_string(&journal).is_ok_and(|text| text == "opened by 65534\n")
    });
    wait::until_true("the port answers", || std::net::TcpStream::connect(("127.0.0.1", ground.port)).is_ok());
    if ground.engine.kind != Kind::Builtin {
        let host = &ground.container(&alloc, "server")["HostConfig"];
        assert_eq!(
            (&host["Memory"], &host["MemoryReservation"]),
            (&(128 << 20).into(), &(64 << 20).into()),
            "{host:#}"
        );
    }
    ground.agent.cli(&["stop", "database", "--wait"]).success();
    assert!(fs::read_to_string(&journal).unwrap().ends_with("closed\n"), "the signal was SIGTERM");
}

fn agent(ground: &Ground<'_>) {
    if ground.engine.kind == Kind::Docker && !has_all_capabilities() {
        // Docker gives a privileged container all capabilities, also those that this machine's root lacks.
        ground.agent.until_printed(&["describe", "agent"], |text| text.contains("unable to apply caps"));
        return;
    }
    let log = ground.printed("agent.agent[0]", "agent", &["marker", "counted\n"]);
    let mut lines = log.lines().filter_map(|line| line.parse::<u32>().ok());
    assert!(lines.any(|processes| processes > 5), "it sees the machine's processes: {log}");
}

/// Returns whether root has every capability here: CAP_SYS_RESOURCE (24) is missing on some virtual machines.
fn has_all_capabilities() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let set = status.lines().find_map(|line| line.strip_prefix("CapEff:\t")).unwrap();
    u64::from_str_radix(set, 16).unwrap() & (1 << 24) != 0
}

fn host_network(ground: &Ground<'_>) {
    ground.serves(ground.port, "/index.html", "host\n");
    ground.agent.cli(&["wait", "host-network"]).success();
}

fn port_map(ground: &Ground<'_>) {
    let alloc = ground.running("port-map.cache[0]", "cache");
    // As in Nomad: with port_map, the task's variable has the port inside of the container.
    let port = alloc.port("http").unwrap();
    ground.serves(port, "/", "port 6379\n");
}

fn old_network(ground: &Ground<'_>) {
    let alloc = ground.running("old-network.app[0]", "web");
    let network = &alloc.0["AllocatedResources"]["Tasks"]["web"]["Networks"][0];
    let web = u16::try_from(network["DynamicPorts"][0]["Value"].as_u64().unwrap()).unwrap();
    ground.serves(ground.port, "/", "port 6379\n");
    ground.serves(web, "/", &format!("cache 127.0.0.1:{}\n", ground.port));
    let (address, port) = ground.registered("old-cache");
    assert!(port == 6379 && !address.starts_with("127."), "{address}:{port} is the container's own");
    assert_eq!(ground.registered("old-web"), ("127.0.0.1".to_owned(), web));
    ground.agent.cli(&["wait", "old-network"]).success();
}

fn batch(ground: &Ground<'_>) {
    let alloc = ground.ended("batch.work[0]", "complete");
    let log = |kind: &str, text: &str| {
        ground.agent.until_logged(&alloc.id(), "report", kind, |log| log == text);
    };
    log("stdout", "/local\nhello from report\n");
    log("stderr", "done\n");
    let result = ground.agent.home.state().join("alloc").join(alloc.id()).join("alloc/data/result");
    assert_eq!(fs::read_to_string(result).unwrap(), "result\n");
}

fn failing(ground: &Ground<'_>) {
    let alloc = ground.ended("failing.g[0]", "failed");
    assert_eq!(alloc.exit_codes("t"), [42, 42]);
    ground.agent.until_logged(&alloc.id(), "t", "stdout", |log| log == "attempt\nattempt\n");
}

fn sidecar(ground: &Ground<'_>) {
    let alloc = ground.ended("sidecar.g[0]", "complete");
    let log = ground.agent.until_logged(&alloc.id(), "main", "stdout", |log| log.ends_with("main\n"));
    assert!(log.starts_with("prepared\n"), "{log}");
    assert_eq!(alloc.exit_codes("prepare"), [0]);
}

fn mounts(ground: &Ground<'_>) {
    let log = ground.printed("mounts.g[0]", "t", &["read-only", "tmpfs on /scratch"]);
    assert!(log.contains("size=") && log.contains("mode=700"), "{log}");
    let alloc = ground.running("mounts.g[0]", "t");
    let file = ground.agent.home.state().join("alloc").join(alloc.id()).join("t/local/a");
    assert_eq!(fs::read_to_string(file).unwrap(), "a\n");
    let listed = ground.engine.request("GET", "/volumes", &Value::Null).json();
    assert!(listed.to_string().contains(&format!("mounts-{}", &alloc.id()[..8])), "{listed:#}");
    ground.agent.cli(&["exec", "mounts", "--", "cat", "/cache/b"]).success();
}

fn hardened(ground: &Ground<'_>) {
    let log =
        ground.printed("hardened.g[0]", "t", &["uid=65534", "NoNewPrivs:\t1", "\n1000\n", "\n80\n", "4321"]);
    // Podman gives users other than root the capabilities that a task adds.
    assert!(log.contains("CapEff:\t0000000000000000") || log.contains("CapEff:\t0000000000000400"), "{log}");
    if ground.engine.kind != Kind::Builtin {
        let host = &ground.container(&ground.running("hardened.g[0]", "t"), "t")["HostConfig"];
        assert_eq!(host["PidsLimit"], 50);
    }
}

fn names(ground: &Ground<'_>) {
    let texts = [
        "front",
        "02:42:0a:d5:00:07",
        "10.9.8.7",
        "db.internal",
        "nameserver 10.1.1.1",
        "search internal",
        "ndots:2",
    ];
    ground.printed("names.g[0]", "t", &texts);
    let labels = &ground.container(&ground.running("names.g[0]", "t"), "t")["Config"]["Labels"];
    assert_eq!((&labels["team"], &labels["com.example/owner"]), (&"web".into(), &"names".into()));
}

fn devices(ground: &Ground<'_>) {
    let log = ground.printed("devices.g[0]", "t", &["/dev/tunnel", "lo"]);
    assert!(!log.contains("eth0"), "{log}");
}

fn terminal(ground: &Ground<'_>) {
    ground.printed("terminal.g[0]", "t", &["/dev/pts/0"]);
    let output = ground.agent.cli(&["exec", "terminal", "--", "cat", "/proc/1/comm"]).success();
    assert!(
        ["docker-init\n", "podman-init\n", "catatonit\n", "tini\n", "herdlet-shim\n"]
            .contains(&&*output.stdout),
        "{output:?}"
    );
}

fn limits(ground: &Ground<'_>) {
    let alloc = ground.ended("limits.g[0]", "failed");
    assert_eq!(alloc.exit_codes("greedy"), [137]);
    let events = alloc.0["TaskStates"]["greedy"]["Events"].to_string();
    // Podman does not notice it where cgroups are hybrid.
    assert!(ground.engine.kind == Kind::Podman || events.contains("out of memory"), "{events}");
}

fn dispatch(ground: &Ground<'_>) {
    let payload = ground.agent.home.write("payload", "some input");
    let arguments =
        ["dispatch", "dispatch", &payload.display().to_string(), "--meta", "who=me", "--wait", "-o", "json"];
    let done: Value = serde_json::from_str(&ground.agent.cli(&arguments).success().stdout).unwrap();
    let child = done["job"]["id"].as_str().unwrap();
    ground.agent.until_printed(&["logs", child], |log| log.contains("me: some input"));
}

fn services(ground: &Ground<'_>) {
    let (address, port) = ground.registered("inside");
    assert!(port == 8000 && !address.starts_with("127."), "{address}:{port} is the container's own");
    let alloc = ground.running("services.g[0]", "server");
    assert_eq!(ground.registered("outside").1, alloc.port("http").unwrap());
    ground.agent.cli(&["wait", "services"]).success();
}

fn rolling(ground: &Ground<'_>) {
    ground.agent.cli(&["wait", "rolling"]).success();
    let first: Vec<String> =
        (0..2).map(|index| ground.running(&format!("rolling.g[{index}]"), "t").id()).collect();
    ground.apply("rolling", &["release=2"]);
    ground.agent.cli(&["wait", "rolling"]).success();
    for index in 0..2 {
        let alloc = ground.running(&format!("rolling.g[{index}]"), "t");
        assert!(!first.contains(&alloc.id()));
        ground.agent.until_logged(&alloc.id(), "t", "stdout", |log| log == "release 2\n");
    }
}

fn private(ground: &Ground<'_>) {
    let alloc = ground.running("private.g[0]", "t");
    let container = ground.container(&alloc, "t");
    assert!(container["Config"]["Image"].to_string().contains("registry.test:5000"), "{container:#}");
    assert!(!container.to_string().contains(herdlet_e2e::engine::PASSWORD));
    assert!(!ground.agent.log().contains(herdlet_e2e::engine::PASSWORD));
}

fn host_volume(ground: &Ground<'_>) {
    ground.printed("host-volume.g[0]", "reader", &["written", "refused"]);
}

fn load(ground: &Ground<'_>) {
    let alloc = ground.running("load.g[0]", "t");
    // The engine in the agent shows one name of each image.
    let images = ground.agent.cli(&["images"]).success().stdout;
    let is_shown = images.contains("herdlet-test/loaded:1");
    assert!(is_shown || ground.engine.kind == Kind::Builtin, "{images}");
    assert_eq!(alloc.restarts("t"), 0);
}

fn network(ground: &Ground<'_>) {
    let address = ground.subnet(9);
    let texts = ["02:42:0a:d5:00:09", &format!("inet {address}/24")];
    ground.printed("network.g[0]", "t", &texts);
    let container = ground.container(&ground.running("network.g[0]", "t"), "t");
    let aliases = &container["NetworkSettings"]["Networks"][NETWORK]["Aliases"];
    assert!(aliases.to_string().contains("\"front.internal\""), "{container:#}");
    assert_eq!(ground.registered("addressed"), (address, 8000));
}

/// Serves a file over HTTP, at any path, until the test ends.
fn serve(port: u16, file: Vec<u8>) {
    let listener = std::net::TcpListener::bind(("127.0.0.1", port)).unwrap();
    std::thread::spawn(move || {
        for mut client in listener.incoming().map_while(Result::ok) {
            let _ = client.read(&mut [0; 4096]);
            let head =
                format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", file.len());
            let _ = client.write_all(head.as_bytes()).and_then(|()| client.write_all(&file));
        }
    });
}

fn podman(ground: &Ground<'_>) {
    let alloc = ground.running("podman.g[0]", "server");
    ground.serves(alloc.port("http").unwrap(), "/", "pod\n");
    let container = ground.container(&alloc, "server");
    assert_eq!(container["Config"]["Labels"]["team"], "web");
    ground.agent.cli(&["exec", "podman", "--", "ls", "/dev/nothing"]).success();
}
