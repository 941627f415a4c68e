//! The section `http`: what the HTTP APIs on TCP have in common, whichever address they are served on.
//!
//! In: the section of a config file, checked. Out: [`Http`], in which nothing is left open.

use herdlet_base::authority::Authority;
use schemars::JsonSchema;
use serde::Deserialize;

/// What a config file may say of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Section {
    /// Names under which the APIs are called beside this machine's, and whose web pages may call them: HOST, HOST:PORT, or * for any name.
    pub allowed_hosts: Vec<String>,
    /// Connections that one address may have on each listener; 0: as many as there are.
    pub max_conns_per_client: Option<usize>,
}

/// What all HTTP APIs on TCP have in common.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Http {
    /// Names beside this machine's.
    pub allowed_hosts: Vec<String>,
    /// Connections of one address on each listener; 0: no bound of its own.
    pub max_conns_per_client: usize,
}

impl Section {
    /// What the types can't say: problems by path within the section.
    pub(super) fn problems(&self) -> Vec<(String, String)> {
        let wrong = self.allowed_hosts.iter().enumerate().filter(|(_, entry)| !is_entry(entry));
        wrong
            .map(|(index, entry)| {
                let message = format!("expected HOST, HOST:PORT or *, found \"{entry}\"");
                (format!("allowed_hosts[{index}]"), message)
            })
            .collect()
    }

    /// What it comes to.
    pub(super) fn settled(self) -> Http {
        let max_conns_per_client = self.max_conns_per_client.unwrap_or(PER_PEER_MAX);
        Http { allowed_hosts: self.allowed_hosts, max_conns_per_client }
    }
}

/// As many as Nomad gives an address by default.
pub const PER_PEER_MAX: usize = 100;

/// Whether an entry of `allowed_hosts` makes sense.
fn is_entry(entry: &str) -> bool {
    entry == ANY_HOST || Authority::parse(entry).is_some()
}

/// The entry of `allowed_hosts` that stands for every name; pages of other origins stay what they are.
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
