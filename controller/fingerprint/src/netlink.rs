//! Requests to the kernel by netlink (`man 7 netlink`) whose answers are lists.
//!
//! In: a protocol, the type of a request and its header. Out: the bodies of the messages of the answer, and their attributes.
//! This module does not know what they mean.

use std::{io, time::Duration};

use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, sendto,
    socket_with, sockopt,
};

// From linux/netlink.h.
const ERROR: u16 = 2;
const DONE: u16 = 3;
const REQUEST_DUMP: u16 = 0x301;

/// The protocol of interfaces, addresses and routes, which has the number 0.
pub(crate) const ROUTE: Option<Protocol> = None;

/// Time limit for the kernel's answer, which comes at once.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// The maximum size of an answer: enough for thousands of interfaces and of sockets.
const BYTES_MAX: usize = 16 << 20;

/// The bodies of all messages in the answer to a request. `header`: what the request has before its attributes.
///
/// # Errors
/// If the kernel refuses the request or does not answer.
pub(crate) fn dump(protocol: Option<Protocol>, kind: u16, header: &[u8]) -> io::Result<Vec<Vec<u8>>> {
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol)?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(ANSWER_MAX))?;
    let length = 16 + header.len();
    let mut request = Vec::with_capacity(length);
    request.extend(u32::try_from(length).unwrap_or_default().to_ne_bytes());
    request.extend(kind.to_ne_bytes());
    request.extend(REQUEST_DUMP.to_ne_bytes());
    request.resize(16, 0);
    request.extend(header);
    sendto(&socket, &request, SendFlags::empty(), &netlink::SocketAddrNetlink::new(0, 0))?;
    let mut buffer = vec![0_u8; 64 << 10];
    let (mut messages, mut bytes) = (Vec::new(), 0);
    loop {
        let (read, _) = recv(&socket, &mut buffer[..], RecvFlags::empty())?;
        bytes += read;
        let mut rest = buffer.get(..read).unwrap_or_default();
        if rest.is_empty() || bytes > BYTES_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        while let Some((kind, body, next)) = message(rest) {
            match kind {
                DONE => return Ok(messages),
                ERROR => {
                    let code = body.first_chunk().map_or(0, |code| i32::from_ne_bytes(*code));
                    return Err(io::Error::from_raw_os_error(code.wrapping_neg()));
                }
                _ => messages.push(body.to_vec()),
            }
            rest = next;
        }
    }
}

/// Splits off the first message: its type, its body and the rest.
fn message(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let length = usize::try_from(read_u32(bytes, 0)?).ok()?;
    let kind = u16::from_ne_bytes(*bytes.get(4..6)?.first_chunk()?);
    let body = bytes.get(16..length)?;
    Some((kind, body, bytes.get(length.next_multiple_of(4)..).unwrap_or_default()))
}

/// The attributes after a header of this length.
pub(crate) fn attributes(body: &[u8], header: usize) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = body.get(header..).unwrap_or_default();
    std::iter::from_fn(move || {
        let length = usize::from(u16::from_ne_bytes(*rest.first_chunk()?));
        let kind = u16::from_ne_bytes(*rest.get(2..4)?.first_chunk()?);
        let value = rest.get(4..length)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// The number at this place, in the order of this machine.
pub(crate) fn read_u32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..at.checked_add(4)?)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn torn_messages_have_no_body_and_no_attributes() {
        for bytes in [&[][..], &[0; 3], &[0; 15], &[0xff; 20], &[0xff; 64]] {
            assert!(message(bytes).is_none());
            assert_eq!(attributes(bytes, 16).count(), 0);
        }
    }

    #[test]
    fn a_request_that_the_kernel_refuses_is_an_error() {
        assert!(dump(ROUTE, u16::MAX, &[0; 16]).is_err());
    }
}
