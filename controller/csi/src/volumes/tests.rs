//! Names of directories, and claims in them.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::mpsc,
    time::Duration,
};

use herdlet_base::safe_fs::FsError;
use tokio::time::timeout;

use super::{
    Claim, NodeVolumes, VolumeError,
    claim::Claims,
    paths::{self, PluginRoot, decode, encode},
};
use crate::capability::Usage;

fn claim(namespace: &str, volume: &str) -> Claim {
    Claim {
        alloc: "a1".to_owned(),
        namespace: namespace.to_owned(),
        volume: volume.to_owned(),
        usage: Usage::from_name("rw-file-system-single-node-writer").expect("a name of a use"),
    }
}

/// The directory of a plugin, without a plugin.
fn root() -> (tempfile::TempDir, PluginRoot) {
    let temp = tempfile::tempdir().expect("a directory");
    let host = temp.path().canonicalize().expect("its path");
    (temp, PluginRoot { host, inside: "/local/csi".to_owned() })
}

/// What is in a directory of the root: `per-alloc` or `staging`.
fn left(root: &PluginRoot, folder: &str) -> usize {
    fs::read_dir(root.host.join(folder)).into_iter().flatten().count()
}

#[test]
fn names_are_single_components_and_can_be_read_back() {
    for (name, component) in [
        ("data", "data"),
        ("data[0]", "data%5B0%5D"),
        ("v1.2_x-y", "v1%2E2_x-y"),
        ("../../etc", "%2E%2E%2F%2E%2E%2Fetc"),
        (".", "%2E"),
        ("..", "%2E%2E"),
        ("", "%"),
        ("100%", "100%25"),
        ("grün", "gr%C3%BCn"),
        ("a\n", "a%0A"),
    ] {
        assert_eq!((encode(name).as_str(), decode(component).as_deref()), (component, Some(name)));
    }
    for foreign in ["%2e", "%zz", "%4", "a/b", "a b", "..", "%41", "a.b", "data[0]", ""] {
        assert_eq!(decode(foreign), None, "{foreign}");
    }
}

#[test]
fn paths_contain_every_part_of_the_identity() {
    let root = PluginRoot { host: "/state/csi/node/p".into(), inside: "/local/csi/".to_owned() };
    let inside = root.inside(&claim("default", "data[0]"));
    assert_eq!(inside.staging, "/local/csi/staging/default/data%5B0%5D/rw-file-system-single-node-writer");
    let target = "per-alloc/a1/default/data%5B0%5D/rw-file-system-single-node-writer/target";
    assert_eq!(inside.target, format!("/local/csi/{target}"));
    assert_eq!(root.target(&claim("default", "data[0]")), root.host.join(target));
    assert_ne!(paths::staging(&claim("a", "data")), paths::staging(&claim("b", "data")));
    assert_ne!(paths::directory(&claim("a", "data")), paths::directory(&claim("b", "data")));
}

/// A file that was being written when the agent was killed kept the directory from being removed.
#[test]
fn interrupted_records_are_removed() {
    let (_temp, root) = root();
    let (claims, claim) = (Claims::new(&root), claim("default", "data"));
    claims.begin(&claim, "id-1").unwrap();
    assert!(!claims.prepare_staging(&claim, "id-1").unwrap());
    let draft = |path: &Path, name: &str| fs::write(root.host.join(path).join(name), "id").unwrap();
    draft(&paths::staging_parent(&claim), &format!(".{}.new", paths::staging_record(&claim)));
    claims.remove_staging(&claim).unwrap();
    assert_eq!(left(&root, paths::STAGING), 0);
    fs::create_dir_all(root.host.join(paths::staging_parent(&claim))).unwrap();
    draft(&paths::staging_parent(&claim), &format!(".{}.new", paths::staging_record(&claim)));
    assert_eq!(claims.last_staged_id(&claim).unwrap(), None);
    draft(&paths::directory(&claim), ".volume-id.new");
    claims.end(&claim).unwrap();
    assert_eq!((left(&root, paths::CLAIMS), left(&root, paths::STAGING)), (0, 0));
}

/// A volume that went down removed a common parent between two steps of another that came up.
#[tokio::test]
async fn volumes_keep_the_directories_of_each_other() {
    let (_temp, root) = root();
    let volumes = NodeVolumes::new(root.clone());
    let life = async |name: &str| {
        let claim = claim("default", name);
        for _ in 0..100 {
            let turn = volumes.turn(&claim).await;
            let begun = volumes.on_disk(&turn, |claims, claim| {
                claims.begin(claim, "id-1")?;
                claims.prepare_staging(claim, "id-1")
            });
            assert!(!begun.await?);
            let ended = volumes.on_disk(&turn, |claims, claim| {
                claims.remove_staging(claim)?;
                claims.end(claim)
            });
            ended.await?;
        }
        Ok::<(), VolumeError>(())
    };
    let (one, two) = tokio::join!(life("one"), life("two"));
    one.and(two).unwrap();
    assert_eq!((left(&root, paths::CLAIMS), left(&root, paths::STAGING)), (0, 0));
}

#[test]
fn errors_of_files_are_temporary_by_their_class() {
    let full = std::io::Error::from(std::io::ErrorKind::StorageFull);
    assert!(VolumeError::Files(FsError::io("write", "/f", full)).is_temporary());
    assert!(!VolumeError::Files(FsError::Link { path: "/f".into() }).is_temporary());
}

/// Claims beyond the limit of open files were left out.
#[test]
fn many_claims_are_listed_one_after_the_other() {
    let (_temp, root) = root();
    let claims: Vec<Claim> =
        (1000..2100).map(|alloc| Claim { alloc: alloc.to_string(), ..claim("default", "data") }).collect();
    for claim in &claims {
        fs::create_dir_all(root.host.join(paths::directory(claim))).unwrap();
    }
    fs::write(root.host.join(paths::CLAIMS).join("file"), "").unwrap();
    assert_eq!(Claims::new(&root).list().unwrap(), claims);
}

/// A file among the claims kept every volume from being unstaged.
#[test]
fn foreign_files_are_no_claims() {
    let (_temp, root) = root();
    let (claims, claim) = (Claims::new(&root), claim("default", "data"));
    claims.begin(&claim, "id-1").unwrap();
    assert!(!claims.prepare_staging(&claim, "id-1").unwrap());
    fs::write(root.host.join(paths::CLAIMS).join("file"), "").unwrap();
    std::os::unix::fs::symlink(".", root.host.join(paths::CLAIMS).join("link")).unwrap();
    assert_eq!(claims.last_staged_id(&claim).unwrap().as_deref(), Some("id-1"));
    assert_eq!(claims.list().unwrap(), [claim]);
}

#[test]
fn a_directory_with_too_many_entries_is_an_error() {
    let (_temp, root) = root();
    let folder = root.host.join(paths::CLAIMS);
    fs::create_dir(&folder).unwrap();
    for number in 0..=2048 {
        fs::write(folder.join(number.to_string()), "").unwrap();
    }
    let error = Claims::new(&root).list().unwrap_err();
    assert!(error.to_string().contains("it has more than 2048 entries"), "{error}");
}

/// A step whose caller was dropped ran beside the next call for the volume.
#[tokio::test]
async fn the_next_call_waits_for_a_step_whose_caller_is_gone() {
    let (_temp, root) = root();
    let (volumes, claim) = (NodeVolumes::new(root), claim("default", "data"));
    let soon = Duration::from_millis(5);
    let (begin, begun) = mpsc::sync_channel(1);
    let (end, ended) = mpsc::sync_channel::<()>(1);
    {
        let turn = volumes.turn(&claim).await;
        let mut step = Box::pin(volumes.on_disk(&turn, move |_, _| {
            begin.send(()).unwrap();
            ended.recv().unwrap();
            Ok(())
        }));
        while begun.try_recv().is_err() {
            assert!(timeout(soon, &mut step).await.is_err());
        }
    }
    assert!(timeout(soon, volumes.turn(&claim)).await.is_err());
    end.send(()).unwrap();
    volumes.turn(&claim).await;
}

/// Such an id was recorded, and could not be read back.
#[test]
fn an_id_that_is_too_long_is_refused_before_it_is_recorded() {
    let (_temp, root) = root();
    let (claims, claim) = (Claims::new(&root), claim("default", "data"));
    let error = claims.begin(&claim, &"x".repeat(4097)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "use the volume `data`: its id has 4097 bytes, and at most 4096 can be recorded"
    );
    assert_eq!(left(&root, paths::CLAIMS), 0);
    let longest = "x".repeat(4096);
    claims.begin(&claim, &longest).unwrap();
    assert_eq!(claims.find(&claim).unwrap().unwrap().volume_id, Some(longest));
}

/// It counted as a claim without a call, so the volume stayed mounted.
#[test]
fn a_record_that_is_not_text_is_an_error() {
    let (_temp, root) = root();
    let (claims, claim) = (Claims::new(&root), claim("default", "data"));
    claims.begin(&claim, "id-1").unwrap();
    claims.prepare_staging(&claim, "id-1").unwrap();
    let broken = |record: PathBuf, read: &dyn Fn() -> Option<VolumeError>| {
        fs::write(&record, [b'i', 0xff]).unwrap();
        let error = read().map(|error| error.to_string()).unwrap_or_default();
        let text = format!("read {}: it is not the id of a volume; ", record.display());
        assert!(error.starts_with(&text), "{error:?}");
        fs::write(&record, "id-1").unwrap();
    };
    let staged = root.host.join(paths::staging_parent(&claim)).join(paths::staging_record(&claim));
    broken(staged, &|| claims.last_staged_id(&claim).err());
    let claimed = root.host.join(paths::directory(&claim)).join("volume-id");
    broken(claimed.clone(), &|| claims.find(&claim).err());
    broken(claimed, &|| claims.begin(&claim, "id-1").err());
}
