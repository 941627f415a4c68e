//! A daemon that is restarted again and again under load, with `live-restore` and without.
//!
//! The long form is the program `daemon-restarts`.

use herdlet_e2e::{
    daemon_restarts::{Campaign, LiveRestore},
    engine::{Engines, Kind},
};

fn restart(live_restore: LiveRestore) {
    let Some(engines) = Engines::own(&[Kind::Docker.name()]) else { return };
    let seed = u64::from(std::process::id());
    eprintln!("seed {seed}");
    let campaign = Campaign { restarts: 10, containers: 10, live_restore, seed };
    let outcome = campaign.run(engines.engine(Kind::Docker));
    eprintln!("{}", outcome.text());
    assert!(outcome.broken.is_empty());
}

#[test]
fn with_live_restore_tasks_run_on_and_none_runs_twice() {
    restart(LiveRestore::On);
}

#[test]
fn without_live_restore_each_task_runs_again_once() {
    restart(LiveRestore::Off);
}
