//! Locks under paused time, events, re-encryption in the background, audit lines.

use std::{
    io,
    sync::{Arc, Mutex},
};

use super::*;
use crate::store::tests::{items, key, open};

fn actor() -> Actor {
    Actor::client("test")
}

fn requested(id: &str) -> (Option<VariableItems>, VariableLock) {
    let second = 1_000_000_000;
    (None, VariableLock { id: id.to_owned(), ttl_ns: 10 * second, delay_ns: 5 * second })
}

async fn put(variables: &Variables, path: &str, value: &str) -> Variable {
    let change = (Check::Nothing, String::new());
    variables.put(&actor(), key(path), items(value), change).await.unwrap()
}

/// Waits until the time has passed and due work is done. The clock is paused, so nothing else takes time.
async fn pass(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

#[tokio::test(start_paused = true)]
async fn a_lock_is_free_after_its_ttl_and_its_delay() {
    let state = tempfile::tempdir().unwrap();
    let variables = Arc::new(Variables::new(open(state.path())));
    tokio::spawn(Arc::clone(&variables).maintain());
    put(&variables, "a", "x").await;
    let locked = variables.acquire(&actor(), key("a"), requested("")).await.unwrap();
    let id = locked.metadata.lock.unwrap().id;
    for _ in 0..3 {
        pass(9).await;
        variables.renew(&actor(), key("a"), id.clone()).await.unwrap();
    }
    // The same request again, with the id, is a renewal.
    pass(9).await;
    let again = variables.acquire(&actor(), key("a"), requested(&id)).await.unwrap();
    assert_eq!(again.metadata.lock.unwrap().id, id);
    pass(11).await;
    assert!(variables.renew(&actor(), key("a"), id.clone()).await.is_err(), "the lock is lost");
    let refused = variables.acquire(&actor(), key("a"), requested("")).await.unwrap_err();
    assert!(
        matches!(refused, VariableError::Conflict { .. }),
        "and nobody has it during the delay: {refused}"
    );
    let index = variables.store().index();
    pass(5).await;
    variables.store().changed(index).await;
    assert!(variables.store().metadata(&key("a")).unwrap().lock.is_none());
    let next = variables.acquire(&actor(), key("a"), requested("")).await.unwrap();
    let next = next.metadata.lock.unwrap().id;
    assert_ne!(next, id);
    assert!(variables.release(&actor(), key("a"), id).await.is_err());
    variables.release(&actor(), key("a"), next).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn locks_have_their_whole_ttl_after_a_restart() {
    let state = tempfile::tempdir().unwrap();
    let variables = Variables::new(open(state.path()));
    let locked = variables.acquire(&actor(), key("a"), requested("")).await.unwrap();
    let id = locked.metadata.lock.unwrap().id;
    pass(60).await;
    drop(variables);
    let variables = Arc::new(Variables::new(open(state.path())));
    tokio::spawn(Arc::clone(&variables).maintain());
    pass(9).await;
    variables.renew(&actor(), key("a"), id).await.unwrap();
    let index = variables.store().index();
    pass(15).await;
    variables.store().changed(index).await;
    assert!(variables.store().metadata(&key("a")).unwrap().lock.is_none());
}

/// Polls a request until it waits, and then drops it, as for a client that is gone.
async fn abandon(request: impl Future<Output = Result<Variable, VariableError>>) {
    tokio::select! {
        biased;
        done = request => panic!("{done:?}"),
        () = std::future::ready(()) => {}
    }
}

/// The lock was stored, but nobody released it: its lease began only with the answer.
#[tokio::test(start_paused = true)]
async fn a_lock_whose_client_is_gone_before_the_answer_expires() {
    let state = tempfile::tempdir().unwrap();
    let variables = Arc::new(Variables::new(open(state.path())));
    tokio::spawn(Arc::clone(&variables).maintain());
    let index = variables.store().index();
    abandon(variables.acquire(&actor(), key("a"), requested(""))).await;
    variables.store().changed(index).await;
    assert!(variables.store().metadata(&key("a")).unwrap().lock.is_some());
    let index = variables.store().index();
    pass(16).await;
    variables.store().changed(index).await;
    assert!(variables.store().metadata(&key("a")).unwrap().lock.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_holder_whose_lock_has_ended_cannot_write() {
    let state = tempfile::tempdir().unwrap();
    let variables = Variables::new(open(state.path()));
    let locked = variables.acquire(&actor(), key("a"), requested("")).await.unwrap();
    let id = locked.metadata.lock.unwrap().id;
    let write =
        async |id: &str| variables.put(&actor(), key("a"), items("x"), (Check::Nothing, id.to_owned())).await;
    write(&id).await.unwrap();
    pass(11).await;
    assert!(matches!(write(&id).await, Err(VariableError::Conflict { .. })), "during the delay");
    variables.release(&actor(), key("a"), id.clone()).await.unwrap();
    assert!(matches!(write(&id).await, Err(VariableError::Conflict { .. })), "without a lock");
    write("").await.unwrap();
}

/// A late renewal of a lock replaced the lease of the next one, which then never ended.
#[tokio::test(start_paused = true)]
async fn a_renewal_touches_only_the_lease_of_its_lock() {
    let leases = Leases::default();
    let lock = |id: &str| VariableLock { id: id.to_owned(), ttl_ns: 10_000_000_000, delay_ns: 0 };
    assert_eq!(leases.follow(&key("a"), Some(&lock("one"))), Followed::Changed);
    assert_eq!(leases.renew(&key("a"), &lock("one")), Renewal::Renewed);
    assert_eq!(leases.follow(&key("a"), Some(&lock("two"))), Followed::Changed);
    assert_eq!(leases.renew(&key("a"), &lock("one")), Renewal::Lost);
    assert!(leases.has(&key("a"), "two") && !leases.has(&key("a"), "one"));
    assert_eq!(leases.follow(&key("a"), Some(&lock("two"))), Followed::Same);
    assert_eq!(leases.follow(&key("a"), None), Followed::Changed);
    assert!(leases.lost().is_empty());
}

/// A write that fails can have stored the lock.
#[tokio::test]
async fn a_lock_has_a_lease_exactly_if_it_is_stored() {
    let mut outcomes = std::collections::BTreeSet::new();
    for steps in 0..30 {
        let state = tempfile::tempdir().unwrap();
        drop(open(state.path()).put(&key("a"), items("x"), Check::Nothing, ""));
        let steps = herdlet_base::durable::Steps::failing_after(steps);
        let source = crate::KeySource::choose(None, None, &state.path().join("keys"));
        let variables = Variables::new(Store::open_in_steps(state.path(), source, steps).unwrap());
        let is_acquired = variables.acquire(&actor(), key("a"), requested("")).await.is_ok();
        let lock = variables.store().lock(&key("a"));
        let has_lease = lock.as_ref().is_some_and(|lock| variables.leases.has(&key("a"), &lock.id));
        assert_eq!(lock.is_some(), has_lease);
        outcomes.insert((is_acquired, lock.is_some()));
    }
    assert!(outcomes.contains(&(false, true)), "{outcomes:?}");
}

#[tokio::test]
async fn each_change_is_one_event_of_its_path() {
    let state = tempfile::tempdir().unwrap();
    let variables = Variables::new(open(state.path()));
    let mut changes = variables.subscribe();
    put(&variables, "a", "1").await;
    put(&variables, "b", "1").await;
    variables.read(&actor(), key("a")).await.unwrap();
    variables.rotate(&actor()).await.unwrap();
    variables.delete(&actor(), key("a"), Check::Nothing).await.unwrap();
    variables.delete(&actor(), key("a"), Check::Nothing).await.unwrap();
    put(&variables, "c", "1").await;
    for path in ["a", "b", "a", "c"] {
        assert_eq!(changes.next().await, Some(Change::Of(key(path))));
    }
    drop(variables);
    assert_eq!(changes.next().await, None);
}

#[tokio::test]
async fn a_slow_subscriber_learns_that_it_missed_changes() {
    let state = tempfile::tempdir().unwrap();
    let variables = Variables::new(open(state.path()));
    let mut changes = variables.subscribe();
    // The events alone; real changes would take as many writes.
    for _ in 0..2_000 {
        variables.store().announce_for_tests(&key("a"));
    }
    assert_eq!(changes.next().await, Some(Change::Any));
}

#[tokio::test]
async fn variables_are_encrypted_again_in_the_background() {
    let state = tempfile::tempdir().unwrap();
    let variables = Arc::new(Variables::new(open(state.path())));
    for path in ["a", "b", "c"] {
        put(&variables, path, "1").await;
    }
    let old = variables.store().key_infos()[0].id;
    tokio::spawn(Arc::clone(&variables).maintain());
    variables.rotate(&actor()).await.unwrap();
    let is_done = || variables.store().key_infos()[0].variables == 3;
    tokio::time::timeout(Duration::from_secs(180), async {
        while !is_done() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .unwrap();
    variables.remove_key(&actor(), old).await.unwrap();
    assert!(variables.read(&actor(), key("a")).await.unwrap().is_some());
}

/// Collects log lines.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn every_access_has_an_audit_line_without_values() {
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let state = tempfile::tempdir().unwrap();
    let variables = Variables::new(open(state.path()));
    put(&variables, "a", "hunter2").await;
    variables.read(&actor(), key("a")).await.unwrap();
    variables.read(&actor(), key("none")).await.unwrap();
    let stale = (Check::Index(9), String::new());
    variables.put(&actor(), key("a"), items("hunter3"), stale).await.unwrap_err();
    variables.put(&actor(), key("a b"), items("hunter4"), (Check::Nothing, String::new())).await.unwrap_err();
    let locked = variables.acquire(&actor(), key("a"), requested("")).await.unwrap();
    let id = locked.metadata.lock.unwrap().id;
    variables.renew(&actor(), key("a"), id.clone()).await.unwrap();
    variables.release(&actor(), key("a"), id.clone()).await.unwrap();
    variables.listed(&actor(), "default", "nomad/");
    variables.delete(&actor(), key("a"), Check::Nothing).await.unwrap();
    variables.refused(&actor(), "read", &key("secret"), "refused: no right");
    // The first one is made although its client is gone, and the second one had no turn.
    let index = variables.store().index();
    abandon(variables.put(&actor(), key("gone"), items("hunter5"), (Check::Nothing, String::new()))).await;
    abandon(variables.put(&actor(), key("late"), items("hunter6"), (Check::Nothing, String::new()))).await;
    variables.store().changed(index).await;
    drop(variables.turn.lock().await);
    let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
    for secret in ["hunter", "password", id.as_str()] {
        assert!(!text.contains(secret), "{secret}: {text}");
    }
    for (operation, path, result) in [
        ("write", "a", "ok"),
        ("read", "a", "ok"),
        ("read", "none", "refused: not found"),
        ("write", "a", "refused: conflict"),
        ("write", "a b", "refused: invalid"),
        ("lock", "a", "ok"),
        ("renew lock", "a", "ok"),
        ("release lock", "a", "ok"),
        ("remove", "a", "ok"),
        ("read", "secret", "refused: no right"),
        ("write", "gone", "ok"),
        ("write", "late", "refused: caller gone"),
    ] {
        let parts = [
            "herdlet::audit".to_owned(),
            "actor=test".to_owned(),
            format!("operation=\"{operation}\""),
            format!("path=\"{path}\""),
            format!("result=\"{result}\""),
        ];
        let found = text.lines().filter(|line| parts.iter().all(|part| line.contains(part))).count();
        assert_eq!(found, 1, "{operation} {path}: {text}");
    }
    assert!(text.contains("operation=\"list\" namespace=\"default\" prefix=\"nomad/\""), "{text}");
}
