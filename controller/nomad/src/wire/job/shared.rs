//! Shares equal jobs within the process, however many allocations of however many nodes have them.
//!
//! In: a decoded value. Out: a shared copy, possibly an existing equal one. A job is freed with its last user.

use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    mem::discriminant,
    sync::{Arc, LazyLock, Mutex, PoisonError, Weak},
};

use herdlet_rpc::codec::Value;

static JOBS: LazyLock<Mutex<Jobs>> = LazyLock::new(Mutex::default);

#[derive(Default)]
struct Jobs {
    /// By digest. If different jobs have the same digest, only the first one is shared.
    known: HashMap<u64, Weak<Value>>,
    /// The number of entries at which freed ones are removed next.
    swept_at: usize,
}

/// Returns the process-wide copy of an equal value.
pub(super) fn share(value: Value) -> Arc<Value> {
    let digest = digest(&value);
    let known =
        JOBS.lock().unwrap_or_else(PoisonError::into_inner).known.get(&digest).and_then(Weak::upgrade);
    // Compare without the lock, so that other readers do not wait.
    match known {
        Some(known) if *known == value => known,
        Some(_) => Arc::new(value),
        None => {
            let new = Arc::new(value);
            JOBS.lock().unwrap_or_else(PoisonError::into_inner).add(digest, &new);
            new
        }
    }
}

impl Jobs {
    fn add(&mut self, digest: u64, job: &Arc<Value>) {
        if self.known.len() >= self.swept_at {
            self.known.retain(|_, job| job.strong_count() > 0);
            self.swept_at = 2 * self.known.len() + 16;
        }
        self.known.insert(digest, Arc::downgrade(job));
    }
}

fn digest(value: &Value) -> u64 {
    let mut hasher = DefaultHasher::new();
    feed(value, &mut hasher);
    hasher.finish()
}

fn feed(value: &Value, hasher: &mut DefaultHasher) {
    discriminant(value).hash(hasher);
    match value {
        Value::Nil => {}
        Value::Bool(value) => value.hash(hasher),
        Value::Int(value) => value.hash(hasher),
        Value::Uint(value) => value.hash(hasher),
        Value::Float(value) => value.to_bits().hash(hasher),
        Value::Text(text) => text.hash(hasher),
        Value::Bytes(bytes) => bytes.hash(hasher),
        Value::List(list) => {
            list.len().hash(hasher);
            list.iter().for_each(|value| feed(value, hasher));
        }
        Value::Map(map) => {
            map.len().hash(hasher);
            for (key, value) in map {
                feed(key, hasher);
                feed(value, hasher);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unused_jobs_are_dropped() {
        let mut jobs = Jobs::default();
        let kept = Arc::new(Value::Int(-1));
        jobs.add(0, &kept);
        for number in 1..10_000 {
            jobs.add(number, &Arc::new(Value::Nil));
        }
        assert!(jobs.known.len() < 40, "{}", jobs.known.len());
        assert!(jobs.known[&0].upgrade().is_some());
    }
}
