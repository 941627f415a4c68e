//! Copies of output over rotations, kills and disturbances by the task.

use std::{fs, io::Write as _, os::unix::fs::MetadataExt as _};

use super::*;

struct Bench {
    dir: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        let bench = Self { dir: tempfile::tempdir().unwrap() };
        fs::create_dir_all(bench.logs()).unwrap();
        bench
    }

    fn logs(&self) -> PathBuf {
        self.dir.path().join("a/alloc/logs")
    }

    fn source(&self) -> PathBuf {
        self.dir.path().join("c-json.log")
    }

    fn job(&self, max_files: u32) -> LogJob {
        LogJob {
            source: self.source(),
            target: LogTarget { dir: self.logs(), name: "t".into(), max_files, max_file_size_mib: 1 },
            position: self.dir.path().join("position"),
        }
    }

    fn say(&self, text: &str) {
        let mut file = fs::OpenOptions::new().create(true).append(true).open(self.source()).unwrap();
        let line = serde_json::json!({"log": text, "stream": "stdout", "time": "2026-11-26T10:00:00Z"});
        writeln!(file, "{line}").unwrap();
    }

    fn rotate(&self) {
        let older = |number: u32| self.dir.path().join(format!("c-json.log.{number}"));
        let _ = fs::rename(older(1), older(2));
        fs::rename(self.source(), older(1)).unwrap();
    }

    fn text(&self, name: &str) -> String {
        fs::read_to_string(self.logs().join(name)).unwrap_or_default()
    }
}

fn copy_all(copy: &mut Copy) {
    while copy.advance().unwrap() == Advance::More {}
}

/// An agent that was killed after it wrote output and before it recorded that wrote the same output again.
#[test]
fn each_line_is_copied_once_over_a_kill_at_any_point() {
    let bench = Bench::new();
    bench.say("one\n");
    copy_all(&mut Copy::of(bench.job(3)));
    let recorded = fs::read(bench.dir.path().join("position")).unwrap();
    bench.say("two\n");
    copy_all(&mut Copy::of(bench.job(3)));
    assert_eq!(bench.text("t.stdout.0"), "one\ntwo\n");
    // Killed between the output and its record.
    fs::write(bench.dir.path().join("position"), recorded).unwrap();
    bench.say("three\n");
    copy_all(&mut Copy::of(bench.job(3)));
    assert_eq!(bench.text("t.stdout.0"), "one\ntwo\nthree\n");
    // An unfinished line waits for its end.
    let mut file = fs::OpenOptions::new().append(true).open(bench.source()).unwrap();
    file.write_all(b"{\"log\":\"fo").unwrap();
    let mut copy = Copy::of(bench.job(3));
    copy_all(&mut copy);
    file.write_all(b"ur\",\"stream\":\"stdout\"}\n").unwrap();
    copy_all(&mut copy);
    assert_eq!(bench.text("t.stdout.0"), "one\ntwo\nthree\nfour");
}

#[test]
fn rotation_by_the_engine_loses_nothing_and_a_gap_is_marked() {
    let bench = Bench::new();
    let mut copy = Copy::of(bench.job(3));
    bench.say("one\n");
    copy_all(&mut copy);
    bench.say("two\n");
    bench.rotate();
    bench.say("three\n");
    bench.rotate();
    bench.say("four\n");
    copy_all(&mut copy);
    assert_eq!(bench.text("t.stdout.0"), "one\ntwo\nthree\nfour\n");
    bench.rotate();
    bench.say("five\n");
    fs::remove_file(bench.dir.path().join("c-json.log.1")).unwrap();
    fs::remove_file(bench.dir.path().join("c-json.log.2")).unwrap();
    copy_all(&mut copy);
    let text = bench.text("t.stdout.0");
    assert!(text.ends_with("]\nfive\n") && text.contains("output is missing"), "{text}");
}

/// A container was removed while its files were listed: output that was copied was called missing.
#[test]
fn the_removal_of_a_container_is_no_gap() {
    let bench = Bench::new();
    let mut copy = Copy::of(bench.job(3));
    bench.say("one\n");
    bench.rotate();
    bench.say("two\n");
    copy_all(&mut copy);
    // The older file remains for a moment.
    fs::remove_file(bench.source()).unwrap();
    copy_all(&mut copy);
    assert_eq!(bench.text("t.stdout.0"), "one\ntwo\n");
    for round in 0..2_000 {
        let bench = Bench::new();
        let mut copy = Copy::of(bench.job(3));
        bench.say("one\n");
        copy_all(&mut copy);
        std::thread::scope(|scope| {
            scope.spawn(|| fs::remove_file(bench.source()).unwrap());
            while bench.source().exists() {
                copy_all(&mut copy);
            }
        });
        assert_eq!(bench.text("t.stdout.0"), "one\n", "round {round}");
    }
}

/// The engine's new file had the inode of one that it had removed: lines were skipped without a mark, or cut.
#[tokio::test]
async fn a_file_with_the_inode_of_a_removed_one_is_another() {
    for lines in [1, 5] {
        let bench = Bench::new();
        let older = bench.dir.path().join("c-json.log.1");
        let inode = |path: &Path| fs::metadata(path).unwrap().ino();
        bench.say("one\n");
        copy_all(&mut Copy::of(bench.job(3)));
        let first = inode(&bench.source());
        bench.rotate();
        bench.say("two\n");
        // With two files: the older is removed, the newer becomes the older.
        for _ in 0..50 {
            tokio::time::sleep(Duration::from_millis(10)).await;
            fs::remove_file(&older).unwrap();
            fs::rename(bench.source(), &older).unwrap();
            (0..lines).for_each(|number| bench.say(&format!("three {number}\n")));
            if inode(&bench.source()) == first {
                break;
            }
        }
        copy_all(&mut Copy::of(bench.job(3)));
        let text = bench.text("t.stdout.0");
        let mut expected = text.lines();
        assert_eq!(expected.next(), Some("one"), "{text}");
        assert!(expected.next().is_some_and(|line| line.contains("output is missing here")), "{text}");
        let rest: Vec<&str> = expected.collect();
        assert!(rest.len() > lines && rest.last() == Some(&&*format!("three {}", lines - 1)), "{text}");
        assert!(rest[0] == "two" || rest[0] == "three 0", "{text}");
    }
}

#[test]
fn a_restart_of_the_engine_is_marked() {
    let bench = Bench::new();
    let mut copy = Copy::of(bench.job(3));
    bench.say("one\n");
    copy_all(&mut copy);
    copy.mark_gap().unwrap();
    bench.say("two\n");
    copy_all(&mut Copy::of(bench.job(3)));
    let text = bench.text("t.stdout.0");
    assert!(
        text.starts_with("one\n[herdlet: the engine was restarted here") && text.ends_with("]\ntwo\n"),
        "{text}"
    );
}

/// The mark of a restart was dropped while nothing could be written.
#[tokio::test(start_paused = true)]
async fn a_restart_is_marked_once_the_output_can_be_written_again() {
    let bench = Bench::new();
    bench.say("one\n");
    let (complaint, mut complained) = mpsc::channel(1);
    let copy = LogCopy::start(bench.job(3), Box::new(move |why| complaint.try_send(why).unwrap()));
    copy.drained().await;
    // As if the disk was full.
    let away = bench.dir.path().join("away");
    fs::rename(bench.logs(), &away).unwrap();
    bench.say("two\n");
    complained.recv().await.unwrap();
    copy.mark_gap();
    copy.mark_gap();
    // It fails once more, with the mark.
    copy.drained().await;
    fs::rename(&away, bench.logs()).unwrap();
    while !bench.text("t.stdout.0").contains("restarted") {
        time::sleep(AGAIN).await;
    }
    copy.drained().await;
    let text = bench.text("t.stdout.0");
    assert!(text.starts_with("one\ntwo\n[herdlet: the engine was restarted here"), "{text}");
    assert_eq!(text.lines().count(), 3, "{text}");
}

#[test]
fn the_tasks_files_are_rotated_and_the_oldest_removed() {
    let bench = Bench::new();
    let line = format!("{}\n", "x".repeat(10_000));
    let mut copy = Copy::of(bench.job(2));
    for _ in 0..350 {
        bench.say(&line);
    }
    copy_all(&mut copy);
    let mut names: Vec<String> = fs::read_dir(bench.logs())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.starts_with("t.stdout"))
        .collect();
    names.sort();
    assert_eq!(names, ["t.stdout.2", "t.stdout.3"]);
    assert!(fs::metadata(bench.logs().join("t.stdout.2")).unwrap().len() <= 1024 * 1024);
    // A later attempt of the task continues the newest file.
    let (second, len) = (Bench { dir: bench.dir }, "again\n".len());
    fs::remove_file(second.dir.path().join("position")).unwrap();
    fs::remove_file(second.source()).unwrap();
    second.say("again\n");
    let before = fs::metadata(second.logs().join("t.stdout.3")).unwrap().len();
    copy_all(&mut Copy::of(second.job(2)));
    let after = fs::metadata(second.logs().join("t.stdout.3")).unwrap().len();
    assert_eq!(after - before, len as u64);
}

/// A task could have the agent write to any file: it replaced its log by a link.
#[test]
fn a_link_in_place_of_a_log_is_not_followed() {
    let bench = Bench::new();
    let victim = bench.dir.path().join("victim");
    fs::write(&victim, "untouched").unwrap();
    std::os::unix::fs::symlink(&victim, bench.logs().join("t.stdout.0")).unwrap();
    bench.say("one\n");
    assert!(Copy::of(bench.job(3)).advance().is_err());
    assert_eq!(fs::read_to_string(&victim).unwrap(), "untouched");
}

#[tokio::test]
async fn output_is_copied_as_it_arrives_until_it_is_drained() {
    let bench = Bench::new();
    let copy = LogCopy::start(bench.job(3), Box::new(|why| panic!("{why}")));
    for number in 0..50 {
        bench.say(&format!("{number}\n"));
        if number % 10 == 0 {
            copy.drained().await;
        }
    }
    copy.drained().await;
    let expected: String = (0..50).map(|number| format!("{number}\n")).collect();
    assert_eq!(bench.text("t.stdout.0"), expected);
}
