//! Invariants for any response to a query for SRV records; for tests and fuzzing only.
//!
//! In: a response. Out: nothing, or a panic.

#![expect(clippy::unwrap_used, reason = "a broken invariant panics")]

use std::str::FromStr as _;

use domain::{
    base::{Message, MessageBuilder, Name, ToName as _, Ttl, iana::Rcode},
    rdata::Srv,
};
use herdlet_rpc::address::Address;

use super::{TARGETS_MAX, query, targets};

/// Reads the response and asserts the invariants. The first two bytes are used as the id of the query.
pub fn feed(answer: &[u8]) {
    let id = answer.first_chunk().copied().map_or(0, u16::from_be_bytes);
    let Ok(found) = targets(answer, id) else { return };
    assert!((1..=TARGETS_MAX).contains(&found.len()));
    for (host, port) in &found {
        assert!(!host.is_empty() && host.len() < 255, "{host:?}");
        assert!(host.bytes().all(|byte| byte.is_ascii_graphic()), "a terminal would obey this: {host:?}");
        // An invalid host is refused here rather than dialled.
        let _ = format!("{host}:{port}").parse::<Address>();
    }
    assert!(targets(answer, id.wrapping_add(1)).is_err(), "an answer to another question");
    assert_eq!(targets(answer, id), Ok(found));
}

/// Responses to start from.
pub fn seeds() -> Vec<Vec<u8>> {
    let question = query("_nomad._tcp.example.org", 7).unwrap();
    let (one, other) = ((1, 9, 4647, "a.example.org"), (2, 0, 4747, "b.example.org"));
    [&[one, other][..], &[one], &[], &[(0, 0, 0, ".")], &[one; 70]]
        .into_iter()
        .flat_map(|records| [answer(&question, records, false), answer(&question, records, true)])
        .collect()
}

/// A response to a query with these records: priority, weight, port and host.
pub(super) fn answer(query: &[u8], records: &[(u16, u16, u16, &str)], is_cut: bool) -> Vec<u8> {
    let query = Message::from_octets(query.to_vec()).unwrap();
    let mut answer = MessageBuilder::new_vec().start_answer(&query, Rcode::NOERROR).unwrap();
    answer.header_mut().set_tc(is_cut);
    for (priority, weight, port, host) in records {
        let host = Name::<Vec<u8>>::from_str(host).unwrap();
        let name = query.sole_question().unwrap().qname().to_vec();
        answer.push((name, Ttl::ZERO, Srv::new(*priority, *weight, *port, host))).unwrap();
    }
    answer.finish()
}
