//! Which allocation has which address of a bridge.
//!
//! In: the owner, and the address it had before. Out: an address that nobody else has. A claim is a symbolic link in a
//! directory, from the address to the owner: made at once or not at all, without content that could be torn. The directory is
//! the only truth; this process remembers it, because only one agent of an instance runs.

use std::{
    collections::BTreeMap,
    fs, io,
    net::Ipv4Addr,
    os::unix::fs::{DirBuilderExt as _, symlink},
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

use crate::subnet::Subnet4;

/// The first position for an allocation: the bridge has position 1.
const FIRST: u32 = 2;

/// Why there is no address. The text continues "failed to".
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// All addresses are claimed.
    #[error("find a free address in {0}")]
    Full(Subnet4),
    /// A claim can't be made, read or removed.
    #[error("{what} {}", path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// On which path.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
}

/// The addresses of a bridge.
#[derive(Debug)]
pub struct AddressPool {
    dir: PathBuf,
    subnet: Subnet4,
    known: Mutex<Option<PoolClaims>>,
}

/// The directory, as read once and changed since.
#[derive(Debug)]
struct PoolClaims {
    by_owner: BTreeMap<String, Ipv4Addr>,
    /// Claims in an earlier network, which end with those of their owners.
    stale: Vec<(String, Ipv4Addr)>,
    /// The position after the one given last: an address rests as long as possible before the next owner has it.
    next: u32,
}

impl AddressPool {
    /// The addresses of this network, claimed in this directory, which belongs to them alone.
    pub fn new(dir: PathBuf, subnet: Subnet4) -> Self {
        Self { dir, subnet, known: Mutex::new(None) }
    }

    /// Its network.
    pub fn subnet(&self) -> Subnet4 {
        self.subnet
    }

    /// The owner's address. It keeps the one that it has, or else gets the preferred one if that is free.
    ///
    /// # Errors
    /// If no address is free, or a claim can't be made.
    pub fn claim(&self, owner: &str, preferred: Option<Ipv4Addr>) -> Result<Ipv4Addr, PoolError> {
        let mut lock = self.known()?;
        let Some(known) = lock.as_mut() else { return Err(PoolError::Full(self.subnet)) };
        if let Some(own) = known.by_owner.get(owner).copied() {
            // A user may have removed it.
            if self.take(own, owner)? {
                return Ok(own);
            }
            known.by_owner.remove(owner);
        }
        let last = self.subnet.last();
        let preferred =
            preferred.and_then(|ip| self.subnet.position(ip)).filter(|position| *position >= FIRST);
        let next = known.next.clamp(FIRST, last.max(FIRST));
        for position in preferred.into_iter().chain(next..=last).chain(FIRST..next) {
            let Some(ip) = self.subnet.at(position) else { break };
            if self.take(ip, owner)? {
                known.by_owner.insert(owner.to_owned(), ip);
                known.next = position + 1;
                return Ok(ip);
            }
        }
        Err(PoolError::Full(self.subnet))
    }

    /// The owner's address, if it has one.
    ///
    /// # Errors
    /// If the directory can't be read.
    pub fn find(&self, owner: &str) -> Result<Option<Ipv4Addr>, PoolError> {
        let lock = self.known()?;
        let own = lock.as_ref().and_then(|known| known.by_owner.get(owner).copied());
        Ok(own.filter(|ip| self.owner(*ip).is_some_and(|found| found == owner)))
    }

    /// Ends the owner's claim; without effect if it has none.
    ///
    /// # Errors
    /// If the claim can't be removed.
    pub fn release(&self, owner: &str) -> Result<(), PoolError> {
        let mut lock = self.known()?;
        let Some(known) = lock.as_mut() else { return Ok(()) };
        for (_, ip) in known.stale.extract_if(.., |(of, _)| of == owner) {
            self.end(ip, owner)?;
        }
        let Some(ip) = known.by_owner.get(owner).copied() else { return Ok(()) };
        self.end(ip, owner)?;
        known.by_owner.remove(owner);
        Ok(())
    }

    /// Removes a claim, if it is still the owner's.
    fn end(&self, ip: Ipv4Addr, owner: &str) -> Result<(), PoolError> {
        if self.owner(ip).is_none_or(|found| found != owner) {
            return Ok(());
        }
        let path = self.path(ip);
        match fs::remove_file(&path) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(source) => Err(PoolError::Io { what: "remove", path, source }),
        }
    }

    /// All owners with their addresses, also those of an earlier network.
    ///
    /// # Errors
    /// If the directory can't be read.
    pub fn owners(&self) -> Result<BTreeMap<String, Ipv4Addr>, PoolError> {
        let lock = self.known()?;
        let Some(known) = lock.as_ref() else { return Ok(BTreeMap::new()) };
        Ok(known.stale.iter().cloned().chain(known.by_owner.clone()).collect())
    }

    /// Makes the claim; false if another program has the address.
    fn take(&self, ip: Ipv4Addr, owner: &str) -> Result<bool, PoolError> {
        let path = self.path(ip);
        match symlink(owner, &path) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                Ok(self.owner(ip).is_some_and(|found| found == owner))
            }
            Err(source) => Err(PoolError::Io { what: "make", path, source }),
        }
    }

    fn owner(&self, ip: Ipv4Addr) -> Option<String> {
        owner_at(&self.path(ip))
    }

    fn path(&self, ip: Ipv4Addr) -> PathBuf {
        self.dir.join(ip.to_string())
    }

    /// The directory, read now if it never was.
    fn known(&self) -> Result<MutexGuard<'_, Option<PoolClaims>>, PoolError> {
        let mut lock = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        match &*lock {
            None => *lock = Some(self.read()?),
            // A user has deleted it. The networks still have their addresses.
            Some(known) if !self.dir.exists() => {
                self.make_dir()?;
                for (owner, ip) in &known.by_owner {
                    self.take(*ip, owner)?;
                }
            }
            Some(_) => {}
        }
        Ok(lock)
    }

    fn make_dir(&self) -> Result<(), PoolError> {
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.dir);
        made.map_err(|source| PoolError::Io { what: "create", path: self.dir.clone(), source })
    }

    fn read(&self) -> Result<PoolClaims, PoolError> {
        self.make_dir()?;
        let failed = |source| PoolError::Io { what: "read", path: self.dir.clone(), source };
        let (mut by_owner, mut stale, mut next) = (BTreeMap::new(), Vec::new(), FIRST);
        for entry in fs::read_dir(&self.dir).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let ip = entry.file_name().to_str().and_then(|name| name.parse::<Ipv4Addr>().ok());
            let (Some(ip), Some(owner)) = (ip, owner_at(&entry.path())) else { continue };
            let Some(position) = self.subnet.position(ip) else {
                stale.push((owner, ip));
                continue;
            };
            next = next.max(position + 1);
            by_owner.insert(owner, ip);
        }
        Ok(PoolClaims { by_owner, stale, next })
    }
}

fn owner_at(path: &Path) -> Option<String> {
    fs::read_link(path).ok()?.into_os_string().into_string().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(dir: &Path, subnet: &str) -> AddressPool {
        AddressPool::new(dir.join("addresses"), subnet.parse().unwrap())
    }

    fn ip(last: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, 0, 0, last)
    }

    #[test]
    fn each_owner_has_an_address_of_its_own_and_keeps_it() {
        let dir = tempfile::tempdir().unwrap();
        let first = pool(dir.path(), "10.0.0.0/29");
        assert_eq!(first.claim("a", None).unwrap(), ip(2));
        assert_eq!(first.claim("b", None).unwrap(), ip(3));
        assert_eq!(first.claim("a", Some(ip(5))).unwrap(), ip(2), "it has one");
        let next_agent = pool(dir.path(), "10.0.0.0/29");
        assert_eq!(next_agent.claim("b", None).unwrap(), ip(3));
        assert_eq!(next_agent.claim("c", None).unwrap(), ip(4));
        assert_eq!(next_agent.owners().unwrap().len(), 3);
    }

    #[test]
    fn freed_address_rests_longest() {
        let dir = tempfile::tempdir().unwrap();
        let pool = pool(dir.path(), "10.0.0.0/29");
        for (owner, expected) in [("a", 2), ("b", 3)] {
            assert_eq!(pool.claim(owner, None).unwrap(), ip(expected));
        }
        pool.release("a").unwrap();
        pool.release("a").unwrap();
        for (owner, expected) in [("c", 4), ("d", 5), ("e", 6), ("f", 2)] {
            assert_eq!(pool.claim(owner, None).unwrap(), ip(expected), "{owner}");
        }
        let full = pool.claim("g", None).unwrap_err();
        assert_eq!(full.to_string(), "find a free address in 10.0.0.0/29");
        pool.release("d").unwrap();
        assert_eq!(pool.claim("g", None).unwrap(), ip(5));
    }

    #[test]
    fn preferred_address_is_given_if_it_is_free_and_fits() {
        let dir = tempfile::tempdir().unwrap();
        let pool = pool(dir.path(), "10.0.0.0/29");
        assert_eq!(pool.claim("a", Some(ip(5))).unwrap(), ip(5));
        for (owner, unusable) in [("b", ip(5)), ("c", ip(1)), ("d", ip(9)), ("e", Ipv4Addr::new(10, 0, 0, 7))]
        {
            assert_ne!(pool.claim(owner, Some(unusable)).unwrap(), unusable, "{owner}");
        }
    }

    /// An agent with another `subnet` has made it.
    #[test]
    fn claim_of_an_earlier_network_ends_with_its_owner() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(pool(dir.path(), "10.0.0.0/29").claim("a", None).unwrap(), ip(2));
        let later = pool(dir.path(), "10.1.0.0/29");
        assert_eq!(later.owners().unwrap(), BTreeMap::from([("a".to_owned(), ip(2))]));
        assert_eq!(later.find("a").unwrap(), None);
        let new = later.claim("a", None).unwrap();
        assert_eq!(later.owners().unwrap(), BTreeMap::from([("a".to_owned(), new)]));
        later.release("a").unwrap();
        assert_eq!(fs::read_dir(dir.path().join("addresses")).unwrap().count(), 0);
        assert_eq!(later.owners().unwrap(), BTreeMap::new());
    }

    /// A user has removed claims, or has put others in their place.
    #[test]
    fn directory_is_believed_more_than_memory() {
        let dir = tempfile::tempdir().unwrap();
        let pool = pool(dir.path(), "10.0.0.0/29");
        let links = dir.path().join("addresses");
        assert_eq!(pool.claim("a", None).unwrap(), ip(2));
        fs::remove_file(links.join("10.0.0.2")).unwrap();
        assert_eq!(pool.find("a").unwrap(), None);
        assert_eq!(pool.claim("a", None).unwrap(), ip(2), "made again");
        fs::remove_file(links.join("10.0.0.2")).unwrap();
        symlink("other", links.join("10.0.0.2")).unwrap();
        pool.release("a").unwrap();
        assert!(links.join("10.0.0.2").is_symlink(), "the other's claim stays");
        assert_eq!(pool.claim("a", None).unwrap(), ip(3));
        fs::write(links.join("10.0.0.4"), "no link").unwrap();
        fs::write(links.join("readme"), "").unwrap();
        assert_eq!(pool.claim("b", None).unwrap(), ip(5), "a strange file is in the way");
        fs::remove_dir_all(&links).unwrap();
        assert_eq!(pool.claim("c", Some(ip(3))).unwrap(), ip(6), "the others keep theirs");
        assert_eq!(fs::read_dir(&links).unwrap().count(), 3);
    }

    #[test]
    fn concurrent_claims_differ() {
        let dir = tempfile::tempdir().unwrap();
        let pool = pool(dir.path(), "10.0.0.0/24");
        let given: Vec<Ipv4Addr> = std::thread::scope(|scope| {
            let claims: Vec<_> = (0..64)
                .map(|owner| {
                    let pool = &pool;
                    scope.spawn(move || pool.claim(&format!("owner-{owner}"), None).unwrap())
                })
                .collect();
            claims.into_iter().map(|claim| claim.join().unwrap()).collect()
        });
        let distinct: std::collections::BTreeSet<_> = given.iter().collect();
        assert_eq!(distinct.len(), 64);
    }
}
