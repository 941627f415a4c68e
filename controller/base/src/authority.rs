//! `HOST[:PORT]` as in `Host`, a request's target, `Origin` and the config (RFC 3986 §3.2, RFC 9110 §7.2).
//!
//! In: text from a client. Out: a normalized [`Authority`], or `None`. This module does not know who is allowed.

use std::{
    fmt,
    net::{IpAddr, Ipv6Addr},
};

/// The maximum length of a DNS name.
const NAME_LEN_MAX: usize = 253;

/// A host and an optional port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Authority {
    pub host: Host,
    pub port: Option<u16>,
}

/// A host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Host {
    /// An address. An IPv6 zone is dropped: it only describes the route.
    Ip(IpAddr),
    /// A name in lower case, without the trailing dot.
    Name(String),
}

impl Authority {
    /// Parses an authority. `None` if it is invalid or contains a user (`user@host`).
    pub fn parse(text: &str) -> Option<Self> {
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (address, port) = rest.split_once(']')?;
                (Host::Ip(ipv6(address)?), port)
            }
            None => {
                let at = text.find(':').unwrap_or(text.len());
                let (host, port) = text.split_at(at);
                (Host::parse(host)?, port)
            }
        };
        let port = match port.strip_prefix(':') {
            None if port.is_empty() => None,
            None => return None,
            // An empty port counts as absent.
            Some("") => None,
            Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => Some(digits.parse().ok()?),
            Some(_) => return None,
        };
        Some(Self { host, port })
    }

    /// Parses an origin (RFC 6454 §7); `None` if it is `null` or has no host. The port defaults to the scheme's.
    pub fn of_origin(text: &str) -> Option<Self> {
        let (scheme, authority) = text.split_once("://")?;
        let read = Self::parse(authority)?;
        Some(Self { port: read.port.or_else(|| default_port(scheme)), ..read })
    }

    /// Whether a page of `origin` is served by this host. A host without a port matches the default port of both
    /// schemes, because a proxy in front may have changed the scheme.
    pub fn is_of(&self, origin: &Self) -> bool {
        let is_same_port = match self.port {
            Some(port) => Some(port) == origin.port,
            None => origin.port.is_none_or(|port| port == 80 || port == 443),
        };
        self.host == origin.host && is_same_port
    }
}

fn default_port(scheme: &str) -> Option<u16> {
    match scheme {
        _ if scheme.eq_ignore_ascii_case("http") => Some(80),
        _ if scheme.eq_ignore_ascii_case("https") => Some(443),
        _ => None,
    }
}

fn ipv6(text: &str) -> Option<IpAddr> {
    let (address, zone) = text.split_once('%').map_or((text, None), |(address, zone)| (address, Some(zone)));
    let is_zone = |zone: &str| {
        !zone.is_empty() && zone.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~%".contains(&byte))
    };
    if !zone.is_none_or(is_zone) {
        return None;
    }
    Some(address.parse::<Ipv6Addr>().ok()?.into())
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(ip) => ip.fmt(f),
            Self::Name(name) => f.write_str(name),
        }
    }
}

impl Host {
    fn parse(text: &str) -> Option<Self> {
        if let Ok(ip) = text.parse::<IpAddr>() {
            return ip.is_ipv4().then_some(Self::Ip(ip));
        }
        let name = text.strip_suffix('.').unwrap_or(text);
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        let is_name = (1..=NAME_LEN_MAX).contains(&name.len()) && name.bytes().all(is_plain);
        is_name.then(|| Self::Name(name.to_ascii_lowercase()))
    }
}

/// `host:port`, with brackets around an IPv6 address. An empty address means 127.0.0.1.
pub fn host_port(address: &str, port: u16) -> String {
    match address {
        "" => format!("127.0.0.1:{port}"),
        address if address.parse::<Ipv6Addr>().is_ok() => format!("[{address}]:{port}"),
        address => format!("{address}:{port}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(name: &str, port: Option<u16>) -> Option<Authority> {
        Some(Authority { host: Host::Name(name.to_owned()), port })
    }

    fn ip(ip: &str, port: Option<u16>) -> Option<Authority> {
        Some(Authority { host: Host::Ip(ip.parse().unwrap()), port })
    }

    #[test]
    fn each_host_is_normalized() {
        for (text, expected) in [
            ("localhost", name("localhost", None)),
            ("LocalHost:4646", name("localhost", Some(4_646))),
            ("localhost.", name("localhost", None)),
            ("localhost.:80", name("localhost", Some(80))),
            ("localhost..", name("localhost.", None)),
            ("web-1.example.org:", name("web-1.example.org", None)),
            ("127.0.0.1:4646", ip("127.0.0.1", Some(4_646))),
            ("[::1]", ip("::1", None)),
            ("[::1]:4646", ip("::1", Some(4_646))),
            ("[fe80::1%eth0]:4646", ip("fe80::1", Some(4_646))),
            ("[fe80::1%25eth0]", ip("fe80::1", None)),
            // Browsers convert these to addresses before they send a request; here they are names that don't resolve.
            ("127.1", name("127.1", None)),
            ("2130706433", name("2130706433", None)),
        ] {
            assert_eq!(Authority::parse(text), expected, "{text}");
        }
    }

    #[test]
    fn invalid_authority_is_refused() {
        for text in [
            "",
            ".",
            ":4646",
            "::1",
            "[::1",
            "[::1]x",
            "[::1]:x",
            "[1.2.3.4]",
            "[fe80::1%]",
            "[fe80::1%a b]",
            "a:b",
            "a:1:2",
            "a:65536",
            "a:-1",
            "a:+1",
            "user@localhost",
            "localhost@evil.example",
            "a b",
            "a/b",
            "a\\b",
            "a,b",
            "ä.example",
            "%6cocalhost",
            "localhost#",
            "localhost?",
        ] {
            assert_eq!(Authority::parse(text), None, "{text}");
        }
        assert_eq!(Authority::parse(&"a".repeat(254)), None);
    }

    #[test]
    fn a_page_is_of_a_host_by_name_and_port() {
        let is_of = |host: &str, origin: &str| {
            let origin = Authority::of_origin(origin);
            origin.is_some_and(|origin| Authority::parse(host).unwrap().is_of(&origin))
        };
        assert!(is_of("10.0.0.7:4646", "http://10.0.0.7:4646"));
        assert!(is_of("10.0.0.7:4646", "https://10.0.0.7:4646"), "a proxy may terminate TLS");
        assert!(is_of("box", "http://box") && is_of("BOX.", "https://box"));
        assert!(is_of("box:80", "http://box") && is_of("box:443", "https://box"));
        assert!(is_of("[::1]:4646", "http://[::1]:4646"));
        for (host, origin) in [
            ("10.0.0.7:4646", "http://10.0.0.7"),
            ("10.0.0.7:4646", "http://10.0.0.7:8080"),
            ("10.0.0.7:4646", "http://10.0.0.8:4646"),
            ("box", "http://box:4646"),
            ("box", "http://box.evil.example"),
            ("box", "null"),
            ("box", ""),
            ("box", "box"),
            ("box", "file://"),
            ("box", "http://box/"),
        ] {
            assert!(!is_of(host, origin), "{host} {origin}");
        }
    }
}
