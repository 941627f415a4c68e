//! Examples of policies and what they grant.

use super::*;

fn acl(rules: &[&str]) -> Acl {
    let policies: Vec<Policy> = rules.iter().map(|rules| Policy::read("p", rules).unwrap()).collect();
    Acl::of(&policies)
}

use Capability as C;

const ALL: [C; 8] = [
    C::ReadJob,
    C::SubmitJob,
    C::GcAllocation,
    C::ReadLogs,
    C::ReadFs,
    C::AllocExec,
    C::AllocNodeExec,
    C::AllocLifecycle,
];

fn granted(acl: &Acl, namespace: &str) -> Vec<C> {
    ALL.into_iter().filter(|capability| acl.allows(namespace, *capability)).collect()
}

#[test]
fn coarse_policies_stand_for_capabilities() {
    for (policy, expected) in [
        ("read", &[C::ReadJob][..]),
        ("write", &[C::ReadJob, C::SubmitJob, C::ReadLogs, C::ReadFs, C::AllocExec, C::AllocLifecycle]),
        ("deny", &[]),
        ("scale", &[]),
        ("list", &[]),
    ] {
        let acl = acl(&[&format!("namespace \"default\" {{ policy = \"{policy}\" }}")]);
        assert_eq!(granted(&acl, "default"), expected, "{policy}");
        assert_eq!(granted(&acl, "other"), [], "{policy}");
    }
    assert_eq!(granted(&acl(&[]), "default"), []);
}

#[test]
fn capabilities_are_added_and_deny_wins() {
    let reader = "namespace \"default\" {\n  policy = \"read\"\n  capabilities = [\"alloc-node-exec\"]\n}";
    let logs = "namespace \"default\" { capabilities = [\"read-logs\", \"of-a-later-release\"] }";
    assert_eq!(granted(&acl(&[reader, logs]), "default"), [C::ReadJob, C::ReadLogs, C::AllocNodeExec]);
    let deny = "namespace \"default\" { capabilities = [\"deny\"] }";
    for rules in [[reader, deny], [deny, reader]] {
        assert_eq!(granted(&acl(&rules), "default"), []);
    }
    let both = "namespace \"default\" {\n policy = \"write\"\n capabilities = [\"deny\"] }";
    assert_eq!(granted(&acl(&[both]), "default"), []);
    // The rule occurs twice in one policy.
    let twice = format!("{reader}\n{logs}");
    assert_eq!(granted(&acl(&[&twice]), "default"), [C::ReadJob, C::ReadLogs, C::AllocNodeExec]);
}

#[test]
fn most_specific_pattern_wins() {
    let acl = acl(&[r#"
        namespace "*"        { policy = "read" }
        namespace "prod-*"   { policy = "deny" }
        namespace "prod-api" { capabilities = ["read-logs"] }
        namespace "*-api"    { capabilities = ["read-fs"] }
        namespace "prod-*-x" { capabilities = ["alloc-exec"] }
    "#]);
    for (namespace, expected) in [
        ("default", &[C::ReadJob][..]),
        ("prod-web", &[]),
        ("prod-api", &[C::ReadLogs]),
        ("test-api", &[C::ReadFs]),
        ("prod-a-x", &[C::AllocExec]),
        ("prod-", &[]),
        ("", &[C::ReadJob]),
    ] {
        assert_eq!(granted(&acl, namespace), expected, "{namespace}");
    }
}

#[test]
fn stars_stand_for_any_characters() {
    for (pattern, name, expected) in [
        ("*", "", true),
        ("a*", "a", true),
        ("a*", "ba", false),
        ("*a", "ba", true),
        ("*a", "ab", false),
        ("a*b*c", "a-b-c", true),
        ("a*b*c", "abc", true),
        ("a*b*c", "acb", false),
        ("a*a", "a", false),
        ("**", "x", true),
        ("a", "a", true),
        ("a", "ab", false),
    ] {
        assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
    }
}

#[test]
fn greatest_access_wins_and_deny_is_greatest() {
    for (rules, node, agent) in [
        (&["node { policy = \"read\" }"][..], Access::Read, Access::Unsaid),
        (&["node { policy = \"write\" }", "node { policy = \"read\" }"], Access::Write, Access::Unsaid),
        (&["node { policy = \"write\" }", "node { policy = \"deny\" }"], Access::Deny, Access::Unsaid),
        (&["agent { policy = \"write\" }\noperator { policy = \"read\" }"], Access::Unsaid, Access::Write),
    ] {
        let acl = acl(rules);
        assert_eq!((acl.node(), acl.agent()), (node, agent), "{rules:?}");
    }
    assert!(Access::Read.reads() && Access::Write.reads() && Access::Write.writes());
    for access in [Access::Unsaid, Access::List, Access::Deny] {
        assert!(!access.reads() && !access.writes(), "{access:?}");
    }
    assert!(!Access::Read.writes());
}

#[test]
fn management_may_do_everything() {
    for acl in [Acl::Management, Acl::Disabled] {
        assert_eq!(granted(&acl, "any"), ALL);
        assert!(acl.node().writes() && acl.agent().writes() && acl.operator().writes());
    }
}

#[test]
fn json_is_a_policy_too() {
    let rules = r#"{
        "namespace": {"default": {"policy": "read", "capabilities": ["read-logs"]}, "x": [{"policy": "deny"}]},
        "node": {"policy": "write"}, "agent": [{"policy": "read"}], "quota": {"policy": "read"}
    }"#;
    let acl = acl(&[rules]);
    assert_eq!(granted(&acl, "default"), [C::ReadJob, C::ReadLogs]);
    assert_eq!((acl.node(), acl.agent()), (Access::Write, Access::Read));
}

#[test]
fn unknown_acl_rules_are_skipped() {
    let rules = r#"
        namespace "default" {
          policy = "read"
          variables {
            path "project/*" { capabilities = ["read", "list"] }
          }
        }
        node_pool "*"      { policy = "read" }
        host_volume "prod*" { policy = "write" }
        plugin  { policy = "list" }
        quota   { policy = "read" }
    "#;
    assert_eq!(granted(&acl(&[rules]), "default"), [C::ReadJob]);
}

#[test]
fn rules_may_stand_on_one_line_or_on_many_and_more_than_once() {
    let rules = "# said first\nnamespace \"a\" { policy = \"read\" capabilities = [\"read-logs\", \"read-fs\",] } // and\n\
         agent { policy = \"write\", }\n/* x\n */ node = { policy = \"read\" }\n\
         namespace \"a\" { capabilities = [\"alloc-exec\"] }\nnamespace = { b = { policy = \"read\" } }";
    let acl = acl(&[rules]);
    assert_eq!(granted(&acl, "a"), [C::ReadJob, C::ReadLogs, C::ReadFs, C::AllocExec]);
    assert_eq!(granted(&acl, "b"), [C::ReadJob]);
    assert_eq!((acl.node(), acl.agent()), (Access::Read, Access::Write));
}

/// An unreadable policy might have denied something.
#[test]
fn unreadable_policy_is_an_error_that_names_it() {
    for rules in [
        "namespace \"default\" { policy = ",
        "namespace \"default\" { policy = 3 }",
        "namespace \"default\" { policy = \"read\" policy = \"write\" }",
        "namespace \"default\" { capabilities = [1] }",
        "namespace \"default\" { capabilities = \"read-job\" }",
        "namespace { policy = \"read\" }",
        "node { policy = \"most\" }",
        "{\"namespace\": 3}",
        "{",
    ] {
        let error = Policy::read("ops", rules).unwrap_err().to_string();
        assert!(error.starts_with("read the ACL policy \"ops\": "), "{rules}: {error}");
    }
    assert!(Policy::read("ops", &" ".repeat(2 << 20)).is_err());
    let error = Policy::read("ops", "node {\n  policy = read\n}").unwrap_err().to_string();
    assert!(error.contains("line 2: expected a value, found `read`"), "{error}");
}
