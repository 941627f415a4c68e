//! The fuzz target, and the invariants that must hold for any template and data.
//!
//! In: bytes, from a fuzzer (`tests/fuzz/run template`) or from the corpus (`tests/fuzz/corpus/template`, replayed by the tests
//! below): a template and, after a zero byte, JSON that is its dot. Out: nothing, or a panic that names the broken invariant.
//! Compiled only for tests and fuzzing.

use crate::{ErrorKind, Limits, Options, ServiceInstance, Template, source::Fixed};

/// Small bounds, so that the fuzzer reaches them.
const LIMITS: Limits = Limits {
    steps: 20_000,
    output_bytes: 1 << 16,
    value_bytes: 1 << 20,
    regex_bytes: 1 << 16,
    ..Limits::DEFAULT
};

/// Parses and renders the template.
///
/// # Panics
/// If an invariant is broken.
pub fn feed(data: &[u8]) {
    let (text, dot) = match data.iter().position(|byte| *byte == 0) {
        Some(at) => (&data[..at], &data[at + 1..]),
        None => (data, &b"null"[..]),
    };
    let Ok(text) = std::str::from_utf8(text) else { return };
    let options = Options { limits: LIMITS, sandbox: Some("/task".to_owned()), ..Options::default() };
    let template = match Template::parse(text, &options) {
        Ok(template) => template,
        Err(error) => {
            assert!(matches!(error.kind, ErrorKind::Syntax | ErrorKind::Limit), "{error}");
            assert!(error.position.line <= text.matches('\n').count() + 1, "{error}");
            return;
        }
    };
    let dot = serde_json::from_slice(dot).unwrap_or_default();
    let render = template.render_with(&source(), &dot);
    assert!(render.missing.iter().all(|query| render.used.contains(query)));
    if let Ok(output) = &render.result {
        assert!(output.len() <= LIMITS.output_bytes);
    }
    let again = template.render_with(&source(), &dot);
    assert_eq!(render.result, again.result, "the same data renders the same");
    assert_eq!(render.used, again.used);
}

fn source() -> Fixed {
    let service = ServiceInstance {
        id: "id".to_owned(),
        name: "web".to_owned(),
        address: "127.0.0.1".to_owned(),
        port: 80,
        tags: vec!["a".to_owned(), "b".to_owned()],
        ..ServiceInstance::default()
    };
    Fixed::default()
        .with_env("A", "1")
        .with_file("local/f", b"text\xff")
        .with_item("nomad/jobs/x", "k", "v")
        .with_service(service)
        .with_unix_time(1_136_214_245)
}

/// Templates that reach the bounds, and valid ones.
pub fn seeds() -> Vec<Vec<u8>> {
    let seeds = [
        "a {{ .s }} {{- /* c */ -}} b\0{\"s\":\"x\"}",
        "{{ range $i, $v := .l }}{{ if gt $i 1 }}{{ break }}{{ else }}{{ continue }}{{ end }}{{ $v }}{{ else }}e{{ end }}\0{\"l\":[1,2,3]}",
        "{{ define \"T\" }}{{ template \"T\" . }}{{ end }}{{ template \"T\" . }}",
        "{{ range loop 100000000 }}{{ range loop 100000000 }}{{ end }}{{ end }}",
        "{{ $s := \"x\" }}{{ range loop 64 }}{{ $s = print $s $s }}{{ end }}{{ $s }}",
        "{{ $l := sprig_list }}{{ range loop 1000 }}{{ $l = sprig_list $l $l }}{{ end }}{{ $l }}",
        "{{ $d := sprig_dict }}{{ $_ := sprig_set $d \"d\" $d }}{{ $d | toJSON }}{{ $d }}{{ sprig_deepEqual $d $d }}",
        "{{ \"aaaaaaaaaaaaaaaaaaaaaaaa\" | regexReplaceAll \"(a*)*b|.\" \"$0$0\" }}{{ regexMatch \"((a{100}){100}){100}\" \"a\" }}",
        "{{ with nomadVar \"nomad/jobs/x\" }}{{ range .Tuples }}{{ .K }}={{ .V }}{{ end }}{{ .Metadata.Path }}{{ end }}{{ nomadVarList }}",
        "{{ range nomadService \"web\" }}{{ .Address }}:{{ .Port }}{{ if .Tags | contains \"a\" }}!{{ end }}{{ end }}{{ nomadServices | byTag }}",
        "{{ printf \"%[2]*[1]d|%-08.3f|%q|%#v|% x\" 1 5 2.5 \"\\xff\" . }}\0{\"a\":[null,1.5]}",
        "{{ parseJSON \"{\\\"a\\\":[1,{\\\"b\\\":null}]}\" | toYAML }}{{ parseYAML \"a: &x [1]\\nb: *x\" | toTOML }}",
        "{{ file \"local/../local/f\" | base64Encode }}{{ file \"/etc/passwd\" }}{{ env \"A\" | parseInt | add 1 }}",
        "{{ with $x := index . \"a\" }}{{ $x.b.c }}{{ else with .z }}{{ else }}{{ (index .l 0).k }}{{ end }}\0{\"l\":[{\"k\":1}]}",
        "{{ printf \"%.70000f|%70000.70000e|%.70000g|%x|%#v\" 1.5 2.5 1e-300 . . }}{{ printf (sprig_repeat 5000 \"%d\") }}\0{\"a\":\"\\u0001\"}",
        "{{ define \"T\" }}{{ sprig_repeat 900 \"x\" }}{{ executeTemplate \"T\" }}{{ end }}{{ executeTemplate \"T\" }}",
        "{{ $b := sprig_repeat 9000 \"k\" }}{{ range loop 99 }}{{ $_ := explodeMap (sprig_dict $b 1) }}{{ $_ = sprig_semver (print \"1.2.3-\" $b) }}{{ end }}",
        "{{ $d := sprig_dict \"a\" nil }}{{ $_ := sprig_set $d \"d\" $d }}{{ mergeMap $d $d }}{{ sprig_deepCopy $d }}{{ sprig_keys $d $d }}{{ toTOML $d }}",
        "{{ regexReplaceAll \"(.*)\" \"$1$1$1\" (sprig_repeat 9000 \"a\") }}{{ sprig_regexSplit \"[ab]*a[ab]{40}c|a\" (sprig_repeat 99 \"ab\") -1 }}",
        "{{ $l := split \",\" \"a,b\" }}{{ $l.Contains \"a\" }}{{ $x := 1 }}{{ if false }}{{ $y := 2 }}{{ else }}{{ $x }}{{ $y }}{{ end }}",
        "{{ timestamp \"2006-01-02T15:04:05.000Z07:00\" }}{{ sprig_semverCompare \"^1.2 || ~3\" \"v1.2.3\" }}{{ sprig_wrap 3 \"a b c d\" }}",
    ];
    seeds.iter().map(|seed| seed.as_bytes().to_vec()).collect()
}

#[cfg(test)]
mod tests;
