//! A boot of the machine, and its end.
//!
//! In: the agent's program, a kernel with its drivers, a static busybox. Out: a small root file system in
//! memory (without a service manager: the agent is a child of `tests/guest/agent`), a disk with an empty
//! ext4, and qemu processes that use them.

use std::{
    fs,
    io::Read,
    net::TcpStream,
    os::unix::net::UnixListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use serde_json::Value;
use tempfile::TempDir;

use super::{
    disk::{Cut, Disk},
    guest, nbd,
};
use crate::{http::Peer, ports, program::project, random::Rng, wait};

/// The parts of the machine.
#[derive(Debug, Clone)]
pub struct Components {
    pub agent: PathBuf,
    /// The program that calls [`guest::run`] and [`crate::crashes::work::run`].
    pub program: PathBuf,
    pub kernel: PathBuf,
    /// The kernel's drivers, with the file `order`.
    pub modules: PathBuf,
}

const TOKEN: &str = "sixteen-letters-and-some";
const AGENT_PORT: u16 = 4646;
const DISK_LEN: u64 = 256 << 20;

/// A machine that is off.
#[derive(Debug)]
pub struct Machine {
    dir: TempDir,
    kernel: PathBuf,
    memory_mib: u64,
    disk: Arc<Mutex<Disk>>,
    /// Number of boots whose last disk request was received.
    gone: Arc<AtomicU64>,
    boots: u64,
}

impl Machine {
    /// Creates a machine with an empty disk.
    ///
    /// # Panics
    /// If a tool is missing or fails.
    pub fn new(components: &Components) -> Self {
        let dir = TempDir::with_prefix("power-cuts").expect("a temporary directory");
        let memory_mib = memory_mib(pack(components, dir.path()));
        let image = dir.path().join("disk");
        fs::File::create(&image).and_then(|file| file.set_len(DISK_LEN)).expect("a disk");
        let path = std::env::var("PATH").unwrap_or_default();
        let mut mkfs = Command::new("mkfs.ext4");
        finish(mkfs.env("PATH", format!("{path}:/sbin")).args(["-q", "-b", "4096"]).arg(&image));
        let disk = Arc::new(Mutex::new(Disk::open(&image).expect("the disk")));
        let gone = Arc::new(AtomicU64::new(0));
        let listener = UnixListener::bind(dir.path().join("nbd")).expect("a socket for the disk");
        let (served, counted) = (Arc::clone(&disk), Arc::clone(&gone));
        std::thread::spawn(move || nbd::serve(&listener, &served, &counted));
        Self { dir, kernel: components.kernel.clone(), memory_mib, disk, gone, boots: 0 }
    }

    /// Boots the machine.
    ///
    /// # Panics
    /// If qemu can't be started.
    pub fn boot(&mut self) -> Boot {
        self.boots += 1;
        let [agent, facts] = ports::free();
        let path = |name: &str| self.dir.path().join(name).display().to_string();
        let log = self.dir.path().join(format!("log.{}", self.boots));
        let qemu = Command::new("qemu-system-x86_64")
            .args([
                "-machine",
                "q35",
                "-accel",
                "tcg,thread=multi",
                "-cpu",
                "max",
                "-smp",
                "1",
                "-m",
                &self.memory_mib.to_string(),
            ])
            .args(["-nodefaults", "-no-reboot", "-display", "none"])
            .args(["-serial", &format!("file:{}", log.display())])
            .args(["-drive", &format!("file=nbd+unix:///?socket={},if=none,id=disk,format=raw", path("nbd"))])
            .args(["-device", "virtio-blk-pci,drive=disk,logical_block_size=4096,physical_block_size=4096"])
            .args(["-device", "virtio-net-pci,netdev=net,romfile=", "-netdev"])
            .arg(format!(
                "user,id=net,hostfwd=tcp:127.0.0.1:{agent}-:{AGENT_PORT},hostfwd=tcp:127.0.0.1:{facts}-:{}",
                guest::PORT
            ))
            .arg("-kernel")
            .arg(&self.kernel)
            .args(["-initrd", &path("root.cpio"), "-append"])
            .arg("console=ttyS0 loglevel=4 panic=-1 no_timer_check rdinit=/guest/init next=/guest/agent")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .expect("a started qemu");
        Boot { qemu, agent: Peer::Guarded(agent, TOKEN), facts, log }
    }

    /// Makes the disk's power fail after a number of further writes and flushes.
    pub fn fail_after(&mut self, changes: u64) {
        self.disk().fail_after(changes);
    }

    pub fn has_failed(&self) -> bool {
        !self.disk().is_on()
    }

    fn disk(&self) -> MutexGuard<'_, Disk> {
        self.disk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Cuts the power: unflushed data may be lost.
    ///
    /// # Panics
    /// If the disk can't be written.
    pub fn cut(&mut self, boot: Boot, rng: &mut Rng) -> Cut {
        drop(boot);
        wait::until_true("the disk has no client", || self.gone.load(Ordering::SeqCst) == self.boots);
        self.disk().cut(rng).expect("a writable disk")
    }

    /// Keeps its directory for debugging.
    pub fn keep(self) -> PathBuf {
        self.dir.keep()
    }
}

/// A running machine. Dropping it cuts its power.
#[derive(Debug)]
pub struct Boot {
    qemu: Child,
    /// The API of its agent.
    pub agent: Peer,
    facts: u16,
    log: PathBuf,
}

impl Boot {
    /// Returns the facts of [`guest`]; `None` if it doesn't answer.
    pub fn facts(&self) -> Option<Value> {
        let mut text = String::new();
        TcpStream::connect(("127.0.0.1", self.facts)).ok()?.read_to_string(&mut text).ok()?;
        serde_json::from_str(&text).ok()
    }

    /// Returns whether it is on. A kernel panic switches it off.
    pub fn is_on(&mut self) -> bool {
        self.qemu.try_wait().is_ok_and(|ended| ended.is_none())
    }

    /// Returns the log of its kernel and its agent.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).replace('\r', "")
    }
}

impl Drop for Boot {
    fn drop(&mut self) {
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}

/// The memory of a machine with a root file system of this size, in MiB. The kernel holds the archive while it unpacks
/// it, and gives the unpacked files at most half of what is left.
fn memory_mib(archive_bytes: u64) -> u64 {
    512 + 3 * archive_bytes.div_ceil(1 << 20)
}

/// Packs the root file system into the file `root.cpio` of `dir`. Out: the size of the archive in bytes.
fn pack(components: &Components, dir: &Path) -> u64 {
    let tree = dir.join("tree");
    let guest = tree.join("guest");
    let mut wanted = vec![
        (PathBuf::from("/bin/busybox"), guest.join("busybox")),
        (project().join("tests/guest/init"), guest.join("init")),
        (project().join("tests/guest/agent"), guest.join("agent")),
        (components.program.clone(), tree.join(guest::PROGRAM.trim_start_matches('/'))),
        (components.agent.clone(), tree.join("usr/bin/herdlet")),
    ];
    for entry in fs::read_dir(&components.modules).expect("drivers").flatten() {
        wanted.push((entry.path(), guest.join("modules").join(entry.file_name())));
    }
    for program in [&components.agent, &components.program] {
        let listed = Command::new("ldd").arg(program).output().expect("a run of ldd");
        for word in
            String::from_utf8_lossy(&listed.stdout).split_whitespace().filter(|word| word.starts_with('/'))
        {
            wanted.push((PathBuf::from(word), tree.join(word.trim_start_matches('/'))));
        }
    }
    for (from, to) in wanted {
        fs::create_dir_all(to.parent().unwrap_or(&to)).expect("a directory for the guest");
        fs::copy(&from, &to).unwrap_or_else(|error| panic!("copy {}: {error}", from.display()));
    }
    fs::create_dir_all(tree.join("bin")).expect("a directory for the guest");
    std::os::unix::fs::symlink("/guest/busybox", tree.join("bin/sh")).expect("a shell for the guest");
    fs::create_dir_all(tree.join("etc")).expect("a directory for the guest");
    fs::write(tree.join("etc/passwd"), "root:x:0:0::/:/bin/sh\n").expect("users for the guest");
    fs::write(guest.join("token"), TOKEN).expect("a token for the guest");
    let pack = "chmod 600 guest/token && strip guest/program && find . | cpio --quiet -R 0:0 -o -H newc >../root.cpio";
    finish(Command::new("sh").current_dir(&tree).args(["-c", pack]));
    fs::metadata(dir.join("root.cpio")).expect("the packed root file system").len()
}

fn finish(command: &mut Command) {
    let status = command.status();
    assert!(status.as_ref().is_ok_and(|status| status.success()), "{command:?}: {status:?}");
}
