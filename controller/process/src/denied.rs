//! Users and groups as which tasks may not run, by their numbers: options of a driver.

use std::{num::ParseIntError, ops::RangeInclusive};

use herdlet_base::user::Credentials;
use herdlet_driver::{DriverError, DriverResult};

/// The user that Nomad denies by default.
const ROOT: &str = "root";

/// The denied ids.
#[derive(Debug, Default)]
pub(crate) struct Denied {
    driver: &'static str,
    names: Vec<String>,
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
    pub(crate) fn of(
        driver: &'static str,
        denied_host_uids: Option<&str>,
        denied_host_gids: Option<&str>,
    ) -> Result<Self, InvalidIds> {
        Ok(Self {
            driver,
            names: Vec::new(),
            users: Ids::parse("denied_host_uids", denied_host_uids)?,
            groups: Ids::parse("denied_host_gids", denied_host_gids)?,
        })
    }

    /// Denies users by their names, too; `root` if none are given.
    #[must_use]
    pub(crate) fn with_names(self, names: Option<&[String]>) -> Self {
        Self { names: names.map_or_else(|| vec![ROOT.to_owned()], <[String]>::to_vec), ..self }
    }

    /// Checks the user of a task, under the name that the task gives it and its own.
    ///
    /// # Errors
    /// If it is denied; the task fails.
    pub(crate) fn check_user(&self, name: &str, user: &Credentials) -> DriverResult<()> {
        let is_denied =
            |denied: &String| denied == name || *denied == user.login.name || denied == ROOT && user.uid == 0;
        if self.names.iter().any(is_denied) {
            return Err(DriverError::fatal(format!(
                "running as user {name:?} is disallowed; `drivers.{}.denied_users` of the agent's config denies it",
                self.driver
            )));
        }
        let gids: Vec<u32> = user.groups.iter().copied().chain([user.gid]).collect();
        self.check(user.uid, &gids)
    }

    /// Checks the user and the groups of a task.
    ///
    /// # Errors
    /// If one of them is denied; the task fails.
    pub(crate) fn check(&self, uid: u32, gids: &[u32]) -> DriverResult<()> {
        if self.users.has(uid) {
            return Err(DriverError::fatal(format!(
                "run as uid {uid}: drivers.{}.denied_host_uids of the agent's config denies it",
                self.driver
            )));
        }
        match gids.iter().find(|gid| self.groups.has(**gid)) {
            Some(gid) => Err(DriverError::fatal(format!(
                "run as gid {gid}: drivers.{}.denied_host_gids of the agent's config denies it",
                self.driver
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
        let of = |uids| Denied::of("raw_exec", Some(uids), Some("7"));
        let denied = of("0, 100-199,").unwrap();
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
            let error = of(ids).unwrap_err().to_string();
            assert!(error.starts_with("denied_host_uids: "), "{error}");
        }
        assert!(Denied::default().check(0, &[0]).is_ok());
    }
}
