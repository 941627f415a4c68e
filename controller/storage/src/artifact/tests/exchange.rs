//! Users of tasks who swap directories during a fetch. The server does it in the middle of the download, so every
//! attempt happens at the critical moment.

use std::os::unix::fs::{PermissionsExt as _, chown};

use herdlet_base::user::Login;

use super::*;

/// The shared directory of an allocation, where anybody may swap entries, with a directory of root's in it.
fn shared(ground: &TestEnv) -> PathBuf {
    let data = ground.dirs().shared.join("data");
    fs::set_permissions(&data, fs::Permissions::from_mode(0o777)).unwrap();
    fs::create_dir(data.join("victim")).unwrap();
    fs::write(data.join("victim/precious"), "root's").unwrap();
    data
}

fn to(mut artifact: Artifact, place: &Path) -> Artifact {
    artifact.destination = place.to_str().unwrap().to_owned();
    artifact
}

async fn fetch_as_nobody(ground: &TestEnv, artifact: &Artifact) -> Result<(), ArtifactError> {
    let root = rustix::process::geteuid().is_root();
    let nobody = || Credentials { uid: 65_534, gid: 65_534, groups: vec![65_534], login: Login::default() };
    let recipient = Recipient { dirs: ground.dirs(), user: root.then(nobody) };
    ground.fetcher.up(vec![resolved(artifact)], recipient, &CancellationToken::new()).await
}

fn holds_only_precious(dir: &Path) -> bool {
    let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
    names.collect::<Vec<_>>() == ["precious"]
}

// An artifact was staged beside its destination: a user who may write there put a directory of root's in place of the
// staging directory, and the agent filled and then removed it.
#[tokio::test]
async fn no_file_is_staged_in_an_exchangeable_directory() {
    let ground = TestEnv::new();
    let data = shared(&ground);
    let exchanged = data.clone();
    let server = Server::answering(move |_| {
        for entry in fs::read_dir(&exchanged).unwrap().flatten() {
            if entry.file_name().as_encoded_bytes().starts_with(b".") {
                fs::rename(entry.path(), exchanged.join("staged")).unwrap();
                fs::rename(exchanged.join("victim"), entry.path()).unwrap();
            }
        }
        Server::ok(b"hello")
    });
    let wanted = to(artifact(&server, "/a"), &data);
    fetch_as_nobody(&ground, &wanted).await.unwrap();
    assert!(holds_only_precious(&data.join("victim")));
    assert_eq!(fs::read(data.join("a")).unwrap(), b"hello");
    let mut names: Vec<_> = fs::read_dir(&data).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["a", "victim"]);
}

// As root, an artifact replaced files in directories to which its task's user could not write.
#[tokio::test]
async fn replaced_directory_receives_no_files() {
    if !herdlet_base::test_env::is_root() {
        return;
    }
    let archive = archives::good_tar();
    for (path, body) in [("/precious", b"evil".to_vec()), ("/a.tar", archive)] {
        let ground = TestEnv::new();
        let data = shared(&ground);
        // `pkg` is in the archive, and the destination itself.
        let (place, exchanged) = (data.join("pkg"), data.clone());
        let server = Server::answering(move |_| {
            let _ = fs::rename(exchanged.join("pkg"), exchanged.join("own"));
            fs::rename(exchanged.join("victim"), exchanged.join("pkg")).unwrap();
            Server::ok(&body)
        });
        let destination = if path == "/a.tar" { &data } else { &place };
        let error = fetch_as_nobody(&ground, &to(artifact(&server, path), destination)).await.unwrap_err();
        assert!(error.to_string().contains("user 65534 may not write to it"), "{error}");
        assert_eq!(error.verdict(), Verdict::Failed);
        assert!(holds_only_precious(&place), "{path}");
        assert_eq!(fs::read(place.join("precious")).unwrap(), b"root's");
        // A directory of the user's own is filled.
        chown(&place, Some(65_534), Some(65_534)).unwrap();
        let server = Server::giving(archives::good_tar());
        fetch_as_nobody(&ground, &to(artifact(&server, "/a.tar"), &data)).await.unwrap();
        assert!(place.join("bin/tool").exists());
    }
}

// A user's directory in place of the mark was removed with its contents.
#[tokio::test]
async fn directory_in_place_of_a_marker_is_kept() {
    let (server, ground) = (Server::giving(b"hello".to_vec()), TestEnv::new());
    let mark = ground.path(marker::FILE);
    fs::create_dir(&mark).unwrap();
    fs::write(mark.join("precious"), "root's").unwrap();
    ground.up(&[artifact(&server, "/a")]).await.unwrap_err();
    assert!(holds_only_precious(&mark));
}
