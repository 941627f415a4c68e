//! Service tokens with a real agent that denies by default.

use std::os::unix::fs::PermissionsExt as _;

use super::*;

/// The rights of our agent's token: list all services, and write those without their own token.
const RULES: &str = r#"agent_prefix "" { policy = "read" } node_prefix "" { policy = "read" }
    service_prefix "" { policy = "write" }"#;

struct Denying {
    agent: Agent,
    dir: tempfile::TempDir,
    own: String,
}

impl Denying {
    async fn start() -> Option<Self> {
        let agent = Agent::start(true).await?;
        agent.put("/v1/acl/policy", json!({ "Name": "ours", "Rules": RULES })).await;
        let own = agent.put("/v1/acl/token", json!({ "Policies": [{ "Name": "ours" }] })).await;
        let own = own["SecretID"].as_str().unwrap().to_owned();
        Some(Self { agent, dir: tempfile::tempdir().unwrap(), own })
    }

    fn client(&self) -> Consul {
        let config = ConsulConfig::resolve(Some(&self.agent.address), Some(self.own.clone()), |_| None);
        let config = config.unwrap().with_service_tokens(Some(self.dir.path().to_owned()));
        Consul::new(&config, InstanceId("0123456789abcdef".to_owned())).unwrap()
    }

    /// Creates a token that may write `service`, in the file `name`, and returns its accessor.
    async fn give(&self, name: &str, service: &str) -> String {
        let made = self
            .agent
            .put("/v1/acl/token", json!({ "ServiceIdentities": [{ "ServiceName": service }] }))
            .await;
        let path = self.dir.path().join(name);
        std::fs::write(&path, made["SecretID"].as_str().unwrap()).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        made["AccessorID"].as_str().unwrap().to_owned()
    }

    async fn revoke(&self, accessor: &str) {
        let url = format!("{}/v1/acl/token/{accessor}", self.agent.address);
        let request = reqwest::Client::new().delete(url).header("X-Consul-Token", MASTER);
        assert!(request.send().await.unwrap().status().is_success());
    }

    /// Waits until the servers, not only the agent, know `count` instances of a service.
    async fn until_known(&self, service: &str, count: usize) {
        let known = async {
            let path = format!("/v1/catalog/service/{service}");
            while self.agent.get(&path).await.as_array().map(Vec::len) != Some(count) {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(PATIENCE, known)
            .await
            .unwrap_or_else(|_| panic!("{count} instances of {service}"));
    }
}

#[tokio::test]
async fn refused_token_blocks_only_its_service() {
    let Some(ground) = Denying::start().await else { return };
    ground.give("web", "web").await;
    ground.give("denied", "another").await;
    std::fs::write(ground.dir.path().join("public"), "s3cret").unwrap();
    std::fs::set_permissions(ground.dir.path().join("public"), std::fs::Permissions::from_mode(0o644))
        .unwrap();
    let consul = ground.client();
    let wanted = ["denied", "plain", "public", "web"].map(|name| registration(1, name, Vec::new()));
    let error = consul.up(&owner(1), &wanted).await.unwrap_err();
    let [denied, public] = &error.failures[..] else { panic!("{error}") };
    let path = |name: &str| ground.dir.path().join(name).display().to_string();
    assert!(
        denied.why.contains(&format!(
            "denied-http with the token in {}: Consul at {} answers 403",
            path("denied"),
            ground.agent.address
        )),
        "{error}"
    );
    assert!(public.why.contains(&format!("read the token in {}: other users can access it", path("public"))));
    let counts = consul.counts(|_| true);
    assert_eq!((counts.registered, counts.pending, counts.leaving), (2, 2, 0));
    let [plain, web] = [&wanted[1], &wanted[3]].map(|wanted| wanted.id.clone());
    assert_eq!(ground.agent.services().await, [plain, web]);
    ground.until_known("web", 1).await;
    // A service that was never registered is removed without an error.
    consul.down(&owner(1), &wanted).await.unwrap();
    assert!(ground.agent.services().await.is_empty());
    assert_eq!(consul.counts(|_| true), ServiceCounts::default());
}

/// A Consul agent keeps notifying its servers with the token of the registration: if that was revoked before its
/// service was deregistered, the service stayed in the catalogue forever.
#[tokio::test]
async fn service_with_a_revoked_token_is_deregistered() {
    let Some(ground) = Denying::start().await else { return };
    let accessor = ground.give("web", "web").await;
    let gone = ground.give("gone", "gone").await;
    let consul = ground.client();
    let wanted = ["web", "gone"].map(|name| registration(1, name, vec![tcp_check(name, 9)]));
    consul.up(&owner(1), &wanted).await.unwrap();
    ground.until_known("web", 1).await;
    ground.until_known("gone", 1).await;
    ground.revoke(&accessor).await;
    ground.revoke(&gone).await;
    std::fs::remove_file(ground.dir.path().join("gone")).unwrap();
    // Another process may deregister it.
    ground.client().down(&owner(1), &wanted).await.unwrap();
    assert!(ground.agent.services().await.is_empty());
    ground.until_known("web", 0).await;
    ground.until_known("gone", 0).await;
}

#[tokio::test]
async fn replaced_token_is_used_by_consul() {
    let Some(ground) = Denying::start().await else { return };
    let accessor = ground.give("web", "web").await;
    let consul = Arc::new(ground.client());
    let (sender, mut events) = mpsc::channel(8);
    let stop = CancellationToken::new();
    let watch = tokio::spawn(Arc::clone(&consul).watch(sender, stop.clone()));
    let wanted = [registration(1, "web", Vec::new())];
    consul.up(&owner(1), &wanted).await.unwrap();
    ground.until_known("web", 1).await;
    assert_eq!(consul.inspect(&owner(1), &wanted).await.unwrap(), Observation::Present);
    ground.give("web", "web").await;
    ground.revoke(&accessor).await;
    // Any change triggers an inspection; otherwise it would take half a minute.
    consul.up(&owner(2), &[registration(2, "other", Vec::new())]).await.unwrap();
    let event = tokio::time::timeout(PATIENCE, events.recv()).await.unwrap().unwrap();
    assert_eq!(event, CatalogEvent::Changed(owner(1)));
    let Observation::Foreign { why } = consul.inspect(&owner(1), &wanted).await.unwrap() else {
        panic!("expected a foreign entry")
    };
    assert!(why.contains("a token other than its current one"), "{why}");
    consul.up(&owner(1), &wanted).await.unwrap();
    assert_eq!(consul.inspect(&owner(1), &wanted).await.unwrap(), Observation::Present);
    // The agent can notify its servers of changes again.
    let moved = Registration { port: 9, ..wanted[0].clone() };
    consul.up(&owner(1), &[moved]).await.unwrap();
    let servers_change = async {
        while ground.agent.get("/v1/catalog/service/web").await[0]["ServicePort"] != 9 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, servers_change).await.expect("an update of Consul's servers");
    stop.cancel();
    watch.await.unwrap();
}

/// A service that had no token for a moment was deregistered.
#[tokio::test]
async fn an_untouched_service_stays_as_it_is() {
    let Some(ground) = Denying::start().await else { return };
    let consul = ground.client();
    let [web, api, side] = ["web", "api", "side"].map(|name| registration(1, name, Vec::new()));
    consul.up(&owner(1), std::slice::from_ref(&web)).await.unwrap();
    let moved = Registration { port: 9, ..web.clone() };
    let wanted = [moved, api.clone(), side.clone()];
    let untouched = [&web, &api].map(|one| one.id.clone()).into();
    consul.up_except(&owner(1), &wanted, &untouched).await.unwrap();
    assert_eq!(ground.agent.services().await, [side.id.clone(), web.id.clone()]);
    assert_eq!(ground.agent.get("/v1/agent/services").await[&web.id]["Port"], 8080);
    let counts = consul.counts(|_| true);
    assert_eq!((counts.registered, counts.pending, counts.leaving), (1, 2, 0));
    // Even if it is the only one.
    consul.up_except(&owner(1), &wanted[..1], &[web.id.clone()].into()).await.unwrap();
    assert_eq!(ground.agent.services().await, [web.id]);
}
