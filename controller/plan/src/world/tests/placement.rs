//! Groups that don't fit on this node wait and report why; running allocations continue.

use std_alloc::{borrow::ToOwned, string::String};

use herdlet_api_types::{
    constraint::{Constraint, Operator},
    view::{ConvergenceState, Reason},
};

use super::*;

fn constrained(kernel: &str) -> Job {
    let mut job = one_task().remove(0);
    job.groups[0].constraints.push(Constraint {
        attribute: "${attr.kernel.name}".to_owned(),
        operator: Operator::Equal,
        value: kernel.to_owned(),
    });
    job
}

fn bench() -> Bench {
    let mut bench = Bench::new();
    let node = &mut bench.world.ctx.settings.node;
    node.attributes.insert("kernel.name".to_owned(), "linux".to_owned());
    bench
}

/// Why the job waits, and the constraint that Nomad would name.
fn block_reason(bench: &Bench) -> (Option<Reason>, String, Vec<String>) {
    let view = bench.job();
    let why = view.unplaced.get("g").expect("a waiting group");
    (view.convergence.reason, view.convergence.message.clone(), why.filtered_by.clone())
}

#[test]
fn a_group_waits_for_a_node_that_meets_its_constraint() {
    let mut bench = bench();
    bench.apply(vec![constrained("windows")], Vec::new());
    let message = "j.g: ${attr.kernel.name} is \"linux\" on this node, but must be \"windows\"";
    let filter = "${attr.kernel.name} = windows";
    assert_eq!(block_reason(&bench), (Some(Reason::Constraint), message.to_owned(), vec![filter.to_owned()]));
    assert_eq!(bench.job().convergence.state, ConvergenceState::Waiting);
    assert_eq!(bench.world.allocations().count(), 0);
    bench.apply(vec![constrained("linux")], Vec::new());
    assert_eq!((bench.world.allocations().count(), bench.job().unplaced.len()), (1, 0));
}

#[test]
fn infeasible_version_stops_nothing() {
    let mut bench = bench();
    bench.apply(one_task(), Vec::new());
    let id = bench.world.allocations().next().expect("an allocation").0.id;
    let mut next = constrained("windows");
    next.groups[0].tasks[0].env.insert("COLOR".to_owned(), "green".to_owned());
    bench.apply(vec![next], Vec::new());
    let (alloc, _) = bench.world.allocation(id).expect("the allocation");
    assert_eq!((alloc.desired, alloc.job_version), (Desired::Run, 0));
    assert_eq!(block_reason(&bench).0, Some(Reason::Constraint));
}

#[test]
fn only_one_of_a_group_with_distinct_hosts_is_placed() {
    let mut bench = bench();
    let mut job = one_task().remove(0);
    job.groups[0].count = 2;
    let constraint =
        Constraint { attribute: String::new(), operator: Operator::DistinctHosts, value: String::new() };
    job.groups[0].constraints.push(constraint);
    bench.apply(vec![job], Vec::new());
    assert_eq!(bench.world.allocations().count(), 1);
    assert_eq!(block_reason(&bench).2, ["distinct_hosts"]);
}

#[test]
fn version_that_may_not_run_takes_nothing_over() {
    let mut bench = bench();
    bench.apply(one_task(), Vec::new());
    bench.settle();
    let id = bench.id();
    let stands = |bench: &Bench| {
        let (alloc, _) = bench.world.allocation(id).expect("the allocation");
        (alloc.desired, alloc.job_version, bench.world.allocations().count())
    };
    bench.apply(vec![constrained("windows")], Vec::new());
    assert_eq!(stands(&bench), (Desired::Run, 0, 1));
    assert_eq!(block_reason(&bench).0, Some(Reason::Constraint));
    bench.apply(vec![constrained("linux")], Vec::new());
    bench.settle();
    assert_eq!((stands(&bench), bench.job().unplaced.len()), ((Desired::Run, 2, 1), 0));
    assert_eq!(bench.job().convergence.state, ConvergenceState::Converged);
}

#[test]
fn parameterized_job_waits_for_no_node() {
    let mut bench = bench();
    let mut job = constrained("windows");
    job.parameterized = Some(Default::default());
    bench.apply(vec![job], Vec::new());
    assert_eq!((bench.job().convergence.state, bench.job().unplaced.len()), (ConvergenceState::Converged, 0));
}

#[test]
fn surplus_allocation_is_stopped_despite_constraints() {
    let mut bench = bench();
    let mut job = one_task().remove(0);
    job.groups[0].count = 2;
    bench.apply(vec![job], Vec::new());
    bench.settle();
    bench.apply(vec![constrained("windows")], Vec::new());
    let mut wanted: Vec<_> = bench.world.allocations().map(|(spec, _)| (spec.index, spec.desired)).collect();
    wanted.sort_by_key(|(index, _)| *index);
    assert_eq!(wanted, [(0, Desired::Run), (1, Desired::Stop)]);
}

#[test]
fn a_job_that_can_not_be_placed_is_counted_as_waiting() {
    let mut bench = bench();
    let results = |bench: &mut Bench| -> Vec<&'static str> {
        let notes = core::mem::take(&mut bench.turn.notes);
        let of_job = |note: &Note| {
            if let Note::Reconciled { kind: "job", result } = note { Some(*result) } else { None }
        };
        notes.iter().filter_map(of_job).collect()
    };
    bench.apply(vec![constrained("windows")], Vec::new());
    assert_eq!(results(&mut bench), ["waiting"]);
    bench.apply(vec![constrained("linux")], Vec::new());
    assert!(!results(&mut bench).contains(&"waiting"));
}
