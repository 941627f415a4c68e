//! The Task API of a node, with stand-in servers.

use herdlet_agent::task_sockets::{TaskApi as _, TaskSocket};
use herdlet_api_types::alloc::ClientStatus;
use herdlet_manifest::fixture::{alloc_view, job};
use herdlet_rpc::codec::Value;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::{
    http::tests::test_env::{Node, map},
    test_recordings::text,
};

async fn status(node: &Node, path: &str, token: &str) -> u16 {
    let socket = node.ground.dir.path().join("task");
    let http = reqwest::Client::builder().unix_socket(socket).build().unwrap();
    let request = http.get(format!("http://localhost{path}")).header("x-nomad-token", token);
    request.send().await.unwrap().status().as_u16()
}

fn open(node: &Node) {
    let listener = std::os::unix::net::UnixListener::bind(node.ground.dir.path().join("task")).unwrap();
    task_api(Arc::clone(&node.api)).open(TaskSocket {
        alloc: node.alloc.parse().map(AllocId).unwrap(),
        task: "httpd".to_owned(),
        listener,
        closed: CancellationToken::new(),
    });
}

fn identity(fields: &[(&str, Value)]) -> Value {
    map(&[("Identity", map(fields))])
}

#[tokio::test]
async fn servers_decide_who_is_let_in_and_answer_with_the_callers_token() {
    let node = Node::new(false).await;
    open(&node);
    node.answers("Variables.Read", map(&[("Data", map(&[("Path", text("nomad/jobs/web"))]))]));
    assert_eq!(status(&node, "/v1/var/nomad/jobs/web", "").await, 401);
    node.answers("ACL.WhoAmI", identity(&[("ACLToken", map(&[("AccessorID", text("anonymous"))]))]));
    assert_eq!(status(&node, "/v1/var/nomad/jobs/web", "a").await, 403);
    node.answers("ACL.WhoAmI", identity(&[("ACLToken", Value::Nil), ("Claims", Value::Nil)]));
    assert_eq!(status(&node, "/v1/var/nomad/jobs/web", "b").await, 403);
    node.refuses("ACL.WhoAmI", "Permission denied");
    assert_eq!(status(&node, "/v1/var/nomad/jobs/web", "c").await, 403);
    node.refuses("ACL.WhoAmI", "No cluster leader");
    assert_eq!(status(&node, "/v1/var/nomad/jobs/web", "d").await, 500);
    node.answers("ACL.WhoAmI", identity(&[("ACLToken", map(&[("AccessorID", text("1"))]))]));
    assert_eq!(status(&node, "/v1/var/nomad/jobs/web", "e").await, 200);
    let (method, body) = node.last_call();
    assert_eq!(method, "Variables.Read");
    assert_eq!(body.get("AuthToken").and_then(Value::as_text), Some("e"));
    // It is cached: servers that don't know it any more are not asked.
    node.refuses("ACL.WhoAmI", "Permission denied");
    assert_eq!(status(&node, "/v1/var/nomad/jobs/web", "e").await, 200);
}

#[tokio::test]
async fn a_cached_identity_ends_with_its_allocation() {
    let node = Node::new(false).await;
    open(&node);
    node.answers("Variables.List", map(&[("Data", Value::Nil)]));
    node.answers("ACL.WhoAmI", identity(&[("Claims", map(&[("JobID", text("web"))]))]));
    let payload = URL_SAFE_NO_PAD.encode(format!(r#"{{"nomad_allocation_id":"{}"}}"#, node.alloc));
    let token = format!("e30.{payload}.c2ln");
    assert_eq!(status(&node, "/v1/vars", &token).await, 200);
    node.refuses("ACL.WhoAmI", "Permission denied");
    assert_eq!(status(&node, "/v1/vars", &token).await, 200);
    let mut view = alloc_view(&job("web", "front", "httpd"), 0, 7);
    view.status = ClientStatus::Complete;
    node.ground.show(6, &[], &[view]);
    assert_eq!(status(&node, "/v1/vars", &token).await, 403);
}
