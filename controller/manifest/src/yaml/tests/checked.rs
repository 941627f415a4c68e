//! Validation against schemas: every keyword, every shape, and the messages.

use super::model::Manifest;
use super::*;

/// Returns the problems of a manifest with one task, given its fields on one line, without line and path
/// prefix.
fn task(fields: &str) -> String {
    let text = format!("spec: {{groups: [{{name: g, tasks: [{{name: t, {fields}}}]}}]}}\n");
    problem_at(&text, "spec.groups[0].tasks[0]")
}

fn group(fields: &str) -> String {
    problem_at(&format!("spec: {{groups: [{{name: g, {fields}}}]}}\n"), "spec.groups[0]")
}

fn problem_at(text: &str, inside: &str) -> String {
    let document = document(text);
    let lines = check(&document.root(), &schema_for::<Manifest>()).into_vec();
    let lines = lines.into_iter().map(|problem| {
        let path = problem.path.strip_prefix(inside).unwrap_or(&problem.path);
        format!("{}: {}", path.strip_prefix('.').unwrap_or(path), problem.message)
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn a_good_manifest_has_no_problems() {
    for fields in [
        "driver: raw_exec, leader: true, hook: none",
        "env: {PORT: 8080, V: 1.10, NO: no, T: true, Q: \"\", H: 0x10}",
        "config: {command: sh, args: [-c, 8080, 1.10, no, \"\"]}",
        "resources: {cpu: 100, memory: 64}",
        "hook: {exec: {command: x}}",
        "hook: {http: {port: 80}}",
        "weights: [1, 2.5]",
    ] {
        assert_eq!(task(fields), "", "{fields}");
    }
    for interval in ["30s", "1h30m", "0", "'0'", "\"5m\"", "1.5h", "+3s", "250ms", "100us"] {
        assert_eq!(group(&format!("restart: {{interval: {interval}}}")), "", "{interval}");
    }
    assert_eq!(group("network: {ports: {http: {}, a: {static: 8080, to: 80}}}"), "");
}

#[test]
fn duration_errors_suggest_a_value() {
    let expected = "expected a duration such as 30s, 5m or 1h30m, found";
    for (text, message) in [
        ("60", format!("{expected} the integer 60; write 60s")),
        ("45", format!("{expected} the integer 45; write 45s")),
        ("\"60\"", format!("{expected} the string \"60\"; write 60s")),
        ("1.5", format!("{expected} the number 1.5; write 1.5s")),
        ("7d", format!("{expected} the string \"7d\"; write 168h")),
        ("1w2d", format!("{expected} the string \"1w2d\"; write 216h")),
        ("5 minutes", format!("{expected} the string \"5 minutes\"; write 5m")),
        ("1H", format!("{expected} the string \"1H\"; write 1h")),
        ("30 sec", format!("{expected} the string \"30 sec\"; write 30s")),
        ("soon", "`soon` is not a duration such as 30s, 5m or 1h30m".to_owned()),
        ("10x", "`10x` has the unknown unit `x`; the units are ns, us, ms, s, m and h".to_owned()),
        ("-5s", "must not be negative, found -5s".to_owned()),
        ("3000000h", "`3000000h` is longer than the 292 years a duration can hold".to_owned()),
        ("true", format!("{expected} the boolean true")),
        ("[5s]", format!("{expected} a list")),
        ("''", "`` is not a duration such as 30s, 5m or 1h30m".to_owned()),
    ] {
        assert_eq!(group(&format!("restart: {{interval: {text}}}")), format!("restart.interval: {message}"));
    }
}

#[test]
fn size_and_clock_errors_suggest_a_value() {
    let expected = "expected MiB as an integer, found";
    for (text, message) in [
        ("512Mi", format!("{expected} the string \"512Mi\"; write 512")),
        ("512M", format!("{expected} the string \"512M\"; write 512")),
        ("512MB", format!("{expected} the string \"512MB\"; write 512")),
        ("512 MiB", format!("{expected} the string \"512 MiB\"; write 512")),
        ("1Gi", format!("{expected} the string \"1Gi\"; write 1024")),
        ("1.5G", format!("{expected} the string \"1.5G\"; write 1536")),
        ("65536Ki", format!("{expected} the string \"65536Ki\"; write 64")),
        ("536870912b", format!("{expected} the string \"536870912b\"; write 512")),
        ("64.0", format!("{expected} the number 64.0; write 64")),
        ("64.5", format!("{expected} the number 64.5")),
        ("\"64\"", format!("{expected} the string \"64\"; remove the quotes")),
        ("lots", format!("{expected} the string \"lots\"")),
        ("100Q", format!("{expected} the string \"100Q\"")),
        ("true", format!("{expected} the boolean true")),
        ("{}", format!("{expected} a map")),
        ("-5", "must be at least 10, found -5".to_owned()),
        ("", "is empty; remove it or give it a value".to_owned()),
    ] {
        assert_eq!(task(&format!("resources: {{memory: {text}}}")), format!("resources.memory: {message}"));
    }
    let expected = "expected MHz as an integer, found";
    let cores = "cpu is in MHz, not in cores";
    for (text, message) in [
        ("500m", format!("{expected} the string \"500m\"; {cores}: 0.5 of a core of 2400 MHz is 1200")),
        ("0.5", format!("{expected} the number 0.5; {cores}: 0.5 of a core of 2400 MHz is 1200")),
        ("2 cores", format!("{expected} the string \"2 cores\"; {cores}: 2 of a core of 2400 MHz is 4800")),
        ("2.4GHz", format!("{expected} the string \"2.4GHz\"; write 2400")),
        ("500 MHz", format!("{expected} the string \"500 MHz\"; write 500")),
        ("\"500\"", format!("{expected} the string \"500\"; remove the quotes")),
        ("much", format!("{expected} the string \"much\"")),
        ("5000000000", "must be at most 4294967295, found 5000000000".to_owned()),
        ("0500", "0500 is octal for some YAML parsers and decimal for others; write 500 or 0o500".to_owned()),
    ] {
        assert_eq!(task(&format!("resources: {{cpu: {text}}}")), format!("resources.cpu: {message}"));
    }
}

#[test]
fn type_errors_name_found_and_expected() {
    for (fields, expected) in [
        ("driver: 5", "driver: expected a string, found the integer 5; write \"5\""),
        ("driver: [x]", "driver: expected a string, found a list"),
        ("driver: \"\"", "driver: must not be the empty string"),
        ("driver:", "driver: is empty; remove it or give it a value"),
        ("leader: yes", "leader: expected true or false, found the string \"yes\"; write true"),
        (
            "leader: \"false\"",
            "leader: expected true or false, found the string \"false\"; remove the quotes",
        ),
        ("leader: 0", "leader: expected true or false, found the integer 0; write false"),
        ("env: [A=1]", "env: expected a map, found a list; write `key: value` lines without `- `"),
        ("env: {A: }", "env.A: is empty; write \"\" for an empty string, or remove it"),
        ("env: {A: {}}", "env.A: expected a string, found a map"),
        (
            "env: {A: \"x\\0\"}",
            "env.A: contains a NUL character, which is not allowed in environments and arguments",
        ),
        ("weights: 5", "weights: expected a list, found the integer 5; write [5]"),
        ("weights: {a: 1}", "weights: expected a list, found a map; begin each item with `- `"),
        (
            "weights: ['1', x]",
            "weights[0]: expected a number, found the string \"1\"; remove the quotes\nweights[1]: expected a number, found the string \"x\"",
        ),
        ("weights: [1, 2, 3]", "weights: takes at most 2 items, has 3"),
        ("config: {args: x}", "config.args: expected a list, found the string \"x\"; write [x]"),
        ("config: {args: [~]}", "config.args[0]: is empty; write \"\" for an empty string, or remove it"),
        (
            "config: {command: [sh, -c, 'a b']}",
            "config.command: expected a string, found a list; write command: sh and args: [-c, \"a b\"]",
        ),
        (
            "config: {user: root}",
            "config.user: expected a map, found the string \"root\"; write user: {uid: 1000}",
        ),
        ("config: {user: {uid: 0x10}}", ""),
        (
            "resources: [{cpu: 1}]",
            "resources: expected a map, found a list; there is only one of these; remove the `- `",
        ),
        ("resources: []", "resources: expected a map, found a list; write {}"),
    ] {
        assert_eq!(task(fields), expected, "{fields}");
    }
    for (fields, expected) in [
        ("count: \"2\"", "count: expected an integer, found the string \"2\"; remove the quotes"),
        ("count: 2.0", "count: expected an integer, found the number 2.0; write 2"),
        ("count: 1_000", "count: expected an integer, found the string \"1_000\"; write 1000"),
        ("count: -1", "count: must be at least 0, found -1"),
        (
            "count: 99999999999999999999999999999999999999999999",
            "count: expected an integer, found the number 9999999999999999999999999999999999999999…",
        ),
        ("restart: {attempts: 256}", "restart.attempts: must be at most 255, found 256"),
        (
            "tasks: {web: {driver: x}}",
            "tasks: expected a list, found a map; write list items with a name: `- name: web`",
        ),
        ("tasks: {name: web}", "tasks: expected a list, found a map; begin each item with `- `"),
        (
            "network: {ports: {a: \"8080:80\"}}",
            "network.ports.a: expected a map, found the string \"8080:80\"; write {static: 8080, to: 80}",
        ),
        (
            "network: {ports: {a: 8080}}",
            "network.ports.a: expected a map, found the integer 8080; write {static: 8080}, or {to: 8080} for a dynamic port",
        ),
        (
            "network: {ports: {a: b:c}}",
            "network.ports.a: expected a map, found the string \"b:c\"; write {static: 8080} or {to: 80}, or {} for a dynamic port",
        ),
        ("network: {ports: {a: {static: 0}}}", "network.ports.a.static: must be at least 1, found 0"),
        ("network: {ports: {a: {to: 65536}}}", "network.ports.a.to: must be at most 65535, found 65536"),
        (
            "network: {ports: [a]}",
            "network.ports: expected a map, found a list; write `key: value` lines without `- `",
        ),
        ("network: {ports: {a: }}", "network.ports.a: is empty; remove it or give it a value"),
    ] {
        assert_eq!(group(fields), expected, "{fields}");
    }
}

#[test]
fn unknown_enum_value_lists_the_allowed_ones() {
    for (fields, expected) in [
        (
            "restart: {mode: dely}",
            "restart.mode: expected `delay` or `fail`, found the string \"dely\"; did you mean `delay`?",
        ),
        ("restart: {label: 0755}", ""),
        ("restart: {label: a/b}", "restart.label: must not contain `/` or `\\`; `a-b` would be valid"),
        ("restart: {mode: ~}", "restart.mode: is empty; remove it or give it a value"),
        ("restart: {mode: [delay]}", "restart.mode: expected `delay` or `fail`, found a list"),
        ("restart: {mode: 5}", "restart.mode: expected `delay` or `fail`, found the integer 5; write \"5\""),
    ] {
        assert_eq!(group(fields), expected, "{fields}");
    }
    let kind = |kind: &str| problem_at(&format!("spec: {{type: {kind}}}\n"), "spec");
    assert_eq!(kind("batch"), "");
    assert_eq!(
        kind("Service"),
        "type: expected `system`, `service` or `batch`, found the string \"Service\"; did you mean `service`?"
    );
    assert_eq!(kind("daemon"), "type: expected `system`, `service` or `batch`, found the string \"daemon\"");
    for (hook, expected) in [
        ("nothing", "hook: expected `none`, found the string \"nothing\""),
        ("{htpp: {port: 80}}", "hook: expected `exec` or `http`, found `htpp`; did you mean `http`?"),
        ("{http: {port: x}}", "hook.http.port: expected an integer, found the string \"x\""),
        ("{exec: {comand: x}}", "hook.exec.comand: unknown field `comand`; did you mean `command`?"),
        ("{exec: {command: x}, other: 1}", "hook.other: unknown field `other`; the fields here are exec"),
        ("{}", "hook: needs `exec` or `http`"),
    ] {
        assert_eq!(task(&format!("hook: {hook}")), expected, "{hook}");
    }
}

#[test]
fn unknown_field_is_suggested_from_near_and_far() {
    for (fields, expected) in [
        ("cuont: 2", "cuont: unknown field `cuont`; did you mean `count`?"),
        ("Count: 2", "Count: unknown field `Count`; did you mean `count`?"),
        ("task: {}", "task: unknown field `task`; repeated blocks have plural names here: `tasks` is a list"),
        ("replicas: 3", "replicas: unknown field `replicas`; the number of copies of a group is its `count`"),
        ("driver: x", "driver: unknown field `driver`; `driver` belongs to `tasks[]`"),
        ("interval: 5m", "interval: unknown field `interval`; `interval` belongs to `restart`"),
        ("cpu: 5", "cpu: unknown field `cpu`; `cpu` belongs to `tasks[].resources`"),
        ("meta: {}", "meta: unknown field `meta`; `meta` belongs to `spec`"),
        ("zzz: 5", "zzz: unknown field `zzz`; the fields here are count, name, network, restart, tasks"),
        ("restart: {count: 5}", "restart.count: unknown field `count`; `count` belongs to `spec.groups[0]`"),
    ] {
        assert_eq!(group(fields), expected, "{fields}");
    }
    assert_eq!(problem_at("spec: {}\nspecs: {}\n", ""), "specs: unknown field `specs`; did you mean `spec`?");
    assert_eq!(problem_at("{}\n", ""), ": `spec` is missing");
    assert_eq!(problem_at("[]\n", ""), ": expected a map, found a list; write {}");
    assert_eq!(
        problem_at("spec:1\n", ""),
        ": expected a map, found the string \"spec:1\"; put a space after `spec:`"
    );
    assert_eq!(group("count:2"), "[\"count:2\"]: unknown field `count:2`; put a space after `count:`");
    assert_eq!(problem_at("~\n", ""), ": is empty; remove it or give it a value");
}

#[test]
fn names_have_rules() {
    let name = |name: &str| problem_at(&format!("spec: {{groups: [{{name: {name}}}]}}\n"), "spec.groups[0]");
    for good in ["web-1", "My_Web App", "-a-", "'é'", "a.b", ".a"] {
        assert_eq!(name(good), "", "{good}");
    }
    assert_eq!(name("my/web"), "name: must not contain `/` or `\\`; `my-web` would be valid");
    assert_eq!(name("'..'"), "name: must not be `.` or `..`");
    assert_eq!(name("''"), "name: must not be empty");
    let long = format!("name: must have at most 128 bytes; `{}` would be valid", "a".repeat(63));
    assert_eq!(name(&"a".repeat(129)), long);
    assert_eq!(name("5"), "name: expected a string, found the integer 5; write \"5\"");
}

#[test]
fn names_may_be_of_other_kinds() {
    let has_problems = |kind: &str, text: &str| {
        let schema = serde_json::json!({"type": "string", "x-name": kind});
        !check(&document(text).root(), &schemars::Schema::try_from(schema).unwrap()).is_empty()
    };
    for (kind, good, bad) in [
        ("part", vec!["a b", "é", "a..b"], vec!["a/b", "..", "'.'", "''", "\"a\\nb\"", "a\\b"]),
        ("job-id", vec!["a/b", "A_b.c"], vec!["a b", "..", "'a/'", "''", "\"a\\nb\""]),
        ("namespace", vec!["TeamA", "a-b"], vec!["a_b", "'*'", "''"]),
        ("variable", vec!["A_B", "a.b"], vec!["a=b", "''"]),
        ("of-no-kind", vec!["''"], vec![]),
    ] {
        for text in good {
            assert!(!has_problems(kind, text), "{kind} {text}");
        }
        for text in bad {
            assert!(has_problems(kind, text), "{kind} {text}");
        }
    }
}

#[test]
fn a_part_of_a_document_is_checked_with_its_path() {
    let document = document("spec:\n  config: {command: [a]}\n");
    let problems = check(&document.at("spec.config").unwrap(), &schema_for::<super::model::Config>());
    assert_eq!(
        render(&problems),
        "2:21: spec.config.command: expected a string, found a list; write command: a and args: []"
    );
}

#[test]
fn a_schema_may_be_odd() {
    let check = |schema: serde_json::Value, text: &str| {
        render(&super::check(&document(text).root(), &schemars::Schema::try_from(schema).unwrap()))
    };
    use serde_json::json;
    assert_eq!(check(json!(true), "a: 1\n"), "");
    assert_eq!(check(json!(false), "a: 1\n"), "1:1: is not allowed here");
    assert_eq!(check(json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}), "a: 1\n"), "");
    assert_eq!(check(json!({"$ref": "#/$defs/none"}), "a: 1\n"), "");
    assert_eq!(
        check(json!({"$ref": "#/$defs/a%20b", "$defs": {"a b": {"type": "string"}}}), "[]\n"),
        "1:1: expected a string, found a list"
    );
    assert_eq!(
        check(json!({"type": ["integer", "string"]}), "[]\n"),
        "1:1: expected an integer or a string, found a list"
    );
    let either = json!({"anyOf": [{"type": "object", "required": ["a"], "properties": {"a": {}, "b": {}}},
        {"type": "object", "required": ["c", "d"], "properties": {"c": {}, "d": {}}}]});
    assert_eq!(check(either.clone(), "{a: 1}\n"), "");
    assert_eq!(check(either, "{x: 1}\n"), "1:1: `a` is missing");
    let keyed = json!({"type": "object", "propertyNames": {"x-name": "variable"}, "additionalProperties": {"type": "string"}});
    assert_eq!(check(keyed, "{a=b: x}\n"), "1:2: [\"a=b\"]: the name must not be empty or contain `=`");
    let patterned =
        json!({"properties": {"a": {}}, "patternProperties": {"^x-": true}, "additionalProperties": false});
    assert_eq!(check(patterned.clone(), "{x-y: 1, a: 1}\n"), "");
    assert_eq!(check(patterned, "{y: 1}\n"), "1:2: y: unknown field `y`; the fields here are a");
    let merged = json!({"allOf": [{"properties": {"a": {"type": "integer"}}}, {"properties": {"b": {}}}], "unevaluatedProperties": false});
    assert_eq!(check(merged.clone(), "{a: 1, b: 1}\n"), "");
    assert_eq!(
        check(merged, "{a: x, bb: 1}\n"),
        "1:5: a: expected an integer, found the string \"x\"\n1:8: bb: unknown field `bb`; the fields here are a, b"
    );
}
