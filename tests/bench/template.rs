//! The template engine, compared with Go's own in the same run, if there is a program `go`.

use std::{
    env,
    hint::black_box,
    io::Write as _,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use herdlet_e2e::program::project;
use herdlet_template::{Options, Template};
use herdlet_tests::template_sample::{source, text};

use super::{ground::BenchDirs, table::Table};

/// Names the program `go`, which is otherwise searched for in PATH.
const GO: &str = "HERDLET_BENCH_GO";
/// Duration of one round; the fastest half of them would hide an engine that is sometimes slow, so the median counts.
const ROUND: Duration = Duration::from_millis(50);
const ROUNDS: usize = 41;

/// Microseconds for each operation, and the output.
struct Figures {
    both: f64,
    again: f64,
    output: Vec<u8>,
}

/// Parses and renders a template of 100 lines, and renders it again.
pub(super) fn engine(table: &mut Table, ground: &BenchDirs) {
    let ours = ours();
    let go = of_go(ground);
    if let Ok(go) = &go {
        assert_eq!(
            String::from_utf8_lossy(&ours.output),
            String::from_utf8_lossy(&go.output),
            "the outputs differ"
        );
    }
    let beside = |own: f64, of: fn(&Figures) -> f64| match &go {
        Ok(go) => format!("Go: {:.1} µs, {:.1} times as long", of(go), of(go) / own),
        Err(why) => why.clone(),
    };
    table.row(
        "parse and render a template of 100 lines with 20 values, median",
        format_args!("{:.1} µs", ours.both),
        "≤ 100 µs, not slower than Go",
        beside(ours.both, |go| go.both),
    );
    table.row(
        "render it again, median",
        format_args!("{:.1} µs", ours.again),
        "≤ 20 µs, not slower than Go",
        beside(ours.again, |go| go.again),
    );
}

fn ours() -> Figures {
    let (text, source, options) = (text(), source(), Options::default());
    let parse = || Template::parse(black_box(&text), &options).expect("a template");
    let render = |template: &Template| template.render(&source).result.expect("an output");
    let parsed = parse();
    Figures {
        both: median(|| _ = black_box(render(&parse()))),
        again: median(|| _ = black_box(render(black_box(&parsed)))),
        output: render(&parsed),
    }
}

/// The median time of an operation in microseconds.
fn median(mut operation: impl FnMut()) -> f64 {
    let mut round = || {
        let (began, mut count) = (Instant::now(), 0_u32);
        while began.elapsed() < ROUND {
            operation();
            count += 1;
        }
        began.elapsed().as_secs_f64() * 1e6 / f64::from(count)
    };
    let mut rounds: Vec<f64> = (0..ROUNDS).map(|_| round()).collect();
    rounds.sort_by(f64::total_cmp);
    rounds[ROUNDS / 2]
}

/// The same in Go, or why there is no figure.
fn of_go(ground: &BenchDirs) -> Result<Figures, String> {
    let program = env::var_os(GO).unwrap_or_else(|| "go".into());
    let dir = ground.dir();
    let mut command = Command::new(&program);
    command.arg("run").arg(project().join("tests/bench/template.go")).current_dir(dir.path());
    command
        .env("GOCACHE", dir.path().join("cache"))
        .env("GOPATH", dir.path().join("path"))
        .env("GOPROXY", "off");
    let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut child =
        child.map_err(|error| format!("not compared with Go: {} ({GO}): {error}", program.display()))?;
    let mut input = child.stdin.take().expect("its input");
    input.write_all(text().as_bytes()).map_err(|error| format!("not compared with Go: {error}"))?;
    drop(input);
    let ended = child.wait_with_output().expect("its end");
    let output = String::from_utf8_lossy(&ended.stdout).into_owned();
    let unread =
        || format!("not compared with Go: it has ended with {} and printed {output:?}", ended.status);
    let (times, output) = output.split_once('\n').ok_or_else(unread)?;
    let (both, again) = times.split_once(' ').ok_or_else(unread)?;
    let micros = |nanos: &str| nanos.parse::<f64>().map(|nanos| nanos / 1e3).map_err(|_| unread());
    Ok(Figures { both: micros(both)?, again: micros(again)?, output: output.as_bytes().to_vec() })
}
