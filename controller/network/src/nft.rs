//! Messages of nf_tables (`linux/netfilter/nf_tables.h`): tables, chains, rules, maps and their elements.
//!
//! In: names, hooks, expressions. Out: messages for one transaction, and readers of what the kernel lists. Numbers are in
//! network byte order. It is independent of the purpose of a rule.

pub mod decision;
pub mod expression;
pub mod read;

use crate::message::{ACK, APPEND, Attributes, CREATE, Message, REQUEST};
use expression::Expression;

/// The part of netfilter that this is about; the upper byte of a message's kind.
const SUBSYSTEM: u16 = 10;

const BATCH_BEGIN: u16 = 16;
const BATCH_END: u16 = 17;

const NEW_TABLE: u16 = 0;
const GET_TABLE: u16 = 1;
const DELETE_TABLE: u16 = 2;
const NEW_CHAIN: u16 = 3;
const GET_CHAIN: u16 = 4;
const NEW_RULE: u16 = 6;
const GET_RULE: u16 = 7;
const DELETE_RULE: u16 = 8;
const NEW_SET: u16 = 9;
const GET_SET: u16 = 10;
const NEW_ELEMENT: u16 = 12;
const GET_ELEMENT: u16 = 13;
const DELETE_ELEMENT: u16 = 14;

/// The kernel's report that a transaction has taken effect.
pub(crate) const NEW_GENERATION: u16 = (SUBSYSTEM << 8) | 15;

/// Length of `struct nfgenmsg`.
const HEADER_LEN: usize = 4;

const LIST_ITEM: u16 = 1;

const TABLE_NAME: u16 = 1;
const TABLE_OWNER: u16 = 7;

const CHAIN_TABLE: u16 = 1;
const CHAIN_NAME: u16 = 3;
const CHAIN_HOOK: u16 = 4;
const CHAIN_POLICY: u16 = 5;
const CHAIN_TYPE: u16 = 7;
const HOOK_NUMBER: u16 = 1;
const HOOK_PRIORITY: u16 = 2;

const RULE_TABLE: u16 = 1;
const RULE_CHAIN: u16 = 2;
const RULE_HANDLE: u16 = 3;
const RULE_EXPRESSIONS: u16 = 4;
const RULE_USER_DATA: u16 = 7;
const EXPRESSION_NAME: u16 = 1;
const EXPRESSION_DATA: u16 = 2;

const SET_TABLE: u16 = 1;
const SET_NAME: u16 = 2;
const SET_FLAGS: u16 = 3;
const SET_KEY_TYPE: u16 = 4;
const SET_KEY_LEN: u16 = 5;
const SET_DATA_TYPE: u16 = 6;
const SET_DATA_LEN: u16 = 7;
const SET_ID: u16 = 10;
/// The set is a map.
const SET_IS_MAP: u32 = 8;

const ELEMENTS_TABLE: u16 = 1;
const ELEMENTS_SET: u16 = 2;
const ELEMENTS: u16 = 3;
const ELEMENT_KEY: u16 = 1;
const ELEMENT_DATA: u16 = 2;
const ELEMENT_USER_DATA: u16 = 6;

const DATA_VALUE: u16 = 1;

/// The kind of user data that `nft` shows as a comment.
const COMMENT: u8 = 0;

/// The family of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Family {
    /// IPv4 and IPv6.
    Inet,
    /// IPv4: tables of iptables.
    Ip,
    /// IPv6: tables of ip6tables.
    Ip6,
}

impl Family {
    /// Its name, as `nft` takes it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Inet => "inet",
            Self::Ip => "ip",
            Self::Ip6 => "ip6",
        }
    }

    fn number(self) -> u8 {
        match self {
            Self::Inet => 1,
            Self::Ip => 2,
            Self::Ip6 => 10,
        }
    }
}

/// The place where the kernel calls a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hook {
    /// Where.
    pub point: HookPoint,
    /// Its order among other chains there.
    pub priority: i32,
    /// What it may do.
    pub kind: ChainKind,
}

/// A place on a packet's way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HookPoint {
    /// It has arrived.
    Prerouting,
    /// It goes to a process of the machine.
    Input,
    /// It goes on to another interface.
    Forward,
    /// A process of the machine has sent it.
    Output,
    /// It leaves.
    Postrouting,
}

impl HookPoint {
    pub(crate) fn number(self) -> u32 {
        match self {
            Self::Prerouting => 0,
            Self::Input => 1,
            Self::Forward => 2,
            Self::Output => 3,
            Self::Postrouting => 4,
        }
    }
}

/// What a chain may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChainKind {
    /// Accept and drop packets.
    Filter,
    /// Translate addresses of new connections.
    Nat,
}

impl ChainKind {
    fn name(self) -> &'static str {
        match self {
            Self::Filter => "filter",
            Self::Nat => "nat",
        }
    }
}

/// A table of a family.
#[derive(Debug, Clone, Copy)]
pub struct Table<'t> {
    /// Its family.
    pub family: Family,
    /// Its name.
    pub name: &'t str,
}

/// A map: keys and values of fixed types.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MapType {
    /// The parts of a key.
    pub key: &'static [DataType],
    /// The parts of a value.
    pub value: &'static [DataType],
}

/// A type of data, as `nft` shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DataType {
    /// An IPv4 address.
    Ipv4,
    /// An IPv6 address.
    Ipv6,
    /// The number of a protocol such as TCP.
    Protocol,
    /// A port.
    Port,
    /// A number of this machine's byte order.
    Mark,
}

impl DataType {
    /// `nft`'s number, and the length in a register.
    fn number_and_len(self) -> (u32, u32) {
        match self {
            Self::Ipv4 => (7, 4),
            Self::Ipv6 => (8, 16),
            Self::Protocol => (12, 4),
            Self::Port => (13, 4),
            Self::Mark => (19, 4),
        }
    }

    /// The number and the length of a value that consists of these.
    fn of_all(parts: &[Self]) -> (u32, u32) {
        parts
            .iter()
            .map(|part| part.number_and_len())
            .fold((0, 0), |(number, len), (next, more)| ((number << 6) | next, len + more))
    }
}

/// An element of a map. Key and value are as in registers: each part padded to four bytes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Element {
    /// Its key.
    pub key: Vec<u8>,
    /// Its value.
    pub value: Vec<u8>,
    /// A text for people.
    pub comment: String,
}

/// A rule of a chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// What it does, in this order.
    pub expressions: Vec<Expression>,
    /// A text for people.
    pub comment: String,
}

/// The longest comment: its length is a byte, and includes the end.
const COMMENT_LEN_MAX: usize = 254;

/// Changes that take effect together.
#[derive(Debug)]
pub struct Batch<'t> {
    table: Table<'t>,
    messages: Vec<Message>,
}

impl<'t> Batch<'t> {
    /// Changes of this table.
    pub fn new(table: Table<'t>) -> Self {
        Self { table, messages: vec![batch_mark(BATCH_BEGIN)] }
    }

    /// Makes the table; without effect if it exists.
    pub fn make_table(&mut self) {
        self.add(NEW_TABLE, CREATE, Attributes::new().with_text(TABLE_NAME, self.table.name));
    }

    /// Makes the table as the property of this socket: other sockets can't change it, and it ends with the socket.
    #[cfg(test)]
    pub fn make_owned_table(&mut self) {
        const FLAGS: u16 = 2;
        const OWNED: u32 = 2;
        let name = Attributes::new().with_text(TABLE_NAME, self.table.name);
        self.add(NEW_TABLE, CREATE, name.with_be32(FLAGS, OWNED));
    }

    /// Deletes the table, with everything in it.
    pub fn delete_table(&mut self) {
        self.add(DELETE_TABLE, 0, Attributes::new().with_text(TABLE_NAME, self.table.name));
    }

    /// Makes a chain, which the kernel calls if it has a hook; without effect if it exists.
    pub fn make_chain(&mut self, name: &str, hook: Option<Hook>) {
        let mut attributes =
            Attributes::new().with_text(CHAIN_TABLE, self.table.name).with_text(CHAIN_NAME, name);
        if let Some(hook) = hook {
            let place = Attributes::new()
                .with_be32(HOOK_NUMBER, hook.point.number())
                .with_be32(HOOK_PRIORITY, hook.priority.cast_unsigned());
            attributes = attributes.with_text(CHAIN_TYPE, hook.kind.name()).with_nested(CHAIN_HOOK, &place);
        }
        self.add(NEW_CHAIN, CREATE, attributes);
    }

    /// Removes all rules of a chain.
    pub fn clear_chain(&mut self, name: &str) {
        let attributes = Attributes::new().with_text(RULE_TABLE, self.table.name).with_text(RULE_CHAIN, name);
        self.add(DELETE_RULE, 0, attributes);
    }

    /// Adds a rule after the others.
    pub fn append_rule(&mut self, chain: &str, rule: &Rule) {
        let attributes = self.rule(chain, rule);
        self.add(NEW_RULE, CREATE | APPEND, attributes);
    }

    fn rule(&self, chain: &str, rule: &Rule) -> Attributes {
        let expressions = rule.expressions.iter().fold(Attributes::new(), |all, expression| {
            let one = Attributes::new()
                .with_text(EXPRESSION_NAME, expression.name)
                .with_nested(EXPRESSION_DATA, &expression.data);
            all.with_nested(LIST_ITEM, &one)
        });
        Attributes::new()
            .with_text(RULE_TABLE, self.table.name)
            .with_text(RULE_CHAIN, chain)
            .with_nested(RULE_EXPRESSIONS, &expressions)
            .with(RULE_USER_DATA, &user_data(&rule.comment))
    }

    /// Adds a rule before the others.
    pub fn prepend_rule(&mut self, chain: &str, rule: &Rule) {
        let attributes = self.rule(chain, rule);
        self.add(NEW_RULE, CREATE, attributes);
    }

    /// Removes a rule, by the kernel's number for it.
    pub fn remove_rule(&mut self, chain: &str, handle: u64) {
        let attributes = Attributes::new()
            .with_text(RULE_TABLE, self.table.name)
            .with_text(RULE_CHAIN, chain)
            .with(RULE_HANDLE, &handle.to_be_bytes());
        self.add(DELETE_RULE, 0, attributes);
    }

    /// Makes a chain drop what no rule decides about.
    #[cfg(test)]
    pub fn drop_by_default(&mut self, chain: &str) {
        let attributes = Attributes::new()
            .with_text(CHAIN_TABLE, self.table.name)
            .with_text(CHAIN_NAME, chain)
            .with_be32(CHAIN_POLICY, 0);
        self.add(NEW_CHAIN, 0, attributes);
    }

    /// Makes a map; without effect if it exists. `id` is its number among those of this transaction.
    pub fn make_map(&mut self, name: &str, kind: MapType, id: u32) {
        let (key_type, key_len) = DataType::of_all(kind.key);
        let (value_type, value_len) = DataType::of_all(kind.value);
        let attributes = Attributes::new()
            .with_text(SET_TABLE, self.table.name)
            .with_text(SET_NAME, name)
            .with_be32(SET_FLAGS, SET_IS_MAP)
            .with_be32(SET_KEY_TYPE, key_type)
            .with_be32(SET_KEY_LEN, key_len)
            .with_be32(SET_DATA_TYPE, value_type)
            .with_be32(SET_DATA_LEN, value_len)
            .with_be32(SET_ID, id);
        self.add(NEW_SET, CREATE, attributes);
    }

    /// Removes all elements of a map.
    pub fn clear_map(&mut self, name: &str) {
        let attributes =
            Attributes::new().with_text(ELEMENTS_TABLE, self.table.name).with_text(ELEMENTS_SET, name);
        self.add(DELETE_ELEMENT, 0, attributes);
    }

    /// Adds elements to a map. The transaction fails if one exists with another value.
    pub fn add_elements(&mut self, map: &str, elements: &[Element]) {
        for part in elements.chunks(ELEMENTS_MAX) {
            let list = part.iter().fold(Attributes::new(), |all, element| {
                let value = Attributes::new().with(DATA_VALUE, &element.value);
                let one = key_of(&element.key)
                    .with_nested(ELEMENT_DATA, &value)
                    .with(ELEMENT_USER_DATA, &user_data(&element.comment));
                all.with_nested(LIST_ITEM, &one)
            });
            self.add(NEW_ELEMENT, CREATE, self.elements_of(map, &list));
        }
    }

    /// Removes the elements with these keys from a map. The transaction fails if one does not exist.
    pub fn remove_elements(&mut self, map: &str, keys: &[Vec<u8>]) {
        for part in keys.chunks(ELEMENTS_MAX) {
            let list =
                part.iter().fold(Attributes::new(), |all, key| all.with_nested(LIST_ITEM, &key_of(key)));
            self.add(DELETE_ELEMENT, 0, self.elements_of(map, &list));
        }
    }

    /// The messages, for [`Socket::commit`](crate::socket::Socket::commit).
    pub fn into_messages(mut self) -> Vec<Message> {
        if let Some(last) = self.messages.last_mut() {
            last.flags |= ACK;
        }
        self.messages.push(batch_mark(BATCH_END));
        self.messages
    }

    /// Whether nothing is to be changed.
    pub fn is_empty(&self) -> bool {
        self.messages.len() == 1
    }

    fn elements_of(&self, map: &str, list: &Attributes) -> Attributes {
        Attributes::new()
            .with_text(ELEMENTS_TABLE, self.table.name)
            .with_text(ELEMENTS_SET, map)
            .with_nested(ELEMENTS, list)
    }

    fn add(&mut self, kind: u16, flags: u16, attributes: Attributes) {
        let (kind, fixed) = ((SUBSYSTEM << 8) | kind, vec![self.table.family.number(), 0, 0, 0]);
        self.messages.push(Message { kind, flags: REQUEST | flags, fixed, attributes });
    }
}

/// How many elements one message has: their length must fit into 16 bits.
const ELEMENTS_MAX: usize = 128;

fn key_of(key: &[u8]) -> Attributes {
    Attributes::new().with_nested(ELEMENT_KEY, &Attributes::new().with(DATA_VALUE, key))
}

/// The beginning or the end of a transaction.
fn batch_mark(kind: u16) -> Message {
    let [high, low] = SUBSYSTEM.to_be_bytes();
    Message { kind, flags: REQUEST, fixed: vec![0, 0, high, low], attributes: Attributes::new() }
}

/// A comment as user data: its kind, its length, its text.
fn user_data(comment: &str) -> Vec<u8> {
    let text = comment.as_bytes().get(..COMMENT_LEN_MAX).unwrap_or(comment.as_bytes());
    let len = u8::try_from(text.len() + 1).unwrap_or(u8::MAX);
    [&[COMMENT, len], text, &[0]].concat()
}

#[cfg(test)]
mod tests;
