//! Children: jobs created from a periodic or parameterized job, which runs nothing by itself.
//!
//! In: the parent's specification and the request. Out: the child's specification and its id, or why there is none. The
//! caller checks whether a child with that id exists already.

use std_alloc::{collections::BTreeMap, format, string::String, vec::Vec};

use herdlet_api_types::{
    InstanceId, JobKey, UnixNanos,
    job::{Child, Job, Origin, Parameterized, PayloadRule},
};

use crate::hash::Fields;

/// A dispatch request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Dispatch {
    /// Base64 of the payload, already validated by the caller; empty for none.
    pub payload: String,
    /// Meta, merged over the job's own.
    pub meta: BTreeMap<String, String>,
    /// A repeated request with the same token returns the same child; empty for none.
    pub idempotency_token: String,
    /// Becomes part of the child's id; empty for none.
    pub id_prefix: String,
}

impl Dispatch {
    /// Why a job with this block can't be dispatched like this, or `None` if it can.
    pub fn complaint(&self, block: &Parameterized) -> Option<String> {
        match (block.payload, self.payload.is_empty()) {
            (PayloadRule::Required, true) => return Some(String::from("a payload is required")),
            (PayloadRule::Forbidden, false) => return Some(String::from("a payload is not allowed")),
            (PayloadRule::Required, false)
            | (PayloadRule::Forbidden, true)
            | (PayloadRule::Optional, true | false) => {}
        }
        let known = |key: &String| block.meta_required.contains(key) || block.meta_optional.contains(key);
        let unknown: Vec<&str> = self.meta.keys().filter(|key| !known(key)).map(String::as_str).collect();
        if !unknown.is_empty() {
            return Some(format!("the job does not accept meta: {}", unknown.join(", ")));
        }
        let missing = block.meta_required.iter().filter(|key| !self.meta.contains_key(*key));
        let missing: Vec<&str> = missing.map(String::as_str).collect();
        (!missing.is_empty()).then(|| format!("required meta is missing: {}", missing.join(", ")))
    }

    /// The child with this id.
    pub fn child(self, parent: &Job, id: String) -> Job {
        let Self { payload, meta, idempotency_token, id_prefix: _ } = self;
        let mut child = made_of(parent, id, Origin::Dispatch { payload, idempotency_token });
        child.meta.extend(meta);
        child
    }
}

/// The id of a dispatched child: `JOB/dispatch-[PREFIX-]UNIX-HHHHHHHH`. Each `index` is used only once, so the id is
/// unique.
pub fn dispatch_id(
    instance: &InstanceId,
    parent: &JobKey,
    prefix: &str,
    index: u64,
    wall: UnixNanos,
) -> String {
    let mut fields = Fields::default();
    for text in [&*instance.0, &*parent.namespace, &*parent.id] {
        fields.text(text);
    }
    fields.number(index);
    let unique = fields.hex::<4>();
    let dash = if prefix.is_empty() { "" } else { "-" };
    let seconds = wall.0.div_euclid(1_000_000_000);
    format!("{}/dispatch-{prefix}{dash}{seconds}-{unique}", parent.id)
}

/// The child of a periodic job for a moment: `JOB/periodic-UNIX`. The child of a dispatched job inherits its payload.
pub fn launched(parent: &Job, moment: UnixNanos) -> Job {
    let seconds = moment.0.div_euclid(1_000_000_000);
    let origin = parent.child.as_ref().map_or(Origin::Launch, |child| child.origin.clone());
    Job { periodic: None, ..made_of(parent, format!("{}/periodic-{seconds}", parent.id), origin) }
}

fn made_of(parent: &Job, id: String, origin: Origin) -> Job {
    Job { name: id.clone(), id, child: Some(Child { parent: parent.id.clone(), origin }), ..parent.clone() }
}

#[cfg(test)]
mod tests {
    use std_alloc::{string::ToString as _, vec};

    use herdlet_api_types::{fixture, job::JobType};

    use super::*;

    fn parent() -> Job {
        Job {
            meta: [("color".to_string(), "red".to_string()), ("owner".to_string(), "ops".to_string())].into(),
            parameterized: Some(Parameterized {
                payload: PayloadRule::Optional,
                meta_required: vec!["color".to_string()],
                meta_optional: vec!["size".to_string()],
            }),
            ..fixture::job("import", JobType::Batch, vec![fixture::group("g", 1, vec![fixture::task("t")])])
        }
    }

    fn dispatch(payload: &str, meta: &[(&str, &str)]) -> Dispatch {
        Dispatch {
            payload: payload.to_string(),
            meta: meta.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect(),
            ..Dispatch::default()
        }
    }

    #[test]
    fn a_dispatch_brings_what_the_job_says_and_nothing_else() {
        use PayloadRule::{Forbidden, Optional, Required};
        let color: &[(&str, &str)] = &[("color", "blue")];
        for (rule, payload, meta, expected) in [
            (Optional, "", color, None),
            (Optional, "aGk=", color, None),
            (Required, "aGk=", color, None),
            (Required, "", color, Some("a payload is required")),
            (Forbidden, "", color, None),
            (Forbidden, "aGk=", color, Some("a payload is not allowed")),
            (Optional, "", &[], Some("required meta is missing: color")),
            (Optional, "", &[("color", ""), ("size", "2")], None),
            (
                Optional,
                "",
                &[("color", "x"), ("a", "1"), ("b", "2")],
                Some("the job does not accept meta: a, b"),
            ),
        ] {
            let block = Parameterized { payload: rule, ..parent().parameterized.unwrap() };
            let complaint = dispatch(payload, meta).complaint(&block);
            assert_eq!(complaint.as_deref(), expected, "{rule:?} {payload:?} {meta:?}");
        }
    }

    #[test]
    fn a_child_is_its_parent_with_other_meta_and_a_name_of_its_own() {
        let parent = parent();
        let child =
            dispatch("aGk=", &[("color", "blue")]).child(&parent, "import/dispatch-1-00000000".to_string());
        assert_eq!(child.parent_id(), Some("import"));
        assert_eq!(child.dispatched(), Some(("aGk=", "")));
        assert!(parent.makes_children() && !child.makes_children());
        assert_eq!((child.meta["color"].as_str(), child.meta["owner"].as_str()), ("blue", "ops"));
        assert_eq!(
            (child.id.as_str(), child.name.as_str()),
            ("import/dispatch-1-00000000", "import/dispatch-1-00000000")
        );
        assert_eq!(child.groups, parent.groups);
    }

    #[test]
    fn ids_of_dispatches_differ() {
        let instance = InstanceId("0123456789abcdef".to_string());
        let key = parent().key();
        let id =
            |prefix, index| dispatch_id(&instance, &key, prefix, index, UnixNanos(1_700_000_000_999_999_999));
        let (one, two, three) = (id("", 7), id("", 8), id("nightly", 7));
        assert_ne!(one, two);
        assert_eq!(one.len(), "import/dispatch-1700000000-00000000".len());
        assert!(one.starts_with("import/dispatch-1700000000-"), "{one}");
        assert!(three.starts_with("import/dispatch-nightly-1700000000-"), "{three}");
    }
}
