//! Operations on stored data: values of the state database, and the record of an attempt.

use std::hint::black_box;

use herdlet_agent::state_db::code;
use herdlet_api_types::{alloc::Allocation, job::Job};
use herdlet_plan::{record::RecordValue, state::Durable};
use herdlet_shim::record::{Process, Record, State};
use serde::de::DeserializeOwned;

use super::planner::records_of_one;

pub(super) fn encode_state() -> Box<dyn FnMut()> {
    encode(|value| matches!(value, RecordValue::AllocState(_)))
}

pub(super) fn decode_state() -> Box<dyn FnMut()> {
    decode::<Durable>(|value| matches!(value, RecordValue::AllocState(_)))
}

pub(super) fn encode_spec() -> Box<dyn FnMut()> {
    encode(|value| matches!(value, RecordValue::AllocSpec(_)))
}

pub(super) fn decode_spec() -> Box<dyn FnMut()> {
    decode::<Allocation>(|value| matches!(value, RecordValue::AllocSpec(_)))
}

pub(super) fn decode_job() -> Box<dyn FnMut()> {
    decode::<Job>(|value| matches!(value, RecordValue::JobVersion(_)))
}

pub(super) fn encode_attempt() -> Box<dyn FnMut()> {
    Box::new(|| {
        black_box(black_box(ATTEMPT).to_bytes());
    })
}

pub(super) fn decode_attempt() -> Box<dyn FnMut()> {
    let bytes = ATTEMPT.to_bytes();
    Box::new(move || {
        black_box(Record::from_bytes(black_box(&bytes)).expect("a record"));
    })
}

const ATTEMPT: Record = Record {
    driver: 0,
    state: State::Running,
    shim: Process { pid: 4_321, start_ticks: 987_654_321 },
    task: Process { pid: 4_322, start_ticks: 987_654_322 },
    dropped_bytes: 0,
};

fn stored(kind: fn(&RecordValue) -> bool) -> RecordValue {
    let mut values = records_of_one().into_iter().map(|(_, value)| value);
    values.find(kind).expect("a record of this kind")
}

fn encode(kind: fn(&RecordValue) -> bool) -> Box<dyn FnMut()> {
    let value = stored(kind);
    Box::new(move || {
        black_box(code::encode_value(black_box(&value)).expect("an encodable value"));
    })
}

fn decode<T: DeserializeOwned>(kind: fn(&RecordValue) -> bool) -> Box<dyn FnMut()> {
    let bytes = code::encode_value(&stored(kind)).expect("an encodable value");
    Box::new(move || {
        black_box(code::decode::<T>(black_box(&bytes)).expect("a decodable value"));
    })
}
