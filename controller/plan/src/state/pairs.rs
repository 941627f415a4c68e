//! Maps with parts as keys, stored as lists of pairs, which every format supports.
//!
//! A pair whose key only a newer release knows is skipped: a record survives a downgrade.

use std_alloc::{collections::BTreeMap, vec::Vec};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::IgnoredAny};

/// Writes a map as a list of pairs.
///
/// # Errors
/// Those of the format.
pub(crate) fn serialize<K: Serialize, V: Serialize, S: Serializer>(
    map: &BTreeMap<K, V>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(map)
}

/// Reads it back.
///
/// # Errors
/// Those of the format.
pub(crate) fn deserialize<'de, K, V, D>(deserializer: D) -> Result<BTreeMap<K, V>, D::Error>
where
    K: Deserialize<'de> + Ord,
    V: Deserialize<'de>,
    D: Deserializer<'de>,
{
    let pairs: Vec<(Key<K>, V)> = Vec::deserialize(deserializer)?;
    let known = |(key, value)| match key {
        Key::Known(key) => Some((key, value)),
        Key::Newer(_) => None,
    };
    Ok(pairs.into_iter().filter_map(known).collect())
}

/// A key that this release may not know.
#[derive(Deserialize)]
#[serde(untagged)]
enum Key<K> {
    Known(K),
    Newer(IgnoredAny),
}

#[cfg(test)]
mod tests {
    use crate::{
        facts::Revision,
        launch::Launch,
        op::{Part, TaskPart},
    };

    #[test]
    fn a_part_of_a_newer_release_is_skipped() {
        let text = r#"{"attempt":2,"revisions":[[{"task":[0,"identity"]},3],[{"task":[1,"unheard_of"]},4],["dir",5]]}"#;
        let launch: Launch = serde_json::from_str(text).expect("a launch");
        let known = [(Part::Dir, Revision(5)), (Part::Task(0, TaskPart::Identity), Revision(3))];
        assert_eq!(launch.revisions, known.into());
        let again = serde_json::to_string(&launch).expect("text");
        assert_eq!(again, r#"{"attempt":2,"revisions":[["dir",5],[{"task":[0,"identity"]},3]]}"#);
    }
}
