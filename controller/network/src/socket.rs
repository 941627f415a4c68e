//! Requests to the kernel and their answers, over netlink sockets (netlink(7)).
//!
//! In: messages. Out: acknowledgements, or the objects that the kernel lists. A socket belongs to the network namespace in
//! which it was opened, regardless of the thread that uses it. Processes in that namespace may send to it too, so only the kernel's
//! datagrams count. Every answer is bounded in size and time.

use std::{
    io,
    ops::ControlFlow,
    os::fd::OwnedFd,
    time::{Duration, Instant},
};

use rustix::{
    io::Errno,
    net::{
        AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recvfrom, sendto, socket_with,
        sockopt,
    },
};

use crate::message::{self, ACK, DUMP, HEADER_LEN, Message, MessageView, REQUEST, TooLong};

/// How long an answer may take, with all datagrams that arrive before it. The kernel answers at once, unless other programs hold
/// its lock: each removal of an interface holds it for tens of milliseconds.
const ANSWER_MAX: Duration = Duration::from_secs(20);

/// The largest datagram: the kernel fills at most 32 KiB with a list.
const DATAGRAM_LEN_MAX: usize = 64 << 10;

/// The largest list: enough for a hundred thousand rules or interfaces.
const LIST_LEN_MAX: usize = 64 << 20;

/// How many datagrams of others are passed over before an answer.
const FOREIGN_MAX: usize = 4_096;

/// How often a list is requested again because it has changed meanwhile.
const LIST_TRIES: usize = 16;

/// The largest errno.
const ERRNO_MAX: i32 = 4_095;

const ERROR: u16 = 2;
const DONE: u16 = 3;
/// The first kind that is not about netlink itself.
const FIRST_KIND: u16 = 16;

const MULTI: u16 = 0x2;
const INTERRUPTED: u16 = 0x10;
/// The error's message does not contain the request.
const CAPPED: u16 = 0x100;
/// The error has attributes that explain it.
const EXPLAINED: u16 = 0x200;

const EXPLANATION: u16 = 1;

/// Which part of the kernel answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// Links, addresses, routes.
    Route,
    /// nf_tables and connection tracking.
    Netfilter,
    /// The sockets of all processes (sock_diag(7)).
    Sockets,
}

/// Why a request has failed. The text continues "failed to".
#[derive(Debug, thiserror::Error)]
pub enum NetlinkError {
    /// The kernel refused it.
    #[error("{what}: {source}{}", explained(explanation))]
    Refused {
        /// What was requested.
        what: String,
        /// Why.
        source: Errno,
        /// The kernel's own words; often empty.
        explanation: String,
    },
    /// There was no answer, or none that can be read.
    #[error("{what}: the kernel gave no complete answer")]
    Io {
        /// What was requested.
        what: String,
        /// Why.
        source: io::Error,
    },
    /// The request can't be written.
    #[error("{what}")]
    Request {
        /// What was requested.
        what: String,
        /// Why.
        source: TooLong,
    },
}

fn explained(explanation: &str) -> String {
    if explanation.is_empty() { String::new() } else { format!(" ({explanation})") }
}

impl NetlinkError {
    /// The kernel's reason, if it gave one.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::Refused { source, .. } => Some(*source),
            Self::Io { .. } | Self::Request { .. } => None,
        }
    }

    fn refused(what: &str, source: Errno, explanation: String) -> Self {
        Self::Refused { what: what.to_owned(), source, explanation }
    }

    fn garbled(what: &str) -> Self {
        Self::io(what, io::ErrorKind::InvalidData)
    }

    fn io(what: &str, source: impl Into<io::Error>) -> Self {
        Self::Io { what: what.to_owned(), source: source.into() }
    }
}

/// One object of a list: its kind, and everything after the header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    /// Its kind.
    pub kind: u16,
    /// Its part of fixed size and its attributes.
    pub body: Vec<u8>,
}

impl Object {
    fn read(received: &MessageView<'_>) -> Self {
        Self { kind: received.kind, body: received.body.to_vec() }
    }
}

/// A socket.
#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
    /// The number of the last request.
    sequence: u32,
    datagram: Vec<u8>,
    /// When the answer to the request must be complete.
    deadline: Instant,
}

/// An answer's effect on the request that it belongs to.
enum Answer {
    Acknowledged,
    Refused { errno: Errno, explanation: String },
}

/// A pass over the kernel's list.
enum DumpResult {
    Whole(Vec<Object>),
    /// It has changed meanwhile.
    Changed,
}

/// What fits into the buffer of every socket: half of the kernel's smallest usual default (`net.core.wmem_default`).
const SEND_LEN_DEFAULT: usize = 96 << 10;

impl Socket {
    /// Opens a socket in the network namespace of this thread.
    ///
    /// # Errors
    /// If the kernel has no such protocol, or descriptors have run out.
    pub fn open(protocol: Protocol) -> io::Result<Self> {
        let protocol = match protocol {
            // Number 0.
            Protocol::Route => None,
            Protocol::Netfilter => Some(netlink::NETFILTER),
            Protocol::Sockets => Some(netlink::SOCK_DIAG),
        };
        let fd = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, protocol)?;
        // Refusals then contain an explanation. Kernels before 4.12 lack the option.
        let _ = explain_errors(&fd);
        Ok(Self { fd, sequence: 0, datagram: vec![0; DATAGRAM_LEN_MAX], deadline: Instant::now() })
    }

    /// Its address among the sockets of its namespace; the kernel names it in its reports of changes. 0 before the first
    /// request.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn port(&self) -> io::Result<u32> {
        let own = netlink::SocketAddrNetlink::try_from(rustix::net::getsockname(&self.fd)?)?;
        Ok(own.pid())
    }

    /// Sends requests together, and waits until the kernel has carried them out. Each is tried even if
    /// another one fails.
    ///
    /// # Errors
    /// That of the first request that failed. `what` completes "failed to".
    pub fn request(&mut self, what: &str, mut messages: Vec<Message>) -> Result<(), NetlinkError> {
        self.deadline = Instant::now() + ANSWER_MAX;
        if messages.is_empty() {
            return Ok(());
        }
        messages.iter_mut().for_each(|message| message.flags |= REQUEST | ACK);
        let mut open = messages.len();
        let mut refused: Option<(u32, NetlinkError)> = None;
        self.exchange(what, &messages, |number, received| {
            if received.kind != ERROR {
                return Ok(ControlFlow::Continue(()));
            }
            open = open.saturating_sub(1);
            if let Answer::Refused { errno, explanation } = read_answer(received)
                && refused.as_ref().is_none_or(|(earlier, _)| number < *earlier)
            {
                refused = Some((number, NetlinkError::refused(what, errno, explanation)));
            }
            Ok(if open == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
        refused.map_or(Ok(()), |(_, error)| Err(error))
    }

    /// Sends a transaction of nf_tables: all of it takes effect, or nothing. The last message but one must request an
    /// acknowledgement, and no other; the last one ends the transaction.
    ///
    /// # Errors
    /// That of the first request that failed.
    pub fn commit(&mut self, what: &str, messages: &[Message]) -> Result<(), NetlinkError> {
        self.deadline = Instant::now() + ANSWER_MAX;
        let last = u32::try_from(messages.len()).unwrap_or(u32::MAX).saturating_sub(2);
        self.exchange(what, messages, |number, received| {
            if received.kind != ERROR {
                return Ok(ControlFlow::Continue(()));
            }
            match read_answer(received) {
                Answer::Refused { errno, explanation } => {
                    Err(NetlinkError::refused(what, errno, explanation))
                }
                Answer::Acknowledged if number == last => Ok(ControlFlow::Break(())),
                Answer::Acknowledged => Ok(ControlFlow::Continue(())),
            }
        })
    }

    /// Asks for one object; `None` if there is none.
    ///
    /// # Errors
    /// If the kernel refuses for another reason than that there is none.
    pub fn get(&mut self, what: &str, mut message: Message) -> Result<Option<Object>, NetlinkError> {
        self.deadline = Instant::now() + ANSWER_MAX;
        message.flags |= REQUEST;
        self.exchange(what, &[message], |_, received| {
            if received.kind >= FIRST_KIND {
                return Ok(ControlFlow::Break(Some(Object::read(received))));
            }
            match read_answer(received) {
                Answer::Refused { errno: Errno::NODEV | Errno::NOENT | Errno::SRCH, .. }
                | Answer::Acknowledged => Ok(ControlFlow::Break(None)),
                Answer::Refused { errno, explanation } => {
                    Err(NetlinkError::refused(what, errno, explanation))
                }
            }
        })
    }

    /// Lists objects.
    ///
    /// # Errors
    /// If the kernel refuses, or the list is too long or changes without end.
    pub fn list(&mut self, what: &str, message: Message) -> Result<Vec<Object>, NetlinkError> {
        self.list_if(what, message, |_| true)
    }

    /// Lists those objects that are wanted, however many others there are.
    ///
    /// # Errors
    /// As [`Self::list`].
    pub fn list_if(
        &mut self,
        what: &str,
        mut message: Message,
        is_wanted: impl Fn(&Object) -> bool,
    ) -> Result<Vec<Object>, NetlinkError> {
        self.deadline = Instant::now() + ANSWER_MAX;
        message.flags |= REQUEST | DUMP;
        for _ in 0..LIST_TRIES {
            match self.list_once(what, &message, &is_wanted)? {
                DumpResult::Whole(objects) => return Ok(objects),
                DumpResult::Changed => {}
            }
        }
        Err(NetlinkError::io(what, io::ErrorKind::ResourceBusy))
    }

    fn list_once(
        &mut self,
        what: &str,
        message: &Message,
        is_wanted: &impl Fn(&Object) -> bool,
    ) -> Result<DumpResult, NetlinkError> {
        let (mut objects, mut bytes, mut changed) = (Vec::new(), 0, false);
        self.exchange(what, std::slice::from_ref(message), |_, received| {
            changed |= received.flags & INTERRUPTED != 0;
            match received.kind {
                ERROR | DONE => match read_answer(received) {
                    Answer::Refused { errno: Errno::INTR, .. } => Ok(ControlFlow::Break(DumpResult::Changed)),
                    Answer::Refused { errno, explanation } => {
                        Err(NetlinkError::refused(what, errno, explanation))
                    }
                    Answer::Acknowledged if changed => Ok(ControlFlow::Break(DumpResult::Changed)),
                    Answer::Acknowledged => {
                        Ok(ControlFlow::Break(DumpResult::Whole(std::mem::take(&mut objects))))
                    }
                },
                kind if kind >= FIRST_KIND && received.flags & MULTI != 0 => {
                    let object = Object::read(received);
                    if is_wanted(&object) {
                        bytes += HEADER_LEN + received.body.len();
                        objects.push(object);
                    }
                    if bytes > LIST_LEN_MAX {
                        return Err(NetlinkError::io(what, io::ErrorKind::FileTooLarge));
                    }
                    Ok(ControlFlow::Continue(()))
                }
                _ => Ok(ControlFlow::Continue(())),
            }
        })
    }

    /// Sends requests, and reads the messages of the answers, each with the place of its request, until `read` has a result.
    fn exchange<T>(
        &mut self,
        what: &str,
        messages: &[Message],
        mut read: impl FnMut(u32, &MessageView<'_>) -> Result<ControlFlow<T>, NetlinkError>,
    ) -> Result<T, NetlinkError> {
        let first = self.send(what, messages)?;
        let count = u32::try_from(messages.len()).unwrap_or(u32::MAX);
        loop {
            let len = self.receive(what)?;
            let mut rest = self.datagram.get(..len).unwrap_or_default();
            while let Some((received, next)) = message::read(rest) {
                rest = next;
                let number = received.sequence.wrapping_sub(first);
                // Otherwise a late answer to an earlier request that has failed.
                if number < count
                    && let ControlFlow::Break(result) = read(number, &received)?
                {
                    return Ok(result);
                }
            }
        }
    }

    /// Sends messages in one datagram, and returns the number of the first.
    fn send(&mut self, what: &str, messages: &[Message]) -> Result<u32, NetlinkError> {
        let first = self.sequence.wrapping_add(1);
        let mut datagram = Vec::with_capacity(1 << 10);
        for message in messages {
            self.sequence = self.sequence.wrapping_add(1);
            message
                .encode(self.sequence, &mut datagram)
                .map_err(|source| NetlinkError::Request { what: what.to_owned(), source })?;
        }
        let kernel = netlink::SocketAddrNetlink::new(0, 0);
        // The kernel takes a transaction only as a whole.
        if datagram.len() > SEND_LEN_DEFAULT {
            sockopt::set_socket_send_buffer_size_force(&self.fd, 2 * datagram.len())
                .map_err(|errno| NetlinkError::io(what, errno))?;
        }
        loop {
            match sendto(&self.fd, &datagram, SendFlags::empty(), &kernel) {
                Ok(_) => return Ok(first),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(NetlinkError::io(what, errno)),
            }
        }
    }

    /// Receives the kernel's next datagram, and returns its length.
    fn receive(&mut self, what: &str) -> Result<usize, NetlinkError> {
        for _ in 0..FOREIGN_MAX {
            let left = self.deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(NetlinkError::io(what, io::ErrorKind::TimedOut));
            }
            sockopt::set_socket_timeout(&self.fd, sockopt::Timeout::Recv, Some(left))
                .map_err(|errno| NetlinkError::io(what, errno))?;
            match recvfrom(&self.fd, &mut self.datagram[..], RecvFlags::TRUNC) {
                Ok((_, len, from)) => {
                    let from = from.and_then(|from| netlink::SocketAddrNetlink::try_from(from).ok());
                    let is_readable = (HEADER_LEN..=DATAGRAM_LEN_MAX).contains(&len);
                    match from.is_some_and(|from| from.pid() == 0) {
                        true if is_readable => return Ok(len),
                        true => return Err(NetlinkError::garbled(what)),
                        false => {}
                    }
                }
                // After the last of the time, the deadline decides.
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(errno) => return Err(NetlinkError::io(what, errno)),
            }
        }
        Err(NetlinkError::garbled(what))
    }
}

/// Reads an error or the end of a list: a negative errno, or 0.
fn read_answer(received: &MessageView<'_>) -> Answer {
    let code = message::read_u32(received.body, 0).unwrap_or_default().cast_signed();
    if code >= 0 {
        return Answer::Acknowledged;
    }
    let errno = code.checked_neg().filter(|errno| *errno <= ERRNO_MAX);
    let errno = errno.map_or(Errno::PROTO, Errno::from_raw_os_error);
    let request_len = match received.kind {
        ERROR if received.flags & CAPPED == 0 => message::read_u32(received.body, 4).unwrap_or_default(),
        ERROR => u32::try_from(HEADER_LEN).unwrap_or_default(),
        _ => 0,
    };
    let at = usize::try_from(request_len).unwrap_or(usize::MAX).saturating_add(4);
    let attributes = received.body.get(at.min(received.body.len()).next_multiple_of(4)..).unwrap_or_default();
    let is_explained = received.flags & EXPLAINED != 0;
    let explanation = message::find(attributes, EXPLANATION).filter(|_| is_explained);
    Answer::Refused { errno, explanation: explanation.map(message::read_text).unwrap_or_default() }
}

/// Makes the kernel explain its refusals.
fn explain_errors(fd: &OwnedFd) -> io::Result<()> {
    set_option(fd, libc::NETLINK_CAP_ACK)?;
    set_option(fd, libc::NETLINK_EXT_ACK)
}

/// Turns on an option of a netlink socket.
pub(crate) fn set_option(fd: &OwnedFd, option: libc::c_int) -> io::Result<()> {
    let on: libc::c_int = 1;
    set_option_bytes(fd, (libc::SOL_NETLINK, option), &on.to_ne_bytes())
}

/// Lets a socket receive only what comes through this interface of the machine.
pub(crate) fn bind_to_interface(fd: &OwnedFd, name: &str) -> io::Result<()> {
    set_option_bytes(fd, (libc::SOL_SOCKET, libc::SO_BINDTODEVICE), name.as_bytes())
}

#[expect(unsafe_code, reason = "rustix has none of these options")]
fn set_option_bytes(fd: &OwnedFd, (level, option): (i32, i32), value: &[u8]) -> io::Result<()> {
    let len = libc::socklen_t::try_from(value.len()).map_err(io::Error::other)?;
    // SAFETY: the kernel reads `len` bytes of the value, which lives until the call returns.
    let code = unsafe {
        libc::setsockopt(std::os::fd::AsRawFd::as_raw_fd(fd), level, option, value.as_ptr().cast(), len)
    };
    if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Attributes;

    fn received(flags: u16, body: &[u8]) -> MessageView<'_> {
        MessageView { kind: ERROR, flags, sequence: 1, port: 0, body }
    }

    fn answer(flags: u16, body: &[u8]) -> Option<(Errno, String)> {
        match read_answer(&received(flags, body)) {
            Answer::Acknowledged => None,
            Answer::Refused { errno, explanation } => Some((errno, explanation)),
        }
    }

    #[test]
    fn errors_are_read_with_their_explanation() {
        let code = (-libc::EEXIST).to_ne_bytes();
        let words = Attributes::new().with_text(EXPLANATION, "it is there");
        let whole = [&code[..], &[20, 0, 0, 0], &[0; 16], words.as_bytes()].concat();
        assert_eq!(answer(EXPLAINED, &whole), Some((Errno::EXIST, "it is there".to_owned())));
        let capped = [&code[..], &[99, 0, 0, 0], &[0; 12], words.as_bytes()].concat();
        assert_eq!(answer(EXPLAINED | CAPPED, &capped), Some((Errno::EXIST, "it is there".to_owned())));
        assert_eq!(answer(0, &whole), Some((Errno::EXIST, String::new())), "without the flag there are none");
        assert_eq!(answer(0, &[0; 20]), None);
    }

    #[test]
    fn torn_answers_are_read() {
        assert_eq!(answer(EXPLAINED, &[]), None);
        let code = i32::MIN.to_ne_bytes();
        for len in [0, 1, 4, 8, 1 << 20, u32::MAX] {
            let body = [&code[..], &u32::to_ne_bytes(len)].concat();
            assert!(answer(EXPLAINED, &body).is_some_and(|(_, words)| words.is_empty()));
        }
    }

    /// A process in the namespace with the right to change its network may send to our sockets too.
    #[test]
    fn answers_of_other_processes_are_passed_over() {
        crate::test_machine::on_machine(|_| {
            let mut socket = Socket::open(Protocol::Route).unwrap();
            // The first request gives the socket an address.
            crate::link::list(&mut socket).unwrap();
            let other = Socket::open(Protocol::Route).unwrap();
            let lie = Message { kind: ERROR, flags: 0, fixed: vec![0xff; 20], attributes: Attributes::new() };
            let mut bytes = Vec::new();
            lie.encode(socket.sequence + 1, &mut bytes).unwrap();
            let to = netlink::SocketAddrNetlink::new(socket.port().unwrap(), 0);
            for datagram in [&bytes[..], &[0], &vec![0; DATAGRAM_LEN_MAX + 1]] {
                sendto(&other.fd, datagram, SendFlags::empty(), &to).unwrap();
            }
            assert_eq!(crate::link::list(&mut socket).unwrap().len(), 1, "the loopback");
        });
    }

    /// They may send without end, and fill the socket so that the kernel's answer is lost.
    #[test]
    fn datagrams_of_other_processes_do_not_prolong_the_wait() {
        crate::test_machine::on_machine(|_| {
            let mut socket = Socket::open(Protocol::Route).unwrap();
            crate::link::list(&mut socket).unwrap();
            let other = Socket::open(Protocol::Route).unwrap();
            let to = netlink::SocketAddrNetlink::new(socket.port().unwrap(), 0);
            for _ in 0..2 {
                sendto(&other.fd, &[0], SendFlags::empty(), &to).unwrap();
            }
            socket.deadline = Instant::now();
            let late = socket.receive("wait").unwrap_err();
            let is_late = |error: &io::Error| error.kind() == io::ErrorKind::TimedOut;
            assert!(matches!(&late, NetlinkError::Io { source, .. } if is_late(source)), "{late:?}");
            assert_eq!(crate::link::list(&mut socket).unwrap().len(), 1, "each request has its own time");
        });
    }
}
