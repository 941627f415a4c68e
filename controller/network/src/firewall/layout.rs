//! A table with chains, maps and rules: installed in one step, and compared with what the kernel has.
//!
//! In: what the table should have. Out: the table. The elements of its maps stay, unless it has chains or maps that are something else:
//! then it is replaced.

use std::collections::BTreeMap;

use rustix::io::Errno;

use super::{Difference, Installation};
use crate::{
    message::Message,
    nft::{Batch, Family, Hook, MapType, Rule, Table, read},
    socket::{NetlinkError, Socket},
};

/// What a table should have.
pub(super) struct Layout<'l> {
    pub(super) table: Table<'l>,
    /// The chains; those that are called by rules come first.
    pub(super) chains: &'l [(&'static str, Option<Hook>)],
    pub(super) maps: &'l [(&'static str, MapType)],
    /// The rules by chain. Those of other chains are not compared, and stay.
    pub(super) rules: BTreeMap<&'static str, Vec<Rule>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Replacing {
    No,
    Yes,
}

impl Layout<'_> {
    /// Makes the table as wanted: no packet sees anything in between.
    pub(super) fn install(&self, socket: &mut Socket) -> Result<Installation, NetlinkError> {
        match socket.commit("install the rules", &self.messages(Replacing::No)) {
            Ok(()) => Ok(Installation::PortsKept),
            Err(error) if is_structural(&error) => {
                socket.commit("replace the rules", &self.messages(Replacing::Yes))?;
                Ok(Installation::WithoutPorts)
            }
            Err(error) => Err(error),
        }
    }

    fn messages(&self, replacing: Replacing) -> Vec<Message> {
        let mut batch = Batch::new(self.table);
        batch.make_table();
        if replacing == Replacing::Yes {
            batch.delete_table();
            batch.make_table();
        }
        for ((name, kind), id) in self.maps.iter().zip(1..) {
            batch.make_map(name, *kind, id);
        }
        for (name, hook) in self.chains {
            batch.make_chain(name, *hook);
        }
        for (chain, rules) in &self.rules {
            batch.clear_chain(chain);
            rules.iter().for_each(|rule| batch.append_rule(chain, rule));
        }
        batch.into_messages()
    }

    /// How chains, maps and rules differ from what is wanted; `None` if they don't.
    pub(super) fn compare(&self, socket: &mut Socket) -> Result<Option<Difference>, NetlinkError> {
        let chains = read::chains(socket, Family::Inet, Some(self.table.name))?;
        let hooks: BTreeMap<&str, Option<(u32, i32)>> =
            chains.iter().map(|chain| (&*chain.name, chain.hook)).collect();
        let has_chain = |(name, hook): &(&'static str, Option<Hook>)| {
            let wanted = hook.map(|hook| (hook.point.number(), hook.priority));
            hooks.get(name) == Some(&wanted)
        };
        let maps = read::maps(socket, self.table)?;
        let has_map = |(name, _): &(&'static str, MapType)| maps.iter().any(|found| found == name);
        if !self.chains.iter().all(has_chain) || !self.maps.iter().all(has_map) {
            return Ok(Some(Difference::Structure));
        }
        let found = read::rules(socket, self.table)?;
        for (chain, wanted) in &self.rules {
            let found = found.iter().filter(|rule| rule.chain == *chain).map(|rule| &rule.comment);
            if !found.eq(wanted.iter().map(|rule| &rule.comment)) {
                return Ok(Some(Difference::Rules));
            }
        }
        Ok(None)
    }
}

/// A chain or a map of this name is something else, or another program's rules use what is to be replaced.
fn is_structural(error: &NetlinkError) -> bool {
    matches!(error.errno(), Some(Errno::EXIST | Errno::OPNOTSUPP | Errno::INVAL | Errno::BUSY))
}
