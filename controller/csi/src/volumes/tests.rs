//! Names of directories.

use super::{
    Claim,
    paths::{self, PluginRoot, decode, encode},
};
use crate::capability::Usage;

fn claim(namespace: &str, volume: &str) -> Claim {
    Claim {
        alloc: "a1".to_owned(),
        namespace: namespace.to_owned(),
        volume: volume.to_owned(),
        usage: Usage::from_name("rw-file-system-single-node-writer").expect("a name of a use"),
    }
}

#[test]
fn names_are_single_components_and_can_be_read_back() {
    for (name, component) in [
        ("data", "data"),
        ("data[0]", "data[0]"),
        ("v1.2_x-y", "v1.2_x-y"),
        ("../../etc", "..%2F..%2Fetc"),
        (".", "%2E"),
        ("..", "%2E%2E"),
        ("", "%"),
        ("100%", "100%25"),
        ("grün", "gr%C3%BCn"),
        ("a\n", "a%0A"),
    ] {
        assert_eq!((encode(name).as_str(), decode(component).as_deref()), (component, Some(name)));
    }
    for foreign in ["%2e", "%zz", "%4", "a/b", "a b", "..", "%41"] {
        assert_eq!(decode(foreign), None, "{foreign}");
    }
}

#[test]
fn paths_contain_every_part_of_the_identity() {
    let root = PluginRoot { host: "/state/csi/node/p".into(), inside: "/local/csi/".to_owned() };
    let inside = root.inside(&claim("default", "data[0]"));
    assert_eq!(inside.staging, "/local/csi/staging/default/data[0]/rw-file-system-single-node-writer");
    let target = "per-alloc/a1/default/data[0]/rw-file-system-single-node-writer/target";
    assert_eq!(inside.target, format!("/local/csi/{target}"));
    assert_eq!(root.target(&claim("default", "data[0]")), root.host.join(target));
    assert_ne!(paths::staging(&claim("a", "data")), paths::staging(&claim("b", "data")));
    assert_ne!(paths::directory(&claim("a", "data")), paths::directory(&claim("b", "data")));
}
