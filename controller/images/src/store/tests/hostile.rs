//! Registries and images that lie, and disks that are full.

use super::*;

const TAR: (fn() -> TarText, Packing) = (|| TarText::new().file("a", b"a"), Packing::Gzip);

/// Pulls an image that must be refused. Nothing is left of it.
async fn refused(image: &MadeImage, limits: LayerLimits) -> PullError {
    let registry = serve(&[("team/app:1", image)]).await;
    let test = TestStore::with(limits);
    let error = test.pull(&registry, "team/app:1").await.unwrap_err();
    assert_eq!(test.store.find(&reference("team/app:1")).unwrap(), None);
    assert_eq!(test.contents(), [0, 0, 0], "{error}");
    assert!(!error.is_unavailable(), "{error}");
    error
}

#[tokio::test]
async fn a_layer_with_another_digest_is_refused_and_fetched_again() {
    if !is_root() {
        return;
    }
    let tar = pack(&TAR.0().finish(), TAR.1);
    let lie = Digest::of_bytes(b"another tar");
    let image = MadeImage::with_layers("app", vec![(tar, TAR.1)], vec![lie]);
    let error = refused(&image, LayerLimits::default()).await;
    assert!(matches!(&error, PullError::Layer { number: 1, why } if why.contains("digest")), "{error}");
    // What the registry sends is not what the manifest promises.
    let image = MadeImage::new("app", &[base()]);
    let mut lying = contents(&[("team/app:1", &image)]);
    let path = format!("/v2/team/app/blobs/{}", Digest::of_bytes(&image.layers[0]));
    lying.get_mut(&path).unwrap().1[500] ^= 1;
    let registry = StandIn::start(move |request| answer(&lying, request)).await;
    let test = TestStore::new();
    let error = test.pull(&registry, "team/app:1").await.unwrap_err();
    let is_corrupt = |error: &RegistryError| matches!(error, RegistryError::Corrupt { .. });
    assert!(matches!(&error, PullError::Registry(error) if is_corrupt(error)), "{error}");
    assert_eq!(test.count("layers"), 0);
    let registry = serve(&[("team/app:1", &image)]).await;
    test.pull(&registry, "team/app:1").await.unwrap();
    assert_eq!(test.contents(), [1, 0, 0]);
}

#[tokio::test]
async fn a_hostile_layer_leaves_nothing() {
    if !is_root() {
        return;
    }
    for tar in [
        TarText::new().file("../../escaped", b"x"),
        TarText::new().symlink("a", "../../..").file("a/escaped", b"x"),
        TarText::new().hard_link("a", "../record"),
        TarText::new().file("../.wh.tree", b""),
        TarText::new().file("x", b"x").raw(&[7; 512]),
    ] {
        let error = refused(&MadeImage::new("app", &[(tar, Packing::Gzip)]), LayerLimits::default()).await;
        assert!(matches!(error, PullError::Layer { number: 1, .. }), "{error}");
    }
    let not_a_tar =
        MadeImage::with_layers("app", vec![(b"<html>".to_vec(), Packing::Gzip)], vec![Digest::of_bytes(b"")]);
    let error = refused(&not_a_tar, LayerLimits::default()).await;
    assert!(matches!(error, PullError::Layer { .. }), "{error}");
}

#[tokio::test]
async fn a_bomb_is_refused_in_bounds() {
    if !is_root() {
        return;
    }
    let zeros = vec![0; 8 << 20];
    let image = MadeImage::new("app", &[(TarText::new().file("zeros", &zeros), Packing::Gzip)]);
    for limits in [
        LayerLimits { ratio_max: 20, ratio_from: 1 << 20, ..LayerLimits::default() },
        LayerLimits { bytes_max: 1 << 20, ..LayerLimits::default() },
    ] {
        let error = refused(&image, limits).await;
        assert!(matches!(&error, PullError::Layer { why, .. } if why.contains("more than")), "{error}");
    }
    let many = (0..50).fold(TarText::new(), |tar, number| tar.file(&number.to_string(), b""));
    let limits = LayerLimits { entries_max: 20, ..LayerLimits::default() };
    let error = refused(&MadeImage::new("app", &[(many, Packing::Zstd)]), limits).await;
    assert!(matches!(&error, PullError::Layer { why, .. } if why.contains("entries")), "{error}");
    let slow = LayerLimits { time_max: Duration::ZERO, ..LayerLimits::default() };
    let image = MadeImage::new("app", &[base()]);
    let registry = serve(&[("team/app:1", &image)]).await;
    // A second is enough for this one; the limit itself is a test of the unpacking process.
    TestStore::with(slow).pull(&registry, "team/app:1").await.unwrap();
}

#[tokio::test]
async fn the_first_failure_ends_the_other_layers() {
    if !is_root() {
        return;
    }
    let bad = (TarText::new().file("../x", b"x"), Packing::Gzip);
    let image = MadeImage::new("app", &[base(), bad, upper()]);
    let registry = serve(&[("team/app:1", &image)]).await;
    let test = TestStore::new();
    let error = test.pull(&registry, "team/app:1").await.unwrap_err();
    assert!(matches!(error, PullError::Layer { number: 2, .. }), "{error}");
    assert_eq!(test.store.find(&reference("team/app:1")).unwrap(), None);
    assert_eq!(test.count("staging"), 0);
}

/// A store on a disk of its own.
fn full_disk(size: &str) -> Option<(herdlet_base::test_env::TestEnv, Store)> {
    let env = herdlet_base::test_env::TestEnv::mounting()?;
    let disk = env.path().join("disk");
    fs::create_dir(&disk).unwrap();
    let options = std::ffi::CString::new(format!("size={size}")).unwrap();
    rustix::mount::mount("tmpfs", &disk, "tmpfs", rustix::mount::MountFlags::empty(), &*options).unwrap();
    let store = open(&disk, LayerLimits::default());
    Some((env, store))
}

#[tokio::test]
async fn a_full_disk_leaves_nothing_and_is_reported() {
    if !is_root() {
        return;
    }
    let Some((_env, store)) = full_disk("1m") else { return };
    let small = MadeImage::new("small", &[upper()]);
    // The download fits, the unpacked layer does not.
    let unpacked = MadeImage::new("app", &[(TarText::new().file("zeros", &vec![0; 4 << 20]), Packing::Gzip)]);
    // The download does not fit.
    let download = MadeImage::new("app", &[(TarText::new().file("noise", &noise(4 << 20)), Packing::Gzip)]);
    let registry =
        serve(&[("team/app:1", &unpacked), ("team/app:2", &download), ("team/small:1", &small)]).await;
    for name in ["team/app:1", "team/app:2"] {
        let error = pull(&store, &registry, name).await.unwrap_err();
        assert!(matches!(error, PullError::Full { .. }), "{name}: {error}");
        assert!(error.to_string().contains("the disk is full"), "{error}");
        for folder in ["layers", "downloads", "staging", "images", "names"] {
            assert_eq!(fs::read_dir(store.dir().join(folder)).unwrap().count(), 0, "{name}: {folder}");
        }
    }
    // What fits still works.
    pull(&store, &registry, "team/small:1").await.unwrap();
}

/// Layers of an image that does not fit are removed with it; those that an image has stay.
#[tokio::test]
async fn what_was_fetched_of_an_image_that_does_not_fit_is_removed() {
    if !is_root() {
        return;
    }
    let Some((_env, store)) = full_disk("1m") else { return };
    let (shared, fits) = (upper(), (TarText::new().file("fits", &noise(1000)), Packing::Gzip));
    let large = (TarText::new().file("zeros", &vec![0; 4 << 20]), Packing::Gzip);
    let small = MadeImage::new("small", std::slice::from_ref(&shared));
    let image = MadeImage::new("app", &[shared, fits, large]);
    let registry = serve(&[("team/app:1", &image), ("team/small:1", &small)]).await;
    pull(&store, &registry, "team/small:1").await.unwrap();
    let error = pull(&store, &registry, "team/app:1").await.unwrap_err();
    assert!(matches!(error, PullError::Full { .. }), "{error}");
    let count = |folder: &str| fs::read_dir(store.dir().join(folder)).unwrap().count();
    assert_eq!(["layers", "downloads", "staging", "images"].map(count), [1, 0, 0, 1]);
    assert!(store.find(&reference("team/small:1")).unwrap().is_some());
}

/// A process that is killed, as the kernel does without memory: a number of times, then as this program.
fn killed_times(dir: &Path, times: u32) -> Unpacker {
    let own = unpacker();
    let script = dir.join("unpack");
    let text = format!(
        "#!/bin/sh\nn=$(cat {0}/n 2>/dev/null || echo 0)\necho $((n + 1)) >{0}/n\n[ $n -lt {times} ] && kill -9 $$\nexec \"$@\"\n",
        dir.display()
    );
    fs::write(&script, text).unwrap();
    fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    Unpacker { command: std::iter::once(script.into()).chain(own.command).collect(), env: own.env }
}

#[tokio::test]
async fn a_fault_of_the_machine_is_tried_again_and_not_the_fault_of_the_image() {
    if !is_root() {
        return;
    }
    let image = MadeImage::new("app", &[base()]);
    let registry = serve(&[("team/app:1", &image)]).await;
    for (times, is_pulled) in [(2, true), (3, false)] {
        let temp = tempfile::tempdir().unwrap();
        let limits = LayerLimits { fault_pause: Duration::from_millis(1), ..LayerLimits::default() };
        let settings = StoreSettings { unpacker: killed_times(temp.path(), times), limits };
        let store = Store::with(&temp.path().join("store"), settings).unwrap();
        let before = blobs(&registry);
        match (pull(&store, &registry, "team/app:1").await, is_pulled) {
            (Ok(_), true) => {}
            (Err(error), false) => {
                assert!(matches!(error, PullError::Machine { number: 1, .. }), "{error}");
                assert_eq!(error.class(), herdlet_base::observation::Class::Retry);
                assert!(error.to_string().contains("this machine failed"), "{error}");
                // What was fetched is right, and stays.
                pull(&store, &registry, "team/app:1").await.unwrap();
            }
            (pulled, _) => panic!("{times}: {pulled:?}"),
        }
        let configs = if is_pulled { 1 } else { 2 };
        assert_eq!(blobs(&registry) - before, configs + 1);
        assert_eq!(fs::read_dir(store.dir().join("staging")).unwrap().count(), 0);
    }
}
