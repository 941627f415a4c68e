//! Secrets of a volume, which can't be printed and are erased from memory when they are dropped.
//!
//! In: names and values from a volume's specification. Out: the same for a request, and texts without them. The copies in
//! an encoded request are not erased.

use std::collections::BTreeMap;

use zeroize::Zeroizing;

/// Neither `Debug` nor `Display`, so no log and no error can contain the values.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secrets(BTreeMap<String, Zeroizing<String>>);

impl Secrets {
    pub fn new(values: impl IntoIterator<Item = (String, String)>) -> Self {
        Self(values.into_iter().map(|(name, value)| (name, Zeroizing::new(value))).collect())
    }

    /// The values, for a request only.
    pub(crate) fn reveal(&self) -> BTreeMap<String, String> {
        self.0.iter().map(|(name, value)| (name.clone(), value.to_string())).collect()
    }

    /// Returns a text of the plugin without the values: a plugin may repeat them in its message.
    pub(crate) fn redact(&self, text: &str) -> String {
        let mut values: Vec<&str> = self.0.values().map(|value| value.as_str()).collect();
        values.retain(|value| !value.is_empty());
        // A value may contain another one.
        values.sort_by_key(|value| std::cmp::Reverse(value.len()));
        values.iter().fold(text.to_owned(), |text, value| text.replace(value, "[secret]"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_lose_all_values() {
        let values = [("user", "adm"), ("password", "adm-42"), ("empty", "")];
        let secrets = Secrets::new(values.map(|(name, value)| (name.to_owned(), value.to_owned())));
        assert_eq!(secrets.redact("login adm:adm-42 failed"), "login [secret]:[secret] failed");
        assert_eq!(Secrets::default().redact("as it is"), "as it is");
        assert_eq!(secrets.reveal().get("password").map(String::as_str), Some("adm-42"));
    }
}
