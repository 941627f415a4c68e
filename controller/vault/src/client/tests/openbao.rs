//! The client against a real OpenBao, if `HERDLET_TEST_OPENBAO` is the path of its program.

use std::{
    path::Path,
    process::{Child, Command, Stdio},
    time::SystemTime,
};

use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair as _};
use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use tokio::net::TcpListener;

use super::*;

const ROOT: &str = "root-of-this-test";
/// Only a fault exceeds it.
const PATIENCE: Duration = Duration::from_secs(180);

struct OpenBao {
    child: Child,
    address: String,
    _home: tempfile::TempDir,
}

impl Drop for OpenBao {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl OpenBao {
    async fn start() -> Option<Self> {
        let program = std::env::var_os("HERDLET_TEST_OPENBAO").filter(|path| Path::new(path).exists());
        let Some(program) = program else {
            herdlet_base::test_env::leave_out("HERDLET_TEST_OPENBAO, the path of OpenBao's program");
            return None;
        };
        // It exits at once if its port has been taken meanwhile; then another test's server may answer there.
        for _ in 0..5 {
            if let Some(server) = Self::launch(Path::new(&program)).await {
                return Some(server);
            }
        }
        panic!("OpenBao exits again and again");
    }

    /// A server that answers; `None` if it has exited.
    async fn launch(program: &Path) -> Option<Self> {
        let home = tempfile::tempdir().unwrap();
        let port = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
        let child = Command::new(program)
            .args(["server", "-dev", "-dev-no-store-token"])
            .arg(format!("-dev-root-token-id={ROOT}"))
            .arg(format!("-dev-listen-address=127.0.0.1:{port}"))
            .env("HOME", home.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut server = Self { child, address: format!("http://127.0.0.1:{port}"), _home: home };
        let ready = async {
            // The version 2 engine is mounted last.
            while server.client().mount_of(&root(), &path("secret/x")).await.is_err() {
                if server.child.try_wait().unwrap().is_some() {
                    return false;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            true
        };
        tokio::time::timeout(PATIENCE, ready).await.unwrap().then_some(server)
    }

    fn client(&self) -> VaultClient {
        client(config(&self.address))
    }

    /// A request with the root token; for what the client of tasks has no function.
    async fn post(&self, path: &str, body: Value) -> Value {
        let request = reqwest::Client::new().post(format!("{}/v1/{path}", self.address));
        let response = request.header("x-vault-token", ROOT).json(&body).send().await.unwrap();
        let (status, text) = (response.status(), response.text().await.unwrap());
        assert!(status.is_success(), "{path}: {status} {text}");
        serde_json::from_str(&text).unwrap_or_default()
    }

    /// Accepts identities of this signer for the role `web`.
    async fn trust(&self, signer: &Signer) {
        self.post("sys/auth/jwt-nomad", json!({ "type": "jwt" })).await;
        let config =
            json!({ "jwt_validation_pubkeys": [signer.public_pem()], "jwt_supported_algs": ["EdDSA"] });
        self.post("auth/jwt-nomad/config", config).await;
        let policy = r#"path "secret/*" { capabilities = ["create", "update", "read", "list"] }"#;
        self.post("sys/policy/web", json!({ "policy": policy })).await;
        let role = json!({
            "role_type": "jwt", "bound_audiences": ["vault.io"], "user_claim": "/nomad_job_id",
            "user_claim_json_pointer": true, "token_policies": ["web"], "token_ttl": "60s", "token_max_ttl": "90s",
        });
        self.post("auth/jwt-nomad/role/web", role).await;
    }
}

fn root() -> SecretText {
    SecretText::new(ROOT.to_owned())
}

/// Signs identities as a server of Nomad does.
struct Signer(Ed25519KeyPair);

impl Signer {
    fn new() -> Self {
        Self(Ed25519KeyPair::generate().unwrap())
    }

    /// The beginning is that of every such key (RFC 8410).
    fn public_pem(&self) -> String {
        let prefix = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];
        let der = [&prefix[..], self.0.public_key().as_ref()].concat();
        format!("-----BEGIN PUBLIC KEY-----\n{}\n-----END PUBLIC KEY-----\n", BASE64_STANDARD.encode(der))
    }

    /// An identity that ends this many seconds from now.
    fn identity(&self, ends_in_s: i64) -> SecretText {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
        let now = i64::try_from(now).unwrap();
        let claims = json!({
            "sub": "global:default:web:server:nginx:vault_default", "aud": "vault.io", "nomad_job_id": "web",
            "iat": now - 10_000, "nbf": now - 10_000, "exp": now + ends_in_s,
        });
        let part = |value: &Value| BASE64_URL_SAFE_NO_PAD.encode(value.to_string());
        let text = format!("{}.{}", part(&json!({ "alg": "EdDSA", "typ": "JWT" })), part(&claims));
        let signature = BASE64_URL_SAFE_NO_PAD.encode(self.0.sign(text.as_bytes()));
        SecretText::new(format!("{text}.{signature}"))
    }
}

fn login<'a>(role: &'a str, identity: &'a SecretText) -> JwtLogin<'a> {
    JwtLogin { mount: "jwt-nomad", role: Some(role), identity }
}

#[tokio::test]
async fn tokens_of_identities_live_and_end() {
    let Some(server) = OpenBao::start().await else { return };
    let (client, signer) = (server.client(), Signer::new());
    server.trust(&signer).await;
    let identity = signer.identity(3600);
    let grant = client.log_in(login("web", &identity)).await.map_err(|error| error.to_string());
    let grant = grant.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(grant.terms, LeaseTerms { duration: Duration::from_secs(60), kind: LeaseKind::Renewable });
    assert_eq!(grant.policies, ["default", "web"]);

    let info = client.look_up(&grant.token).await.unwrap();
    assert_eq!((info.accessor, info.policies), (grant.accessor.clone(), grant.policies));
    let terms = client.renew_token(&grant.token, None).await.unwrap();
    assert_eq!(terms.kind, LeaseKind::Renewable);
    // Beyond its maximum it is not renewed.
    let terms = client.renew_token(&grant.token, Some(Duration::from_secs(3600))).await.unwrap();
    assert!(terms.duration <= Duration::from_secs(90) && terms.duration > Duration::from_secs(30));

    client.revoke_accessor(&root(), &grant.accessor).await.unwrap();
    let renewal = error(client.renew_token(&grant.token, None).await);
    assert_eq!(renewal.lease_failure(), LeaseFailure::Lost, "{renewal}");
    assert_eq!(error(client.look_up(&grant.token).await).class(), FailureClass::Token);

    let other = client.log_in(login("web", &identity)).await.ok().unwrap();
    client.revoke(&other.token).await.unwrap();
    assert_eq!(error(client.revoke(&other.token).await).class(), FailureClass::Token, "it is gone");

    let forged = Signer::new().identity(3600);
    let expired = signer.identity(-3600);
    for refused in [login("none", &identity), login("web", &forged), login("web", &expired)] {
        let error = error(client.log_in(refused).await);
        assert_eq!(error.class(), FailureClass::Request, "{error}");
    }
    let root = client.look_up(&root()).await.unwrap();
    assert_eq!(root.terms.kind, LeaseKind::Endless);
}

#[tokio::test]
async fn a_wrapped_token_is_unwrapped_once() {
    let Some(server) = OpenBao::start().await else { return };
    let client = server.client();
    let request = reqwest::Client::new()
        .post(format!("{}/v1/auth/token/create", server.address))
        .header("x-vault-token", ROOT)
        .header("x-vault-wrap-ttl", "60s")
        .json(&json!({ "period": "30m", "policies": ["default"] }));
    let wrapped: Value = request.send().await.unwrap().json().await.unwrap();
    let wrapping = SecretText::new(wrapped["wrap_info"]["token"].as_str().unwrap().to_owned());
    let grant = client.unwrap_token(&wrapping).await.ok().unwrap();
    assert_eq!(grant.terms.duration, Duration::from_secs(30 * 60));
    assert!(client.look_up(&grant.token).await.is_ok());
    let again = error(client.unwrap_token(&wrapping).await);
    assert!(!later(&again), "{again}");
}

#[tokio::test]
async fn secrets_of_both_versions_are_read_and_written() {
    let Some(server) = OpenBao::start().await else { return };
    let client = server.client();
    server.post("sys/mounts/kv1", json!({ "type": "kv", "options": { "version": "1" } })).await;
    for (written, engine) in [("secret/team/web", Engine::KvV2), ("kv1/team/web", Engine::Plain)] {
        let at = path(written);
        let data = SecretValue::new(json!({ "password": "x", "number": 7 }));
        assert!(client.write(&root(), &at, data).await.is_ok());
        assert_eq!(client.mount_of(&root(), &at).await.unwrap().engine, engine);
        let secret = client.read_secret(&root(), &at).await.ok().unwrap();
        let data = match engine {
            Engine::KvV2 => secret.data.get("data").unwrap(),
            Engine::Plain => secret.data.reveal(),
        };
        assert!(data == &json!({ "password": "x", "number": 7 }));
        assert_eq!(secret.terms.kind, LeaseKind::Fixed);
        let names = client.list(&root(), &path(written.trim_end_matches("/web"))).await;
        assert_eq!(names, Ok(vec!["web".to_owned()]));
        let absent = error(client.read_secret(&root(), &path(&format!("{written}/none"))).await);
        assert_eq!(absent.class(), FailureClass::Absent, "{absent}");
    }
    let data = SecretValue::new(json!({ "password": "y" }));
    assert!(client.write(&root(), &path("secret/team/web"), data).await.is_ok());
    let first = client.read_secret(&root(), &path("secret/team/web?version=1")).await.ok().unwrap();
    assert!(first.data.get("data").unwrap()["password"] == json!("x"));
    server.post("secret/delete/team/web", json!({ "versions": [2] })).await;
    let deleted = error(client.read_secret(&root(), &path("secret/team/web")).await);
    assert_eq!(deleted.class(), FailureClass::Absent, "{deleted}");
    // The token may read nothing there, so the mount is not shown either.
    let grant = server.post("auth/token/create", json!({ "policies": ["default"] })).await;
    let weak = SecretText::new(grant["auth"]["client_token"].as_str().unwrap().to_owned());
    let denied = error(client.read_secret(&weak, &path("secret/team/web")).await);
    assert_eq!(denied.class(), FailureClass::Token, "{denied}");
}

#[tokio::test]
async fn certificates_have_leases_that_cannot_be_renewed() {
    let Some(server) = OpenBao::start().await else { return };
    let client = server.client();
    server.post("sys/mounts/pki", json!({ "type": "pki" })).await;
    server.post("pki/root/generate/internal", json!({ "common_name": "test", "ttl": "24h" })).await;
    let role = json!({ "allow_any_name": true, "generate_lease": true, "ttl": "1h", "key_type": "ec", "key_bits": 256 });
    server.post("pki/roles/web", role).await;
    let issue = async |role: &str| {
        let data = SecretValue::new(json!({ "common_name": "web.test" }));
        let issued = client.write(&root(), &path(&format!("pki/issue/{role}")), data).await;
        issued.ok().flatten().unwrap()
    };
    let leased = issue("web").await;
    assert!(leased.lease_id.starts_with("pki/issue/web/"));
    assert_eq!(leased.terms.kind, LeaseKind::Fixed);
    let renewal = error(client.renew_lease(&root(), &leased.lease_id, None).await);
    assert_eq!(renewal.lease_failure(), LeaseFailure::Lost, "{renewal}");
    let renewal = error(client.renew_lease(&root(), "pki/issue/web/none", None).await);
    assert_eq!(renewal.lease_failure(), LeaseFailure::Lost, "{renewal}");
    // Without a lease the end is in the certificate itself.
    let role = json!({ "allow_any_name": true, "generate_lease": false, "ttl": "1h", "key_type": "ec", "key_bits": 256 });
    server.post("pki/roles/plain", role).await;
    let plain = issue("plain").await;
    assert_eq!((&*plain.lease_id, plain.terms.kind), ("", LeaseKind::Fixed));
    let minutes = plain.terms.duration.as_secs() / 60;
    assert!((55..=60).contains(&minutes), "{minutes}");
}

#[tokio::test]
async fn namespaces_are_separate() {
    let Some(server) = OpenBao::start().await else { return };
    server.post("sys/namespaces/team", json!({})).await;
    let client = client(config(&server.address).with_namespace("team").ok().unwrap());
    let mount = json!({ "type": "kv", "options": { "version": "2" } });
    server.post("team/sys/mounts/secret", mount).await;
    let data = SecretValue::new(json!({ "password": "x" }));
    assert!(client.write(&root(), &path("secret/web"), data).await.is_ok());
    let secret = client.read_secret(&root(), &path("secret/web")).await.ok().unwrap();
    assert!(secret.data.get("data").unwrap()["password"] == json!("x"));
    let elsewhere = error(server.client().read_secret(&root(), &path("secret/web")).await);
    assert_eq!(elsewhere.class(), FailureClass::Absent, "{elsewhere}");
    assert!(client.describe().await.is_ok(), "which is asked in the root namespace");
}

#[tokio::test]
async fn a_sealed_server_is_not_ready() {
    let Some(server) = OpenBao::start().await else { return };
    let client = server.client();
    let info = client.describe().await.unwrap();
    assert!(!info.version.is_empty() && !info.cluster_id.is_empty(), "{info:?}");
    server.post("sys/seal", json!({})).await;
    let identity = Signer::new().identity(60);
    for error in [
        error(client.describe().await),
        error(client.look_up(&root()).await),
        error(client.read_secret(&root(), &path("secret/web")).await),
        error(client.log_in(login("web", &identity)).await),
    ] {
        assert!(later(&error), "{error}");
    }
    let renewal = error(client.renew_token(&root(), None).await);
    assert_eq!(renewal.lease_failure(), LeaseFailure::Later { retry_after: None }, "{renewal}");
}
