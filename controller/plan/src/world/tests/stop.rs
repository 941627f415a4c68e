//! Stopping one allocation by request: its job makes another in its place.

use super::*;

fn stop(bench: &mut Bench, alloc: AllocId) -> Reply {
    bench.ask(Command::StopAlloc { alloc }).0
}

#[test]
fn a_stopped_allocation_is_replaced_and_its_job_goes_on() {
    let mut bench = running();
    let old = bench.id();
    assert!(matches!(stop(&mut bench, old), Reply::Accepted { .. }));
    let wanted = |bench: &Bench| bench.world.allocs.get(old).map(|entry| entry.spec.desired);
    assert_eq!(wanted(&bench), Some(Desired::Stop));
    // Asked for once more while it stops: it is as it was asked for.
    assert!(matches!(stop(&mut bench, old), Reply::Accepted { .. }));
    bench.settle();
    let next = bench.world.allocs.iter().find(|(_, entry)| entry.spec.previous == Some(old));
    let next = next.map(|(id, entry)| (id, entry.spec.desired, entry.spec.job_version));
    assert_eq!(next.map(|(_, desired, version)| (desired, version)), Some((Desired::Run, 0)));
    assert!(matches!(stop(&mut bench, old), Reply::Refused(Refusal::Conflict(_))), "it has ended");
    assert!(!bench.job().deleting);
}

#[test]
fn an_allocation_that_nobody_knows_is_not_stopped() {
    let mut bench = running();
    let reply = stop(&mut bench, AllocId::from_hash([9; 16]));
    assert!(matches!(reply, Reply::Refused(Refusal::NotFound(_))));
    let known = bench.world.allocs.iter().next().map(|(_, entry)| entry.spec.desired);
    assert_eq!(known, Some(Desired::Run));
}

#[test]
fn a_stop_by_request_is_one_change() {
    let mut bench = running();
    let alloc = bench.id();
    let mut grown = || bench.ask(Command::StopAlloc { alloc }).1;
    assert_eq!([grown(), grown()], [1, 0]);
}
