//! Tables of iptables-legacy (`linux/netfilter_ipv4/ip_tables.h`), which nf_tables does not show.
//!
//! In: a family, a place on a packet's way. Out: whether the chain there drops packets by its policy. A table that does not exist is
//! not read: the kernel would make it.
#![expect(unsafe_code, reason = "rustix has no options of iptables")]

use std::{
    fs, io,
    os::fd::{AsRawFd as _, OwnedFd},
};

use rustix::net::{AddressFamily, Protocol, RawProtocol, SocketFlags, SocketType, socket_with};

use crate::nft::{Family, HookPoint};

/// The table of filters.
pub(crate) const TABLE: &str = "filter";

/// Options of a socket that read a table.
const GET_INFO: libc::c_int = 64;
const GET_ENTRIES: libc::c_int = 65;

/// `struct ipt_getinfo`: its length, and where the offsets of policies and the length of all entries are.
const INFO_LEN: usize = 84;
const POLICIES_AT: usize = 56;
const SIZE_AT: usize = 80;

/// `struct ipt_get_entries`: where the length and the entries are.
const LEN_AT: usize = 32;
const ENTRIES_AT: usize = 40;

/// Length of `struct xt_entry_target`. A verdict follows.
const TARGET_LEN: usize = 32;

/// The verdict of a policy that drops: negative, minus one.
const DROP: i32 = -1;

/// The longest table that is read.
const BYTES_MAX: usize = 16 << 20;

/// What differs between the families.
#[derive(Debug, Clone, Copy)]
struct Layout {
    family: AddressFamily,
    level: libc::c_int,
    /// The names of the tables that exist in this network namespace.
    names: &'static str,
    /// Where the offset of its target is in an entry.
    target_at: usize,
}

const LAYOUT4: Layout = Layout {
    family: AddressFamily::INET,
    level: libc::IPPROTO_IP,
    names: "/proc/thread-self/net/ip_tables_names",
    target_at: 88,
};
const LAYOUT6: Layout = Layout {
    family: AddressFamily::INET6,
    level: libc::IPPROTO_IPV6,
    names: "/proc/thread-self/net/ip6_tables_names",
    target_at: 140,
};

/// The families whose chain at this place drops packets by its policy. A table that can't be read counts as one that does not.
pub(crate) fn dropping(point: HookPoint) -> Vec<Family> {
    let drops = |layout: Layout| has_table(layout) && policy_drops(layout, point).unwrap_or_default();
    let all = [(Family::Ip, LAYOUT4), (Family::Ip6, LAYOUT6)];
    all.into_iter().filter(|(_, layout)| drops(*layout)).map(|(family, _)| family).collect()
}

/// The name of the chain at a place.
pub(crate) fn chain_at(point: HookPoint) -> &'static str {
    match point {
        HookPoint::Prerouting => "PREROUTING",
        HookPoint::Input => "INPUT",
        HookPoint::Forward => "FORWARD",
        HookPoint::Output => "OUTPUT",
        HookPoint::Postrouting => "POSTROUTING",
    }
}

fn has_table(layout: Layout) -> bool {
    fs::read_to_string(layout.names).is_ok_and(|names| names.lines().any(|name| name == TABLE))
}

fn policy_drops(layout: Layout, point: HookPoint) -> io::Result<bool> {
    let socket = open(layout)?;
    let info = info(&socket, layout)?;
    let entries = entries(&socket, layout, &info)?;
    Ok(verdict(&info, &entries, (layout, point)) == Some(DROP))
}

fn open(layout: Layout) -> io::Result<OwnedFd> {
    let raw = RawProtocol::new(libc::IPPROTO_RAW.unsigned_abs()).map(Protocol::from_raw);
    Ok(socket_with(layout.family, SocketType::RAW, SocketFlags::CLOEXEC, raw)?)
}

fn info(socket: &OwnedFd, layout: Layout) -> io::Result<Vec<u8>> {
    let mut info = named(INFO_LEN);
    read(socket, (layout.level, GET_INFO), &mut info)?;
    Ok(info)
}

fn entries(socket: &OwnedFd, layout: Layout, info: &[u8]) -> io::Result<Vec<u8>> {
    let torn = || io::Error::from(io::ErrorKind::InvalidData);
    let size = number(info, SIZE_AT).ok_or_else(torn)?;
    let len = usize::try_from(size).ok().filter(|len| *len <= BYTES_MAX).ok_or_else(torn)?;
    let mut entries = named(ENTRIES_AT + len);
    entries.get_mut(LEN_AT..LEN_AT + 4).ok_or_else(torn)?.copy_from_slice(&size.to_ne_bytes());
    read(socket, (layout.level, GET_ENTRIES), &mut entries)?;
    Ok(entries.split_off(ENTRIES_AT))
}

/// Zeros after the table's name.
fn named(len: usize) -> Vec<u8> {
    let mut bytes = TABLE.as_bytes().to_vec();
    bytes.resize(len, 0);
    bytes
}

fn read(socket: &OwnedFd, (level, option): (libc::c_int, libc::c_int), into: &mut [u8]) -> io::Result<()> {
    let mut len = libc::socklen_t::try_from(into.len()).map_err(io::Error::other)?;
    // SAFETY: the pointers are valid for the call, that of the bytes for `len` of them.
    let done = unsafe {
        libc::getsockopt(socket.as_raw_fd(), level, option, into.as_mut_ptr().cast(), &raw mut len)
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The verdict of the last rule of the chain at a place, which is its policy.
fn verdict(info: &[u8], entries: &[u8], (layout, point): (Layout, HookPoint)) -> Option<i32> {
    let at = policy_at(info, point)?;
    let target = entries.get(at.checked_add(layout.target_at)?..)?.first_chunk::<2>()?;
    let target = at.checked_add(usize::from(u16::from_ne_bytes(*target)))?;
    number(entries, target.checked_add(TARGET_LEN)?).map(u32::cast_signed)
}

fn policy_at(info: &[u8], point: HookPoint) -> Option<usize> {
    let place = usize::try_from(point.number()).ok()?;
    usize::try_from(number(info, POLICIES_AT + place * 4)?).ok()
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_machine::on_machine;

    const SET_REPLACE: libc::c_int = 64;

    /// Makes the chain FORWARD drop by its policy, as `iptables-legacy -P FORWARD DROP` does.
    fn drop_forwarded(layout: Layout) -> io::Result<()> {
        let socket = open(layout)?;
        // The kernel makes the table.
        let info = info(&socket, layout)?;
        let mut entries = entries(&socket, layout, &info)?;
        let at = policy_at(&info, HookPoint::Forward).unwrap();
        let target = u16::from_ne_bytes(*entries[at + layout.target_at..].first_chunk().unwrap());
        let verdict = at + usize::from(target) + TARGET_LEN;
        entries[verdict..verdict + 4].copy_from_slice(&DROP.to_ne_bytes());
        let count = number(&info, 76).unwrap();
        let mut counters = vec![0_u8; 16 * usize::try_from(count).unwrap()];
        let mut replace = named(32);
        for at in [32, 76, 80] {
            replace.extend(number(&info, at).unwrap().to_ne_bytes());
        }
        replace.extend(&info[36..76]);
        replace.extend(count.to_ne_bytes());
        replace.extend((counters.as_mut_ptr().addr() as u64).to_ne_bytes());
        replace.extend(entries);
        let len = libc::socklen_t::try_from(replace.len()).unwrap();
        // SAFETY: the pointers are valid for the call: `counters` has room for those of all entries.
        let done = unsafe {
            libc::setsockopt(socket.as_raw_fd(), layout.level, SET_REPLACE, replace.as_ptr().cast(), len)
        };
        drop(counters);
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    #[test]
    fn chain_that_drops_by_its_policy_is_found() {
        on_machine(|_| {
            assert_eq!(dropping(HookPoint::Forward), []);
            assert!(!has_table(LAYOUT4), "looking for it does not make it");
            for (layout, expected) in [(LAYOUT4, vec![Family::Ip]), (LAYOUT6, vec![Family::Ip, Family::Ip6])]
            {
                match drop_forwarded(layout) {
                    // A kernel without iptables has no such chain.
                    Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => return,
                    done => done.unwrap(),
                }
                assert_eq!(dropping(HookPoint::Forward), expected);
                assert_eq!(dropping(HookPoint::Input), []);
            }
        });
    }

    #[test]
    fn torn_tables_have_no_policy() {
        for len in (0..INFO_LEN).chain([INFO_LEN]) {
            for fill in [0, 1, 0xff] {
                let (info, entries) = (vec![fill; len], vec![fill; 120]);
                let _ = verdict(&info, &entries, (LAYOUT4, HookPoint::Forward));
                let _ = verdict(&info, &entries, (LAYOUT6, HookPoint::Postrouting));
            }
        }
        assert_eq!(verdict(&[0; INFO_LEN], &[], (LAYOUT4, HookPoint::Forward)), None);
    }
}
