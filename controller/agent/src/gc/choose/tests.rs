//! Choices by example.

use herdlet_api_types::{
    job::{Job, JobType},
    view::Reason,
};
use herdlet_manifest::fixture::{THEN, alloc_view, job, job_view};

use super::*;

const HOUR: i64 = 3_600 * 1_000_000_000;

/// Creates a batch job, and an allocation for each entry: when it ended, in hours, and whether it failed.
fn batch(id: &str, ended: &[(i64, bool)]) -> (Arc<JobView>, Vec<Arc<AllocView>>) {
    let mut spec = Job::clone(&job(id, "g", "t"));
    spec.kind = JobType::Batch;
    let spec = Arc::new(spec);
    let alloc = |(index, (hours, failed)): (usize, &(i64, bool))| {
        let index = u8::try_from(index).unwrap();
        let mut view = alloc_view(&spec, u32::from(index), id.as_bytes()[0].wrapping_mul(16) + index);
        view.status = if *failed { ClientStatus::Failed } else { ClientStatus::Complete };
        view.tasks[0].state = TaskStatus::Dead;
        view.tasks[0].finished_at = UnixNanos(THEN.0 + hours * HOUR);
        Arc::new(view)
    };
    (Arc::new(job_view(&spec, 0)), ended.iter().enumerate().map(alloc).collect())
}

fn chosen(rules: Rules, jobs: &[Arc<JobView>], allocs: &[Arc<AllocView>], hours: i64) -> Vec<Collectable> {
    let now = UnixNanos(THEN.0 + hours * HOUR);
    let seen =
        CollectorInput { jobs, allocs, is_owned: &|key| &*key.id == "owned", usage: Usage::default(), now };
    choose(&rules, &seen).into_iter().map(|choice| choice.ended).collect()
}

fn names(chosen: &[Collectable]) -> Vec<(&str, Option<Due>)> {
    chosen.iter().map(|ended| (ended.name.as_str(), ended.due)).collect()
}

#[test]
fn job_is_collected_with_its_allocations_after_its_age() {
    let (job, allocs) = batch("backup", &[(0, false), (1, false)]);
    let early = chosen(Rules::default(), &[Arc::clone(&job)], &allocs, 2);
    assert_eq!(names(&early), [("backup", None), ("backup.g[0]", None), ("backup.g[1]", None)]);
    assert_eq!(
        early[0].message, "kept for 3h0m0s more (job_gc_threshold is 4h0m0s)",
        "its last task ended after one hour"
    );
    let late = chosen(Rules::default(), &[job], &allocs, 5);
    assert_eq!(names(&late), [("backup", Some(Due::Age))]);
    assert_eq!(late[0].message, "ended longer ago than job_gc_threshold (4h0m0s)");
}

#[test]
fn running_or_owned_job_is_kept() {
    let (owned, owned_allocs) = batch("owned", &[(0, false)]);
    let (running, running_allocs) = batch("running", &[(0, false), (0, false)]);
    let mut running_allocs = running_allocs;
    let going = Arc::make_mut(&mut running_allocs[1]);
    (going.status, going.tasks[0].state) = (ClientStatus::Running, TaskStatus::Running);
    let (waiting, waiting_allocs) = batch("waiting", &[(0, true)]);
    let mut waiting = JobView::clone(&waiting);
    (waiting.convergence.state, waiting.convergence.reason) =
        (ConvergenceState::Waiting, Some(Reason::Backoff));
    let service = Arc::new(job_view(&job("web", "g", "t"), 0));
    let jobs = [owned, running, Arc::new(waiting), service];
    let allocs = [owned_allocs, running_allocs, waiting_allocs].concat();
    let chosen = chosen(Rules::default(), &jobs, &allocs, 500);
    assert!(
        chosen.iter().all(|ended| ended.kind == CollectableKind::Alloc && ended.due.is_none()),
        "{chosen:?}"
    );
    assert_eq!(chosen.len(), 3);
}

#[test]
fn stopped_job_is_over_for_every_type() {
    let stopped = |mut text: Job| {
        text.stop = true;
        Arc::new(job_view(&Arc::new(text), 1))
    };
    let service = Job::clone(&job("web", "g", "t"));
    let (_, batch) = batch("web", &[(0, false)]);
    let parent = Job { parameterized: Some(Default::default()), ..Job::clone(&job("import", "g", "t")) };
    let jobs = [stopped(service), stopped(parent)];
    let over = chosen(Rules::default(), &jobs, &batch, 5);
    assert_eq!(names(&over), [("web", Some(Due::Age)), ("import", Some(Due::Age))]);
    let mut running = batch;
    Arc::make_mut(&mut running[0]).tasks[0].state = TaskStatus::Running;
    assert_eq!(names(&chosen(Rules::default(), &jobs[..1], &running, 5)), []);
}

#[test]
fn the_oldest_directories_go_first_and_failures_last() {
    let (job, allocs) = batch("j", &[(1, true), (3, false), (2, false), (4, false)]);
    let rules = Rules { gc_max_allocs: 2, job_gc_threshold: Duration::MAX, ..Rules::default() };
    let chosen = chosen(rules, &[job], &allocs, 5);
    let allocs: Vec<_> =
        chosen.iter().filter(|ended| ended.kind == CollectableKind::Alloc).cloned().collect();
    assert_eq!(
        names(&allocs),
        [("j.g[2]", Some(Due::Count)), ("j.g[1]", Some(Due::Count)), ("j.g[3]", None), ("j.g[0]", None)]
    );
    assert_eq!(allocs[0].message, "4 allocations have ended; gc_max_allocs is 2");
}

#[test]
fn full_disk_collects_one_object_at_a_time() {
    let (job, allocs) = batch("j", &[(1, false), (2, false)]);
    let due = |disk, inodes| {
        let (now, usage) = (UnixNanos(THEN.0 + 3 * HOUR), Usage { disk, inodes });
        let jobs = [Arc::clone(&job)];
        let seen = CollectorInput { jobs: &jobs, allocs: &allocs, is_owned: &|_| false, usage, now };
        let first = choose(&Rules::default(), &seen);
        let due = first.iter().filter(|choice| choice.ended.due.is_some());
        due.map(|choice| (choice.ended.name.clone(), choice.ended.message.clone())).collect::<Vec<_>>()
    };
    assert_eq!(due(95, 95), []);
    let expected = |message: &str| vec![("j.g[0]".to_owned(), message.to_owned())];
    assert_eq!(due(96, 99), expected("96 % of the disk in use; gc_disk_usage_threshold is 95"));
    assert_eq!(due(10, 96), expected("96 % of the disk's inodes in use; gc_inode_usage_threshold is 95"));
}

/// Planning the oldest of three had panicked. With the disk full it was chosen each time and never given up, and
/// nothing else was chosen.
#[test]
fn quarantined_job_is_not_chosen_and_blocks_none() {
    let (job, mut allocs) = batch("j", &[(1, false), (2, false), (3, true)]);
    Arc::make_mut(&mut allocs[0]).quarantined = true;
    let due = |job: &Arc<JobView>, hours: i64| {
        let (now, usage) = (UnixNanos(THEN.0 + hours * HOUR), Usage { disk: 99, inodes: 0 });
        let jobs = [Arc::clone(job)];
        let seen = CollectorInput { jobs: &jobs, allocs: &allocs, is_owned: &|_| false, usage, now };
        let chosen = choose(&Rules::default(), &seen);
        let name_and_due = |choice: &Choice| (choice.ended.name.clone(), choice.ended.due);
        chosen.iter().map(name_and_due).collect::<Vec<_>>()
    };
    let others = [("j.g[1]".to_owned(), Some(Due::Disk)), ("j.g[2]".to_owned(), None)];
    assert_eq!(due(&job, 4), others, "the job is not over either: one of its allocations is quarantined");
    assert_eq!(due(&job, 500), others);
    let left_alone = Arc::new(JobView { quarantined: true, ..JobView::clone(&job) });
    Arc::make_mut(&mut allocs[0]).quarantined = false;
    let now = UnixNanos(THEN.0 + 500 * HOUR);
    let jobs = [left_alone];
    let seen =
        CollectorInput { jobs: &jobs, allocs: &allocs, is_owned: &|_| false, usage: Usage::default(), now };
    let chosen = choose(&Rules::default(), &seen);
    assert!(chosen.iter().all(|choice| choice.ended.kind == CollectableKind::Alloc), "{chosen:?}");
    assert_eq!(chosen.len(), 3, "the allocations of such a job can be collected");
}

#[test]
fn clock_set_back_collects_nothing() {
    let ((a, a_allocs), (b, b_allocs)) = (batch("a", &[(0, false)]), batch("b", &[(1, false)]));
    let allocs = [a_allocs, b_allocs].concat();
    let due = |hours: i64| {
        let (now, jobs) = (UnixNanos(THEN.0 + hours * HOUR), [Arc::clone(&a), Arc::clone(&b)]);
        let seen = CollectorInput {
            jobs: &jobs,
            allocs: &allocs,
            is_owned: &|_| false,
            usage: Usage::default(),
            now,
        };
        let choices = choose(&Rules::default(), &seen);
        let due = choices.iter().filter(|choice| choice.ended.due.is_some()).count();
        (due, next_due(&Rules::default(), &choices, now))
    };
    assert_eq!(due(3), (0, Some(Duration::from_secs(3_600))));
    assert_eq!(due(4), (1, Some(Duration::from_secs(3_600))));
    assert_eq!(due(-100).0, 0);
}
