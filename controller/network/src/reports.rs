//! The kernel's reports about links, addresses, rules and mounts.
//!
//! In: sockets, the mount table. Out: what has arrived since the last call. A report only means that something may have changed.

use std::io;

use herdlet_base::{mounts::table::MountBell, ready};
use rustix::fd::{AsFd, OwnedFd};
use tokio::io::{Interest, unix::AsyncFd};

use crate::watch::{Change, ChangeKind, LinkWatch, RuleChange, RuleWatch};

/// What has arrived.
#[derive(Debug)]
pub struct Reports {
    pub links: Vec<Change>,
    pub rules: RuleChange,
}

impl Reports {
    /// Nothing is known: everything is to be inspected.
    fn unknown() -> Self {
        let anything = Change { namespace: None, what: ChangeKind::Anything };
        Self { links: vec![anything], rules: RuleChange::Anything }
    }

    /// Whether reports were lost.
    pub fn are_incomplete(&self) -> bool {
        self.links.iter().any(|change| change.what == ChangeKind::Anything)
    }
}

/// The sources of reports.
#[derive(Debug)]
pub struct Sources {
    links: LinkWatch,
    link_bell: AsyncFd<OwnedFd>,
    /// `None` without nf_tables: then there are no rules.
    rules: Option<(RuleWatch, AsyncFd<OwnedFd>)>,
    mounts: MountBell,
}

/// What has arrived since the last call. The sources are opened with the first one, and again after a failure. `rule_port`: the address of the
/// socket that changes this agent's rules; none if it has none.
pub fn taken(sources: &mut Option<Sources>, rule_port: Option<u32>) -> Reports {
    // What happened before they were open, an inspection at the start has seen, or the periodic one will see.
    let nothing = Reports { links: Vec::new(), rules: RuleChange::OwnOnly };
    let Some(open) = sources else {
        match Sources::open() {
            Ok(open) => *sources = Some(open),
            Err(error) => report(&error),
        }
        return nothing;
    };
    open.take(rule_port).unwrap_or_else(|error| {
        report(&error);
        *sources = None;
        Reports::unknown()
    })
}

fn report(error: &io::Error) {
    // An agent without privileges has no networks that others could damage.
    if error.kind() != io::ErrorKind::PermissionDenied {
        tracing::warn!(%error, "failed to watch networks; they are inspected every 30 seconds");
    }
}

impl Sources {
    fn open() -> io::Result<Self> {
        let links = LinkWatch::open()?;
        let rules = match RuleWatch::open() {
            Ok(rules) => {
                let bell = bell(&rules)?;
                Some((rules, bell))
            }
            Err(error) => {
                tracing::debug!(%error, "changes of rules are not reported");
                None
            }
        };
        Ok(Self { link_bell: bell(&links)?, links, rules, mounts: MountBell::open()? })
    }

    /// Waits until a report has arrived. Cancel safe.
    pub async fn woken(&self) {
        let rules = async {
            match &self.rules {
                Some((_, bell)) => drop(bell.readable().await),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.link_bell.readable() => {}
            () = rules => {}
            _ = self.mounts.rung() => {}
        }
    }

    fn take(&self, own: Option<u32>) -> io::Result<Reports> {
        let links = read(
            &self.link_bell,
            || self.links.read(),
            |changes| changes.iter().any(|change| change.what == ChangeKind::Anything),
        )?;
        let rules = match &self.rules {
            // A socket without an address has changed nothing.
            Some((rules, bell)) => {
                read(bell, || rules.read(own.unwrap_or_default()), |change| *change == RuleChange::Anything)?
            }
            None => None,
        };
        Ok(Reports { links: links.unwrap_or_default(), rules: rules.unwrap_or(RuleChange::OwnOnly) })
    }
}

/// Reads what has arrived; `None` if nothing has. What is not read completely stays ready.
fn read<T>(
    bell: &AsyncFd<OwnedFd>,
    read: impl FnOnce() -> io::Result<T>,
    is_incomplete: impl FnOnce(&T) -> bool,
) -> io::Result<Option<T>> {
    let mut taken = None;
    let tried = bell.try_io(Interest::READABLE, |_| {
        let found = read()?;
        let incomplete = is_incomplete(&found);
        taken = Some(found);
        if incomplete { Ok(()) } else { Err(io::ErrorKind::WouldBlock.into()) }
    });
    match tried {
        Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
        Ok(()) | Err(_) => Ok(taken),
    }
}

/// The event loop needs a descriptor of its own.
fn bell(watch: &impl AsFd) -> io::Result<AsyncFd<OwnedFd>> {
    ready::register(watch.as_fd().try_clone_to_owned()?, Interest::READABLE)
}
