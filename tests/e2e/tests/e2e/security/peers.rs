//! Peers without a trusted certificate are refused, and text from a peer can't control the terminal.

use std::process::{Child, Command, Stdio};

use herdlet_e2e::{
    agent::Agent,
    command::{Running, SEARCH_PATH},
    environment,
    http::{self, Peer},
    ports, wait,
};

use crate::common::{is_root, job, sleeper};

/// A self-signed certificate for `localhost` only, valid until 2126, with its key.
const CERTIFICATE: &str = include_str!("self-signed.pem");

/// Answers every request with 500 and terminal control sequences; with a certificate, over TLS.
const SERVER: &str = r#"
import http.server, ssl, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(500 if self.path != "/fine" else 200); self.end_headers()
        self.wfile.write(b"\x1b]0;obeyed\x07\x1b[2Jrude \x9b31m")
    def log_message(self, *a): print("asked", self.path, flush=True)
server = http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
if len(sys.argv) > 2:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER); context.load_cert_chain(sys.argv[2])
    server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()
"#;

/// A server that ends with the test.
struct Server {
    child: Child,
    port: u16,
}

impl Server {
    fn start(certificate: Option<&std::path::Path>) -> Option<Self> {
        let [port] = ports::free();
        let mut command = Command::new("python3");
        command.env("PATH", SEARCH_PATH).args(["-c", SERVER, &port.to_string()]).args(certificate);
        let spawned = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let Ok(child) = spawned else {
            environment::leave_out("this needs python3");
            return None;
        };
        let server = Self { child, port };
        wait::until_true("the server listens", || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
        Some(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn check(port: u16, name: &str, more: &str) -> String {
    format!("{{name: {name}, type: http, port: \"{port}\", path: /fine, interval: 1s, timeout: 5s{more}}}")
}

#[test]
fn unsigned_certificate_is_refused_unless_allowed() {
    if !is_root() {
        return;
    }
    let mut agent = Agent::start();
    let certificate = agent.home.write("certificate.pem", CERTIFICATE);
    let Some(server) = Server::start(Some(&certificate)) else { return };
    let ask = |host: &str, trusted: &std::path::Path| {
        let mut command = agent.command(&["status", "--addr", &format!("https://{host}:{}", server.port)]);
        command.env("SSL_CERT_FILE", trusted);
        let printed = Running::start(command).finish().stderr;
        // Without log lines and the port, because their timestamps and the port may contain any number.
        let printed = printed.lines().filter(|line| !line.contains(" WARN ")).collect::<Vec<_>>().join("\n");
        printed.replace(&server.port.to_string(), "PORT")
    };
    let nothing = agent.home.write("nothing.pem", "");
    for (host, trusted) in [("localhost", &nothing), ("127.0.0.1", &nothing), ("127.0.0.1", &certificate)] {
        let printed = ask(host, trusted);
        assert!(printed.contains("ertificate") && !printed.contains("500"), "{host}: {printed}");
    }
    let printed = ask("localhost", &certificate);
    assert!(printed.contains("500"), "the certificate is trusted for that name: {printed}");
    let [port] = ports::free();
    let strict = check(server.port, "strict", ", protocol: https");
    let lax = check(server.port, "lax", ", protocol: https, tls_skip_verify: true");
    let group = format!(
        "network: {{ports: {{p: {{static: {port}}}}}}}\nservices: [{{name: s, provider: nomad, port: p, checks: [{strict}, {lax}]}}]"
    );
    agent.apply(&job("checked", "service", &group, &[sleeper("t", "")]));
    let checks = || {
        let alloc = agent.alloc("checked.g[0]")?.id();
        let answer = http::get(&agent.peer(), &format!("/v1/client/allocation/{alloc}/checks"))?;
        Some(answer.json().as_object()?.values().cloned().collect::<Vec<_>>())
    };
    let done = wait::until("both checks have run", || {
        checks().filter(|all| all.len() == 2 && all.iter().all(|check| check["Status"] != "pending"))
    });
    for check in done {
        let wanted = if check["Check"] == "lax" { "success" } else { "failure" };
        assert_eq!(check["Status"], wanted, "{check:#}");
    }
    drop(server);
    agent.finish();
}

#[test]
fn check_output_is_escaped_on_a_terminal() {
    if !is_root() {
        return;
    }
    let Some(server) = Server::start(None) else { return };
    assert_eq!(http::get(&Peer::Port(server.port), "/fine").unwrap().status, 200);
    let mut agent = Agent::start();
    let [port] = ports::free();
    let rude = check(server.port, "rude", "").replace("/fine", "/rude");
    let group = format!(
        "network: {{ports: {{p: {{static: {port}}}}}}}\nservices: [{{name: s, provider: nomad, port: p, checks: [{rude}]}}]"
    );
    agent.apply(&job("rude", "service", &group, &[sleeper("t", "")]));
    let shown = |arguments: &[&str]| {
        let output = agent.cli(arguments);
        output.stdout + &output.stderr
    };
    wait::until_true("the check has a result", || {
        shown(&["describe", "rude", "-o", "json"]).contains("obeyed")
    });
    let views: [&[&str]; 6] = [
        &["status"],
        &["status", "rude"],
        &["explain", "rude"],
        &["describe", "rude"],
        &["get", "allocs", "-o", "wide"],
        &["get", "services", "-o", "wide"],
    ];
    for view in views {
        let shown = shown(view);
        let obeyed = shown.chars().find(|char| char.is_control() && *char != '\n');
        assert_eq!(obeyed, None, "{view:?}: {shown:?}");
    }
    agent.finish();
}
