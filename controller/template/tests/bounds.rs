//! Hostile templates and data end at bounds, with an error that names the bound.

use herdlet_template::{Error, ErrorKind, Limits, NodeAddress, Options, Template, source::Fixed};
use proptest::prelude::*;

fn render(text: &str) -> Result<Vec<u8>, Error> {
    Template::parse(text, &Options::default())?.render(&Fixed::default()).result
}

/// Each with a part of the error.
const HOSTILE: [(&str, &str); 30] = [
    ("{{ range loop 1000000000000 }}{{ end }}", "steps"),
    ("{{ range 9000000000000000000 }}{{ end }}", "steps"),
    ("{{ range loop 10000000 }}{{ range loop 10000000 }}{{ end }}{{ end }}", "steps"),
    (r#"{{ define "T" }}{{ template "T" . }}{{ end }}{{ template "T" . }}"#, "nested"),
    (r#"{{ define "T" }}{{ executeTemplate "T" }}{{ end }}{{ executeTemplate "T" }}"#, "nested"),
    (
        r#"{{ define "T" }}{{ range loop 1 }}{{ with (print (print (print 1))) }}{{ if true }}{{ template "T" ((((1)))) }}{{ end }}{{ end }}{{ end }}{{ end }}{{ template "T" }}"#,
        "nested",
    ),
    (
        r#"{{ define "T" }}{{ print (executeTemplate "T" (print (executeTemplate "T"))) }}{{ end }}{{ template "T" }}"#,
        "nested",
    ),
    (r#"{{ $s := "0123456789" }}{{ range loop 64 }}{{ $s = print $s $s }}{{ end }}"#, "bytes"),
    (r#"{{ range loop 1000000 }}0123456789012345678901234567890123456789{{ end }}"#, "output"),
    ("{{ $l := sprig_list }}{{ range loop 100000 }}{{ $l = sprig_list $l }}{{ end }}", "nested"),
    ("{{ $l := sprig_list 1 2 }}{{ range loop 60 }}{{ $l = sprig_list $l $l }}{{ end }}{{ $l }}", "output"),
    (
        "{{ $l := sprig_list 1 2 }}{{ range loop 60 }}{{ $l = sprig_list $l $l }}{{ end }}{{ sprig_deepEqual $l $l }}",
        "steps",
    ),
    (
        "{{ $l := sprig_list 1 2 }}{{ range loop 60 }}{{ $l = sprig_list $l $l }}{{ end }}{{ sprig_deepCopy $l }}",
        "steps",
    ),
    (r#"{{ $d := sprig_dict }}{{ $_ := sprig_set $d "d" $d }}{{ $d }}"#, "nested"),
    (r#"{{ $d := sprig_dict }}{{ $_ := sprig_set $d "d" $d }}{{ toJSON $d }}"#, "nested"),
    (r#"{{ $d := sprig_dict }}{{ $_ := sprig_set $d "d" $d }}{{ toYAML $d }}"#, "nested"),
    (r#"{{ $d := sprig_dict }}{{ $_ := sprig_set $d "d" $d }}{{ toTOML $d }}"#, "nested"),
    (r#"{{ sprig_repeat 1000000000 "0123456789" }}"#, "bytes"),
    (r#"{{ regexMatch "(((a{100}){100}){100}){100}" "a" }}"#, "regular expression"),
    (
        r#"{{ $a := sprig_repeat 8000000 "a" }}{{ $b := print $a "b" }}{{ $c := print $a "c" }}{{ range loop 1000000 }}{{ if eq $b $c }}{{ end }}{{ end }}"#,
        "bytes",
    ),
    (
        r#"{{ $a := sprig_repeat 8000000 "a" }}{{ $l := sprig_list (print $a "b") }}{{ range loop 1000000 }}{{ if in $l (print "c") }}{{ end }}{{ if sprig_has $a $l }}{{ end }}{{ end }}"#,
        "bytes",
    ),
    (
        r#"{{ range $i, $n := loop 100000 }}{{ if regexMatch (printf "a%d" $n) "a" }}{{ end }}{{ end }}"#,
        "bytes",
    ),
    (
        r#"{{ $a := sprig_repeat 100000 "a" }}{{ range loop 1000000 }}{{ if regexMatch "(a*)*b" $a }}{{ end }}{{ end }}"#,
        "bytes",
    ),
    ("{{ sprig_until 1000000000 }}", "steps"),
    // Each verb once read the rest of the format.
    (r#"{{ printf (sprig_repeat 2000000 "%d") }}"#, "output"),
    (r#"{{ printf (sprig_repeat 2000000 "%%\xff%") }}"#, "output"),
    // A replacement that is 10^13 bytes long.
    (r#"{{ regexReplaceAll "(.*)" (sprig_repeat 1000000 "$1") (sprig_repeat 10000000 "a") }}"#, "bytes"),
    (r#"{{ regexMatch (sprig_repeat 30000000 "a") "a" }}"#, "regular expression"),
    (
        r#"{{ $m := sprig_dict }}{{ range loop 100000 }}{{ $_ := sprig_set $m (print .) 1 }}{{ end }}{{ range loop 2000000 }}{{ $_ := printf "%T" $m }}{{ end }}"#,
        "steps",
    ),
    (
        r#"{{ printf "%1000000d%1000000d%1000000d%1000000d%1000000d%1000000d%1000000d%1000000d%1000000d%1000000d%1000000d%1000000d%1000000d%1000000d%1000000d%1000000d%1000000d%1000000d" 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 }}"#,
        "output",
    ),
];

#[test]
fn hostile_templates_end_at_bounds() {
    for (text, bound) in HOSTILE {
        let error = render(text).expect_err(text);
        assert_eq!(error.kind, ErrorKind::Limit, "{text}: {error}");
        assert!(error.to_string().contains(bound), "{text}: {error}");
    }
}

/// Bounds that a few kilobytes reach.
const SMALL: Limits = Limits {
    steps: 100_000,
    output_bytes: 1 << 16,
    value_bytes: 1 << 20,
    regex_bytes: 1 << 16,
    ..Limits::DEFAULT
};

/// Values and work that were not counted: without their count, these templates render, or end at another bound.
const UNCOUNTED: [(&str, &str); 17] = [
    (r#"{{ $d := sprig_dict $b 1 }}{{ range loop 100 }}{{ $_ := explodeMap $d }}{{ end }}"#, "bytes"),
    (
        r#"{{ $l := sprig_list (sprig_dict "Key" $b) }}{{ range loop 100 }}{{ $_ := explode $l }}{{ end }}"#,
        "bytes",
    ),
    (
        r#"{{ $l := sprig_list (sprig_dict "Key" (print "a/" $b)) }}{{ range loop 100 }}{{ $_ := byKey $l }}{{ end }}"#,
        "bytes",
    ),
    (
        r#"{{ $l := sprig_list (sprig_dict "ServiceMeta" (sprig_dict "k" $b)) }}{{ range loop 100 }}{{ $_ := byMeta "k" $l }}{{ end }}"#,
        "bytes",
    ),
    (r#"{{ $v := print "1.2.3-" $b }}{{ range loop 100 }}{{ $_ := sprig_semver $v }}{{ end }}"#, "bytes"),
    (r#"{{ sprig_semverCompare (sprig_repeat 20000 ">1 ") "1.2.3" }}"#, "bytes"),
    (
        r#"{{ secret "a" $b $b $b $b $b $b $b $b $b $b $b $b $b $b $b $b $b $b $b $b $b $b $b $b $b }}"#,
        "bytes",
    ),
    (r#"{{ regexMatch (sprig_repeat 2000 "a") "a" }}"#, "regular expression"),
    (
        r#"{{ $t := sprig_repeat 10000 "ab" }}{{ range loop 10 }}{{ $_ := regexMatch "[ab]*a[ab]{100}c" $t }}{{ end }}"#,
        "bytes",
    ),
    (
        r#"{{ define "T" }}{{ sprig_repeat 3000 "x" }}{{ $_ := executeTemplate "T" }}{{ end }}{{ executeTemplate "T" }}"#,
        "output",
    ),
    (
        r#"{{ $l := split "," (sprig_repeat 5000 "a,") }}{{ range loop 1000 }}{{ $_ := $l.Contains "x" }}{{ end }}"#,
        "bytes",
    ),
    (
        r#"{{ $d := sprig_dict }}{{ range loop 1000 }}{{ $_ := sprig_set $d (print .) 1 }}{{ end }}{{ $_ := sprig_set $d "" $d }}{{ mergeMap $d $d }}"#,
        "bytes",
    ),
    (
        r#"{{ $d := sprig_dict }}{{ range loop 1000 }}{{ $_ := sprig_set $d (print .) 1 }}{{ end }}{{ $_ := sprig_set $d "" $d }}{{ sprig_deepCopy $d }}"#,
        "bytes",
    ),
    (
        r#"{{ $d := sprig_dict }}{{ range loop 1000 }}{{ $_ := sprig_set $d (print .) nil }}{{ end }}{{ $l := sprig_list $d }}{{ range loop 8 }}{{ $l = sprig_concat $l $l }}{{ end }}{{ toTOML (sprig_dict "l" $l) }}"#,
        "steps",
    ),
    (r#"{{ $l := sprig_list $b }}{{ range loop 100 }}{{ $_ := sprig_toDecimal $l }}{{ end }}"#, "bytes"),
    (r#"{{ $s := printf "GetAllInterfaces | join \"address\" \"%s\"" $b }}{{ $_ := sockaddr $s }}"#, "bytes"),
    (
        r#"{{ $s := printf "GetAllInterfaces | sort \"%s\"" (print (sprig_repeat 5000 "address,") "name") }}{{ $_ := sockaddr $s }}"#,
        "bytes",
    ),
];

#[test]
fn functions_count_what_they_make() {
    let options = Options { limits: SMALL, ..Options::default() };
    let address = |number: u8| NodeAddress {
        interface: "eth0".to_owned(),
        address: [10, 0, 0, number].into(),
        prefix: 24,
        is_up: true,
        is_default: true,
    };
    let source = Fixed::default().with_addresses((0..100).map(address).collect());
    let mut wrong = Vec::new();
    for (text, bound) in UNCOUNTED {
        let text = format!(r#"{{{{ $b := sprig_repeat 50000 "k" }}}}{text}"#);
        match Template::parse(&text, &options).unwrap().render(&source).result {
            Err(error) if error.kind == ErrorKind::Limit && error.message.contains(bound) => {}
            Err(error) => wrong.push(format!("{text}: {error}")),
            Ok(_) => wrong.push(format!("{text}: no error")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Rust formats at most 65535 digits, and panics beyond.
#[test]
fn precisions_have_no_limit_of_their_own() {
    for (verb, length) in [("f", 100_002), ("e", 100_006), ("g", 3)] {
        let output = render(&format!(r#"{{{{ printf "%.100000{verb}" 1.5 }}}}"#)).unwrap();
        assert_eq!(output.len(), length, "{verb}");
        assert!(output.starts_with(b"1.5"));
    }
}

/// Variables were found by scanning all of them, which took minutes for these texts.
#[test]
fn many_variables_do_not_slow_others() {
    let declared: String = (0..60_000).map(|number| format!("{{{{$v{number}:=1}}}}")).collect();
    let used = "{{$v0}}".repeat(10_000);
    assert_eq!(render(&format!("{declared}{}", &used[..used.len() / 5])).unwrap().len(), 2_000);
    let error =
        render(&format!("{declared}{{{{ range loop 10000000 }}}}{{{{ $v0 }}}}{{{{ end }}}}")).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Limit);
    // A template of its own sees none of them, and they are back after it.
    let text = r#"{{ $a := 1 }}{{ define "T" }}{{ $a := 2 }}{{ $a }}{{ end }}{{ template "T" }}{{ $a }}{{ range loop 2 }}{{ $a := 3 }}{{ $a }}{{ end }}{{ $a }}"#;
    assert_eq!(render(text).unwrap(), b"21331");
    let text = "{{ if false }}{{ $x := 1 }}{{ else }}{{ $x }}{{ end }}";
    assert_eq!(render(text).unwrap_err().message, "undefined variable");
}

/// Each definition compared itself with the space of the first one.
#[test]
fn many_definitions_of_a_template_are_parsed_at_once() {
    let again = r#"{{define "T"}}{{end}}"#.repeat(20_000);
    let text = format!(r#"{{{{define "T"}}}}{}{{{{.}}}}{{{{end}}}}{again}ok"#, " ".repeat(500_000));
    assert_eq!(render(&text).unwrap(), b"ok");
}

#[test]
fn messages_of_errors_are_short() {
    let error = render(r#"{{ sprig_fail (sprig_repeat 100000 "é") }}"#).unwrap_err();
    assert!(error.message.len() < 2_100, "{}", error.message.len());
    let error = render(r#"{{ file (sprig_repeat 2000 "a/b") }}"#).unwrap_err();
    assert!(error.message.contains("4095 bytes"), "{error}");
}

/// An alias repeats a text for a few bytes.
#[test]
fn aliases_of_long_texts_are_refused() {
    let long = "x".repeat(100_000);
    let anchors: String = (0..4_000).map(|number| format!("k{number}: &k{number} 1\n")).collect();
    let aliases = "*a,".repeat(40_000);
    let text = format!("{{{{ $_ := parseYAML `a: &a {long}\n{anchors}l: [{aliases}]\n` }}}}");
    assert!(render(&text).is_err());
}

/// The agent's threads have two megabytes of stack, as those of tests.
#[test]
fn the_deepest_template_and_value_fit_on_a_stack() {
    let value = format!("{}1{}", "[".repeat(100), "]".repeat(100));
    let text = format!(
        r#"{{{{ define "T" }}}}{{{{ if eq (len .l) 90 }}}}{{{{ toJSON .v | len }}}}{{{{ else }}}}{{{{ template "T" (sprig_dict "l" (print .l "x") "v" .v) }}}}{{{{ end }}}}{{{{ end }}}}{{{{ template "T" (sprig_dict "l" "" "v" (parseJSON `{value}`)) }}}}"#
    );
    assert_eq!(render(&text).unwrap(), b"201");
}

/// A deep value that a map hides from the bound of lists is dropped without recursion.
#[test]
fn deep_values_are_dropped_without_recursion() {
    let text = r#"{{ $d := sprig_dict }}{{ range loop 50000 }}{{ $e := sprig_dict "l" (sprig_list $d) }}{{ $d = $e }}{{ end }}ok"#;
    assert_eq!(render(text).unwrap(), b"ok");
    let text = r#"{{ range loop 50000 }}{{ scratch.Set "a" (sprig_dict "b" (scratch.Get "a")) }}{{ end }}ok"#;
    assert_eq!(render(text).unwrap(), b"ok");
}

#[test]
fn nesting_in_the_text_is_bounded() {
    for (open, close) in
        [("{{ if true }}", "{{ end }}"), ("{{ with 1 }}", "{{ end }}"), ("{{ range 1 }}", "{{ end }}")]
    {
        let text = |depth: usize| format!("{}x{}", open.repeat(depth), close.repeat(depth));
        assert_eq!(render(&text(90)).unwrap(), b"x");
        let error = render(&text(100_000)).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Limit);
    }
    let parens = |depth: usize| format!("{{{{ {}1{} }}}}", "(".repeat(depth), ")".repeat(depth));
    assert_eq!(render(&parens(90)).unwrap(), b"1");
    assert_eq!(render(&parens(100_000)).unwrap_err().kind, ErrorKind::Limit);
    let chain = format!("{{{{ if false }}}}{}{{{{ end }}}}", "{{ else if false }}".repeat(10_000));
    assert_eq!(render(&chain).unwrap(), b"");
}

#[test]
fn long_texts_are_refused() {
    let options = Options { limits: Limits { source_bytes: 10, ..Limits::DEFAULT }, ..Options::default() };
    let error = Template::parse("12345678901", &options).unwrap_err();
    assert_eq!(
        (error.kind, error.message.as_str()),
        (ErrorKind::Limit, "the template has more than 10 bytes")
    );
}

/// Nested documents end at the bounds of their parsers.
#[test]
fn deep_documents_are_refused() {
    let json = format!("{{{{ parseJSON `{}{}` }}}}", "[".repeat(5_000), "]".repeat(5_000));
    assert_eq!(render(&json).unwrap_err().kind, ErrorKind::Evaluation);
    let yaml = format!("{{{{ parseYAML `{}{}` }}}}", "[".repeat(5_000), "]".repeat(5_000));
    assert_eq!(render(&yaml).unwrap_err().kind, ErrorKind::Evaluation);
    let laughs = "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: &f [*e,*e,*e,*e,*e,*e,*e,*e,*e]\ng: [*f,*f,*f,*f,*f,*f,*f,*f,*f]\n";
    assert!(render(&format!("{{{{ parseYAML `{laughs}` }}}}")).is_err());
}

/// Pieces of templates, in any order.
fn pieces() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "{{ ",
        "}}",
        " }}",
        "{{- ",
        " -}}",
        "if ",
        "else ",
        "end",
        "range ",
        "with ",
        "define \"T\"",
        "template \"T\" ",
        "block \"B\" . ",
        "break",
        "continue",
        "$x",
        "$x := ",
        "$x = ",
        "$i, $v := ",
        ".",
        ".a",
        ".a.b",
        "1",
        "-1",
        "1.5",
        "\"s\"",
        "`r`",
        "'c'",
        "true",
        "nil",
        "(",
        ")",
        " | ",
        " ",
        "\n",
        "text",
        "print ",
        "printf \"%d %s\" ",
        "len ",
        "index ",
        "eq ",
        "and ",
        "or ",
        "toJSON ",
        "parseJSON \"[1]\" ",
        "sprig_list ",
        "sprig_dict ",
        "loop 3 ",
        "/* c */",
        "é",
    ]);
    prop::collection::vec(piece, 0..24).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn no_text_panics(text in pieces()) {
        let first = render(&text);
        prop_assert_eq!(&first, &render(&text), "rendering has no hidden state");
        if let Err(error) = first {
            prop_assert!(error.position.line <= text.matches('\n').count() + 1);
        }
    }

    #[test]
    fn text_without_delimiters_is_unchanged(text in "[^{]*") {
        prop_assert_eq!(render(&text).unwrap(), text.into_bytes());
    }

    #[test]
    fn quoted_strings_print_as_they_are(text in ".*") {
        let literal = format!("{{{{ {} }}}}", serde_json::to_string(&text).unwrap());
        // JSON escapes characters beyond the basic plane with surrogates; serde_json writes them as they are.
        prop_assert_eq!(render(&literal).unwrap(), text.into_bytes());
    }

    #[test]
    fn json_is_read_as_it_was_written(number in -1e15..1e15f64, text in ".*") {
        let data = serde_json::json!({ "n": number, "t": text, "l": [null, true, {}] });
        let template = Template::parse("{{ toJSON . | parseJSON | toJSON }}{{ toYAML . | parseYAML | toJSON }}", &Options::default()).unwrap();
        let json = String::from_utf8(template.render_with(&Fixed::default(), &data).result.unwrap()).unwrap();
        let once = Template::parse("{{ toJSON . }}", &Options::default()).unwrap();
        let once = String::from_utf8(once.render_with(&Fixed::default(), &data).result.unwrap()).unwrap();
        prop_assert_eq!(json, format!("{once}{once}"));
    }
}

/// The agent parses once, and renders on any thread.
#[test]
fn templates_are_shared_between_threads() {
    fn shared<T: Send + Sync>(_: &T) {}
    shared(&Template::parse("x", &Options::default()).unwrap());
}
