//! A stock `nomad` program.
//!
//! In: its path. Out: its version, as it reports it.

use std::{
    fmt,
    path::{Path, PathBuf},
    process::Command,
};

/// A release: major, minor, patch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u32, pub u32, pub u32);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.0, self.1, self.2)
    }
}

/// A program that is server, client and command line.
#[derive(Debug, Clone)]
pub struct Program {
    pub path: PathBuf,
    pub version: Version,
}

impl Program {
    /// Runs the program at `path` to get its version.
    ///
    /// # Errors
    /// Its output if that is not a version.
    pub fn ask(path: &Path) -> Result<Self, String> {
        let path = path.canonicalize().map_err(|error| format!("{}: {error}", path.display()))?;
        let output = Command::new(&path).arg("version").output();
        let output = output.map_err(|error| format!("{}: {error}", path.display()))?;
        let printed = String::from_utf8_lossy(&output.stdout);
        let version = version(&printed)
            .ok_or_else(|| format!("{} is not a nomad program: {printed}", path.display()))?;
        Ok(Self { path, version })
    }
}

/// Parses `Nomad v1.6.5 (…)` or `Nomad v2.0.5-dev`.
fn version(output: &str) -> Option<Version> {
    let text = output.trim_start().strip_prefix("Nomad v")?;
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let mut parts = text.get(..end)?.split('.').map(str::parse);
    Some(Version(parts.next()?.ok()?, parts.next()?.ok()?, parts.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_read_and_compared() {
        assert_eq!(version("Nomad v1.6.5\n"), Some(Version(1, 6, 5)));
        assert_eq!(version("Nomad v2.0.5-dev (abc)"), Some(Version(2, 0, 5)));
        assert_eq!(version("Consul v1.6.5"), None);
        assert!(Version(1, 10, 0) > Version(1, 9, 9));
    }
}
