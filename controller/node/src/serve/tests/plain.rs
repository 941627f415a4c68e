//! Unary calls.

use std::sync::atomic::Ordering;

use herdlet_manifest::fixture::{THEN, ended};
use herdlet_rpc::codec::{Time, Value};

use super::test_env::{TestEnv, map};
use crate::test_recordings::text;

const ID: &str = "23bf551e-a018-09c6-bdd3-899f56caf4a8";

fn alloc_id(id: &str) -> (&'static str, Value) {
    ("AllocID", text(id))
}

#[tokio::test]
async fn errors_have_the_texts_of_stock_clients() {
    let ground = TestEnv::new();
    for (method, says) in [
        ("Allocations.Dance", "rpc: can't find method Allocations.Dance"),
        ("Status.Ping", "rpc: can't find service Status.Ping"),
        ("CSI.NodeDetachVolume", "rpc: can't find service CSI.NodeDetachVolume"),
        ("Ping", "rpc: service/method request ill-formed: Ping"),
    ] {
        assert_eq!(ground.call(method, &[]).await.unwrap_err(), says);
    }
    let stream = herdlet_rpc::framed::stream(ground.server.mux(), "Agent.Dance", &(), super::test_env::WAIT);
    assert_eq!(stream.await.unwrap_err().to_string(), "Unknown rpc method: \"Agent.Dance\"");
    for method in [
        "Allocations.Restart",
        "Allocations.Signal",
        "Allocations.Stats",
        "Allocations.Checks",
        "FileSystem.List",
        "FileSystem.Stat",
    ] {
        let says = format!("Unknown allocation {ID:?}");
        assert_eq!(ground.call(method, &[alloc_id(ID)]).await.unwrap_err(), says, "{method}");
        assert_eq!(ground.call(method, &[]).await.unwrap_err(), "Unknown allocation \"\"", "{method}");
        let error = ground.call(method, &[("AllocID", Value::Bool(true))]).await.unwrap_err();
        assert!(error.contains("AllocID"), "{error}");
    }
}

#[tokio::test]
async fn signed_identity_is_shown_without_its_token() {
    let ground = TestEnv::new();
    let identity = ground.call("NodeIdentity.Get", &[]).await.unwrap();
    let claim = |name: &str| identity.get("Claims")?.get(name).cloned();
    assert_eq!(claim("sub"), Some(text("node:global:default:n1:default")));
    assert_eq!(claim("exp").and_then(|exp| exp.as_u64()), Some(1_767_323_045));
    assert_eq!(ground.renewals.load(Ordering::Relaxed), 0);
    assert_eq!(ground.call("NodeIdentity.Renew", &[]).await.unwrap(), map(&[]));
    assert_eq!(ground.renewals.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn restarts_and_signals_go_to_the_planner() {
    let ground = TestEnv::new();
    ground.alloc(ID);
    let ok = map(&[("Index", Value::Int(0))]);
    let task = |task: &str| ("TaskName", text(task));
    for arguments in
        [&[alloc_id(ID)][..], &[alloc_id(ID), ("AllTasks", Value::Bool(true))], &[alloc_id(ID), task("two")]]
    {
        assert_eq!(ground.call("Allocations.Restart", arguments).await.unwrap(), ok);
    }
    let signal = |signal: &str| ("Signal", text(signal));
    let all = [alloc_id(ID), signal("SIGHUP")];
    assert_eq!(ground.call("Allocations.Signal", &all).await.unwrap(), ok);
    let asked: Vec<String> =
        ground.commands.lock().unwrap().iter().map(|command| format!("{command:?}")).collect();
    let scopes = ["Running", "All", "Task(\"two\")", "SIGHUP"];
    assert!(
        asked.len() == 4 && scopes.iter().zip(&asked).all(|(scope, asked)| asked.contains(scope)),
        "{asked:?}"
    );
    for (method, arguments, says) in [
        (
            "Allocations.Restart",
            &[alloc_id(ID), task("nope")][..],
            "Could not find task runner for task: nope",
        ),
        (
            "Allocations.Restart",
            &[alloc_id(ID), task("two"), ("AllTasks", Value::Bool(true))],
            "task name cannot be set when restarting all tasks",
        ),
        (
            "Allocations.Signal",
            &[alloc_id(ID), signal("SIGNOPE")],
            "invalid signal \"SIGNOPE\": there is no such signal",
        ),
        (
            "Allocations.Signal",
            &[alloc_id(ID), signal("SIGHUP"), ("Task", text("nope"))],
            "unknown task name \"nope\"",
        ),
        // Stock clients send no code here either.
        ("Allocations.Signal", &[alloc_id(ID), signal("SIGSTOP")], "not now"),
        // Errors that only this agent returns have a code.
        ("Allocations.SetPauseState", &[alloc_id(ID)], "RPC Error:: 501,pausing tasks is not supported"),
        ("Allocations.GetPauseState", &[alloc_id(ID)], "unknown task name \"\""),
    ] {
        assert_eq!(ground.call(method, arguments).await.unwrap_err(), says);
    }
    let paused = ground.call("Allocations.GetPauseState", &[alloc_id(ID), ("Task", text("web"))]).await;
    assert_eq!(paused.unwrap(), map(&[("ScheduleState", text(""))]));
}

#[tokio::test]
async fn ended_allocation_is_collected() {
    let ground = TestEnv::new();
    let view = ground.alloc(ID);
    let none = "No such allocation on client, or allocation not eligible for GC";
    for id in [ID, "388af656-e88b-e8d9-abc8-1d2f2efb981b", "rubbish"] {
        assert_eq!(
            ground.call("Allocations.GarbageCollect", &[alloc_id(id)]).await.unwrap_err(),
            none,
            "{id}"
        );
    }
    ground.show(&ended(view));
    let ok = map(&[("Index", Value::Int(0))]);
    assert_eq!(ground.call("Allocations.GarbageCollect", &[alloc_id(ID)]).await.unwrap(), ok);
    assert_eq!(ground.call("Allocations.GarbageCollectAll", &[]).await.unwrap(), ok);
}

#[tokio::test]
async fn usage_is_reported_by_task_and_machine() {
    let ground = TestEnv::new();
    ground.alloc(ID);
    let all = ground.call("Allocations.Stats", &[alloc_id(ID)]).await.unwrap();
    let stats = all.get("Stats").unwrap();
    let usage = stats.get("ResourceUsage").unwrap();
    assert_eq!(usage.get("MemoryStats").unwrap().get("RSS"), Some(&Value::Uint(8_192)));
    let cpu = usage.get("CpuStats").unwrap();
    assert_eq!(cpu.get("Percent"), Some(&Value::Float(100.0)));
    assert_eq!(cpu.get("TotalTicks"), Some(&Value::Float(2_000.0)), "in MHz");
    let one = ground.call("Allocations.Stats", &[alloc_id(ID), ("Task", text("two"))]).await.unwrap();
    let Some(Value::Map(tasks)) = one.get("Stats").unwrap().get("Tasks").cloned() else {
        panic!("expected tasks")
    };
    assert_eq!(tasks.iter().map(|(name, _)| name.as_text().unwrap()).collect::<Vec<_>>(), ["two"]);
    let unknown = ground.call("Allocations.Stats", &[alloc_id(ID), ("Task", text("nope"))]).await;
    assert_eq!(unknown.unwrap_err(), "unknown task name \"nope\"");
    let host = ground.call("ClientStats.Stats", &[]).await.unwrap();
    let host = host.get("HostStats").unwrap();
    assert!(matches!(host.get("Memory").unwrap().get("Total"), Some(Value::Uint(1_000_000..))));
    let Some(Value::List(processors)) = host.get("CPU") else { panic!("expected processors") };
    assert!(!processors.is_empty());
}

#[tokio::test]
async fn files_are_listed_and_described_within_the_allocation() {
    let ground = TestEnv::new();
    ground.alloc(ID);
    let web = ground.path(ID).join("web");
    for below in ["local", "secrets"] {
        std::fs::create_dir_all(web.join(below)).unwrap();
    }
    std::fs::write(web.join("local/text"), "one\n").unwrap();
    std::fs::write(web.join("secrets/key"), "secret").unwrap();
    std::os::unix::fs::symlink("../secrets/key", web.join("local/link")).unwrap();
    std::os::unix::fs::symlink("/etc", web.join("local/etc")).unwrap();
    let at = |path: &str| [alloc_id(ID), ("Path", text(path))];
    let listed = ground.call("FileSystem.List", &at("/web/local")).await.unwrap();
    let Some(Value::List(files)) = listed.get("Files") else { panic!("expected files") };
    let names: Vec<_> = files.iter().map(|file| file.get("Name").unwrap().as_text().unwrap()).collect();
    assert_eq!(names, ["etc", "link", "text"]);
    let described = ground.call("FileSystem.Stat", &at("web/local/text")).await.unwrap();
    let info = described.get("Info").unwrap();
    assert_eq!(info.get("Size"), Some(&Value::Int(4)));
    assert_eq!(info.get("FileMode"), Some(&text("-rw-r--r--")));
    assert_eq!(info.get("ContentType"), Some(&text("text/plain; charset=utf-8")));
    let bytes = herdlet_rpc::codec::encode(info.get("ModTime").unwrap()).unwrap();
    let time: Time = herdlet_rpc::codec::decode(&bytes).unwrap();
    assert!(time.unix_nanos().unwrap() > THEN.0 / 2);
    for (method, path, says) in [
        ("FileSystem.List", "../..", "Path escapes the alloc directory"),
        ("FileSystem.List", "web/secrets", "Reading secret file prohibited"),
        ("FileSystem.Stat", "web/local/etc/passwd", "links are not followed"),
        ("FileSystem.List", "web/local/etc", "links are not followed"),
        ("FileSystem.Stat", "nope", "no such file or directory"),
    ] {
        let error = ground.call(method, &at(path)).await.unwrap_err();
        assert!(error.contains(says), "{path}: {error}");
        assert!(!error.contains(ground.dir.path().to_str().unwrap()), "{error}");
    }
}

#[tokio::test]
async fn metadata_is_read_and_changed() {
    let ground = TestEnv::new();
    let read = ground.call("NodeMeta.Read", &[]).await.unwrap();
    assert_eq!(read.get("Static"), Some(&map(&[("rack", text("r1"))])));
    let changes = map(&[("zone", text("z1")), ("rack", Value::Nil)]);
    let applied = ground.call("NodeMeta.Apply", &[("Meta", changes)]).await.unwrap();
    assert_eq!(applied.get("Meta"), Some(&map(&[("zone", text("z1"))])));
    assert_eq!(applied.get("Dynamic"), Some(&map(&[("rack", Value::Nil), ("zone", text("z1"))])));
    assert_eq!(ground.call("NodeMeta.Read", &[]).await.unwrap(), applied);
    let answer = ground.call("NodeMeta.Apply", &[("Meta", map(&[("", text("x"))]))]).await;
    assert_eq!(answer.unwrap_err(), "RPC Error:: 400,metadata keys must not be empty");
}

#[tokio::test]
async fn machine_details_require_the_option() {
    for method in ["Agent.Host", "Agent.Profile"] {
        assert_eq!(TestEnv::new().call(method, &[]).await.unwrap_err(), "Permission denied");
    }
    let ground = TestEnv::with(super::test_env::Options { debug: true, ..Default::default() });
    let host = ground.call("Agent.Host", &[]).await.unwrap();
    assert_eq!(host.get("AgentID"), Some(&text("n1")));
    let Some(Value::Map(variables)) = host.get("HostData").unwrap().get("Environment").cloned() else {
        panic!("expected an environment")
    };
    assert!(
        variables.iter().all(|(name, _)| name.as_text() != Some("CARGO_MANIFEST_DIR")),
        "other variables may be secret"
    );
    let Some(Value::List(addresses)) = host.get("HostData").unwrap().get("Network").cloned() else {
        panic!("expected addresses")
    };
    assert!(addresses.iter().any(|address| address.get("string") == Some(&text("127.0.0.1/8"))));
    let error = ground.call("Agent.Profile", &[("Profile", text("heap"))]).await.unwrap_err();
    assert_eq!(error, "RPC Error:: 404,Pprof profile not found profile: heap");
}
