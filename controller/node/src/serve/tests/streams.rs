//! Streaming calls: following, slow readers, and how streams end.

use std::{io::Write as _, time::Duration};

use herdlet_api_types::{
    alloc::{Allocation, ServerSide},
    job::TaskAction,
};
use herdlet_manifest::fixture::ended;
use herdlet_rpc::{codec::Value, framed::StreamFrame};
use serde_json::{Value as Json, json};

use super::test_env::{TestEnv, WAIT, all, map, next};
use crate::test_recordings::text;

const ID: &str = "23bf551e-a018-09c6-bdd3-899f56caf4a8";
const GONE: &str = "388af656-e88b-e8d9-abc8-1d2f2efb981b";

fn log(more: &[(&'static str, Value)]) -> Vec<(&'static str, Value)> {
    let mut arguments = vec![("AllocID", text(ID)), ("Task", text("web")), ("LogType", text("stdout"))];
    arguments.extend(more.iter().cloned());
    arguments
}

fn yes(name: &'static str) -> (&'static str, Value) {
    (name, Value::Bool(true))
}

fn frame(payload: &[u8]) -> Json {
    serde_json::from_slice(payload).unwrap()
}

#[tokio::test]
async fn a_log_is_followed_over_rotations_until_its_task_has_ended() {
    let ground = TestEnv::new();
    let view = ground.alloc(ID);
    let write = |index: u32, text: &str| {
        let path = ground.logs(ID).join(format!("web.stdout.{index}"));
        std::fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(path)
            .unwrap()
            .write_all(text.as_bytes())
            .unwrap();
    };
    write(0, "one\n");
    let mut stream = ground.stream("FileSystem.Logs", &log(&[yes("Follow")])).await;
    let mut next_data = async || loop {
        let payload = frame(&next(&mut stream).await?.payload);
        if payload != json!({}) {
            return Some(payload);
        }
    };
    let first = json!({ "Data": "b25lCg==", "File": "alloc/logs/web.stdout.0", "Offset": 4 });
    assert_eq!(next_data().await, Some(first));
    write(1, "two\n");
    let second = json!({ "Data": "dHdvCg==", "File": "alloc/logs/web.stdout.1", "Offset": 4 });
    assert_eq!(next_data().await, Some(second));
    ground.show(&ended(view));
    assert_eq!(next_data().await, None);
}

#[tokio::test]
async fn idle_stream_sends_heartbeats() {
    let ground = TestEnv::new();
    ground.alloc(ID);
    let mut frames = ground.stream("FileSystem.Logs", &log(&[yes("Follow")])).await;
    assert_eq!(next(&mut frames).await.unwrap().payload, b"{}");
    let mut plain = ground.stream("FileSystem.Logs", &log(&[yes("Follow"), yes("PlainText")])).await;
    assert_eq!(next(&mut plain).await.unwrap(), StreamFrame::default());
    // The stream ends with the agent.
    ground.closing.cancel();
    assert_eq!(all(&mut plain).await.1, None);
}

#[tokio::test]
async fn logs_begin_at_the_requested_offset() {
    let ground = TestEnv::new();
    ground.alloc(ID);
    assert_eq!(
        ground.read_stream("FileSystem.Logs", &log(&[yes("PlainText")])).await,
        (Vec::new(), None),
        "nothing yet"
    );
    std::fs::write(ground.logs(ID).join("web.stdout.0"), "abcd").unwrap();
    std::fs::write(ground.logs(ID).join("web.stdout.1"), "efgh").unwrap();
    for (origin, offset, expected) in [
        ("", 0, "abcdefgh"),
        ("start", 6, "gh"),
        ("end", 2, "gh"),
        ("end", 6, "cdefgh"),
        // Recorded from stock clients: from the beginning of the newest file.
        ("end", 0, "efgh"),
        ("start", -3, "abcdefgh"),
    ] {
        let arguments = log(&[yes("PlainText"), ("Origin", text(origin)), ("Offset", Value::Int(offset))]);
        let (output, error) = ground.read_stream("FileSystem.Logs", &arguments).await;
        assert_eq!(
            (String::from_utf8(output).unwrap().as_str(), error),
            (expected, None),
            "{origin} {offset}"
        );
    }
}

#[tokio::test]
async fn stream_errors_have_a_code() {
    let ground = TestEnv::new();
    let mut view = ground.alloc(ID);
    view.tasks[1].attempt = 0;
    ground.show(&view);
    std::fs::create_dir_all(ground.path(ID).join("web/secrets")).unwrap();
    let id = ("AllocID", text(ID));
    let arguments_for = |task| vec![("AllocID", text(ID)), ("Task", text(task)), ("LogType", text("stdout"))];
    // Its directory has been collected.
    ground.alloc(GONE);
    std::fs::remove_dir_all(ground.path(GONE)).unwrap();
    let gone = vec![("AllocID", text(GONE)), ("Task", text("web")), ("LogType", text("stdout"))];
    let logs = "FileSystem.Logs";
    let file = "FileSystem.Stream";
    let exec = "Allocations.Exec";
    let command = ("Cmd", Value::List(vec![text("/no/such")]));
    for (method, arguments, code, reason) in [
        (logs, vec![], 400, "must provide a valid alloc id"),
        (logs, vec![("AllocID", text("x"))], 404, "Unknown allocation \"x\""),
        (logs, vec![id.clone()], 400, "must provide task name"),
        (logs, vec![id.clone(), ("Task", text("web"))], 400, "must provide log type (stdout/stderr)"),
        (logs, log(&[("Origin", text("middle"))]), 400, "origin must be start or end"),
        (logs, gone, 404, "log entry for task \"web\" and log type \"stdout\" not found"),
        (logs, arguments_for("nope"), 400, "unknown task name \"nope\""),
        (logs, arguments_for("two"), 404, "task \"two\" not started yet. No logs available"),
        (logs, vec![("Follow", text("perhaps"))], 500, "Follow"),
        (file, vec![id.clone()], 400, "must provide a file path"),
        (file, vec![id.clone(), ("Path", text("alloc/logs"))], 400, "file \"alloc/logs\" is a directory"),
        (file, vec![id.clone(), ("Path", text("alloc/nope"))], 400, "no such file or directory"),
        (
            file,
            vec![id.clone(), ("Path", text("web/secrets/key"))],
            500,
            "Reading secret file prohibited: web/secrets/key",
        ),
        (file, vec![("AllocID", text("x")), ("Path", text("y"))], 404, "Unknown allocation \"x\""),
        (exec, vec![], 400, "must provide a valid alloc id"),
        (exec, vec![("AllocID", text("x"))], 404, "Unknown allocation \"x\""),
        (exec, vec![id.clone()], 400, "must provide task name"),
        (exec, vec![id.clone(), ("Task", text("web"))], 400, "command is not present"),
        (exec, vec![id.clone(), ("Task", text("nope")), command.clone()], 500, "task not found"),
        (
            exec,
            vec![id.clone(), ("Task", text("two")), command.clone()],
            404,
            "task \"two\" not started yet.",
        ),
        (exec, vec![id.clone(), ("Task", text("web")), command.clone()], 500, "/no/such"),
        (
            exec,
            vec![id.clone(), ("Task", text("web")), ("Action", text("seed"))],
            400,
            "action seed not found in task web",
        ),
        (exec, vec![id.clone(), ("JobID", text("other"))], 400, "job other does not have allocation"),
        ("Agent.Monitor", vec![("LogLevel", text("loud"))], 400, "Unknown log level"),
        ("Agent.MonitorExport", vec![("OnDisk", Value::Bool(true))], 400, "No nomad log file defined"),
        ("Agent.MonitorExport", vec![("ServiceName", text("nomad"))], 500, "journalctl"),
    ] {
        let (data, error) = ground.read_stream(method, &arguments).await;
        let (found, message) = error.unwrap_or_else(|| panic!("{method} {reason}: expected an error"));
        assert!(data.is_empty() && message.contains(reason), "{method}: expected {reason}, found {message}");
        assert_eq!(found, Some(code), "{method} {reason}");
    }
    // The limit for texts that servers put into a close frame.
    let long = ("Cmd", Value::List(vec![text(&format!("/no/such/{}", "x".repeat(200)))]));
    let (_, error) = ground.read_stream(exec, &[id.clone(), ("Task", text("web")), long]).await;
    let (_, message) = error.unwrap();
    assert!(message.len() <= 123 && message.contains("/no/such/x"), "{message}");
    ground.show(&ended(view));
    let (_, error) = ground.read_stream(exec, &[id, ("Task", text("web")), command]).await;
    assert_eq!(error, Some((Some(404), "task \"web\" is not running.".to_owned())));
}

#[tokio::test]
async fn slow_reader_holds_little_memory() {
    let ground = TestEnv::new();
    ground.alloc(ID);
    let size = 64 << 20;
    let file = std::fs::File::create(ground.logs(ID).join("web.stdout.0")).unwrap();
    file.set_len(size).unwrap();
    // Fifty readers that never read.
    let mut idle = Vec::new();
    for _ in 0..50 {
        idle.push(ground.stream("FileSystem.Logs", &log(&[yes("PlainText")])).await);
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    // One reader that does.
    let (output, error) = ground.read_stream("FileSystem.Logs", &log(&[yes("PlainText")])).await;
    assert_eq!((output.len() as u64, error), (size, None));
    // Abandoned streams free their slots.
    drop(idle);
    for _ in 0..300 {
        drop(ground.stream("FileSystem.Logs", &log(&[yes("Follow")])).await);
    }
}

fn command(words: &[&str]) -> Vec<(&'static str, Value)> {
    let words = words.iter().map(|word| text(word)).collect();
    vec![("AllocID", text(ID)), ("Task", text("web")), ("Cmd", Value::List(words))]
}

/// A running command ends when its caller disconnects.
#[tokio::test]
async fn a_command_ends_with_its_stream() {
    let ground = TestEnv::new();
    ground.alloc(ID);
    let mark = ground.dir.path().join("mark");
    let script = format!("echo $$ > {}; echo begun; while sleep 0.05; do :; done", mark.display());
    for way in ["finish", "reset", "close"] {
        let mut stream = ground.stream("Allocations.Exec", &command(&["/bin/sh", "-c", &script])).await;
        assert!(!next(&mut stream).await.unwrap().payload.is_empty());
        match way {
            "finish" => {
                stream.finish().await.unwrap();
                while next(&mut stream).await.is_some() {}
            }
            "reset" => drop(stream),
            _ => {
                ground.closing.cancel();
                while next(&mut stream).await.is_some() {}
            }
        }
        until_ended(&mark, way).await;
    }
}

/// Waits until the process whose pid is in this file has ended.
async fn until_ended(file: &std::path::Path, way: &str) {
    let pid: u32 = std::fs::read_to_string(file).unwrap().trim().parse().unwrap();
    let ended = async {
        while herdlet_process::process_tree::stat(pid).is_some_and(|stat| !stat.is_zombie) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(WAIT, ended).await.unwrap_or_else(|_| panic!("{way}: {pid} still runs"));
}

/// This also holds for a command that ignores a large input.
#[tokio::test]
async fn command_ends_with_its_stream() {
    let ground = TestEnv::new();
    ground.alloc(ID);
    let mark = ground.dir.path().join("mark");
    let script = format!("echo $$ > {}; echo begun; while sleep 0.05; do :; done", mark.display());
    let mut stream = ground.stream("Allocations.Exec", &command(&["/bin/sh", "-c", &script])).await;
    assert!(!next(&mut stream).await.unwrap().payload.is_empty());
    for _ in 0..40 {
        let typed = map(&[("Data", Value::Bytes(vec![b'x'; 16 * 1024])), ("Close", Value::Bool(false))]);
        stream.send(&map(&[("Stdin", typed)])).await.unwrap();
    }
    stream.finish().await.unwrap();
    while next(&mut stream).await.is_some() {}
    until_ended(&mark, "finish").await;
}

#[tokio::test]
async fn agent_log_is_streamed() {
    let ground = TestEnv::new();
    let mut stream = ground.stream("Agent.Monitor", &[("LogLevel", text("trace"))]).await;
    assert_eq!(next(&mut stream).await.unwrap().payload, b"{}");
}

#[tokio::test]
async fn an_action_is_executed_by_its_name() {
    let of_job = |spec: &mut Allocation, action| {
        let mut job = (*spec.job).clone();
        let task = job.groups.iter_mut().flat_map(|group| &mut group.tasks).find(|task| task.name == "web");
        task.unwrap().actions = vec![action];
        spec.job = job.into();
    };
    let of_earlier_build = |spec: &mut Allocation, action| {
        let server = herdlet_api_types::fixture::server_side(&spec.job);
        let actions = [("web".to_owned(), vec![action])].into();
        spec.server = Some(ServerSide { actions, ..server }.into());
    };
    for place in [of_job, of_earlier_build as fn(&mut Allocation, TaskAction)] {
        let ground = TestEnv::new();
        let mut view = ground.alloc(ID);
        let mut spec = (*view.spec).clone();
        let args = vec!["sown".to_owned()];
        place(&mut spec, TaskAction { name: "seed".to_owned(), command: "/bin/echo".to_owned(), args });
        view.spec = spec.into();
        ground.show(&view);
        let arguments =
            [("AllocID", text(ID)), ("JobID", text("web")), ("Task", text("web")), ("Action", text("seed"))];
        let mut stream = ground.stream("Allocations.Exec", &arguments).await;
        let (output, error) = all(&mut stream).await;
        let output = String::from_utf8(output).unwrap();
        assert!(
            output.contains(r#"{"stdout":{"data":"c293bgo="}}"#) && error.is_none(),
            "{output} {error:?}"
        );
    }
}
