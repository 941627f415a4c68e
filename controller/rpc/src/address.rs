//! The address of a server: a host name or an IP address, and a port (default 4647).

use std::{fmt, net::Ipv6Addr, str::FromStr};

/// The default port of Nomad's RPC.
pub const PORT: u16 = 4647;

/// An address as a user writes it or as a server reports it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    host: String,
    port: u16,
}

/// A text that is not an address. Reads after "failed to".
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("parse the address {0:?}: expected HOST, HOST:PORT or [IPv6]:PORT")]
pub struct AddressError(String);

impl Address {
    /// The host and the port, in the form that resolvers take.
    #[must_use]
    pub fn parts(&self) -> (&str, u16) {
        (&self.host, self.port)
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let no_address = || AddressError(text.to_owned());
        let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
        if bare.parse::<Ipv6Addr>().is_ok() {
            return Ok(Self { host: bare.to_owned(), port: PORT });
        }
        let (host, port) = match text.rsplit_once(':') {
            None => (text, PORT),
            Some((host, port)) => (host, port.parse().map_err(|_| no_address())?),
        };
        let (host, is_ip6) = match host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            None => (host, false),
            Some(host) => (host, true),
        };
        let is_fit =
            if is_ip6 { host.parse::<Ipv6Addr>().is_ok() } else { !host.contains([':', '[', ']', '/', ' ']) };
        if host.is_empty() || port == 0 || !is_fit {
            return Err(no_address());
        }
        Ok(Self { host: host.to_owned(), port })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_shown() {
        for (text, shown) in [
            ("10.0.0.1:4747", "10.0.0.1:4747"),
            ("10.0.0.1", "10.0.0.1:4647"),
            ("nomad.example.org", "nomad.example.org:4647"),
            ("nomad.example.org:1", "nomad.example.org:1"),
            ("::1", "[::1]:4647"),
            ("[::1]", "[::1]:4647"),
            ("[2001:db8::7]:4747", "[2001:db8::7]:4747"),
        ] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), shown);
        }
        for text in ["", ":4647", "a:b", "a:70000", "a:0", "http://a:4647", "[a]:1", "a b"] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }
}
