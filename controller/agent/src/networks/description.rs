//! The files about the network of an allocation, and what is reported of both together.
//!
//! In: an allocation, how its tasks resolve names, what was made or found of its network. Out: files in its directory, outcomes.

use std::{
    net::IpAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use herdlet_api_types::{
    alloc::Allocation,
    job::{Dns, NetworkMode},
};
use herdlet_base::{error::in_full, network_texts::Connection};
use herdlet_network::networks::NetworkState;
use herdlet_plan::{action::Outcome, facts::Facts};
use herdlet_storage::network_files::{self, NetworkFiles};

use super::{facts_of_machine, mode_of, retry};

/// An allocation, and the contents of its files.
#[derive(Clone)]
pub(super) struct Description<'a> {
    pub(super) alloc: &'a Allocation,
    /// Its directory.
    pub(super) dir: PathBuf,
    pub(super) dns: Dns,
    /// The host name of its tasks, if it is not the machine's.
    pub(super) hostname: Option<String>,
    /// The name server of its bridge.
    pub(super) name_server: Option<IpAddr>,
}

/// Removes the files from the directory of an allocation.
pub(super) fn removed(dir: &Path) -> Outcome {
    match network_files::remove(dir) {
        Ok(()) => Outcome::Done(None),
        Err(error) => retry(in_full(&error)),
    }
}

impl Description<'_> {
    pub(super) fn with_name_server(&self, name_server: Option<IpAddr>) -> Self {
        Self { name_server, ..self.clone() }
    }

    /// Writes the files about a network that was made.
    pub(super) fn written(&self, addresses: &[IpAddr], facts: Arc<Facts>) -> Outcome {
        match self.files(addresses).up(&self.dir) {
            Ok(()) => Outcome::Done(Some(facts)),
            Err(error) => retry(in_full(&error)),
        }
    }

    /// What was found of a network and its files.
    pub(super) fn observed<N>(
        &self,
        state: NetworkState<N>,
        facts: impl FnOnce(N) -> (Vec<IpAddr>, Arc<Facts>),
    ) -> Outcome {
        let made = match state {
            NetworkState::Complete(made) => made,
            NetworkState::Incomplete { what } => return Outcome::Foreign { why: format!("its {what}") },
            NetworkState::Absent => return Outcome::Absent,
        };
        let (addresses, facts) = facts(made);
        match self.files(&addresses).difference(&self.dir) {
            Some(name) => Outcome::Foreign { why: format!("its file {name} differs") },
            None => Outcome::Present(Some(facts)),
        }
    }

    /// What was found of the files about the machine's network: they are all that is made.
    pub(super) fn of_machine(&self) -> Outcome {
        let files = self.files(&[]);
        if !files.any_exists(&self.dir) {
            return Outcome::Absent;
        }
        self.observed(NetworkState::Complete(()), |()| (Vec::new(), facts_of_machine()))
    }

    /// The host name that its tasks see.
    pub(super) fn name(&self) -> String {
        let machine = || rustix::system::uname().nodename().to_string_lossy().into_owned();
        self.hostname.clone().unwrap_or_else(machine)
    }

    fn files(&self, addresses: &[IpAddr]) -> NetworkFiles {
        let name = self.name();
        let connection = match (mode_of(self.alloc), addresses) {
            (NetworkMode::Host, _) => Connection::Machine,
            (_, []) => Connection::None { name: self.hostname.as_deref() },
            (_, ips) => Connection::Addresses { ips, name: &name, name_server: self.name_server },
        };
        NetworkFiles::for_connection(connection, &self.dns)
    }
}
