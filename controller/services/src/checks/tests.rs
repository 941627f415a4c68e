//! Checks against real listeners.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use futures_util::future::BoxFuture;
use herdlet_api_types::{
    Duration as Span, fixture,
    job::{CheckKind, CheckRestart, InitialStatus, OnUpdate, Thresholds},
    task::ExitResult,
};
use herdlet_driver::{DriverError, ExecOutcome};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};

use super::*;

mod hostile;
mod shortage;

fn http(path: &str) -> CheckKind {
    CheckKind::Http {
        path: path.to_owned(),
        method: "GET".to_owned(),
        protocol: "http".to_owned(),
        header: BTreeMap::new(),
        body: String::new(),
        tls_skip_verify: false,
        tls_server_name: String::new(),
    }
}

/// Time limit: responses take milliseconds, on a busy machine seconds.
const PATIENCE: Duration = Duration::from_secs(180);

fn check(id: &str, kind: CheckKind, port: u16) -> RegisteredCheck {
    RegisteredCheck {
        name: format!("name of {id}"),
        kind,
        port,
        interval: Span::from_millis(50),
        timeout: Span::from_secs(600),
        ..fixture::registered_check(id)
    }
}

/// A check with a short timeout, for targets that never answer.
fn hasty(id: &str, kind: CheckKind, port: u16) -> RegisteredCheck {
    RegisteredCheck { timeout: Span::from_millis(400), ..check(id, kind, port) }
}

fn registration(provider: Provider, checks: Vec<RegisteredCheck>) -> Registration {
    Registration { provider, checks, ..fixture::registration("_herdlet-task-x", AllocId::from_hash([1; 16])) }
}

/// Commands end as their first argument requests: with an exit code, or never.
#[derive(Debug, Default)]
struct ScriptedCommands {
    asked: Mutex<Vec<String>>,
}

impl Scripts for ScriptedCommands {
    fn run<'a>(
        &'a self,
        _: AllocId,
        task: &'a str,
        command: Vec<String>,
        timeout: Duration,
    ) -> BoxFuture<'a, Result<ExecOutcome, NoResult>> {
        async move {
            let number = {
                let mut asked = self.asked.lock().unwrap();
                asked.push(format!("{task}: {}", command.join(" ")));
                asked.len()
            };
            let short = || {
                let error = DriverError::retry(std::io::Error::from_raw_os_error(libc::EMFILE));
                Err(NoResult::of(&error, error.why()))
            };
            match command[1].as_str() {
                "short" => short(),
                "recovers" if number <= 3 => short(),
                "recovers" => Ok(ExecOutcome::default()),
                "none" => Err(NoResult::Failure(format!("task {task} is not running"))),
                "hangs" => {
                    tokio::time::sleep(timeout * 2).await;
                    Ok(ExecOutcome::default())
                }
                code => Ok(ExecOutcome {
                    stdout: b"out\n".to_vec(),
                    stderr: "e".repeat(5_000).into_bytes(),
                    exit: ExitResult { code: code.parse().unwrap(), ..ExitResult::default() },
                }),
            }
        }
        .boxed()
    }
}

fn checks_to(reports: mpsc::Sender<Heard>) -> Checks {
    Checks::new(reports, Arc::new(ScriptedCommands::default()), Arc::new(ConsulClusters::absent()))
}

fn script(arg: &str) -> CheckKind {
    CheckKind::Script { command: "/bin/check".to_owned(), args: vec![arg.to_owned()], task: "app".to_owned() }
}

fn owner() -> ServiceOwner {
    ServiceOwner { alloc: AllocId::from_hash([1; 16]), task: None }
}

/// Responds to each request with the result of `answer` for its text and number; an empty result means silence.
async fn serve(answer: impl Fn(&str, usize) -> String + Send + Sync + 'static) -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let count = Arc::new(AtomicUsize::new(0));
    let (counter, answer) = (Arc::clone(&count), Arc::new(answer));
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let number = counter.fetch_add(1, Ordering::SeqCst);
            let answer = Arc::clone(&answer);
            tokio::spawn(async move {
                let mut request = Vec::new();
                while !request.windows(4).any(|window| window == b"\r\n\r\n") {
                    if stream.read_buf(&mut request).await.unwrap_or(0) == 0 {
                        return;
                    }
                }
                let text = answer(&String::from_utf8_lossy(&request), number);
                if text.is_empty() {
                    std::future::pending::<()>().await;
                }
                let _ = stream.write_all(text.as_bytes()).await;
            });
        }
    });
    (port, count)
}

fn response(status: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len())
}

async fn next(reports: &mut mpsc::Receiver<Heard>) -> CheckResult {
    let report = tokio::time::timeout(PATIENCE, reports.recv()).await.unwrap().unwrap();
    let report = report.if_current().unwrap();
    assert_eq!(report.alloc, owner().alloc);
    report.result
}

#[tokio::test]
async fn only_changes_of_status_are_reported() {
    let (port, count) = serve(|_, number| match number {
        0..3 => response("503 Service Unavailable", &format!("not yet, try {number}")),
        3..6 => response("200 OK", "whatever"),
        6 => response("302 Found", "elsewhere"),
        _ => response("500 Oops", ""),
    })
    .await;
    let (sender, mut reports) = mpsc::channel(8);
    let checks = checks_to(sender);
    checks.up(&owner(), &[registration(Provider::Nomad, vec![check("c", http("/"), port)])]);
    let results = [next(&mut reports).await, next(&mut reports).await, next(&mut reports).await];
    let reported = results.each_ref().map(|result| (result.status, result.output.as_str()));
    assert_eq!(
        reported,
        [
            (CheckStatus::Failure, "nomad: http 503 Service Unavailable\nnot yet, try 0"),
            (CheckStatus::Success, "nomad: http ok"),
            (CheckStatus::Failure, "nomad: http 500 Internal Server Error"),
        ]
    );
    assert!(results[0].at < results[1].at && results[0].at.0 > 0);
    assert_eq!((results[0].check.as_str(), results[0].service.as_str()), ("name of c", "web"));
    assert!(count.load(Ordering::SeqCst) >= 8);
}

#[tokio::test]
async fn check_request_has_configured_parts_and_cuts_answers() {
    let (port, _) =
        serve(|request, _| response("404 Not Found", &(request.to_lowercase() + &"x".repeat(10_000)))).await;
    let (sender, mut reports) = mpsc::channel(8);
    let checks = checks_to(sender);
    let kind = CheckKind::Http {
        path: "/health?full=1".to_owned(),
        method: "POST".to_owned(),
        protocol: "http".to_owned(),
        header: BTreeMap::from([
            ("Host".to_owned(), vec!["web.test".to_owned()]),
            ("X-Both".to_owned(), vec!["a".to_owned(), "b".to_owned()]),
        ]),
        body: "ping".to_owned(),
        tls_skip_verify: false,
        tls_server_name: String::new(),
    };
    checks.up(&owner(), &[registration(Provider::Nomad, vec![check("c", kind, port)])]);
    let output = next(&mut reports).await.output;
    assert_eq!(output.len(), 3 * 1024);
    for part in [
        "post /health?full=1 http/1.1",
        "host: web.test",
        "x-both: a",
        "x-both: b",
        "user-agent: herdlet/",
        "content-length: 4",
    ] {
        assert!(output.contains(part), "{part} in {output}");
    }
    assert_eq!(output.matches("host:").count(), 1);
}

#[tokio::test]
async fn silence_refusal_and_tcp() {
    let (silent, _) = serve(|_, _| String::new()).await;
    // A port of an obsolete service.
    let refused = 1;
    let (sender, mut reports) = mpsc::channel(8);
    let checks = checks_to(sender);
    let all = vec![
        hasty("silent", http("/"), silent),
        check("refused", http("/"), refused),
        check("tcp", CheckKind::Tcp, silent),
        check("tcp refused", CheckKind::Tcp, refused),
        check("bad", http("no slash"), silent),
    ];
    checks.up(&owner(), &[registration(Provider::Nomad, all.clone())]);
    let mut results = BTreeMap::new();
    for _ in 0..all.len() {
        let result = next(&mut reports).await;
        results.insert(result.id.clone(), result);
    }
    assert_eq!(results["silent"].output, "nomad: no answer within 400ms");
    assert!(results["refused"].output.contains("refused"), "{}", results["refused"].output);
    assert_eq!(
        (results["tcp"].status, results["tcp"].output.as_str()),
        (CheckStatus::Success, "nomad: tcp ok")
    );
    assert!(results["tcp refused"].output.contains("refused"));
    assert_eq!(results["bad"].status, CheckStatus::Failure);
}

#[tokio::test]
async fn only_wanted_checks_run_and_unchanged_ones_continue() {
    let (port, count) = serve(|_, _| response("200 OK", "")).await;
    let (sender, mut reports) = mpsc::channel(8);
    let checks = checks_to(sender);
    let (a, b) = (check("a", http("/"), port), check("b", CheckKind::Tcp, port));
    let both = [registration(Provider::Nomad, vec![a.clone(), b])];
    let one = [registration(Provider::Nomad, vec![a.clone()])];
    assert_eq!(checks.inspect(&owner(), &both), Observation::Absent);
    checks.up(&owner(), &both);
    assert_eq!(checks.inspect(&owner(), &both), Observation::Present);
    next(&mut reports).await;
    next(&mut reports).await;
    checks.up(&owner(), &one);
    assert!(matches!(checks.inspect(&owner(), &both), Observation::Foreign { .. }));
    assert_eq!(checks.inspect(&owner(), &one), Observation::Present);
    // `a` continued: it has no change to report.
    assert!(tokio::time::timeout(Duration::from_millis(200), reports.recv()).await.is_err());
    // The same id with another port is another check.
    let moved = [registration(Provider::Nomad, vec![RegisteredCheck { port: 1, ..a }])];
    checks.up(&owner(), &moved);
    assert_eq!(next(&mut reports).await.status, CheckStatus::Failure);

    for _ in 0..2 {
        checks.down(&owner());
        assert_eq!(checks.inspect(&owner(), &one), Observation::Absent);
    }
    // A request in progress may still arrive; then none does for several intervals.
    let mut before = usize::MAX;
    while before != count.load(Ordering::SeqCst) {
        before = count.load(Ordering::SeqCst);
        assert!(before < 10_000, "the check keeps running");
        assert!(tokio::time::timeout(Duration::from_millis(200), reports.recv()).await.is_err());
    }
    // Consul runs its own checks.
    let elsewhere = [registration(Provider::Consul, vec![check("c", http("/"), port)])];
    checks.up(&owner(), &elsewhere);
    assert_eq!(checks.inspect(&owner(), &elsewhere), Observation::Present);
    assert_eq!(checks.inspect(&owner(), &[]), Observation::Present);
}

#[tokio::test]
async fn a_thousand_checks_report_over_a_narrow_channel() {
    let (port, _) = serve(|_, _| response("200 OK", "")).await;
    let (sender, mut reports) = mpsc::channel(1);
    let checks = checks_to(sender);
    let many = (0..1000).map(|n| check(&n.to_string(), CheckKind::Tcp, port)).collect();
    checks.up(&owner(), &[registration(Provider::Nomad, many)]);
    for _ in 0..1000 {
        assert_eq!(next(&mut reports).await.status, CheckStatus::Success);
    }
}

#[tokio::test]
async fn commands_pass_warn_or_fail_by_their_exit_code() {
    let (sender, mut reports) = mpsc::channel(8);
    let checks = checks_to(sender);
    let all = ["0", "1", "2", "none", "hangs"].map(|arg| match arg {
        "hangs" => hasty(arg, script(arg), 0),
        _ => check(arg, script(arg), 0),
    });
    // Consul can't run commands: we run those of its services, and no other checks of them.
    let mut of_consul = all.to_vec();
    of_consul.push(check("tcp", CheckKind::Tcp, 1));
    checks.up(&owner(), &[registration(Provider::Consul, of_consul)]);
    let mut results = BTreeMap::new();
    for _ in 0..all.len() {
        let result = next(&mut reports).await;
        results.insert(result.id.clone(), result);
    }
    let result_of =
        |id: &str| (results[id].status, results[id].output.lines().next().unwrap_or_default().to_owned());
    assert_eq!(result_of("0"), (CheckStatus::Success, "out".to_owned()));
    assert_eq!(result_of("1"), (CheckStatus::Warning, "exit code 1, which means warning: out".to_owned()));
    assert_eq!(result_of("2"), (CheckStatus::Failure, "exit code 2: out".to_owned()));
    assert_eq!(result_of("none"), (CheckStatus::Failure, "nomad: task app is not running".to_owned()));
    assert_eq!(result_of("hangs"), (CheckStatus::Failure, "nomad: no answer within 400ms".to_owned()));
    assert!(results.values().all(|result| result.output.len() <= 3 * 1024));
}

#[tokio::test]
async fn initial_status_applies_until_the_first_result() {
    let (port, _) = serve(|_, _| response("503 no", "")).await;
    let (sender, mut reports) = mpsc::channel(8);
    let checks = checks_to(sender);
    let initial_status = Some(InitialStatus::Passing);
    let passing = RegisteredCheck { initial_status, ..check("c", http("/"), port) };
    checks.up(&owner(), &[registration(Provider::Nomad, vec![passing])]);
    let (initial, made) = (next(&mut reports).await, next(&mut reports).await);
    assert_eq!((initial.status, initial.stale), (CheckStatus::Success, true));
    assert_eq!((made.status, made.stale), (CheckStatus::Failure, false));
}

#[tokio::test]
async fn status_changes_after_the_configured_results_in_a_row() {
    let (port, count) = serve(|_, number| match number {
        0 | 4.. => response("200 OK", ""),
        _ => response("500 Oops", ""),
    })
    .await;
    let (sender, mut reports) = mpsc::channel(8);
    let checks = checks_to(sender);
    let thresholds =
        Thresholds { success_before_passing: 1, failures_before_critical: 3, failures_before_warning: 2 };
    let patient = RegisteredCheck { thresholds, ..check("c", http("/"), port) };
    checks.up(&owner(), &[registration(Provider::Nomad, vec![patient])]);
    let mut reported = Vec::new();
    for _ in 0..4 {
        let status = next(&mut reports).await.status;
        reported.push((status, count.load(Ordering::SeqCst)));
    }
    let statuses: Vec<_> = reported.iter().map(|(status, _)| *status).collect();
    use CheckStatus::{Failure, Success, Warning};
    assert_eq!(statuses, [Success, Warning, Failure, Success]);
    assert!(reported[1].1 >= 3 && reported[2].1 >= 4 && reported[3].1 >= 5, "{reported:?}");
}

/// Results contain all that is needed to judge health.
#[tokio::test]
async fn results_say_what_they_are_good_for() {
    let (port, _) = serve(|_, _| response("500 Oops", "")).await;
    let (sender, mut reports) = mpsc::channel(8);
    let checks = checks_to(sender);
    let restart = CheckRestart { limit: 3, grace: Span::from_secs(7), ignore_warnings: true };
    let on_update = OnUpdate::IgnoreWarnings;
    let of = RegisteredCheck { on_update, check_restart: Some(restart), ..check("c", http("/"), port) };
    checks.up(&owner(), &[registration(Provider::Nomad, vec![of])]);
    let result = next(&mut reports).await;
    let when = result.restarts.unwrap();
    assert_eq!((result.on_update, when.ignore_warnings), (on_update, true));
    // The third consecutive failure comes two intervals after the first.
    assert_eq!((when.failing_for, when.grace), (Span::from_millis(100), Span::from_secs(7)));
}

/// Responds to each call with this message, or with this status only.
async fn serve_grpc(answer: impl Fn(&[u8]) -> Result<Vec<u8>, &'static str> + Send + Sync + 'static) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let answer = Arc::new(answer);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let answer = Arc::clone(&answer);
            tokio::spawn(async move {
                let Ok(mut connection) = h2::server::handshake(stream).await else { return };
                while let Some(Ok((request, mut respond))) = connection.accept().await {
                    assert_eq!(request.uri().path(), "/grpc.health.v1.Health/Check");
                    assert_eq!(request.headers()["content-type"], "application/grpc");
                    let mut asked = Vec::new();
                    let mut body = request.into_body();
                    while let Some(Ok(bytes)) = body.data().await {
                        asked.extend_from_slice(&bytes);
                    }
                    let head = http::Response::builder().header("content-type", "application/grpc");
                    match answer(&asked) {
                        Ok(message) => {
                            let mut stream = respond.send_response(head.body(()).unwrap(), false).unwrap();
                            stream.send_data(message.into(), false).unwrap();
                            let trailers = [("grpc-status".parse().unwrap(), "0".parse().unwrap())];
                            stream.send_trailers(trailers.into_iter().collect()).unwrap();
                        }
                        Err(status) => {
                            let head = head.header("grpc-status", status).body(()).unwrap();
                            respond.send_response(head, true).unwrap();
                        }
                    }
                }
            });
        }
    });
    port
}

#[tokio::test]
async fn grpc_check_uses_the_health_protocol() {
    let port = serve_grpc(|asked| match asked {
        b"\0\0\0\0\0" => Ok(b"\0\0\0\0\x02\x08\x01".to_vec()),
        b"\0\0\0\0\x06\x0a\x04shop" => Ok(b"\0\0\0\0\x02\x08\x02".to_vec()),
        _ => Err("5"),
    })
    .await;
    let (plain, _) = serve(|_, _| response("200 OK", "")).await;
    let grpc = |service: &str| CheckKind::Grpc {
        service: service.to_owned(),
        tls: false,
        tls_skip_verify: false,
        tls_server_name: String::new(),
    };
    let (sender, mut reports) = mpsc::channel(8);
    let checks = checks_to(sender);
    let all = vec![
        check("server", grpc(""), port),
        check("shop", grpc("shop"), port),
        check("none", grpc("none"), port),
        check("plain", grpc(""), plain),
    ];
    checks.up(&owner(), &[registration(Provider::Nomad, all)]);
    let mut reported = BTreeMap::new();
    for _ in 0..4 {
        let result = next(&mut reports).await;
        reported.insert(result.id.clone(), (result.status, result.output));
    }
    assert_eq!(reported["server"], (CheckStatus::Success, "nomad: grpc ok".to_owned()));
    assert_eq!(reported["shop"], (CheckStatus::Failure, "nomad: grpc NOT_SERVING".to_owned()));
    assert_eq!(reported["none"], (CheckStatus::Failure, "nomad: grpc service unknown (status 5)".to_owned()));
    assert_eq!(reported["plain"].0, CheckStatus::Failure);
}

/// A thousand targets that never answer, and one that does, which is still checked.
#[tokio::test]
async fn targets_that_hang_cost_no_healthy_one_its_interval() {
    let (silent, _) = serve(|_, _| String::new()).await;
    let (healthy, count) = serve(|_, _| response("200 OK", "")).await;
    let (sender, mut reports) = mpsc::channel(2_048);
    let checks = checks_to(sender);
    let hanging = (0..1000).map(|n| check(&n.to_string(), http("/"), silent));
    checks.up(&owner(), &[registration(Provider::Nomad, hanging.collect())]);
    let other = ServiceOwner { task: Some("t".to_owned()), ..owner() };
    checks.up(&other, &[registration(Provider::Nomad, vec![check("healthy", http("/"), healthy)])]);
    assert_eq!(next(&mut reports).await.id, "healthy");
    // Those that hang do so for ten minutes each: waiting for them, not even the first run would be done by then.
    let enough = count.load(Ordering::SeqCst) + 10;
    let made = async {
        while count.load(Ordering::SeqCst) < enough {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, made).await.unwrap();
}
