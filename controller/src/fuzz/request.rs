//! The API: for any bytes on a connection, each request gets a meaningful status, and the connection ends in bounded
//! time. Time is paused, so waits of minutes take none.

use std::{sync::Arc, time::Duration};

use herdlet_agent::{
    gc::Collector, identity_keys::IdentityKeys, publish::ReadModel, requests::Requests, telemetry::Telemetry,
};
use herdlet_api::{
    alloc_ops::bounds::Bounds,
    http::{Evaluations, Facts, Limits, Shared, Submissions, Vitals, connection, router},
};
use herdlet_api_types::UnixNanos;
use herdlet_base::paths::Paths;
use herdlet_config::gc::Rules;
use herdlet_driver::Registry;
use herdlet_manifest::{
    fixture::{alloc_view, job, job_view},
    manifests::Drivers,
};
use herdlet_plan::turn::View;
use herdlet_runtime::{CommitIndex, Gate, Inbox, Publisher, StoreHealth};
use herdlet_services::catalog::{BuiltIn, ConsulClusters};
use herdlet_variables::{KeySource, Store, Variables};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::watch,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

/// How long the server may wait for a silent client: longer than the longest blocking query.
const PATIENCE: Duration = Duration::from_secs(1_000);

const SHUTDOWN: Duration = Duration::from_secs(40);

/// The statuses that the API may return. 500 is only allowed for a request to a server, which does not exist.
const STATUSES: [u16; 18] =
    [101, 200, 204, 400, 401, 403, 404, 405, 408, 409, 413, 414, 415, 417, 426, 431, 501, 503];

pub(super) fn feed(data: &[u8]) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    let answers = runtime.unwrap().block_on(talk(data));
    check(data, &answers);
}

async fn talk(data: &[u8]) -> Vec<u8> {
    let store = watch::Sender::new(StoreHealth::Ok);
    let shared = Arc::new(shared(&store));
    show(&shared);
    let closing = shared.closing.clone();
    let (ours, theirs) = tokio::io::duplex(64 * 1024);
    let serving = tokio::spawn(connection(theirs, router(shared), Limits::default(), closing.clone()));
    let (mut reading, mut writing) = tokio::io::split(ours);
    let mut answers = Vec::new();
    let talking = async {
        let sending = async {
            // After the server has closed the connection, the rest can't be sent.
            let _ = writing.write_all(data).await;
        };
        let (_, heard) = tokio::join!(sending, reading.read_to_end(&mut answers));
        heard.unwrap();
    };
    let closed = async {
        sleep(PATIENCE).await;
        closing.cancel();
        sleep(SHUTDOWN).await;
    };
    tokio::select! {
        () = talking => {}
        () = closed => panic!("the connection does not end"),
    }
    let served = timeout(SHUTDOWN, serving).await.unwrap_or_else(|_| panic!("serving does not end"));
    drop(served.unwrap_or_else(|error| panic!("serving panicked: {error}")));
    answers
}

fn check(data: &[u8], answers: &[u8]) {
    // Answers to HEAD and CONNECT have no body, and after 101 another protocol begins: then only the first answer is
    // checked.
    let odd = ["HEAD", "CONNECT", "pgrade"].iter().any(|word| contains(data, word.as_bytes()));
    let mut rest = answers;
    while !rest.is_empty() {
        let end = rest.windows(4).position(|bytes| bytes == b"\r\n\r\n");
        let end = end.unwrap_or_else(|| panic!("incomplete response: {}", String::from_utf8_lossy(rest)));
        let head = std::str::from_utf8(&rest[..end]).unwrap().to_ascii_lowercase();
        rest = &rest[end + 4..];
        let status = head.strip_prefix("http/1.1 ").or_else(|| head.strip_prefix("http/1.0 "));
        let status: u16 = status.and_then(|status| status.get(..3)?.parse().ok()).unwrap();
        // An interim response before the body is sent; the answer follows.
        if status == 100 {
            continue;
        }
        if odd {
            assert!(STATUSES.contains(&status) || status == 500, "{head}");
            return;
        }
        let body = match field(&head, "content-length") {
            Some(length) => {
                let (body, after) = rest.split_at(length.parse().unwrap());
                rest = after;
                body
            }
            // Chunked, or up to the end of the connection: the rest is not parsed here.
            None => std::mem::take(&mut rest),
        };
        // No server, and no directory for keys.
        let server = status == 500
            && (body == b"server not enabled"
                || body.starts_with(b"failed to read or write the signing keys"));
        assert!(server || STATUSES.contains(&status), "{head}\n{}", String::from_utf8_lossy(body));
        if field(&head, "content-length").is_some()
            && field(&head, "content-type") == Some("application/json")
        {
            serde_json::from_slice::<serde_json::Value>(body).unwrap();
        }
    }
}

fn field<'h>(head: &'h str, name: &str) -> Option<&'h str> {
    head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

fn contains(data: &[u8], word: &[u8]) -> bool {
    data.windows(word.len()).any(|bytes| bytes == word)
}

fn shared(store: &watch::Sender<StoreHealth>) -> Shared {
    // The inbox has no reader: each request fails because the agent shuts down.
    let (inbox, _) = Inbox::with_capacity(1);
    let nowhere = std::path::PathBuf::from("/nonexistent");
    let requests = Requests::to(inbox, store.subscribe(), nowhere.clone());
    let model = Arc::new(ReadModel::default());
    let gc = Collector {
        rules: Rules::default(),
        model: Arc::clone(&model),
        requests: requests.clone(),
        alloc_dirs: nowhere.clone(),
        telemetry: Telemetry::new(),
    };
    // Nothing can be created there.
    let state = std::path::Path::new("/proc/nonexistent");
    let variables = Store::open(state, KeySource::choose(None, None, &state.join("keys"))).unwrap();
    let identity_keys = Arc::new(IdentityKeys::new(state.join("keys"), Arc::clone(&model), None));
    Shared {
        requests,
        model,
        gc: Arc::new(gc),
        restored: Gate::opened_before(),
        drivers: Registry::new(),
        bounds: Bounds::default(),
        host: herdlet_api::alloc_ops::host::HostSampler::default(),
        manifests: watch::channel(Drivers::built_in()).1,
        paths: Paths { state: nowhere.clone(), runtime: nowhere },
        catalog: Arc::new(BuiltIn::default()),
        published: Box::new(|_| None),
        plugins: Box::new(Vec::new),
        consuls: Arc::new(ConsulClusters::absent()),
        variables: Arc::new(Variables::new(variables)),
        template_users: Box::new(|_| Default::default()),
        evaluations: Evaluations::default(),
        submissions: Submissions::below(state),
        facts: Facts { started_at: UnixNanos(1), ..Facts::default() },
        vitals: Box::new(Vitals::default),
        read_inputs: Box::new(|| Box::pin(async {})),
        revoke_vault_tokens: Box::new(|| Box::pin(async { Vec::new() })),
        identity_keys,
        metrics: Box::new(|format, _| format!("{format:?}\n")),
        measuring: tokio::sync::Mutex::default(),
        publish_allocation_metrics: false,
        closing: CancellationToken::new(),
    }
}

fn show(shared: &Shared) {
    let job = job("web", "g", "t");
    let views = vec![View::Job(job_view(&job, 0).into()), View::Alloc(alloc_view(&job, 0, 7).into())];
    shared.model.publisher().offer(CommitIndex(5), views);
}

pub(super) fn seeds() -> Vec<Vec<u8>> {
    let alloc = "07070707-0707-0707-0707-070707070707";
    let hello = serde_json::json!({
        "files": [{ "name": "h.yaml", "text": include_str!("../../../manifests/hello.yaml") }],
    });
    let hello = hello.to_string();
    let mut seeds: Vec<Vec<u8>> = [
        "/v1/jobs?prefix=w&namespace=*",
        "/v1/jobs?index=5&wait=10s",
        "/v1/vars?prefix=a&namespace=*",
        "/v1/var/nomad/jobs/web?index=1&wait=1s",
        "/v1/job/web",
        "/v1/job/web/allocations?namespace=default",
        "/v1/allocations?prefix=07",
        &format!("/v1/allocation/{alloc}"),
        &format!("/v1/client/allocation/{alloc}/stats"),
        &format!("/v1/client/allocation/{alloc}/checks"),
        &format!(
            "/v1/client/fs/logs/{alloc}?task=t&type=stdout&follow=true&offset=1&origin=end&plain=true&tail=3"
        ),
        &format!("/v1/client/allocation/{alloc}/exec?task=t&command=%5B%22ls%22%5D&tty=true"),
        "/v1/services",
        "/v1/service/web?all=true&choose=2%7Ckey",
        "/v1/agent/self",
        "/v1/agent/health?type=server",
        "/v1/status/leader",
        "/v1/metrics",
        "/v1/herdlet/status",
        "/v1/herdlet/jobs",
        "/v1/herdlet/allocs",
        "/v1/herdlet/volumes",
        "/v1/herdlet/services",
        &format!("/v1/herdlet/explain/{alloc}"),
        "/v1/herdlet/events?index=3",
        "/.well-known/jwks.json",
        "/healthz",
        "/readyz",
    ]
    .iter()
    .map(|path| format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n").into_bytes())
    .collect();
    let bodies = [
        ("POST /v1/herdlet/apply", hello.as_str()),
        ("PUT /v1/herdlet/apply", r#"{"files":[{"name":"a","text":""}]}"#),
        ("POST /v1/jobs", "{}"),
        ("DELETE /v1/job/web?purge=true", ""),
        ("DELETE /v1/service/web/s1?namespace=default", ""),
        ("DELETE /v1/herdlet/volume/data?purge=true", ""),
        ("POST /v1/herdlet/images/pull", r#"{"image":"redis:7"}"#),
        ("PUT /v1/herdlet/images/load", "not a tar"),
        ("POST /v1/herdlet/images/prune", r#"{"unused_for_ns":1,"dry_run":true}"#),
        ("POST /v1/herdlet/images/verify", r#"{"damaged":"remove"}"#),
        (&format!("POST /v1/client/allocation/{alloc}/restart"), r#"{"TaskName":"t","AllTasks":false}"#),
        (&format!("PUT /v1/client/allocation/{alloc}/signal"), r#"{"Signal":"SIGHUP","Task":"t"}"#),
    ];
    seeds.extend(bodies.iter().map(|(line, body)| {
        let length = body.len();
        format!("{line} HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n{body}").into_bytes()
    }));
    seeds.push(
        b"POST /v1/herdlet/apply HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n".to_vec(),
    );
    seeds.push(
        b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\nGET /v1/metrics HTTP/1.0\r\naccept: */*\r\n\r\n".to_vec(),
    );
    seeds.push(
        format!(
            "GET /v1/client/allocation/{alloc}/exec?task=t&command=%5B%22ls%22%5D HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        .into_bytes(),
    );
    seeds
}
