//! Identities that servers sign: several of a task, and renewals while servers are lost.

use super::*;

/// A task with three identities, whose renewals do not restart it.
fn web() -> wire::Job {
    let hour = 3_600_000_000_000_i64;
    let identities = json!([
        { "Name": "aws", "Audience": ["sts"], "File": true, "TTL": hour },
        { "Name": "vault_default", "Audience": ["vault.io"], "File": true, "TTL": hour, "ServiceName": "" },
        { "Name": "api", "Audience": ["a", "b"], "File": true, "Filepath": "local/api.jwt", "ExtraClaims": ["x"] },
    ]);
    let task =
        json!({ "Name": "main", "Driver": "mock", "Config": { "run_for": "1h" }, "Identities": identities });
    let group = json!({ "Name": "group", "Tasks": [task], "RestartPolicy": { "Attempts": 0, "Mode": "fail", "Interval": 60_000_000_000_i64, "Delay": 1 } });
    wire::Job::new(value(&json!({ "ID": "web", "Type": "service", "TaskGroups": [group] })))
}

/// A node that could not renew an identity while its servers were lost kept the task and the old token, and renews both tokens
/// in one request once there is a leader again.
#[tokio::test(flavor = "multi_thread")]
async fn identities_are_renewed_when_a_leader_is_back() {
    let dir = TestEnv::plain();
    let cluster = Cluster::start(Settings { servers: 3, ..signs() });
    let (agent, node) = start(&cluster, dir.path()).await;
    ready(&cluster, &node).await;
    let alloc = place(&cluster, &node, &web());
    reaches(&cluster, &alloc, ClientStatus::Running).await;
    let requests = || cluster.seen("Alloc.SignIdentities").len();
    assert_eq!(requests(), 1, "all in one request");
    let paths = agent.context.paths.clone();
    let id = super::super::runner::parse(&alloc).unwrap();
    let task = paths.task(&id, "main");
    let read = |file: &str| std::fs::read_to_string(task.join(file)).unwrap_or_default();
    let files = ["secrets/nomad_aws.jwt", "secrets/nomad_vault_default.jwt", "local/api.jwt"];
    let first = files.map(read);
    for (token, name) in first.iter().zip(["aws", "vault_default", "api"]) {
        assert!(token.starts_with(&format!("header.{alloc}-{name}-")), "{token}");
    }
    agent.stop().await;

    // Both tokens with an end are due, and no server leads.
    let kept = paths.server_identities(&id).join("main");
    let mut text: Json = serde_json::from_slice(&std::fs::read(&kept).unwrap()).unwrap();
    assert!(text["api"].is_object(), "it is not due");
    for name in ["aws", "vault_default"] {
        text[name]["renew_at"] = json!(1);
    }
    std::fs::write(&kept, text.to_string()).unwrap();
    for server in 0..3 {
        cluster.set_down(server, true);
    }
    let (agent, _) = start(&cluster, dir.path()).await;
    let is_running = || {
        agent
            .model
            .alloc(&id)
            .is_some_and(|view| view.status == herdlet_api_types::alloc::ClientStatus::Running)
    };
    let tried = async {
        while !is_running() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within(tried).await;
    assert_eq!((files.map(read), requests()), (first.clone(), 1), "the last good tokens stay");
    for server in 0..3 {
        cluster.set_down(server, false);
    }
    cluster.lead(Some(2));
    let renewed = async {
        while files[..2].iter().zip(&first).any(|(file, first)| read(file) == *first) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within(renewed).await;
    assert_eq!(read(files[2]), first[2], "it was not due");
    assert!(is_running());
    assert_eq!(cluster.alloc(&alloc).unwrap().task_states["main"].restarts, 0);
    agent.stop().await;
}
