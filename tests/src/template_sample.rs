//! A template of 100 lines with 20 values, as jobs have them, and its data: for benchmarks.

use std::fmt::Write as _;

use herdlet_template::source::Fixed;

/// A configuration: 20 values of the environment and of variables, a list of services, conditions, text.
pub fn text() -> String {
    let mut text = String::from("# managed\n{{- $job := env \"NOMAD_JOB_NAME\" }}\n");
    for number in 0..10 {
        let _ = writeln!(text, "[section.{number}]");
        let _ = writeln!(text, "address = \"{{{{ env \"ADDR_{number}\" }}}}\"");
        let _ = writeln!(text, "{{{{ with nomadVar \"nomad/jobs/web/{number}\" }}}}");
        let _ = writeln!(text, "password = {{{{ .password | toJSON }}}}");
        let _ = writeln!(text, "{{{{ end -}}}}");
        let _ = writeln!(
            text,
            "{{{{ if eq $job \"web\" }}}}name = \"web-{number}\"{{{{ else }}}}name = \"other\"{{{{ end }}}}"
        );
        let _ = writeln!(text, "limit = {{{{ \"{number}\" | parseInt | multiply 10 | add 1 }}}}");
        let _ = writeln!(
            text,
            "tags = \"{{{{ range $i, $t := split \",\" \"a,b,c\" }}}}{{{{ if $i }}}};{{{{ end }}}}{{{{ $t | toUpper }}}}{{{{ end }}}}\""
        );
        let _ = writeln!(text, "timeout = \"{{{{ printf \"%03d\" {number} }}}}s\"");
        let _ = writeln!(text, "plain = true");
    }
    text
}

/// The data of [`text`].
pub fn source() -> Fixed {
    (0..10).fold(Fixed::default().with_env("NOMAD_JOB_NAME", "web"), |source, number| {
        source.with_env(&format!("ADDR_{number}"), "10.0.0.1:8080").with_item(
            &format!("nomad/jobs/web/{number}"),
            "password",
            "correct horse battery staple",
        )
    })
}
