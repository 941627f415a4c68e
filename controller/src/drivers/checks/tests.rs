//! Checks against real listeners.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use herdlet_api_types::{Duration as Span, JobKey, job::CheckKind};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};

use super::*;

fn http(path: &str) -> CheckKind {
    CheckKind::Http {
        path: path.to_owned(),
        method: "GET".to_owned(),
        protocol: "http".to_owned(),
        header: BTreeMap::new(),
        body: String::new(),
        tls_skip_verify: false,
    }
}

fn check(id: &str, kind: CheckKind, port: u16) -> RegisteredCheck {
    RegisteredCheck {
        id: id.to_owned(),
        name: format!("name of {id}"),
        kind,
        address: "127.0.0.1".to_owned(),
        port,
        interval: Span::from_millis(50),
        timeout: Span::from_millis(400),
    }
}

fn registration(provider: Provider, checks: Vec<RegisteredCheck>) -> Registration {
    Registration {
        id: "_herdlet-task-x".to_owned(),
        provider,
        name: "web".to_owned(),
        address: "127.0.0.1".to_owned(),
        port: 80,
        tags: Vec::new(),
        meta: BTreeMap::new(),
        enable_tag_override: false,
        tagged_addresses: Default::default(),
        checks,
        alloc: AllocId::from_hash([1; 16]),
        task: None,
        job: JobKey { namespace: "default".into(), id: "web".into() },
    }
}

fn owner() -> ServiceOwner {
    ServiceOwner { alloc: AllocId::from_hash([1; 16]), task: None }
}

/// Answers each request by what `answer` makes of its text and number; an empty answer is silence.
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

async fn next(reports: &mut mpsc::Receiver<CheckReport>) -> CheckResult {
    let report = tokio::time::timeout(Duration::from_secs(10), reports.recv()).await.unwrap().unwrap();
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
    let checks = Checks::new(sender);
    checks.up(&owner(), &[registration(Provider::Nomad, vec![check("c", http("/"), port)])]);
    let results = [next(&mut reports).await, next(&mut reports).await, next(&mut reports).await];
    let said = results.each_ref().map(|result| (result.status, result.output.as_str()));
    assert_eq!(
        said,
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
async fn requests_carry_what_the_check_says_and_long_answers_are_cut() {
    let (port, _) =
        serve(|request, _| response("404 Not Found", &(request.to_lowercase() + &"x".repeat(10_000)))).await;
    let (sender, mut reports) = mpsc::channel(8);
    let checks = Checks::new(sender);
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
    let refused = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    let (sender, mut reports) = mpsc::channel(8);
    let checks = Checks::new(sender);
    let all = vec![
        check("silent", http("/"), silent),
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
async fn exactly_the_wanted_checks_run_and_unchanged_ones_are_not_disturbed() {
    let (port, count) = serve(|_, _| response("200 OK", "")).await;
    let (sender, mut reports) = mpsc::channel(8);
    let checks = Checks::new(sender);
    let (a, b) = (check("a", http("/"), port), check("b", CheckKind::Tcp, port));
    let both = [registration(Provider::Nomad, vec![a.clone(), b])];
    let one = [registration(Provider::Nomad, vec![a.clone()])];
    assert_eq!(checks.look(&owner(), &both), Sight::Absent);
    checks.up(&owner(), &both);
    assert_eq!(checks.look(&owner(), &both), Sight::Present);
    next(&mut reports).await;
    next(&mut reports).await;
    checks.up(&owner(), &one);
    assert!(matches!(checks.look(&owner(), &both), Sight::Foreign { .. }));
    assert_eq!(checks.look(&owner(), &one), Sight::Present);
    // `a` went on: it has nothing new to say.
    assert!(tokio::time::timeout(Duration::from_millis(200), reports.recv()).await.is_err());
    // The same id with another port is another check.
    let moved = [registration(Provider::Nomad, vec![RegisteredCheck { port: 1, ..a }])];
    checks.up(&owner(), &moved);
    assert_eq!(next(&mut reports).await.status, CheckStatus::Failure);

    for _ in 0..2 {
        checks.down(&owner());
        assert_eq!(checks.look(&owner(), &one), Sight::Absent);
    }
    let before = count.load(Ordering::SeqCst);
    assert!(tokio::time::timeout(Duration::from_millis(200), reports.recv()).await.is_err());
    assert_eq!(count.load(Ordering::SeqCst), before);
    // Consul makes its own checks.
    let elsewhere = [registration(Provider::Consul, vec![check("c", http("/"), port)])];
    checks.up(&owner(), &elsewhere);
    assert_eq!(checks.look(&owner(), &elsewhere), Sight::Present);
    assert_eq!(checks.look(&owner(), &[]), Sight::Present);
}

#[tokio::test]
async fn a_thousand_checks_report_over_a_narrow_channel() {
    let (port, _) = serve(|_, _| response("200 OK", "")).await;
    let (sender, mut reports) = mpsc::channel(1);
    let checks = Checks::new(sender);
    let many = (0..1000)
        .map(|n| RegisteredCheck {
            timeout: Span::from_secs(30),
            ..check(&n.to_string(), CheckKind::Tcp, port)
        })
        .collect();
    checks.up(&owner(), &[registration(Provider::Nomad, many)]);
    for _ in 0..1000 {
        assert_eq!(next(&mut reports).await.status, CheckStatus::Success);
    }
}
