//! What CNI plugins report about a network that they have made.
//!
//! In: the result of the last plugin. Out: the interface inside, its addresses, name servers. Plugins are programs of others: what
//! they say goes into files and variables of tasks, so every text is checked.

use std::{collections::BTreeMap, net::IpAddr};

use herdlet_network::link::InterfaceName;
use serde::Deserialize;
use serde_json::Value;

/// The most name servers, and the most other words of a resolver's config. Resolvers read at most 3 servers and 6 domains.
const WORDS_MAX: usize = 16;

/// The longest such word: a name of DNS.
const WORD_LEN_MAX: usize = 255;

/// How a network is connected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Connection {
    /// The interface of the allocation.
    pub interface: InterfaceName,
    /// Where it is.
    pub place: Place,
    /// Its addresses; at least one.
    pub addresses: Vec<IpAddr>,
    /// The resolver's config; empty if the plugins report none.
    pub dns: Dns,
}

/// Where an interface is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// In the namespace of the allocation.
    Inside,
    /// Elsewhere.
    Machine,
}

impl Connection {
    /// The address that others use: the first of IPv4, else the first.
    pub fn address(&self) -> Option<IpAddr> {
        self.addresses.iter().find(|ip| ip.is_ipv4()).or_else(|| self.addresses.first()).copied()
    }
}

/// The resolver's config.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Dns {
    pub servers: Vec<IpAddr>,
    pub searches: Vec<String>,
    pub options: Vec<String>,
}

#[derive(Deserialize)]
struct Answer {
    #[serde(default)]
    interfaces: Option<Vec<Interface>>,
    #[serde(default)]
    ips: Option<Vec<Ip>>,
    #[serde(default)]
    dns: Option<DnsAnswer>,
}

#[derive(Deserialize)]
struct Interface {
    #[serde(default)]
    name: String,
    #[serde(default)]
    sandbox: Option<String>,
}

#[derive(Deserialize)]
struct Ip {
    address: String,
    #[serde(default)]
    interface: Option<i64>,
}

#[derive(Deserialize, Default)]
struct DnsAnswer {
    #[serde(default)]
    nameservers: Option<Vec<String>>,
    #[serde(default)]
    domain: Option<String>,
    #[serde(default)]
    search: Option<Vec<String>>,
    #[serde(default)]
    options: Option<Vec<String>>,
}

/// Reads a result. As in Nomad the first interface in the namespace counts, in the order of their names.
///
/// # Errors
/// What is wrong with it; continues "the result of the plugins".
pub fn read(result: &Value, requested: &InterfaceName) -> Result<Connection, String> {
    let answer: Answer =
        Deserialize::deserialize(result).map_err(|error| format!("can't be read: {error}"))?;
    let interfaces = answer.interfaces.unwrap_or_default();
    let mut found: BTreeMap<(Place, String), Vec<IpAddr>> = BTreeMap::new();
    for ip in answer.ips.unwrap_or_default() {
        let address = address(&ip.address)
            .ok_or_else(|| format!("has the address {:?}, which is none", shortened(&ip.address)))?;
        let at = match ip.interface {
            None => (Place::Inside, requested.as_str().to_owned()),
            Some(index) => {
                let interface = usize::try_from(index).ok().and_then(|index| interfaces.get(index));
                let Interface { name, sandbox } =
                    interface.ok_or_else(|| format!("has no interface {index}, which has an address"))?;
                let is_inside = sandbox.as_ref().is_some_and(|sandbox| !sandbox.is_empty());
                (if is_inside { Place::Inside } else { Place::Machine }, name.clone())
            }
        };
        found.entry(at).or_default().push(address);
    }
    let Some(((place, name), addresses)) = found.into_iter().next() else {
        return Err("has no interface with an address".to_owned());
    };
    let interface = InterfaceName::new(&name)
        .map_err(|_| format!("has an interface {:?}, which no interface can be named", shortened(&name)))?;
    Ok(Connection { interface, place, addresses, dns: dns(answer.dns.unwrap_or_default()) })
}

/// `192.0.2.7/24`.
fn address(text: &str) -> Option<IpAddr> {
    let (ip, prefix) = text.split_once('/')?;
    let ip: IpAddr = ip.parse().ok()?;
    let longest = if ip.is_ipv4() { 32 } else { 128 };
    prefix.parse::<u8>().ok().filter(|prefix| *prefix <= longest && !ip.is_unspecified())?;
    Some(ip)
}

fn dns(answer: DnsAnswer) -> Dns {
    let words = |words: Option<Vec<String>>| -> Vec<String> {
        words.into_iter().flatten().filter(|word| is_word(word)).take(WORDS_MAX).collect()
    };
    let mut searches = words(answer.search);
    if searches.is_empty() {
        searches = words(answer.domain.map(|domain| vec![domain]));
    }
    let servers = answer.nameservers.into_iter().flatten().filter_map(|server| server.parse().ok());
    Dns { servers: servers.take(WORDS_MAX).collect(), searches, options: words(answer.options) }
}

/// Whether a text is one word of a resolver's config, and not a line of it.
fn is_word(text: &str) -> bool {
    (1..=WORD_LEN_MAX).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}

fn shortened(text: &str) -> String {
    text.chars().take(80).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn eth0() -> InterfaceName {
        InterfaceName::new("eth0").unwrap()
    }

    fn ips(texts: &[&str]) -> Vec<IpAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    /// As the plugin `bridge` prints it in both formats.
    #[test]
    fn interface_in_the_namespace_counts() {
        let result = json!({
            "cniVersion": "0.4.0",
            "interfaces": [
                { "name": "br0", "mac": "02:00:00:00:00:01" }, { "name": "veth1" },
                { "name": "eth0", "sandbox": "/run/netns/x" },
            ],
            "ips": [
                { "version": "4", "interface": 0, "address": "10.1.0.1/16" },
                { "version": "6", "interface": 2, "address": "fd00::2/64" },
                { "version": "4", "interface": 2, "address": "10.1.0.2/16", "gateway": "10.1.0.1" },
            ],
            "routes": [{ "dst": "0.0.0.0/0" }],
            "dns": { "nameservers": ["10.1.0.1", "not an address"], "domain": "example.org", "options": ["ndots:2"] },
        });
        let read = read(&result, &eth0()).unwrap();
        assert_eq!((read.interface.as_str(), read.place), ("eth0", Place::Inside));
        assert_eq!(read.addresses, ips(&["fd00::2", "10.1.0.2"]));
        assert_eq!(read.address(), Some("10.1.0.2".parse().unwrap()));
        let dns = Dns {
            servers: ips(&["10.1.0.1"]),
            searches: vec!["example.org".to_owned()],
            options: vec!["ndots:2".to_owned()],
        };
        assert_eq!(read.dns, dns);
    }

    #[test]
    fn address_without_an_interface_is_that_of_the_requested_one() {
        let read =
            read(&json!({ "ips": [{ "address": "10.1.0.2/32" }], "interfaces": null }), &eth0()).unwrap();
        assert_eq!((read.interface, read.place, read.dns), (eth0(), Place::Inside, Dns::default()));
    }

    #[test]
    fn results_that_say_nothing_usable_are_refused() {
        for (result, expected) in [
            (json!({}), "has no interface with an address"),
            (json!({ "ips": [] }), "has no interface with an address"),
            (
                json!({ "interfaces": [{ "name": "eth0", "sandbox": "/x" }] }),
                "has no interface with an address",
            ),
            (json!([1]), "can't be read"),
            (json!("text"), "can't be read"),
            (json!({ "ips": "10.0.0.1/8" }), "can't be read"),
            (json!({ "ips": [{}] }), "can't be read"),
            (json!({ "ips": [{ "address": "10.0.0.1" }] }), "has the address \"10.0.0.1\", which is none"),
            (json!({ "ips": [{ "address": "10.0.0.1/33" }] }), "which is none"),
            (json!({ "ips": [{ "address": "0.0.0.0/0" }] }), "which is none"),
            (json!({ "ips": [{ "address": "10.0.0.1/8", "interface": 7 }] }), "has no interface 7"),
            (json!({ "ips": [{ "address": "10.0.0.1/8", "interface": -1 }] }), "has no interface -1"),
            (
                json!({ "interfaces": [{ "name": "a/b", "sandbox": "/x" }], "ips": [{ "address": "10.0.0.1/8", "interface": 0 }] }),
                "has an interface \"a/b\"",
            ),
        ] {
            let why = read(&result, &eth0()).unwrap_err();
            assert!(why.starts_with(expected) || why.ends_with(expected), "{result}: {why}");
        }
    }

    /// The words go into a file that the allocation's resolver reads.
    #[test]
    fn no_text_adds_a_line_to_the_config_of_the_resolver() {
        let dns = json!({
            "nameservers": ["10.0.0.1\nnameserver 10.0.0.2"], "search": ["a\nb", "a b", "", "ok.example"],
            "options": vec!["x"; 1_000],
        });
        let read = read(&json!({ "ips": [{ "address": "10.1.0.2/32" }], "dns": dns }), &eth0()).unwrap();
        assert!(read.dns.servers.is_empty());
        assert_eq!(read.dns.searches, ["ok.example"]);
        assert_eq!(read.dns.options.len(), WORDS_MAX);
    }
}
