//! Volumes: what mounts them, how they are created and removed.

use super::*;
use crate::{
    action::MountSource,
    context::VolumeEntry,
    shared::volume::VolumeIntent,
    state::{PartState, Parts, Run},
    time::BootId,
};

/// While a volume is missing, a task keeps its mounts of it.
#[test]
fn mounts_are_left_alone_until_their_volume_is_there() {
    let mut bench = Bench::new();
    bench.apply(mounting(), vec![data(false)]);
    bench.settle();
    let alloc = bench.id();
    let volume = |bench: &mut Bench, part| {
        bench.world.ctx.volumes.get_mut("data").expect("the volume").part = part;
    };
    volume(&mut bench, PartState::Absent);
    let mounts = Part::Task(0, TaskPart::Mounts);
    bench.see(Event::Drift { alloc, part: mounts, by: Noticed::Event });
    assert!(bench.turn.actions.is_empty(), "{:?}", bench.turn.actions);
    volume(&mut bench, PartState::Up);
    bench.dirty.insert(Key::Alloc(alloc));
    bench.plan();
    assert_eq!(bench.turn.actions.len(), 1);
    assert_eq!(bench.turn.actions[0].verb, Verb::Inspect);
}

/// The agent was killed after it had begun an attempt. When it came back, the volume was not ready at once: the task was started
/// without it.
#[test]
fn attempt_that_has_not_begun_waits_for_its_volume() {
    let mut bench = Bench::new();
    bench.apply(mounting(), vec![data(false)]);
    bench.settle();
    let alloc = bench.id();
    let not_begun = |entry: &mut AllocEntry| {
        entry.state.durable.tasks[0].run = Run::Starting { attempt: 1, boot: BootId(1) };
        entry.state.parts = Parts::absent();
    };
    not_begun(bench.world.allocs.get_mut(alloc).expect("the allocation"));
    bench.world.ctx.volumes.get_mut("data").expect("the volume").part = PartState::Absent;
    bench.dirty.insert(Key::Alloc(alloc));
    bench.plan();
    let issued: Vec<_> = bench.settle().into_iter().map(|action| action.op.target).collect();
    assert!(!issued.contains(&Target::Alloc(alloc, Part::Task(0, TaskPart::Mounts))), "{issued:?}");
    assert!(!issued.contains(&Target::Alloc(alloc, Part::Task(0, TaskPart::Process))), "{issued:?}");
    bench.world.ctx.volumes.get_mut("data").expect("the volume").part = PartState::Up;
    bench.dirty.insert(Key::Alloc(alloc));
    bench.plan();
    let issued: Vec<_> = bench.settle().into_iter().filter(|action| !action.mounts.is_empty()).collect();
    let parts: Vec<_> = issued.iter().map(|action| action.op.target.clone()).collect();
    let expected =
        [TaskPart::Mounts, TaskPart::Process].map(|part| Target::Alloc(alloc, Part::Task(0, part)));
    assert_eq!(parts, expected);
}

/// A group claimed a volume that no task mounts. It ran without it, on a machine that was not meant for it.
#[test]
fn unmounted_volume_request_is_waited_for() {
    let mut jobs = mounting();
    jobs[0].groups[0].tasks[0].volume_mounts.clear();
    let mut bench = Bench::new();
    bench.apply(jobs, Vec::new());
    bench.settle();
    let shown = bench.last_view().expect("a published view");
    assert_eq!(shown.convergence.state, ConvergenceState::Waiting);
    let expected = "group: waits for volume \"data\": there is none; define it in a manifest of kind Volume, or in the agent's config";
    assert_eq!(shown.convergence.message, expected);
    assert_eq!(shown.tasks[0].attempt, 0, "no task was started");
    bench.apply(Vec::new(), vec![data(false)]);
    bench.settle();
    let shown = bench.last_view().expect("a published view");
    assert_eq!((shown.convergence.state, shown.tasks[0].attempt), (ConvergenceState::Converged, 1));
    // Running tasks are left alone when the volume disappears, and nothing else is started before it is back.
    bench.world.ctx.volumes.get_mut("data").expect("the volume").part = PartState::Absent;
    let alloc = bench.id();
    bench.dirty.insert(Key::Alloc(alloc));
    bench.plan();
    assert!(bench.turn.actions.is_empty(), "{:?}", bench.turn.actions);
}

#[test]
fn mount_is_writable_if_task_group_and_volume_agree() {
    for case in 0..8u8 {
        let [by_mount, by_group, by_volume] = [1, 2, 4].map(|bit| case & bit != 0);
        let mut jobs = mounting();
        jobs[0].groups[0].volumes.values_mut().for_each(|request| request.read_only = by_group);
        jobs[0].groups[0].tasks[0].volume_mounts[0].read_only = by_mount;
        let mut bench = Bench::new();
        bench.apply(jobs, vec![data(by_volume)]);
        let mounts: Vec<_> = bench.settle().into_iter().flat_map(|action| action.mounts).collect();
        let expected = MountSource {
            volume: "data".to_owned(),
            path: "data".to_owned(),
            destination: "local/data".to_owned(),
            read_only: case != 0,
            propagation: MountPropagation::Private,
        };
        // Of the preparation and of the start.
        assert_eq!(mounts, [expected.clone(), expected]);
    }
}

#[test]
fn volume_has_a_path_while_present_and_wanted() {
    let gone = PartState::Absent;
    for (part, fate, usable) in [
        (PartState::Up, VolumeIntent::Desired, true),
        (PartState::Up, VolumeIntent::Dropped, false),
        (PartState::Up, VolumeIntent::Purged, false),
        (gone, VolumeIntent::Desired, false),
        (PartState::Unknown, VolumeIntent::Desired, false),
    ] {
        let path = Some("/data".to_owned());
        let state = VolumeState { spec: data(false), origin: Origin::Manifest, fate, path };
        let entry = VolumeEntry { state: Tracked::stored(state), part, failures: 0 };
        let mut world = World::new(settings());
        world.ctx.volumes.insert("data".to_owned(), entry);
        assert_eq!(world.ctx.volume_path("data").is_some(), usable, "{fate:?}");
    }
}

#[test]
fn volume_definition_may_not_move() {
    let moved = |read_only| {
        let kind = VolumeKind::HostPath { path: "/srv".to_owned() };
        Volume { kind, ..data(read_only) }
    };
    for (known, used, asked, accepted) in [
        (Origin::Manifest, false, data(true), true),
        (Origin::Manifest, true, data(true), true),
        (Origin::Manifest, false, moved(false), true),
        (Origin::Manifest, true, moved(false), false),
        (Origin::Config, false, data(true), false),
        (Origin::Config, true, data(false), false),
    ] {
        let mut bench = Bench::new();
        match known {
            Origin::Manifest => bench.apply(Vec::new(), vec![data(false)]),
            Origin::Config => bench.see(Event::Desired(DesiredChange::Volume(data(false).into()))),
        }
        if used {
            bench.apply(mounting(), Vec::new());
        }
        bench.settle();
        bench.turn.replies.clear();
        bench.apply(Vec::new(), vec![asked.clone()]);
        let (_, reply) = bench.turn.replies.pop().expect("a reply");
        assert_eq!(matches!(reply, Reply::Applied { .. }), accepted, "{known:?}, {used}: {reply:?}");
        let now = &bench.world.ctx.volumes["data"].state.spec;
        assert_eq!(*now == asked, accepted || asked == data(false));
    }
}

#[test]
fn unused_volume_is_removed() {
    use crate::event::VolumeData::{Keep, Purge};
    for (known, used, asked, expected) in [
        (None, false, Keep, Err(Refusal::NotFound("there is no volume \"data\"".to_owned()))),
        // It may have data left from before.
        (None, false, Purge, Ok(1)),
        (Some(Origin::Manifest), false, Keep, Ok(0)),
        (Some(Origin::Manifest), false, Purge, Ok(1)),
        (
            Some(Origin::Manifest),
            true,
            Purge,
            Err(Refusal::Conflict("volume \"data\" is in use by j.g[0]".to_owned())),
        ),
        (
            Some(Origin::Config),
            false,
            Keep,
            Err(Refusal::Conflict("volume \"data\" is defined in the agent's config".to_owned())),
        ),
    ] {
        let mut bench = Bench::new();
        match known {
            Some(Origin::Manifest) => bench.apply(Vec::new(), vec![data(false)]),
            Some(Origin::Config) => bench.see(Event::Desired(DesiredChange::Volume(data(false).into()))),
            None => {}
        }
        if used {
            bench.apply(mounting(), Vec::new());
        }
        bench.settle();
        let (reply, grown) = bench.ask(Command::DeleteVolume { name: "data".to_owned(), data: asked });
        let removed = bench.turn.actions.iter().filter(|action| action.verb == Verb::Down).count();
        bench.settle();
        let gone = !bench.world.ctx.volumes.contains_key("data");
        match expected {
            Ok(removals) => {
                assert!(matches!(reply, Reply::Accepted { .. }), "{reply:?}");
                assert_eq!((removed, grown, gone), (removals, 1, true), "{known:?} {asked:?}");
                assert!(!bench.stored.contains_key(&RecordKey::Volume("data".to_owned())));
            }
            Err(refusal) => {
                assert!(matches!(reply, Reply::Refused(why) if why == refusal));
                assert_eq!((removed, grown, gone), (0, 0, known.is_none()), "{known:?} {asked:?}");
            }
        }
    }
}

#[test]
fn changed_volume_is_made_again() {
    let mut bench = Bench::new();
    bench.apply(Vec::new(), vec![data(false)]);
    assert_eq!(bench.settle().len(), 1);
    bench.apply(Vec::new(), vec![data(false)]);
    assert_eq!(bench.settle().len(), 0);
    bench.apply(Vec::new(), vec![data(true)]);
    assert_eq!(bench.settle().len(), 1);
    // It is applied again while it is being removed.
    let purge = crate::event::VolumeData::Purge;
    bench.ask(Command::DeleteVolume { name: "data".to_owned(), data: purge });
    bench.apply(Vec::new(), vec![data(true)]);
    let asked: Vec<Verb> = bench.settle().into_iter().map(|action| action.verb).collect();
    assert_eq!(asked, [Verb::Down, Verb::Up]);
    assert_eq!(bench.world.ctx.volume_path("data"), Some("data"));
}

#[test]
fn config_volumes_are_replaced_by_the_config() {
    for (of_config, stored) in [(true, false), (false, true)] {
        let mut bench = Bench::new();
        if of_config {
            bench.see(Event::Desired(DesiredChange::Volume(data(false).into())));
        } else {
            bench.apply(Vec::new(), vec![data(false)]);
        }
        bench.settle();
        let key = RecordKey::Volume("data".to_owned());
        assert_eq!(bench.stored.contains_key(&key), stored);
        bench.stored.clear();
        bench.dirty.insert(Key::Volume("data".to_owned()));
        bench.plan();
        assert!(bench.stored.is_empty(), "nothing has changed");
        bench.see(Event::Desired(DesiredChange::VolumeGone("data".to_owned())));
        assert_eq!(bench.world.ctx.volumes.contains_key("data"), !of_config);
    }
}

/// The agent restarts: running tasks are known before their volume is, and shown as waiting until then.
#[test]
fn running_allocation_stops_waiting_for_its_volume() {
    let mut jobs = mounting();
    jobs[0].groups[0].tasks[0].volume_mounts.clear();
    let mut bench = Bench::new();
    bench.apply(jobs, vec![data(false)]);
    bench.settle();
    bench.restart(at(9));
    // All parts are present, and the volume's outcome arrives last.
    bench.turn.actions.sort_by_key(|action| matches!(action.op.target, Target::Volume(_)));
    bench.settle();
    assert_eq!(bench.last_view().expect("a published view").convergence.state, ConvergenceState::Converged);
}
