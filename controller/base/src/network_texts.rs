//! The texts of `hosts` and `resolv.conf` for tasks that do not see the machine's.
//!
//! In: how a network is connected, how its tasks resolve names, the machine's own files. Out: texts. Reading blocks.

use std::{fmt::Write as _, net::IpAddr, path::Path};

use herdlet_api_types::job::Dns;

use crate::resolver::{self, BYTES_MAX};

/// The machine's name servers: its own file, and where that names only a resolver on the machine, the file with those to which
/// that resolver forwards.
const RESOLV_CONF: [&str; 2] = [resolver::CONFIG, "/run/systemd/resolve/resolv.conf"];

/// How the network is connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Connection<'c> {
    /// It is the machine's.
    Machine,
    /// It has only a loopback interface.
    None {
        /// The name of the machine that tasks see, if it is not the machine's own.
        name: Option<&'c str>,
    },
    /// It has addresses, under this name.
    Addresses {
        /// The addresses.
        ips: &'c [IpAddr],
        /// The name of the machine that tasks see.
        name: &'c str,
        /// The agent's name server, which is asked before those of the machine.
        name_server: Option<IpAddr>,
    },
}

/// `resolv.conf` for a network on this machine whose tasks resolve names in this way.
pub fn resolv_conf(connection: Connection<'_>, dns: &Dns) -> String {
    with_dns(&of_machine(connection, |path| resolver::read(Path::new(path))), dns)
}

/// `hosts`, unless the machine's is used.
pub fn hosts(connection: Connection<'_>) -> Option<String> {
    let text = "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n";
    match connection {
        Connection::Machine => None,
        Connection::None { name: None } => Some(text.to_owned()),
        Connection::None { name: Some(name) } => Some(format!("{text}127.0.0.1 {name}\n")),
        Connection::Addresses { ips, name, .. } => {
            Some(ips.iter().fold(text.to_owned(), |text, ip| format!("{text}{ip} {name}\n")))
        }
    }
}

/// The name servers and search domains that the machine provides for a network with this connection.
fn of_machine(connection: Connection<'_>, read: impl Fn(&str) -> Option<String>) -> String {
    match connection {
        Connection::Machine => lines_of(&read(RESOLV_CONF[0]).unwrap_or_default(), |_| true),
        Connection::None { .. } => String::new(),
        Connection::Addresses { name_server, .. } => {
            let own = name_server.map(|ip| format!("nameserver {ip}\n")).unwrap_or_default();
            own + &usable_servers(read)
        }
    }
}

/// Each list replaces the machine's lines of its kind.
fn with_dns(of_machine: &str, Dns { servers, searches, options }: &Dns) -> String {
    let is_kept = |line: &str| match line.split_ascii_whitespace().next() {
        Some("nameserver") => servers.is_empty(),
        Some("search" | "domain") => searches.is_empty(),
        Some("options") => options.is_empty(),
        Some(_) | None => true,
    };
    let mut text = lines_of(of_machine, is_kept);
    for server in servers {
        let _ = writeln!(text, "nameserver {server}");
    }
    for (word, list) in [("search", searches), ("options", options)] {
        if !list.is_empty() {
            let _ = writeln!(text, "{word} {}", list.join(" "));
        }
    }
    text
}

/// The machine's file without name servers on its loopback interface, which is another one than the network's.
fn usable_servers(read: impl Fn(&str) -> Option<String>) -> String {
    let mut usable = RESOLV_CONF.iter().filter_map(|path| read(path)).map(|text| without_loopback(&text));
    let first = usable.next().unwrap_or_default();
    if has_server(&first) { first } else { usable.find(|text| has_server(text)).unwrap_or(first) }
}

fn without_loopback(text: &str) -> String {
    let is_usable = |line: &str| match server(line) {
        Some(ip) => !ip.is_loopback() && !ip.is_unspecified(),
        None => !line.trim_start().starts_with(['#', ';']),
    };
    lines_of(text, is_usable)
}

/// The first of the lines that are kept.
fn lines_of(text: &str, is_kept: impl Fn(&str) -> bool) -> String {
    let lines = text.lines().filter(|line| is_kept(line)).scan(0, |length, line| {
        *length += line.len() + 1;
        (*length <= BYTES_MAX).then(|| format!("{line}\n"))
    });
    lines.collect()
}

fn has_server(text: &str) -> bool {
    text.lines().any(|line| server(line).is_some())
}

/// The address of a line that names a name server, without the interface that an IPv6 address may name.
fn server(line: &str) -> Option<IpAddr> {
    resolver::server(line)?.split('%').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_name_the_allocation() {
        assert_eq!(hosts(Connection::Machine), None);
        assert!(!hosts(Connection::None { name: None }).unwrap().contains("node1"));
        let alone = hosts(Connection::None { name: Some("web-1") }).unwrap();
        assert_eq!(alone.lines().last(), Some("127.0.0.1 web-1"));
        let ips = ["172.26.80.2", "fd00:37::2"].map(|ip| ip.parse().unwrap());
        let of =
            |ips: &[IpAddr]| hosts(Connection::Addresses { ips, name: "node1", name_server: None }).unwrap();
        assert!(of(&ips).ends_with("\n172.26.80.2 node1\nfd00:37::2 node1\n"));
        let text = of(&ips[..1]);
        assert_eq!(text.lines().last(), Some("172.26.80.2 node1"));
        assert_eq!(text.lines().next(), Some("127.0.0.1 localhost"));
    }

    #[test]
    fn each_list_of_a_group_replaces_the_machines() {
        let machine = "# generated\nnameserver 127.0.0.53\nsearch example.org\ndomain example.net\noptions edns0\nsortlist 192.0.2.0\n";
        let list = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let dns = |servers: &[&str], searches: &[&str], options: &[&str]| Dns {
            servers: list(servers),
            searches: list(searches),
            options: list(options),
        };
        let ips = ["172.26.80.2".parse().unwrap()];
        let own = Connection::Addresses { ips: &ips, name: "node1", name_server: None };
        let alone = Connection::None { name: None };
        for (connection, dns, expected) in [
            (Connection::Machine, dns(&[], &[], &[]), machine.to_owned()),
            (
                Connection::Machine,
                dns(&["192.0.2.1", "2001:db8::1"], &[], &[]),
                "# generated\nsearch example.org\ndomain example.net\noptions edns0\nsortlist 192.0.2.0\nnameserver 192.0.2.1\n\
                 nameserver 2001:db8::1\n"
                    .to_owned(),
            ),
            (
                own,
                dns(&[], &["a.example", "b.example"], &["ndots:2", "rotate"]),
                "sortlist 192.0.2.0\nsearch a.example b.example\noptions ndots:2 rotate\n".to_owned(),
            ),
            // Of the allocation itself: another task may listen there.
            (own, dns(&["127.0.0.1"], &["."], &["edns0"]), "sortlist 192.0.2.0\nnameserver 127.0.0.1\nsearch .\noptions edns0\n".to_owned()),
            (alone, dns(&["127.0.0.1"], &[], &[]), "nameserver 127.0.0.1\n".to_owned()),
        ] {
            let of_machine = of_machine(connection, |path| path.starts_with("/etc").then(|| machine.to_owned()));
            assert_eq!(with_dns(&of_machine, &dns), expected, "{connection:?} {dns:?}");
        }
    }

    /// The machine's own follow: names can be resolved while no agent runs.
    #[test]
    fn name_server_of_the_agent_comes_first_unless_the_group_names_others() {
        let of = |servers: &[&str]| {
            let connection = Connection::Addresses {
                ips: &["172.26.80.2".parse().unwrap()],
                name: "node1",
                name_server: "172.26.80.1".parse().ok(),
            };
            let of_machine =
                of_machine(connection, |_| Some("nameserver 192.0.2.53\nsearch example.org\n".to_owned()));
            let servers = servers.iter().map(|server| (*server).to_owned()).collect();
            with_dns(&of_machine, &Dns { servers, ..Dns::default() })
        };
        assert_eq!(of(&[]), "nameserver 172.26.80.1\nnameserver 192.0.2.53\nsearch example.org\n");
        assert_eq!(of(&["192.0.2.1"]), "search example.org\nnameserver 192.0.2.1\n");
    }

    #[test]
    fn name_servers_are_those_that_the_allocation_reaches() {
        let stub = "# comment\nnameserver 127.0.0.53\noptions edns0\nsearch example.org\n";
        let real = "nameserver 192.0.2.1\nnameserver fe80::1%eth0\nnameserver ::1\nsearch example.org\n";
        let of = |own: Option<&str>, other: Option<&str>| {
            let read = |path: &str| if path.starts_with("/etc") { own } else { other };
            usable_servers(|path| read(path).map(str::to_owned))
        };
        let usable = "nameserver 192.0.2.1\nnameserver fe80::1%eth0\nsearch example.org\n";
        assert_eq!(of(Some(real), Some(stub)), usable);
        assert_eq!(of(Some(stub), Some(real)), usable);
        assert_eq!(of(None, Some(real)), usable);
        assert_eq!(of(Some(stub), None), "options edns0\nsearch example.org\n");
        assert_eq!(of(None, None), "");
        assert!(of(Some(&"search a\n".repeat(100_000)), None).len() <= BYTES_MAX);
    }
}
