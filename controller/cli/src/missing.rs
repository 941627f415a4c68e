//! Targets of `herdlet get` that are not there.

/// What a target is that isn't there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Missing {
    IsWrong,
    /// It was there before.
    IsGone,
}

impl Missing {
    /// The first of these targets that isn't there, where that is a slip.
    pub(super) fn among(self, targets: &[String], is_there: impl Fn(&str) -> bool) -> Option<&String> {
        let missing = targets.iter().find(|target| !is_there(target));
        missing.filter(|_| self == Self::IsWrong)
    }
}
