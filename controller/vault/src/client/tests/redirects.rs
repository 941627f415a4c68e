//! Redirects: to whom the token is sent.

use std::sync::{Arc, OnceLock};

use super::*;

/// A server that redirects to `location` and reports `leader`.
async fn standby(location: &str, leader: &str) -> StandIn {
    let (location, leader) = (format!("location: {location}"), leader.to_owned());
    StandIn::start(move |request| match &*request.line {
        "GET /v1/sys/leader" => Reply::Json(200, json!({ "ha_enabled": true, "leader_address": leader })),
        _ => Reply::With(307, location.clone(), Value::Null),
    })
    .await
}

async fn active() -> StandIn {
    StandIn::start(|_| Reply::Json(200, auth())).await
}

async fn renew(config: VaultConfig) -> Result<LeaseTerms, VaultError> {
    client(config).renew_token(&token(), Some(Duration::from_secs(60))).await
}

#[tokio::test]
async fn a_redirect_to_the_reported_leader_is_followed() {
    let active = active().await;
    // Of the location only the server is used.
    let location = format!("{}/v1/sys/seal?x=y", active.address);
    let standby = standby(&location, &active.address).await;
    let client = client(config(&standby.address).with_namespace("team").ok().unwrap());
    for _ in 0..2 {
        assert!(client.renew_token(&token(), Some(Duration::from_secs(60))).await.is_ok());
    }
    for request in active.requests() {
        assert_eq!(request.line, "POST /v1/auth/token/renew-self");
        assert_eq!(request.header("x-vault-token"), Some(TOKEN));
        assert_eq!(request.header("x-vault-namespace"), Some("team"));
        assert_eq!(request.json(), json!({ "increment": 60 }));
    }
    let requests = standby.requests();
    let asked: Vec<_> = requests.iter().filter(|request| request.line.ends_with("leader")).collect();
    let [asked] = asked[..] else { panic!("once for each leader") };
    assert_eq!((asked.header("x-vault-token"), asked.header("x-vault-namespace")), (None, None));
}

#[tokio::test]
async fn a_redirect_to_a_configured_peer_is_followed() {
    let active = active().await;
    let standby = standby(&active.address, "").await;
    let config = config(&standby.address).with_peer(&format!("{}/", active.address)).ok().unwrap();
    assert!(renew(config).await.is_ok());
    assert_eq!(standby.lines(), ["POST /v1/auth/token/renew-self"]);
    assert_eq!(active.requests().len(), 1);
}

#[tokio::test]
async fn a_redirect_to_a_stranger_is_not_followed() {
    let (stranger, other) = (active().await, active().await);
    for leader in ["", "x", &other.address] {
        let standby = standby(&stranger.address, leader).await;
        let error = error(renew(config(&standby.address)).await);
        assert!(later(&error) && error.to_string().contains(&stranger.address), "{error}");
    }
    assert!(stranger.requests().is_empty() && other.requests().is_empty());
}

#[tokio::test]
async fn a_log_in_is_not_redirected_to_a_stranger() {
    let stranger = active().await;
    let standby = standby(&stranger.address, "").await;
    let identity = SecretText::new(IDENTITY.to_owned());
    let login = JwtLogin { mount: "jwt", role: None, identity: &identity };
    assert!(client(config(&standby.address)).log_in(login).await.is_err());
    assert!(stranger.requests().is_empty());
}

#[tokio::test]
async fn there_is_one_redirect_for_a_request() {
    let last = active().await;
    let second = standby(&last.address, &last.address).await;
    let first = standby(&second.address, &second.address).await;
    let failed = error(renew(config(&first.address)).await);
    assert!(failed.to_string().ends_with("it redirects again"), "{failed}");
    assert!(last.requests().is_empty());
    // A server that redirects to itself ends too.
    let address: Arc<OnceLock<String>> = Arc::default();
    let own = address.clone();
    let circle =
        StandIn::start(move |_| Reply::With(308, format!("location: {}", own.get().unwrap()), Value::Null))
            .await;
    address.set(circle.address.clone()).unwrap();
    let failed = error(renew(config(&circle.address)).await);
    assert!(failed.to_string().ends_with("it redirects again"), "{failed}");
    assert_eq!(circle.requests().len(), 2);
}

#[tokio::test]
async fn odd_locations_are_refused() {
    let active = active().await;
    let user = active.address.replace("http://", "http://me:pass@");
    for location in
        ["", "/v1/auth/token/renew-self", "//x", "ftp://127.0.0.1/", "unix:///run/x", "\u{fffd}", &user]
    {
        let standby = standby(location, &active.address).await;
        let error = error(renew(config(&standby.address)).await);
        assert!(later(&error) && !error.to_string().contains("pass@"), "{location:?}: {error}");
    }
    for status in [301, 302, 303] {
        let address = active.address.clone();
        let server =
            StandIn::start(move |_| Reply::With(status, format!("location: {address}"), Value::Null)).await;
        assert!(later(&error(renew(config(&server.address)).await)), "{status}");
    }
    assert!(active.requests().is_empty());
}

#[tokio::test]
async fn a_redirect_from_tls_to_plain_text_is_refused() {
    let active = active().await;
    let address = active.address.clone();
    let standby = StandIn::start_tls(move |request| match &*request.line {
        "GET /v1/sys/leader" => Reply::Json(200, json!({ "leader_address": address })),
        _ => Reply::With(307, format!("location: {address}"), Value::Null),
    })
    .await;
    let config = config(&standby.address).with_server_name("server.vault.test").ok().unwrap();
    let error = error(renew(VaultConfig { credentials: credentials(), ..config }).await);
    assert!(error.to_string().contains("has TLS, and this one has not"), "{error}");
    assert!(active.requests().is_empty());
}

#[tokio::test]
async fn a_redirect_between_tls_servers_keeps_name_and_credentials() {
    let active = StandIn::start_tls(|_| Reply::Json(200, auth())).await;
    let address = active.address.clone();
    let standby = StandIn::start_tls(move |request| match &*request.line {
        "GET /v1/sys/leader" => Reply::Json(200, json!({ "leader_address": address })),
        _ => Reply::With(307, format!("location: {address}/v1/x"), Value::Null),
    })
    .await;
    let config = config(&standby.address).with_server_name("server.vault.test").ok().unwrap();
    assert!(renew(VaultConfig { credentials: credentials(), ..config }).await.is_ok());
    let host = active.address.trim_start_matches("https://").to_owned();
    assert_eq!(active.requests()[0].header("host"), Some(&*host));
}

#[tokio::test]
async fn a_socket_is_left_for_no_redirect() {
    let active = active().await;
    let address = active.address.clone();
    let dir = tempfile::tempdir().unwrap();
    let standby = StandIn::start_at(&dir.path().join("vault.sock"), move |_| {
        Reply::With(307, format!("location: {address}"), Value::Null)
    });
    let error = error(renew(config(&standby.address)).await);
    assert!(error.to_string().contains("is a socket"), "{error}");
    assert!(active.requests().is_empty());
}

#[tokio::test]
async fn a_leader_that_hangs_does_not_extend_the_time() {
    let active = active().await;
    let address = active.address.clone();
    let standby = StandIn::start(move |request| match &*request.line {
        "GET /v1/sys/leader" => Reply::Hang,
        _ => Reply::With(307, format!("location: {address}"), Value::Null),
    })
    .await;
    let mut config = config(&standby.address);
    config.timeout = Duration::from_millis(300);
    let error = error(renew(config).await);
    assert!(error.to_string().ends_with("the time is up"), "{error}");
}
