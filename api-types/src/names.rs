//! Rules for the names of jobs, namespaces, groups, tasks, volumes, services and clusters: one rule each, for manifests and for the
//! jobs of servers.
//!
//! In: a name. Out: what is wrong with it. The rules are Nomad's
//! (`nomad/structs/structs.go`, `Job.Validate`, `Task.Validate`, `Namespace.Validate`, `Service.ValidateName`), with
//! one addition: what a terminal, a path or a URL could misread is refused.

use std_alloc::{format, string::String};

/// Longest job id in bytes.
pub const JOB_BYTES_MAX: usize = 255;
/// Longest name of a namespace in bytes.
pub const NAMESPACE_BYTES_MAX: usize = 128;
/// Longest name of a group, a task or a volume in bytes.
pub const PART_BYTES_MAX: usize = 128;
/// Longest name of a service in bytes: a DNS label (RFC 1035 §2.3.4).
pub const SERVICE_BYTES_MAX: usize = 63;

/// Longest name of a host in bytes: the kernel takes 64, and a label of DNS has 63.
pub const HOST_BYTES_MAX: usize = 63;
/// Longest name of a Consul or a Vault in bytes.
pub const CLUSTER_BYTES_MAX: usize = 64;

/// What a name is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameKind {
    /// The id of a job.
    Job,
    /// A namespace.
    Namespace,
    /// A group, a task or a volume: the name of a directory, or a part of one.
    Part,
    /// A service.
    Service,
    /// A host: labels of DNS, separated by dots (RFC 1123 §2.1).
    Host,
    /// A Consul or a Vault in the agent's config, or a namespace or a partition of one. Names of identities contain it: `consul_NAME`.
    Cluster,
}

impl NameKind {
    /// What is wrong with a name, as the end of a sentence; none if it is valid.
    pub fn problem(self, name: &str) -> Option<&'static str> {
        match self {
            Self::Job => problem_of_job(name),
            Self::Namespace => {
                let fits = (1..=NAMESPACE_BYTES_MAX).contains(&name.len())
                    && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
                (!fits).then_some("must be 1 to 128 letters (a-z, A-Z), digits and dashes")
            }
            Self::Part => problem_of_part(name),
            Self::Service => {
                let fits = (1..=SERVICE_BYTES_MAX).contains(&name.len())
                    && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
                    && !name.starts_with('-')
                    && !name.ends_with('-');
                (!fits).then_some(SERVICE_RULE)
            }
            Self::Host => {
                let is_label = |label: &str| Self::Service.accepts(label);
                let fits = name.len() <= HOST_BYTES_MAX && name.split('.').all(is_label);
                (!fits).then_some(HOST_RULE)
            }
            Self::Cluster => {
                let fits = (1..=CLUSTER_BYTES_MAX).contains(&name.len())
                    && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte));
                (!fits).then_some("must be 1 to 64 letters, digits, `_` and `-`")
            }
        }
    }

    /// Whether a name is valid.
    pub fn accepts(self, name: &str) -> bool {
        self.problem(name).is_none()
    }
}

/// The rule for names of hosts, as the end of a sentence.
const HOST_RULE: &str = "must be 1 to 63 letters (a-z, A-Z), digits, dashes and dots; no part between dots may be empty, or begin or end with a dash";

/// The rule for names of services, as the end of a sentence.
pub const SERVICE_RULE: &str =
    "must be valid per RFC 1123: 1 to 63 letters (a-z, A-Z), digits and dashes, with no dash at either end";

const UNSAFE: &str = "must not contain control characters or marks of the writing direction";

fn problem_of_job(id: &str) -> Option<&'static str> {
    if id.is_empty() {
        Some("must not be empty")
    } else if id.len() > JOB_BYTES_MAX {
        Some("must have at most 255 bytes")
    } else if id.contains(is_unsafe) {
        Some(UNSAFE)
    } else if id.contains(char::is_whitespace) {
        Some("must not contain spaces")
    } else if id.split('/').any(|part| matches!(part, "" | "." | "..")) {
        Some("must not have an empty part, `.` or `..` between slashes")
    } else {
        None
    }
}

fn problem_of_part(name: &str) -> Option<&'static str> {
    if name.is_empty() {
        Some("must not be empty")
    } else if name.len() > PART_BYTES_MAX {
        Some("must have at most 128 bytes")
    } else if name.contains(is_unsafe) {
        Some(UNSAFE)
    } else if name.contains(['/', '\\']) {
        Some("must not contain `/` or `\\`")
    } else if matches!(name, "." | "..") {
        Some("must not be `.` or `..`")
    } else {
        None
    }
}

/// A text as one word for a shell: in quotes if it has characters that a shell could interpret. Brackets stay, because
/// names of allocations have them and no shell expands them in a word that matches no file.
pub fn shell_word(text: String) -> String {
    let is_plain = |char: char| char.is_alphanumeric() || "_-./:@%+=,[]".contains(char);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text;
    }
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// Whether a character could change what surrounds it on a terminal: control characters, line separators, and marks of the
/// writing direction (Unicode UAX #9).
fn is_unsafe(char: char) -> bool {
    char.is_control()
        || matches!(
            char,
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNSAFE: [&str; 7] =
        ["a\0b", "a\nb", "a\x1b[2Jb", "a\u{7f}", "a\u{202e}b", "\u{2066}a", "a\u{2028}b"];

    #[test]
    fn job_ids_are_those_of_nomad_that_a_path_can_hold() {
        let longest = "é".repeat(JOB_BYTES_MAX / 2);
        for good in
            ["web", "Probe_EU/blue.1", "-x", "a:b", "ü", "a..b", "...", "a%2Fb", "a?b#c", "x[0]", &longest]
        {
            assert!(NameKind::Job.accepts(good), "{good}");
        }
        let long = "x".repeat(JOB_BYTES_MAX + 1);
        for bad in ["", " ", "a b", "a\u{a0}b", ".", "..", "a/../b", "/a", "a/", "a//b", &long] {
            assert!(!NameKind::Job.accepts(bad), "{bad}");
        }
        UNSAFE.iter().for_each(|bad| assert!(!NameKind::Job.accepts(bad), "{bad:?}"));
    }

    #[test]
    fn namespaces_are_those_of_nomad() {
        let longest = "N".repeat(NAMESPACE_BYTES_MAX);
        for good in ["default", "TeamA", "-", "a-1", &longest] {
            assert!(NameKind::Namespace.accepts(good), "{good}");
        }
        let long = "n".repeat(NAMESPACE_BYTES_MAX + 1);
        for bad in ["", "*", "a_b", "a.b", "a/b", "a b", "ü", &long] {
            assert!(!NameKind::Namespace.accepts(bad), "{bad}");
        }
    }

    #[test]
    fn names_of_clusters_are_parts_of_names_of_identities() {
        let longest = "c".repeat(CLUSTER_BYTES_MAX);
        for good in ["default", "eu-1", "_", &longest] {
            assert!(NameKind::Cluster.accepts(good), "{good}");
        }
        let long = "c".repeat(CLUSTER_BYTES_MAX + 1);
        for bad in ["", "a b", "a/b", "a.b", "\u{fc}", &long] {
            assert!(!NameKind::Cluster.accepts(bad), "{bad}");
        }
    }

    #[test]
    fn names_of_groups_and_tasks_can_be_directories() {
        let longest = "é".repeat(PART_BYTES_MAX / 2);
        for good in ["Front_end", "api_v2.x", "a b", "-x", ".hidden", "...", "%41", "alloc", "ü", &longest] {
            assert!(NameKind::Part.accepts(good), "{good}");
        }
        let long = "x".repeat(PART_BYTES_MAX + 1);
        for bad in ["", ".", "..", "a/b", "a\\b", "/", &long] {
            assert!(!NameKind::Part.accepts(bad), "{bad}");
        }
        UNSAFE.iter().for_each(|bad| assert!(!NameKind::Part.accepts(bad), "{bad:?}"));
    }

    #[test]
    fn name_is_quoted_for_the_shell() {
        for (name, word) in [
            ("web", "web"),
            ("Team_A/web.api[0]", "Team_A/web.api[0]"),
            ("a b", "'a b'"),
            ("x;reboot", "'x;reboot'"),
            ("$(id)", "'$(id)'"),
            ("it's", "'it'\\''s'"),
            ("", "''"),
        ] {
            assert_eq!(shell_word(name.into()), word);
        }
        let key = |namespace: &str, id: &str| crate::JobKey { namespace: namespace.into(), id: id.into() };
        assert_eq!(key("default", "web").argument(), "web");
        assert_eq!(key("default", "-x").argument(), "default/-x");
        assert_eq!(key("prod", "a&b").argument(), "'prod/a&b'");
    }

    #[test]
    fn names_of_services_are_dns_labels() {
        for good in ["web", "Web-1", "1"] {
            assert!(NameKind::Service.accepts(good), "{good}");
        }
        for bad in ["", "-a", "a-", "a_b", "a.b", "é", &"x".repeat(SERVICE_BYTES_MAX + 1)] {
            assert!(!NameKind::Service.accepts(bad), "{bad}");
        }
    }

    #[test]
    fn names_of_hosts_are_those_of_dns() {
        for good in ["web", "web-1.example.org", "1", &"x".repeat(HOST_BYTES_MAX)] {
            assert!(NameKind::Host.accepts(good), "{good}");
        }
        for bad in ["", ".", "a..b", "a.", "-a", "a-.b", "a_b", "a b", "é", &"x".repeat(HOST_BYTES_MAX + 1)]
        {
            assert!(!NameKind::Host.accepts(bad), "{bad}");
        }
    }
}
