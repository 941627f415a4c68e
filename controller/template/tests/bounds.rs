//! Hostile templates and data end at bounds, with an error that names the bound.

use herdlet_template::{Error, ErrorKind, Limits, Options, Template, source::Fixed};
use proptest::prelude::*;

fn render(text: &str) -> Result<Vec<u8>, Error> {
    Template::parse(text, &Options::default())?.render(&Fixed::default()).result
}

/// Each with a part of the error.
const HOSTILE: [(&str, &str); 25] = [
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
