//! Limits across restarts and clock changes.

use super::*;

const LIMIT: Duration = Duration::from_secs(60);

#[tokio::test(start_paused = true)]
async fn disconnect_limit_continues_over_restarts() {
    let dir = tempfile::tempdir().unwrap();
    let (wall, now) = (SystemTime::now(), Instant::now());
    let mut memory = Memory::read(dir.path(), wall, now);
    assert_eq!(memory.due(LIMIT), now + LIMIT, "without stored contact the time counts from the start");
    memory.on_contact(now + Duration::from_secs(5), wall + Duration::from_secs(5), Duration::from_secs(25));
    let short = memory.due(Duration::from_secs(1));
    assert_eq!(short, now + Duration::from_secs(30), "the next heartbeat gets its time");
    memory.keep().await;
    let later = Memory::read(dir.path(), wall + Duration::from_secs(45), now);
    assert_eq!(later.due(LIMIT), now + Duration::from_secs(20));
    let much_later = Memory::read(dir.path(), wall + Duration::from_secs(4_500), now);
    assert_eq!(much_later.due(LIMIT), now, "the limit has passed");
    let set_back = Memory::read(dir.path(), wall - Duration::from_secs(4_500), now);
    assert_eq!(set_back.due(LIMIT), now + LIMIT);
}

#[tokio::test(start_paused = true)]
async fn a_damaged_file_is_as_good_as_none() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join(FILE), "soon").unwrap();
    let now = Instant::now();
    assert_eq!(Memory::read(dir.path(), SystemTime::now(), now).due(LIMIT), now + LIMIT);
    assert_eq!(Memory::read(dir.path(), SystemTime::now(), now).due(Duration::MAX), now + LONGEST);
}
