//! Checks of single values.

use std::{collections::BTreeSet, path::Path};

use super::log_filter;

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

/// Returns the problem with the name of a cgroup.
pub(super) fn cgroup_parent_problem(parent: &str) -> Option<String> {
    let part =
        |part: &str| !part.is_empty() && part != "." && part != ".." && !part.contains(char::is_control);
    let plain = parent.trim_start_matches('/');
    (!plain.split('/').all(part))
        .then(|| format!("expected a cgroup such as herdlet or machine.slice/herdlet, found \"{parent}\""))
}

/// Returns the problem with a log filter.
pub(super) fn filter_problem(filter: &str) -> Option<String> {
    log_filter::check_directives(filter).err()
}
