//! Pulls from registries.

use super::*;

#[tokio::test]
async fn an_image_is_pulled_once_and_found_without_its_registry() {
    if !is_root() {
        return;
    }
    let image = MadeImage::new("app", &[base(), upper(), base()]);
    let registry = serve(&[("team/app:1", &image)]).await;
    let test = TestStore::new();
    assert_eq!(test.store.find(&reference("team/app:1")).unwrap(), None);
    let progress = watch::Sender::default();
    let pulled =
        test.store.pull(order(&registry, "team/app:1"), &progress, &CancellationToken::new()).await.unwrap();
    assert_eq!((&pulled.id, &pulled.digest), (&image.id(), &Some(image.digest())));
    assert_eq!(pulled.config.cmd, ["app"]);
    let by_digest = format!("reg.io/team/app@{}", image.digest());
    assert_eq!(pulled.names, ["reg.io/team/app:1".to_owned(), by_digest.clone()]);
    let size = |index: usize| u64::try_from(image.layers[index].len()).unwrap();
    let reached = *progress.borrow();
    assert_eq!((reached.done_bytes, reached.layers), (size(0) + size(1), 2));
    assert_eq!(test.contents(), [2, 0, 0]);
    // The layers, the lowest one first.
    let [lower, upper, again] = pulled.layers.as_slice() else { panic!("{:?}", pulled.layers) };
    assert_eq!(lower, again);
    assert_eq!(fs::read(lower.join("bin/sh")).unwrap(), noise(200_000));
    let mark = fs::symlink_metadata(upper.join("bin/sh")).unwrap();
    assert!(mark.file_type().is_char_device() && mark.rdev() == 0);
    assert_eq!(pulled.bytes, 200_000 + 5 + 200_000);

    let requests = registry.received().len();
    drop(registry);
    for name in [reference("team/app:1"), Reference::parse(&by_digest).unwrap()] {
        assert_eq!(test.again().find(&name).unwrap().as_ref(), Some(&pulled), "{name}");
    }
    assert_eq!(test.store.find_id(&image.id()).unwrap().as_ref(), Some(&pulled));
    assert_eq!(test.store.find(&reference("team/app:2")).unwrap(), None);
    assert_eq!(test.store.verify().unwrap(), []);
    // The manifest, the config, two layers.
    assert_eq!(requests, 4);
}

#[tokio::test]
async fn a_registry_that_is_down_is_an_error_of_its_own() {
    if !is_root() {
        return;
    }
    let image = MadeImage::new("app", &[base()]);
    let test = TestStore::new();
    let registry = serve(&[("team/app:1", &image)]).await;
    test.pull(&registry, "team/app:1").await.unwrap();
    let missing = test.pull(&registry, "team/app:2").await.unwrap_err();
    assert!(!missing.is_unavailable(), "{missing}");
    drop(registry);
    for status in [429, 503] {
        let down = StandIn::start(move |_| Reply::new(status, "").with("Retry-After", "3600")).await;
        let error = test.pull(&down, "team/app:1").await.unwrap_err();
        assert!(error.is_unavailable(), "{error}");
    }
    let silent = StandIn::start(|_| Reply { then: Then::Nothing, ..Reply::default() }).await;
    let error = test.pull(&silent, "team/app:1").await.unwrap_err();
    assert!(error.is_unavailable(), "{error}");
    assert!(test.store.find(&reference("team/app:1")).unwrap().is_some());
}

#[tokio::test]
async fn a_name_moves_to_another_image() {
    if !is_root() {
        return;
    }
    let (old, new) = (MadeImage::new("old", &[base()]), MadeImage::new("new", &[base(), upper()]));
    let test = TestStore::new();
    let registry = serve(&[("team/app:1", &old)]).await;
    test.pull(&registry, "team/app:1").await.unwrap();
    let registry = serve(&[("team/app:1", &new)]).await;
    let pulled = test.pull(&registry, "team/app:1").await.unwrap();
    assert_eq!(pulled.id, new.id());
    // The config and the new layer.
    assert_eq!(blobs(&registry), 2);
    let found = test.store.find(&reference("team/app:1")).unwrap().unwrap();
    assert_eq!(found.id, new.id());
    let old_one = test.store.find_id(&old.id()).unwrap().unwrap();
    assert_eq!(old_one.names, [format!("reg.io/team/app@{}", old.digest())]);
}

/// A second pull of the same name waits for the first; one of another name with the same layer, too.
#[tokio::test]
async fn pulls_share_what_they_fetch() {
    if !is_root() {
        return;
    }
    let (one, other) = (MadeImage::new("one", &[base()]), MadeImage::new("other", &[base()]));
    let registry = serve(&[("team/one:1", &one), ("team/other:1", &other)]).await;
    let test = TestStore::new();
    let pulls = ["team/one:1", "team/one:1", "team/one:1", "team/other:1"];
    let pulls = futures_util::future::join_all(pulls.map(|name| test.pull(&registry, name))).await;
    assert!(pulls.iter().all(Result::is_ok), "{pulls:?}");
    let targets = registry.targets();
    let layer = format!("/blobs/{}", Digest::of_bytes(&one.layers[0]));
    assert_eq!(targets.iter().filter(|target| target.ends_with(&layer)).count(), 1);
    assert_eq!(targets.iter().filter(|target| target.ends_with("/manifests/1")).count(), 2);
}

/// Two agents, each with its own store object, in the same directory.
#[tokio::test]
async fn several_agents_share_a_store() {
    if !is_root() {
        return;
    }
    let image = MadeImage::new("app", &[base(), upper()]);
    let registry = serve(&[("team/app:1", &image)]).await;
    let test = TestStore::new();
    let stores: Vec<Store> = (0..4).map(|_| test.again()).collect();
    let pulls = stores.iter().map(|store| pull(store, &registry, "team/app:1"));
    for pulled in futures_util::future::join_all(pulls).await {
        assert_eq!(pulled.unwrap().layers.len(), 2);
    }
    test.again();
    assert_eq!(test.contents(), [2, 0, 0]);
    assert_eq!(test.store.verify().unwrap(), []);
}

#[tokio::test]
async fn an_interrupted_pull_is_continued() {
    if !is_root() {
        return;
    }
    let image = MadeImage::new("app", &[base()]);
    let contents = contents(&[("team/app:1", &image)]);
    let layer = format!("/v2/team/app/blobs/{}", Digest::of_bytes(&image.layers[0]));
    for cut_at in [0, 1, 1000, image.layers[0].len() - 1] {
        let test = TestStore::new();
        let (cut, path) = (contents.clone(), layer.clone());
        let broken = StandIn::start(move |request| {
            let reply = answer(&cut, request);
            if request.target == path { Reply { cut_at: Some(cut_at), ..reply } } else { reply }
        })
        .await;
        let error = test.pull(&broken, "team/app:1").await.unwrap_err();
        assert!(error.is_unavailable(), "{error}");
        assert_eq!((test.store.find(&reference("team/app:1")).unwrap(), test.count("layers")), (None, 0));
        let registry = serve(&[("team/app:1", &image)]).await;
        pull(&test.again(), &registry, "team/app:1").await.unwrap();
        let ranges: Vec<String> =
            registry.received().iter().map(|request| request.header("range").to_owned()).collect();
        let expected = if cut_at == 0 { String::new() } else { format!("bytes={cut_at}-") };
        assert!(ranges.contains(&expected), "{cut_at}: {ranges:?}");
        assert_eq!(test.contents(), [1, 0, 0]);
    }
}

#[tokio::test]
async fn a_cancelled_pull_leaves_nothing_under_a_name() {
    if !is_root() {
        return;
    }
    let image = MadeImage::new("app", &[base()]);
    let contents = contents(&[("team/app:1", &image)]);
    let path = format!("/v2/team/app/blobs/{}", Digest::of_bytes(&image.layers[0]));
    let silent = StandIn::start(move |request| {
        let reply = answer(&contents, request);
        match request.target == path {
            true => Reply { cut_at: Some(1000), then: Then::Silence, ..reply },
            false => reply,
        }
    })
    .await;
    let test = TestStore::new();
    let (progress, cancelled) = (watch::Sender::default(), CancellationToken::new());
    let pull = test.store.pull(order(&silent, "team/app:1"), &progress, &cancelled);
    let mut reached = progress.subscribe();
    let cancel = async {
        // The layer is known by then.
        reached.wait_for(|progress| progress.total_bytes > 0).await.unwrap();
        cancelled.cancel();
    };
    let (pulled, ()) = tokio::join!(pull, cancel);
    assert!(matches!(pulled, Err(PullError::Cancelled)), "{pulled:?}");
    assert_eq!((test.store.find(&reference("team/app:1")).unwrap(), test.count("layers")), (None, 0));
    // Another pull works at once, also while the first one still ends.
    let registry = serve(&[("team/app:1", &image)]).await;
    test.pull(&registry, "team/app:1").await.unwrap();
    // Dropped instead of cancelled.
    let other = TestStore::new();
    let (progress, cancelled) = (watch::Sender::default(), CancellationToken::new());
    let mut reached = progress.subscribe();
    tokio::select! {
        ended = other.store.pull(order(&silent, "team/app:1"), &progress, &cancelled) => panic!("{ended:?}"),
        known = reached.wait_for(|progress| progress.total_bytes > 0) => { known.unwrap(); }
    }
    other.pull(&registry, "team/app:1").await.unwrap();
}

/// A process was killed while it prepared a layer.
#[tokio::test]
async fn remains_of_ended_processes_are_removed() {
    if !is_root() {
        return;
    }
    let test = TestStore::new();
    let own = test.store.dir().join("staging/0000");
    fs::create_dir_all(own.join("tree/deep")).unwrap();
    fs::write(own.join("tree/deep/file"), "x").unwrap();
    let held = test.store.dir().join("staging/1111");
    fs::create_dir(&held).unwrap();
    let lock = fs::File::open(&held).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
    // A layer that has its name, but lost its record: it is replaced.
    let image = MadeImage::new("app", &[base()]);
    let damaged = test.store.dir().join("layers").join(image.diff_ids[0].as_str().replace(':', "-"));
    fs::create_dir_all(damaged.join("tree/bin")).unwrap();
    let registry = serve(&[("team/app:1", &image)]).await;
    pull(&test.again(), &registry, "team/app:1").await.unwrap();
    assert!(held.exists() && !own.exists());
    assert_eq!(test.store.verify().unwrap(), []);
    drop(lock);
    test.again();
    assert!(!held.exists());
}

/// Nobody gets a layer before all three have been requested.
#[tokio::test]
async fn layers_are_fetched_at_once() {
    if !is_root() {
        return;
    }
    let layer = |name: &str| (TarText::new().file(name, b"x"), Packing::Gzip);
    let image = MadeImage::new("app", &[layer("a"), layer("b"), layer("c")]);
    let contents = contents(&[("team/app:1", &image)]);
    let config = image.id().to_string();
    let barrier = std::sync::Arc::new(tokio::sync::Barrier::new(3));
    let registry = StandIn::start(move |request| {
        let reply = answer(&contents, request);
        let is_layer = request.target.contains("/blobs/") && !request.target.ends_with(&config);
        Reply { barrier: is_layer.then(|| std::sync::Arc::clone(&barrier)), ..reply }
    })
    .await;
    let test = TestStore::new();
    assert_eq!(test.pull(&registry, "team/app:1").await.unwrap().layers.len(), 3);
}

/// A connection that ends at any byte of any answer: the next pull continues or begins again, and nothing is half there.
#[tokio::test]
async fn a_pull_that_ends_at_any_byte_is_completed_by_the_next() {
    if !is_root() {
        return;
    }
    let layer = (TarText::new().file("a", b"content"), Packing::Gzip);
    let image = MadeImage::new("app", &[layer]);
    let honest = contents(&[("team/app:1", &image)]);
    let registry = serve(&[("team/app:1", &image)]).await;
    let paths: Vec<(String, usize)> =
        honest.iter().map(|(path, (_, bytes))| (path.clone(), bytes.len())).collect();
    let layer = Digest::of_bytes(&image.layers[0]).to_string();
    for (path, len) in paths {
        if path.contains("/manifests/sha256") {
            continue;
        }
        let mut test = TestStore::new();
        for cut_at in 0..len {
            let (cut, broken_path) = (honest.clone(), path.clone());
            let broken = StandIn::start(move |request| {
                let reply = answer(&cut, request);
                let is_it = request.target == broken_path;
                if is_it { Reply { cut_at: Some(cut_at), ..reply } } else { reply }
            })
            .await;
            test.pull(&broken, "team/app:1").await.unwrap_err();
            assert_eq!(test.store.find(&reference("team/app:1")).unwrap(), None, "{path}: {cut_at}");
            assert_eq!((test.count("layers"), test.count("staging")), (0, 0), "{path}: {cut_at}");
            // Nothing is left of a document.
            if path.ends_with(&layer) {
                pull(&test.again(), &registry, "team/app:1").await.unwrap();
                assert_eq!((test.contents(), test.store.verify().unwrap()), ([1, 0, 0], Vec::new()));
                test = TestStore::new();
            }
        }
    }
}

/// Each record that is written again costs a sync.
#[tokio::test]
async fn a_pull_of_what_is_there_writes_no_record() {
    if !is_root() {
        return;
    }
    let image = MadeImage::new("app", &[base()]);
    let registry = serve(&[("team/app:1", &image)]).await;
    let test = TestStore::new();
    let files = || -> Vec<u64> {
        let folders = ["names", "images"].map(|folder| test.store.dir().join(folder));
        let paths = folders.iter().flat_map(|folder| fs::read_dir(folder).unwrap());
        let mut files: Vec<u64> = paths.map(|entry| entry.unwrap().metadata().unwrap().ino()).collect();
        files.sort_unstable();
        files
    };
    test.pull(&registry, "team/app:1").await.unwrap();
    let before = files();
    test.pull(&registry, "team/app:1").await.unwrap();
    assert_eq!(files(), before);
}
