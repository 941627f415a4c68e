//! The addresses of a bridge: its own, and those of allocations.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str::FromStr,
};

use crate::address::InterfaceAddress;

/// The longest prefix that leaves room for the bridge and one allocation.
const PREFIX4_MAX: u8 = 30;
/// An IPv6 network must have as many addresses as any IPv4 network.
const PREFIX6_MAX: u8 = 96;

/// An IPv4 network of a bridge. The bridge has the first address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Subnet4 {
    base: u32,
    prefix: u8,
}

/// An IPv6 network of a bridge. The bridge has the first address, an allocation that with the same position as its IPv4
/// address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Subnet6 {
    base: u128,
    prefix: u8,
}

/// A network of a bridge, of either family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subnet {
    /// IPv4.
    V4(Subnet4),
    /// IPv6.
    V6(Subnet6),
}

/// The text is no network for a bridge.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotASubnet {
    /// It has another form.
    #[error("expected a network such as {example}, found {text:?}")]
    Form {
        /// The text.
        text: String,
        /// A network.
        example: &'static str,
    },
    /// It is too small.
    #[error("expected a network with a prefix of at most {max} bits, found {text:?}")]
    Small {
        /// The network.
        text: String,
        /// The longest prefix.
        max: u8,
    },
    /// It has addresses that no interface of a bridge can have.
    #[error(
        "expected a network of addresses for interfaces, such as {example}, found {text:?}, which includes {reserved}"
    )]
    Reserved {
        /// The network.
        text: String,
        /// A network that is possible.
        example: &'static str,
        /// What it includes.
        reserved: &'static str,
    },
}

const EXAMPLE4: &str = "172.26.64.0/20";
const EXAMPLE6: &str = "fd00:37::/64";

/// Networks without addresses for interfaces of a bridge: base, length of the prefix, name.
const RESERVED4: [(Ipv4Addr, u8, &str); 4] = [
    (Ipv4Addr::UNSPECIFIED, 8, "0.0.0.0/8"),
    (Ipv4Addr::new(127, 0, 0, 0), 8, "127.0.0.0/8 (the machine itself)"),
    (Ipv4Addr::new(169, 254, 0, 0), 16, "169.254.0.0/16 (link-local)"),
    (Ipv4Addr::new(224, 0, 0, 0), 3, "224.0.0.0/3 (multicast and reserved)"),
];

/// The same for IPv6. The first one has the loopback address, and those that stand for IPv4 addresses.
const RESERVED6: [(Ipv6Addr, u8, &str); 3] = [
    (Ipv6Addr::UNSPECIFIED, 8, "::/8 (reserved)"),
    (Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 10, "fe80::/10 (link-local)"),
    (Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0), 8, "ff00::/8 (multicast)"),
];

impl Subnet {
    /// Whether it and a network of a route have addresses in common.
    pub fn overlaps(&self, ip: IpAddr, prefix: u8) -> bool {
        match (self, ip) {
            (Self::V4(subnet), IpAddr::V4(ip)) => subnet.overlaps(ip, prefix),
            (Self::V6(subnet), IpAddr::V6(ip)) => subnet.overlaps(ip, prefix),
            (Self::V4(_), IpAddr::V6(_)) | (Self::V6(_), IpAddr::V4(_)) => false,
        }
    }
}

impl From<Subnet4> for Subnet {
    fn from(subnet: Subnet4) -> Self {
        Self::V4(subnet)
    }
}

impl From<Subnet6> for Subnet {
    fn from(subnet: Subnet6) -> Self {
        Self::V6(subnet)
    }
}

impl Subnet4 {
    /// 172.26.80.0/20: beside the network of Nomad's bridge.
    pub const DEFAULT: Self = Self { base: 0xac1a_5000, prefix: 20 };

    /// The networks of bridges for which none is configured: the default, and those after it.
    pub fn defaults() -> impl Iterator<Item = Self> {
        const LENGTH: u32 = 0x1000;
        (0..11).map(|number| Self { base: Self::DEFAULT.base + number * LENGTH, ..Self::DEFAULT })
    }

    /// Its address of this position; `None` if it is beyond the last one for an interface. Position 1 is the bridge's.
    pub fn at(&self, position: u32) -> Option<Ipv4Addr> {
        (1..=self.last()).contains(&position).then(|| Ipv4Addr::from_bits(self.base | position))
    }

    /// The position of an address in it.
    pub fn position(&self, ip: Ipv4Addr) -> Option<u32> {
        let position = ip.to_bits() ^ self.base;
        (1..=self.last()).contains(&position).then_some(position)
    }

    /// The position of the last address for an interface: the one after it reaches all.
    pub fn last(&self) -> u32 {
        u32::MAX.checked_shr(u32::from(self.prefix)).unwrap_or_default().saturating_sub(1)
    }

    /// The bridge's address.
    pub fn gateway(&self) -> InterfaceAddress {
        self.of_interface(Ipv4Addr::from_bits(self.base | 1))
    }

    /// An address with the prefix of this network.
    pub fn of_interface(&self, ip: Ipv4Addr) -> InterfaceAddress {
        InterfaceAddress { ip: IpAddr::V4(ip), prefix: self.prefix }
    }

    /// Its first address and the bytes of its mask.
    pub fn base_and_mask(&self) -> ([u8; 4], [u8; 4]) {
        let hosts = u32::MAX.checked_shr(u32::from(self.prefix)).unwrap_or_default();
        (self.base.to_be_bytes(), (!hosts).to_be_bytes())
    }

    /// Whether it and a network of a route have addresses in common.
    pub fn overlaps(&self, ip: Ipv4Addr, prefix: u8) -> bool {
        let shorter = u32::from(self.prefix.min(prefix));
        (self.base ^ ip.to_bits()).leading_zeros() >= shorter
    }
}

impl Subnet6 {
    /// Its address of this position.
    pub fn at(&self, position: u32) -> Ipv6Addr {
        Ipv6Addr::from_bits(self.base | u128::from(position))
    }

    /// The bridge's address.
    pub fn gateway(&self) -> InterfaceAddress {
        self.of_interface(self.at(1))
    }

    /// An address with the prefix of this network.
    pub fn of_interface(&self, ip: Ipv6Addr) -> InterfaceAddress {
        InterfaceAddress { ip: IpAddr::V6(ip), prefix: self.prefix }
    }

    /// Its first address and the bytes of its mask.
    pub fn base_and_mask(&self) -> ([u8; 16], [u8; 16]) {
        let hosts = u128::MAX.checked_shr(u32::from(self.prefix)).unwrap_or_default();
        (self.base.to_be_bytes(), (!hosts).to_be_bytes())
    }

    /// Whether it and a network of a route have addresses in common.
    pub fn overlaps(&self, ip: Ipv6Addr, prefix: u8) -> bool {
        let shorter = u32::from(self.prefix.min(prefix));
        (self.base ^ ip.to_bits()).leading_zeros() >= shorter
    }
}

/// Splits a network into its address and the length of its prefix.
fn parts<A: FromStr>(text: &str, example: &'static str) -> Result<(A, u8), NotASubnet> {
    let error = || NotASubnet::Form { text: text.to_owned(), example };
    let (ip, prefix) = text.split_once('/').ok_or_else(error)?;
    Ok((ip.parse().map_err(|_| error())?, prefix.parse().map_err(|_| error())?))
}

impl FromStr for Subnet4 {
    type Err = NotASubnet;

    fn from_str(text: &str) -> Result<Self, NotASubnet> {
        let (ip, prefix) = parts::<Ipv4Addr>(text, EXAMPLE4)?;
        if prefix > PREFIX4_MAX {
            return Err(NotASubnet::Small { text: text.to_owned(), max: PREFIX4_MAX });
        }
        let hosts = u32::MAX.checked_shr(u32::from(prefix)).unwrap_or_default();
        let subnet = Self { base: ip.to_bits() & !hosts, prefix };
        match RESERVED4.iter().find(|(base, prefix, _)| subnet.overlaps(*base, *prefix)) {
            Some((_, _, reserved)) => {
                Err(NotASubnet::Reserved { text: text.to_owned(), example: EXAMPLE4, reserved })
            }
            None => Ok(subnet),
        }
    }
}

impl FromStr for Subnet6 {
    type Err = NotASubnet;

    fn from_str(text: &str) -> Result<Self, NotASubnet> {
        let (ip, prefix) = parts::<Ipv6Addr>(text, EXAMPLE6)?;
        if prefix > PREFIX6_MAX {
            return Err(NotASubnet::Small { text: text.to_owned(), max: PREFIX6_MAX });
        }
        let hosts = u128::MAX.checked_shr(u32::from(prefix)).unwrap_or_default();
        let subnet = Self { base: ip.to_bits() & !hosts, prefix };
        match RESERVED6.iter().find(|(base, prefix, _)| subnet.overlaps(*base, *prefix)) {
            Some((_, _, reserved)) => {
                Err(NotASubnet::Reserved { text: text.to_owned(), example: EXAMPLE6, reserved })
            }
            None => Ok(subnet),
        }
    }
}

impl fmt::Display for Subnet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::V4(subnet) => subnet.fmt(f),
            Self::V6(subnet) => subnet.fmt(f),
        }
    }
}

impl fmt::Display for Subnet4 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", Ipv4Addr::from_bits(self.base), self.prefix)
    }
}

impl fmt::Display for Subnet6 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", Ipv6Addr::from_bits(self.base), self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_without_addresses_for_interfaces_are_refused() {
        for text in
            ["0.0.0.0/0", "127.0.0.0/24", "126.0.0.0/7", "169.254.0.0/16", "224.0.0.0/24", "240.0.0.0/8"]
        {
            assert!(matches!(text.parse::<Subnet4>(), Err(NotASubnet::Reserved { .. })), "{text}");
        }
        for text in ["10.0.0.0/8", "172.16.0.0/12", "100.64.0.0/10", "198.51.100.0/30"] {
            assert!(text.parse::<Subnet4>().is_ok(), "{text}");
        }
        for text in ["::/64", "::/0", "::ffff:0:0/96", "fe80::/64", "ff02::/16", "8000::/1"] {
            assert!(matches!(text.parse::<Subnet6>(), Err(NotASubnet::Reserved { .. })), "{text}");
        }
        for text in ["fd00:37::/64", "2001:db8::/96"] {
            assert!(text.parse::<Subnet6>().is_ok(), "{text}");
        }
    }

    #[test]
    fn default_networks_are_beside_that_of_nomad() {
        let texts: Vec<String> = Subnet4::defaults().map(|subnet| subnet.to_string()).collect();
        assert_eq!((texts[0].as_str(), texts[10].as_str()), ("172.26.80.0/20", "172.26.240.0/20"));
        for subnet in Subnet4::defaults() {
            assert!(!subnet.overlaps(Ipv4Addr::new(172, 26, 64, 0), 20));
            assert_eq!(subnet.to_string().parse(), Ok(subnet));
        }
    }

    #[test]
    fn addresses_have_positions() {
        let subnet: Subnet4 = "172.26.64.77/20".parse().unwrap();
        assert_eq!(subnet.to_string(), "172.26.64.0/20");
        assert_eq!(subnet.gateway().ip.to_string(), "172.26.64.1");
        assert_eq!((subnet.gateway().prefix, subnet.last()), (20, 4094));
        assert_eq!(subnet.at(2), Some(Ipv4Addr::new(172, 26, 64, 2)));
        assert_eq!(subnet.at(4094), Some(Ipv4Addr::new(172, 26, 79, 254)));
        assert_eq!((subnet.at(0), subnet.at(4095), subnet.at(u32::MAX)), (None, None, None));
        assert_eq!(subnet.position(Ipv4Addr::new(172, 26, 65, 1)), Some(257));
        for outside in [[172, 26, 64, 0], [172, 26, 79, 255], [172, 26, 80, 1], [10, 0, 0, 1]] {
            assert_eq!(subnet.position(outside.into()), None);
        }
        assert_eq!(subnet.base_and_mask(), ([172, 26, 64, 0], [255, 255, 240, 0]));
        let v6: Subnet6 = "fd00:0:0:7::9/64".parse().unwrap();
        assert_eq!(
            (v6.to_string(), v6.at(257).to_string()),
            ("fd00:0:0:7::/64".into(), "fd00:0:0:7::101".into())
        );
    }

    #[test]
    fn only_networks_of_a_fitting_size_are_accepted() {
        for text in [
            "",
            "172.26.64.0",
            "172.26.64.0/",
            "172.26.64.0/x",
            "172.26.64.0/33",
            "172.26.64.0/31",
            "fd00::/64",
            "1.2.3/8",
        ] {
            assert!(text.parse::<Subnet4>().is_err(), "{text}");
        }
        for text in ["fd00::/97", "fd00::", "10.0.0.0/8"] {
            assert!(text.parse::<Subnet6>().is_err(), "{text}");
        }
        assert_eq!("10.0.0.0/30".parse::<Subnet4>().unwrap().last(), 2);
    }

    #[test]
    fn overlaps_are_found_both_ways() {
        let subnet: Subnet4 = "172.26.64.0/20".parse().unwrap();
        let overlaps = |ip: [u8; 4], prefix| subnet.overlaps(ip.into(), prefix);
        assert!(
            overlaps([172, 26, 64, 0], 20) && overlaps([172, 26, 70, 0], 24) && overlaps([172, 16, 0, 0], 12)
        );
        assert!(!overlaps([172, 26, 80, 0], 20) && !overlaps([10, 0, 0, 0], 8));
        let subnet = Subnet::from("fd00:37::/64".parse::<Subnet6>().unwrap());
        let overlaps = |ip: &str, prefix| subnet.overlaps(ip.parse().unwrap(), prefix);
        assert!(overlaps("fd00:37::7", 128) && overlaps("fd00::", 8) && overlaps("::", 0));
        assert!(!overlaps("fd00:37:0:1::", 64) && !overlaps("0.0.0.0", 0));
    }
}
