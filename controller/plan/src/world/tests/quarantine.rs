//! Objects that made the planner panic are quarantined and shown.

use super::*;

/// A panicking allocation was left alone, and not shown before the agent's next start.
#[test]
fn quarantined_allocation_is_shown_by_the_next_agent() {
    let mut bench = running();
    let alloc = bench.id();
    bench.last_view();
    for again in [false, true] {
        if again {
            let (world, unusable) = World::restore(settings(), bench.now, bench.stored.clone());
            assert!(unusable.is_empty());
            (bench.world, bench.dirty) = (world, bench.world.keys());
        } else {
            let (dirty, turn) = (&mut bench.dirty, &mut bench.turn);
            bench.world.quarantine(bench.now, &Key::Alloc(alloc), "index out of bounds", dirty, turn);
        }
        bench.plan();
        let shown = bench.last_view().expect("a published view");
        assert!(shown.quarantined);
        let shown = shown.convergence;
        assert_eq!(shown.state, ConvergenceState::Failed);
        assert!(shown.message.ends_with("index out of bounds"), "{}", shown.message);
        let job = bench.world.jobs.values().next().and_then(|job| job.shown.clone());
        assert_eq!(job.map(|job| job.convergence.state), Some(ConvergenceState::Failed));
        bench.see(Event::Drift { alloc, part: Part::Dir, by: Noticed::Event });
        assert!(bench.turn.actions.is_empty(), "{again}: {:?}", bench.turn.actions);
    }
}

/// Only the metric and the log reported a quarantined job or volume.
#[test]
fn quarantined_job_and_volume_are_shown_until_changed() {
    let mut bench = Bench::new();
    bench.apply(mounting(), vec![data(false)]);
    bench.settle();
    let job = bench.job().key;
    bench.turn.views.clear();
    for key in [Key::Job(job.clone()), Key::Volume("data".to_owned())] {
        let (dirty, turn) = (&mut bench.dirty, &mut bench.turn);
        bench.world.quarantine(bench.now, &key, "index out of bounds", dirty, turn);
    }
    assert!(bench.job().quarantined);
    let shown = bench.job().convergence;
    assert_eq!(shown.state, ConvergenceState::Failed);
    assert!(shown.message.ends_with("it is left alone: index out of bounds"), "{}", shown.message);
    let is_told = |view: &View| match view {
        View::Job(view) => view.convergence.state == ConvergenceState::Failed,
        View::Volume(view) => {
            matches!(&view.status, VolumeStatus::Failed { why } if why.ends_with("index out of bounds"))
        }
        View::Alloc(_) | View::AllocGone(_) | View::JobGone(_) | View::VolumeGone(_) | View::Node(_) => false,
    };
    assert_eq!(bench.turn.views.iter().map(is_told).collect::<Vec<_>>(), [true, true]);
    bench.apply(mounting(), vec![data(false)]);
    bench.settle();
    assert_eq!(bench.job().convergence.state, ConvergenceState::Converged);
}
