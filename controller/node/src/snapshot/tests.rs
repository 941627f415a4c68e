//! The content of snapshots.

use std::{fs, os::unix::fs::symlink};

use herdlet_api_types::alloc::Allocation;
use herdlet_base::privileges::Privileges;
use herdlet_manifest::fixture::{alloc_view, job};
use herdlet_storage::{alloc_dir::AllocDir, task_dir::TaskDir};

use super::*;

pub(crate) const SECRET: &str = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0";

/// The token that a server would make.
pub(crate) fn migrate_token(secret: &str, id: &str) -> Secret {
    let token = token(&secret.into(), id).unwrap().finalize().into_bytes();
    BASE64_URL_SAFE.encode(token).into()
}

pub(crate) struct Disk {
    _temp: tempfile::TempDir,
    pub(crate) paths: Paths,
    pub(crate) spec: Arc<Allocation>,
}

impl Disk {
    /// The disk of an allocation with one task, `httpd`.
    pub(crate) fn new() -> Self {
        let temp = tempfile::tempdir().unwrap();
        let paths = Paths { state: temp.path().join("state"), runtime: temp.path().join("run") };
        let spec = Arc::clone(&alloc_view(&job("web", "front", "httpd"), 0, 7).spec);
        AllocDir::new(&paths, spec.id).up(b"{}").unwrap();
        let task = paths.task(&spec.id, "httpd");
        TaskDir::new(task.clone(), Privileges::none()).up().unwrap();
        fs::create_dir_all(task.join("local/a/b")).unwrap();
        fs::write(task.join("local/a/b/own"), "own").unwrap();
        symlink("b/own", task.join("local/a/link")).unwrap();
        fs::write(task.join("secrets/token"), "secret").unwrap();
        fs::write(paths.shared(&spec.id).join("data/large"), vec![7; 300_000]).unwrap();
        fs::write(paths.logs(&spec.id).join("httpd.stdout.0"), "log").unwrap();
        Self { _temp: temp, paths, spec }
    }

    pub(crate) fn snapshots(&self) -> Snapshots {
        Snapshots::new(self.paths.clone(), SECRET.into(), CancellationToken::new())
    }

    async fn read(&self) -> Result<Vec<(String, Vec<u8>)>, axum::Error> {
        let answer = self.snapshots().answer(&self.spec).await;
        let bytes = axum::body::to_bytes(answer.into_body(), usize::MAX).await?;
        let mut archive = tar::Archive::new(&*bytes);
        let entries = archive.entries().unwrap().map(|entry| {
            let mut entry = entry.unwrap();
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            if let Some(target) = entry.link_name_bytes() {
                content = target.into_owned();
            }
            (entry.path().unwrap().to_string_lossy().into_owned(), content)
        });
        let mut entries: Vec<_> = entries.collect();
        entries.sort();
        Ok(entries)
    }
}

#[test]
fn migrate_token_matches_that_of_servers() {
    let (id, disk) = ("5ae3a8c6-9a4e-4b6f-9d2f-0c1d2e3f4a5b", Disk::new());
    // Computed with Python's hashlib: BLAKE2b of the id, keyed with the secret.
    let expected = "YAtD9zcUqJ5Vvb_-lgjmaBEItANU_1v83qxN_OulmroeG1K8iqDg-pWw3YPlsrZv8H96VKsPbECgspN4DPw0Tg==";
    assert_eq!(migrate_token(SECRET, id).reveal(), expected);
    let snapshots = disk.snapshots();
    assert!(snapshots.is_token(id, &expected.into()));
    let other = migrate_token(id, id);
    for token in ["", "YAtD", "no base64!", &expected.replace('Y', "Z"), &expected[..4], other.reveal()] {
        assert!(!snapshots.is_token(id, &token.into()), "{token}");
    }
    assert!(!snapshots.is_token("5ae3a8c6-9a4e-4b6f-9d2f-0c1d2e3f4a5c", &expected.into()));
    let nameless = Snapshots::new(disk.paths.clone(), Secret::default(), CancellationToken::new());
    assert!(!nameless.is_token(id, &expected.into()), "a node without a secret refuses all requests");
}

#[tokio::test(flavor = "multi_thread")]
async fn snapshot_contains_only_kept_files() {
    let disk = Disk::new();
    let given = disk.read().await.unwrap();
    let names: Vec<&str> = given.iter().map(|(name, _)| name.trim_end_matches('/')).collect();
    let local =
        ["httpd/local", "httpd/local/a", "httpd/local/a/b", "httpd/local/a/b/own", "httpd/local/a/link"];
    assert_eq!(names, [&["alloc/data", "alloc/data/large"][..], &local].concat());
    assert_eq!((given[1].1.len(), &*given[5].1, &*given[6].1), (300_000, &b"own"[..], &b"b/own"[..]));
}

#[tokio::test(flavor = "multi_thread")]
async fn unreadable_snapshot_contains_an_error_file() {
    let disk = Disk::new();
    let local = disk.paths.task(&disk.spec.id, "httpd").join("local");
    fs::rename(&local, local.with_file_name("aside")).unwrap();
    symlink("/etc", &local).unwrap();
    let given = disk.read().await.unwrap();
    let error_file = given.iter().find(|(name, _)| *name == format!("NOMAD-{}-ERROR.log", disk.spec.id));
    let why = String::from_utf8_lossy(&error_file.unwrap().1).into_owned();
    assert!(why.contains("a symbolic link is in the way"), "{why}");
    assert!(given.iter().all(|(name, _)| !name.contains("passwd")));
}

#[tokio::test(flavor = "multi_thread")]
async fn truncated_snapshot_is_incomplete() {
    let disk = Disk::new();
    let snapshots = disk.snapshots();
    let answer = snapshots.answer(&disk.spec).await;
    snapshots.closing.cancel();
    let read = axum::body::to_bytes(answer.into_body(), usize::MAX).await;
    let Err(error) = read else { panic!("an incomplete archive must not look complete") };
    let why = error.to_string();
    assert!(why.contains("aborted"), "{why}");
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_that_go_give_their_turns_back() {
    let disk = Disk::new();
    let snapshots = disk.snapshots();
    for _ in 0..3 * AT_ONCE {
        // More than the buffer holds: the writer waits for the reader, and learns that it has gone.
        let answer =
            tokio::time::timeout(Duration::from_secs(180), snapshots.answer(&disk.spec)).await.unwrap();
        drop(answer);
    }
}
