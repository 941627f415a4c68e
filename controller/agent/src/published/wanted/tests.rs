//! Tests: to which instances published ports lead.

use herdlet_api_types::job::{Job, Provider, Service};
use herdlet_manifest::fixture;
use herdlet_plan::turn::View;
use herdlet_runtime::{CommitIndex, Publisher as _};
use herdlet_services::catalog::ServiceOwner;

use super::*;

fn places(host_ip: &str) -> Places {
    let network =
        |ip: Option<&str>| HostNetwork { ip: ip.map(str::to_owned), reserved_ports: BTreeSet::new() };
    let networks = [
        ("lan".to_owned(), network(Some("192.0.2.7"))),
        ("away".to_owned(), network(None)),
        ("six".to_owned(), network(Some("2001:db8::7"))),
    ];
    Places { host_ip: host_ip.to_owned(), networks: networks.into() }
}

/// A job whose service publishes port 8080.
fn job(name: &str, host_network: Option<&str>) -> Arc<Job> {
    let mut job = fixture::job(name, "g", "server");
    let publish = Publish { port: 8080, host_network: host_network.map(str::to_owned) };
    let service = Service {
        publish: Some(publish),
        provider: Provider::Nomad,
        ..herdlet_api_types::fixture::service("web")
    };
    Arc::make_mut(&mut job).groups[0].services = vec![service];
    job
}

struct Ground {
    model: Arc<ReadModel>,
    catalogue: BuiltIn,
}

impl Ground {
    fn new() -> Self {
        Self { model: Arc::default(), catalogue: BuiltIn::default() }
    }

    /// An allocation of the job that runs, and whose service leads to this address.
    fn run(&self, job: &Arc<Job>, seed: u8, target: (&str, u16)) -> AllocView {
        let mut view = fixture::alloc_view(job, 0, seed);
        view.status = ClientStatus::Running;
        self.show(&view);
        let mut registration = fixture::registration(&view, "web", &format!("s{seed}"));
        registration.publish = Some(Publication {
            port: 8080,
            host_network: None,
            target_address: target.0.to_owned(),
            target_address6: None,
            target_port: target.1,
        });
        self.catalogue.up(&owner(&view), vec![registration]);
        view
    }

    fn show(&self, view: &AllocView) {
        self.model.publisher().offer(CommitIndex(1), vec![View::Alloc(Arc::new(view.clone()))]);
    }

    fn wanted(&self, host_ip: &str) -> BTreeMap<u16, PortPlan> {
        wanted(&places(host_ip), &self.model, &self.catalogue)
    }
}

fn owner(view: &AllocView) -> ServiceOwner {
    ServiceOwner { alloc: view.spec.id, task: None }
}

fn ids(wanted: &PortPlan) -> Vec<&str> {
    wanted.instances.iter().map(|one| one.id.as_str()).collect()
}

#[test]
fn port_leads_to_registered_instances_that_run() {
    let ground = Ground::new();
    assert!(ground.wanted("127.0.0.1").is_empty());
    let job = job("shop", None);
    let (first, mut second) =
        (ground.run(&job, 1, ("172.26.80.2", 80)), ground.run(&job, 2, ("172.26.80.3", 80)));
    assert_eq!(ids(&ground.wanted("127.0.0.1")[&8080]), ["s1", "s2"]);
    // It is deregistered before its tasks end.
    ground.catalogue.down(&owner(&first));
    assert_eq!(ids(&ground.wanted("127.0.0.1")[&8080]), ["s2"]);
    // A service without checks: its tasks have not started yet.
    second.status = ClientStatus::Pending;
    ground.show(&second);
    let none = ground.wanted("127.0.0.1").remove(&8080).unwrap();
    assert_eq!((ids(&none).len(), &none.owner), (0, &job.key()), "the port stays");
    for mut view in [first, second] {
        view.status = ClientStatus::Complete;
        ground.show(&view);
    }
    assert!(ground.wanted("127.0.0.1").is_empty());
}

#[test]
fn port_is_on_one_address_of_the_machine() {
    let at = |host_ip: &str, network: Option<&str>| places(host_ip).addresses(network);
    let ips = |all: &[&str]| Ok(all.iter().map(|ip| ip.parse().unwrap()).collect::<Vec<IpAddr>>());
    assert_eq!(at("127.0.0.1", None), ips(&["127.0.0.1"]));
    assert_eq!(at("10.0.0.5", None), ips(&["10.0.0.5", "127.0.0.1"]));
    assert_eq!(at("10.0.0.5", Some("lan")), ips(&["192.0.2.7"]));
    assert_eq!(at("10.0.0.5", Some("six")), ips(&["2001:db8::7"]));
    assert_eq!(at("2001:db8::9", None), ips(&["2001:db8::9"]), "127.0.0.1 leads to instances of IPv4");
    for (host_ip, network, expected) in [
        ("0.0.0.0", None, "name a `host_network`"),
        ("::", None, "name a `host_network`"),
        ("::1", None, "the kernel can't translate ::1"),
        ("hostile\u{1b}[2J", None, "one address"),
        ("10.0.0.5", Some("away"), "`network.host_networks`"),
        ("10.0.0.5", Some("wan"), "`wan`"),
    ] {
        let why = at(host_ip, network).unwrap_err();
        assert!(why.contains(expected), "{why}");
    }
}

#[test]
fn port_of_two_jobs_stays_with_the_one_that_has_it() {
    let ground = Ground::new();
    let (first, second) = (job("a", None), job("b", None));
    ground.run(&second, 2, ("172.26.80.3", 80));
    let owners = [(8080, second.key())].into();
    ground.run(&first, 1, ("172.26.80.2", 80));
    let by = |owners: &BTreeMap<u16, JobKey>| {
        let wanted = wanted_by(owners, (&places("127.0.0.1"), &ground.model, &ground.catalogue));
        (wanted[&8080].owner.clone(), ids(&wanted[&8080]).join(" "))
    };
    assert_eq!(by(&owners), (second.key(), "s2".to_owned()));
    assert_eq!(by(&BTreeMap::new()), (first.key(), "s1".to_owned()));
}

/// The newest version decides, and leads to instances of the others, too.
#[test]
fn port_moves_with_a_new_version() {
    let ground = Ground::new();
    let (old, new) = (job("shop", None), job("shop", Some("lan")));
    ground.run(&old, 1, ("172.26.80.2", 80));
    let mut view = ground.run(&new, 2, ("172.26.80.3", 80));
    Arc::make_mut(&mut view.spec).job_version = 7;
    ground.show(&view);
    let wanted = ground.wanted("127.0.0.1").remove(&8080).unwrap();
    assert_eq!(wanted.addresses, Ok(vec![IpAddr::from([192, 0, 2, 7])]));
    assert_eq!(ids(&wanted), ["s1", "s2"]);
}

#[test]
fn instance_on_the_loopback_gets_only_connections_of_the_machine() {
    let ground = Ground::new();
    let job = job("shop", None);
    for (seed, target) in
        [(1, ("127.0.0.1", 20_001)), (2, ("172.26.80.3", 80)), (3, ("", 0)), (4, ("::1", 80))]
    {
        ground.run(&job, seed, target);
    }
    let wanted = ground.wanted("10.0.0.5").remove(&8080).unwrap();
    let at = |ip: &str| SocketAddr::new(ip.parse().unwrap(), 8080);
    let (ports, barred) = wanted.targets_at(&[at("10.0.0.5"), at("127.0.0.1")]);
    let targets =
        |port: &PublishedPort| port.targets.iter().map(|target| target.at.to_string()).collect::<Vec<_>>();
    assert_eq!(targets(&ports[0]), ["172.26.80.3:80"]);
    assert_eq!(targets(&ports[1]), ["127.0.0.1:20001", "172.26.80.3:80"]);
    assert_eq!(barred.keys().collect::<Vec<_>>(), ["s1", "s3", "s4"]);
    assert!(barred["s1"].contains("for the machine alone"), "{}", barred["s1"]);
    assert!(barred["s3"].contains("use network mode `bridge`"), "{}", barred["s3"]);
    assert!(barred["s4"].contains("no address of the family of"), "{}", barred["s4"]);
}

/// An instance in a network of its own has addresses of both families.
#[test]
fn port_leads_to_addresses_of_its_own_family() {
    let ground = Ground::new();
    let job = job("shop", Some("six"));
    ground.run(&job, 1, ("172.26.80.2", 80));
    let view = ground.run(&job, 2, ("172.26.80.3", 80));
    let mut registration = fixture::registration(&view, "web", "s2");
    registration.publish = Some(Publication {
        port: 8080,
        host_network: None,
        target_address: "172.26.80.3".to_owned(),
        target_address6: Some("fd00:37::3".to_owned()),
        target_port: 80,
    });
    ground.catalogue.up(&owner(&view), vec![registration]);
    ground.run(&job, 3, ("2001:db8::7", 20_001));
    let wanted = ground.wanted("127.0.0.1").remove(&8080).unwrap();
    let (ports, barred) = wanted.targets_at(&["[2001:db8::7]:8080".parse().unwrap()]);
    let targets: Vec<String> = ports[0].targets.iter().map(|target| target.at.to_string()).collect();
    assert_eq!(targets, ["[2001:db8::7]:20001", "[fd00:37::3]:80"]);
    assert_eq!(barred.keys().collect::<Vec<_>>(), ["s1"]);
    assert!(barred["s1"].contains("`network.subnet6`"), "{}", barred["s1"]);
}
