//! Log-ins and replacements at a stand-in for Consul.

use std::sync::Mutex;

use herdlet_vault::lease::{LeaseKind, LeaseTerms};

use super::*;
use crate::{consul::fixture::FakeConsul, held_token::NewToken};

/// A holder, and what it has stored.
#[derive(Default)]
struct Memory {
    kept: Mutex<Vec<String>>,
    is_full: bool,
}

impl Keeper for Memory {
    async fn bearer(&self) -> Result<SecretText, Refusal> {
        Ok(SecretText::new("jwt".to_owned()))
    }

    async fn keep(&self, held: &HeldToken) -> Result<(), Refusal> {
        if self.is_full {
            return Err(Refusal::retry("keep the token: no space".to_owned()));
        }
        let next = held.next.as_ref().map(|next| format!(", then {}", next.reveal())).unwrap_or_default();
        self.kept.lock().unwrap().push(format!("{}{next}", held.reveal()));
        Ok(())
    }
}

impl Memory {
    fn full() -> Self {
        Self { is_full: true, ..Self::default() }
    }

    fn kept(&self) -> Vec<String> {
        self.kept.lock().unwrap().clone()
    }
}

struct Ground {
    consul: FakeConsul,
    owed: Arc<OwedTokens>,
    parent: tempfile::TempDir,
}

impl Ground {
    async fn start() -> Self {
        let parent = tempfile::tempdir().unwrap();
        let owed = Arc::new(OwedTokens::new(parent.path().join("owed")));
        Self { consul: FakeConsul::start().await, owed, parent }
    }

    fn session(&self) -> Session<'_> {
        Session {
            owed: &self.owed,
            cluster: self.consul.cluster(),
            place: place(),
            method: "m",
            holder: Holder {
                alloc: AllocId::from_hash([7; 16]),
                name: TokenHolder::Service("web".to_owned()),
            },
            replacement_max: Duration::from_secs(60),
        }
    }

    /// The owed tokens.
    fn owed(&self) -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(self.parent.path().join("owed")) else { return Vec::new() };
        let read = |path| serde_json::from_slice::<OwedToken>(&std::fs::read(path).unwrap()).unwrap();
        let mut owed: Vec<String> =
            entries.map(|entry| read(entry.unwrap().path()).held.reveal().to_owned()).collect();
        owed.sort();
        owed
    }
}

fn place() -> TokenPlace {
    TokenPlace { cluster: "default".to_owned(), namespace: None, partition: None }
}

/// A token that Consul has accepted.
fn held(text: &str, kind: LeaseKind) -> HeldToken {
    let terms = LeaseTerms { duration: Duration::from_secs(3_600), kind };
    let new = NewToken { token: SecretText::new(text.to_owned()), accessor: "a".to_owned(), terms };
    HeldToken::new(new, place())
}

/// One that expires soon.
fn expiring(text: &str) -> HeldToken {
    let mut expiring = held(text, LeaseKind::Fixed).lost();
    expiring.failure = None;
    expiring
}

/// Each try issued another token, and forgot it.
#[tokio::test]
async fn a_later_try_confirms_the_replacement() {
    let (ground, memory) = (Ground::start().await, Memory::default());
    ground.consul.answer("/v1/acl/token/self", 502, "from a proxy");
    let ensured = ground.session().ensure(Some(expiring("old")), &memory).await.unwrap();
    assert_eq!(ensured.reveal(), "old");
    let why = ensured.failure.as_deref().unwrap();
    assert!(why.contains("502 Bad Gateway: from a proxy"), "{why}");
    // What the next agent finds.
    assert_eq!((memory.kept(), ground.owed()), (vec!["old, then s-1".to_owned()], Vec::new()));
    let mut due = ensured;
    due.lease = expiring("").lease;
    let found: HeldToken = serde_json::from_slice(&serde_json::to_vec(&due).unwrap()).unwrap();
    ground.consul.recover();
    ground.consul.requests();
    let ensured = ground.session().ensure(Some(found), &memory).await.unwrap();
    assert_eq!((ensured.reveal(), ensured.confirmation), ("s-1", Confirmation::Given));
    assert!(ensured.next.is_none() && ground.owed().is_empty());
    assert_eq!(ground.consul.requests(), ["GET /v1/acl/token/self s-1"]);
}

#[tokio::test]
async fn a_replacement_that_consul_has_deleted_is_owed() {
    let (ground, memory) = (Ground::start().await, Memory::default());
    let mut old = expiring("old");
    old.next = Some(Box::new(held("gone", LeaseKind::Endless)));
    let ensured = ground.session().ensure(Some(old), &memory).await.unwrap();
    assert_eq!((ensured.reveal(), ensured.next.is_none()), ("old", true));
    assert_eq!(ground.owed(), ["gone"]);
    let mut due = ensured;
    due.lease = expiring("").lease;
    let ensured = ground.session().ensure(Some(due), &memory).await.unwrap();
    assert_eq!(ensured.reveal(), "s-1");
}

/// Each try found the dead replacement of the first token again.
#[tokio::test]
async fn a_first_token_that_nothing_uses_is_not_replaced_but_owed() {
    let (ground, memory) = (Ground::start().await, Memory::default());
    let mut first = expiring("first");
    first.confirmation = Confirmation::Awaited;
    first.next = Some(Box::new(held("gone", LeaseKind::Endless)));
    let ensured = ground.session().ensure(Some(first), &memory).await.unwrap();
    assert_eq!((ensured.reveal(), memory.kept()), ("s-1", vec!["s-1".to_owned()]));
    assert_eq!(ground.owed(), ["first", "gone"]);
}

/// It was in use while it was logged out: the agent had ended between the two steps of its release.
#[tokio::test]
async fn a_released_token_is_never_used_again() {
    let (ground, memory) = (Ground::start().await, Memory::default());
    ground.consul.add("old");
    let released = held("old", LeaseKind::Endless).released();
    let ensured = ground.session().ensure(Some(released), &memory).await.unwrap();
    assert_eq!((ensured.reveal(), ground.owed()), ("s-1", vec!["old".to_owned()]));
}

#[tokio::test]
async fn a_replacement_that_cannot_be_kept_is_logged_out() {
    let ground = Ground::start().await;
    let ensured = ground.session().ensure(Some(expiring("old")), &Memory::full()).await.unwrap();
    assert_eq!((ensured.reveal(), ground.owed()), ("old", vec!["s-1".to_owned()]));
    assert_eq!(ensured.failure.as_deref(), Some("keep the token: no space"));
    // The first token of a holder too.
    let refusal = ground.session().ensure(None, &Memory::full()).await.err().unwrap();
    assert_eq!(refusal.why, "keep the token: no space");
    assert_eq!(ground.owed(), ["s-1", "s-2"]);
}

#[tokio::test]
async fn a_replacement_that_cannot_be_stored_is_logged_out_at_once() {
    let ground = Ground::start().await;
    std::fs::write(ground.parent.path().join("owed"), "no directory").unwrap();
    for held in [Some(expiring("old")), None] {
        ground.consul.requests();
        let _ = ground.session().ensure(held, &Memory::full()).await;
        let requests = ground.consul.requests();
        let [login, logout] = &requests[..] else { panic!("{requests:?}") };
        assert!(
            login == "POST /v1/acl/login" && logout.starts_with("POST /v1/acl/logout s-"),
            "{requests:?}"
        );
    }
}

/// A process has the old one in its environment, and Consul's entries are registered with it.
#[tokio::test]
async fn a_token_that_expires_soon_is_replaced_and_ends_by_itself() {
    let (ground, memory) = (Ground::start().await, Memory::default());
    ground.consul.add("old");
    let ensured = ground.session().ensure(Some(expiring("old")), &memory).await.unwrap();
    assert_eq!((ensured.reveal(), ensured.confirmation), ("s-1", Confirmation::Given));
    assert_eq!((memory.kept(), ground.owed()), (vec!["old, then s-1".to_owned()], Vec::new()));
    assert_eq!(ground.consul.requests(), ["POST /v1/acl/login", "GET /v1/acl/token/self s-1"]);
}

#[tokio::test]
async fn a_token_that_consul_has_deleted_is_owed_before_the_log_in() {
    let (ground, memory) = (Ground::start().await, Memory::default());
    ground.consul.answer("/v1/acl/login", 403, "Permission denied");
    let ensured = ground.session().ensure(Some(held("old", LeaseKind::Endless)), &memory).await.unwrap();
    assert_eq!((ensured.reveal(), ground.owed()), ("old", vec!["old".to_owned()]));
    assert!(matches!(ensured.lease.step(boot_now()), Step::Wait { .. }), "it is tried again later");
    ground.consul.requests();
    let ensured = ground.session().ensure(Some(ensured), &memory).await.unwrap();
    assert_eq!((ensured.reveal(), ground.consul.requests()), ("old", Vec::new()), "it is not verified again");
    ground.consul.recover();
    let ensured = ground.session().ensure(Some(held("old", LeaseKind::Endless)), &memory).await.unwrap();
    assert_eq!((ensured.reveal(), memory.kept()), ("s-1", vec!["old, then s-1".to_owned()]));
}

#[tokio::test]
async fn only_a_denial_or_the_token_itself_confirms_it() {
    let ground = Ground::start().await;
    for (status, body, is_confirmed) in [
        (200, "{}", true),
        (403, "Permission denied", true),
        (401, "ACL support disabled", true),
        (500, "unknown", false),
        (502, "from a proxy", false),
        (404, "not Consul", false),
    ] {
        let memory = Memory::default();
        ground.consul.answer("/v1/acl/token/self", status, body);
        let result = ground.session().ensure(None, &memory).await;
        assert_eq!(result.is_ok(), is_confirmed, "{status} {body}");
        assert_eq!(memory.kept().len(), 1, "{status} {body}");
    }
    assert!(ground.owed().is_empty());
}

#[tokio::test]
async fn a_later_try_confirms_the_first_token() {
    let (ground, memory) = (Ground::start().await, Memory::default());
    let mut first = held("s-1", LeaseKind::Endless);
    first.confirmation = Confirmation::Awaited;
    ground.consul.answer("/v1/acl/token/self", 500, "No cluster leader");
    assert!(ground.session().ensure(Some(first.clone()), &memory).await.is_err(), "it is of no use yet");
    ground.consul.recover();
    ground.consul.add("s-1");
    let ensured = ground.session().ensure(Some(first), &memory).await.unwrap();
    assert_eq!((ensured.reveal(), ensured.confirmation), ("s-1", Confirmation::Given));
    // One that is in use stays in use while Consul gives no answer.
    ground.consul.answer("/v1/acl/token/self", 500, "No cluster leader");
    assert!(ground.session().ensure(Some(ensured), &memory).await.is_ok());
    assert!(ground.owed().is_empty());
}

#[tokio::test]
async fn a_replacement_that_takes_long_is_kept_for_a_later_try() {
    let (ground, memory) = (Ground::start().await, Memory::default());
    // The agent does not know the new token.
    ground.consul.answer("/v1/acl/token/self", 403, "ACL not found");
    let mut session = ground.session();
    session.replacement_max = Duration::from_secs(2);
    let ensured = session.ensure(Some(expiring("old")), &memory).await.unwrap();
    assert_eq!(ensured.failure.as_deref(), Some("log in: no answer in time"));
    assert_eq!(ensured.next.map(|next| next.reveal().to_owned()).as_deref(), Some("s-1"));
    assert_eq!((memory.kept(), ground.owed()), (vec!["old, then s-1".to_owned()], Vec::new()));
}
