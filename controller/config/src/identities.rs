//! The section `identities`: the tokens that this agent signs for tasks.
//!
//! In: the section of a config file. Out: an [`Issuer`], or problems.

use std::collections::BTreeMap;

use herdlet_plan::identity_claims::Issuer;
use schemars::JsonSchema;
use serde::Deserialize;

/// The section of a config file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Section {
    /// The URL of the issuer, for OpenID Connect: others find the keys below it.
    pub oidc_issuer: Option<String>,
    /// Claims of all tokens. Values may contain `${job.id}`, `${node.id}` and the like.
    pub extra_claims: BTreeMap<String, String>,
    /// Claims that jobs may ask for with `extra_claims`.
    pub optional_extra_claims: BTreeMap<String, String>,
}

/// Claims are sent with each request.
const CLAIMS_MAX: usize = 64;

impl Section {
    /// Checks what the types can't express. Returns problems by field.
    pub(super) fn problems(&self) -> Vec<(&'static str, String)> {
        let is_url = |issuer: &String| {
            let rest = issuer.strip_prefix("https://").or_else(|| issuer.strip_prefix("http://"));
            let is_plain = |char: char| char.is_ascii_graphic() && !matches!(char, '?' | '#' | '"' | '\\');
            rest.is_some_and(|rest| !rest.is_empty() && !rest.starts_with('/') && rest.chars().all(is_plain))
        };
        let issuer = self.oidc_issuer.iter().filter(|issuer| !is_url(issuer));
        let issuer = issuer.map(|issuer| {
            let message =
                format!("must be a URL such as https://id.example.com, without query, found {issuer:?}");
            ("oidc_issuer", message)
        });
        let claims =
            [("extra_claims", &self.extra_claims), ("optional_extra_claims", &self.optional_extra_claims)];
        let claims = claims.into_iter().filter(|(_, claims)| {
            claims.len() > CLAIMS_MAX || claims.keys().any(|name| name.trim().is_empty())
        });
        let claims = claims.map(|(at, _)| (at, format!("must be at most {CLAIMS_MAX} claims with names")));
        issuer.chain(claims).collect()
    }

    /// Fills in the defaults.
    pub(super) fn settled(self) -> Issuer {
        Issuer {
            url: self.oidc_issuer,
            extra_claims: self.extra_claims,
            optional_extra_claims: self.optional_extra_claims,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_issuer_is_a_url() {
        let problems = |issuer: &str| {
            Section { oidc_issuer: Some(issuer.to_owned()), ..Section::default() }.problems().len()
        };
        for good in ["https://id.example.com", "http://10.0.0.7:4646", "https://a/b/"] {
            assert_eq!(problems(good), 0, "{good}");
        }
        for bad in [
            "",
            "id.example.com",
            "https://",
            "https:///a",
            "ftp://a",
            "https://a b",
            "https://a?b",
            "https://a#b",
        ] {
            assert_eq!(problems(bad), 1, "{bad}");
        }
        let unnamed =
            Section { extra_claims: [(" ".to_owned(), "x".to_owned())].into(), ..Section::default() };
        assert_eq!(unnamed.problems().len(), 1);
    }
}
