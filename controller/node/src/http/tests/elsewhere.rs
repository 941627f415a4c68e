//! Allocations of other nodes, through servers.

use futures_util::{SinkExt as _, StreamExt as _};

use super::{
    test_env::{Node, map, payload},
    *,
};
use crate::test_recordings::text;

#[tokio::test]
async fn streams_of_other_nodes_come_through_servers() {
    let node = Node::new(false).await;
    let script = |call: &str, messages: Vec<Value>| {
        node.cluster.streams.lock().unwrap().insert(call.to_owned(), messages);
    };
    script("FileSystem.Logs", vec![payload("one "), payload(""), payload("two")]);
    let logs = format!(
        "/v1/client/fs/logs/{ELSEWHERE}?task=web&type=stdout&follow=true&plain=true&offset=3&origin=end"
    );
    let answer = node.ask(Method::GET, &logs, "boss", "").await;
    assert_eq!(answer.headers()["content-type"], "text/plain");
    assert_eq!(answer.text().await.unwrap(), "one two");
    let (method, asked) = node.last_call();
    assert_eq!(method, "FileSystem.Logs");
    for (name, value) in [
        ("AllocID", text(ELSEWHERE)),
        ("AuthToken", text("boss")),
        ("Task", text("web")),
        ("LogType", text("stdout")),
        ("Follow", Value::Bool(true)),
        ("PlainText", Value::Bool(true)),
        ("Offset", Value::Int(3)),
        ("Origin", text("end")),
    ] {
        assert_eq!(asked.get(name), Some(&value), "{name}");
    }
    let failed = |why: &str, code: Value| map(&[("Error", map(&[("Message", text(why)), ("Code", code)]))]);
    for (message, status, says) in [
        (failed("Unknown allocation \"x\"", Value::Int(404)), 404, "Unknown allocation \"x\""),
        (failed("Permission denied", Value::Nil), 403, "Permission denied"),
    ] {
        script("FileSystem.Stream", vec![message]);
        assert_eq!(
            node.get(&format!("/v1/client/fs/cat/{ELSEWHERE}?path=a")).await,
            (status, says.to_owned())
        );
    }
    script("FileSystem.Stream", vec![payload("half"), failed("gone", Value::Int(500))]);
    let cut = node.http.get(format!("{}/v1/client/fs/stream/{ELSEWHERE}?path=a", node.url)).send().await;
    let is_cut = match cut {
        Ok(answer) => answer.text().await.is_err(),
        Err(_) => true,
    };
    assert!(is_cut, "a truncated file must not look complete");
    for path in ["logs/x?type=stdout", "logs/x?task=a&type=both", "cat/x", "stream/x?path=a&origin=middle"] {
        assert_eq!(node.get(&format!("/v1/client/fs/{path}")).await.0, 400, "{path}");
    }
    let event = map(&[("Error", Value::Nil), ("Event", map(&[("Data", text("{}"))]))]);
    script("Event.Stream", vec![event.clone(), event]);
    assert_eq!(node.get("/v1/event/stream?topic=Job:web&topic=Node").await, (200, "{}\n{}\n".to_owned()));
    let topics = map(&[("Job", Value::List(vec![text("web")])), ("Node", Value::List(vec![text("*")]))]);
    assert_eq!(node.last_call().1.get("Topics"), Some(&topics));
    script("Agent.Monitor", vec![payload("a line\n")]);
    assert_eq!(node.get("/v1/agent/monitor?node_id=n2&plain=true").await, (200, "a line\n".to_owned()));
}

#[tokio::test]
async fn commands_on_other_nodes_go_through_servers() {
    let node = Node::new(false).await;
    let exited = r#"{"exited":true,"result":{}}"#;
    node.cluster.streams.lock().unwrap().insert("Allocations.Exec".to_owned(), vec![payload(exited)]);
    let url = node.url.replace("http://", "ws://");
    let url = format!(
        "{url}/v1/client/allocation/{ELSEWHERE}/exec?task=web&tty=true&command=%5B%22sh%22%5D&ws_handshake=true"
    );
    let (mut socket, _) = tokio_tungstenite::connect_async(&url).await.unwrap();
    let say = |text: &str| tokio_tungstenite::tungstenite::Message::text(text.to_owned());
    socket.send(say(r#"{"version":1,"auth_token":"boss"}"#)).await.unwrap();
    socket.send(say(r#"{"stdin":{"data":"aGk="}}"#)).await.unwrap();
    let mut heard = Vec::new();
    while let Some(Ok(message)) = socket.next().await {
        heard.push(message);
    }
    let close = heard.pop().unwrap();
    assert_eq!(heard, [say(exited), say(r#"{"heard":"hi"}"#)]);
    let tokio_tungstenite::tungstenite::Message::Close(Some(close)) = close else { panic!("{close:?}") };
    assert_eq!(u16::from(close.code), 1000);
    let (method, asked) = node.last_call();
    assert_eq!(
        (&*method, asked.get("AuthToken"), asked.get("Tty")),
        ("Allocations.Exec", Some(&text("boss")), Some(&Value::Bool(true)))
    );
    assert_eq!(asked.get("Cmd"), Some(&Value::List(vec![text("sh")])));
    // An action of a job; its id may contain a slash, encoded or not.
    for job in ["shop/dispatch-1", "shop%2Fdispatch-1"] {
        let action = format!("job/{job}/action?allocID={ELSEWHERE}&task=web&action=seed");
        let action = format!("{}/v1/{action}", node.url.replace("http://", "ws://"));
        let (mut socket, _) = tokio_tungstenite::connect_async(&action).await.unwrap();
        assert_eq!(socket.next().await.unwrap().unwrap(), say(exited));
        let (method, asked) = node.last_call();
        let arguments =
            ["JobID", "AllocID", "Action", "Task"].map(|field| asked.get(field).cloned().unwrap());
        assert_eq!(
            (&*method, arguments),
            ("Allocations.Exec", [text("shop/dispatch-1"), text(ELSEWHERE), text("seed"), text("web")])
        );
    }
    // An unknown allocation.
    node.cluster.streams.lock().unwrap().clear();
    let (mut socket, _) =
        tokio_tungstenite::connect_async(url.replace("&ws_handshake=true", "")).await.unwrap();
    let tokio_tungstenite::tungstenite::Message::Close(Some(close)) = socket.next().await.unwrap().unwrap()
    else {
        panic!()
    };
    assert!(u16::from(close.code) == 1011 && close.reason.starts_with("Unknown rpc method"), "{close:?}");
}

/// Others that verify tokens fetch the keys from any agent, without a token.
#[tokio::test]
async fn server_keys_are_served_at_well_known_paths() {
    let node = Node::new(false).await;
    let key = map(&[
        ("KeyID", text("k1")),
        ("Algorithm", text("EdDSA")),
        ("Use", text("sig")),
        ("PublicKey", Value::Bytes(vec![0xff; 32])),
    ]);
    node.answers(
        "Keyring.ListPublic",
        map(&[
            ("PublicKeys", Value::List(vec![key])),
            ("Index", Value::Uint(7)),
            ("KnownLeader", Value::Bool(true)),
        ]),
    );
    let answer = node.ask(Method::GET, "/.well-known/jwks.json", "", "").await;
    assert_eq!(answer.headers()["x-nomad-index"], "7");
    let keys: Json = serde_json::from_str(&answer.text().await.unwrap()).unwrap();
    assert_eq!((&keys["keys"][0]["kid"], &keys["keys"][0]["kty"]), (&"k1".into(), &"OKP".into()));
    node.answers("Keyring.GetConfig", map(&[("OIDCDiscovery", Value::Nil)]));
    let discovery = node.get("/.well-known/openid-configuration").await;
    assert_eq!(discovery, (404, "OIDC Discovery endpoint disabled".to_owned()));
    assert_eq!(node.get("/.well-known/else").await.0, 404);
}
