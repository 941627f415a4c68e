//! The section `http`: settings of all HTTP APIs on TCP.
//!
//! In: the section of a config file, checked. Out: [`Http`], with all defaults filled in.

use herdlet_base::authority::Authority;
use schemars::JsonSchema;
use serde::Deserialize;

/// The section of a config file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Section {
    /// Host names of the APIs besides this machine's, whose web pages may also call the APIs: HOST,
    /// HOST:PORT, or * for any.
    pub allowed_hosts: Vec<String>,
    /// Maximum number of connections from one address on each listener; 0 means unlimited.
    pub max_conns_per_client: Option<usize>,
}

/// The settings of all HTTP APIs on TCP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Http {
    /// Host names besides this machine's.
    pub allowed_hosts: Vec<String>,
    /// Maximum number of connections from one address on each listener; 0 means unlimited.
    pub max_conns_per_client: usize,
}

impl Section {
    /// Checks what the types can't express. Returns problems by path within the section.
    pub(super) fn problems(&self) -> Vec<(String, String)> {
        let invalid = self.allowed_hosts.iter().enumerate().filter(|(_, entry)| !is_entry(entry));
        invalid
            .map(|(index, entry)| {
                let message = format!("expected HOST, HOST:PORT or *, found \"{entry}\"");
                (format!("allowed_hosts[{index}]"), message)
            })
            .collect()
    }

    /// Fills in the defaults.
    pub(super) fn settled(self) -> Http {
        let max_conns_per_client = self.max_conns_per_client.unwrap_or(PER_PEER_MAX);
        Http { allowed_hosts: self.allowed_hosts, max_conns_per_client }
    }
}

/// The default maximum per address, as in Nomad.
pub const PER_PEER_MAX: usize = 100;

/// Returns whether an entry of `allowed_hosts` is valid.
fn is_entry(entry: &str) -> bool {
    entry == ANY_HOST || Authority::parse(entry).is_some()
}

/// The entry of `allowed_hosts` that allows every host name. It does not allow pages of other origins.
pub const ANY_HOST: &str = "*";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_of_the_config_make_sense_or_are_refused() {
        for entry in ["*", "nomad.example.org", "ui.example:8443", "10.0.0.1", "[::1]:80"] {
            assert!(is_entry(entry), "{entry}");
        }
        for entry in ["", "http://a", "a/b", "*.example.org", "a b", "a:b"] {
            assert!(!is_entry(entry), "{entry}");
        }
    }
}
