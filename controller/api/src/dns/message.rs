//! Builds the answer to a DNS query.
//!
//! In: the bytes of a query, its transport, and the zone. Out: the answer, or none if the bytes are not a query. It must not know
//! sockets.

use std::{
    collections::BTreeSet,
    hash::{BuildHasher as _, Hash, RandomState},
    net::IpAddr,
    str::FromStr as _,
};

use domain::{
    base::{
        Message, MessageBuilder, Name, ParsedName, Question, RecordData as _, Rtype, Serial, ToName as _,
        Ttl,
        iana::{Class, Opcode, OptRcode},
        message_builder::{AdditionalBuilder, AnswerBuilder, StaticCompressor},
        name::ToLabelIter as _,
    },
    rdata::{A, Aaaa, Soa, Srv, ZoneRecordData},
};

use super::zone::{Endpoint, Found, Host, ZONE, Zone, name_of};

/// Payload of a datagram if the client has no EDNS (RFC 1035), and the smallest that EDNS may advertise (RFC 6891).
const UDP_LEAST: u16 = 512;
/// Largest payload of our datagrams: no path fragments it (DNS flag day 2020).
const UDP_MAX: u16 = 1_232;
/// An answer to an address that may be forged has at most this many times the size of the query, as in QUIC (RFC 9000 §8.1), so the
/// server is no use for amplification attacks. A larger answer is truncated and marked so, and resolvers retry over TCP.
const AMPLIFICATION_MAX: usize = 3;
/// Size of our own OPT record.
const OPT_LEN: usize = 11;
/// Answers are not cached: the list changes with every check.
const TTL: Ttl = Ttl::ZERO;

type Bytes = Vec<u8>;
type Target = StaticCompressor<Bytes>;
type Data = ZoneRecordData<Bytes, Name<Bytes>>;

/// All instances have the same priority and weight.
const PRIORITY: u16 = 1;
const WEIGHT: u16 = 1;

/// The transport of a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Over {
    /// A datagram from this machine.
    Loopback,
    /// A datagram from another machine. Its source address may be forged.
    Udp,
    Tcp,
}

struct Reply {
    code: OptRcode,
    /// None if the query has no valid question.
    question: Option<(Name<Bytes>, Rtype)>,
    found: Found,
}

/// Returns the answer to a query, or none if the message is too short or is itself an answer.
pub fn answer(query: &[u8], over: Over, zone: &Zone) -> Option<Bytes> {
    let query = Message::from_octets(query).ok().filter(|query| !query.header().qr())?;
    let opt = query.opt();
    let limit = match (over, &opt) {
        (Over::Tcp, _) => u16::MAX,
        (Over::Loopback | Over::Udp, None) => UDP_LEAST,
        (Over::Loopback | Over::Udp, Some(opt)) => opt.udp_payload_size().clamp(UDP_LEAST, UDP_MAX),
    };
    let limit = match over {
        Over::Loopback | Over::Tcp => usize::from(limit),
        Over::Udp => usize::from(limit).min(AMPLIFICATION_MAX * query.as_slice().len()),
    };
    let Reply { code, question, found } = match &opt {
        Some(opt) if opt.version() > 0 => Reply::error(OptRcode::BADVERS),
        Some(_) | None => judge(&query, zone),
    };
    let mut builder = MessageBuilder::from_target(StaticCompressor::new(Vec::new())).ok()?;
    builder.set_push_limit(limit - opt.as_ref().map_or(0, |_| OPT_LEN));
    let mut answer = builder.start_error(&query, code.rcode());
    answer.header_mut().set_aa(found.is_ours());
    let mut additional = match question {
        Some((name, kind)) => write(answer, &name, kind, &found),
        None => answer.additional(),
    };
    if opt.is_some() {
        additional.clear_push_limit();
        let written = additional.opt(|opt| {
            opt.set_udp_payload_size(UDP_MAX);
            opt.set_rcode(code);
            Ok(())
        });
        written.ok()?;
    }
    Some(additional.finish().into_target())
}

/// Whether a query is for a name of another zone.
pub(super) fn is_of_others(query: &[u8]) -> bool {
    let Ok(query) = Message::from_octets(query) else { return false };
    let header = query.header();
    if header.qr() || header.opcode() != Opcode::QUERY {
        return false;
    }
    let Ok(question) = query.sole_question() else { return false };
    let is_transfer = matches!(question.qtype(), Rtype::AXFR | Rtype::IXFR);
    let is_known = question.qclass() == Class::IN && !is_transfer;
    is_known && labels(&question).last().is_none_or(|last| last != ZONE)
}

/// The answer to a query that no server answers.
pub(super) fn server_failure(query: &[u8]) -> Option<Bytes> {
    let query = Message::from_octets(query).ok()?;
    let builder = MessageBuilder::from_target(StaticCompressor::new(Vec::new())).ok()?;
    let mut answer = builder.start_error(&query, OptRcode::SERVFAIL.rcode());
    answer.header_mut().set_ra(true);
    Some(answer.finish().into_target())
}

/// Whether an answer has the question of a query.
pub(super) fn has_same_question(answer: &[u8], query: &[u8]) -> bool {
    let (Ok(answer), Ok(query)) = (Message::from_octets(answer), Message::from_octets(query)) else {
        return false;
    };
    match (answer.sole_question(), query.sole_question()) {
        (Ok(answer), Ok(query)) => answer == query,
        _ => false,
    }
}

impl Reply {
    fn error(code: OptRcode) -> Self {
        Self { code, question: None, found: Found::Elsewhere }
    }
}

fn judge(query: &Message<&[u8]>, zone: &Zone) -> Reply {
    if query.header().opcode() != Opcode::QUERY {
        return Reply::error(OptRcode::NOTIMP);
    }
    let Ok(question) = query.sole_question() else { return Reply::error(OptRcode::FORMERR) };
    let is_ours = matches!(question.qclass(), Class::IN | Class::ANY);
    if !is_ours || matches!(question.qtype(), Rtype::AXFR | Rtype::IXFR) {
        return Reply::error(OptRcode::REFUSED);
    }
    let found = zone.look_up(&labels(&question));
    let code = match found {
        Found::Elsewhere => OptRcode::REFUSED,
        Found::Unknown => OptRcode::SERVFAIL,
        Found::Nothing => OptRcode::NXDOMAIN,
        Found::Apex | Found::Name(_) => OptRcode::NOERROR,
    };
    Reply { code, question: Some((question.qname().to_vec(), question.qtype())), found }
}

fn labels(question: &Question<ParsedName<&[u8]>>) -> Vec<String> {
    let labels = question.qname().iter_labels().filter(|label| !label.is_root());
    // A label that is not UTF-8 matches no name.
    labels.map(|label| String::from_utf8_lossy(label.as_slice()).to_ascii_lowercase()).collect()
}

/// Writes as many of the requested records as fit, or the SOA record if there are none.
fn write(
    mut answer: AnswerBuilder<Target>,
    name: &Name<Bytes>,
    kind: Rtype,
    found: &Found,
) -> AdditionalBuilder<Target> {
    let Records { asked, beside } = Records::of(kind, found);
    let is_none = asked.is_empty() && found.is_ours();
    if asked.into_iter().any(|record| answer.push((name, TTL, record)).is_err()) {
        answer.header_mut().set_tc(true);
    }
    let mut authority = answer.authority();
    if is_none && let (Some(zone), Some(record)) = (self::name(ZONE), start_of_authority()) {
        // Without room for the SOA record, the answer has the same meaning.
        let _ = authority.push((zone, TTL, record));
    }
    let mut additional = authority.additional();
    // These records are optional: a client can query for those that are left out.
    let _ = beside.into_iter().try_for_each(|(name, record)| additional.push((name, TTL, record)));
    additional
}

/// The records of an answer.
#[derive(Default)]
struct Records {
    asked: Vec<Data>,
    /// The addresses of the SRV targets.
    beside: Vec<(Name<Bytes>, Data)>,
}

impl Records {
    fn of(kind: Rtype, found: &Found) -> Self {
        match found {
            Found::Elsewhere | Found::Unknown | Found::Nothing => Self::default(),
            Found::Apex if matches_type(kind, Rtype::SOA) => {
                Self { asked: start_of_authority().into_iter().collect(), beside: Vec::new() }
            }
            Found::Apex => Self::default(),
            Found::Name(places) => Self::to(kind, places),
        }
    }

    fn to(kind: Rtype, places: &[Endpoint]) -> Self {
        let addresses = |is_meant: &dyn Fn(&Endpoint) -> bool| {
            let addresses =
                places.iter().filter(|place| is_meant(place)).filter_map(|place| match place.host {
                    Host::Address(address) => Some(address),
                    Host::Name(_) => None,
                });
            // Instances may share an address.
            shuffled(addresses.collect::<BTreeSet<_>>())
        };
        let mut records = Self::default();
        let of_kind = addresses(&|_| true).into_iter().map(address);
        records.asked.extend(of_kind.filter(|record| matches_type(kind, record.rtype())));
        if matches_type(kind, Rtype::SRV) {
            records.asked.extend(shuffled(places.iter().collect()).into_iter().filter_map(service));
            let targets = addresses(&|place| place.port.is_some()).into_iter();
            records.beside.extend(targets.filter_map(|ip| Some((name(&name_of(ip))?, address(ip)))));
        }
        records
    }
}

fn matches_type(kind: Rtype, one: Rtype) -> bool {
    kind == one || kind == Rtype::ANY
}

/// Returns the items in a new random order each time, to spread clients that always take the first one.
fn shuffled<T: Hash>(set: BTreeSet<T>) -> Vec<T> {
    let mut all: Vec<T> = set.into_iter().collect();
    let chance = RandomState::new();
    all.sort_by_cached_key(|one| chance.hash_one(one));
    all
}

fn address(address: IpAddr) -> Data {
    match address {
        IpAddr::V4(address) => A::new(address).into(),
        IpAddr::V6(address) => Aaaa::new(address).into(),
    }
}

/// The SRV record of an instance; none if it has no port or its host is not a valid name.
fn service(place: &Endpoint) -> Option<Data> {
    let target = match &place.host {
        Host::Address(address) => name(&name_of(*address))?,
        Host::Name(host) => name(host)?,
    };
    Some(Srv::new(PRIORITY, WEIGHT, place.port?, target).into())
}

/// The SOA record of the zone. Its name server and mailbox are placeholders that the record must contain.
fn start_of_authority() -> Option<Data> {
    let (server, mailbox) = (name(&format!("ns.{ZONE}"))?, name(&format!("hostmaster.{ZONE}"))?);
    Some(Soa::new(server, mailbox, Serial(1), TTL, TTL, TTL, TTL).into())
}

fn name(text: &str) -> Option<Name<Bytes>> {
    Name::from_str(text).ok()
}
