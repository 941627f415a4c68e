//! Who gets credentials, and who does not.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

/// A registry that wants this token, of its own token server at `/token`, which answers with `token`.
async fn with_tokens(token: &'static str) -> StandIn {
    let image = Image::new();
    StandIn::start(move |request| {
        if request.target.starts_with("/token") {
            return Reply::new(200, format!("{{\"token\": \"{token}\", \"expires_in\": 300}}"));
        }
        match request.header("authorization") {
            "Bearer good" => image.answer(request),
            _ => challenge(request),
        }
    })
    .await
}

fn challenge(request: &SentRequest) -> Reply {
    let realm = format!(
        "Bearer realm=\"http://{}/token?a=b\",service=\"reg\",scope=\"repository:other/secret:pull,push\"",
        request.header("host")
    );
    Reply::new(401, r#"{"errors": [{"code": "UNAUTHORIZED"}]}"#).with("WWW-Authenticate", realm)
}

fn with(stand_in: &StandIn, credentials: Option<Credentials>) -> Repository {
    repository(vec![Endpoint { credentials, ..endpoint(stand_in) }])
}

#[tokio::test]
async fn a_token_is_for_pulls_from_the_repository_only_and_shared() {
    let image = Image::new();
    for credentials in [None, password()] {
        let stand_in = with_tokens("good").await;
        let repository = with(&stand_in, credentials.clone());
        resolve(&repository).await.unwrap();
        for index in 0..3 {
            assert!(fetch(&repository, image.layer(index), b"").await.0.is_ok());
        }
        let received = stand_in.received();
        let tokens: Vec<_> = received.iter().filter(|request| request.target.starts_with("/token")).collect();
        assert_eq!(tokens.len(), 1, "one token for all requests");
        assert_eq!(tokens[0].target, "/token?a=b&scope=repository%3Ateam%2Fapp%3Apull&service=reg");
        assert_eq!(tokens[0].header("authorization"), if credentials.is_some() { BASIC } else { "" });
        let is_basic = |request: &&SentRequest| request.header("authorization").starts_with("Basic");
        assert_eq!(received.iter().filter(is_basic).count(), usize::from(credentials.is_some()));
    }
}

#[tokio::test]
async fn requests_that_are_refused_together_fetch_one_token() {
    let image = Image::new();
    let (barrier, refused) = (Arc::new(tokio::sync::Barrier::new(3)), AtomicUsize::new(0));
    let other = image.clone();
    let stand_in = StandIn::start(move |request| {
        if request.target.starts_with("/token") {
            return Reply::new(200, "{\"access_token\": \"good\"}");
        }
        match request.header("authorization") {
            "Bearer good" => other.answer(request),
            _ => {
                assert!(refused.fetch_add(1, Ordering::Relaxed) < 3);
                Reply { barrier: Some(Arc::clone(&barrier)), ..challenge(request) }
            }
        }
    })
    .await;
    let (repository, progress, stop) =
        (of_one(&stand_in), watch::Sender::default(), CancellationToken::new());
    let fetches = (0..3)
        .map(|index| repository.fetch(image.layer(index), tempfile::tempfile().unwrap(), &progress, &stop));
    futures_util::future::try_join_all(fetches).await.unwrap();
    let tokens = stand_in.targets().iter().filter(|target| target.starts_with("/token")).count();
    assert_eq!(tokens, 1);
}

/// A token expires while layers are fetched.
#[tokio::test]
async fn an_expired_token_is_renewed() {
    let (image, given) = (Image::new(), AtomicUsize::new(0));
    let stand_in = StandIn::start(move |request| {
        if request.target.starts_with("/token") {
            return Reply::new(
                200,
                format!("{{\"token\": \"{}\"}}", given.fetch_add(1, Ordering::Relaxed) + 1),
            );
        }
        // Each one is good for two requests.
        match request.header("authorization").strip_prefix("Bearer ") {
            Some(token) if token == given.load(Ordering::Relaxed).to_string() => {
                if request.target.contains("/manifests/sha256") {
                    given.fetch_add(1, Ordering::Relaxed);
                }
                image.answer(request)
            }
            _ => challenge(request),
        }
    })
    .await;
    assert!(resolve(&of_one(&stand_in)).await.is_ok());
}

#[tokio::test]
async fn endless_challenges_end() {
    let stand_in = with_tokens("bad").await;
    let error = resolve(&with(&stand_in, password())).await.unwrap_err();
    assert!(matches!(error, RegistryError::Denied { .. }), "{error}");
    assert_eq!(stand_in.targets().len(), 3, "a request, a token, a request");
    let basic = StandIn::start(|_| Reply::new(401, "").with("WWW-Authenticate", "Basic realm=\"x\"")).await;
    assert!(matches!(resolve(&with(&basic, password())).await, Err(RegistryError::Denied { .. })));
    assert_eq!(basic.targets().len(), 2);
    assert!(matches!(resolve(&of_one(&basic)).await, Err(RegistryError::Denied { .. })));
    assert_eq!(basic.targets().len(), 3, "without credentials there is nothing to try");
    // Neither does a token server itself get another answer.
    let of_server = StandIn::start(challenge).await;
    assert!(matches!(resolve(&with(&of_server, password())).await, Err(RegistryError::Denied { .. })));
    assert_eq!(of_server.targets().len(), 2);
}

#[tokio::test]
async fn passwords_are_sent_where_they_are_demanded() {
    let image = Image::new();
    let stand_in = StandIn::start(move |request| match request.header("authorization") {
        BASIC => image.answer(request),
        _ => Reply::new(401, "").with("WWW-Authenticate", "Basic realm=\"Registry\""),
    })
    .await;
    resolve(&with(&stand_in, password())).await.unwrap();
    let sent: Vec<bool> =
        stand_in.received().iter().map(|request| request.header("authorization") == BASIC).collect();
    assert_eq!(sent, [false, true, true, true]);
}

#[tokio::test]
async fn an_identity_token_is_exchanged() {
    let stand_in = with_tokens("good").await;
    let secret = Secret::IdentityToken("id&entity".to_owned());
    let credentials = Some(Credentials { username: String::new(), secret });
    resolve(&with(&stand_in, credentials)).await.unwrap();
    let received = stand_in.received();
    let token = received.iter().find(|request| request.target.starts_with("/token")).unwrap();
    assert_eq!((&*token.method, token.header("authorization")), ("POST", ""));
    assert_eq!(token.header("content-type"), "application/x-www-form-urlencoded");
    assert_eq!(
        token.body,
        "grant_type=refresh_token&client_id=herdlet&scope=repository%3Ateam%2Fapp%3Apull&refresh_token=id%26entity&service=reg"
    );
    // It is no password.
    let basic = StandIn::start(|_| Reply::new(401, "").with("WWW-Authenticate", "Basic")).await;
    let secret = Secret::IdentityToken("t".to_owned());
    let refused = resolve(&with(&basic, Some(Credentials { username: "u".to_owned(), secret }))).await;
    assert!(matches!(refused, Err(RegistryError::Denied { .. })));
    assert_eq!(basic.targets().len(), 1);
}

#[tokio::test]
async fn bad_answers_of_token_servers_are_refused() {
    let long = "x".repeat(300 * 1024);
    for (reply, expected) in [
        (Reply::new(200, "{}"), "gives no token"),
        (Reply::new(200, "{\"token\": \"\"}"), "gives no token"),
        (Reply::new(200, "{\"token\": \"a\\r\\nHost: b\"}"), "gives no token"),
        (Reply::new(200, "nonsense"), "gives no token"),
        (Reply::new(200, long), "more than the 262144 bytes"),
        (Reply::new(404, ""), "token server does not exist"),
        (Reply::new(302, "").with("Location", "http://127.0.0.1:1/"), "answers 302"),
        (Reply::new(401, ""), "access is denied"),
        (Reply::new(403, r#"{"errors": [{"message": "no plan"}]}"#), "access is denied (no plan)"),
        (Reply { then: Then::Repeat, ..Reply::new(200, " ".repeat(9999)) }, "more than the 262144 bytes"),
    ] {
        let stand_in = StandIn::start(move |request| match request.target.starts_with("/token") {
            true => reply.clone(),
            false => challenge(request),
        })
        .await;
        let error = resolve(&with(&stand_in, password())).await.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        assert_eq!(stand_in.targets().len(), 2);
    }
}

/// The registry could lead a password over the network in the clear, or to anybody in a redirect.
#[tokio::test]
async fn a_registry_with_tls_leads_to_token_servers_with_tls_only() {
    let thief = StandIn::start(|_| Reply::new(200, "{\"token\": \"x\"}")).await;
    let stolen = thief.url.to_string();
    for realm in
        [stolen, "https://user@localhost:1/".to_owned(), "file:///etc/passwd".to_owned(), "x".to_owned()]
    {
        let header = format!("Bearer realm=\"{realm}\"");
        let secure =
            StandIn::start_tls(move |_| Reply::new(401, "").with("WWW-Authenticate", header.clone())).await;
        let authorities = Some(AUTHORITY.to_owned());
        let of_tls = Endpoint { credentials: password(), authorities, ..endpoint(&secure) };
        let error = resolve(&repository(vec![of_tls])).await.unwrap_err();
        assert!(matches!(&error, RegistryError::Protocol { .. }), "{realm}: {error}");
    }
    assert!(thief.targets().is_empty());
}

#[tokio::test]
async fn credentials_follow_no_redirect_to_another_host() {
    let image = Image::new();
    let other = image.clone();
    let store = StandIn::start(move |request| other.answer(request)).await;
    let (store_url, own) = (store.url.clone(), image.clone());
    let stand_in = StandIn::start(move |request| {
        let to = store_url.join(&request.target).unwrap();
        match (request.header("authorization"), request.target.contains("/blobs/")) {
            ("", _) => Reply::new(401, "").with("WWW-Authenticate", "Basic"),
            (_, true) => Reply::new(307, "").with("Location", format!("{to}?signature=secret")),
            (_, false) if request.target.starts_with("/v2/") && !request.target.contains('?') => {
                Reply::new(301, "").with("Location", format!("{}?moved", request.target))
            }
            (_, false) => own.answer(request),
        }
    })
    .await;
    let repository = with(&stand_in, password());
    resolve(&repository).await.unwrap();
    assert!(fetch(&repository, image.layer(0), b"").await.0.is_ok());
    assert_eq!(store.targets().len(), 2);
    for request in store.received() {
        assert_eq!(request.header("authorization"), "");
    }
    let moved = stand_in.received().into_iter().filter(|request| request.target.ends_with("?moved"));
    assert!(moved.map(|request| request.header("authorization").to_owned()).all(|sent| sent == BASIC));
}

/// A store of another one demanded the password, and got it.
#[tokio::test]
async fn another_host_has_no_right_to_a_challenge() {
    let thief = StandIn::start(|_| Reply::new(401, "").with("WWW-Authenticate", "Basic")).await;
    let to = thief.url.to_string();
    let stand_in = StandIn::start(move |_| Reply::new(307, "").with("Location", to.clone())).await;
    let error = resolve(&with(&stand_in, password())).await.unwrap_err();
    assert!(matches!(error, RegistryError::Denied { .. }), "{error}");
    let received = thief.received();
    assert_eq!((received.len(), received[0].header("authorization")), (1, ""));
}

#[tokio::test]
async fn redirects_are_bounded_and_never_less_safe() {
    let stand_in =
        StandIn::start(|request| Reply::new(302, "").with("Location", format!("{}x", request.target))).await;
    let error = resolve(&of_one(&stand_in)).await.unwrap_err().to_string();
    assert!(error.contains("redirects more than 5 times"), "{error}");
    assert_eq!(stand_in.targets().len(), 6);
    let plain = Image::new().serve().await;
    let to = plain.url.to_string();
    let secure = StandIn::start_tls(move |request| {
        Reply::new(302, "").with("Location", format!("{to}{}", request.target))
    })
    .await;
    let of_tls = Endpoint { authorities: Some(AUTHORITY.to_owned()), ..endpoint(&secure) };
    let error = resolve(&repository(vec![of_tls])).await.unwrap_err().to_string();
    assert!(error.contains("from https to an address without"), "{error}");
    assert!(plain.targets().is_empty());
    for location in ["", "http://user:pass@127.0.0.1:1/", "file:///etc/passwd", "http://", "gopher://x/"] {
        let stand_in = StandIn::start(move |_| match location {
            "" => Reply::new(302, ""),
            location => Reply::new(302, "").with("Location", location),
        })
        .await;
        let error = resolve(&of_one(&stand_in)).await.unwrap_err();
        assert!(matches!(error, RegistryError::Protocol { .. }), "{location}: {error}");
    }
}

#[tokio::test]
async fn a_mirror_gets_its_own_credentials_only() {
    let mirror = StandIn::start(|_| Reply::new(401, "").with("WWW-Authenticate", "Basic")).await;
    let registry = with_tokens("good").await;
    let of_registry = Endpoint { credentials: password(), ..endpoint(&registry) };
    resolve(&repository(vec![endpoint(&mirror), of_registry])).await.unwrap();
    assert!(mirror.received().iter().all(|request| request.header("authorization").is_empty()));
    assert!(registry.received().iter().any(|request| request.header("authorization") == BASIC));
}

/// A store's address is signed: a reader of a log would have access.
#[tokio::test]
async fn no_error_shows_a_secret() {
    let stand_in =
        StandIn::start(|_| Reply::new(307, "").with("Location", "http://127.0.0.1:1/x?signature=secret"))
            .await;
    let name = Reference::parse("reg.io/team/app:1").unwrap();
    let of_password = Endpoint { credentials: password(), ..endpoint(&stand_in) };
    let once = Pace { tries: 1, ..pace() };
    let repository = Repository::new(&name, vec![of_password], once).unwrap();
    let error = resolve(&repository).await.unwrap_err();
    assert!(error.is_connection());
    let shown = format!("{error} {error:?} {repository:?}");
    assert!(
        !shown.contains("secret") && !shown.contains("\"pass\"") && !shown.contains("dXNlcjpwYXNz"),
        "{shown}"
    );
}
