//! `herdlet images`: the store of the agent's own engine.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path};

use herdlet_e2e::{command::Running, wait};
use serde_json::Value;

use super::{Ground, runs_on};
use crate::common::job;

/// The name of the image in the store.
const NAME: &str = "docker.io/herdlet-test/builtin:1";

impl Ground {
    fn images(&self) -> Value {
        let listed = self.agent.cli(&["images", "-o", "json"]).success().stdout;
        let listed: Value = serde_json::from_str(&listed).unwrap();
        listed["images"].clone()
    }

    fn layers(&self) -> usize {
        fs::read_dir(self.agent.home.state().join("images/layers")).unwrap().count()
    }
}

/// An operator loads an image before its task, which needs no registry; prune removes it once nobody uses it.
#[test]
fn images_are_loaded_listed_verified_and_pruned() {
    let Some(mut ground) = Ground::start("gc: {image_delay: 1s}") else { return };
    let archive = ground.image.archive().to_str().unwrap().to_owned();
    let loaded = ground.agent.cli(&["images", "load", &archive]).success().stdout;
    assert!(loaded.starts_with(&format!("loaded {NAME} (")), "{loaded}");
    let listed = ground.images();
    assert_eq!((&listed[0]["name"], &listed[0]["claimed_by"]), (&NAME.into(), &serde_json::json!(["kept"])));
    assert!(ground.agent.cli(&["images"]).success().stdout.contains("kept by hand"));

    // The task finds it.
    let script = serde_json::to_string(&runs_on("echo up")).unwrap();
    let task = ground.plain("t", &format!("command: sh\nargs: [-c, {script}]"), "");
    let task: String = task
        .lines()
        .filter(|line| !line.contains("load:") && !line.contains("artifacts:"))
        .map(|line| format!("{line}\n"))
        .collect();
    ground.agent.apply_and_wait(&job("web", "service", "", &[task]));
    ground.agent.cli(&["exec", "web", "--", "sh", "-c", "echo 0123456789 > /tmp.new"]);
    let used = ground.images();
    assert_eq!(used[0]["used_by"][0]["task"], "t", "{used}");
    let kept = ground.agent.cli(&["images", "prune", "--unused-for", "0s"]).success().stdout;
    assert!(kept.contains("removed: 0 images"), "{kept}");

    assert!(ground.agent.cli(&["images", "verify"]).success().stdout.contains("as they were pulled"));
    let layers = ground.agent.home.state().join("images/layers");
    for layer in fs::read_dir(layers).unwrap() {
        fs::write(layer.unwrap().path().join("tree/etc/low"), "changed").unwrap();
    }
    let verified = ground.agent.cli(&["images", "verify", "--remove"]);
    let verified = verified.ended(1);
    assert!(
        verified.stdout.contains(NAME) && verified.stdout.contains("not those that were unpacked"),
        "{verified:?}"
    );
    assert_eq!(ground.layers(), 2, "a container uses them");

    ground.agent.cli(&["delete", "web", "--wait"]).success();
    wait::until_true("no task uses the image", || ground.images()[0]["used_by"] == serde_json::json!([]));
    let preview = ground.agent.cli(&["images", "prune", "--unused-for", "0s", "--dry-run"]).success().stdout;
    assert!(preview.contains(NAME) && preview.contains("would be removed: 1 images, 2 layers"), "{preview}");
    assert_eq!(ground.layers(), 2);
    let pruned = ground.agent.cli(&["images", "prune", "--unused-for", "0s", "-o", "json"]).success().stdout;
    let pruned: Value = serde_json::from_str(&pruned).unwrap();
    assert_eq!((&pruned["images"][0]["names"][0], &pruned["layers"]), (&NAME.into(), &2.into()));
    assert_eq!((ground.layers(), ground.images()), (0, serde_json::json!([])));
    ground.finish();
}

/// A program in the place of Docker's.
fn stand_in(dir: &Path, archive: &Path) {
    let text = format!(
        "#!/bin/sh\ncase \"$1 $2\" in\n'image ls') echo herdlet-test/builtin:1; echo '<none>:<none>'; echo gone:1;;\n\
         'image save') [ \"$3\" = gone:1 ] && {{ echo 'no such image' >&2; exit 1; }}; cat {};;\n\
         'volume ls') echo data;;\n'volume inspect') echo '[{{\"Name\": \"data\", \"Driver\": \"local\", \"Mountpoint\": \"/v/data/_data\"}}]';;\n\
         'container ls') echo c1;;\n'container inspect') echo '[{{\"Name\": \"/db\", \"Mounts\": [{{\"Type\": \"volume\", \"Name\": \"data\", \"Destination\": \"/var/lib/db\"}}]}}]';;\n\
         *) echo \"unknown: $*\" >&2; exit 1;;\nesac\n",
        archive.display()
    );
    fs::write(dir.join("docker"), text).unwrap();
    fs::set_permissions(dir.join("docker"), fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn images_of_docker_are_imported_and_volumes_named() {
    let Some(ground) = Ground::start("") else { return };
    let programs = ground.agent.home.path().join("programs");
    fs::create_dir(&programs).unwrap();
    stand_in(&programs, ground.image.archive());
    let path = format!("{}:/usr/bin:/bin", programs.display());
    let mut command = ground.agent.command(&["images", "import"]);
    command.env("PATH", path);
    let imported = Running::start(command).finish().ended(1);
    for part in
        [&*format!("loaded {NAME}"), "gone:1: ", "no such image", "data", "db:/var/lib/db", "/v/data/_data"]
    {
        assert!(imported.stdout.contains(part), "{part}: {}", imported.stdout);
    }
    assert_eq!(ground.images()[0]["name"], NAME);
    let broken = ground.agent.cli(&["images", "pull", "127.0.0.1:1/team/app:1"]).ended(1);
    assert!(broken.stderr.contains("127.0.0.1:1"), "{broken:?}");
    ground.finish();
}
