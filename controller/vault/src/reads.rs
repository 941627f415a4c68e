//! One read for all that need the same secret with the same token.
//!
//! In: keys and reads. Out: shared values. Templates of one task often use a secret several times; each read of dynamic
//! credentials would issue others. A value is kept as long as a caller holds it.

use std::{
    collections::{BTreeMap, HashMap},
    future::Future,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use tokio::sync::watch;
use zeroize::Zeroizing;

use crate::{error::VaultError, path::VaultPath, secret::SecretText};

/// What makes two reads the same. Has no `Debug`: it has the token.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ReadKey {
    path: VaultPath,
    /// Arguments of a write, which may be secret; none for a read.
    arguments: Option<SecretText>,
    token: SecretText,
}

impl ReadKey {
    /// A read.
    pub fn read(path: VaultPath, token: SecretText) -> Self {
        Self { path, arguments: None, token }
    }

    /// A write with these arguments, whose result is a secret.
    pub fn write(path: VaultPath, arguments: &BTreeMap<String, String>, token: SecretText) -> Self {
        let mut text = Zeroizing::new(String::new());
        for (name, value) in arguments {
            // With lengths, so that no two lists have the same text.
            text.push_str(&format!("{}:{name}{}:", name.len(), value.len()));
            text.push_str(value);
        }
        let arguments = Some(SecretText::new(std::mem::take(&mut text)));
        Self { path, arguments, token }
    }
}

type Outcome<T> = Result<Arc<T>, VaultError>;

/// Values by key.
pub struct Reads<T>(Arc<Mutex<HashMap<ReadKey, Entry<T>>>>);

enum Entry<T> {
    /// Without an outcome yet. The sender is gone if the read has panicked.
    Running(watch::Receiver<Option<Outcome<T>>>),
    Read(Weak<T>),
}

impl<T> Default for Reads<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T: Send + Sync + 'static> Reads<T> {
    /// The value of `key`: the one that another caller holds, the outcome of the read that is running, or that of a new `read`.
    /// All that wait share a failure; the next call reads again. A read that has begun goes on if nobody waits any more: it
    /// may issue something.
    ///
    /// # Errors
    /// Those of the read.
    pub async fn get<F>(&self, key: ReadKey, read: impl FnOnce() -> F) -> Outcome<T>
    where
        F: Future<Output = Result<T, VaultError>> + Send + 'static,
    {
        let mut outcome = match self.join(&key) {
            ReadState::Value(value) => return Ok(value),
            ReadState::Waiting(outcome) => outcome,
            ReadState::Absent(mut entries) => {
                let (sender, outcome) = watch::channel(None);
                entries.retain(|_, entry| entry.is_used());
                entries.insert(key.clone(), Entry::Running(outcome.clone()));
                drop(entries);
                tokio::spawn(run(self.0.clone(), key, read(), sender));
                outcome
            }
        };
        let ended = || VaultError::Answer {
            doing: "read a secret".to_owned(),
            why: "the read ended without a result; this is a bug".to_owned(),
        };
        let outcome = outcome.wait_for(Option::is_some).await.map_err(|_| ended())?;
        outcome.clone().unwrap_or_else(|| Err(ended()))
    }

    /// Forgets a value, because its lease is to be replaced: the next call of [`Self::get`] reads. Those who hold it keep it.
    pub fn forget(&self, key: &ReadKey) {
        let mut entries = lock(&self.0);
        if let Some(Entry::Read(_)) = entries.get(key) {
            entries.remove(key);
        }
    }

    fn join(&self, key: &ReadKey) -> ReadState<'_, T> {
        let entries = lock(&self.0);
        match entries.get(key) {
            Some(Entry::Read(value)) => match value.upgrade() {
                Some(value) => ReadState::Value(value),
                None => ReadState::Absent(entries),
            },
            Some(Entry::Running(outcome)) if outcome.has_changed().is_ok() => {
                ReadState::Waiting(outcome.clone())
            }
            Some(Entry::Running(_)) | None => ReadState::Absent(entries),
        }
    }
}

enum ReadState<'a, T> {
    Value(Arc<T>),
    Waiting(watch::Receiver<Option<Outcome<T>>>),
    Absent(MutexGuard<'a, HashMap<ReadKey, Entry<T>>>),
}

impl<T> Entry<T> {
    fn is_used(&self) -> bool {
        match self {
            Self::Running(outcome) => outcome.has_changed().is_ok(),
            Self::Read(value) => value.strong_count() > 0,
        }
    }
}

async fn run<T, F>(
    entries: Arc<Mutex<HashMap<ReadKey, Entry<T>>>>,
    key: ReadKey,
    read: F,
    sender: watch::Sender<Option<Outcome<T>>>,
) where
    F: Future<Output = Result<T, VaultError>>,
{
    let outcome = read.await.map(Arc::new);
    {
        let mut entries = lock(&entries);
        match &outcome {
            Ok(value) => entries.insert(key, Entry::Read(Arc::downgrade(value))),
            Err(_) => entries.remove(&key),
        };
    }
    // Nobody may wait any more.
    let _ = sender.send(Some(outcome));
}

fn lock<T>(entries: &Mutex<HashMap<ReadKey, Entry<T>>>) -> MutexGuard<'_, HashMap<ReadKey, Entry<T>>> {
    entries.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use tokio::sync::Notify;

    use super::*;

    fn key(path: &str, token: &str) -> ReadKey {
        ReadKey::read(VaultPath::parse(path).unwrap(), SecretText::new(token.to_owned()))
    }

    fn absent() -> VaultError {
        VaultError::Missing { doing: "read a".to_owned(), why: String::new() }
    }

    /// Counts the reads of a test.
    #[derive(Default)]
    struct Counter(Arc<AtomicUsize>);

    impl Counter {
        fn read(
            &self,
            result: Result<(), VaultError>,
        ) -> impl FnOnce() -> std::future::Ready<Result<usize, VaultError>> + use<> {
            let count = self.0.clone();
            move || {
                let number = count.fetch_add(1, SeqCst) + 1;
                std::future::ready(result.map(|()| number))
            }
        }

        fn count(&self) -> usize {
            self.0.load(SeqCst)
        }
    }

    #[tokio::test]
    async fn a_value_is_read_once_while_it_is_held() {
        let (reads, counter) = (Reads::default(), Counter::default());
        let first = reads.get(key("a", "t"), counter.read(Ok(()))).await.unwrap();
        let second = reads.get(key("a", "t"), counter.read(Ok(()))).await.unwrap();
        assert_eq!((*first, *second, counter.count()), (1, 1, 1));
        let others = [key("b", "t"), key("a", "u"), key("a?version=1", "t")];
        for (number, other) in others.into_iter().enumerate() {
            let value = reads.get(other, counter.read(Ok(()))).await.unwrap();
            assert_eq!(*value, number + 2, "another path, argument or token is read by itself");
        }
        drop((first, second));
        assert_eq!(*reads.get(key("a", "t"), counter.read(Ok(()))).await.unwrap(), 5);
    }

    #[tokio::test]
    async fn concurrent_readers_share_one_read() {
        let reads: Arc<Reads<usize>> = Arc::default();
        let (gate, counter) = (Arc::new(Notify::new()), Counter::default());
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..50 {
            let (reads, gate, count) = (reads.clone(), gate.clone(), counter.0.clone());
            tasks.spawn(async move {
                let read = move || async move {
                    let number = count.fetch_add(1, SeqCst) + 1;
                    gate.notified().await;
                    Ok(number)
                };
                reads.get(key("a", "t"), read).await
            });
        }
        gate.notify_one();
        let values = tasks.join_all().await;
        assert!(values.iter().all(|value| *value.as_deref().unwrap() == 1));
        assert_eq!(counter.count(), 1);
    }

    #[tokio::test]
    async fn a_failure_is_shared_and_not_kept() {
        let (reads, counter) = (Reads::default(), Counter::default());
        let (a, b) = tokio::join!(
            reads.get(key("a", "t"), counter.read(Err(absent()))),
            reads.get(key("a", "t"), counter.read(Err(absent()))),
        );
        assert_eq!((a, b, counter.count()), (Err(absent()), Err(absent()), 1));
        assert_eq!(reads.get(key("a", "t"), counter.read(Ok(()))).await.as_deref(), Ok(&2));
    }

    #[tokio::test]
    async fn a_read_goes_on_without_readers() {
        let reads: Reads<usize> = Reads::default();
        let (gate, done) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (opened, finished) = (gate.clone(), done.clone());
        let read = move || async move {
            opened.notified().await;
            finished.notify_one();
            Ok(1)
        };
        let reader = reads.get(key("a", "t"), read);
        tokio::select! {
            biased;
            _ = reader => panic!("the gate is closed"),
            () = tokio::task::yield_now() => {}
        }
        gate.notify_one();
        done.notified().await;
    }

    #[tokio::test]
    async fn a_forgotten_value_is_read_again_and_stays_with_its_holders() {
        let (reads, counter) = (Reads::default(), Counter::default());
        let old = reads.get(key("a", "t"), counter.read(Ok(()))).await.unwrap();
        reads.forget(&key("a", "t"));
        let new = reads.get(key("a", "t"), counter.read(Ok(()))).await.unwrap();
        assert_eq!((*old, *new), (1, 2));
    }

    #[tokio::test]
    async fn keys_without_holders_do_not_pile_up() {
        let (reads, counter) = (Reads::default(), Counter::default());
        for number in 0..100 {
            let value = reads.get(key(&format!("a/{number}"), "t"), counter.read(Ok(()))).await;
            drop(value);
        }
        assert!(lock(&reads.0).len() <= 2);
    }

    #[test]
    fn writes_with_the_same_arguments_are_the_same() {
        let write = |arguments: &[(&str, &str)]| {
            let arguments =
                arguments.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            ReadKey::write(
                VaultPath::parse("pki/issue/web").unwrap(),
                &arguments,
                SecretText::new("t".to_owned()),
            )
        };
        assert!(write(&[("a", "1"), ("b", "2")]) == write(&[("b", "2"), ("a", "1")]));
        assert!(write(&[("a", "1")]) != write(&[("a", "2")]));
        assert!(write(&[("a", "11:b")]) != write(&[("a", "1"), ("b", "")]));
        assert!(write(&[]) != key("pki/issue/web", "t"));
    }
}
