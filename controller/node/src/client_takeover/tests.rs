//! Directories of Nomad's client in various states. [`example`] describes the state file.

use std::fs;

use super::*;

const PAGE: usize = 4_096;

/// The same file with all tasks dead.
fn over() -> Vec<u8> {
    let mut bytes = example();
    let at = bytes.windows(8).position(|text| text == b"\xa7running").unwrap();
    bytes[at..at + 8].copy_from_slice(b"\xa4dead\xa1x\xc0");
    // The map has one more pair.
    let map = bytes[..at].iter().rposition(|byte| *byte == 0x82).unwrap();
    bytes[map] = 0x83;
    bytes
}

struct TestEnv {
    dir: tempfile::TempDir,
}

impl TestEnv {
    fn new(state: &[u8]) -> Self {
        let ground = Self { dir: tempfile::tempdir().unwrap() };
        fs::create_dir(ground.client()).unwrap();
        fs::write(ground.client().join("state.db"), state).unwrap();
        fs::write(ground.client().join("client-id"), "8cab6b85-ab0f-1241-caf0-feabba75176d").unwrap();
        fs::write(ground.client().join("secret-id"), "41c3345e-ea81-a8df-6719-6e14bbb7f4a0").unwrap();
        ground
    }

    fn client(&self) -> PathBuf {
        self.dir.path().join("client")
    }

    fn own(&self) -> PathBuf {
        self.dir.path().join("herdlet")
    }

    fn identity(&self) -> Result<Moved, MoveError> {
        identity(&self.own(), Some(&self.client()))
    }
}

#[test]
fn a_drained_client_leaves_its_identity_and_is_kept_away() {
    let ground = TestEnv::new(&over());
    let moved = ground.identity().unwrap();
    assert_eq!(moved.identity.id.as_str(), "8cab6b85-ab0f-1241-caf0-feabba75176d");
    let again = File::open(ground.client().join("state.db")).unwrap();
    assert!(moved.holds_lock() && flock(&again, FlockOperation::NonBlockingLockExclusive).is_err());
    drop(moved);
    flock(&again, FlockOperation::NonBlockingLockExclusive).unwrap();
    let error = ground.identity().unwrap_err();
    assert!(matches!(error, MoveError::Running { .. }), "{error}");
}

#[test]
fn tasks_that_are_not_over_stay_nomads() {
    let ground = TestEnv::new(&example());
    let error = ground.identity().unwrap_err().to_string();
    assert!(error.contains("1 of them, such as alloc-0001") && error.contains("node drain -self"), "{error}");
    assert!(!ground.own().exists(), "no identity was copied");
    // Also if the user has gone back to Nomad after the takeover.
    fs::write(ground.client().join("state.db"), over()).unwrap();
    drop(ground.identity().unwrap());
    fs::write(ground.client().join("state.db"), example()).unwrap();
    assert!(matches!(ground.identity(), Err(MoveError::Live { .. })));
}

#[test]
fn missing_client_state_makes_a_new_node() {
    let dir = tempfile::tempdir().unwrap();
    let (own, client) = (dir.path().join("own"), dir.path().join("client"));
    let moved = identity(&own, Some(&client)).unwrap();
    assert!(!moved.holds_lock());
    assert_eq!(identity(&own, None).unwrap().identity, moved.identity);
    let odd = dir.path().join("odd");
    fs::create_dir(&odd).unwrap();
    fs::write(odd.join("client-id"), "8cab6b85-ab0f-1241-caf0-feabba75176d").unwrap();
    assert!(matches!(identity(&dir.path().join("other"), Some(&odd)), Err(MoveError::Elsewhere { .. })));
}

#[test]
fn unreadable_client_state_is_an_error() {
    let cut = |length: usize| example()[..length].to_vec();
    let with = |at: usize, bytes: &[u8]| {
        let mut state = example();
        state[at..at + bytes.len()].copy_from_slice(bytes);
        state
    };
    for state in [
        Vec::new(),
        b"something else".to_vec(),
        cut(100),
        cut(7 * PAGE),
        cut(4 * PAGE),
        // A page of unknown kind, one that starts beyond the end, and a key that ends there.
        with(7 * PAGE + 8, &[9, 0]),
        with(6 * PAGE + 0x3a, &[0xff; 4]),
        with(7 * PAGE + 0x1c, &[0xff; 4]),
        with(7 * PAGE + 8, &[1, 0, 0xff, 0xff]),
    ] {
        let error = TestEnv::new(&state).identity().unwrap_err();
        assert!(matches!(error, MoveError::State { .. }), "{error}");
        assert!(error.to_string().contains("remove that file"), "{error}");
    }
}

#[test]
fn a_torn_beginning_is_left_for_the_other_one() {
    let mut state = over();
    // The second meta page is older: nothing was stored yet.
    state[0x40] ^= 1;
    assert!(live(&Bolt::open(&state).unwrap()).unwrap().is_empty());
    state[PAGE + 0x40] ^= 1;
    assert!(Bolt::open(&state).is_err());
}

#[test]
fn damage_anywhere_ends() {
    let whole = example();
    for at in (0..9 * PAGE).filter(|at| whole[*at] != 0) {
        for byte in [0, 1, 0x80, 0xff] {
            let mut state = whole.clone();
            state[at] = byte;
            if let Ok(bolt) = Bolt::open(&state) {
                let _ = live(&bolt);
            }
        }
    }
}
