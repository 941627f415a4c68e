//! Tests of reading, following and ending logs.

use super::*;

// `logs` of a task that waits for another one printed nothing and succeeded.
#[test]
fn unstarted_task_is_listed_with_its_state() {
    let web = herdlet_manifest::fixture::job("web", "front", "httpd");
    let waiting = |state: ConvergenceState, message: &str| {
        let mut view = herdlet_manifest::fixture::alloc_view(&web, 0, 1);
        view.tasks[0].attempt = 0;
        (view.convergence.state, view.convergence.message) = (state, message.to_owned());
        view
    };
    let target = |view: AllocView, task: Option<&str>| Target {
        job: Some(web.key()),
        allocs: vec![view],
        task: task.map(str::to_owned),
    };
    let waits = waiting(ConvergenceState::Waiting, "task httpd: dependency: waits for task init");
    assert_eq!(
        unbegun(&target(waits.clone(), None), false),
        ["web.front[0]/httpd has not started: waiting: task httpd: dependency: waits for task init"]
    );
    // A task that runs when the others have ended is mentioned only if it is the target.
    let last = waiting(ConvergenceState::Converged, "");
    assert!(unbegun(&target(last.clone(), None), false).is_empty());
    assert_eq!(unbegun(&target(last.clone(), Some("httpd")), false).len(), 1);
    assert_eq!(unbegun(&target(last, None), true).len(), 1);
    let mut never = waits;
    never.tasks[0].state = TaskStatus::Dead;
    assert!(unbegun(&target(never, None), false)[0].starts_with("web.front[0]/httpd never started: "));
    // `logs` of a task whose program was not found printed nothing.
    let mut not_found = waiting(ConvergenceState::Failed, "task httpd failed: nobin: not found");
    (not_found.tasks[0].attempt, not_found.tasks[0].started_at) = (2, UnixNanos(0));
    assert!(unbegun(&target(not_found, None), false)[0].contains("nobin: not found"));
    let begun = herdlet_manifest::fixture::alloc_view(&web, 0, 1);
    assert!(unbegun(&target(begun, Some("httpd")), true).is_empty());
    let many: Vec<AllocView> = (0..13).map(|_| waiting(ConvergenceState::Waiting, "health: waits")).collect();
    let many = Target { job: Some(web.key()), allocs: many, task: None };
    assert_eq!(unbegun(&many, true).last().unwrap(), "and 3 more");
}

#[test]
fn a_stream_is_as_old_as_its_last_file() {
    let file = |name: &str, time: &str| FileInfo {
        name: name.to_owned(),
        is_dir: false,
        size: 1,
        file_mode: "-rw-r--r--".to_owned(),
        mod_time: Some(time.to_owned()),
        content_type: None,
    };
    let files = [
        file("a.stdout.0", "2026-01-02T03:04:05Z"),
        file("a.stdout.1", "2026-01-02T03:04:06.12Z"),
        file("a.stderr.0", "2026-01-02T03:04:06.1Z"),
        file("a.stdout.fifo", "2027-01-02T03:04:05Z"),
    ];
    assert_eq!(last_written(&files, "a", "stdout"), "2026-01-02T03:04:06.12");
    assert!(last_written(&files, "a", "stderr") < last_written(&files, "a", "stdout"));
    assert_eq!(last_written(&files, "b", "stdout"), "");
}

#[test]
fn a_line_for_programs_bears_its_labels() {
    let alloc = AllocId::from_hash([0x11; 16]);
    let line = Line {
        alloc,
        name: "web.web[0]/httpd".to_owned(),
        stream: "stderr",
        bytes: b"a\x1b\xff\n".to_vec(),
        end: End::Line,
    };
    let shown = json_line(&line, false).unwrap();
    assert_eq!(
        shown,
        format!(
            "{{\"alloc\":\"{alloc}\",\"name\":\"web.web[0]/httpd\",\"stream\":\"stderr\",\"line\":\"a\\u001b\u{fffd}\"}}\n"
        )
    );
}

#[test]
fn the_time_of_a_line_is_a_field_for_programs() {
    for (line, time, rest) in [
        ("2026-01-02T03:04:05Z said it", Some("2026-01-02T03:04:05Z"), "said it"),
        ("2026-01-02T03:04:05Z ", Some("2026-01-02T03:04:05Z"), ""),
        ("-                    old", None, "old"),
        ("the rest of a long line", None, "the rest of a long line"),
    ] {
        assert_eq!(split_time(line), (time, rest));
    }
}

/// The lines of a log whose pieces come after these delays in milliseconds.
async fn merged(patience: Option<Duration>, pieces: &[(u64, &str)]) -> Vec<(String, End)> {
    let pieces = pieces.iter().map(|(after, text)| (*after, text.as_bytes().to_vec())).collect::<Vec<_>>();
    let pieces = futures_util::stream::iter(pieces).then(|(after, bytes)| async move {
        tokio::time::sleep(Duration::from_millis(after)).await;
        Ok(bytes)
    });
    let mut lines = Vec::new();
    into_lines(Box::pin(pieces), patience, |bytes, end| {
        lines.push((String::from_utf8(bytes).unwrap(), end));
        std::future::ready(true)
    })
    .await
    .unwrap();
    lines
}

// `logs -f` of a task that prints a prompt did not show it until it was answered.
#[tokio::test(start_paused = true)]
async fn a_line_that_is_not_finished_is_shown_after_a_rest() {
    let line = |text: &str| (text.to_owned(), End::Line);
    let open = |text: &str| (text.to_owned(), End::Open);
    let pieces = [(0, "one\nname"), (100, "? "), (5_000, "x\ntwo"), (300, "!")];
    assert_eq!(
        merged(Some(REST), &pieces).await,
        [line("one\n"), open("name? "), line("x\n"), open("two"), line("!")]
    );
    assert_eq!(
        merged(Some(Duration::ZERO), &pieces).await,
        [line("one\n"), open("name"), open("? "), line("x\n"), open("two"), line("!")]
    );
    assert_eq!(merged(None, &pieces).await, [line("one\n"), line("name? x\n"), line("two!")]);
    assert_eq!(merged(Some(REST), &[(0, "a"), (300, "\n")]).await, [open("a"), line("\n")]);
    // The end of the line is passed on, so that the next output begins a new line.
    let ends = [(0, "a"), (300, "")];
    assert_eq!(merged(Some(REST), &ends).await, [open("a"), line("")]);
    assert_eq!(merged(None, &[]).await, []);
}

/// A line end came after each 64 KiB of binary output, and before the next label.
#[tokio::test(start_paused = true)]
async fn a_long_line_is_passed_on_in_parts() {
    let long = "x".repeat(LINE_BYTES_MAX);
    let pieces = [(0, &*long), (0, "y\nz"), (0, &*long)];
    let (open, line) = (|text: &str| (text.to_owned(), End::Open), |text: &str| (text.to_owned(), End::Line));
    let rest = &long[1..];
    assert_eq!(merged(None, &pieces).await, [open(&long), line("y\n"), open(&format!("z{rest}")), line("x")]);
    assert_eq!(merged(None, &[(0, &*long)]).await, [open(&long), line("")]);
}
