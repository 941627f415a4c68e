//! Layers: continued, begun again, checked.

use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::fs::{MemfdFlags, SealFlags};

use super::*;

/// Answers the first requests with `bad`, which gets the number of the request and the honest answer.
async fn lying(number: usize, bad: impl Fn(usize, Reply) -> Reply + Send + Sync + 'static) -> StandIn {
    let (image, answered) = (Image::new(), AtomicUsize::new(0));
    StandIn::start(move |request| match answered.fetch_add(1, Ordering::Relaxed) {
        before if before < number => bad(before, image.answer(request)),
        _ => image.answer(request),
    })
    .await
}

async fn assert_fetched(stand_in: &StandIn, begin: &[u8], expected: &[&str]) {
    let image = Image::new();
    let (fetched, bytes) = fetch(&of_one(stand_in), image.layer(0), begin).await;
    fetched.unwrap();
    assert!(bytes == image.layers[0], "the file has the layer");
    assert_eq!(ranges(stand_in), expected);
}

#[tokio::test]
async fn a_lost_connection_is_continued_where_it_ended() {
    let stand_in =
        lying(2, |number, reply| Reply { cut_at: Some(if number == 0 { 300_000 } else { 7 }), ..reply })
            .await;
    assert_fetched(&stand_in, b"", &["", "bytes=300000-", "bytes=300007-"]).await;
}

#[tokio::test]
async fn a_pull_of_an_earlier_agent_is_continued() {
    let image = Image::new();
    let layer = &image.layers[0];
    let stand_in = image.serve().await;
    assert_fetched(&stand_in, &layer[..1000], &["bytes=1000-"]).await;
    let stand_in = image.serve().await;
    assert_fetched(&stand_in, layer, &[]).await;
    // What is longer than the layer is not a part of it.
    let stand_in = image.serve().await;
    assert_fetched(&stand_in, &[&**layer, b"x"].concat(), &[""]).await;
}

/// A disk or a power cut damaged what was there: every later pull failed.
#[tokio::test]
async fn a_wrong_begin_is_fetched_again() {
    let image = Image::new();
    let mut wrong = image.layers[0].clone();
    wrong[500] ^= 1;
    let stand_in = image.serve().await;
    assert_fetched(&stand_in, &wrong, &[""]).await;
    let stand_in = image.serve().await;
    assert_fetched(&stand_in, &wrong[..2000], &["bytes=2000-", ""]).await;
}

#[tokio::test]
async fn hosts_that_do_not_continue_begin_again() {
    let begin = Image::new().layers[0][..1000].to_vec();
    // It ignores the range.
    let stand_in = StandIn::start({
        let image = Image::new();
        move |request| image.answer(&SentRequest { target: request.target.clone(), ..SentRequest::default() })
    })
    .await;
    assert_fetched(&stand_in, &begin, &["bytes=1000-"]).await;
    // It refuses the range, sends another part, or a part of another content.
    let stand_in = lying(1, |_, _| Reply::new(416, "")).await;
    assert_fetched(&stand_in, &begin, &["bytes=1000-", ""]).await;
    for range in
        ["bytes 0-9/400004", "bytes 1000-1009/77", "bytes 1000-1009", "x", "bytes -", "bytes */400004"]
    {
        let stand_in = lying(1, move |_, _| Reply::new(206, vec![0; 10]).with("Content-Range", range)).await;
        assert_fetched(&stand_in, &begin, &["bytes=1000-", ""]).await;
    }
    let stand_in = lying(1, |_, _| Reply::new(206, vec![0; 10])).await;
    assert_fetched(&stand_in, &begin, &["bytes=1000-", ""]).await;
}

#[tokio::test]
async fn a_part_that_nobody_asked_for_is_refused() {
    let image = Image::new();
    let stand_in =
        StandIn::start(|_| Reply::new(206, vec![0; 10]).with("Content-Range", "bytes 5-14/400004")).await;
    let (fetched, bytes) = fetch(&of_one(&stand_in), image.layer(0), b"").await;
    assert!(matches!(fetched, Err(RegistryError::Protocol { .. })) && bytes.is_empty());
}

#[tokio::test]
async fn a_content_with_another_digest_is_refused_and_removed() {
    let image = Image::new();
    let other = image.clone();
    let stand_in = StandIn::start(move |request| {
        let mut reply = other.answer(request);
        reply.body[9] ^= 1;
        reply
    })
    .await;
    let (fetched, bytes) = fetch(&of_one(&stand_in), image.layer(0), b"").await;
    assert!(
        matches!(&fetched, Err(RegistryError::Corrupt { digest, .. }) if *digest == image.layer(0).digest)
    );
    assert!(bytes.is_empty());
    assert_eq!(ranges(&stand_in), [""], "the same host sends the same again");
    // With a begin from elsewhere it may not be the host's fault: once.
    let (fetched, bytes) = fetch(&of_one(&stand_in), image.layer(0), &image.layers[0][..100]).await;
    assert!(fetched.is_err() && bytes.is_empty());
    assert_eq!(ranges(&stand_in), ["", "bytes=100-", ""]);
}

#[tokio::test]
async fn lying_sizes_are_refused_in_bounds() {
    let image = Image::new();
    // Longer than in the manifest, or without an end.
    let long = |then| {
        let image = Image::new();
        StandIn::start(move |request| {
            let mut reply = image.answer(request);
            reply.body.extend([0; 70_000]);
            Reply { then, ..reply }
        })
    };
    for then in [Then::Close, Then::Repeat] {
        let stand_in = long(then).await;
        let (fetched, bytes) = fetch(&of_one(&stand_in), image.layer(0), b"").await;
        assert!(matches!(fetched, Err(RegistryError::TooLarge { .. })), "{fetched:?}");
        assert!(bytes.is_empty());
        assert_eq!(ranges(&stand_in), [""]);
    }
    // Shorter: it is asked for the rest a few times.
    let stand_in = StandIn::start(|request| match request.header("range") {
        "" => Reply::new(200, "short"),
        _ => Reply::new(206, "").with("Content-Range", "bytes 5-4/400004"),
    })
    .await;
    let (fetched, bytes) = fetch(&of_one(&stand_in), image.layer(0), b"").await;
    assert!(matches!(fetched, Err(RegistryError::Connection { .. })), "{fetched:?}");
    assert_eq!((bytes, ranges(&stand_in).len()), (b"short".to_vec(), 4));
}

/// A host that always begins again, and always loses the connection, would be asked for ever.
#[tokio::test]
async fn tries_without_progress_are_bounded() {
    let image = Image::new();
    let other = image.clone();
    let stand_in = StandIn::start(move |request| {
        let whole = other.answer(&SentRequest { target: request.target.clone(), ..SentRequest::default() });
        Reply { cut_at: Some(300_000), ..whole }
    })
    .await;
    let (fetched, bytes) = fetch(&of_one(&stand_in), image.layer(0), b"").await;
    assert!(matches!(fetched, Err(RegistryError::Connection { .. })), "{fetched:?}");
    assert!(bytes == image.layers[0][..300_000], "what has arrived is kept for the next pull");
    assert_eq!(ranges(&stand_in).len(), 4);
}

#[tokio::test]
async fn a_lost_mirror_is_continued_by_the_registry() {
    let image = Image::new();
    let mirror = lying(100, |_, reply| Reply { cut_at: Some(300_000), ..reply }).await;
    let registry = image.serve().await;
    let both = repository(vec![endpoint(&mirror), endpoint(&registry)]);
    let (fetched, bytes) = fetch(&both, image.layer(0), b"").await;
    assert!(fetched.is_ok() && bytes == image.layers[0]);
    assert_eq!((ranges(&mirror), ranges(&registry)), (vec![String::new()], vec!["bytes=300000-".to_owned()]));
    // One that lies is not: the registry sends everything.
    let mirror = lying(100, |_, mut reply| {
        reply.body[9] ^= 1;
        reply
    })
    .await;
    let registry = image.serve().await;
    let both = repository(vec![endpoint(&mirror), endpoint(&registry)]);
    let (fetched, bytes) = fetch(&both, image.layer(0), b"").await;
    assert!(fetched.is_ok() && bytes == image.layers[0]);
    assert_eq!(ranges(&registry), [""]);
}

/// What an earlier pull had fetched was lost by any mirror with a fault.
#[tokio::test]
async fn faults_do_not_remove_what_is_there() {
    let image = Image::new();
    let begin = &image.layers[0][..1000];
    let faults = [(416, ""), (400, ""), (302, ""), (404, ""), (206, "x")];
    for (status, body) in faults {
        let mirror = lying(100, move |_, _| Reply::new(status, body)).await;
        let registry = image.serve().await;
        let both = repository(vec![endpoint(&mirror), endpoint(&registry)]);
        assert!(fetch(&both, image.layer(0), begin).await.0.is_ok());
        assert_eq!(ranges(&registry), ["bytes=1000-"]);
    }
    let stand_in = lying(100, |_, _| Reply::new(400, "")).await;
    let (fetched, bytes) = fetch(&of_one(&stand_in), image.layer(0), begin).await;
    assert!(matches!(fetched, Err(RegistryError::Protocol { .. })) && bytes == begin);
}

/// Sends a part of each layer and then nothing.
async fn silent() -> StandIn {
    lying(100, |_, reply| match reply.status {
        200 => Reply { cut_at: Some(300_000), then: Then::Silence, ..reply },
        _ => reply,
    })
    .await
}

fn patient(stand_in: &StandIn) -> Repository {
    let pace = Pace { silence_max: Duration::from_secs(3600), ..pace() };
    Repository::new(&Reference::parse("reg.io/team/app:1").unwrap(), vec![endpoint(stand_in)], pace).unwrap()
}

#[tokio::test]
async fn a_cancelled_pull_ends_at_once_and_keeps_what_is_there() {
    let (image, stand_in) = (Image::new(), silent().await);
    let file = tempfile::tempfile().unwrap();
    let (progress, cancelled) = (watch::Sender::default(), CancellationToken::new());
    let clone = file.try_clone().unwrap();
    let repository = patient(&stand_in);
    let cancel = async {
        // More than one block has arrived; the rest never does.
        let mut progress = progress.subscribe();
        progress.wait_for(|progress: &Progress| progress.done_bytes >= 256 * 1024).await.unwrap();
        cancelled.cancel();
    };
    let (fetched, ()) = tokio::join!(repository.fetch(image.layer(0), clone, &progress, &cancelled), cancel);
    assert!(matches!(fetched, Err(RegistryError::Cancelled)));
    let len = file.metadata().unwrap().len();
    assert!((256 * 1024..=300_000).contains(&len), "{len}");
    let again = repository.fetch(image.layer(0), file, &progress, &cancelled).await;
    assert!(matches!(again, Err(RegistryError::Cancelled)));
    assert_eq!(stand_in.targets().len(), 1);
}

#[tokio::test]
async fn an_empty_layer_needs_no_request() {
    let stand_in = Image::new().serve().await;
    let empty = Descriptor { digest: Digest::of_bytes(b""), size: 0 };
    let (fetched, bytes) = fetch(&of_one(&stand_in), empty, b"garbage").await;
    assert!(fetched.is_ok() && bytes.is_empty() && stand_in.targets().is_empty());
    let lie = Descriptor { digest: Digest::of_bytes(b"x"), size: 0 };
    let (fetched, _) = fetch(&of_one(&stand_in), lie, b"").await;
    assert!(matches!(fetched, Err(RegistryError::Corrupt { .. })), "{fetched:?}");
}

#[tokio::test]
async fn a_file_that_cannot_grow_is_emptied() {
    let image = Image::new();
    let stand_in = image.serve().await;
    let file = File::from(rustix::fs::memfd_create("layer", MemfdFlags::ALLOW_SEALING).unwrap());
    std::os::unix::fs::FileExt::write_all_at(&file, &image.layers[0][..1000], 0).unwrap();
    rustix::fs::fcntl_add_seals(&file, SealFlags::GROW).unwrap();
    let progress = watch::Sender::default();
    let clone = file.try_clone().unwrap();
    let error = of_one(&stand_in)
        .fetch(image.layer(0), clone, &progress, &CancellationToken::new())
        .await
        .unwrap_err();
    assert!(matches!(error, RegistryError::Write(_)), "{error}");
    assert_eq!((file.metadata().unwrap().len(), progress.borrow().done_bytes), (0, 0));
    assert_eq!(stand_in.targets().len(), 1, "another try would not help");
}
