//! Requests that change something (jobs, variables and others), in the form that servers expect.

use reqwest::Method;

use super::{
    test_env::{Node, map},
    *,
};
use crate::test_recordings::text;

#[tokio::test]
async fn changes_are_forwarded_to_servers() {
    let node = Node::new(false).await;
    node.answers("Job.Deregister", map(&[("EvalID", text("e1")), ("Index", Value::Uint(9))]));
    let answer = node.ask(Method::DELETE, "/v1/job/web?purge=true", "", "").await;
    assert_eq!(answer.text().await.unwrap(), r#"{"EvalID":"e1","Index":9}"#);
    let (_, body) = node.last_call();
    assert_eq!((body.get("JobID"), body.get("Purge")), (Some(&text("web")), Some(&Value::Bool(true))));
    assert_eq!(body.get("MinQueryIndex"), None, "the call does not wait for a change");
    node.answers("Node.UpdateDrain", map(&[]));
    let drain =
        r#"{"DrainSpec":{"Deadline":3600000000000,"IgnoreSystemJobs":true},"MarkEligible":false,"Other":1}"#;
    assert_eq!(node.ask(Method::POST, "/v1/node/n2/drain", "", drain).await.status(), 200);
    let (_, body) = node.last_call();
    let strategy =
        map(&[("Deadline", Value::Int(3_600_000_000_000)), ("IgnoreSystemJobs", Value::Bool(true))]);
    assert_eq!((body.get("NodeID"), body.get("DrainStrategy")), (Some(&text("n2")), Some(&strategy)));
    assert_eq!(body.get("Other"), None);
}

#[tokio::test]
async fn node_identity_is_shown_and_renewed() {
    let node = Node::new(true).await;
    let identity = r#"{"Claims":{"sub":"n1"}}"#.to_owned();
    let renew = "/v1/client/identity/renew";
    assert_eq!(node.ask(Method::POST, renew, "", "").await.status(), 403);
    assert!(node.cluster.asked.lock().unwrap().is_empty(), "a denied request has no effect");
    let answer = node.ask(Method::GET, "/v1/client/identity", "boss", "").await;
    assert_eq!((answer.status().as_u16(), answer.text().await.unwrap()), (200, identity));
    let answer = node.ask(Method::POST, renew, "boss", "").await;
    assert_eq!((answer.status().as_u16(), answer.text().await.unwrap()), (200, "{}".to_owned()));
    assert_eq!(node.last_call().0, "renew");
    assert!(node.cluster.asked.lock().unwrap().is_empty(), "once");
}

#[tokio::test]
async fn jobs_are_registered_planned_and_validated_by_servers() {
    let node = Node::new(false).await;
    let job = r#"{"ID":"web","Namespace":"dev","TaskGroups":[{"Name":"front","Tasks":[{"Name":"httpd","Driver":"docker","Config":{"port":80}}]}]}"#;
    node.answers("Job.Register", map(&[("EvalID", text("e1")), ("Index", Value::Uint(9))]));
    let body = format!(
        r#"{{"Job":{job},"EnforceIndex":true,"JobModifyIndex":3,"Submission":{{"Source":"s","VariableFlags":{{"a":"b\nc d"}}}}}}"#
    );
    let answer = node.ask(Method::PUT, "/v1/jobs", "boss", &body).await;
    assert_eq!(answer.headers()["x-nomad-index"], "9");
    assert_eq!(answer.text().await.unwrap(), r#"{"EvalID":"e1","Index":9}"#);
    let (method, asked) = node.last_call();
    let sent = asked.get("Job").unwrap();
    assert_eq!(
        (&*method, asked.get("Region"), asked.get("Namespace")),
        ("Job.Register", Some(&text("here")), Some(&text("dev")))
    );
    assert_eq!(sent.get("Priority"), Some(&Value::Int(50)));
    assert_eq!(
        (asked.get("EnforceIndex"), asked.get("JobModifyIndex")),
        (Some(&Value::Bool(true)), Some(&Value::Int(3)))
    );
    let flags = asked.get("Submission").unwrap().get("VariableFlags").unwrap();
    assert_eq!(flags.get("a"), Some(&text("b%0Ac+d")));
    for (path, call) in
        [("/v1/job/web/plan?namespace=ops", "Job.Plan"), ("/v1/validate/job?namespace=ops", "Job.Validate")]
    {
        node.answers(call, map(&[("Warnings", text("none"))]));
        let answer = node.ask(Method::POST, path, "", &format!(r#"{{"Job":{job},"Diff":true}}"#)).await;
        assert_eq!(answer.text().await.unwrap(), r#"{"Warnings":"none"}"#);
        let (method, asked) = node.last_call();
        assert_eq!((&*method, asked.get("Namespace")), (call, Some(&text("ops"))));
        assert_eq!(asked.get("Job").unwrap().get("Namespace"), Some(&text("ops")));
    }
    for (path, body, says) in [
        ("/v1/jobs", "{}", "Job must be specified"),
        ("/v1/jobs", r#"{"Job":{}}"#, "Job ID hasn't been provided"),
        ("/v1/job/other", r#"{"Job":{"ID":"web"}}"#, "Job ID does not match name"),
        ("/v1/job/other/plan", r#"{"Job":{"ID":"web"}}"#, "Job ID does not match"),
        (
            "/v1/jobs",
            r#"{"Job":{"ID":"web"},"EvalPriority":101}"#,
            "Eval priority must be between 1 and 100 inclusively",
        ),
    ] {
        let answer = node.ask(Method::PUT, path, "", body).await;
        assert_eq!(
            (answer.status().as_u16(), answer.text().await.unwrap()),
            (400, says.to_owned()),
            "{path}"
        );
    }
}

#[tokio::test]
async fn texts_of_jobs_are_read_here() {
    let node = Node::new(true).await;
    let body = r#"{"JobHCL":"job \"web\" {\n group \"g\" {\n task \"t\" {\n driver = \"raw_exec\"\n config {\n command = \"a\"\n}\n}\n}\n}"}"#;
    let refused = node.ask(Method::POST, "/v1/jobs/parse", "", body).await;
    assert_eq!(refused.status().as_u16(), 403);
    let read: Json = node.ask(Method::POST, "/v1/jobs/parse", "boss", body).await.json().await.unwrap();
    assert_eq!((&read["ID"], &read["TaskGroups"][0]["Tasks"][0]["Name"]), (&"web".into(), &"t".into()));
}

#[tokio::test]
async fn variables_have_their_own_answers() {
    let node = Node::new(false).await;
    node.answers(
        "Variables.Apply",
        map(&[("Output", map(&[("Path", text("a/b"))])), ("Index", Value::Uint(4))]),
    );
    let answer = node.ask(Method::PUT, "/v1/var/a/b?cas=7", "", r#"{"Path":"x","Items":{"Hash":"v"}}"#).await;
    assert_eq!(
        (answer.status().as_u16(), answer.text().await.unwrap()),
        (200, r#"{"Path":"a/b"}"#.to_owned())
    );
    let asked = node.last_call().1;
    let variable = asked.get("Var").unwrap();
    assert_eq!((asked.get("Op"), variable.get("Path")), (Some(&text("cas")), Some(&text("a/b"))));
    assert_eq!(variable.get("ModifyIndex"), Some(&Value::Uint(7)));
    assert_eq!(variable.get("Items").unwrap().get("Hash"), Some(&text("v")));
    assert_eq!(node.ask(Method::DELETE, "/v1/var/a", "", "").await.status().as_u16(), 204);
    assert_eq!(node.last_call().1.get("Op"), Some(&text("delete")));
    node.answers("Variables.Apply", map(&[("Conflict", map(&[("ModifyIndex", Value::Uint(8))]))]));
    let answer = node.ask(Method::PUT, "/v1/var/a", "", r#"{"Items":{"a":"v"}}"#).await;
    assert_eq!(
        (answer.status().as_u16(), answer.text().await.unwrap()),
        (409, r#"{"ModifyIndex":8}"#.to_owned())
    );
    assert_eq!(node.ask(Method::PUT, "/v1/var/a", "", "{}").await.status().as_u16(), 400);
}

#[tokio::test]
async fn written_bodies_are_wrapped_for_servers() {
    let node = Node::new(false).await;
    for (method, path, body, call, field, value) in [
        (
            Method::PUT,
            "/v1/namespace/dev",
            r#"{"Name":"dev"}"#,
            "Namespace.UpsertNamespaces",
            "Namespaces",
            Value::List(vec![map(&[("Name", text("dev"))])]),
        ),
        (
            Method::DELETE,
            "/v1/acl/token/t1",
            "",
            "ACL.DeleteTokens",
            "AccessorIDs",
            Value::List(vec![text("t1")]),
        ),
        (
            Method::PUT,
            "/v1/operator/scheduler/configuration?cas=5",
            r#"{"PauseEvalBroker":true}"#,
            "Operator.SchedulerSetConfiguration",
            "Config",
            map(&[("PauseEvalBroker", Value::Bool(true)), ("ModifyIndex", Value::Int(5))]),
        ),
        (Method::PUT, "/v1/job/web/dispatch/payload", "hello", "Job.Dispatch", "Payload", text("hello")),
        (
            Method::PUT,
            "/v1/job/web/versions/v1/tag",
            r#"{"Version":3,"Description":"d"}"#,
            "Job.TagVersion",
            "Tag",
            map(&[("Description", text("d")), ("Name", text("v1"))]),
        ),
        (
            Method::PUT,
            "/v1/job/web/dispatch?idempotency_token=i",
            r#"{"Meta":{"a":"b"}}"#,
            "Job.Dispatch",
            "IdempotencyToken",
            text("i"),
        ),
    ] {
        node.answers(call, map(&[]));
        let answer = node.ask(method, path, "", body).await;
        assert!(answer.status().is_success(), "{path}: {}", answer.text().await.unwrap());
        let (asked, fields) = node.last_call();
        let field = match (call, fields.get(field)) {
            ("Job.Dispatch", Some(Value::Bytes(bytes))) => Some(text(std::str::from_utf8(bytes).unwrap())),
            (_, field) => field.cloned(),
        };
        assert_eq!((&*asked, field), (call, Some(value)), "{path}");
    }
    let answer = node.ask(Method::PUT, "/v1/namespace/dev", "", r#"{"Name":"ops"}"#).await;
    assert_eq!(
        (answer.status().as_u16(), answer.text().await.unwrap()),
        (400, "Namespace name does not match request path".to_owned())
    );
    node.ask(Method::PUT, "/v1/agent/servers?address=10.0.0.1&address=10.0.0.2:99", "", "").await;
    assert_eq!(node.last_call().1, Value::List(vec![text("10.0.0.1:4647"), text("10.0.0.2:99")]));
    let refused = node.ask(Method::PUT, "/v1/agent/servers?address=dead", "", "").await;
    assert_eq!(
        (refused.status().as_u16(), refused.text().await.unwrap()),
        (400, "Server at address dead:4647 failed ping: no answer".to_owned())
    );
    node.last_call();
    node.answers("Job.List", map(&[("Jobs", Value::Nil)]));
    assert_eq!(node.get("/v1/jobs").await, (200, "[]".to_owned()));
    let compressed = snap::raw::Encoder::new().compress_vec(b"hello").unwrap();
    node.answers("Job.GetJob", map(&[("Job", map(&[("Payload", Value::Bytes(compressed))]))]));
    assert_eq!(node.get("/v1/job/web").await, (200, r#"{"Payload":"aGVsbG8="}"#.to_owned()));
}
