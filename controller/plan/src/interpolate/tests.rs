//! Interpolation by example.

extern crate std;

use std_alloc::{format, string::ToString, vec};

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::env::{Inputs, TaskEnv, build, fixture};

fn env() -> TaskEnv {
    let (alloc, node, mut task) = (fixture::alloc(), fixture::node(), fixture::task());
    task.env = fixture::variables(&[("NAME", "v"), ("x.y", "dotted"), ("node.class", "mine")]);
    build(&Inputs { task: Some(&task), ..Inputs::new(&alloc, &node) })
}

#[test]
fn plain_text() {
    let env = env();
    for (text, expected) in [
        ("", ""),
        ("plain", "plain"),
        ("${NAME}", "v"),
        ("a${NAME}b${NAME}", "avbv"),
        ("${x.y} ${attr.kernel.name} ${meta.rack}", "dotted linux r7"),
        ("${node.unique.id} ${node.unique.name} ${node.datacenter}", "n-1 box dc1"),
        ("${node.region} ${node.pool}", "global default"),
        // Variables come before facts of the node.
        ("${node.class}", "mine"),
        ("${unknown.var}", "${unknown.var}"),
        ("${NAME", "${NAME"),
        ("${}", "${}"),
        ("${NAME x}", "${NAME x}"),
        ("${ NAME }", "${ NAME }"),
        ("$NAME $${NAME} ${${NAME}}", "$NAME $v ${v}"),
        ("${env[\"x.y\"]}", "${env[\"x.y\"]}"),
        ("ü${NAME}ü$", "üvü$"),
    ] {
        assert_eq!(env.interpolate(text), expected, "{text}");
    }
}

#[test]
fn a_text_that_would_grow_too_long_stays_as_written() {
    let long = "x".repeat(2000);
    let text = "${A}".repeat(1000);
    assert_eq!(replace(&text, OUTPUT_BYTES_MAX, |_| Some(&long)), text);
    assert_eq!(replace("${A}", 2_000, |_| Some(&long)), long);
    assert_eq!(replace("${A}", 1_999, |_| Some(&long)), "${A}");
}

#[test]
fn variables_have_names() {
    let found: std_alloc::vec::Vec<&str> = variables("${} ${A} ${B c} ${D.e}").collect();
    assert_eq!(found, ["A", "D.e"]);
}

#[test]
fn config_forms() {
    let config = json!({
        "command": "${NAME}",
        "args": ["-p", "${NOMAD_PORT_http}", 7, true, null, "$${NAME} ${ env[\"x.y\"] } ${env.NAME}"],
        "deep": {"${NAME}": "${attr.kernel.name}/${meta.rack}/${meta[\"a b\"]}/${node.unique.name}/${node.datacenter}"},
        "percent": "100% $ $$ }",
    });
    let expected = json!({
        "command": "v",
        "args": ["-p", "8080", 7, true, null, "${NAME} dotted v"],
        "deep": {"${NAME}": "linux/r7/blank/box/dc1"},
        "percent": "100% $ $$ }",
    });
    assert_eq!(interpolate_config(&config, &env()).unwrap(), expected);
}

#[test]
fn config_errors_name_the_place() {
    for (config, expected) in [
        (
            json!({"args": ["a", "${NOPE}"]}),
            "interpolate config.args[1]: there is no variable \"NOPE\" (write $${ for a literal ${)",
        ),
        (
            json!({"a": {"b": "${env[\"no.pe\"]}"}}),
            "interpolate config.a.b: there is no variable \"env[\\\"no.pe\\\"]\" (write $${ for a literal ${)",
        ),
        (
            json!({"a": "${HOME:-x}"}),
            "interpolate config.a: \"HOME:-x\" is not a variable (write $${ for a literal ${)",
        ),
        (
            json!({"a": "${upper(NAME)}"}),
            "interpolate config.a: \"upper(NAME)\" is not a variable (write $${ for a literal ${)",
        ),
        (json!({"a": "${}"}), "interpolate config.a: \"\" is not a variable (write $${ for a literal ${)"),
        // A brace within quotes ends nothing.
        (
            json!({"a": "${env[\"no}pe\"]}"}),
            "interpolate config.a: there is no variable \"env[\\\"no}pe\\\"]\" (write $${ for a literal ${)",
        ),
        (json!({"a": "x ${NAME"}), "interpolate config.a: a ${ is not closed (write $${ for a literal ${)"),
        // `env` contains only variables, no facts of the node.
        (
            json!({"a": "${env[\"meta.rack\"]}"}),
            "interpolate config.a: there is no variable \"env[\\\"meta.rack\\\"]\" (write $${ for a literal ${)",
        ),
    ] {
        assert_eq!(interpolate_config(&config, &env()).unwrap_err().to_string(), expected);
    }
}

#[test]
fn config_is_bounded() {
    let half = Value::String("x".repeat(OUTPUT_BYTES_MAX / 2 + 1));
    assert!(interpolate_config(&json!([half]), &env()).is_ok());
    let error = interpolate_config(&json!({"a": [half, half]}), &env()).unwrap_err();
    assert_eq!(error, ConfigError::TooLong { path: "a[1]".into() });
    let deep = (0..200).fold(Value::Null, |inner, _| Value::Array(vec![inner]));
    assert!(matches!(interpolate_config(&deep, &env()), Err(ConfigError::TooDeep { .. })));
    let wide = Value::Array(vec![json!({"a": [1]}); 200]);
    assert!(interpolate_config(&wide, &env()).is_ok());
}

fn texts() -> impl Strategy<Value = String> {
    prop_oneof![".{0,40}", "(\\$|\\{|\\}|\"|\\[|\\]|env|NAME|ü| |\\.){0,16}"]
}

fn configs() -> impl Strategy<Value = Value> {
    texts().prop_map(Value::String).prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::Array),
            proptest::collection::btree_map(".{0,4}", inner, 0..4)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn text_without_variables_is_untouched(text in texts()) {
        let env = env();
        let out = env.interpolate(&text);
        if !text.contains("${") {
            prop_assert_eq!(&out, &text);
            prop_assert_eq!(env.interpolate(&out), out);
            prop_assert_eq!(interpolate_config(&json!([text]), &env), Ok(json!([text])));
        }
    }

    #[test]
    fn pieces_cover_the_text(text in texts()) {
        prop_assert_eq!(replace(&text, OUTPUT_BYTES_MAX, |_| None), text);
    }

    #[test]
    fn config_never_panics(config in configs()) {
        let _ = interpolate_config(&config, &env());
    }

    #[test]
    fn escaped_config_comes_back(text in texts()) {
        prop_assume!(!text.contains("$$") );
        let escaped = text.replace("${", "$${");
        prop_assert_eq!(interpolate_config(&json!({"a": escaped}), &env()), Ok(json!({"a": text})));
    }

    #[test]
    fn known_variables_are_replaced_anywhere(before in "[^$]{0,20}", after in "[^$]{0,20}") {
        prop_assert_eq!(env().interpolate(&format!("{before}${{NAME}}{after}")), format!("{before}v{after}"));
    }
}
