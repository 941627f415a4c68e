//! The process's only inotify queue. A dedicated thread reads it, so it belongs to no runtime.
//!
//! In: subscriptions. Out: calls to subscribers. Subscribers of the same directory share one kernel watch.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    io,
    mem::MaybeUninit,
    os::{
        fd::{AsRawFd as _, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use rustix::fs::{
    Mode, OFlags,
    inotify::{self, ReadFlags, WatchFlags},
};

use super::Interests;

/// Buffer for the events of one read; the next read returns further ones.
const EVENTS_LEN: usize = 16 * 1024;

/// A subscription to one directory; dropping it unsubscribes.
pub struct Subscription {
    hub: Arc<Hub>,
    watch: i32,
    id: u64,
    over: Arc<AtomicBool>,
}

impl Subscription {
    /// Calls `notify` after each change of `path` that matches `interests`, and once when it is gone. The call runs on
    /// the reader's thread and must not block.
    ///
    /// # Errors
    /// If the directory doesn't exist, or the kernel has no watches or queues left.
    pub fn new(path: &Path, interests: Interests, notify: impl Fn() + Send + 'static) -> io::Result<Self> {
        Hub::get()?.subscribe(path, None, interests, Box::new(notify))
    }

    /// Calls `notify` when the entry at `path` is created, removed or renamed. Watches the parent directory, because the
    /// kernel does not report the removal of a file that is still in use.
    ///
    /// # Errors
    /// As [`Subscription::new`], for the parent directory.
    pub fn of_entry(path: &Path, notify: impl Fn() + Send + 'static) -> io::Result<Self> {
        let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        Hub::get()?.subscribe(dir, Some(name.to_owned()), Interests::Names, Box::new(notify))
    }

    /// Whether the directory is gone, so that no further notification follows.
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut watched = self.hub.watched();
        let Some(subscribers) = watched.get_mut(&self.watch) else { return };
        subscribers.retain(|subscriber| subscriber.id != self.id);
        if subscribers.is_empty() {
            watched.remove(&self.watch);
            // The kernel has already removed the watch if the directory is gone.
            let _ = inotify::remove_watch(&self.hub.queue, self.watch);
        }
    }
}

struct Hub {
    queue: OwnedFd,
    watched: Mutex<BTreeMap<i32, Vec<Subscriber>>>,
    /// Set while `watched` is locked, once reading has failed.
    ended: AtomicBool,
}

struct Subscriber {
    id: u64,
    /// Restricts notifications to this entry.
    name: Option<OsString>,
    interests: ReadFlags,
    over: Arc<AtomicBool>,
    notify: Box<dyn Fn() + Send>,
}

impl Hub {
    /// The process's hub, created by the first call that succeeds.
    fn get() -> io::Result<Arc<Self>> {
        static HUB: Mutex<Option<Arc<Hub>>> = Mutex::new(None);
        let mut hub = HUB.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(hub) = &*hub
            && !hub.ended.load(Ordering::Acquire)
        {
            return Ok(Arc::clone(hub));
        }
        let queue = inotify::init(inotify::CreateFlags::CLOEXEC)?;
        let made = Arc::new(Self { queue, watched: Mutex::default(), ended: AtomicBool::new(false) });
        let read = Arc::clone(&made);
        std::thread::Builder::new().name("inotify".to_owned()).spawn(move || read.read())?;
        *hub = Some(Arc::clone(&made));
        Ok(made)
    }

    fn subscribe(
        self: Arc<Self>,
        path: &Path,
        name: Option<OsString>,
        interests: Interests,
        notify: Box<dyn Fn() + Send>,
    ) -> io::Result<Subscription> {
        let flags = interests.flags();
        // Opened before the lock is taken: the path may be on a disk that hangs.
        let open = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::open(path, open, Mode::empty())?;
        let place = format!("/proc/self/fd/{}", dir.as_raw_fd());
        // The lock is held until the subscriber is added, so that it misses no event of the new watch.
        let mut watched = self.watched();
        if self.ended.load(Ordering::Acquire) {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let add = flags | WatchFlags::ONLYDIR | WatchFlags::MASK_ADD;
        let watch = inotify::add_watch(&self.queue, place, add)?;
        let subscribers = watched.entry(watch).or_default();
        let id = subscribers.last().map_or(0, |last| last.id + 1);
        let over = Arc::new(AtomicBool::new(false));
        let interests = ReadFlags::from_bits_truncate(flags.bits());
        subscribers.push(Subscriber { id, name, interests, over: Arc::clone(&over), notify });
        drop(watched);
        Ok(Subscription { hub: self, watch, id, over })
    }

    /// Reads until the process ends or reading fails.
    fn read(&self) {
        let mut buffer = vec![MaybeUninit::uninit(); EVENTS_LEN];
        let mut events = inotify::Reader::new(&self.queue, &mut buffer);
        loop {
            match events.next() {
                Ok(event) => {
                    let name = event.file_name().map(|name| OsStr::from_bytes(name.to_bytes()));
                    self.notify(event.wd(), name, event.events());
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => {
                    tracing::error!(%error, "failed to read directory events; watches begin again");
                    return self.end();
                }
            }
        }
    }

    /// Ends every subscription: its owner inspects the directory and subscribes again, to a queue of its own.
    fn end(&self) {
        let mut watched = self.watched();
        self.ended.store(true, Ordering::Release);
        for subscriber in std::mem::take(&mut *watched).into_values().flatten() {
            subscriber.over.store(true, Ordering::Release);
            (subscriber.notify)();
        }
    }

    fn notify(&self, watch: i32, name: Option<&OsStr>, what: ReadFlags) {
        let mut watched = self.watched();
        if what.contains(ReadFlags::QUEUE_OVERFLOW) {
            // Events were lost: anything may have changed.
            watched.values().flatten().for_each(|subscriber| (subscriber.notify)());
        } else if what.contains(ReadFlags::IGNORED) {
            // The directory is gone, or the last subscriber removed the watch; then the list is empty.
            for subscriber in watched.remove(&watch).unwrap_or_default() {
                subscriber.over.store(true, Ordering::Release);
                (subscriber.notify)();
            }
        } else if let Some(subscribers) = watched.get(&watch) {
            let interested = subscribers.iter().filter(|subscriber| {
                let is_meant = match (&subscriber.name, name) {
                    (Some(wanted), Some(name)) => wanted == name,
                    // The event is about the directory itself.
                    (Some(_), None) | (None, _) => true,
                };
                is_meant && subscriber.interests.intersects(what)
            });
            interested.for_each(|subscriber| (subscriber.notify)());
        }
    }

    fn watched(&self) -> MutexGuard<'_, BTreeMap<i32, Vec<Subscriber>>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
