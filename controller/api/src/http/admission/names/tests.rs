//! Which request heads are refused.

use axum::{body::Body, extract::Request};

use super::*;

/// A machine called `box.example.org` whose config allows two more names.
fn names() -> Names {
    let hosts = "127.0.0.1 localhost app.local # box\n10.0.0.7 box.example.org box box-1 # not.this\n";
    let resolver = "nameserver 10.0.0.1\nsearch corp.example lab.example # x\n";
    let allowed = ["nomad.example.org".to_owned(), "Ui.Example:8443".to_owned()];
    Names::of("box", hosts, resolver)
        .with_own(&["web-7".to_owned(), "10.0.0.7".to_owned()])
        .allowing(&allowed)
}

fn head(method: &str, target: &str, headers: &[(&str, &str)]) -> Parts {
    versioned(Version::HTTP_11, (method, target, headers))
}

fn versioned(version: Version, (method, target, headers): (&str, &str, &[(&str, &str)])) -> Parts {
    let mut request = Request::builder().method(method).uri(target).version(version);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(Body::empty()).unwrap().into_parts().0
}

fn judged(head: &Parts) -> Result<(), HostRefusal> {
    names().judge(head, Naming::Unknown)
}

fn code(head: &Parts) -> u16 {
    judged(head).map_or_else(|stranger| stranger.code().as_u16(), |()| 200)
}

#[test]
fn addresses_and_names_of_this_machine_are_its_own() {
    for host in [
        "127.0.0.1",
        "10.0.0.7:4646",
        "0.0.0.0:4646",
        "[::1]:4646",
        "[fe80::1%eth0]:4646",
        "[fe80::1%25eth0]",
        "localhost",
        "LOCALHOST:4646",
        "localhost.",
        "box",
        "Box:4646",
        "box.",
        "box.example.org.:4646",
        "box-1",
        "box.corp.example",
        "box.lab.example:1",
        "web-7",
        "nomad.example.org:99",
        "ui.example",
        "UI.EXAMPLE.:1",
        "localhost:",
        "app.localhost:4646",
        "a.b.LOCALHOST.",
    ] {
        assert_eq!(code(&head("GET", "/v1/jobs", &[("host", host)])), 200, "{host}");
    }
}

#[test]
fn foreign_host_names_are_refused() {
    for host in [
        "evil.example",
        "evil.example:4646",
        "box.evil.example",
        "localhost.evil.example",
        "evillocalhost",
        "localhost.localdomain.evil.example",
        "app.local",
        "not.this",
        "corp.example",
        "127.0.0.1.evil.example",
        "127.1",
        "0x7f000001",
        "xn--bcher-kva.example",
    ] {
        let head = head("GET", "/v1/jobs", &[("host", host)]);
        let Err(stranger @ HostRefusal::Host { .. }) = judged(&head) else { panic!("{host}") };
        assert!(stranger.to_string().contains(&format!("\"{host}\"")), "{stranger}");
        assert_eq!(code(&head), 421);
    }
}

#[test]
fn request_needs_exactly_one_host() {
    for headers in [
        &[][..],
        &[("host", "")],
        &[("host", "box"), ("host", "box")],
        &[("host", "evil.example"), ("host", "box")],
        &[("host", "user@box")],
        &[("host", "box@evil.example")],
        &[("host", "box, evil.example")],
        &[("host", "box:99999")],
        &[("host", "::1")],
        &[("host", "[::1")],
        &[("host", "box/")],
    ] {
        assert_eq!(judged(&head("GET", "/v1/jobs", headers)), Err(HostRefusal::Malformed), "{headers:?}");
    }
    // HTTP/1.0 requires no host, and no browser speaks it.
    assert_eq!(judged(&versioned(Version::HTTP_10, ("GET", "/", &[]))), Ok(()));
    let named = [("host", "evil.example")];
    assert!(judged(&versioned(Version::HTTP_10, ("GET", "/", &named))).is_err());
    let two = [("host", "box"), ("host", "box")];
    assert!(judged(&versioned(Version::HTTP_10, ("GET", "/", &two))).is_err());
}

#[test]
fn a_target_with_a_host_is_judged_too() {
    let host = [("host", "box")];
    assert_eq!(code(&head("GET", "http://box:4646/v1/jobs", &host)), 200);
    assert_eq!(code(&head("GET", "http://evil.example/v1/jobs", &host)), 421);
    assert_eq!(code(&head("GET", "http://box@evil.example/v1/jobs", &host)), 400);
    assert_eq!(code(&head("GET", "http://box/v1/jobs", &[("host", "evil.example")])), 421);
    assert_eq!(code(&head("GET", "http://box/v1/jobs", &[])), 400);
    assert_eq!(code(&head("CONNECT", "evil.example:80", &host)), 421);
    // HTTP/2 has `:authority`, which arrives as the target's authority.
    assert_eq!(code(&versioned(Version::HTTP_2, ("GET", "https://box/v1/jobs", &[]))), 200);
    assert_eq!(code(&versioned(Version::HTTP_2, ("GET", "https://evil.example/", &[]))), 421);
    assert_eq!(code(&versioned(Version::HTTP_2, ("GET", "/", &[]))), 400);
}

#[test]
fn page_may_change_only_its_own_origin() {
    let ask = |method: &str, origin: &str| {
        code(&head(method, "/v1/jobs", &[("host", "box:4646"), ("origin", origin)]))
    };
    for method in ["POST", "PUT", "DELETE", "PATCH", "TRACE", "ANYTHING"] {
        assert_eq!(ask(method, "http://box:4646"), 200);
        assert_eq!(ask(method, "https://BOX.:4646"), 200);
        assert_eq!(ask(method, "https://nomad.example.org"), 200, "the config names the host");
        assert_eq!(ask(method, "https://nomad.example.org:4646"), 200, "with any port");
        assert_eq!(ask(method, "https://ui.example:8443"), 200);
        for origin in [
            "http://evil.example",
            "http://box",
            "http://box:80",
            "http://10.0.0.7:4646",
            "http://localhost:4646",
            "null",
            "",
            "https://ui.example",
            "http://box.evil.example:4646",
            "http://box:4646@evil.example",
            "file://",
            "http://",
        ] {
            assert_eq!(ask(method, origin), 403, "{method} {origin}");
        }
    }
    for method in ["GET", "HEAD", "OPTIONS"] {
        assert_eq!(ask(method, "http://evil.example"), 200, "the browser hides the response from the page");
    }
    let two = [("host", "box"), ("origin", "http://box"), ("origin", "http://evil.example")];
    assert_eq!(code(&head("POST", "/", &two)), 403);
    assert_eq!(code(&head("POST", "/", &[("host", "box")])), 200, "a command line is not a page");
    let old = versioned(Version::HTTP_10, ("POST", "/", &[("origin", "http://box")]));
    assert_eq!(code(&old), 403, "without a host nothing is of the same origin");
}

#[test]
fn conversations_and_collections_count_as_changes() {
    let page = [("host", "box"), ("origin", "http://evil.example")];
    let upgrade = [page[0], page[1], ("upgrade", "websocket"), ("connection", "upgrade")];
    assert_eq!(code(&head("GET", "/v1/client/allocation/x/exec", &upgrade)), 403);
    let own = [page[0], ("origin", "http://box"), upgrade[2], upgrade[3]];
    assert_eq!(code(&head("GET", "/v1/client/allocation/x/exec", &own)), 200);
    for path in ["/v1/client/gc", "/v1/client/allocation/x/gc", "/v1/client/gc?node_id=n1"] {
        for method in ["GET", "HEAD"] {
            assert_eq!(code(&head(method, path, &page)), 403, "{path}");
            assert_eq!(code(&head(method, path, &page[..1])), 200, "a request like Nomad's command line's");
        }
    }
    for path in ["/v1/herdlet/gc", "/v1/job/gc", "/v1/client/stats"] {
        assert_eq!(code(&head("GET", path, &page)), 200, "{path} is read");
    }
}

/// Browsers request an image of a page without `Origin`.
#[test]
fn image_request_cannot_collect() {
    let browser = ("user-agent", "Mozilla/5.0 (X11; Linux x86_64; rv:145.0) Gecko/20100101 Firefox/145.0");
    let ask = |method: &str, headers: &[(&str, &str)]| {
        code(&head(method, "/v1/client/gc", &[&[("host", "box")], headers].concat()))
    };
    for site in ["same-site", "cross-site", "another"] {
        for method in ["GET", "HEAD", "PUT"] {
            assert_eq!(ask(method, &[("sec-fetch-site", site), browser]), 403, "{method} {site}");
        }
    }
    for site in ["same-origin", "none"] {
        assert_eq!(ask("GET", &[("sec-fetch-site", site), browser]), 200, "{site}");
    }
    assert_eq!(ask("GET", &[browser]), 403, "over plain HTTP the browser does not name the page");
    assert_eq!(ask("GET", &[browser, ("origin", "http://box")]), 200);
    assert_eq!(ask("GET", &[browser, ("origin", "http://evil.example")]), 403);
    for program in ["Go-http-client/1.1", "curl/8.5.0"] {
        assert_eq!(ask("GET", &[("user-agent", program)]), 200, "{program}");
    }
}

#[test]
fn fetch_site_header_is_checked() {
    let ask = |site: &str, more: &[(&str, &str)]| {
        let headers = [&[("host", "box"), ("sec-fetch-site", site)], more].concat();
        code(&head("POST", "/v1/jobs", &headers))
    };
    assert_eq!(ask("cross-site", &[]), 403);
    assert_eq!(ask("cross-site", &[("origin", "http://box")]), 403);
    assert_eq!(ask("cross-site", &[("origin", "http://nomad.example.org")]), 200);
    for site in ["same-origin", "none"] {
        assert_eq!(ask(site, &[]), 200, "{site}");
    }
    assert_eq!(ask("same-site", &[]), 403, "another port of this host");
    assert_eq!(ask("same-site", &[("origin", "http://box")]), 200);
}

#[test]
fn any_name_may_be_allowed_but_not_any_page() {
    let names = Names::default().allowing(&["*".to_owned()]);
    let judged =
        |method: &str, headers: &[(&str, &str)]| names.judge(&head(method, "/", headers), Naming::Unknown);
    assert_eq!(judged("GET", &[("host", "whatever.example")]), Ok(()));
    assert_eq!(judged("GET", &[("host", "a@b")]), Err(HostRefusal::Malformed));
    assert!(judged("POST", &[("host", "a.example"), ("origin", "http://b.example")]).is_err());
}

#[test]
fn client_certificate_replaces_the_host_but_not_the_origin() {
    let certified = |method: &str, headers: &[(&str, &str)]| {
        // Browsers send client certificates on behalf of every page.
        names().judge(&head(method, "/", headers), Naming::Verified)
    };
    assert_eq!(certified("GET", &[("host", "lb.example")]), Ok(()));
    assert_eq!(certified("POST", &[("host", "lb.example")]), Ok(()));
    assert!(certified("POST", &[("host", "lb.example"), ("origin", "https://evil.example")]).is_err());
}
