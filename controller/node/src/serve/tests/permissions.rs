//! Each call with tokens that have the permission, and with tokens that lack it.

use std::{collections::BTreeMap, sync::atomic::Ordering};

use herdlet_driver::FsIsolation;
use herdlet_rpc::codec::Value;

use super::test_env::{Book, Options, TestEnv};
use crate::test_recordings::text;

const ID: &str = "23bf551e-a018-09c6-bdd3-899f56caf4a8";

fn book() -> Book {
    Some(BTreeMap::from([
        ("boss", "management"),
        ("reader", "namespace \"default\" { policy = \"read\" }"),
        ("writer", "namespace \"default\" { policy = \"write\" }\nnode { policy = \"read\" }"),
        ("logs", "namespace \"def*\" { capabilities = [\"read-logs\"] }"),
        ("files", "namespace \"default\" { capabilities = [\"read-fs\"] }"),
        (
            "host",
            "namespace \"default\" { capabilities = [\"alloc-exec\", \"alloc-node-exec\"] }\nnode { policy = \"write\" }\nagent { policy = \"read\" }",
        ),
        ("sweeper", "namespace \"default\" { capabilities = [\"gc-allocation\"] }"),
        ("other", "namespace \"other\" { policy = \"write\" }"),
        ("barred", "namespace \"default\" { policy = \"deny\" }\nnode { policy = \"deny\" }"),
        ("broken", "namespace \"default\" {"),
        ("", ""),
    ]))
}

#[tokio::test]
async fn plain_calls_require_stock_permissions() {
    let ground = TestEnv::with(Options { book: book(), ..Options::default() });
    ground.alloc(ID);
    let all = ["boss", "reader", "writer", "logs", "files", "host", "sweeper", "other", "barred", ""];
    for (method, allowed) in [
        ("Allocations.Restart", &["boss", "writer"][..]),
        ("Allocations.Signal", &["boss", "writer"]),
        ("Allocations.SetPauseState", &["boss", "writer"]),
        ("Allocations.GarbageCollect", &["boss", "writer", "sweeper"]),
        ("Allocations.Stats", &["boss", "reader", "writer"]),
        ("Allocations.Checks", &["boss", "reader", "writer"]),
        ("Allocations.GetPauseState", &["boss", "reader", "writer"]),
        ("FileSystem.List", &["boss", "writer", "files"]),
        ("FileSystem.Stat", &["boss", "writer", "files"]),
        ("ClientStats.Stats", &["boss", "writer", "host"]),
        ("NodeMeta.Read", &["boss", "writer", "host"]),
        ("NodeMeta.Apply", &["boss", "host"]),
        ("NodeIdentity.Get", &["boss", "writer", "host"]),
        ("NodeIdentity.Renew", &["boss", "host"]),
        ("Allocations.GarbageCollectAll", &["boss", "host"]),
        ("Agent.Host", &["boss", "host"]),
        ("Agent.Profile", &["boss"]),
    ] {
        for token in all {
            let arguments = [
                ("AllocID", text(ID)),
                ("Task", text("web")),
                ("Signal", text("SIGHUP")),
                ("Path", text("/")),
                ("AuthToken", text(token)),
            ];
            let answer = ground.call(method, &arguments).await;
            let is_denied = answer == Err("Permission denied".to_owned());
            assert_eq!(!is_denied, allowed.contains(&token), "{method} of {token:?}: {answer:?}");
        }
        let arguments = [("AllocID", text(ID)), ("AuthToken", text("unknown"))];
        assert_eq!(ground.call(method, &arguments).await.unwrap_err(), "ACL token not found", "{method}");
    }
    assert!(ground.commands.lock().unwrap().len() >= 4, "a denied call has no effect");
    let asked =
        ground.call("Allocations.Stats", &[("AllocID", text(ID)), ("AuthToken", text("broken"))]).await;
    assert!(asked.unwrap_err().contains("read the ACL policy \"p\""));
}

#[tokio::test]
async fn denied_call_has_no_effect() {
    let ground = TestEnv::with(Options { book: book(), ..Options::default() });
    ground.alloc(ID);
    for token in ["reader", "barred", "", "unknown"] {
        let arguments = [("AllocID", text(ID)), ("Signal", text("SIGKILL")), ("AuthToken", text(token))];
        for method in
            ["Allocations.Restart", "Allocations.Signal", "Allocations.GarbageCollect", "NodeIdentity.Renew"]
        {
            assert!(ground.call(method, &arguments).await.is_err());
        }
    }
    assert!(ground.commands.lock().unwrap().is_empty());
    assert_eq!(ground.renewals.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn streams_require_stock_permissions() {
    let ground = TestEnv::with(Options { book: book(), ..Options::default() });
    ground.alloc(ID);
    std::fs::write(ground.logs(ID).join("web.stdout.0"), "said\n").unwrap();
    let all = ["boss", "reader", "writer", "logs", "files", "host", "other", "barred", ""];
    for (method, allowed, code) in [
        ("FileSystem.Logs", &["boss", "writer", "logs", "files"][..], None),
        ("FileSystem.Stream", &["boss", "writer", "files"], Some(403)),
        // Tasks of this driver see the machine's file system.
        ("Allocations.Exec", &["boss", "host"], None),
    ] {
        for token in all {
            let arguments = [
                ("AllocID", text(ID)),
                ("Task", text("web")),
                ("LogType", text("stdout")),
                ("Path", text("alloc/logs/web.stdout.0")),
                ("PlainText", Value::Bool(true)),
                ("Cmd", Value::List(vec![text("/bin/true")])),
                ("AuthToken", text(token)),
            ];
            let (output, error) = ground.read_stream(method, &arguments).await;
            if allowed.contains(&token) {
                assert!(error.is_none() && !output.is_empty(), "{method} of {token:?}: {error:?}");
            } else {
                assert_eq!((output, error), (Vec::new(), Some((code, "Permission denied".to_owned()))));
            }
        }
    }
    let (_, error) = ground.read_stream("Agent.Monitor", &[("AuthToken", text("writer"))]).await;
    assert_eq!(error, Some((Some(403), "Permission denied".to_owned())));
}

#[tokio::test]
async fn a_task_of_its_own_file_system_needs_no_more_than_alloc_exec() {
    let options = Options { book: book(), isolation: FsIsolation::Image, ..Options::default() };
    let ground = TestEnv::with(options);
    ground.alloc(ID);
    let arguments = |token| {
        let command = Value::List(vec![text("/bin/true")]);
        [("AllocID", text(ID)), ("Task", text("web")), ("Cmd", command), ("AuthToken", text(token))]
    };
    assert_eq!(ground.read_stream("Allocations.Exec", &arguments("writer")).await.1, None);
    assert!(ground.read_stream("Allocations.Exec", &arguments("reader")).await.1.is_some());
    let ground = TestEnv::with(Options { remote_exec: false, ..Options::default() });
    ground.alloc(ID);
    let denied = Some((None, "Permission denied".to_owned()));
    assert_eq!(ground.read_stream("Allocations.Exec", &arguments("boss")).await.1, denied);
}
