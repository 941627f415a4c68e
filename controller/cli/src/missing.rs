//! Targets of `herdlet get` that don't exist.

/// The meaning of a target that does not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Missing {
    IsWrong,
    /// The object existed before and was removed.
    IsGone,
}

impl Missing {
    /// The first target that does not exist, if that is an error.
    pub(super) fn among(self, targets: &[String], is_there: impl Fn(&str) -> bool) -> Option<&String> {
        let missing = targets.iter().find(|target| !is_there(target));
        missing.filter(|_| self == Self::IsWrong)
    }
}
