//! The files of an allocation, and that no other files can be reached through them.

use std::os::unix::fs::symlink;

use herdlet_api_types::AllocId;
use herdlet_manifest::fixture::{alloc_view, job, job_view};
use serde_json::{Value, json};

use super::*;

async fn test_env() -> (ApiFixture, AllocId, PathBuf) {
    let ground = ApiFixture::new();
    let web = job("web", "front", "a.b");
    let view = alloc_view(&web, 0, 7);
    let id = view.spec.id;
    ground.show(5, &[job_view(&web, 0)], &[view]);
    ground.unix(Limits::default()).await;
    let dir = ground.shared.paths.alloc(&id);
    let task = ground.shared.paths.task(&id, "a.b");
    for below in ["local/deep", "secrets", "private"] {
        std::fs::create_dir_all(task.join(below)).unwrap();
    }
    std::fs::create_dir_all(dir.join("alloc/logs")).unwrap();
    std::fs::write(task.join("secrets/token"), "secret").unwrap();
    std::fs::write(task.join("local/text"), "one\ntwo\n").unwrap();
    std::fs::write(task.join("local/bytes"), [0, 1, 255]).unwrap();
    std::fs::write(dir.join("alloc.json"), "the job").unwrap();
    std::fs::write(ground.dir.path().join("outside"), "outside").unwrap();
    (ground, id, task)
}

#[tokio::test]
async fn files_are_listed_described_and_read() {
    let (ground, id, task) = test_env().await;
    let ask = async |what: &str, query: &str| ground.get(&format!("/v1/client/fs/{what}/{id}?{query}")).await;
    let list: Vec<Value> = serde_json::from_str(&ask("ls", "path=/").await.1).unwrap();
    let names: Vec<_> = list.iter().map(|info| info["Name"].as_str().unwrap()).collect();
    assert_eq!(names, ["a.b", "alloc"], "names of tasks are not encoded");
    assert_eq!((&list[0]["IsDir"], &list[0]["FileMode"]), (&json!(true), &json!("drwxr-xr-x")));
    let inner: Vec<Value> = serde_json::from_str(&ask("ls", "path=a.b/local").await.1).unwrap();
    assert_eq!(inner.len(), 3);
    let stat: Value = serde_json::from_str(&ask("stat", "path=a.b/local/text").await.1).unwrap();
    assert_eq!(
        (&stat["Name"], &stat["Size"], &stat["ContentType"]),
        (&json!("text"), &json!(8), &json!("text/plain; charset=utf-8"))
    );
    assert!(stat["ModTime"].is_string());
    let bytes: Value = serde_json::from_str(&ask("stat", "path=a.b/local/bytes").await.1).unwrap();
    assert_eq!(bytes["ContentType"], "application/octet-stream");
    assert_eq!(ask("cat", "path=a.b/local/text").await, (200, "one\ntwo\n".to_owned()));
    assert_eq!(ask("readat", "path=a.b/local/text&offset=4&limit=2").await.1, "tw");
    assert_eq!(ask("readat", "path=a.b/local/text&offset=400&limit=2").await.1, "");
    let frame = ask("stream", "path=a.b/local/text&origin=end&offset=4&follow=false").await.1;
    assert_eq!(frame, r#"{"Data":"dHdvCg==","File":"a.b/local/text","Offset":8}"#);
    for (what, query, status, fragment) in [
        ("ls", "path=nothing", 404, "no such file"),
        ("ls", "path=a.b/local/text", 400, "not a directory"),
        ("cat", "path=a.b/local", 400, "is a directory"),
        ("cat", "", 400, "must provide a file path"),
        ("cat", "path=a.b/local/none", 404, "no such file"),
        ("stream", "path=a.b/local/text&origin=middle", 400, "origin must be"),
        ("cat", "path=../../outside", 400, "escapes"),
        ("cat", "path=alloc.json", 404, "no such file"),
        ("ls", "path=a.b/secrets", 403, "prohibited"),
        ("cat", "path=a.b/./secrets/token", 403, "prohibited"),
        ("stat", "path=a.b/private", 403, "prohibited"),
    ] {
        let (found, text) = ask(what, query).await;
        assert_eq!(found, status, "{what} {query}: {text}");
        assert!(text.contains(fragment), "{what} {query}: {text}");
        assert!(
            !text.contains(ground.dir.path().to_str().unwrap()),
            "the path on the disk is not shown: {text}"
        );
    }
    drop(task);
}

/// The agent may be root, and tasks write to these directories: nothing outside of them may be read.
#[tokio::test]
async fn planted_links_are_not_followed() {
    let (ground, id, task) = test_env().await;
    let outside = ground.dir.path().join("outside");
    let local = task.join("local");
    symlink(&outside, local.join("file")).unwrap();
    symlink("../../../../../outside", local.join("relative")).unwrap();
    symlink(ground.dir.path(), local.join("dir")).unwrap();
    symlink("../secrets/token", local.join("token")).unwrap();
    symlink("/proc/self/root", local.join("magic")).unwrap();
    symlink("deep", local.join("harmless")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        local.join("fifo"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o666),
        0,
    )
    .unwrap();
    // Tasks can replace the directory of logs.
    let logs = ground.shared.paths.logs(&id);
    std::fs::remove_dir(&logs).unwrap();
    symlink(ground.dir.path(), &logs).unwrap();
    for path in [
        "a.b/local/file",
        "a.b/local/relative",
        "a.b/local/dir/outside",
        "a.b/local/token",
        "a.b/local/magic/etc/passwd",
        "a.b/local/harmless/x",
        "a.b/local/fifo",
        "alloc/logs/outside",
    ] {
        for what in ["cat", "readat", "stream", "ls"] {
            let url = format!("/v1/client/fs/{what}/{id}?path={path}&follow=false&limit=5");
            let asked = ground.get(&url);
            let (status, text) = tokio::time::timeout(PATIENCE, asked).await.expect("a response in time");
            assert!([400, 403, 404].contains(&status), "{what} {path}: {status} {text}");
            assert!(!text.contains("secret") && !text.contains("root:"), "{what} {path}: {text}");
        }
    }
    let link: Value =
        serde_json::from_str(&ground.get(&format!("/v1/client/fs/stat/{id}?path=a.b/local/file")).await.1)
            .unwrap();
    assert_eq!(link["FileMode"], "Lrwxrwxrwx", "stat does not follow a link");
}

#[tokio::test]
async fn followed_file_reports_growth_truncation_and_removal() {
    let (ground, id, task) = test_env().await;
    let path = task.join("local/text");
    let mut answer = ground
        .http()
        .get(format!("http://localhost/v1/client/fs/stream/{id}?path=a.b/local/text&origin=end"))
        .send()
        .await
        .unwrap();
    let mut next = async || loop {
        let piece = tokio::time::timeout(PATIENCE, answer.chunk()).await.expect("a piece in time");
        let Some(piece) = piece.unwrap() else { return Value::Null };
        let frame: Value = serde_json::from_slice(&piece).unwrap();
        if frame != json!({}) {
            return frame;
        }
    };
    let file = std::fs::OpenOptions::new().append(true).open(&path).unwrap();
    std::io::Write::write_all(&mut &file, b"three\n").unwrap();
    assert_eq!(next().await, json!({ "Data": "dGhyZWUK", "File": "a.b/local/text", "Offset": 14 }));
    file.set_len(0).unwrap();
    assert_eq!(next().await["FileEvent"], "file truncated");
    std::io::Write::write_all(&mut &file, b"x").unwrap();
    assert_eq!(next().await["Data"], "eA==");
    std::fs::remove_file(&path).unwrap();
    assert_eq!(next().await["FileEvent"], "file deleted");
    assert_eq!(next().await, Value::Null, "the stream ends after the deletion");
}
