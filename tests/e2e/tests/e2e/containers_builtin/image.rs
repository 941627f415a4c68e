//! An image as `docker save` writes it, served over HTTP on loopback.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpListener,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
    process::Command,
    thread,
};

use serde_json::json;

/// The name of the image.
pub(super) const IMAGE: &str = "herdlet-test/builtin:1";

/// What the image runs: its command is the argument.
const ENTRY: &str = "#!/bin/sh\n\
    echo \"entry $$ $(pwd) $(grep -o '^app:x' /etc/passwd) $(id -u) $(id -g) $(id -G | tr ' ' ,) $A $B $HOME\"\n\
    exec \"$@\"\n";

/// The server, until the test ends.
pub(super) struct ImageServer(u16, PathBuf);

impl ImageServer {
    pub(super) fn start(busybox: &Path, ground: &Path) -> Self {
        let path = archive(busybox, ground);
        let archive = fs::read(&path).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        thread::spawn(move || {
            for mut client in listener.incoming().map_while(Result::ok) {
                let _ = client.read(&mut [0; 4096]);
                let head = format!(
                    "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                    archive.len()
                );
                let _ = client.write_all(head.as_bytes()).and_then(|()| client.write_all(&archive));
            }
        });
        Self(port, path)
    }

    pub(super) fn archive(&self) -> &Path {
        &self.1
    }

    pub(super) fn url(&self) -> String {
        format!("http://127.0.0.1:{}/image.tar", self.0)
    }
}

/// Makes the archive: two layers, the second one on top.
fn archive(busybox: &Path, ground: &Path) -> PathBuf {
    let dir = ground.join("image");
    let (low, high, save) = (dir.join("low"), dir.join("high"), dir.join("save"));
    for path in
        ["low/bin", "low/etc", "low/home/app", "low/srv/work", "low/mnt", "high/etc", "high/bin", "save"]
    {
        fs::create_dir_all(dir.join(path)).unwrap();
    }
    fs::copy(busybox, low.join("bin/busybox")).unwrap();
    let programs = "cat chmod cut df echo env false grep head hostname id insmod ip ls mkdir mknod mount nsenter od ps pwd reboot rm sh sleep tail test touch tr true tty umount unshare wc";
    for name in programs.split(' ') {
        symlink("busybox", low.join("bin").join(name)).unwrap();
    }
    for (path, text) in [
        ("low/etc/passwd", "root:x:0:0::/root:/bin/sh\napp:x:1000:1001::/home/app:/bin/sh\n"),
        ("low/etc/group", "root:x:0:\napp:x:1001:\nextra:x:1010:app\n"),
        ("low/etc/low", "wrong\n"),
        ("high/etc/low", "low\n"),
        ("high/bin/entry", ENTRY),
    ] {
        fs::write(dir.join(path), text).unwrap();
    }
    fs::set_permissions(high.join("bin/entry"), fs::Permissions::from_mode(0o755)).unwrap();
    let layers = [("low", &low), ("high", &high)].map(|(name, tree)| {
        run(Command::new("tar")
            .arg("--owner=0")
            .arg("--group=0")
            .arg("-C")
            .arg(tree)
            .arg("-cf")
            .arg(save.join(format!("{name}.tar")))
            .arg("."));
        sha256(&save.join(format!("{name}.tar")))
    });
    let config = json!({
        "architecture": if cfg!(target_arch = "x86_64") { "amd64" } else { "arm64" },
        "os": "linux",
        "config": {
            "Entrypoint": ["entry"],
            "Cmd": ["sh", "-c", "trap 'exit 0' TERM; echo up; while :; do sleep 1000 & wait; done"],
            "Env": ["A=image", "B=image", "PATH=/usr/bin:/bin"],
            "User": "app",
            "WorkingDir": "/srv/work",
            "StopSignal": "SIGTERM"
        },
        "rootfs": {"type": "layers", "diff_ids": layers.map(|hash| format!("sha256:{hash}"))}
    });
    fs::write(save.join("config"), config.to_string()).unwrap();
    let name = format!("{}.json", sha256(&save.join("config")));
    fs::rename(save.join("config"), save.join(&name)).unwrap();
    let manifest = json!([{"Config": name, "RepoTags": [IMAGE], "Layers": ["low.tar", "high.tar"]}]);
    fs::write(save.join("manifest.json"), manifest.to_string()).unwrap();
    let archive = dir.join("image.tar");
    run(Command::new("tar").arg("-C").arg(&save).arg("-cf").arg(&archive).args([
        "manifest.json",
        &name,
        "low.tar",
        "high.tar",
    ]));
    archive
}

fn sha256(path: &Path) -> String {
    let output = Command::new("sha256sum").arg(path).output().unwrap();
    String::from_utf8(output.stdout).unwrap().split(' ').next().unwrap().to_owned()
}

fn run(command: &mut Command) {
    assert!(command.status().unwrap().success(), "{command:?}");
}
