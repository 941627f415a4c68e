//! What people see of a bridge: its addresses, its rules, and chains of other programs that drop its packets.

use super::{NetworkError, Networks, open_netfilter, open_socket};
use crate::{
    address::InterfaceAddress,
    foreign::{self, Passage, Traffic},
    link,
};

/// A bridge as found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BridgeStatus {
    /// Its interface.
    pub name: String,
    /// Its address, with the prefix of its network.
    pub gateway: InterfaceAddress,
    /// Its IPv6 address, if it has such a network.
    pub gateway6: Option<InterfaceAddress>,
    /// The longest packet.
    pub mtu: u32,
    /// The table of its rules, of the family inet.
    pub table: String,
    /// How many addresses allocations have.
    pub addresses_used: u32,
    /// How many they can have.
    pub addresses_max: u32,
    /// What is missing or wrong; completes "its".
    pub difference: Option<&'static str>,
    /// The chains of other programs that drop forwarded packets.
    pub forwarded: Vec<Passage>,
}

impl Networks {
    /// Inspects the bridge; none if there is none.
    ///
    /// # Errors
    /// If the kernel does not answer.
    pub fn status(&self) -> Result<Option<BridgeStatus>, NetworkError> {
        let mut socket = open_socket()?;
        let Some(bridge) = link::find(&mut socket, &self.config.name)? else { return Ok(None) };
        let difference = match bridge.is_up {
            true => self.machine_difference(&mut socket, &bridge)?,
            false => Some("interface is down"),
        };
        let mut netfilter = open_netfilter()?;
        let passages =
            foreign::passages(&mut netfilter, &self.config.instance, &self.config.name, Traffic::Forwarded)?;
        let used = self.pool.owners()?.len();
        Ok(Some(BridgeStatus {
            name: self.config.name.as_str().to_owned(),
            gateway: self.config.subnet4.gateway(),
            gateway6: self.config.subnet6.map(|subnet| subnet.gateway()),
            mtu: bridge.mtu,
            table: self.firewall.table_name().to_owned(),
            addresses_used: u32::try_from(used).unwrap_or(u32::MAX),
            addresses_max: self.config.subnet4.last().saturating_sub(1),
            difference,
            forwarded: passages,
        }))
    }
}
