//! Watches of directories.

use std::{
    fs,
    sync::atomic::{AtomicU32, Ordering},
};

use super::*;

/// Time limit for any wait before a test fails.
const DEADLINE: Duration = Duration::from_secs(180);

async fn changed(watch: &DirectoryWatch) -> io::Result<()> {
    tokio::time::timeout(DEADLINE, watch.changed()).await.unwrap()
}

// Each followed log used to take one of the 128 inotify instances of a user.
#[tokio::test]
async fn a_thousand_watches_take_one_queue() {
    let dir = tempfile::tempdir().unwrap();
    let watches: Vec<_> = (0..1_000)
        .map(|number| {
            let path = dir.path().join(format!("{}", number / 2));
            fs::create_dir_all(&path).unwrap();
            (DirectoryWatch::open(&path, Interests::Writes).unwrap(), path)
        })
        .collect();
    let queues = fs::read_dir("/proc/self/fd").unwrap().flatten();
    let queues = queues
        .filter(|fd| fs::read_link(fd.path()).is_ok_and(|target| target.as_os_str() == "anon_inode:inotify"));
    assert!(queues.count() < 500, "too many queues, even with those of concurrent tests");
    for (watch, path) in &watches {
        fs::write(path.join("file"), "x").unwrap();
        changed(watch).await.unwrap();
    }
}

#[tokio::test]
async fn subscribers_get_their_events_until_the_directory_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("watched");
    fs::create_dir(&path).unwrap();
    let file = path.join("file");
    fs::write(&file, "").unwrap();
    let writes = DirectoryWatch::open(&path, Interests::Writes).unwrap();
    let names = DirectoryWatch::open(&path, Interests::Names).unwrap();
    fs::write(&file, "more").unwrap();
    changed(&writes).await.unwrap();
    // Dropping one subscriber does not affect the other.
    drop(writes);
    fs::remove_file(&file).unwrap();
    changed(&names).await.unwrap();
    fs::remove_dir(&path).unwrap();
    while changed(&names).await.is_ok() {}
    assert_eq!(changed(&names).await.unwrap_err().kind(), io::ErrorKind::NotFound);
    assert!(DirectoryWatch::open(&path, Interests::Writes).is_err());
}

#[tokio::test]
async fn dropped_subscriber_is_not_notified() {
    static TOLD: AtomicU32 = AtomicU32::new(0);
    let dir = tempfile::tempdir().unwrap();
    let quiet = Subscription::new(dir.path(), Interests::Names, || {
        TOLD.fetch_add(1, Ordering::Relaxed);
    });
    drop(quiet.unwrap());
    let watch = DirectoryWatch::open(dir.path(), Interests::Names).unwrap();
    fs::write(dir.path().join("file"), "x").unwrap();
    changed(&watch).await.unwrap();
    assert_eq!(TOLD.load(Ordering::Relaxed), 0);
}

#[tokio::test(start_paused = true)]
async fn unwatchable_directory_is_polled() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("watched");
    fs::create_dir(&path).unwrap();
    let watch = DirectoryWatch { path: path.clone(), changes: Arc::default(), kernel: None };
    watch.changed().await.unwrap();
    fs::remove_dir(&path).unwrap();
    assert!(watch.changed().await.is_err());
    assert!(is_used_up(&io::Error::from_raw_os_error(libc::ENOSPC)));
    assert!(!is_used_up(&io::Error::from_raw_os_error(libc::ENOENT)));
}
