//! Archives of `docker save`, and OCI layouts.

use super::*;

fn archive(bytes: &[u8]) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file
}

async fn load(store: &Store, bytes: &[u8]) -> Result<Vec<Image>, LoadError> {
    store.load(archive(bytes), &Platforms::of_machine(), &CancellationToken::new()).await
}

/// As `docker save` writes it: plain layers in a folder each.
fn saved(image: &MadeImage, tars: &[TarText], names: &Json) -> TarText {
    let config = format!("{}.json", &image.id().as_str()["sha256:".len()..]);
    let layers: Vec<String> = (0..tars.len()).map(|index| format!("layer{index}/layer.tar")).collect();
    let manifest = json!([{"Config": config, "RepoTags": names, "Layers": layers}]).to_string();
    let mut tar = TarText::new().file(&config, &image.config).file("manifest.json", manifest.as_bytes());
    for (path, layer) in layers.iter().zip(tars) {
        tar = tar.directory(path.split('/').next().unwrap()).file(path, &layer.clone().finish());
    }
    tar
}

/// As the OCI image specification describes it.
fn layout(image: &MadeImage, name: &str) -> TarText {
    let descriptor = json!({
        "mediaType": MANIFEST, "digest": image.digest(), "size": image.manifest.len(),
        "annotations": {"org.opencontainers.image.ref.name": name},
    });
    let index = json!({"schemaVersion": 2, "manifests": [descriptor]}).to_string();
    let tar = TarText::new()
        .file("oci-layout", br#"{"imageLayoutVersion": "1.0.0"}"#)
        .file("index.json", index.as_bytes());
    image.layers.iter().chain([&image.config, &image.manifest]).fold(tar, |tar, bytes| {
        tar.file(&format!("blobs/{}", Digest::of_bytes(bytes).as_str().replace(':', "/")), bytes)
    })
}

#[tokio::test]
async fn archives_of_docker_are_loaded() {
    if !is_root() {
        return;
    }
    let tars = [base().0, upper().0];
    let image = MadeImage::new("app", &tars.clone().map(|tar| (tar, Packing::Plain)));
    let names = json!(["reg.io/team/app:1", "busybox:2"]);
    for packed in [Packing::Plain, Packing::Gzip, Packing::Zstd] {
        let test = TestStore::new();
        let bytes = pack(&saved(&image, &tars, &names).finish(), packed);
        let loaded = load(&test.store, &bytes).await.unwrap();
        let [loaded] = loaded.as_slice() else { panic!("{loaded:?}") };
        assert_eq!((&loaded.id, &loaded.digest), (&image.id(), &None));
        assert_eq!(loaded.names, ["docker.io/library/busybox:2", "reg.io/team/app:1"]);
        let found = test.store.find(&reference("team/app:1")).unwrap().unwrap();
        assert_eq!(fs::read_to_string(found.layers[1].join("etc/motd")).unwrap(), "hello");
        assert_eq!(test.contents(), [2, 0, 0]);
    }
    // A digest names the image that a registry has for it, and no other.
    let test = TestStore::new();
    let pinned = format!("reg.io/team/app@{}", image.digest());
    load(&test.store, &saved(&image, &tars, &json!([pinned])).finish()).await.unwrap();
    assert_eq!(test.store.find(&reference(&pinned.replace("reg.io/", ""))).unwrap(), None);
    assert_eq!(test.store.find_id(&image.id()).unwrap().unwrap().names, Vec::<String>::new());
    // Without names, it is found by its id.
    let test = TestStore::new();
    load(&test.store, &saved(&image, &tars, &Json::Null).finish()).await.unwrap();
    assert_eq!(test.store.find_id(&image.id()).unwrap().unwrap().names, Vec::<String>::new());
}

/// Old versions of Docker save a layer that occurs twice as a link.
#[tokio::test]
async fn links_between_layers_are_followed_in_the_archive_only() {
    if !is_root() {
        return;
    }
    let tar = base().0;
    let image = MadeImage::new("app", &[(tar.clone(), Packing::Plain), (tar.clone(), Packing::Plain)]);
    let config = "config.json";
    let manifest = |second: &str| json!([{"Config": config, "RepoTags": ["reg.io/team/app:1"], "Layers": ["a/layer.tar", second]}]);
    let begin = |second: &str| {
        TarText::new()
            .file(config, &image.config)
            .file("manifest.json", manifest(second).to_string().as_bytes())
            .file("a/layer.tar", &tar.clone().finish())
    };
    let test = TestStore::new();
    load(&test.store, &begin("b/layer.tar").symlink("b/layer.tar", "../a/layer.tar").finish()).await.unwrap();
    assert_eq!(test.store.find(&reference("team/app:1")).unwrap().unwrap().layers.len(), 2);
    let other = MadeImage::new("other", &[(tar.clone(), Packing::Plain), (upper().0, Packing::Plain)]);
    for second in ["../../../etc/passwd", "/etc/passwd", "missing", "a", ""] {
        let manifest = manifest(second).to_string();
        let tar = TarText::new()
            .file(config, &other.config)
            .file("manifest.json", manifest.as_bytes())
            .file("a/layer.tar", &tar.clone().finish());
        let refused = load(&test.store, &tar.finish()).await;
        assert!(refused.is_err(), "{second}");
    }
    let escaping = begin("b/layer.tar").symlink("b/layer.tar", "../../../../etc/passwd").finish();
    assert!(load(&TestStore::new().store, &escaping).await.is_err());
}

#[tokio::test]
async fn oci_layouts_are_loaded() {
    if !is_root() {
        return;
    }
    let image = MadeImage::new("app", &[base(), upper()]);
    let test = TestStore::new();
    let loaded = load(&test.store, &layout(&image, "reg.io/team/app:1").finish()).await.unwrap();
    assert_eq!(loaded[0].digest, Some(image.digest()));
    assert_eq!(test.store.find(&reference("team/app:1")).unwrap().as_ref(), Some(&loaded[0]));
    // A tag alone is no name.
    let tagged = load(&TestStore::new().store, &layout(&image, "latest").finish()).await.unwrap();
    assert_eq!(tagged[0].names, Vec::<String>::new());
}

#[tokio::test]
async fn a_hostile_archive_is_refused() {
    if !is_root() {
        return;
    }
    let image = MadeImage::new("app", &[base()]);
    let mut lying = image.clone();
    let wrong_blob = |of: &[u8]| {
        let path = format!("blobs/{}", Digest::of_bytes(of).as_str().replace(':', "/"));
        layout(&image, "reg.io/team/app:1").file(&path, b"something else").finish()
    };
    lying.diff_ids = vec![Digest::of_bytes(b"x")];
    let wrong_diff_id = MadeImage::with_layers(
        "app",
        vec![(pack(&base().0.finish(), Packing::Plain), Packing::Plain)],
        lying.diff_ids,
    );
    let many: Vec<Json> = (0..1001).map(|_| json!({"Config": "c", "RepoTags": null, "Layers": []})).collect();
    for (name, bytes) in [
        ("nothing", Vec::new()),
        ("no tar", b"<html>not found</html>".repeat(100)),
        ("no image", TarText::new().file("a", b"a").finish()),
        ("an empty list", TarText::new().file("manifest.json", b"[]").finish()),
        (
            "too many images",
            TarText::new().file("manifest.json", json!(many).to_string().as_bytes()).finish(),
        ),
        ("no list", TarText::new().file("manifest.json", b"{}").finish()),
        (
            "no config",
            TarText::new()
                .file("manifest.json", br#"[{"Config": "x", "RepoTags": null, "Layers": []}]"#)
                .finish(),
        ),
        (
            "a config outside",
            TarText::new()
                .file(
                    "manifest.json",
                    br#"[{"Config": "../../../etc/passwd", "RepoTags": null, "Layers": []}]"#,
                )
                .finish(),
        ),
        ("a link as document", TarText::new().file("x/y", b"").symlink("manifest.json", "x").finish()),
        ("out of the archive", TarText::new().file("../manifest.json", b"[]").finish()),
        ("another config", wrong_blob(&image.config)),
        ("another manifest", wrong_blob(&image.manifest)),
        ("another layer", wrong_blob(&image.layers[0])),
        (
            "another digest of a layer",
            saved(&wrong_diff_id, &[base().0], &json!(["reg.io/team/app:1"])).finish(),
        ),
        ("a manifest as index", TarText::new().file("index.json", &image.manifest).finish()),
    ] {
        let test = TestStore::new();
        let refused = load(&test.store, &bytes).await;
        assert!(refused.is_err(), "{name}: {refused:?}");
        assert_eq!(test.contents(), [0, 0, 0], "{name}");
        assert_eq!(test.store.list().unwrap(), [], "{name}");
    }
}

/// A caller that no longer waits, as at the time limit of a pull.
#[tokio::test]
async fn a_load_that_is_dropped_leaves_nothing() {
    if !is_root() {
        return;
    }
    let test = TestStore::new();
    let (stopped, running) = (test.temp.path().join("unpack"), test.temp.path().join("running"));
    let text = format!("#!/bin/sh\n: >{}\nexec sleep 600\n", running.display());
    fs::write(&stopped, text).unwrap();
    fs::set_permissions(&stopped, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let unpacker =
        Unpacker { command: vec![stopped.into()], env: vec![("PATH".into(), "/usr/bin:/bin".into())] };
    let settings = StoreSettings { unpacker, limits: LayerLimits::default() };
    let store = Store::with(&test.temp.path().join("store"), settings).unwrap();
    let (platforms, cancelled) = (Platforms::of_machine(), CancellationToken::new());
    let begun = async {
        while !running.exists() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        ended = store.load(archive(&base().0.finish()), &platforms, &cancelled) => panic!("{ended:?}"),
        () = begun => {}
    }
    // The process gets some seconds to end.
    while test.count("staging") > 0 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
