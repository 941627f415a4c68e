//! The engine in the agent, on the machine of a test: cgroups, supervisors and images of its own, and no network.

use std::{
    env, fs,
    fs::File,
    net::TcpListener,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use herdlet_base::test_env::leave_out;
use herdlet_images::{
    platform::Platforms,
    store::{Store, StoreSettings},
};
use herdlet_network::{
    link::Hairpin,
    networks::{Bridge, BridgeSettings, LoneNetworks, NameServing},
};
use herdlet_process::{
    attempts::Attempts,
    cgroup::{self, Isolation},
    engine,
    exec::Roots,
    supervisor::Program,
};
use herdlet_unpack::Unpacker;
use serde_json::json;
use sha2::{Digest as _, Sha256};
use tokio_util::sync::CancellationToken;

use super::{IMAGE, machine::SLOW};
use crate::{ContainerNetworks, ContainerSetup, DockerDriver, Setup, names};

/// What the engine needs of the machine.
pub(super) struct Ground {
    cgroups: cgroup::Setup,
    /// The directory of files that last until the next boot.
    runtime: PathBuf,
    images: PathBuf,
    /// A registry that accepts connections and never answers.
    silent: TcpListener,
}

impl Ground {
    /// None if this machine can't run containers.
    pub(super) fn new(dir: &Path) -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        if !rustix::process::geteuid().is_root() {
            leave_out("root");
            return None;
        }
        let runtime = dir.join("run");
        fs::create_dir_all(&runtime).unwrap();
        let cgroups = cgroup::Setup {
            parent: format!("herdlet-test-{}", std::process::id()),
            instance: format!("containers-{}", NEXT.fetch_add(1, Ordering::Relaxed)),
            runtime: runtime.clone(),
        };
        if let Isolation::None { why } = Isolation::detect(&cgroups) {
            leave_out(&format!("cgroups: {why}"));
            return None;
        }
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let ground = Self { cgroups, runtime, images: dir.join("images"), silent };
        Some(ground)
    }

    /// Loads the tests' image. The driver's own program can't unpack it in a test.
    pub(super) async fn load_image(&self, dir: &Path) {
        let path = dir.join("image.tar");
        archive(&path);
        let unpacker = Unpacker::of_test("driver::tests::builtin::the_process_that_unpacks");
        let settings = StoreSettings { unpacker, ..StoreSettings::default() };
        let store = Store::with(&self.images, settings).unwrap();
        let (archive, platforms) = (File::open(&path).unwrap(), Platforms::of_machine());
        let loaded = store.load(archive, &platforms, &CancellationToken::new()).await.unwrap();
        assert_eq!(loaded[0].names, [format!("docker.io/{IMAGE}")]);
        fs::remove_file(path).unwrap();
    }

    pub(super) fn open(&self, setup: Setup) -> DockerDriver {
        let process = engine::Setup {
            attempts: Attempts::open(&self.runtime.join("attempts")).unwrap(),
            program: Arc::new(Program::install(&self.runtime).unwrap()),
            isolation: Isolation::detect(&self.cgroups),
            leash: None,
        };
        let bridge = Bridge::new(BridgeSettings {
            instance: setup.instance.clone(),
            name: None,
            subnet4: None,
            subnet6: None,
            mtu: None,
            hairpin: Hairpin::On,
            runtime: self.runtime.clone(),
            name_serving: NameServing::Off,
        });
        let networks =
            ContainerNetworks { bridge: Arc::new(bridge), lone: LoneNetworks::in_runtime(&self.runtime) };
        let roots = Arc::new(Roots::new(vec![self.runtime.clone()], self.runtime.clone()));
        let isolated = ContainerSetup { setup: process, roots, images: self.images.clone(), networks };
        DockerDriver::open(setup, isolated).unwrap()
    }

    /// An image whose pull never ends.
    pub(super) fn slow_image(&self) -> String {
        format!("{}/{SLOW}:1", self.silent.local_addr().unwrap())
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        let Isolation::Cgroups(cgroups) = Isolation::detect(&self.cgroups) else { return };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        // A runtime can't block on another one in the same thread.
        let removal = std::thread::spawn(move || runtime.block_on(async { cgroups.remove().await.is_ok() }));
        let _ = removal.join();
    }
}

/// Entry point of the unpacking process, if this test is started as it.
#[test]
fn the_process_that_unpacks() {
    let Some(order) = env::args().next_back().filter(|last| last.starts_with('{')) else { return };
    #[expect(clippy::disallowed_methods, reason = "as a program ends")]
    std::process::exit(i32::from(herdlet_unpack::execute(&order)));
}

/// Writes [`IMAGE`] as `docker save` does: a static busybox, with a link for each of its programs.
fn archive(path: &Path) {
    let search_path = env::var_os("PATH").unwrap();
    let mut busybox = env::split_paths(&search_path).map(|dir| dir.join("busybox"));
    let busybox = busybox.find(|path| path.is_file()).expect("busybox, which tests/setup installs");
    let programs = Command::new(&busybox).arg("--list").output().unwrap().stdout;
    let mut layer = tar::Builder::new(Vec::new());
    let mut program = File::open(&busybox).unwrap();
    layer.append_file("bin/busybox", &mut program).unwrap();
    for name in String::from_utf8(programs).unwrap().lines().filter(|name| *name != "busybox") {
        let mut header = header(0, tar::EntryType::Symlink);
        layer.append_link(&mut header, format!("bin/{name}"), "busybox").unwrap();
    }
    let mut directory = header(0, tar::EntryType::Directory);
    directory.set_mode(0o1777);
    layer.append_data(&mut directory, "tmp/", &[][..]).unwrap();
    let accounts = "root:x:0:0:root:/:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n";
    add(&mut layer, "etc/passwd", accounts.as_bytes());
    add(&mut layer, "etc/group", b"root:x:0:\nnobody:x:65534:\n");
    let layer = layer.into_inner().unwrap();
    let hash = |bytes: &[u8]| names::hex(&Sha256::digest(bytes));
    let config = json!({
        "architecture": if cfg!(target_arch = "x86_64") { "amd64" } else { "arm64" },
        "os": "linux",
        "config": {},
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{}", hash(&layer))]}
    });
    let config = config.to_string();
    let name = format!("{}.json", hash(config.as_bytes()));
    let manifest = json!([{"Config": name, "RepoTags": [IMAGE], "Layers": ["layer.tar"]}]);
    let mut image = tar::Builder::new(File::create(path).unwrap());
    add(&mut image, "manifest.json", manifest.to_string().as_bytes());
    add(&mut image, &name, config.as_bytes());
    add(&mut image, "layer.tar", &layer);
    image.finish().unwrap();
}

fn add(archive: &mut tar::Builder<impl std::io::Write>, path: &str, bytes: &[u8]) {
    let mut header = header(bytes.len(), tar::EntryType::Regular);
    archive.append_data(&mut header, path, bytes).unwrap();
}

fn header(len: usize, kind: tar::EntryType) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_size(len.try_into().unwrap());
    header.set_mode(0o644);
    header.set_entry_type(kind);
    header
}
