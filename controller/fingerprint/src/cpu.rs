//! The CPU topology, which servers from 1.7 on use for placement.
//!
//! In: `/sys/devices/system`. Out: [`Topology`]; a single flat node if the files are incomplete or inconsistent.
//!
//! All cores are reported, and all as [`disable`](Core::disable)d, so that none is reserved for a single task
//! (`resources.cores`), which is not implemented. Cores that this process may not use are reported too: servers before
//! 1.10.1 look cores up by number, and crash if there are too few.
//!
//! Sources: `hashicorp/nomad:scheduler/numa_ce.go` (`Select`), `client/lib/numalib/topology.go` (`UsableCores`).

use std::{collections::BTreeSet, fs, path::Path};

use herdlet_nomad::wire::resources::{Core, Topology};

/// Larger than any machine; higher numbers are considered invalid.
const CORES_MAX: usize = 4_096;

/// The limit if only the number of cores is known.
const FLAT_MAX: u16 = 4_096;

/// The cores of this machine, each with the given frequency.
pub fn topology(mhz: u64) -> Topology {
    read(Path::new("/sys/devices/system"), mhz).unwrap_or_else(|| flat(super::cores().unwrap_or(1), mhz))
}

/// A topology of `count` cores in one node.
fn flat(count: u64, mhz: u64) -> Topology {
    let count = u16::try_from(count).unwrap_or(u16::MAX).clamp(1, FLAT_MAX);
    let core = |id| Core { id, disable: true, guess_speed: mhz, ..Core::default() };
    let cores = (0..count).map(core).collect();
    Topology { nodes: vec![0], distances: vec![vec![10]], cores, ..Topology::default() }
}

fn read(root: &Path, mhz: u64) -> Option<Topology> {
    let text = |path: String| fs::read_to_string(root.join(path)).ok();
    let nodes = match text("node/online".to_owned()) {
        Some(online) => list(&online)?,
        // A kernel without NUMA.
        None => BTreeSet::from([0]),
    };
    // Distances are indexed by node number.
    if nodes.is_empty() || nodes.iter().enumerate().any(|(at, node)| at != usize::from(*node)) {
        return None;
    }
    let (mut cores, mut distances) = (Vec::new(), Vec::new());
    for node in &nodes {
        let node_id = u8::try_from(*node).ok()?;
        let in_node = text(format!("node/node{node}/cpulist"));
        let in_node = in_node.or_else(|| text("cpu/online".to_owned()).filter(|_| nodes.len() == 1))?;
        for id in list(&in_node)? {
            let socket = text(format!("cpu/cpu{id}/topology/physical_package_id"));
            let socket_id = socket.and_then(|id| id.trim().parse().ok()).unwrap_or(0);
            cores.push(Core { socket_id, node_id, id, disable: true, guess_speed: mhz, ..Core::default() });
        }
        let costs = text(format!("node/node{node}/distance")).unwrap_or_else(|| "10".to_owned());
        let costs: Vec<u64> = costs.split_whitespace().map(str::parse).collect::<Result<_, _>>().ok()?;
        if costs.len() != nodes.len() || costs.iter().any(|cost| *cost > 255) {
            return None;
        }
        distances.push(costs);
    }
    cores.sort_by_key(|core| core.id);
    let nodes = nodes.into_iter().map(u8::try_from).collect::<Result<_, _>>().ok()?;
    let is_whole = !cores.is_empty() && cores.len() <= CORES_MAX;
    is_whole.then_some(Topology { nodes, distances, cores, ..Topology::default() })
}

/// Parses a kernel list such as `0-3,8`.
fn list(text: &str) -> Option<BTreeSet<u16>> {
    let mut found = BTreeSet::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
        if first > last || usize::from(last) >= CORES_MAX {
            return None;
        }
        found.extend(first..=last);
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        dir
    }

    #[test]
    fn cores_are_in_nodes_that_are_so_far_from_each_other() {
        let dir = machine(&[
            ("node/online", "0-1\n"),
            ("node/node0/cpulist", "0-1\n"),
            ("node/node1/cpulist", "2-3\n"),
            ("node/node0/distance", "10 21\n"),
            ("node/node1/distance", "21 10\n"),
            ("cpu/cpu2/topology/physical_package_id", "1\n"),
        ]);
        let found = read(dir.path(), 2_000).unwrap();
        assert_eq!((found.nodes, found.distances), (vec![0, 1], vec![vec![10, 21], vec![21, 10]]));
        let cores: Vec<_> = found.cores.iter().map(|core| (core.id, core.node_id, core.socket_id)).collect();
        assert_eq!(cores, [(0, 0, 0), (1, 0, 0), (2, 1, 1), (3, 1, 0)]);
        assert!(found.cores.iter().all(|core| core.guess_speed == 2_000 && core.disable));
    }

    #[test]
    fn partial_topology_is_left_to_servers() {
        let plain = [("node/online", "0"), ("node/node0/cpulist", "0"), ("node/node0/distance", "10")];
        assert!(read(machine(&plain).path(), 1).is_some());
        assert!(read(machine(&[("cpu/online", "0-1")]).path(), 1).is_some());
        for (name, text) in [
            ("node/online", "0,8"),
            ("node/online", "x"),
            ("node/node0/distance", "10 20"),
            ("node/node0/distance", "999"),
            ("node/node0/cpulist", "5-2"),
            ("node/node0/cpulist", "0-99999"),
        ] {
            let changed = plain.map(|(path, plain)| (path, if path == name { text } else { plain }));
            assert!(read(machine(&changed).path(), 1).is_none(), "{name} {text}");
        }
    }

    #[test]
    fn topology_has_cores_and_reserves_none() {
        for found in [topology(1_000), flat(2, 1_000), flat(0, 1_000)] {
            assert!(!found.cores.is_empty() && found.cores.iter().all(|core| core.disable), "{found:?}");
            assert_eq!(found.distances.len(), found.nodes.len());
        }
    }
}
