//! Expressions of rules: loads into registers, comparisons, look-ups, translations, verdicts.
//!
//! A register here is the number of a word of four bytes, from 0 to 15. Each expression that reads or writes more uses the
//! words after it.

use crate::message::Attributes;

use super::DATA_VALUE;

/// An expression.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expression {
    pub(super) name: &'static str,
    pub(super) data: Attributes,
}

/// Data about a packet that is not in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Meta {
    /// The name of the interface through which it came, in 16 bytes.
    InputName,
    /// The name of the interface through which it leaves, in 16 bytes.
    OutputName,
    /// Its family, in one byte.
    Family,
    /// Its protocol such as TCP, in one byte.
    Protocol,
}

/// A field of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Field {
    /// Where an IPv4 packet comes from.
    Source4,
    /// Where an IPv4 packet goes.
    Destination4,
    /// Where an IPv6 packet comes from.
    Source6,
    /// Where an IPv6 packet goes.
    Destination6,
    /// The port to which it goes; of TCP, UDP and others with ports.
    DestinationPort,
}

/// How values are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Comparison {
    /// Equal.
    Equal,
    /// Not equal.
    Different,
}

/// The decision about a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict<'v> {
    /// Drop it.
    Drop,
    /// Accept it, as far as this table is concerned.
    Accept,
    /// Go through the rules of this chain, then on with this one.
    Jump(&'v str),
}

/// The address to which a translation leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TargetFamily {
    /// IPv4: four bytes, then the port.
    V4,
    /// IPv6: 16 bytes, then the port.
    V6,
}

/// Connections whose destination was translated.
const STATUS_DESTINATION: u32 = 1 << 5;

/// The destination is an address of this machine.
const TYPE_LOCAL: u32 = 2;

/// Loads data about the packet.
pub fn load_meta(meta: Meta, register: u32) -> Expression {
    let key = match meta {
        Meta::InputName => 6,
        Meta::OutputName => 7,
        Meta::Family => 15,
        Meta::Protocol => 16,
    };
    expression("meta", Attributes::new().with_be32(2, key).with_be32(1, number_of(register)))
}

/// Loads a field of the packet.
pub fn load_field(field: Field, register: u32) -> Expression {
    const NETWORK: u32 = 1;
    const TRANSPORT: u32 = 2;
    let (base, offset, len) = match field {
        Field::Source4 => (NETWORK, 12, 4),
        Field::Destination4 => (NETWORK, 16, 4),
        Field::Source6 => (NETWORK, 8, 16),
        Field::Destination6 => (NETWORK, 24, 16),
        Field::DestinationPort => (TRANSPORT, 2, 2),
    };
    let data = Attributes::new()
        .with_be32(1, number_of(register))
        .with_be32(2, base)
        .with_be32(3, offset)
        .with_be32(4, len);
    expression("payload", data)
}

/// Loads what the kernel knows of the destination: whether it is an address of this machine.
pub fn load_destination_type(register: u32) -> Expression {
    const TYPE: u32 = 3;
    const OF_DESTINATION: u32 = 2;
    let data =
        Attributes::new().with_be32(3, OF_DESTINATION).with_be32(2, TYPE).with_be32(1, number_of(register));
    expression("fib", data)
}

/// Compares it with a local one.
pub fn is_local(register: u32) -> Expression {
    compare(register, Comparison::Equal, &TYPE_LOCAL.to_ne_bytes())
}

/// Loads the state of the packet's connection.
pub fn load_connection_status(register: u32) -> Expression {
    const STATUS: u32 = 2;
    expression("ct", Attributes::new().with_be32(2, STATUS).with_be32(1, number_of(register)))
}

/// Keeps of the status only whether the connection's destination was translated.
pub fn keep_translated(register: u32) -> Expression {
    mask(register, &STATUS_DESTINATION.to_ne_bytes())
}

/// Loads how the packet stands to its connection.
pub fn load_connection_state(register: u32) -> Expression {
    const STATE: u32 = 0;
    expression("ct", Attributes::new().with_be32(2, STATE).with_be32(1, number_of(register)))
}

/// Keeps of that only whether the connection is established, or is related to one.
pub fn keep_known(register: u32) -> Expression {
    const ESTABLISHED: u32 = 1 << 1;
    const RELATED: u32 = 1 << 2;
    mask(register, &(ESTABLISHED | RELATED).to_ne_bytes())
}

/// Goes on with the rule only if the register compares so.
pub fn compare(register: u32, how: Comparison, value: &[u8]) -> Expression {
    let how = match how {
        Comparison::Equal => 0,
        Comparison::Different => 1,
    };
    let data = Attributes::new()
        .with_be32(1, number_of(register))
        .with_be32(2, how)
        .with_nested(3, &Attributes::new().with(DATA_VALUE, value));
    expression("cmp", data)
}

/// Keeps the bits of the register that the mask has.
pub fn mask(register: u32, mask: &[u8]) -> Expression {
    let value = |bytes: &[u8]| Attributes::new().with(DATA_VALUE, bytes);
    let data = Attributes::new()
        .with_be32(1, number_of(register))
        .with_be32(2, number_of(register))
        .with_be32(3, u32::try_from(mask.len()).unwrap_or_default())
        .with_nested(4, &value(mask))
        .with_nested(5, &value(&vec![0; mask.len()]));
    expression("bitwise", data)
}

/// Loads a random number below `limit`, in the machine's byte order.
pub fn load_random(limit: u32, register: u32) -> Expression {
    const RANDOM: u32 = 1;
    let data = Attributes::new().with_be32(1, number_of(register)).with_be32(2, limit).with_be32(3, RANDOM);
    expression("numgen", data)
}

/// Replaces the key in the register by its value in the map. Goes on with the rule only if the map has it.
pub fn look_up(map: &str, register: u32) -> Expression {
    let register = number_of(register);
    let data = Attributes::new().with_be32(2, register).with_be32(3, register).with_text(1, map);
    expression("lookup", data)
}

/// Translates the destination to the address in the register, and the port after it.
pub fn translate_destination(family: TargetFamily, register: u32) -> Expression {
    const DESTINATION: u32 = 1;
    let (family, words) = match family {
        TargetFamily::V4 => (2, 1),
        TargetFamily::V6 => (10, 4),
    };
    let data = Attributes::new()
        .with_be32(1, DESTINATION)
        .with_be32(2, family)
        .with_be32(3, number_of(register))
        .with_be32(5, number_of(register + words));
    expression("nat", data)
}

/// Translates the source to the address of the interface through which the packet leaves.
pub fn masquerade() -> Expression {
    expression("masq", Attributes::new())
}

/// Decides about the packet.
pub fn decide(verdict: Verdict<'_>) -> Expression {
    const DROP: u32 = 0;
    const ACCEPT: u32 = 1;
    const JUMP: i32 = -3;
    let verdict = match verdict {
        Verdict::Drop => Attributes::new().with_be32(1, DROP),
        Verdict::Accept => Attributes::new().with_be32(1, ACCEPT),
        Verdict::Jump(chain) => Attributes::new().with_be32(1, JUMP.cast_unsigned()).with_text(2, chain),
    };
    let data = Attributes::new().with_nested(2, &verdict);
    // Register 0 is the verdict's.
    expression("immediate", Attributes::new().with_be32(1, 0).with_nested(2, &data))
}

/// The name of an interface as it is loaded.
pub fn interface_bytes(name: &str) -> [u8; 16] {
    let mut bytes = [0; 16];
    for (to, from) in bytes.iter_mut().zip(name.bytes().take(15)) {
        *to = from;
    }
    bytes
}

fn expression(name: &'static str, data: Attributes) -> Expression {
    Expression { name, data }
}

/// The kernel's number of a word: every fourth begins a register of 16 bytes, which has an older number.
fn number_of(word: u32) -> u32 {
    if word.is_multiple_of(4) { 1 + word / 4 } else { 8 + word }
}

impl Expression {
    /// Its content, which identifies it.
    pub fn content(&self) -> impl Iterator<Item = u8> + '_ {
        self.name.bytes().chain([0]).chain(self.data.as_bytes().iter().copied())
    }
}
