//! Which cores the tasks of a new allocation use alone. Two live allocations never have the same core.
//!
//! In: a group, the cores that this machine offers, those in use. Out: cores by task. Whether enough are free is a question of
//! capacity ([`super::capacity`]); drivers keep tasks to their cores.

use std_alloc::{collections::BTreeMap, format, string::String, vec::Vec};

use herdlet_api_types::{
    alloc::{AssignedCores, CoreSet},
    job::{Group, Task},
    view::{Reason, Unplaced},
};

/// The cores that tasks may use alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OfferedCores {
    /// These.
    Cores(CoreSet),
    /// The agent can't keep other tasks off a core.
    Unsupported {
        /// The reason, for people.
        why: String,
    },
    /// Servers assign the cores of this machine, so its own jobs get none.
    OfServers,
}

impl OfferedCores {
    /// Which ones.
    ///
    /// # Errors
    /// Why there are none.
    pub fn available(&self) -> Result<&CoreSet, Unplaced> {
        let why = match self {
            Self::Cores(cores) if !cores.is_empty() => return Ok(cores),
            Self::Cores(_) => "the agent's config keeps all cores for the machine",
            Self::Unsupported { why } => why,
            Self::OfServers => "on a node of a cluster only servers assign cores",
        };
        Err(Unplaced {
            reason: Reason::Capacity,
            message: format!("needs cores of its own (`resources.cores`), and there are none: {why}"),
            filtered_by: Vec::new(),
            exhausted: Vec::from([String::from("cores")]),
        })
    }
}

/// Assigns the free cores with the lowest numbers, which are near to each other on most machines. `mhz`: the clock rate of a core.
pub fn assign(group: &Group, free: CoreSet, mhz: u64) -> BTreeMap<String, AssignedCores> {
    let mut free = free.0.into_iter();
    let mut give = |task: &Task| {
        let count = task.resources.cores?;
        let cores = CoreSet(free.by_ref().take(usize::from(count)).collect());
        let cpu_mhz = mhz.saturating_mul(u64::from(count));
        Some((task.name.clone(), AssignedCores { cores, cpu_mhz }))
    };
    group.tasks.iter().filter_map(&mut give).collect()
}

#[cfg(test)]
mod tests {
    use std_alloc::{string::ToString as _, vec};

    use herdlet_api_types::fixture;

    use super::*;

    fn group(cores: &[Option<u16>]) -> Group {
        let names = ["a", "b", "c"];
        let task = |(name, cores): (&&str, &Option<u16>)| {
            let mut task = fixture::task(name);
            task.resources.cores = *cores;
            task
        };
        fixture::group("g", 1, names.iter().zip(cores).map(task).collect())
    }

    #[test]
    fn tasks_get_different_cores() {
        let free = CoreSet([0, 2, 3, 7].into());
        let assigned = assign(&group(&[Some(1), None, Some(2)]), free, 2_000);
        let shown: Vec<_> = assigned
            .iter()
            .map(|(task, given)| (task.as_str(), given.cores.to_string(), given.cpu_mhz))
            .collect();
        assert_eq!(shown, vec![("a", "0".to_string(), 2_000), ("c", "2-3".to_string(), 4_000)]);
    }

    #[test]
    fn a_machine_without_cores_says_why() {
        let why =
            |offered: OfferedCores| offered.available().err().map(|why| why.message).unwrap_or_default();
        assert_eq!(why(OfferedCores::Cores(CoreSet([1].into()))), "");
        for (offered, part) in [
            (OfferedCores::Cores(CoreSet::default()), "the agent's config keeps"),
            (OfferedCores::Unsupported { why: String::from("no cpuset") }, "there are none: no cpuset"),
            (OfferedCores::OfServers, "only servers assign cores"),
        ] {
            let why = why(offered);
            assert!(why.starts_with("needs cores of its own") && why.contains(part), "{why}");
        }
    }
}
