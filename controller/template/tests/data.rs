//! Data of sources: queries, answers, missing data.

#![expect(clippy::unwrap_used, reason = "tests may panic")]

use herdlet_template::{
    Answer, Choice, Error, ErrorKind, MissingKey, NodeAddress, Options, Query, Render, ServiceInstance,
    Source, Template, source::Fixed,
};

fn render_from(text: &str, source: &dyn Source) -> Render {
    Template::parse(text, &Options::default()).unwrap().render(source)
}

fn output(text: &str, source: &dyn Source) -> String {
    let render = render_from(text, source);
    assert!(render.missing.is_empty(), "{text}: {:?}", render.missing);
    String::from_utf8(render.result.unwrap_or_else(|error| panic!("{error}"))).unwrap()
}

fn names<'q>(queries: impl IntoIterator<Item = &'q Query>) -> Vec<String> {
    queries.into_iter().map(Query::to_string).collect()
}

fn web(id: &str, port: u16, tags: &[&str]) -> ServiceInstance {
    ServiceInstance {
        id: id.to_owned(),
        name: "web".to_owned(),
        address: "10.0.0.1".to_owned(),
        port,
        tags: tags.iter().map(|tag| (*tag).to_owned()).collect(),
        ..ServiceInstance::default()
    }
}

/// Answers nothing yet.
struct Empty;

impl Source for Empty {
    fn answer(&self, _: &Query) -> Answer {
        Answer::Pending
    }
}

#[test]
fn environment_variables_are_those_of_the_source() {
    let source = Fixed::default().with_env("A", "1").with_env("EMPTY", "");
    assert_eq!(
        output(
            r#"{{ env "A" }}{{ env "B" }}|{{ envOrDefault "B" "d" }}{{ envOrDefault "EMPTY" "d" }}|{{ mustEnv "A" }}"#,
            &source
        ),
        "1|d|1"
    );
    let error = render_from(r#"{{ mustEnv "EMPTY" }}"#, &source).result.unwrap_err();
    assert!(error.message.contains("required environment variable EMPTY is empty"), "{error}");
    assert!(std::env::var_os("PATH").is_some());
    assert_eq!(output(r#"{{ env "PATH" }}"#, &source), "");
}

#[test]
fn variables_have_items_and_metadata() {
    let path = "nomad/jobs/web";
    let source = Fixed::default()
        .with_item(path, "user", "admin")
        .with_item(path, "Keys", "x")
        .with_item(path, "a-b", "c");
    for (text, expected) in [
        (r#"{{ with nomadVar "nomad/jobs/web" }}{{ .user }}{{ end }}"#, "admin"),
        (r#"{{ (nomadVar "nomad/jobs/web").user }}"#, "admin"),
        (r#"{{ (nomadVar "/nomad/jobs/web/").user.Value }}"#, "admin"),
        (r#"{{ (nomadVar "nomad/jobs/web").missing }}|"#, "|"),
        (r#"{{ index (nomadVar "nomad/jobs/web") "a-b" }}"#, "c"),
        (
            r#"{{ range $k, $v := nomadVar "nomad/jobs/web" }}{{ $k }}={{ $v }} {{ end }}"#,
            "Keys=x a-b=c user=admin ",
        ),
        (
            r#"{{ with nomadVar "nomad/jobs/web" }}{{ .Keys }}{{ .Values }}{{ range .Tuples }}<{{ .K }}:{{ .V }}>{{ end }}{{ end }}"#,
            "[Keys a-b user][x c admin]<Keys:x><a-b:c><user:admin>",
        ),
        (
            r#"{{ with nomadVar "nomad/jobs/web" }}{{ .Metadata.Path }} {{ .Parent.Path }} {{ .Parent.Items.user }} {{ .ItemsMap | toJSON }}{{ end }}"#,
            r#"nomad/jobs/web nomad/jobs/web admin {"Keys":"x","a-b":"c","user":"admin"}"#,
        ),
        (r#"{{ nomadVar "nomad/jobs/web" | toJSON }}"#, r#"{"Keys":"x","a-b":"c","user":"admin"}"#),
        (
            r#"{{ if nomadVarExists "nomad/jobs/web" }}yes{{ end }}{{ if nomadVarExists "nomad/jobs/none" }}no{{ end }}"#,
            "yes",
        ),
        (
            r#"{{ range nomadVarList "nomad/jobs" }}{{ . }} {{ .Path }} {{ .Namespace }}{{ end }}"#,
            "nomad/jobs/web nomad/jobs/web default",
        ),
        (
            r#"{{ with nomadVar "nomad/jobs/web" }}{{ .user | toUpper }} {{ printf "%s|%q" .user .user }}{{ if eq .user.Value "admin" }}!{{ end }}{{ end }}"#,
            "ADMIN admin|\"admin\"!",
        ),
        (r#"{{ nomadVar "" }}"#, "map[]"),
    ] {
        assert_eq!(output(text, &source), expected, "{text}");
    }
}

/// A template waits for data without an answer, and for variables that do not exist.
#[test]
fn missing_data_is_listed() {
    let text = r#"{{ with nomadVar "nomad/jobs/a" }}{{ .x }}{{ end }}{{ range nomadService "web" }}{{ .Port }}{{ end }}{{ env "E" }}"#;
    let render = render_from(text, &Empty);
    assert_eq!(render.result.as_deref(), Ok(&b""[..]));
    assert_eq!(names(&render.missing), ["env E", "nomad/jobs/a", "service web"]);
    let in_order = ["nomad/jobs/a", "service web", "env E"];
    assert_eq!(names(&render.used), in_order);
    let render = render_from(text, &Fixed::default());
    assert_eq!(names(&render.missing), ["nomad/jobs/a", "service web"]);
    assert_eq!(names(&render.used), in_order);
    let render = render_from("{{ nomadVarListSafe \"x\" }}{{ nomadVarList \"x\" }}", &Fixed::default());
    assert_eq!(names(&render.missing), ["x*"]);
}

/// The second query depends on the answer to the first.
#[test]
fn later_queries_follow_from_earlier_answers() {
    let text = r#"{{ with nomadVar "a" }}{{ with nomadVar .next.Value }}{{ .x }}{{ end }}{{ end }}"#;
    assert_eq!(names(&render_from(text, &Fixed::default()).missing), ["a"]);
    let source = Fixed::default().with_item("a", "next", "b");
    assert_eq!(names(&render_from(text, &source).missing), ["b"]);
    assert_eq!(output(text, &source.with_item("b", "x", "y")), "y");
}

/// An error may be the consequence of missing data; both are reported.
#[test]
fn errors_do_not_hide_missing_data() {
    let render = render_from(r#"{{ index (nomadService "web") 0 }}"#, &Empty);
    assert_eq!(render.result.unwrap_err().kind, ErrorKind::Evaluation);
    assert_eq!(names(&render.missing), ["service web"]);
}

#[test]
fn services_have_the_fields_of_nomad() {
    let source = Fixed::default().with_service(web("1", 80, &["b", "a"])).with_service(web("2", 81, &["a"]));
    for (text, expected) in [
        (
            r#"{{ range nomadService "web" }}{{ .ID }}:{{ .Address }}:{{ .Port }}{{ .Tags }} {{ end }}"#,
            "1:10.0.0.1:80[a b] 2:10.0.0.1:81[a] ",
        ),
        (r#"{{ range nomadService "b.web" }}{{ .ID }}{{ end }}"#, "1"),
        (r#"{{ with index (nomadService "web") 1 }}{{ .Port | add 1 }}{{ end }}"#, "82"),
        (
            r#"{{ range $tag, $services := nomadService "web" | byTag }}{{ $tag }}:{{ range $services }}{{ .ID }}{{ end }} {{ end }}"#,
            "a:12 b:1 ",
        ),
        (
            r#"{{ range $port, $services := byPort (nomadService "web") }}{{ $port }}={{ len $services }} {{ end }}"#,
            "80=1 81=1 ",
        ),
        (r#"{{ range nomadServices }}{{ .Name }}{{ .Tags }}{{ end }}"#, "web[a b]"),
        (
            r#"{{ range nomadService "web" }}{{ if .Tags | contains "b" }}{{ .ID }}{{ end }}{{ if .Tags.Contains "b" }}!{{ end }}{{ end }}"#,
            "1!",
        ),
        (r#"{{ len (nomadService "none") }}"#, "0"),
    ] {
        assert_eq!(output(text, &source), expected, "{text}");
    }
    let render = render_from(
        r#"{{ nomadService 2 "key" "a.web@eu" }}{{ nomadVar "p@ns.eu" }}{{ nomadServices "@eu" }}"#,
        &Empty,
    );
    let choice = Choice { count: 2, key: "key".to_owned() };
    let [name, tag, region] = ["web", "a", "eu"].map(str::to_owned);
    assert!(render.used.contains(&Query::NomadService { name, tag, region, choice: Some(choice) }));
    assert_eq!(names(&render.used), ["service a.web@.eu (2 by key)", "p@ns.eu", "services@.eu"]);
}

#[test]
fn wrong_names_are_errors() {
    for text in [
        r#"{{ nomadService "a b" }}"#,
        r#"{{ nomadService 1 "web" }}"#,
        r#"{{ nomadService -1 "k" "web" }}"#,
        r#"{{ nomadVar "p@a b" }}"#,
        r#"{{ nomadVar "@ns" }}"#,
        r#"{{ nomadServices "eu" }}"#,
        r#"{{ secret "a" "b" }}"#,
        r#"{{ byTag (sprig_list 1) }}"#,
    ] {
        let error = render_from(text, &Empty).result.expect_err(text);
        assert_eq!(error.kind, ErrorKind::Evaluation, "{text}: {error}");
    }
}

#[test]
fn functions_of_consul_and_vault_name_what_they_need() {
    for (text, needed) in [
        (r#"{{ key "a" }}"#, "key needs Consul"),
        (r#"{{ range service "web" }}{{ end }}"#, "service needs Consul"),
        (r#"{{ with secret "secret/data/x" }}{{ .Data.data.y }}{{ end }}"#, "secret needs Vault"),
        (r#"{{ node }}"#, "node needs Consul"),
    ] {
        let error = render_from(text, &Fixed::default()).result.expect_err(text);
        assert_eq!(error.kind, ErrorKind::Refused);
        assert!(error.message.contains(needed), "{error}");
    }
}

/// The field chains that job files use, on data as a later source gives it.
#[test]
fn data_of_consul_and_vault_is_read_by_fields() {
    let services = serde_json::json!([{ "ID": "a", "Address": "1.2.3.4", "Port": 80, "Tags": ["x"], "ServiceMeta": { "v": "7" } }]);
    let secret = serde_json::json!({ "Data": { "data": { "password": "p", "a-b": 5 } }, "LeaseID": "" });
    let pairs = serde_json::json!([{ "Key": "a/b", "Value": "1" }, { "Key": "c", "Value": "2" }, { "Key": "d/", "Value": "" }]);
    let source = Fixed::default()
        .with_json("service web", services)
        .with_json("secret secret/data/x", secret)
        .with_json("key k", serde_json::json!("value"))
        .with_json("keyExistsGet conf/c", serde_json::json!({ "Key": "c", "Value": "2", "Exists": true }))
        .with_json("tree conf", pairs);
    for (text, expected) in [
        (
            r#"{{ range service "web" }}{{ .ID }} {{ .Address }}:{{ .Port }} {{ .Tags }}{{ end }}"#,
            "a 1.2.3.4:80 [x]",
        ),
        (
            r#"{{ with secret "secret/data/x" }}{{ .Data.data.password }} {{ index .Data.data "a-b" }}{{ end }}"#,
            "p 5",
        ),
        (r#"{{ (secret "secret/data/x").Data.data.password }}"#, "p"),
        (r#"{{ key "k" }} {{ keyOrDefault "k" "d" }} {{ keyExists "k" }}"#, "value value true"),
        (
            r#"{{ range ls "conf" }}{{ .Key }}={{ .Value }};{{ end }}{{ range tree "conf" }}{{ .Key }};{{ end }}"#,
            "c=2;a/b;c;",
        ),
        (r#"{{ with keyExistsGet "conf/c" }}{{ .Exists }} {{ .Value }}{{ end }}"#, "true 2"),
        (r#"{{ tree "conf" | explode | toJSON }}"#, r#"{"a":{"b":"1"},"c":"2"}"#),
        (
            r#"{{ range $k, $p := tree "conf" | byKey }}{{ $k }}{{ range $n, $v := $p }}:{{ $n }}={{ $v.Value }}{{ end }}{{ end }}"#,
            "a:b=1",
        ),
        (r#"{{ range $k, $s := service "web" | byMeta "v|int" }}{{ $k }}{{ len $s }}{{ end }}"#, "000071"),
    ] {
        assert_eq!(output(text, &source), expected, "{text}");
    }
}

#[test]
fn files_stay_in_the_sandbox() {
    let options = Options { sandbox: Some("/alloc/web".to_owned()), ..Options::default() };
    let source = Fixed::default().with_file("local/a", b"\xff\x00binary");
    let render = |text: &str| Template::parse(text, &options).unwrap().render(&source);
    for text in
        [r#"{{ file "local/a" }}"#, r#"{{ file "/alloc/web/local/a" }}"#, r#"{{ file " local/x/../a " }}"#]
    {
        assert_eq!(render(text).result.unwrap(), b"\xff\x00binary", "{text}");
    }
    for text in
        [r#"{{ file "/etc/passwd" }}"#, r#"{{ file "../x" }}"#, r#"{{ file "/alloc/web/../other/x" }}"#]
    {
        let error = render(text).result.expect_err(text);
        assert!(error.message.contains("outside of sandbox"), "{error}");
    }
    assert_eq!(names(&render(r#"{{ file "local/none" }}"#).missing), ["file local/none"]);
}

#[test]
fn denied_functions_fail_when_they_are_called() {
    let options =
        Options { denylist: vec!["executeTemplate".to_owned(), "sprig_*".to_owned()], ..Options::default() };
    let render = |text: &str| Template::parse(text, &options).unwrap().render(&Fixed::default()).result;
    for text in [r#"{{ executeTemplate "x" }}"#, "{{ sprig_list 1 }}", r#"{{ "a" | sprig_upper }}"#] {
        let error = render(text).expect_err(text);
        assert!(error.message.contains("disabled"), "{error}");
    }
    assert_eq!(render("{{ if false }}{{ sprig_list }}{{ end }}ok").unwrap(), b"ok");
    let error = render_from(r#"{{ plugin "x" }}"#, &Empty).result.unwrap_err();
    assert!(error.message.contains("runs no program"), "{error}");
}

#[test]
fn a_missing_key_is_an_error_if_asked() {
    let options = Options { missing_key: MissingKey::Error, ..Options::default() };
    let source = Fixed::default().with_item("a", "x", "1");
    let render = |text: &str| Template::parse(text, &options).unwrap().render(&source).result;
    assert_eq!(render(r#"{{ (nomadVar "a").x }}"#).unwrap(), b"1");
    let error = render(r#"{{ (nomadVar "a").y }}"#).unwrap_err();
    assert!(error.message.contains("map has no entry for key \"y\""), "{error}");
}

fn failed(text: &str) -> Error {
    let options = Options { name: "app.tpl".into(), ..Options::default() };
    match Template::parse(text, &options) {
        Ok(template) => template.render(&Fixed::default()).result.unwrap_err(),
        Err(error) => error,
    }
}

#[test]
fn errors_have_a_place_and_a_cause() {
    for (text, expected) in [
        (
            "a\n  {{ nomadvar \"x\" }}",
            "app.tpl:2:6: function \"nomadvar\" not defined; did you mean nomadVar?",
        ),
        ("{{ if }}", "app.tpl:1:7: missing value for if"),
        ("é {{ .x.y | len }}", "app.tpl:1:13: at <len>: len: len of nil pointer"),
        ("x\n{{ $a }}", "app.tpl:2:4: undefined variable \"$a\""),
        ("{{ index \"abc\" 9 }}", "app.tpl:1:4: at <index \"abc\" 9>: index: index out of range: 9"),
        ("{{ template \"none\" }}", "app.tpl:1:13: at <\"none\">: template \"none\" not defined"),
        (
            "{{ (parseJSON \"{}\").a.b }}",
            "app.tpl:1:4: at <(parseJSON \"{}\").a.b>: nil pointer evaluating interface {}.b",
        ),
    ] {
        assert_eq!(failed(text).to_string(), expected);
    }
}

fn address(interface: &str, address: &str, prefix: u8) -> NodeAddress {
    NodeAddress {
        interface: interface.to_owned(),
        address: address.parse().unwrap(),
        prefix,
        is_up: true,
        is_default: false,
    }
}

/// An address of the interface with the default route.
fn default_address(interface: &str, text: &str, prefix: u8) -> NodeAddress {
    NodeAddress { is_default: true, ..address(interface, text, prefix) }
}

#[test]
fn addresses_are_chosen_by_expressions() {
    let source = Fixed::default().with_addresses(vec![
        address("lo", "127.0.0.1", 8),
        default_address("eth0", "fe80::1", 64),
        default_address("eth0", "2001:db9::7", 64),
        default_address("eth0", "192.168.1.5", 24),
        address("eth1", "10.1.2.3", 16),
        default_address("wan0", "198.51.99.7", 24),
    ]);
    for (text, expected) in [
        (r#"{{ sockaddr "GetPrivateIP" }}"#, "192.168.1.5"),
        (r#"{{ sockaddr "GetPublicIP" }}"#, "198.51.99.7"),
        (r#"{{ sockaddr "GetInterfaceIP \"eth1\"" }}"#, "10.1.2.3"),
        (r#"{{ sockaddr `GetInterfaceIP "eth0"` }}"#, "192.168.1.5"),
        (r#"{{ sockaddr `GetInterfaceIPs "eth0"` }}"#, "192.168.1.5 2001:db9::7"),
        (r#"{{ sockaddr "GetPrivateIPs" }}"#, "192.168.1.5 10.1.2.3"),
        (
            r#"{{ sockaddr `GetAllInterfaces | include "network" "10.0.0.0/8" | attr "address"` }}"#,
            "10.1.2.3",
        ),
        (
            r#"{{ sockaddr `GetAllInterfaces | include "name" "^eth" | exclude "type" "IPv6" | sort "address" | join "address" ","` }}"#,
            "10.1.2.3,192.168.1.5",
        ),
        (
            r#"{{ sockaddr `GetAllInterfaces | include "rfc" "1918" | include "flags" "up" | limit 1 | attr "name"` }}"#,
            "eth0",
        ),
        (r#"{{ sockaddr `GetInterfaceIP "none"` }}|"#, "|"),
    ] {
        assert_eq!(output(text, &source), expected, "{text}");
    }
    for text in [
        r#"{{ sockaddr "GetNothing" }}"#,
        r#"{{ sockaddr "" }}"#,
        r#"{{ sockaddr `GetPrivateIP | attr "address"` }}"#,
        r#"{{ sockaddr "GetInterfaceIP \"x" }}"#,
    ] {
        assert_eq!(render_from(text, &source).result.expect_err(text).kind, ErrorKind::Evaluation);
    }
    assert_eq!(
        names(&render_from(r#"{{ sockaddr "GetPrivateIP" }}"#, &Empty).missing),
        ["addresses of the node"]
    );
}

/// The results are those of go-sockaddr.
#[test]
fn addresses_are_computed() {
    for (start, prefix, operation, expected) in [
        ("10.1.2.3", 8, ("address", "-256"), "10.1.1.3/8"),
        ("10.1.2.3", 8, ("address", "+4294967295"), "10.1.2.2/8"),
        ("10.1.2.3", 8, ("address", "-4294967296"), "10.1.2.3/8"),
        ("10.1.2.3", 8, ("network", "+300"), "10.0.1.44/8"),
        ("10.1.2.3", 8, ("network", "-300"), "10.255.254.212/8"),
        ("10.1.2.3", 8, ("mask", "16"), "10.1.0.0/8"),
        ("10.1.2.3", 8, ("mask", "0"), "0.0.0.0/0"),
        ("192.168.1.5", 24, ("Network", "+1"), "192.168.1.1/24"),
        ("192.168.1.5", 24, ("network", "-1"), "192.168.1.255/24"),
        ("192.168.1.5", 24, ("network", "+300"), "192.168.1.44/24"),
        ("192.168.1.5", 24, ("network", "-0"), "192.168.1.0/24"),
        ("192.168.1.5", 24, ("mask", "16"), "192.168.0.0/16"),
        ("192.168.1.5", 24, ("mask", "28"), "192.168.1.0/24"),
        ("255.255.255.255", 32, ("address", "+1"), "0.0.0.0"),
        ("255.255.255.255", 32, ("network", "-2"), "255.255.255.255"),
        ("255.255.255.255", 32, ("mask", "28"), "255.255.255.240/28"),
        ("0.0.0.0", 0, ("network", "-1"), "255.255.255.255/0"),
        ("2001:db9::7", 64, ("address", "-256"), "2001:db8:ffff:ffff:ffff:ffff:ffff:ff07/64"),
        ("2001:db9::7", 64, ("address", "+4294967296"), "2001:db9::1:0:7/64"),
        ("2001:db9::7", 64, ("network", "+300"), "2001:db9::12c/64"),
        ("2001:db9::7", 64, ("network", "-300"), "2001:db9::ffff:ffff:ffff:fed4/64"),
        ("2001:db9::7", 64, ("mask", "28"), "2001:db0::/28"),
        ("2001:db9::7", 64, ("mask", "33"), "2001:db9::/33"),
    ] {
        let source = Fixed::default().with_addresses(vec![default_address("eth0", start, prefix)]);
        let (name, value) = operation;
        let text =
            format!(r#"{{{{ sockaddr `GetAllInterfaces | math "{name}" "{value}" | attr "string"` }}}}"#);
        assert_eq!(output(&text, &source), expected, "{start}/{prefix} {operation:?}");
    }
    let source = Fixed::default().with_addresses(vec![default_address("eth0", "10.1.2.3", 8)]);
    for (name, value) in [
        ("address", "1"),
        ("address", "+4294967296"),
        ("address", "+x"),
        ("network", "2"),
        ("mask", "33"),
        ("mask", "+8"),
        ("mask", ""),
        ("none", "+1"),
    ] {
        let text = format!(r#"{{{{ sockaddr `GetAllInterfaces | math "{name}" "{value}"` }}}}"#);
        assert_eq!(render_from(&text, &source).result.expect_err(&text).kind, ErrorKind::Evaluation);
    }
}
