//! Bridges and pairs of virtual interfaces (rtnetlink(7), veth(4)).
//!
//! In: names and properties. Out: interfaces with them. A link is changed only where it differs.

use std::fmt;

use rustix::io::Errno;

use crate::{
    message::{self, Attributes, CREATE, EXCLUSIVE, Message},
    namespace::Namespace,
    socket::{NetlinkError, Object, Socket},
};

pub(crate) const NEW_LINK: u16 = 16;
pub(crate) const DELETE_LINK: u16 = 17;
const GET_LINK: u16 = 18;
const SET_LINK: u16 = 19;

/// Length of `struct ifinfomsg`.
const HEADER_LEN: usize = 16;

// Attributes of a link.
const ADDRESS: u16 = 1;
const NAME: u16 = 3;
const MTU: u16 = 4;
const MASTER: u16 = 10;
const INFO: u16 = 18;
const ALIAS: u16 = 20;
const NAMESPACE_FD: u16 = 28;
const PEER_NAMESPACE: u16 = 37;

// Attributes of its description.
const INFO_KIND: u16 = 1;
const INFO_DATA: u16 = 2;
const INFO_PORT_KIND: u16 = 4;
const INFO_PORT_DATA: u16 = 5;

/// The peer of a virtual interface.
const VETH_PEER: u16 = 1;
/// Whether a bridge sends back through the port on which something arrived.
const PORT_HAIRPIN: u16 = 4;

const UP: u32 = 1;

/// Length of a name with its end (`IFNAMSIZ`).
const NAME_LEN_MAX: usize = 15;

/// Length of the text that describes a link (`IFALIASZ`).
const ALIAS_LEN_MAX: usize = 255;

/// The name of an interface.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InterfaceName(String);

/// The text is no name of an interface.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected the name of an interface, 1 to 15 characters without blanks, `/` and `:`, found {0:?}")]
pub struct NotAnInterfaceName(String);

impl InterfaceName {
    /// Checks a name, as the kernel does.
    ///
    /// # Errors
    /// If the kernel would refuse it.
    pub fn new(name: &str) -> Result<Self, NotAnInterfaceName> {
        let fits = (1..=NAME_LEN_MAX).contains(&name.len())
            && !matches!(name, "." | "..")
            && name.bytes().all(|byte| byte.is_ascii_graphic() && !b"/:%".contains(&byte));
        if fits { Ok(Self(name.to_owned())) } else { Err(NotAnInterfaceName(name.to_owned())) }
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for InterfaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A hardware address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Mac(pub [u8; 6]);

/// An interface, as the kernel describes it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Link {
    /// Its number in its namespace.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Such as `bridge` and `veth`; empty for a device of the machine.
    pub kind: String,
    /// Whether it is up.
    pub is_up: bool,
    /// The longest packet.
    pub mtu: u32,
    /// The index of the bridge that it is attached to; 0 if there is none.
    pub master: u32,
    /// Its hardware address.
    pub mac: Option<Mac>,
    /// Its text.
    pub alias: String,
    /// The kernel's number for the namespace of its peer, if that is another one.
    pub peer_namespace: Option<i32>,
    /// Whether the bridge sends back through it what arrived through it.
    pub hairpin: bool,
}

/// The wanted properties of a bridge.
#[derive(Debug, Clone, Copy)]
pub struct Bridge<'b> {
    /// Its name.
    pub name: &'b InterfaceName,
    /// The longest packet.
    pub mtu: u32,
    /// Its hardware address. Without one it would have that of a port, and change with the ports.
    pub mac: Mac,
    /// Its text, by which it is recognized.
    pub alias: &'b str,
}

/// The wanted properties of a pair of virtual interfaces.
#[derive(Debug, Clone, Copy)]
pub struct Pair<'p> {
    /// The name of the end on the machine.
    pub name: &'p InterfaceName,
    /// The text of that end, by which it is recognized.
    pub alias: &'p str,
    /// The index of the bridge that this end is attached to.
    pub bridge: u32,
    /// The longest packet.
    pub mtu: u32,
    /// Whether the bridge sends back through it what arrived through it.
    pub hairpin: Hairpin,
    /// The name of the other end.
    pub inner_name: &'p InterfaceName,
    /// The hardware address of the other end.
    pub inner_mac: Mac,
}

/// Whether a bridge sends back through a port what arrived through it: an allocation then reaches itself through a port of
/// the machine even if the bridge does the translation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Hairpin {
    /// It does not.
    #[default]
    Off,
    /// It does.
    On,
}

/// The link of this name.
///
/// # Errors
/// If the kernel does not answer.
pub fn find(socket: &mut Socket, name: &InterfaceName) -> Result<Option<Link>, NetlinkError> {
    let attributes = Attributes::new().with_text(NAME, name.as_str());
    let message = Message { kind: GET_LINK, flags: 0, fixed: header(0, 0, 0), attributes };
    let found = socket.get(&format!("find the interface {name}"), message)?;
    Ok(found.as_ref().and_then(read))
}

/// All links of the namespace.
///
/// # Errors
/// If the kernel does not answer.
pub fn list(socket: &mut Socket) -> Result<Vec<Link>, NetlinkError> {
    let message = Message { kind: GET_LINK, flags: 0, fixed: header(0, 0, 0), attributes: Attributes::new() };
    Ok(socket.list("list interfaces", message)?.iter().filter_map(read).collect())
}

/// Makes a bridge that is up, or corrects an existing one.
///
/// # Errors
/// If an interface of another kind or owner has the name, or the kernel refuses.
pub fn make_bridge(socket: &mut Socket, wanted: &Bridge<'_>) -> Result<Link, LinkError> {
    let name = wanted.name;
    if find(socket, name)?.is_none() {
        let info = Attributes::new().with_text(INFO_KIND, "bridge");
        let attributes = Attributes::new()
            .with_text(NAME, name.as_str())
            .with(ADDRESS, &wanted.mac.0)
            .with_nested(INFO, &info);
        let message =
            Message { kind: NEW_LINK, flags: CREATE | EXCLUSIVE, fixed: header(0, UP, UP), attributes };
        match socket.request(&format!("make the bridge {name}"), vec![message]) {
            Ok(()) => {}
            // Another operation was faster.
            Err(error) if error.errno() == Some(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let found = find(socket, name)?.ok_or_else(|| LinkError::Vanished(name.clone()))?;
    // A bridge without a text, but with our address, was made right before the agent died. Those of others rarely have a text.
    let is_half_made = found.alias.is_empty() && found.mac == Some(wanted.mac);
    if found.kind != "bridge" || !(is_half_made || found.alias == wanted.alias) {
        return Err(LinkError::Foreign { name: name.clone(), what: described(&found) });
    }
    let differs = !found.is_up || found.mtu != wanted.mtu || found.alias != wanted.alias;
    if differs || found.mac != Some(wanted.mac) {
        let attributes = Attributes::new()
            .with_u32(MTU, wanted.mtu)
            .with(ADDRESS, &wanted.mac.0)
            .with(ALIAS, alias_of(wanted.alias));
        let message = Message { kind: NEW_LINK, flags: 0, fixed: header(found.index, UP, UP), attributes };
        socket.request(&format!("configure the bridge {name}"), vec![message])?;
    }
    let is_new_mtu = found.mtu != wanted.mtu;
    let found = Link { is_up: true, mtu: wanted.mtu, mac: Some(wanted.mac), ..found };
    if is_new_mtu {
        tracing::debug!(%name, mtu = wanted.mtu, "set the longest packet of the bridge");
    }
    Ok(Link { alias: wanted.alias.to_owned(), ..found })
}

/// Makes a pair whose one end is a port of the bridge, and the other end in the namespace, down. An earlier pair of this name
/// with its other end elsewhere is replaced.
///
/// # Errors
/// If an interface of another kind or owner has the name, or the kernel refuses.
pub fn make_pair(
    socket: &mut Socket,
    inside: &mut Socket,
    namespace: &Namespace,
    wanted: &Pair<'_>,
) -> Result<(), LinkError> {
    let name = wanted.name;
    if let Some(found) = find(socket, name)? {
        require_ours(&found, wanted)?;
        let inner = find(inside, wanted.inner_name)?.filter(|inner| inner.kind == "veth");
        if inner.is_some_and(|inner| inner.mac == Some(wanted.inner_mac)) && found.peer_namespace.is_some() {
            return correct_pair(socket, &found, wanted);
        }
        delete(socket, name)?;
    }
    delete(inside, wanted.inner_name)?;
    let namespace_fd = std::os::fd::AsRawFd::as_raw_fd(&std::os::fd::AsFd::as_fd(namespace));
    let peer = Attributes::after(&header(0, 0, 0))
        .with_text(NAME, wanted.inner_name.as_str())
        .with(ADDRESS, &wanted.inner_mac.0)
        .with_u32(MTU, wanted.mtu)
        .with_u32(NAMESPACE_FD, namespace_fd.unsigned_abs());
    let data = Attributes::new().with_nested(VETH_PEER, &peer);
    let info = Attributes::new().with_text(INFO_KIND, "veth").with_nested(INFO_DATA, &data);
    let attributes = Attributes::new()
        .with_text(NAME, name.as_str())
        .with_u32(MTU, wanted.mtu)
        .with_u32(MASTER, wanted.bridge)
        .with_nested(INFO, &info);
    let make = Message { kind: NEW_LINK, flags: CREATE | EXCLUSIVE, fixed: header(0, UP, UP), attributes };
    // The kernel accepts neither in the first message.
    let describe = port_properties(wanted).with_text(NAME, name.as_str());
    let describe = Message { kind: NEW_LINK, flags: 0, fixed: header(0, 0, 0), attributes: describe };
    socket.request(&format!("make the interface {name}"), vec![make, describe])?;
    Ok(())
}

/// An unmarked pair was made right before the agent died.
fn require_ours(found: &Link, wanted: &Pair<'_>) -> Result<(), LinkError> {
    if found.kind == "veth" && (found.alias.is_empty() || found.alias == wanted.alias) {
        return Ok(());
    }
    Err(LinkError::Foreign { name: wanted.name.clone(), what: described(found) })
}

fn correct_pair(socket: &mut Socket, found: &Link, wanted: &Pair<'_>) -> Result<(), LinkError> {
    let is_right = found.is_up
        && found.mtu == wanted.mtu
        && found.master == wanted.bridge
        && found.alias == wanted.alias
        && found.hairpin == (wanted.hairpin == Hairpin::On);
    if is_right {
        return Ok(());
    }
    let place = Attributes::new().with_u32(MTU, wanted.mtu).with_u32(MASTER, wanted.bridge);
    let place = Message { kind: NEW_LINK, flags: 0, fixed: header(found.index, UP, UP), attributes: place };
    let properties = port_properties(wanted);
    let describe =
        Message { kind: NEW_LINK, flags: 0, fixed: header(found.index, 0, 0), attributes: properties };
    socket.request(&format!("configure the interface {}", wanted.name), vec![place, describe])?;
    Ok(())
}

fn port_properties(wanted: &Pair<'_>) -> Attributes {
    let hairpin = [u8::from(wanted.hairpin == Hairpin::On)];
    let port = Attributes::new().with(PORT_HAIRPIN, &hairpin);
    let info = Attributes::new().with_text(INFO_PORT_KIND, "bridge").with_nested(INFO_PORT_DATA, &port);
    Attributes::new().with(ALIAS, alias_of(wanted.alias)).with_nested(INFO, &info)
}

/// Sets a link up.
///
/// # Errors
/// If the kernel refuses.
pub fn set_up(socket: &mut Socket, index: u32) -> Result<(), NetlinkError> {
    socket.request("set an interface up", vec![up(index)])
}

/// The request that sets a link up.
pub(crate) fn up(index: u32) -> Message {
    Message { kind: SET_LINK, flags: 0, fixed: header(index, UP, UP), attributes: Attributes::new() }
}

/// Deletes a link and, of a pair, the other end; without effect if there is none. Takes tens of milliseconds: a pair whose
/// namespace ends goes by itself.
///
/// # Errors
/// If the kernel refuses.
pub fn delete(socket: &mut Socket, name: &InterfaceName) -> Result<(), NetlinkError> {
    let attributes = Attributes::new().with_text(NAME, name.as_str());
    let message = Message { kind: DELETE_LINK, flags: 0, fixed: header(0, 0, 0), attributes };
    match socket.request(&format!("delete the interface {name}"), vec![message]) {
        Err(error) if error.errno() == Some(Errno::NODEV) => Ok(()),
        done => done,
    }
}

/// Why a link can't be made. The text continues "failed to".
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// Another program's interface has the name.
    #[error("make the interface {name}: {what} has this name")]
    Foreign {
        /// The name.
        name: InterfaceName,
        /// What has it.
        what: String,
    },
    /// It was deleted right after it was made.
    #[error("find the interface {0}: it was deleted right away")]
    Vanished(InterfaceName),
    /// The kernel refused.
    #[error(transparent)]
    Kernel(#[from] NetlinkError),
}

fn described(link: &Link) -> String {
    let (article, kind) = if link.kind.is_empty() { ("an", "interface") } else { ("a", link.kind.as_str()) };
    match link.alias.as_str() {
        "" => format!("another {kind}"),
        alias => format!("{article} {kind} of \"{alias}\""),
    }
}

fn alias_of(alias: &str) -> &[u8] {
    alias.as_bytes().get(..ALIAS_LEN_MAX).unwrap_or(alias.as_bytes())
}

/// A `struct ifinfomsg`.
fn header(index: u32, flags: u32, change: u32) -> Vec<u8> {
    let mut bytes = vec![0; 4];
    for number in [index, flags, change] {
        bytes.extend(number.to_ne_bytes());
    }
    bytes
}

fn read(object: &Object) -> Option<Link> {
    if object.kind == NEW_LINK { read_body(&object.body) } else { None }
}

/// The link that a message of the kernel is about.
pub(crate) fn read_body(body: &[u8]) -> Option<Link> {
    let (index, flags) = (message::read_u32(body, 4)?, message::read_u32(body, 8)?);
    let mut link = Link { index, is_up: flags & UP != 0, ..Link::default() };
    for (kind, value) in message::attributes_after(body, HEADER_LEN) {
        match kind {
            NAME => link.name = message::read_text(value),
            ALIAS => link.alias = message::read_text(value),
            MTU => link.mtu = message::read_u32(value, 0).unwrap_or_default(),
            MASTER => link.master = message::read_u32(value, 0).unwrap_or_default(),
            ADDRESS => link.mac = value.try_into().ok().map(Mac),
            PEER_NAMESPACE => link.peer_namespace = message::read_u32(value, 0).map(u32::cast_signed),
            INFO => {
                link.kind = message::find(value, INFO_KIND).map(message::read_text).unwrap_or_default();
                let port = message::find(value, INFO_PORT_DATA).unwrap_or_default();
                link.hairpin = message::find(port, PORT_HAIRPIN).is_some_and(|value| value == [1]);
            }
            _ => {}
        }
    }
    Some(link)
}

#[cfg(test)]
mod tests;
