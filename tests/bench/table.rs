//! The table: a Markdown row for each figure, as soon as it is measured.

use std::{fmt::Display, fs, thread, time::Duration};

/// The output table.
pub(super) struct Table;

impl Table {
    /// Prints the machine and the head of the table.
    pub(super) fn begin() -> Self {
        let model = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = model.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or("");
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let cores = thread::available_parallelism().map_or(1, |cores| cores.get());
        let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
        println!(
            "{cores} cores ({}), Linux {}, load before: {}\n",
            model.trim_start_matches([':', '\t', ' ']),
            kernel.trim(),
            load.split(' ').next().unwrap_or("?")
        );
        println!("| benchmark | herdlet | goal | the machine itself |");
        println!("| --- | --- | --- | --- |");
        Self
    }

    /// Prints a row; `machine` is empty if there is no comparison.
    pub(super) fn row(&mut self, measure: &str, value: impl Display, goal: &str, machine: impl Display) {
        println!("| {measure} | {value} | {goal} | {machine} |");
    }
}

/// The value at `share` (0 to 1) of sorted values.
pub(super) fn quantile(sorted: &[f64], share: f64) -> f64 {
    let last = sorted.len().saturating_sub(1);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "an index of a short list"
    )]
    let index = (share * last as f64).round() as usize;
    sorted.get(index).copied().unwrap_or(f64::NAN)
}

pub(super) fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = values.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    quantile(&sorted, 0.5)
}

pub(super) fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1_000.0
}
