//! Compares descriptions with those of stock clients (`tests/nomad/recordings`), and tests updates.

use std::{
    net::IpAddr,
    sync::atomic::{AtomicBool, Ordering},
};

use axum::{Router, http::StatusCode, routing::get};
use herdlet_agent::networks::Permission;
use herdlet_api_types::alloc::CoreSet;
use herdlet_cni::present::Present;
use herdlet_config::{Flags, Surroundings};
use herdlet_driver::{Availability, DriverInfo, TaskDriver, fixture::StandIn};
use herdlet_fingerprint::{Interface, NetworkRules, Networks};
use herdlet_nomad::wire::{registration::NodeRegisterRequest, resources::LegacyResources};
use herdlet_rpc::codec::{self, Extent, Limits};
use herdlet_services::catalog::ConsulConfig;

use super::*;

/// Attributes that only stock clients have: of unsupported features, and of the kernel where reading them requires unsafe code.
const ABSENT: [&str; 4] =
    ["cpu.reservablecores", "driver.exec", "kernel.landlock", "nomad.bridge.hairpin_mode"];

/// The first description of a node in a recording.
fn recorded(version: &str) -> Node {
    let path =
        format!("{}/../../tests/nomad/recordings/{version}/01-start.jsonl", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).unwrap();
    let messages = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let mut registers =
        messages.filter(|message| message["method"] == "Node.Register" && message["kind"] == "request");
    let hex = registers.next().unwrap()["hex"].as_str().unwrap().to_owned();
    let pairs = hex.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
    let bytes: Vec<u8> = pairs.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect();
    let header = Extent::new(Limits::HEADER).of(&bytes).unwrap().unwrap();
    codec::decode::<NodeRegisterRequest>(&bytes[header..]).unwrap().node
}

fn config(listen: &str) -> Config {
    let surroundings = Surroundings { variable: &|_| None, root: true, host_name: "node-1" };
    let flags = Flags {
        servers: vec!["127.0.0.1".to_owned()],
        listen: Some(listen.to_owned()),
        state_dir: Some("/".into()),
        ..Flags::default()
    };
    Config::load(flags, &surroundings).unwrap()
}

fn fixed(config: &Config) -> Fixed {
    let fixed = Fixed::of(config, config.cluster.as_ref().unwrap());
    // The same for every user.
    Fixed { bridges: Permission::Missing, ..fixed }
}

fn loopback() -> Vec<Interface> {
    vec![Interface {
        name: "lo".to_owned(),
        is_up: true,
        is_loopback: true,
        addresses: vec![(IpAddr::from([127, 0, 0, 1]), 8), ("::1".parse().unwrap(), 128)],
        ..Interface::default()
    }]
}

fn healthy() -> Fingerprint {
    Fingerprint { health: Health::Healthy, description: "Healthy".to_owned(), attributes: BTreeMap::new() }
}

/// A driver with this fingerprint.
fn drivers(info: DriverInfo, fingerprint: Fingerprint) -> Arc<Entries> {
    let registry = Registry::new();
    let driver: Arc<dyn TaskDriver> = Arc::new(StandIn::new(info));
    registry.insert(Arc::clone(&driver), Availability::Enabled);
    registry.set_fingerprint(&driver, fingerprint);
    registry.entries()
}

fn raw_exec(cluster: &Cluster) -> BTreeMap<String, NodeDriver> {
    super::described(cluster, &drivers(DriverInfo::raw_exec(), healthy()))
}

/// The description that herdlet builds for the recorded machine.
fn described(recorded: &Node) -> Node {
    let mut config = config("127.0.0.1:5646");
    let cluster = config.cluster.as_mut().unwrap();
    cluster.network = NetworkRules { interface: Some("lo".to_owned()), ..NetworkRules::default() };
    let resources = recorded.node_resources.as_ref().unwrap();
    let mut fixed = fixed(&config);
    fixed.total = Room {
        cpu_mhz: resources.cpu.cpu_shares.unsigned_abs(),
        memory_mib: resources.memory.memory_mb.unsigned_abs(),
        disk_mib: resources.disk.disk_mb.unsigned_abs(),
        cores: 0,
    };
    fixed.cores = resources.cpu.total_cpu_cores;
    fixed.topology = None;
    fixed.cgroup_parent = "nomad".to_owned();
    fixed.attributes = recorded.attributes.clone();
    let networks = fixed.networks(&loopback());
    let drivers = raw_exec(&fixed.cluster);
    let meta = NodeMeta { fixed: recorded.meta.clone(), ..NodeMeta::default() };
    fixed.node(&Parts { networks, drivers, meta, ..Parts::default() })
}

#[test]
fn a_node_is_described_as_stock_clients_describe_theirs() {
    for version in ["1.1.2", "1.6.5"] {
        let mut stock = recorded(version);
        let mut ours = described(&stock);
        // Set by a session, or at the time of the fingerprint.
        (ours.id, ours.secret_id) = (stock.id.clone(), stock.secret_id.clone());
        (ours.status, ours.scheduling_eligibility) =
            (stock.status.clone(), stock.scheduling_eligibility.clone());
        stock.drivers.remove("exec");
        ours.drivers.get_mut("raw_exec").unwrap().update_time = stock.drivers["raw_exec"].update_time;
        // These have no cores to assign, and no bridge.
        let resources = stock.node_resources.as_mut().unwrap();
        resources.cpu.reservable_cpu_cores.clear();
        resources.networks.retain(|network| network.mode != "bridge");
        resources.node_networks.retain(|network| network.mode != "bridge");
        // The version, and the newer name of the API's address.
        stock.attributes.insert("nomad.version".to_owned(), herdlet_fingerprint::NOMAD_VERSION.to_owned());
        stock.attributes.insert("unique.advertise.address".to_owned(), "127.0.0.1:5646".to_owned());
        // Of `secret` blocks, which came with 1.11.
        for provider in ["nomad", "vault"] {
            stock.attributes.insert(format!("plugins.secrets.{provider}.version"), "1.0.0".to_owned());
        }
        if version == "1.1.2" {
            // Fields that this version did not have, or left to servers.
            (stock.node_pool, stock.cgroup_parent) = ("default".to_owned(), "/nomad".to_owned());
            let resources = stock.node_resources.as_mut().unwrap();
            (resources.min_dynamic_port, resources.max_dynamic_port) = (20_000, 32_000);
        }
        stock.reserved_resources.get_or_insert_default();
        stock.reserved.get_or_insert_with(LegacyResources::default);
        assert_eq!(ours, stock, "{version}");
    }
}

#[test]
fn a_node_has_the_attributes_and_meta_that_stock_clients_have() {
    let config = config("127.0.0.1:5646");
    let fixed = fixed(&config);
    let networks = Networks { ip: Some(IpAddr::from([127, 0, 0, 1])), ..Networks::default() };
    let drivers = raw_exec(&fixed.cluster);
    let node = fixed.node(&Parts { networks, drivers, ..Parts::default() });
    for version in ["1.1.2", "1.6.5"] {
        let stock = recorded(version);
        for name in stock.attributes.keys() {
            // Not every machine reports its frequency or has cgroups.
            let is_of_machine =
                ["cpu.frequency", "cpu.modelname", "unique.cgroup"].iter().any(|of| name.starts_with(of));
            let is_there = node.attributes.contains_key(name) || is_of_machine;
            assert_ne!(is_there, ABSENT.contains(&&name[..]), "{version}: {name} in {:?}", node.attributes);
        }
        assert!(stock.meta.keys().all(|key| node::META.iter().any(|(known, _)| known == key)));
    }
    // There is always a processor: servers may crash on a node without one.
    let cpu = &node.node_resources.unwrap().cpu;
    assert!(cpu.cpu_shares >= 1 && cpu.total_cpu_cores >= 1);
}

/// Servers place a group in mode `bridge` only on nodes with that mode and with Nomad's plugins.
#[test]
fn networks_that_the_agent_can_make_are_offered() {
    let config = config("127.0.0.1:1");
    let present = Present {
        plugins: [("bridge", "1.1.1"), ("own", "2.0.0")]
            .map(|(name, version)| (name.to_owned(), version.to_owned()))
            .into(),
        networks: vec!["net".to_owned()],
    };
    let modes = |fixed: &Fixed, cni: &Present| {
        let node = fixed.node(&Parts { cni: cni.clone(), ..Parts::default() });
        let networks = node.node_resources.unwrap().networks;
        let modes: Vec<String> = networks.into_iter().map(|network| network.mode).collect();
        let version = |plugin: &str| node.attributes.get(&format!("plugins.cni.version.{plugin}")).cloned();
        (modes.join(" "), ["bridge", "own"].map(version))
    };
    let mut fixed = fixed(&config);
    assert_eq!(modes(&fixed, &present), (String::new(), [None, None]));
    fixed.bridges = Permission::Granted;
    let built_in = [Some("1.6.0".to_owned()), None];
    assert_eq!(modes(&fixed, &Present::default()), ("bridge".to_owned(), built_in));
    let versions = ["1.1.1", "2.0.0"].map(|version| Some(version.to_owned()));
    assert_eq!(modes(&fixed, &present), ("bridge cni/net".to_owned(), versions));
}

#[test]
fn reserved_resources_include_local_manifests() {
    let mut config = config("0.0.0.0:4646");
    config.reserved = Room { cpu_mhz: 100, memory_mib: 200, disk_mib: 300, ..Room::default() };
    config.reserved_ports = BTreeSet::from([22, 8_500, 8_501]);
    let fixed = fixed(&config);
    let reserved = Room { cpu_mhz: 1, memory_mib: 2, disk_mib: 3, ..Room::default() };
    let parts = Parts { reserved, reserved_ports: BTreeSet::from([8_502, 9_000]), ..Parts::default() };
    let node = fixed.node(&parts);
    let kept = node.reserved_resources.unwrap();
    assert_eq!((kept.cpu.cpu_shares, kept.memory.memory_mb, kept.disk.disk_mb), (101, 202, 303));
    assert_eq!(kept.networks.reserved_host_ports, "22,8500-8502,9000");
    assert_eq!(node.reserved.unwrap().cpu, 101);
    // If the API listens on all addresses, the node's address is advertised.
    let networks = Networks { ip: Some(IpAddr::from([10, 0, 0, 7])), ..Networks::default() };
    assert_eq!(fixed.node(&Parts { networks, ..Parts::default() }).http_addr, "10.0.0.7:4646");
}

#[test]
fn a_topology_is_as_fast_as_the_config_says() {
    let mut fixed = fixed(&config("127.0.0.1:1"));
    let core = |id| herdlet_nomad::wire::resources::Core { id, guess_speed: 1_000, ..Default::default() };
    let topology =
        herdlet_nomad::wire::resources::Topology { cores: vec![core(0), core(1)], ..Default::default() };
    fixed.topology = Some(topology);
    for (total, expected) in [(2_000, 2_000), (5_000, 5_000)] {
        fixed.total.cpu_mhz = total;
        let resources = fixed.node(&Parts::default()).node_resources.unwrap();
        assert_eq!(resources.processors.topology.unwrap().override_total_compute, expected);
    }
}

#[test]
fn cores_that_servers_may_assign_are_named() {
    let mut fixed = fixed(&config("127.0.0.1:1"));
    let core = |id| herdlet_nomad::wire::resources::Core { id, disable: true, ..Default::default() };
    // The core 5 is not at the place of its number.
    let cores = vec![core(0), core(1), core(2), core(5)];
    fixed.topology = Some(herdlet_nomad::wire::resources::Topology { cores, ..Default::default() });
    let node = fixed.with_cores(CoreSet([1, 2, 5, 9].into())).node(&Parts::default());
    let resources = node.node_resources.unwrap();
    assert_eq!(resources.cpu.reservable_cpu_cores, [1, 2]);
    let disabled = resources.processors.topology.unwrap().cores.into_iter().map(|core| core.disable);
    assert_eq!(disabled.collect::<Vec<_>>(), [true, false, false, true]);
    assert_eq!(node.attributes["cpu.reservablecores"], "2");
}

#[test]
fn disabled_fingerprinters_find_nothing() {
    let mut config = config("127.0.0.1:4646");
    config.cluster.as_mut().unwrap().fingerprints.deny =
        ["storage", "cpu", "nomad", "signal"].map(str::to_owned).into();
    let attributes = fixed(&config).node(&Parts::default()).attributes;
    for name in ["unique.storage.bytestotal", "cpu.numcores", "nomad.advertise.address", "os.signals"] {
        assert!(!attributes.contains_key(name), "{name}");
    }
    assert!(attributes.contains_key("cpu.arch") && attributes.contains_key("nomad.version"));
}

#[tokio::test]
async fn only_changed_attributes_are_reported() {
    let dir = tempfile::tempdir().unwrap();
    let config = config("127.0.0.1:4646");
    let describer = Describer::with(fixed(&config), Parts::default(), dir.path().to_owned());
    let mut node = describer.watch();
    describer.set_drivers(&drivers(DriverInfo::raw_exec(), healthy()));
    assert!(node.has_changed().unwrap());
    assert_eq!(node.borrow_and_update().attributes["driver.raw_exec"], "1");
    // An equal fingerprint later, and reserved resources of zero.
    describer.set_drivers(&drivers(DriverInfo::raw_exec(), healthy()));
    describer.set_reserved(Room::default(), BTreeSet::new());
    assert!(!node.has_changed().unwrap());
    let undetected = Fingerprint { health: Health::Undetected, ..healthy() };
    describer.set_drivers(&drivers(DriverInfo::raw_exec(), undetected));
    let latest = node.borrow_and_update().clone();
    assert!(!latest.attributes.contains_key("driver.raw_exec") && !latest.drivers["raw_exec"].healthy);

    let changes = Changes::from([("rack".to_owned(), Some("17".to_owned()))]);
    describer.set_meta(&changes).await.unwrap();
    assert_eq!(node.borrow_and_update().meta["rack"], "17");
    assert!(describer.set_meta(&Changes::new()).await.is_err() && !node.has_changed().unwrap());
    assert_eq!(NodeMeta::load(BTreeMap::new(), dir.path()).unwrap().merged()["rack"], "17");
}

#[test]
fn a_driver_that_may_not_be_offered_is_not_heard_of() {
    let mut config = config("127.0.0.1:4646");
    config.cluster.as_mut().unwrap().drivers.deny = vec!["raw_exec".to_owned()];
    let describer = Describer::with(fixed(&config), Parts::default(), "/".into());
    describer.set_drivers(&drivers(DriverInfo::raw_exec(), healthy()));
    describer.set_drivers(&drivers(DriverInfo::mock(), healthy()));
    assert!(describer.watch().borrow().drivers.is_empty());
}

#[tokio::test]
async fn consul_attributes_exist_while_it_answers() {
    let is_up = Arc::new(AtomicBool::new(true));
    let says = Arc::clone(&is_up);
    let agent = move || async move {
        let config =
            serde_json::json!({"Config": {"Datacenter": "dc1", "NodeName": "n", "Version": "1.16.2"}});
        if says.load(Ordering::Relaxed) {
            Ok(axum::Json(config))
        } else {
            Err(StatusCode::INTERNAL_SERVER_ERROR)
        }
    };
    let router = Router::new().route("/v1/agent/self", get(agent));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move { axum::serve(listener, router).await });
    let consul = ConsulReader::new(&ConsulConfig::resolve(Some(&address), None, |_| None).unwrap()).unwrap();

    let config = config("127.0.0.1:4646");
    let describer = Describer::with(fixed(&config), Parts::default(), "/".into());
    let mut node = describer.watch();
    let story = async {
        let known = |node: &Arc<Node>| node.attributes.contains_key("consul.version");
        // Only the registration waits for Consul.
        assert!(!describer.watch().borrow().attributes.contains_key("consul.version"));
        describer.is_whole().await;
        assert!(known(&describer.watch().borrow()));
        is_up.store(false, Ordering::Relaxed);
        let gone = node.wait_for(|node| !known(node)).await.unwrap().clone();
        assert!(gone.links.is_empty());
        // The loop continues after failures.
        is_up.store(true, Ordering::Relaxed);
        assert_eq!(node.wait_for(known).await.unwrap().links["consul"], "dc1.n");
    };
    tokio::select! {
        () = describer.follow_consul("default", &consul, Duration::from_millis(20)) => {}
        () = story => {}
    }
}

/// Drivers that are added or removed while the node runs are reported to servers.
#[tokio::test]
async fn driver_changes_update_the_node() {
    let config = config("127.0.0.1:4646");
    let describer = Describer::with(fixed(&config), Parts::default(), "/".into());
    let registry = Registry::new();
    let mut node = describer.watch();
    let following = async {
        describer.follow_drivers(&registry).await;
        unreachable!("the registry still exists");
    };
    let changes = async {
        assert!(node.borrow_and_update().drivers.is_empty());
        let driver: Arc<dyn TaskDriver> = Arc::new(StandIn::new(DriverInfo::raw_exec()));
        registry.insert(Arc::clone(&driver), Availability::Enabled);
        registry.set_fingerprint(&driver, healthy());
        node.changed().await.unwrap();
        assert!(node.borrow_and_update().drivers["raw_exec"].healthy);
        registry.set_fingerprint(&driver, Fingerprint { health: Health::Unhealthy, ..healthy() });
        node.changed().await.unwrap();
        let ill = node.borrow_and_update().drivers["raw_exec"].clone();
        assert_eq!((ill.detected, ill.healthy), (true, false));
        registry.remove("raw_exec");
        node.changed().await.unwrap();
        assert!(node.borrow_and_update().drivers.is_empty());
    };
    tokio::select! {
        () = following => {}
        () = changes => {}
    }
}
