//! Variables over the HTTP API as stock clients use it.

use herdlet_e2e::{agent::Agent, http};
use serde_json::{Value, json};

use crate::common::is_root;

/// The requests and bodies of Nomad's own API package (`api/variables.go`, `api/locks.go`), which `nomad var` uses, as
/// recorded from it: flags have an empty value, bodies all fields, with indexes that the agent must ignore.
#[test]
fn requests_of_nomads_api_package_have_its_answers() {
    if !is_root() {
        return;
    }
    let agent = Agent::start();
    let body = |path: &str, index: u64, items: Value| {
        json!({
            "Namespace": "", "Path": path, "CreateIndex": 0, "ModifyIndex": index, "CreateTime": 0, "ModifyTime": 0,
            "Items": items,
        })
    };
    let send = |method: &str, path: &str, body: &Value| {
        let text = if body.is_null() { String::new() } else { body.to_string() };
        let answer = http::request(&agent.peer(), method, &format!("/v1/{path}"), &[], &text).unwrap();
        let value = if answer.body.is_empty() || answer.status == 404 { Value::Null } else { answer.json() };
        (answer.status, value)
    };
    let (own, lock) = ("nomad/jobs/stock", "nomad/jobs/lock");
    // nomad var put -check-index: what a conflict returns is the present variable.
    let put = |cas: u64, value: &str| {
        send("PUT", &format!("var/{own}?cas={cas}"), &body(own, cas, json!({ "a": value })))
    };
    let (code, created) = put(0, "1");
    assert_eq!((code, &created["Items"], &created["Lock"]), (200, &json!({ "a": "1" }), &Value::Null));
    let index = created["ModifyIndex"].as_u64().unwrap();
    assert_eq!(put(0, "2"), (409, created));
    let (code, changed) = put(index, "2");
    assert_eq!((code, &changed["ModifyIndex"]), (200, &json!(index + 1)));
    assert_eq!(put(index, "3"), (409, changed.clone()));
    // nomad var get, list, purge.
    assert_eq!(send("GET", &format!("var/{own}"), &Value::Null), (200, changed.clone()));
    assert_eq!(send("GET", "var/nomad/jobs/none", &Value::Null).0, 404);
    let (code, list) = send("GET", "vars?prefix=nomad%2Fjobs", &Value::Null);
    assert_eq!((code, &list[0]["Path"], list[0].get("Items")), (200, &json!(own), None));
    assert_eq!(send("DELETE", &format!("var/{own}?cas={index}"), &Value::Null), (409, changed));
    assert_eq!(send("DELETE", &format!("var/{own}"), &Value::Null), (204, Value::Null));
    assert_eq!(send("DELETE", &format!("var/{own}"), &Value::Null), (204, Value::Null));
    // nomad var lock: it acquires with empty items, renews with all that it has, and releases with the id alone.
    let with_lock = |id: &str| {
        let mut body = body(lock, 0, json!({}));
        body["Lock"] = json!({ "ID": id, "TTL": "20s", "LockDelay": "10s" });
        body
    };
    let operation = |name: &str, body: &Value| send("PUT", &format!("var/{lock}?lock-{name}="), body);
    let (code, held) = operation("acquire", &with_lock(""));
    let id = held["Lock"]["ID"].as_str().unwrap().to_owned();
    assert_eq!((code, &held["Lock"]["TTL"], &held["Items"]), (200, &json!("20s"), &json!({})));
    let (code, conflict) = operation("acquire", &with_lock(""));
    assert_eq!((code, &conflict["Lock"]), (409, &json!({ "TTL": "20s", "LockDelay": "10s" })));
    assert_eq!(send("DELETE", &format!("var/{lock}"), &Value::Null).0, 409);
    let write = |id: &str| {
        let mut body = with_lock(id);
        body["Items"] = json!({ "a": "1" });
        send("PUT", &format!("var/{lock}"), &body).0
    };
    assert_eq!((write(""), write(&id)), (409, 200));
    let (code, renewed) = operation("renew", &with_lock(&id));
    assert_eq!((code, &renewed["Lock"]["ID"], renewed.get("Items")), (200, &json!(id), None));
    assert_eq!(operation("renew", &with_lock("00000000-0000-0000-0000-000000000000")).0, 409);
    let mut release = body("", 0, Value::Null);
    release["Lock"] = json!({ "ID": id, "TTL": "", "LockDelay": "" });
    let (code, released) = operation("release", &release);
    assert_eq!((code, &released["Lock"]), (200, &Value::Null));
    assert_eq!(operation("renew", &with_lock(&id)).0, 409, "the lock is lost");
    agent.finish();
}
