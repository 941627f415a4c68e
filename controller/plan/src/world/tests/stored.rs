//! Stored state, and how the next agent restores it.

use herdlet_api_types::Duration;

use super::*;

#[test]
fn last_change_index_is_stored() {
    let bench = running();
    let Some(RecordValue::Meta(meta)) = bench.stored.get(&RecordKey::Meta) else {
        panic!("expected counters")
    };
    assert_eq!(*meta, *bench.world.meta);
    let Some(RecordValue::AllocState(state)) = bench.stored.get(&RecordKey::AllocState(bench.id())) else {
        panic!("expected a state")
    };
    assert!(state.modify_index > 0 && state.modify_index <= meta.index);
}

#[test]
fn every_allocation_has_its_own_index() {
    let mut bench = Bench::new();
    let mut jobs = one_task();
    jobs[0].groups[0].count = 3;
    bench.apply(jobs, Vec::new());
    let job = bench.world.jobs.values().next().expect("the job").state.create_index;
    let mut made: Vec<u64> = bench.world.allocs.iter().map(|(_, entry)| entry.spec.create_index).collect();
    made.sort_unstable();
    assert_eq!(made, [job + 1, job + 2, job + 3]);
}

#[test]
fn restart_restores_state_without_writing() {
    let mut bench = Bench::new();
    bench.apply(mounting(), vec![data(false)]);
    bench.settle();
    let (meta, stored) = (Meta::clone(&bench.world.meta), bench.stored.clone());
    bench.stored.clear();
    let (world, _) = World::restore(settings(), at(9), stored.clone());
    bench.world = world;
    bench.dirty = bench.world.keys();
    bench.plan();
    bench.settle();
    assert!(bench.stored.is_empty(), "{:?}", bench.stored);
    assert_eq!(*bench.world.meta, meta);
    assert_eq!(bench.world.ctx.volume_path("data"), Some("data"));
    // The counters were lost: new allocations are still newer than all stored ones.
    let kept = stored.into_iter().filter(|(key, _)| *key != RecordKey::Meta);
    let (world, _) = World::restore(settings(), at(9), kept);
    assert_eq!(*world.meta, meta);
}

/// A deadline of an earlier boot keeps its remaining time by the wall clock, and does not move with the present.
#[test]
fn deadlines_are_bound_to_the_current_boot() {
    let mut bench = running();
    bench.now = at(5);
    bench.fail(bench.id());
    let later = Now { boot: crate::time::BootId(2), boot_ns: 1_000_000_000, wall: at(5).wall };
    bench.restart(later);
    let (_, state) = bench.world.allocation(bench.id()).expect("the allocation");
    let crate::state::Run::BackingOff { until } = state.durable.tasks[0].run else { panic!("{state:?}") };
    let left = until.remaining(later);
    assert!(left > Duration::ZERO);
    assert_eq!(until.due_ns(later), later.boot_ns + left.as_nanos().unsigned_abs());
    let much_later = Now { boot_ns: later.boot_ns + 3_600_000_000_000, ..later };
    assert!(until.is_due(much_later));
}

#[test]
fn operation_numbers_are_unique() {
    let mut bench = Bench::new();
    let second = Volume { name: "second".to_owned(), ..data(false) };
    bench.apply(mounting(), vec![data(false), second]);
    let mut numbers: Vec<u64> = bench.settle().iter().map(|action| action.op.generation).collect();
    let count = numbers.len();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), count);
}
