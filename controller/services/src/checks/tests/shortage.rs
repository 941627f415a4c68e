//! Runs without free descriptors, for each kind of check.

use herdlet_base::test_env::is_alone;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::*;

pub(super) fn https(tls_skip_verify: bool, tls_server_name: &str) -> CheckKind {
    CheckKind::Http {
        path: "/".to_owned(),
        method: "GET".to_owned(),
        protocol: "https".to_owned(),
        header: BTreeMap::new(),
        body: String::new(),
        tls_skip_verify,
        tls_server_name: tls_server_name.to_owned(),
    }
}

/// Each kind of check, and each variant of requests.
fn kinds() -> Vec<CheckKind> {
    let mut post = http("/");
    if let CheckKind::Http { method, .. } = &mut post {
        *method = "POST".to_owned();
    }
    let grpc = CheckKind::Grpc {
        service: String::new(),
        tls: false,
        tls_skip_verify: false,
        tls_server_name: String::new(),
    };
    let named = https(true, "named.test");
    vec![CheckKind::Tcp, http("/"), post, https(false, ""), https(true, ""), named, grpc, script("short")]
}

/// Without free descriptors nothing is known about the target, so it did not fail.
#[test]
fn a_check_without_descriptors_has_no_result() {
    const NAME: &str = "checks::tests::shortage::a_check_without_descriptors_has_no_result";
    // Other tests need descriptors.
    if !is_alone(NAME) {
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let probe = Probe::new(Arc::new(ScriptedCommands::default()));
    let before = getrlimit(Resource::Nofile);
    let lowest = u64::try_from(std::os::fd::AsRawFd::as_raw_fd(&std::fs::File::open("/").unwrap())).unwrap();
    for (kind, address) in
        kinds().into_iter().flat_map(|kind| [(kind.clone(), "127.0.0.1"), (kind, "localhost")])
    {
        let check = RegisteredCheck { address: address.to_owned(), ..check("short", kind, 1) };
        let run = || runtime.block_on(probe.run(owner().alloc, &check, PATIENCE));
        setrlimit(Resource::Nofile, Rlimit { current: Some(lowest), ..before }).unwrap();
        let short = run();
        setrlimit(Resource::Nofile, before).unwrap();
        assert!(short.is_err(), "{:?} of {address}: {short:?}", check.kind);
        // Nobody listens there.
        if !matches!(check.kind, CheckKind::Script { .. }) {
            let made = run().unwrap();
            assert_eq!(made.status, CheckStatus::Failure, "{:?} of {address}: {made:?}", check.kind);
        }
    }
}

/// The earlier result is kept, and the check runs again before its next interval.
#[tokio::test(start_paused = true)]
async fn check_prevented_by_a_shortage_is_retried_soon() {
    let (sender, mut reports) = mpsc::channel(8);
    let scripts = Arc::new(ScriptedCommands::default());
    let checks =
        Checks::new(sender, Arc::clone(&scripts) as Arc<dyn Scripts>, Arc::new(ConsulClusters::absent()));
    let rare = RegisteredCheck { interval: Span::from_secs(3600), ..check("c", script("recovers"), 0) };
    let begun = Instant::now();
    checks.up(&owner(), &[registration(Provider::Nomad, vec![rare])]);
    let result = next(&mut reports).await;
    assert_eq!(result.status, CheckStatus::Success);
    assert_eq!(scripts.asked.lock().unwrap().len(), 4, "three runs failed for lack of resources");
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
}
