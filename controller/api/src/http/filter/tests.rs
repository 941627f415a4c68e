//! Examples of filters: values, searches, precedence, `any` and `all`, the bounds, and errors.

use serde_json::json;

use super::{tokens::DEPTH_MAX, *};

#[test]
fn fields_are_compared_with_values() {
    let shown =
        json!({ "Status": "running", "Version": 3, "Stop": false, "Meta": { "team": "a b" }, "None": null });
    for (text, expected) in [
        ("", true),
        ("Status == running", true),
        ("Status==\"running\"", true),
        ("Status != `running`", false),
        ("Version == 3 and Stop == false", true),
        ("Version == 3 and Stop != false", false),
        ("Meta.team == \"a b\"", true),
        ("Meta.other == \"\"", true),
        ("Meta.other != x", true),
        ("None == \"\"", true),
        ("None.below == \"\"", true),
        ("Meta[\"team\"] == \"a b\"", true),
        ("Meta[`no.such`] == \"\" and Meta[\"team\"] != x", true),
        ("\"/Meta/team\" == \"a b\"", true),
    ] {
        let filter = Filter::parse(text).unwrap();
        assert_eq!(filter.accepts(&shown).unwrap(), expected, "{text}");
    }
}

#[test]
fn names_with_dots_are_found_in_brackets_and_by_pointers() {
    let shown = json!({ "Meta": { "a.b": "x", "c/d": { "e": 1 } }, "Tags": ["one", "two"] });
    for (text, expected) in [
        ("Meta[\"a.b\"]==x", true),
        ("Meta[`a.b`] != x", false),
        ("\"/Meta/a.b\" == x", true),
        ("\"/Meta/c~1d/e\" == 1", true),
        ("Meta[\"c/d\"].e == 1 and (Meta[\"a.b\"] is not empty)", true),
        ("Meta.a.b == x", false),
        ("x in Meta[\"a.b\"]", true),
        ("Tags.1 == two", true),
    ] {
        let filter = Filter::parse(text).unwrap();
        assert_eq!(filter.accepts(&shown).unwrap_or_default(), expected, "{text}");
    }
    for text in ["Meta[a.b] == x", "Meta[\"a\" == x", "Meta[\"a\" ] == x", "Meta[\"a.b\"] in Tags"] {
        assert!(Filter::parse(text).is_err_and(|error| error.status().as_u16() == 400), "{text}");
    }
}

#[test]
fn lists_texts_and_maps_are_searched() {
    let shown =
        json!({ "Name": "web", "Tags": ["a", "traefik.enable=true"], "Meta": { "team": "x" }, "No": null });
    for (text, expected) in [
        ("Tags contains \"traefik.enable=true\"", true),
        ("Tags contains traefik", false),
        ("Tags not contains b", true),
        ("a in Tags", true),
        ("\"b\" not in Tags", true),
        ("Name contains e", true),
        ("team in Meta", true),
        ("x in No", false),
        ("Name matches `^w.b$`", true),
        ("Name not matches `^x`", true),
        ("No matches `^$`", true),
        ("Tags is empty", false),
        ("Tags is not empty and No is empty", true),
    ] {
        assert_eq!(Filter::parse(text).unwrap().accepts(&shown).unwrap(), expected, "{text}");
    }
}

#[test]
fn and_binds_more_than_or_and_not_more_than_both() {
    let shown = json!({ "A": 1 });
    for (text, expected) in [
        ("A == 2 or A == 1", true),
        ("A == 1 or A == 2 and A == 3", true),
        ("(A == 1 or A == 2) and A == 3", false),
        ("not A == 2 and A == 1", true),
        ("not (A == 1 or A == 2)", false),
        ("not not A == 1", true),
    ] {
        assert_eq!(Filter::parse(text).unwrap().accepts(&shown).unwrap(), expected, "{text}");
    }
}

#[test]
fn any_and_all_test_list_items_and_map_entries() {
    let shown = json!({
        "Tags": ["a", "traefik.enable=true"], "Meta": { "team": "x", "zone": "eu" }, "Empty": [], "No": null,
        "Groups": [{ "Name": "web", "Count": 2, "Tags": ["a"] }, { "Name": "db", "Count": 1, "Tags": [] }],
        "t": "a field", "any": "thing",
    });
    for (text, expected) in [
        ("any Tags as t { t == \"a\" }", true),
        ("any Tags as t{t==\"b\"}", false),
        ("all Tags as t { t matches `.` }", true),
        ("all Tags as t { t == a or t contains traefik }", true),
        ("not any Tags as t { t == a } or Tags is empty", false),
        // A single name is the value of a list or the key of a map.
        ("any Meta as k { k == team }", true),
        ("any Meta as k { k == x }", false),
        ("any Tags as i, t { i == 1 and t matches `^traefik` }", true),
        ("any Tags as i, t { i == 0 and t matches `^traefik` }", false),
        ("any Tags as i, _ { i == 1 }", true),
        ("any Tags as _ , t { t == a }", true),
        ("any Meta as k, v { k == zone and v == eu }", true),
        ("all Meta as _, v { v == x or v == eu }", true),
        ("any Groups as g { g.Name == web and g.Count == 2 }", true),
        ("any \"/Groups\" as g { g[\"Name\"] == db and g.Tags is empty }", true),
        ("any Groups as g { any g.Tags as t { t == a and g.Count == 2 } }", true),
        ("all Groups as g { any g.Tags as t { t == a } }", false),
        ("any Groups as g { g.Other == \"\" }", true),
        ("any Groups.0.Tags as t { t == a }", true),
        // An inner name hides an outer one, and both hide a field.
        ("any Groups as t { any t.Tags as t { t == a } }", true),
        ("any Tags as t { t == a } and t == \"a field\"", true),
        // `any` of an empty list is false, `all` is true.
        ("any Empty as t { t == a }", false),
        ("all Empty as t { t == a }", true),
        ("any No as t { t == a } or all No as t { t == a }", true),
        ("any Meta.none as t { t == a }", false),
        // `any` and `all` can also be field names or values.
        ("any == thing", true),
        ("any is not empty and a in Tags", true),
        ("all in Meta", false),
    ] {
        let found =
            Filter::parse(text).unwrap().accepts(&shown).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(found, expected, "{text}");
    }
    for (text, fragment) in [
        ("any t as x { x == a }", "filter: t is neither a list nor a map"),
        ("any Missing as x { x == a }", "there is no field \"Missing\""),
        ("any Tags as x { y == a }", "there is no field \"y\""),
        ("any Tags as i, x { i.below == a }", "i is a single value"),
        ("any Tags as i, x { i == first }", "i is a number, and \"first\" does not fit"),
        ("Groups contains web", "Groups has items that are not single values: use `any"),
    ] {
        let message = Filter::parse(text).unwrap().accepts(&shown).unwrap_err().to_string();
        assert!(message.contains(fragment), "{text}: {message}");
    }
}

#[test]
fn filter_with_too_many_tests_is_refused() {
    let many: Vec<u32> = (0..200).collect();
    let shown = json!({ "A": many });
    let text = "any A as a { any A as b { any A as c { any A as d { a == 201 } } } }";
    let message = Filter::parse(text).unwrap().accepts(&shown).unwrap_err().to_string();
    assert!(message.contains("more than 1000000 tests of items"), "{message}");
    // The limit applies to all objects together.
    let filter = Filter::parse("all A as a { a != 201 }").unwrap();
    let asked = (0..6_000).map(|_| filter.accepts(&shown)).take_while(Result::is_ok).count();
    assert_eq!(asked, QUESTIONS_MAX / 200);
}

#[test]
fn invalid_filter_is_refused_with_its_cause() {
    let deep = format!("{}A == 1", "not ".repeat(DEPTH_MAX + 1));
    let deep_items = format!("{}t == 1{}", "any A as t {".repeat(DEPTH_MAX + 1), "}".repeat(DEPTH_MAX + 1));
    for (text, status, fragment) in [
        ("any Tags", 400, "\"as\" and a name are expected after \"Tags\""),
        ("all Tags t { t == a }", 400, "\"as\" and a name are expected"),
        ("any Tags as", 400, "a name is expected"),
        ("any Tags as \"t\" { t == a }", 400, "a name is expected after \"as\", not \"t\""),
        ("any Tags as 1t { 1t == a }", 400, "a name is expected"),
        ("any Tags as _ { t == a }", 400, "\"_\" alone names nothing"),
        ("any Tags as _, _ { t == a }", 400, "\"_, _\" names nothing"),
        ("any Tags as t, t { t == a }", 400, "\"t\" can't name both"),
        ("any Tags as t, { t == a }", 400, "a name is expected"),
        ("any Tags as t t == a", 400, "\"{\" is expected"),
        ("any Tags as t { t == a", 400, "a brace is not closed"),
        ("any Tags as t { t == a )", 400, "a brace is not closed"),
        ("any Tags as t { }", 400, "is expected"),
        ("any \"Tags\" as t { t == a }", 400, "a field is expected, not \"Tags\""),
        ("any", 400, "is expected after \"any\""),
        ("Status == }", 400, "a value is expected"),
        (&deep_items, 400, "levels deep"),
        ("Status", 400, "is expected after \"Status\""),
        ("Status ==", 400, "a value is expected"),
        ("Status not == a", 400, "is expected after \"Status\""),
        ("Status is full", 400, "\"empty\" is expected"),
        ("Status matches `(`", 400, "filter: "),
        ("\"a\" == b", 400, "a field is expected"),
        ("a in \"Tags\"", 400, "a field is expected"),
        ("a in", 400, "a field is expected after"),
        ("Status == \"a", 400, "not closed"),
        ("(Status == a", 400, "parenthesis is not closed"),
        ("Status == a)", 400, "is expected, not \")\""),
        ("Status == a and", 400, "after \"and\""),
        ("Status == a \"and\"", 400, "\"and\" or \"or\" is expected"),
        ("not", 400, "a field is expected"),
        (&deep, 400, "levels deep"),
    ] {
        let error = Filter::parse(text).unwrap_err();
        assert_eq!(error.status().as_u16(), status, "{text}: {error}");
        assert!(error.to_string().contains(fragment), "{text}: {error}");
    }
    assert!(Filter::parse(&"a".repeat(TEXT_BYTES_MAX + 1)).is_err());
    let shown = json!({ "Tags": [], "On": true, "Count": 3 });
    for text in [
        "Missing == a",
        "Tags == a",
        "Tags matches a",
        "On contains a",
        "Count is empty",
        "Count.below == 1",
        "On.below is empty",
        "Tags.first == a",
        "Count == x",
        "Count != x",
        "Count == \"\"",
        "On == yes",
    ] {
        assert!(Filter::parse(text).unwrap().accepts(&shown).is_err(), "{text}");
    }
    // A missing item of a list is no error.
    assert!(Filter::parse("Tags.7 == a").unwrap().accepts(&shown).is_ok_and(|accepts| !accepts));
    let message = Filter::parse("Count.below == 1").unwrap().accepts(&shown).unwrap_err().to_string();
    assert_eq!(message, "filter: Count is a single value and has no field \"below\"");
}
