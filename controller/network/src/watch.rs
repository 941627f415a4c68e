//! Reports of the kernel that others have changed links, addresses or rules.
//!
//! In: none. Out: events. A socket becomes readable when it has events, and never blocks. A report only means that
//! something may have changed: the receiver inspects it. If the kernel had to drop reports, that is an event too.
//! One socket receives reports of all namespaces that this one has a number for, which the kernel gives to each that holds the other end
//! of a pair.

use std::{
    io,
    os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd},
};

use rustix::{
    io::Errno,
    net::{AddressFamily, Protocol, SocketFlags, SocketType, bind, netlink, socket_with},
};

use crate::{
    address::{self, DELETE_ADDRESS, InterfaceAddress},
    link::{self, DELETE_LINK, Link, NEW_LINK},
    message, nft,
    socket::set_option,
};

/// Groups of reports: links, and addresses of IPv4 and IPv6.
const LINKS_AND_ADDRESSES: u32 = 0x1 | 0x10 | 0x100;

/// The group of reports of nf_tables.
const RULES: u32 = 1 << 6;

/// The number of datagrams read at once, so that a flood can't block other work.
const TAKEN_MAX: usize = 1024;

/// The bytes of reports that the kernel keeps until they are read: the usual length is used up by the start of a dozen allocations.
const QUEUE_LEN: usize = 1 << 20;

/// The kernel's reports are at most a few pages long. A longer one is cut, and its first messages are read.
const DATAGRAM_LEN: usize = 32 << 10;

/// A change of a link or an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The kernel's number for the namespace; `None` for the one in which the watch was opened.
    pub namespace: Option<i32>,
    /// What has changed.
    pub what: ChangeKind,
}

/// What has changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChangeKind {
    /// A link is new, or has other properties.
    Link(Link),
    /// A link is gone.
    LinkGone(Link),
    /// An interface, by its number, has lost an address.
    AddressGone(u32, InterfaceAddress),
    /// Reports were dropped: anything may have changed anywhere.
    Anything,
}

/// Receives reports of links and addresses.
#[derive(Debug)]
pub struct LinkWatch(OwnedFd);

/// Receives reports of rules.
#[derive(Debug)]
pub struct RuleWatch(OwnedFd);

impl LinkWatch {
    /// Listens, in the namespace of this thread and those that it has a number for.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn open() -> io::Result<Self> {
        let fd = listen(None, LINKS_AND_ADDRESSES)?;
        set_option(&fd, libc::NETLINK_LISTEN_ALL_NSID)?;
        Ok(Self(fd))
    }

    /// The changes since the last call.
    ///
    /// # Errors
    /// If no more reports will come.
    pub fn read(&self) -> io::Result<Vec<Change>> {
        let mut changes = Vec::new();
        let is_whole = receive(&self.0, |namespace, received| {
            let what = match received.kind {
                NEW_LINK => link::read_body(received.body).map(ChangeKind::Link),
                DELETE_LINK => link::read_body(received.body).map(ChangeKind::LinkGone),
                DELETE_ADDRESS => address::read_body(received.body)
                    .map(|(index, address)| ChangeKind::AddressGone(index, address)),
                _ => None,
            };
            changes.extend(what.map(|what| Change { namespace, what }));
        })?;
        if is_whole == Whole::No {
            changes.push(Change { namespace: None, what: ChangeKind::Anything });
        }
        Ok(changes)
    }
}

/// Who has changed rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuleChange {
    /// Only the socket with the given address, or nobody.
    OwnOnly,
    /// Another program.
    Foreign,
    /// Reports were dropped, or are still to be read: anything may have changed.
    Anything,
}

impl RuleWatch {
    /// Listens, in the namespace of this thread.
    ///
    /// # Errors
    /// If the kernel refuses, or has no nf_tables.
    pub fn open() -> io::Result<Self> {
        Ok(Self(listen(Some(netlink::NETFILTER), RULES)?))
    }

    /// Whether others than the socket with this address have changed rules since the last call.
    ///
    /// # Errors
    /// If no more reports will come.
    pub fn read(&self, own: u32) -> io::Result<RuleChange> {
        let mut foreign = false;
        let is_whole = receive(&self.0, |_, received| {
            // Each transaction ends with such a report.
            foreign |= received.kind == nft::NEW_GENERATION && received.port != own;
        })?;
        Ok(match (is_whole, foreign) {
            (Whole::No, _) => RuleChange::Anything,
            (Whole::Yes, true) => RuleChange::Foreign,
            (Whole::Yes, false) => RuleChange::OwnOnly,
        })
    }
}

impl AsFd for LinkWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsFd for RuleWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn listen(protocol: Option<Protocol>, groups: u32) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let fd = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol)?;
    // Without the right to it the usual length remains.
    let _ = rustix::net::sockopt::set_socket_recv_buffer_size_force(&fd, QUEUE_LEN);
    bind(&fd, &netlink::SocketAddrNetlink::new(0, groups))?;
    Ok(fd)
}

/// Whether all reports were received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Whole {
    No,
    Yes,
}

/// Passes on all messages that have arrived, each with the number of its namespace.
fn receive(fd: &OwnedFd, mut each: impl FnMut(Option<i32>, message::MessageView<'_>)) -> io::Result<Whole> {
    let mut datagram = vec![0; DATAGRAM_LEN];
    let mut whole = Whole::Yes;
    for _ in 0..TAKEN_MAX {
        match receive_one(fd, &mut datagram) {
            Ok(Datagram { len, port: 0, namespace }) => {
                let mut rest = datagram.get(..len).unwrap_or_default();
                while let Some((received, next)) = message::read(rest) {
                    rest = next;
                    each(namespace, received);
                }
            }
            // Not the kernel's.
            Ok(_) => {}
            Err(error) => match Errno::from_io_error(&error) {
                Some(Errno::AGAIN) => return Ok(whole),
                Some(Errno::NOBUFS) => whole = Whole::No,
                Some(Errno::INTR) => {}
                _ => return Err(error),
            },
        }
    }
    // The rest is read with the next call; meanwhile it counts as dropped.
    Ok(Whole::No)
}

struct Datagram {
    len: usize,
    /// The sender's address; 0 is the kernel.
    port: u32,
    namespace: Option<i32>,
}

/// Room for the number of a namespace.
const CONTROL_LEN: usize = 64;

#[repr(C, align(8))]
struct Control([u8; CONTROL_LEN]);

#[expect(unsafe_code, reason = "rustix does not pass on the numbers of namespaces")]
fn receive_one(fd: &OwnedFd, datagram: &mut [u8]) -> io::Result<Datagram> {
    let mut control = Control([0; CONTROL_LEN]);
    // SAFETY: all of these are plain numbers and pointers, for which zero is a value.
    let (mut from, mut header): (libc::sockaddr_nl, libc::msghdr) = unsafe { std::mem::zeroed() };
    let mut part = libc::iovec { iov_base: datagram.as_mut_ptr().cast(), iov_len: datagram.len() };
    header.msg_name = (&raw mut from).cast();
    header.msg_namelen = libc::socklen_t::try_from(size_of_val(&from)).map_err(io::Error::other)?;
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    header.msg_control = control.0.as_mut_ptr().cast();
    header.msg_controllen = CONTROL_LEN as _;
    // SAFETY: all pointers are to buffers of the given lengths, which live until the call returns.
    let len = unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut header, libc::MSG_DONTWAIT) };
    let len = usize::try_from(len).map_err(|_| io::Error::last_os_error())?;
    let mut namespace = None;
    // SAFETY: the kernel has filled the header and the control messages.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(&raw const header) };
    // SAFETY: the pointer is null, or to a control message within the buffer, which is aligned for it.
    while let Some(found) = unsafe { next.as_ref() } {
        if (found.cmsg_level, found.cmsg_type) == (libc::SOL_NETLINK, libc::NETLINK_LISTEN_ALL_NSID) {
            // SAFETY: such a message contains an int.
            namespace = Some(unsafe { libc::CMSG_DATA(found).cast::<libc::c_int>().read_unaligned() });
        }
        // SAFETY: both are of this call.
        next = unsafe { libc::CMSG_NXTHDR(&raw const header, found) };
    }
    Ok(Datagram { len: len.min(datagram.len()), port: from.nl_pid, namespace })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        firewall::Firewall,
        link::{Bridge, Hairpin, InterfaceName, Mac, Pair},
        namespace::Namespace,
        nft::{Batch, Family, Table},
        socket::Socket,
        test_machine::on_machine,
    };

    fn name(name: &str) -> InterfaceName {
        InterfaceName::new(name).unwrap()
    }

    /// Reads until there is a change like this one. The kernel reports some changes on a thread of its own.
    fn until(watch: &LinkWatch, wanted: impl Fn(&Change) -> bool) -> Change {
        loop {
            let mut ready = [rustix::event::PollFd::new(watch, rustix::event::PollFlags::IN)];
            let limit = rustix::event::Timespec { tv_sec: 20, tv_nsec: 0 };
            let count = rustix::event::poll(&mut ready, Some(&limit)).unwrap();
            assert_ne!(count, 0, "there was no report");
            if let Some(found) = watch.read().unwrap().into_iter().find(&wanted) {
                return found;
            }
        }
    }

    #[test]
    fn changes_in_all_namespaces_are_reported_with_their_numbers() {
        on_machine(|_| {
            let mut socket = Socket::open(crate::socket::Protocol::Route).unwrap();
            let watch = LinkWatch::open().unwrap();
            assert_eq!(watch.read().unwrap(), []);
            let bridge = Bridge { name: &name("br"), mtu: 1500, mac: Mac([2, 0, 0, 0, 0, 1]), alias: "" };
            let bridge = link::make_bridge(&mut socket, &bridge).unwrap().index;
            let namespace = Namespace::new().unwrap();
            let mut inside = namespace.socket(crate::socket::Protocol::Route).unwrap();
            let (outer_name, inner_name) = (name("hla"), name("eth0"));
            let pair = Pair {
                name: &outer_name,
                alias: "a",
                bridge,
                mtu: 1500,
                hairpin: Hairpin::Off,
                inner_name: &inner_name,
                inner_mac: Mac([2, 0, 0, 0, 0, 2]),
            };
            link::make_pair(&mut socket, &mut inside, &namespace, &pair).unwrap();
            let outer = link::find(&mut socket, &outer_name).unwrap().unwrap();
            assert!(outer.peer_namespace.is_some());
            let inner = link::find(&mut inside, &inner_name).unwrap().unwrap().index;
            let own = InterfaceAddress { ip: "172.26.64.9".parse().unwrap(), prefix: 20 };
            address::add(&mut inside, inner, &own).unwrap();
            address::remove(&mut inside, inner, &own).unwrap();
            let lost = Change { namespace: outer.peer_namespace, what: ChangeKind::AddressGone(inner, own) };
            until(&watch, |change| *change == lost);
            link::delete(&mut inside, &inner_name).unwrap();
            let gone = |wanted: &str, namespace: Option<i32>| {
                let wanted = wanted.to_owned();
                move |change: &Change| {
                    let is_it = matches!(&change.what, ChangeKind::LinkGone(link) if link.name == wanted);
                    is_it && change.namespace == namespace
                }
            };
            until(&watch, gone("hla", None));
            link::delete(&mut socket, &name("br")).unwrap();
            until(&watch, gone("br", None));
        });
    }

    #[test]
    fn end_of_a_namespace_is_reported() {
        on_machine(|_| {
            let mut socket = Socket::open(crate::socket::Protocol::Route).unwrap();
            let bridge = Bridge { name: &name("br"), mtu: 1500, mac: Mac([2, 0, 0, 0, 0, 1]), alias: "" };
            let bridge = link::make_bridge(&mut socket, &bridge).unwrap().index;
            let namespace = Namespace::new().unwrap();
            let mut inside = namespace.socket(crate::socket::Protocol::Route).unwrap();
            let pair = Pair {
                name: &name("hla"),
                alias: "a",
                bridge,
                mtu: 1500,
                hairpin: Hairpin::Off,
                inner_name: &name("eth0"),
                inner_mac: Mac([2, 0, 0, 0, 0, 2]),
            };
            link::make_pair(&mut socket, &mut inside, &namespace, &pair).unwrap();
            let watch = LinkWatch::open().unwrap();
            drop((inside, namespace));
            until(
                &watch,
                |change| matches!(&change.what, ChangeKind::LinkGone(link) if link.name == "hla" && link.alias == "a"),
            );
        });
    }

    #[test]
    fn dropped_reports_are_an_event() {
        on_machine(|_| {
            let mut socket = Socket::open(crate::socket::Protocol::Route).unwrap();
            let watch = LinkWatch::open().unwrap();
            rustix::net::sockopt::set_socket_recv_buffer_size(&watch.0, 1).unwrap();
            let own = InterfaceAddress { ip: "192.0.2.7".parse().unwrap(), prefix: 24 };
            for _ in 0..64 {
                address::add(&mut socket, 1, &own).unwrap();
                address::remove(&mut socket, 1, &own).unwrap();
            }
            assert!(watch.read().unwrap().iter().any(|change| change.what == ChangeKind::Anything));
            assert_eq!(watch.read().unwrap(), []);
        });
    }

    #[test]
    fn only_changes_of_rules_by_others_count() {
        on_machine(|_| {
            let watch = RuleWatch::open().unwrap();
            let firewall = Firewall::open("x", Vec::new()).unwrap();
            firewall.install().unwrap();
            let own = firewall.port().unwrap();
            assert_ne!(own, 0);
            assert_eq!(watch.read(own).unwrap(), RuleChange::OwnOnly);
            let mut batch = Batch::new(Table { family: Family::Ip, name: "another" });
            batch.make_table();
            let mut other = Socket::open(crate::socket::Protocol::Netfilter).unwrap();
            other.commit("change", &batch.into_messages()).unwrap();
            assert_eq!(watch.read(own).unwrap(), RuleChange::Foreign);
            assert_eq!(watch.read(own).unwrap(), RuleChange::OwnOnly);
        });
    }
}
