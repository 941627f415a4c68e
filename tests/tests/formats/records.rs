//! Bytes of stored records: records of an earlier build can be read, and encode to the same bytes.

use std::{collections::BTreeSet, fmt::Write as _, fs};

use herdlet_agent::state_db::code::{self, Unreadable};
use herdlet_api_types::{alloc::Allocation, job::Job};
use herdlet_plan::{
    job::JobState,
    record::{Meta, RecordValue},
    shared::volume::VolumeState,
    state::Durable,
};
use herdlet_tests::sim::seeds::{MOMENTS, life_of};
use serde::{Serialize, de::DeserializeOwned};

use super::{assert_golden, root, writes};

const FILE: &str = "records.txt";

/// Number of lives from which records are taken.
const LIVES: u64 = 200;

#[test]
fn stored_records_keep_their_bytes() {
    if writes() {
        assert_golden(FILE, &choose());
    }
    let text = fs::read_to_string(root().join("tests/fixtures/formats").join(FILE)).expect("a golden file");
    assert!(text.lines().count() > 50, "the golden file has too few records");
    for (at, line) in text.lines().enumerate() {
        let (kind, hex) = line.split_once(' ').expect("a kind and bytes");
        let bytes = unhex(hex);
        match again(kind, &bytes) {
            Ok(written) if written == bytes => {}
            Ok(written) => panic!(
                "record {} ({kind}) encodes to other bytes than before\nbefore: {}\nnow:    {}",
                at + 1,
                String::from_utf8_lossy(&bytes),
                String::from_utf8_lossy(&written)
            ),
            Err(error) => panic!("cannot decode record {} ({kind}) any more: {error:?}", at + 1),
        }
    }
}

/// Decodes a record and encodes it again.
fn again(kind: &str, bytes: &[u8]) -> Result<Vec<u8>, Unreadable> {
    match kind {
        "meta" => reencode::<Meta>(bytes),
        "job" => reencode::<JobState>(bytes),
        "job-version" => reencode::<Job>(bytes),
        "volume" => reencode::<VolumeState>(bytes),
        "alloc-spec" => reencode::<Allocation>(bytes),
        "alloc-state" => reencode::<Durable>(bytes),
        other => panic!("{FILE} names an unknown kind of record: {other}"),
    }
}

fn reencode<T: Serialize + DeserializeOwned>(bytes: &[u8]) -> Result<Vec<u8>, Unreadable> {
    Ok(code::encode(&code::decode::<T>(bytes)?).expect("a value that can be written"))
}

fn kind_of(value: &RecordValue) -> &'static str {
    match value {
        RecordValue::Meta(_) => "meta",
        RecordValue::Job(_) => "job",
        RecordValue::JobVersion(_) => "job-version",
        RecordValue::Volume(_) => "volume",
        RecordValue::AllocSpec(_) => "alloc-spec",
        RecordValue::AllocState(_) => "alloc-state",
    }
}

/// Chooses records of simulated lives, each with a name that no earlier one contains.
fn choose() -> Vec<String> {
    let mut known = BTreeSet::new();
    let mut chosen = Vec::new();
    for seed in 0..LIVES {
        let mut life = life_of(seed).with_journal();
        life.live(MOMENTS).expect("a life without violations");
        for value in life.journal() {
            let kind = kind_of(value);
            let bytes = code::encode_value(value).expect("a value that can be written");
            let found = words(&bytes).into_iter().map(|word| (kind, word)).collect::<BTreeSet<_>>();
            if !found.is_subset(&known) {
                known.extend(found);
                chosen.push(format!("{kind} {}", hex(&bytes)));
            }
        }
    }
    chosen
}

/// Finds short lower-case strings in msgpack: names of fields and of variants, and little else.
fn words(bytes: &[u8]) -> Vec<String> {
    let word = |at: usize| {
        let len = usize::from(bytes[at].checked_sub(0xa0).filter(|len| (2..32).contains(len))?);
        let text = std::str::from_utf8(bytes.get(at + 1..at + 1 + len)?).ok()?;
        text.bytes().all(|byte| byte.is_ascii_alphabetic() || byte == b'_').then(|| text.to_owned())
    };
    (0..bytes.len()).filter_map(word).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("writing to a String succeeds");
        text
    })
}

fn unhex(text: &str) -> Vec<u8> {
    let pair = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).expect("two hexadecimal digits");
    (0..text.len()).step_by(2).map(pair).collect()
}
