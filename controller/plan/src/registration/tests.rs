//! Registrations and checks as catalogues get them, by example.

extern crate std;

use std_alloc::vec;

use herdlet_api_types::{
    Duration,
    alloc::{AllocDeployment, AssignedPort, Ports},
    job::{AddressMode, Check, CheckKind, CheckRestart, InitialStatus, OnUpdate, Provider},
    service::RegisteredCheck,
};
use proptest::prelude::*;

use super::*;
use crate::env::{Inputs, build, fixture};

fn service(port: Option<&str>) -> Service {
    Service { port: port.map(Into::into), ..herdlet_api_types::fixture::service("redis-http") }
}

fn http() -> Check {
    Check {
        kind: CheckKind::Http {
            path: "/".into(),
            method: "GET".into(),
            protocol: "http".into(),
            header: BTreeMap::new(),
            body: String::new(),
            tls_skip_verify: false,
            tls_server_name: String::new(),
        },
        interval: Duration::from_secs(1),
        timeout: Duration::from_secs(1),
        ..herdlet_api_types::fixture::check("alive")
    }
}

fn grpc(service: &str) -> CheckKind {
    let tls_server_name = String::new();
    CheckKind::Grpc { service: service.into(), tls: false, tls_skip_verify: false, tls_server_name }
}

fn script(args: &[&str]) -> CheckKind {
    let args = args.iter().map(|arg| (*arg).into()).collect();
    CheckKind::Script { command: "/bin/true".into(), args, task: "redis".into() }
}

/// The owner of the services.
enum ServiceLevel {
    Task,
    Group,
}

/// The networks of the table of address resolution.
struct World {
    place: ServiceLevel,
    /// Whether the allocation is a canary.
    canary: bool,
    origin: Origin,
    driver: Option<DriverNetwork>,
    network: Option<AllocNetwork>,
    /// Ports of single tasks.
    task_ports: BTreeMap<String, Ports>,
}

impl World {
    fn new() -> Self {
        let port_map = [("mapped".to_string(), 99)].into();
        Self {
            place: ServiceLevel::Task,
            canary: false,
            origin: Origin::Standalone,
            driver: Some(DriverNetwork { ip: "172.17.0.2".into(), port_map, auto_advertise: false }),
            task_ports: BTreeMap::new(),
            network: Some(AllocNetwork {
                interface: "eth0".into(),
                address: "172.26.64.9".into(),
                ..AllocNetwork::default()
            }),
        }
    }

    fn register(&self, services: Vec<Service>) -> Vec<Result<Registration, RegistrationError>> {
        let mut task = fixture::task();
        let mut alloc = fixture::alloc();
        match self.place {
            ServiceLevel::Task => task.services = services,
            ServiceLevel::Group => alloc = fixture::alloc_with(|job| job.groups[0].services = services),
        }
        let id = herdlet_api_types::DeploymentId::from_hash([3; 16]);
        alloc.deployment = Some(AllocDeployment { id, canary: self.canary });
        alloc.task_ports = self.task_ports.clone();
        let task = match self.place {
            ServiceLevel::Task => Some(&task),
            ServiceLevel::Group => None,
        };
        let node = fixture::node();
        let env = build(&Inputs { task, ..Inputs::new(&alloc, &node) });
        registrations(&Workload {
            alloc: &alloc,
            task,
            env: &env,
            driver_network: self.driver.as_ref(),
            alloc_network: self.network.as_ref(),
            instance: &InstanceId("00112233aabbccdd".into()),
            origin: self.origin,
        })
    }

    fn one(&self, service: Service) -> Result<Registration, RegistrationError> {
        self.register(vec![service]).remove(0)
    }

    fn address(&self, mode: AddressMode, label: &str, literal: &str) -> Result<(String, u16), String> {
        let mut service = service((!label.is_empty()).then_some(label));
        service.address_mode = mode;
        service.address = (!literal.is_empty()).then(|| literal.into());
        self.one(service).map(|r| (r.address, r.port)).map_err(|error| error.why.to_string())
    }
}

#[test]
fn ids() {
    let id = "b4e61df9-b095-d64e-f241-23860da1375f";
    let mut world = World::new();
    assert_eq!(
        world.one(service(Some("http"))).unwrap().id,
        format!("_herdlet-task-{id}-redis-redis-http-http")
    );
    world.origin = Origin::Node;
    assert_eq!(
        world.one(service(Some("http"))).unwrap().id,
        format!("_nomad-task-{id}-redis-redis-http-http")
    );
    world.place = ServiceLevel::Group;
    assert_eq!(world.one(service(None)).unwrap().id, format!("_nomad-task-{id}-group-cache-redis-http-"));
    world.origin = Origin::Standalone;
    let group = world.one(service(None)).unwrap();
    assert_eq!(group.id, format!("_herdlet-task-{id}-group-cache-redis-http-"));
    assert_eq!(group.task, None);
}

/// Two tasks of an old job each have a port with the same label.
#[test]
fn a_tasks_own_ports_are_found_by_its_services_and_by_no_others() {
    let port_map = |value| {
        let port = AssignedPort { host_ip: "10.0.0.7".into(), value, to: 0 };
        BTreeMap::from([("old".to_string(), port)])
    };
    let mut world = World::new();
    world.task_ports =
        [("redis".to_string(), port_map(23_000)), ("other".to_string(), port_map(23_001))].into();
    assert_eq!(world.address(AddressMode::Auto, "old", ""), Ok(("10.0.0.7".into(), 23_000)));
    assert_eq!(world.address(AddressMode::Host, "", ""), Ok(("10.0.0.7".into(), 0)));
    world.place = ServiceLevel::Group;
    assert!(world.address(AddressMode::Auto, "old", "").is_err());
    // A service of the group names the task, in Nomad in vain.
    let about = |task: &str, mode: AddressMode| {
        let check = Check { port: Some("old".into()), ..http() };
        let service = Service { task: Some(task.into()), checks: vec![check], ..service(Some("old")) };
        let registered = world.one(Service { address_mode: mode, ..service }).unwrap();
        (registered.address, registered.port, registered.checks[0].port)
    };
    assert_eq!(about("redis", AddressMode::Auto), ("10.0.0.7".into(), 23_000, 23_000));
    assert_eq!(about("other", AddressMode::Host), ("10.0.0.7".into(), 23_001, 23_001));
}

/// The host's port was given instead, on which nothing listens in the container.
#[test]
fn driver_address_of_a_tasks_own_port_has_the_mapped_port() {
    let mut world = World::new();
    let own = AssignedPort { host_ip: "10.0.0.7".into(), value: 23_000, to: 77 };
    let own = ["mapped", "old"].map(|label| (label.to_string(), own.clone()));
    world.task_ports = [("redis".to_string(), own.into())].into();
    let driver = |label: &str| world.address(AddressMode::Driver, label, "");
    assert_eq!(driver("mapped"), Ok(("172.17.0.2".into(), 99)));
    // As in Nomad, `to` has no effect on a port of a task.
    assert_eq!(driver("old"), Ok(("172.17.0.2".into(), 23_000)));
}

#[test]
fn addresses() {
    use AddressMode::{Alloc, Auto, Driver, Host};
    let world = World::new();
    let not_found = Err("invalid port \"nope\": port label not found");
    for (mode, label, literal, expected) in [
        (Auto, "http", "", Ok(("10.0.0.5", 21000))),
        (Host, "http", "", Ok(("10.0.0.5", 21000))),
        (Driver, "http", "", Ok(("172.17.0.2", 8080))),
        (Alloc, "http", "", Ok(("172.26.64.9", 8080))),
        (Alloc, "raw", "", Ok(("172.26.64.9", 22000))),
        (Driver, "raw", "", Ok(("172.17.0.2", 22000))),
        (Driver, "mapped", "", Ok(("172.17.0.2", 99))),
        (Driver, "9999", "", Ok(("172.17.0.2", 9999))),
        (Alloc, "9999", "", Ok(("172.26.64.9", 9999))),
        (Host, "9999", "", Ok(("", 9999))),
        (Host, "", "", Ok(("10.0.0.5", 0))),
        (Driver, "", "", Ok(("172.17.0.2", 0))),
        (Alloc, "", "", Ok(("172.26.64.9", 0))),
        (Auto, "http", "1.2.3.4", Ok(("1.2.3.4", 21000))),
        (Auto, "", "1.2.3.4", Ok(("1.2.3.4", 0))),
        (Auto, "77", "1.2.3.4", Ok(("1.2.3.4", 77))),
        (Auto, "nope", "1.2.3.4", not_found),
        (Auto, "nope", "", not_found),
        (Host, "nope", "", not_found),
        (Driver, "nope", "", not_found),
        (Alloc, "nope", "", not_found),
        (Host, "0", "", Err("invalid port \"0\": must be 1 to 65535")),
        (Host, "65536", "", Err("invalid port \"65536\": must be 1 to 65535")),
        (Host, "http", "1.2.3.4", Err("`address` can't be combined with address_mode \"host\"")),
        (Driver, "http", "1.2.3.4", Err("`address` can't be combined with address_mode \"driver\"")),
        (Alloc, "http", "1.2.3.4", Err("`address` can't be combined with address_mode \"alloc\"")),
    ] {
        let expected = expected.map(|(ip, port)| (ip.into(), port)).map_err(Into::into);
        assert_eq!(world.address(mode, label, literal), expected, "{mode:?} {label:?} {literal:?}");
    }
}

#[test]
fn addresses_of_networks_that_are_not_there() {
    let world = World { driver: None, network: None, ..World::new() };
    let none =
        |made: &str| Err(format!("address_mode {made:?} needs a network of the {made}, but there is none"));
    assert_eq!(world.address(AddressMode::Alloc, "http", ""), none("alloc"));
    assert_eq!(world.address(AddressMode::Driver, "http", ""), none("driver"));
    assert_eq!(world.address(AddressMode::Auto, "http", ""), Ok(("10.0.0.5".into(), 21000)));
}

#[test]
fn auto_address_follows_the_driver() {
    let mut world = World::new();
    world.driver.as_mut().unwrap().auto_advertise = true;
    assert_eq!(world.address(AddressMode::Auto, "http", ""), Ok(("172.17.0.2".into(), 8080)));
    assert_eq!(world.address(AddressMode::Auto, "http", "1.2.3.4"), Ok(("1.2.3.4".into(), 21000)));
}

#[test]
fn fields_are_interpolated_and_marked() {
    let mut service = service(Some("${NOMAD_HOST_PORT_http}"));
    service.name = "${NOMAD_JOB_ID}-${NOMAD_TASK_NAME}".into();
    service.tags = vec!["z".into(), "${node.class}".into(), "z".into(), "${unknown}".into()];
    service.meta = [("k-${NOMAD_JOB_ID}", "${meta.rack}"), ("external-source", "me")]
        .map(|(key, value)| (key.into(), value.into()))
        .into();
    let mut check = http();
    check.name = "${NOMAD_GROUP_NAME} up".into();
    check.port = Some("raw".into());
    if let CheckKind::Http { path, body, header, .. } = &mut check.kind {
        *path = "/${NOMAD_ALLOC_INDEX}".into();
        *body = "${NOMAD_ALLOC_INDEX}".into();
        header.insert("X-${NOMAD_JOB_ID}".into(), vec!["${node.class}".into()]);
    }
    service.checks = vec![check];
    let registration = World::new().one(service).unwrap();
    assert_eq!(registration.name, "web-redis");
    assert_eq!((registration.address.as_str(), registration.port), ("", 21000));
    assert_eq!(registration.tags, ["${unknown}", "edge", "z"]);
    let meta = fixture::variables(&[
        ("k-web", "r7"),
        ("external-source", "herdlet"),
        ("herdlet-instance", "00112233aabbccdd"),
        ("herdlet-alloc", fixture::ALLOC_ID),
    ]);
    assert_eq!(registration.meta, meta);
    let RegisteredCheck { name, kind, address, port, .. } = &registration.checks[0];
    assert_eq!((name.as_str(), address.as_str(), *port), ("cache up", "10.0.0.5", 22000));
    let CheckKind::Http { path, body, header, .. } = kind else { panic!("{kind:?}") };
    assert_eq!((path.as_str(), body.as_str()), ("/12", "${NOMAD_ALLOC_INDEX}"));
    assert_eq!(header["X-web"], ["edge"]);
}

#[test]
fn a_canary_has_tags_and_meta_of_its_own_where_there_are_some() {
    let list = |text: &str| -> Vec<String> { text.split_whitespace().map(Into::into).collect() };
    let registered = |canary, canary_tags, canary_meta: &[(&str, &str)]| {
        let service = Service {
            tags: list("main"),
            canary_tags: list(canary_tags),
            meta: fixture::variables(&[("kind", "main")]),
            canary_meta: fixture::variables(canary_meta),
            ..service(Some("http"))
        };
        let registration = World { canary, ..World::new() }.one(service).unwrap();
        assert_eq!(registration.meta["herdlet-instance"], "00112233aabbccdd");
        (
            registration.tags.join(" "),
            registration.meta.get("kind").cloned(),
            registration.meta.contains_key("color"),
        )
    };
    let main = Some("main".to_string());
    let canary = [("color", "green")];
    assert_eq!(registered(false, "canary ${NOMAD_TASK_NAME}", &canary), ("main".into(), main.clone(), false));
    assert_eq!(registered(true, "canary ${NOMAD_TASK_NAME}", &canary), ("canary redis".into(), None, true));
    assert_eq!(registered(true, "", &[]), ("main".into(), main, false));
}

#[test]
fn tags_that_others_may_change_are_marked() {
    let mark = |enable_tag_override, tag: &str| {
        let service = Service { enable_tag_override, tags: vec![tag.into()], ..service(None) };
        World::new().one(service).unwrap().meta.get(META_TAGS).cloned()
    };
    assert_eq!(mark(false, "a"), None);
    assert_ne!(mark(true, "a"), mark(true, "b"));
    // It must survive an upgrade of the agent: with another mark every such service would lose the tags that others
    // set.
    assert_eq!(mark(true, "a").unwrap(), "ae6121c88ba555f6");
}

#[test]
fn tagged_addresses_are_interpolated() {
    let tagged_addresses =
        fixture::variables(&[("wan_${NOMAD_TASK_NAME}", "203.0.113.${NOMAD_ALLOC_INDEX}")]);
    let registration = World::new().one(Service { tagged_addresses, ..service(None) }).unwrap();
    assert_eq!(registration.tagged_addresses, fixture::variables(&[("wan_redis", "203.0.113.12")]));
}

#[test]
fn published_port_leads_into_the_network_of_the_allocation_or_to_the_machine() {
    let mut world = World::new();
    let target = |world: &World, host_network: Option<&str>| {
        let publish = Publish { port: 443, host_network: host_network.map(Into::into) };
        let registration = world.one(Service { publish: Some(publish), ..service(Some("http")) }).unwrap();
        let published = registration.publish.unwrap();
        assert_eq!((published.port, published.host_network.as_deref()), (443, host_network));
        let usual = (registration.address, registration.port);
        ((published.target_address, published.target_port), usual, published.target_address6)
    };
    let ((ip, port), (_, host_port), none) = target(&world, Some("lan"));
    assert_eq!((ip.as_str(), none), ("172.26.64.9", None));
    let network = world.network.as_mut().unwrap();
    network.address6 = Some("fd00:37::9".into());
    assert_eq!(target(&world, Some("lan")).2.as_deref(), Some("fd00:37::9"));
    assert_ne!(port, host_port, "the port inside");
    world.network = None;
    let (published, usual, none) = target(&world, None);
    assert_eq!((published, none), (usual, None));
    assert_eq!(world.one(service(Some("http"))).unwrap().publish, None);
}

#[test]
fn a_broken_service_holds_no_other_back() {
    let nameless = Service { name: "no_label".into(), ..service(Some("http")) };
    let mut portless = Service { name: "portless".into(), ..service(None) };
    portless.checks = vec![http()];
    let results = World::new().register(vec![
        service(Some("nope")),
        nameless,
        service(Some("http")),
        service(Some("http")),
        portless,
    ]);
    let errors: Vec<_> = results
        .iter()
        .map(|result| result.as_ref().err().map(ToString::to_string).unwrap_or_default())
        .collect();
    assert_eq!(errors[0], "register service \"redis-http\": invalid port \"nope\": port label not found");
    assert!(errors[1].starts_with("register service \"no_label\": the name must be"));
    assert_eq!(errors[2], "");
    assert_eq!(errors[3], "register service \"redis-http\": another service has the same name and port");
    assert_eq!(
        errors[4],
        "register service \"portless\": check \"alive\": neither the check nor its service has a port"
    );
}

#[test]
fn check_addresses_are_the_hosts_or_the_literal_one() {
    let mut of_driver = service(Some("http"));
    of_driver.address_mode = AddressMode::Driver;
    of_driver.checks = vec![http()];
    let mut literal = service(Some("http"));
    literal.address = Some("1.2.3.4".into());
    literal.checks = vec![http()];
    for (service, expected) in [(of_driver, "10.0.0.5"), (literal, "1.2.3.4")] {
        let registration = World::new().one(service).unwrap();
        assert_eq!(registration.checks[0].address, expected);
        assert_eq!(registration.checks[0].port, 21000);
    }
}

/// Id of the first check.
fn check_id(service: Service) -> String {
    World::new().one(service).unwrap().checks[0].id.clone()
}

#[test]
fn a_check_id_changes_with_everything_that_defines_the_check() {
    let base = || Service { checks: vec![http()], ..service(Some("http")) };
    let changed = |change: &dyn Fn(&mut Service)| {
        let mut service = base();
        change(&mut service);
        check_id(service)
    };
    let of_http = |change: &dyn Fn(&mut CheckKind)| changed(&|service| change(&mut service.checks[0].kind));
    let ids = [
        check_id(base()),
        // Equal checks of two services.
        changed(&|service| service.name = "other".into()),
        changed(&|service| service.port = Some("raw".into())),
        changed(&|service| service.checks[0].name = "other".into()),
        changed(&|service| service.checks[0].port = Some("raw".into())),
        changed(&|service| service.checks[0].interval = Duration::from_secs(2)),
        changed(&|service| service.checks[0].timeout = Duration::from_secs(2)),
        changed(&|service| service.checks[0].kind = CheckKind::Tcp),
        changed(&|service| service.address = Some("1.2.3.4".into())),
        of_http(&|kind| {
            if let CheckKind::Http { path, .. } = kind {
                *path = "/x".into();
            }
        }),
        of_http(&|kind| {
            if let CheckKind::Http { method, .. } = kind {
                *method = "PUT".into();
            }
        }),
        of_http(&|kind| {
            if let CheckKind::Http { protocol, .. } = kind {
                *protocol = "https".into();
            }
        }),
        of_http(&|kind| {
            if let CheckKind::Http { body, .. } = kind {
                *body = "b".into();
            }
        }),
        of_http(&|kind| {
            if let CheckKind::Http { header, .. } = kind {
                header.insert("a".into(), vec!["b".into()]);
            }
        }),
        of_http(&|kind| {
            if let CheckKind::Http { header, .. } = kind {
                header.insert("a".into(), vec!["b".into(), "b".into()]);
            }
        }),
        of_http(&|kind| {
            if let CheckKind::Http { tls_skip_verify, .. } = kind {
                *tls_skip_verify = true;
            }
        }),
        of_http(&|kind| {
            if let CheckKind::Http { tls_server_name, .. } = kind {
                *tls_server_name = "a".into();
            }
        }),
        changed(&|service| service.checks[0].initial_status = Some(InitialStatus::Passing)),
        changed(&|service| service.checks[0].initial_status = Some(InitialStatus::Warning)),
        changed(&|service| service.checks[0].thresholds.success_before_passing = 2),
        changed(&|service| service.checks[0].thresholds.failures_before_critical = 2),
        changed(&|service| service.checks[0].thresholds.failures_before_warning = 2),
        changed(&|service| service.checks[0].notes = "n".into()),
        changed(&|service| service.checks[0].kind = grpc("")),
        changed(&|service| service.checks[0].kind = grpc("one")),
        changed(&|service| service.checks[0].kind = script(&["a b"])),
        changed(&|service| service.checks[0].kind = script(&["a", "b"])),
    ];
    let distinct: BTreeSet<_> = ids.iter().collect();
    assert_eq!(distinct.len(), ids.len());
    // How its results are used changes nothing in a catalogue.
    assert_eq!(changed(&|service| service.checks[0].on_update = OnUpdate::Ignore), ids[0]);
    let restart = CheckRestart { limit: 2, grace: Duration::ZERO, ignore_warnings: false };
    assert_eq!(changed(&|service| service.checks[0].check_restart = Some(restart)), ids[0]);
    assert_eq!(check_id(base()), ids[0]);
}

#[test]
fn check_ids_have_a_prefix_in_consul_only() {
    let base = || Service { checks: vec![http()], ..service(Some("http")) };
    let in_consul = check_id(base());
    let hash = in_consul.strip_prefix("_herdlet-check-").unwrap();
    assert_eq!(hash.len(), 64);
    assert_eq!(check_id(Service { provider: Provider::Nomad, ..base() }), hash);
    // Ids must survive an upgrade of the agent: a changed hash would register every check again.
    assert_eq!(hash, "a91f633bf06625b7fbdccd834d21bea6d2a9149039224980b8bd3fff3b7d9e78");
}

proptest! {
    #[test]
    fn never_panics(name in ".{0,70}", port in proptest::option::of(".{0,8}"), address in ".{0,8}", tag in ".{0,8}") {
        let mut service = Service { name, port, tags: vec![tag], checks: vec![http()], ..service(None) };
        service.address = Some(address);
        let _ = World::new().one(service);
    }
}
