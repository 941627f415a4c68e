//! Planning a converged allocation allocates no memory: an idle node with many allocations stays idle.

#![expect(unsafe_code, reason = "a counting allocator is one")]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    time::Instant,
};

use herdlet_api_types::job::{JobType, MountPropagation, VolumeMount, VolumeRequest};
use herdlet_plan::alloc;
use herdlet_tests::sim::{
    jobs::{group, job, service, task},
    life::{Faults, Life},
};

struct Counting;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: forwards to the system allocator; the counter is a thread-local cell and does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.set(COUNT.get() + 1);
        // SAFETY: the caller upholds the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds the contract.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn planning_a_converged_allocation_allocates_nothing() {
    let mut httpd = task("httpd", None, 0);
    httpd.volume_mounts.push(VolumeMount {
        volume: "data".to_owned(),
        destination: "local/data".to_owned(),
        read_only: true,
        propagation: MountPropagation::Private,
    });
    let mut web = group("g", 1, vec![httpd, task("side", None, 0)]);
    web.services.push(service("web"));
    let request = VolumeRequest { source: "data".to_owned(), read_only: false, per_alloc: false };
    web.volumes.insert("data".to_owned(), request);
    let mut life = Life::new(1, Faults::default());
    life.want_volumes();
    life.apply(vec![job("web", JobType::Service, vec![web])]);
    life.pass(30).expect("a life without violations");
    let now = life.now();
    let world = life.world();
    let (spec, state) = world.alloc_specs().next().expect("an allocation");
    let plan = alloc::plan(now, world.context(), spec, state);
    assert!(plan.changes.is_empty() && plan.waits.is_empty(), "{plan:?}");

    const PLANS: u32 = 10_000;
    let (before, began) = (COUNT.get(), Instant::now());
    for _ in 0..PLANS {
        std::hint::black_box(alloc::plan(now, world.context(), spec, state));
    }
    let (allocated, took) = (COUNT.get() - before, began.elapsed() / PLANS);
    println!("a plan takes {took:?}");
    assert_eq!(allocated, 0, "planning a converged allocation must not allocate memory");
}
