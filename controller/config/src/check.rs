//! Checks of single values.

use std::{collections::BTreeSet, path::Path};

/// Parses ports and ranges of ports, separated by commas.
pub(super) fn ports(text: &str) -> Result<BTreeSet<u16>, String> {
    let mut ports = BTreeSet::new();
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        match (first.trim().parse::<u16>(), last.trim().parse::<u16>()) {
            (Ok(first), Ok(last)) if 0 < first && first <= last => ports.extend(first..=last),
            _ => return Err(format!("expected ports such as 22,80,8500-8600, found \"{part}\"")),
        }
    }
    Ok(ports)
}

/// Returns the problem with a relative path.
pub(super) fn not_absolute(path: &Path) -> Option<String> {
    let shown = path.display();
    (!path.is_absolute()).then(|| format!("must be an absolute path, found \"{shown}\""))
}
