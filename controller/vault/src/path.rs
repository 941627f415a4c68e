//! Paths of secrets, as templates and roles write them.
//!
//! In: text. Out: a path that names one place below `/v1/`, whatever it contains.

use reqwest::Url;

/// The longest path. Vault's own limit for requests is far above.
const BYTES_MAX: usize = 4096;

/// A path without slashes at its ends, with the arguments after a `?`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct VaultPath {
    path: String,
    arguments: Vec<(String, String)>,
}

/// Why a text is no path.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "read the path {0:?}: it must have 1 to {BYTES_MAX} bytes, no segment `.` or `..`, and no control characters"
)]
pub struct PathError(String);

impl VaultPath {
    /// Reads `secret/web` or `secret/web?version=3`. A `%` stands for itself.
    ///
    /// # Errors
    /// If it is empty, too long, or leads elsewhere.
    pub fn parse(text: &str) -> Result<Self, PathError> {
        let (path, query) = text.split_once('?').unwrap_or((text, ""));
        let segments: Vec<&str> = path.split('/').filter(|segment| !segment.is_empty()).collect();
        let leads_elsewhere = segments.iter().any(|segment| matches!(*segment, "." | ".."));
        if segments.is_empty()
            || leads_elsewhere
            || text.len() > BYTES_MAX
            || text.chars().any(char::is_control)
        {
            // Not more of it than a message may have.
            return Err(PathError(text.chars().take(100).collect()));
        }
        let mut arguments = Vec::new();
        if let Ok(mut url) = Url::parse("http://x/") {
            url.set_query(Some(query).filter(|query| !query.is_empty()));
            arguments.extend(url.query_pairs().map(|(name, value)| (name.into_owned(), value.into_owned())));
        }
        Ok(Self { path: segments.join("/"), arguments })
    }

    /// A path of this crate's own, or of a path and a mount that were checked.
    pub(crate) fn of_checked(path: String, arguments: Vec<(String, String)>) -> Self {
        Self { path, arguments }
    }

    /// Without arguments.
    pub fn as_str(&self) -> &str {
        &self.path
    }

    pub fn arguments(&self) -> &[(String, String)] {
        &self.arguments
    }

    /// Its URL below `base`, which may have a path itself.
    pub(crate) fn url(&self, base: &Url) -> Url {
        let mut url = base.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().push("v1").extend(self.path.split('/'));
        }
        if !self.arguments.is_empty() {
            url.query_pairs_mut().extend_pairs(&self.arguments);
        }
        url
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(base: &str, path: &str) -> String {
        VaultPath::parse(path).unwrap().url(&Url::parse(base).unwrap()).to_string()
    }

    #[test]
    fn a_path_is_one_place_below_v1() {
        for (path, expected) in [
            ("secret/web", "http://v/v1/secret/web"),
            ("/secret//web/", "http://v/v1/secret/web"),
            ("secret/a b#c%2e", "http://v/v1/secret/a%20b%23c%252e"),
            ("secret/\u{e9}", "http://v/v1/secret/%C3%A9"),
            ("secret/web?version=3&x=a%20b", "http://v/v1/secret/web?version=3&x=a+b"),
            ("secret/..a", "http://v/v1/secret/..a"),
        ] {
            assert_eq!(url("http://v", path), expected);
        }
        assert_eq!(url("http://v/proxy/vault/", "secret/web"), "http://v/proxy/vault/v1/secret/web");
    }

    #[test]
    fn paths_that_lead_elsewhere_are_refused() {
        for path in ["", "/", "?a=b", "..", "secret/../sys/seal", "./a", "secret/a\nb", "secret/\0"] {
            assert!(VaultPath::parse(path).is_err(), "{path:?}");
        }
        assert!(VaultPath::parse(&"a".repeat(5000)).is_err());
    }

    #[test]
    fn an_encoded_dot_stays_a_name() {
        // Parsers of URLs read `%2e%2e` as `..`.
        assert_eq!(url("http://v", "secret/%2e%2e/sys"), "http://v/v1/secret/%252e%252e/sys");
    }
}
