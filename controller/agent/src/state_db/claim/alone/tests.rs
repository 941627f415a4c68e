//! Holders of an instance's name.

use super::*;

fn claimed() -> (tempfile::TempDir, StateDir, SocketAddrUnix) {
    let dir = tempfile::tempdir().unwrap();
    let state = StateDir::claim(&dir.path().join("state")).unwrap();
    let name = state.name().unwrap();
    (dir, state, name)
}

#[tokio::test]
async fn holder_that_does_not_listen_is_asked_again() {
    let (_dir, state, name) = claimed();
    let holder = stream_socket().unwrap();
    bind(&holder, &name).unwrap();
    // It starts to listen after it has refused once.
    let asked = |name: &SocketAddrUnix| {
        let answer = ask(name);
        if matches!(answer, Answer::Refused) {
            listen(&holder, ASKING_MAX).unwrap();
        }
        answer
    };
    let error = state.take_name(&name, asked).unwrap_err().to_string();
    assert!(error.contains(&format!("another agent (pid {}", std::process::id())), "{error}");
    assert!(error.contains("its name is taken"), "{error}");
}

#[tokio::test]
async fn a_full_queue_is_an_answer_of_a_holder() {
    let (_dir, state, name) = claimed();
    let holder = stream_socket().unwrap();
    bind(&holder, &name).unwrap();
    assert!(matches!(ask(&name), Answer::Refused));
    listen(&holder, 0).unwrap();
    let first = ask(&name);
    assert!(matches!(first, Answer::Ours { pid, .. } if pid == Some(std::process::id())));
    assert!(matches!(ask(&name), Answer::Full));
    let error = state.take_name(&name, ask).unwrap_err();
    assert!(matches!(error, ClaimError::InstanceInUse { .. }), "{error}");
}

/// Like an agent that is not root, whose files `/proc` does not show.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn the_holder_says_where_its_state_is() {
    let (_dir, state, name) = claimed();
    let _held = Name::take(&name, state.path()).unwrap();
    assert_eq!(state.state_dir_of(std::process::id()).as_deref(), Some(state.path()));
    assert_eq!(state.state_dir_of(1), None);
}
