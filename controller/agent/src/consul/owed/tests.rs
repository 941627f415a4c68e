//! Log-outs at a stand-in for Consul.

use std::os::unix::fs::PermissionsExt as _;

use herdlet_vault::{
    lease::{LeaseKind, LeaseTerms},
    secret::SecretText,
};

use super::*;
use crate::{
    consul::fixture::{FakeConsul, consuls, consuls_of},
    held_token::{NewToken, TokenPlace},
};

fn token(text: &str, cluster: &str) -> OwedToken {
    let terms = LeaseTerms { duration: Duration::ZERO, kind: LeaseKind::Endless };
    let place = TokenPlace { cluster: cluster.to_owned(), namespace: None, partition: None };
    let new = NewToken { token: SecretText::new(text.to_owned()), accessor: "a".to_owned(), terms };
    let holder = TokenHolder::Task("t".to_owned());
    OwedToken { alloc: AllocId::from_hash([7; 16]), holder, held: HeldToken::new(new, place) }
}

fn store(parent: &tempfile::TempDir) -> Arc<OwedTokens> {
    Arc::new(OwedTokens::new(parent.path().join("owed")))
}

fn count(store: &OwedTokens) -> usize {
    store.names().unwrap().len()
}

#[tokio::test]
async fn a_token_stays_owed_until_consul_has_answered() {
    let (parent, consul) = (tempfile::tempdir().unwrap(), FakeConsul::start().await);
    let store = store(&parent);
    assert!(store.log_out_of(consul.cluster()).await);
    consul.add("s-1");
    store.add(token("s-1", "default")).unwrap();
    let away = consuls("http://127.0.0.1:1");
    assert!(!store.log_out_of(away.cluster("default").unwrap()).await);
    // Agents of Consul answer the first while there is no leader, the third in case of another fault.
    for (status, body) in [
        (500, "No cluster leader"),
        (502, "from a proxy"),
        (500, "unknown"),
        (429, "too many"),
        (404, "a proxy's"),
    ] {
        consul.answer("/v1/acl/logout", status, body);
        assert!(!store.log_out_of(consul.cluster()).await, "{status}");
        assert_eq!(count(&store), 1, "{status}");
    }
    consul.recover();
    assert!(store.log_out_of(consul.cluster()).await);
    assert_eq!(count(&store), 0);
    assert_eq!(consul.requests().pop().as_deref(), Some("POST /v1/acl/logout s-1"));
}

#[tokio::test]
async fn an_answer_is_final_if_consul_refuses_or_has_no_such_token() {
    let (parent, consul) = (tempfile::tempdir().unwrap(), FakeConsul::start().await);
    let store = store(&parent);
    store.add(token("unknown", "default")).unwrap();
    assert!(store.log_out_of(consul.cluster()).await);
    consul.answer("/v1/acl/logout", 403, "Permission denied");
    store.add(token("s-1", "default")).unwrap();
    assert!(store.log_out_of(consul.cluster()).await);
    assert_eq!((count(&store), consul.requests().len()), (0, 2));
}

#[tokio::test]
async fn the_first_request_without_an_answer_ends_a_pass() {
    let parent = tempfile::tempdir().unwrap();
    let (store, consul) = (store(&parent), FakeConsul::start().await);
    consul.answer("/v1/acl/logout", 500, "No cluster leader");
    for text in ["s-1", "s-2", "s-3"] {
        store.add(token(text, "default")).unwrap();
    }
    assert!(!store.log_out_of(consul.cluster()).await);
    assert_eq!((count(&store), consul.requests().len()), (3, 1));
    // A failure that concerns one token only delays no other.
    consul.answer("/v1/acl/logout", 500, "unknown");
    assert!(!store.log_out_of(consul.cluster()).await);
    assert_eq!((count(&store), consul.requests().len()), (3, 3));
}

#[tokio::test]
async fn a_file_that_cannot_be_read_is_kept() {
    let parent = tempfile::tempdir().unwrap();
    let (store, consul) = (store(&parent), FakeConsul::start().await);
    store.add(token("s-1", "default")).unwrap();
    let file = parent.path().join("owed").join(store.names().unwrap().pop().unwrap());
    // A directory can't be read as a file, by root either.
    std::fs::rename(&file, parent.path().join("away")).unwrap();
    std::fs::create_dir(&file).unwrap();
    assert!(!store.log_out_of(consul.cluster()).await);
    std::fs::remove_dir(&file).unwrap();
    std::fs::rename(parent.path().join("away"), &file).unwrap();
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    // Nothing can be done about a damaged one.
    std::fs::write(&file, "{").unwrap();
    assert!(store.log_out_of(consul.cluster()).await);
    assert_eq!((count(&store), consul.requests().len()), (0, 0));
}

/// A name that the config lacked for a while lost its tokens, which stayed valid in Consul.
#[tokio::test]
async fn a_token_of_a_consul_that_the_config_lacks_stays_owed() {
    let (parent, consul) = (tempfile::tempdir().unwrap(), FakeConsul::start().await);
    let store = store(&parent);
    store.add(token("s-1", "eu")).unwrap();
    store.add(token("s-2", "default")).unwrap();
    store.warn_of_unknown(&consul.consuls).await;
    assert!(store.log_out_of(consul.cluster()).await);
    assert_eq!((count(&store), consul.requests()), (1, vec!["POST /v1/acl/logout s-2".to_owned()]));
}

/// A Consul that hung delayed the log-outs at the others.
#[tokio::test]
async fn a_consul_that_hangs_delays_no_other() {
    let (parent, consul) = (tempfile::tempdir().unwrap(), FakeConsul::start().await);
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let settings =
        [("default", consul.address.clone()), ("eu", format!("http://{}", silent.local_addr().unwrap()))];
    let store = store(&parent);
    store.add(token("s-1", "eu")).unwrap();
    let following = Arc::clone(&store).follow(consuls_of(&settings));
    let others_end = async {
        // The other Consul has a request that is never answered.
        let _hanging = silent.accept().await.unwrap();
        store.add(token("s-2", "default")).unwrap();
        while consul.requests().is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::select! {
        () = following => {}
        () = others_end => {}
    }
    assert!(count(&store) >= 1);
}

#[tokio::test]
async fn a_token_is_owed_with_its_replacement() {
    let (parent, consul) = (tempfile::tempdir().unwrap(), FakeConsul::start().await);
    let store = store(&parent);
    let mut both = token("s-1", "default");
    both.held.next = Some(Box::new(token("s-2", "default").held));
    store.add(both).unwrap();
    assert_eq!(count(&store), 2);
    assert!(store.log_out_of(consul.cluster()).await);
    let mut requests = consul.requests();
    requests.sort();
    assert_eq!(requests, ["POST /v1/acl/logout s-1", "POST /v1/acl/logout s-2"]);
}

#[test]
fn an_issued_token_that_nobody_takes_is_owed() {
    let parent = tempfile::tempdir().unwrap();
    let store = store(&parent);
    let issued = |text| IssuedToken::new(Arc::clone(&store), token(text, "default"));
    assert_eq!((issued("s-1").take().reveal(), count(&store)), ("s-1", 0));
    drop(issued("s-2"));
    assert_eq!(count(&store), 1);
}

#[tokio::test(start_paused = true)]
async fn another_token_ends_a_pause() {
    let parent = tempfile::tempdir().unwrap();
    let store = store(&parent);
    let mut changes = store.changed.subscribe();
    let begun = tokio::time::Instant::now();
    store.add(token("s-1", "default")).unwrap();
    rest(RETRY_LONGEST, &mut changes).await;
    assert_eq!(begun.elapsed(), Duration::ZERO);
    rest(RETRY_FIRST, &mut changes).await;
    assert!(begun.elapsed() >= RETRY_FIRST);
}
