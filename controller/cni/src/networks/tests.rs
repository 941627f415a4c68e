//! Tests of whole networks, with a stand-in plugin and with those of Debian.

use std::{fs, net::TcpListener, process::Command};

use herdlet_base::test_env::leave_out;
use herdlet_network::test_machine::{Machine, on_machine};
use serde_json::json;

use super::*;
use crate::{process::MARK, test_plugin::TestPlugins};

const ARGS: &str = "IgnoreUnknown=true;KEY=value";

/// The networks of an agent. A second one has what an agent has after a crash of the first.
fn networks(machine: &Machine, directories: Directories) -> CniNetworks {
    CniNetworks::new(directories, &machine.dir().join("state"), &machine.dir().join("run"))
}

fn request<'r>(owner: &'r str, ports: &'r [PortMapping]) -> Request<'r> {
    Request { owner, network: "net", args: ARGS, ports }
}

fn is_gone(networks: &CniNetworks, owner: &str) -> bool {
    networks.inspect(owner, Depth::Kernel).unwrap() == State::Absent && networks.owners().unwrap().is_empty()
}

#[test]
fn plugins_attach_in_order_with_results_and_detach_in_reverse() {
    on_machine(|machine| {
        let plugins = TestPlugins::new("1.0.0");
        let networks = networks(machine, plugins.directories());
        let ports = [PortMapping { host_ip: Some("127.0.0.1".parse().unwrap()), host: 28_080, inside: 80 }];
        let made = networks.up(&request("a", &ports)).unwrap();
        assert_eq!(made.connection.address(), Some("127.0.0.1".parse().unwrap()));
        assert_eq!(plugins.calls(), ["first ADD", "last ADD"]);
        let first = plugins.input("first.ADD");
        assert_eq!(first, json!({ "type": "first", "mtu": 1400, "name": "net", "cniVersion": "1.0.0" }));
        let last = plugins.input("last.ADD");
        let mapping = |protocol: &str| json!({ "hostPort": 28_080, "containerPort": 80, "protocol": protocol, "hostIP": "127.0.0.1" });
        assert_eq!(last["runtimeConfig"], json!({ "portMappings": [mapping("tcp"), mapping("udp")] }));
        assert_eq!(last["prevResult"]["ips"][0]["address"], "127.0.0.1/8");
        assert!(last.get("capabilities").is_none());
        assert_eq!(networks.held_ports().len(), 2, "TCP and UDP; this machine has no [::1]");

        assert_eq!(networks.up(&request("a", &ports)).unwrap(), made, "it stays");
        assert_eq!(networks.inspect("a", Depth::Kernel).unwrap(), State::Complete(made.clone()));
        assert_eq!(plugins.calls(), Vec::<String>::new());
        assert_eq!(networks.inspect("a", Depth::Plugins).unwrap(), State::Complete(made));
        assert_eq!(plugins.calls(), ["first CHECK", "last CHECK"]);

        // What was attached is detached with the same settings.
        fs::remove_file(plugins.path("net.conflist")).unwrap();
        networks.down("a").unwrap();
        assert_eq!(plugins.calls(), ["last DEL", "first DEL"]);
        assert_eq!(plugins.input("first.DEL")["prevResult"]["ips"][0]["address"], "127.0.0.1/8");
        assert!(is_gone(&networks, "a") && networks.held_ports().is_empty());
        networks.down("a").unwrap();
        assert_eq!(plugins.calls(), Vec::<String>::new());
    });
}

#[test]
fn commands_are_those_of_the_version() {
    on_machine(|machine| {
        for (version, attached, result_for_del) in [
            ("0.3.1", vec!["first ADD", "last ADD"], false),
            ("0.4.0", vec!["first ADD", "last ADD", "first CHECK", "last CHECK"], true),
            (
                "1.1.0",
                vec!["first STATUS", "last STATUS", "first ADD", "last ADD", "first CHECK", "last CHECK"],
                true,
            ),
        ] {
            let plugins = TestPlugins::new(version);
            let networks = networks(machine, plugins.directories());
            networks.up(&request("a", &[])).unwrap();
            networks.inspect("a", Depth::Plugins).unwrap();
            assert_eq!(plugins.calls(), attached, "{version}");
            networks.down("a").unwrap();
            assert_eq!(plugins.input("first.DEL").get("prevResult").is_some(), result_for_del, "{version}");
        }
    });
}

#[test]
fn network_that_fails_leaves_nothing_and_names_the_plugin() {
    on_machine(|machine| {
        let plugins = TestPlugins::new("1.0.0");
        let mut networks = networks(machine, plugins.directories());
        for (fault, expected) in [
            (
                "exits",
                "run the CNI plugin last with ADD: it ended with exit status: 3, and printed \"oh no\"",
            ),
            ("refuses", "run the CNI plugin last with ADD: it reported: no (code 7)"),
            (
                "garbage",
                "read the result of the CNI plugin last for ADD: it is no JSON object: \"{\\\"cniVersion\\\":\"",
            ),
            (
                "endless",
                "run the CNI plugin last with ADD: read what it prints: it has more than 1048576 bytes",
            ),
            (
                "half",
                "use the CNI network net: its plugins report success, but the interface eth0 is not in the namespace",
            ),
            (
                "hangs",
                "run the CNI plugin last with ADD: wait for it: it did not end within 1 s, and was killed",
            ),
        ] {
            plugins.break_call("last.ADD", fault);
            if fault == "hangs" {
                networks.time = Duration::from_secs(1);
            }
            let error = networks.up(&request("a", &[])).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{fault}: {error}");
            assert_eq!(plugins.calls(), ["first ADD", "last ADD", "last DEL", "first DEL"], "{fault}");
            assert!(is_gone(&networks, "a"), "{fault}");
        }
        networks.time = PLUGIN_TIME_MAX;
        plugins.mend("last.ADD");
        networks.up(&request("a", &[])).unwrap();
        networks.down("a").unwrap();
    });
}

#[test]
fn networks_that_can_not_be_used_begin_nothing() {
    on_machine(|machine| {
        let plugins = TestPlugins::new("1.1.0");
        let networks = networks(machine, plugins.directories());
        plugins.break_call("last.STATUS", "unready");
        let CniError::Call(error) = networks.up(&request("a", &[])).unwrap_err() else {
            panic!("it is another")
        };
        assert!(error.is_wait(), "{error}");
        let absent = networks.up(&Request { network: "other", ..request("a", &[]) }).unwrap_err();
        assert!(matches!(absent, CniError::Config(ConfigError::Absent { .. })), "{absent}");
        let program = plugins.path("first");
        fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        plugins.mend("last.STATUS");
        let error = networks.up(&request("a", &[])).unwrap_err().to_string();
        assert!(error.starts_with("run the CNI plugin first: ") && error.contains("trust"), "{error}");
        fs::remove_file(program).unwrap();
        let error = networks.up(&request("a", &[])).unwrap_err().to_string();
        assert!(error.starts_with("find the CNI plugin first: there is no such program in "), "{error}");
        assert_eq!(
            networks.inspect("a", Depth::Kernel).unwrap(),
            State::Incomplete { what: "namespace is gone".to_owned() }
        );
    });
}

/// The agent died while a plugin ran, which goes on.
#[test]
fn interrupted_attempt_is_undone_with_its_processes() {
    on_machine(|machine| {
        let plugins = TestPlugins::new("1.0.0");
        let first = networks(machine, plugins.directories());
        for phase in [Phase::Begun, Phase::Ending] {
            let network = config::find(&plugins.directories(), "net").unwrap();
            let record = Record {
                boot: boot_id(),
                network,
                plugins: plugins.directories().plugins,
                interface: "eth0".to_owned(),
                args: ARGS.to_owned(),
                ports: Vec::new(),
                phase,
                result: None,
                failures: 0,
                fault: None,
            };
            first.records.write("a", &record).unwrap();
            first.lone.up("a").unwrap();
            let mut running = Command::new("sleep").arg("1000").env(MARK, first.mark("a")).spawn().unwrap();
            let next = networks(machine, plugins.directories());
            let interrupted = "setup or removal was interrupted".to_owned();
            assert_eq!(next.inspect("a", Depth::Plugins).unwrap(), State::Incomplete { what: interrupted });
            next.up(&request("a", &[])).unwrap();
            assert_eq!(plugins.calls(), ["last DEL", "first DEL", "first ADD", "last ADD"]);
            assert!(!running.wait().unwrap().success(), "it was killed");
            next.down("a").unwrap();
            plugins.calls();
        }
    });
}

/// Files of plugins survive a reboot, and refuse to attach an allocation twice.
#[test]
fn network_of_an_earlier_boot_is_detached_before_it_is_attached_again() {
    on_machine(|machine| {
        let plugins = TestPlugins::new("1.0.0");
        let first = networks(machine, plugins.directories());
        first.up(&request("a", &[])).unwrap();
        first.up(&request("b", &[])).unwrap();
        plugins.calls();
        first.lone.down("a").unwrap();
        first.lone.down("b").unwrap();
        let after = CniNetworks { boot: 7, ..networks(machine, plugins.directories()) };
        after.up(&request("a", &[])).unwrap();
        assert_eq!(plugins.calls(), ["last DEL", "first DEL", "first ADD", "last ADD"]);
        assert_eq!(after.sweep(|owner| owner == "b"), (1, 0));
        assert_eq!(plugins.calls(), ["last DEL", "first DEL"]);
        assert_eq!(after.owners().unwrap(), ["a"]);
        after.down("a").unwrap();
    });
}

#[test]
fn damage_is_found_and_the_network_made_again() {
    on_machine(|machine| {
        let plugins = TestPlugins::new("1.0.0");
        let networks = networks(machine, plugins.directories());
        let made = networks.up(&request("a", &[])).unwrap();
        plugins.break_call("last.CHECK", "refuses");
        let State::Incomplete { what } = networks.inspect("a", Depth::Plugins).unwrap() else {
            panic!("it is complete")
        };
        assert_eq!(
            what,
            "plugins object: failed to run the CNI plugin last with CHECK: it reported: no (code 7)"
        );
        // The network of running tasks must not depend on it.
        plugins.break_call("last.CHECK", "endless");
        assert_eq!(networks.inspect("a", Depth::Plugins).unwrap(), State::Complete(made.clone()));
        let Pin::Kept(namespace) = networks.pins.find("a").unwrap() else { panic!("there is none") };
        let ip = address::InterfaceAddress { ip: "127.0.0.1".parse().unwrap(), prefix: 8 };
        address::remove(&mut namespace.socket(Protocol::Route).unwrap(), 1, &ip).unwrap();
        let lacks = State::Incomplete { what: "interface lo lacks the address 127.0.0.1".to_owned() };
        assert_eq!(networks.inspect("a", Depth::Kernel).unwrap(), lacks);
        plugins.calls();
        // The plugin does not attach it, since it attaches nothing.
        networks.up(&request("a", &[])).unwrap_err();
        assert_eq!(plugins.calls()[..4], ["last DEL", "first DEL", "first ADD", "last ADD"]);
        assert_ne!(networks.up(&request("a", &[])).unwrap().namespace, made.namespace, "an unused one");
        fs::write(networks.records.path("a"), "{").unwrap();
        networks.up(&request("a", &[])).unwrap();
        networks.down("a").unwrap();
        assert!(is_gone(&networks, "a"));
    });
}

/// A plugin that was uninstalled must not keep its allocations forever.
#[test]
fn removal_that_fails_again_and_again_ends() {
    on_machine(|machine| {
        let plugins = TestPlugins::new("1.0.0");
        let networks = networks(machine, plugins.directories());
        networks.up(&request("a", &[])).unwrap();
        plugins.break_call("last.DEL", "exits");
        for _ in 1..REMOVALS_MAX {
            networks.down("a").unwrap_err();
            assert!(matches!(networks.pins.find("a").unwrap(), Pin::Absent), "the namespace does not wait");
        }
        networks.down("a").unwrap();
        assert!(is_gone(&networks, "a"));
        let calls = plugins.calls();
        let of_first = calls.iter().filter(|call| *call == "first DEL").count();
        assert_eq!(of_first, usize::try_from(REMOVALS_MAX).unwrap(), "each plugin is called");
    });
}

/// From the second attempt on, only the failure of the cleanup was reported.
#[test]
fn cause_of_a_failure_is_kept_while_the_cleanup_fails() {
    on_machine(|machine| {
        let plugins = TestPlugins::new("1.0.0");
        plugins.break_call("first.ADD", "exits");
        plugins.break_call("last.DEL", "refuses");
        let cause = "run the CNI plugin first with ADD: it ended with exit status: 3, and printed \"oh no\"";
        let first = networks(machine, plugins.directories()).up(&request("a", &[])).unwrap_err();
        assert_eq!(first.to_string(), cause);
        for _ in 0..2 {
            // The agent has restarted.
            let networks = networks(machine, plugins.directories());
            let again = networks.up(&request("a", &[])).unwrap_err().to_string();
            let cleanup = "failed to run the CNI plugin last with DEL: it reported: no (code 7)";
            assert_eq!(again, format!("{cause}; then, to clean up, {cleanup}"));
        }
        let networks = networks(machine, plugins.directories());
        plugins.mend("first.ADD");
        plugins.mend("last.DEL");
        networks.up(&request("a", &[])).unwrap();
        networks.down("a").unwrap();
        assert!(is_gone(&networks, "a"));
    });
}

#[test]
fn port_of_another_process_prevents_the_setup() {
    on_machine(|machine| {
        let plugins = TestPlugins::new("1.0.0");
        let networks = networks(machine, plugins.directories());
        let stranger = TcpListener::bind("0.0.0.0:0").unwrap();
        let ports = [PortMapping { host_ip: None, host: stranger.local_addr().unwrap().port(), inside: 80 }];
        let error = networks.up(&request("a", &ports)).unwrap_err();
        assert!(matches!(error, CniError::Hold(HoldError::Taken { .. })), "{error}");
        assert!(is_gone(&networks, "a"));
        drop(stranger);
        networks.up(&request("a", &ports)).unwrap();
        networks.down("a").unwrap();
    });
}

#[test]
fn plugins_of_debian_make_a_bridge() {
    let Some(engines) = std::env::var_os("HERDLET_TEST_ENGINES") else {
        return leave_out("CNI plugins (tests/setup installs them)");
    };
    on_machine(|machine| {
        let dir = machine.dir();
        let list = json!({ "cniVersion": "1.0.0", "name": "net", "plugins": [
            { "type": "bridge", "bridge": "br0", "isGateway": true,
                "ipam": { "type": "host-local", "dataDir": dir.join("ipam"),
                    "ranges": [[{ "subnet": "10.88.7.0/24" }], [{ "subnet": "fd07::/64" }]],
                    "routes": [{ "dst": "0.0.0.0/0" }] } },
            { "type": "tuning", "sysctl": { "net.core.somaxconn": "500" } },
        ] });
        fs::write(dir.join("net.conflist"), list.to_string()).unwrap();
        let plugins = vec![Path::new(&engines).join("usr/lib/cni")];
        let networks = networks(machine, Directories { configs: dir.clone(), plugins });
        let made = ["a", "b"].map(|owner| networks.up(&request(owner, &[])).unwrap());
        let addresses = made.each_ref().map(|made| made.connection.address().unwrap().to_string());
        assert_eq!(addresses, ["10.88.7.2", "10.88.7.3"]);
        assert_eq!(made[0].connection.addresses.len(), 2);
        assert_eq!(made[0].connection.interface.as_str(), "eth0");
        assert_eq!(networks.inspect("a", Depth::Plugins).unwrap(), State::Complete(made[0].clone()));
        // A user removes the interface.
        let Pin::Kept(namespace) = networks.pins.find("a").unwrap() else { panic!("there is none") };
        let eth0 = InterfaceName::new("eth0").unwrap();
        link::delete(&mut namespace.socket(Protocol::Route).unwrap(), &eth0).unwrap();
        let gone = State::Incomplete { what: "interface eth0 is not in the namespace".to_owned() };
        assert_eq!(networks.inspect("a", Depth::Kernel).unwrap(), gone);
        let again = networks.up(&request("a", &[])).unwrap();
        assert_eq!(again.namespace, made[0].namespace, "tasks in it stay connected");
        for owner in ["a", "b"] {
            networks.down(owner).unwrap();
        }
        let leases = fs::read_dir(dir.join("ipam/net")).unwrap().map(|entry| entry.unwrap().file_name());
        let leases: Vec<_> = leases.filter(|name| name.to_string_lossy().starts_with("10.")).collect();
        assert!(leases.is_empty(), "{leases:?}");
        let links = link::list(&mut herdlet_network::socket::Socket::open(Protocol::Route).unwrap()).unwrap();
        assert_eq!(links.len(), 2, "the loopback interface and the bridge: {links:?}");
    });
}
