//! Users and groups as which tasks may not run: options of the driver.

use std::{num::ParseIntError, ops::RangeInclusive};

use herdlet_api_types::driver::RawExecOptions;
use herdlet_driver::{DriverError, DriverResult};

/// The denied ids.
#[derive(Debug, Default)]
pub(super) struct Denied {
    users: Ids,
    groups: Ids,
}

/// A list of ids and ranges of ids, such as `0,100-199`.
#[derive(Debug, Default)]
struct Ids(Vec<RangeInclusive<u32>>);

/// Why options are invalid.
#[derive(Debug, thiserror::Error)]
#[error("{option}: \"{text}\" is no id and no range of ids such as 100-199")]
pub struct InvalidIds {
    option: &'static str,
    text: String,
}

impl Denied {
    /// # Errors
    /// If a list has something else than ids and ranges.
    pub(super) fn of(options: &RawExecOptions) -> Result<Self, InvalidIds> {
        let RawExecOptions { enabled: _, denied_host_uids, denied_host_gids } = options;
        Ok(Self {
            users: Ids::parse("denied_host_uids", denied_host_uids.as_deref())?,
            groups: Ids::parse("denied_host_gids", denied_host_gids.as_deref())?,
        })
    }

    /// Checks the user and the groups of a task.
    ///
    /// # Errors
    /// If one of them is denied; the task fails.
    pub(super) fn check(&self, uid: u32, gids: &[u32]) -> DriverResult<()> {
        if self.users.has(uid) {
            return Err(DriverError::fatal(format!(
                "run as uid {uid}: drivers.raw_exec.denied_host_uids of the agent's config denies it"
            )));
        }
        match gids.iter().find(|gid| self.groups.has(**gid)) {
            Some(gid) => Err(DriverError::fatal(format!(
                "run as gid {gid}: drivers.raw_exec.denied_host_gids of the agent's config denies it"
            ))),
            None => Ok(()),
        }
    }
}

impl Ids {
    fn parse(option: &'static str, text: Option<&str>) -> Result<Self, InvalidIds> {
        let range = |text: &str| -> Result<RangeInclusive<u32>, ParseIntError> {
            let (first, last) = text.split_once('-').unwrap_or((text, text));
            Ok(first.trim().parse()?..=last.trim().parse()?)
        };
        let items = text.unwrap_or_default().split(',').map(str::trim).filter(|item| !item.is_empty());
        let invalid = |item: &str| InvalidIds { option, text: item.to_owned() };
        let ranges =
            items.map(|item| range(item).ok().filter(|ids| !ids.is_empty()).ok_or_else(|| invalid(item)));
        ranges.collect::<Result<_, _>>().map(Self)
    }

    fn has(&self, id: u32) -> bool {
        self.0.iter().any(|range| range.contains(&id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_and_ranges_are_denied() {
        let options = |uids: &str| RawExecOptions {
            denied_host_uids: Some(uids.to_owned()),
            denied_host_gids: Some("7".to_owned()),
            ..RawExecOptions::default()
        };
        let denied = Denied::of(&options("0, 100-199,")).unwrap();
        for (uid, gids, is_denied) in [
            (0, &[1][..], true),
            (100, &[1], true),
            (199, &[1], true),
            (200, &[1], false),
            (1, &[1, 7], true),
        ] {
            assert_eq!(denied.check(uid, gids).is_err(), is_denied, "{uid} {gids:?}");
        }
        for ids in ["x", "9-1", "-1", "1-"] {
            let error = Denied::of(&options(ids)).unwrap_err().to_string();
            assert!(error.starts_with("denied_host_uids: "), "{error}");
        }
        assert!(Denied::default().check(0, &[0]).is_ok());
    }
}
