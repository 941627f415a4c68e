//! Texts and JSON values that can't be printed, and that are erased from memory when they are dropped.
//!
//! In: tokens, identities, values of secrets. Out: the same, for those that ask by name. They have neither `Debug` nor
//! `Display`, so no log or error can contain them. Copies that the HTTP client and the JSON parser make on the way are not
//! erased.

use std::{
    hash::{Hash, Hasher},
    sync::Arc,
};

use reqwest::header::HeaderValue;
use serde_json::{Map, Value};
use zeroize::{Zeroize as _, Zeroizing};

/// A token or an identity. Clones share one text.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretText(Arc<Zeroizing<String>>);

impl SecretText {
    pub fn new(text: String) -> Self {
        Self(Arc::new(Zeroizing::new(text)))
    }

    /// The text, for the server and for files of the task only.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// The text as a header; `None` if it can't be a token.
    pub(crate) fn header(&self) -> Option<HeaderValue> {
        let text = self.reveal();
        if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return None;
        }
        let mut value = HeaderValue::from_str(text).ok()?;
        value.set_sensitive(true);
        Some(value)
    }
}

impl Hash for SecretText {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.reveal().hash(state);
    }
}

/// A JSON value. Strings in it are erased when it is dropped; names of fields are not.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct SecretValue(Value);

impl SecretValue {
    pub fn new(value: Value) -> Self {
        Self(value)
    }

    /// The value, for templates and files of the task only.
    pub fn reveal(&self) -> &Value {
        &self.0
    }

    /// The field with this name, if this is an object that has it.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name)
    }

    /// Takes a field out; `null` if there is none.
    pub(crate) fn take(&mut self, name: &str) -> Self {
        Self(self.0.get_mut(name).map(Value::take).unwrap_or_default())
    }

    /// Takes a text out.
    pub(crate) fn take_text(&mut self, name: &str) -> Option<SecretText> {
        match self.0.get_mut(name).map(Value::take) {
            Some(Value::String(text)) => Some(SecretText::new(text)),
            _ => None,
        }
    }
}

impl Drop for SecretValue {
    fn drop(&mut self) {
        erase(&mut self.0);
    }
}

/// Recursion is bounded: the parser accepts at most 128 levels.
fn erase(value: &mut Value) {
    match value {
        Value::String(text) => text.zeroize(),
        Value::Array(items) => items.iter_mut().for_each(erase),
        Value::Object(fields) => Map::values_mut(fields).for_each(erase),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::{Debug, Display};

    use serde_json::json;

    use super::*;

    /// `Probe::<T>(…).prints()` is the inherent function if `T` can be printed, and the trait's otherwise.
    struct Probe<T>(std::marker::PhantomData<T>);

    trait Silent {
        fn shows(&self) -> bool {
            false
        }
        fn debugs(&self) -> bool {
            false
        }
    }
    impl<T> Silent for Probe<T> {}
    impl<T: Display> Probe<T> {
        fn shows(&self) -> bool {
            true
        }
    }
    impl<T: Debug> Probe<T> {
        fn debugs(&self) -> bool {
            true
        }
    }

    #[test]
    fn secrets_cannot_be_printed() {
        let text = Probe::<String>(std::marker::PhantomData);
        assert!(text.shows() && text.debugs(), "the probe sees what can be printed");
        let secret = Probe::<SecretText>(std::marker::PhantomData);
        assert!(!secret.shows() && !secret.debugs());
        let value = Probe::<SecretValue>(std::marker::PhantomData);
        assert!(!value.shows() && !value.debugs());
    }

    #[test]
    fn erasing_reaches_every_text() {
        let mut value = json!({ "a": "1", "b": ["2", { "c": "3" }], "d": 4, "e": null });
        erase(&mut value);
        assert_eq!(value, json!({ "a": "", "b": ["", { "c": "" }], "d": 4, "e": null }));
    }

    #[test]
    fn a_header_is_one_visible_word() {
        assert!(
            SecretText::new("hvs.CAES-x_1".to_owned()).header().is_some_and(|value| value.is_sensitive())
        );
        for text in ["", "a b", "a\r\nx-forged: 1", "a\u{e9}"] {
            assert!(SecretText::new(text.to_owned()).header().is_none(), "{text:?}");
        }
    }
}
