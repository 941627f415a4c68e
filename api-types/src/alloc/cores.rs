//! Cores of the machine that single tasks of an allocation use alone.

use core::fmt;
use std_alloc::collections::BTreeSet;

use serde::{Deserialize, Serialize};

/// Numbers of cores; shown in the kernel's notation: `0-3,8`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CoreSet(pub BTreeSet<u16>);

impl fmt::Display for CoreSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut left = self.0.iter().copied().peekable();
        let mut separator = "";
        while let Some(first) = left.next() {
            let mut last = first;
            while let Some(next) = left.next_if(|next| last.checked_add(1) == Some(*next)) {
                last = next;
            }
            match first == last {
                true => write!(f, "{separator}{first}")?,
                false => write!(f, "{separator}{first}-{last}")?,
            }
            separator = ",";
        }
        Ok(())
    }
}

impl CoreSet {
    /// The largest number that is read; the kernel supports 8,192 cores.
    pub const NUMBER_MAX: u16 = 8_191;

    /// Parses the kernel's notation. `None` if the text has another form, or a number above [`Self::NUMBER_MAX`].
    pub fn parse(text: &str) -> Option<Self> {
        let mut found = BTreeSet::new();
        for part in text.trim().split(',').filter(|part| !part.is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last): (u16, u16) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
            if first > last || last > Self::NUMBER_MAX {
                return None;
            }
            found.extend(first..=last);
        }
        Some(Self(found))
    }

    /// Whether it has no cores.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The cores of one task.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AssignedCores {
    /// Which ones.
    pub cores: CoreSet,
    /// Their clock rate together, in MHz; 0 if unknown.
    pub cpu_mhz: u64,
}

#[cfg(test)]
mod tests {
    use std_alloc::string::ToString as _;

    use super::*;

    #[test]
    fn cores_are_in_the_kernels_notation() {
        for (text, shown) in [("", ""), ("3", "3"), ("0-3,8\n", "0-3,8"), ("8,0,2,1", "0-2,8"), ("4-4", "4")]
        {
            assert_eq!(CoreSet::parse(text).map(|cores| cores.to_string()).as_deref(), Some(shown), "{text}");
        }
        for text in ["x", "3-1", "-1", "1-", "0-8192", "70000"] {
            assert_eq!(CoreSet::parse(text), None, "{text}");
        }
    }
}
