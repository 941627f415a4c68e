//! Damage that other programs do to networks of running tasks, full disks, and what is left of an instance without jobs.

use super::*;

use herdlet_e2e::namespaces;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

/// Removes all rules of the machine, as `nft flush ruleset` does.
const FLUSH: &str = r#"
import socket, struct
s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12)
def message(kind, flags, body):
    return struct.pack("=IHHII", 16 + len(body), kind, flags, 1, 0) + body
begin, end = (message(kind, 1, struct.pack(">BBH", 0, 0, 10)) for kind in (16, 17))
s.sendto(begin + message((10 << 8) | 2, 5, struct.pack(">BBH", 0, 0, 0)) + end, (0, 0))
assert struct.unpack("=i", s.recv(4096)[16:20])[0] == 0
"#;

/// Makes and removes a table of another program many times.
const CHURN: &str = r#"
import socket, struct
s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12)
def message(kind, flags, body):
    return struct.pack("=IHHII", 16 + len(body), kind, flags, 1, 0) + body
begin, end = (message(kind, 1, struct.pack(">BBH", 0, 0, 10)) for kind in (16, 17))
name = struct.pack("=HH", 10, 1) + b"other\0\0\0"
for _ in range(500):
    for kind, flags in ((0, 0x401), (2, 1)):
        s.sendto(begin + message((10 << 8) | kind, flags, struct.pack(">BBH", 1, 0, 0) + name) + end, (0, 0))
"#;

fn run_python(script: &str) {
    let output = Command::new("python3").args(["-c", script]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

fn ip(arguments: &[&str]) {
    let output = Command::new("ip").args(arguments).output().unwrap();
    assert!(output.status.success(), "ip {arguments:?}: {output:?}");
}

fn interfaces() -> BTreeSet<String> {
    let text = fs::read_to_string("/proc/thread-self/net/dev").unwrap();
    text.lines().filter_map(|line| Some(line.split_once(':')?.0.trim().to_owned())).collect()
}

fn bridge() -> String {
    interfaces().into_iter().find(|name| name.starts_with("hl-")).unwrap()
}

/// Detected damages of networks, by how they were noticed.
fn detected(agent: &Agent, by: &str) -> f64 {
    agent.metric("herdlet_drift_detected_total", &format!("kind=\"network\",by=\"{by}\""))
}

/// Does damage, and waits until it is counted, and the allocation answers.
fn damage(agent: &Agent, (what, port): (&str, u16), harm: impl FnOnce()) {
    let all = || detected(agent, "event") + detected(agent, "look");
    let before = all();
    harm();
    let begun = std::time::Instant::now();
    let answers = || http::poll_task(port, "/").is_some_and(|answer| answer.status == 200);
    wait::until_true(what, || all() > before && answers());
    eprintln!("{what}: repaired after {:?}", begun.elapsed());
}

#[test]
fn damage_is_reported_by_the_kernel_and_repaired_under_the_task() {
    if !is_root() || environment::program("ip").is_none() {
        return;
    }
    let mut agent = start("");
    let group = "network: {mode: bridge, ports: {http: {to: 8080}}}\n";
    agent.apply_and_wait(&job("web", "service", group, &[server()]));
    let alloc = agent.alloc("web.g[0]").unwrap();
    let port = alloc.port("http").unwrap();
    agent.until_logged(&alloc.id(), "server", "stdout", |log| log.contains("listens"));
    let pid = agent.single("web.g[0]", "server").pid;
    let inside = format!("{}/netns/{}", runtime(&agent).display(), alloc.id());
    let address = variable(&agent, &alloc, "NOMAD_ALLOC_IP_http");
    let gateway = "172.26.80.1/20";

    damage(&agent, ("rules", port), || run_python(FLUSH));
    damage(&agent, ("an interface", port), || ip(&["link", "delete", pairs().first().unwrap()]));
    damage(&agent, ("an interface that is down", port), || {
        ip(&["link", "set", pairs().first().unwrap(), "down"])
    });
    damage(&agent, ("the bridge's address", port), || ip(&["address", "delete", gateway, "dev", &bridge()]));
    damage(&agent, ("the bridge", port), || ip(&["link", "delete", &bridge()]));
    damage(&agent, ("an address inside", port), || {
        let net = format!("--net={inside}");
        let arguments = [&net, "ip", "address", "delete", &format!("{address}/20"), "dev", "eth0"];
        assert!(Command::new("nsenter").args(arguments).status().unwrap().success());
    });
    assert_eq!(agent.single("web.g[0]", "server").pid, pid, "the task runs on");
    // Reports about another program's rules, more than are read at once.
    run_python(CHURN);
    damage(&agent, ("rules", port), || run_python(FLUSH));
    assert_eq!(agent.single("web.g[0]", "server").pid, pid, "the task runs on");
    // A task can't follow into another namespace.
    damage(&agent, ("the namespace", port), || unmount(&*inside, UnmountFlags::DETACH).unwrap());
    wait::until_true("the task restarts", || agent.single("web.g[0]", "server").pid != pid);

    // An inspection may have come first by chance, once or twice.
    assert!(detected(&agent, "event") >= 6.0, "{} {}", detected(&agent, "event"), detected(&agent, "look"));
    let listed = agent.cli(&["drift"]).success().stdout;
    for cause in [
        "its table of rules was removed or changed",
        "its interface on the machine is gone, down, or not on the bridge",
        "its bridge lacks its address",
        "its bridge is gone",
        "its address is gone",
        "its namespace is gone",
    ] {
        assert!(listed.contains(cause), "{cause}: {listed}");
    }
    agent.cli(&["delete", "web", "--wait"]).success();
    until_nothing_left(&agent);
    agent.finish();
}

/// Also after a crash.
#[test]
fn bridge_and_settings_end_with_the_agent_if_no_allocation_uses_them() {
    if !is_root() {
        return;
    }
    let forward = Path::new("/proc/sys/net/ipv4/ip_forward");
    let value = || fs::read_to_string(forward).unwrap().trim().to_owned();
    fs::write(forward, "0").unwrap();
    let only_loopback = || interfaces() == BTreeSet::from(["lo".to_owned()]);
    let mut agent = start("");
    for round in 0..2 {
        agent.apply_and_wait(&job("web", "service", "network: {mode: bridge}\n", &[sleeping("server")]));
        assert_eq!(value(), "1");
        let pid = agent.single("web.g[0]", "server").pid;
        agent.terminate();
        assert!(!only_loopback(), "the task needs it");
        agent.launch();
        agent.cli(&["wait", "web"]).success();
        assert_eq!(agent.single("web.g[0]", "server").pid, pid);
        agent.cli(&["delete", "web", "--wait"]).success();
        until_nothing_left(&agent);
        if round == 0 {
            agent.kill();
            assert!(!only_loopback());
            agent.launch();
        }
        agent.terminate();
        assert!(only_loopback(), "{:?}", interfaces());
        assert_eq!(value(), "0");
        agent.launch();
    }
    assert!(only_loopback(), "an agent without such allocations changes nothing");
    agent.finish();
}

#[test]
fn network_is_made_once_there_is_space_for_its_files() {
    if !is_root() {
        return;
    }
    let mut agent = start("");
    for (name, dir) in [("first", "netns"), ("second", "addresses")] {
        let dir = runtime(&agent).join(dir);
        fs::create_dir_all(&dir).unwrap();
        mount("full", &dir, "tmpfs", MountFlags::empty(), c"nr_inodes=1").unwrap();
        agent.apply(&job(name, "service", "network: {mode: bridge}\n", &[sleeping("server")]));
        agent.until_printed(&["explain", name], |text| text.contains("No space left on device"));
        unmount(&dir, UnmountFlags::DETACH).unwrap();
        agent.cli(&["wait", name]).success();
        let pid = agent.single(&format!("{name}.g[0]"), "server").pid;
        let pin = runtime(&agent).join("netns").join(agent.alloc(&format!("{name}.g[0]")).unwrap().id());
        let of_task = namespaces::identity(Path::new(&format!("/proc/{pid}/ns/net")));
        assert_eq!(namespaces::identity(&pin), of_task);
        agent.cli(&["delete", name, "--wait"]).success();
        until_nothing_left(&agent);
    }
    agent.finish();
}
