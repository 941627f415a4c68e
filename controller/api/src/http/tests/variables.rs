//! Variables over the API: shapes, codes, check-and-set, locks, blocking queries, keys.

use std::{
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

use herdlet_api_types::variable::{VariableItems, VariableKey};
use herdlet_variables::{Check, KeySource, Store, Variables};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;

use super::{ApiFixture, Limits};

struct Reply {
    status: u16,
    index: u64,
    text: String,
}

impl Reply {
    fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }
}

async fn send(agent: &ApiFixture, method: &str, path: &str, body: Value) -> Reply {
    let request = agent.http().request(method.parse().unwrap(), format!("http://localhost/v1/{path}"));
    let request = if body.is_null() { request } else { request.json(&body) };
    let answer = request.send().await.unwrap();
    let status = answer.status().as_u16();
    let index = answer.headers().get("x-nomad-index");
    let index = index.map_or(0, |index| index.to_str().unwrap().parse().unwrap());
    Reply { status, index, text: answer.text().await.unwrap() }
}

async fn agent() -> ApiFixture {
    let agent = ApiFixture::new();
    agent.unix(Limits::default()).await;
    agent
}

fn body(value: &str) -> Value {
    json!({ "Items": { "password": value } })
}

#[tokio::test]
async fn a_variable_is_written_read_listed_and_removed() {
    let agent = agent().await;
    let none = send(&agent, "GET", "var/a/b", Value::Null).await;
    assert_eq!((none.status, none.text.as_str(), none.index), (404, "variable not found", 1));
    let put = send(&agent, "PUT", "var/a/b", body("x")).await;
    assert_eq!((put.status, put.index), (200, 2), "{}", put.text);
    let written = put.json();
    assert_eq!((&written["Namespace"], &written["Path"]), (&json!("default"), &json!("a/b")));
    assert_eq!(written["Items"], json!({ "password": "x" }));
    assert!(written["CreateTime"].as_i64().unwrap() > 0 && written["Lock"].is_null());
    let read = send(&agent, "GET", "var/a%2Fb", Value::Null).await;
    assert_eq!((read.status, read.index, read.json()), (200, 2, written.clone()));
    // The namespace of the query precedes that of the body.
    let mut elsewhere = body("y");
    elsewhere["Namespace"] = json!("prod");
    assert_eq!(send(&agent, "POST", "var/a/b", elsewhere.clone()).await.json()["Namespace"], "prod");
    let put = send(&agent, "PUT", "var/c?namespace=dev", elsewhere).await.json();
    assert_eq!((&put["Namespace"], &put["Path"]), (&json!("dev"), &json!("c")));
    let paths = async |query: &str| {
        let listed = send(&agent, "GET", &format!("vars?{query}"), Value::Null).await.json();
        let listed = listed.as_array().unwrap().clone();
        assert!(listed.iter().all(|one| one.get("Items").is_none()));
        listed
            .iter()
            .map(|one| format!("{}@{}", one["Path"].as_str().unwrap(), one["Namespace"].as_str().unwrap()))
            .collect::<Vec<_>>()
    };
    assert_eq!(paths("").await, ["a/b@default"]);
    assert_eq!(paths("namespace=*").await, ["a/b@default", "a/b@prod", "c@dev"]);
    assert_eq!(paths("namespace=*&prefix=a/").await, ["a/b@default", "a/b@prod"]);
    assert_eq!(paths("namespace=*&filter=Path%20==%20%22c%22").await, ["c@dev"]);
    assert_eq!(paths("namespace=*&per_page=1").await, ["a/b@default"]);
    assert_eq!(paths("prefix=z").await, [""; 0]);
    let namespaces = send(&agent, "GET", "namespaces", Value::Null).await.json();
    assert_eq!(namespaces.as_array().unwrap().len(), 3);
    let found = send(&agent, "POST", "search", json!({ "Prefix": "a", "Context": "vars" })).await.json();
    assert_eq!(found["Matches"]["vars"], json!(["a/b"]));
    let removed = send(&agent, "DELETE", "var/a/b", Value::Null).await;
    assert_eq!((removed.status, removed.text.as_str(), removed.index), (204, "", 5));
    assert_eq!(send(&agent, "DELETE", "var/a/b", Value::Null).await.status, 204);
    assert_eq!(send(&agent, "GET", "var/a/b", Value::Null).await.status, 404);
}

#[tokio::test]
async fn a_conflict_answers_with_the_present_variable() {
    let agent = agent().await;
    let absent = send(&agent, "PUT", "var/a?cas=7", body("x")).await;
    assert_eq!(absent.status, 409);
    let expected = json!({
        "Namespace": "default", "Path": "a", "CreateIndex": 0, "ModifyIndex": 0, "CreateTime": 0, "ModifyTime": 0,
        "Lock": null, "Items": null,
    });
    assert_eq!(absent.json(), expected);
    assert_eq!(send(&agent, "PUT", "var/a?cas=0", body("x")).await.status, 200);
    let present = send(&agent, "PUT", "var/a?cas=0", body("y")).await;
    assert_eq!((present.status, present.index, &present.json()["Items"]["password"]), (409, 2, &json!("x")));
    assert_eq!(send(&agent, "DELETE", "var/a?cas=1", Value::Null).await.status, 409);
    assert_eq!(send(&agent, "PUT", "var/a?cas=2", body("y")).await.status, 200);
    assert_eq!(send(&agent, "DELETE", "var/a?cas=3", Value::Null).await.status, 204);
}

#[tokio::test]
async fn a_lock_is_acquired_renewed_and_released() {
    let agent = agent().await;
    let mut request = body("x");
    request["Lock"] = json!({ "TTL": "20s", "LockDelay": "30s" });
    let acquired = send(&agent, "PUT", "var/a?lock-acquire", request.clone()).await;
    let lock = acquired.json()["Lock"].clone();
    assert_eq!((acquired.status, &lock["TTL"], &lock["LockDelay"]), (200, &json!("20s"), &json!("30s")));
    assert!(lock["ID"].as_str().unwrap().len() == 36);
    let read = send(&agent, "GET", "var/a", Value::Null).await.json();
    assert_eq!(
        (&read["Lock"]["TTL"], read["Lock"].get("ID")),
        (&json!("20s"), None),
        "only the holder has the id"
    );
    for (method, path) in [("PUT", "var/a?lock-acquire"), ("PUT", "var/a"), ("DELETE", "var/a")] {
        assert_eq!(send(&agent, method, path, request.clone()).await.status, 409, "{method} {path}");
    }
    let mine = json!({ "Lock": { "ID": lock["ID"] } });
    let renewed = send(&agent, "PUT", "var/a?lock-renew", mine.clone()).await;
    assert_eq!((renewed.status, &renewed.json()["Lock"]), (200, &lock));
    assert!(renewed.json().get("Items").is_none());
    let other = json!({ "Lock": { "ID": "other" } });
    assert_eq!(send(&agent, "PUT", "var/a?lock-renew", other.clone()).await.status, 409);
    assert_eq!(send(&agent, "PUT", "var/a?lock-release", other.clone()).await.status, 409);
    let mut with_items = mine.clone();
    with_items["Items"] = json!({ "a": "b" });
    assert_eq!(send(&agent, "PUT", "var/a?lock-release", with_items.clone()).await.status, 400);
    assert_eq!(send(&agent, "PUT", "var/a", with_items).await.status, 200, "the holder may write");
    let released = send(&agent, "PUT", "var/a?lock-release", mine.clone()).await;
    assert_eq!((released.status, &released.json()["Lock"]), (200, &Value::Null));
    assert_eq!(send(&agent, "PUT", "var/a?lock-renew", mine.clone()).await.status, 409, "the lock is lost");
    assert_eq!(send(&agent, "PUT", "var/none?lock-renew", mine).await.status, 404);
    assert_eq!(
        send(&agent, "PUT", "var/b?lock-acquire", json!({})).await.status,
        200,
        "a lock needs no items"
    );
}

#[tokio::test]
async fn invalid_requests_are_refused_without_showing_values() {
    let agent = agent().await;
    for (path, body) in [
        ("var/a", json!({})),
        ("var/a", json!({ "Items": {} })),
        ("var/a", json!({ "Items": { "password": ["hunter2"] } })),
        ("var/a", json!({ "Items": "hunter2" })),
        ("var/a", json!({ "Items": { "a": null, "password": "hunter2" } })),
        ("var/a", json!({ "Items": { "password": "hunter2".repeat(10_000) } })),
        ("var/a.b", body("hunter2")),
        ("var/nomad", body("hunter2")),
        ("var/a?cas=x", body("hunter2")),
        ("var/a?namespace=*", body("hunter2")),
        ("var/a?cas=1&lock-acquire", body("hunter2")),
        ("var/a?lock-renew&lock-release", body("hunter2")),
        ("var/a?lock-acquire", json!({ "Lock": { "TTL": "1s" } })),
        ("var/a?lock-acquire", json!({ "Lock": { "TTL": "soon" } })),
    ] {
        let refused = send(&agent, "PUT", path, body).await;
        assert_eq!(refused.status, 400, "{path}: {}", refused.text);
        assert!(!refused.text.contains("hunter2"), "{path}: {}", refused.text);
    }
    assert_eq!(agent.shared.variables.store().index(), 1);
}

/// An item that is null was left out without an error.
#[tokio::test]
async fn an_item_without_a_text_is_named() {
    let agent = agent().await;
    for value in [json!(null), json!(5), json!({})] {
        let refused = send(&agent, "PUT", "var/a", json!({ "Items": { "a": value, "b": "c" } })).await;
        let expected = "the body is not a variable: Items[\"a\"] is not a string";
        assert_eq!((refused.status, refused.text.as_str()), (400, expected));
    }
    let put =
        send(&agent, "PUT", "var/a", json!({ "Items": { "b": "c" }, "Lock": null, "Path": null })).await;
    assert_eq!(put.status, 200, "{}", put.text);
}

/// Collects log lines.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Requests that never reached the store had no audit line.
#[tokio::test]
async fn refused_requests_have_audit_lines() {
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let agent = agent().await;
    let mut count = 0;
    for (method, path, body, operation) in [
        ("PUT", "var/a?cas=x", body("hunter2"), "write"),
        ("PUT", "var/a?index=x", body("hunter2"), "write"),
        ("PUT", "var/a?cas=1&lock-acquire", body("hunter2"), "write"),
        ("PUT", "var/a?lock-renew&lock-release", body("hunter2"), "write"),
        ("PUT", "var/a?lock-release", body("hunter2"), "write"),
        ("PUT", "var/a", json!(["hunter2"]), "write"),
        ("PUT", "var/a", json!({ "Items": { "a": null } }), "write"),
        ("PUT", "var/a", json!({ "Namespace": "prod", "Items": { "a": 5 } }), "write"),
        ("GET", "var/a?index=x", Value::Null, "read"),
        ("GET", "var/a?index=1&wait=x", Value::Null, "read"),
        ("DELETE", "var/a?cas=x", Value::Null, "remove"),
        ("GET", "vars?index=x", Value::Null, "list"),
    ] {
        let refused = send(&agent, method, path, body).await;
        assert_eq!(refused.status, 400, "{method} {path}: {}", refused.text);
        count += 1;
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        let audit: Vec<&str> = text.lines().filter(|line| line.contains("herdlet::audit")).collect();
        assert_eq!(audit.len(), count, "{method} {path}: {text}");
        let last = audit[count - 1];
        assert!(last.contains(&format!("operation=\"{operation}\"")), "{path}: {last}");
        assert!(last.contains("result=\"refused: invalid\"") && !text.contains("hunter2"), "{text}");
    }
    let refused = send(&agent, "DELETE", "operator/keyring/key/no-key", Value::Null).await;
    let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
    let last = text.lines().rfind(|line| line.contains("herdlet::audit")).unwrap_or_default();
    let expected = "operation=\"remove key\" result=\"refused: invalid\" key=\"no-key\"";
    assert!(refused.status == 400 && last.contains(expected), "{}: {text}", refused.status);
    // A client whose connection ends within the body: the request is dropped, or its body ends with an error.
    let mut client = tokio::net::UnixStream::connect(agent.socket()).await.unwrap();
    let head = "PUT /v1/var/aborted HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{\"Items\":{\"a\":\"hunter2";
    client.write_all(head.as_bytes()).await.unwrap();
    drop(client);
    let line = async {
        loop {
            let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
            if let Some(line) = text.lines().find(|line| line.contains("path=\"aborted\"")) {
                break line.to_owned();
            }
            tokio::task::yield_now().await;
        }
    };
    let line = tokio::time::timeout(Duration::from_secs(180), line).await.expect("a line");
    assert!(line.contains("result=\"refused: ") && !line.contains("hunter2"), "{line}");
}

#[tokio::test]
async fn a_waiting_reader_wakes_for_its_variable_only() {
    let agent = agent().await;
    send(&agent, "PUT", "var/a", body("1")).await;
    let waits = |path: &str| {
        let (http, url) = (agent.http(), format!("http://localhost/v1/{path}"));
        tokio::spawn(async move {
            let answer = http.get(url).send().await.unwrap();
            let index = answer.headers()["x-nomad-index"].to_str().unwrap().parse::<u64>().unwrap();
            (answer.status().as_u16(), index)
        })
    };
    let (one, list) = (waits("var/a?index=2&wait=5m"), waits("vars?prefix=a&index=2&wait=5m"));
    let absent = waits("var/later?index=2&wait=5m");
    let are_waiting = async |readers: usize| {
        let store = agent.shared.variables.store();
        while store.waiting() < readers {
            tokio::task::yield_now().await;
        }
    };
    are_waiting(3).await;
    // An answer after this change would have the index 2 or 3.
    send(&agent, "PUT", "var/b", body("1")).await;
    send(&agent, "PUT", "var/a", body("2")).await;
    assert_eq!((one.await.unwrap(), list.await.unwrap()), ((200, 4), (200, 4)));
    send(&agent, "PUT", "var/later", body("2")).await;
    assert_eq!(absent.await.unwrap(), (200, 5));
    let removed = waits("var/a?index=4&wait=5m");
    are_waiting(1).await;
    send(&agent, "DELETE", "var/a", Value::Null).await;
    assert_eq!(removed.await.unwrap(), (404, 6));
    // A change after the reader's index, and an index of another agent, are answered at once.
    assert_eq!(waits("var/later?index=4&wait=5m").await.unwrap(), (200, 5));
    assert_eq!(waits("var/later?index=99&wait=5m").await.unwrap(), (200, 5));
}

#[tokio::test]
async fn keys_are_listed_rotated_and_removed_without_showing_them() {
    let agent = agent().await;
    assert_eq!(send(&agent, "GET", "operator/keyring/keys", Value::Null).await.json(), json!([]));
    send(&agent, "PUT", "var/a", body("1")).await;
    let keys = send(&agent, "GET", "operator/keyring/keys", Value::Null).await.json();
    assert_eq!((&keys[0]["State"], &keys[0]["Variables"]), (&json!("active"), &json!(1)));
    let old = keys[0]["KeyID"].as_str().unwrap().to_owned();
    let remove =
        async |id: &str| send(&agent, "DELETE", &format!("operator/keyring/key/{id}"), Value::Null).await;
    assert_eq!(remove(&old).await.status, 409);
    let rotated = send(&agent, "PUT", "operator/keyring/rotate?full=true", Value::Null).await;
    assert_eq!(
        (rotated.status, &rotated.json()["Key"]["State"]),
        (200, &json!("active")),
        "{}",
        rotated.text
    );
    let keys = send(&agent, "GET", "operator/keyring/keys", Value::Null).await;
    assert_eq!(keys.json()[1]["State"], "rekeying");
    let file = std::fs::read_to_string(agent.dir.path().join("state/keys/variables")).unwrap();
    for line in file.lines() {
        assert!(!keys.text.contains(line.split(' ').next().unwrap()));
    }
    // Nothing encrypts again here, so a write does.
    send(&agent, "PUT", "var/a", body("2")).await;
    assert_eq!(
        (remove(&old).await.status, remove(&old).await.status, remove("x").await.status),
        (200, 404, 400)
    );
}

#[tokio::test]
async fn keys_of_identities_are_rotated_beside_those_of_variables() {
    let agent = agent().await;
    let published = async || {
        let keys = send(&agent, "GET", "../.well-known/jwks.json", Value::Null).await.json();
        let kids = keys["keys"].as_array().unwrap().iter().map(|key| key["kid"].clone());
        kids.collect::<Vec<Value>>()
    };
    let first = published().await;
    let listed = async || send(&agent, "GET", "operator/keyring/keys", Value::Null).await.json();
    let keys = listed().await;
    assert_eq!(
        json!([keys[0]["KeyID"], keys[0]["Algorithm"], keys[0]["State"], keys[0]["Use"]]),
        json!([first[0], "RS256", "active", "identities"])
    );
    // One kind only.
    let rotate = async |query: &str| {
        send(&agent, "PUT", &format!("operator/keyring/rotate?{query}"), Value::Null).await
    };
    let later = i64::MAX / 2;
    let next = rotate(&format!("use=identities&signing_algorithm=eddsa&publish_time={later}")).await.json();
    assert_eq!(
        json!([next["Key"]["Algorithm"], next["Key"]["State"], next["SigningKey"]]),
        json!(["EdDSA", "prepublished", null])
    );
    assert_eq!(
        (published().await.len(), listed().await[0]["PublishTime"].as_i64()),
        (2, Some(later / 1_000_000_000 * 1_000_000_000))
    );
    // There was none of variables, so it is the first one and its successor.
    rotate("use=variables").await;
    assert_eq!((listed().await.as_array().unwrap().len(), published().await.len()), (4, 2));
    // Both, as in Nomad.
    let both = rotate("full=true").await.json();
    assert_eq!(json!([both["Key"]["Use"], both["SigningKey"]["State"]]), json!(["variables", "active"]));
    for bad in ["use=other", "signing_algorithm=HS256", "publish_time=soon"] {
        assert_eq!(rotate(bad).await.status, 400, "{bad}");
    }
    let text = send(&agent, "GET", "operator/keyring/keys", Value::Null).await.text;
    let file = std::fs::read_to_string(agent.dir.path().join("state/keys/identity.json")).unwrap();
    let file: Value = serde_json::from_str(&file).unwrap();
    assert!(!text.contains(file["keys"][0]["pkcs8"].as_str().unwrap()));
    let first = first[0].as_str().unwrap();
    let remove = async |query: &str| {
        send(&agent, "DELETE", &format!("operator/keyring/key/{first}{query}"), Value::Null).await.status
    };
    assert_eq!((remove("").await, remove("?force=true").await, remove("").await), (409, 200, 404));
    assert_eq!(published().await.len(), 2);
}

#[tokio::test]
async fn discovery_needs_an_issuer() {
    let agent = agent().await;
    let answer = send(&agent, "GET", "../.well-known/openid-configuration", Value::Null).await;
    assert!(answer.status == 404 && answer.text.contains("identities.oidc_issuer"), "{}", answer.text);
}

#[tokio::test]
async fn damaged_keys_of_identities_are_reported() {
    let agent = agent().await;
    let keys = agent.dir.path().join("state/keys");
    std::fs::create_dir_all(&keys).unwrap();
    std::fs::write(keys.join("identity.json"), "{").unwrap();
    for path in ["../.well-known/jwks.json", "operator/keyring/keys"] {
        let answer = send(&agent, "GET", path, Value::Null).await;
        assert!(answer.status == 500 && answer.text.contains("identity.json is damaged"), "{}", answer.text);
    }
}

#[tokio::test]
async fn a_lost_key_is_named_and_other_paths_still_work() {
    let mut agent = ApiFixture::new();
    let state = agent.dir.path().join("state");
    let keys = state.join("keys/variables");
    let variables = || {
        let store = Store::open(&state, KeySource::choose(None, None, &state.join("keys"))).unwrap();
        Arc::new(Variables::new(store))
    };
    let items = VariableItems([("a".to_owned(), "b".to_owned())].into_iter().collect());
    let key = VariableKey { namespace: "default".to_owned(), path: "a".to_owned() };
    variables().store().put(&key, items, Check::Nothing, "").unwrap();
    std::fs::remove_file(&keys).unwrap();
    Arc::get_mut(&mut agent.shared).unwrap().variables = variables();
    agent.unix(Limits::default()).await;
    for (method, path) in [("GET", "var/a"), ("PUT", "var/a"), ("PUT", "var/new")] {
        let refused = send(&agent, method, path, body("2")).await;
        assert_eq!(refused.status, 503, "{}", refused.text);
        assert!(
            refused.text.contains(&format!("the key file {} is missing", keys.display())),
            "{}",
            refused.text
        );
    }
    assert_eq!(send(&agent, "GET", "vars", Value::Null).await.json().as_array().unwrap().len(), 1);
    assert_eq!(send(&agent, "GET", "jobs", Value::Null).await.status, 200);
    assert_eq!(send(&agent, "DELETE", "var/a", Value::Null).await.status, 204);
}
