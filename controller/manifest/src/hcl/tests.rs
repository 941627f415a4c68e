//! Expressions by example, and hostile texts.

use super::*;
use crate::yaml::Value as Tree;
use herdlet_api_types::api::VariableTexts;

fn assign(assignments: &[&str]) -> Variables {
    let assignments = assignments.iter().map(|text| (*text).to_owned()).collect();
    Variables::read(&VariableTexts { assignments, ..VariableTexts::default() }).unwrap()
}

fn read(text: &str) -> Result<Evaluated, Problems> {
    let evaluated = evaluate("t.hcl", text.as_bytes(), &Variables::default())?;
    if evaluated.problems.is_empty() { Ok(evaluated) } else { Err(evaluated.problems) }
}

/// Evaluates an expression after some declarations.
fn value(declarations: &str, expression: &str) -> String {
    let text = format!("{declarations}\nx = {expression}\n");
    let evaluated = read(&text).unwrap_or_else(|problems| panic!("{text}\n{problems}"));
    to_json(&evaluated.body.attributes[0].value)
}

fn to_json(node: &crate::yaml::Node) -> String {
    match &node.value {
        Tree::Str => format!("{:?}", &*node.text),
        Tree::Seq(items) => {
            let items: Vec<String> = items.iter().map(|item| to_json(item)).collect();
            format!("[{}]", items.join(", "))
        }
        Tree::Map(entries) => {
            let entries: Vec<String> =
                entries.iter().map(|entry| format!("{}: {}", entry.key, to_json(&entry.value))).collect();
            format!("{{{}}}", entries.join(", "))
        }
        Tree::Null => "null".to_owned(),
        Tree::Bool(_) | Tree::Int(_) | Tree::Float(_) | Tree::Refused => node.text.to_string(),
    }
}

fn error(text: &str) -> String {
    let problems = read(text).map(|evaluated| format!("{:?}", evaluated.body)).unwrap_err();
    problems.to_string().replace("t.hcl:", "")
}

#[test]
fn expressions_have_values() {
    let declarations = "locals {\n a = 2\n l = [1, 2, 3]\n o = { b = \"x\", c = { d = [true] } }\n}";
    for (expression, expected) in [
        ("1 + 2 * 3", "7"),
        ("7 / 2", "3.5"),
        ("6 / 2", "3"),
        ("-local.a % 3", "-2"),
        ("9007199254740993 + 1", "9007199254740994"),
        ("local.a == 2 && !(local.a > 3)", "true"),
        ("local.a > 3 ? \"big\" : \"small\"", "\"small\""),
        ("local.l[1]", "2"),
        ("local.o.c.d[0]", "true"),
        ("local.o[\"b\"]", "\"x\""),
        ("local.l[*]", "[1, 2, 3]"),
        ("[{n = 1}, {n = 2}][*].n", "[1, 2]"),
        ("\"${local.o.b}-${local.a}\"", "\"x-2\""),
        ("\"${local.l}\"", "[1, 2, 3]"),
        ("[for n in local.l : n * 2 if n != 2]", "[2, 6]"),
        ("{for i, n in local.l : \"k${i}\" => n}", "{k0: 1, k1: 2, k2: 3}"),
        ("{for n in local.l : (n > 1 ? \"big\" : \"small\") => n...}", "{big: [2, 3], small: [1]}"),
        ("\"%{ if local.a == 2 }yes%{ else }no%{ endif }\"", "\"yes\""),
        ("\"%{ for n in local.l ~} ${n}, %{ endfor }\"", "\"1, 2, 3, \""),
        ("<<EOF\n a ${local.a}\n $${b}\nEOF\n", "\" a 2\\n ${b}\\n\""),
        ("<<-EOF\n    a\n      b\n    EOF\n", "\"a\\n  b\\n\""),
        // References that resolve when the task runs stay as written.
        ("\"${NOMAD_PORT_http}\"", "\"${NOMAD_PORT_http}\""),
        ("\"${attr.kernel.name}-${local.a}\"", "\"${attr.kernel.name}-2\""),
        ("\"${env[\"HOME\"]}/x\"", "\"${env[\\\"HOME\\\"]}/x\""),
        // Without quotes they are the same.
        ("attr.kernel.name", "\"${attr.kernel.name}\""),
        ("NOMAD_PORT_http", "\"${NOMAD_PORT_http}\""),
        ("False", "\"${False}\""),
        ("format(\"http://%s\", NOMAD_ADDR_http)", "\"http://${NOMAD_ADDR_http}\""),
        ("\"${upper(node.class)}\"", "\"${NODE.CLASS}\""),
        ("meta[\"a b\"]", "\"${meta[\\\"a b\\\"]}\""),
        ("try(local.none, node.class)", "\"${node.class}\""),
        ("null", "null"),
    ] {
        assert_eq!(value(declarations, expression), expected, "{expression}");
    }
}

#[test]
fn last_of_equal_keys_wins() {
    for text in [
        "x = {\n  a = \"1\"\n  b = 2\n  a = 3\n}\n",
        "x = { (\"a\") = 1, b = 2, a = 3 }\n",
        "locals {\n  o = { a = 1, \"${\"a\"}\" = 3, b = 2 }\n}\nx = local.o\n",
    ] {
        let evaluated = read(text).unwrap_or_else(|problems| panic!("{text}\n{problems}"));
        let shown = to_json(&evaluated.body.attributes[0].value);
        assert!(shown == "{a: 3, b: 2}" || shown == "{b: 2, a: 3}", "{text}: {shown}");
        let [warning] = evaluated.warnings.as_slice() else { panic!("{:?}", evaluated.warnings) };
        assert_eq!(warning.message, "the key `a` is written more than once; the last value counts");
    }
}

#[test]
fn unknown_bare_name_is_reported() {
    let warnings = |text: &str| -> Vec<String> {
        read(text).unwrap().warnings.iter().map(ToString::to_string).collect()
    };
    assert_eq!(
        warnings("x = False\n"),
        [
            "t.hcl:1:5: `False` has no value in a job file, so this is the text \"${False}\", which is replaced when the task \
          runs; write a text in quotes"
        ]
    );
    assert_eq!(warnings("x = [NOMAD_PORT_http, attr.kernel.name, \"${False}\"]\n"), [""; 0]);
}

#[test]
fn functions_have_values() {
    for (expression, expected) in [
        ("upper(\"a\")", "\"A\""),
        ("join(\",\", [\"a\", \"b\"], [\"c\"])", "\"a,b,c\""),
        ("split(\",\", \"a,b\")", "[\"a\", \"b\"]"),
        ("format(\"%s-%03d-%.1f%%\", \"a\", 7, 1.25)", "\"a-007-1.2%\""),
        ("max([1, 5, 3]...)", "5"),
        ("merge({a = 1}, {b = 2, a = 3})", "{a: 3, b: 2}"),
        ("lookup({a = 1}, \"b\", 9)", "9"),
        ("keys({b = 1, a = 2})", "[\"a\", \"b\"]"),
        ("flatten([[1], [[2, 3]]])", "[1, 2, 3]"),
        ("range(3)", "[0, 1, 2]"),
        ("length(\"äb\")", "2"),
        ("substr(\"hello\", -3, 2)", "\"ll\""),
        ("jsonencode({a = [1, true, null]})", "\"{\\\"a\\\":[1,true,null]}\""),
        ("jsondecode(\"[1, {}]\")", "[1, {}]"),
        ("base64decode(base64encode(\"x\"))", "\"x\""),
        ("try(local.nothing, \"else\")", "\"else\""),
        ("can(tonumber(\"x\"))", "false"),
        ("tonumber(\"12\") + 1", "13"),
        ("trimsuffix(trimspace(\" a.b \"), \".b\")", "\"a\""),
        ("sha256(\"\")", "\"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855\""),
        ("distinct([1, 2, 1])", "[1, 2]"),
        ("zipmap([\"a\"], [1])", "{a: 1}"),
        ("reverse(\"abc\")", "\"cba\""),
        ("reverse([1, 2])", "[2, 1]"),
        ("format(\"%x %x\", 255, -1)", "\"ff -1\""),
        ("replace(\"a/b/c\", \"/\", \"-\")", "\"a-b-c\""),
        ("regex_replace(\"v1.22\", \"v(\\\\d+)\\\\.(\\\\d+)\", \"$2-${1}\")", "\"22-1\""),
        ("formatlist(\"%s:%d\", [\"a\", \"b\"], 80)", "[\"a:80\", \"b:80\"]"),
        ("setproduct([\"a\", \"b\"], [1, 2])", "[[\"a\", 1], [\"a\", 2], [\"b\", 1], [\"b\", 2]]"),
        ("[basename(\"/a/b.c\"), basename(\"a/\"), basename(\"/\")]", "[\"b.c\", \"a\", \"/\"]"),
        (
            "[dirname(\"/a/b\"), dirname(\"a\"), dirname(\"/a\"), dirname(\"a/b/\")]",
            "[\"/a\", \".\", \"/\", \"a/b\"]",
        ),
        ("cidrhost(\"10.1.2.9/24\", 5)", "\"10.1.2.5\""),
        ("cidrhost(\"10.1.2.0/24\", -1)", "\"10.1.2.255\""),
        ("cidrhost(\"fd00::/8\", 10)", "\"fd00::a\""),
        ("cidrnetmask(\"172.16.0.0/12\")", "\"255.240.0.0\""),
        ("cidrsubnet(\"172.16.0.0/12\", 4, 2)", "\"172.18.0.0/16\""),
        ("cidrsubnet(\"::/0\", 128, 7)", "\"::7/128\""),
        (
            "cidrsubnets(\"10.1.0.0/16\", 4, 4, 8, 4)",
            "[\"10.1.0.0/20\", \"10.1.16.0/20\", \"10.1.32.0/24\", \"10.1.48.0/20\"]",
        ),
    ] {
        assert_eq!(value("", expression), expected, "{expression}");
    }
}

#[test]
fn errors_name_their_position() {
    for (text, expected) in [
        ("x = upprr(\"a\")\n", "1:5: there is no function `upprr`; did you mean `upper`?"),
        (
            "x = uuidv4()\n",
            "1:5: the function `uuidv4` returns a different value each time, so the job would change whenever the file is read",
        ),
        ("x = upper()\n", "1:5: `upper` takes 1 argument, found 0"),
        ("x = cidrhost(\"10.0.0.0/30\", 4)\n", "1:5: `cidrhost`: 10.0.0.0/30 has no host 4"),
        ("x = cidrhost(\"10.0.0.0/30\", -5)\n", "1:5: `cidrhost`: 10.0.0.0/30 has no host -5"),
        (
            "x = cidrsubnet(\"10.0.0.0/30\", 3, 0)\n",
            "1:5: `cidrsubnet`: 10.0.0.0/30 has no subnet 0 with 3 more bits",
        ),
        (
            "x = cidrsubnet(\"10.0.0.0/30\", 1, 2)\n",
            "1:5: `cidrsubnet`: 10.0.0.0/30 has no subnet 2 with 1 more bits",
        ),
        (
            "x = cidrsubnets(\"10.0.0.0/31\", 1, 1, 1)\n",
            "1:5: `cidrsubnets`: 10.0.0.0/31 has no room for another subnet",
        ),
        ("x = cidrsubnets(\"::/0\", 0, 0)\n", "1:5: `cidrsubnets`: ::/0 has no room for another subnet"),
        (
            "x = cidrnetmask(\"10.0.0.0\")\n",
            "1:5: `cidrnetmask`: \"10.0.0.0\" is not a network such as 10.1.0.0/16",
        ),
        ("x = formatlist(\"%s%s\", [1], [1, 2])\n", "1:5: `formatlist`: the lists have different lengths"),
        ("x = regex_replace(\"a\", \"(\", \"\")\n", "1:5: `regex_replace`: "),
        ("x = [1, var.nothing]\n", "1:13: there is no variable `nothing`"),
        ("é {\n  y = \"ü${local.a}\"\n}\n", "2:17: there is no local `a`"),
        ("x = 1 +\n", "1:8: is not HCL: "),
        ("x = \"a\" + 1\n", "1:9: `+` takes numbers, found a string"),
        ("x = 1 / 0\n", "1:7: 1 / 0 is not a number"),
        ("x = node[*].a\n", "1:5: there is no `node`; only var.NAME and local.NAME can be used in this way"),
        (
            "variable \"v\" {\n default = foo\n}\n",
            "2:12: there is no `foo`; only literal values are allowed here",
        ),
        ("x {\n  a = \"b\",\n}\n", "2:10: is not HCL: "),
        ("x {\n  a = \"b\",\n}\n", "the attributes of a block are separated by lines: remove the comma"),
        ("x = <<EOF\necho ${X:-2}\nEOF\n", "2:9: is not HCL: "),
        ("x = <<EOF\necho ${X:-2}\nEOF\n", "write `$${` for a literal `${`, for instance that of a shell"),
        ("locals {\n a = local.b\n b = local.a\n}\n", "2:2: the local `a` refers to itself"),
        ("locals {\n a = [1][3]\n}\n", "2:9: the list has no item 3, its length is 1"),
        ("job \"x\" {\n", "a `{` is not closed"),
        ("network { port \"db\" { to = 1 } }\n", "a block on one line may contain at most one attribute"),
        ("meta {\n  \"a-b\" = 1\n}\n", "a quoted name is only allowed in an object"),
        ("variable \"v\" {}\n", "1:1: the variable `v` has no value; give it a default, --var v=VALUE"),
        ("variable \"v\" {\n  type = list(strng)\n}\n", "2:15: is not a type"),
        (
            "variable \"v\" {\n  type = number\n  default = \"x\"\n}\n",
            "3:13: must be a number, found a string",
        ),
        ("dynamic \"port\" {\n}\n", "1:1: needs `for_each`"),
    ] {
        let message = error(text);
        assert!(message.contains(expected), "{text}: {message}");
    }
}

#[test]
fn variables_take_values_from_outside_in_order() {
    let text = "variable \"n\" {\n  type = number\n  default = 1\n  validation {\n    condition = var.n < 9\n    \
                error_message = \"too many\"\n  }\n}\nvariable \"l\" {\n  type = list(string)\n  default = []\n}\nx = [var.n, var.l]\n";
    let value = |variables: &Variables| {
        evaluate("t.hcl", text.as_bytes(), variables).map(|all| to_json(&all.body.attributes[0].value))
    };
    let file = |text: &str| herdlet_api_types::api::ManifestText { name: "v.hcl".into(), text: text.into() };
    let mut texts = VariableTexts {
        environment: [("n".to_owned(), "2".to_owned()), ("other".to_owned(), "x".to_owned())].into(),
        ..VariableTexts::default()
    };
    assert_eq!(value(&Variables::default()).unwrap(), "[1, []]");
    assert_eq!(value(&Variables::read(&texts).unwrap()).unwrap(), "[2, []]");
    texts.files = vec![file("n = 3\nl = [\"a\"]\n"), file("{\"n\": 4}")];
    assert_eq!(value(&Variables::read(&texts).unwrap()).unwrap(), "[4, [\"a\"]]");
    texts.assignments = vec!["n=5".into(), "l=[\"b\", 1]".into()];
    let variables = Variables::read(&texts).unwrap();
    assert_eq!(value(&variables).unwrap(), "[5, [\"b\", \"1\"]]");
    let message = value(&assign(&["n=10"])).unwrap_err().to_string();
    assert_eq!(message, "t.hcl:1:1: the value of the variable `n` is not valid: too many");
    let message = value(&assign(&["n=x"])).unwrap_err().to_string();
    assert_eq!(message, "--var n: must be a number, found a string");
    let declared = evaluate("t.hcl", text.as_bytes(), &variables).unwrap().declared;
    assert!(variables.undeclared(&declared).is_empty());
    let message = assign(&["m=1"]).undeclared(&declared).to_string();
    assert_eq!(message, "--var m: no job file declares a variable `m`");
}

#[test]
fn dynamic_blocks_are_expanded() {
    let text = "locals {\n  ports = { http = 80, admin = 81 }\n}\nnetwork {\n  dynamic \"port\" {\n    for_each = local.ports\n    \
                labels = [port.key]\n    content {\n      static = port.value + 1\n    }\n  }\n}\n";
    let body = read(text).unwrap().body;
    let ports: Vec<_> = body.blocks[0]
        .body
        .blocks
        .iter()
        .map(|port| (&*port.kind, &*port.labels[0].text, to_json(&port.body.attributes[0].value)))
        .collect();
    assert_eq!(ports, [("port", "admin", "82".to_owned()), ("port", "http", "81".to_owned())]);
}

#[test]
fn harm_is_refused_in_time() {
    let begun = std::time::Instant::now();
    let laughs: String = (1..40).map(|n| format!("  a{n} = [local.a{0}, local.a{0}]\n", n - 1)).collect();
    assert!(
        error(&format!("locals {{\n  a0 = [1]\n{laughs}}}\n")).contains("create more than 1000000 values")
    );
    let texts: String =
        (1..60).map(|n| format!("  a{n} = \"${{local.a{0}}}${{local.a{0}}}\"\n", n - 1)).collect();
    assert!(
        error(&format!("locals {{\n  a0 = \"lol\"\n{texts}}}\n")).contains("create more than 1000000 values")
    );
    let each = "[for a in range(1000) : ".repeat(5) + "1" + &"]".repeat(5);
    assert!(error(&format!("x = {each}\n")).contains("create more than 1000000 values"));
    assert!(error(&format!("x = try({each}, 1)\n")).contains("create more than 1000000 values"));
    for (opener, closer) in [("[", "]"), ("{a = ", "}"), ("(", ")"), ("\"${", "}\""), ("a {\n", "}\n")] {
        let text = format!("x = {}1{}\n", opener.repeat(60_000), closer.repeat(60_000));
        assert!(!error(&text).is_empty());
        let text = format!("x = {}1{}\n", opener.repeat(60), closer.repeat(60));
        let _ = read(&text);
    }
    assert!(error(&format!("x = 1{}\n", "+1".repeat(60_000))).contains("at most 128"));
    let _ = read(&format!("x = 1{}\n", "+1".repeat(120)));
    let keys: String = (0..5_000).map(|n| format!("k{n} = 1,")).collect();
    assert!(error(&format!("x = {{{keys}}}\n")).contains("more than 2000"));
    assert_eq!(error(&"#".repeat(100 << 20)), " has 100.0 MiB; the limit for HCL is 1.0 MiB");
    assert!(begun.elapsed() < std::time::Duration::from_secs(300), "{:?}", begun.elapsed());
    let problems = evaluate("t.hcl", b"a = 1\nb = \xff\n", &Variables::default()).map(|_| ()).unwrap_err();
    assert_eq!(problems.to_string(), "t.hcl:2:5: is not UTF-8: byte 0xff at offset 10");
    let problems = evaluate("t.hcl", b"\xff\xfea\0", &Variables::default()).map(|_| ()).unwrap_err();
    assert_eq!(problems.to_string(), "t.hcl: is UTF-16; save it as UTF-8");
}

#[test]
fn hcl_is_detected_by_name_or_content() {
    assert!(
        is_hcl("a.nomad", b"")
            && is_hcl("a.nomad.hcl", b"")
            && is_hcl("<stdin>", b"# x\n/* y */ job \"a\" {")
    );
    assert!(is_hcl("<stdin>", b"variable \"x\" {") && is_hcl("<stdin>", b"locals {"));
    assert!(
        !is_hcl("a.yaml", b"job \"a\" {")
            && !is_hcl("<stdin>", b"job: x")
            && !is_hcl("<stdin>", b"{\"Job\": {}}")
    );
}
