//! Random lives of volumes: allocations begin and end, calls fail, the plugin and the agent are killed, the machine reboots.
//!
//! After each step, what is up is mounted with its data, and what is down is gone. A step without a fault succeeds. At the
//! end nothing is left. A seed reproduces its life.

use std::{collections::BTreeMap, fs, path::PathBuf, time::Duration};

use herdlet_base::{mounts::kernel, safe_fs::Dir};
use herdlet_csi::{
    capability::{Usage, Writing},
    volumes::{Claim, Presence, VolumeError},
};
use herdlet_csi_plugin::conformance::WRITER;

use crate::machine::{Machine, StoredVolume, claim};

/// Lives of these lengths meet each fault of each call some times.
const SEEDS: u64 = 3;
const STEPS: u32 = 250;

const CALLS: [&str; 4] = ["NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume"];

const FAULTS: [&str; 12] = [
    "die",
    "after die",
    "close",
    "after close",
    "hang",
    "after hang",
    "nothing",
    "garbage",
    "after truncated",
    "status 13 no mount point",
    "after status 14 later",
    "delay 3",
];

/// Pseudorandom numbers (SplitMix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) % end as u64).unwrap()
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}

struct Life {
    machine: Machine,
    random: Random,
    volumes: BTreeMap<String, StoredVolume>,
    /// Claims whose last operation has succeeded: with the path, or down.
    known: BTreeMap<Claim, Option<PathBuf>>,
    context: String,
}

impl Life {
    async fn step(&mut self) {
        match self.random.below(12) {
            0 => self.machine.restart_agent(),
            1 => self.kill_plugin().await,
            2 => self.reboot().await,
            _ => self.operate().await,
        }
        self.check().await;
    }

    /// Begins or ends the use of a volume.
    async fn operate(&mut self) {
        let usage = self.random.pick(&[WRITER, Usage { writing: Writing::ReadOnly, ..WRITER }]);
        let volume = self.random.pick(&["one", "two"]).to_owned();
        let name = Claim { usage, volume, ..claim(self.random.pick(&["a", "b", "c"])) };
        let begins = self.random.below(2) == 0;
        let fault =
            (self.random.below(2) == 0).then(|| (self.random.pick(&CALLS), self.random.pick(&FAULTS)));
        if let Some((call, fault)) = fault {
            self.machine.running.fail(call, fault);
        }
        self.context =
            format!("{}, {} {name:?}, {fault:?}", self.context, if begins { "up" } else { "down" });
        self.known.remove(&name);
        let pending = fault.map(|(call, _)| self.machine.running.data.join("faults").join(call));
        let is_killed = fault.is_some_and(|(_, fault)| fault.ends_with("hang"));
        let result = {
            let work = self.work(&name, begins);
            tokio::pin!(work);
            loop {
                match tokio::time::timeout(Duration::from_millis(2), &mut work).await {
                    Ok(result) => break Some(result),
                    // The agent is killed while it waits for the plugin.
                    Err(_) if is_killed && pending.as_ref().is_some_and(|pending| !pending.exists()) => {
                        break None;
                    }
                    Err(_) => {}
                }
            }
        };
        let was_met = pending.is_some_and(|pending| fs::remove_file(pending).is_err());
        self.conclude(name, result, fault.filter(|_| was_met)).await;
    }

    async fn work(&self, name: &Claim, begins: bool) -> Result<Option<PathBuf>, VolumeError> {
        match begins {
            true => self.machine.up(name, &self.volumes[&name.volume]).await.map(Some),
            false => self.machine.down(name).await.map(|()| None),
        }
    }

    async fn conclude(
        &mut self,
        name: Claim,
        result: Option<Result<Option<PathBuf>, VolumeError>>,
        fault: Option<(&str, &str)>,
    ) {
        match result {
            Some(Ok(path)) => {
                self.known.insert(name, path);
            }
            Some(Err(error)) => assert!(fault.is_some(), "{}: {error}", self.context),
            None => self.machine.restart_agent(),
        }
        if fault.is_some_and(|(_, fault)| fault.ends_with("die")) {
            self.machine.running.restart().await;
        }
    }

    async fn kill_plugin(&mut self) {
        self.machine.running.child.kill().unwrap();
        self.machine.running.restart().await;
    }

    /// Mounts and processes are gone, files are not.
    async fn reboot(&mut self) {
        self.machine.running.child.kill().unwrap();
        let root = &self.machine.root;
        let parent = Dir::open(root.parent().unwrap()).unwrap();
        kernel::unmount_below(&parent, root.file_name().unwrap()).unwrap();
        self.machine.running.restart().await;
        self.machine.restart_agent();
        self.known.retain(|_, path| path.is_none());
    }

    async fn check(&self) {
        for (name, path) in &self.known {
            let expected = path.clone().map_or(Presence::Absent, Presence::Published);
            let found = self.machine.volumes.inspect(name).await.unwrap();
            assert_eq!(found, expected, "{}: {name:?}", self.context);
            let Some(path) = path else { continue };
            let content = fs::read_to_string(path.join("name")).unwrap_or_default();
            assert_eq!(content, name.volume, "{}: {name:?}", self.context);
        }
    }
}

#[tokio::test]
async fn volumes_live_through_random_faults() {
    for seed in 0..SEEDS {
        let Some(machine) = Machine::start(&[]).await else { return };
        let mut volumes = BTreeMap::new();
        for name in ["one", "two"] {
            let stored = machine.create(name).await;
            let setup = Claim { volume: name.to_owned(), ..claim("setup") };
            let path = machine.up(&setup, &stored).await.unwrap();
            fs::write(path.join("name"), name).unwrap();
            machine.down(&setup).await.unwrap();
            volumes.insert(name.to_owned(), stored);
        }
        let context = String::new();
        let mut life = Life { machine, random: Random(seed), volumes, known: BTreeMap::new(), context };
        for step in 0..STEPS {
            life.context = format!("seed {seed}, step {step}");
            life.step().await;
        }
        for left in life.machine.volumes.claims().await.unwrap() {
            life.machine.down(&left).await.unwrap_or_else(|error| panic!("seed {seed}, {left:?}: {error}"));
        }
        life.machine.assert_clean(&format!("seed {seed}"));
    }
}
