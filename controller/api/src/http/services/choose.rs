//! Selects a few instances of a service for each caller by rendezvous hashing: Nomad's parameter `choose`.
//!
//! In: `NUMBER|KEY` and instances in JSON. Out: at most this many of them. The same key always selects the same instances. When an
//! instance comes or goes, only the choices that it enters or leaves change. It must not know which instances are healthy.

use std::cmp::Reverse;

use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::super::error::ApiError;

/// The number of instances, and the caller's key.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Choice<'p> {
    number: usize,
    key: &'p str,
}

impl<'p> Choice<'p> {
    /// Parses the parameter; none if it is empty.
    pub(super) fn parse(parameter: &'p str) -> Result<Option<Self>, ApiError> {
        if parameter.is_empty() {
            return Ok(None);
        }
        let choice = parameter.split_once('|').and_then(|(number, key)| {
            let number = number.parse().ok()?;
            (!key.is_empty()).then_some(Self { number, key })
        });
        choice.map(Some).ok_or_else(|| {
            ApiError::bad("failed to choose services: Parameter for choose must be in form '<number>|<key>'")
        })
    }

    /// Selects the instances with the highest weight for the key, in this order.
    pub(super) fn of(&self, mut instances: Vec<Value>) -> Vec<Value> {
        instances.sort_by_cached_key(|one| Reverse(self.weight(one["ID"].as_str().unwrap_or_default())));
        instances.truncate(self.number);
        instances
    }

    fn weight(&self, id: &str) -> [u8; 32] {
        // Ids contain no NUL.
        Sha256::new().chain_update(id).chain_update([0]).chain_update(self.key).finalize().into()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::*;

    fn ids(choice: &Choice<'_>, ids: impl Iterator<Item = u32>) -> Vec<String> {
        let instances = ids.map(|id| json!({ "ID": format!("s{id}") })).collect();
        choice.of(instances).iter().map(|one| one["ID"].as_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn invalid_choice_is_refused_with_nomad_text() {
        for text in ["x", "1", "1|", "|key", "a|key", "-1|key", " 1|key"] {
            let error = Choice::parse(text).unwrap_err();
            assert!(error.to_string().ends_with("must be in form '<number>|<key>'"), "{text}: {error}");
        }
        assert_eq!(Choice::parse("").unwrap(), None);
        assert_eq!(Choice::parse("2|a|b").unwrap(), Some(Choice { number: 2, key: "a|b" }));
    }

    #[test]
    fn chosen_instances_are_stable_for_a_key() {
        let mut chosen = BTreeSet::new();
        for key in ["a", "b", "c", "d", "e", "f", "g", "h"] {
            let choice = Choice { number: 2, key };
            let before = ids(&choice, 0..10);
            assert_eq!(before.len(), 2);
            assert_eq!(before, ids(&choice, (0..10).rev()), "independent of the order");
            let without = ids(&choice, (0..10).filter(|id| *before[0] != format!("s{id}")));
            assert_eq!(without[0], before[1], "only the place of the removed one is reassigned");
            chosen.extend(before);
        }
        assert!(chosen.len() > 4, "keys are spread: {chosen:?}");
        assert_eq!(ids(&Choice { number: 5, key: "a" }, 0..3).len(), 3);
        assert!(ids(&Choice { number: 0, key: "a" }, 0..3).is_empty());
    }
}
