//! Secrets of Vault, with a stand-in for a server that fails as a test needs it.

use herdlet_vault::{client::VaultClient, config::VaultConfig, secret::SecretText};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::{OutdatedValues, VaultReader, renderer::SecretVariables};

/// What the server sends for requests that begin with this text.
type Rule = (&'static str, Reply);

#[derive(Clone)]
enum Reply {
    Json(u16, Value),
    Hang,
}

/// A server. Requests without a rule are denied.
struct StandIn {
    address: String,
    requests: Arc<std::sync::Mutex<Vec<String>>>,
    rules: Arc<std::sync::Mutex<Vec<Rule>>>,
    task: JoinHandle<()>,
}

impl Drop for StandIn {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl StandIn {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let (requests, rules) = (Arc::default(), Arc::default());
        let (to, by) = (Arc::clone(&requests), Arc::clone(&rules));
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, Arc::clone(&to), Arc::clone(&by)));
            }
        });
        Self { address, requests, rules, task }
    }

    fn sends(&self, rules: &[Rule]) {
        *self.rules.lock().unwrap() = rules.to_vec();
    }

    /// The requests since the last call, except those for the mount of a path.
    fn take(&self) -> Vec<String> {
        let all = std::mem::take(&mut *self.requests.lock().unwrap());
        all.into_iter().filter(|line| !line.contains("sys/internal/")).collect()
    }

    fn rights(&self, token_id: u64) -> VaultRights {
        VaultRights::Ready(VaultReader {
            client: Arc::new(VaultClient::new(VaultConfig::new(&self.address).ok().unwrap()).ok().unwrap()),
            token: SecretText::new("s.token".to_owned()),
            token_id,
            cluster: "default".to_owned(),
            cancelled: CancellationToken::new(),
        })
    }
}

async fn serve(
    mut stream: TcpStream,
    requests: Arc<std::sync::Mutex<Vec<String>>>,
    rules: Arc<std::sync::Mutex<Vec<Rule>>>,
) {
    let mut bytes = Vec::new();
    let length = |head: &str| {
        let length = head.to_ascii_lowercase();
        let length = length.lines().find_map(|line| line.strip_prefix("content-length: ").map(str::to_owned));
        length.map_or(0, |length| length.parse::<usize>().unwrap())
    };
    let (head, body) = loop {
        if stream.read_buf(&mut bytes).await.unwrap_or(0) == 0 {
            return;
        }
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n")
            && body.len() >= length(head)
        {
            break (head.to_owned(), body.to_owned());
        }
    };
    let line = head.lines().next().unwrap().trim_end_matches(" HTTP/1.1").replace("/v1/", "");
    requests.lock().unwrap().push(format!("{line} {body}").trim().to_owned());
    let found = rules.lock().unwrap().iter().find(|(start, _)| line.starts_with(start)).cloned();
    let denied = || Reply::Json(403, json!({ "errors": ["permission denied"] }));
    match found.map_or_else(denied, |(_, reply)| reply) {
        Reply::Hang => std::future::pending().await,
        Reply::Json(status, body) => {
            let body = body.to_string();
            let head =
                format!("HTTP/1.1 {status} x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", body.len());
            let _ = stream.write_all(format!("{head}{body}").as_bytes()).await;
        }
    }
}

fn sealed() -> Reply {
    Reply::Json(503, json!({ "errors": ["Vault is sealed"] }))
}

fn plain(password: &str) -> Reply {
    Reply::Json(200, json!({ "lease_id": "", "lease_duration": 0, "data": { "password": password } }))
}

fn leased(number: u32) -> Reply {
    let data = json!({ "username": format!("user-{number}") });
    let lease_id = format!("database/creds/web/{number}");
    Reply::Json(200, json!({ "lease_id": lease_id, "lease_duration": 3600, "renewable": true, "data": data }))
}

fn renewed() -> Reply {
    Reply::Json(200, json!({ "lease_id": "x", "lease_duration": 3600, "renewable": true }))
}

const PLAIN: &str = r#"{{ with secret "kv/web" }}{{ .Data.password }}{{ end }}"#;
const LEASED: &str = r#"{{ with secret "database/creds/web" }}{{ .Data.username }}{{ end }}"#;
const WRITE: &str =
    r#"{{ with secret "transit/encrypt/web" "plaintext=eA==" }}{{ .Data.ciphertext }}{{ end }}"#;

/// A task with these templates, and its Vault.
async fn ground(templates: &[&str]) -> (Bench, StandIn) {
    let vault = StandIn::start().await;
    let blocks = templates.iter().enumerate().map(|(at, text)| block(&format!("local/{at}"), text));
    let mut bench = Bench::new(blocks.collect());
    bench.task.vault = vault.rights(1);
    (bench, vault)
}

impl Bench {
    /// Another agent.
    fn restart(&mut self) {
        self.renderer = Arc::new(Renderer::new(sources(&self.variables), Settings::default()));
    }

    async fn upkeep(&mut self) -> Upkeep {
        let Rendering::Done { outputs, upkeep } = self.render().await.unwrap() else {
            panic!("data is missing")
        };
        self.task.before = outputs;
        upkeep
    }

    async fn missing(&self) -> (String, Upkeep) {
        let Rendering::Missing { on, upkeep, .. } = self.render().await.unwrap() else {
            panic!("it is there")
        };
        (on, upkeep)
    }

    fn kept(&self) -> Value {
        serde_json::from_str(&self.text("private/vault_templates.json")).unwrap()
    }

    /// Lets the time pass until all leases are due.
    fn make_due(&self) {
        let mut kept = self.kept();
        for (_, value) in kept["values"].as_object_mut().unwrap() {
            if value["lease"]["kind"] != "endless" {
                value["lease"]["next_at_boot_ns"] = json!(0);
            }
        }
        fs::write(self.path("private/vault_templates.json"), kept.to_string()).unwrap();
    }
}

#[tokio::test]
async fn a_task_without_its_secret_waits_and_names_it() {
    let (mut bench, vault) = ground(&[PLAIN, LEASED]).await;
    for (reply, why) in [
        (sealed(), "Vault is sealed"),
        (Reply::Json(500, json!({ "errors": ["no storage"] })), "no storage"),
        (Reply::Json(403, json!({ "errors": ["permission denied"] })), "permission denied"),
        (Reply::Json(404, json!({ "errors": [] })), "nothing is there"),
    ] {
        vault.sends(&[("GET", reply)]);
        let (on, upkeep) = bench.missing().await;
        assert!(on.starts_with("secret database/creds/web, secret kv/web; ") && on.contains(why), "{on}");
        assert!(upkeep.due_in.is_some_and(|wait| wait <= Duration::from_secs(75)), "{upkeep:?}");
    }
    // A Vault that can't be reached is asked once in each render.
    vault.sends(&[("GET", sealed())]);
    vault.requests.lock().unwrap().clear();
    bench.missing().await;
    assert_eq!(vault.requests.lock().unwrap().len(), 1);
    vault.sends(&[("GET kv/web", plain("p")), ("GET database/creds/web", leased(1))]);
    bench.done().await;
    assert_eq!((bench.text("local/0"), bench.text("local/1")), ("p".to_owned(), "user-1".to_owned()));
}

#[tokio::test]
async fn another_agent_asks_vault_for_nothing() {
    let (mut bench, vault) = ground(&[PLAIN, LEASED, LEASED, WRITE]).await;
    let cipher = Reply::Json(200, json!({ "data": { "ciphertext": "c" } }));
    vault.sends(&[
        ("GET kv/web", plain("p")),
        ("GET database/creds/web", leased(1)),
        ("POST transit/encrypt/web", cipher),
    ]);
    bench.done().await;
    let mut asked = vault.take();
    asked.sort();
    // Each once, however many templates use it.
    let expected =
        ["GET database/creds/web", "GET kv/web", "POST transit/encrypt/web {\"plaintext\":\"eA==\"}"];
    assert_eq!(asked, expected);
    vault.sends(&[("", sealed())]);
    for _ in 0..3 {
        bench.restart();
        let upkeep = bench.upkeep().await;
        assert!(upkeep.outdated.is_none() && upkeep.due_in.is_some(), "{upkeep:?}");
    }
    assert!(vault.take().is_empty());
    let mode = fs::metadata(bench.path("private/vault_templates.json")).unwrap().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[tokio::test]
async fn leases_are_renewed_and_replaced_only_if_vault_ends_them() {
    let (mut bench, vault) = ground(&[LEASED]).await;
    vault.sends(&[("GET database/creds/web", leased(1)), ("POST sys/leases/renew", renewed())]);
    bench.done().await;
    vault.take();
    bench.make_due();
    let upkeep = bench.upkeep().await;
    assert_eq!(vault.take(), ["POST sys/leases/renew {\"lease_id\":\"database/creds/web/1\"}"]);
    let half = Duration::from_secs(1800);
    assert!(upkeep.due_in.is_some_and(|due| due > half / 2 && due < half * 3 / 2), "{upkeep:?}");
    let gone = Reply::Json(400, json!({ "errors": ["lease not found or lease is not renewable"] }));
    vault.sends(&[("GET database/creds/web", leased(2)), ("POST sys/leases/renew", gone)]);
    bench.make_due();
    bench.done().await;
    assert_eq!(vault.take().len(), 2);
    assert_eq!(bench.text("local/0"), "user-2");
}

#[tokio::test]
async fn losing_vault_keeps_the_last_values() {
    let (mut bench, vault) = ground(&[PLAIN, LEASED]).await;
    vault.sends(&[("GET kv/web", plain("p")), ("GET database/creds/web", leased(1))]);
    let first = bench.done().await;
    for reply in
        [sealed(), Reply::Json(500, json!({})), Reply::Json(403, json!({ "errors": ["permission denied"] }))]
    {
        vault.sends(&[("", reply)]);
        bench.make_due();
        let upkeep = bench.upkeep().await;
        assert_eq!(bench.task.before, first);
        let OutdatedValues { on, since_ns } = upkeep.outdated.unwrap();
        assert!(on.contains("of Vault, which has not renewed it since") && since_ns > 0, "{on}");
        assert!(upkeep.due_in.is_some_and(|due| due > Duration::ZERO), "it is tried again");
        assert_eq!(bench.renderer.figures().outdated, 1);
        bench.restart();
    }
    vault.sends(&[
        ("GET kv/web", plain("p")),
        ("GET database/creds/web", leased(1)),
        ("POST sys/leases/renew", renewed()),
    ]);
    bench.make_due();
    let upkeep = bench.upkeep().await;
    assert_eq!((bench.task.before.clone(), upkeep.outdated), (first, None));
    assert_eq!(bench.renderer.figures().outdated, 0);
}

/// The agent's settings and the task's token may be gone too.
#[tokio::test]
async fn a_task_without_a_token_keeps_its_values() {
    let (mut bench, vault) = ground(&[LEASED]).await;
    vault.sends(&[("GET database/creds/web", leased(1))]);
    let first = bench.done().await;
    bench.task.vault = VaultRights::Unready("set vault.default.address".to_owned());
    bench.make_due();
    let outdated = bench.upkeep().await.outdated.unwrap();
    assert!(outdated.on.contains("set vault.default.address"), "{outdated:?}");
    assert_eq!(bench.task.before, first);
    bench.task.vault = VaultRights::Absent;
    let error = bench.render().await.unwrap_err();
    assert!(error.to_string().contains("add a block `vault` to the task"), "{error}");
}

#[tokio::test]
async fn leases_end_with_their_token_and_other_values_stay() {
    let (mut bench, vault) = ground(&[PLAIN, LEASED, WRITE]).await;
    let cipher = Reply::Json(200, json!({ "data": { "ciphertext": "c" } }));
    let rules = |number| {
        [
            ("GET kv/web", plain("p")),
            ("GET database/creds/web", leased(number)),
            ("POST transit", cipher.clone()),
        ]
    };
    vault.sends(&rules(1));
    bench.done().await;
    vault.take();
    vault.sends(&rules(2));
    bench.task.vault = vault.rights(2);
    let task = bench.id();
    bench.renderer.vault_token_changed(task.0, task.1);
    assert_eq!(bench.renderer.watches.due().await, [bench.task.key].into());
    bench.done().await;
    assert_eq!(vault.take(), ["GET database/creds/web"]);
    assert_eq!(bench.text("local/1"), "user-2");
}

#[tokio::test]
async fn a_write_runs_once_for_each_path_and_arguments() {
    let other = WRITE.replace("eA==", "eQ==");
    let (mut bench, vault) = ground(&[WRITE, &other, WRITE]).await;
    vault.sends(&[("POST transit", Reply::Json(200, json!({ "data": { "ciphertext": "c" } })))]);
    bench.done().await;
    assert_eq!(vault.take().len(), 2);
    bench.make_due();
    bench.restart();
    let upkeep = bench.upkeep().await;
    assert!(vault.take().is_empty() && upkeep.due_in.is_none(), "it has no end: {upkeep:?}");
    // What is not used any more is forgotten.
    bench.task.templates.truncate(1);
    bench.task.before.truncate(1);
    bench.done().await;
    assert_eq!(bench.kept()["values"].as_object().unwrap().len(), 1);
}

/// The task is to end: nothing waits for a Vault that hangs.
#[tokio::test]
async fn the_end_of_a_task_does_not_wait_for_vault() {
    let (bench, vault) = ground(&[LEASED]).await;
    vault.sends(&[("", Reply::Hang)]);
    let VaultRights::Ready(reader) = &bench.task.vault else { panic!("rights") };
    let cancelled = reader.cancelled.clone();
    let (missing, ()) = tokio::join!(bench.missing(), async {
        while vault.requests.lock().unwrap().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        cancelled.cancel();
    });
    assert!(missing.0.contains("the task is to end"), "{}", missing.0);
}

#[tokio::test]
async fn large_values_are_read_again_but_never_issued_again() {
    let (mut bench, vault) = ground(&[PLAIN]).await;
    let large = "x".repeat(100 << 10);
    vault.sends(&[("GET kv/web", plain(&large))]);
    let first = bench.done().await;
    assert_eq!(bench.kept()["values"], json!({}), "it is not kept");
    vault.take();
    assert_eq!(bench.done().await, first);
    assert_eq!(vault.take(), ["GET kv/web"]);
    let (bench, vault) = ground(&[LEASED]).await;
    let data = json!({ "username": large });
    let issued = json!({ "lease_id": "a", "lease_duration": 60, "renewable": true, "data": data });
    vault.sends(&[("GET database", Reply::Json(200, issued))]);
    let error = bench.render().await.unwrap_err();
    assert_eq!(error.class(), Class::Fatal);
    assert!(error.to_string().contains("are kept; use fewer or smaller ones"), "{error}");
}

#[tokio::test]
async fn names_and_certificates_are_objects_of_consul_template() {
    let names = r#"{{ range secrets "kv/team" }}{{ . }},{{ end }}{{ range secrets "kv/none" }}x{{ end }}"#;
    let certificate =
        r#"{{ with pkiCert "pki/issue/web" "common_name=web" }}{{ .Cert }}{{ .Data.Key }}{{ .CA }}{{ end }}"#;
    let (mut bench, vault) = ground(&[names, certificate]).await;
    let issued =
        json!({ "certificate": "C", "private_key": "K", "issuing_ca": "A", "expiration": 4_000_000_000_u64 });
    vault.sends(&[
        ("GET kv/team?list=true", Reply::Json(200, json!({ "data": { "keys": ["a", "b/"] } }))),
        ("GET kv/none?list=true", Reply::Json(404, json!({ "errors": [] }))),
        ("POST pki/issue/web", Reply::Json(200, json!({ "lease_id": "", "data": issued }))),
    ]);
    bench.done().await;
    assert_eq!((bench.text("local/0"), bench.text("local/1")), ("a,b/,".to_owned(), "C\nK\nA\n".to_owned()));
}

#[tokio::test]
async fn secret_blocks_have_the_values_of_vault() {
    let (mut bench, vault) = ground(&[]).await;
    bench.task.key.2 = Consumer::Secrets;
    let secret = |name: &str, path: &str| Secret {
        name: name.to_owned(),
        provider: Secret::VAULT.to_owned(),
        path: path.to_owned(),
        namespace: None,
        env: BTreeMap::new(),
    };
    let secrets = [secret("db", "secret/data/db"), secret("creds", "database/creds/web")];
    let versioned = json!({ "data": { "data": { "user": "u", "port": 80 }, "metadata": { "version": 1 } } });
    vault.sends(&[("GET secret/data/db", Reply::Json(200, versioned.clone()))]);
    let waiting = bench.renderer.secret_variables(bench.task.clone(), &secrets).await.unwrap();
    let SecretVariables::Missing { on, .. } = waiting else { panic!("one is denied") };
    assert!(on.starts_with("secret database/creds/web; "), "{on}");
    vault.take();
    vault.sends(&[("GET secret/data/db", Reply::Json(200, versioned)), ("GET database", leased(1))]);
    let read = bench.renderer.secret_variables(bench.task.clone(), &secrets).await.unwrap();
    let SecretVariables::Read(found) = read else { panic!("all are there") };
    let expected = [("secret.db.user", "u"), ("secret.db.port", "80"), ("secret.creds.username", "user-1")];
    let expected: BTreeMap<String, String> =
        expected.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    assert_eq!(found.values, expected);
    assert_eq!(vault.take(), ["GET database/creds/web"], "the other one is kept");
}
