//! Finding an image: documents, mirrors, errors of hosts, pauses.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

#[tokio::test]
async fn an_image_is_found_by_tag_and_by_digest() {
    let image = Image::new();
    let stand_in = image.serve().await;
    let found = resolve(&of_one(&stand_in)).await.unwrap();
    assert_eq!((&found.digest, &*found.config.cmd), (&image.index, &["/x".to_owned()][..]));
    let digests: Vec<&Digest> = found.manifest.layers.iter().map(|layer| &layer.descriptor.digest).collect();
    assert_eq!(digests, found.config.diff_ids.iter().collect::<Vec<_>>());
    let accept = stand_in.received()[0].header("accept").to_owned();
    assert!(accept.contains(INDEX) && accept.contains(MANIFEST) && accept.contains("docker"), "{accept}");
    for digest in [&image.index, &image.manifest] {
        let name = Reference::parse(&format!("reg.io/team/app@{digest}")).unwrap();
        let by_digest = Repository::new(&name, vec![endpoint(&stand_in)], pace()).unwrap();
        let same = resolve(&by_digest).await.unwrap();
        assert_eq!((&same.digest, &same.manifest), (digest, &found.manifest));
    }
}

#[tokio::test]
async fn what_a_registry_does_not_have_is_missing() {
    let stand_in = Image::new().serve().await;
    let name = Reference::parse("reg.io/team/app:2").unwrap();
    let other = Repository::new(&name, vec![endpoint(&stand_in)], pace()).unwrap();
    let error = resolve(&other).await.unwrap_err();
    assert!(
        matches!(error, RegistryError::Missing { .. }) && error.to_string().contains("manifest unknown"),
        "{error}"
    );
    assert_eq!(stand_in.targets().len(), 1, "it is not asked again");
}

#[tokio::test]
async fn a_document_with_another_digest_is_refused() {
    let image = Image::new();
    let other = image.clone();
    let stand_in = StandIn::start(move |request| {
        let mut reply = other.answer(request);
        if request.target.contains("manifests/sha256") {
            reply.body.push(b' ');
        }
        reply
    })
    .await;
    let error = resolve(&of_one(&stand_in)).await.unwrap_err();
    assert!(matches!(&error, RegistryError::Corrupt { digest, .. } if *digest == image.manifest), "{error}");
    let other = image.clone();
    let stand_in = StandIn::start(move |request| match request.target.contains("/blobs/") {
        true => Reply::new(200, other.answer(request).body.to_ascii_uppercase()),
        false => other.answer(request),
    })
    .await;
    let error = resolve(&of_one(&stand_in)).await.unwrap_err();
    assert!(matches!(&error, RegistryError::Corrupt { .. }), "{error}");
}

#[tokio::test]
async fn endless_documents_end() {
    let stand_in =
        StandIn::start(|_| Reply { then: Then::Repeat, ..Reply::new(200, " ".repeat(65536)) }).await;
    let error = resolve(&of_one(&stand_in)).await.unwrap_err();
    assert!(matches!(error, RegistryError::TooLarge { max: DOCUMENT_BYTES_MAX, .. }), "{error}");
    // The text of an error, too.
    let stand_in =
        StandIn::start(|_| Reply { then: Then::Repeat, ..Reply::new(404, " ".repeat(65536)) }).await;
    let error = resolve(&of_one(&stand_in)).await.unwrap_err();
    assert!(matches!(error, RegistryError::Missing { .. }), "{error}");
}

/// Each index leads to the next one by a digest that is right: only the depth ends it.
#[tokio::test]
async fn nested_indexes_are_bounded() {
    let mut documents = Vec::new();
    let mut inner = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": []}).to_string();
    for _ in 0..20 {
        let digest = Digest::of_bytes(inner.as_bytes());
        let outer = json!({"schemaVersion": 2, "mediaType": INDEX,
            "manifests": [{"mediaType": INDEX, "digest": digest.as_str(), "size": inner.len()}]});
        documents.push((format!("/v2/team/app/manifests/{digest}"), inner));
        inner = outer.to_string();
    }
    documents.push(("/v2/team/app/manifests/1".to_owned(), inner));
    let documents: BTreeMap<String, String> = documents.into_iter().collect();
    let stand_in = StandIn::start(move |request| Reply::new(200, documents[&request.target].clone())).await;
    let error = resolve(&of_one(&stand_in)).await.unwrap_err().to_string();
    assert!(error.contains("indexes in indexes"), "{error}");
    assert_eq!(stand_in.targets().len(), INDEX_DEPTH_MAX + 2);
}

/// Answers with `first` so often, and then honestly.
async fn after(number: usize, first: Reply) -> StandIn {
    let (image, answered) = (Image::new(), AtomicUsize::new(0));
    StandIn::start(move |request| match answered.fetch_add(1, Ordering::Relaxed) {
        before if before < number => first.clone(),
        _ => image.answer(request),
    })
    .await
}

#[tokio::test]
async fn faults_of_a_host_are_tried_again_a_few_times() {
    for reply in [
        Reply::new(503, ""),
        Reply::new(500, "").with("Retry-After", "0"),
        Reply::new(429, "").with("Retry-After", "Wed, 21 Oct 2015 07:28:00 GMT"),
        Reply { cut_at: Some(3), ..Reply::new(200, "{\"schemaVersion\"") },
    ] {
        let stand_in = after(3, reply.clone()).await;
        assert!(resolve(&of_one(&stand_in)).await.is_ok());
        let stand_in = after(100, reply).await;
        assert!(resolve(&of_one(&stand_in)).await.is_err());
        assert_eq!(stand_in.targets().len(), 4);
    }
}

#[tokio::test]
async fn a_host_that_demands_a_long_pause_has_failed_at_once() {
    let body = r#"{"errors": [{"code": "TOOMANYREQUESTS"}]}"#;
    let stand_in = after(1, Reply::new(429, body).with("Retry-After", "3600")).await;
    let error = resolve(&of_one(&stand_in)).await.unwrap_err();
    let hour = Some(Duration::from_secs(3600));
    assert!(matches!(&error, RegistryError::Throttled { after, .. } if *after == hour), "{error}");
    assert!(error.to_string().ends_with("try again in 3600 s"), "{error}");
    assert_eq!(stand_in.targets().len(), 1);
}

#[tokio::test]
async fn a_silent_host_is_given_up() {
    let stand_in =
        StandIn::start(|_| Reply { then: Then::Silence, ..Reply::new(200, "{").with("Content-Length", "9") })
            .await;
    let name = Reference::parse("reg.io/team/app:1").unwrap();
    let pace = Pace { tries: 2, silence_max: Duration::from_millis(50), ..pace() };
    let repository = Repository::new(&name, vec![endpoint(&stand_in)], pace).unwrap();
    let error = resolve(&repository).await.unwrap_err();
    assert!(error.is_connection() && error.to_string().contains("has sent nothing"), "{error}");
    assert_eq!(stand_in.targets().len(), 2);
}

#[tokio::test]
async fn mirrors_come_first_and_may_fail() {
    let image = Image::new();
    let (mirror, registry) = (image.serve().await, image.serve().await);
    let both = |mirror: &StandIn| repository(vec![endpoint(mirror), endpoint(&registry)]);
    assert!(resolve(&both(&mirror)).await.is_ok());
    assert_eq!((mirror.targets().len(), registry.targets().len()), (3, 0));
    for reply in [
        Reply::new(404, ""),
        Reply::new(401, ""),
        Reply::new(500, ""),
        Reply::new(429, ""),
        Reply::new(302, ""),
        Reply::new(200, "<html>Please log in</html>").with("Content-Type", "text/html"),
        Reply { cut_at: Some(0), ..Reply::new(200, "{}") },
    ] {
        let mirror = after(1, reply).await;
        assert!(resolve(&both(&mirror)).await.is_ok());
    }
    // One that is gone is not asked again.
    let gone = StandIn::start(|_| Reply { then: Then::Nothing, ..Reply::default() }).await;
    assert!(resolve(&both(&gone)).await.is_ok());
    assert_eq!(gone.targets().len(), 1);
}

#[tokio::test]
async fn the_registry_has_the_last_word() {
    let (mirror, registry) = (StandIn::start(|_| Reply::new(500, "")).await, Image::new().serve().await);
    let name = Reference::parse("reg.io/team/app:2").unwrap();
    let both = Repository::new(&name, vec![endpoint(&mirror), endpoint(&registry)], pace()).unwrap();
    assert!(matches!(resolve(&both).await, Err(RegistryError::Missing { .. })));
    let none = Repository::new(&name, Vec::new(), pace()).unwrap();
    assert!(matches!(resolve(&none).await, Err(RegistryError::NoHost)));
}

#[test]
fn hosts_of_registries() {
    let urls = |registry: &str| {
        let endpoints = Endpoint::of_registry(registry, None, Transport::Secure).unwrap();
        endpoints.iter().map(|endpoint| endpoint.url.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(urls("docker.io"), ["https://registry-1.docker.io/"]);
    assert_eq!(urls("quay.io"), ["https://quay.io/"]);
    for host in ["localhost:5000", "127.0.0.1:5000", "127.1.2.3:80", "[::1]:5000"] {
        assert_eq!(urls(host).len(), 2, "{host}");
    }
    assert_eq!(urls("10.0.0.1:5000"), ["https://10.0.0.1:5000/"]);
    for url in ["https://x/y", "ftp://x/", "https://u:p@x/", "https://x/?a=b"] {
        let endpoint = Endpoint { url: Url::parse(url).unwrap(), credentials: None, authorities: None };
        let name = Reference::parse("x").unwrap();
        let refused = Repository::new(&name, vec![endpoint], pace()).unwrap_err().to_string();
        assert!(refused.contains("must be a host") && !refused.contains("u:p"), "{refused}");
    }
}

/// Docker's registry image has no TLS by default.
#[tokio::test]
async fn a_registry_on_this_machine_may_be_without_tls() {
    let plain = Image::new().serve().await;
    let port = plain.url.port().unwrap();
    let of_port =
        |registry: String| repository(Endpoint::of_registry(&registry, None, Transport::Secure).unwrap());
    assert!(resolve(&of_port(format!("127.0.0.1:{port}"))).await.is_ok());
    // With TLS, the reason is that of TLS.
    let secure = StandIn::start_tls(|_| Reply::new(404, "")).await;
    let untrusted = of_port(format!("localhost:{}", secure.url.port().unwrap()));
    let error = resolve(&untrusted).await.unwrap_err().to_string();
    assert!(error.contains("certificate"), "{error}");
    assert!(secure.targets().iter().all(|target| target == "without TLS"));
}

/// A lost connection is no reason to send passwords without TLS.
#[tokio::test]
async fn a_registry_with_tls_is_never_asked_without() {
    let (image, answered) = (Image::new(), AtomicUsize::new(0));
    let layer = image.layer(0);
    let secure = StandIn::start_tls(move |request| match answered.fetch_add(1, Ordering::Relaxed) {
        1 => Reply { then: Then::Nothing, ..Reply::default() },
        4 => Reply { cut_at: Some(300_000), ..image.answer(request) },
        _ => image.answer(request),
    })
    .await;
    let mut plain = secure.url.clone();
    plain.set_scheme("http").unwrap();
    let with_tls = Endpoint { authorities: Some(AUTHORITY.to_owned()), ..endpoint(&secure) };
    let without = Endpoint { url: plain, credentials: password(), authorities: None };
    let pair = repository(vec![with_tls, without]);
    assert!(resolve(&pair).await.is_ok());
    assert!(fetch(&pair, layer, b"").await.0.is_ok());
    // Neither is an answer a reason.
    let name = Reference::parse("reg.io/team/app:2").unwrap();
    let error = resolve(&Repository { image: name, ..pair }).await.unwrap_err();
    assert!(matches!(error, RegistryError::Missing { .. }), "{error}");
    assert!(!secure.targets().contains(&"without TLS".to_owned()), "{:?}", secure.targets());
}

#[tokio::test]
async fn own_authorities_are_trusted_where_they_are_named() {
    let image = Image::new();
    let secure = StandIn::start_tls(move |request| image.answer(request)).await;
    let authorities = Some(AUTHORITY.to_owned());
    assert!(resolve(&repository(vec![Endpoint { authorities, ..endpoint(&secure) }])).await.is_ok());
    let refused = resolve(&of_one(&secure)).await.unwrap_err().to_string();
    assert!(refused.contains("certificate"), "{refused}");
    let broken = Endpoint {
        authorities: Some(b"-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n".to_vec()),
        ..endpoint(&secure)
    };
    let name = Reference::parse("x").unwrap();
    assert!(matches!(Repository::new(&name, vec![broken], pace()), Err(RegistryError::Client { .. })));
}
