//! Log files as tasks leave them: rotated, truncated, removed, planted by others.

use std::path::Path;

use super::*;

fn files(dir: &Path) -> LogFiles {
    LogFiles::new(dir.to_owned(), "t", Stream::Stdout)
}

fn write(dir: &Path, index: u64, text: &str) {
    std::fs::write(dir.join(format!("t.stdout.{index}")), text).unwrap();
}

#[test]
fn odd_names_links_and_fifos_are_passed_over() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), 3, "x");
    for odd in ["t.stdout.x", "t.stdout.03", "t.stdout.", "t.stdout", "tt.stdout.1"] {
        std::fs::write(dir.path().join(odd), "secret").unwrap();
    }
    std::os::unix::fs::symlink("/etc/passwd", dir.path().join("t.stdout.4")).unwrap();
    let files = files(dir.path());
    assert_eq!(files.indexes().unwrap(), [3, 4]);
    assert!(files.open(3).is_ok());
    assert!(files.open(4).is_err());
}

// A single planted link used to end every read of the stream.
#[tokio::test]
async fn planted_files_among_logs_are_skipped() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), 1, "one\n");
    std::os::unix::fs::symlink("/etc/passwd", dir.path().join("t.stdout.0")).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", dir.path().join("t.stdout.2")).unwrap();
    std::fs::create_dir(dir.path().join("t.stdout.3")).unwrap();
    write(dir.path(), 4, "four\n");
    write(dir.path(), u64::MAX, "planted\n");
    let mut follower = Follower::new(files(dir.path()), (0, 0));
    for text in ["one\n", "four\n"] {
        assert_eq!(follower.read().unwrap().unwrap().bytes, text.as_bytes());
    }
    assert_eq!(follower.read().unwrap(), None);
    assert_eq!(files(dir.path()).tail(1).unwrap(), Some((1, 4)), "the end of the file that is read before");
}

// `t.stdout.999999` hid everything written after it was created: the reader moved on to it and stayed there.
#[tokio::test]
async fn file_with_an_extreme_number_hides_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let append = |index: u64, text: &str| {
        let path = dir.path().join(format!("t.stdout.{index}"));
        let mut file = File::options().append(true).create(true).open(path).unwrap();
        std::io::Write::write_all(&mut file, text.as_bytes()).unwrap();
    };
    let marks = |index: u64| std::fs::write(dir.path().join(format!("t.stdout.{index}.times")), []).unwrap();
    append(0, "one\n");
    marks(0);
    append(999_999, "planted\n");
    let own = files(dir.path());
    assert_eq!(own.indexes().unwrap(), [0]);
    assert_eq!(own.tail(1).unwrap(), Some((0, 0)));
    let mut follower = Follower::new(own, (0, 0));
    let mut output = || {
        let mut output = Vec::new();
        while let Some(chunk) = follower.read().unwrap() {
            output.extend(chunk.bytes);
        }
        String::from_utf8(output).unwrap()
    };
    assert_eq!(output(), "one\n");
    append(0, "two\n");
    assert_eq!(output(), "two\n");
    // The next number might be the supervisor's: it is read, and so is everything that the log gets afterwards.
    append(1, "planted\n");
    assert_eq!(output(), "planted\n");
    append(0, "three\n");
    assert_eq!(output(), "three\n");
    // Later the supervisor reaches that number as well.
    append(1, "four\n");
    marks(1);
    append(2, "five\n");
    marks(2);
    assert_eq!(output(), "four\nfive\n");
}

// With 300,000 planted names one read took 14 s, and so did each read of a follower.
#[test]
fn log_listing_is_bounded_and_cached() {
    let dir = tempfile::tempdir().unwrap();
    for index in 0..30 {
        write(dir.path(), index, "");
    }
    let own = files(dir.path());
    assert_eq!(own.names(&own.open_dir().unwrap().unwrap(), 10).unwrap().len(), 10);
    let settle = || {
        let long_ago = rustix::fs::Timespec { tv_sec: 1_000_000, tv_nsec: 0 };
        let times = rustix::fs::Timestamps { last_access: long_ago, last_modification: long_ago };
        rustix::fs::utimensat(rustix::fs::CWD, dir.path(), &times, rustix::fs::AtFlags::empty()).unwrap();
    };
    settle();
    let mut follower = Follower::new(own, (29, 0));
    for line in ["one\n", "two\n", "three\n"] {
        write(dir.path(), 29, line);
        follower.current.take();
        assert_eq!(follower.read().unwrap().unwrap().bytes, line.as_bytes());
        assert_eq!(follower.read().unwrap(), None);
    }
    assert_eq!(follower.listings, 1);
    // After a change of names the directory is listed each time, as long as another change might not show.
    write(dir.path(), 30, "next\n");
    assert_eq!(follower.read().unwrap().unwrap().bytes, b"next\n");
    assert_eq!(follower.read().unwrap(), None);
    assert_eq!(follower.listings, 3);
}

#[test]
fn tail_crosses_file_boundaries() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), 0, "a\nb\n");
    write(dir.path(), 1, "c\nd\n");
    let files = files(dir.path());
    assert_eq!(files.tail(1).unwrap(), Some((1, 2)));
    assert_eq!(files.tail(2).unwrap(), Some((0, 4)), "the end of one file is the beginning of the next");
    assert_eq!(files.tail(3).unwrap(), Some((0, 2)));
    assert_eq!(files.tail(9).unwrap(), Some((0, 0)));
    assert_eq!(files.tail(0).unwrap(), Some((1, 4)));
}

#[tokio::test]
async fn a_follower_moves_on_without_a_gap() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), 3, "one\n");
    let mut follower = Follower::new(files(dir.path()), (0, 0));
    assert_eq!(follower.read().unwrap().unwrap().bytes, b"one\n");
    assert_eq!(follower.read().unwrap(), None);
    follower.changed().await.unwrap();
    write(dir.path(), 4, "two\n");
    follower.changed().await.unwrap();
    assert_eq!(
        follower.read().unwrap().unwrap(),
        Chunk { after: None, index: 4, end_offset: 4, bytes: b"two\n".to_vec() }
    );
}

/// `logs -f` used to print nothing more.
#[test]
fn follower_survives_truncation_removal_and_rename() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.stdout.3");
    write(dir.path(), 3, "one, which is long\n");
    let mut follower = Follower::new(files(dir.path()), (0, 0));
    let mut next = || follower.read().unwrap().map(|chunk| (chunk.after, chunk.index, chunk.bytes));
    assert_eq!(next(), Some((None, 3, b"one, which is long\n".to_vec())));
    File::options().write(true).open(&path).unwrap().set_len(0).unwrap();
    assert_eq!(next(), None);
    write(dir.path(), 3, "two\n");
    assert_eq!(next(), Some((Some(Interruption::Truncated), 3, b"two\n".to_vec())));
    assert_eq!(next(), None);

    std::fs::remove_file(&path).unwrap();
    assert_eq!(next(), None);
    write(dir.path(), 3, "three\n");
    assert_eq!(next(), Some((Some(Interruption::Removed), 3, b"three\n".to_vec())));
    assert_eq!(next(), None);

    std::fs::rename(&path, dir.path().join("t.stdout.3.old")).unwrap();
    write(dir.path(), 3, "");
    assert_eq!(next(), None, "the new file is still empty");
    write(dir.path(), 3, "four\n");
    assert_eq!(next(), Some((Some(Interruption::Removed), 3, b"four\n".to_vec())));

    // All files are gone: the supervisor begins again.
    std::fs::remove_file(&path).unwrap();
    write(dir.path(), 0, "five\n");
    assert_eq!(next(), Some((Some(Interruption::Removed), 0, b"five\n".to_vec())));
    write(dir.path(), 1, "six\n");
    assert_eq!(next(), Some((None, 1, b"six\n".to_vec())));
}
