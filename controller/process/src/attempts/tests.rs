//! Records of attempts, made and read.

use super::*;
use crate::{
    process_tree,
    supervisor::{Core, Exit},
};
use futures_util::StreamExt as _;
use herdlet_api_types::AllocId;
use herdlet_driver::TaskEvent;

fn id() -> AttemptId {
    AttemptId { alloc: AllocId::from_hash([1; 16]), task: "t".into(), attempt: 1 }
}

fn open(dir: &Path) -> Arc<Attempts> {
    Attempts::open(dir).unwrap()
}

fn recorded(attempts: &Attempts) -> Vec<AttemptId> {
    attempts.recorded_attempts().unwrap().into_keys().collect()
}

fn exited() -> Record {
    let exit = Exit { code: 3, signal: 0, core: Core::None, at_unix_ns: 5 };
    Record { state: State::Exited(exit), ..Record::claimed() }
}

#[tokio::test]
async fn record_change_wakes_its_waiter() {
    let dir = tempfile::tempdir().unwrap();
    let attempts = open(dir.path());
    let file = dir.path().join(id().name());
    assert_eq!(attempts.ended(&id(), None).await.unwrap(), SupervisionEnd::Removed);
    fs::write(&file, Record::claimed().to_bytes()).unwrap();
    let waiting = tokio::spawn({
        let attempts = Arc::clone(&attempts);
        async move { attempts.until(&id(), |record| record.filter(Record::is_final)).await.unwrap() }
    });
    tokio::task::yield_now().await;
    fs::write(&file, exited().to_bytes()).unwrap();
    assert_eq!(waiting.await.unwrap(), exited());
    assert_eq!(recorded(&attempts), [id()]);
    attempts.remove(&id()).unwrap();
    assert!(attempts.recorded_attempts().unwrap().is_empty());
}

/// The directory is deleted while no agent runs, and the attempt that was being started ends meanwhile.
#[tokio::test]
async fn recreated_directory_may_lack_records() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("attempts");
    assert!(open(&path).may_lack_records());
    assert!(!open(&path).may_lack_records());
    fs::remove_dir_all(&path).unwrap();
    assert!(open(&path).may_lack_records());
}

/// A killed agent may have spawned a supervisor for an attempt that the next agent also started, saw end and removes.
#[tokio::test(start_paused = true)]
async fn a_removed_record_fences_late_supervisors_of_a_dead_agent() {
    let dir = tempfile::tempdir().unwrap();
    let attempts = open(dir.path());
    let file = dir.path().join(id().name());
    fs::write(&file, exited().to_bytes()).unwrap();
    attempts.remove(&id()).unwrap();
    assert_eq!(attempts.record(&id()).unwrap().map(|record| record.state), Some(State::Tombstone));
    tokio::time::sleep(TOMBSTONE_TIME + Duration::from_secs(1)).await;
    assert_eq!(attempts.record(&id()).unwrap(), None);
    // By now no late supervisor can arrive.
    fs::write(&file, exited().to_bytes()).unwrap();
    attempts.remove(&id()).unwrap();
    assert!(!file.exists());
}

#[tokio::test]
async fn supervisor_end_is_noticed_by_its_pidfd() {
    let dir = tempfile::tempdir().unwrap();
    let attempts = open(dir.path());
    let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
    let stat = fs::read(format!("/proc/{}/stat", child.id())).unwrap();
    let start_ticks = herdlet_shim::record::start_ticks(&stat).unwrap();
    let mut record = Record::claimed();
    record.shim = crate::supervisor::Process { pid: child.id(), start_ticks };
    fs::write(dir.path().join(id().name()), record.to_bytes()).unwrap();
    let shim = attempts.supervisor(&id()).await.unwrap().unwrap();
    child.kill().unwrap();
    assert_eq!(attempts.ended(&id(), Some(&shim)).await.unwrap(), SupervisionEnd::SupervisorDied(record));
    child.wait().unwrap();
    assert!(attempts.supervisor(&id()).await.unwrap().is_none());
}

/// It wrote its pid after the timeout for that.
#[tokio::test]
async fn a_supervisor_that_was_late_to_name_itself_is_not_dead() {
    let dir = tempfile::tempdir().unwrap();
    let attempts = open(dir.path());
    let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
    let start_ticks = process_tree::stat(child.id()).unwrap().start_ticks;
    let shim = Process { pid: child.id(), start_ticks };
    let record = Record { state: State::Running, shim, ..Record::claimed() };
    fs::write(dir.path().join(id().name()), record.to_bytes()).unwrap();
    let soon = Duration::from_millis(100);
    assert!(tokio::time::timeout(soon, attempts.ended(&id(), None)).await.is_err(), "the attempt still runs");
    child.kill().unwrap();
    assert_eq!(attempts.ended(&id(), None).await.unwrap(), SupervisionEnd::SupervisorDied(record));
    child.wait().unwrap();
}

#[tokio::test]
async fn reboot_forgets_running_attempts_and_keeps_results() {
    let dir = tempfile::tempdir().unwrap();
    let mut other = id();
    other.attempt = 2;
    fs::write(dir.path().join(id().name()), Record::claimed().to_bytes()).unwrap();
    fs::write(dir.path().join(other.name()), exited().to_bytes()).unwrap();
    fs::write(dir.path().join(".boot"), "another").unwrap();
    assert_eq!(recorded(&open(dir.path())), [other]);
    fs::write(dir.path().join(id().name()), Record::claimed().to_bytes()).unwrap();
    assert_eq!(open(dir.path()).recorded_attempts().unwrap().len(), 2);
}

#[tokio::test]
async fn unknown_boot_id_keeps_live_attempts() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(dir.path()));
    fs::write(dir.path().join(id().name()), Record::claimed().to_bytes()).unwrap();
    let records = RuntimeDir::open(dir.path()).unwrap();
    for unreadable in ["none", "empty"] {
        let file = dir.path().join(format!(".{unreadable}"));
        if unreadable == "empty" {
            fs::write(&file, "").unwrap();
        }
        let refused = forget_earlier_boot(dir.path(), &records, &file);
        assert!(matches!(refused, Err(AttemptsError::Boot { .. })), "{refused:?}");
        assert_eq!(records.list().unwrap().len(), 1);
    }
    // The marker was being written when the machine went down, or was deleted.
    fs::write(dir.path().join(".boot"), "").unwrap();
    assert_eq!(recorded(&open(dir.path())), [id()]);
    fs::remove_file(dir.path().join(".boot")).unwrap();
    assert_eq!(recorded(&open(dir.path())), [id()]);
}

#[tokio::test(start_paused = true)]
async fn a_tombstone_stands_for_a_while_after_it_was_removed() {
    let dir = tempfile::tempdir().unwrap();
    let attempts = open(dir.path());
    assert_eq!(attempts.fence(&id()).unwrap(), TombstoneOutcome::Cancelled);
    attempts.remove(&id()).unwrap();
    assert!(attempts.record(&id()).unwrap().is_some());
    assert!(attempts.recorded_attempts().unwrap().is_empty());
    tokio::time::sleep(TOMBSTONE_TIME + Duration::from_secs(1)).await;
    assert_eq!(attempts.record(&id()).unwrap(), None);
    attempts.fence(&id()).unwrap();
    let _next = open(dir.path());
    tokio::time::sleep(TOMBSTONE_TIME + Duration::from_secs(1)).await;
    assert_eq!(attempts.record(&id()).unwrap(), None);
}

/// Two drivers share the directory: each is asked only about its own attempts, and records of older releases are `raw_exec`'s.
#[tokio::test]
async fn a_record_names_its_driver() {
    let (raw_exec, exec) = (DriverNumber::of("raw_exec"), DriverNumber::of("exec"));
    assert!(raw_exec.value() == 0 && exec.value() != 0 && exec != DriverNumber::of("java"));
    let dir = tempfile::tempdir().unwrap();
    let attempts = open(dir.path());
    let other = AttemptId { attempt: 2, ..id() };
    let running = Record { state: State::Running, ..Record::claimed() };
    for (id, driver) in [(id(), raw_exec), (other.clone(), exec)] {
        fs::write(dir.path().join(id.name()), Record { driver: driver.value(), ..running }.to_bytes())
            .unwrap();
    }
    assert_eq!(attempts.recorded_attempts().unwrap(), [(id(), raw_exec), (other.clone(), exec)].into());
    attempts.cgroup_gone(&other.name());
    let next = attempts.reports(exec).stream().next().await;
    assert_eq!(next, Some(TaskEvent::Drift { id: other }));
    attempts.cgroup_gone(&id().name());
    assert_eq!(attempts.reports(raw_exec).stream().next().await, Some(TaskEvent::Drift { id: id() }));
}
