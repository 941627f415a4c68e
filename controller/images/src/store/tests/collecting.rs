//! Lists, claims, removal, damage.

use super::{super::seal::Seal, *};

const YEAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Two images that share their lowest layer.
async fn two_images() -> (TestStore, MadeImage, MadeImage, StandIn) {
    let (one, other) = (MadeImage::new("one", &[base()]), MadeImage::new("other", &[base(), upper()]));
    let registry = serve(&[("team/one:1", &one), ("team/other:1", &other)]).await;
    let test = TestStore::new();
    test.pull(&registry, "team/one:1").await.unwrap();
    test.pull(&registry, "team/other:1").await.unwrap();
    (test, one, other, registry)
}

fn prune(claims: Claims, unused_for: Duration) -> PruneOrder {
    PruneOrder { claims, unused_for, free_bytes_min: 0, extent: Extent::Due }
}

/// Makes an image look as if nobody had used it for this long.
fn age(store: &Store, image: &MadeImage, unused_for: Duration) {
    let path = store.dir().join("images").join(image.id().as_str().replace(':', "-"));
    let used_at = SystemTime::now() - unused_for;
    File::open(path).unwrap().set_modified(used_at).unwrap();
}

#[tokio::test]
async fn layers_stay_while_an_image_needs_them() {
    if !is_root() {
        return;
    }
    let (test, one, other, _registry) = two_images().await;
    let listed = test.store.list().unwrap();
    let mut ids: Vec<Digest> = vec![one.id(), other.id()];
    ids.sort();
    assert_eq!(listed.iter().map(|listed| listed.image.id.clone()).collect::<Vec<_>>(), ids);

    let removed = test.store.remove(&other.id(), &claims("a", &[&one])).unwrap();
    assert_eq!(removed, RemovalReport { images: vec![other.id()], layers: 1, bytes: 5 });
    assert!(test.store.find(&reference("team/one:1")).unwrap().is_some());
    assert_eq!(test.store.find(&reference("team/other:1")).unwrap(), None);
    assert_eq!(test.store.verify().unwrap(), []);
    let removed = test.store.remove(&one.id(), &claims("a", &[])).unwrap();
    assert_eq!((removed.layers, removed.bytes), (1, 200_000));
    assert_eq!(test.contents(), [0, 0, 0]);
    assert_eq!((test.count("images"), test.count("names")), (0, 0));
}

#[tokio::test]
async fn images_in_use_are_not_removed() {
    if !is_root() {
        return;
    }
    let (test, one, other, _registry) = two_images().await;
    let second = test.again();
    second.claim(&claims("second", &[&other])).unwrap();
    let own = claims("first", &[&one]);
    for (image, owner) in [(&one, "first"), (&other, "second")] {
        let refused = test.store.remove(&image.id(), &own).unwrap_err();
        assert!(matches!(&refused, StoreError::Claimed { owner: by, .. } if by == owner), "{refused}");
    }
    let removed = test.store.prune(&prune(own, Duration::ZERO)).unwrap();
    assert_eq!(removed, RemovalReport::default());
    let owners: Vec<Vec<String>> =
        test.store.list().unwrap().into_iter().map(|listed| listed.claimed_by).collect();
    assert!(
        owners.contains(&vec!["first".to_owned()]) && owners.contains(&vec!["second".to_owned()]),
        "{owners:?}"
    );
    // The second agent uses nothing any more.
    second.claim(&claims("second", &[])).unwrap();
    let removed = second.prune(&prune(claims("second", &[]), Duration::ZERO)).unwrap();
    assert_eq!(removed.images, [other.id()]);
    assert!(test.store.find_id(&one.id()).unwrap().is_some());
}

/// Without the claims of another agent, its containers could lose their files.
#[tokio::test]
async fn nothing_is_removed_while_claims_cannot_be_read() {
    if !is_root() {
        return;
    }
    let (test, one, _other, _registry) = two_images().await;
    let damaged = test.store.dir().join("claims/second");
    fs::write(&damaged, "{").unwrap();
    let order = prune(claims("first", &[]), Duration::ZERO);
    assert!(matches!(test.store.prune(&order), Err(StoreError::Record { .. })));
    assert!(test.store.remove(&one.id(), &order.claims).is_err());
    assert_eq!(test.count("layers"), 2);
    fs::remove_file(damaged).unwrap();
    assert_eq!(test.store.prune(&order).unwrap().layers, 2);
}

#[tokio::test]
async fn unused_images_are_removed_by_age_and_for_space() {
    if !is_root() {
        return;
    }
    let (test, one, other, _registry) = two_images().await;
    let none = || claims("a", &[]);
    assert_eq!(test.store.prune(&prune(none(), YEAR)).unwrap(), RemovalReport::default());
    age(&test.store, &other, 2 * YEAR);
    assert_eq!(test.store.prune(&prune(none(), YEAR)).unwrap().images, [other.id()]);
    // For want of space, the one that is unused for the longest time, but none that was found just now.
    let for_space = PruneOrder { free_bytes_min: u64::MAX, ..prune(none(), YEAR) };
    assert_eq!(test.store.prune(&for_space).unwrap(), RemovalReport::default());
    age(&test.store, &one, Duration::from_secs(60 * 60));
    test.store.find(&reference("team/one:1")).unwrap().unwrap();
    assert_eq!(test.store.prune(&for_space).unwrap(), RemovalReport::default());
    age(&test.store, &one, Duration::from_secs(60 * 60));
    assert_eq!(test.store.prune(&for_space).unwrap().images, [one.id()]);
    assert_eq!(test.contents(), [0, 0, 0]);
}

#[tokio::test]
async fn damage_is_found_and_repaired_by_a_pull() {
    if !is_root() {
        return;
    }
    let (test, one, other, registry) = two_images().await;
    let layer = test.store.find_id(&one.id()).unwrap().unwrap().layers[0].clone();
    let times = fs::metadata(layer.join("bin/sh")).unwrap().modified().unwrap();
    // One bit; neither size nor time differ.
    let file = File::options().read(true).write(true).open(layer.join("bin/sh")).unwrap();
    std::os::unix::fs::FileExt::write_at(&file, &[noise(1)[0] ^ 1], 0).unwrap();
    file.set_modified(times).unwrap();
    let damaged = test.store.verify().unwrap();
    let [DamagedLayer { layer: diff_id, images, .. }] = damaged.as_slice() else { panic!("{damaged:?}") };
    assert_eq!(diff_id, &one.diff_ids[0]);
    let mut ids = vec![one.id(), other.id()];
    ids.sort();
    assert_eq!(images, &ids);
    test.store.discard_layer(diff_id).unwrap();
    assert_eq!(test.store.find(&reference("team/one:1")).unwrap(), None);
    let before = blobs(&registry);
    test.pull(&registry, "team/one:1").await.unwrap();
    // The config and the layer.
    assert_eq!(blobs(&registry) - before, 2);
    assert_eq!(test.store.verify().unwrap(), []);
    assert!(test.store.find(&reference("team/other:1")).unwrap().is_some());
}

#[tokio::test]
async fn every_kind_of_damage_is_found() {
    if !is_root() {
        return;
    }
    let image = MadeImage::new("app", &[base(), upper()]);
    let registry = serve(&[("team/app:1", &image)]).await;
    type Damage = fn(&[PathBuf]);
    let kinds: [(&str, Damage); 6] = [
        ("a file is gone", |layers| fs::remove_file(layers[0].join("bin/sh")).unwrap()),
        ("a file is new", |layers| fs::write(layers[0].join("new"), "").unwrap()),
        ("a mode", |layers| {
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o777);
            fs::set_permissions(layers[0].join("bin/sh"), mode).unwrap();
        }),
        ("a link", |layers| {
            fs::remove_file(layers[0].join("lib")).unwrap();
            std::os::unix::fs::symlink("/usr/lib32", layers[0].join("lib")).unwrap();
        }),
        ("a mark", |layers| fs::remove_file(layers[1].join("bin/sh")).unwrap()),
        ("an opaque mark", |layers| {
            rustix::fs::removexattr(layers[1].join("etc"), "trusted.overlay.opaque").unwrap();
        }),
    ];
    for (name, damage) in kinds {
        let test = TestStore::new();
        let pulled = test.pull(&registry, "team/app:1").await.unwrap();
        damage(&pulled.layers);
        assert_eq!(test.store.verify().unwrap().len(), 1, "{name}");
    }
    // A damaged config is pulled again.
    let test = TestStore::new();
    test.pull(&registry, "team/app:1").await.unwrap();
    let config = test.store.dir().join("images").join(image.id().as_str().replace(':', "-"));
    fs::write(config, "{}").unwrap();
    assert_eq!(test.store.find(&reference("team/app:1")).unwrap(), None);
    test.pull(&registry, "team/app:1").await.unwrap();
    assert!(test.store.find(&reference("team/app:1")).unwrap().is_some());
}

/// Images that an operator has loaded before their first use.
#[tokio::test]
async fn kept_images_stay_until_an_operator_removes_them() {
    if !is_root() {
        return;
    }
    let (test, one, other, registry) = two_images().await;
    test.store.keep(&[one.id()]).unwrap();
    age(&test.store, &one, 2 * YEAR);
    age(&test.store, &other, 2 * YEAR);
    let order = prune(claims("a", &[]), YEAR);
    let preview = PruneOrder { extent: Extent::Preview, ..order.clone() };
    let all = test.store.prune(&preview).unwrap();
    assert_eq!((all.images.len(), all.layers, all.bytes), (2, 2, 200_005));
    assert_eq!((test.count("layers"), test.count("images"), test.count("staging")), (2, 2, 0));
    assert_eq!(test.store.prune(&order).unwrap().images, [other.id()]);
    assert_eq!(test.store.list().unwrap()[0].claimed_by, [KEPT]);
    // Another image has taken its names.
    let names = fs::read_dir(test.store.dir().join("names")).unwrap().count();
    let newer = MadeImage::new("newer", &[base(), upper()]);
    let newer_one = serve(&[("team/one:1", &newer)]).await;
    test.pull(&newer_one, "team/one:1").await.unwrap();
    assert!(test.count("names") > names, "the old one still has its digest");
    test.store.keep(&[newer.id()]).unwrap();
    let everything = PruneOrder { extent: Extent::All, unused_for: Duration::ZERO, ..order };
    let removed = test.store.prune(&everything).unwrap();
    assert_eq!((removed.images.len(), test.contents()), (2, [0, 0, 0]));
    // It is not kept when it comes back.
    test.pull(&registry, "team/one:1").await.unwrap();
    assert!(test.store.list().unwrap()[0].claimed_by.is_empty());
}

/// The root of a container has the rights of the root of its highest layer.
#[tokio::test]
async fn a_changed_root_is_damage_except_for_older_seals() {
    if !is_root() {
        return;
    }
    let image = MadeImage::new("app", &[base()]);
    let registry = serve(&[("team/app:1", &image)]).await;
    let test = TestStore::new();
    let tree = test.pull(&registry, "team/app:1").await.unwrap().layers[0].clone();
    fs::set_permissions(&tree, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    assert_eq!(test.store.verify().unwrap().len(), 1);
    // As a release before this one sealed it.
    let path = tree.parent().unwrap().join("record");
    let record = fs::read_to_string(&path).unwrap();
    let mut record: Json = serde_json::from_str(&record).unwrap();
    let before = Seal::default().finish_tree(&Dir::open(&tree).unwrap()).unwrap();
    record["seal"] = before.into();
    fs::write(path, record.to_string()).unwrap();
    assert_eq!(test.store.verify().unwrap(), []);
}
