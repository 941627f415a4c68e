//! Trees → Rust types.

use std::collections::BTreeMap;

use herdlet_api_types::Duration;
use serde::Deserialize;

use super::model::{Hook, Kind, Manifest};
use super::*;

fn read<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, String> {
    let document = document(text);
    from_node(&document.root()).map_err(|problem| problem.to_string().replace("t.yaml:", ""))
}

#[test]
fn strings_take_the_source_text_of_any_scalar() {
    let map: BTreeMap<String, String> =
        read("a: 1.10\nb: no\nc: 0x10\nd: 8080\ne: 'x'\nf: true\ng: |\n  l\nh: \"\"\n1: TRUE\n").unwrap();
    let expected = [
        ("1", "TRUE"),
        ("a", "1.10"),
        ("b", "no"),
        ("c", "0x10"),
        ("d", "8080"),
        ("e", "x"),
        ("f", "true"),
        ("g", "l\n"),
        ("h", ""),
    ];
    assert_eq!(map, expected.iter().map(|(key, text)| ((*key).to_owned(), (*text).to_owned())).collect());
    assert_eq!(
        read::<BTreeMap<String, String>>("a: x\nb:\n"),
        Err("2:1: b: is empty; remove it or give it a value".to_owned())
    );
    assert_eq!(
        read::<BTreeMap<String, String>>("a: [x]\n"),
        Err("1:4: a: expected a string, found a list".to_owned())
    );
}

#[test]
fn numbers_and_booleans_are_never_guessed() {
    assert_eq!(read::<Vec<u16>>("[80, 0x10]"), Ok(vec![80, 16]));
    assert_eq!(
        read::<Vec<u16>>("[80, '81']"),
        Err("1:6: [1]: expected an integer, found the string \"81\"".to_owned())
    );
    assert_eq!(
        read::<Vec<u8>>("[300]"),
        Err("1:2: [0]: invalid value: integer `300`, expected u8".to_owned())
    );
    assert_eq!(read::<Vec<i64>>("[-5, 9223372036854775807]"), Ok(vec![-5, i64::MAX]));
    assert_eq!(read::<Vec<u64>>("[18446744073709551615]"), Ok(vec![u64::MAX]));
    assert!(read::<Vec<u64>>("[18446744073709551616]").is_err());
    assert_eq!(read::<Vec<f64>>("[1, 1.5]"), Ok(vec![1.0, 1.5]));
    assert_eq!(
        read::<Vec<i64>>("[1.0]"),
        Err("1:2: [0]: expected an integer, found the number 1.0".to_owned())
    );
    assert_eq!(read::<Vec<bool>>("[true, False]"), Ok(vec![true, false]));
    assert_eq!(
        read::<Vec<bool>>("[yes]"),
        Err("1:2: [0]: expected true or false, found the string \"yes\"".to_owned())
    );
    assert_eq!(read::<Vec<Option<u8>>>("[1, ~, null]"), Ok(vec![Some(1), None, None]));
    assert_eq!(read::<(u8, String)>("[1, x]"), Ok((1, "x".to_owned())));
    assert!(read::<(u8, String)>("[1, x, y]").is_err());
    assert_eq!(read::<BTreeMap<u16, char>>("80: x\n443: y\n"), Ok(BTreeMap::from([(80, 'x'), (443, 'y')])));
    assert!(read::<BTreeMap<u16, char>>("x: y\n").unwrap_err().starts_with("1:1: x: "));
    assert_eq!(read::<Vec<Duration>>("[1h30m, '0']"), Ok(vec![Duration::from_secs(5400), Duration::ZERO]));
}

#[test]
fn enums_are_names_or_maps_with_one_key() {
    assert_eq!(read::<Vec<Kind>>("[service, batch]"), Ok(vec![Kind::Service, Kind::Batch]));
    assert!(
        read::<Vec<Kind>>("[service, servce]")
            .unwrap_err()
            .starts_with("1:11: [1]: unknown variant `servce`")
    );
    assert_eq!(read::<Hook>("none\n"), Ok(Hook::None));
    assert_eq!(read::<Hook>("exec: {command: x}\n"), Ok(Hook::Exec { command: "x".to_owned() }));
    assert_eq!(
        read::<Vec<Hook>>("- http: {port: x}\n"),
        Err("1:16: [0].http.port: expected an integer, found the string \"x\"".to_owned())
    );
    assert_eq!(read::<Vec<Hook>>("- http\n"), Err("1:3: [0]: `http` needs a value: `http: …`".to_owned()));
    assert!(read::<Vec<Hook>>("- {exec: {}, http: {}}\n").is_err());
}

#[test]
fn errors_stand_where_the_value_is() {
    #[derive(Debug, PartialEq, Deserialize)]
    struct Outer {
        #[serde(default)]
        inner: Vec<Inner>,
    }
    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Inner {
        name: String,
    }
    let error = |text: &str| read::<Outer>(text).unwrap_err();
    assert_eq!(
        error("inner:\n  - name: x\n  - nmae: y\n"),
        "3:5: inner[1].nmae: unknown field `nmae`, expected `name`"
    );
    assert_eq!(error("inner:\n  - name: x\n  - {}\n"), "3:5: inner[1]: missing field `name`");
    assert_eq!(error("inner: x\n"), "1:8: inner: expected a list, found the string \"x\"");
    assert_eq!(error("- x\n"), "1:1: expected a map, found a list");
}

#[test]
fn a_part_of_a_document_is_read_with_its_path() {
    let document = document("spec:\n  config: {port: 80}\n  other: {port: x}\n");
    let read = |path: &str| from_node::<BTreeMap<String, u16>>(&document.at(path).unwrap());
    assert_eq!(read("spec.config").unwrap(), BTreeMap::from([("port".to_owned(), 80)]));
    assert!(read("spec.other").unwrap_err().to_string().starts_with("t.yaml:3:17: spec.other.port: "));
}

#[test]
fn json_values_keep_their_types() {
    let value: serde_json::Value = read("{a: [1, 1.5, x, true, ~, -3], b: {c: '1'}}").unwrap();
    assert_eq!(value, serde_json::json!({"a": [1, 1.5, "x", true, null, -3], "b": {"c": "1"}}));
}

#[test]
fn extension_fields_of_the_root_are_ignored_on_request() {
    let mut document = document("x-common: &common {cpu: 1}\nspec: {groups: []}\n");
    assert!(from_node::<Manifest>(&document.root()).is_err());
    document.ignore_fields("x-");
    assert!(check(&document.root(), &schema_for::<Manifest>()).is_empty());
    assert_eq!(from_node::<Manifest>(&document.root()).unwrap().spec.groups, []);
}
