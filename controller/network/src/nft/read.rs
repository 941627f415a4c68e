//! Reads chains, rules and elements that the kernel lists.

use std::collections::BTreeMap;

use crate::{
    message::{self, Attributes, Message},
    socket::{NetlinkError, Object, Socket},
};

use super::{
    CHAIN_HOOK, CHAIN_NAME, CHAIN_POLICY, CHAIN_TABLE, CHAIN_TYPE, COMMENT, DATA_VALUE, ELEMENT_DATA,
    ELEMENT_KEY, ELEMENT_USER_DATA, ELEMENTS, ELEMENTS_SET, ELEMENTS_TABLE, Element, Family, GET_CHAIN,
    GET_ELEMENT, GET_RULE, GET_SET, GET_TABLE, HEADER_LEN, HOOK_NUMBER, HOOK_PRIORITY, LIST_ITEM, RULE_CHAIN,
    RULE_EXPRESSIONS, RULE_HANDLE, RULE_TABLE, RULE_USER_DATA, SET_NAME, SET_TABLE, SUBSYSTEM, TABLE_NAME,
    TABLE_OWNER, Table,
    decision::{self, Decision},
    key_of,
};

/// The tables of a family that only the socket with this address can change, by name.
///
/// # Errors
/// If the kernel does not answer.
pub fn owned_tables(socket: &mut Socket, family: Family) -> Result<BTreeMap<String, u32>, NetlinkError> {
    let found = socket.list("list tables", request(GET_TABLE, family, Attributes::new()))?;
    let owned = |object: &Object| {
        Some((text(object, TABLE_NAME), message::read_be32(value(object, TABLE_OWNER)?, 0)?))
    };
    Ok(found.iter().filter_map(owned).collect())
}

/// A chain that the kernel has.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct FoundChain {
    /// Its table.
    pub table: String,
    /// Its name.
    pub name: String,
    /// Where the kernel calls it: the hook's number and the priority.
    pub hook: Option<(u32, i32)>,
    /// Its kind, such as `filter`.
    pub kind: String,
    /// Whether packets about which no rule decides are dropped.
    pub drops: bool,
}

/// The chains of a family, or of one table.
///
/// # Errors
/// If the kernel does not answer.
pub fn chains(
    socket: &mut Socket,
    family: Family,
    table: Option<&str>,
) -> Result<Vec<FoundChain>, NetlinkError> {
    let attributes = table.iter().fold(Attributes::new(), |all, table| all.with_text(CHAIN_TABLE, table));
    let found = socket.list("list chains", request(GET_CHAIN, family, attributes))?;
    let chains = found.iter().map(read_chain);
    Ok(chains.filter(|chain| table.is_none_or(|table| chain.table == table)).collect())
}

fn read_chain(object: &Object) -> FoundChain {
    let hook = value(object, CHAIN_HOOK);
    let number = |kind: u16| hook.and_then(|hook| message::read_be32(message::find(hook, kind)?, 0));
    FoundChain {
        table: text(object, CHAIN_TABLE),
        name: text(object, CHAIN_NAME),
        hook: number(HOOK_NUMBER).zip(number(HOOK_PRIORITY).map(u32::cast_signed)),
        kind: text(object, CHAIN_TYPE),
        drops: value(object, CHAIN_POLICY).is_some_and(|policy| message::read_be32(policy, 0) == Some(0)),
    }
}

/// A rule that the kernel has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundRule {
    /// Its chain.
    pub chain: String,
    /// Its comment.
    pub comment: String,
    /// The kernel's number for it.
    pub handle: u64,
    /// What it does with every packet; none if it has a condition, or does not decide.
    pub decision: Option<Decision>,
}

/// The rules of a table, in their order.
///
/// # Errors
/// If the kernel does not answer.
pub fn rules(socket: &mut Socket, table: Table<'_>) -> Result<Vec<FoundRule>, NetlinkError> {
    let attributes = Attributes::new().with_text(RULE_TABLE, table.name);
    let found = none_if_missing(socket.list("list rules", request(GET_RULE, table.family, attributes)))?;
    let own = found.iter().filter(|object| text(object, RULE_TABLE) == table.name);
    Ok(own.map(read_rule).collect())
}

/// The rules of a chain, in their order.
///
/// # Errors
/// If the kernel does not answer.
pub fn rules_of_chain(
    socket: &mut Socket,
    table: Table<'_>,
    chain: &str,
) -> Result<Vec<FoundRule>, NetlinkError> {
    let attributes = Attributes::new().with_text(RULE_TABLE, table.name).with_text(RULE_CHAIN, chain);
    let found = none_if_missing(socket.list("list rules", request(GET_RULE, table.family, attributes)))?;
    let own = found.iter().filter(|object| text(object, RULE_TABLE) == table.name);
    Ok(own.map(read_rule).filter(|rule| rule.chain == chain).collect())
}

fn read_rule(object: &Object) -> FoundRule {
    let handle = value(object, RULE_HANDLE).and_then(|handle| handle.first_chunk().copied());
    FoundRule {
        chain: text(object, RULE_CHAIN),
        comment: comment(value(object, RULE_USER_DATA)),
        handle: handle.map(u64::from_be_bytes).unwrap_or_default(),
        decision: value(object, RULE_EXPRESSIONS).and_then(decision::decision_of),
    }
}

/// The names of the maps and sets of a table.
///
/// # Errors
/// If the kernel does not answer.
pub fn maps(socket: &mut Socket, table: Table<'_>) -> Result<Vec<String>, NetlinkError> {
    let attributes = Attributes::new().with_text(SET_TABLE, table.name);
    let found = none_if_missing(socket.list("list maps", request(GET_SET, table.family, attributes)))?;
    Ok(found.iter().map(|object| text(object, SET_NAME)).collect())
}

/// The elements of a map; none if there is no such map.
///
/// # Errors
/// If the kernel does not answer.
pub fn elements(socket: &mut Socket, table: Table<'_>, map: &str) -> Result<Vec<Element>, NetlinkError> {
    let attributes = Attributes::new().with_text(ELEMENTS_TABLE, table.name).with_text(ELEMENTS_SET, map);
    let what = format!("list the map {map}");
    let found = none_if_missing(socket.list(&what, request(GET_ELEMENT, table.family, attributes)))?;
    let lists = found.iter().filter_map(|object| value(object, ELEMENTS));
    let all = lists.flat_map(message::attributes).filter(|(kind, _)| *kind == LIST_ITEM);
    Ok(all.filter_map(|(_, element)| read_element(element)).collect())
}

/// The element of a map with this key, if there is one.
///
/// # Errors
/// If the kernel does not answer.
pub fn element(
    socket: &mut Socket,
    table: Table<'_>,
    map: &str,
    key: &[u8],
) -> Result<Option<Element>, NetlinkError> {
    let list = Attributes::new().with_nested(LIST_ITEM, &key_of(key));
    let attributes = Attributes::new()
        .with_text(ELEMENTS_TABLE, table.name)
        .with_text(ELEMENTS_SET, map)
        .with_nested(ELEMENTS, &list);
    let what = format!("find an element of the map {map}");
    let found = socket.get(&what, request(GET_ELEMENT, table.family, attributes))?;
    let list = found.as_ref().and_then(|object| value(object, ELEMENTS));
    Ok(list.and_then(|list| read_element(message::find(list, LIST_ITEM)?)))
}

fn read_element(bytes: &[u8]) -> Option<Element> {
    let data = |kind: u16| message::find(message::find(bytes, kind)?, DATA_VALUE);
    Some(Element {
        key: data(ELEMENT_KEY)?.to_vec(),
        value: data(ELEMENT_DATA).unwrap_or_default().to_vec(),
        comment: comment(message::find(bytes, ELEMENT_USER_DATA)),
    })
}

/// There is no table, or no map.
fn none_if_missing(listed: Result<Vec<Object>, NetlinkError>) -> Result<Vec<Object>, NetlinkError> {
    match listed {
        Err(error) if error.errno() == Some(rustix::io::Errno::NOENT) => Ok(Vec::new()),
        listed => listed,
    }
}

/// The comment in user data, which is a list of kinds, lengths and values.
fn comment(user_data: Option<&[u8]>) -> String {
    let mut rest = user_data.unwrap_or_default();
    while let [kind, len, values @ ..] = rest {
        let value = values.get(..usize::from(*len));
        if *kind == COMMENT {
            return value.map(message::read_text).unwrap_or_default();
        }
        rest = values.get(usize::from(*len)..).unwrap_or_default();
    }
    String::new()
}

fn request(kind: u16, family: Family, attributes: Attributes) -> Message {
    Message { kind: (SUBSYSTEM << 8) | kind, flags: 0, fixed: vec![family.number(), 0, 0, 0], attributes }
}

fn value(object: &Object, wanted: u16) -> Option<&[u8]> {
    message::find_after(&object.body, HEADER_LEN, wanted)
}

fn text(object: &Object, kind: u16) -> String {
    value(object, kind).map(message::read_text).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_are_found_among_other_user_data() {
        assert_eq!(comment(None), "");
        assert_eq!(comment(Some(&[0, 3, b'a', b'b', 0])), "ab");
        assert_eq!(comment(Some(&[7, 1, 9, 0, 2, b'c', 0])), "c");
        for torn in [&[0][..], &[0, 9, b'a'], &[7, 9, 1], &[7], &[0, 0]] {
            assert_eq!(comment(Some(torn)), "");
        }
    }

    #[test]
    fn torn_objects_are_read() {
        for len in 0..40 {
            for fill in [0, 1, 4, 8, 0xff] {
                let object = Object { kind: 0, body: vec![fill; len] };
                let chain = read_chain(&object);
                assert!(chain.hook.is_none() || len > 16);
                let _ = read_element(&object.body);
            }
        }
    }
}
