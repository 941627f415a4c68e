//! `herdlet ui`: opens the status page in a browser, which can't use a unix socket. While the command runs, it serves the
//! page, and nothing else, on a port of this machine.
//!
//! Other users of the machine can connect to the port, and foreign web pages can send a browser there. So the address contains
//! a secret that works once and is then replaced by a cookie. [`Names`] refuses host names except `localhost`.

use std::{
    io::Write as _,
    sync::{Arc, Mutex, PoisonError},
};

use aws_lc_rs::{constant_time::verify_slices_are_equal, rand};
use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    http::{HeaderMap, StatusCode, Uri, header},
    response::{IntoResponse, Redirect, Response},
};
use clap::Args;
use herdlet_agent::telemetry::Telemetry;
use herdlet_api::http::{Access, Admission, Frontend, Limits, Listener, Names, serve};
use herdlet_cli::{Connection, client::Client, failure::Failure, show};
use tokio_util::sync::CancellationToken;

/// Arguments of `herdlet ui`.
#[derive(Debug, Clone, Args)]
pub struct UiArgs {
    /// Only print the address
    #[arg(long)]
    no_open: bool,
    #[command(flatten)]
    pub(super) connection: Connection,
}

const SECRET_LEN: usize = 32;
/// The agent's paths that the page needs.
const PAGES: &str = "/ui";
const EVENTS: &str = "/v1/herdlet/events";
/// Headers of the agent's answers that are forwarded.
const HEADERS: [header::HeaderName; 5] = [
    header::CONTENT_TYPE,
    header::CONTENT_SECURITY_POLICY,
    header::X_CONTENT_TYPE_OPTIONS,
    header::REFERRER_POLICY,
    header::CACHE_CONTROL,
];

pub(super) async fn run(args: UiArgs) -> Result<u8, Failure> {
    let client = args.connection.client()?;
    // An error is better here than on an empty page.
    client.status().await?;
    let listener =
        Listener::tcp("127.0.0.1:0").await.map_err(|error| Failure::new(format!("failed to {error}")))?;
    let port = listener.address().map(|address| address.port()).unwrap_or_default();
    let (ticket, session) = (secret()?, secret()?);
    let address = format!("http://127.0.0.1:{port}/?ticket={ticket}");
    let door = Arc::new(BrowserGate { client, port, ticket: Mutex::new(Some(ticket)), session });
    let closing = CancellationToken::new();
    let router = Router::new().fallback(enter).with_state(door);
    let admission = Admission::new(Names::default(), Telemetry::new());
    let frontend = Frontend { router, access: Access::Open, admission, limits: Limits::default() };
    let serving = tokio::spawn(serve(listener, frontend, closing.clone()));
    show::out(&format!("{address}\n"));
    // The file is removed when the command ends.
    let _note = if args.no_open { None } else { open(&address) };
    herdlet_base::stderr_line!("The address works once. Ctrl-C closes it.");
    herdlet_base::interrupt::interrupted().await;
    closing.cancel();
    let _ = serving.await;
    Ok(0)
}

/// Admits browsers and forwards their requests.
struct BrowserGate {
    client: Client,
    port: u16,
    /// None after its first use.
    ticket: Mutex<Option<String>>,
    session: String,
}

async fn enter(State(door): State<Arc<BrowserGate>>, request: Request) -> Response {
    let (uri, headers) = (request.uri(), request.headers());
    if request.method() != axum::http::Method::GET {
        return (StatusCode::METHOD_NOT_ALLOWED, "Invalid method").into_response();
    }
    if uri.path() == "/" && door.takes_ticket(uri) {
        let cookie = format!("{}={}; HttpOnly; SameSite=Strict; Path=/", door.cookie(), door.session);
        let headers = [(header::SET_COOKIE, cookie), (header::REFERRER_POLICY, "no-referrer".to_owned())];
        return (headers, Redirect::to(PAGES)).into_response();
    }
    if !door.has_session(headers) {
        return (StatusCode::FORBIDDEN, "this address has been used already: run herdlet ui again")
            .into_response();
    }
    match uri.path() {
        "/" => Redirect::to(PAGES).into_response(),
        path if is_of_the_page(path) => door.pass_on(uri).await,
        _ => (StatusCode::NOT_FOUND, "resource not found").into_response(),
    }
}

/// Accepts only plain names, which can't lead elsewhere.
fn is_of_the_page(path: &str) -> bool {
    let is_plain = |part: &str| {
        !part.contains("..")
            && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-./".contains(&byte))
    };
    path == EVENTS || path == PAGES || path.strip_prefix("/ui/").is_some_and(is_plain)
}

impl BrowserGate {
    /// Checks the single-use secret in the address, and invalidates it.
    fn takes_ticket(&self, uri: &Uri) -> bool {
        let given = uri.query().and_then(|query| query.strip_prefix("ticket=")).unwrap_or_default();
        let mut ticket = self.ticket.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = ticket.as_ref().is_some_and(|ticket| is_same(ticket, given));
        if fits {
            *ticket = None;
        }
        fits
    }

    fn has_session(&self, headers: &HeaderMap) -> bool {
        let cookies = headers.get_all(header::COOKIE).iter().filter_map(|cookies| cookies.to_str().ok());
        let name = self.cookie();
        cookies
            .flat_map(|cookies| cookies.split(';'))
            .filter_map(|cookie| cookie.trim().split_once('='))
            .any(|(known, value)| known == name && is_same(&self.session, value))
    }

    /// Browsers send a cookie to all ports of a host, so the name contains the port.
    fn cookie(&self) -> String {
        format!("herdlet-{}", self.port)
    }

    async fn pass_on(&self, uri: &Uri) -> Response {
        let path = uri.path_and_query().map_or(uri.path(), |whole| whole.as_str());
        match self.client.open(path).await {
            Ok(answer) => {
                let headers = answer.headers();
                let kept =
                    HEADERS.into_iter().filter_map(|name| Some((name.clone(), headers.get(&name)?.clone())));
                let mut passed = Response::builder().status(answer.status());
                if let Some(headers) = passed.headers_mut() {
                    headers.extend(kept);
                }
                let passed = passed.body(Body::from_stream(answer.bytes_stream()));
                passed.unwrap_or_else(|_| StatusCode::BAD_GATEWAY.into_response())
            }
            Err(error) => (StatusCode::BAD_GATEWAY, error.to_string()).into_response(),
        }
    }
}

fn is_same(secret: &str, given: &str) -> bool {
    verify_slices_are_equal(secret.as_bytes(), given.as_bytes()).is_ok()
}

fn secret() -> Result<String, Failure> {
    let mut bytes = [0; SECRET_LEN];
    rand::fill(&mut bytes).map_err(|_| Failure::new("failed to draw a random number".to_owned()))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Opens a browser, if there is a desktop. The address goes to a file that redirects to it, because every user can read the
/// arguments of a process.
fn open(address: &str) -> Option<tempfile::NamedTempFile> {
    let has_desktop = ["DISPLAY", "WAYLAND_DISPLAY"].iter().any(|name| std::env::var_os(name).is_some());
    if !has_desktop {
        return None;
    }
    let mut note = tempfile::Builder::new().prefix("herdlet-ui-").suffix(".html").tempfile().ok()?;
    write!(note, "<!doctype html><meta http-equiv=\"refresh\" content=\"0; url={address}\">").ok()?;
    let opener = std::process::Command::new("xdg-open")
        .arg(note.path())
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn();
    opener.is_ok().then_some(note)
}

#[cfg(test)]
mod tests {
    use super::*;
    use herdlet_cli::Address;

    fn gate() -> BrowserGate {
        let client = Client::new(Address::Unix("/nowhere".into()), None).unwrap();
        BrowserGate {
            client,
            port: 7,
            ticket: Mutex::new(Some("once".to_owned())),
            session: "known".to_owned(),
        }
    }

    async fn request(door: &Arc<BrowserGate>, path: &str, headers: &[(&str, &str)]) -> Response {
        let mut request = Request::builder().uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        enter(State(Arc::clone(door)), request.body(Body::empty()).unwrap()).await
    }

    #[tokio::test]
    async fn the_ticket_opens_the_door_once_and_the_cookie_from_then_on() {
        let door = Arc::new(gate());
        let host = ("host", "127.0.0.1:7");
        assert_eq!(request(&door, "/ui", &[host]).await.status(), StatusCode::FORBIDDEN);
        assert_eq!(request(&door, "/?ticket=other", &[host]).await.status(), StatusCode::FORBIDDEN);
        let entered = request(&door, "/?ticket=once", &[host]).await;
        assert_eq!(entered.status(), StatusCode::SEE_OTHER);
        let cookie = entered.headers()[header::SET_COOKIE].to_str().unwrap();
        assert!(cookie.starts_with("herdlet-7=known; HttpOnly; SameSite=Strict"), "{cookie}");
        assert_eq!(request(&door, "/?ticket=once", &[host]).await.status(), StatusCode::FORBIDDEN);
        let known = ("cookie", "other=1; herdlet-7=known");
        // This test has no agent.
        assert_eq!(request(&door, "/ui", &[host, known]).await.status(), StatusCode::BAD_GATEWAY);
        assert_eq!(request(&door, "/v1/jobs", &[host, known]).await.status(), StatusCode::NOT_FOUND);
        assert_eq!(request(&door, "/ui/../v1/jobs", &[host, known]).await.status(), StatusCode::NOT_FOUND);
    }
}
