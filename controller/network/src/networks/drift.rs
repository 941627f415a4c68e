//! Damage that other programs do: which networks a change concerns, and the repair of what all networks share in nf_tables.
//!
//! In: changes that the kernel reports. Out: the owners of networks that may be damaged; repaired rules.

use std::fmt;

use herdlet_base::error::in_full;

use super::{NetworkError, Networks, all_of, machine::gateways};
use crate::{
    firewall::Difference,
    foreign::{self, ForeignChain, Traffic},
    socket::{Protocol, Socket},
    watch::{Change, ChangeKind},
};

/// The networks that a change may have damaged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Concern {
    Nothing,
    /// That of this allocation.
    Owner(String),
    All,
}

/// What was repaired of the rules.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RuleRepair {
    /// How the instance's own table differed.
    pub own: Option<Difference>,
    /// The chains of other programs that dropped the bridge's packets.
    pub passed: Vec<ForeignChain>,
}

impl RuleRepair {
    /// Whether nothing had to be repaired.
    pub fn is_empty(&self) -> bool {
        self.own.is_none() && self.passed.is_empty()
    }
}

/// The cause, as an inspection words it.
impl fmt::Display for RuleRepair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let own = self.own.as_ref().map(|difference| match difference {
            Difference::Structure => "its table of rules was removed or changed",
            Difference::Rules => "its rules were changed",
            Difference::Ports => "its ports were not mapped",
        });
        f.write_str(own.unwrap_or_default())?;
        for (index, ForeignChain { table, name, .. }) in self.passed.iter().enumerate() {
            let separator = if own.is_none() && index == 0 { "" } else { "; " };
            write!(f, "{separator}the chain {name} of the table {table} dropped its packets")?;
        }
        Ok(())
    }
}

impl Networks {
    /// The networks that a change in the machine's namespace may have damaged. Changes that complete a network concern none.
    pub fn concern(&self, change: &Change) -> Concern {
        if change.namespace.is_some() {
            return Concern::Nothing;
        }
        let of_instance = format!("{} ", self.alias(None));
        match &change.what {
            ChangeKind::Anything => Concern::All,
            ChangeKind::AddressGone(_, address) if gateways(&self.config).contains(address) => Concern::All,
            ChangeKind::AddressGone(..) => Concern::Nothing,
            ChangeKind::LinkGone(link) if link.name == self.config.name.as_str() => Concern::All,
            ChangeKind::Link(link) if link.alias == self.alias(None) => {
                let is_right = link.is_up && link.name == self.config.name.as_str();
                if is_right { Concern::Nothing } else { Concern::All }
            }
            ChangeKind::Link(link) if link.is_up && link.master != 0 => Concern::Nothing,
            ChangeKind::Link(link) | ChangeKind::LinkGone(link) => {
                let owner = link.alias.strip_prefix(&of_instance);
                owner.map_or(Concern::Nothing, |owner| Concern::Owner(owner.to_owned()))
            }
        }
    }

    /// The address of the socket that changes the rules, in the kernel's reports.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn rule_port(&self) -> std::io::Result<u32> {
        self.firewall.port()
    }

    /// Compares the rules with what is wanted, and corrects them, with all ports in one step. Mapped ports of networks that this agent
    /// has not inspected yet stay.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn repair_rules(&self) -> Result<RuleRepair, NetworkError> {
        let passed = self.pass_others();
        let known = self.lock_ports();
        let ports = all_of(&known);
        let own = match self.firewall.compare(&ports)? {
            // Only ports of others are there in addition.
            Some(Difference::Ports) if self.firewall.has_ports(&ports)? => None,
            difference => difference,
        };
        match &own {
            None => {}
            Some(Difference::Structure | Difference::Rules) => {
                self.firewall.install()?;
                self.firewall.map_ports(&ports)?;
            }
            Some(Difference::Ports) => self.firewall.map_ports(&ports)?,
        }
        drop(known);
        self.lead_to_name_server();
        Ok(RuleRepair { own, passed })
    }

    /// Lets packets of the bridge through chains of other programs, and returns those that dropped them. Where that fails,
    /// packets of allocations may be dropped; their networks are complete nevertheless.
    pub(super) fn pass_others(&self) -> Vec<ForeignChain> {
        let socket = Socket::open(Protocol::Netfilter);
        let passed = socket.map_err(|error| error.to_string()).and_then(|mut socket| {
            foreign::let_through(&mut socket, &self.config.instance, &self.config.name, Traffic::Forwarded)
                .map_err(|error| in_full(&error))
        });
        let (changed, failures) = match passed {
            Ok(opened) => (opened.changed, opened.failures.iter().map(|error| in_full(error)).collect()),
            Err(error) => (Vec::new(), vec![error]),
        };
        for ForeignChain { table, name, .. } in &changed {
            let chain = name;
            tracing::info!(table, chain, "letting packets of the bridge pass a chain that drops");
        }
        let mut last = self.passage_failures.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        // It is tried with each change of the rules.
        for error in failures.iter().filter(|error| !last.contains(error)) {
            tracing::warn!(error, "failed to let packets of the bridge pass a chain of another program");
        }
        *last = failures;
        changed
    }
}
