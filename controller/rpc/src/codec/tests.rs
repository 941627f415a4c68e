//! Examples of encoding and decoding, and all recorded messages of stock peers.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::*;
use crate::recordings;

#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct Node {
    name: String,
    attributes: std::collections::BTreeMap<String, String>,
    ports: Vec<u16>,
    #[serde(with = "bytes")]
    address: Vec<u8>,
    #[serde(with = "duration")]
    ttl: Duration,
    started_at: Time,
    drain: bool,
    weight: f64,
    child: Option<Box<Node>>,
    #[serde(flatten)]
    meta: Meta,
}

#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct Meta {
    #[serde(deserialize_with = "nil::or_default")]
    index: u64,
    #[serde(deserialize_with = "nil::or_default")]
    tags: Vec<String>,
}

fn node() -> Node {
    Node {
        name: "n".repeat(40),
        attributes: [("a".to_owned(), "b".to_owned())].into(),
        ports: vec![80, 200, 65_535],
        address: vec![0, 0xff, 0x80],
        ttl: Duration::from_secs(10),
        started_at: Time { seconds: 1_700_000_000, nanos: 5 },
        drain: true,
        weight: 0.5,
        child: Some(Box::default()),
        meta: Meta { index: u64::MAX, tags: vec!["x".to_owned()] },
    }
}

#[test]
fn encoded_message_is_decoded() {
    let bytes = encode(&node()).unwrap();
    assert_eq!(decode::<Node>(&bytes), Ok(node()));
    // The fields of the flattened struct are among the others.
    let value: Value = decode(&bytes).unwrap();
    assert_eq!(value.get("Index"), Some(&Value::Uint(u64::MAX)));
}

#[test]
fn messages_have_the_form_of_stock_peers() {
    let hex = |bytes: Vec<u8>| recordings::to_hex(&bytes);
    assert_eq!(hex(encode("Status.Ping").unwrap()), "ab5374617475732e50696e67");
    assert!(hex(encode(&"x".repeat(36)).unwrap()).starts_with("da002478"), "raw16, not str8");
    assert!(hex(encode(&"x".repeat(70_000)).unwrap()).starts_with("db00011170"));
    assert_eq!(hex(encode(&200_i64).unwrap()), "d100c8");
    assert_eq!(hex(encode(&200_u64).unwrap()), "ccc8");
    assert_eq!(hex(encode(&[-1_i64, -32, -33, 127, 128, -32_769]).unwrap()), "96ffe0d0df7fd10080d2ffff7fff");
    assert_eq!(hex(encode(&10_000_000_000_i64).unwrap()), "d300000002540be400");
    assert_eq!(hex(encode(&1.5_f32).unwrap()), "cb3ff8000000000000");
    assert_eq!(hex(encode(&Time::ZERO).unwrap()), "af010000000000000000".to_owned() + "00000000ffff");
    let time = Time { seconds: 0x0e_e293_0b71 - 62_135_596_800, nanos: 0x0d20_509c };
    assert_eq!(hex(encode(&time).unwrap()), "af010000000ee2930b710d20509cffff");
    #[derive(Serialize)]
    struct Empty {}
    assert_eq!(hex(encode(&Empty {}).unwrap()), "80");
    assert_eq!(hex(encode(&None::<u8>).unwrap()), "c0");
}

#[test]
fn nil_decodes_as_the_zero_value() {
    let names = [
        "Name",
        "Attributes",
        "Ports",
        "Address",
        "Ttl",
        "StartedAt",
        "Drain",
        "Weight",
        "Child",
        "Index",
        "Tags",
    ];
    let all = Value::Map(names.map(|name| (Value::Text(name.to_owned()), Value::Nil)).into());
    assert_eq!(decode::<Node>(&encode(&all).unwrap()), Ok(Node::default()));
    assert_eq!(decode::<Node>(&[0xc0]), Ok(Node::default()));
    assert_eq!(decode::<Node>(&[0x80]), Ok(Node::default()));
}

#[test]
fn all_forms_are_read_and_unknown_fields_skipped() {
    let text =
        [&[0x82, 0xd9, 4][..], b"Name", &[0xc4, 1], b"x", &[0xa1], b"?", &[0x92, 0xc0, 0x81, 0x01, 0xc2]]
            .concat();
    assert_eq!(decode::<Node>(&text).map(|node| node.name), Ok("x".to_owned()));
    for form in [&[0x07][..], &[0xcc, 7], &[0xcd, 0, 7], &[0xd2, 0, 0, 0, 7], &[0xcf, 0, 0, 0, 0, 0, 0, 0, 7]]
    {
        assert_eq!(decode::<u16>(form), Ok(7));
        assert_eq!(decode::<i64>(form), Ok(7));
        assert_eq!(decode::<f64>(form).map(|value| value as i64), Ok(7));
    }
    assert_eq!(decode::<i64>(&[0xd1, 0xff, 0xfe]), Ok(-2));
    assert_eq!(decode::<bool>(&[0x01]), Ok(true));
    assert_eq!(decode::<Vec<u8>>(&[0x92, 1, 2]), Ok(vec![1, 2]));
    assert_eq!(decode::<String>(&[0xa2, b'a', 0xff]), Ok("a\u{fffd}".to_owned()));
    assert_eq!(decode::<Value>(&[0xa2, b'a', 0xff]), Ok(Value::Bytes(vec![b'a', 0xff])));
    // 16 bytes: an offset with seconds.
    let time = [&[0xb0, 2][..], &[0; 8], &[0, 0, 0, 9], &[0, 60], &[5]].concat();
    assert_eq!(decode::<Time>(&time), Ok(Time { nanos: 9, ..Time::ZERO }));
}

#[test]
fn errors_name_the_place_and_not_the_value() {
    let deep = |child: &str| {
        Value::Map(vec![(
            Value::Text("Child".to_owned()),
            field("Ports", Value::List(vec![Value::Int(1), text(child)])),
        )])
    };
    fn text(text: &str) -> Value {
        Value::Text(text.to_owned())
    }
    fn field(name: &str, value: Value) -> Value {
        Value::Map(vec![(text(name), value)])
    }
    let error = decode::<Node>(&encode(&deep("secret")).unwrap()).unwrap_err();
    assert_eq!(error.to_string(), "decode Child.Ports[1]: a text instead of u16");
    let error = decode::<Node>(&encode(&field("Ttl", Value::Float(1.5))).unwrap()).unwrap_err();
    assert_eq!(error.to_string(), "decode Ttl: a float instead of i64");
    let error = decode::<Node>(&encode(&field("StartedAt", text("secret"))).unwrap()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "decode StartedAt: bytes that is not a time as Go's MarshalBinary writes it"
    );
    assert_eq!(decode::<u8>(&[0xd0, 0xff]).unwrap_err().to_string(), "decode an integer that is not u8");
    assert_eq!(decode::<u8>(&[1, 1]), Err(DecodeError::Trailing(1)));
    assert_eq!(decode::<u8>(&[0xcc]), Err(DecodeError::Cut));
    assert_eq!(decode::<u8>(&[]), Err(DecodeError::Cut));
}

#[test]
fn claimed_length_is_refused_at_once() {
    let limits = Limits { bytes: 1_000, depth: 3, values: 100 };
    let refused = |bytes: &[u8]| Extent::new(limits).of(bytes).unwrap_err();
    assert_eq!(refused(&[0xdb, 0xff, 0xff, 0xff, 0xff]), LimitError::Bytes(1_000));
    assert_eq!(refused(&[0xdf, 0xff, 0xff, 0xff, 0xff]), LimitError::Bytes(1_000));
    assert_eq!(refused(&[0xdc, 0, 101]), LimitError::Values(100));
    assert_eq!(refused(&[0x91, 0x91, 0x91, 0x91]), LimitError::Depth(3));
    assert_eq!(refused(&[0x91, 0xc1]), LimitError::Reserved(1));
    assert!(decode::<Value>(&vec![0x91; 200_000]).is_err());
    assert!(decode::<Value>(&[[0xdd, 0, 0x40, 0, 0].as_slice(), &vec![0xc0; 4 << 20]].concat()).is_err());
}

#[test]
fn message_end_is_found_in_any_pieces() {
    let bytes = encode(&node()).unwrap();
    let mut extent = Extent::new(Limits::BODY);
    for end in 0..bytes.len() {
        assert_eq!(extent.of(&bytes[..end]), Ok(None), "{end}");
    }
    let longer = [&bytes[..], &[0xc0]].concat();
    assert_eq!(extent.of(&longer), Ok(Some(bytes.len())));
    assert_eq!(Extent::new(Limits::BODY).of(&longer), Ok(Some(bytes.len())));
}

#[test]
fn times_are_moments() {
    for nanos in [0, 1, -1, i64::MAX, i64::MIN, 1_700_000_000_123_456_789] {
        assert_eq!(Time::from_unix_nanos(nanos).unix_nanos(), Some(nanos));
        assert_eq!(decode(&encode(&Time::from_unix_nanos(nanos)).unwrap()), Ok(Time::from_unix_nanos(nanos)));
    }
    assert!(Time::ZERO.is_zero() && Time::ZERO.unix_nanos().is_none());
    let now = std::time::SystemTime::now();
    assert_eq!(Time::from(now).try_into(), Ok(now));
}

/// Every recorded value decodes, and encodes to the recorded bytes.
#[test]
fn recorded_messages_round_trip() {
    let mut messages = 0;
    for message in recordings::messages() {
        let mut rest = &message.bytes[..];
        while !rest.is_empty() {
            let length =
                Extent::new(Limits::BODY).of(rest).unwrap().unwrap_or_else(|| panic!("{message} is cut"));
            let value: Value = decode(&rest[..length]).unwrap_or_else(|error| panic!("{message}: {error}"));
            assert!(encode(&value).unwrap() == rest[..length], "{message} is written differently");
            (messages, rest) = (messages + 1, &rest[length..]);
        }
    }
    assert!(messages > 900, "{messages}");
}
